"""Random numbers.

Until the user seeds Needle's own generator, draws come from NumPy's global legacy stream, so that
``np.random.seed(0)`` governs. ``manual_seed(n)`` switches to a counter-based generator (Philox
4x32-10; Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): the same numbers on
every device and for any number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from needle import dtype as dtypes
from needle import executor, graph
from needle.backend import kernels
from needle.backend.ndarray import NDArray, array
from needle.device import as_device
from needle.dtype import DType, as_dtype
from needle.errors import OptionError, ShapeError
from needle.ops import samples
from needle.ops.base import Composite, cast
from needle.ops.elementwise import floor, less_equal, where
from needle.ops.samples import Sample


class Generator:
    """A counter-based generator: a key, and how many blocks of 4 words were drawn."""

    __slots__ = ("seed", "counter")

    def __init__(self, seed: int) -> None:
        self.seed, self.counter = int(seed) & (2**64 - 1), 0

    def bits(self, shape: tuple[int, ...], device: Any) -> NDArray:
        """Return fresh int32 bits."""
        out = kernels.random_bits(shape, self.seed, self.counter, dtypes.int32, device)
        self.counter += (out.size + 3) // 4
        return out

    def uniform(self, shape: tuple[int, ...], device: Any) -> NDArray:
        """Return float32 values in [0, 1): multiples of 2**-24."""
        bits = self.bits(shape, device)
        low = kernels.elementwise("bitwise_and", bits, array(0xFFFFFF, dtypes.int32, bits.device))
        scale = array(2.0**-24, dtypes.float32, bits.device)
        return kernels.elementwise("multiply", low.astype(dtypes.float32), scale)

    def normal(self, shape: tuple[int, ...], device: Any) -> NDArray:
        """Return float32 values of the standard normal distribution (Box and Muller, 1958)."""
        size = int(np.prod(shape, dtype=np.int64))
        half = (size + 1) // 2
        u = self.uniform((2, half), device)
        device = u.device

        def number(value: float) -> NDArray:
            return array(value, dtypes.float32, device)

        first, second = u[0:1].reshape((half,)), u[1:2].reshape((half,))
        positive = kernels.elementwise("subtract", number(1.0), first)
        log = kernels.elementwise("log", positive)
        radius = kernels.elementwise("sqrt", kernels.elementwise("multiply", log, number(-2.0)))
        angle = kernels.elementwise("multiply", second, number(2 * np.pi))
        parts = [
            kernels.elementwise("multiply", radius, kernels.elementwise(function, angle))
            for function in ("cos", "sin")
        ]
        both = kernels.concatenate(tuple(parts), 0)
        return both.slice([(0, size, 1)]).reshape(shape)


_generator: Generator | None = None


def manual_seed(seed: int | None) -> None:
    """Draw from Needle's own generator from now on; None returns to NumPy's global stream."""
    global _generator
    _generator = None if seed is None else Generator(seed)


def get_state() -> Any:
    """Return what ``set_state`` needs to draw the same numbers again."""
    if _generator is None:
        return np.random.get_state()
    return _generator.seed, _generator.counter


def set_state(state: Any) -> None:
    """Return to a state of the generator."""
    global _generator
    if len(state) == 2:
        _generator = Generator(state[0])
        _generator.counter = state[1]
    else:
        _generator = None
        np.random.set_state(state)


def _draw(kind: str, shape: tuple[int, ...], where: Any, key: int | None) -> NDArray:
    """Return float values on a device; float64 ones only from NumPy's stream on request."""
    source = Generator(key) if key is not None else _generator
    if source is not None:
        return source.uniform(shape, where) if kind == "rand" else source.normal(shape, where)
    values = np.asarray(getattr(np.random, kind)(*shape))
    return array(values, None, where)


def rand(shape: tuple[int, ...], device: Any = None, key: int | None = None) -> NDArray:
    """Return uniform values in [0, 1): float32, or float64 with ``NEEDLE_BACKEND=np``."""
    return _draw("rand", shape, as_device(device), key)


def randn(shape: tuple[int, ...], device: Any = None, key: int | None = None) -> NDArray:
    """Return standard normal values: float32, or float64 with ``NEEDLE_BACKEND=np``."""
    return _draw("randn", shape, as_device(device), key)


def permutation(size: int) -> np.ndarray[Any, Any]:
    """Return the numbers below ``size`` in a random order, on the host."""
    if _generator is None:
        return np.random.permutation(size)
    bits = _generator.bits((size, 2), as_device("cpu_numpy")).numpy()
    return np.argsort(bits.view(np.int64).ravel(), kind="stable")


def uniform() -> float:
    """Return one number in [0, 1), on the host."""
    if _generator is None:
        return np.random.rand()
    return float(_generator.uniform((), as_device("cpu_numpy")).item())


def integers(low: int, high: int, size: int) -> np.ndarray[Any, Any]:
    """Return ``size`` whole numbers in [low, high), on the host."""
    if _generator is None:
        return np.random.randint(low, high, size)
    bits = _generator.bits((size,), as_device("cpu_numpy")).numpy().view(np.uint32)
    return low + (bits.astype(np.int64) * (high - low) >> 32)


