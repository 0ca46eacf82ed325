"""Converts the operands that users give, numbers and NumPy arrays, to tensors."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import config, core, devices, dtype, executor, forward, graph, tree
from needle.backend import memory
from needle.backend.ndarray import NDArray, array, full
from needle.dtype import DType
from needle.errors import ArgumentError, DtypeError, GradientError, ShapeError, called, explain
from needle.ops.core.attributes import either

if TYPE_CHECKING:
    from needle.devices import Device
    from needle.typing import Numpy, Tensor, Values


def default_float() -> DType:
    """Return float32, or float64 with ``NEEDLE_BACKEND=np``, as in NumPy."""
    return dtype.float64 if config.current().backend == "np" else dtype.float32


def has_gradients(kind: DType) -> bool:
    """Return whether tensors of a dtype can require gradients: floating ones.

    With ``NEEDLE_BACKEND=np`` all, as in the course.
    """
    return kind.kind == "f" or config.current().backend == "np"


def plain_number(x: object) -> Any:
    """Return a NumPy number, or an array or a tensor of one element, as a Python number.

    Anything else is returned as it is.
    """
    return x.item() if getattr(x, "size", None) == 1 and hasattr(x, "item") else x


def check_single(x: object) -> None:
    """Refuse an array or a tensor of several elements where a number is needed.

    Raises:
        ShapeError: if x is one.
    """
    size = getattr(x, "size", 1)
    if isinstance(size, int) and size != 1:
        raise explain(
            ShapeError, called(), f"expected one number, got {size} elements", [("value", x)],
            "a number, or an array or a tensor of one element",
        )  # fmt: skip


_constants: dict[object, tuple[Tensor, NDArray]] = {}


def constant(value: bool | int | float, kind: DType, where: Device) -> Tensor:
    """Return a cached 0-d tensor, unless it was given other data: graphs show it to users."""
    key = (type(value), value, math.copysign(1.0, value), kind, where)
    found, array = _constants.get(key, (None, None))
    if found is None or found.array is not array or found.requires_grad:
        if len(_constants) > 1000:
            _constants.clear()
        with executor.modes(recording=False, lazy=False), memory.real():
            array = full((), value, kind, where)
            found = graph.wrap(array)
        _constants[key] = found, array  # held twice: no write is in place
    return found


def is_constant(tensor: object) -> bool:
    """Return whether a tensor is one of the cached numbers."""
    return any(found is tensor for found, _ in _constants.values())


if core.native is not None:
    core.native.set_constants(constant)


# ---- nested lists ----------------------------------------------------------------


class TensorListed(Exception):
    """NumPy found a tensor in the lists that it reads for ``read``."""


class _Reading(threading.local):
    on = False


reading = _Reading()
"""Whether ``read`` runs on this thread: a tensor whose values NumPy asks for then raises."""


def read(make: Callable[..., Any], values: Any, *args: Any) -> Any:
    """Return ``make(values, *args)``, where NumPy reads the values; None for a list with tensors.

    NumPy asks each tensor it finds for its values. Looking for tensors first would take longer
    than NumPy takes to read the numbers.
    """
    if not isinstance(values, (list, tuple)):
        return make(values, *args)
    reading.on = True
    try:
        return make(values, *args)
    except TensorListed:
        return None
    finally:
        reading.on = False


def as_array(values: Values) -> Numpy:
    """Return (nested) lists of numbers, arrays and tensors as a NumPy array.

    Raises:
        ShapeError: if they differ in shape.
    """
    if not isinstance(values, (list, tuple)):
        return np.asarray(values)
    parts = [as_array(part) for part in values]
    if len({part.shape for part in parts}) > 1:
        shapes = ", ".join(dict.fromkeys(str(part.shape) for part in parts))
        raise ShapeError(f"array: a list holds values of shapes {shapes}\n  rule: equal shapes")
    return np.stack(parts) if parts else np.asarray(values)


def check_constant(name: str, values: object) -> None:
    """Refuse lists with tensors that derivatives flow through: in a new leaf the flow would end.

    Leaves count as data, also those that require gradients, as new tensors do by default.

    Raises:
        GradientError: for the first result of a graph.
    """
    for x in tree.flat(values):
        if forward.varies(x, leaves=False):
            raise explain(
                GradientError, name, "the list holds a result of a graph; the new tensor would be "
                "a constant, through which no gradient flows", [("element", x)],
                "a new tensor is a leaf, made of values alone",
                "ops.stack([...]), which gradients flow through; for a constant .detach(), or "
                "requires_grad=False",
            )  # fmt: skip


# ---- operands ----------------------------------------------------------------------


def _plain(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return inputs with NumPy integers and bools as Python's, if there are floating tensors.

    So ``x / np.prod(shape)`` gives the same dtype as ``x / math.prod(shape)``.
    """
    if not any(isinstance(x, (np.integer, np.bool_)) for x in inputs):
        return inputs
    if not any(isinstance(x, graph.TensorBase) and x.spec.dtype.kind == "f" for x in inputs):
        return inputs
    return tuple(x.item() if isinstance(x, (np.integer, np.bool_)) else x for x in inputs)


def as_tensors(inputs: tuple[Any, ...], name: str) -> tuple[Tensor, ...]:
    """Return inputs with Python numbers and NumPy arrays converted to tensors.

    Raises:
        ArgumentError: for anything else, or if none of them is a tensor.
    """
    for x in inputs:
        if not isinstance(x, graph.TensorBase) or type(x.spec) is tuple:
            return tuple(_as_tensor(y, inputs, name) for y in inputs)
    return inputs


