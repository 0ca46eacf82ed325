"""Rotary positions: pairs of columns of queries and keys turned by angles in step with time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from needle import dtype as dtypes
from needle import executor
from needle.backend.axes import integer
from needle.errors import ShapeError, explain
from needle.executor import shape_of
from needle.ops.core.attributes import real
from needle.ops.core.families import Composite
from needle.ops.core.op import cast, widened
from needle.ops.core.operands import as_tensors
from needle.ops.core.samples import Sample, uniform
from needle.ops.elementwise.arithmetic import cast_like
from needle.ops.elementwise.functions import exp2
from needle.ops.elementwise.trigonometry import cos, sin
from needle.ops.shape.creation import arange
from needle.ops.shape.movement import concat, unsqueeze

if TYPE_CHECKING:
    from needle.typing import Gradients, NDArray, Numpy, Operand, Tensor

__all__ = ["Rotary", "rotary"]


def _turned(x: Numpy, positions: Numpy, base: float) -> Numpy:
    half = x.shape[-1] // 2
    angles = positions[:, None] * base ** (-np.arange(half) / max(half, 1))
    a, b = x[..., :half], x[..., half:]
    c, s = np.cos(angles), np.sin(angles)
    return np.concatenate([a * c - b * s, a * s + b * c], -1)


def _samples() -> list[Sample]:
    cases = [((3, 4), [0, 1, 2]), ((2, 1, 2, 6), [7, 3]), ((1, 2), [1000]), ((0, 2), [])]
    x = uniform((3, 4))
    return [
        Sample((uniform(shape), np.array(p, int)), (100.0,), lambda x, p: _turned(x, p, 100.0))
        for shape, p in cases
    ] + [
        Sample((x, np.arange(3)), (100.0, True), lambda x, p: _turned(x, -p, 100.0)),
        Sample((x, np.arange(2)), (100.0,), raises=ShapeError),
        Sample((x[:, :3], np.arange(3)), (100.0,), raises=ShapeError),
        Sample((x[0], np.arange(3)), (100.0,), raises=ShapeError),
    ]


class Rotary(Composite):
    """Turn pairs of columns by angles that grow with the position.

        out[j] = x[j] cos(a) - x[j + d/2] sin(a),  out[j + d/2] = x[j] sin(a) + x[j + d/2] cos(a)
        a = position * base ** (-2 j / d),  for j < d/2

    So the product of a query and a key depends on the difference of their positions. Angles are
    computed in float64.

    Attributes:
        base: how much slower the last pair turns than the first.
        back: whether to turn by -a.

    Shapes:   x [..., t, d], positions [t] -> out [..., t, d]
    Dtypes:   x floating, positions integer
    Gradient: x; any order
    Raises:   ShapeError if d is odd, or there is not one position for each step
    Source:   Su et al., "RoFormer", 2021, arXiv:2104.09864; columns paired j with j + d/2
    """

    base: float = 10000.0
    back: bool = False
    promotes = "first"
    saves = ((1,), ())
    samples = staticmethod(_samples)

    def compute(self, x: NDArray, positions: NDArray) -> NDArray:
        if x.ndim < 2 or x.shape[-1] % 2 or positions.shape != x.shape[-2:-1]:
            problem = f"x has shape {x.shape}, positions {positions.shape}"
            raise explain(
                ShapeError, self.name, problem, [("x", x), ("positions", positions)],
                "x [..., t, d] with an even d, positions [t]",
            )  # fmt: skip
        return super().compute(x, positions)

    def expand(self, x: Tensor, positions: Tensor) -> Tensor:
        half = shape_of(x)[-1] // 2
        column = arange(half, dtype=dtypes.float64, device=executor.spec_of(x).device)
        speed = exp2(column * (-np.log2(self.base).item() / max(half, 1)))
        angles = unsqueeze(cast(positions, dtypes.float64), -1) * speed
        wide = widened(x)
        c, s = cast_like(cos(angles), wide), cast_like(sin(angles), wide)
        s = -s if self.back else s
        a, b = wide[..., :half], wide[..., half:]
        return cast_like(concat([a * c - b * s, a * s + b * c], -1), x)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        op = Rotary.of(self.base, not self.back)
        return executor.apply(op, out_grad, out.inputs[1]), None


def rotary(x: Tensor, positions: Operand = 0, *, base: float = 10000.0) -> Tensor:
    """Turn pairs of columns of queries or keys by angles that grow with the position.

    See ``Rotary``.

    Args:
        x: [..., t, d] with an even d.
        positions: the position of the first step, the others follow; or of each, a tensor [t].
        base: the slowest pair turns once in about ``2 pi base`` steps.

    Raises:
        ShapeError: if d is odd, or there is not one position for each step.
        ArgumentError: if positions are neither an integer nor a tensor.

    >>> x = Tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> print(ndl.rotary(x))  # turned by 0 and by 1 radian
    [[1.     0.    ]
     [0.5403 0.8415]]
    """
    (x,) = as_tensors((x,), "rotary")
    if not hasattr(positions, "shape") and len(shape_of(x)) > 1:
        first = integer("rotary: positions", positions)
        device = executor.spec_of(x).device
        positions = arange(first, first + shape_of(x)[-2], dtype=dtypes.int64, device=device)
    return executor.apply(Rotary.of(real("rotary: base", base)), x, positions)
