"""Models, each a function or class that makes a module."""

from needle.models.mlp_resnet import MLPResNet, ResidualBlock
