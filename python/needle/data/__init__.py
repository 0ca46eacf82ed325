"""Data sets, DataLoader, transforms, and loaders of well-known data sets."""

from typing import TYPE_CHECKING

from needle.data.augment import *
from needle.data.cifar import *
from needle.data.collate import *
from needle.data.columns import *
from needle.data.dataset import *
from needle.data.fashion import *
from needle.data.images import *
from needle.data.loader import DataLoader as DataLoader
from needle.data.mnist import *
from needle.data.samplers import *
from needle.data.source import *
from needle.data.stream import *
from needle.data.text import *
from needle.data.tokenizers import *
from needle.data.tokens import *
from needle.data.transforms import *
from needle.data.worker import rng as rng
from needle.elsewhere import publish as _publish
from needle.errors import missing as _missing

_publish(globals())

_ELSEWHERE = {"TensorDataset": "NDArrayDataset(x, y), or needle.utils.data.TensorDataset(x, y)"}
"""Advice for names that PyTorch has in this module."""


if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name):
        raise _missing("needle.data", name, _ELSEWHERE.get(name, ""))
