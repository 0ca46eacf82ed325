"""The recipes of language models: they learn, go on after a stop, and write text."""

from __future__ import annotations

import importlib
import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from stopped_runs import StopsAt, interrupted, metrics, same_without_programs, weights, whole

import needle as ndl
from needle import cli, models, nn, recipes
from needle.data import TextFile
from needle.errors import DataError, OptionError
from needle.models.byte_lstm import CONTEXT, MATCHES, NOTHING, REACH, ByteText, matches
from needle.models.sampling import Sampler, continuation
from needle.recipes import loop
from needle.recipes.byte_lstm import ByteLSTMRecipe
from needle.recipes.gpt import GPTRecipe
from needle.recipes.language import RecurrentRecipe, TokenText
from needle.recipes.loop import train
from needle.recipes.ptb import TreebankLSTM
from needle.recipes.settings import Settings
from needle.tools.run import RunFolder
from needle.train import progress
from needle.train.stop import Stop


def ignore(*_):
    """Take a recipe's reports."""


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "abc.py").write_text("def f(x):\n    return x + 1\n" * 30)
    (folder / "filecmp.py").write_text("def g(y):\n    return y - 1\n" * 3)
    return folder


@pytest.fixture
def treebank(tmp_path):
    folder = tmp_path / "ptb"
    folder.mkdir()
    for name, lines in (("train", 24), ("valid", 5), ("test", 7)):
        (folder / f"{name}.txt").write_text(" a b c\n b <unk> d\n" * lines)
    return folder


class Bytes(ByteLSTMRecipe):
    batch_size, length, hidden_size = 3, 8, 8


class Words(TreebankLSTM):
    batch_size, length, embedding, hidden_size = 4, 5, 6, 6


class GPT(GPTRecipe):
    batch_size, context, width, layers, heads = 4, 8, 8, 1, 2


def small(name):
    """Return a small recipe of the treebank by name."""
    kind = recipes.get(name)
    return type("Small", (kind,), {k: v for k, v in vars(Words).items() if k[0] != "_"})


# ---- going on ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ptb-lstm", "ptb-rnn", "ptb-transformer"])
def test_treebank_runs_go_on_exactly(tmp_path, treebank, name):
    kind, settings = small(name), {"data": str(treebank), "epochs": 3}
    expected, one = whole(kind, tmp_path / "one", **settings)
    assert set(expected.figures) == {"perplexity", "test_perplexity"}
    same_without_programs(kind, tmp_path / "off", one, **settings)
    per_epoch = expected.steps // 3
    for after in (2, per_epoch, per_epoch + 1):
        found, two = interrupted(kind, tmp_path / f"two{after}", after, **settings)
        assert found.figures == expected.figures and weights(one) == weights(two)
        assert metrics(one) == metrics(two)


def test_byte_lstm_and_gpt_go_on_exactly(tmp_path, source):
    for kind, data in ((Bytes, source), (GPT, source / "abc.py")):
        settings = {"data": str(data), "steps": 50}
        expected, one = whole(kind, tmp_path / kind.name, **settings)
        same_without_programs(kind, tmp_path / f"{kind.name}-off", one, **settings)
        for after in (3, 10, 41):
            found, two = interrupted(kind, tmp_path / f"{kind.name}{after}", after, **settings)
            assert found.figures == expected.figures and weights(one) == weights(two)
            assert metrics(one) == metrics(two)


def test_steps_that_fit_into_seconds_stay_when_a_run_goes_on(tmp_path, source, capsys, monkeypatch):
    ticks = itertools.count()  # a clock on which every look takes 10 ms
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: next(ticks) / 100))

    class Short(Bytes):
        seconds = 0.3

    settings = {"data": str(source)}
    run = RunFolder.create("x", str(tmp_path / "one"))
    train(Short, Settings(**settings), run, progress.Progress(), StopsAt(2))
    assert "steps fit into 0.3 s" in capsys.readouterr().out
    chosen = Settings(**run.config()["chosen"])
    assert chosen.steps > 2
    found = train(Short, chosen, run, progress.Progress(True), Stop(), resume=True)
    expected, two = whole(Bytes, tmp_path / "two", steps=chosen.steps, **settings)
    assert found.figures == expected.figures and weights(run) == weights(two)


def test_a_run_ends_early_with_its_best_weights(tmp_path, treebank):
    class Worse(Words):
        """Better in the second epoch, then worse and worse."""

        patience = 2

        def held_out_loss(self, model, text, check, most=None):
            best = {k: v.numpy().copy() for k, v in model.state_dict().items()}
            if text is self.test:
                assert all(np.array_equal(v, self.second[k]) for k, v in best.items())
                return 0.5
            epoch = self.passes + 1
            if epoch == 2:
                self.second = best
            return (2.0, 1.0, 1.5, 3.0)[epoch - 1]

    result, run = whole(Worse, tmp_path / "run", data=str(treebank), epochs=9)
    lines = [line for line in run.metrics() if line["split"] == "held-out"]
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4, 4]
    assert result.figures == {"perplexity": math.exp(1.0), "test_perplexity": math.exp(0.5)}


