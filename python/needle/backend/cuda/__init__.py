"""The CUDA device: kernels are compiled on first use and run on a GPU or in the emulator."""

from __future__ import annotations

from typing import Any


def load_cuda(number: int = 0) -> Any:
    """Return the backend of a GPU; raise DeviceError naming the piece that is missing."""
    from needle.backend.cuda.driver import CudaDriver

    driver = CudaDriver(number)
    from needle.backend.cuda import overrides as overrides  # registers them
    from needle.backend.cuda.backend import CudaBackend

    return CudaBackend(f"cuda:{number}" if number else "cuda", driver)


def load_emulator(number: int = 0, how: str = "on") -> Any:
    """Return the backend that runs kernels on the host; raise DeviceError without a compiler.

    Args:
        number: number of the emulated GPU.
        how: "asan" for the address sanitizer, "late" to run all work as late as possible.
    """
    from needle.backend.cuda import overrides as overrides  # registers them
    from needle.backend.cuda.backend import CudaBackend
    from needle.backend.cuda.emulator import EmuDriver

    driver = EmuDriver(how == "asan", number)
    driver.late = how == "late"
    return CudaBackend(f"cuda-emu:{number}" if number else "cuda-emu", driver)
