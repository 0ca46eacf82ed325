"""Layers, losses, and ``Module``, from which models are made."""

from needle.nn.activation import (
    ACTIVATIONS,
    ELU,
    GELU,
    LeakyReLU,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
    activation,
)
from needle.nn.layers import (
    Dropout,
    Embedding,
    Flatten,
    Identity,
    Linear,
    ModuleList,
    Residual,
    Sequential,
)
from needle.nn.loss import CrossEntropyLoss, MSELoss, SoftmaxLoss
from needle.nn.module import Mismatch, Module, StateDict
from needle.nn.norm import BatchNorm1d, LayerNorm, LayerNorm1d, RMSNorm
from needle.tensor import Parameter
