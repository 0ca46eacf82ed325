"""A generative adversarial network that learns a Gaussian in the plane.

Goodfellow et al., "Generative adversarial networks", 2014, arXiv:1406.2661. A generator moves
noise; a discriminator tells its points from real ones. Each learns from the other's mistakes.

Run from the repository: python apps/gan.py [steps]
"""

from __future__ import annotations

import sys

import numpy as np

import needle as ndl
from needle import nn, optim

MEAN = np.array([2.0, 1.0])
MIX = np.array([[1.0, 2.0], [-0.2, 0.5]])
"""Real points are noise @ MIX + MEAN, so their covariance is MIX.T @ MIX."""


def points(n, rng):
    """Return n real points [n, 2]."""
    return (rng.standard_normal((n, 2)) @ MIX + MEAN).astype(np.float32)


def train(steps=1500, batch_size=256, seed=0):
    """Train both networks and print the moments of what the generator makes.

    Returns:
        Mean [2] and covariance [2, 2] of 10,000 generated points.
    """
    rng = np.random.default_rng(seed)
    ndl.manual_seed(seed)
    generator = nn.Linear(2, 2)
    discriminator = nn.Sequential(
        nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 10), nn.ReLU(), nn.Linear(10, 2)
    )
    loss_function = nn.SoftmaxLoss()
    learn_g = optim.Adam(generator.parameters(), lr=0.005, beta1=0.5)
    learn_d = optim.Adam(discriminator.parameters(), lr=0.005, beta1=0.5)
    real = ndl.ones(batch_size, dtype="int32")
    fake = ndl.zeros(batch_size, dtype="int32")

    def noise(n):
        return ndl.Tensor(rng.standard_normal((n, 2)).astype(np.float32), requires_grad=False)

    for step in range(1, steps + 1):
        x = ndl.Tensor(points(batch_size, rng), requires_grad=False)
        made = generator(noise(batch_size))
        loss_d = loss_function(discriminator(x), real)
        loss_d = loss_d + loss_function(discriminator(made.detach()), fake)
        learn_d.minimize(loss_d)
        loss_g = loss_function(discriminator(made), real)  # it wants to be taken for real
        learn_g.minimize(loss_g)
        if step % max(1, steps // 5) == 0:
            print(f"step {step}: discriminator {loss_d.item():.3f}, generator {loss_g.item():.3f}")
    made = generator(noise(10_000)).numpy()
    mean, covariance = made.mean(axis=0), np.cov(made.T)
    print("real mean", MEAN.round(2), "generated", mean.round(2))
    print(
        "real covariance",
        (MIX.T @ MIX).round(2).tolist(),
        "generated",
        covariance.round(2).tolist(),
    )
    return mean, covariance


if __name__ == "__main__":
    train(*map(int, sys.argv[1:2]))
