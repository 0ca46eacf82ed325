"""The parts of a program as plain JSON values, and back, without running code from a file.

Ops, rules of optimizers, optimizers and schedules are named by their class and rebuilt from numbers
and texts; a name that is not one of Needle's own is an error.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from needle import devices, optim
from needle import dtype as dtypes
from needle.backend.array import make_spec
from needle.compile import frames
from needle.errors import DataError
from needle.ops.core import update
from needle.ops.core.op import Op
from needle.optim import schedules

if TYPE_CHECKING:
    from needle.typing import DeviceLike

PLAIN = (bool, int, str, type(None))
DEEPEST = 32
"""Most levels of nested values."""


@cache
def _ops() -> dict[str, type[Op]]:
    """Return Needle's ops by the name of their class."""
    found: dict[str, type[Op]] = {}
    todo: list[type[Op]] = [Op]
    while todo:
        cls = todo.pop()
        todo += cls.__subclasses__()
        if not cls.is_foreign and not inspect.isabstract(cls) and not cls.__name__.startswith("_"):
            found[cls.__name__] = cls
    return found


RULES: dict[str, Any] = {"Kernel": update.Kernel, "Program": update.Program}
"""What an update computes, by the name of its class."""


@cache
def _formulas() -> dict[str, Any]:
    """Return the formulas of Needle's optimizers by the name of the class."""
    found = {
        name: getattr(getattr(optim, name), "formula", None) for name in vars(optim)["__all__"]
    }
    return {name: formula for name, formula in found.items() if formula is not None}


