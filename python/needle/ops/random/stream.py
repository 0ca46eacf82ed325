"""Random numbers.

Until the user seeds Needle's own generator, draws come from NumPy's global legacy stream, so
``np.random.seed(0)`` seeds them. ``manual_seed(n)`` switches to a counter-based generator (Philox
4x32-10; Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): the same bits on every
device and for any number of threads. Normal numbers, which go through logarithms and cosines, can
differ from device to device by rounding.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import dtype as dtypes
from needle import tracing
from needle.backend import kernels, memory, numpy_stream
from needle.backend.axes import integer
from needle.backend.ndarray import NDArray, array
from needle.devices import as_device
from needle.dtype import DType
from needle.errors import ArgumentError, OptionError

if TYPE_CHECKING:
    from needle.typing import DeviceLike, Numpy

__all__ = [
    "Generator", "SampleStream", "bits", "check_stream", "drawing", "enter_sample", "generator",
    "generator_now", "get_state", "host_integers", "host_permutation", "host_uniform",
    "integers", "keep", "manual_seed", "normal", "order", "permutation", "placed", "rand",
    "randint", "randn", "sample", "set_state", "skip", "uniform",
]  # fmt: skip

Key = int | NDArray
"""A key; or a stream, int64 [2]: key and counter (bits of uint64), to which counters are added."""


def placed(key: Key, counter: int) -> tuple[int, int]:
    """Return the key and the counter as numbers: those of a stream are read."""
    if isinstance(key, int):
        return key, counter
    check_stream(key)
    seed, start = np.array(key.numpy()).view(np.uint64).tolist()
    return seed, start + counter


def check_stream(key: NDArray) -> None:
    """Check that an array is a stream.

    Raises:
        ArgumentError: if it is not int64 [2].
    """
    if key.shape != (2,) or key.dtype is not dtypes.int64:
        raise ArgumentError(
            f"random numbers: expected a seed, or a stream of two int64, got {key.spec}"
        )


def bits(
    shape: tuple[int, ...], key: Key, counter: int, device: DeviceLike, kind: DType = dtypes.int32
) -> NDArray:
    """Return int32 bits: those of the blocks of 4 words from ``counter`` on."""
    if not isinstance(key, int):
        check_stream(key)
    return kernels.random_bits(shape, key, counter, kind, device)


@lru_cache(maxsize=64)
def _number(value: float, kind: DType, device: DeviceLike) -> NDArray:
    """Return a cached 0-d array: making one is slow."""
    with memory.real():
        return array(value, kind, device)


def uniform(shape: tuple[int, ...], key: Key, counter: int, device: DeviceLike) -> NDArray:
    """Return float32 values in [0, 1): multiples of 2**-24."""
    if as_device(device).backend.draws_floats:
        return bits(shape, key, counter, device, dtypes.float32)
    words = bits(shape, key, counter, device)
    mask = _number(0xFFFFFF, dtypes.int32, words.device)
    low = kernels.elementwise("bitwise_and", words, mask).astype(dtypes.float32)
    return kernels.elementwise("multiply", low, _number(2.0**-24, dtypes.float32, words.device))


def normal(shape: tuple[int, ...], key: Key, counter: int, device: DeviceLike) -> NDArray:
    """Return float32 values of the standard normal distribution (Box and Muller, 1958)."""
    size = prod(shape)
    half = (size + 1) // 2
    u = uniform((2, half), key, counter, device)
    device = u.device

    def number(value: float) -> NDArray:
        return _number(value, dtypes.float32, device)

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


def integers(low: int, high: int, size: int, key: Key, counter: int) -> Numpy:
    """Return ``size`` integers in [low, high), at most 2**31 of them, on the host."""
    key, counter = placed(key, counter)
    words = bits((size,), key, counter, as_device("cpu_numpy")).numpy().view(np.uint32)
    return low + (words.astype(np.int64) * (high - low) >> 32)


def order(size: int, key: Key, counter: int) -> Numpy:
    """Return the numbers below ``size`` in a random order, on the host."""
    key, counter = placed(key, counter)
    words = bits((size, 2), key, counter, as_device("cpu_numpy")).numpy()
    return np.argsort(words.view(np.int64).ravel(), kind="stable")


class Generator:
    """A counter-based generator: a key, and how many blocks of 4 words were drawn."""

    __slots__ = ("seed", "counter")

    def __init__(self, seed: int) -> None:
        self.seed, self.counter = integer("random numbers: the seed", seed), 0
        if not 0 <= self.seed < 2**64:
            raise OptionError(f"random numbers: the seed is {seed}\n  rule: 0 <= seed < 2**64")

    def take(self, words: int) -> tuple[int, int]:
        """Return the key and the counter of a draw of so many words, and go on behind it."""
        before = self.counter
        self.counter += (max(words, 0) + 3) // 4
        return self.seed, before


_generator: Generator | None = None


class SampleStream:
    """The random numbers of one item of a data set: a function of seed, epoch and index.

    Philox blocks of four words: the counter consists of the index, the number of the block and
    the epoch. The key is not that of ``data.Augment``, which draws for the same items.
    """

    __slots__ = ("key", "index", "epoch", "used", "words")

    def __init__(self, seed: int, epoch: int, index: int) -> None:
        self.key = (seed ^ 0x9E3779B97F4A7C15) & (2**64 - 1)
        self.index, self.epoch = index & (2**64 - 1), epoch & 0xFFFFFFFF
        self.used, self.words = 0, (0, 0, 0, 0)

    def four(self) -> tuple[int, int, int, int]:
        """Return the first four words."""
        return _philox(self.key, self.index, self.epoch << 32)

    def word(self) -> int:
        """Return the next 32 bits."""
        block, place = divmod(self.used, 4)
        if place == 0:
            self.words = _philox(self.key, self.index, self.epoch << 32 | block)
        self.used += 1
        return self.words[place]


def _philox(key: int, low: int, high: int) -> tuple[int, int, int, int]:
    """Return a block of Philox4x32-10, as ``backend.numpy.philox`` does, in Python's integers."""
    a, b, c, d = low & 0xFFFFFFFF, low >> 32, high & 0xFFFFFFFF, high >> 32
    first, second = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = q >> 32 ^ b ^ first, q & 0xFFFFFFFF, p >> 32 ^ d ^ second, p & 0xFFFFFFFF
        first, second = (first + 0x9E3779B9) & 0xFFFFFFFF, (second + 0xBB67AE85) & 0xFFFFFFFF
    return a, b, c, d


