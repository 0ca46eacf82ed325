"""ptb-lstm, ptb-rnn, ptb-transformer: language models over the words of the Penn Treebank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from needle import init, nn, optim
from needle.data import WordTokenizer, penn_treebank
from needle.errors import DataError
from needle.recipes.language import RecurrentRecipe, TokenText, perplexity

END = "<eos>"
COURSE = {
    "embedding": 100, "hidden_size": 100, "layers": 2, "batch_size": 16, "length": 40,
    "rule": "adam", "lr": 3e-3, "clip": None, "scale": None, "epochs": 10,
}  # fmt: skip
"""As the course's notebook trains its ``LanguageModel``."""


class TreebankRecipe(RecurrentRecipe):
    """Learn the training words; stop early by the perplexity of the validation words.

    All words of a set count, the first one after ``<eos>``. At the end the model has the weights
    of its best epoch, by which the test words are judged.

    Attributes:
        seq_model: of ``LanguageModel``.
        embedding, hidden_size, layers: sizes of the model.
        rule: "sgd" or "adam".
        scale: weights are drawn from U(-scale, scale); as usual for None.
        steady: epochs with the full rate ("sgd"); each further one has half of the last one's.
        patience: the run ends after so many epochs without a better perplexity.
    """

    item = "words"
    curve = "perplexity"
    curve_unit = "perplexity per word"
    seq_model: ClassVar[str]
    embedding = 200
    hidden_size = 200
    layers = 2
    rule = "sgd"
    scale: float | None = 0.1
    batch_size = 20
    length = 20
    clip: float | None = 0.25
    epochs = 13
    steady = 4
    patience = 3

    def __init__(self, settings: Any, report: Callable[[str], None]) -> None:
        self.best: dict[str, Any] = {}
        self.lowest: float | None = None
        self.worse = 0
        super().__init__(settings, report)

    def load(self, report: Callable[[str], None]) -> None:
        corpus = penn_treebank(self.settings.data, report=report)
        parts = {name: getattr(corpus, name) for name in ("train", "valid", "test")}
        self.tokenizer = WordTokenizer(corpus.dictionary.idx2word)
        start = corpus.dictionary.word2idx[END]
        texts = {name: TokenText(ids, start) for name, ids in parts.items()}
        self.training, self.valid, self.test = texts["train"], texts["valid"], texts["test"]

    def describe_data(self) -> dict[str, Any]:
        parts = {"training": self.training, "validation": self.valid, "test": self.test}
        sizes = {f"{name}_words": text.size for name, text in parts.items()}
        return {**sizes, "vocabulary": len(self.tokenizer)}

    def architecture(self) -> dict[str, Any]:
        return {
            "model": "LanguageModel", "embedding_size": self.embedding,
            "output_size": len(self.tokenizer), "hidden_size": self.hidden_size,
            "num_layers": self.layers, "seq_model": self.seq_model, "seq_len": self.length,
        }  # fmt: skip

    def model(self) -> nn.Module:
        model = super().model()
        if self.scale is not None:
            for p in model.parameters():
                p.data = init.rand(*p.shape, low=-self.scale, high=self.scale, device=p.device)
        return model

    def optimizer(self, model: nn.Module, steps: int) -> optim.Optimizer:
        if self.rule == "adam":
            return optim.Adam(model.parameters(), lr=self.lr)
        epoch = self.steps_per_epoch()
        halved = optim.Step(self.lr / 2, epoch, 0.5)
        rate = optim.Chain((self.lr, self.steady * epoch), halved)
        return optim.SGD(model.parameters(), lr=rate)

    def shown(self, loss: float) -> dict[str, float]:
        return {"perplexity": perplexity(loss)}

    def evaluate_every(self, steps: int) -> int:
        return self.steps_per_epoch()

    def evaluate(
        self, model: nn.Module, check: Callable[[], None], final: bool
    ) -> dict[str, float]:
        found = perplexity(self.held_out_loss(model, self.valid, check))
        if self.lowest is None or found < self.lowest:
            self.lowest, self.worse = found, 0
            self.best = dict(model.state_dict())
        else:
            self.worse += 1
        if not final:
            return {"perplexity": found}
        model.load_state_dict(self.best)
        tested = perplexity(self.held_out_loss(model, self.test, check))
        return {"perplexity": self.lowest, "test_perplexity": tested}

    def finished(self) -> bool:
        return self.worse >= self.patience

    def state(self) -> dict[str, Any]:
        kept: dict[str, Any] = {f"best.{name}": value for name, value in self.best.items()}
        if self.lowest is not None:
            kept["lowest"] = self.lowest
        return {**super().state(), **kept, "worse": self.worse}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the hidden state and the best weights. Raises DataError if parts are missing."""
        super().load_state(state)
        if not isinstance(state.get("worse"), int):
            raise DataError(f"{self.name}: the checkpoint has no number 'recipe.worse'")
        self.worse, self.lowest = state["worse"], state.get("lowest")
        self.best = {k[5:]: v for k, v in state.items() if k.startswith("best.")}

    def conclude(self, model: nn.Module, figures: dict[str, float]) -> list[str]:
        return [
            f"perplexity of {self.valid.size:,} validation words: {figures['perplexity']:.2f}",
            f"perplexity of {self.test.size:,} test words: {figures['test_perplexity']:.2f}",
            *self.sample(model, self.test.ids[:1], 60, 1.0),
        ]


class TreebankLSTM(TreebankRecipe):
    """An LSTM, with the "small" model of Zaremba et al., which reaches a test perplexity of 115.

    The paper adds the losses of a sequence's 20 steps; here they are averaged. So its learning
    rate of 1 is 20 here, and its largest norm of 5 is 0.25.

    Source: Zaremba et al., "Recurrent Neural Network Regularization", 2014, arXiv:1409.2329,
    section 4.1, the non-regularized LSTM
    """

    name = "ptb-lstm"
    summary = "an LSTM over the words of the Penn Treebank; test perplexity about 115"
    seq_model = "lstm"
    presets = {"small": {}, "course": COURSE}
    lr = 20.0


class TreebankRNN(TreebankRecipe):
    """A recurrent network without gates."""

    name = "ptb-rnn"
    summary = "an RNN over the words of the Penn Treebank"
    seq_model = "rnn"
    presets = {"small": {}, "course": COURSE}
    lr = 5.0
    layers = 1


class TreebankTransformer(TreebankRecipe):
    """The course's Transformer; it sees the words of its own sequence only, and has no state."""

    name = "ptb-transformer"
    summary = "a Transformer over the words of the Penn Treebank"
    seq_model = "transformer"
    presets = {"small": {}, "course": COURSE}
    rule = "adam"
    scale = None
    lr = 1e-3
    length = 64
    clip = 1.0

    def architecture(self) -> dict[str, Any]:
        return {**super().architecture(), "hidden_size": 2 * self.hidden_size}


RECIPES = {kind.name: kind for kind in (TreebankLSTM, TreebankRNN, TreebankTransformer)}
