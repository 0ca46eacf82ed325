"""The families of ops.

Elementwise   one row of functions.def; ``derivative`` gives both directions
Linear        its tangent is the op itself; ``gradient`` is its transpose (``op.py``)
Multilinear   linear in each input: one term per input
Composite     ``expand`` in terms of other ops; a device may override it as a whole
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from needle import backend, dtype, executor, forward, graph, reverse
from needle.backend import kernels
from needle.dtype import DType
from needle.errors import ArgumentError, DtypeError, GradientError, explain
from needle.ops.core import work
from needle.ops.core.docs import kinds_of, with_contract
from needle.ops.core.op import KINDS, Op, needed, promoted, variables
from needle.ops.core.primitives import make_tuple, spread_to, sum_to, total

if TYPE_CHECKING:
    from needle.backend.array import Spec
    from needle.typing import Gradients, NDArray, Slope, Tensor

__all__ = ["Composite", "Elementwise", "Multilinear"]


class Elementwise(Op):
    """A function of each element: one row of functions.def. Operands broadcast.

    Attributes:
        function: name of the row.
        result: dtype of the result; that of the operands for None.
        floating: whether integers are cast to the default float first.
        accepts: kinds of dtypes: f floating, i and u integers, b bool.
    """

    function: ClassVar[str]
    result: ClassVar[DType | None] = None
    floating: ClassVar[bool] = False
    accepts: ClassVar[str] = "fiu"

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("__doc__")
        if own:
            cls.__doc__ = with_contract(own, cls.accepts, cls.floating, cls.result)

    @functools.cached_property
    def name(self) -> str:
        return self.function

    def setup(self) -> None:
        self.code = kernels.function_code(self.function)
        if self.code >= 0:
            self.kind = KINDS["elementwise"]
            self.params = (int(self.result is not None), int(self.floating))

    @classmethod
    @functools.cache
    def operands(cls) -> int | None:
        """Return the number of operands, from the samples."""
        return len(cls.samples()[0].inputs) if cls.samples is not None else None

    def prepare(self, inputs: tuple[Any, ...]) -> tuple[Tensor, ...]:
        count = self.operands()
        if count is not None and len(inputs) != count:
            raise ArgumentError(f"{self.name}: expected {count} operands, got {len(inputs)}")
        tensors = promoted(inputs, self.name, self.floating)
        kind = executor.spec_of(tensors[0]).dtype
        if kind.kind not in self.accepts:
            known = " or ".join(kinds_of(self.accepts))
            raise explain(
                DtypeError, self.name, f"not defined for {kind}",
                list(zip("xyz", tensors, strict=False)), f"dtypes are {known}",
                'cast first, for example x.astype("int64")',
            )  # fmt: skip
        return tensors

    def compute(self, *arrays: Any) -> NDArray:
        return kernels.elementwise(self.function, *arrays, dtype=self.result)

    def derivative(self, out: Tensor, i: int) -> Slope:
        """Return the partial derivative with respect to input i, elementwise: both directions.

        The result is a number or a tensor. A bool tensor selects: 1 where it is true, else 0 (also
        for infinite gradients). A pair of bool tensors: 1 where the first is true, else 1/2 where
        the second is true, else 0.

        Raises:
            GradientError: if the op defines none.
        """
        raise GradientError(f"{self.name}: no derivative is defined")

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        nodes = out.node.inputs
        return tuple(
            sum_to(_scaled(out_grad, self.derivative(out, i)), node.spec.shape)
            if node.needs
            else None
            for i, node in enumerate(nodes)
        )

    def push(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        out = executor.apply(self, *primals)
        known = graph.record(self, primals, out.array) if out.node is None else out
        needs = graph.recording() and forward.needs(primals)
        terms = []
        for i, tangent in enumerate(tangents):
            if tangent is not None:
                with executor.modes(recording=needs):
                    factor = self.derivative(known, i)
                factor = out if factor is known else factor  # outside any graph
                if isinstance(factor, graph.TensorBase) or factor != 0.0:
                    terms.append(_scaled(tangent, factor))
        return out, spread_to(total(terms), out.spec.shape) if terms else None


class Multilinear(Op):
    """Linear in each input: its tangent is one term per input."""

    def push(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        terms = [
            executor.apply(self, *primals[:i], tangent, *primals[i + 1 :])
            for i, tangent in enumerate(tangents)
            if tangent is not None
        ]
        return executor.apply(self, *primals), total(terms)


class Composite(Op):
    """An op made of others: ``expand`` defines it; a device may override it as a whole.

    Unless a class overrides ``gradient``, the gradient is that of the expansion, which runs again
    from the inputs.
    """

    saves: ClassVar[Sequence[Sequence[int | str]]] = (tuple(range(8)),)

    def expand(self, *inputs: Any) -> Any:
        """Return the result (of several: a tuple) in terms of other ops, on tensors."""
        raise NotImplementedError

    def compute(self, *arrays: Any) -> Any:
        found = backend.find_override(arrays[0].device.name, type(self).__name__)
        if found is not None:
            result = found(self, *arrays)
            if result is not NotImplemented:
                return result
        return self.expanded(*arrays)

    def flops(self, *specs: Spec) -> int:
        return work.of_expansion(self, specs)

    def expanded(self, *arrays: NDArray) -> Any:
        """Return the result array by the expansion, even if a device overrides it."""
        with executor.modes(recording=False, lazy=False):
            result = self.expand(*map(graph.wrap, arrays))
            if isinstance(result, tuple):
                return tuple(map(executor.primal_array, result))
            return executor.primal_array(result)

    def gradient(self, out_grad: Any, out: Any) -> Any:
        wanted, inputs = needed(out), out.inputs
        with executor.modes(recording=True):
            chosen = variables([x for x, want in zip(inputs, wanted, strict=True) if want])
            rest = iter(chosen)
            result = self.expand(
                *[next(rest) if want else x for x, want in zip(inputs, wanted, strict=True)]
            )
        if not isinstance(result, tuple):
            result, out_grad = (result,), (out_grad,)
        reached = [pair for pair in zip(result, out_grad, strict=True) if pair[1] is not None]
        outs, seeds = zip(*reached, strict=True)
        found = iter(reverse.collect(outs, seeds, chosen, graph.recording()))
        return tuple(next(found) if want else None for want in wanted)

    def push(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        cls = type(self)
        out, tangent = forward.push(self.expand, primals, tangents)
        overridden = backend.find_override(primals[0].spec.device.name, cls.__name__) is not None
        if isinstance(out, tuple):
            out = make_tuple(*out)
        if overridden or (cls.compute, cls.expanded) != (Composite.compute, Composite.expanded):
            out = executor.apply(self, *primals)  # the same value, with the op's checks
        return out, tangent


def _scaled(x: Tensor, factor: Slope) -> Tensor:
    """Return x times the result of ``derivative``: a number, a tensor, or bool tensors."""
    if isinstance(factor, tuple):
        whole, half = factor
        return x.where(whole, (0.5 * x).where(half, 0.0))
    if isinstance(factor, graph.TensorBase):
        return x.where(factor, 0.0) if factor.spec.dtype is dtype.bool_ else x * factor
    if factor == 0.0:  # also for infinite x
        return reverse.full_like(x, 0.0)
    return x if factor == 1.0 else -x if factor == -1.0 else x * factor
