"""``apply``, the gate of every operation, and ``realize``, which runs postponed operations.

``apply`` below is the definition. The gate of the native module, if there is one, handles the
common cases and passes everything else to this function. ``NEEDLE_FAST=off``,
``NEEDLE_OVERRIDES=off``, ``NEEDLE_FINITE=on`` and ``NEEDLE_DEBUG`` close it. The gate has no error
texts and no rules of its own: it may only refuse.

Specs are inferred by running ``compute`` on the meta device, whose backend does nothing. So an op
has no second rule that could drift from the first, and in lazy mode shape errors still appear on
the user's line. What depends on values (an index out of range) is found when it is computed.

Modes (recording, lazy, settings) belong to the thread; the asyncio tasks of one thread share them,
and the block entered last rules until it is left. Blocks may be left in any order; after the last
one everything is as it was before the first.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence, Set
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from needle import config, core, devices, forward, graph, nancheck, tracing
from needle.backend import memory
from needle.backend.array import Array
from needle.errors import (
    ArgumentError,
    GradientError,
    NeedleError,
    NonFiniteError,
    ShapeError,
    no_tensor,
    user_line,
)

if TYPE_CHECKING:
    from needle.tensors import Tensor

PENDING_LIMIT = 20_000
"""Nodes that may wait in lazy mode before a warning names the line that adds to them."""


def _apply(op: Any, /, *inputs: Any, **named: Any) -> Any:
    """Return the result of an op on tensors (or Python scalars): computed, recorded or postponed.

    Args:
        op: an ``Op`` with its static attributes.
        inputs: tensors; an op may also accept scalars and NumPy arrays.

    Raises:
        ShapeError, DtypeError, DeviceError: as the op says; in lazy mode on this line too.
        ArgumentError: for a wrong number of operands, or one given by name.
    """
    if named:
        raise ArgumentError(
            f"{op.name}: unexpected argument {next(iter(named))!r}\n"
            "  rule: tensors, by position only"
        )
    if op.takes not in (None, len(inputs)):
        raise ArgumentError(f"{op.name}: expected {op.takes} operands, got {len(inputs)}")
    tensors = op.prepare(inputs)
    try:
        return _run(op, tensors)
    except (MemoryError, OverflowError, NeedleError) as error:
        raise _explained(op, tensors, error)  # noqa: B904  (it says what caused it)


def not_an_array(name: str, result: Any) -> ArgumentError:
    """Return the error for an op whose ``compute`` returned something else."""
    kind = type(result)
    returned = f"{kind.__module__}.{kind.__qualname__}"
    return ArgumentError(f"{name}: an op returned {returned}, not an array")


def _explained(op: Any, tensors: Sequence[Any], error: Exception) -> Exception:
    """Return the exception of an op's ``compute`` as an error about the op and its operands."""
    found: Exception = error
    if isinstance(error, MemoryError):
        found = memory.typed(error).during(op.name, tensors)
    elif isinstance(error, NeedleError):
        known = tensors and len(error.operands) == len(tensors)
        found = error.about(tensors) if known else error
    elif isinstance(error, OverflowError) and not op.opaque:  # opaque: a function of the user
        found = ShapeError(f"{op.name}: a size or a step does not fit into 63 bits")
        found.__cause__ = error
    found.__suppress_context__ = True
    return found


def _run(op: Any, tensors: tuple[Any, ...]) -> Any:
    level = forward.top(tensors)
    if level:
        return _push(op, tensors, level)
    needs = graph.recording() and op.differentiable and any(x.requires_grad for x in tensors)
    watched = nancheck.on()
    if graph.lazy():
        for x in tensors:
            if x.array is None and x.node.done:
                raise graph.released(x)
        specs = [x.spec for x in tensors]
        trace = tracing.current()
        if trace is not None:
            result = graph.pend(op, tensors, trace.infer(op, tuple(specs)), needs)
            trace.lines[id(result.node)] = user_line()
            return result
        spec = nancheck.unwatched(op.infer, *specs) if watched else op.infer(*specs)
        result = graph.pend(op, tensors, spec, needs)
        if config.current().debug >= 1:
            _lines[result.node] = user_line()
        if graph.pending() % PENDING_LIMIT == 0:
            warn_pending()
    else:
        arrays = [array_of(x) for x in tensors]
        array = nancheck.compute(op, arrays, user_line()) if watched else op.compute(*arrays)
        if not isinstance(array, (Array, tuple)):
            raise not_an_array(op.name, array)
        result = graph.record(op, tensors, array) if needs else graph.wrap(array)
    if watched:
        nancheck.note(result.node, user_line())
    if config.current().debug >= 1:
        makers[result] = f"{op} at {user_line()}"
        if type(result.array) is not tuple and result.array is not None:
            makers.setdefault(result.array, makers.get(result))  # a view stays the maker's
    return result


