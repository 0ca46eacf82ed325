"""The recipes for images, and runs that are stopped and go on."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from dataset_files import binary_batch, write_mnist
from line_recipe import Line
from looped import looped
from stopped_runs import StopsAt, interrupted, metrics, same_without_programs, weights, whole

import needle as ndl
from needle import models, nn, ops, recipes
from needle.errors import DataError, OptionError
from needle.models.cyclegan import CycleGAN, ImagePool
from needle.recipes.cyclegan import CycleGanRecipe
from needle.recipes.loop import train
from needle.recipes.resnet9_cifar10 import CifarRecipe
from needle.recipes.settings import Settings
from needle.tools import pictures
from needle.tools.run import RunFolder
from needle.train import progress
from needle.train.stop import Stop

RNG = np.random.default_rng(0)


# ---- going on ----------------------------------------------------------------------


class Noisy(Line):
    """Draws random numbers in each step too, and keeps something of its own."""

    compiled = False  # it counts its calls

    def __init__(self, settings, report):
        self.seen = 0
        super().__init__(settings, report)

    def model(self):
        return nn.Sequential(nn.Dropout(0.3), nn.Linear(1, 1))

    def optimizer(self, model, steps):
        return ndl.optim.Adam(model.parameters(), lr=ndl.optim.Cosine(self.lr, steps))

    def loss(self, model, batch):
        self.seen += 1
        return super().loss(model, batch) * (1.0 + 0.01 * self.seen)

    def evaluate(self, model, check, final):
        check()
        return {"error": abs(float(model[1].weight.item()) - 3), "passes": self.passes}

    def state(self):
        return {"seen": self.seen}

    def load_state(self, state):
        self.seen = state["seen"]


@pytest.mark.parametrize("after", [1, 4, 5, 7, 10, 11, 20])
def test_a_run_that_goes_on_is_the_run_that_never_stopped(tmp_path, after):
    expected, one = whole(Noisy, tmp_path / "one", epochs=4, seed=3)
    found, two = interrupted(Noisy, tmp_path / "two", after, epochs=4, seed=3)
    assert found.figures == expected.figures and found.steps == 20
    assert weights(one) == weights(two)
    assert metrics(one) == metrics(two)


@pytest.mark.parametrize("after", [4, 7, 510])
def test_lines_of_metrics_that_stand_for_several_steps_are_the_same_too(tmp_path, after):
    _, one = whole(Noisy, tmp_path / "one", steps=1500)
    _, two = interrupted(Noisy, tmp_path / "two", after, steps=1500)
    assert len(metrics(one)) == 510 and metrics(one) == metrics(two)


@pytest.mark.parametrize("asked", [(2, 1), (4, 1, 1)])
def test_a_run_stopped_before_its_first_new_batch_keeps_its_place_in_the_data(tmp_path, asked):
    """It is stopped after a step whose evaluation was due, then within that evaluation."""
    _, one = whole(Noisy, tmp_path / "one", epochs=4, seed=3)
    two, chosen = RunFolder.create("line", str(tmp_path / "two")), Settings(epochs=4, seed=3)
    for i, n in enumerate((*asked, -1)):
        train(Noisy, chosen, two, progress.Progress(True), StopsAt(n), resume=i > 0)
    assert weights(one) == weights(two)
    assert metrics(one) == metrics(two)


def test_metrics_after_the_checkpoint_are_made_again(tmp_path):
    _, run = whole(Noisy, tmp_path / "run", epochs=4)
    assert run.load_checkpoint()["run"]["step"] == 20
    before = metrics(run)
    again = RunFolder.open(str(run.path))
    train(Noisy, Settings(epochs=4), again, progress.Progress(True), Stop(), resume=True)
    assert metrics(again) == before


def test_what_cannot_go_on_says_so(tmp_path):
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(OptionError, match="does not contain a run"):
            RunFolder.open(str(path))
    _, run = whole(Noisy, tmp_path / "run", epochs=1)
    for text in ("{}", '{"recipe": "line", "chosen": {"stepz": 3}}',
                 '{"recipe": "line", "chosen": {"steps": "3"}}', "[" * 100_000):  # fmt: skip
        (run.path / "config.json").write_text(text)
        with pytest.raises(DataError, match=r"config.json: not a valid run file"):
            run.config()

    class Wider(Noisy):
        def model(self):
            return nn.Sequential(nn.Dropout(0.3), nn.Linear(2, 1))

    again = RunFolder.open(str(run.path))
    with pytest.raises(DataError, match="wrong"):
        train(Wider, Settings(epochs=1), again, progress.Progress(True), Stop(), resume=True)


@pytest.mark.parametrize("points", [8, 16, 28, 200])
def test_a_run_does_not_go_on_with_other_data(tmp_path, points):
    class Other(Noisy):
        def load(self, report):
            super().load(report)
            self.train = ndl.data.NDArrayDataset(*np.zeros((2, points, 1), np.float32))

        def loss(self, model, batch):
            raise AssertionError("a step was made")

    run, chosen = RunFolder.create("line", str(tmp_path / "run")), Settings(epochs=4)
    train(Noisy, chosen, run, progress.Progress(True), StopsAt(16))
    assert run.load_checkpoint()["run"]["step"] == 11
    with pytest.raises(DataError, match="at step 11, 1 batches into an epoch; with this data"):
        train(Other, chosen, run, progress.Progress(True), Stop(), resume=True)


@looped(
    "part, name, number",
    [("run", "step", 11.5), ("run", "step", float("nan")), ("run", "step", -1),
     ("run", "step", 10**6), ("random", "counter", -5), ("feed", "place", 2**64),
     ("random", "seed", -1), ("run", "recent_steps", -1), ("run", "busy", ndl.zeros(1)),
     ("feed", "epoch", 3), ("feed", "place", 99)],
)  # fmt: skip
def test_numbers_that_no_run_has_are_refused(tmp_path, part, name, number):
    folder = tmp_path / f"{part}-{name}-{number}"
    _, run = whole(Noisy, folder, epochs=1)
    state = run.load_checkpoint()
    state[part][name] = number
    run.checkpoints.save(99, state)
    with pytest.raises(DataError, match=f"at step|no number {part}/{name}|{part}/{name} = "):
        train(Noisy, Settings(epochs=1), run, progress.Progress(True), Stop(), resume=True)


@pytest.mark.parametrize("settings", [{"steps": 3}, {"epochs": 3}])
def test_without_training_data_there_is_no_run(tmp_path, settings):
    class Empty(Line):
        def load(self, report):
            super().load(report)
            self.train = ndl.data.Subset(self.train, [])

    with pytest.raises(DataError, match="line: no training data"):
        whole(Empty, tmp_path / "run", **settings)
    write_mnist(tmp_path / "data", 10)
    write_mnist(tmp_path / "data", 0, train=False)
    with pytest.raises(DataError, match="test files contain no images"):
        whole(recipes.get("mlp-mnist"), tmp_path / "mnist", data=str(tmp_path / "data"))


def test_what_a_run_records_may_not_be_writable(tmp_path):
    run = RunFolder.create("line", str(tmp_path / "run"))
    (run.path / "metrics.jsonl").mkdir()
    (run.path / "config.json").mkdir()
    for call in (lambda: run.record(step=1), lambda: run.save_config({})):
        with pytest.raises(DataError, match="cannot be written|cannot write"):
            call()
    for call in (run.metrics, run.config):
        with pytest.raises(DataError, match="cannot be read"):
            call()


def test_a_line_of_metrics_that_was_cut_off_is_left_out(tmp_path):
    _, run = whole(Noisy, tmp_path / "run", epochs=1)
    path = run.path / "metrics.jsonl"
    before = run.metrics()
    path.write_bytes(path.read_bytes() + b'{"split": "train", "st')
    assert run.metrics() == before
    run.cut(run.size() - len(b'{"split": "train", "st'))
    assert path.read_bytes().endswith(b"}\n") and run.metrics() == before
    for damaged in (
        b"", b"3", b'{"split": "train"}', b'{"split": "train", "step": null}', b"\xff",
        b'{"split": "train", "step": 1e999}', b"[" * 100_000,
    ):  # fmt: skip
        path.write_bytes(b'{"split": "train", "step": 1}\n' + damaged + b"\n")
        with pytest.raises(DataError, match=r"metrics.jsonl: line 2 is not valid"):
            run.metrics()


def test_a_checkpoint_without_its_parts(tmp_path):
    _, run = whole(Noisy, tmp_path / "run", epochs=1)
    state = run.load_checkpoint()
    for part in ("run", "random", "feed", "model", "optimizer"):
        run.checkpoints.save(99, {k: v for k, v in state.items() if k != part})
        with pytest.raises(DataError, match=f"no part '{part}'"):
            train(Noisy, Settings(epochs=1), run, progress.Progress(True), Stop(), resume=True)
    run.checkpoints.save(99, {**state, "callbacks": {"Other": {"x": 1}}})
    with pytest.raises(DataError, match="a state of Other"):
        train(Noisy, Settings(epochs=1), run, progress.Progress(True), Stop(), resume=True)


# ---- CIFAR-10 ----------------------------------------------------------------------


@pytest.fixture
def cifar(tmp_path):
    """Images whose class is their brightness: six to learn from, in two batches, ten to judge."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name, count in (("data_batch_1", 3), ("data_batch_2", 3), ("test_batch", 10)):
        labels = np.arange(count)
        pixels = RNG.integers(0, 10, (count, 3072)) + 20 * labels[:, None]
        (folder / f"{name}.bin").write_bytes(binary_batch(pixels.astype(np.uint8), labels))
    return tmp_path


