"""Constant and random tensors.

Random tensors draw from NumPy's global stream, one contiguous run per tensor, unless
``needle.manual_seed(n)`` or ``key=`` select Needle's own generator. Scale and shift are applied in
the precision of the draw (float32; float64 with ``NEEDLE_BACKEND=np``) before the cast to dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from needle import executor, graph, ops, tracing
from needle.backend.axes import integer, sizes_of
from needle.backend.ndarray import NDArray, full
from needle.dtype import DType, as_dtype
from needle.errors import DtypeError, OptionError, ShapeError, no_tensor
from needle.ops import random
from needle.ops.core.attributes import real
from needle.ops.core.starts import started
from needle.ops.random.sampling import below, draw
from needle.ops.shape.creation import made
from needle.tensors import Tensor

if TYPE_CHECKING:
    from needle.typing import DeviceLike, DTypeLike


def sizes(name: str, shape: tuple[Any, ...], itemsize: int = 1) -> tuple[int, ...]:
    """Return sizes given one by one or as one sequence.

    Raises:
        ArgumentError: if a size is not an integer.
        ShapeError: if a size is negative.
    """
    return sizes_of(name, shape[0] if len(shape) == 1 else shape, itemsize)


def leaf(data: NDArray, requires_grad: bool) -> Tensor:
    """Return a new tensor of an array: a leaf of the graph."""
    out: Tensor = graph.wrap(data)
    if requires_grad:  # the default is False
        out.requires_grad = True
    executor.note_leaf(out, "init")
    return out


def _now() -> Any:
    """Return the modes in which values are computed at once, except while they are traced."""
    return executor.modes(recording=False, lazy=tracing.current() is not None)


def _drawn(kind: str, shape: tuple[int, ...], device: DeviceLike, key: int | None) -> Tensor:
    """Return numbers of "rand" or "randn", which wait while they are traced."""
    if tracing.current() is not None:
        return draw(kind, shape, device, key)
    return graph.wrap(getattr(random, kind)(shape, device, key))


def _started(out: Tensor, requires_grad: bool) -> Tensor:
    """Return a leaf of a value."""
    if tracing.current() is None:
        return leaf(executor.primal_array(out), requires_grad)
    return started(out) if requires_grad else out


def _scaled(drawn: Tensor, scale: float, shift: float, kind: DType) -> Tensor:
    with _now():
        return ops.astype(drawn * scale + shift, kind)


def floating(name: str, dtype: DTypeLike) -> DType:
    """Return the element type of random numbers; float32 for None.

    Raises:
        DtypeError: if it is not floating.
    """
    kind = as_dtype("float32" if dtype is None else dtype)
    if not kind.is_floating:
        raise DtypeError(
            f"{name}: expected a floating dtype, got {kind}\n"
            "  try: randint for integers, or .astype of the result"
        )
    return kind


def rand(
    *shape: int,
    low: float = 0.0,
    high: float = 1.0,
    device: DeviceLike = None,
    dtype: DTypeLike = "float32",
    requires_grad: bool = False,
    key: int | None = None,
) -> Tensor:
    """Return uniform values in [low, high).

    Args:
        shape: sizes, one by one or as one tuple.
        low: lower end.
        high: upper end; if it is below ``low``, values are in (high, low], as in the course.
        device: device of the result; the default device for None.
        dtype: element type.
        requires_grad: whether ``backward`` computes its gradient.
        key: seed for Needle's own generator; the global streams then stay unchanged.

    Raises:
        OptionError: if an end is NaN, or the dtype cannot hold the range.
        DtypeError: if dtype is not floating.

    >>> x = ndl.init.rand(2, 3, low=-1.0, high=1.0)
    >>> x.shape, (abs(x) <= 1).all().item()
    ((2, 3), True)
    """
    kind = floating("rand", dtype)
    low, high = real("rand: low", low), real("rand: high", high)
    last = below("rand", low, high, kind)
    drawn = _drawn("rand", sizes("rand", shape, 8), device, key)
    out = _scaled(drawn, high - low, low, kind)
    with _now():
        if low <= high:
            out = ops.minimum(out, last)  # rounding may reach high
    return _started(out, requires_grad)


def randn(
    *shape: int,
    mean: float = 0.0,
    std: float = 1.0,
    device: DeviceLike = None,
    dtype: DTypeLike = "float32",
    requires_grad: bool = False,
    key: int | None = None,
) -> Tensor:
    """Return normal values with this mean and standard deviation. See ``rand``.

    Raises:
        OptionError: if std is negative or NaN.
        DtypeError: if dtype is not floating.

    >>> x = ndl.init.randn(1000, mean=5.0, std=0.1, key=0)
    >>> round(x.mean().item(), 1)
    5.0
    """
    kind = floating("randn", dtype)
    mean, std = real("randn: mean", mean), real("randn: std", std)
    if not std >= 0:
        raise OptionError(f"randn: std={std}\n  rule: a number >= 0")
    drawn = _drawn("randn", sizes("randn", shape, 8), device, key)
    return _started(_scaled(drawn, std, mean, kind), requires_grad)


def randb(
    *shape: int,
    p: float = 0.5,
    device: DeviceLike = None,
    dtype: DTypeLike = "bool",
    requires_grad: bool = False,
    key: int | None = None,
) -> Tensor:
    """Return bools that are true with probability p, where a uniform draw is at most p.

    Raises:
        OptionError: if p is not in [0, 1].

    >>> ndl.init.randb(4, p=1.0).tolist()
    [True, True, True, True]
    """
    if not 0 <= real("randb: p", p) <= 1:
        raise OptionError(f"randb: expected p in [0, 1], got {p}")
    with _now():
        drawn = _drawn("rand", sizes("randb", shape, 8), device, key)
        out = ops.astype(drawn <= p, dtype)
    return _started(out, requires_grad)


def constant(
    *shape: int,
    c: float = 1.0,
    device: DeviceLike = None,
    dtype: DTypeLike = "float32",
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor of one value.

    >>> print(ndl.init.constant(2, 2, c=7.0))
    [[7. 7.]
     [7. 7.]]
    """
    return _filled("constant", shape, real("constant: c", c), dtype, device, requires_grad)


