"""Functions of the user that are one op of the graph: ``checkpoint``, ``custom_gradient``.

``checkpoint`` keeps the inputs of a region and runs it once more for the gradient. The second run
finds the buffers that the first changed as they were before it, and leaves modules as they are:
modules note their buffers when they are called in a region, and the assignments of the second run
are undone. Tensors that the function reads beside its arguments are inputs of the region, too.

``custom_gradient`` records a region with the user's own rule. Forward mode transposes that rule,
after a check on numbers that it is linear.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from needle import executor, forward, graph, nancheck, reverse, tracing, tree
from needle.backend.ndarray import array, full_of
from needle.errors import GradientError, NeedleError, explain, user_line
from needle.ops import random
from needle.ops.core.op import Op, needed, variables
from needle.ops.core.primitives import make_tuple
from needle.ops.core.starts import Start, again, stand_ins

__all__ = ["checkpoint", "custom_gradient"]


class _Region(Op):
    """A user's function.

    While it is traced its results are known as nodes: then they are its first inputs, ``ready`` of
    them, and the function does not run again for them.
    """

    function: Callable[..., Any]
    ready, several = 0, False

    def __repr__(self) -> str:
        return f"{self.name}({tree.name_of(self.function)})"

    def setup(self) -> None:
        self.opaque = True

    def outputs(self, *tensors: Any) -> Any:
        """Return the function's result: a tensor, or a structure of tensors."""
        return self.function(*tensors)

    def compute(self, *arrays: Any) -> Any:
        if self.ready:
            return self.kept(arrays)
        with executor.modes(recording=False, lazy=False):
            out = tree.plain(self.outputs(*map(graph.wrap, arrays)))
            if tree.is_several(out):
                return tuple(map(executor.primal_array, tree.flat(out)))
            return executor.primal_array(out)

    def kept(self, inputs: Sequence[Any]) -> Any:
        """Return the results that are among the inputs."""
        return inputs[0] if self.ready == 1 and not self.several else tuple(inputs[: self.ready])


def _recorded(op: Any, parts: Sequence[Any], several: bool, tensors: Sequence[Any]) -> Any:
    """Return a region's result, which has a gradient; while it is traced, of parts that wait."""
    if tracing.current() is None:
        held = tuple(executor.array_of(x) for x in parts)
        return graph.record(op, tensors, held if several else held[0])
    op.ready, op.several = len(parts), several
    specs = tuple(x.spec for x in parts)
    below = [*(x.detach() for x in parts), *tensors]
    return graph.pend(op, below, specs if several else specs[0], True)


def _of_tensors(
    function: Callable[..., Any], args: Sequence[Any], named: dict[str, Any]
) -> tuple[Callable[..., Any], list[Any]]:
    """Return a call as a function of its tensors only, and these tensors."""
    given: dict[Any, Any] = {**dict(enumerate(args)), **named}
    places = [key for key, x in given.items() if isinstance(x, graph.TensorBase)]
    tensors = [given.pop(key) for key in places]
    count = len(args)

    def of_tensors(*values: Any) -> Any:
        full = given | dict(zip(places, values, strict=True))
        positional = [full.pop(i) for i in range(count)]
        return function(*positional, **full)

    of_tensors.__name__ = tree.name_of(function)
    return of_tensors, tensors


# ---- checkpoint ------------------------------------------------------------------


