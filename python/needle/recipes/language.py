"""What recipes of language models share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from needle import nn, optim
from needle.data import Tokenizer
from needle.errors import DataError
from needle.models import GPT, ByteLSTM, ByteMLP, LanguageModel
from needle.models.sampling import Sampler, continuation
from needle.recipes.recipe import Groups, Items, Recipe
from needle.recipes.settings import Settings
from needle.tensors import Tensor

if TYPE_CHECKING:
    from needle.tools.run import RunFolder

Ids = np.ndarray[Any, Any]
TOKENIZER = "tokenizer.json"
MODELS: dict[str, Any] = {kind.__name__: kind for kind in (GPT, ByteLSTM, ByteMLP, LanguageModel)}
"""Classes of language models, by the name that config.json has for them."""
NO_TARGET = -100
"""Label of a place that does not count."""


def build(architecture: dict[str, Any]) -> nn.Module:
    """Return a model from what ``architecture`` of its recipe returned."""
    arguments = dict(architecture)
    model: nn.Module = MODELS[arguments.pop("model")](**arguments)
    return model


class LanguageRecipe(Recipe):
    """Base of the recipes whose model continues a text, as ``needle sample`` does.

    Attributes:
        tokenizer: set by ``load``; saved in the run's folder.
        item: tokens.
    """

    tokenizer: Tokenizer

    def model(self) -> nn.Module:
        return build(self.architecture())

    def keep(self, folder: RunFolder) -> None:
        self.tokenizer.save(folder.path / TOKENIZER)

    def warm_cosine(self, steps: int) -> Any:
        """Return a schedule that rises for 100 steps or a tenth of all, then falls to 0."""
        warmup = min(100, max(1, steps // 10))
        return optim.Warmup(warmup, optim.Cosine(self.lr, max(1, steps - warmup)))

    def sample(self, model: nn.Module, prompt: Ids, count: int, temperature: float) -> list[str]:
        """Return lines to print: ids, and the text that the model writes after them."""
        sampler = Sampler(temperature, seed=self.settings.seed)
        written = continuation(model, prompt, count, sampler)
        text = self.tokenizer.decode([*prompt.tolist(), *written])
        shown = "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
        return ["a sample of its text:", *("  | " + line for line in shown.splitlines())]


class Text(Protocol):
    """A text whose tokens are predicted one after the other.

    Attributes:
        size: number of tokens.
    """

    size: int

    def inputs(self, places: Ids) -> Ids:
        """Return what the model reads to predict the tokens at places [...]: ids [..., *]."""

    def targets(self, places: Ids) -> Ids:
        """Return the tokens at places."""


class TokenText:
    """Tokens, each predicted from the one before it.

    Args:
        ids: [n].
        first: the token before the first one.
    """

    def __init__(self, ids: Any, first: int) -> None:
        self.ids = np.concatenate([[first], np.asarray(ids)]).astype(np.int32)
        self.size = len(self.ids) - 1

    def inputs(self, places: Ids) -> Ids:
        return self.ids[places]

    def targets(self, places: Ids) -> Ids:
        return self.ids[places + 1]


class Columns(Items):
    """A text that is read in columns, side by side; item i is row i of them.

    Args:
        text: the text, which goes on at its beginning.
        count: number of columns.
        rows: tokens from each column to the next one.
    """

    def __init__(self, text: Text, count: int, rows: int) -> None:
        super().__init__()
        self.text, self.columns = text, rows * np.arange(count)

    def __len__(self) -> int:
        return self.text.size

    def __getitem__(self, index: Any) -> Any:
        x, y = self.batch(np.array([index]))
        return x[0], y

    def batch(self, indices: Ids) -> Any:
        """Return inputs [t, b, *] and targets [t * b]."""
        places = (indices[:, None] + self.columns) % self.text.size
        return self.text.inputs(places), self.text.targets(places).reshape(-1)


class Reading(nn.Module):
    """Reads a text batch after batch: the state goes on, but gradients do not.

    The state is in buffers, so that a compiled step carries it on.

    Shapes:   a model and x as for ``RecurrentRecipe`` -> logits [t * b, v]

    Attributes:
        hidden, cell: the state after the last batch; None for zeros, and for what a model has not.
    """

    hidden: Tensor | None
    cell: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("hidden", None)
        self.register_buffer("cell", None)

    def forward(self, model: nn.Module, x: Any) -> Tensor:
        state = self.hidden if self.cell is None else (self.hidden, self.cell)
        logits, state = model(x, state)
        self.go_on(state if isinstance(state, tuple) else (state,))
        return logits

    def go_on(self, state: tuple[Any, ...]) -> None:
        """Take one or two tensors as the state, or none."""
        parts = [h.detach() for h in state]
        self.hidden, self.cell = (*parts, None, None)[:2]


class RecurrentRecipe(LanguageRecipe):
    """Base of the recipes that read a text in columns, side by side, with a state.

    The state goes on from batch to batch, but gradients do not; each pass starts with zeros. A
    model takes inputs [t, b, *] and a state, and returns logits [t * b, v] and the new state.

    Attributes:
        training: the text to learn, set by ``load``.
        length: steps of a batch.
        held_out_columns: columns in which held-out text is read.
        reading: has the state after the last batch.
    """

    training: Text
    length: int
    held_out_columns: ClassVar[int] = 10

    def __init__(self, settings: Settings, report: Callable[[str], None]) -> None:
        self.reading = Reading()
        super().__init__(settings, report)

    def offset(self, epoch: int) -> int:
        """Return where in the text a pass begins; it goes on at the text's beginning."""
        return 0

    def rows(self) -> int:
        """Return the number of steps in a pass."""
        return self.training.size // self.batch_size

    def steps_per_epoch(self) -> int:
        return -(-self.rows() // self.length)

    def items_per_step(self) -> int:
        return self.batch_size * self.length

    def begin_pass(self) -> None:
        self.reading.go_on(())

    def batches(self) -> Any:
        dataset = Columns(self.training, self.batch_size, self.rows())
        return self.loader(dataset, batch_sampler=Groups(self.steps_per_epoch(), self._steps))

    def _steps(self, epoch: int) -> Iterator[Any]:
        """Yield the places of the first column for each batch of a pass."""
        rows, offset = self.rows(), self.offset(epoch)
        for start in range(0, rows, self.length):
            yield offset + np.arange(start, min(start + self.length, rows))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        loss: Tensor = self.loss_function(self.reading(model, x), y)
        return loss

    def held_out_loss(
        self, model: nn.Module, text: Text, check: Callable[[], None], most: int | None = None
    ) -> float:
        """Return the mean loss of all tokens of a text, in nats.

        Args:
            model: the model, in evaluation mode.
            text: the text, read in columns of equal length.
            check: function to call regularly.
            most: number of tokens of each column that count, the first ones; all for None.
        """
        columns = min(self.held_out_columns, text.size)
        rows = -(-text.size // columns)
        total, count, hidden = 0.0, 0, None
        losses = nn.CrossEntropyLoss(reduction="sum", ignore_index=NO_TARGET)
        for start in range(0, min(rows, most or rows), self.length):
            check()
            steps = np.arange(start, min(start + self.length, rows))[:, None]
            places = steps + rows * np.arange(columns)
            inside = places < text.size
            places = np.minimum(places, text.size - 1)
            logits, hidden = model(constant(text.inputs(places)), hidden)
            labels = np.where(inside, text.targets(places), NO_TARGET).reshape(-1)
            # in float64, or the figure would depend on the order of the sums
            total += float(losses(logits.astype("float64"), constant(labels)).item())
            count += int(inside.sum())
        return total / count

    def state(self) -> dict[str, Any]:
        parts = self.reading.hidden, self.reading.cell
        return {f"hidden.{i}": h for i, h in enumerate(parts) if h is not None}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the hidden state. Raises DataError if it is not one of this batch size."""
        found = [state[key] for key in sorted(state) if key.startswith("hidden.")]
        for h in found:
            if not isinstance(h, Tensor) or h.shape[-2] != self.batch_size:
                raise DataError(
                    f"{self.name}: expected a hidden state of {self.batch_size} columns, got "
                    f"{getattr(h, 'shape', h)}"
                )
        self.reading.go_on(tuple(found))


def constant(values: Ids) -> Tensor:
    """Return values as a tensor without a gradient."""
    return Tensor(np.ascontiguousarray(values), requires_grad=False)


def perplexity(loss: float) -> float:
    """Return the perplexity of a mean loss in nats; infinite above e**700."""
    return math.exp(loss) if loss < 700 else math.inf
