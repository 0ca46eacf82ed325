"""The meta device: shapes and dtypes without data. Ops infer specs by their ``compute`` on it."""

from __future__ import annotations

from typing import Any

from needle.backend.contract import Backend
from needle.errors import DeviceError


def _returning(value: Any) -> Any:
    """Return a method that takes anything, computes nothing and returns a value."""
    return lambda self, *_, **__: value


class MetaBackend(Backend):
    """Accept every call and compute nothing; the arrays already have their specs."""

    name = "meta"
    puts = True

    allocate = upload = copy = fill = elementwise = reduce = scan = extremes = _returning(None)
    matmul = sort = random_bits = random_bits_of = run_fused = _returning(None)
    check_range = check_whole = _returning(None)
    gather = scatter_add = put = _returning(-1)  # no bad index

    def download(self, x: Any) -> Any:
        raise DeviceError(f"an array on device meta has no data: {x.dtype}{list(x.shape)}")
