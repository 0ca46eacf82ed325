"""The course's ResNet-9 on CIFAR-10.

Run from the repository: python apps/resnet9.py [folder of cifar-10-batches-py]
Without a folder the files are taken from NEEDLE_DATA, or downloaded once.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from models import ResNet9

import needle as ndl
from needle import nn


def epoch(loader, model, opt=None):
    """Run once over the images: train with an optimizer, evaluate without.

    Returns:
        Accuracy and mean loss.
    """
    model.train(opt is not None)
    loss_function, right, total, count = nn.SoftmaxLoss(), 0, 0.0, 0
    for x, y in loader:
        with ndl.set_grad_enabled(opt is not None):
            logits = model(x)
            loss = loss_function(logits, y)
        if opt is not None:
            opt.minimize(loss)
        right += int((logits.numpy().argmax(axis=1) == y.numpy()).sum())
        total += loss.item() * len(y)
        count += len(y)
    return right / count, total / count


def train(folder=None, epochs=10, batch_size=128, limit=None):
    """Train on the training images and print each epoch.

    Args:
        folder: with the files; None as ``needle.data.cifar10``.
        epochs: passes over the training images.
        batch_size: images of a step.
        limit: how many images of each part to use; all for None.

    Returns:
        Accuracy and loss on the training images (the last epoch) and on the test images.
    """
    np.random.seed(4)
    parts = [ndl.data.cifar10(folder, train=part, report=print) for part in (True, False)]
    if limit is not None:
        parts = [ndl.data.Subset(part, range(min(limit, len(part)))) for part in parts]
    train_loader = ndl.data.DataLoader(parts[0], batch_size, shuffle=True)
    test_loader = ndl.data.DataLoader(parts[1], batch_size)
    model = ResNet9()
    opt = ndl.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-3)
    for i in range(epochs):
        start = time.time()
        learned = epoch(train_loader, model, opt)
        seen = epoch(test_loader, model)
        print(
            f"epoch {i + 1}: train accuracy {learned[0]:.4f}, loss {learned[1]:.4f}; "
            f"test accuracy {seen[0]:.4f}, loss {seen[1]:.4f}; {time.time() - start:.0f} s"
        )
    return (*learned, *seen)


if __name__ == "__main__":
    train(*sys.argv[1:2])
