"""What a tensor is, and where: methods and attributes under PyTorch's names."""

from __future__ import annotations

import dis
import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import devices, ops
from needle.backend.axes import normalise_axis
from needle.elsewhere import advice
from needle.errors import no_tensor
from needle.executor import primal_array, shape_of, spec_of

if TYPE_CHECKING:
    from needle.tensors import Tensor
    from needle.typing import DeviceLike, DTypeLike

NoneType = type(None)


def sizes_in(shape: tuple[Any, ...]) -> Any:
    """Return sizes given one by one or as one sequence."""
    return shape[0] if len(shape) == 1 else shape


class Size(tuple[int, ...]):
    """The shape of a tensor, as ``x.size()`` gives it: a tuple.

    >>> ndl.zeros(2, 3).size().numel()
    6
    """

    __slots__ = ()

    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(self)


class Count(int):
    """The number of elements of a tensor, as NumPy's ``x.size``.

    Called, it is PyTorch's ``x.size()`` or ``x.size(0)``.
    """

    shape: tuple[int, ...]

    def __call__(self, dim: Any = None) -> Any:
        """Return the shape, or the size along one axis.

        Raises:
            AxesError: if there is no such axis.
        """
        if dim is None:
            return Size(self.shape)
        return self.shape[normalise_axis(dim, len(self.shape))]

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)


def attribute(other: Any, name: str) -> Any:
    """Return an attribute of a tensor or of an array.

    Raises:
        ArgumentError: if it is neither.
    """
    try:
        return getattr(other, name)
    except AttributeError:
        raise no_tensor(other) from None


PAIRS = ("max", "min", "sort", "median", "nanmedian")
"""Functions that give one tensor here, and values and indices in PyTorch."""

_unpackings: set[tuple[Any, int]] = set()


def watch_unpacking(frame: Any) -> None:
    """Warn once if a frame takes two rows apart that it means as values and indices.

    That is ``values, indices = x.max(1)``, which raises no error for a result of two rows.
    """
    code, place = frame.f_code, frame.f_lasti
    if (code, place) in _unpackings:
        return
    _unpackings.add((code, place))
    before: list[Any] = []
    for step in dis.get_instructions(code):
        if step.offset == place:
            break
        before = [] if step.opname.startswith("STORE") else [*before, step]
    named = [str(s.argval) for s in before if s.opname.startswith(("LOAD_METHOD", "LOAD_ATTR"))]
    unpacks = step.opname.startswith("UNPACK_SEQUENCE") and step.argval == 2
    called = before and before[-1].opname.startswith("CALL")  # not the sum of two calls
    if unpacks and called and named and named[-1] in PAIRS:
        warnings.warn(
            f"{named[-1]}: two rows are unpacked; they are no values and indices\n"
            f"  try: values, indices = x.{named[-1]}(dim=1)",
            stacklevel=3,
        )


