"""What a device can do at most: the constants behind ``needle.forecast``."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from needle import executor, ops
from needle.devices import Device

SIDE = 768
"""Rows of the square matrices whose product is measured."""
LONG, NEAR, SHORT = 1 << 23, 1 << 15, 16
"""Elements of arrays whose addition is measured: more than caches hold, within them, and few."""
TIMES = 5


class Limits(NamedTuple):
    """What a device can do at most.

    Attributes:
        flops: operations on float32 numbers in a second, in a product of matrices.
        bandwidth: bytes read and written in a second, by an addition of long arrays.
        near: the same of arrays that caches hold.
        start: seconds that an operation takes at least.
    """

    flops: float
    bandwidth: float
    near: float
    start: float

    def seconds(self, flops: float, nbytes: float) -> float:
        """Return the least seconds for so many operations and bytes."""
        reached = self.near if nbytes <= 3 * 4 * NEAR else self.bandwidth
        return max(flops / self.flops, nbytes / reached, self.start)


@functools.lru_cache
def limits(device: Device) -> Limits:
    """Return what a device can do, measured at the first call in well under a second."""
    with executor.modes(recording=False, lazy=False):
        square = ops.ones((SIDE, SIDE), device=device)
        product = _best(lambda: square @ square, device)
        far, near, start = (_addition(n, device) for n in (LONG, NEAR, SHORT))
    return Limits(2 * SIDE**3 / product, 8 * LONG / far, 8 * NEAR / near, start)


def _addition(size: int, device: Device) -> float:
    """Return the seconds that adding a float32 array to itself takes at best."""
    x, times = ops.ones((size,), device=device), max(1, NEAR // size)
    return _best(lambda: [x + x for _ in range(times)], device) / times


def _best(function: Callable[[], Any], device: Device) -> float:
    """Return the seconds of the fastest of some calls."""
    found = []
    for _ in range(TIMES):
        start = time.perf_counter()
        function()
        device.backend.synchronize()
        found.append(time.perf_counter() - start)
    return max(min(found), 1e-9)


def as_text(known: Limits) -> str:
    """Return limits as a line.

    >>> from needle.tools.limits import Limits, as_text
    >>> as_text(Limits(5e10, 1.2e10, 5e10, 1e-6))
    '50.0 GFLOP/s, 12.0 GB/s (50.0 in caches), 1.0 us for the smallest operation'
    """
    return (
        f"{known.flops / 1e9:.1f} GFLOP/s, {known.bandwidth / 1e9:.1f} GB/s "
        f"({known.near / 1e9:.1f} in caches), {known.start * 1e6:.1f} us for the smallest operation"
    )
