"""Functions that PyTorch has at its top level and Needle as methods, or under another name.

They mean what they mean there: ``tensor([1, 2])`` is int64, and requires no gradient.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from needle import executor, graph, ops
from needle.backend import dlpack
from needle.backend.axes import integer, normalise_axis
from needle.devices import as_device
from needle.dtype import DType, result_type
from needle.errors import ArgumentError, explain
from needle.inspection import Size as Size
from needle.ops import random
from needle.ops.core import dims
from needle.ops.core.attributes import flag, real
from needle.ops.core.operands import default_float, kind_of
from needle.standard import linalg
from needle.standard.creation import asarray
from needle.standard.inspection import finfo as finfo
from needle.standard.inspection import iinfo as iinfo
from needle.tensors import Tensor

if TYPE_CHECKING:
    from needle.typing import Axes, DeviceLike, DTypeLike, Numpy, Values

__all__ = [
    "Generator",
    "Size",
    "addmm",
    "aminmax",
    "as_tensor",
    "baddbmm",
    "bitwise_not",
    "bmm",
    "broadcast_tensors",
    "cartesian_prod",
    "cholesky",
    "clone",
    "concatenate",
    "cross",
    "det",
    "detach",
    "dist",
    "div",
    "dot",
    "dsplit",
    "eq",
    "finfo",
    "fliplr",
    "flipud",
    "from_numpy",
    "ge",
    "ger",
    "get_default_dtype",
    "get_rng_state",
    "gt",
    "histc",
    "iinfo",
    "index_put",
    "index_select",
    "inference_mode",
    "inverse",
    "is_floating_point",
    "is_grad_enabled",
    "is_tensor",
    "le",
    "logdet",
    "lt",
    "masked_scatter",
    "masked_select",
    "matrix_power",
    "mm",
    "movedim",
    "mul",
    "mv",
    "narrow",
    "ne",
    "neg",
    "numel",
    "pinverse",
    "promote_types",
    "psi",
    "qr",
    "randperm",
    "repeat_interleave",
    "select",
    "set_rng_state",
    "slogdet",
    "std_mean",
    "sub",
    "t",
    "tensor",
    "trapezoid",
    "trapz",
    "tril_indices",
    "triu_indices",
    "true_divide",
    "vander",
    "var_mean",
    "view_as",
]


def tensor(
    data: Values, *, dtype: DTypeLike = None, device: DeviceLike = None, requires_grad: bool = False
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
    needs = flag("tensor: requires_grad", requires_grad)
    with executor.modes(recording=False):
        out = asarray(data, dtype=dtype, device=device, copy=True)
    out = Tensor(out, requires_grad=False)
    out.requires_grad = needs
    return out


def as_tensor(data: Values, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
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


def from_numpy(x: Numpy) -> Tensor:
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
        return graph.wrap(dlpack.from_dlpack(x, None, None))
    return tensor(x)


def is_tensor(x: object) -> bool:
    """Return whether x is a tensor.

    >>> ndl.is_tensor(ndl.ones(2)), ndl.is_tensor(2.0)
    (True, False)
    """
    return isinstance(x, Tensor)


# ---- methods as functions ---------------------------------------------------------------


def _function(name: str) -> Callable[..., Any]:
    """Return a method of tensors as a function."""
    method = getattr(Tensor, name)

    def function(x: Any, *args: Any, **named: Any) -> Any:
        return method(x, *args, **named)

    own = inspect.signature(method)
    first, *rest = own.parameters.values()
    function.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[first.replace(name="x"), *rest]
    )
    function.__name__ = function.__qualname__ = name
    function.__code__ = function.__code__.replace(co_name=name)  # the name in errors
    function.__doc__ = f"{inspect.getdoc(method)}\n\nThe method ``x.{name}``, as a function."
    return function


mul, div, sub, neg, true_divide = map(_function, ("mul", "div", "sub", "neg", "true_divide"))
mm, bmm, mv, dot, addmm, baddbmm = map(_function, ("mm", "bmm", "mv", "dot", "addmm", "baddbmm"))
eq, ne, lt, le, gt, ge = map(_function, ("eq", "ne", "lt", "le", "gt", "ge"))
bitwise_not, t, dist, movedim = map(_function, ("bitwise_not", "t", "dist", "movedim"))
clone, detach, numel, is_floating_point = map(
    _function, ("clone", "detach", "numel", "is_floating_point")
)
index_select, masked_select, narrow, repeat_interleave = map(
    _function, ("index_select", "masked_select", "narrow", "repeat_interleave")
)
index_put, masked_scatter, select, view_as = map(
    _function, ("index_put", "masked_scatter", "select", "view_as")
)
ger = ops.outer
det, inverse, matrix_power = ops.det, ops.inv, linalg.matrix_power
cholesky, qr, slogdet, pinverse = linalg.cholesky, linalg.qr, linalg.slogdet, linalg.pinv
concatenate, psi = ops.concat, ops.digamma


def logdet(x: Tensor) -> Tensor:
    """Return the logarithm of the determinant; NaN where that is negative.

    >>> print(ndl.logdet(ndl.eye(2)))
    0.0
    """
    sign, log = linalg.slogdet(x)
    return ops.where(sign < 0, float("nan"), log)


def fliplr(x: Tensor) -> Tensor:
    """Reverse the second axis.

    >>> print(ndl.fliplr(Tensor([[1.0, 2.0]])))
    [[2. 1.]]
    """
    return ops.flip(x, 1)


def flipud(x: Tensor) -> Tensor:
    """Reverse the first axis.

    >>> print(ndl.flipud(Tensor([1.0, 2.0])))
    [2. 1.]
    """
    return ops.flip(x, 0)


def dsplit(x: Tensor, pieces: Any) -> Any:
    """Split along the third axis. See ``ops.tensor_split``.

    >>> [part.shape for part in ndl.dsplit(ndl.zeros(1, 2, 4), 2)]
    [(1, 2, 2), (1, 2, 2)]
    """
    return ops.tensor_split(x, pieces, 2)


class Range(NamedTuple):
    """The smallest and the largest value."""

    min: Tensor
    max: Tensor


def aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Range:
    """Return the smallest and the largest values along an axis, of all for None.

    >>> low, high = ndl.aminmax(Tensor([3.0, 1.0, 2.0]))
    >>> print(low, high)
    1.0 3.0
    """
    return Range(ops.amin(x, dim, keepdim), ops.amax(x, dim, keepdim))


def var_mean(
    x: Tensor, dim: Axes = None, *, unbiased: bool = True, correction: float = 1,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the variance and the mean over axes (all for None).

    >>> var, mean = ndl.var_mean(Tensor([1.0, 2.0, 3.0]))
    >>> print(var, mean)
    1.0 2.0
    """
    taken = correction if flag("var_mean: unbiased", unbiased) else 0
    return ops.var(x, dim, keepdim, correction=taken), ops.mean(x, dim, keepdim)