def encode(value: Any) -> Any:
    """Return a static attribute of an op as JSON.

    Raises:
        DataError: if it is not made of numbers, texts, dtypes, devices and tuples.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, PLAIN):
        return value if not isinstance(value, int) or abs(value) < 2**63 else {"int": str(value)}
    if isinstance(value, dtypes.DType):
        return {"dtype": value.name}
    if isinstance(value, devices.Device):
        return {"device": value.name}
    if type(value) in RULES.values():
        return {"rule": type(value).__name__, "values": [encode(x) for x in value]}
    for name, formula in _formulas().items():
        if value is formula:
            return {"formula": name}
    if isinstance(value, tuple):
        return {"tuple": [encode(x) for x in value]}
    if isinstance(value, slice):
        return {"slice": [encode(x) for x in (value.start, value.stop, value.step)]}
    raise DataError(f"a program with {type(value).__name__} {value!r:.60} cannot be saved")


def decode(value: object, device: DeviceLike, depth: int = 0) -> Any:
    """Return what ``encode`` was given, with ``device`` in place of the device of the program.

    Raises:
        DataError: if it is not valid.
    """
    if isinstance(value, (float, *PLAIN)):
        return value
    if depth > DEEPEST or not isinstance(value, dict) or not value:
        raise DataError(f"expected a value of an op, got {value!r:.60}")
    kind, content = next(iter(value.items()))
    if kind in ("float", "int") and isinstance(content, str):
        return float(content) if kind == "float" else int(content[:400])
    if kind == "dtype":
        return dtypes.as_dtype(_text(content))
    if kind == "device":
        return device
    if kind in ("tuple", "slice") and isinstance(content, list):
        parts = tuple(decode(x, device, depth + 1) for x in content)
        return parts if kind == "tuple" else slice(*parts)
    if kind == "formula" and content in _formulas():
        return _formulas()[content]
    if kind == "rule" and content in RULES:
        cls = RULES[content]
        values = [decode(x, device, depth + 1) for x in value.get("values", ())]
        if len(values) == len(cls._fields):
            return cls(*values)
    raise DataError(f"expected a value of an op, got {value!r:.60}")


def _text(x: object) -> str:
    if not isinstance(x, str):
        raise DataError(f"expected a text, got {x!r:.60}")
    return x


def encode_op(op: Any) -> dict[str, Any]:
    """Return an op as JSON.

    Raises:
        DataError: if it is a user's, or holds a Python function.
    """
    name = type(op).__name__
    if _ops().get(name) is not type(op) or op.opaque:
        raise DataError(f"a program with the op {op} cannot be saved: it runs a Python function")
    return {"op": name, "values": [encode(getattr(op, field)) for field in op.static]}


def decode_op(value: object, device: DeviceLike) -> Any:
    """Return an op. Raises DataError if Needle has none like it."""
    if not isinstance(value, dict) or not isinstance(value.get("values"), list):
        raise DataError(f"expected an op, got {value!r:.60}")
    cls = _ops().get(_text(value.get("op")))
    if cls is None:
        raise DataError(f"unknown op {value.get('op')!r:.60}; the file may be of a later version")
    given = [decode(x, device) for x in value["values"]]
    if len(given) != len(cls.static):
        raise DataError(f"the op {cls.__name__} has {len(cls.static)} values, got {len(given)}")
    return cls.of(*given)


def encode_spec(spec: Any) -> Any:
    """Return a spec as JSON: dtype and shape; a list of them for several results."""
    if type(spec) is tuple:
        return [encode_spec(x) for x in spec]
    return {"dtype": spec.dtype.name, "shape": list(spec.shape)}


def decode_spec(value: object, device: DeviceLike) -> Any:
    """Return a spec on a device. Raises DataError if it is not valid."""
    if not isinstance(value, dict) or not isinstance(value.get("shape"), list):
        raise DataError(f"expected a dtype and a shape, got {value!r:.60}")
    shape = tuple(value["shape"])
    if not all(type(n) is int and 0 <= n < 2**62 for n in shape) or len(shape) > 32:
        raise DataError(f"expected a shape, got {shape!r:.60}")
    return make_spec(dtypes.as_dtype(_text(value.get("dtype"))), device, shape)


def encode_frame(frame: Any) -> Any:
    """Return the structure of results as JSON."""
    if frame is frames.TENSOR:
        return "tensor"
    if isinstance(frame, dict):
        return {"dict": [[_text(key), encode_frame(x)] for key, x in frame.items()]}
    if isinstance(frame, (list, tuple)):
        kind = "list" if isinstance(frame, list) else "tuple"
        return {kind: [encode_frame(x) for x in frame]}
    return {"value": encode(frame)}


def decode_frame(value: object, depth: int = 0) -> Any:
    """Return the structure of results. Raises DataError if it is not valid."""
    if value == "tensor":
        return frames.TENSOR
    if depth > DEEPEST or not isinstance(value, dict) or len(value) != 1:
        raise DataError(f"expected the structure of results, got {value!r:.60}")
    ((kind, content),) = value.items()
    if kind == "value":
        return decode(content, None)
    if kind == "dict" and isinstance(content, list):
        return {_text(key): decode_frame(x, depth + 1) for key, x in content}
    if kind in ("list", "tuple") and isinstance(content, list):
        parts = [decode_frame(x, depth + 1) for x in content]
        return parts if kind == "list" else tuple(parts)
    raise DataError(f"expected the structure of results, got {value!r:.60}")


# ---- optimizers --------------------------------------------------------------------------


def _schedule(value: Any) -> Any:
    """Return a number or a schedule of an optimizer as JSON."""
    known = type(value).__module__ == schedules.__name__
    if known and not isinstance(value, type):
        parts = {f.name: _schedule(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"schedule": type(value).__name__, "parts": parts}
    if isinstance(value, (list, tuple)):
        return {"parts": [_schedule(x) for x in value]}
    return encode(value)


def _scheduled(value: object, depth: int = 0) -> Any:
    if depth > DEEPEST:
        raise DataError("a schedule is nested too deeply")
    if not isinstance(value, dict) or "parts" not in value:
        return decode(value, None)
    parts = value["parts"]
    if isinstance(parts, list):
        return tuple(_scheduled(x, depth + 1) for x in parts)
    name = _text(value.get("schedule"))
    cls: Any = vars(schedules).get(name)
    fields = getattr(cls, "__dataclass_fields__", None)
    if fields is None or not isinstance(parts, dict):
        raise DataError(f"unknown schedule {value.get('schedule')!r:.60}")
    if set(parts) != set(fields):
        raise DataError(f"the schedule {name} has {list(fields)}, got {list(parts)}")
    values = [_scheduled(parts[field], depth + 1) for field in fields]
    chain = cls is schedules.Chain  # takes its parts one by one
    return cls(*values[0]) if chain else cls(*values)


def _options(cls: type) -> list[str]:
    """Return the names of the numbers and flags that an optimizer is made with."""
    names = inspect.signature(cls).parameters
    return [n for n in names if n not in ("params", "betas", "foreach", "fused", "numbers")]


def encode_optimizer(optimizer: Any, place: Mapping[int, int]) -> dict[str, Any]:
    """Return an optimizer as JSON, without its state.

    Args:
        optimizer: the optimizer.
        place: for the identity of each parameter its number.

    Raises:
        DataError: if it is a user's, or a schedule is a Python function.
    """
    cls = type(optimizer)
    if getattr(optim, cls.__name__, None) is not cls:
        raise DataError(f"a program with the optimizer {cls.__name__} of yours cannot be saved")
    groups = []
    for group in optimizer.groups:
        own = {name: _schedule(group[name]) for name in optimizer.numbers if name in dict(group)}
        groups.append({"params": [place[id(p)] for p in group["params"]], "own": own})
    options = {n: _schedule(getattr(optimizer, n)) for n in _options(cls) if hasattr(optimizer, n)}
    return {"optimizer": cls.__name__, "options": options, "groups": groups}


def decode_optimizer(value: object, parameters: list[Any]) -> Any:
    """Return an optimizer of parameters. Raises DataError if it is not valid."""
    if not isinstance(value, dict):
        raise DataError(f"expected an optimizer, got {value!r:.60}")
    cls = getattr(optim, _text(value.get("optimizer")), None)
    if not inspect.isclass(cls) or not issubclass(cls, optim.Optimizer):
        raise DataError(f"unknown optimizer {value.get('optimizer')!r:.60}")
    groups = []
    for group in value["groups"]:
        own = {name: _scheduled(x) for name, x in group["own"].items()}
        groups.append({"params": [parameters[i] for i in group["params"]], **own})
    options = {name: _scheduled(x) for name, x in value["options"].items()}
    if not set(options) <= set(_options(cls)):
        raise DataError(f"{cls.__name__} has the options {_options(cls)}, got {list(options)}")
    return cls(groups, **options)