class _Checkpoint(_Region):
    """A region whose inner values are computed again for the gradient; see ``checkpoint``.

    Its inputs are the ``count`` tensors that the function takes, then the other tensors with a
    gradient that the function uses; ``closed`` holds the latter by weak references. ``state`` is
    the random state, and ``buffers`` the module buffers that it changed, as they were before.
    """

    count: int
    state: Any
    closed: Any
    buffers: list[_Buffer]
    saves = (tuple(range(63)),)  # all: inputs from 62 on share a bit
    called = "checkpoint"

    def outputs(self, *tensors: Any) -> Any:
        with replayed(self.state, self.buffers):
            return self.function(*tensors[: self.count])

    def gradient(self, out_grad: Any, out: Any) -> Any:
        first = self.ready
        reached = out.node.inputs[first + self.count :]
        wanted = needed(out)[first:]
        given = out.inputs[first : first + self.count]
        leaves = variables(given) if not first else again(given)
        sources = [*leaves, *reached]
        chosen = [x for x, want in zip(sources, wanted, strict=True) if want]
        seeds = out_grad if isinstance(out_grad, (tuple, list)) else [out_grad]
        with nancheck.again():
            inner = self._again(leaves, reached, out)
            pairs = [pair for pair in zip(inner, seeds, strict=True) if pair[1] is not None]
            outs, seeds = zip(*pairs, strict=True)
            found = iter(reverse.collect(outs, seeds, chosen, graph.recording()))
        return (*[None] * first, *(next(found) if want else None for want in wanted))

    def _again(self, leaves: Sequence[Any], reached: Sequence[Any], out: Any) -> list[Any]:
        """Return the results of a second run.

        Raises:
            GradientError: if its computation differs from the first run's.
        """
        since = graph.next_serial()
        with executor.modes(recording=True), _put_back(self.closed, reached):
            inner = tree.flat(tree.plain(self.outputs(*stand_ins(leaves))))
        specs = out.spec if type(out.spec) is tuple else (out.spec,)
        if tuple(x.spec for x in inner) != specs:
            raise self._changed("results", specs, [x.spec for x in inner])
        below = _closed_over(inner, leaves, since, frozenset(reached))
        if not set(below) >= set(reached):
            raise self._changed(
                "tensors that need a gradient, besides its arguments",
                [x.spec for x in reached], [x.spec for x in below],
            )  # fmt: skip
        return inner

    def _changed(self, what: str, first: Sequence[Any], second: Sequence[Any]) -> NeedleError:
        def told(specs: Sequence[Any]) -> str:
            return ", ".join(map(str, specs)) or "none"

        return explain(
            GradientError, f"checkpoint({tree.name_of(self.function)})",
            f"the second run, for the gradient, differs from the first: {what}\n"
            f"  first: {told(first)}\n  again: {told(second)}",
            rule="both runs compute the same from the same tensors",
            advice="pass everything that changes as an argument, and keep nothing from run to run",
        )  # fmt: skip


def _closed_over(
    outs: Sequence[Any], own: Sequence[Any], since: int, known: frozenset[Any]
) -> list[Any]:
    """Return the nodes outside a region, besides its arguments, to which gradients flow.

    They were made before the region began (``since``), or are leaves of tensors made before: a leaf
    is made when it is first used.

    Args:
        own: the tensors that the function was given.
        known: nodes that always count.
    """
    seen = {graph.leaf(x) for x in own}
    found = []
    waiting = [x.node for x in reversed(outs) if x.node is not None]
    while waiting:
        node = waiting.pop()
        if node in seen or not node.needs:
            continue
        seen.add(node)
        holder = graph.receiver_of(node) if node.op is None else None
        if node in known or node.serial < since or (holder is not None and holder.serial < since):
            found.append(node)
        else:
            waiting.extend(reversed(node.inputs))
    return found


@contextmanager
def _put_back(closed: Sequence[Any], nodes: Sequence[Any]) -> Iterator[None]:
    """Give tensors the nodes they had before, if they were assigned to since.

    Other threads see that.
    """
    undo = []
    try:
        for reference, node in zip(closed, nodes, strict=True):
            tensor = reference()
            if tensor is not None and tensor.node is not node:
                (old,) = stand_ins([graph.tensor_of(node)])
                now = graph.wrap(None)
                undo.append((tensor, now, tensor.requires_grad))
                graph.rebind(now, tensor)
                graph.rebind(tensor, old)
        yield
    finally:
        for tensor, now, needs in reversed(undo):
            graph.rebind(tensor, now)
            if tensor.requires_grad != needs:
                tensor.requires_grad = needs


class _Buffer(NamedTuple):
    """A module's buffer at one time: its array, or while it is traced a copy of the tensor."""

    attributes: dict[str, Any]
    name: str
    tensor: Any
    array: Any
    copy: Any

    def is_changed(self) -> bool:
        """Return whether the module has another tensor now, or the tensor another value."""
        kept = self.attributes.get(self.name) is self.tensor
        if kept and self.copy is not None:
            return self.tensor.node is not self.copy.node.inputs[0]
        return not kept or (self.array is not None and self.tensor.array is not self.array)

    def then(self) -> Any:
        """Return a tensor of the value at that time."""
        known = self.tensor if self.copy is None else self.copy
        return known if self.array is None else graph.wrap(self.array)


