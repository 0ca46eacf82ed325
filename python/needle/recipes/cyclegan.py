"""cyclegan: translate images of one kind into another, learned from unpaired images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from needle import nn, ops, optim
from needle.data import Augment, RandomCrops, RandomFlips, UnpairedImages
from needle.data.download import given_folder
from needle.errors import DataError, OptionError
from needle.models.cyclegan import CycleGAN, DCGANGenerator, ImagePool, PatchDiscriminator
from needle.recipes.recipe import Groups, ImageRecipe, Items
from needle.tensors import Tensor
from needle.tools import pictures
from needle.tools.run import RunFolder

SHOWN = 8
"""Number of test images of each kind in a picture."""
PARTS = ("adversarial", "cycle", "identity", "discriminator")
"""Names of the losses."""
ROW_LABELS = ("A", "A to B", "A to B to A", "B", "B to A", "B to A to B")
EPOCH = 32
"""Bits of an index below the number of its pass."""
ROWS = 10
"""Number of images that an evaluation translates together."""


class Pairs(Items):
    """Pairs of images that do not belong together, shifted and mirrored.

    They are a function of the indices: ``epoch << EPOCH | i`` is image i of the first kind and a
    random one of the second.

    Args:
        a, b: images, bytes [n, h, w, 3].
        seed: of the choice and of the changes.
    """

    def __init__(self, a: Any, b: Any, seed: int) -> None:
        super().__init__()
        self.a, self.b, self.seed = a, b, seed
        self.augment = Augment(RandomCrops(4, "reflect"), RandomFlips(), seed=seed)

    def __len__(self) -> int:
        return max(len(self.a), len(self.b))

    def batch(self, indices: Any) -> Any:
        """Return images of both kinds, float32 [n, 3, h, w] in [-1, 1]."""
        epoch, own = int(indices[0]) >> EPOCH, (indices & (2**EPOCH - 1)) % len(self.a)
        draw = np.random.default_rng([self.seed, epoch, int(indices[0]) & (2**EPOCH - 1)])
        others = draw.integers(0, len(self.b), len(indices))
        a = self.augment(self.a[own], own, epoch)
        b = self.augment(self.b[others], len(self.a) + others, epoch)
        return _signed(a), _signed(b)


class CycleGanRecipe(ImageRecipe):
    """Train on shifted and mirrored images of trainA and trainB; evaluate on testA and testB.

    Adam with beta1 = 0.5; the rate is constant in the first half of the run, then falls linearly to
    zero. Generators and discriminators step together. In the paper, too, discriminators learn from
    images made before the generators' step, so the order makes no difference.
    """

    name = "cyclegan"
    summary = "translate images A to B and back (--data: folder with trainA, trainB, testA, testB)"
    curve_unit = "sum of the losses"
    batch_size = 4
    lr = 2e-4
    epochs = 100
    size = 64

    def load(self, report: Callable[[str], None]) -> None:
        """Read both folders of images. Raises OptionError if nobody says where they are."""
        given = given_folder(self.settings.data)
        if given is None:
            raise OptionError(
                "cyclegan: expected --data FOLDER with trainA, trainB, testA, testB\n"
                "  or NEEDLE_DATA, a folder with apple2orange/trainA and so on"
            )
        named = given / "apple2orange"
        folder = named if self.settings.data is None and named.is_dir() else given
        self.train = UnpairedImages(folder, size=self.size, report=report)
        self.test = UnpairedImages(folder, ("testA", "testB"), self.size, report=report)
        self.pools = {"a": ImagePool(), "b": ImagePool()}
        self.parts = ops.zeros((len(PARTS),))

    def describe_data(self) -> dict[str, Any]:
        kinds = {"train": self.train, "test": self.test}
        return {f"{k}_images": [len(images.a), len(images.b)] for k, images in kinds.items()}

    def model(self) -> nn.Module:
        return CycleGAN(DCGANGenerator, lambda: PatchDiscriminator(width=32))

    def optimizer(self, model: nn.Module, steps: int) -> optim.Optimizer:
        half = max(1, steps // 2)
        schedule = optim.Chain((self.lr, half), optim.Linear(self.lr, 0.0, max(1, steps - half)))
        return optim.Adam(model.parameters(), lr=schedule, beta1=0.5, beta2=0.999)

    def batches(self) -> Any:
        pairs = Pairs(self.train.a, self.train.b, self.settings.seed)
        return self.loader(pairs, batch_sampler=Groups(self.steps_per_epoch(), self._groups))

    def _groups(self, epoch: int) -> Iterator[Any]:
        """Yield the indices of the batches of a pass."""
        order = np.random.default_rng([self.settings.seed, epoch]).permutation(len(self.train))
        for start in range(0, len(order), self.batch_size):
            yield order[start : start + self.batch_size] + (epoch << EPOCH)

    def prepared(self, batch: Any) -> Any:
        """Add which of the earlier images the generated ones replace: numbers drawn here."""
        a, b = batch
        return a, b, self.pools["a"].draw(b), self.pools["b"].draw(a)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        assert isinstance(model, CycleGAN)
        a, b, order_a, order_b = batch
        losses, fake_b, fake_a = model.generator_losses(a, b)
        old_a = self.pools["a"].swap(fake_a, order_a)
        old_b = self.pools["b"].swap(fake_b, order_b)
        losses["discriminator"] = model.discriminator_loss(a, b, old_a, old_b)
        self.parts.data = ops.stack([losses[name].detach() for name in PARTS])
        total: Any = sum(losses.values(), start=ops.zeros((), device=a.device))
        return total

    def shown(self, loss: float) -> dict[str, float]:
        return dict(zip(PARTS, self.parts.tolist(), strict=True))

    def evaluate(
        self, model: nn.Module, check: Callable[[], None], final: bool
    ) -> dict[str, float]:
        assert isinstance(model, CycleGAN)
        there_and_back = (
            (self.test.a, model.to_b, model.to_a),
            (self.test.b, model.to_a, model.to_b),
        )
        distances = []
        for images, there, back in there_and_back:
            total = 0.0
            for start in range(0, len(images), ROWS):
                check()
                x = _tensor(images[start : start + ROWS])
                total += float(ops.summation(ops.absolute(back(there(x)) - x)).item())
            distances.append(total / images.size)
        return {"cycle_distance": sum(distances) / 2, "a": distances[0], "b": distances[1]}

    def draw(self, model: nn.Module, folder: RunFolder, step: int, final: bool) -> None:
        """Write a picture for each epoch: A, A to B, A to B to A, then B, B to A, B to A to B."""
        assert isinstance(model, CycleGAN)
        rows = []
        for images, there, back in (
            (self.test.a, model.to_b, model.to_a), (self.test.b, model.to_a, model.to_b),
        ):  # fmt: skip
            x = _tensor(images[:SHOWN])
            made = there(x)
            rows += [_row(z) for z in (x, made, back(made))]
        epoch = -(-step // self.steps_per_epoch())
        image = pictures.grid(np.concatenate(rows), SHOWN, scale=2, labels=ROW_LABELS)
        pictures.save_image(folder.path / f"epoch-{epoch:03}.png", image)

    def state(self) -> dict[str, Any]:
        return {
            f"{kind}.{i}": image
            for kind, pool in self.pools.items()
            for i, image in enumerate(pool.kept())
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the pools of images. Raises DataError if their sizes differ."""
        for kind, pool in self.pools.items():
            names = [f"{kind}.{i}" for i in range(sum(key.startswith(f"{kind}.") for key in state))]
            shape = (3, self.size, self.size)
            if not all(getattr(state.get(name), "shape", None) == shape for name in names):
                raise DataError(f"cyclegan: the checkpoint's images {kind} are not all of {shape}")
            pool.load([state[name].numpy() for name in names])

    def conclude(self, model: nn.Module, figures: dict[str, float]) -> list[str]:
        return [
            f"mean distance between test images and their round trips, for pixels in [-1, 1]: "
            f"A {figures['a']:.3f}, B {figures['b']:.3f}"
        ]


def _tensor(images: np.ndarray[Any, Any]) -> Tensor:
    """Return bytes [n, h, w, c] as a tensor [n, c, h, w] in [-1, 1]."""
    return Tensor(_signed(images), requires_grad=False)


def _signed(images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return bytes [n, h, w, c] as float32 [n, c, h, w] in [-1, 1], without moving data."""
    return np.moveaxis(images.astype(np.float32) / np.float32(127.5) - np.float32(1), -1, 1)


def _row(images: Tensor) -> np.ndarray[Any, Any]:
    """Return a row of the picture: bytes [SHOWN, h, w, c], filled up with white images."""
    values = np.clip((images.numpy().transpose(0, 2, 3, 1) + 1) * 127.5, 0, 255)
    row = np.full((SHOWN, *values.shape[1:]), 255, np.uint8)
    row[: len(values)] = np.rint(values)
    return row


RECIPE = CycleGanRecipe