# ---- what counts --------------------------------------------------------------------


class Counting(nn.Module):
    """Expects token i + 1 after token i, with odds of e to 1 against each other one of ten."""

    def forward(self, x, h=None):
        self.seen = [*getattr(self, "seen", []), None if h is None else h.numpy()]
        ids = x.numpy().reshape(-1)
        return ndl.Tensor(np.eye(10, dtype="float32")[(ids + 1) % 10]), x[-1:]


def test_every_token_of_held_out_text_counts_once():
    class Plain(RecurrentRecipe):
        length, batch_size, lr, held_out_columns = 3, 2, 1.0, 4

        def load(self, report):
            pass

    recipe, model = Plain(Settings(), ignore), Counting()
    ids = [1, 2, 3, 5, 6, 7, 8, 8, 9, 0, 1, 2, 4, 5]  # three do not follow, the first one does
    loss = recipe.held_out_loss(model, TokenText(ids, 0), ignore)
    odds = math.log(math.e + 9)
    assert loss == pytest.approx(odds - 11 / 14)
    assert model.seen[0] is None and model.seen[1].tolist() == [[2, 7, 0, 4]]
    assert recipe.held_out_loss(Counting(), TokenText([1, 2], 0), ignore) == pytest.approx(odds - 1)


def test_columns_of_training_text_cover_it_once(source):
    recipe = Bytes(Settings(data=str(source), seed=2), ignore)
    targets = [y.numpy() for _, y in recipe.batches()]
    assert len(targets) == recipe.steps_per_epoch()
    size = recipe.source.values.size
    read = np.concatenate([y.reshape(-1, 3) for y in targets]).T.reshape(-1)
    text = np.roll(recipe.source.values, -recipe.offset(0))
    assert read.size == size // 3 * 3 and np.array_equal(read, text[: read.size])
    assert recipe.offset(1) != recipe.offset(0)


def test_windows_of_a_file_cover_it_once(source):
    recipe = GPT(Settings(data=str(source / "abc.py")), ignore)
    batches = [(x.numpy(), y.numpy()) for x, y in recipe.batches()]
    x, y = (np.concatenate([pair[i] for pair in batches]) for i in (0, 1))
    assert np.array_equal(x[:, 1:], y[:, :-1]) and len(batches) == recipe.steps_per_epoch()
    assert len(x) == recipe.windows()
    file = TextFile(source / "abc.py")
    assert file.tokenizer.decode(x[0]) in file.tokenizer.decode(file.train)
    model = recipe.model()
    found = recipe.evaluate(model, ignore, final=True)["loss"]
    ids = file.held_out.astype("int64")
    logits = [model(ids[None, i : i + 8]).numpy()[0] for i in range(0, len(ids) - 1, 8)]
    logits = np.concatenate(logits)[: len(ids) - 1].astype("float64")
    exact = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(ids) - 1), ids[1:]]
    assert found == pytest.approx(exact.mean(), rel=1e-5)


def test_presets(tmp_path, treebank):
    data = str(treebank)
    recipe = recipes.get("ptb-lstm")(Settings(data=data, preset="course", batch_size=7), ignore)
    assert (recipe.hidden_size, recipe.length, recipe.batch_size) == (100, 40, 7)
    for name in recipes.names():
        for preset in recipes.get(name).presets.values():
            assert all(hasattr(recipes.get(name), attribute) for attribute in preset)
    with pytest.raises(OptionError, match="did you mean 'course'"):
        recipes.get("ptb-lstm")(Settings(data=data, preset="coarse"), ignore)
    _, run = whole(Words, tmp_path / "run", data=data, steps=1, preset="small")
    assert run.config()["chosen"]["preset"] == "small"
    with pytest.raises(OptionError, match="--data FILE"):
        GPTRecipe(Settings(), ignore)
    (tmp_path / "short").write_text("abc")
    with pytest.raises(DataError, match="2 tokens to learn and 1 held out"):
        GPTRecipe(Settings(data=str(tmp_path / "short")), ignore)


# ---- looking up ---------------------------------------------------------------------


def test_matches_are_the_bytes_behind_the_last_equal_groups():
    random = np.random.default_rng(0)
    text = random.integers(0, 3, 3000).astype("uint8")
    text = np.concatenate([text, np.full(REACH, 7, "uint8"), text[:50]])
    for length in (2, 5):
        found, last = matches(text, length), {}
        for place in range(length, len(text)):
            group = text[place - length : place].tobytes()
            before = last.get(group, -REACH)
            expected = text[before] if place - before <= REACH and before >= 0 else NOTHING
            assert found[place] == expected
            last[group] = place
        assert (found[:length] == NOTHING).all()


