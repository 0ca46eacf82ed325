"""Epilogues: elementwise ops that follow a matrix product become part of its kernel.

The kernel finishes the rows of the product while they are in a cache, by the loops of the single
ops, so it has their bits. A value between may have other readers: then the kernel returns it, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from needle.backend import kernels
from needle.backend.ndarray import broadcast_shapes, empty
from needle.compile.listing import Listing
from needle.compile.passes import rewritten
from needle.ops.core.families import Elementwise
from needle.ops.core.op import Op
from needle.ops.linalg.matmul import MatMul
from needle.ops.shape.tuples import TupleGetItem

MOST_STEPS = 4  # as in src/common/kernels.h
QUICK = frozenset({
    "abs", "add", "leaky_relu", "maximum", "minimum", "multiply", "negative", "relu", "relu_grad",
    "sigmoid_grad", "square", "subtract", "tanh_grad",
})  # fmt: skip
"""Functions that wait for memory by themselves. Others wait for their instructions, and gain
nothing: a matrix unit even slows down while it pauses for them."""


class MatMulEpilogue(Op):
    """A matrix product, and elementwise functions one after the other.

    Attributes:
        steps: (function, place of the value so far among its operands; -1: the only one).
        kept: the value before this step is a result, too; -1: none is.

    Shapes:   a [..., m, k], b [..., k, n], operands [n] or [..., m, n] -> [..., m, n], perhaps two
    """

    steps: Any
    kept: int
    is_differentiable = False

    @property
    def name(self) -> str:
        """The functions, as ``explain`` shows them."""
        return " + ".join(["matmul", *(function for function, _ in self.steps)])

    def compute(self, a: Any, b: Any, *others: Any) -> Any:
        batch = broadcast_shapes("matmul", a.shape[:-2], b.shape[:-2])
        shape = (*batch, a.shape[-2], b.shape[-1])
        if all(x.shape != shape or x.strides == x.spec.strides for x in others):
            outs = tuple(empty(shape, a.dtype, a.device) for _ in range(1 + (self.kept >= 0)))
            a_all, b_all = (x.broadcast_to((*batch, *x.shape[-2:])) for x in (a, b))
            views = [x.broadcast_to(shape) for x in others]
            if a.device.backend.matmul_epilogue(outs, a_all, b_all, self.steps, views, self.kept):
                return outs if self.kept >= 0 else outs[0]
        return self._by_steps(a, b, others)

    def flops(self, *specs: Any) -> int:
        product = MatMul.of().infer(*specs[:2])
        return product.size * (2 * specs[0].shape[-1] + len(self.steps))

    def _by_steps(self, a: Any, b: Any, others: Sequence[Any]) -> Any:
        """Return the results by separate kernels."""
        values, rest = [kernels.matmul(a, b)], iter(others)
        for function, place in self.steps:
            operands = values[-1:] if place < 0 else [next(rest)]
            if place >= 0:
                operands.insert(place, values[-1])
            values.append(kernels.elementwise(function, *operands))
        return values[-1] if self.kept < 0 else (values[self.kept], values[-1])


class Chain(NamedTuple):
    """A product and what joins it.

    Attributes:
        nodes: the product, then the node of each step.
        others: the other operands of the steps.
        steps: as in ``MatMulEpilogue``.
        kept: as there.
    """

    nodes: list[Any]
    others: list[Any]
    steps: list[tuple[str, int]]
    kept: int


def join(listing: Listing) -> Listing:
    """Return the listing with products that compute what follows them."""
    # A value between has readers that may come before the last node; operands may come late.
    chains = {chain.nodes[0 if chain.kept >= 0 else -1]: chain for chain in _Search(listing).chains}
    taken: dict[Any, Any] = {}  # what takes the place of the nodes of chains

    def joined(work: Any, node: Any, inputs: Sequence[Any]) -> Any:
        if node in chains:
            chain = chains[node]
            given = [work.new[x] for x in (*chain.nodes[0].inputs, *chain.others)]
            taken.update(_emitted(work, chain, given))
        return taken.get(node)

    return rewritten(listing, joined) if chains else listing


def _emitted(work: Any, chain: Chain, inputs: Sequence[Any]) -> dict[Any, Any]:
    op, spec = MatMulEpilogue.of(tuple(chain.steps), chain.kept), chain.nodes[0].spec
    if chain.kept < 0:
        return dict.fromkeys(chain.nodes, work.make(op, inputs, spec))
    both = work.make(op, inputs, (spec, spec))
    kept, last = (work.make(TupleGetItem.of(i), [both], spec) for i in range(2))
    return {**dict.fromkeys(chain.nodes, last), chain.nodes[chain.kept]: kept}


def alone(listing: Listing) -> list[tuple[Any, Any, str]]:
    """Return elementwise nodes that do not join a product, the product that nothing joins, why."""
    return _Search(listing).refused


class _Search:
    def __init__(self, listing: Listing) -> None:
        self.place = {node: i for i, node in enumerate(listing.order)}
        self.readers: dict[Any, list[Any]] = {}
        for node in listing.order:
            for below in dict.fromkeys(node.inputs):
                self.readers.setdefault(below, []).append(node)
        self.seen = {*listing.outputs, *(node for node, _ in listing.stores)}
        self.taken: set[Any] = set()
        self.chains: list[Chain] = []
        self.refused: list[tuple[Any, Any, str]] = []
        # Of two products that meet in a sum the later one takes it: its kernel runs last anyway.
        for node in reversed(listing.order):
            if type(node.op) is MatMul:
                self._add(node)

    def _add(self, product: Any) -> None:
        chain = self._chain(product)
        if chain.steps:
            self.chains.append(chain)
            self.taken.update(chain.nodes)
            return
        reader = next(
            (x for x in self.readers.get(product, []) if isinstance(x.op, Elementwise)), None
        )
        if reader is not None:
            why = _unfit(product) or self._hindrance(reader, product, product)
            self.refused.append((reader, product, why))

    def _chain(self, product: Any) -> Chain:
        nodes, kept = [product], -1
        others: list[Any] = []
        steps: list[tuple[str, int]] = []
        while len(steps) < MOST_STEPS and not _unfit(product):
            value = nodes[-1]
            readers = self.readers.get(value, [])
            follower = next((x for x in readers if not self._hindrance(x, value, product)), None)
            if follower is None:
                break
            shared = len(readers) > 1 or value in self.seen
            rest = [x for x in follower.inputs if x is not value]
            late = any(self._is_late(x, product) for x in (*others, *rest))
            if (shared and kept >= 0) or (late and (shared or kept >= 0)):
                break
            kept = len(steps) if shared else kept
            place = follower.inputs.index(value) if rest else -1
            steps.append((follower.op.function, place))
            nodes.append(follower)
            others += rest
        return Chain(nodes, others, steps, kept)

    def _hindrance(self, node: Any, value: Any, product: Any) -> str:
        """Return why a reader of a value cannot follow it; empty if it can."""
        rest = [x for x in node.inputs if x is not value]
        if not isinstance(node.op, Elementwise) or type(node.op).compute is not Elementwise.compute:
            return f"{node.op.name} is not elementwise"
        if node.spec is not value.spec:
            return f"{node.op.name} gives another shape or dtype"
        if node.op.function not in QUICK:
            return f"{node.op.name} takes longer than its memory"
        if len(rest) > 1 or len(node.inputs) != len(rest) + 1:
            return f"{node.op.name} takes other operands, too"
        if node in self.taken:
            return f"{node.op.name} is part of a later product"
        if any(not _is_row(x.spec, value.spec) and x.spec is not value.spec for x in rest):
            return f"the other operand of {node.op.name} is neither a row nor of this shape"
        shared = len(self.readers[value]) > 1 or value in self.seen
        if shared and any(self._is_late(x, product) for x in rest):
            return f"others read it before the other operand of {node.op.name} is known"
        return ""

    def _is_late(self, node: Any, product: Any) -> bool:
        return self.place.get(node, -1) > self.place[product]


def _unfit(product: Any) -> str:
    """Return why nothing can join a product; empty if something can."""
    spec, left = product.spec, product.inputs[0].spec
    if not spec.device.backend.records or not spec.dtype.is_floating:
        return f"no kernel on {spec.device} for {spec.dtype}"
    return "" if left.shape[-1] > 1 else "it is a multiplication"


def _is_row(spec: Any, whole: Any) -> bool:
    return spec.dtype is whole.dtype and spec.shape[-1:] == whole.shape[-1:] == (spec.size,)