def wrap_as(x: NDArray, kind: DType | str | None) -> Any:
    """Return a tensor of an array, cast to a dtype where one is given."""
    target = x.dtype if kind is None else as_dtype(kind)
    return graph.wrap(x.astype(target, copy=False))


# ---- functions -------------------------------------------------------------------

Shape = int | Sequence[int]


def _shape(shape: Shape) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)


def uniform(
    shape: Shape,
    low: float = 0.0,
    high: float = 1.0,
    *,
    device: Any = None,
    dtype: Any = None,
    key: int | None = None,
) -> Any:
    """Return a tensor of values drawn uniformly from [low, high).

    Args:
        shape: of the result.
        low: smallest value.
        high: bound above.
        device: where to; the default device for None.
        dtype: a floating one; float32 for None, float64 with ``NEEDLE_BACKEND=np``.
        key: seed of this draw alone; None draws from the stream that governs (see above).
    """
    x = wrap_as(rand(_shape(shape), device, key), dtype)
    return x if (low, high) == (0.0, 1.0) else x * (high - low) + low


def normal(
    shape: Shape,
    mean: float = 0.0,
    std: float = 1.0,
    *,
    device: Any = None,
    dtype: Any = None,
    key: int | None = None,
) -> Any:
    """Return a tensor of normally distributed values. Arguments as of ``uniform``."""
    x = wrap_as(randn(_shape(shape), device, key), dtype)
    return x if (mean, std) == (0.0, 1.0) else x * std + mean


def bernoulli(
    shape: Shape, p: float = 0.5, *, device: Any = None, dtype: Any = "bool", key: int | None = None
) -> Any:
    """Return a tensor that is true where a uniform draw is at most p."""
    chosen = less_equal(graph.wrap(rand(_shape(shape), device, key)), p)
    return cast(chosen, as_dtype(dtype))


def randint(
    shape: Shape,
    low: int,
    high: int,
    *,
    device: Any = None,
    dtype: Any = "int64",
    key: int | None = None,
) -> Any:
    """Return a tensor of integers drawn uniformly from [low, high).

    Raises:
        ShapeError: if there is no integer in the range, or more than 2**24 (what a draw resolves).
    """
    source = Generator(key) if key is not None else _generator
    if not high - low > 0:
        raise ShapeError(f"randint: no integers in [{low}, {high})")
    if source is None:
        values = np.random.randint(low, high, _shape(shape))
        return graph.wrap(array(np.asarray(values), as_dtype(dtype), device))
    if high - low > 2**24:
        raise ShapeError(f"randint: [{low}, {high}) has more than 2**24 integers")
    steps = floor(graph.wrap(source.uniform(_shape(shape), as_device(device))) * (high - low))
    return cast(cast(steps, dtypes.int64) + low, as_dtype(dtype))


def permutation(n: int, *, device: Any = None, key: int | None = None) -> Any:
    """Return a tensor of 0, 1, ..., n - 1 (int64) in random order."""
    source = Generator(key) if key is not None else _generator
    if source is None:
        return graph.wrap(array(np.random.permutation(n), dtypes.int64, device))
    order = kernels.sort(source.bits((n,), as_device(device)), 0)[1]
    return graph.wrap(order)


class Dropout(Composite):
    """Set elements to zero where mask is false, and scale the others by 1 / (1 - p).

    The mask is an input, so that the op itself is not random.

    Shapes:   x, mask [...] -> [...]
    Dtypes:   x floating, mask bool
    Gradient: x; any order
    Source:   Srivastava et al., "Dropout", 2014, section 10 (scaling while training)
    """

    p: float
    saves = ((1,), ())
    samples = staticmethod(
        lambda: [
            Sample(
                (samples.uniform(shape), samples.uniform(shape, seed=1) > 0), (0.25,),
                lambda x, mask: np.where(mask, x / 0.75, 0.0),
            )
            for shape in ((3, 4), (), (0, 2))
        ]
        + [Sample((samples.uniform((3,)), np.ones(3, bool)), (1.0,), lambda x, mask: 0 * x)]
    )  # fmt: skip

    def expand(self, x: Any, mask: Any) -> Any:
        return where(mask, x * (1.0 / (1.0 - self.p) if self.p < 1 else 0.0), 0.0)

    def gradient(self, out_grad: Any, out: Any) -> Any:
        return executor.apply(self, out_grad, out.inputs[1]), None


def dropout(x: Any, p: float = 0.5, training: bool = True, *, key: int | None = None) -> Any:
    """Set each element to zero with probability p and scale the others by 1 / (1 - p).

    Draws one uniform number per element, also for p = 0; outside training returns x.

    Raises:
        OptionError: if p is not in [0, 1].
    """
    if not 0.0 <= p <= 1.0:
        raise OptionError(f"dropout: p={p} is not in [0, 1]")
    if not training:
        return x
    spec = executor.spec_of(x)
    mask = bernoulli(spec.shape, 1.0 - p, device=spec.device, key=key)
    return executor.apply(Dropout.of(float(p)), x, mask)
