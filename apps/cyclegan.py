"""CycleGAN: oranges from apples, learned from images that are not paired.

Zhu et al., 2017, arXiv:1703.10593; the networks are in needle/models/cyclegan.py.

Run from the repository: python apps/cyclegan.py [folder with trainA, trainB] [epochs]
Without a folder the images are those of apple2orange in NEEDLE_DATA.
`needle train cyclegan` does the same with pictures, checkpoints and a report.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import needle as ndl
from needle.models.cyclegan import CycleGAN, DCGANGenerator, ImagePool, PatchDiscriminator


def train(folder=None, epochs=10, size=64, batch_size=4, width=32):
    """Train two generators and two discriminators, and print the mean losses of each epoch.

    Args:
        folder: with trainA and trainB; None for apple2orange in NEEDLE_DATA.
        epochs: passes over the images.
        size: images are resized to this many pixels.
        batch_size: pairs of images of a step.
        width: channels of the first layers.

    Returns:
        The mean losses of the last epoch, by name.
    """
    found = Path(folder or Path(os.environ.get("NEEDLE_DATA", "data")) / "apple2orange")
    ndl.manual_seed(0)
    images = ndl.data.UnpairedImages(found, size=size, report=print)
    loader = ndl.data.DataLoader(images, batch_size, shuffle=True)
    model = CycleGAN(lambda: DCGANGenerator(width=width), lambda: PatchDiscriminator(width=width))
    makers = [*model.to_a.parameters(), *model.to_b.parameters()]
    judges = [*model.is_a.parameters(), *model.is_b.parameters()]
    learn_makers = ndl.optim.Adam(makers, lr=2e-4, beta1=0.5)
    learn_judges = ndl.optim.Adam(judges, lr=2e-4, beta1=0.5)
    pool_a, pool_b = ImagePool(), ImagePool()
    for epoch in range(int(epochs)):
        start, sums = time.time(), {}
        for a, b in loader:
            losses, fake_b, fake_a = model.generator_losses(a, b)
            learn_makers.minimize(sum(losses.values()))
            judged = model.discriminator_loss(
                a, b, pool_a.exchange(fake_a), pool_b.exchange(fake_b)
            )
            learn_judges.minimize(judged)
            for name, loss in {**losses, "discriminator": judged}.items():
                sums[name] = sums.get(name, 0.0) + loss.item() / len(loader)
        shown = ", ".join(f"{name} {value:.3f}" for name, value in sums.items())
        print(f"epoch {epoch + 1}: {shown}; {time.time() - start:.0f} s")
    return sums


if __name__ == "__main__":
    train(*sys.argv[1:3])