def _kept(tensor: Any) -> tuple[Any, Any]:
    """Return what a note keeps of a buffer: its array, or a copy while it is traced."""
    if tensor is None:
        return None, None
    if tracing.current() is not None:
        return None, tensor.detach()
    return executor.array_of(tensor), None


_Notes = dict[tuple[int, str], _Buffer]


class _Watch(threading.local):
    notes: tuple[_Notes, ...] = ()


_watch = _Watch()


@contextmanager
def _noting() -> Iterator[_Notes]:
    """Note buffers as they are when modules are called, or assign to them, first in the block."""
    outer = _watch.notes
    found: _Notes = {}
    _watch.notes = (*outer, found)
    try:
        yield found
    finally:
        _watch.notes = outer


def note_buffers(attributes: dict[str, Any], names: Iterable[str]) -> None:
    """Note a module's buffers while a checkpoint runs, so that changes can be found and undone."""
    for notes in _watch.notes:
        for name in names:
            if name in attributes and (id(attributes), name) not in notes:
                tensor = attributes[name]
                fixed = tensor is not None and not tensor.requires_grad
                notes[id(attributes), name] = _Buffer(
                    attributes, name, tensor, *_kept(tensor if fixed else None)
                )


@contextmanager
def replayed(state: Any, buffers: Sequence[_Buffer]) -> Iterator[None]:
    """Draw the same random numbers as when ``state`` was taken, then continue as before.

    Modules also get the buffers of that time, and the current ones again afterwards.
    """
    now = random.get_state()
    with _noting() as notes:
        try:
            random.set_state(state)
            for buffer in buffers:
                note_buffers(buffer.attributes, (buffer.name,))
                buffer.attributes[buffer.name] = buffer.then()
            yield
        finally:
            random.set_state(now)
            for buffer in notes.values():
                buffer.attributes[buffer.name] = buffer.tensor


