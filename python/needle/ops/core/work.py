"""How much work ops are, about: what ``needle.forecast`` adds up."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from needle import executor, graph, tracing

if TYPE_CHECKING:
    from needle.backend.array import Spec
    from needle.ops.core.families import Composite
    from needle.typing import NDArray


def elements(spec: Spec | tuple[Spec, ...]) -> int:
    """Return the number of elements of a spec, or of several."""
    return sum(map(elements, spec)) if isinstance(spec, tuple) else spec.size


def nbytes(spec: Spec | tuple[Spec, ...]) -> int:
    """Return the bytes of a spec, or of several."""
    if isinstance(spec, tuple):
        return sum(map(nbytes, spec))
    return spec.size * spec.dtype.itemsize


class _Operand(graph.OpBase):
    """An operand of an expansion that is never computed."""

    name = "operand"

    def compute(self, *arrays: NDArray) -> NDArray:
        raise NotImplementedError


@functools.lru_cache(maxsize=4096)
def of_expansion(op: Composite, specs: tuple[Spec, ...]) -> int:
    """Return the sum over the ops that a composite expands to; nothing is computed."""
    operands = [graph.pend(_Operand(), (), spec, False) for spec in specs]
    with tracing.entered(None), executor.modes(recording=False, lazy=True):
        result = op.expand(*operands)
    parts = result if isinstance(result, tuple) else (result,)
    nodes = graph.topo([graph.leaf(x) for x in parts])
    return sum(x.op.flops(*[below.spec for below in x.inputs]) for x in nodes if x.inputs)
