"""Fusion: elementwise ops that read each other's results as one kernel, which reads memory once.

A group is emitted where its last node was. Values that are read outside the group are results of
the kernel, if all these readers come after it; the others never reach memory. The tile interpreter
of the native module runs it with the loops of the single ops, so it has their bits. Short
arrays gain nothing, so they stay as they are. A reduction that alone reads what a group computes
is the end of its kernel, which folds each tile while it is in a cache, in the order of the separate
kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import pairwise
from math import isnan, prod
from typing import Any

from needle import devices, executor
from needle.backend import kernels
from needle.backend.array import make_array, make_spec
from needle.backend.fused import register_dtypes, registers_of
from needle.backend.ndarray import empty, kept_order
from needle.compile.listing import Listing
from needle.compile.passes import Rewriting, alive
from needle.dtype import bfloat16, float16
from needle.errors import ArgumentError, DtypeError
from needle.ops.core.families import Elementwise
from needle.ops.core.op import Cast, Op
from needle.ops.core.primitives import SumTo
from needle.ops.reduction.reduce import Max, Mean, Min, Sum
from needle.ops.shape.tuples import TupleGetItem

SMALLEST, SMALLEST_HALVES = 1 << 14, 1 << 18
"""Elements from which on chains are fused, and casts of half precision with them; shorter ones
were not faster. Nor is arithmetic in bfloat16, whose results have to be rounded at each step."""
SMALLEST_REDUCED, SHORTEST_ROWS = 1 << 18, 16
"""Elements from which on a reduction joins what it reads, and elements of rows that it reduces."""
MOST_STEPS, MOST_OPERANDS, MOST_NUMBERS = 24, 16, 12
_MOST_TILES = 40
"""What a program needs at most in the interpreter: inputs, numbers and steps together."""
_MOST_STRIDES = 96
"""Numbers that say how the interpreter walks through memory."""
_EXACT = 2**53
"""Integers that numbers of a program can be."""


class Fused(Op):
    """A program of elementwise functions on operands that broadcast.

    Attributes:
        steps: (function, arguments): see ``needle.backend.fused``.
        results: registers of steps, each once: one result, or a tuple of them.
        shape: of each result.
        reduction: (function, axes, shape) if the last result is reduced to this shape; or ().

    Shapes:   operands that broadcast -> shape, or a tuple of this shape, the last one reduced
    Dtypes:   those of the functions
    """

    steps: Any
    results: tuple[int, ...]
    shape: tuple[int, ...]
    reduction: Any
    is_differentiable = False

    @functools.cached_property
    def name(self) -> str:
        functions = [*(function for function, _ in self.steps), *self.reduction[:1]]
        return f"fused({', '.join(functions)})"

    def flops(self, *specs: Any) -> int:
        return (len(self.steps) + bool(self.reduction)) * prod(self.shape)

    def compute(self, *arrays: Any) -> Any:
        device, last = arrays[0].device, self.results[-1]
        kinds = register_dtypes(self.steps, tuple(x.dtype for x in arrays))
        strides = self._strides(arrays, kinds)
        views = [x if x.shape == self.shape else x.broadcast_to(self.shape) for x in arrays]

        def made(register: int) -> Any:
            spec = make_spec(kinds[register], device, self.shape)
            handle = device.backend.allocate(spec.size * spec.dtype.itemsize)
            return make_array(spec, handle, 0, strides[register])

        outs = [made(register) for register in self.results[:-1]]
        if not self.reduction or strides[last] is not None:
            outs.append(made(last))
            device.backend.run_fused(self.steps, outs, views, self.results)
            if self.reduction:  # in the order of the memory
                outs[-1] = kernels.reduce(self.reduction[0], outs[-1], self.reduction[1], True)
        else:
            function, axes, _ = self.reduction
            kept = tuple(1 if i in axes else n for i, n in enumerate(self.shape))
            outs.append(empty(kept, kernels.reduced_dtype(function, kinds[last]), device))
            device.backend.reduce_fused(self.steps, outs, views, self.results, function, axes)
        if self.reduction:
            outs[-1] = outs[-1].reshape(self.reduction[2])
        return outs[0] if len(outs) == 1 else tuple(outs)

    def _strides(self, arrays: Sequence[Any], kinds: Sequence[Any]) -> list[Any]:
        """Return the strides that the single ops would give each register; None: dense."""
        meta = devices.meta()
        found: list[Any] = [None] * len(kinds)
        registers = [
            make_array(make_spec(x.dtype, meta, x.shape), None, 0, x.strides) for x in arrays
        ]
        for i, (_, arguments) in enumerate(self.steps, len(arrays)):
            given = [registers[r] for r in registers_of(arguments)]
            found[i] = kept_order(self.shape, tuple(x for x in given if 0 not in x.strides))
            registers.append(make_array(make_spec(kinds[i], meta, self.shape), None, 0, found[i]))
        return found


def fuse(listing: Listing) -> Listing:
    """Return the listing with groups of elementwise nodes as one node each."""
    groups = Groups(listing)
    last = {group[-1]: group for group in groups.found()}
    if not last:
        return listing
    inside = {node for group in last.values() for node in group}
    work = Rewriting(listing)
    new = {x: x for x in (*listing.sources, *work.arrays)}
    for node in listing.order:
        work.line = executor.line_of(node)
        if node in last:
            new.update(_emitted(work, groups, last[node], new))
        elif node not in inside:
            inputs = [new[x] for x in node.inputs]
            same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
            new[node] = node if same else work.make(node.op, inputs, node.spec)
            if same:
                work.order.append(node)
    outputs = [new[x] for x in listing.outputs]
    return alive(work, outputs, [(new[x], i) for x, i in listing.stores])


def _emitted(work: Rewriting, groups: Groups, members: list[Any], new: Any) -> dict[Any, Any]:
    """Make the node of a group; return what takes the place of each member that others read."""
    inside = set(members)
    outside = list(dict.fromkeys(x for m in members for x in m.inputs if x not in inside))
    arguments: dict[Any, int | str] = {x: groups.numbers[x] for x in outside if x in groups.numbers}
    operands = [x for x in outside if x not in arguments]
    arguments.update({x: i for i, x in enumerate(operands)})
    steps: list[Any] = []
    reduction: tuple[Any, ...] = ()
    parts = [m for m in members if m not in groups.reductions]
    for i, member in enumerate(parts, len(operands)):
        steps.append((function_of(member.op), tuple(arguments[x] for x in member.inputs)))
        arguments[member] = i
    results = [m for m in parts if groups.is_read_outside(m, inside)]
    for member in inside & groups.reductions.keys():
        reduction = (*groups.reductions[member], member.spec.shape)
        arguments[member] = arguments[member.inputs[0]]
        results.append(member)
    registers = tuple(arguments[m] for m in results)
    op = Fused.of(tuple(steps), registers, parts[-1].spec.shape, reduction)
    specs = tuple(m.spec for m in results)
    made = work.make(op, [new[x] for x in operands], specs[0] if len(specs) == 1 else specs)
    if len(specs) == 1:
        return {results[0]: made}
    return {m: work.make(TupleGetItem.of(i), [made], m.spec) for i, m in enumerate(results)}


class Groups:
    """The groups of a listing.

    Attributes:
        refused: (node, one that it reads, why they were not joined).
        numbers: the constants of one element, as arguments of steps.
        reductions: (function, axes) of the reductions that are part of a group.
    """

    def __init__(self, listing: Listing) -> None:
        self.order = listing.order
        self.place = {node: i for i, node in enumerate(listing.order)}
        found = ((x, number_of(array)) for x, array in listing.constants)
        self.numbers = {x: text for x, text in found if text is not None}
        self.readers: dict[Any, list[Any]] = {}  # None: the caller
        for node in listing.order:
            for below in node.inputs:
                self.readers.setdefault(below, []).append(node)
        for node in (*listing.outputs, *(x for x, _ in listing.stores)):
            self.readers.setdefault(node, []).append(None)
        self.refused: list[tuple[Any, Any, str]] = []
        self.of: dict[Any, list[Any]] = {}
        self.reductions: dict[Any, tuple[str, tuple[int, ...]]] = {}
        for node in listing.order:
            if _can_fuse(node):
                self._join(node)
            elif node.inputs and node.inputs[0] in self.of:
                self._end(node, node.inputs[0])

    def found(self) -> list[list[Any]]:
        """Return the members of each group of several, in their order."""
        lasts = [x for x in self.order if x in self.of and self.of[x][-1] is x]
        return [self.of[x] for x in lasts if len(self.of[x]) > 1]

    def is_read_outside(self, node: Any, inside: set[Any]) -> bool:
        """Return whether a node is read by others than these."""
        return any(x not in inside for x in self.readers.get(node, ()))

    def _join(self, node: Any) -> None:
        members = [node]
        for below in dict.fromkeys(node.inputs):
            if below not in self.of or below in members or below in self.reductions:
                continue
            joined = sorted({*self.of[below], *members}, key=self.place.__getitem__)
            why = self._obstacle(joined)
            if why:
                self.refused.append((node, below, why))
            else:
                members = joined
        for member in members:
            self.of[member] = members

    def _end(self, node: Any, below: Any) -> None:
        """Let a reduction be the end of a group."""
        reduction = reduction_of(node)
        if not reduction:
            return
        joined = sorted([*self.of[below], node], key=self.place.__getitem__)
        self.reductions[node] = reduction
        why = _unfit(reduction[1], below.spec) or self._obstacle(joined)
        if self.readers[below] != [node]:
            why = "others read it, too"
        if why:
            self.refused.append((node, below, why))
            del self.reductions[node]
        else:
            self.of.update(dict.fromkeys(joined, joined))

    def _obstacle(self, members: list[Any]) -> str:
        """Return why nodes cannot be one kernel where the last of them is; empty if they can."""
        inside, last = set(members), members[-1]
        ends = inside & self.reductions.keys()
        if len({x.spec.shape for x in inside - ends}) > 1:
            return "the shapes differ"
        if len(ends) > 1:
            return "there is another reduction"
        if any(x in ends for node in members for x in node.inputs):
            return "another op needs a value in between"
        for node in members:
            others = (x for x in self.readers[node] if x is not None and x not in inside)
            if any(self.place[x] < self.place[last] for x in others):
                return "another op needs a value in between"
        return self._excess(members, inside)

    def _excess(self, members: list[Any], inside: set[Any]) -> str:
        """Return of what a program of nodes would have too much."""
        outside = {x for node in members for x in node.inputs} - inside
        numbers = sum(x in self.numbers for x in outside)
        operands = len(outside) - numbers
        operands += sum(self.is_read_outside(node, inside) for node in members)
        if len(members) > MOST_STEPS or len(outside) + len(members) > _MOST_TILES:
            return f"more than {MOST_STEPS} steps"
        if numbers > MOST_NUMBERS:
            return f"more than {MOST_NUMBERS} numbers"
        strides = (max(2, *(len(x.spec.shape) for x in members)) + 1) * (operands + 1)
        if operands > MOST_OPERANDS or strides > _MOST_STRIDES:
            return f"more than {MOST_OPERANDS} operands"
        return ""


def function_of(op: Any) -> str:
    """Return the function of a step; empty for what is none."""
    if type(op) is Cast:
        return op.dtype.name
    plain = isinstance(op, Elementwise) and type(op).compute is Elementwise.compute
    return op.function if plain and kernels.function_code(op.function) >= 0 else ""


def reduction_of(node: Any) -> tuple[str, tuple[int, ...]] | None:
    """Return the function and the axes of a reduction that can end a program; None for others."""
    if type(node.op) is SumTo:
        return "sum", node.op.axes_of(node.inputs[0].spec.shape)
    if type(node.op) in (Sum, Mean, Max, Min):
        return node.op.function, node.op.axes
    return None


def _unfit(axes: Sequence[int], spec: Any) -> str:
    """Return why a reduction of an array cannot be part of a kernel; empty if it can."""
    if spec.size < SMALLEST_REDUCED:
        return f"fewer than {SMALLEST_REDUCED:,} elements are reduced"
    sizes = [(n, i in axes) for i, n in enumerate(spec.shape) if n > 1]
    if sizes[-1][1] and sizes[-1][0] < SHORTEST_ROWS:
        return f"rows have fewer than {SHORTEST_ROWS} elements"
    ends = pairwise([False, *(reduced for _, reduced in sizes), False])
    return "" if sum(a != b for a, b in ends) == 2 else "the reduced axes do not lie side by side"


def _can_fuse(node: Any) -> bool:
    spec, function = node.spec, function_of(node.op)
    if not function or not spec.device.backend.records:
        return False
    given = tuple(x.spec.dtype for x in node.inputs)
    if type(node.op) is Cast:
        halves = any(kind in (bfloat16, float16) for kind in (*given, spec.dtype))
        return spec.size >= (SMALLEST_HALVES if halves else SMALLEST)
    if spec.size < SMALLEST or bfloat16 in given:
        return False
    try:
        kinds = register_dtypes(((function, tuple(range(len(given)))),), given)
    except (ArgumentError, DtypeError):
        return False
    return kinds[-1] is spec.dtype


def number_of(array: Any) -> str | None:
    """Return a constant of one element as an argument of a step, or None."""
    if array is None or array.size != 1:
        return None
    value = array.item()
    if isinstance(value, float):
        return None if isnan(value) else repr(value)
    return str(int(value)) if abs(value) <= _EXACT else None