class _Thread(threading.local):
    stream: SampleStream | None = None


_thread = _Thread()


def enter_sample(stream: SampleStream | None) -> None:
    """Let this thread draw from the stream of an item on the host; None: as before."""
    _thread.stream = stream


def sample() -> SampleStream | None:
    """Return the stream of the item that this thread makes, if a loader makes it from a seed."""
    return _thread.stream


def manual_seed(seed: int | None) -> None:
    """Draw from Needle's own generator from now on; None returns to NumPy's global stream.

    Raises:
        ArgumentError: if the seed is not an integer.
        OptionError: if it is negative, or 2**64 or more.

    >>> ndl.manual_seed(7)
    >>> first = ndl.randn(2)
    >>> ndl.manual_seed(7)
    >>> ndl.allclose(first, ndl.randn(2))
    True
    """
    global _generator
    tracing.check("manual_seed is called", "seed before the function is called")
    _generator = None if seed is None else Generator(seed)


def get_state() -> Any:
    """Return the state, with which ``set_state`` draws the same numbers again."""
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


@contextmanager
def drawing(source: Generator | None) -> Iterator[None]:
    """Draw from this generator within a ``with`` block; None changes nothing.

    Raises:
        ArgumentError: if it is no generator.
    """
    global _generator
    if source is None:
        yield
        return
    if not isinstance(source, Generator):
        raise ArgumentError(
            f"generator is {source!r:.60}\n  try: needle.Generator().manual_seed(0)"
        )
    before, _generator = _generator, source
    try:
        yield
    finally:
        _generator = before


def generator(key: int | None = None) -> Generator | None:
    """Return the source of a draw's numbers; None means NumPy's global stream.

    Raises:
        TraceError: if it is NumPy's, while a function is traced: the numbers would be constants.
    """
    if key is None and _generator is None:
        tracing.check(
            "numbers are drawn from NumPy's stream, at once",
            "needle.manual_seed(...) before, which draws in the program",
        )
    return _generator if key is None else Generator(key)


def generator_now() -> Generator | None:
    """Return the generator itself, or None: no draw is intended."""
    return _generator


def skip(words: int) -> None:
    """Go on behind blocks of numbers that a program drew."""
    if _generator is not None:
        _generator.counter += words


def keep(generator: Generator) -> None:
    """Draw from a generator from now on."""
    global _generator
    _generator = generator


def _on_host() -> None:
    tracing.check("random numbers are drawn on the host", "ops that draw, such as needle.rand")


def _draw(kind: str, shape: tuple[int, ...], where: Any, key: int | None) -> NDArray:
    """Return float values on a device; float64 ones only from NumPy's stream on request."""
    _on_host()
    source = generator(key)
    if source is None:
        try:
            return numpy_stream.floats(kind, shape, where)
        except MemoryError as error:
            raise memory.typed(error).during(kind, ()) from None
    if kind == "rand":
        return uniform(shape, *source.take(prod(shape)), where)
    return normal(shape, *source.take(2 * ((prod(shape) + 1) // 2)), where)


def rand(shape: tuple[int, ...], device: DeviceLike = None, key: int | None = None) -> NDArray:
    """Return uniform values in [0, 1): float32, or float64 with ``NEEDLE_BACKEND=np``."""
    return _draw("rand", shape, as_device(device), key)


def randn(shape: tuple[int, ...], device: DeviceLike = None, key: int | None = None) -> NDArray:
    """Return standard normal values: float32, or float64 with ``NEEDLE_BACKEND=np``."""
    return _draw("randn", shape, as_device(device), key)


def host_permutation(size: int) -> Numpy:
    """Return the numbers below ``size`` in a random order, on the host."""
    _on_host()
    if _generator is None:
        return np.random.permutation(size)
    return order(size, *_generator.take(2 * size))


def host_uniform() -> float:
    """Return one number in [0, 1), on the host."""
    _on_host()
    if _thread.stream is not None:
        return _thread.stream.word() * 2.0**-32
    if _generator is None:
        return np.random.rand()
    return float(uniform((), *_generator.take(1), as_device("cpu_numpy")).item())


def permutation(size: int, device: DeviceLike = None) -> NDArray:
    """Return the numbers below ``size``, int64, in the order that NumPy's stream gives."""
    return numpy_stream.permutation(size, as_device(device))


def randint(
    low: int, high: int, shape: tuple[int, ...], kind: DType, device: DeviceLike = None
) -> NDArray:
    """Return integers in [low, high) from NumPy's stream."""
    return numpy_stream.integers(low, high, shape, kind, as_device(device))


def host_integers(low: int, high: int, size: int) -> Numpy:
    """Return ``size`` integers in [low, high), on the host."""
    _on_host()
    if (stream := _thread.stream) is not None:
        return np.array([low + (stream.word() * (high - low) >> 32) for _ in range(size)])
    if _generator is None:
        return np.random.randint(low, high, size)
    return integers(low, high, size, *_generator.take(size))
