"""The training loop, the recipes, and what they leave in the run's folder."""

from __future__ import annotations

import io
import json
import math
import signal
import warnings

import numpy as np
import pytest
from dataset_files import write_mnist
from line_recipe import Line

import needle as ndl
from needle import recipes
from needle.errors import NeedleError, OptionError
from needle.models.byte_mlp import BITS, ORDERS, VALUES, ByteMLP, features
from needle.recipes.loop import train
from needle.recipes.settings import Settings
from needle.tools import plot
from needle.tools.run import RunFolder
from needle.train import progress
from needle.train.stop import Stop, Stopped


def fit(folder, kind=Line, stop=None, **settings):
    """Train in a folder; return the result and the folder."""
    run = RunFolder.create("line", str(folder))
    result = train(kind, Settings(**settings), run, progress.Progress(quiet=True), stop or Stop())
    return result, run


def test_the_loop_learns_and_records(tmp_path, capsys):
    result, run = fit(tmp_path / "run", epochs=40)
    assert result.stopped is None and result.steps == 200 and result.figures["error"] < 0.05
    lines = run.metrics()
    steps = [line for line in lines if line["split"] == "train"]
    assert [line["step"] for line in steps] == list(range(1, 201))
    assert steps[-1]["epoch"] == 40 and steps[-1]["loss"] < 1e-2 * steps[0]["loss"]
    assert steps[0]["root"] == pytest.approx(math.sqrt(steps[0]["loss"]))
    assert all(line["lr"] == 0.1 and line["points_per_second"] > 0 for line in steps)
    evaluations = [line for line in lines if line["split"] == "held-out"]
    assert [line["step"] for line in evaluations] == list(range(20, 201, 20))
    assert [line["final"] for line in evaluations] == [False] * 9 + [True]
    assert capsys.readouterr().out == f"error {result.figures['error']:.3f}\n"


def test_evaluations_are_shown_by_epoch_or_by_step(tmp_path, capsys):
    for name, settings in (("a", {"epochs": 3}), ("b", {"steps": 3})):
        run = RunFolder.create("line", str(tmp_path / name))
        train(Line, Settings(**settings), run, progress.Progress(), Stop())
    shown = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines() if "held" in line]
    assert shown[-4:] == ["epoch 3/3", "step 1/3", "step 2/3", "step 3/3"]


def test_config_says_what_ran(tmp_path):
    _, run = fit(tmp_path / "run", lr=0.05, batch_size=7, steps=3, seed=4)
    config = json.loads((run.path / "config.json").read_text())
    assert config["recipe"] == "line" and config["parameters"] == 2
    assert config["data"] == {"points": 20}
    expected = {"steps": 3, "epochs": 1.0, "batch_size": 7, "lr": 0.05, "seed": 4, "data": None}
    expected["preset"] = None
    assert config["settings"] == expected
    wanted = {"needle", "python", "numpy", "device", "backend", "threads", "isa", "command"}
    assert wanted <= set(config["environment"])


def test_a_seed_gives_a_run_again_and_leaves_the_users_numbers_alone(tmp_path):
    before = np.random.get_state()[1].tolist()
    weights = []
    for i, seed in enumerate((1, 1, 2)):
        _, run = fit(tmp_path / str(i), seed=seed)
        weights.append((run.path / "weights.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]
    assert np.random.get_state()[1].tolist() == before
    np.random.seed(7)
    expected = np.random.rand(2).tolist()
    np.random.seed(7)
    assert ndl.init.rand(2).numpy().tolist() == pytest.approx(expected)


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path):
    class Diverges(Line):
        def loss(self, model, batch):
            return super().loss(model, batch) / 0.0

    with pytest.raises(NeedleError, match=r"the loss is inf at step 1\n  try: --lr 0.03"):
        fit(tmp_path / "run", Diverges)
    assert (tmp_path / "run" / "weights.safetensors").exists()
    with pytest.raises(NeedleError, match=r"try: --lr 0\.1 \(the learning rate was 1e\+30\)"):
        fit(tmp_path / "far", Diverges, lr=1e30)


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 10**23}, {"batch_size": "4"}, {"steps": True}, {"epochs": 0}, {"lr": -1.0},
        {"lr": math.nan}, {"seed": None}, {"data": 3},
    ],
)  # fmt: skip
def test_settings_are_checked(settings):
    (name,) = settings
    with pytest.raises(OptionError, match=f"--{name.replace('_', '-')}: got "):
        Settings(**settings)