def _push(op: Any, tensors: tuple[Any, ...], level: int) -> Any:
    """Return the result of an op on duals: computed below their level, with its tangent."""
    if op.structural:
        array = op.compute(*[forward.box(level, x, None) for x in tensors])
    else:
        primals, tangents = forward.unbox(tensors, level)
        if op.differentiable and any(t is not None for t in tangents):
            if nancheck.on():
                out, tangent = nancheck.push(op, primals, tangents, user_line())
            else:
                out, tangent = op.push(primals, tangents)
        else:
            out, tangent = apply(op, *primals), None
        array = forward.box(level, out, tangent)
    if not (graph.recording() and op.differentiable and any(x.requires_grad for x in tensors)):
        return graph.wrap(array)
    result = graph.record(op, tensors, array)
    if nancheck.on():
        nancheck.note(result.node, user_line())
    return result


class Makers:
    """The maker of each live tensor and array, by identity: ``==`` compares elements."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, str]] = {}

    def __setitem__(self, tensor: Any, maker: str) -> None:
        key = id(tensor)
        self._known[key] = weakref.ref(tensor, lambda _: self._known.pop(key, None)), maker

    def setdefault(self, tensor: Any, maker: str | None) -> None:
        """Note a maker unless one is known."""
        if maker is not None and id(tensor) not in self._known:
            self[tensor] = maker

    def get(self, tensor: Any) -> str | None:
        """Return the maker of a tensor, or None if it was not noted."""
        found = self._known.get(id(tensor))
        return found[1] if found is not None else None


makers = Makers()
"""With ``debug >= 1``: the op, or the constructor, and the user's line that made each tensor."""


_lines = Makers()
"""With ``debug >= 1``: the user's line of each postponed node."""


def maker_of(tensor: Any) -> str | None:
    """Return the maker of a tensor and the line, if they were noted."""
    found, node = makers.get(tensor), tensor.node
    if found is None and node is not None and _lines.get(node):
        return f"{node.op} at {_lines.get(node)}"
    return found


def note_leaf(tensor: Any, maker: str) -> None:
    """With ``debug >= 1``, note the user's line of a tensor that no op made, and its array."""
    if config.current().debug >= 1:
        makers[tensor] = f"{maker} at {user_line()}"
        makers.setdefault(tensor.array, makers.get(tensor))


def _origins() -> dict[int, str]:
    """Return the origin of each array that a tensor or the graph holds, by identity."""
    found: dict[int, str] = {}
    tensors = graph.tensors()
    for tensor in tensors:
        for part in _parts(tensor.array):
            found[id(part)] = _origin(tensor, part)
    for node in graph.topo([x.node for x in tensors if x.node is not None]):
        for part in _parts(node.value):
            maker = makers.get(part) or node.op or "an unknown op"
            found.setdefault(id(part), f"made by {maker}, kept for a gradient")
    return found


def _parts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else () if value is None else (value,)


def _origin(tensor: Any, part: Any) -> str:
    maker = makers.get(tensor) or makers.get(part)
    if tensor.name:
        return f'parameter "{tensor.name}"' + (f", made by {maker}" if maker else "")
    maker = maker or tensor.op
    if maker:
        return f"made by {maker}"
    return "a leaf that requires gradients" if tensor.requires_grad else "a tensor without graph"


memory.origins = _origins


def warn_pending() -> None:
    """Warn that a lazy graph grows and nothing runs it."""
    warnings.warn(
        f"{graph.pending()} operations wait to be computed; the last was added at {user_line()}. "
        "Lazy mode computes when a value is read: read one each step, for example loss.item().",
        RuntimeWarning,
        stacklevel=2,
    )


def spec_of(tensor: Any) -> Any:
    """Return the spec of a tensor without computing anything.

    Raises:
        ArgumentError: if it is not a tensor, or a tuple of tensors.
    """
    try:
        spec = tensor.spec
    except AttributeError:
        raise no_tensor(tensor) from None
    if type(spec) is tuple:
        raise no_tensor(tensor)
    return spec


def shape_of(x: Any) -> tuple[int, ...]:
    """Return the shape of a tensor.

    Raises:
        ArgumentError: if it is not a tensor.
    """
    try:
        return x.spec.shape
    except AttributeError:
        raise no_tensor(x) from None


def array_of(tensor: Any) -> Any:
    """Return the contents of a tensor, computed if needed: an array, a dual, or a tuple of them.

    Raises:
        ReleasedError: if the value was freed because nothing needed it.
    """
    array = tensor.array
    if array is None:
        if tensor.node is None:
            raise GradientError("the tensor was not initialised\n  try: needle.Tensor(...)")
        if not tensor.node.done:
            if tracing.current() is not None:
                raise tracing.read(tensor)
            realize([tensor.node])
        array = tensor.array  # read again: another thread may have computed it in between
        if array is None:
            raise graph.released(tensor)
    elif tracing.active:
        tracing.check_read(tensor)
    return array


