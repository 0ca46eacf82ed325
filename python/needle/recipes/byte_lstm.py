"""byte-lstm: an LSTM that predicts the next byte of the standard library's source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from needle import nn
from needle.models.byte_lstm import ByteText
from needle.recipes.language import RecurrentRecipe
from needle.recipes.standard_library import StandardLibrary

QUICK = 2048
"""Bytes of each column that an evaluation during training looks at."""


class ByteLSTMRecipe(StandardLibrary, RecurrentRecipe):
    """Read the training modules in columns, side by side; judge by the modules held out.

    This is the default recipe, because of several models it needed the fewest bits per byte on
    the held-out modules. Each made the steps that fit into 60 s on two cores of a busy machine:

    ====================================================  ==========  =============
    model                                                 parameters  bits per byte
    ====================================================  ==========  =============
    GPT over 128 bytes: 3 layers, width 128                  627,840          2.004
    ByteMLP, as the recipe byte-mlp has it                   850,416          1.899
    an LSTM that looks up the last bytes and groups        1,001,776          1.767
    ByteMLP that looks up matches too                        859,632          1.488
    ByteLSTM: an LSTM that looks up matches too              898,864          1.356
    ====================================================  ==========  =============

    The preset "long" trains a larger state for 20 minutes; its result was not measured.

    A pass begins at a place of its own, drawn from the seed.
    """

    name = "byte-lstm"
    summary = "a byte-level language model of Python's standard library, trained for 60 s"
    presets = {"quick": {}, "long": {"seconds": 1200.0, "hidden_size": 512}}
    batch_size = 32
    length = 64
    lr = 7e-3
    seconds = 60.0
    clip = 1.0
    hidden_size = 192
    held_out_columns = 16

    def load(self, report: Callable[[str], None]) -> None:
        super().load(report)
        self.training = ByteText(self.source.values)
        self.judged = ByteText(self.held_out.values)

    def architecture(self) -> dict[str, Any]:
        return {"model": "ByteLSTM", "hidden": self.hidden_size}

    def offset(self, epoch: int) -> int:
        random = np.random.default_rng([self.settings.seed, epoch])
        return int(random.integers(self.training.size))

    def evaluate(
        self, model: nn.Module, check: Callable[[], None], final: bool
    ) -> dict[str, float]:
        loss = self.held_out_loss(model, self.judged, check, None if final else QUICK)
        return self.figures(loss, final)


RECIPE = ByteLSTMRecipe
