"""Calls without Python: the native module runs a program itself where a call is plain.

Plain: all arguments are tensors, given by position; the program reads and writes nothing but these
and tensors outside; no optimizer, no random numbers, no buffers. All other calls take the way of
``Compiled._called``, which is the definition.
"""

from __future__ import annotations

from typing import Any

from needle import config, core, graph, tracing
from needle.compile import call as calls
from needle.compile import cells, frames
from needle.compile.lower import NativeProgram

Base: Any = object
"""The base of compiled functions; the native one runs shortcuts, and calls ``_called`` for all
else."""

if core.native is not None and hasattr(core.native, "Shortcuts"):
    Base = core.native.Shortcuts
    core.native.set_shortcut_guards(config.variable(), tracing)


def add(compiled: Any, call: calls.Call, args: tuple[Any, ...], settings: Any) -> None:
    """Let the native module take calls like this one, which has just run by the definition."""
    if Base is object or call.shortened is tracing.changes or not _is_plain(call):
        return
    if not all(isinstance(x, graph.TensorBase) and x.array is not None for x in args):
        return
    if len(args) != call.arguments or any(x.array.strides != x.spec.strides for x in args):
        return
    if call.shortened is not None:  # it was for other settings of modules
        core.native.forget_shortcuts(compiled)  # type: ignore[union-attr]
    call.shortened = tracing.changes
    first: dict[int, int] = {}
    arguments = [
        (type(x), x.spec, x.requires_grad, first.setdefault(id(x), i)) for i, x in enumerate(args)
    ]
    sources = [
        cell.place if type(cell) is cells.Argument else cell.owner for cell in call.bound.sources
    ]
    core.native.add_shortcut(  # type: ignore[union-attr]
        compiled, call.program.native, arguments, sources, list(call.needs), call.frame,
        frames.TENSOR, calls.OUTSIDE, settings, tracing.changes,
    )  # fmt: skip


def _is_plain(call: calls.Call) -> bool:
    """Return whether a program does nothing but read and write tensors."""
    bound = call.bound
    return (
        type(call.program) is NativeProgram
        and not call.has_effects()
        and not bound.delivered
        and len(bound.listing.outputs) == bound.results == len(call.needs)
        and all(type(x) in (cells.Argument, cells.Held) for x in bound.sources)
        and not any(bound.strides)
        and _is_simple(call.frame)
    )


def _is_simple(frame: Any) -> bool:
    """Return whether a result is of tuples, lists and tensors."""
    if type(frame) in (tuple, list):
        return all(map(_is_simple, frame))
    return frame is frames.TENSOR or frame is None
