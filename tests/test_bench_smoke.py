"""Every benchmark runs, and both frameworks compute the same in it: tiny sizes, two rounds."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench"
SHARED = {
    "convolution_error", "gpu", "harness", "limits", "report", "resnet_shapes", "resnet_twin",
    "run", "twin",
}  # fmt: skip
SUBJECTS = sorted(path.stem for path in BENCH.glob("*.py") if path.stem not in SHARED)

pytestmark = [
    pytest.mark.slow,  # each process imports PyTorch
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="the benchmarks need PyTorch"
    ),
]


@pytest.mark.parametrize("subject", SUBJECTS)
def test_runs(subject, tmp_path):
    out = tmp_path / "results.json"
    command = [sys.executable, str(BENCH / f"{subject}.py"), "--quick", "--out", str(out)]
    path = os.pathsep.join(filter(None, sys.path))  # so that it measures the needle under test
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert out.exists()
