"""Functions with PyTorch's names and arguments: ``import needle.nn.functional as F``.

Each calls the op that computes it, so results and gradients are those of ``needle.ops``; what is
different is the spelling (``input``, ``dim``, a weight [out, in]) and the defaults of PyTorch.
``inplace=True`` is accepted and changes nothing: use the result.

>>> import needle.nn.functional as F
>>> print(F.relu(Tensor([-1.0, 2.0])), F.softmax(ndl.zeros(1, 2), dim=1))
[0. 2.] [[0.5 0.5]]
"""

from typing import TYPE_CHECKING

from needle.elsewhere import advice as _advice
from needle.errors import missing
from needle.nn.functional.activation import (
    celu,
    dropout,
    dropout1d,
    dropout2d,
    dropout3d,
    elu,
    gelu,
    glu,
    gumbel_softmax,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    log_softmax,
    logsigmoid,
    mish,
    prelu,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    softmax,
    softmin,
    softplus,
    softshrink,
    softsign,
    tanh,
    tanhshrink,
    threshold,
)
from needle.nn.functional.layers import (
    batch_norm,
    bilinear,
    channel_shuffle,
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    embedding,
    fold,
    group_norm,
    instance_norm,
    interpolate,
    layer_norm,
    linear,
    one_hot,
    pad,
    pixel_shuffle,
    pixel_unshuffle,
    rms_norm,
    scaled_dot_product_attention,
    unfold,
    upsample,
)
from needle.nn.functional.loss import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cosine_embedding_loss,
    cosine_similarity,
    cross_entropy,
    gaussian_nll_loss,
    hinge_embedding_loss,
    huber_loss,
    kl_div,
    l1_loss,
    margin_ranking_loss,
    mse_loss,
    nll_loss,
    normalize,
    pairwise_distance,
    poisson_nll_loss,
    smooth_l1_loss,
    triplet_margin_loss,
)
from needle.nn.functional.pool import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "batch_norm", "bilinear", "binary_cross_entropy", "binary_cross_entropy_with_logits", "celu",
    "channel_shuffle", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "cosine_embedding_loss", "cosine_similarity", "cross_entropy", "dropout",
    "dropout1d", "dropout2d", "dropout3d", "elu", "embedding", "fold", "gaussian_nll_loss",
    "gelu", "glu", "group_norm", "gumbel_softmax", "hardshrink", "hardsigmoid", "hardswish",
    "hardtanh", "hinge_embedding_loss", "huber_loss", "instance_norm", "interpolate", "kl_div",
    "l1_loss", "layer_norm", "leaky_relu", "linear", "log_softmax", "logsigmoid",
    "margin_ranking_loss", "max_pool1d", "max_pool2d", "max_pool3d", "mish", "mse_loss",
    "nll_loss", "normalize", "one_hot", "pad", "pairwise_distance", "pixel_shuffle",
    "pixel_unshuffle", "poisson_nll_loss", "prelu", "relu", "relu6", "rms_norm",
    "scaled_dot_product_attention", "selu", "sigmoid", "silu", "smooth_l1_loss", "softmax",
    "softmin", "softplus", "softshrink", "softsign", "tanh", "tanhshrink", "threshold",
    "triplet_margin_loss", "unfold", "upsample",
]  # fmt: skip

_ELSEWHERE = {
    "alpha_dropout": "F.dropout",
    "embedding_bag": "F.embedding(ids, weight).mean(1), .sum(1) or .max(1)",
    "multi_head_attention_forward": "nn.MultiheadAttention",
    "pdist": "needle.cdist(x, x): the distances are above its diagonal",
    "soft_margin_loss": "needle.ops.softplus(-y * x).mean()",
}
"""Advice for names that PyTorch has in this module."""


if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name):
        if name.endswith("_") and name[:-1] in __all__:
            advice = f"x = F.{name[:-1]}(x): functions do not change their input"
            raise missing("needle.nn.functional", name, advice)
        raise missing(
            "needle.nn.functional", name, _ELSEWHERE.get(name) or _advice("nn.functional", name)
        )
