"""``needle sample``: continue a text with the model of a run."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

from needle.errors import DataError, OptionError
from needle.models.sampling import Sampler, continuation
from needle.tools.run import RunFolder


def sample(run: str, prompt: str, count: int, **settings: Any) -> None:
    """Print a prompt and its continuation, each token as soon as it is drawn.

    Args:
        run: folder of the run, which has the weights and the tokenizer.
        prompt: beginning of the text.
        count: tokens to add.
        settings: of the ``Sampler``.

    Raises:
        OptionError: if the folder has no language model, or the model cannot read the prompt.
        DataError: if a file of the run is damaged.
    """
    sampler = Sampler(**settings)
    model, tokenizer = RunFolder(Path(run)).language_model()
    try:
        ids = tokenizer.encode(prompt)
    except DataError as error:
        raise OptionError(f"--prompt: {error}") from None
    if not len(ids):
        raise OptionError("--prompt: expected a text of one token or more, got an empty one")
    written = continuation(model, ids, count, sampler)
    for piece in tokenizer.pieces(chain(ids.tolist(), written)):
        print(piece, end="", flush=True)
    print()