def primal_array(tensor: Any) -> Any:
    """Return the array of a tensor, computed if needed; for a dual its value.

    Raises:
        ReleasedError: if the value was freed because nothing needed it.
    """
    array = array_of(tensor)
    if type(array) is forward.Dual:
        return primal_array(array.primal)
    if type(array) is tuple:
        parts = [primal_array(x.primal) if type(x) is forward.Dual else x for x in array]
        return tuple(parts)
    return array


def realize(nodes: Iterable[Any]) -> None:
    """Run all pending nodes below these, inputs first.

    A node that raises stays pending with all nodes that depend on it; the others keep their values.
    """
    trace = tracing.current()
    with modes(recording=False, lazy=False):
        for node in graph.pending_order(nodes):
            if trace is not None:
                raise tracing.read(graph.tensor_of(node))
            arrays = [below.value for below in node.inputs]
            if not node.done:  # another thread may have been faster, before or while we read
                graph.finish(node, _computed(node, arrays))


def _computed(node: Any, arrays: list[Any]) -> Any:
    try:
        if nancheck.watches(node):
            return nancheck.compute(node.op, arrays, node=node)
        return node.op.compute(*arrays)
    except NonFiniteError:  # names the line already
        raise
    except (MemoryError, OverflowError, NeedleError) as error:
        raise placed(node, error)  # noqa: B904  (a name here would keep the error, and tensors)


def note_line(node: Any, line: str) -> None:
    """Note the user's line of a postponed node, for its errors."""
    _lines[node] = line


def line_of(node: Any) -> str | None:
    """Return the user's line of a postponed node, if it was noted."""
    return _lines.get(node)


def placed(node: Any, error: Exception) -> Exception:
    """Return the exception of a postponed op as an error that names the op and its line."""
    found = _explained(node.op, [graph.tensor_of(below) for below in node.inputs], error)
    line = _lines.get(node)
    return found.called_at(line) if line and isinstance(found, NeedleError) else found


class _Modes:
    """Switch recording or lazy mode, and settings, within a ``with`` block, for this thread.

    This is the definition of ``modes``. The native one is safer: a signal may arrive between any
    two Python functions, also before ``__exit__``. Only native code has the other modes.
    """

    __slots__ = ("_found", "_settings", "_token", "_wanted")
    _setters = (graph.set_recording, graph.set_lazy)

    def __init__(
        self,
        recording: bool | None = None,
        lazy: bool | None = None,
        open: bool | None = None,
        memory_limit: int | None = None,
        threads: int | None = None,
        products: bool | None = None,
        settings: tuple[ContextVar[Any], Any] | None = None,
    ) -> None:
        self._wanted, self._found, self._settings = (recording, lazy), [False, False], settings

    def __enter__(self) -> None:
        if self._settings is not None:
            self._token = self._settings[0].set(self._settings[1])
        for i, value in enumerate(self._wanted):
            if value is not None:
                self._found[i] = self._setters[i](value)
        _inside.blocks.append(self)

    def __exit__(self, *_: object) -> None:
        """Switch back, or leave that to the next block that is still entered."""
        at = _inside.blocks.index(self)
        later = _inside.blocks[at + 1 :]
        del _inside.blocks[at]
        for i, value in enumerate(self._wanted):
            heirs = [block for block in later if block._wanted[i] is not None]
            if value is not None and heirs:
                heirs[0]._found[i] = self._found[i]
            elif value is not None:
                self._setters[i](self._found[i])
        if self._settings is not None:
            self._settings[0].reset(self._token)


class _Inside(threading.local):
    def __init__(self) -> None:
        self.blocks: list[_Modes] = []  # entered by this thread


_inside = _Inside()


def _open(settings: config.Config) -> bool:
    switches = settings.fast, settings.overrides, settings.finite
    return switches == ("on", "on", "off") and settings.debug == 0


def _switched(variable: ContextVar[Any], new: config.Config, changes: Set[str]) -> Any:
    """Return the block of ``config.override``.

    Raises:
        DeviceError: for an unknown device.
    """
    devices.as_device(new.device or None)
    is_open = _open(new)
    return modes(
        lazy=new.mode == "lazy" if "mode" in changes else None,
        # a task that changes nothing here must not open what another one closed
        open=is_open if is_open != _open(config.current()) else None,
        memory_limit=new.memory_limit if "memory_limit" in changes else None,
        threads=new.threads if "threads" in changes else None,
        products=new.products == "rows" if "products" in changes else None,
        settings=(variable, new),
    )


apply: Callable[..., Tensor] = _apply
modes: Any = _Modes if core.native is None else core.native.modes
if core.native is not None:
    core.native.set_slow_path(_apply, _explained)
    apply = core.native.apply


def several(op: Any, /, *inputs: Any) -> tuple[Tensor, ...]:
    """Return the results of an op with several results; ``apply`` gives them as one value."""
    found: Any = apply(op, *inputs)
    return found.tuple()


graph.set_defaults(config.current().mode == "lazy", _open(config.current()))
config.on_override(_switched)
