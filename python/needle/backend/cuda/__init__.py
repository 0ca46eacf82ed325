"""The CUDA device: kernels compiled when first used, run on a GPU or in the emulator."""

from __future__ import annotations

from typing import Any


def load_cuda() -> Any:
    """Return the backend of the first GPU; raise DeviceError naming the piece that is missing."""
    from needle.backend.cuda.driver import CudaDriver

    driver = CudaDriver()
    from needle.backend.cuda import overrides as overrides  # registers them
    from needle.backend.cuda.backend import CudaBackend

    return CudaBackend("cuda", driver)


def load_emulator(sanitize: bool = False) -> Any:
    """Return the backend that runs kernels on the host; raise DeviceError without a compiler."""
    from needle.backend.cuda import overrides as overrides  # registers them
    from needle.backend.cuda.backend import CudaBackend
    from needle.backend.cuda.emulator import EmuDriver

    return CudaBackend("cuda-emu", EmuDriver(sanitize))
