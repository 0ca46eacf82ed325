"""Types of arguments and results, for annotations.

Needle's own modules read it where ``TYPE_CHECKING`` is set alone, so any floor may name a Tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np

from needle.backend.ndarray import NDArray
from needle.devices import Device
from needle.dtype import DType
from needle.tensors import Tensor
from needle.value import TensorTuple as TensorTuple

Numpy: TypeAlias = np.ndarray[Any, Any]
"""A NumPy array of any shape and dtype."""

Operand: TypeAlias = Tensor | NDArray | Numpy | np.generic | float
"""What stands beside a tensor in an operation: a tensor, an array or a number."""

PerAxis: TypeAlias = int | Sequence[int]
"""A number for each spatial axis, or one for all."""

Values: TypeAlias = "Operand | Sequence[Values]"
"""What a tensor can be made of: a tensor, an array, a number, or (nested) lists of them."""

Index: TypeAlias = "Operand | slice | EllipsisType | None | Sequence[Index]"
"""What stands in the brackets of ``x[...]``."""

Axes: TypeAlias = int | Sequence[int] | None
"""One axis, several, or None for all."""

DeviceLike: TypeAlias = Device | str | None
"""A device, or its name; None stands for the default device."""

DTypeLike: TypeAlias = DType | str | type | np.dtype[Any] | None
"""An element type, its name, or that of NumPy or Python; None stands for the usual one."""

Reference: TypeAlias = Callable[..., object]
"""The reference of a sample: a function of NumPy arrays and the op's attributes."""

Gradients: TypeAlias = Tensor | Sequence[Tensor | None] | None
"""What ``Op.gradient`` returns: a gradient or None for each input, or the gradient of the only
input."""

OutGrads: TypeAlias = TensorTuple | Sequence[Tensor | None]
"""The gradients of several results, as ``Op.gradient`` takes them; None where there is none."""

Slope: TypeAlias = Tensor | float | tuple[Tensor, Tensor]
"""What ``Elementwise.derivative`` returns: a number, a tensor, or a selection."""
