"""The course's array module: ``from needle import backend_ndarray as nd``."""

from needle.backend_ndarray import raw
from needle.backend_ndarray.ndarray import (
    BackendDevice,
    NDArray,
    all_devices,
    array,
    broadcast_to,
    cpu,
    cpu_numpy,
    cuda,
    default_device,
    empty,
    exp,
    flip,
    full,
    log,
    maximum,
    reshape,
    sum,
    tanh,
)
