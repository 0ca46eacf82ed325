"""How far a result may be from the exact one: the only place that says so."""

from __future__ import annotations

from typing import Any

import numpy as np

from needle.dtype import DType, as_dtype

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Distance from 1 to the next number."""

DIFFERENCE_STEP = 2.0**-17
"""Step of central differences in float64: about eps ** (1/3), where truncation meets rounding."""

DIFFERENCE = 2.0**-22
"""Allowed error of a derivative against central differences, relative to what was added up."""

TRANSPOSE = 2.0**-36
"""Allowed difference of <Jv, u> and <v, J'u> in float64, relative to what was added up."""


def tolerance(dtype: Any, length: int = 1) -> float:
    """Return the allowed error, relative to max(1, |expected|).

    A few roundings of one element, and a random walk of roundings over a sum of ``length`` terms.
    """
    kind = as_dtype(dtype)
    return EPS[kind] * (4.0 + 2.0 * length**0.5) if kind.is_floating else 0.0


def assert_close(actual: Any, expected: Any, dtype: Any, length: int = 1, what: str = "") -> None:
    """Check values against exact ones, which are rounded to ``dtype`` first.

    Args:
        actual: array of any kind.
        expected: NumPy array, float64 for floating dtypes.
        dtype: the precision that ``actual`` was computed in.
        length: number of terms that were added up for one element.
        what: said in the message.

    Raises:
        AssertionError: with the place and size of the largest error.
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
    allowed = tolerance(kind, length)
    if error.size and error.max() > allowed:
        place = np.unravel_index(int(error.argmax()), error.shape)
        raise AssertionError(
            f"{what}: at {tuple(map(int, place))} got {found[place]!r}, expected {exact[place]!r}; "
            f"error {error[place]:.3g}, allowed {allowed:.3g} ({kind}, {length} terms)"
        )