def checkpoint(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that keeps only its inputs, and runs again once for the gradient.

    It trades time for memory (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
    Other tensors that the function uses (parameters, results) get their gradients too, at the
    values they had in the first run; during the second run other threads see these values. Random
    numbers (dropout) are the same in the second run. It starts with the module buffers (the running
    statistics of batch norm) that the first run started with, and does not change them. Everything
    else that the function reads, also under ``no_grad``, must be the same in both runs.

    The function takes tensors and any other arguments, and returns a tensor, or (nested) tuples and
    lists of them. Gradients flow to tensors among its arguments, but not to tensors in lists.

    Raises: GradientError if it returns something else, or, when the gradient is taken, if the
    second run gives results of different shapes or uses different tensors with gradients.

    >>> block = ndl.checkpoint(lambda x: x.exp().sin())  # keeps no exp(x) for the gradient
    >>> round(ndl.grad(block)(Tensor(0.0)).item(), 4)
    0.5403
    """
    checked = tree.checked("checkpoint", function)

    @functools.wraps(function, updated=())
    def call(*args: Any, **named: Any) -> Any:
        return _checkpointed(*_of_tensors(checked, args, named))

    return call


def _checkpointed(function: Callable[..., Any], tensors: list[Any]) -> Any:
    state, since = random.get_state(), graph.next_serial()
    traced = tracing.current() is not None
    leaves = _own(tensors)
    stays = traced or forward.top(tensors)
    with executor.modes(lazy=None if stays else False), _noting() as notes:
        out = function(*stand_ins(leaves))
    buffers = [x for x in notes.values() if x.is_changed()]
    parts = tree.flat(out)
    if not any(x.requires_grad for x in parts):
        return out
    closed = [graph.tensor_of(x) for x in _closed_over(parts, leaves, since, frozenset())]
    op = _Checkpoint(function, len(tensors), state, [weakref.ref(x) for x in closed], buffers)
    several = tree.is_several(out)
    result = _recorded(op, parts, several, [*tensors, *closed])
    if nancheck.on():
        nancheck.note(result.node, user_line())
    if not several:
        return result
    found = iter(result.tuple())
    return tree.rebuilt(out, lambda _: next(found))


def _own(tensors: Sequence[Any]) -> list[Any]:
    """Return leaves of the values and needs of tensors."""
    if tracing.current() is not None:
        return [graph.pend(Start.of(), (x,), x.spec, x.requires_grad) for x in tensors]
    leaves = [graph.wrap(executor.array_of(x)) for x in tensors]
    for leaf, x in zip(leaves, tensors, strict=True):
        leaf.requires_grad = x.requires_grad
    return leaves


# ---- custom_gradient -------------------------------------------------------------


class _Custom(_Region):
    """A function with a gradient given by the user; see ``custom_gradient``."""

    pull: Any
    called = "custom_gradient"

    def outputs(self, *tensors: Any) -> Any:
        return self.function(*tensors)[0]

    def gradient(self, out_grad: Any, out: Any) -> Any:
        found = self.pull(out_grad)
        return (*[None] * self.ready, *found) if self.ready else found


def custom_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function its own gradient rule.

    Use it for a rule that is more stable or cheaper than that of the function's ops, or that
    differs on purpose (straight-through estimators, clipped or reversed gradients). The rule may
    read the inputs and all intermediate values; it consists of ops, so higher derivatives work.

    Forward mode (``jvp``, ``hvp``, ``linearize``) transposes the rule, which must then be linear in
    ``out_grad``. Clipping is not linear, and raises.

    Shapes:   pull: out_grad of the shape of out -> a gradient of the shape of each input
    Raises:   GradientError if the function does not return such a pair; if the rule does not give
              one gradient per input, with its shape, dtype and device; in forward mode if the rule
              is not linear in ``out_grad``

    Args:
        function: takes tensors and any other arguments. Its inputs are the tensors among the
            arguments, in the order of the call (not tensors in lists).
            It returns ``(out, pull)``, where ``pull(out_grad)`` returns the gradients of the
            inputs: a tensor, or one (or None for zero) per input. ``out`` is a tensor, or
            a tuple of them; then ``out_grad`` is a tuple, with None for those not floating.

    >>> @ndl.custom_gradient
    ... def log1pexp(x):
    ...     e = x.exp()
    ...     return (1 + e).log(), lambda out_grad: out_grad * (1 - 1 / (1 + e))
    >>> print(ndl.grad(log1pexp)(Tensor(0.0)))
    0.5
    """

    tree.check_function("custom_gradient", function)

    @functools.wraps(function, updated=())
    def call(*args: Any, **named: Any) -> Any:
        return _customized(*_of_tensors(function, args, named))

    return call


def _customized(function: Callable[..., Any], tensors: Sequence[Any]) -> Any:
    out, pull = _pair(function(*stand_ins(tensors)))  # the rule reads their current values
    several = isinstance(out, (tuple, list))
    if several:
        out = make_tuple(*out)
    if type(out.spec) is tuple:
        pull = functools.partial(_pulled, pull, out.spec)
    specs = [x.spec if forward.varies(x) else None for x in tensors]
    pull = functools.partial(_fitting, f"custom_gradient({function.__name__})", pull, specs)
    level = forward.top(tensors)
    if tracing.current() is not None and not level:
        return _traced(out, several, _Custom(function, pull), tensors)
    held = _bare(executor.array_of(out))
    if level:
        primals, tangents = forward.unbox(tensors, level)
        tangent = _tangent_of_rule(pull, out.spec, level, tangents)
        below = _customized(function, primals)
        below = make_tuple(*below) if isinstance(below, tuple) else below
        held = forward.box(level, below, tangent)
    if graph.recording() and any(x.requires_grad for x in tensors):
        result = graph.record(_Custom(function, pull), tensors, held)
        if nancheck.on():
            nancheck.note(result.node, user_line())
    else:
        result = graph.wrap(held)
    return result.tuple() if several else result


def _traced(out: Any, several: bool, op: Any, tensors: Sequence[Any]) -> Any:
    """Return the result of a rule while it is traced: nothing is computed."""
    parts = out.tuple() if several else (out,)
    if not graph.recording() or not any(x.requires_grad for x in tensors):
        found = tuple(x.detach() for x in parts)
        return found if several else found[0]
    result = _recorded(op, parts, several, tensors)
    return result.tuple() if several else result


def _bare(held: Any) -> Any:
    """Return arrays without the tangents of tensors that a function closes over."""
    if isinstance(held, tuple):
        return tuple(map(_bare, held))
    return _bare(executor.array_of(held.primal)) if type(held) is forward.Dual else held


def _pair(found: Any) -> Any:
    """Return the pair of a function with a rule: its result, a tensor or a tuple, and the rule."""
    pair = found if isinstance(found, (tuple, list)) and len(found) == 2 else (None, None)
    out, pull = pair
    parts = list(out) if isinstance(out, (tuple, list)) else [out]
    if not parts or not callable(pull) or not all(isinstance(x, graph.TensorBase) for x in parts):
        inside = ", ".join(map(tree.kind, found)) if isinstance(found, (tuple, list)) else ""
        raise GradientError(
            f"custom_gradient: the function returned {tree.kind(found)}({inside})\n"
            "  rule: it returns (out, pull): a tensor or a tuple of tensors, and a function"
        )
    return out, pull


def _pulled(pull: Any, specs: Sequence[Any], out_grads: Any) -> Any:
    """Apply the rule of several results, with zeros for missing gradients."""
    return pull(
        tuple(
            graph.wrap(full_of(spec, 0.0)) if part is None and spec.dtype.is_floating else part
            for spec, part in zip(specs, out_grads, strict=True)
        )
    )


def _fitting(name: str, pull: Any, specs: Sequence[Any], out_grad: Any) -> tuple[Any, ...]:
    """Apply a rule, and check the gradients that are used: those of inputs with a spec.

    Raises:
        GradientError: if there is not one per input, or one does not fit its input.
    """
    found = tree.plain(pull(out_grad))
    grads = tuple(found) if isinstance(found, (tuple, list)) else (found,)
    if len(grads) != len(specs):
        raise explain(
            GradientError, name, f"the rule gave {len(grads)} gradients for {len(specs)} inputs",
            rule="one for each tensor among the arguments, None for zero",
        )  # fmt: skip
    reverse.check_fit(name, "the rule", grads, specs)
    return tuple(None if spec is None else g for g, spec in zip(grads, specs, strict=True))


def _tangent_of_rule(pull: Any, spec: Any, level: int, tangents: Sequence[Any]) -> Any:
    def below(out_grad: Any) -> list[Any]:
        return [None if g is None else forward.split(g, level)[0] for g in pull(out_grad)]

    _check_linear(below, spec)
    return reverse.transpose("custom_gradient", below, spec, tangents, graph.recording())


def check_rules(outs: Sequence[Any]) -> None:
    """Check the rules of ``custom_gradient`` below some results before they are transposed.

    Raises:
        GradientError: if one is not linear in ``out_grad``.
    """
    for node in graph.topo([graph.leaf(x) for x in outs], True):
        if type(node.op) is _Custom:
            _check_linear(functools.partial(node.op.gradient_as_tuple, out=None), node.spec)


def _check_linear(pull: Callable[[Any], Sequence[Any]], spec: Any) -> None:
    """Check that a rule is linear, on numbers of both signs and of two sizes."""
    specs = spec if type(spec) is tuple else (spec,)
    rng = np.random.default_rng(0)
    small = [
        1e3 * rng.uniform(0.5, 1.0, part.shape) * rng.choice([-1.0, 1.0], part.shape)
        for part in specs
    ]
    large = [-8.0 * x * rng.uniform(0.8, 1.0, x.shape) for x in small]
    both = [a + b for a, b in zip(small, large, strict=True)]

    def pulled(values: Sequence[Any]) -> list[Any]:
        seeds = [
            graph.wrap(array(x, part.dtype, part.device)) if part.dtype.is_floating else None
            for x, part in zip(values, specs, strict=True)
        ]
        grads = pull(seeds if type(spec) is tuple else seeds[0])
        return [
            np.asarray(executor.primal_array(g).astype("float64")) for g in grads if g is not None
        ]

    with executor.modes(recording=False):
        found = [pulled(values) for values in (small, large, both, [0 * x for x in small])]
    for a, b, summed, zero in zip(*found, strict=True):
        off = np.abs(a + b - summed).max(initial=0.0)
        if off > 0.02 * np.abs(b).max(initial=0.0) or np.abs(zero).any():
            raise GradientError(
                "custom_gradient: the rule is not linear in out_grad, so forward mode cannot be "
                "derived from it\n"
                "  rule: pull(a) + pull(b) = pull(a + b), as for every gradient\n"
                "  try: reverse mode only (grad, vjp, backward)"
            )
