"""Differentiation. Gradients are built from the same ops, on the same graph.

In eager mode gradient ops run as they are built, with recording off unless ``create_graph``; in
lazy mode they are part of the graph, which runs when a value is read. There is one code path.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from needle import config, executor, graph, reverse, tree
from needle.backend.ndarray import NDArray, array
from needle.elsewhere import advice
from needle.errors import (
    ArgumentError,
    DeviceError,
    DtypeError,
    GradientError,
    IndexRangeError,
    ShapeError,
    explain,
    missing,
    no_tensor,
)
from needle.ops.core import operands
from needle.ops.core.attributes import flag
from needle.ops.core.op import Identity, Op, cast
from needle.ops.core.operands import has_gradients
from needle.ops.core.starts import stand_ins, starts

if TYPE_CHECKING:
    from needle.backend.array import Spec
    from needle.course.autograd import *  # noqa: F403  (that module puts its names here)
    from needle.tensors import Tensor
    from needle.typing import Values

__all__ = [
    "Op", "backward", "check_finite", "enable_grad", "grad", "lazy_mode", "no_grad",
    "set_grad_enabled", "value_and_grad", "vjp",
]  # fmt: skip

_Function = Callable[..., Any]


@contextmanager
def no_grad() -> Iterator[None]:
    """Record no graph within a ``with`` block: results require no gradient."""
    with executor.modes(recording=False):
        yield


@contextmanager
def enable_grad() -> Iterator[None]:
    """Record within a ``with`` block, even inside ``no_grad``."""
    with executor.modes(recording=True):
        yield


@contextmanager
def set_grad_enabled(mode: bool) -> Iterator[None]:
    """Record within a ``with`` block if ``mode`` is true: ``enable_grad``, or else ``no_grad``."""
    with executor.modes(recording=bool(mode)):
        yield


@contextmanager
def lazy_mode(on: bool = True) -> Iterator[None]:
    """Postpone computation within a ``with`` block until a value is read."""
    with executor.modes(lazy=on):
        yield


@contextmanager
def check_finite() -> Iterator[None]:
    """Stop, within a ``with`` block, at the first op that makes a NaN or an infinity.

    It checks forward and backward, and each update of an optimizer. In lazy mode, ops called in the
    block are checked when they are computed, even after the block. Infinities are allowed where an
    input of the op has one (masks), and within the expansion of a composite. It is slow: use it to
    debug, not to train. ``NEEDLE_FINITE=on`` does the same for a whole program.

    Raises:
        NonFiniteError: with the op, the numbers of NaN and infinities, the inputs, and the line
            that called the op; in a gradient, the line that called the forward op.

    >>> with ndl.check_finite():
    ...     Tensor([1.0, -1.0]).log()
    Traceback (most recent call last):
    ...
    needle.errors.NonFiniteError: ...
    """
    with config.override(finite="on"):
        yield


def vector(name: str, values: Values, spec: Spec) -> Tensor:
    """Return the numbers of a gradient or a tangent as a tensor of a dtype and device.

    Raises:
        DtypeError: if they are not numbers.
        ShapeError: if they are lists of different lengths.
    """
    found = operands.as_array(values)
    if found.dtype.kind in "cOSUMm":
        raise DtypeError(
            f"{name}: {values!r:.60} for a {spec.dtype} tensor\n"
            "  rule: gradients and tangents are real numbers, in a tensor, an array or a list"
        )
    return graph.wrap(array(found, spec.dtype, spec.device))


def _seed(name: str, out: Any, out_grad: Any) -> Any:
    """Return the gradient of a result to start from, in its dtype; ones for None."""
    spec = executor.spec_of(out)
    if out_grad is None:
        return graph.wrap(_one(spec).copy()) if spec.ndim == 0 else reverse.full_like(out, 1.0)
    if not isinstance(out_grad, graph.TensorBase):
        out_grad = vector(name, out_grad, spec)
    given = executor.spec_of(out_grad)
    if given.shape != spec.shape:
        raise ShapeError(
            f"{name}: out_grad has shape {given.shape}, but the result has {spec.shape}"
        )
    if given.device is not spec.device and given.device != spec.device:
        raise explain(
            DeviceError, name, "out_grad is on another device than the result",
            [("result", out), ("out_grad", out_grad)], "", "out_grad.to(result.device)",
        )  # fmt: skip
    same = given.dtype is spec.dtype or config.current().backend == "np"
    return out_grad if same else cast(out_grad, spec.dtype)


@functools.lru_cache(256)
def _one(spec: Spec) -> NDArray:
    """Return a cached one of a scalar's dtype and device: copying it is quicker than making one."""
    return executor.primal_array(operands.constant(1.0, spec.dtype, spec.device))