class Inspection:
    """The methods that tell what a tensor is, and move it."""

    __slots__ = ()

    # ---- the tensor itself -----------------------------------------------------

    def contiguous(self, *, memory_format: object = None) -> Any:
        """Return the tensor itself: ops take any strides, and ``view`` copies where it must."""
        return self

    @property
    def nbytes(self) -> int:
        """Number of bytes of all elements."""
        spec = spec_of(self)
        return int(spec.size * spec.dtype.itemsize)

    def dim(self) -> int:
        """Number of axes."""
        return len(shape_of(self))

    ndimension = dim

    def nelement(self) -> int:
        """Number of elements."""
        return int(spec_of(self).size)

    def element_size(self) -> int:
        """Number of bytes of one element."""
        return int(spec_of(self).dtype.itemsize)

    def is_floating_point(self) -> bool:
        """Whether elements are floating-point numbers."""
        return bool(spec_of(self).dtype.is_floating)

    def cpu(self) -> Tensor:
        """Move to the CPU."""
        return ops.to_device(self, devices.cpu())

    def cuda(self, device: Any = None, non_blocking: bool = False) -> Tensor:
        """Move to a GPU, given by its number or name.

        Raises:
            DeviceError: if it cannot be used here.
        """
        where = devices.cuda(device or 0) if type(device) in (int, NoneType) else device
        return ops.to_device(self, where)

    @property
    def is_cuda(self) -> bool:
        """Whether the tensor is on a GPU."""
        return bool(spec_of(self).device.type == "cuda")

    @property
    def size(self) -> Count:
        """Number of elements; ``x.size()`` and ``x.size(0)`` are the shape and one size of it."""
        spec = spec_of(self)
        count = Count(spec.size)
        count.shape = spec.shape
        return count

    is_sparse = False
    """Whether only some elements are stored; never."""

    @property
    def mH(self) -> Tensor:
        """The matrices transposed: numbers are real. See ``mT``."""
        return self.mT  # type: ignore[attr-defined]

    def is_contiguous(self) -> bool:
        """Return True: ops take any strides."""
        return True

    def pin_memory(self) -> Any:
        """Return the tensor itself: copies to a GPU are staged in pinned buffers anyway."""
        return self

    @property
    def itemsize(self) -> int:
        """Number of bytes of one element."""
        return int(spec_of(self).dtype.itemsize)

    @property
    def grad_fn(self) -> Any:
        """The op that made the tensor; None for a leaf."""
        return self.op if self._is_recorded() else None  # type: ignore[attr-defined]

    def type(self, dtype: DTypeLike = None) -> Any:
        """Convert to a dtype; without one, return the name of that of x."""
        return ops.astype(self, dtype) if dtype is not None else str(spec_of(self).dtype)

    def short(self) -> Tensor:
        """Convert to int16."""
        return ops.astype(self, "int16")

    def char(self) -> Tensor:
        """Convert to int8."""
        return ops.astype(self, "int8")

    def byte(self) -> Tensor:
        """Convert to uint8."""
        return ops.astype(self, "uint8")

    def type_as(self, other: Any) -> Tensor:
        """Convert to the dtype of another tensor."""
        return ops.astype(self, attribute(other, "dtype"))

    # ---- other tensors of its dtype and device ---------------------------------------

    def new_zeros(
        self, *shape: int | Sequence[int], dtype: DTypeLike = None, device: DeviceLike = None
    ) -> Tensor:
        """Zeros of a shape."""
        return self.new_full(sizes_in(shape), 0, dtype=dtype, device=device)

    def new_ones(
        self, *shape: int | Sequence[int], dtype: DTypeLike = None, device: DeviceLike = None
    ) -> Tensor:
        """Ones of a shape."""
        return self.new_full(sizes_in(shape), 1, dtype=dtype, device=device)

    def new_full(
        self, shape: Any, value: Any, *, dtype: DTypeLike = None, device: DeviceLike = None
    ) -> Tensor:
        """A tensor of one value."""
        spec = spec_of(self)
        return ops.full(shape, value, dtype=dtype or spec.dtype, device=device or spec.device)

    def new_empty(
        self, *shape: int | Sequence[int], dtype: DTypeLike = None, device: DeviceLike = None
    ) -> Tensor:
        """A tensor whose values are not set."""
        spec = spec_of(self)
        return ops.empty(sizes_in(shape), dtype=dtype or spec.dtype, device=device or spec.device)

    def _repr_html_(self) -> str:
        """Return what notebooks show: a picture of the values, shape, dtype and device."""
        from needle import notebook  # only notebooks need it

        spec, own = spec_of(self), getattr(self, "name", None)
        values: Any = np.asarray(primal_array(self))
        return notebook.of_tensor(values, str(spec.dtype), spec.device.name, own or "")

    if not TYPE_CHECKING:  # else type checkers would accept every misspelt name

        def __getattr__(self, name):
            told = advice("Tensor", name)
            if told:
                raise AttributeError(
                    f"{type(self).__name__!r} object has no attribute {name!r}\n  try: {told}",
                    name=name,
                    obj=self,
                )
            return object.__getattribute__(self, name)  # raises the usual error
