"""Functions that PyTorch has at its top level and Needle as methods, or under another name.

They mean what they mean there: ``tensor([1, 2])`` is int64, and requires no gradient.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from needle import executor, graph
from needle.backend import exchange
from needle.errors import ArgumentError, explain
from needle.ops.operands import kind_of
from needle.standard.creation import asarray
from needle.tensors import Tensor


def tensor(
    data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Return a copy of values as a tensor, with the dtypes of ``torch.tensor``.

    For dtype None Python's floats become float32 (float64 with ``NEEDLE_BACKEND=np``), its integers
    int64, its bools bool; arrays keep their dtype. ``Tensor(...)`` makes float32 of all of them,
    and requires a gradient.

    Args:
        data: a number, nested lists, a NumPy array or a tensor, which is copied and detached.
        dtype: the element type.
        device: the device; for None that of data, or the default device.
        requires_grad: whether ``backward`` computes its gradient.

    Raises:
        DtypeError: if data is not made of real numbers.
        ShapeError: for lists of different lengths.

    >>> ndl.tensor([1, 2]).dtype, ndl.tensor([1.0, 2.0]).requires_grad
    (needle.int64, False)
    """
    with executor.modes(recording=False):
        out = asarray(data, dtype=dtype, device=device, copy=True)
    out = Tensor(out, requires_grad=False)
    out.requires_grad = requires_grad
    return out


def as_tensor(data: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return values as a tensor, and a tensor as it is if dtype and device agree.

    A NumPy array shares its memory where possible; see ``from_dlpack``. Dtypes are those of
    ``tensor``.

    >>> x = ndl.tensor([1.0])
    >>> ndl.as_tensor(x) is x
    True
    """
    if isinstance(data, np.ndarray) and data.flags.writeable:
        out = from_numpy(data)
        return out if dtype is None and device is None else asarray(out, dtype=dtype, device=device)
    return asarray(data, dtype=dtype, device=device)


def from_numpy(x: Any) -> Tensor:
    """Return a tensor over the memory of a NumPy array where possible; it keeps the dtype.

    It requires no gradient. See ``from_dlpack`` for what sharing means.

    Raises:
        ArgumentError: if x is not a NumPy array.
        DtypeError: if it has a dtype that Needle lacks.

    >>> ndl.from_numpy(np.arange(3)).dtype
    needle.int64
    """
    if not isinstance(x, np.ndarray):
        raise explain(
            ArgumentError, "from_numpy", f"expected a NumPy array, got {kind_of(x)}",
            advice="needle.tensor(x)",
        )  # fmt: skip
    if x.flags.writeable:
        return graph.wrap(exchange.from_dlpack(x, None, None))
    return tensor(x)


def is_tensor(x: Any) -> bool:
    """Return whether x is a tensor.

    >>> ndl.is_tensor(ndl.ones(2)), ndl.is_tensor(2.0)
    (True, False)
    """
    return isinstance(x, Tensor)