class Small(CifarRecipe):
    batch_size = 2

    def model(self):
        return models.CNN(width=2)


def test_the_cifar_recipe_leaves_pictures_and_goes_on(cifar, tmp_path):
    pytest.importorskip("matplotlib")
    settings = {"data": str(cifar), "epochs": 2}
    expected, one = whole(Small, tmp_path / "one", **settings)
    assert expected.steps == 6 and set(expected.figures) == {"accuracy", "loss"}
    for name in ("accuracy.png", "confusion.png", "wrong.png"):
        assert (one.path / name).stat().st_size > 1000
    epochs = [line["epoch"] for line in one.metrics() if line["split"] == "held-out"]
    assert epochs == [1, 2]
    found, two = interrupted(Small, tmp_path / "two", 4, **settings)
    assert found.figures == expected.figures and weights(one) == weights(two)
    data = json.loads((one.path / "config.json").read_text())["data"]
    assert data == {"training_images": 6, "test_images": 10}


def test_recipes_are_listed():
    assert recipes.names() == [
        "byte-lstm", "byte-mlp", "cyclegan", "gpt", "mlp-mnist", "ptb-lstm", "ptb-rnn",
        "ptb-transformer", "resnet9-cifar10",
    ]  # fmt: skip
    for name in recipes.names():
        assert recipes.get(name).name == name