def std_mean(
    x: Tensor, dim: Axes = None, *, unbiased: bool = True, correction: float = 1,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the standard deviation and the mean over axes (all for None).

    >>> std, mean = ndl.std_mean(Tensor([1.0, 2.0, 3.0]))
    >>> print(std.round(3), mean)
    1.0 2.0
    """
    taken = correction if flag("std_mean: unbiased", unbiased) else 0
    return ops.std(x, dim, keepdim, correction=taken), ops.mean(x, dim, keepdim)


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Broadcast tensors to one shape. See ``ops.broadcast_arrays``.

    >>> [x.shape for x in ndl.broadcast_tensors(ndl.ones(2, 1), ndl.ones(3))]
    [(2, 3), (2, 3)]
    """
    return tuple(ops.broadcast_arrays(*tensors))


def tril_indices(rows: int, columns: int, offset: int = 0, *, device: DeviceLike = None) -> Tensor:
    """Return the positions on and below a diagonal of a matrix: int64 [2, count].

    >>> print(ndl.tril_indices(2, 2))
    [[0 1 1]
     [0 0 1]]
    """
    return ops.stack(ops.nonzero(ops.tril(ops.ones((rows, columns), device=device), offset)))


def triu_indices(rows: int, columns: int, offset: int = 0, *, device: DeviceLike = None) -> Tensor:
    """Return the positions on and above a diagonal of a matrix: int64 [2, count].

    >>> print(ndl.triu_indices(2, 2))
    [[0 0 1]
     [0 1 1]]
    """
    return ops.stack(ops.nonzero(ops.triu(ops.ones((rows, columns), device=device), offset)))


def cross(x: Tensor, other: Tensor, axis: int = -1) -> Tensor:
    """Return the cross products of vectors of 3 elements along an axis.

    >>> print(ndl.cross(Tensor([1.0, 0.0, 0.0]), Tensor([0.0, 1.0, 0.0])))
    [0. 0. 1.]
    """
    return linalg.cross(x, other, axis=axis)


cross = dims.spoken(cross)


def cartesian_prod(*tensors: Tensor) -> Tensor:
    """Return all combinations of the elements of vectors, one a row; of one vector, itself.

    >>> ndl.cartesian_prod(Tensor([1.0, 2.0]), Tensor([3.0, 4.0, 5.0])).shape
    (6, 2)
    """
    if len(tensors) == 1:
        return tensors[0]
    return ops.stack([ops.reshape(x, (-1,)) for x in ops.meshgrid(*tensors, indexing="ij")], -1)


def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1.0, axis: int = -1) -> Tensor:
    """Integrate along an axis by the trapezoidal rule, at the places x or at a distance dx.

    >>> print(ndl.trapezoid(Tensor([1.0, 2.0, 3.0])))
    4.0
    """
    place = normalise_axis(axis, len(executor.shape_of(y)))
    size = executor.shape_of(y)[place]
    last, first = Tensor.narrow(y, place, 1, size - 1), Tensor.narrow(y, place, 0, size - 1)
    if x is None:
        return ops.summation(last + first, place) * (real("trapezoid: dx", dx) / 2)
    width = ops.diff(x, 1, place if len(executor.shape_of(x)) > 1 else -1)
    if len(executor.shape_of(x)) == 1:
        width = ops.reshape(width, (-1, *[1] * (len(executor.shape_of(y)) - place - 1)))
    return ops.summation((last + first) * width, place) * 0.5


