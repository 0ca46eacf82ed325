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
    enable_grad,
    grad,
    lazy_mode,
    no_grad,
    set_grad_enabled,
    value_and_grad,
    vjp,
)
from needle.backend.ndarray import NDArray
from needle.backend_selection import BACKEND, array_api
from needle.derivatives import hessian, hvp, jacobian, jvp, linearize
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
from needle.init import (
    ones,
    ones_like,
    rand,
    rand_like,
    randn,
    randn_like,
    zeros,
    zeros_like,
)
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
    allclose,
    amax,
    amin,
    any,
    arange,
    argmax,
    argmin,
    argsort,
    argwhere,
    asin,
    asinh,
    astype,
    atan,
    atan2,
    atanh,
    batch_norm,
    bce_with_logits,
    bernoulli,
    bincount,
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    broadcast_to,
    cast,
    cat,
    ceil,
    chunk,
    clamp,
    clip,
    concat,
    conv,
    copysign,
    cos,
    cosh,
    cosine_similarity,
    count_nonzero,
    cross_entropy,
    cummax,
    cummin,
    cumprod,
    cumsum,
    diag,
    diagonal,
    diff,
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
    gelu_tanh,
    glu,
    greater,
    greater_equal,
    hardsigmoid,
    hardswish,
    hardtanh,
    hstack,
    huber_loss,
    hypot,
    isclose,
    isfinite,
    isin,
    isinf,
    isnan,
    kl_divergence,
    kron,
    l1_loss,
    layer_norm,
    leaky_relu,
    lerp,
    less,
    less_equal,
    linspace,
    log,
    log1p,
    log2,
    log10,
    log_sigmoid,
    log_softmax,
    logaddexp,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    logsoftmax,
    logsumexp,
    make_tuple,
    masked_fill,
    matmul,
    max,
    maximum,
    mean,
    median,
    meshgrid,
    min,
    minimum,
    mish,
    moveaxis,
    mse_loss,
    mul_scalar,
    multinomial,
    multiply,
    nan_to_num,
    nanmean,
    nansum,
    negate,
    negative,
    nll_loss,
    nonzero,
    norm,
    normal,
    normalize,
    not_equal,
    one_hot,
    outer,
    pad,
    permutation,
    permute,
    pow,
    power,
    power_scalar,
    prelu,
    prod,
    quantile,
    randint,
    reciprocal,
    relu,
    relu6,
    remainder,
    repeat,
    reshape,
    rms_norm,
    roll,
    round,
    rsqrt,
    scatter_add,
    searchsorted,
    selu,
    sigmoid,
    sign,
    silu,
    sin,
    sinh,
    smooth_l1_loss,
    softmax,
    softplus,
    softsign,
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
    unflatten,
    uniform,
    unique,
    unsqueeze,
    var,
    vecdot,
    vstack,
    where,
)
from needle.ops.random import manual_seed
from needle.regions import checkpoint, custom_gradient
from needle.tensor import Parameter, Tensor, TensorTuple, Value, from_dlpack

__version__ = "0.1.0"

if TYPE_CHECKING:
    from needle import data, io, nn, optim, standard, testing
    from needle.nn import fold_batch_norm
    from needle.standard import linalg
    from needle.tools.show import show

# Rooms that a program may do without are imported at their first use.
_ROOMS = ("data", "io", "nn", "optim", "standard", "testing")


if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name):
        if name in _ROOMS:
            return _import_module(f"needle.{name}")
        if name == "linalg":
            return _import_module("needle.standard.linalg")
        if name == "show":
            return _import_module("needle.tools.show").show
        if name == "fold_batch_norm":
            return _import_module("needle.nn").fold_batch_norm
        raise errors.missing("needle", name, _elsewhere(name))


_ELSEWHERE = {
    "as_tensor": "needle.Tensor(x)",
    "binary_cross_entropy_with_logits": "needle.bce_with_logits",
    "cdist": "needle.norm(x[:, None] - y, axis=-1)",
    "from_numpy": "needle.Tensor(x)",
    "inference_mode": "needle.no_grad",
    "kl_div": "needle.kl_divergence",
    "logsigmoid": "needle.log_sigmoid",
    "randperm": "needle.permutation",
    "utils": "needle.data.DataLoader, needle.checkpoint, needle.optim.clip_grad_norm",
}
"""Names that PyTorch has: what to try."""


def _elsewhere(name: str) -> str:
    """Return where Needle has a name that it has not here; empty if nowhere."""
    if name.startswith("_"):
        return ""
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    for place in ("init", "nn", "optim", "data", "io", "ops", "standard", "standard.linalg"):
        if hasattr(_import_module(f"needle.{place}"), name):
            return f"needle.{place}.{name}"
    return f"x.{name}(...) of a tensor x" if hasattr(Tensor, name) else ""


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS, "fold_batch_norm", "linalg", "show"})
