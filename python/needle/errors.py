"""The exceptions of Needle, and the one builder of their messages.

Every message has the same form: what was wrong, with the numbers seen; each tensor involved; the
rule; what to try. It is built on the error path only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar


class NeedleError(Exception):
    """Base of all exceptions that Needle raises on purpose."""

    operands: tuple[tuple[str, Any], ...] = ()
    """(name, array or tensor) of each operand that the message lists."""
    _parts: tuple[str, str, str, str] = ("", "", "", "")

    def about(self, tensors: Sequence[Any]) -> NeedleError:
        """Return the same error with these tensors as operands, which have names and makers."""
        operation, problem, rule, advice = self._parts
        named = [(name, x) for (name, _), x in zip(self.operands, tensors, strict=True)]
        return explain(type(self), operation, problem, named, rule, advice)

    def called_at(self, line: str) -> NeedleError:
        """Add the user's line that called the operation to the message; return the error."""
        operation, problem, rule, advice = self._parts
        place = f"\n  called at {line}"
        if operation:
            told = explain(type(self), operation, problem + place, self.operands, rule, advice)
            self.args, self._parts = told.args, told._parts
        else:
            self.args = (f"{self}{place}",)
        return self


_Error = TypeVar("_Error", bound=NeedleError)


class ShapeError(NeedleError, ValueError):
    """Shapes that an operation cannot combine."""


class AxesError(ShapeError, AttributeError):
    """An attribute that needs more axes than the tensor has."""


class LengthError(ShapeError, TypeError):
    """The length of a 0-dimensional tensor; also a TypeError, like Python's own ``len`` errors."""


class DtypeError(NeedleError, TypeError):
    """A dtype that an operation is not defined for, or dtypes that do not mix."""


class ArgumentError(NeedleError, TypeError):
    """An argument of the wrong type, or the wrong number of arguments."""


class RangeError(DtypeError, OverflowError):
    """A number that a dtype cannot hold."""


class DeviceError(NeedleError, ValueError):
    """Tensors on different devices, or a device that is unknown or not available."""


class IndexRangeError(NeedleError, IndexError):
    """An index, axis or label outside its range."""


class GradientError(NeedleError, RuntimeError):
    """A gradient that cannot be computed."""


class NonFiniteError(NeedleError, ArithmeticError):
    """A NaN or an infinity, found by ``check_finite``."""


class TraceError(NeedleError, RuntimeError):
    """Something that a function cannot do while ``compile`` traces it."""


class RetraceError(NeedleError, RuntimeError):
    """A compiled function that was called in too many different ways."""


class FeedError(NeedleError, ValueError):
    """A placeholder that a run of a static graph was not fed with, or with a wrong value."""


class ReleasedError(NeedleError, RuntimeError):
    """A value that was freed because nothing needed it anymore."""


class ExchangeError(NeedleError, BufferError):
    """Memory that cannot be shared with another library in the requested way."""


class NotRecorded(NeedleError, RuntimeError):
    """Values read, or memory used, in a dry run, where kernels are noted and not run."""


class SingularError(NeedleError, ValueError):
    """A matrix that has no inverse, or not the requested factorization."""


class OptionError(NeedleError, ValueError):
    """An unknown name or option."""


class DataError(NeedleError, ValueError):
    """A file that is missing, truncated, or in the wrong format."""


class SaveError(DataError):
    """A checkpoint that could not be written: a full, missing or read-only disk.

    Nothing of it is left, and a run can go on without.
    """


class LockedError(NeedleError, RuntimeError):
    """A folder that another run is using."""


class WorkerError(DataError, RuntimeError):
    """A worker of a DataLoader raised, ended or gave nothing in time.

    Attributes:
        worker: number of the worker.
        items: the items that it had to fetch, in words.
        trace: its traceback, if it raised.
    """

    worker: int = -1
    items: str = ""
    trace: str = ""


