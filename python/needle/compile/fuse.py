"""Fusion: chains of elementwise ops over long arrays as one kernel, which reads memory once.

A group is a node and those elementwise nodes below it that only the group reads. The tile
interpreter of the native module runs it with the loops of the single ops, so it has their bits.
Arrays that fit into the caches gain nothing, so they stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any

from needle import core, devices
from needle import dtype as dtypes
from needle.backend import kernels
from needle.backend.array import make_array, make_spec
from needle.backend.ndarray import kept_order
from needle.compile.listing import Listing
from needle.compile.passes import rewritten
from needle.ops.base import Elementwise, Op

SMALLEST = 1 << 16
"""Elements from which on chains are fused; shorter ones were not faster."""
MOST_STEPS, MOST_INPUTS = 24, 12

Step = tuple[str, tuple[int, ...]]


class Fused(Op):
    """A program of elementwise functions on operands that broadcast.

    Attributes:
        steps: (function, registers): the inputs are the first registers, then come the results of
            the steps; the last one is the result.
        shape: of the result.
        dtype: of the result.

    Shapes:   operands that broadcast -> shape
    Dtypes:   one floating dtype, but for bools that choose
    """

    steps: Any
    shape: tuple[int, ...]
    dtype: Any
    is_differentiable = False

    def compute(self, *arrays: Any) -> Any:
        spec = make_spec(self.dtype, arrays[0].device, self.shape)
        handle = spec.device.backend.allocate(spec.size * spec.dtype.itemsize)
        out = make_array(spec, handle, 0, self._strides(arrays))
        views = [x if x.shape == self.shape else x.broadcast_to(self.shape) for x in arrays]
        spec.device.backend.run_fused(self.steps, [out], views)
        return out

    def flops(self, *specs: Any) -> int:
        return len(self.steps) * prod(self.shape)

    def _strides(self, arrays: Sequence[Any]) -> Any:
        """Return the strides that the single ops would give the result; None: dense."""
        meta = devices.meta()
        registers = [
            make_array(make_spec(x.dtype, meta, x.shape), None, 0, x.strides) for x in arrays
        ]
        spec = make_spec(self.dtype, meta, self.shape)
        strides = None
        for _, places in self.steps:
            given = [registers[i] for i in places]
            strides = kept_order(self.shape, tuple(x for x in given if 0 not in x.strides))
            registers.append(make_array(spec, None, 0, strides))
        return strides


def fuse(listing: Listing) -> Listing:
    """Return the listing with chains of elementwise nodes as one node each."""
    groups = {node: members for node, members in _groups(listing).items() if len(members) > 1}
    inside = {x for members in groups.values() for x in members}
    new: dict[Any, Any] = {}  # what takes the place of the members' inputs

    def fused(work: Any, node: Any, inputs: Sequence[Any]) -> Any:
        if node in inside:
            new.update(zip(node.inputs, inputs, strict=True))
        return _emitted(work, node, groups[node], new) if node in groups else None

    return rewritten(listing, fused) if groups else listing


def _groups(listing: Listing) -> dict[Any, list[Any]]:
    """Return for the last node of each group its members, in order."""
    readers = Counter(x for node in listing.order for x in node.inputs)
    readers.update(listing.outputs)
    readers.update(node for node, _ in listing.stores)
    groups: dict[Any, list[Any]] = {}
    for node in listing.order:
        if not _can_fuse(node):
            continue
        members = [node]
        for below in dict.fromkeys(node.inputs):
            if below not in groups or readers[below] != node.inputs.count(below):
                continue
            joined = [*groups[below], *members]
            if below.spec.shape == node.spec.shape and _fits(joined):
                members = joined
                del groups[below]
        groups[node] = members
    return groups


def _can_fuse(node: Any) -> bool:
    op, spec = node.op, node.spec
    if not isinstance(op, Elementwise) or type(op).compute is not Elementwise.compute:
        return False
    if type(spec) is tuple or spec.size < SMALLEST or spec.device.name != "cpu":
        return False
    kinds = [x.spec.dtype for x in node.inputs]
    if op.function == "where" and kinds[0] is dtypes.bool_:
        kinds = kinds[1:]
    same = all(kind is kinds[0] for kind in kinds) and kinds[0] in (dtypes.float32, dtypes.float64)
    known = core.native is not None and kernels.function_code(op.function) >= 0
    return known and same and spec.dtype in (kinds[0], dtypes.bool_)


def _fits(members: Sequence[Any]) -> bool:
    inside = set(members)
    floats = {x.spec.dtype for x in members} - {dtypes.bool_}
    return (
        len(floats) <= 1
        and len(members) <= MOST_STEPS
        and len({x for node in members for x in node.inputs} - inside) <= MOST_INPUTS
    )


def _emitted(work: Any, node: Any, members: Sequence[Any], new: dict[Any, Any]) -> Any:
    inside = set(members)
    outside = list(dict.fromkeys(x for m in members for x in m.inputs if x not in inside))
    registers = {x: i for i, x in enumerate(outside)}
    steps = []
    for member in members:
        steps.append((member.op.function, tuple(registers[x] for x in member.inputs)))
        registers[member] = len(registers)
    op = Fused.of(tuple(steps), node.spec.shape, node.spec.dtype)
    return work.make(op, [new[x] for x in outside], node.spec)
