"""Dtypes, memory and exchange as the array API standard has them; other libraries."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import standard as xp
from needle.errors import (
    ArgumentError,
    DtypeError,
    ExchangeError,
    GradientError,
    OptionError,
)

# ---- dtypes ----------------------------------------------------------------------------


def test_values_keep_the_dtype_that_the_standard_gives_them():
    cases = [(True, "bool"), (1, "int64"), (1.0, "float32"), ([1, 2.5], "float32"),
             (np.float64(1), "float64"), (np.ones(2), "float64"), (np.ones(2, "int8"), "int8"),
             (memoryview(b"ab"), "uint8"), ([xp.zeros(2, dtype=xp.int16)], "int16"),
             ([xp.zeros(2, dtype=xp.bfloat16)], "bfloat16")]  # fmt: skip
    for value, kind in cases:
        x = xp.asarray(value)
        assert x.dtype == kind and not x.requires_grad, value
    assert xp.asarray([1, 2], dtype=xp.int8).dtype == "int8"
    for bad in (1j, [2.0, 1j]):
        with pytest.raises(DtypeError, match="complex"):
            xp.asarray(bad)
    with pytest.raises(OverflowError):
        xp.asarray(2**63)
    with pytest.raises(OverflowError):
        xp.asarray([300], dtype=xp.int8)


def test_promotion():
    x = xp.asarray([1, 2], dtype=xp.int8)
    assert xp.result_type(x, xp.uint8, 3) == xp.int16 and xp.result_type(x, 1.0) == xp.float32
    assert xp.result_type(xp.float64, 1) == xp.float64 and xp.result_type(xp.bool, 1) == xp.int64
    for bad in ((1, 2.0), (x, xp.float32)):
        with pytest.raises(DtypeError):
            xp.result_type(*bad)
    assert xp.can_cast(x, xp.int64) and not xp.can_cast(xp.int64, xp.int8)
    assert not xp.can_cast(xp.int8, xp.float32)
    assert xp.isdtype(xp.int8, "signed integer") and xp.isdtype(xp.bool, ("numeric", xp.bool))
    assert not xp.isdtype(xp.bool, "numeric") and not xp.isdtype(xp.float32, "complex floating")
    with pytest.raises(OptionError, match="real floating"):
        xp.isdtype(xp.float32, "real")
    with pytest.raises(DtypeError, match="do not mix"):
        xp.add(x, xp.ones(2))


@looped("kind", ["float32", "float64", "float16", "bfloat16"])
def test_limits_of_floats(kind):
    info = xp.finfo(getattr(xp, kind))
    one = xp.ones((), dtype=kind)
    assert info.dtype == kind and info == xp.finfo(one)
    assert (one + info.eps > one).item() and not (one + info.eps / 2 > one).item()
    assert xp.isfinite(one * info.max).item() and not xp.isfinite(one * info.max * 2).item()
    assert (one * info.smallest_normal > 0).item() and info.min == -info.max
    with pytest.raises(DtypeError, match="not floating"):
        xp.finfo(xp.int8)


def test_limits_of_integers():
    assert (xp.iinfo(xp.uint8).min, xp.iinfo(xp.uint8).max) == (0, 255)
    info = xp.iinfo(xp.asarray(1))
    assert (info.bits, info.max, info.dtype) == (64, 2**63 - 1, xp.int64)
    with pytest.raises(DtypeError, match="not an integer"):
        xp.iinfo(xp.float32)


def test_large_integers_are_exact(device):
    """Kernels take numbers as doubles; integers beyond 2 ** 53 must not go that way."""
    n = 2**62 + 1
    assert xp.full((2,), n, device=device).tolist() == [n, n]
    x = xp.asarray([1], device=device)
    assert (x + 2**62).tolist() == [n] and xp.where(x == 1, n, 0).tolist() == [n]
    x[0] = n
    assert x.tolist() == [n] and xp.full((), -n, device=device).item() == -n
    with pytest.raises(DtypeError, match="300 does not fit into int8"):
        xp.full((3,), 300, dtype=xp.int8, device=device)


# ---- memory ----------------------------------------------------------------------------


def test_asarray_copies_as_told(host_device):
    values = np.arange(6.0).reshape(2, 3)
    shared = xp.asarray(values, copy=False, device=host_device)
    kept = xp.asarray(values, copy=True, device=host_device)
    values[0, 0] = 9
    assert shared[0, 0].item() == 9 and kept[0, 0].item() == 0
    assert xp.asarray(shared) is shared and xp.asarray(shared, copy=True) is not shared
    for bad in (lambda: xp.asarray([1.0], copy=False),
                lambda: xp.asarray(values, dtype=xp.float32, copy=False),
                lambda: xp.asarray(shared, dtype=xp.float32, copy=False),
                lambda: xp.reshape(shared.T, (6,), copy=False)):  # fmt: skip
        with pytest.raises(ValueError, match="copy"):
            bad()
    assert xp.reshape(shared, (6,), copy=False).shape == (6,)
    flat = xp.reshape(shared, (6,), copy=True)
    values[0, 0] = 1
    assert flat[0].item() == 9


def test_dlpack_says_what_it_cannot_do():
    x = xp.ones(3)
    assert x.__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError, match="no streams"):
        x.__dlpack__(stream=2)
    with pytest.raises((BufferError, ValueError)):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(GradientError, match=r"part of a graph; export \.detach"):
        xp.from_dlpack(2 * ndl.Tensor([1.0]))
    for kind in ("float32", "bfloat16", "bool", "int8"):
        y = xp.asarray([1, 0, 1], dtype=kind)
        assert xp.from_dlpack(y).dtype == kind and xp.all(xp.from_dlpack(y, copy=True) == y).item()


# ---- what DLPack cannot carry ----------------------------------------------------------


class Gives:
    """Answers as DLPack asks, with what it was told."""

    def __init__(self, capsule, place=(1, 0)):
        self.capsule, self.place = capsule, place

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self):
        return self.place


def test_negative_strides_are_given_as_a_copy(host_device):
    x = xp.asarray([[1.0, 2.0, 3.0]] * 2, device=host_device)
    for y in (xp.flip(x), xp.flip(x, axis=1), xp.astype(xp.flip(x), xp.bfloat16)[:, ::-1]):
        for version in (None, (1, 0)) if y.dtype != "bfloat16" else ():  # NumPy reads no bfloat16
            given = np.from_dlpack(Gives(y.__dlpack__(max_version=version)))  # with its strides
            assert min(given.strides) > 0 and given.shape == (2, 3)
        with pytest.raises(ExchangeError, match=r"strides(.|\n)*x\.clone\(\)"):
            y.__dlpack__(copy=False)
        assert y.clone().__dlpack__(copy=False)  # which the error advises
        with pytest.raises(BufferError, match="strides"):
            xp.from_dlpack(y, copy=False)
        assert xp.from_dlpack(y).tolist() == y.tolist()
    shared = xp.from_dlpack(x[:, 1:], device=host_device, copy=False)
    assert xp.reshape(shared, (2, 2)).tolist() == [[2.0, 3.0]] * 2


def test_torch_reads_what_is_flipped():
    torch = pytest.importorskip("torch")
    assert torch.from_dlpack(xp.flip(xp.asarray([1.0, 2.0, 3.0]))).tolist() == [3.0, 2.0, 1.0]


def test_what_is_no_capsule():
    used = Gives(np.ones(3).__dlpack__())
    assert xp.from_dlpack(used).shape == (3,)
    wrong = {
        "used_dltensor'; it was used before": used,
        "expected a capsule from __dlpack__, got int": Gives(3),
        "from __dlpack_device__, got 3": Gives(None, place=3),
    }
    for text, source in wrong.items():
        with pytest.raises(ExchangeError, match=text):
            xp.from_dlpack(source)
    for source in (3, None, np.ones(3).__dlpack__()):
        with pytest.raises(ArgumentError, match="does not offer __dlpack__"):
            xp.from_dlpack(source)


# ---- other libraries -------------------------------------------------------------------


def test_torch_reads_tensors_with_their_shape():
    torch = pytest.importorskip("torch")
    for kind in ("float32", "bfloat16", "int16", "bool"):
        x = xp.asarray([[1, 0, 1], [0, 1, 1]], dtype=kind)
        y = torch.asarray(x)
        assert y.shape == (2, 3) and str(y.dtype) == f"torch.{kind}"
        assert y.to(torch.int64).tolist() == xp.astype(x, xp.int64).tolist()


@pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None, reason="scikit-learn is not installed"
)
def test_scikit_learn_computes_on_tensors_as_the_page_shows():
    """docs/array_api.md: its first block of code prints its second block."""
    page = Path(__file__).parents[2] / "docs" / "array_api.md"
    code, printed = re.findall(r"```(?:python)?\n(.*?)```", page.read_text(), re.S)[:2]
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout == printed


def test_the_page_counts_the_cases_that_are_listed_as_failing():
    docs = Path(__file__).parents[2] / "docs"
    lines = (docs / "array_api_failing.txt").read_text().splitlines()
    listed = sum(line.startswith("array_api_tests/") for line in lines)
    counts = re.findall(r"^\| (\d+) \| fail \|", (docs / "array_api.md").read_text(), re.M)
    assert sum(map(int, counts)) == listed > 0
