"""Ops with several outputs: their result is a ``TensorTuple``."""

from __future__ import annotations

from typing import Any

from needle import executor
from needle.ops.base import Op


class MakeTensorTuple(Op):
    """Make one value of several tensors."""

    def compute(self, *arrays: Any) -> Any:
        return arrays

    def gradient(self, out_grad: Any, out: Any) -> Any:
        return tuple(out_grad[i] for i in range(len(out.node.inputs)))


class TupleGetItem(Op):
    """Take one tensor of a tuple."""

    index: int

    def compute(self, arrays: Any) -> Any:
        return arrays[self.index]

    def infer(self, *specs: Any) -> Any:
        return specs[0][self.index]

    def gradient(self, out_grad: Any, out: Any) -> Any:
        parts: list[Any] = [None] * len(out.node.inputs[0].spec)
        parts[self.index] = out_grad
        return (parts,)


def make_tuple(*tensors: Any) -> Any:
    """Return a TensorTuple of tensors."""
    return executor.apply(MakeTensorTuple.of(), *tensors)


def tuple_get_item(value: Any, index: int) -> Any:
    """Return one tensor of a TensorTuple."""
    return executor.apply(TupleGetItem.of(index), value)
