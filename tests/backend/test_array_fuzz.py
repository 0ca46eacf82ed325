"""NDArray against NumPy on random arrays."""

from __future__ import annotations

import re

import numpy as np
import pytest
from devices import DEVICES
from hypothesis import given, settings
from hypothesis import strategies as st

import needle as ndl
from needle import dtype
from needle.backend import kernels
from needle.backend.ndarray import empty
from needle.errors import (
    NeedleError,
    ShapeError,
)
from needle.testing.strategies import arrays, broadcastable

FUZZ = settings(max_examples=40, deadline=None)
KINDS = st.sampled_from(["float32", "float64", "int32", "uint8", "bool", "int64", "float16"])


@FUZZ
@given(st.data(), st.sampled_from(DEVICES), KINDS)
def test_layouts_hold_their_values(data, where, kind):
    x = data.draw(arrays(where, kind))
    values = x.numpy()
    np.testing.assert_array_equal(x.copy().numpy(), values)
    np.testing.assert_array_equal(x.reshape(-1 if x.size else 0).numpy(), values.reshape(-1))
    np.testing.assert_array_equal(x.astype("float64").numpy(), values.astype("float64"))


@FUZZ
@given(st.data(), st.sampled_from(DEVICES), KINDS)
def test_elementwise_on_any_layout(data, where, kind):
    left, right = data.draw(broadcastable())
    x, y = data.draw(arrays(where, kind, left)), data.draw(arrays(where, kind, right))
    function = data.draw(st.sampled_from(["add", "multiply", "maximum", "less", "equal"]))
    if kind == "bool" and function in ("add", "multiply", "maximum"):  # not defined for bools
        function = "equal"
    result = dtype.bool_ if function in ("less", "equal") else None
    found = kernels.elementwise(function, x, y, dtype=result)
    np.testing.assert_array_equal(found.numpy(), getattr(np, function)(x.numpy(), y.numpy()))


@FUZZ
@given(st.data(), st.sampled_from(DEVICES), KINDS)
def test_reductions_on_any_layout(data, where, kind):
    x = data.draw(arrays(where, kind))
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, x.ndim - 1))))) if x.ndim else ()
    keepdims = data.draw(st.booleans())
    function = data.draw(st.sampled_from(["sum", "max", "min", "any", "all"]))
    values = x.numpy()
    try:
        expected = getattr(np, function)(values, axis=axes, keepdims=keepdims)
    except ValueError:
        with pytest.raises(ShapeError):
            kernels.reduce(function, x, axes, keepdims)
        return
    np.testing.assert_array_equal(kernels.reduce(function, x, axes, keepdims).numpy(), expected)


@FUZZ
@given(st.data(), st.sampled_from(DEVICES), st.sampled_from(["float32", "float64", "float16"]))
def test_matmul_on_any_layout(data, where, kind):
    left, right = data.draw(broadcastable())
    m, k, n = (data.draw(st.integers(0, 9)) for _ in range(3))
    a = data.draw(arrays(where, kind, (*left[:2], m, k)))
    b = data.draw(arrays(where, kind, (*right[:2], k, n)))
    try:
        np.broadcast_shapes(left[:2], right[:2])
    except ValueError:
        with pytest.raises(ShapeError):
            kernels.matmul(a, b)
        return
    expected = np.matmul(a.numpy().astype("float64"), b.numpy().astype("float64"))
    np.testing.assert_array_equal(kernels.matmul(a, b).numpy(), expected)


@FUZZ
@given(st.data(), st.sampled_from(DEVICES), KINDS)
def test_writes_on_any_layout(data, where, kind):
    x = data.draw(arrays(where, kind))
    y = data.draw(arrays(where, kind, x.shape))
    values = x.numpy().copy()
    index = tuple(
        slice(*sorted((data.draw(st.integers(0, n)), data.draw(st.integers(0, n)))),
              data.draw(st.sampled_from([1, 2])))
        for n in x.shape
    )  # fmt: skip
    if not x.ndim:
        return
    x[index] = y[index]
    values[index] = y.numpy()[index]
    np.testing.assert_array_equal(x.numpy(), values)


@FUZZ
@given(
    st.data(), st.lists(st.integers(-2, 6), max_size=4), st.lists(st.integers(-2, 6), max_size=4)
)
def test_any_arguments_give_a_result_or_a_needle_error(data, shape, other):
    where = data.draw(st.sampled_from(DEVICES))
    x = data.draw(arrays(where))
    sizes = (other + [1] * len(shape))[: len(shape)]
    calls = [
        lambda: x.reshape(tuple(shape)), lambda: x.permute(tuple(shape)),
        lambda: x.broadcast_to(tuple(shape)), lambda: x.flip(tuple(shape)),
        lambda: x.squeeze(tuple(shape)), lambda: x.unsqueeze(tuple(shape)),
        lambda: x[tuple(shape)], lambda: x.sum(tuple(shape)), lambda: empty(tuple(shape)),
        lambda: x.windows(tuple(shape), tuple(sizes)),
        lambda: x.pad(tuple(zip(shape, other, strict=False))),
    ]  # fmt: skip
    try:
        result = data.draw(st.sampled_from(calls))()
    except NeedleError:
        return
    assert result.numpy().shape == result.shape


def test_a_tensor_without_values_is_shown_all_the_same():
    x = ndl.ones(3).to("meta")
    known = r"shape=\(3,\), dtype=float32, device=meta\(\)"
    for text in (repr(x), str(x), f"{x}", repr([x]), repr(x.realize_cached_data())):
        assert re.search(known, text), text
    assert str(x.realize_cached_data()).startswith("NDArray(shape=(3,)")
    with ndl.lazy_mode():
        late = ndl.ones(2)[ndl.Tensor([7], dtype="int64")]
        assert "out of range" in repr(late)
