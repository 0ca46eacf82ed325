"""The walk of reverse mode: gradients flow from results down to their inputs.

It knows nodes and calls ``op.gradient``; the caller decides which tensors receive gradients
(``autograd`` for users, ``ops.base`` for composites, whose gradient is that of their expansion).

A node is visited after all its consumers, so its gradient is complete: values that are used several
times, repeated inputs and seeds that are not scalars need no special case. In eager mode the ops
of a gradient run as they are made, with recording off unless ``create_graph``; in lazy mode they
wait like all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from needle import config, executor, graph, nancheck
from needle.backend.ndarray import full_of
from needle.errors import GradientError, explain


def walk(
    outs: Sequence[Any],
    seeds: Sequence[Any],
    retain_graph: bool,
    visit: Callable[[Any, Any], None],
    towards: frozenset[Any] | None = None,
) -> None:
    """Pass gradients down from ``outs``; call ``visit(node, gradient)`` once per node reached.

    The order is reverse topological: all consumers of a node are visited before it, so its gradient
    is complete, also for a value that is used several times. The gradient of a node with several
    results is a list, with None for results without a gradient.

    Args:
        outs: the results to start from.
        seeds: their gradients.
        retain_graph: keep the values that gradients read, so that the graph can be walked again.
        visit: receives each node and its gradient; for results only those with a live tensor.
        towards: walk and visit only the paths to these nodes, and stop there; None: everywhere.
    """
    grads: dict[Any, Any] = {}
    for i, out in enumerate(outs):
        _add(grads, graph.leaf(out), seeds[i])
    order = graph.topo(list(grads), True, towards)
    reached = None if towards is None else _above(order, towards)
    tensor_of, receiver_of, release = graph.tensor_of, graph.receiver_of, graph.release
    watched, lazily = nancheck.on(), graph.lazy()
    while order:
        node = order.pop()
        out_grad = grads.pop(node, None)
        if out_grad is None:
            continue
        op = node.op
        if op is None or towards is not None or receiver_of(node) is not None:
            visit(node, out_grad)
        if op is None or (towards is not None and node in towards):
            continue
        if lazily and getattr(node, "released", False):  # no older native module has it
            _check_kept(node)
        out = tensor_of(node)
        parts = nancheck.gradient(op, out_grad, out) if watched else op.gradient(out_grad, out)
        if type(parts) is not tuple:
            parts = tuple(parts) if isinstance(parts, list) else (parts,)
        inputs = node.inputs
        if len(parts) != len(inputs):
            raise _miscounted(op, len(parts), len(inputs))
        if op.is_foreign:
            check_fit(f"{op}", "gradient()", parts, [x.spec if x.needs else None for x in inputs])
        for i, below in enumerate(inputs):
            part = parts[i]
            if part is not None and below.needs and (reached is None or below in reached):
                if below in grads or type(below.spec) is tuple:
                    _add(grads, below, part)
                else:
                    grads[below] = part
        if not retain_graph:
            release(node)


def _check_kept(node: Any) -> None:
    """Refuse in lazy mode what eager mode refuses: another walk of a node whose values went.

    Values that wait could be computed again, but a program would then only run in this mode.

    Raises:
        ReleasedError: if its gradient reads a value that no tensor holds.
    """
    needed = [mask for x, mask in zip(node.inputs, _masks(node), strict=False) if x.needs]
    for place, value in [*enumerate(node.inputs), (graph.OUTPUT, node)]:
        bit = place if value is node else min(place, 62)
        read = any(mask >> bit & 1 for mask in needed)
        if read and value.op is not None and graph.peek(value) is None:
            raise graph.released(graph.tensor_of(value))


def _masks(node: Any) -> tuple[int, ...]:
    masks = tuple(node.op.save_masks)
    return masks + masks[-1:] * (len(node.inputs) - len(masks))


def _miscounted(op: Any, given: int, wanted: int) -> GradientError:
    return GradientError(
        f"{op}: gradient() returned {given} gradients for {wanted} inputs\n"
        "  rule: one entry for each input, None where it needs no gradient"
    )


def check_fit(name: str, rule: str, grads: Sequence[Any], specs: Sequence[Any]) -> None:
    """Check the gradients that a user's rule returned.

    Args:
        name: the op, for errors.
        rule: the rule that returned them, for errors.
        grads: one for each input, None for zero.
        specs: specs of the inputs, None where the gradient is not used.

    Raises:
        GradientError: if one differs from its input in shape, dtype or device.
    """
    for i, (grad, spec) in enumerate(zip(grads, specs, strict=True)):
        if grad is not None and spec is not None and not _fits(grad, spec):
            raise explain(
                GradientError, name, f"{rule} gave a gradient that does not fit input {i}",
                [(f"input {i}", spec), ("gradient", grad)],
                "the gradient of a tensor is a tensor of its shape, dtype and device",
                "gradient.sum(axes) over broadcast axes, gradient.astype(x.dtype), "
                "or None for zero",
            )  # fmt: skip


def _fits(grad: Any, spec: Any) -> bool:
    """Return whether a gradient fits a tensor; with NEEDLE_BACKEND=np dtypes may differ."""
    if type(spec) is tuple:
        return isinstance(grad, (list, tuple, graph.TensorBase))
    if not isinstance(grad, graph.TensorBase) or config.current().backend == "np":
        return isinstance(grad, graph.TensorBase) and grad.spec.shape == spec.shape
    return bool(grad.spec == spec)


def _add(grads: dict[Any, Any], node: Any, part: Any) -> None:
    known = grads.get(node)
    if type(node.spec) is not tuple:
        grads[node] = part if known is None else known + part
        return
    if known is None:
        known = grads[node] = [None] * len(node.spec)
    for i in range(len(known)):
        own = part[i]
        if own is not None:
            known[i] = own if known[i] is None else known[i] + own


def _above(order: Sequence[Any], towards: frozenset[Any]) -> set[Any]:
    """Return the nodes of a topological order that have one of ``towards`` at or below them."""
    found: set[Any] = set()
    for node in order:
        if node in towards or any(below in found for below in node.inputs):
            found.add(node)
    return found


def collect(
    outs: Sequence[Any], seeds: Sequence[Any], inputs: Sequence[Any], retain_graph: bool
) -> list[Any]:
    """Return the gradients with respect to tensors or nodes; zeros for unused ones."""
    nodes = [x if isinstance(x, graph.Node) else graph.leaf(x) for x in inputs]
    wanted = frozenset(nodes)
    found: dict[Any, Any] = {}

    def keep(node: Any, out_grad: Any) -> None:
        if node in wanted:
            by_rows = not isinstance(out_grad, (graph.TensorBase, list))
            found[node] = out_grad.dense() if by_rows else out_grad

    walk(outs, seeds, retain_graph, keep, wanted)
    return [
        found[n] if n in found else full_like(x, 0.0) for n, x in zip(nodes, inputs, strict=True)
    ]


def gradients(
    outs: Sequence[Any], seeds: Sequence[Any], inputs: Sequence[Any], retain: bool, unused: bool
) -> tuple[Any, ...]:
    """Return the gradients with respect to tensors; None for those that nothing depends on.

    Raises:
        GradientError: if there is such a tensor and ``unused`` is false, or if one requires none.
    """
    below = {id(node) for node in graph.topo([graph.leaf(x) for x in outs], True)}
    found = []
    for i, x in enumerate(inputs):
        reached = x.requires_grad and id(graph.leaf(x)) in below
        if not reached and not unused:
            raise explain(
                GradientError, "grad", f"the outputs do not depend on input {i}", [("input", x)],
                "every input is part of the graph of the outputs, and requires a gradient",
                "allow_unused=True, which gives None",
            )  # fmt: skip
        found.append(reached)
    chosen = [x for x, reached in zip(inputs, found, strict=True) if reached]
    values = iter(collect(outs, seeds, chosen, retain) if chosen else ())
    return tuple(next(values) if reached else None for reached in found)


def full_like(x: Any, value: float) -> Any:
    """Return a tensor of one value with the spec of x."""
    return graph.wrap(full_of(x.spec, value))


def transpose(
    op: Any,
    pull: Callable[[Any], Sequence[Any]],
    spec: Any,
    vectors: Sequence[Any],
    create_graph: bool,
) -> Any:
    """Apply the transpose of a linear map from output gradients to input gradients.

    ``pull(u)`` is J'u, and the gradient of <pull(u), v> with respect to u is Jv for any u. So
    reverse mode applied twice gives the tangent of a result.

    Args:
        op: the op of the map, for errors.
        pull: the map; for several results it takes a list, with None for those not floating.
        spec: the spec of the result, or a tuple of specs.
        vectors: one per result of the map, of its shape; None for zero.
        create_graph: whether the result can be differentiated.

    Returns:
        The tensor (for several results a list, with None for those not floating).

    Raises:
        GradientError: if the gradients of the map differ from the vectors in shape or number.
    """
    specs = spec if type(spec) is tuple else (spec,)
    seeds = [variable(part) if part.dtype.is_floating else None for part in specs]
    with executor.modes(recording=True):
        grads = pull(seeds if type(spec) is tuple else seeds[0])
    if len(grads) != len(vectors):
        raise _miscounted(op, len(grads), len(vectors))
    pairs = []
    for grad, v in zip(grads, vectors, strict=True):
        if grad is None or v is None or not grad.requires_grad:
            continue
        if grad.spec.shape != v.spec.shape:
            raise GradientError(
                f"{op}: gradient() returned shape {grad.spec.shape} for an input of shape "
                f"{v.spec.shape}"
            )
        pairs.append((grad, v))
    wanted = [seed for seed in seeds if seed is not None]
    with executor.modes(recording=create_graph):
        outs, ends = [grad for grad, _ in pairs], [v for _, v in pairs]
        found = iter(collect(outs, ends, wanted, create_graph))
    tangents = [None if seed is None else next(found) for seed in seeds]
    return tangents if type(spec) is tuple else tangents[0]


def variable(spec: Any) -> Any:
    """Return zeros of a spec, the start of a graph."""
    seed = graph.wrap(full_of(spec, 0.0))
    seed.requires_grad = True
    return seed
