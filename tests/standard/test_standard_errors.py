"""needle.standard refuses what it cannot use: a NeedleError with the function and the value."""

from __future__ import annotations

import re

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import standard as xp
from needle.errors import (
    ArgumentError,
    DtypeError,
    IndexRangeError,
    NeedleError,
    OptionError,
    OutOfMemoryError,
    ShapeError,
)

x = xp.asarray([1.0, 2.0, 3.0])
n = xp.asarray([1, 2, 3])
point = xp.asarray(1.0)
square = xp.ones((2, 2))
wide = xp.ones((2, 3))
nan, inf = float("nan"), float("inf")

WRONG = {
    "clip(n, nan, None)": (DtypeError, r"clip: min is not of the kind of x\n  x: int64"),
    "clip(n, 1, 2.5)": (DtypeError, r"max: float 2\.5"),
    "clip(n, x, None)": (DtypeError, r"min: float32\[3\]"),
    "clip(x, n, None)": (DtypeError, r"min: int64\[3\]"),
    "clip(x, 'a')": (DtypeError, "min: str 'a'"),
    "clip(np.ones(2), 1)": (ArgumentError, "clip: expected a tensor, got ndarray"),
    "linalg.matrix_power(square, 2.5)": (
        ArgumentError,
        r"matrix_power: n is 2\.5, not",
    ),
    "linalg.matrix_power(point, 0)": (ShapeError, r"matrix_power: shape \(\)"),
    "linalg.matrix_power(wide, 1)": (ShapeError, r"matrix_power: shape \(2, 3\)"),
    "linalg.cross(point, point)": (ShapeError, r"cross: a tensor of shape \(\) has no axis -1"),
    "linalg.cross(x, x, axis=3)": (IndexRangeError, "axis 3 is out of range for 1"),
    "linalg.trace(np.ones((2, 2)))": (ArgumentError, "trace: expected a tensor, got ndarray"),
    "diff(x, n=-1)": (OptionError, "diff: n is -1"),
    "diff(x, n=1.5)": (ArgumentError, r"diff: n is 1\.5, not an integer"),
    "diff(point)": (ShapeError, r"diff: a tensor of shape \(\)"),
    "diff(x, axis=3)": (IndexRangeError, "axis 3 is out of range for 1"),
    "diff(x, axis=0.5)": (ArgumentError, r"diff: axis is 0\.5, not an integer"),
    "searchsorted(x, x, sorter=n[:2])": (ShapeError, r"sorter has shape \(2,\), x1 \(3,\)"),
    "searchsorted(x, x, side='nah')": (OptionError, "searchsorted: unknown side 'nah'"),
    "zeros(2.5)": (ArgumentError, r"zeros: size is 2\.5, not"),
    "ones(None)": (ArgumentError, "ones: expected an integer or"),
    "empty('ab')": (ArgumentError, "empty: size is 'a', not an integer"),
    "zeros((2, 2.5))": (ArgumentError, r"zeros: size is 2\.5, not an integer"),
    "zeros((0, 2**70))": (ShapeError, r"zeros: shape \(0, 1180591620717411303424\) is too"),
    "zeros(2**63)": (ShapeError, r"zeros: shape \(9223372036854775808,\) is too large"),
    "zeros((2, -1))": (ShapeError, r"zeros: shape \(2, -1\) has a negative size"),
    "eye(-1)": (ShapeError, r"eye: shape \(-1, -1\) has a negative size"),
    "eye(2, k=1.5)": (ArgumentError, r"eye: k is 1\.5, not an integer"),
    "full(3, 'a')": (DtypeError, "full: str 'a' is not a real number"),
    "full(3, x)": (DtypeError, "full: Tensor .* is not a real number"),
    "full_like(x, 1j)": (DtypeError, "full_like: complex 1j"),
    "zeros_like(np.ones(2))": (ArgumentError, "zeros_like: expected a tensor, got ndarray"),
    "asarray([None])": (DtypeError, r"asarray: list \[None\] is not made of numbers"),
    "asarray('abc')": (DtypeError, "asarray: str 'abc' is not made of numbers"),
    "asarray(['abc'], dtype=float32)": (DtypeError, r"asarray: list \['abc'\]"),
    "asarray(np.asarray(['abc']))": (DtypeError, "asarray: ndarray"),
    "asarray({1: 2})": (DtypeError, "asarray: dict"),
    "asarray(1j, dtype=float32)": (DtypeError, "no complex dtypes"),
    "asarray([[1], [1, 2]])": (ShapeError, "asarray: sequences .* differ"),
    "asarray(nan, dtype=int8)": (DtypeError, "nan does not fit into int8"),
    "asarray([2**64])": (OverflowError, r"asarray: \[18446744073709551616\] does not fit"),
    "asarray([2**70], dtype=int64)": (OverflowError, "does not fit into int64"),
    "asarray([300], dtype=int8)": (DtypeError, "300 does not fit into int8"),
    "astype(np.float64(3.0), int8)": (ArgumentError, "astype: expected a tensor, got float64"),
    "unique_values(np.ones(3))": (ArgumentError, "unique_values: expected a tensor, got ndarray"),
    "nonzero([1])": (ArgumentError, "nonzero: expected a tensor, got list"),
    "cumulative_sum(np.ones(3))": (ArgumentError, "cumulative_sum: expected a tensor, got ndarray"),
    "repeat(x, -1)": (ShapeError, "repeat: repeats are -1"),
    "repeat(x, [1, -1, 2])": (ShapeError, r"repeat: repeats are \[1, -1, 2\]"),
    "repeat(x, 1.5)": (DtypeError, r"repeat: repeats are float64, not integers: 1\.5"),
    "tensordot(square, square, axes=((0, 0), (0, 0)))": (ShapeError, "tensordot: .* axis twice"),
    "tensordot(square, square, axes=(0, 0))": (DtypeError, r"tensordot: axes are \(0, 0\)"),
    "tensordot(square, square, axes=1.5)": (
        ArgumentError,
        r"tensordot: axes is 1\.5, not",
    ),
    "linspace(0, 1, 2.5)": (ArgumentError, r"linspace: num is 2\.5, not an integer"),
    "linspace(0, 1, 2**63)": (ShapeError, r"linspace: 2\*\*63 elements or more"),
    "linspace(0, 1, 10**15)": (OutOfMemoryError, "linspace: "),
    "linspace('a', 1, 3)": (DtypeError, "linspace: str 'a' is not a real number"),
    "arange(1e30)": (ShapeError, r"arange: 2\*\*63 elements or more"),
    "arange(0, 10**400, 1)": (DtypeError, "arange: an integer is larger than any float"),
    "arange(10**15)": (OutOfMemoryError, "arange: "),
    "arange(inf)": (OptionError, "arange: from 0 to inf by 1"),
    "arange(3, step=0)": (OptionError, "arange: the step must not be 0"),
    "arange('a')": (DtypeError, "arange: str 'a'"),
    "ndl.result_type()": (DtypeError, "result_type: expected at least one"),
    "x.__array_namespace__(api_version=3)": (OptionError, "unknown array API version 3"),
}


