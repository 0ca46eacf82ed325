"""Rules of the passes: exact ones, which change no bit of a result.

A rule is a function of the rewriting, a node and its new inputs. It returns a node to take the
place, or None to keep the node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from needle import backend, executor, graph
from needle.errors import NeedleError
from needle.ops.core.families import Composite, Elementwise
from needle.ops.core.op import Identity
from needle.ops.core.primitives import MakeTensorTuple
from needle.ops.core.starts import Again, Placeholder, Start
from needle.ops.core.update import Update
from needle.ops.elementwise.arithmetic import Multiply, Negative
from needle.ops.shape.movement import Permute, Reshape
from needle.ops.shape.tuples import TupleGetItem

MOST = 1 << 16
"""Bytes of a constant that folding may make."""


def stop(work: Any, node: Any, inputs: Sequence[Any]) -> Any:
    """Drop what only stops gradients: detach, the start of a graph, a user's own gradient."""
    op = node.op
    if type(op) in (Identity, Start):
        return inputs[0]
    if getattr(op, "ready", False) and not op.several:
        return inputs[0]
    if type(op) is TupleGetItem:
        made = node.inputs[0].op
        if isinstance(made, MakeTensorTuple) or (getattr(made, "ready", False) and made.several):
            return inputs[0].inputs[op.index]
    return None


def fold(work: Any, node: Any, inputs: Sequence[Any]) -> Any:
    """Compute a node of constants now, on the device."""
    op, spec = node.op, node.spec
    known = inputs and all(x in work.arrays for x in inputs)
    if not known or type(spec) is tuple or spec.size * spec.dtype.itemsize > MOST or op.opaque:
        return None
    with executor.modes(recording=False, lazy=False):
        try:
            return work.constant(op.compute(*[work.arrays[x] for x in inputs]))
        except NeedleError:  # fails in each call, then, as the function does
            return None


def simplify(work: Any, node: Any, inputs: Sequence[Any]) -> Any:
    """Drop what changes nothing: permutes that cancel, reshapes to the same shape, times 1, -(-x).

    What has a layout of its own stays: sums of a view and of its copy differ in their rounding.
    """
    kind = type(node.op)
    if kind is Reshape and inputs[0].spec is node.spec:
        return inputs[0]
    if kind is Permute:
        return _permuted(work, node, inputs[0])
    if kind is Negative and inputs[0].op is not None and type(inputs[0].op) is Negative:
        x = inputs[0].inputs[0]
        return x if _keeps_layout(work, x) else None
    if kind is Multiply:
        for x, other in (inputs, inputs[::-1]):
            if x.spec is node.spec and _is_one(work, other) and _keeps_layout(work, x):
                return x
    return None


def _keeps_layout(work: Any, x: Any) -> bool:
    """Return whether a function of each element of a value would lay it out as it is now."""
    if x in work.arrays:
        return bool(work.arrays[x].strides == x.spec.strides)
    if type(x.op) is Placeholder:
        return x.op.strides is None
    return isinstance(x.op, Elementwise) and type(x.op).compute is Elementwise.compute


def _permuted(work: Any, node: Any, x: Any) -> Any:
    axes = node.op.axes
    if x.op is not None and type(x.op) is Permute:
        axes = tuple(x.op.axes[i] for i in axes)
        x = x.inputs[0]
    if axes == tuple(range(len(axes))):
        return x
    return None if axes == node.op.axes else work.make(Permute.of(axes), [x], node.spec)


def _is_one(work: Any, node: Any) -> bool:
    array = work.arrays.get(node)
    return array is not None and array.size == 1 and array.item() == 1


def expand(work: Any, node: Any, inputs: Sequence[Any]) -> Any:
    """Replace a composite by its expansion where the device computes it so."""
    op, kind = node.op, type(node.op)
    if not isinstance(op, Composite) or kind.compute is not Composite.compute:
        return None
    if kind.expanded is not Composite.expanded or type(node.spec) is tuple:
        return None
    if backend.find_override(node.inputs[0].spec.device.name, kind.__name__) is not None:
        return None
    tensors = [graph.tensor_of(x) for x in inputs]
    with executor.modes(recording=False, lazy=True):
        try:
            out = op.expand(*tensors)
        except NeedleError:  # it reads values
            return None
    known = {*inputs, *work.order, *work.listing.sources, *work.arrays}
    order = graph.topo([graph.leaf(out)], False, frozenset(known))
    for x in order:
        if x.op is None and x not in known:
            work.constant_leaf(x)
    work.adopt([x for x in order if x.op is not None and x not in known])
    return graph.leaf(out)


class Cse:
    """Merge nodes of the same op on the same inputs. Draws are not equal to each other."""

    def __init__(self) -> None:
        self.seen: dict[Any, Any] = {}

    def __call__(self, work: Any, node: Any, inputs: Sequence[Any]) -> Any:
        if type(node.op) in (Update, Again):
            return None
        key = (node.op, *inputs)
        known = self.seen.get(key)
        if known is None:
            same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
            if same:
                self.seen[key] = node
                return None
            known = self.seen[key] = work.make(node.op, inputs, node.spec)
        return known


def join(work: Any, node: Any, inputs: Sequence[Any]) -> Any:
    """Drop what kept the second run of a checkpoint apart."""
    return inputs[0] if type(node.op) is Again else None
