"""Data sets, the loader of batches, transforms, and where known data sets come from."""

from needle.data.dataset import Dataset, NDArrayDataset
from needle.data.loader import DataLoader, collate
from needle.data.mnist import MNISTDataset, mnist, read_idx
from needle.data.source import SourceBytes, python_source
from needle.data.transforms import RandomCrop, RandomFlipHorizontal, Transform

__all__ = [
    "DataLoader", "Dataset", "MNISTDataset", "NDArrayDataset", "RandomCrop",
    "RandomFlipHorizontal", "SourceBytes", "Transform", "collate", "mnist", "python_source",
    "read_idx",
]  # fmt: skip
