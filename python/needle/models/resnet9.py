"""Small convolution networks for 32 x 32 images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from needle import nn, ops
from needle.tensors import Tensor

if TYPE_CHECKING:
    from needle.typing import DeviceLike, DTypeLike


def ConvBN(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    stride: int = 1,
    bias: bool = True,
    device: DeviceLike = None,
    dtype: DTypeLike = "float32",
) -> nn.Sequential:
    """Return ``relu(norm(conv(x)))``.

    Shapes:   x [n, in_channels, h, w] -> [n, out_channels, h', w'], h' = ceil(h / stride) for odd
              kernels
    """
    return nn.Sequential(
        nn.Conv(in_channels, out_channels, kernel_size, stride, bias, device, dtype),
        nn.BatchNorm2d(out_channels, device=device, dtype=dtype),
        nn.ReLU(),
    )


def ResNet9(device: DeviceLike = None, dtype: DTypeLike = "float32") -> nn.Sequential:
    """Return the course's ResNet-9 for CIFAR-10: 431,946 parameters.

    Shapes:   x [n, 3, 32, 32] -> logits [n, 10]
    """
    where: dict[str, Any] = {"device": device, "dtype": dtype}

    def twice(width: int) -> nn.Residual:
        path = [ConvBN(width, width, 3, **where) for _ in range(2)]
        return nn.Residual(nn.Sequential(*path))

    return nn.Sequential(  # built in the order in which it runs, which fixes the random draws
        ConvBN(3, 16, 7, 4, **where),
        ConvBN(16, 32, 3, 2, **where),
        twice(32),
        ConvBN(32, 64, 3, 2, **where),
        ConvBN(64, 128, 3, 2, **where),
        twice(128),
        nn.Flatten(),
        nn.Linear(128, 128, **where),
        nn.ReLU(),
        nn.Linear(128, 10, **where),
    )


class Scale(nn.Module):
    """Multiply by a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor

    def extra_repr(self) -> str:
        return f"{self.factor}"


def DawnResNet9(
    num_classes: int = 10, width: int = 64, device: DeviceLike = None, dtype: DTypeLike = "float32"
) -> nn.Sequential:
    """Return the wide ResNet-9 that won DAWNBench's training time on CIFAR-10 (D. Page, 2018).

    It has 64, 128, 256 and 512 channels and halves the image three times, with a residual pair of
    convolutions at 128 and at 512 channels.

    Shapes:   x [n, 3, 32, 32] -> logits [n, num_classes]

    Args:
        num_classes: size of the output.
        width: number of channels of the first layer.
        device: device of the parameters; the default device for None.
        dtype: their element type.
    """
    where: dict[str, Any] = {"device": device, "dtype": dtype}

    def block(ins: int, outs: int, residual: bool) -> list[nn.Module]:
        layers: list[nn.Module] = [ConvBN(ins, outs, 3, bias=False, **where), nn.MaxPool2d(2)]
        if residual:
            path = [ConvBN(outs, outs, 3, bias=False, **where) for _ in range(2)]
            layers.append(nn.Residual(nn.Sequential(*path)))
        return layers

    return nn.Sequential(
        ConvBN(3, width, 3, bias=False, **where),
        *block(width, 2 * width, True),
        *block(2 * width, 4 * width, False),
        *block(4 * width, 8 * width, True),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(8 * width, num_classes, bias=False, **where),
        Scale(0.125),
    )


def CNN(
    num_classes: int = 10, width: int = 32, device: DeviceLike = None, dtype: DTypeLike = "float32"
) -> nn.Sequential:
    """Return a plain network: three pairs of convolutions, each halving the image, and a head.

    Shapes:   x [n, 3, h, w] -> logits [n, num_classes]; h and w at least 8

    Args:
        num_classes: size of the output.
        width: number of channels of the first pair; each later pair has twice as many.
        device: device of the parameters; the default device for None.
        dtype: their element type.
    """
    layers: list[nn.Module] = []
    channels = 3
    for factor in (1, 2, 4):
        for _ in range(2):
            layers.append(ConvBN(channels, factor * width, 3, device=device, dtype=dtype))
            channels = factor * width
        layers.append(nn.MaxPool2d(2))
    head = nn.Linear(channels, num_classes, device=device, dtype=dtype)
    return nn.Sequential(*layers, GlobalAverage(), head)


class GlobalAverage(nn.Module):
    """Average each channel over the whole image: [n, c, h, w] -> [n, c]."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.mean(x, (2, 3))
