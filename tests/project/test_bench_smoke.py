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
    "convolution_error", "gpu", "harness", "limits", "loader_twin", "product_error", "record",
    "report", "resnet_shapes", "resnet_twin", "run", "sequence_twin", "tables", "timing", "twin",
}  # fmt: skip
SUBJECTS = sorted(path.stem for path in BENCH.glob("*.py") if path.stem not in SHARED)
PARTS = 3
RUN = """
import runpy, sys
bench, out, *subjects = sys.argv[1:]
for subject in subjects:
    sys.argv = [f"{bench}/{subject}.py", "--quick", "--out", f"{out}/{subject}.json"]
    print(sys.argv, file=sys.stderr)
    runpy.run_path(sys.argv[0], run_name="__main__")
"""

pytestmark = [
    pytest.mark.slow,  # each process imports PyTorch
    pytest.mark.heavy("bench/*"),
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="the benchmarks need PyTorch"
    ),
]


@pytest.mark.parametrize("part", range(PARTS))
def test_every_subject_runs(part, tmp_path):
    """In a few processes, because importing PyTorch takes longer than most subjects do."""
    subjects = SUBJECTS[part::PARTS]
    path = os.pathsep.join(filter(None, [str(BENCH), *sys.path]))  # the needle under test
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(BENCH), str(tmp_path), *subjects],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stderr[-2000:]}\nRepeat: python bench/SUBJECT.py --quick"
    assert {path.stem for path in tmp_path.glob("*.json")} == set(subjects)


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
    assert found["quick"] and found["machine"]["cpu"] == "emulator" and found["versions"]["torch"]
    names = " ".join(found["figures"])
    for part in ("eager x + x", "first use", "cache", "copy", "exp", "sum of rows", "softmax",
                 "layer norm", "float32 product", "bfloat16 product", "MLP step", "ResNet-9 step",
                 "PyTorch"):  # fmt: skip
        assert part in names
    assert all(figure["value"] > 0 for figure in found["figures"].values())
