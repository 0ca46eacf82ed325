"""Layers, losses, and ``Module``, from which models are made."""

from typing import TYPE_CHECKING

from needle.errors import missing
from needle.nn.activation import (
    ACTIVATIONS,
    ELU,
    GELU,
    GLU,
    SELU,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Softsign,
    Tanh,
    activation,
)
from needle.nn.conv import (
    Conv,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from needle.nn.fold import fold_batch_norm
from needle.nn.image_norm import (
    BatchNorm2d,
    BatchNorm3d,
    BatchNormReLU2d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)
from needle.nn.layers import (
    Dropout,
    Dropout2d,
    Embedding,
    Flatten,
    Identity,
    Linear,
    ModuleDict,
    ModuleList,
    Residual,
    Sequential,
    Unflatten,
)
from needle.nn.loss import (
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
    SoftmaxLoss,
)
from needle.nn.module import Mismatch, Module, StateDict
from needle.nn.norm import BatchNorm1d, LayerNorm, LayerNorm1d, RMSNorm
from needle.nn.pool import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    Upsample,
)
from needle.tensor import Parameter

_ELSEWHERE = {
    "functional": "needle.relu(x), needle.cross_entropy(...): functions are in needle itself",
    "utils": "needle.optim.clip_grad_norm, needle.optim.clip_grad_value",
    "init": "needle.init",
    "BCELoss": "BCEWithLogitsLoss, which takes what comes before the sigmoid",
    "CosineSimilarity": "needle.cosine_similarity(x, y)",
    "KLDivLoss": "needle.kl_divergence(x, target)",
    "ParameterDict": "a dict of Parameters as an attribute",
    "ParameterList": "a list of Parameters as an attribute",
}
"""Names that PyTorch has here: what to try."""


if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name):
        raise missing("needle.nn", name, _ELSEWHERE.get(name, ""))
