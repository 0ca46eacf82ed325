"""The course's models for its fourth homework."""

from __future__ import annotations

import numpy as np

from needle.models.language_model import LanguageModel
from needle.models.resnet9 import ConvBN, ResNet9

__all__ = ["ConvBN", "LanguageModel", "ResNet9"]

np.random.seed(0)
