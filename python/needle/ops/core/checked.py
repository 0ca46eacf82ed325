"""Finite: a check of values as an op, so that it can be part of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from needle import dtype as dtypes
from needle.backend import kernels
from needle.errors import NonFiniteError
from needle.ops.core.op import Linear

if TYPE_CHECKING:
    from needle.typing import Gradients, NDArray, Tensor


class Finite(Linear):
    """Return x itself, if all elements are finite.

    In a program it runs before parameters change, so that they keep their values.

    Raises:   NonFiniteError if one is not
    Gradient: x; any order
    """

    def compute(self, x: NDArray) -> NDArray:
        zero = kernels.elementwise("subtract", x, x)  # or NaN
        good = kernels.elementwise("equal", zero, zero, dtype=dtypes.bool_).astype(dtypes.int32)

        def wrong(position: int, value: object = None) -> Exception:
            return NonFiniteError(
                f"{self.name}: element {position} of {x.spec} is not finite\n  rule: finite values"
            )

        good.device.backend.check_range(good, 1, 2, None, wrong)
        return x

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (out_grad,)
