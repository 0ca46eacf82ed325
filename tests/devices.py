"""The devices of this machine, for tests that are made for each of them."""

import os

# The CUDA kernels run in the emulator, where there is a compiler for it.
os.environ.setdefault("NEEDLE_EMULATOR", "on")

import needle as ndl
from needle import core

DEVICES = [d.name for d in ndl.all_devices() if d.enabled()]
HOST_DEVICES = [name for name in DEVICES if hasattr(ndl.devices.as_device(name), "adopt")]
"""Those that compute in the host's memory, and so can share it."""

ISAS = core.native.supported_isas() if core.native is not None else []
"""The instruction sets that the native kernels have here; none where they are not built."""
