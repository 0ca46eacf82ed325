"""Layers, losses, and ``Module``, from which models are made."""

from importlib import import_module
from typing import TYPE_CHECKING

from needle.elsewhere import advice as _advice
from needle.errors import missing
from needle.nn.activation import (
    ACTIVATIONS,
    CELU,
    ELU,
    GELU,
    GLU,
    SELU,
    Applied,
    Hardshrink,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    Identity,
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
    Softmin,
    Softplus,
    Softshrink,
    Softsign,
    Tanh,
    Tanhshrink,
    Threshold,
    activation,
    register_activation,
)
from needle.nn.attention import (
    AttentionLayer,
    MultiHeadAttention,
    MultiheadAttention,
    attention_weights,
)
from needle.nn.containers import (
    ModuleDict,
    ModuleList,
    ParameterDict,
    ParameterList,
    Sequential,
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
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)
from needle.nn.layers import (
    Bilinear,
    CosineSimilarity,
    Dropout,
    Dropout1d,
    Dropout2d,
    Dropout3d,
    Embedding,
    Flatten,
    Linear,
    PairwiseDistance,
    Residual,
    Unflatten,
)
from needle.nn.loss import (
    BCELoss,
    BCEWithLogitsLoss,
    CosineEmbeddingLoss,
    CrossEntropyLoss,
    GaussianNLLLoss,
    HingeEmbeddingLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MarginRankingLoss,
    MSELoss,
    NLLLoss,
    PoissonNLLLoss,
    SmoothL1Loss,
    SoftmaxLoss,
    TripletMarginLoss,
)
from needle.nn.module import Mismatch, Module, StateDict
from needle.nn.norm import BatchNorm1d, LayerNorm, LayerNorm1d, RMSNorm
from needle.nn.packed import PackedSequence, pack_padded_sequence, pad_packed_sequence
from needle.nn.pool import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    CircularPad1d,
    CircularPad2d,
    ConstantPad1d,
    ConstantPad2d,
    Fold,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    PixelShuffle,
    PixelUnshuffle,
    ReflectionPad1d,
    ReflectionPad2d,
    ReplicationPad1d,
    ReplicationPad2d,
    Unfold,
    Upsample,
    ZeroPad1d,
    ZeroPad2d,
)
from needle.nn.recurrent import (
    GRU,
    LSTM,
    RNN,
    GRUCell,
    LSTMCell,
    RNNCell,
)
from needle.nn.substitution import functional_call
from needle.nn.transformer import (
    LearnedPositions,
    Transformer,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
    TransformerLayer,
)
from needle.ops.core.dims import speak_layers as _speak_layers
from needle.ops.core.kinds import check_all as _check_all
from needle.ops.core.kinds import check_layers as _check_layers
from needle.tensors import Parameter

__all__ = [
    "ACTIVATIONS", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "Applied", "AttentionLayer",
    "AvgPool1d", "AvgPool2d", "AvgPool3d", "BCELoss", "BCEWithLogitsLoss", "BatchNorm1d",
    "BatchNorm2d", "BatchNorm3d", "Bilinear", "CELU", "CircularPad1d",
    "CircularPad2d", "ConstantPad1d", "ConstantPad2d", "Conv", "Conv1d", "Conv2d", "Conv3d",
    "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "CosineEmbeddingLoss",
    "CosineSimilarity", "CrossEntropyLoss", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d",
    "ELU", "Embedding", "Flatten", "Fold", "GELU", "GLU", "GRU", "GRUCell", "GaussianNLLLoss",
    "GroupNorm", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "HingeEmbeddingLoss",
    "HuberLoss", "Identity", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "KLDivLoss",
    "L1Loss", "LSTM", "LSTMCell", "LayerNorm", "LayerNorm1d", "LeakyReLU", "LearnedPositions",
    "Linear", "LogSigmoid", "LogSoftmax", "MSELoss", "MarginRankingLoss", "MaxPool1d",
    "MaxPool2d", "MaxPool3d", "Mish", "Mismatch", "Module", "ModuleDict", "ModuleList",
    "MultiHeadAttention", "MultiheadAttention", "NLLLoss", "PReLU", "PackedSequence",
    "PairwiseDistance", "Parameter", "ParameterDict", "ParameterList", "PixelShuffle",
    "PixelUnshuffle", "PoissonNLLLoss", "RMSNorm", "RNN", "RNNCell", "ReLU", "ReLU6",
    "ReflectionPad1d", "ReflectionPad2d", "ReplicationPad1d", "ReplicationPad2d", "Residual",
    "SELU", "Sequential", "SiLU", "Sigmoid", "SmoothL1Loss", "Softmax", "SoftmaxLoss", "Softmin",
    "Softplus", "Softshrink", "Softsign", "StateDict", "Tanh", "Tanhshrink", "Threshold",
    "Transformer", "TransformerDecoderLayer", "TransformerEncoderLayer", "TransformerLayer",
    "TripletMarginLoss", "Unflatten", "Unfold", "Upsample", "ZeroPad1d", "ZeroPad2d",
    "activation", "attention_weights", "fold_batch_norm", "functional", "functional_call", "init",
    "pack_padded_sequence", "pad_packed_sequence", "register_activation", "utils",
]  # fmt: skip

_speak_layers(globals())
_check_layers(globals())
_check_all(globals())

_ROOMS = ("functional", "init", "utils")
"""Modules with PyTorch's names, imported at their first use."""

if TYPE_CHECKING:
    from needle.nn import functional, init, utils
else:  # type checkers would give every misspelt name a type

    def __getattr__(name):
        if name in _ROOMS:
            return import_module(f"needle.nn.{name}")
        raise missing("needle.nn", name, _advice("nn", name))
