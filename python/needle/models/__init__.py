"""Models, each a function or class that makes a module."""

from needle.models.byte_lstm import ByteLSTM
from needle.models.byte_mlp import ByteMLP
from needle.models.cyclegan import (
    CycleGAN,
    DCGANGenerator,
    ImagePool,
    PatchDiscriminator,
    ResNetGenerator,
)
from needle.models.gpt import GPT, KVCache
from needle.models.language_model import LanguageModel
from needle.models.mlp_resnet import MLPResNet, ResidualBlock
from needle.models.resnet9 import CNN, ConvBN, DawnResNet9, ResNet9

__all__ = [
    "ByteLSTM", "ByteMLP", "CNN", "ConvBN", "CycleGAN", "DCGANGenerator", "DawnResNet9", "GPT",
    "ImagePool", "KVCache", "LanguageModel", "MLPResNet", "PatchDiscriminator", "ResNet9",
    "ResNetGenerator", "ResidualBlock",
]  # fmt: skip
