"""``compile``: functions that are traced once for each kind of call, and then run as programs."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from needle import config, executor, forward, graph, nancheck, tracing, tree
from needle.compile import build, frames, shortcut
from needle.compile.call import Call, ChangedError
from needle.compile.trace import Trace, kept_outside
from needle.errors import OptionError, RetraceError, TraceError, unknown
from needle.ops.core.attributes import exact

MODES = ("on", "nofuse", "python", "off")


def compile(
    function: Callable[..., Any] | None = None,
    *,
    static: Iterable[str] = (),
    max_traces: int = 8,
    mode: str | None = None,
    keep_grads: bool = False,
) -> Any:
    """Return a function that does the same as ``function``, as a program without Python.

    In the first call the function runs once with tensors that have no values yet. The operations
    that it asks for, forward, backward and the optimizer's step, become a program, which this call
    and later ones run. Another call of the function follows for arguments of other shapes, dtypes
    or structure, for other static values, and when a module or a setting changed.

    Tensors that it finds outside (parameters, buffers, the state of optimizers) are read at each
    call, and get their new values at its end. Results are new tensors. Everything that is not a
    tensor is a constant, except the numbers of optimizers and the random numbers of
    ``manual_seed``.

    Args:
        function: takes tensors, also in tuples, lists and dicts, and returns such; or a module.
        static: names of arguments that are no tensors, on whose values the program depends.
        max_traces: how many programs are kept.
        mode: "on"; "nofuse" without fused kernels; "python" without the native runner; "off" to
            call the function as it is. None: as ``NEEDLE_COMPILE`` says.
        keep_grads: whether ``.grad`` still has the gradients that an optimizer used when the call
            ends, as without ``compile``. They take memory; else they are None.

    Raises:
        TraceError: in a call, if the function does something that would not happen in later
            calls, such as reading a value: nothing is changed then.
        RetraceError: in a call that needs a new program when there are ``max_traces``.
        OptionError: for an unknown mode or name of an argument.

    >>> @ndl.compile
    ... def norm(x):
    ...     return (x * x).sum() ** 0.5
    >>> norm(Tensor([3.0, 4.0])).item()
    5.0
    """
    if function is None:
        return functools.partial(
            compile, static=static, max_traces=max_traces, mode=mode, keep_grads=keep_grads
        )
    tree.check_function("compile", function)
    names = (static,) if isinstance(static, str) else tuple(static)
    return Compiled(function, names, max_traces, mode, keep_grads)


class Compiled(shortcut.Base):  # type: ignore[misc]  # it is known at import
    """A compiled function; see ``compile``. Attributes are those of the function."""

    def __init__(
        self,
        function: Callable[..., Any],
        static: tuple[str, ...],
        most: int,
        mode: str | None,
        keep_grads: bool,
    ) -> None:
        if mode is not None and mode not in MODES:
            raise unknown("compile: mode", mode, MODES)
        if type(most) is not int or most < 1:
            raise OptionError(f"compile: max_traces is {most!r:.60}\n  rule: an integer above 0")
        self._function, self._static, self._most, self._mode = function, static, most, mode
        self._keep_grads = keep_grads
        self._calls: dict[Any, list[Call]] = {}
        self._signature = _signature(function, static)
        self.__name__ = tree.name_of(function)
        self.__doc__ = getattr(function, "__doc__", None)
        self.__wrapped__ = function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._function, name)

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else types.MethodType(self, owner)

    def calls(self) -> list[Call]:
        """Return the programs made so far, with their places."""
        return [call for kept in self._calls.values() for call in kept]

    def planned(self, *args: Any, **named: Any) -> tuple[Call, Any]:
        """Return the program for a call, made if there is none, and its arrays; nothing runs.

        Raises:
            TraceError: as a call.
        """
        settings = config.current()
        mode = self._mode or settings.compile
        mode = "on" if mode == "off" else mode
        tensors, key = self._flat(args, named)
        for x in tensors:
            executor.array_of(x)
        calls = self._calls.setdefault((key, mode, graph.recording(), _kinds(tensors)), [])
        for call in calls:
            prepared = call.prepared(tensors, settings)
            if prepared is not None:
                return call, prepared
        calls.append(self._traced(args, named, tensors, mode, settings))
        return calls[-1], calls[-1].prepared(tensors, settings)

    def __repr__(self) -> str:
        return f"compile({self.__name__}: {sum(map(len, self._calls.values()))} programs)"

    def _called(self, *args: Any, **named: Any) -> Any:
        settings = config.current()
        mode = self._mode or settings.compile
        if mode == "off" or tracing.current() is not None or nancheck.on():
            return self._function(*args, **named)
        tensors, key = self._flat(args, named)
        if forward.top(tensors):
            return self._function(*args, **named)
        for x in tensors:
            executor.array_of(x)
        key = (key, mode, graph.recording(), _kinds(tensors))
        calls = self._calls.setdefault(key, [])
        for call in calls:
            prepared = call.prepared(tensors, settings)
            if prepared is not None:
                try:
                    out = call.run(tensors, prepared)
                except ChangedError:
                    continue
                if not named:
                    shortcut.add(self, call, args, settings)
                return out
        if sum(map(len, self._calls.values())) >= self._most:
            raise self._too_many(tensors)
        made = self._traced(args, named, tensors, mode, settings)
        prepared = made.prepared(tensors, settings)
        assert prepared is not None, "a new program fits its own call"
        out = made.run(tensors, prepared)
        calls.append(made)
        return out

    def _flat(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[list[Any], Any]:
        """Return the tensors among the arguments, and a key for all else."""
        tensors: list[Any] = []
        if self._signature is not None:
            given = self._signature.bind(*args, **named).arguments
            key = tuple(
                (name, _checked_static(name, x))
                if name in self._static
                else (name, frames.flatten(x, tensors, self._constant))
                for name, x in given.items()
            )
            return tensors, key
        key = frames.flatten(args, tensors, self._constant)
        return tensors, (key, frames.flatten(named, tensors, self._constant) if named else None)

    def _constant(self, x: Any) -> Any:
        """Return what stands in a key for an argument that is not a tensor."""
        if isinstance(x, (int, float, complex)) or hasattr(x, "__array__"):
            raise TraceError(
                f"compile: {self.__name__} got {x!r:.60}, which would be a constant\n"
                "  rule: numbers and arrays among the arguments are tensors, or named in static=\n"
                f"  try: needle.Tensor(...), or compile(..., static=('name',))"
            )
        return _checked_static("an argument", x)

    def _traced(self, args: Any, named: Any, given: list[Any], mode: str, settings: Any) -> Call:
        arguments = _copies(given)
        trace = Trace(self._keep_grads)
        try:
            with trace.running():
                following = iter(arguments)
                places = [frames.rebuilt(x, following, lambda y: y) for x in (args, named)]
                if self._signature is not None:
                    places = self._in_order(args, named, arguments)
                out = self._function(*places[0], **places[1])
                tensors: list[Any] = []
                frames.flatten(out, tensors, _result)
                found = build.results(trace, arguments, tensors)
            frame = frames.frame_of(out)
            del out, tensors, places, following
        except BaseException:
            trace.restore()
            raise
        trace.restore()
        bound = build.bound(trace, found, arguments, given)
        found = found._replace(outputs=[], kept=[], values={})
        made = Call(bound, found, trace, frame, mode, settings)
        del bound
        trace.forget()
        where = kept_outside(trace)
        if where is not None:
            raise TraceError(
                f"compile: a tensor made at {where} is kept outside {self.__name__}\n"
                "  rule: it has a value in the first call only\n"
                "  try: return it, or register_buffer for a module's own tensor"
            )
        return made

    def _in_order(self, args: Any, named: Any, arguments: list[Any]) -> list[Any]:
        """Return the arguments with tensors replaced, in the order of ``_flat``."""
        assert self._signature is not None
        call, following = self._signature.bind(*args, **named), iter(arguments)
        for name, x in call.arguments.items():
            if name not in self._static:
                call.arguments[name] = frames.rebuilt(x, following, lambda y: y)
        return [call.args, call.kwargs]

    def _too_many(self, tensors: Sequence[Any]) -> RetraceError:
        seen = "\n".join(
            f"    {', '.join(map(str, call.bound.specs[: call.arguments]))}"
            for calls in self._calls.values()
            for call in calls
        )
        return RetraceError(
            f"compile: {self.__name__} needs program number {self._most + 1}\n"
            f"  this call: {', '.join(str(x.spec) for x in tensors)}\n  programs for:\n{seen}\n"
            f"  rule: at most max_traces={self._most}\n"
            "  try: pad to a few sizes, drop the last batch (drop_last=True), or raise max_traces"
        )


if shortcut.Base is object:
    Compiled.__call__ = Compiled._called


def _signature(function: Any, static: tuple[str, ...]) -> inspect.Signature | None:
    """Return the signature where names of arguments matter.

    Raises:
        OptionError: for a static argument that there is not.
    """
    if not static:
        return None
    found = inspect.signature(function)
    for name in static:
        if name not in found.parameters:
            raise unknown("compile: argument", name, found.parameters)
    return found


def _checked_static(name: str, x: Any) -> Any:
    try:
        hash(x)
    except TypeError:
        raise TraceError(
            f"compile: {name} is {x!r:.60}, which cannot be part of a key\n"
            "  rule: static arguments are hashable"
        ) from None
    return _key(x)


def _key(x: Any) -> Any:
    """Return a key that tells equal values of other types apart, in tuples, too."""
    return (type(x), *map(_key, x)) if isinstance(x, tuple) else exact(x)


def _kinds(tensors: Sequence[Any]) -> Any:
    """Return the key of tensors: specs, strides, what requires gradients, and equal objects."""
    kinds = [(x.spec, x.requires_grad, build._strides(x.array), type(x)) for x in tensors]
    seen: dict[int, int] = {}
    return tuple(kinds), tuple(seen.setdefault(id(x), i) for i, x in enumerate(tensors))


def _copies(tensors: Sequence[Any]) -> list[Any]:
    """Return leaves for the trace, of the same kinds; one for each tensor object.

    Raises:
        TraceError: for a tensor that is part of a graph.
    """
    made: dict[int, Any] = {}
    for x in tensors:
        if id(x) in made:
            continue
        if x.requires_grad and not x.is_leaf() and graph.recording():
            raise tracing.refused(
                f"an argument, the result of {x.op}, is part of a graph",
                ".detach() it, or compile the whole of the computation",
                "gradients do not flow into or out of a compiled function",
            )
        kind: Any = type(x)
        new = kind.__new__(kind)
        graph.init_tensor(new, x.array, x.requires_grad)
        new.name, new.grad = x.name, x.grad
        made[id(x)] = new
    return [made[id(x)] for x in tensors]


def _result(x: Any) -> Any:
    if isinstance(x, (int, float, complex)):
        return type(x), x
    raise TraceError(
        f"compile: the function returned {tree.kind(x)}, {x!r:.60}\n"
        "  rule: it returns tensors, numbers, texts and None, in tuples, lists and dicts\n"
        "  try: return the tensors alone"
    )