@pytest.mark.parametrize("where", ["loss", "evaluate"])
def test_a_signal_stops_between_steps_and_within_an_evaluation(tmp_path, where):
    stop = Stop()

    class Asked(Line):
        def _ask(self):
            signal.raise_signal(signal.SIGTERM)

        def loss(self, model, batch):
            if where == "loss":
                self._ask()
            return super().loss(model, batch)

        def evaluate(self, model, check, final):
            if where == "evaluate":
                self._ask()
            return super().evaluate(model, check, final)

    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with stop.listening():
        result, run = fit(tmp_path / "run", Asked, stop, steps=10)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == handlers
    assert result.stopped == signal.SIGTERM and result.steps == 1 and result.figures == {}
    assert set(ndl.io.load(run.path / "weights.safetensors")) == {"weight", "bias"}
    with pytest.raises(Stopped, match="SIGTERM"):
        stop.check()


# ---- the folder, the picture, the progress ---------------------------------------------------


def test_run_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("needle.tools.run._now", lambda: "20260101-000000")
    paths = [RunFolder.create("line").path.as_posix() for _ in range(3)]
    first = "runs/line-20260101-000000"
    assert paths == [first, f"{first}-2", f"{first}-3"]
    RunFolder.create("line", "mine").discard_if_empty()
    assert not (tmp_path / "mine").exists()
    run = RunFolder.create("line", "mine")
    run.save_config({})
    run.discard_if_empty()
    assert run.path.exists()
    with pytest.raises(OptionError, match="already contains a run"):
        RunFolder.create("line", "mine")


