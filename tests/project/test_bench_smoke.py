"""Every benchmark runs, and both frameworks compute the same in it: tiny sizes, two rounds."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import needle as ndl

BENCH = Path(__file__).resolve().parents[2] / "bench"
SHARED = {
    "convolution_error", "gpu", "harness", "limits", "product_error", "report", "resnet_shapes",
    "resnet_twin", "run", "timing", "twin",
}  # fmt: skip
SUBJECTS = sorted(path.stem for path in BENCH.glob("*.py") if path.stem not in SHARED)

pytestmark = [
    pytest.mark.slow,  # each process imports PyTorch
    pytest.mark.heavy("bench/*"),
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


def test_the_gpu_bench_runs_in_the_emulator(tmp_path):
    """So that it does not fail for a slip when there is a GPU at last."""
    if not any(d.name == "cuda-emu" and d.enabled() for d in ndl.all_devices()):
        pytest.skip("no compiler for the emulator")
    out = tmp_path / "gpu.json"
    done = subprocess.run(
        [sys.executable, str(BENCH / "gpu.py"), "--device", "cuda-emu", "--quick", str(out)],
        capture_output=True, text=True, env=ndl.config.environment(emulator="on"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(out.read_text())
    assert found["quick"] and found["device"] == "emulator" and found["torch"]
    names = " ".join(found["figures"])
    for part in ("eager x + x", "first use", "cache", "copy", "exp", "sum of rows", "softmax",
                 "layer norm", "float32 product", "bfloat16 product", "MLP step", "ResNet-9 step",
                 "PyTorch"):  # fmt: skip
        assert part in names
    assert all(figure["value"] > 0 for figure in found["figures"].values())