# ---- CycleGAN ----------------------------------------------------------------------


@pytest.fixture
def paintings(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    for name, count in (("trainA", 3), ("trainB", 4), ("testA", 2), ("testB", 9)):
        (tmp_path / name).mkdir()
        for i in range(count):
            values = RNG.integers(0, 256, (16, 16, 3)).astype(np.uint8)
            pillow.fromarray(values).save(tmp_path / name / f"{i}.png")
    return tmp_path


class Tiny(CycleGanRecipe):
    size, batch_size = 16, 2

    def load(self, report):
        super().load(report)
        self.pools = {"a": ImagePool(2), "b": ImagePool(2)}

    def model(self):
        generator = lambda: models.DCGANGenerator(width=2, blocks=1)  # noqa: E731
        return CycleGAN(generator, lambda: models.PatchDiscriminator(width=2, layers=1))


def test_the_cyclegan_recipe_draws_each_epoch_and_goes_on(paintings, tmp_path):
    settings = {"data": str(paintings), "epochs": 3}
    expected, one = whole(Tiny, tmp_path / "one", **settings)
    assert expected.steps == 6 and set(expected.figures) == {"cycle_distance", "a", "b"}
    names = sorted(path.name for path in one.path.glob("*.png"))
    assert names == ["epoch-001.png", "epoch-002.png", "epoch-003.png"]
    picture = ndl.data.read_image(one.path / "epoch-001.png")
    picture = picture[:, -(8 * 34 - 2) :]  # without the labels of the rows
    assert picture.shape == (6 * 34 - 2, 8 * 34 - 2, 3)
    original = ndl.data.read_image(paintings / "testA" / "0.png")
    np.testing.assert_array_equal(picture[:32:2, :32:2], original)
    assert (picture[:100, 2 * 34 :] == 255).all()  # testA has two images
    line = one.metrics()[0]
    parts = [line[k] for k in ("adversarial", "cycle", "identity", "discriminator")]
    assert line["loss"] == pytest.approx(sum(parts), rel=1e-5)
    same_without_programs(Tiny, tmp_path / "off", one, **settings)
    found, two = interrupted(Tiny, tmp_path / "two", 3, **settings)
    assert found.figures == expected.figures and weights(one) == weights(two)
    state = two.load_checkpoint()
    own = state["callbacks"]["Own"]
    own["a.2"] = own.pop("a.0")  # a gap
    two.checkpoints.save(99, state)
    with pytest.raises(DataError, match="images a are not all of"):
        train(Tiny, Settings(**settings), two, progress.Progress(True), Stop(), resume=True)


def test_cyclegan_finds_its_folders_in_the_folder_of_all_data(paintings, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "apple2orange").symlink_to(paintings)
    with ndl.config(data=str(folder)):
        assert CycleGanRecipe(Settings(), print).describe_data()["train_images"] == [3, 4]
    assert "nats" not in CycleGanRecipe.curve_unit


def test_cyclegan_needs_its_folders(tmp_path):
    with ndl.config(data=""), pytest.raises(OptionError, match="--data FOLDER with trainA"):
        CycleGanRecipe(Settings(), print)
    with pytest.raises(DataError, match="trainA is not a folder"):
        CycleGanRecipe(Settings(data=str(tmp_path)), print)


def test_generators_learn_from_their_losses_alone():
    np.random.seed(0)
    model = CycleGAN(
        lambda: models.ResNetGenerator(width=2, blocks=1),
        lambda: models.PatchDiscriminator(width=2, layers=1),
    )
    a, b = (ndl.Tensor(RNG.uniform(-1, 1, (2, 3, 16, 16)), requires_grad=False) for _ in range(2))
    losses, fake_b, fake_a = model.generator_losses(a, b)
    assert fake_a.shape == fake_b.shape == a.shape
    sum(losses.values()).backward()
    has = {name: p.grad is not None for name, p in model.named_parameters()}
    assert all(has[name] == name.startswith("to_") for name in has)
    assert all(p.requires_grad for p in model.parameters())
    model.zero_grad()
    model.discriminator_loss(a, b, fake_a, fake_b).backward()
    has = {name: p.grad is not None for name, p in model.named_parameters()}
    assert all(has[name] == name.startswith("is_") for name in has)
    exact = 0.0
    for judge, real, fake in ((model.is_a, a, fake_a), (model.is_b, b, fake_b)):
        judged = judge(real).numpy(), judge(fake).numpy()
        exact += ((judged[0] - 1) ** 2).mean() / 2 + (judged[1] ** 2).mean() / 2
    found = model.discriminator_loss(a, b, fake_a, fake_b).item()
    assert found == pytest.approx(exact, rel=1e-5)
    again = model.to_a(fake_b).numpy(), model.to_b(fake_a).numpy()
    cycle = np.abs(again[0] - a.numpy()).mean() + np.abs(again[1] - b.numpy()).mean()
    assert losses["cycle"].item() == pytest.approx(10 * cycle, rel=1e-4)


def test_the_weights_of_generators_are_small_and_normal():
    ndl.manual_seed(1)
    model = models.ResNetGenerator(width=16, blocks=2)
    values = np.concatenate(
        [p.numpy().ravel() for name, p in model.named_parameters() if name.endswith("weight")]
    )
    assert abs(values.mean()) < 1e-3 and abs(values.std() - 0.02) < 5e-4
    biases = [p.numpy() for name, p in model.named_parameters() if name.endswith("bias")]
    assert not any(b.any() for b in biases)


def test_an_image_pool_hands_out_images_made_before():
    pool, ones = ImagePool(3), np.ones((1, 2, 2))
    image = lambda i: ndl.Tensor(i * ones[None])  # noqa: E731
    assert [pool.exchange(image(i)).numpy().max() for i in range(3)] == [0, 1, 2]
    found = [int(pool.exchange(image(i)).numpy().max()) for i in range(3, 103)]
    old = sum(f != i for i, f in enumerate(found, 3))
    assert 30 < old < 70 and len(pool.images) == 3
    assert len(set(found)) == len(found)  # each is handed out once
    assert not ImagePool(0).exchange(image(5)).requires_grad


# ---- models and pictures -----------------------------------------------------------


@pytest.mark.parametrize(
    "make, count",
    [(models.ResNet9, 431_946), (models.DawnResNet9, 6_573_120), (models.CNN, 289_194)],
)
def test_models_by_their_size(make, count):
    model = make()
    assert model.num_parameters() == count
    x = ndl.Tensor(RNG.standard_normal((2, 3, 32, 32)), requires_grad=False)
    if make is not models.DawnResNet9:
        assert model(x).shape == (2, 10)
        out = model.eval()(x).numpy()
        np.testing.assert_allclose(ndl.fold_batch_norm(model)(x).numpy(), out, atol=1e-4)


def test_the_dawnbench_net_in_a_small_width():
    model = models.DawnResNet9(num_classes=7, width=2)
    x = ops.permute(ndl.Tensor(RNG.standard_normal((2, 32, 32, 3))), (0, 3, 1, 2))
    loss = (model(x) ** 2).sum()
    loss.backward()
    assert all(np.isfinite(p.grad.numpy()).all() for p in model.parameters())
    assert model.eval()(x).shape == (2, 7)


def test_grids_of_images():
    images = np.arange(3, dtype=np.uint8).reshape(3, 1, 1, 1) * np.ones((1, 2, 3, 3), np.uint8)
    made = pictures.grid(images, 2, gap=1, scale=2)
    assert made.shape == (2 * 4 + 1, 2 * 6 + 1, 3)
    assert (made[:4, :6] == 0).all() and (made[:4, 7:] == 1).all() and (made[5:, :6] == 2).all()
    assert (made[4] == 255).all() and (made[5:, 7:] == 255).all()


def test_rows_of_a_grid_have_labels():
    pytest.importorskip("PIL.Image")
    images = np.zeros((4, 20, 30, 3), np.uint8)
    plain, made = (pictures.grid(images, 2, labels=labels) for labels in ((), ("A", "B to A")))
    margin = made.shape[1] - plain.shape[1]
    assert margin > 12 and made.shape[0] == plain.shape[0] == 42
    np.testing.assert_array_equal(made[:, margin:], plain)
    for row in (slice(0, 20), slice(22, 42)):
        assert (made[row, :margin] < 100).any()  # something is written beside each
    assert (made[20:22] == 255).all() and (made[:, :6] == 255).all()


def program_of(name):
    """Return a program of apps/ as a module."""
    folder = Path(__file__).parents[2] / "apps"
    if not folder.exists():
        pytest.skip("the programs are not here")
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))


def test_programs_of_images_train(cifar, paintings, capsys):
    accuracy, loss, *_ = program_of("resnet9").train(cifar, epochs=3, batch_size=6)
    assert 0 <= accuracy <= 1 and loss < 2.5
    sums = program_of("cyclegan").train(paintings, epochs=1, size=32, batch_size=2, width=4)
    assert set(sums) == {"adversarial", "cycle", "identity", "discriminator"}
    assert sums["cycle"] > 0
    mean, covariance = program_of("gan").train(600, 128)
    assert abs(mean - [2, 1]).max() < 0.4 and abs(covariance[1, 1] - 4.25) < 1.5
    assert capsys.readouterr().out.count("epoch") == 4


def test_the_courses_program_learns_cifar(cifar):
    program = program_of("simple_ml")
    dataset = ndl.data.cifar10(cifar)
    loader = ndl.data.DataLoader(dataset, 6)
    model = models.CNN(width=2)
    first = program.epoch_general_cifar10(loader, model.eval())
    assert first == pytest.approx(program.evaluate_cifar10(model, loader))
    accuracy, loss = program.train_cifar10(model, loader, n_epochs=30, lr=0.02)
    assert loss < 0.5 * first[1] and 0 <= accuracy <= 1
