"""Linear maps, convolutions, pooling, norms and attention, with PyTorch's names and arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from needle import ops
from needle.errors import OptionError, ShapeError, explain
from needle.executor import shape_of
from needle.nn.layers import looked_up
from needle.tensors import Tensor

if TYPE_CHECKING:
    from needle.typing import PerAxis, Values

__all__ = [
    "batch_norm", "bilinear", "channel_shuffle", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "embedding", "fold", "group_norm", "instance_norm",
    "interpolate", "layer_norm", "linear", "one_hot", "pad", "pixel_shuffle", "pixel_unshuffle",
    "rms_norm", "scaled_dot_product_attention", "unfold", "upsample",
]  # fmt: skip

_EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

# ---- linear maps and tables --------------------------------------------------------


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``input @ weight.T + bias``: the weight is [out, in], as in PyTorch.

    ``nn.Linear`` keeps its weight as [in, out].
    """
    if len(shape_of(weight)) == 2:
        weight = ops.transpose(weight)
    out: Tensor = input @ weight
    return out if bias is None else out + bias


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``input1 @ weight[o] @ input2 + bias[o]`` for each output o. See ``nn.Bilinear``."""
    out: Tensor = ops.einsum("...i,oij,...j->...o", input1, weight, input2)
    return out if bias is None else out + bias


def embedding(
    input: Values, weight: Tensor, padding_idx: int | None = None, *, sparse: bool = False
) -> Tensor:
    """Look up rows of a table: ``weight[input]``. See ``nn.Embedding``.

    The row ``padding_idx`` gets no gradient.
    """
    return looked_up(weight, input, padding_idx, sparse)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """Write 1 at each label's place along a new last axis, else 0; int64.

    Args:
        tensor: labels, integers.
        num_classes: number of classes; one more than the largest label for -1.
    """
    classes = int(tensor.max().item()) + 1 if num_classes == -1 else num_classes
    return ops.one_hot(tensor, classes, "int64")


# ---- convolutions ------------------------------------------------------------------


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: PerAxis = 1,
    padding: PerAxis | str = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve sequences [n, c, t] with weights [o, c / groups, k]. See ``ops.conv1d``."""
    return ops.conv1d(input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: PerAxis = 1,
    padding: PerAxis | str = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve images [n, c, h, w] with weights [o, c / groups, k, k]. See ``ops.conv2d``."""
    return ops.conv2d(input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: PerAxis = 1,
    padding: PerAxis | str = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve volumes [n, c, d, h, w] with weights [o, c / groups, *k]. See ``ops.conv3d``."""
    return ops.conv3d(input, weight, bias, stride, padding, dilation, groups)


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: PerAxis = 1,
    padding: PerAxis = 0,
    output_padding: PerAxis = 0,
    groups: int = 1,
    dilation: PerAxis = 1,
) -> Tensor:
    """Apply the transpose of a convolution to [n, c, t]. See ``ops.conv_transpose1d``."""
    return ops.conv_transpose1d(
        input, weight, bias, stride, padding, output_padding, groups, dilation
    )


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: PerAxis = 1,
    padding: PerAxis = 0,
    output_padding: PerAxis = 0,
    groups: int = 1,
    dilation: PerAxis = 1,
) -> Tensor:
    """Apply the transpose of a convolution to [n, c, h, w]. See ``ops.conv_transpose2d``."""
    return ops.conv_transpose2d(
        input, weight, bias, stride, padding, output_padding, groups, dilation
    )


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: PerAxis = 1,
    padding: PerAxis = 0,
    output_padding: PerAxis = 0,
    groups: int = 1,
    dilation: PerAxis = 1,
) -> Tensor:
    """Apply the transpose of a convolution to [n, c, d, h, w]. See ``ops.conv_transpose3d``."""
    return ops.conv_transpose3d(
        input, weight, bias, stride, padding, output_padding, groups, dilation
    )


# ---- norms -------------------------------------------------------------------------