def _filled(
    name: str,
    shape: tuple[Any, ...],
    value: float,
    dtype: DTypeLike,
    device: DeviceLike,
    requires_grad: bool,
) -> Tensor:
    kind = "float32" if dtype is None else dtype
    out: Tensor = made(name, full, sizes(name, shape), value, kind, device)
    if requires_grad:  # the default is False
        out.requires_grad = True
    return out


def ones(
    *shape: int,
    device: DeviceLike = None,
    dtype: DTypeLike = "float32",
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor of ones.

    >>> print(ndl.init.ones(3))
    [1. 1. 1.]
    """
    return _filled("ones", shape, 1.0, dtype, device, requires_grad)


def zeros(
    *shape: int,
    device: DeviceLike = None,
    dtype: DTypeLike = "float32",
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor of zeros.

    >>> print(ndl.init.zeros(2, 2, dtype="int32"))
    [[0 0]
     [0 0]]
    """
    return _filled("zeros", shape, 0.0, dtype, device, requires_grad)


def _like(make: Any, array: Any, device: DeviceLike, dtype: DTypeLike, **settings: Any) -> Tensor:
    if not hasattr(array, "shape"):
        raise no_tensor(array)
    out: Tensor = make(
        array.shape,
        device=array.device if device is None else device,
        dtype=array.dtype if dtype is None else dtype,
        **settings,
    )
    return out


def zeros_like(
    array: Any, *, device: DeviceLike = None, dtype: DTypeLike = None, requires_grad: bool = False
) -> Tensor:
    """Return zeros with the shape of a tensor, and by default its device and dtype.

    >>> print(ndl.init.zeros_like(Tensor([1.0, 2.0])))
    [0. 0.]
    """
    return _like(zeros, array, device, dtype, requires_grad=requires_grad)


def ones_like(
    array: Any, *, device: DeviceLike = None, dtype: DTypeLike = None, requires_grad: bool = False
) -> Tensor:
    """Return ones with the shape of a tensor, and by default its device and dtype.

    >>> print(ndl.init.ones_like(Tensor([1.0, 2.0])))
    [1. 1.]
    """
    return _like(ones, array, device, dtype, requires_grad=requires_grad)


def rand_like(
    array: Any,
    *,
    device: DeviceLike = None,
    dtype: DTypeLike = None,
    requires_grad: bool = False,
    key: int | None = None,
) -> Tensor:
    """Return uniform values with the shape, device and dtype of a tensor. See ``rand``.

    >>> ndl.init.rand_like(ndl.zeros(2, 3)).shape
    (2, 3)
    """
    return _like(rand, array, device, dtype, requires_grad=requires_grad, key=key)


def randn_like(
    array: Any,
    *,
    device: DeviceLike = None,
    dtype: DTypeLike = None,
    requires_grad: bool = False,
    key: int | None = None,
) -> Tensor:
    """Return normal values with the shape, device and dtype of a tensor. See ``randn``.

    >>> ndl.init.randn_like(ndl.zeros(2, 3)).shape
    (2, 3)
    """
    return _like(randn, array, device, dtype, requires_grad=requires_grad, key=key)


def one_hot(
    n: int,
    i: Any,
    device: DeviceLike = None,
    dtype: DTypeLike = "float32",
    requires_grad: bool = False,
) -> Tensor:
    """Return rows of zeros with a one at the given positions.

    Shapes: i [...] -> [..., n]

    Args:
        n: number of classes.
        i: integers in [0, n), a tensor of any dtype.
        device: device of the result; that of ``i`` for None.
        dtype: element type.
        requires_grad: whether ``backward`` computes its gradient.

    Raises:
        IndexRangeError: naming the first number outside [0, n).
        ShapeError: if n is negative.

    >>> print(ndl.init.one_hot(3, [2, 0]))
    [[0. 0. 1.]
     [1. 0. 0.]]
    """
    n = integer("one_hot: n", n)
    if n < 0:
        raise ShapeError(f"one_hot: expected a number of classes >= 0, got {n}")
    with executor.modes(recording=False, lazy=False):
        out = ops.one_hot(i if isinstance(i, Tensor) else Tensor(i), n, dtype)
        if device is not None:
            out = ops.to_device(out, device)
    return leaf(executor.primal_array(out), requires_grad)
