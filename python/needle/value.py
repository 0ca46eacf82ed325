"""Value, the base of tensors and tuples of tensors; and the tuples."""

from __future__ import annotations

import copy as copying
from collections.abc import Sequence
from typing import Any

from needle import executor, graph, ops, tracing
from needle.backend.axes import integer
from needle.backend.ndarray import NDArray, array
from needle.errors import GradientError, ShapeError, explain
from needle.ops.core.operands import has_gradients
from needle.ops.core.starts import Start, become, is_start

_needs: Any = graph.TensorBase.requires_grad
_read = _needs.__get__  # quicker than a Python function


def _set_requires_grad(self: Any, value: bool) -> None:
    spec = self.spec
    if self._is_recorded():
        if not value:
            raise explain(
                GradientError, "requires_grad", f"the tensor is the result of {self.op}",
                [("x", self)], "requires_grad can be switched off only for a leaf", "x.detach()",
            )  # fmt: skip
        return
    several = type(spec) is tuple
    on = bool(value) and (several or has_gradients(spec.dtype))
    if type(self.op) is Start:
        if on != self.requires_grad:
            become(self, self, on)
        return
    if on and self.op is not None and not several:  # lazy mode: a leaf is a computed value
        graph.set_array(self, executor.array_of(self))
    _needs.__set__(self, on)
    tracing.changed()


class Answer(int):
    """True or False, also when called."""

    def __call__(self) -> bool:
        """Return the answer."""
        return bool(self)

    def __repr__(self) -> str:
        return repr(bool(self))


class Value(graph.TensorBase):
    """The value of a node of the graph: a ``Tensor`` or a ``TensorTuple``."""

    __slots__ = ()

    requires_grad = property(
        _read,
        _set_requires_grad,
        doc="Whether gradients flow to or through it; always False for integers and bools.",
    )

    num_outputs = 1
    """The course's count of results of the op that made it; a tuple counts as one."""

    def _init(
        self,
        op: Any,
        inputs: Sequence[Any],
        *,
        num_outputs: int = 1,
        cached_data: Any = None,
        requires_grad: bool | None = None,
    ) -> None:
        """Set up a value made by ``__new__``: a leaf over ``cached_data``, or ``op(*inputs)``.

        As in the course the result of an op waits until it is read; it requires a gradient if an
        input does. ``num_outputs`` is ignored.
        """
        if op is None:
            data = cached_data if isinstance(cached_data, (NDArray, tuple)) else array(cached_data)
            graph.init_tensor(self, data, False)
            self.requires_grad = bool(requires_grad)
            return
        with executor.modes(lazy=True):
            made = executor.apply(op, *inputs)
        graph.init_tensor(self, NDArray([0.0]), False)
        graph.rebind(self, made)

    @classmethod
    def make_const(cls, data: Any, *, requires_grad: bool = False) -> Any:
        """Return a leaf of this class over an array, without copying."""
        made = cls.__new__(cls)
        made._init(None, [], cached_data=data, requires_grad=requires_grad)
        return made

    @classmethod
    def make_from_op(cls, op: Any, inputs: Sequence[Any]) -> Any:
        """Return ``op(*inputs)``."""
        return executor.apply(op, *inputs)

    @property
    def is_leaf(self) -> Answer:
        """Whether no recorded op made this value: an attribute, or ``is_leaf()`` in the course."""
        return Answer(not self._is_recorded())

    def _is_recorded(self) -> bool:
        """Return whether it is part of a graph; in lazy mode not every op's node is."""
        return not is_start(self) and self.requires_grad

    def _waits(self) -> bool:
        """Return whether its value is not known yet, or is that of a program's later call."""
        return graph.lazy() and (self.array is None or tracing.current() is not None)

    def realize_cached_data(self) -> Any:
        """Return the array; compute it first if it is postponed."""
        return executor.primal_array(self)

    @property
    def cached_data(self) -> Any:
        """The computed array."""
        return executor.primal_array(self)

    @property
    def maker(self) -> str | None:
        """With ``debug >= 1``: the op or constructor, and the line, that made this value."""
        return executor.maker_of(self)

    def __copy__(self) -> Any:
        return copying.deepcopy(self)


class TensorTuple(Value):
    """The result of an op with several outputs; tuples are not nested."""

    __slots__ = ()

    def __len__(self) -> int:
        spec = self.array if self.array is not None else self.node.spec
        return len(spec)

    def tuple(self) -> tuple[Any, ...]:
        """Return the tensors."""
        return tuple([executor.apply(ops.TupleGetItem.of(i), self) for i in range(len(self))])

    def __getitem__(self, index: int) -> Any:
        size, index = len(self), integer("TensorTuple: index", index)
        if not -size <= index < size:
            raise IndexError(f"index {index} is out of range for {size} tensors")
        return executor.apply(ops.TupleGetItem.of(index % size), self)

    def detach(self) -> TensorTuple:
        """Return the same values without graph."""
        if self._waits():
            return ops.make_tuple(*[x.detach() for x in self.tuple()])
        return graph.wrap(executor.primal_array(self))

    def __add__(self, other: TensorTuple) -> TensorTuple:
        if not isinstance(other, TensorTuple):
            return NotImplemented
        if len(self) != len(other):
            raise ShapeError(f"add: tuples of {len(self)} and {len(other)} tensors")
        return ops.make_tuple(*[a + b for a, b in zip(self.tuple(), other.tuple(), strict=True)])

    def __repr__(self) -> str:
        return f"needle.TensorTuple{self.tuple()}"

    def __reduce__(self) -> Any:
        raise GradientError("copy: copy the tensors of a TensorTuple one by one")
