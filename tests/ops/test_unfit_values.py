"""Functions of tensors refuse what does not fit."""

from __future__ import annotations

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import ops
from needle.errors import (
    ArgumentError,
    DtypeError,
    ShapeError,
)


def tensor(x, **kwargs):
    return ndl.Tensor(x, dtype="float64", **kwargs)


WHOLE = ndl.Tensor(np.array([[1, 2], [3, 4]], "int32"))
MASK = ndl.Tensor(np.array([[True, False], [False, False]]))


@looped("x, value", [(WHOLE, 7), (WHOLE, 2.0), (MASK, 1), (MASK, True), (WHOLE, np.int64(3))])
def test_filling_keeps_the_dtype(x, value):
    found = ops.pad(x, ((1, 0), (0, 1)), value=value)
    expected = np.pad(x.numpy(), ((1, 0), (0, 1)), constant_values=value)
    filled = x.masked_fill(MASK, value)
    np.testing.assert_array_equal(found.numpy(), expected)
    np.testing.assert_array_equal(filled.numpy(), np.where(MASK.numpy(), value, x.numpy()))
    assert found.dtype == filled.dtype == x.dtype


UNFIT = {
    "pad fraction": (lambda: ops.pad(WHOLE, ((1, 0), (0, 0)), value=0.5), DtypeError, "0.5 does"),
    "pad range": (lambda: ops.pad(WHOLE, ((1, 0), (0, 0)), value=2**40), DtypeError, "int32"),
    "pad bool": (lambda: ops.pad(MASK, ((1, 0), (0, 0)), value=2), DtypeError, "2 does not"),
    "pad text": (lambda: ops.pad(WHOLE, ((1, 0), (0, 0)), value="1"), DtypeError, "not a number"),
    "pad width": (lambda: ops.pad(WHOLE, ((1.5, 0), (0, 0))), ArgumentError, "width is 1.5"),
    "pad edge": (lambda: ops.pad(WHOLE, ((1.5, 0), (0, 0)), "edge"), ArgumentError, "width is 1.5"),
    "fill": (lambda: WHOLE.masked_fill(MASK, 1.5), DtypeError, "masked_fill: the value 1.5"),
    "fill nan": (lambda: WHOLE.masked_fill(MASK, np.nan), DtypeError, "nan does not fit"),
    "fill infinity": (lambda: WHOLE.masked_fill(MASK, -np.inf), DtypeError, "-inf does not"),
    "fill tensor": (lambda: WHOLE.masked_fill(MASK, tensor(1.5)), DtypeError, "float64"),
    "tril": (lambda: ops.tril(WHOLE, 1.5), ArgumentError, "tril: k is 1.5"),
    "triu": (lambda: ops.triu(WHOLE, "1"), ArgumentError, "triu: k is '1'"),
    "diagonal": (lambda: ops.diagonal(WHOLE, 0.5), ArgumentError, "k is 0.5"),
    "diag": (lambda: ops.diag(WHOLE[0], 0.5), ArgumentError, "k is 0.5"),
    "dilate": (lambda: ops.dilate(WHOLE, 0, 1.5), ArgumentError, "dilation is 1.5"),
    "flip": (lambda: ops.flip(WHOLE, (0, 0)), ShapeError, "twice"),
    "flip negative": (lambda: WHOLE.flip((1, -1)), ShapeError, "twice"),
    "squeeze": (lambda: ops.squeeze(WHOLE[:1], (0, -2)), ShapeError, "twice"),
    "power": (lambda: WHOLE**-1, DtypeError, "int32 to the power -1"),
    "power function": (lambda: ops.power(WHOLE, -2), DtypeError, "negative powers"),
    "power scalar": (lambda: ops.power_scalar(WHOLE, -2), DtypeError, "negative powers"),
    "power of bool": (lambda: MASK.pow(-1), DtypeError, "bool to the power -1"),
}


@looped("fast", ["on", "off"])
@looped("name", UNFIT)
def test_what_does_not_fit_is_refused(name, fast):
    call, error, said = UNFIT[name]
    with ndl.config(fast=fast), pytest.raises(error, match=said):
        call()


def test_powers_that_stay():
    np.testing.assert_allclose((WHOLE**-1.0).numpy(), 1 / WHOLE.numpy(), rtol=1e-6)
    np.testing.assert_allclose((tensor(2.0) ** -1).numpy(), 0.5)
    assert (WHOLE ** ndl.Tensor(np.array(-1, "int32"))).dtype == "int32"


def test_a_number_has_no_axes_to_keep():
    x = ndl.Tensor(1.0)
    assert ops.quantile(x, 0.5, keepdims=True).shape == ()
    assert ops.quantile(x, [0.5, 0.6], keepdims=True).shape == (2,)
