"""Names that PyTorch has at its top level, and what they mean there."""

from __future__ import annotations

import numpy as np
import pytest

import needle as ndl
from needle.errors import ArgumentError, DeviceError, DtypeError


def test_tensor_has_the_dtypes_of_its_values():
    kinds = [ndl.tensor(x).dtype for x in ([1.0], [1, 2], True, np.ones(2), np.int8(3))]
    assert kinds == ["float32", "int64", "bool", "float64", "int8"]
    assert ndl.tensor([1, 2], dtype=ndl.float32).dtype == "float32"
    with pytest.raises(DtypeError):
        ndl.tensor("ab")


def test_tensor_copies_and_requires_no_gradient():
    values = np.ones(2)
    x, shared, also = ndl.tensor(values), ndl.from_numpy(values), ndl.as_tensor(values)
    values[0] = 5.0
    assert [t.tolist() for t in (x, shared, also)] == [[1.0, 1.0], [5.0, 1.0], [5.0, 1.0]]
    w = ndl.tensor([1.0, 2.0], requires_grad=True)
    y = w * 2
    assert w.requires_grad and not x.requires_grad and not ndl.tensor(y).requires_grad
    assert ndl.as_tensor(y) is y and ndl.as_tensor(y, dtype="float64").dtype == "float64"
    assert ndl.is_tensor(y) and not ndl.is_tensor(values)
    with pytest.raises(ArgumentError, match=r"expected a NumPy array.*\n.*needle.tensor"):
        ndl.from_numpy([1.0])


def test_device_is_the_class_of_devices():
    where = ndl.device("cpu_numpy")
    assert where is ndl.cpu_numpy() and isinstance(where, ndl.device) and ndl.device(where) is where
    assert (where.type, where.index) == ("cpu_numpy", None)
    second = ndl.device("cuda", 1)
    assert second is ndl.device("cuda:1") and (second.type, second.index) == ("cuda", 1)
    assert ndl.device("cuda", 0) is ndl.device("cuda") and ndl.device("cuda").index == 0
    for wrong in (("gpu",), ("cuda:1", 1), ("cuda", "1"), ("cpu", 1)):
        with pytest.raises(DeviceError):
            ndl.device(*wrong)
