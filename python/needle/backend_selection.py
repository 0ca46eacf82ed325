"""The course's choice of a backend: ``NEEDLE_BACKEND`` is "nd" (the default) or "np".

There is one array type; "np" makes the numpy device the default one, with NumPy's dtypes.
"""

from typing import Any

import numpy

from needle import backend_ndarray, config
from needle.backend.ndarray import NDArray
from needle.devices import Device, all_devices, cpu, cpu_numpy, cuda, default_device

__all__ = [
    "BACKEND", "Device", "NDArray", "all_devices", "array_api", "cpu", "cpu_numpy", "cuda",
    "default_device",
]  # fmt: skip

BACKEND = config.initial().backend
array_api: Any = numpy if BACKEND == "np" else backend_ndarray
