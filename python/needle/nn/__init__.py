"""Layers, losses, and ``Module``, from which models are made."""

from needle.nn.activation import ReLU, Sigmoid, Tanh, activation
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
from needle.tensor import Parameter