@looped("code", WRONG)
def test_messages(code):
    kind, text = WRONG[code]
    names = {name: getattr(xp, name) for name in ("int8", "int64", "float32")} | globals()
    with pytest.raises(kind, match=text) as caught:
        eval(code if re.match(r"(ndl|x)\.", code) else f"xp.{code}", names)
    assert isinstance(caught.value, NeedleError)


def test_what_is_like_it_and_right():
    assert xp.clip(n, 2, None).tolist() == [2, 2, 3] and xp.clip(n, None, n[:1]).dtype == "int64"
    assert xp.clip(x, 2, np.float32(2.5)).tolist() == [2.0, 2.0, 2.5]
    assert xp.linalg.matrix_power(square, np.int64(2)).tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert xp.diff(x, axis=-1, n=0).tolist() == x.tolist()
    assert xp.zeros(np.int64(2)).shape == (2,) and xp.zeros(n[:2]).shape == (1, 2)
    assert xp.ones(()).shape == () and xp.full(2, xp.asarray(3)).dtype == "int64"
    assert xp.repeat(x, [0, 1, 2]).tolist() == [2.0, 3.0, 3.0] and not xp.repeat(x, 0).size
    assert xp.tensordot(wide, wide, axes=((0, -1), (0, 1))).item() == 6.0
    assert xp.arange(5, 0, -2).tolist() == [5, 3, 1] and not xp.arange(3, 0).size
    assert xp.arange(xp.asarray(3)).tolist() == [0, 1, 2]
    assert xp.asarray([2**53 + 1], dtype=xp.int64).tolist() == [2**53 + 1]
    assert xp.asarray([np.uint8(3)]).dtype == "uint8"
    assert xp.asarray([2**70], dtype=xp.float64).tolist() == [2.0**70]


def test_the_limit_is_asked_before_the_host_makes_the_values(host_device, monkeypatch):
    for name in ("arange", "linspace", "eye"):
        monkeypatch.setattr(np, name, lambda *_, **__: pytest.fail("made on the host"))
    with ndl.config(memory_limit=host_device.memory_info()["live"] + (1 << 20)):
        for make in (lambda: xp.arange(10**8, device=host_device),
                     lambda: xp.linspace(0, 1, 10**8, device=host_device),
                     lambda: xp.eye(10**4, device=host_device)):  # fmt: skip
            with pytest.raises(OutOfMemoryError, match="limit: ") as caught:
                make()
            assert caught.value.requested >= 10**8
