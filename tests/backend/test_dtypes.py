"""Dtypes: what each holds, casts, promotion."""

from __future__ import annotations

import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import core, dtype
from needle.backend.ndarray import array, empty
from needle.errors import (
    DtypeError,
    OptionError,
    ShapeError,
)

NAN = float("nan")


@looped("kind", list(map(str, dtype.ALL)))
def test_every_dtype_is_stored(kind, device):
    values = np.array([0, 1, 2, 100])
    x = array(values, kind, device)
    assert (
        x.dtype == kind
        and x.dtype == dtype.as_dtype(kind).numpy
        and repr(x.dtype) == f"needle.{kind}"
    )
    expected = values.astype(dtype.as_dtype(kind).numpy)
    np.testing.assert_array_equal(x.numpy(), expected)
    assert x.numpy().dtype == expected.dtype and x.dtype.itemsize == expected.itemsize
    np.testing.assert_array_equal(array(x.numpy(), None, device).numpy(), expected)
    np.testing.assert_array_equal(x[::-2].numpy(), expected[::-2])


@looped(
    "value, kind",
    [(300, "uint8"), (-1, "uint8"), (2**31, "int32"), (2.0**63, "int64"), (NAN, "int32")],
)
def test_numbers_that_do_not_fit_are_no_elements(value, kind):
    with pytest.raises(DtypeError, match="does not fit into"):
        array([0, value], kind)
    x = ndl.zeros(2, dtype=kind)
    with pytest.raises(DtypeError, match="does not fit into"):
        x[0] = value
    np.testing.assert_array_equal(x.numpy(), [0, 0])
    if value == 300:  # what has a dtype is cast as NumPy casts
        assert array(np.array([value]), kind).numpy() == value % 256


@looped("kind", ["float32", "int32", "bool", "bfloat16"])
def test_what_is_no_real_number_is_no_element_of_any_dtype(kind):
    values = [1 + 2j, "1", b"1", None, object(), np.array(["2020"], "M8[Y]"), np.zeros(2, "i4,i4")]
    ragged = np.empty(2, object)
    ragged[:] = [np.ones(1), np.ones(2)]
    for value in (*values, *([v] for v in values), [None, 1], ragged, np.void(b"1")):
        for make in (array, ndl.Tensor):
            with pytest.raises(DtypeError, match="cannot be stored in an array"):
                make(value, dtype=kind)
    kept = [np.array([1, 0.5], object), [np.float16(1), 0.5], np.array([1, 0.5], "f2")]
    for value in (*kept, ndl.ones(2, dtype="bfloat16").numpy()):
        assert array(value, kind).dtype == kind


@pytest.mark.skipif(core.native is None, reason="asks the native kernels")
def test_the_kernels_refuse_reductions_that_they_lack():
    x, out = array([[1, 2], [3, 4]], "int64", "cpu"), empty((2,), "int64", "cpu")
    with pytest.raises(DtypeError, match="variance: not supported on the native CPU"):
        x.device.backend.reduce("variance", out, x, (1,))


def test_lists_of_different_lengths_are_no_array():
    with pytest.raises(ShapeError, match="different lengths"):
        array([[1, 2], [3]])


@looped("source", list(map(str, dtype.ALL)))
@looped("target", list(map(str, dtype.ALL)))
def test_casts(source, target, device):
    """As NumPy; floats to integers are cut, outside the range they saturate and NaN gives 0."""
    values = np.array([0, 1, 2.75, 100]).astype(dtype.as_dtype(source).numpy)
    found = array(values, source, device).astype(target)
    expected = (values != 0) if target == "bool" else values.astype(dtype.as_dtype(target).numpy)
    assert found.dtype == target
    np.testing.assert_array_equal(found.numpy(), expected)


@looped("target", ["int8", "int16", "int32", "int64", "uint8"])
@looped("source", ["float32", "float64"])
def test_casts_saturate(source, target, device):
    values = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, -1.5, 1.5])
    low, high = np.iinfo(target).min, np.iinfo(target).max
    found = array(values, source, device).astype(target).numpy()
    expected = [0, high, low, high, low, max(low, -1), 1]
    assert found.tolist() == expected


def test_default_dtypes():
    assert array([1.0, 2.0]).dtype == "float32" and array([1, 2]).dtype == "float32"
    assert array(np.array([1.0])).dtype == "float32"
    assert array(np.array([1])).dtype == "int64" and array([True]).dtype == "bool"
    assert array(np.float16(1)).dtype == "float16"
    for bad in ("text", [object()], np.array([1j])):
        with pytest.raises((DtypeError, OptionError)):
            array(bad)
    with pytest.raises(OptionError, match="unknown dtype 'float31'; did you mean 'float"):
        array([1.0], "float31")


