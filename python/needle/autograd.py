"""Differentiation. Gradients are built from the same ops, on the same graph.

In eager mode gradient ops run as they are built, with recording off unless ``create_graph``; in
lazy mode they are graph that runs when a value is read. One code path.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from needle import config, executor, forward, graph, reverse
from needle.backend.ndarray import array
from needle.errors import GradientError, ShapeError, explain
from needle.ops import random
from needle.ops.base import Op, needed, variables
from needle.ops.elementwise import Add, Negative, Subtract

__all__ = [
    "Op", "backward", "checkpoint", "compute_gradient_of_variables", "custom_gradient",
    "find_topo_sort", "grad", "no_grad", "value_and_grad", "vjp",
]  # fmt: skip


@contextmanager
def no_grad() -> Iterator[None]:
    """Record nothing within a ``with`` block: results need no gradient."""
    with executor.modes(recording=False):
        yield


@contextmanager
def lazy_mode(on: bool = True) -> Iterator[None]:
    """Postpone computation within a ``with`` block until a value is read."""
    with executor.modes(lazy=on):
        yield


@contextmanager
def check_finite() -> Iterator[None]:
    """Stop, within a ``with`` block, at the first op that makes a NaN or an infinity.

    Forward or backward, eager or lazy, and after each update of an optimizer. Infinities are
    allowed where an input of the op has one (masks), and within the expansion of a composite. Each
    result is read once more, in Python's definition of the gate: for hunting, not for training.
    ``NEEDLE_FINITE=on`` does the same for a whole program.

    Raises:
        NonFiniteError: naming the op, how many NaN and infinities, the inputs, and the line that
            called the op; of an op in a gradient the line that called the op it is the gradient of.

    >>> with needle.check_finite():
    ...     loss = model(x).log().sum()
    ...     loss.backward()
    """
    with config.override(finite="on"):
        yield


def _seed(out: Any, out_grad: Any) -> Any:
    if out_grad is None:
        return reverse.full_like(out, 1.0)
    spec = executor.spec_of(out)
    if not isinstance(out_grad, graph.TensorBase):
        out_grad = graph.wrap(array(np.asarray(out_grad), spec.dtype, spec.device))
    given = executor.spec_of(out_grad).shape
    if given != spec.shape:
        raise ShapeError(f"backward: out_grad has shape {given}, the result {spec.shape}")
    return out_grad


def backward(
    out: Any,
    out_grad: Any = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool | None = None,
    accumulate: bool = False,
) -> None:
    """Compute the gradients of ``out`` and store them in ``.grad`` of the tensors below.

    That is: of every leaf that requires a gradient, and of results that a variable still holds.
    With ``accumulate`` nothing is added before all of them are there: a call that fails (memory
    that runs out) can be made again.

    Args:
        out: the tensor to differentiate; it need not be a scalar.
        out_grad: gradient with respect to ``out``; ones for None.
        retain_graph: keep saved values, so that backward can run again. Otherwise each is freed as
            soon as it was used. None: as ``create_graph``.
        create_graph: make the gradients part of the graph, so that they can be differentiated.
            None: false, or true with ``NEEDLE_BACKEND=np`` (the course's rule).
        accumulate: add to ``.grad`` (PyTorch's rule) instead of replacing it.

    Raises:
        GradientError: if ``out`` requires no gradient.
        ReleasedError: if an earlier backward freed what this one needs.
    """
    if not out.requires_grad:
        raise explain(
            GradientError, "backward", "the tensor requires no gradient", [("out", out)],
            "a gradient flows from a result to the leaves with requires_grad=True",
            "check requires_grad of the inputs, no_grad() and detach()",
        )  # fmt: skip
    if create_graph is None:
        create_graph = config.current().backend == "np"
    if retain_graph is None:
        retain_graph = create_graph

    owner = graph.owner
    reached: dict[int, Any] = {}  # after p.data = x one tensor owns several leaves
    totals: dict[int, Any] = {}

    def replace(node: Any, out_grad: Any) -> None:
        tensor = owner(node)
        if tensor is None or type(out_grad) is list:
            return
        key = id(tensor)
        tensor.grad = tensor.grad + out_grad if key in reached else out_grad
        reached[key] = tensor

    def add(node: Any, out_grad: Any) -> None:
        tensor = owner(node)
        if tensor is None or type(out_grad) is list:
            return
        key = id(tensor)
        old = totals.get(key, tensor.grad)
        totals[key] = out_grad if old is None else old + out_grad
        reached[key] = tensor

    old_recording = graph.set_recording(create_graph)
    try:
        seed = _seed(out, out_grad)
        reverse.walk([out], [seed], retain_graph, add if accumulate else replace)
    finally:
        graph.set_recording(old_recording)
    for key, total in totals.items():  # all or none, so that it can be tried again
        reached[key].grad = total


def vjp(function: Callable[..., Any], *args: Any) -> tuple[Any, Callable[..., tuple[Any, ...]]]:
    """Return ``function(*args)`` and the map from an output gradient to the inputs' gradients.

    >>> out, pull = vjp(lambda x: x * x, Tensor([3.0]))
    >>> pull(Tensor([1.0]))[0].numpy()
    array([6.], dtype=float32)
    """
    outer = graph.recording()
    leaves = variables(args)
    with executor.modes(recording=True):
        out = function(*leaves)

    def pull(out_grad: Any = None) -> tuple[Any, ...]:
        with executor.modes(recording=outer):
            if not out.requires_grad:
                return tuple(reverse.full_like(x, 0.0) for x in leaves)
            return tuple(reverse.collect([out], [_seed(out, out_grad)], leaves, True))

    return out, pull


def value_and_grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0
) -> Callable[..., tuple[Any, Any]]:
    """Return a function that gives ``function``'s value and its gradient.

    The gradients are part of the graph, except in ``no_grad()``: apply it again for higher orders.

    Args:
        function: returns a scalar tensor (one element).
        argnums: which positional arguments to differentiate; a tuple gives a tuple.

    Raises:
        GradientError: when called, if the function does not return a scalar.
    """
    positions = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def call(*args: Any) -> tuple[Any, Any]:
        outer = graph.recording()
        leaves = list(args)
        for position, leaf in zip(positions, variables([args[i] for i in positions]), strict=True):
            leaves[position] = leaf
        with executor.modes(recording=True):
            out = function(*leaves)
            if executor.spec_of(out).size != 1:
                raise GradientError(
                    f"grad: the function returned shape {executor.spec_of(out).shape}, a scalar is "
                    "needed\n  try: .sum() it, or use vjp"
                )
        wanted = [leaves[i] for i in positions]
        with executor.modes(recording=outer):
            if out.requires_grad:
                grads = reverse.collect([out], [_seed(out, None)], wanted, outer)
            else:
                grads = [reverse.full_like(x, 0.0) for x in wanted]
        return out, grads[0] if isinstance(argnums, int) else tuple(grads)

    return call


def grad(function: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """Return the gradient function of a scalar function; see ``value_and_grad``.

    >>> grad(grad(lambda x: x * x * x))(Tensor(2.0)).item()
    12.0
    """
    both = value_and_grad(function, argnums)

    def call(*args: Any) -> Any:
        return both(*args)[1]

    return call


# ---- regions with a rule of their own ---------------------------------------------


class _Checkpoint(Op):
    """A region whose inner values are computed again for the gradient (see ``checkpoint``)."""

    function: Callable[..., Any]
    count: int
    state: Any
    saves = (tuple(range(62)),)

    def setup(self) -> None:
        self.opaque = True

    def compute(self, *arrays: Any) -> Any:
        with executor.modes(recording=False, lazy=False), replayed(self.state):
            return executor.value_of(self.function(*map(graph.wrap, arrays[: self.count])))

    def gradient(self, out_grad: Any, out: Any) -> Any:
        inputs = out.inputs
        wanted = needed(out)
        leaves = variables(inputs[: self.count])
        with executor.modes(recording=True), replayed(self.state):
            inner = self.function(*leaves)
        sources = [*leaves, *inputs[self.count :]]
        chosen = [x for x, want in zip(sources, wanted, strict=True) if want]
        found = iter(reverse.collect([inner], [out_grad], chosen, graph.recording()))
        return tuple(next(found) if want else None for want in wanted)


class _Replay(threading.local):
    changes: list[tuple[dict[str, Any], str, Any]] | None = None


_replay = _Replay()


@contextmanager
def replayed(state: Any) -> Iterator[None]:
    """Draw the same random numbers as when ``state`` was taken, then go on as before.

    Modules are left as they were: what the run assigns to their buffers is undone.
    """
    now, outer = random.get_state(), _replay.changes
    random.set_state(state)
    _replay.changes = []
    try:
        yield
    finally:
        random.set_state(now)
        for attributes, name, old in reversed(_replay.changes):
            attributes[name] = old
        _replay.changes = outer


def note_change(attributes: dict[str, Any], name: str) -> None:
    """Let an assignment to a module's state be undone, if a checkpoint is running again."""
    if _replay.changes is not None and name in attributes:
        _replay.changes.append((attributes, name, attributes[name]))


def checkpoint(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that keeps its inputs only, and runs again once for the gradient.

    Saves memory for time (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
    Parameters that the function reaches otherwise get their gradients too. Random numbers
    (dropout) are the same in the second run, and it leaves the buffers of modules (the running
    statistics of batch norm) as the first run did.

    >>> block = checkpoint(lambda x: (x @ w).relu())
    """

    def call(*args: Any) -> Any:
        state = random.get_state()
        leaves = [graph.wrap(executor.held(x)) for x in args]
        for leaf, x in zip(leaves, args, strict=True):
            leaf.requires_grad = x.requires_grad
        with executor.modes(lazy=None if forward.top(args) else False):
            out = function(*leaves)
        if not out.requires_grad:
            return out
        own = {graph.leaf(x) for x in leaves}
        reached = [
            graph.owner(node)
            for node in graph.topo([out.node], True)
            if node.op is None and node not in own
        ]
        parameters = [x for x in reached if x is not None]
        op = _Checkpoint(function, len(args), state)
        return graph.record(op, [*args, *parameters], executor.held(out))

    return call


class _Custom(Op):
    """A function with a gradient given by the user (see ``custom_gradient``)."""

    function: Callable[..., Any]
    pull: Any

    def setup(self) -> None:
        self.opaque = True

    def compute(self, *arrays: Any) -> Any:
        with executor.modes(recording=False, lazy=False):
            return executor.value_of(self.function(*map(graph.wrap, arrays))[0])

    def gradient(self, out_grad: Any, out: Any) -> Any:
        return self.pull(out_grad)


def custom_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function a gradient of its own.

    For a rule that is more stable or cheaper than that of the function's ops, or another one on
    purpose (straight-through estimators, clipped or reversed gradients). The rule may read the
    inputs and anything computed on the way; it is made of ops, so that higher derivatives follow.

    Forward mode (``jvp``, ``hvp``, ``linearize``) transposes the rule. So it must be linear in
    ``out_grad`` there, as every gradient is; clipping is not, and raises.

    Shapes:   pull: out_grad of the shape of out -> a gradient of the shape of each input
    Raises:   GradientError in forward mode if the rule is not linear in ``out_grad``

    Args:
        function: takes tensors, returns ``(out, pull)``, where ``pull(out_grad)`` returns the
            gradients of the inputs: a tensor, or one (or None) per input.

    >>> @custom_gradient
    ... def log1pexp(x):
    ...     e = x.exp()
    ...     return (1 + e).log(), lambda out_grad: out_grad * (1 - 1 / (1 + e))
    """

    def call(*args: Any) -> Any:
        out, pull = function(*args)
        array, level = executor.held(out), forward.top(args)
        if level:
            primals, tangents = forward.unbox(args, level)
            tangent = _tangent_of_rule(pull, out.spec, level, tangents)
            array = forward.box(level, call(*primals), tangent)
        if not graph.recording() or not any(x.requires_grad for x in args):
            return graph.wrap(array)
        return graph.record(_Custom(function, pull), args, array)

    return call


def _tangent_of_rule(pull: Any, spec: Any, level: int, tangents: Sequence[Any]) -> Any:
    def below(out_grad: Any) -> list[Any]:
        found = pull(out_grad)
        grads = found if isinstance(found, (tuple, list)) else (found,)
        return [None if g is None else forward.split(g, level)[0] for g in grads]

    _check_linear(below, spec)
    return reverse.transpose("custom_gradient", below, spec, tangents, graph.recording())


def check_custom_rules(outs: Sequence[Any]) -> None:
    """Check the rules of ``custom_gradient`` below some results, which are to be transposed.

    Raises:
        GradientError: if one is not linear in ``out_grad``.
    """
    for node in graph.topo([graph.leaf(x) for x in outs], True):
        if type(node.op) is _Custom:
            _check_linear(functools.partial(node.op.gradient_as_tuple, out=None), node.spec)


def _check_linear(pull: Callable[[Any], Sequence[Any]], spec: Any) -> None:
    """Check on numbers of both signs and of two sizes that a rule adds up."""
    rng = np.random.default_rng(0)
    small = 1e3 * rng.uniform(0.5, 1.0, spec.shape) * rng.choice([-1.0, 1.0], spec.shape)
    large = -8.0 * small * rng.uniform(0.8, 1.0, spec.shape)

    def pulled(values: Any) -> list[Any]:
        grads = pull(graph.wrap(array(values, spec.dtype, spec.device)))
        return [np.asarray(executor.value_of(g).astype("float64")) for g in grads if g is not None]

    with executor.modes(recording=False):
        parts = zip(*(pulled(x) for x in (small, large, small + large, 0 * small)), strict=True)
    for a, b, both, zero in parts:
        off = np.abs(a + b - both).max(initial=0.0)
        if off > 0.02 * np.abs(b).max(initial=0.0) or np.abs(zero).any():
            raise GradientError(
                "custom_gradient: the rule is not linear in out_grad, so forward mode cannot be "
                "derived from it\n"
                "  rule: pull(a) + pull(b) = pull(a + b), as for every gradient\n"
                "  try: reverse mode alone (grad, vjp, backward)"
            )


# ---- the course's functions ----------------------------------------------------


def compute_gradient_of_variables(output_tensor: Any, out_grad: Any) -> None:
    """Store in ``.grad`` of every tensor below the gradient of ``output_tensor``, as graph."""
    backward(output_tensor, out_grad, create_graph=True)


def find_topo_sort(node_list: Sequence[Any]) -> list[Any]:
    """Return all tensors below, inputs first: depth first in the order of inputs.

    As the course has them: every tensor has its value (what was freed is computed again); Python
    numbers are no tensors of their own; ``a - b`` is ``a + (-b)``, two results.
    """
    found: dict[Any, Any] = {}
    order: list[Any] = []
    for node in graph.topo([graph.leaf(x) for x in node_list]):
        inputs = [found[below] for below in node.inputs]
        if isinstance(node.op, Subtract) and not _is_number(node.inputs[1]):
            inputs[1] = _recorded(Negative.of(), [inputs[1]])
            order.append(inputs[1])
            found[node] = _recorded(Add.of(), inputs)
        else:
            tensor = graph.handle(node)
            freed = tensor.array is None and node.done
            found[node] = _recorded(node.op, inputs) if freed else tensor
        if not _is_number(node):
            order.append(found[node])
    return order


def _is_number(node: Any) -> bool:
    return node.op is None and not node.needs and getattr(node.spec, "shape", None) == ()


def _recorded(op: Any, inputs: Sequence[Any]) -> Any:
    """Return the result of an op as part of the graph, whether or not it needs a gradient."""
    with executor.modes(recording=False, lazy=False):
        array = op.compute(*map(executor.value_of, inputs))
    return graph.record(op, inputs, array)


class _Autograd(types.ModuleType):
    """Lets programs of the course write ``needle.autograd.LAZY_MODE = True``."""

    @property
    def LAZY_MODE(self) -> bool:
        """Whether this thread postpones computation."""
        return bool(graph.lazy())

    @LAZY_MODE.setter
    def LAZY_MODE(self, on: bool) -> None:
        graph.set_lazy(bool(on))

    @property
    def TENSOR_COUNTER(self) -> int:
        """Number of live tensors."""
        return int(graph.live_tensors())


sys.modules[__name__].__class__ = _Autograd