def _apart(grad: Tensor, given: set[int]) -> Any:
    """Return a gradient as a new tensor, so that ``g *= 0.5`` changes no other gradient.

    Both terms of a sum have the same gradient. The values stay shared until one is written to.
    """
    if id(grad) in given and isinstance(grad, graph.TensorBase):
        grad = executor.apply(Identity.of(), grad)
    given.add(id(grad))
    return grad


_Visit = Callable[[Any, Any], None]


def _replacing(given: set[int]) -> tuple[_Visit, None]:
    """Return the visitor that stores gradients in ``.grad`` during a walk."""
    receiver_of = graph.receiver_of
    reached: dict[int, Any] = {}  # after p.data = x several leaves have one tensor

    def replace(node: Any, out_grad: Any) -> None:
        tensor = receiver_of(node)
        if tensor is None or type(out_grad) is list:
            return
        key = id(tensor)
        if key in reached and node.op is None:
            if not tensor.is_leaf():  # x[0] = y made x a result: it has that gradient
                return
            out_grad = tensor.grad + out_grad
        elif id(out_grad) in given:
            out_grad = _apart(out_grad, given)
        given.add(id(out_grad))
        tensor.grad = out_grad
        reached[key] = tensor

    return replace, None


def _adding(given: set[int]) -> tuple[_Visit, Callable[[], None]]:
    """Return the visitor that sums gradients, and the function that adds them to ``.grad``."""
    reached: dict[int, Any] = {}
    totals: dict[int, Any] = {}

    def add(node: Any, out_grad: Any) -> None:
        tensor = graph.receiver_of(node)
        if tensor is None or type(out_grad) is list:
            return
        key = id(tensor)
        old = tensor.grad
        if key in reached and node.op is None:
            if not tensor.is_leaf():  # as above
                return
            old = totals[key]
        totals[key] = _apart(out_grad, given) if old is None else old + out_grad
        reached[key] = tensor

    def finish() -> None:  # all or none, so that backward can be repeated (with retain_graph)
        for key, total in totals.items():
            reached[key].grad = total

    return add, finish


def backward(
    out: Any,
    out_grad: Values | None = None,
    *,
    retain_graph: bool | None = None,
    create_graph: bool | None = None,
    accumulate: bool = False,
) -> None:
    """Compute the gradients of ``out`` and store them in ``.grad`` of the tensors below.

    These are the leaves that require a gradient, and the results that a variable still holds. With
    ``accumulate`` nothing is added before all gradients are computed, so with ``retain_graph`` a
    call that failed (out of memory) can be repeated.

    Args:
        out: the tensor to differentiate; it need not be a scalar.
        out_grad: gradient with respect to ``out``; ones for None.
        retain_graph: keep saved values, so that backward can run again; else each is freed after
            its use. None: as ``create_graph``.
        create_graph: make the gradients part of the graph, so that they can be differentiated.
            None: false, or true with ``NEEDLE_BACKEND=np`` (the course's rule).
        accumulate: add to ``.grad`` (PyTorch's rule) instead of replacing it.

    Raises:
        ArgumentError: if ``out`` is not a tensor.
        GradientError: if ``out`` does not require a gradient.
        ReleasedError: if an earlier backward freed what this one needs.
    """
    if not isinstance(out, graph.TensorBase):
        raise no_tensor(out)
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

    with executor.modes(create_graph):
        seed = _seed("backward", out, out_grad)
        given = {id(out_grad)}
        visit, finish = (_adding if accumulate else _replacing)(given)
        reverse.walk([out], [seed], retain_graph, visit)
    if finish is not None:
        finish()