@looped("value", [np.int64(2), np.int8(2), np.bool_(True)])
def test_numpy_integers_are_numbers_beside_floats(value, device):
    x = ndl.Tensor([1.5, -2.0], device=device)
    for apply in (lambda v: x / v, lambda v: v - x, lambda v: x**v, lambda v: x > v):
        found, expected = apply(value), apply(value.item())
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
    assert (ndl.Tensor([1], dtype="uint8") + np.int64(1)).dtype == "int64"  # not beside integers


# Rows of the Python array API standard 2024.12, section "Type promotion"; the standard knows no
# bfloat16, and leaves the mixtures that are not listed undefined.
STANDARD = """
int8    int8    int8     int8    int16   int16    int8    int32   int32    int8    int64   int64
int16   int16   int16    int16   int32   int32    int16   int64   int64    int32   int32   int32
int32   int64   int64    int64   int64   int64    uint8   uint8   uint8    uint8   int8    int16
uint8   int16   int16    uint8   int32   int32    uint8   int64   int64    bool    bool    bool
float32 float32 float32  float32 float64 float64  float64 float64 float64  float16 float16 float16
float16 float32 float32  float16 float64 float64
bfloat16 bfloat16 bfloat16  bfloat16 float32 float32  bfloat16 float64 float64
bfloat16 float16 float32
"""


def test_promotion_is_the_standards_table():
    words = STANDARD.split()
    rows = [tuple(words[i : i + 3]) for i in range(0, len(words), 3)]
    known = {frozenset((a, b)): result for a, b, result in rows}
    for a in dtype.ALL:
        for b in dtype.ALL:
            expected = known.get(frozenset((str(a), str(b))))
            assert dtype.promote(a, b) == expected, (a, b)
            if expected is None:
                with pytest.raises(DtypeError, match="do not mix"):
                    dtype.result_type(a, b)
            else:
                assert dtype.result_type(a, b, b) == expected
                x, y = ndl.Tensor([1], dtype=a), ndl.Tensor([1], dtype=b)
                if a != "bool":
                    assert (x + y).dtype == expected


def test_promotion_agrees_with_numpy_where_both_define_it():
    for a in dtype.ALL:
        for b in dtype.ALL:
            found = dtype.promote(a, b)
            if found is not None and "bfloat16" not in (a, b):
                assert found == np.promote_types(a.numpy, b.numpy)


@looped(
    "kind, number, expected",
    [
        ("float32", 2, "float32"), ("float32", 2.5, "float32"), ("float16", 2.5, "float16"),
        ("bfloat16", 2, "bfloat16"), ("float64", True, "float64"), ("int32", 2, "int32"),
        ("int8", True, "int8"), ("int32", 2.5, "float32"), ("uint8", 3, "uint8"),
        ("bool", 2, "int64"), ("bool", 2.5, "float32"),
    ],
)  # fmt: skip
def test_python_numbers_are_weak(kind, number, expected, device):
    x = ndl.Tensor([0, 1], dtype=kind, device=device)
    for result in (x + number, number + x, x * number):
        assert result.dtype == expected
    np.testing.assert_allclose((x + number).numpy().astype(float), np.array([0, 1]) + number)


def test_numbers_that_do_not_fit_are_refused(device):
    with pytest.raises(DtypeError, match="300 does not fit into uint8"):
        ndl.Tensor([1], dtype="uint8", device=device) + 300


def test_dtypes_compare_hash_and_pickle():
    assert ndl.float32 == "float32" and hash(ndl.float32) == hash("float32")
    assert ndl.float32 == np.float32 and ndl.dtype.as_dtype(np.dtype("int8")) is ndl.int8
    assert pickle.loads(pickle.dumps(ndl.bfloat16)) is ndl.bfloat16
    assert dtype.as_dtype(float) is ndl.float32 and dtype.as_dtype(int) is ndl.int64


@looped("dtype", [None, "float32"])
def test_fractions_are_numbers(dtype):
    for values in ([Fraction(1, 4), 2], Fraction(1, 4), [Decimal("0.25")], [2**70, Fraction(1, 2)]):
        x = ndl.Tensor(values, dtype=dtype)
        assert x.dtype == "float32"
        np.testing.assert_array_equal(x.numpy(), np.array(values, float).astype("float32"))
    with pytest.raises(DtypeError):
        ndl.Tensor([Fraction(1, 4), "2"])
