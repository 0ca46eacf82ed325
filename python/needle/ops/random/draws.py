"""Random numbers as ops: the values are a function of the op's attributes, key and counter.

So a node that draws is like any other node of the graph: it may wait, run again or run on another
device, and gives the same numbers. The functions of sampling.py take key and counter from the
generator when they are called, and make the op without ``Op.of``: no two are equal.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import dtype as dtypes
from needle.backend import kernels, ndarray
from needle.backend.numpy import philox
from needle.errors import ArgumentError, OptionError, ShapeError
from needle.ops import random
from needle.ops.core.op import Op
from needle.ops.core.samples import Sample

if TYPE_CHECKING:
    from needle.typing import NDArray, Numpy, Reference

__all__ = ["RandomIntegers", "RandomNormal", "RandomOrder", "RandomUniform"]

_SHAPES = ((), (1,), (7,), (3, 5), (2, 0, 3))
_KEYS = ((0, 0), (11, 3), (2**63 + 5, 2**40))
_PLACE = (np.zeros(()),)


def _samples(reference: Reference) -> list[Sample]:
    good = [
        Sample(
            _PLACE, (shape, key, counter),
            lambda _, s=shape, k=key, c=counter: reference(s, k, c), dtypes=("float32",),
        )
        for shape in _SHAPES
        for key, counter in _KEYS
    ]  # fmt: skip
    return [*good, Sample(_PLACE, ((-1,), 0, 0), raises=ShapeError), *_wrong((3,))]


def _wrong(*first: int | tuple[int, ...]) -> list[Sample]:
    return [
        Sample(_PLACE, (*first, key, counter), raises=OptionError)
        for key, counter in ((-1, 0), (2**64, 0), (0, -1))
    ]


def _words(size: int, key: int, counter: int) -> Numpy:
    """Return the first ``size`` words of Philox from a counter on, uint32."""
    blocks = np.arange((size + 3) // 4, dtype=np.uint64) + np.uint64(counter)
    return philox(key, blocks).ravel()[:size]


def _uniform(shape: tuple[int, ...], key: int, counter: int) -> Numpy:
    return (_words(prod(shape), key, counter) & 0xFFFFFF).reshape(shape) / 2.0**24


def _normal(shape: tuple[int, ...], key: int, counter: int) -> Numpy:
    size = prod(shape)
    first, second = _uniform((2, (size + 1) // 2), key, counter)
    radius, angle = np.sqrt(-2 * np.log(1 - first)), 2 * np.pi * second
    both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return both[:size].reshape(shape)


def _integer_samples() -> list[Sample]:
    def reference(shape: tuple[int, ...], low: int, last: int, key: int, counter: int) -> Numpy:
        words = _words(prod(shape), key, counter)
        numbers = [low + (int(word) * (last + 1 - low) >> 32) for word in words]
        return np.array(numbers, np.int64).reshape(shape)

    good = [
        Sample(_PLACE, a, lambda _, a=a: reference(*a), dtypes=("float32",))
        for shape in _SHAPES
        for a in ((shape, -3, 8, 11, 3), (shape, 2**63 - 2**31, 2**63 - 1, 2**63 + 5, 2**40))
    ]
    return [
        *good, *_wrong((3,), 0, 1),
        Sample(_PLACE, ((-1,), 0, 1, 0, 0), raises=ShapeError),
        Sample(_PLACE, ((3,), 2, 1, 0, 0), raises=OptionError),
        Sample(_PLACE, ((3,), 0, 2**31, 0, 0), raises=OptionError),
    ]  # fmt: skip


def _order_samples() -> list[Sample]:
    def reference(size: int, key: int, counter: int) -> Numpy:
        words = [int(word) for word in _words(2 * size, key, counter)]
        numbers = [low + (high << 32) for low, high in zip(words[::2], words[1::2], strict=True)]
        return np.array(sorted(range(size), key=[(w ^ 2**63) for w in numbers].__getitem__), int)

    good = [
        Sample(_PLACE, (n, *key), lambda _, a=(n, *key): reference(*a), dtypes=("float32",))
        for n in (9, 1, 0)
        for key in _KEYS
    ]
    return [*good, *_wrong(3), Sample(_PLACE, (-1, 0, 0), raises=ShapeError)]


class _Draw(Op):
    """The base of all draws: seed and counter, and their range.

    A seed of None is that of the operand: a stream (see ``random.Key``), with the counter relative
    to the stream's. So a program draws other numbers in each call.
    """

    is_differentiable = False

    def check(self, *shape: int) -> None:
        """Check the attributes.

        Raises:
            ShapeError: if a size is negative.
            ArgumentError: if seed or counter are not integers.
            OptionError: if seed or counter is out of range.
        """
        seed, counter = getattr(self, "seed", None), getattr(self, "counter", None)
        seed = 0 if seed is None else seed
        if not isinstance(seed, int) or not isinstance(counter, int):
            raise ArgumentError(
                f"{self.name}: expected integers, got seed {seed!r:.60}, counter {counter!r:.60}"
            )
        if not 0 <= seed < 2**64 or counter < 0:
            raise OptionError(
                f"{self.name}: seed {seed}, counter {counter}\n"
                "  rule: 0 <= seed < 2**64, 0 <= counter < 2**63"
            )
        if min(shape, default=0) < 0:
            raise ShapeError(f"{self.name}: shape {shape} has a negative size")

    def key(self, like: NDArray) -> NDArray | int:
        """Return the seed, or the stream that the operand is."""
        return like if getattr(self, "seed", None) is None else self.seed  # type: ignore[attr-defined]


class RandomUniform(_Draw):
    """Values in [0, 1), multiples of 2**-24, from Philox blocks ``counter`` on, for a key ``seed``.

    The operand gives the device; its values are not read.

    Shapes:   like [...] -> shape
    Dtypes:   float32, for any dtype of like
    Raises:   ShapeError for a negative size; OptionError for a seed or counter out of range
    Source:   Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011 (Philox 4x32-10)
    """

    shape: tuple[int, ...]
    seed: Any
    counter: int
    samples = staticmethod(lambda: _samples(_uniform))

    def compute(self, like: NDArray) -> NDArray:
        self.check(*self.shape)
        return random.uniform(self.shape, self.key(like), self.counter, like.device)


class RandomNormal(_Draw):
    """Standard normal values from Philox blocks ``counter`` on, for a key ``seed``.

    The operand gives the device; its values are not read.

    Shapes:   like [...] -> shape
    Dtypes:   float32, for any dtype of like
    Raises:   as RandomUniform
    Source:   Box and Muller, "A note on the generation of random normal deviates", 1958
    """

    shape: tuple[int, ...]
    seed: Any
    counter: int
    samples = staticmethod(lambda: _samples(_normal))

    def compute(self, like: NDArray) -> NDArray:
        self.check(*self.shape)
        return random.normal(self.shape, self.key(like), self.counter, like.device)


class RandomIntegers(_Draw):
    """Integers from low to last from Philox blocks ``counter`` on, for a key ``seed``.

    The operand gives the device; its values are not read.

    Shapes:   like [...] -> shape
    Dtypes:   int64
    Raises:   ShapeError for a negative size; OptionError for a seed or counter out of range, or
              if low is above last, or there are more than 2**31 numbers
    """

    shape: tuple[int, ...]
    low: int
    last: int
    seed: Any
    counter: int
    samples = staticmethod(_integer_samples)

    def compute(self, like: NDArray) -> NDArray:
        self.check(*self.shape)
        count = self.last + 1 - self.low
        if not 0 < count <= 2**31:
            raise OptionError(
                f"{self.name}: {count} numbers from {self.low} to {self.last}\n"
                "  rule: from 1 to 2**31"
            )
        if not kernels.has_values(like):
            return ndarray.empty(self.shape, dtypes.int64, like.device)
        size = prod(self.shape)
        found = random.integers(self.low, self.last + 1, size, self.key(like), self.counter)
        return ndarray.array(found.reshape(self.shape), dtypes.int64, like.device)


class RandomOrder(_Draw):
    """The numbers 0, 1, ..., n - 1 in the order of n Philox words of 64 bits, from ``counter`` on.

    The operand gives the device; its values are not read.

    Shapes:   like [...] -> [n]
    Dtypes:   int64
    Raises:   ShapeError for a negative n; OptionError for a seed or counter out of range
    """

    n: int
    seed: Any
    counter: int
    samples = staticmethod(_order_samples)

    def compute(self, like: NDArray) -> NDArray:
        self.check(self.n)
        if not kernels.has_values(like):
            return ndarray.empty((self.n,), dtypes.int64, like.device)
        found = random.order(self.n, self.key(like), self.counter)
        return ndarray.array(found, dtypes.int64, like.device)
