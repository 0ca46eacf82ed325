"""Data sets, DataLoader, transforms, and loaders of well-known data sets."""

from typing import TYPE_CHECKING

from needle.data.augment import (
    Augment,
    BatchTransform,
    ColourJitter,
    CompiledAugment,
    Cutout,
    Normalise,
    RandomCrops,
    RandomFlips,
    Resize,
)
from needle.data.cifar import CIFAR10Dataset, cifar10, read_cifar_binary, read_cifar_pickle
from needle.data.collate import collate
from needle.data.columns import Columns, read_csv, read_parquet
from needle.data.dataset import ConcatDataset, Dataset, NDArrayDataset, Subset, random_split
from needle.data.fashion import fashion_mnist
from needle.data.images import ImageFolder, UnpairedImages, read_image
from needle.data.loader import DataLoader
from needle.data.mnist import MNISTDataset, mnist, read_idx
from needle.data.samplers import (
    DistributedSampler,
    LengthBatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)
from needle.data.source import SourceBytes, python_source
from needle.data.stream import IterableDataset, ShuffleBuffer
from needle.data.text import Corpus, Dictionary, batchify, get_batch, penn_treebank
from needle.data.tokenizers import (
    ByteTokenizer,
    TextFile,
    Tokenizer,
    WordTokenizer,
    load_tokenizer,
)
from needle.data.tokens import TokenFile, write_tokens
from needle.data.transforms import RandomCrop, RandomFlipHorizontal, Transform
from needle.data.worker import rng
from needle.errors import missing

__all__ = [
    "Augment", "BatchTransform", "ByteTokenizer", "CIFAR10Dataset", "ColourJitter", "Columns",
    "CompiledAugment", "ConcatDataset", "Corpus", "Cutout", "DataLoader", "Dataset", "Dictionary",
    "DistributedSampler", "ImageFolder", "IterableDataset", "LengthBatchSampler", "MNISTDataset",
    "NDArrayDataset", "Normalise", "RandomCrop", "RandomCrops", "RandomFlipHorizontal",
    "RandomFlips", "RandomSampler", "Resize", "Sampler", "SequentialSampler", "ShuffleBuffer",
    "SourceBytes", "Subset", "TextFile", "TokenFile", "Tokenizer", "Transform", "UnpairedImages",
    "WeightedRandomSampler", "WordTokenizer", "batchify", "cifar10", "collate", "fashion_mnist",
    "get_batch", "load_tokenizer", "mnist", "penn_treebank", "python_source", "random_split",
    "read_cifar_binary", "read_cifar_pickle", "read_csv", "read_idx", "read_image",
    "read_parquet", "rng", "write_tokens",
]  # fmt: skip

_ELSEWHERE = {"TensorDataset": "NDArrayDataset(x, y), or needle.utils.data.TensorDataset(x, y)"}
"""Advice for names that PyTorch has in this module."""


if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name):
        raise missing("needle.data", name, _ELSEWHERE.get(name, ""))
