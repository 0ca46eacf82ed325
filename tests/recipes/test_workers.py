"""Each recipe with workers of both kinds, stopped and resumed: the bits of a run without them."""

from __future__ import annotations

import numpy as np
import pytest
from dataset_files import binary_batch, write_mnist
from stopped_runs import interrupted, metrics, weights, whole

from needle import models
from needle.models.cyclegan import CycleGAN
from needle.recipes.byte_lstm import ByteLSTMRecipe
from needle.recipes.byte_mlp import ByteRecipe
from needle.recipes.cyclegan import CycleGanRecipe
from needle.recipes.gpt import GPTRecipe
from needle.recipes.mlp_mnist import MnistRecipe
from needle.recipes.ptb import TreebankRNN
from needle.recipes.resnet9_cifar10 import CifarRecipe

RNG = np.random.default_rng(0)


def small_gan(recipe):
    generator = lambda: models.DCGANGenerator(width=2, blocks=1)  # noqa: E731
    return CycleGAN(generator, lambda: models.PatchDiscriminator(width=2, layers=1))


def source(folder):
    folder.mkdir()
    (folder / "abc.py").write_text("def f(x):\n    return x + 1\n" * 30)
    (folder / "filecmp.py").write_text("def g(y):\n    return y - 1\n" * 3)
    return folder


def text(folder):
    return source(folder) / "abc.py"


def treebank(folder):
    folder.mkdir()
    for name, lines in (("train", 24), ("valid", 5), ("test", 7)):
        (folder / f"{name}.txt").write_text(" a b c\n b <unk> d\n" * lines)
    return folder


def mnist(folder):
    write_mnist(folder, 40)
    write_mnist(folder, 20, train=False)
    return folder


def cifar(folder):
    folder.mkdir()
    for name, count in (("data_batch_1", 20), ("test_batch", 10)):
        pixels = RNG.integers(0, 256, (count, 3072)).astype(np.uint8)
        (folder / f"{name}.bin").write_bytes(binary_batch(pixels, np.arange(count) % 10))
    return folder


def paintings(folder):
    pillow = pytest.importorskip("PIL.Image")
    for name, count in (("trainA", 3), ("trainB", 4), ("testA", 1), ("testB", 1)):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            values = RNG.integers(0, 256, (16, 16, 3)).astype(np.uint8)
            pillow.fromarray(values).save(folder / name / f"{i}.png")
    return folder


SMALL = {
    ByteRecipe: (source, {"batch_size": 40}),
    ByteLSTMRecipe: (source, {"batch_size": 3, "length": 8, "hidden_size": 8}),
    GPTRecipe: (text, {"batch_size": 4, "context": 8, "width": 8, "layers": 1, "heads": 2}),
    TreebankRNN: (treebank, {"batch_size": 4, "length": 5, "embedding": 6, "hidden_size": 6}),
    MnistRecipe: (mnist, {"batch_size": 4, "hidden": 4}),
    CifarRecipe: (cifar, {"batch_size": 3, "model": lambda self: models.CNN(width=2)}),
    CycleGanRecipe: (paintings, {"batch_size": 1, "size": 16, "model": small_gan}),
}


def check(tmp_path, kind, workers):
    """Compare a run without workers with one that has some, and that is stopped after 7 steps."""
    make, sizes = SMALL[kind]
    data = make(tmp_path / "data")
    small = type("Small", (kind,), sizes)
    busy = type("Busy", (small,), {"num_workers": 2, "workers": workers})
    settings = {"data": str(data), "steps": 12}
    expected, one = whole(small, tmp_path / "one", **settings)
    found, two = interrupted(busy, tmp_path / "two", 7, **settings)
    assert found.figures == expected.figures and weights(one) == weights(two)
    assert metrics(one) == metrics(two)


@pytest.mark.parametrize("kind", SMALL, ids=lambda kind: kind.name)
def test_threads_change_nothing(tmp_path, kind):
    check(tmp_path, kind, "thread")


@pytest.mark.heavy("python/needle/data/*.py", "python/needle/train/*.py")
@pytest.mark.parametrize("kind", SMALL, ids=lambda kind: kind.name)
def test_processes_change_nothing(tmp_path, kind):
    check(tmp_path, kind, "process")