def test_picture(tmp_path):
    pytest.importorskip("matplotlib")
    _, run = fit(tmp_path / "run")
    assert plot.draw_loss(run, "line", "root", "root of the loss") == "loss.png"
    assert (run.path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert plot.draw_loss(run, "line", "nothing", "") is None


@pytest.mark.parametrize("values", [[2.0], [0.0, 0.0], [2.0, math.nan]])
def test_picture_of_one_value(tmp_path, values):
    pytest.importorskip("matplotlib")
    run = RunFolder(tmp_path)
    for step, value in enumerate(values):
        run.record(split="train", step=step, loss=value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plot.draw_loss(run, "line", "loss", "nats") == "loss.png"


def test_plain_progress(capsys):
    shown = progress.Progress()
    shown.start(1000, "bytes")
    for step in range(1, 1001):
        shown.step(step, 2.0, {"bits_per_byte": 2.5}, 51234.0)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + progress.LINES
    assert lines[0].startswith("step 1/1000  loss 2.000  bits/byte 2.500  51.2k bytes/s  0:")
    assert lines[-1].startswith("step 1000/1000") and lines[-1].endswith("0:00 left")


def test_progress_of_fewer_steps_than_lines(capsys):
    shown = progress.Progress()
    shown.start(3, "bytes")
    for step in (1, 2, 3):
        shown.step(step, 1.0, {}, 1.0)
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_bar(monkeypatch):
    pytest.importorskip("rich")
    from rich.console import Console

    bar = progress.Bar(Console(file=io.StringIO(), force_terminal=True, width=100))
    bar.start(10, "bytes")
    bar.step(5, 1.5, {"bits_per_byte": 2.25}, 1000.0)
    bar.evaluated("epoch 1/2", {"accuracy": 0.98})
    bar.close()
    text = bar.rich.console.file.getvalue()
    assert "5/10" in text and "bits/byte 2.250" in text and "1k bytes/s" in text
    assert "epoch 1/2  held-out: accuracy 0.9800" in text


def test_without_a_terminal_or_rich_lines_are_plain(monkeypatch):
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert type(progress.choose(quiet=False)) is progress.Progress


def test_numbers_as_one_reads_them():
    assert [progress.quantity(x) for x in (0, 999, 1000, 51234, 2.5e9)] == [
        "0", "999", "1k", "51.2k", "2.5G",
    ]  # fmt: skip
    assert [progress.clock(x) for x in (0, 59.6, 65, 7200)] == ["0:00", "1:00", "1:05", "2:00:00"]


# ---- the recipes ---------------------------------------------------------------------------


def test_registry():
    assert recipes.DEFAULT in recipes.names()
    for name in recipes.names():
        recipe = recipes.get(name)
        assert recipe.name == name and len(recipe.summary) < 90
        assert [recipe.steps, recipe.epochs, recipe.seconds].count(None) == 2
    with pytest.raises(OptionError, match="did you mean 'mlp-mnist'"):
        recipes.get("mlp_mnst")


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "abc.py").write_text("abcdefghij" * 30)
    (folder / "filecmp.py").write_text("abcdefghij" * 9)
    return folder


def ignore(text):
    """Take a recipe's reports."""


def test_bytes_are_predicted_from_those_before(source):
    recipe = recipes.get("byte-mlp")(Settings(data=str(source), batch_size=50), ignore)
    x, y = next(iter(recipe.batches()))
    assert x.shape == (50, recipe.context + len(ORDERS)) and y.shape == (50,)
    text = b"\n" * recipe.context + b"abcdefghij" * 30
    for before, after in zip(x.numpy(), y.numpy(), strict=True):
        assert bytes([*before[: recipe.context], after]) in text
    x, y = recipe._windows(recipe.held_out_text, np.array([0, 89]))
    first, last = (bytes(row[: recipe.context].tolist()) for row in x.numpy())
    assert first == b"\n" * recipe.context
    assert bytes(y.numpy().tolist()) == b"aj"
    assert last == (b"abcdefghij" * 9)[-1 - recipe.context : -1]


def test_bits_per_byte_are_those_of_all_held_out_bytes(source):
    recipe = recipes.get("byte-mlp")(Settings(data=str(source)), ignore)

    def model(x):
        """Say that the next letter is the one after the last, with odds of e**3 to 1."""
        logits = np.zeros((len(x), 256), np.float32)
        logits[np.arange(len(x)), x.numpy()[:, recipe.context - 1] + 1] = 3
        return ndl.Tensor(logits)

    likely, unlikely = 3 - math.log(math.exp(3) + 255), -math.log(math.exp(3) + 255)
    # of 90 bytes, 81 follow their predecessor; the first and each "a" do not
    expected = -(81 * likely + 9 * unlikely) / 90 / math.log(2)
    figures = recipe.evaluate(model, lambda: None, final=True)
    assert figures["bits_per_byte"] == pytest.approx(expected, rel=1e-12)
    assert set(figures) == {"bits_per_byte", "zlib", "bz2", "lzma"}
    assert list(recipe.evaluate(model, lambda: None, final=False)) == ["bits_per_byte"]


def test_byte_mlp_learns_and_writes(tmp_path, source, capsys):
    result, run = fit(
        tmp_path / "run", recipes.get("byte-mlp"), data=str(source), steps=60, batch_size=32
    )
    assert result.figures["bits_per_byte"] < 1.0
    out = capsys.readouterr().out
    assert "90 bytes" in out and "zlib" in out and "  | class " in out
    model = ByteMLP(recipes.get("byte-mlp").context)
    model.load_state_dict(ndl.io.load(run.path / "weights.safetensors"))


def test_byte_mlp_shapes():
    model = ByteMLP(context=7, embedding=3, width=8, blocks=2, inner=6)
    x = features(np.zeros((4, 7), np.uint8))
    out = model(ndl.Tensor(x, requires_grad=False))
    assert out.shape == (4, 256)
    seen = 7 + len(ORDERS)
    rows = VALUES + len(ORDERS) * 2**BITS
    blocks = 2 * (16 + 9 * 6 + 7 * 8)
    assert model.num_parameters() == rows * 3 + (3 * seen + 1) * 8 + blocks + 16 + 9 * 256


def test_features_are_the_bytes_and_groups_of_the_last_ones():
    windows = np.random.default_rng(0).integers(0, 256, (500, 8), np.uint8)
    ids = features(windows)
    assert (ids[:, :8] == windows).all()
    for i, order in enumerate(ORDERS):
        group = ids[:, 8 + i] - VALUES - i * 2**BITS
        assert group.min() >= 0 and group.max() < 2**BITS
        assert len(np.unique(group)) > 450  # of 500 different groups, few share an id
        changed = windows.copy()
        changed[:, : 8 - order] += 1
        assert (features(changed)[:, 8 + i] == ids[:, 8 + i]).all()
        changed[:, 8 - order] += 1
        assert (features(changed)[:, 8 + i] != ids[:, 8 + i]).mean() > 0.99


def test_mlp_mnist_runs(tmp_path, capsys):
    write_mnist(tmp_path / "data", 40)
    write_mnist(tmp_path / "data", 20, train=False)
    kind = recipes.get("mlp-mnist")
    result, run = fit(tmp_path / "run", kind, data=str(tmp_path / "data"), epochs=3, batch_size=10)
    evaluations = [line for line in run.metrics() if line["split"] == "held-out"]
    assert [line["epoch"] for line in evaluations] == [1, 2, 3]
    right = result.figures["accuracy"] * 20
    assert right == pytest.approx(round(right)) and result.steps == 12
    assert "accuracy on 20 test images" in capsys.readouterr().out
