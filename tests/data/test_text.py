"""Text as numbers of words: the dictionary, the corpus, and batches."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import needle as ndl
from needle import data
from needle.errors import DataError, IndexRangeError, OptionError
from needle.models.language_model import LanguageModel

TEXT = {"train": " a b a \n c \n", "test": "b d\n", "valid": "e a\n"}


@pytest.fixture
def folder(tmp_path):
    for name, text in TEXT.items():
        (tmp_path / f"{name}.txt").write_text(text)
    return tmp_path


def test_words_are_numbered_as_they_come(folder):
    corpus = data.Corpus(folder)
    assert corpus.dictionary.idx2word == ["a", "b", "<eos>", "c", "d"]
    assert corpus.train == [0, 1, 0, 2, 3, 2] and corpus.test == [1, 4, 2]
    assert corpus.dictionary.word2idx["d"] == 4 and len(corpus.dictionary) == 5
    assert corpus.valid == [5, 0, 2] and len(corpus.dictionary) == 6
    assert data.Corpus(folder, max_lines=1).train == [0, 1, 0, 2]
    assert data.Dictionary().add_word("x") == 0


def test_the_treebank_is_found_in_a_folder_and_in_its_folder_ptb(folder, tmp_path):
    assert data.penn_treebank(folder).test == [1, 4, 2]
    (tmp_path / "ptb").mkdir()
    for name in TEXT:
        (folder / f"{name}.txt").rename(tmp_path / "ptb" / f"ptb.{name}.txt")
    with ndl.config(data=str(tmp_path)):
        assert data.penn_treebank(max_lines=1).train == [0, 1, 0, 2]
    with pytest.raises(DataError, match="do not contain train.txt"):
        data.penn_treebank(tmp_path / "elsewhere")


def test_columns_follow_one_another():
    batches = data.batchify(range(14), 4)
    np.testing.assert_array_equal(batches, [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]])
    assert batches.dtype == "float32" and data.batchify(range(4), 2, dtype="int64").dtype == "int64"


def test_targets_are_the_next_words(device):
    batches = data.batchify(range(12), 2)
    x, y = data.get_batch(batches, 2, 3, device=device)
    assert x.device == device and x.dtype == "float32" and not x.requires_grad
    np.testing.assert_array_equal(x.numpy(), [[2, 8], [3, 9], [4, 10]])
    np.testing.assert_array_equal(y.numpy(), [3, 9, 4, 10, 5, 11])
    x, y = data.get_batch(batches, 4, 3, dtype="int64")
    assert x.shape == (1, 2) and y.tolist() == [5, 11] and y.dtype == "int64"


def test_wrong_text_is_refused(folder):
    (folder / "test.txt").write_text("")
    with pytest.raises(DataError, match="test.txt: the file has no lines"):
        data.Corpus(folder)
    (folder / "test.txt").write_bytes(b"ab\xff")
    with pytest.raises(DataError, match="byte 2 is not UTF-8"):
        data.Corpus(folder)
    (folder / "test.txt").unlink()
    with pytest.raises(DataError, match="test.txt: no such file"):
        data.Corpus(folder)
    with pytest.raises(OptionError, match="max_lines=0"):
        data.Corpus(folder, 0)
    with pytest.raises(DataError, match="3 words do not fill 4 columns"):
        data.batchify([1, 2, 3], 4)
    with pytest.raises(OptionError, match="batch_size=0"):
        data.batchify([1, 2, 3], 0)
    batches = data.batchify(range(6), 2)
    with pytest.raises(IndexRangeError, match="row 3 is out of range for 3 rows"):
        data.get_batch(batches, 3, 1)
    with pytest.raises(OptionError, match="bptt=0"):
        data.get_batch(batches, 0, 0)


@pytest.mark.parametrize("kind", ["rnn", "lstm"])
def test_the_courses_program_learns_a_text(kind):
    path = Path(__file__).parents[2] / "apps" / "simple_ml.py"
    if not path.exists():
        pytest.skip("the course's programs are not here")
    spec = importlib.util.spec_from_file_location("simple_ml", path)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    batches = data.batchify([0, 1, 2, 3] * 32, 3)
    model = LanguageModel(4, 4, 8, seq_model=kind)
    _, first = program.evaluate_ptb(model, batches, 5)
    _, loss = program.train_ptb(model, batches, 5, 6, lr=1.0, clip=1.0)
    accuracy, last = program.evaluate_ptb(model, batches, 5)
    assert last < loss < first and accuracy > 0.9 and not model.training
