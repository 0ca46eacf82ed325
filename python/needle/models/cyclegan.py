"""CycleGAN: image-to-image translation learned from unpaired images.

Zhu, Park, Isola, Efros, "Unpaired image-to-image translation using cycle-consistent adversarial
networks", 2017, arXiv:1703.10593: sections 3 (losses), 4 (history of images) and 7.2 (networks).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from needle import init, nn, ops
from needle.ops import random
from needle.tensors import Parameter, Tensor

STD = 0.02
"""Standard deviation of the initial weights."""


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with instance norm and mirrored edges, added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, padding_mode="reflect"),
            nn.InstanceNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, padding_mode="reflect"),
            nn.InstanceNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.path(x)


def ResNetGenerator(channels: int = 3, width: int = 64, blocks: int = 6) -> nn.Sequential:
    """Return the paper's generator: two halvings, residual blocks, two doublings.

    Shapes:   x [n, channels, h, w] in [-1, 1] -> the same; h and w are multiples of 4

    Args:
        channels: number of channels of the images.
        width: number of channels after the first layer.
        blocks: number of residual blocks; the paper uses 6 for images of 128 pixels, 9 for 256.
    """
    layers: list[nn.Module] = [
        nn.Conv2d(channels, width, 7, padding=3, padding_mode="reflect"),
        nn.InstanceNorm2d(width),
        nn.ReLU(),
    ]
    for factor in (1, 2):
        down = nn.Conv2d(factor * width, 2 * factor * width, 3, stride=2, padding=1)
        layers += [down, nn.InstanceNorm2d(2 * factor * width), nn.ReLU()]
    layers += [ResidualBlock(4 * width) for _ in range(blocks)]
    for factor in (2, 1):
        up = nn.ConvTranspose2d(2 * factor * width, factor * width, 3, 2, 1, output_padding=1)
        layers += [up, nn.InstanceNorm2d(factor * width), nn.ReLU()]
    last = nn.Conv2d(width, channels, 7, padding=3, padding_mode="reflect")
    return initialised(nn.Sequential(*layers, last, nn.Tanh()))


def DCGANGenerator(channels: int = 3, width: int = 32, blocks: int = 3) -> nn.Sequential:
    """Return a small generator with DCGAN's layers: 4 x 4 kernels of stride 2, both ways.

    Radford, Metz, Chintala, "Unsupervised representation learning with deep convolutional
    generative adversarial networks", 2015, arXiv:1511.06434.

    Shapes:   x [n, channels, h, w] in [-1, 1] -> the same; h and w are multiples of 4

    Args:
        channels: number of channels of the images.
        width: number of channels after the first layer.
        blocks: number of residual blocks in the middle.
    """
    return initialised(
        nn.Sequential(
            nn.Conv2d(channels, width, 4, stride=2, padding=1),
            nn.InstanceNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
            nn.InstanceNorm2d(2 * width),
            nn.ReLU(),
            *[ResidualBlock(2 * width) for _ in range(blocks)],
            nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1),
            nn.InstanceNorm2d(width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, channels, 4, stride=2, padding=1),
            nn.Tanh(),
        )
    )


def PatchDiscriminator(channels: int = 3, width: int = 64, layers: int = 3) -> nn.Sequential:
    """Return a discriminator that judges overlapping patches, with one number for each.

    With 3 layers it sees patches of 70 x 70 pixels (Isola et al., 2017, arXiv:1611.07004).

    Shapes:   x [n, channels, h, w] -> [n, 1, h', w']

    Args:
        channels: number of channels of the images.
        width: number of channels after the first layer.
        layers: number of times that the image is halved.
    """
    found: list[nn.Module] = [nn.Conv2d(channels, width, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
    ins = width
    for i in range(1, layers + 1):
        outs = width * min(2**i, 8)
        stride = 2 if i < layers else 1
        found += [
            nn.Conv2d(ins, outs, 4, stride=stride, padding=1),
            nn.InstanceNorm2d(outs),
            nn.LeakyReLU(0.2),
        ]
        ins = outs
    return initialised(nn.Sequential(*found, nn.Conv2d(ins, 1, 4, padding=1)))


def initialised(model: nn.Sequential) -> nn.Sequential:
    """Draw the weights of convolutions from N(0, 0.02), set biases to zero; return the model."""
    for _, module in model.named_modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            weight: Any = module.weight
            order = (weight.ndim - 2, weight.ndim - 1)
            drawn = init.randn(*weight.shape[2:], weight.shape[1], weight.shape[0], std=STD)
            module.weight = Parameter(ops.permute(drawn, (order[1], order[0], *range(order[0]))))
            if module.bias is not None:
                module.bias = Parameter(init.zeros(*module.bias.shape))
    return model


class CycleGAN(nn.Module):
    """Two generators and two discriminators, and the losses that train them.

    Attributes:
        to_b, to_a: generators from A to B, and from B to A.
        is_a, is_b: discriminators: near 1 for real images, near 0 for generated images.

    Args:
        generator: makes a generator.
        discriminator: makes a discriminator.
        cycle: weight of the cycle loss.
        identity: weight of the identity loss, relative to that of the cycle loss.
    """

    def __init__(
        self,
        generator: Callable[[], nn.Module] = ResNetGenerator,
        discriminator: Callable[[], nn.Module] = PatchDiscriminator,
        cycle: float = 10.0,
        identity: float = 0.5,
    ) -> None:
        super().__init__()
        self.cycle, self.identity = cycle, identity
        self.to_b, self.to_a = generator(), generator()
        self.is_a, self.is_b = discriminator(), discriminator()

    def forward(self, a: Tensor) -> Tensor:
        return self.to_b(a)

    def generator_losses(self, a: Tensor, b: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Return the generators' losses by name, and the generated images: B from a, A from b.

        The discriminators are constants here and get no gradient.
        """
        for judge in (self.is_a, self.is_b):
            judge.requires_grad_(False)
        try:
            fake_b, fake_a = self.to_b(a), self.to_a(b)
            losses = {
                "adversarial": _squares(self.is_b(fake_b), 1.0) + _squares(self.is_a(fake_a), 1.0),
                "cycle": _distance(self.to_a(fake_b), a) + _distance(self.to_b(fake_a), b),
            }
            losses["cycle"] = losses["cycle"] * self.cycle
            if self.identity:
                same = _distance(self.to_b(b), b) + _distance(self.to_a(a), a)
                losses["identity"] = same * (self.cycle * self.identity)
        finally:
            for judge in (self.is_a, self.is_b):
                judge.requires_grad_(True)
        return losses, fake_b, fake_a

    def discriminator_loss(self, a: Tensor, b: Tensor, fake_a: Tensor, fake_b: Tensor) -> Tensor:
        """Return the discriminators' loss on real and on generated images, which are constants."""
        total = None
        for judge, real, fake in ((self.is_a, a, fake_a), (self.is_b, b, fake_b)):
            loss = (_squares(judge(real), 1.0) + _squares(judge(fake.detach()), 0.0)) * 0.5
            total = loss if total is None else total + loss
        assert total is not None
        return total


