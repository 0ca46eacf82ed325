"""The data set of the loader's bench in PyTorch, as its users write it: transforms in NumPy.

Worker processes import this module, and PyTorch only where they need it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

MEAN, STD = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)


def pictures(n: int) -> tuple[Any, Any]:
    """Return images uint8 [n, 32, 32, 3] and labels [n]."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, n)


def changed(image: Any, rng: Any) -> Any:
    """Return an image that was cropped, flipped and normalised, float32."""
    top, left, turned = rng.integers(0, 9), rng.integers(0, 9), rng.random() < 0.5
    image = np.pad(image, ((4, 4), (4, 4), (0, 0)))[top : top + 32, left : left + 32]
    image = image[:, ::-1] if turned else image
    return (image.astype(np.float32) - np.float32(MEAN)) / np.float32(STD)


class ByItem:
    """One image at a time."""

    def __init__(self, n: int) -> None:
        self.images, self.labels = pictures(n)
        self.rng = np.random.default_rng(1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> Any:
        return changed(self.images[index], self.rng), self.labels[index]


class ByBatch(ByItem):
    """A batch at a time, which PyTorch's sampler asks for as one item."""

    def __getitem__(self, index: Any) -> Any:
        index = np.asarray(index)
        images, n = self.images[index], len(index)
        wide = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)))
        top, left = self.rng.integers(0, 9, (2, n))
        rows = top[:, None] + np.arange(32)
        columns = left[:, None] + np.arange(32)
        turned = self.rng.random(n) < 0.5
        columns = np.where(turned[:, None], columns[:, ::-1], columns)
        taken = wide[np.arange(n)[:, None, None], rows[:, :, None], columns[:, None]]
        return (taken.astype(np.float32) - np.float32(MEAN)) / np.float32(STD), self.labels[index]


def torch_loader(n: int, batch: int, by_batch: bool, workers: int, method: str | None) -> Any:
    """Return PyTorch's loader of the set."""
    import torch.utils.data as torch_data

    more: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    if workers:
        more["multiprocessing_context"] = method
    if not by_batch:
        return torch_data.DataLoader(ByItem(n), batch, shuffle=True, **more)
    dataset = ByBatch(n)
    sampler = torch_data.BatchSampler(torch_data.RandomSampler(dataset), batch, False)
    return torch_data.DataLoader(dataset, sampler=sampler, batch_size=None, **more)
