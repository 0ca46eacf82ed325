"""Which ops a change of a file reaches."""

from __future__ import annotations

import changed
import pytest
import turns

import needle as ndl
from needle import core, ops


def reached(file):
    return {*changed.touched(file)}


def test_a_file_of_ops_reaches_its_own_on_all_devices_and_what_takes_from_it_on_the_first():
    assert reached("python/needle/ops/elementwise/gamma.py") == {
        ("LGamma", "*"),
        ("PolyGamma", "*"),
    }
    taken = reached("python/needle/ops/core/samples.py")
    assert ("Exp", changed.FIRST) in taken and len(taken) == len(ops.all_ops())


def test_other_files_reach_all_ops_on_one_device():
    for file, device in {
        "python/needle/derivatives.py": changed.FIRST,
        "python/needle/ops/core/families.py": changed.FIRST,
        "src/core/node.cc": changed.FIRST,
        "python/needle/backend/numpy.py": "cpu_numpy",
        "python/needle/backend/cuda/kernels/scan.cuh": "cuda-emu",
    }.items():
        assert [*changed.touched(file)] == [("*", device)]
    for file in ("docs/cuda.md", "tests/nn/test_layers.py", "README.md"):
        assert not [*changed.touched(file)]


@pytest.mark.skipif(core.native is None, reason="needs the native module")
@pytest.mark.skipif(not (turns.ROOT / "src/cpu").is_dir(), reason="needs the source of the kernels")
def test_a_kernel_reaches_the_ops_that_call_it():
    found = {name for name, device in changed.touched("src/cpu/index/sort.cc")}
    assert "Sort" in found and len(found) < 10
    assert {"LayerNorm", "RMSNorm"} <= {name for name, _ in changed.touched("src/cpu/norm/norm.cc")}
    assert {"Conv", "Convolution"} <= {name for name, _ in changed.touched("src/cpu/conv/direct.h")}
    assert [*changed.touched("src/cpu/isa/isa.h")] == [("*", changed.FIRST)]
    assert ndl.cpu().backend.core is core.native


def test_rows_of_the_table_of_functions_reach_their_ops(monkeypatch):
    diff = "--- a\n+++ b\n-UNARY(exp, FLOATS, SAME, old(x))\n+UNARY(exp, FLOATS, SAME, new(x))"
    monkeypatch.setattr(turns, "git", lambda *args: diff)
    assert [*changed.touched("src/common/functions.def")] == [("Exp", "*")]
    monkeypatch.setattr(turns, "git", lambda *args: diff + "\n+#define FLOATS")
    assert [*changed.touched("src/common/functions.def")] == [("*", changed.FIRST)]


def test_what_ops_are_not_made_of_reaches_none(monkeypatch):
    monkeypatch.setattr(turns, "changed_files", lambda: ["python/needle/nn/linear.py", "a/b.md"])
    assert not changed.whole.__wrapped__()
    monkeypatch.setattr(turns, "changed_files", lambda: ["python/needle/ops/elementwise/gamma.py"])
    assert {*changed.whole.__wrapped__()} == {("LGamma", "*"), ("PolyGamma", "*")}