def vjp(function: Callable[..., Any], *args: Any) -> tuple[Any, Callable[..., tuple[Any, ...]]]:
    """Return ``function(*args)`` and the map from an output gradient to the inputs' gradients.

    The map takes one gradient for each tensor of the result, in the structure that the function
    returned: ``pull(u)``; for two results ``pull(u, v)`` or ``pull((u, v))``. None means zero, and
    ``pull()`` uses ones.

    Raises:
        GradientError: if an argument or result is not a tensor; by the map, if the structures of
            gradients and result differ.
        ShapeError: by the map, if a gradient and its result differ in shape.

    >>> out, pull = ndl.vjp(lambda x: x * x, Tensor([3.0]))
    >>> pull(Tensor([1.0]))[0].numpy()
    array([6.], dtype=float32)
    """
    outer = graph.recording()
    _check_tensors("vjp", args)
    nodes, inputs = starts(args)
    with executor.modes(recording=True):
        out = tree.checked("vjp", function)(*inputs)
        own = tree.rebuilt(out, lambda x: stand_ins([x])[0])

    def pull(*out_grads: Any) -> tuple[Any, ...]:
        with executor.modes(recording=outer):
            pairs = [(x, u) for x, u in _paired(own, out_grads) if x.requires_grad]
            outs, seeds = [x for x, _ in pairs], [_seed("vjp", x, u) for x, u in pairs]
            given = set(map(id, seeds))
            return tuple(_apart(g, given) for g in reverse.collect(outs, seeds, nodes, True))

    return out, pull


