"""The allowed errors of results, all in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from needle.dtype import DType, as_dtype

if TYPE_CHECKING:
    from needle.typing import DTypeLike

EPS: dict[DType | str, float] = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}
"""Distance from 1 to the next number."""

DIFFERENCE_STEP = 2.0**-17
"""Step of central differences in float64: about eps ** (1/3), which balances both errors."""

DIFFERENCE = 2.0**-22
"""Allowed error of a derivative against central differences, relative to the terms of the sum."""

TRANSPOSE = 2.0**-36
"""Allowed difference of <Jv, u> and <v, J'u> in float64, relative to the terms of the sum."""


ULPS = {
    "sqrt": (0.5, 0.5), "reciprocal": (0.5, 0.5), "rsqrt": (1.5, 1.5),
    "exp": (1.1, 1.1), "exp2": (1.3, 1.3), "expm1": (1.6, 2.1),
    "log": (0.9, 0.9), "log2": (1.6, 1.6), "log10": (2.3, 2.3), "log1p": (1.6, 1.6),
    "sin": (1.6, 1.6), "cos": (1.6, 1.6), "tan": (3.1, 3.1),
    "asin": (2.4, 2.4), "acos": (1.2, 1.2), "atan": (1.5, 1.7),
    "sinh": (1.6, 1.6), "cosh": (1.5, 1.5), "tanh": (2.6, 2.6),
    "asinh": (1.9, 1.9), "acosh": (1.9, 1.9), "atanh": (2.2, 2.2),
    "erf": (1.4, 1.2), "sigmoid": (2.4, 2.4), "softplus": (1.8, 1.8),
    "silu": (3.0, 3.0), "gelu": (4.9, 4.6), "gelu_tanh": (2.8, 3.0), "elu": (1.6, 2.1),
    "power": (0.6, 1.1), "hypot": (0.6, 1.5), "atan2": (2.0, 2.0), "logaddexp": (2.6, 2.6),
}  # fmt: skip
"""Largest error of the native kernels' functions, in units in the last place of the exact result,
for float32 and float64, on every instruction set. For logaddexp the unit is that of the larger one
of result and operands. Half-precision results are those of float32, rounded.

sqrt, rsqrt, reciprocal, exp, exp2, expm1, log, log2, log10, log1p, sin, cos, tan, asin, acos, atan,
erf, sinh, acosh, atanh and softplus were tested with every float32 (odd and even functions with
the positive half), gelu with every negative one from -14.7 to -0.0001, the other functions of one
number with those from 2**-40 to 2**8, functions of two numbers with samples of every exponent and
a margin; tests/ops/test_accuracy.py checks the kernels against these errors."""


def tolerance(dtype: DTypeLike, length: int = 1) -> float:
    """Return the allowed error, relative to max(1, |expected|).

    It covers a few roundings of one element, and a random walk of roundings over ``length`` terms.
    """
    kind = as_dtype(dtype)
    return EPS[kind] * (4.0 + 2.0 * length**0.5) if kind.is_floating else 0.0


def assert_close(
    actual: Any,
    expected: Any,
    dtype: DTypeLike,
    length: int = 1,
    what: str = "",
    coarsest: Any = None,
) -> None:
    """Check values against exact ones, which are rounded to ``dtype`` first.

    Args:
        actual: array of any kind.
        expected: NumPy array, float64 for floating dtypes.
        dtype: the precision in which ``actual`` was computed.
        length: number of terms in the sum of one element.
        what: description for the message.
        coarsest: the least precise dtype of the computation; ``dtype`` for None.

    Raises:
        AssertionError: with the position and size of the largest error.
    """
    kind: DType = as_dtype(dtype)
    found, exact = np.asarray(actual), np.asarray(expected)
    assert found.shape == exact.shape, f"{what}: shape {found.shape}, expected {exact.shape}"
    if not kind.is_floating or found.dtype.kind in "biu":
        np.testing.assert_array_equal(found, exact, err_msg=what)
        return
    with np.errstate(all="ignore"):
        exact = exact.astype(kind.numpy).astype(np.float64)
        found = found.astype(np.float64)
        error = np.abs(found - exact) / np.maximum(1.0, np.abs(exact))
        same = (found == exact) | (np.isnan(found) & np.isnan(exact))
        error = np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))
    allowed = tolerance(kind if coarsest is None else coarsest, length)
    if error.size and error.max() > allowed:
        place = np.unravel_index(int(error.argmax()), error.shape)
        raise AssertionError(
            f"{what}: at {tuple(map(int, place))} got {found[place]!r}, expected {exact[place]!r}; "
            f"error {error[place]:.3g}, allowed {allowed:.3g} ({kind}, {length} terms)"
        )
