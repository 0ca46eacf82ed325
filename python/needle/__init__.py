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
    check_finite,
    checkpoint,
    grad,
    lazy_mode,
    no_grad,
    value_and_grad,
    vjp,
)
from needle.backend.ndarray import NDArray
from needle.backend_selection import BACKEND, array_api
from needle.custom import custom_gradient
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
    abs,
    absolute,
    acos,
    acosh,
    add,
    add_scalar,
    all,
    amax,
    amin,
    any,
    arange,
    argmax,
    argmin,
    argsort,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    bernoulli,
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    broadcast_to,
    ceil,
    clip,
    concat,
    conv,
    copysign,
    cos,
    cosh,
    cross_entropy,
    cumprod,
    cumsum,
    diag,
    diagonal,
    dilate,
    divide,
    divide_scalar,
    dropout,
    einsum,
    elu,
    embedding,
    empty,
    empty_like,
    equal,
    erf,
    exp,
    exp2,
    expm1,
    eye,
    flatten,
    flip,
    floor,
    floor_divide,
    full,
    full_like,
    fused_add_scalars,
    gather,
    gelu,
    greater,
    greater_equal,
    hypot,
    isfinite,
    isinf,
    isnan,
    layer_norm,
    leaky_relu,
    less,
    less_equal,
    linspace,
    log,
    log1p,
    log2,
    log10,
    log_softmax,
    logaddexp,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    logsoftmax,
    logsumexp,
    make_tuple,
    matmul,
    max,
    maximum,
    mean,
    median,
    meshgrid,
    min,
    minimum,
    moveaxis,
    mul_scalar,
    multiply,
    negate,
    negative,
    nonzero,
    normal,
    not_equal,
    one_hot,
    outer,
    pad,
    permutation,
    permute,
    pow,
    power,
    power_scalar,
    prod,
    randint,
    reciprocal,
    relu,
    remainder,
    repeat,
    reshape,
    roll,
    round,
    rsqrt,
    scatter_add,
    searchsorted,
    sigmoid,
    sign,
    silu,
    sin,
    sinh,
    softmax,
    softplus,
    sort,
    split,
    sqrt,
    square,
    squeeze,
    stack,
    std,
    subtract,
    sum,
    summation,
    swapaxes,
    take,
    tan,
    tanh,
    tensordot,
    tile,
    topk,
    trace,
    transpose,
    tril,
    triu,
    trunc,
    tuple_get_item,
    unbind,
    undilate,
    uniform,
    unique,
    unsqueeze,
    var,
    vecdot,
    where,
)
from needle.ops.random import manual_seed
from needle.tensor import Parameter, Tensor, TensorTuple, Value, from_dlpack

__version__ = "0.1.0"

if TYPE_CHECKING:
    from needle import data, io, nn, optim, standard
    from needle.nn import fold_batch_norm
    from needle.tools.show import show

# Rooms that a program may do without are imported at their first use.
_ROOMS = ("data", "io", "nn", "optim", "standard")


if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name):
        if name in _ROOMS:
            return _import_module(f"needle.{name}")
        if name == "show":
            return _import_module("needle.tools.show").show
        if name == "fold_batch_norm":
            return _import_module("needle.nn").fold_batch_norm
        raise AttributeError(f"module 'needle' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS, "fold_batch_norm", "show"})
