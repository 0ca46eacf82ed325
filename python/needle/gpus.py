"""``needle.cuda``: a GPU when called, and what programs ask about GPUs. Works without one."""

from __future__ import annotations

from typing import Any

from needle import devices
from needle.devices import Device
from needle.elsewhere import advice
from needle.errors import DeviceError, missing
from needle.ops import random


class Cuda:
    """GPUs: ``cuda()`` is the first one, ``cuda(1)`` the second; its methods speak of them.

    Methods that take a device take a number, a name, or None for the first GPU. Without a GPU they
    do nothing, and count nothing.

    >>> ndl.cuda().name, ndl.cuda.is_available() == ndl.cuda().enabled()
    ('cuda', True)
    """

    __name__ = "cuda"

    def __call__(self, number: int = 0) -> Device:
        """Return the CUDA device of this number. See ``devices.cuda``."""
        return devices.cuda(number)

    def _found(self, device: Any) -> Any:
        """Return the backend of a GPU; None if there is none.

        Raises:
            DeviceError: if it is another kind of device.
        """
        numbered = device is None or type(device) is int
        where = devices.cuda(device or 0) if numbered else devices.as_device(device)
        if not where.type.startswith("cuda"):
            raise DeviceError(f"cuda: expected a GPU, got {where.name!r}")
        return where.backend if where.enabled() else None

    def is_available(self) -> bool:
        """Return whether the first GPU can be used; ``cuda().reason()`` says why not."""
        return devices.cuda().enabled()

    def device_count(self) -> int:
        """Return the number of GPUs."""
        found = self._found(None)
        return 0 if found is None else int(found.driver.count)

    def current_device(self) -> int:
        """Return the number of the GPU that ``"cuda"`` means, which is 0."""
        return 0

    def get_device_name(self, device: Any = None) -> str:
        """Return the name of a GPU.

        Raises:
            DeviceError: if it cannot be used here.
        """
        found = self._found(device)
        return str((devices.cuda().backend if found is None else found).driver.properties.name)

    def synchronize(self, device: Any = None) -> None:
        """Wait until all work of a GPU is done."""
        found = self._found(device)
        if found is not None:
            found.synchronize()

    def empty_cache(self) -> None:
        """Return memory that is kept for reuse to all GPUs in use."""
        for number in range(self.device_count()):
            if devices.cuda(number).is_loaded():
                devices.cuda(number).backend.arena.trim()

    def _memory(self, device: Any) -> dict[str, int]:
        found = self._found(device)
        return {} if found is None else dict(found.memory_info())

    def memory_allocated(self, device: Any = None) -> int:
        """Return the bytes in use."""
        return self._memory(device).get("live", 0)

    def max_memory_allocated(self, device: Any = None) -> int:
        """Return the largest number of bytes in use so far."""
        return self._memory(device).get("peak", 0)

    def memory_reserved(self, device: Any = None) -> int:
        """Return the bytes in use and kept for reuse."""
        info = self._memory(device)
        return info.get("live", 0) + info.get("cached", 0)

    def manual_seed(self, seed: int) -> None:
        """Seed the generator, which is one for all devices. See ``needle.manual_seed``."""
        random.manual_seed(seed)

    manual_seed_all = manual_seed

    def is_bf16_supported(self) -> bool:
        """Return True where there is a GPU: every device computes with bfloat16."""
        return self.is_available()

    def __getattr__(self, name: str) -> Any:
        raise missing("needle.cuda", name, advice("cuda", name))

    def __repr__(self) -> str:
        return "<needle.cuda: is_available(), device_count(), ...>"
