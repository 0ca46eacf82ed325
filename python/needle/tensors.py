"""Tensor: an array in the graph. Construction, operators and methods."""

from __future__ import annotations

import copy as copying
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import autograd, config, devices, dtype, executor, graph, ops, tracing
from needle.aliases import Aliases
from needle.backend import dlpack, memory
from needle.backend.ndarray import NDArray, array
from needle.errors import (
    ArgumentError,
    DtypeError,
    GradientError,
    LengthError,
    NeedleError,
    ShapeError,
    TraceError,
    explain,
)
from needle.inplace import Augmented, InPlace, complete, written
from needle.inspection import Inspection, watch_unpacking
from needle.methods import Methods
from needle.ops.core import dims, operands
from needle.ops.core.attributes import flag
from needle.ops.core.op import Identity
from needle.ops.core.operands import declined, destination, has_gradients
from needle.ops.core.starts import become
from needle.ops.index import select
from needle.ops.shape import movement
from needle.value import TensorTuple as TensorTuple
from needle.value import Value as Value

if TYPE_CHECKING:
    from needle.typing import DeviceLike, DTypeLike, Index, Numpy, Operand, Values

__all__ = ["Parameter", "Tensor", "TensorTuple", "Value", "from_dlpack"]

_add, _subtract, _multiply = ops.Add.of(), ops.Subtract.of(), ops.Multiply.of()
_divide, _power, _negative = ops.Divide.of(), ops.Power.of(), ops.Negative.of()
_apply, _identity = executor.apply, Identity.of()
_reshapes = movement.known_reshapes