trapezoid = trapz = dims.spoken(trapezoid)


def vander(x: Tensor, columns: int | None = None, increasing: bool = False) -> Tensor:
    """Return the powers of the elements of a vector, one element a row, the largest power first.

    >>> print(ndl.vander(Tensor([2.0, 3.0]), 3))
    [[4. 2. 1.]
     [9. 3. 1.]]
    """
    count = executor.shape_of(x)[0] if columns is None else integer("vander: columns", columns)
    rising = flag("vander: increasing", increasing)
    powers = ops.arange(0, count) if rising else ops.arange(count - 1, -1, -1)
    return ops.power(ops.unsqueeze(x, 1), ops.astype(powers, executor.spec_of(x).dtype))


def histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Count the elements in ``bins`` parts of [min, max]; of all elements if both are equal.

    >>> print(ndl.histc(Tensor([1.0, 2.0, 1.0]), bins=4, min=0, max=3))
    [0. 2. 1. 0.]
    """
    values = ops.reshape(ops.stop_gradient(x), (-1,))
    low, high, bins = real("histc: min", min), real("histc: max", max), integer("histc: bins", bins)
    if low == high:
        low, high = float(ops.amin(values).item()), float(ops.amax(values).item())
        low, high = (low, high) if low < high else (low - 1, high + 1)
    inside = ops.getitem(values, (values >= low) & (values <= high))
    places = ops.clip(ops.floor((inside - low) * (bins / (high - low))), 0, bins - 1)
    counts = ops.bincount(ops.astype(places, "int64"), minlength=bins)
    return ops.astype(counts, executor.spec_of(x).dtype)


# ---- random numbers and modes -----------------------------------------------------------


class Generator(random.Generator):
    """A generator of random numbers, for ``generator=`` of functions that draw.

    >>> g = ndl.Generator().manual_seed(3)
    >>> ndl.randperm(4, generator=g).shape
    (4,)
    """

    __slots__ = ()

    def __init__(self, device: DeviceLike = None) -> None:
        super().__init__(0)
        as_device(device)  # numbers are the same on every device

    def manual_seed(self, seed: int) -> Generator:
        """Start anew from a seed; return the generator."""
        random.Generator.__init__(self, seed)
        return self

    def initial_seed(self) -> int:
        """Return the seed."""
        return int(self.seed)


def randperm(
    n: int,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike = "int64",
    device: DeviceLike = None,
) -> Any:
    """Return 0, 1, ..., n - 1 in random order. See ``permutation``.

    >>> print(ndl.sort(ndl.randperm(4)))
    [0 1 2 3]
    """
    with random.drawing(generator):
        return ops.astype(ops.permutation(n, device=device), dtype)


@contextmanager
def inference_mode(mode: bool = True) -> Iterator[None]:
    """Record no graph within a ``with`` block, as ``no_grad``; False changes nothing.

    >>> with ndl.inference_mode():
    ...     print((Tensor([1.0]) * 2).requires_grad)
    False
    """
    if not flag("inference_mode: mode", mode):
        yield
        return
    with executor.modes(recording=False):
        yield


def is_grad_enabled() -> bool:
    """Return whether a graph is recorded.

    >>> ndl.is_grad_enabled()
    True
    """
    return bool(graph.recording())


def get_default_dtype() -> DType:
    """Return the dtype that Python's floats become.

    >>> ndl.get_default_dtype()
    needle.float32
    """
    return default_float()


promote_types = result_type
get_rng_state, set_rng_state = random.get_state, random.set_state
