"""Needle: the necessary elements of deep learning."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from needle import (
    autograd,
    backend,
    backend_ndarray,
    backend_selection,
    config,
    device,
    dtype,
    errors,
    graph,
    init,
    ops,
)
from needle.autograd import (
    backward,
    checkpoint,
    custom_gradient,
    grad,
    lazy_mode,
    no_grad,
    value_and_grad,
    vjp,
)
from needle.backend.ndarray import NDArray
from needle.backend_selection import BACKEND, array_api
from needle.derivatives import hvp, jacobian, jvp, linearize
from needle.device import Device, all_devices, cpu, cpu_numpy, cuda, default_device, meta
from needle.dtype import (
    DType,
    bfloat16,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    result_type,
    uint8,
)
from needle.dtype import bool_ as bool_
from needle.init import ones, ones_like, zeros, zeros_like
from needle.ops import (
    Op,
    TensorOp,
    TensorTupleOp,
    add,
    add_scalar,
    broadcast_to,
    concat,
    conv,
    dilate,
    divide,
    divide_scalar,
    exp,
    flip,
    fused_add_scalars,
    log,
    logsoftmax,
    logsumexp,
    make_tuple,
    matmul,
    maximum,
    minimum,
    mul_scalar,
    multiply,
    negate,
    power,
    power_scalar,
    relu,
    reshape,
    sigmoid,
    split,
    sqrt,
    stack,
    summation,
    tanh,
    transpose,
    tuple_get_item,
    undilate,
    where,
)
from needle.ops.random import manual_seed
from needle.tensor import Parameter, Tensor, TensorTuple, Value, from_dlpack

__version__ = "0.1.0"

if TYPE_CHECKING:
    from needle import data, io, nn, optim

# Rooms of floor 5 that a program may do without are imported at their first use.
_ROOMS = ("data", "io", "nn", "optim")


if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name):
        if name in _ROOMS:
            return _import_module(f"needle.{name}")
        raise AttributeError(f"module 'needle' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS})
