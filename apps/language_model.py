"""The course's language model on the Penn Treebank.

Run from the repository: python apps/language_model.py [rnn, lstm or transformer] [folder]
Without a folder the files are taken from NEEDLE_DATA, or downloaded once.
"""

from __future__ import annotations

import math
import sys
import time

import numpy as np
from simple_ml import evaluate_ptb, train_ptb

import needle as ndl
from needle.models.language_model import LanguageModel


def train(seq_model="lstm", folder=None, size=100, epochs=10, seq_len=40, max_lines=None):
    """Train on the training words.

    Args:
        seq_model: "rnn", "lstm" or "transformer".
        folder: with the files; None as ``needle.data.penn_treebank``.
        size: of a word's vector and of the state.
        epochs: passes over the training words.
        seq_len: words of each sequence.
        max_lines: how many lines of each file to read; all for None.

    Returns:
        Accuracy and loss per word on the training words (the last epoch) and on the test words.
    """
    np.random.seed(4)
    corpus = ndl.data.penn_treebank(folder, max_lines, report=print)
    words, test = ndl.data.batchify(corpus.train, 16), ndl.data.batchify(corpus.test, 16)
    model = LanguageModel(size, len(corpus.dictionary), size, 2, seq_model, seq_len)
    learned = train_ptb(model, words, seq_len, epochs, optimizer=ndl.optim.Adam, lr=0.003, clip=5.0)
    return (*learned, *evaluate_ptb(model, test, seq_len))


if __name__ == "__main__":
    start = time.time()
    results = train(*sys.argv[1:3])
    for name, accuracy, loss in zip(("train", "test"), results[::2], results[1::2], strict=True):
        print(f"{name}: accuracy {accuracy:.4f}, perplexity {math.exp(loss):.1f}")
    print(f"{time.time() - start:.0f} s")