class OutOfMemoryError(NeedleError, MemoryError):
    """The device has no memory left for an array.

    The running operation stops; tensors stay as they were, and so do graphs that no backward pass
    has walked. An optimizer step on the native CPU in float32 or float64 changes no parameter of
    the group; elsewhere the parameters before the failing one are already updated.

    Attributes:
        requested: bytes requested; 0 if unknown.
        memory: the device's ``memory_info()`` at that moment.
    """

    requested: int = 0
    memory: Mapping[str, int] = MappingProxyType({})

    def during(self, operation: str, tensors: Sequence[Any]) -> OutOfMemoryError:
        """Return the same error as one of an op on these tensors."""
        _, problem, rule, advice = self._parts
        named = list(zip("xyzuvw", tensors, strict=False))
        error = explain(OutOfMemoryError, operation, problem, named, rule, advice)
        error.requested, error.memory = self.requested, self.memory
        return error


def describe(x: Any) -> str:
    """One tensor or array as ``float32[32, 10] cpu``, with its name or maker where known."""
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        return f"{type(x).__name__} {x!r:.60}"
    text = f"{x.dtype}[{', '.join(map(str, x.shape))}]"
    if hasattr(x, "device"):
        text += f" {x.device}"
    name, maker = getattr(x, "name", None), getattr(x, "maker", None)
    if name:
        text += f'   parameter "{name}"'
    if maker:
        text += f"   made by {maker}"
    return text


def undefined(x: Any, method: str) -> NotImplementedError:
    """Return the error for a method that a subclass has to define."""
    return NotImplementedError(f"{type(x).__name__} defines no {method}()")


def explain(
    kind: type[_Error],
    operation: str,
    problem: str,
    tensors: Sequence[tuple[str, Any]] = (),
    rule: str = "",
    advice: str = "",
) -> _Error:
    """Return (not raise) an exception whose message follows Needle's common form.

    Args:
        kind: the exception class.
        operation: the op or function, as the user called it.
        problem: the mistake, with the numbers seen.
        tensors: (name, tensor) of each operand.
        rule: the condition that was violated.
        advice: a possible fix; left out where Needle cannot know one.
    """
    lines = [f"{operation}: {problem}"]
    lines += [f"  {name}: {describe(tensor)}" for name, tensor in tensors]
    if rule:
        lines.append(f"  rule: {rule}")
    if advice:
        lines.append(f"  try: {advice}")
    error = kind("\n".join(lines))
    error.operands, error._parts = tuple(tensors), (operation, problem, rule, advice)
    return error


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the known name closest to the given one, or nothing."""
    import difflib  # costs more than the rest of this module; only errors need it

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown(what: str, name: object, known: Iterable[str]) -> OptionError:
    """Return the error for an unknown name, with the nearest known one and the whole list.

    Args:
        what: the kind of name, after the function where it was given: "recipe", "norm: ord".
        name: the unknown name.
        known: the names that would have been right.
    """
    known = sorted(known)
    function, colon, kind = what.rpartition(": ")
    return OptionError(
        f"{function}{colon}unknown {kind} {name!r}{nearest(str(name), known)}\n"
        f"  known: {', '.join(known)}"
    )


def missing(module: str, name: str, advice: str = "") -> AttributeError:
    """Return the error for a missing attribute of a module, with advice.

    Python adds a similar name if the module has one.
    """
    text = f"module {module!r} has no attribute {name!r}"
    text += f"\n  try: {advice}" if advice else ""
    return AttributeError(text, name=name, obj=sys.modules.get(module))


def no_tensor(x: Any) -> NeedleError:
    """Return the error for an argument that is not a tensor, naming the function called."""
    rest = "" if x is None else f" {x!r:.60}"
    numbers = isinstance(x, (int, float, list)) or hasattr(x, "__array__")
    return explain(
        ArgumentError, called(), f"expected a tensor, got {type(x).__name__}{rest}",
        advice="Tensor(...) makes a tensor from numbers" if numbers else "",
    )  # fmt: skip


def called() -> str:
    """Return the name of Needle's function that the user called."""
    name, frame = "", sys._getframe(1)
    inner = frame
    while frame is not None and _is_needle(frame):
        name, inner, frame = frame.f_code.co_name, frame, frame.f_back  # type: ignore[assignment]
    if name == "__call__":  # of a layer
        name = type(inner.f_locals.get("self")).__name__
    return name


def _is_needle(frame: Any) -> bool:
    return frame.f_globals.get("__name__", "").split(".")[0] == "needle"


def user_line() -> str:
    """Return ``file:line`` of the innermost frame outside Needle."""
    frame = sys._getframe(1)
    while frame is not None and _is_needle(frame):
        frame = frame.f_back  # type: ignore[assignment]
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "?"
