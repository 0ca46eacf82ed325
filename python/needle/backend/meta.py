"""The meta device: shapes and dtypes without data. Ops infer specs by their ``compute`` on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from needle.backend.contract import Backend, Describe
from needle.errors import DeviceError


class MetaBackend(Backend):
    """Accept every call and compute nothing; the arrays already have their specs."""

    name = "meta"

    def allocate(self, nbytes: int) -> Any:
        return None

    def upload(self, out: Any, values: Any) -> None:
        pass

    def download(self, x: Any) -> Any:
        raise DeviceError(f"an array on device meta has no data: {x.dtype}{list(x.shape)}")

    def copy(self, out: Any, x: Any) -> None:
        pass

    def fill(self, out: Any, value: float) -> None:
        pass

    def elementwise(self, function: str, out: Any, *inputs: Any) -> None:
        pass

    def reduce(self, function: str, out: Any, x: Any, axes: tuple[int, ...]) -> None:
        pass

    def scan(self, function: str, out: Any, x: Any, axis: int) -> None:
        pass

    def extremes(self, values: Any, positions: Any, x: Any, axis: int, largest: bool) -> None:
        pass

    def matmul(self, out: Any, a: Any, b: Any) -> None:
        pass

    def gather(self, out: Any, x: Any, index: Any, axis: int) -> int:
        return -1

    def scatter_add(self, out: Any, index: Any, updates: Any, axis: int) -> int:
        return -1

    puts = True

    def put(self, out: Any, index: Any, values: Any, axis: int) -> int:
        return -1

    def check_range(
        self, x: Any, low: int, high: int, kept: int | None, describe: Describe
    ) -> None:
        pass

    def check_whole(self, x: Any, describe: Describe) -> None:
        pass

    def sort(self, values: Any, indices: Any, x: Any, axis: int, descending: bool) -> None:
        pass

    def random_bits(self, out: Any, key: int, counter: int) -> None:
        pass

    def random_bits_of(self, out: Any, stream: Any, offset: int) -> None:
        pass

    def run_fused(
        self,
        program: Sequence[Any],
        outs: Sequence[Any],
        inputs: Sequence[Any],
        results: Sequence[int] | None = None,
    ) -> None:
        pass