def test_readers_see_what_training_sees():
    raw = np.frombuffer(b"def f(x):\n    return f(x)\n" * 6, np.uint8)
    text, model = ByteText(raw), models.ByteLSTM(embedding=3, hidden=5, layers=2)
    x = text.inputs(np.arange(text.size)[:, None])
    assert x.shape == (len(raw), 1, CONTEXT + 4 + len(MATCHES))
    expected = model(x)[0].numpy()
    read = model.reader()
    found = [read(raw[:7]), *(read(raw[i : i + 1]) for i in range(7, len(raw) - 1))]
    np.testing.assert_allclose(found, expected[7:], atol=1e-5)


def test_texts_go_on_beyond_a_context():
    ids = np.array([3, 4])
    for model in (
        models.GPT(30, 6, 8, 1, 2), models.GPT(30, 1, 8, 1, 2), models.ByteMLP(8, 2, 4, 1, 4),
        *(models.LanguageModel(8, 30, 8, 1, kind, 6) for kind in ("lstm", "rnn", "transformer")),
    ):  # fmt: skip
        written = list(continuation(model, ids, 20, Sampler(seed=1)))
        assert len(written) == 20 and written == list(continuation(model, ids, 20, Sampler(seed=1)))
        assert model.training
    model = models.GPT(30, 16, 8, 1, 2)
    greedy = {"temperature": 0.0}
    assert list(continuation(model, ids, 14, Sampler(**greedy))) == list(
        model.generate(ids, 14, **greedy)
    )


# ---- needle sample ------------------------------------------------------------------


def test_sample_writes_with_a_saved_run(tmp_path, source, treebank, capsys):
    runs = [(Bytes, source, "def é"), (GPT, source / "abc.py", "def "), (Words, treebank, "a b")]
    for kind, data, _ in runs:
        whole(kind, tmp_path / kind.name, data=str(data), steps=2)
    for path in (*source.iterdir(), *treebank.iterdir()):
        path.unlink()  # a run needs nothing but its folder
    for kind, _, prompt in runs:
        capsys.readouterr()
        command = ["sample", str(tmp_path / kind.name), "--prompt", prompt, "--count", "5"]
        texts = []
        for more in ([], [], ["--temperature", "0", "--top-k", "3", "--top-p", "0.9"]):
            assert cli.main(command + more) == 0
            texts.append(capsys.readouterr().out)
        assert texts[0] == texts[1] and texts[0].startswith(prompt) and texts[2].endswith("\n")


def test_sample_refuses_what_it_cannot_continue(tmp_path, source, treebank, capsys):
    whole(GPT, tmp_path / "gpt", data=str(source / "abc.py"), steps=1)
    whole(Words, tmp_path / "words", data=str(treebank), steps=1)
    (tmp_path / "empty").mkdir()

    def refused(folder, *more):
        assert cli.main(["sample", str(tmp_path / folder), *more]) == 2
        return capsys.readouterr().err

    assert "no language model: no config.json" in refused("empty", "--prompt", "x")
    assert "byte b'z' at position 2" in refused("gpt", "--prompt", "dez")
    assert "the word 'the' is not" in refused("words", "--prompt", "a the")
    assert "got an empty one" in refused("gpt", "--prompt", "")
    assert "top_p: expected" in refused("gpt", "--prompt", "d", "--top-p", "2")
    assert "--prompt" in refused("gpt")
    path = tmp_path / "gpt" / "config.json"
    path.write_text(json.dumps({"architecture": {"model": "GPT"}}))
    assert cli.main(["sample", str(path.parent), "--prompt", "d"]) == 1
    assert "is not that of a language model" in capsys.readouterr().err


# ---- the programs in apps -----------------------------------------------------------

APPS = Path(__file__).parents[2] / "apps"
there = pytest.mark.skipif(not APPS.exists(), reason="the programs are not here")


@there
def test_a_whole_gpt_has_at_most_80_lines(monkeypatch, tmp_path, capsys):
    assert len((APPS / "gpt.py").read_text().splitlines()) <= 80
    monkeypatch.syspath_prepend(str(APPS))
    gpt = importlib.import_module("gpt")
    assert gpt.GPT(27).num_parameters() == 4192
    (tmp_path / "file").write_text("abba\nbaab\nabab\n" * 3)
    gpt.main(str(tmp_path / "file"), "200")
    first, *written = capsys.readouterr().out.splitlines()
    loss = float(first.split()[-1])
    assert first.startswith("step 200/200") and loss < 1.0  # three letters: 1.1 at the start
    assert len(written) == 20 and set("".join(written)) <= {"a", "b"}
    gpt.main(steps=1)
    assert len(capsys.readouterr().out.splitlines()) == 20


@there
def test_the_course_model_learns_the_treebank(monkeypatch, treebank):
    monkeypatch.syspath_prepend(str(APPS))
    program = importlib.import_module("language_model")
    for seq_model in ("rnn", "lstm"):
        *_, accuracy, loss = program.train(seq_model, treebank, size=8, epochs=50, seq_len=3)
        assert 0.5 < accuracy <= 1 and loss < 1.0  # six words: 1.8 at the start