def _paired(out: Any, out_grads: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    """Return the tensors of a result with their gradients; None for ones."""
    if not out_grads or (len(out_grads) == 1 and out_grads[0] is None):
        return [(x, None) for x in tree.flat(out)]
    nested = isinstance(out, (tuple, list))
    whole = len(out_grads) == 1 and (not nested or tree.is_several(out_grads[0]))
    if not nested and not whole:
        raise GradientError(f"vjp: expected one gradient for one result, got {len(out_grads)}")
    pairs = tree.aligned("vjp", out, out_grads[0] if whole else out_grads)
    return [(x, u) for x, u in pairs if u is not None]


def _check_tensors(name: str, args: Sequence[object]) -> None:
    for i, x in enumerate(args):
        if not isinstance(x, graph.TensorBase) or type(x.spec) is tuple:
            several = isinstance(x, (list, tuple, dict, graph.TensorBase))
            advice = (
                "an argument for each tensor: grad(f, argnums=(0, 1))(*tensors), vjp(f, *tensors)"
                if several
                else "Tensor(...), or a function that closes over it"
            )
            raise GradientError(
                f"{name}: argument {i} is {tree.kind(x)}, not a tensor\n"
                "  rule: derivatives are with respect to tensors\n"
                f"  try: {advice}"
            )


def places(name: str, argnums: int | Sequence[int], args: Sequence[Any]) -> tuple[int, ...]:
    """Return which arguments to differentiate, counted from 0, as a tuple.

    Raises:
        IndexRangeError: if argnums are out of range.
        ArgumentError: if ``argnums`` are not integers.
        GradientError: if one of these arguments is not a tensor.
        DtypeError: if its dtype is not floating.
    """
    count = len(args)
    given = argnums if isinstance(argnums, Sequence) else (argnums,)
    for i in given:
        if not isinstance(i, (int, np.integer)):
            raise ArgumentError(
                f"{name}: expected one or several integers as argnums, got {argnums!r:.60}"
            )
        if not -count <= i < count:
            raise IndexRangeError(
                f"{name}: argnums {argnums} with {count} positional arguments\n"
                "  rule: arguments are counted from 0"
            )
    found = tuple(int(i) % count for i in given)
    chosen = [args[i] for i in found]
    _check_tensors(name, chosen)
    for i, x in zip(found, chosen, strict=True):
        if not has_gradients(x.spec.dtype):
            raise explain(
                DtypeError, name, f"argument {i} is {x.spec.dtype}", [("x", x)],
                "derivatives are with respect to floating tensors", 'x.astype("float32")',
            )  # fmt: skip
    return found


@overload
def value_and_grad(
    function: _Function, argnums: int = 0
) -> Callable[..., tuple[Tensor, Tensor]]: ...
@overload
def value_and_grad(function: _Function, argnums: Sequence[int]) -> Callable[..., Any]: ...
def value_and_grad(function: _Function, argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """Return a function that gives ``function``'s value and its gradient.

    The gradients are part of the graph, except in ``no_grad()``: apply ``grad`` again for higher
    derivatives.

    Args:
        function: returns a scalar tensor (one element). Keyword arguments are passed on to it.
        argnums: which positional arguments to differentiate; a tuple gives a tuple.

    Raises:
        ArgumentError: if function is not callable.
        GradientError: when called, if the function does not return a scalar, or an argument to
            differentiate is not a tensor.
        IndexRangeError: when called, if argnums are out of range.
    """
    tree.check_function("value_and_grad", function)

    def call(*args: Any, **named: Any) -> tuple[Any, Any]:
        outer = graph.recording()
        positions = places("grad", argnums, args)
        nodes, moving = starts([args[i] for i in positions])
        start_of = dict(zip(positions, nodes, strict=True))
        inputs = list(args)
        for position, x in zip(positions, moving, strict=True):
            inputs[position] = x
        with executor.modes(recording=True):
            out = _scalar(function(*inputs, **named))
        wanted = [start_of[i] for i in positions]
        with executor.modes(recording=outer):
            if out.requires_grad:
                found = reverse.collect([out], [_seed("grad", out, None)], wanted, outer)
                given: set[int] = set()
                grads = [_apart(g, given) for g in found]
            else:
                grads = [reverse.full_like(x, 0.0) for x in wanted]
        return out, tuple(grads) if isinstance(argnums, Sequence) else grads[0]

    return call


def _scalar(out: Any) -> Any:
    """Return the result of a function to differentiate, checked to be a floating scalar."""
    if not isinstance(out, graph.TensorBase) or type(out.spec) is tuple:
        raise GradientError(
            f"grad: expected a scalar tensor from the function, got {tree.kind(out)}\n"
            "  try: vjp for several results"
        )
    if not has_gradients(out.spec.dtype):
        raise GradientError(
            f"grad: expected a floating scalar from the function, got {out.spec.dtype}\n"
            "  rule: no gradient flows through integers and bools"
        )
    if out.spec.size != 1:
        raise GradientError(
            f"grad: expected a scalar from the function, got shape {out.spec.shape}\n"
            "  try: .sum() it, or use vjp"
        )
    return out


@overload
def grad(function: _Function, argnums: int = 0) -> Callable[..., Tensor]: ...
@overload
def grad(function: _Function, argnums: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]: ...
@overload
def grad(function: Any, argnums: Any, *more: Any, **named: Any) -> tuple[Tensor, ...]: ...
def grad(
    function: Any,
    argnums: Any = 0,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    *,
    allow_unused: bool = False,
) -> Any:
    """Return the gradient function of a scalar function; see ``value_and_grad``.

    ``grad(outputs, inputs)`` of tensors is PyTorch's: a tuple of gradients with respect to the
    inputs, a tensor or several. The other arguments are for this; ``.grad`` stays as it is.

    Raises:
        GradientError: if the outputs do not depend on an input.

    >>> ndl.grad(ndl.grad(lambda x: x * x * x))(Tensor(2.0)).item()
    12.0
    >>> x = Tensor([1.0, 2.0])
    >>> print(*ndl.grad((x * x).sum(), x))
    [2. 4.]
    """
    outs = [function] if isinstance(function, graph.TensorBase) else function
    if isinstance(outs, (list, tuple)) and isinstance(argnums, (graph.TensorBase, list, tuple)):
        inputs = [argnums] if isinstance(argnums, graph.TensorBase) else list(argnums)
        given = list(grad_outputs) if isinstance(grad_outputs, (list, tuple)) else [grad_outputs]
        given = given if len(given) > 1 else given * len(outs)
        _check_tensors("grad", (*outs, *inputs))
        create_graph = flag("grad: create_graph", create_graph)
        unused = flag("grad: allow_unused", allow_unused)
        with executor.modes(create_graph):
            seeds = [_seed("grad", out, g) for out, g in zip(outs, given, strict=True)]
            kept = (
                create_graph if retain_graph is None else flag("grad: retain_graph", retain_graph)
            )
            return reverse.gradients(outs, seeds, inputs, kept, unused)
    tree.check_function("grad", function)
    both: Any = value_and_grad(function, argnums)

    def call(*args: Any, **named: Any) -> Any:
        return both(*args, **named)[1]

    return call


if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name):
        raise missing("needle.autograd", name, advice("autograd", name))