def _squares(judged: Tensor, target: float) -> Tensor:
    """Return the mean squared distance to a target: least squares GAN (Mao et al., 2016)."""
    return ops.mean(ops.square(judged - target))


def _distance(x: Tensor, y: Tensor) -> Tensor:
    return ops.mean(ops.absolute(x - y))


class ImagePool:
    """Replace half of the generated images by earlier ones.

    Shrivastava et al., "Learning from simulated and unsupervised images", 2016, arXiv:1612.07828,
    section 2.3: so the discriminator does not forget earlier generators.

    Attributes:
        images: the earlier images, [size, c, h, w]; None before the first ones.
        count: how many of them there are.

    Args:
        size: number of earlier images to keep; 0 always returns the new ones.
    """

    def __init__(self, size: int = 50) -> None:
        self.size, self.count = size, 0
        self.images: Tensor | None = None

    def exchange(self, images: Tensor) -> Tensor:
        """Return images [n, c, h, w]: each is the new one, or an earlier one that it replaces."""
        return self.swap(images, self.draw(images)) if self.size else images.detach()

    def draw(self, images: Tensor) -> Tensor:
        """Draw on the host which earlier images the next ones replace.

        Args:
            images: images of the same shape as the next ones, and on the same device.

        Returns:
            For each image that is returned, then for each that is kept, its place among the
            earlier images and the new ones behind them: int32 [n + size].
        """
        if self.images is None:
            shape, where = (self.size, *images.shape[1:]), images.device
            self.images = ops.zeros(shape, dtype=images.dtype, device=where)
        returned, kept = [], list(range(self.size))
        for new in range(self.size, self.size + images.shape[0]):
            if self.count < self.size:
                kept[self.count], out = new, new
                self.count += 1
            elif random.host_uniform() < 0.5:
                place = int(random.host_integers(0, self.size, 1)[0])
                out, kept[place] = kept[place], new
            else:
                out = new
            returned.append(out)
        order = np.array(returned + kept, np.int32)
        return Tensor(order, device=images.device, requires_grad=False)

    def swap(self, images: Tensor, order: Tensor) -> Tensor:
        """Return and keep images as ``draw`` said; it may be part of a compiled function."""
        assert self.images is not None
        n, known = images.shape[0], ops.concat((self.images, images.detach()))
        self.images.data = known[order[n:]]
        return known[order[:n]]

    def kept(self) -> list[Tensor]:
        """Return the earlier images, [c, h, w]."""
        return [] if self.images is None else [self.images[i] for i in range(self.count)]

    def load(self, images: Sequence[Any]) -> None:
        """Keep these earlier images, arrays [c, h, w], and no others."""
        self.count = len(images)
        if images:
            rows = [*images, *[np.zeros_like(images[0])] * (self.size - self.count)]
            kept = Tensor(np.stack(rows), requires_grad=False)
            if self.images is None:
                self.images = kept
            else:
                self.images.data = kept