class Tensor(InPlace, Augmented, Methods, Value):
    """An array that remembers how it was computed.

    Args:
        array: a Tensor or NDArray (storage is shared where device and dtype agree), a NumPy array,
            nested list or number (copied).
        device: the device; the default device for None.
        dtype: the element type. For None: float32 for Python numbers and float64 values, else
            that of the values; with ``NEEDLE_BACKEND=np`` as NumPy infers it.
        requires_grad: whether ``backward`` computes its gradient; ignored for integers and bools
            unless ``NEEDLE_BACKEND=np``.

    Raises:
        GradientError: if it requires a gradient and its list holds results of a graph: gradients
            would not flow to them. Use ``ops.stack`` instead.
    """

    __slots__ = ()

    def __init__(
        self, array: Values, *, device: DeviceLike = None, dtype: DTypeLike = None,
        requires_grad: bool = True,
    ) -> None:  # fmt: skip
        data = _data(array, device, dtype, requires_grad)
        graph.init_tensor(self, data, bool(requires_grad) and has_gradients(data.dtype))
        executor.note_leaf(self, type(self).__name__)

    # ---- what it is ----------------------------------------------------------

    @property
    def T(self) -> Tensor:
        """The transpose: the last two axes swapped. A vector or a number is returned unchanged."""
        try:
            return ops.transpose(self)
        except ShapeError:
            if self.ndim > 1:
                raise
            return self

    # ---- values --------------------------------------------------------------

    def numpy(self) -> Numpy:
        """Return a copy of the values as a NumPy array.

        Raises:
            OutOfMemoryError: if there is not enough memory for it, as for a large broadcast view.
        """
        value = executor.primal_array(self)  # a postponed op fails under its own name
        try:
            return np.array(value)
        except MemoryError as error:
            raise memory.typed(error).during("numpy", (self,)) from None

    def item(self) -> bool | int | float:
        """Return the value of a one-element tensor as a Python number."""
        return executor.primal_array(self).item()

    def tolist(self) -> Any:
        """Return the values as nested lists of Python numbers."""
        return self.numpy().tolist()

    def detach(self) -> Tensor:
        """Return a tensor that shares the data and has no graph."""
        if self._waits():
            with executor.modes(recording=False):
                return _apply(_identity, self)
        return graph.wrap(executor.primal_array(self))

    @property
    def data(self) -> Tensor:
        """The detached tensor; what changes it in place changes x too.

        Assigning a tensor of the same dtype rebinds the storage.
        """
        return Data(self)

    @data.setter
    def data(self, value: Any) -> None:
        later = isinstance(value, Tensor) and tracing.current() is not None
        new = value.to(self.device) if later else _data(value, self.device, None)
        if new.dtype is not self.dtype:
            raise DtypeError(
                f"data: a {new.dtype} tensor was assigned to a {self.dtype} one; "
                f'cast it with .astype("{self.dtype}")'
            )
        if later:
            become(self, new)
        else:
            graph.set_array(self, new)

    def new_tensor(
        self, values: Values, *, dtype: DTypeLike = None, device: DeviceLike = None
    ) -> Tensor:
        """Return a copy of values with the tensor's dtype and device; it requires no gradient."""
        data = _data(values, device or self.device, dtype or self.dtype)
        return graph.wrap(data.copy() if isinstance(values, (Value, NDArray)) else data)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set ``requires_grad`` (for integers and bools it stays False) and return the tensor."""
        self.requires_grad = flag("requires_grad_: requires_grad", requires_grad)
        return self

    def retain_grad(self) -> None:
        """Do nothing: ``backward`` always sets ``.grad`` on results that a variable holds.

        Raises:
            GradientError: if the tensor does not require a gradient.
        """
        if not self.requires_grad:
            raise explain(
                GradientError, "retain_grad", "the tensor needs no gradient", [("x", self)], "",
                "requires_grad=True for the tensor, or for the inputs it is computed from",
            )  # fmt: skip

    def backward(
        self, out_grad: Values | None = None, *, gradient: Values | None = None,
        retain_graph: bool | None = None,
        create_graph: bool | None = None, accumulate: bool = False,
    ) -> None:  # fmt: skip
        """Compute gradients into ``.grad`` of the leaves. See ``autograd.backward``.

        ``gradient`` is PyTorch's name for ``out_grad``.
        """
        if gradient is not None:
            out_grad = ops.either(out_grad, gradient, ("out_grad", "gradient"))
        autograd.backward(
            self, out_grad, retain_graph=retain_graph, create_graph=create_graph,
            accumulate=accumulate,
        )  # fmt: skip

    def __array__(self, dtype: DTypeLike = None, copy: bool | None = None) -> Numpy:
        if operands.reading.on:
            raise operands.TensorListed
        return executor.primal_array(self).__array__(dtype, copy)

    __array_ufunc__ = None  # so that numpy_array + tensor calls the tensor's method

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule over the tensor's memory. See ``exchange.to_dlpack``."""
        if self._is_recorded():
            raise GradientError("dlpack: the tensor is part of a graph; export .detach()")
        return dlpack.to_dlpack(executor.primal_array(self), stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return executor.primal_array(self).__dlpack_device__()

    def __deepcopy__(self, memo: dict[int, object]) -> Tensor:
        if self._is_recorded():
            raise GradientError(
                f"deepcopy: the tensor is the result of {self.op}; copy .detach() instead"
            )
        new: Any = type(self).__new__(type(self))
        graph.init_tensor(new, executor.primal_array(self).copy(), self.requires_grad)
        new.name = self.name
        memo[id(self)] = new
        if self.grad is not None:
            new.grad = copying.deepcopy(self.grad.detach(), memo)
        for name, value in _attributes(self).items():
            setattr(new, name, copying.deepcopy(value, memo))
        return new

    def __reduce__(self) -> tuple[Any, ...]:
        if self._is_recorded():
            raise GradientError(
                f"pickle: the tensor is the result of {self.op}; pickle .detach() instead"
            )
        made = (type(self), executor.primal_array(self), self.requires_grad, self.name)
        return _restore, made, _attributes(self) or None

    def __str__(self) -> str:
        return _shown(self, lambda: str(executor.primal_array(self)))

    def __repr__(self) -> str:
        return _shown(self, self._text)

    def _text(self) -> str:
        values = np.array2string(
            np.asarray(executor.primal_array(self)), separator=", ", prefix="needle.Tensor("
        )
        extra = "" if self.size or self.ndim == 1 else f", shape={self.shape}"
        extra += "" if self.dtype == "float32" else f", dtype={self.dtype}"
        extra += f", op={self.op}" if self._is_recorded() else ""
        return f"needle.Tensor({values}{extra})"

    def __len__(self) -> int:
        if not self.shape:
            raise LengthError("len: a 0-dimensional tensor has no length")
        return self.shape[0]

    def __bool__(self) -> bool:
        """The truth of a single element; an error for several, as in NumPy and PyTorch.

        A tensor of a subclass, as a ``Parameter``, is true: ``if self.bias:`` asks whether there is
        one, also where its value is 0. With ``NEEDLE_BACKEND=np`` every tensor is true, as in the
        course. For bools, which the course does not have, it is whether all are true: programs
        compare batches by ``!=`` there.
        """
        if type(self) is not Tensor:
            return True
        if config.current().backend == "np":  # the course: any tensor is true
            return self.dtype != "bool" or bool(self.numpy().all())
        if self.spec.size == 1:
            return bool(self.item())
        raise ShapeError(
            f"the truth of a tensor of shape {self.shape} is ambiguous\n"
            "  try: .any(), .all(), or `is None` to ask whether there is a tensor"
        )

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec and self.size == 1 else format(str(self), spec)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.dtype.kind not in "iu" or self.ndim:
            raise TypeError(f"only an integer scalar can be an index, not {self.dtype}{self.shape}")
        return int(self.item())

    def __iter__(self) -> Any:
        if not self.shape:
            raise TypeError("iteration over a 0-dimensional tensor")
        if self.shape[0] == 2:
            watch_unpacking(sys._getframe(1))
        return (self[i] for i in range(self.shape[0]))

    # ---- operators -------------------------------------------------------------

    def __add__(self, other: Operand) -> Tensor:
        try:
            return _apply(_add, self, other)
        except ArgumentError:
            return declined(other, "__radd__")

    def __radd__(self, other: Operand) -> Tensor:
        return _apply(_add, self, other)

    def __sub__(self, other: Operand) -> Tensor:
        try:
            return _apply(_subtract, self, other)
        except ArgumentError:
            return declined(other, "__rsub__")

    def __rsub__(self, other: Operand) -> Tensor:
        return _apply(_subtract, other, self)

    def __mul__(self, other: Operand) -> Tensor:
        try:
            return _apply(_multiply, self, other)
        except ArgumentError:
            return declined(other, "__rmul__")

    def __rmul__(self, other: Operand) -> Tensor:
        return _apply(_multiply, self, other)

    def __truediv__(self, other: Operand) -> Tensor:
        try:
            return _apply(_divide, self, other)
        except ArgumentError:
            return declined(other, "__rtruediv__")

    def __rtruediv__(self, other: Operand) -> Tensor:
        return _apply(_divide, other, self)

    def __pow__(self, other: Any) -> Tensor:
        kind = type(other)
        if (kind is float or kind is int) and other == 2:
            return ops.square(self)
        if kind is int and other < 0:
            return ops.power(self, other)  # refuses negative powers of integers
        try:
            return _apply(_power, self, other)
        except ArgumentError:
            return declined(other, "__rpow__")

    def __rpow__(self, other: Operand) -> Tensor:
        return _apply(_power, other, self)

    def __neg__(self) -> Tensor:
        return _apply(_negative, self)

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return ops.absolute(self)

    def __matmul__(self, other: Tensor) -> Tensor:
        try:
            return ops.matmul(self, other)
        except ArgumentError:
            return declined(other, "__rmatmul__")

    def __rmatmul__(self, other: Tensor) -> Tensor:
        return ops.matmul(graph.wrap(_data(other, self.device, None, True)), self)

    def __getitem__(self, index: Index) -> Tensor:
        return select.getitem(self, index)

    # ---- methods ---------------------------------------------------------------

    def matmul(self, other: Tensor) -> Tensor:
        """Matrix product. See ``ops.matmul``."""
        return ops.matmul(self, other)

    sum = ops.sum
    mean = ops.mean
    max = ops.max
    min = ops.min
    broadcast_to = ops.broadcast_to

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """The same elements in a new shape; one size may be -1. See ``ops.Reshape``."""
        try:
            op = _reshapes[shape]
        except (KeyError, TypeError):  # TypeError: a list
            return ops.reshape(self, *shape)
        return _apply(op, self)

    transpose = ops.transpose
    permute = ops.permute
    astype = ops.astype

    def to(
        self, target: Any = None, dtype: DTypeLike = None, *, device: DeviceLike = None,
        copy: bool = False, non_blocking: bool = False, memory_format: object = None,
    ) -> Tensor:  # fmt: skip
        """Move to a device, convert to a dtype, or both. Each may be given by its name.

        ``copy``, ``non_blocking`` and ``memory_format`` change no values, and nothing else here.
        """
        if memory_format is not None and target is dtype is device is None:
            return self
        where, kind = destination(target, device, dtype)
        out = self if where is None else ops.to_device(self, where)
        return out if kind is None else ops.astype(out, kind)

    @classmethod
    def make_const(cls, data: Any, requires_grad: bool = False) -> Tensor:
        """Return a leaf over an array (or the array of a tensor), without copying."""
        source = executor.primal_array(data) if isinstance(data, Value) else data
        return super().make_const(source, requires_grad=requires_grad)


class Data(Tensor):
    """The ``.data`` of a tensor, its owner: detached, but changes in place go to both."""

    __slots__ = ("owner",)
    owner: Tensor

    def __init__(self, owner: Tensor) -> None:
        if not owner._waits():
            graph.init_tensor(self, executor.primal_array(owner), False)
        else:
            graph.init_tensor(self, array(0.0), False)
            graph.rebind(self, owner.detach())
        self.owner = owner

    def __setitem__(self, index: Index, value: Operand) -> None:
        super().__setitem__(index, value)
        written(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.detach().__reduce__()


def _through(method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def augmented(self: Any, other: Any) -> Any:
        out = method(self, other)
        return written(out) if out is self else out

    return augmented


for _name, _method in vars(Augmented).items():
    if _name.startswith("__i"):
        setattr(Data, _name, _through(_method))
for _cls in (Methods, Aliases, Inspection, Tensor):
    dims.speak_methods(_cls)
complete(Tensor)


class Parameter(Tensor):
    """A tensor that a module learns. ``Module.parameters`` finds these.

    Raises:
        DtypeError: if it is not floating, unless ``requires_grad`` is false.
    """

    def __init__(
        self, array: Values, *, device: DeviceLike = None, dtype: DTypeLike = None,
        requires_grad: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(array, device=device, dtype=dtype, requires_grad=requires_grad)
        if requires_grad and not has_gradients(self.dtype):
            raise explain(
                DtypeError, "Parameter", f"{self.dtype} numbers cannot be learned",
                [("value", self)], "a parameter is floating",
                'dtype="float32", or register_buffer for tensors that are not learned',
            )  # fmt: skip


def _shown(x: Tensor, text: Callable[[], str]) -> str:
    """Return a text with the values of x, or with its shape if they cannot be computed."""
    try:
        return text()
    except TraceError:
        raise
    except (NeedleError, MemoryError) as error:  # debuggers and messages need a text
        reason = str(error).partition("\n")[0]
        return f"needle.Tensor(shape={x.shape}, dtype={x.dtype}, device={x.device}; {reason})"


graph.set_tensor_classes(Tensor, TensorTuple)


def _data(values: Any, where: Any, kind: Any, varies: bool = False) -> NDArray:
    """Return the array for a tensor's constructor; its memory is shared if nothing has to change.

    A list of results of a graph is refused if derivatives are expected to flow (``varies``).
    """
    if isinstance(values, Value):
        values = executor.primal_array(values)
    if isinstance(values, (list, tuple)):
        made = operands.read(array, values, kind, where)
        if made is not None:
            return made
        if varies and (kind is None or has_gradients(dtype.as_dtype(kind))):
            operands.check_constant("Tensor", values)
        values = operands.as_array(values)
    if not isinstance(values, NDArray):
        try:
            return array(values, kind, where)
        except TypeError as error:  # NumPy reads no bfloat16 of other libraries
            if isinstance(error, NeedleError) or not hasattr(values, "__dlpack__"):
                raise
            values = dlpack.from_dlpack(values, where, True)
    if where is not None and devices.as_device(where) != values.device:
        values = values.to(where)
    return values if kind is None else values.astype(kind, copy=False)


def from_dlpack(x: Any, /, *, device: DeviceLike = None, copy: bool | None = None) -> Tensor:
    """Return a tensor over the memory of another library's array, without copying where possible.

    It requires no gradient. The tensor, and results of it that wait in lazy mode, see later writes
    by the other library. Writes by Needle (``x[0] = 1``, ``x += 1``, an optimizer's step) go to new
    memory, because other tensors and graphs may rely on the old values.

    >>> print(ndl.from_dlpack(np.ones(3, np.float32)))
    [1. 1. 1.]

    Args:
        x: a NumPy array, or anything with ``__dlpack__``.
        device: a device that computes in host memory; the default device for None.
        copy: True: always; False: never, raise ExchangeError; None: only if it cannot be shared.

    Raises:
        DeviceError: if x is not in host memory.
        ArgumentError: if x does not support DLPack.
        DtypeError: if x has a dtype that cannot be exchanged.
        ExchangeError: for copy=False if a copy is needed, or if the capsule of x is not valid.
    """
    return graph.wrap(dlpack.from_dlpack(x, device, copy))


def _attributes(x: Tensor) -> dict[str, Any]:
    """Return the attributes that a user set on a parameter or on a tensor of a subclass."""
    return getattr(x, "__dict__", {})


def _restore(cls: Any, data: NDArray, requires_grad: bool, name: str | None) -> Any:
    self: Any = cls.__new__(cls)
    graph.init_tensor(self, data, requires_grad)
    self.name = name
    return self