def layer_norm(
    input: Tensor,
    normalized_shape: PerAxis,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise the last axes, of these sizes, together; then scale and shift.

    See ``ops.layer_norm``.

    Raises:
        ShapeError: if the last axes of the input have other sizes.
    """
    rows = _joined("layer_norm", input, normalized_shape)
    weight, bias = _flat(weight), _flat(bias)
    return ops.reshape(ops.layer_norm(rows, weight, bias, eps), shape_of(input))


def rms_norm(
    input: Tensor,
    normalized_shape: PerAxis,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Scale the last axes, of these sizes, to a root mean square of 1; then by a weight.

    See ``ops.rms_norm``. ``eps=None`` is the smallest step from 1 in the dtype of the input.

    Raises:
        ShapeError: if the last axes of the input have other sizes.
    """
    rows = _joined("rms_norm", input, normalized_shape)
    added = _EPS[str(input.dtype)] if eps is None else eps
    return ops.reshape(ops.rms_norm(rows, _flat(weight), added), shape_of(input))


def _joined(name: str, x: Tensor, sizes: PerAxis) -> Tensor:
    """Return x with its last axes, of these sizes, joined into one."""
    own = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    shape = shape_of(x)
    if not own or shape[-len(own) :] != own:
        raise explain(
            ShapeError, name, f"x has shape {shape}, normalized_shape is {own}", [("x", x)],
            "normalized_shape is the sizes of the last axes of x",
        )  # fmt: skip
    return ops.reshape(x, (*shape[: -len(own)], math.prod(own)))


def _flat(x: Tensor | None) -> Tensor | None:
    return None if x is None else ops.reshape(x, -1)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise groups of channels of each image; then scale and shift. See ``ops.group_norm``."""
    return ops.group_norm(input, num_groups, weight, bias, eps)[0]


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel by the statistics of the batch, or by running statistics.

    In training the running statistics, if given, move towards those of the batch:
    ``running = (1 - momentum) * running + momentum * batch``, as in PyTorch with the unbiased
    variance (``nn.BatchNorm2d`` keeps the biased one).

    Shapes: input [n, c, ...] -> the same; the others [c]

    Raises:
        OptionError: for evaluation without running statistics.
        ShapeError: in training, if a channel has a single value.
    """
    if not training:
        if running_mean is None or running_var is None:
            raise OptionError("batch_norm: running_mean and running_var are needed in evaluation")
        scale = ops.rsqrt(running_var + eps)
        scale = scale if weight is None else scale * weight
        shift = -running_mean * scale if bias is None else bias - running_mean * scale
        return ops.channels_first(ops.channels_last(input) * scale + shift)
    count = math.prod(shape_of(input)) // max(shape_of(input)[1], 1)
    if count <= 1:
        raise explain(
            ShapeError, "batch_norm", "a single value per channel gives no statistics",
            [("input", input)], "more than one value per channel", "a larger batch",
        )  # fmt: skip
    out, mean, var = ops.batch_norm(input, weight, bias, eps, axis=1)
    for running, batch in ((running_mean, mean), (running_var, var * (count / (count - 1)))):
        if running is not None:
            moved = running.detach() * (1.0 - momentum) + batch.detach() * momentum
            running[...] = ops.astype(moved, running.dtype)
    return out


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel of each image by its own statistics. See ``nn.InstanceNorm2d``.

    Raises:
        OptionError: if running statistics are to be updated; ``nn.InstanceNorm2d`` does it.
    """
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if running_mean is not None or running_var is not None:
        raise OptionError(
            "instance_norm: running statistics are not updated here\n"
            "  try: nn.InstanceNorm2d(channels, track_running_stats=True)"
        )
    return ops.group_norm(input, shape_of(input)[1], weight, bias, eps)[0]


# ---- images ------------------------------------------------------------------------


def pad(
    input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    """Pad the last axes: (before, after) of the last axis, then of the one before it, ...

    ``needle.pad`` has a pair for each axis, the first axis first.

    Args:
        input: a tensor.
        pad: an even number of widths; negative ones cut.
        mode: "constant", "reflect", "replicate" or "circular".
        value: for "constant"; 0 for None.

    Raises:
        OptionError: for an odd number of widths, or more than two per axis.
    """
    ndim = len(shape_of(input))
    if len(pad) % 2 or len(pad) > 2 * ndim:
        raise OptionError(
            f"pad: {len(pad)} widths {tuple(pad)} for {ndim} axes\n"
            "  rule: (before, after) for the last axis, then for the one before it, ..."
        )
    pairs = list(zip(pad[::2], pad[1::2], strict=True))[::-1]
    widths = [(0, 0)] * (ndim - len(pairs)) + pairs
    cut = tuple(
        slice(max(-before, 0), n - max(-after, 0))
        for n, (before, after) in zip(shape_of(input), widths, strict=True)
    )
    if min(min(pair) for pair in [(0, 0), *widths]) < 0:
        input = input[cut]
    widths = [(max(before, 0), max(after, 0)) for before, after in widths]
    return ops.pad(input, widths, mode, 0.0 if value is None else value)


def interpolate(
    input: Tensor,
    size: PerAxis | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Enlarge or shrink images [n, c, *spatial]. See ``ops.upsample``.

    Args:
        input: images.
        size: of the result, one number or one per axis.
        scale_factor: or how many times larger.
        mode: "nearest", "linear", "bilinear", "trilinear", "bicubic" or "area".
        align_corners: whether the first and last pixels fall together.
        recompute_scale_factor: compute the scale again from the sizes.
        antialias: not available; must be False.

    Raises:
        OptionError: for ``antialias=True``, or wrong settings.
    """
    if antialias:
        raise OptionError("interpolate: antialias=True is not available")
    spatial = shape_of(input)[2:]
    if scale_factor is not None and (recompute_scale_factor or mode == "area"):
        scales = scale_factor if isinstance(scale_factor, Sequence) else [scale_factor] * 3
        size = [math.floor(n * s) for n, s in zip(spatial, scales, strict=False)]
        scale_factor = None
    if mode == "area":
        pools = (ops.adaptive_avg_pool1d, ops.adaptive_avg_pool2d, ops.adaptive_avg_pool3d)
        pool: Callable[..., Tensor] = pools[len(spatial) - 1]
        return pool(input, size)
    return ops.upsample(input, size, scale_factor, mode, bool(align_corners))


upsample = interpolate


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Make images larger by moving channels into space. See ``ops.pixel_shuffle``."""
    return ops.pixel_shuffle(input, upscale_factor)


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """Make images smaller by moving pixels into channels. See ``ops.pixel_unshuffle``."""
    return ops.pixel_unshuffle(input, downscale_factor)


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Mix channels: those of each of ``groups`` groups come in turn.

    Shapes: input [n, c, *spatial] -> the same; groups divides c
    """
    n, c, *spatial = shape_of(input)
    apart = ops.reshape(input, (n, groups, c // groups, *spatial))
    return ops.reshape(ops.swapaxes(apart, 1, 2), (n, c, *spatial))


def unfold(
    input: Tensor,
    kernel_size: PerAxis,
    dilation: PerAxis = 1,
    padding: PerAxis = 0,
    stride: PerAxis = 1,
) -> Tensor:
    """Write the windows of images [n, c, h, w] as columns. See ``ops.unfold``."""
    return ops.unfold(input, kernel_size, dilation, padding, stride)


def fold(
    input: Tensor,
    output_size: PerAxis,
    kernel_size: PerAxis,
    dilation: PerAxis = 1,
    padding: PerAxis = 0,
    stride: PerAxis = 1,
) -> Tensor:
    """Add up columns at the places of their windows. See ``ops.fold``."""
    return ops.fold(input, output_size, kernel_size, dilation, padding, stride)


# ---- attention ---------------------------------------------------------------------


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return ``softmax(scale * query @ key.T + mask) @ value``.

    See ``ops.scaled_dot_product_attention``. As in PyTorch, dropout always applies, and
    ``is_causal`` lets query i see the keys up to i (Needle's own function aligns the last query
    with the last key). Heads of keys are shared wherever their number divides that of queries.

    Raises:
        OptionError: if both a mask and ``is_causal`` are given.
    """
    if is_causal and attn_mask is not None:
        raise OptionError(
            "scaled_dot_product_attention: attn_mask and is_causal=True\n  rule: one of them"
        )
    t, s = shape_of(query)[-2], shape_of(key)[-2]
    if is_causal and t != s:
        rows, columns = (ops.arange(n, device=query.device) for n in (t, s))
        attn_mask = ops.greater_equal(rows.reshape((t, 1)), columns)
    return ops.scaled_dot_product_attention(
        query, key, value, attn_mask,
        is_causal=is_causal and t == s, dropout=dropout_p, scale=scale,
    )  # fmt: skip
