"""The course's first model: an MLP with residual blocks on MNIST.

Run from the repository: python apps/mlp_resnet.py [folder of the MNIST files]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

import needle as ndl
from needle import nn
from needle.models.mlp_resnet import MLPResNet, ResidualBlock

__all__ = ["MLPResNet", "ResidualBlock", "epoch", "train_mnist"]


def epoch(dataloader, model, opt=None):
    """Run once over the data: train with an optimizer, evaluate without.

    Returns:
        Error rate and mean loss per sample.
    """
    np.random.seed(4)
    model.train(opt is not None)
    loss_function = nn.SoftmaxLoss()
    wrong, total_loss, count = 0, 0.0, 0
    for x, y in dataloader:
        if opt is None:
            with ndl.no_grad():
                logits = model(x.reshape((len(y), -1)))
                loss = loss_function(logits, y)
        else:
            logits = model(x.reshape((len(y), -1)))
            loss = loss_function(logits, y)
            opt.minimize(loss)
        wrong += int((logits.numpy().argmax(axis=1) != y.numpy()).sum())
        total_loss += loss.item() * len(y)
        count += len(y)
    return wrong / count, total_loss / count


def train_mnist(
    batch_size=100,
    epochs=10,
    optimizer=ndl.optim.Adam,
    lr=0.001,
    weight_decay=0.001,
    hidden_dim=100,
    data_dir="data",
):
    """Train on MNIST.

    Returns:
        Training error and loss of the last epoch, test error and loss.
    """
    np.random.seed(4)
    folder = Path(data_dir)
    train, test = (
        ndl.data.MNISTDataset(
            str(folder / f"{part}-images-idx3-ubyte.gz"),
            str(folder / f"{part}-labels-idx1-ubyte.gz"),
        )
        for part in ("train", "t10k")
    )
    model = MLPResNet(28 * 28, hidden_dim)
    opt = optimizer(model.parameters(), lr=lr, weight_decay=weight_decay)
    loader = ndl.data.DataLoader(train, batch_size, shuffle=True)
    for _ in range(epochs):
        train_error, train_loss = epoch(loader, model, opt)
    test_error, test_loss = epoch(ndl.data.DataLoader(test, batch_size), model)
    return train_error, train_loss, test_error, test_loss


if __name__ == "__main__":
    start = time.time()
    results = train_mnist(data_dir=sys.argv[1] if len(sys.argv) > 1 else "data")
    print("train error {:.4f}, loss {:.4f}; test error {:.4f}, loss {:.4f}".format(*results))
    print(f"{time.time() - start:.0f} s")