def _as_tensor(x: Any, inputs: tuple[Any, ...], name: str) -> Any:
    if isinstance(x, graph.TensorBase):
        if type(x.spec) is tuple:
            raise explain(
                ArgumentError, name, f"expected a tensor, got {kind_of(x)} of {len(x.spec)}",
                advice="one of them, x[0], or ops.stack(x)",
            )  # fmt: skip
        return x
    if isinstance(x, NDArray):
        return graph.wrap(x)
    like = next((y for y in inputs if isinstance(y, graph.TensorBase)), None)
    if like is None:
        given = ", ".join(map(kind_of, inputs))
        raise explain(
            ArgumentError, name, f"expected a tensor, got {given}", advice=_advice(inputs)
        )
    spec = executor.spec_of(like)
    if isinstance(x, (bool, int, float)):
        weak = dtype.scalar_dtype(x, spec.dtype)
        return _constant_beside(x, weak, spec.device)
    if isinstance(x, (np.ndarray, np.generic)):
        own = spec.dtype if spec.dtype is dtype.float64 and x.dtype == np.float64 else None
        return graph.wrap(array(x, own, spec.device))  # float64 is kept beside float64 only
    raise explain(
        ArgumentError, name, f"expected a tensor or a number, got {kind_of(x)}",
        advice=_advice((x,)),
    )  # fmt: skip


def kind_of(x: object) -> str:
    """Return the name of x's type, with its library where that is not Needle or Python."""
    library = type(x).__module__.partition(".")[0]
    name = type(x).__name__
    return name if library in ("builtins", "needle", "__main__") else f"{library}.{name}"


def _advice(inputs: tuple[object, ...]) -> str:
    """Return the advice for arrays, lists or numbers in the place of tensors."""
    if any(hasattr(type(x), "dense") for x in inputs):
        return ".dense() of the gradient by rows, which returns a tensor"
    known = (bool, int, float, list, tuple)
    fit = all(isinstance(x, known) or hasattr(x, "__array__") for x in inputs)
    return "needle.Tensor(...) makes a tensor of it" if fit and inputs else ""


def _constant_beside(x: float, kind: DType, where: Device) -> Tensor:
    if kind.kind in "iu" and not dtype.fits(x, kind):
        raise DtypeError(f"the number {x} does not fit into {kind}; cast the tensor first")
    if type(x) is int and kind.kind == "f" and abs(x) >= 2**1024:
        raise DtypeError(f"an integer of {x.bit_length()} bits does not fit into {kind}")
    return constant(x, kind, where)


def unified(inputs: tuple[Any, ...], name: str, floating: bool) -> tuple[list[Tensor], DType]:
    """Return the inputs as tensors, and the dtype to cast them to: see ``op.promoted``."""
    inputs = _plain(inputs)
    tensors = [_as_tensor(x, inputs, name) for x in inputs if not isinstance(x, (bool, int, float))]
    if not tensors:
        raise explain(
            ArgumentError, name, "expected a tensor, got numbers only", advice=_advice(inputs)
        )
    common = tensors[0].spec.dtype
    for x in tensors:
        if x.spec.dtype is not common:
            common = _promote(common, x.spec.dtype, name, tensors)
    numbers = len(inputs) > len(tensors)
    if numbers:
        for x in inputs:
            if isinstance(x, (bool, int, float)):
                weak = dtype.scalar_dtype(x, common)
                common = default_float() if weak.kind == "f" != common.kind else weak
    if floating and common.kind != "f":
        common = default_float()
    if not numbers:
        return tensors, common
    where, rest = executor.spec_of(tensors[0]).device, iter(tensors)
    return [
        _constant_beside(x, common, where) if isinstance(x, (bool, int, float)) else next(rest)
        for x in inputs
    ], common  # fmt: skip


def _breadth(kind: DType) -> int:
    return {"b": 0, "f": 2}.get(kind.kind, 1)


def _promote(a: DType, b: DType, name: str, tensors: list[Tensor]) -> DType:
    both = dtype.promote(a, b)
    if both is None and config.current().backend == "np":  # the course: as NumPy mixes them
        both = dtype.as_dtype(np.promote_types(a.numpy, b.numpy))
    if both is None:
        wide = max(a, b, key=_breadth)
        named = list(zip("xyz", tensors, strict=False))
        narrow = [x for x, t in named if _breadth(t.spec.dtype) < _breadth(wide)]
        raise explain(
            DtypeError, name, f"dtypes {a} and {b} do not mix", named,
            "integers mix with integers, floats with floats (array API standard)",
            f'cast one, for example {narrow[0] if narrow else "x"}.astype("{wide}")',
        )  # fmt: skip
    return both


def declined(other: object, reflected: str) -> Any:
    """Return NotImplemented for an operand whose class may implement the operator itself.

    So ``tensor + other`` calls ``other.__radd__``, as for any class. Lists and strings have such
    methods too, to repeat or to format: for them and all others the error that is being handled is
    raised again. (Passed as an argument it would keep itself and the tensors alive.)
    """
    kind = type(other)
    method = getattr(kind, reflected, None)
    inherited = getattr(object, reflected, None)  # comparisons that always return NotImplemented
    if kind.__module__ in ("builtins", "numpy") or method is None or method is inherited:
        raise  # noqa: PLE0704  (called where it is handled)
    return NotImplemented


def destination(target: Any, where: Any, kind: Any) -> tuple[Any, DType | None]:
    """Return the device and the dtype given to ``to``: one as target, or both by name.

    None stays None; if both are None the device is the default one.

    Raises:
        OptionError: if one is given twice.
    """
    if isinstance(target, (DType, type)) or str(target) in dtype.ALL:
        kind = either(target, kind, ("target", "dtype"))
    else:
        where = either(target, where, ("target", "device"))
    if where is not None or kind is None:
        where = devices.as_device(where)
    return where, None if kind is None else dtype.as_dtype(kind)
