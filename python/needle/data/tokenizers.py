"""Tokenizers: text as ids of bytes or words, and back; and a text file as ids."""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from needle.data.text import END
from needle.errors import DataError, OptionError, undefined, unknown

__all__ = ["ByteTokenizer", "TextFile", "Tokenizer", "WordTokenizer", "load_tokenizer"]

Ids = np.ndarray[Any, Any]
UNKNOWN = "<unk>"
"""Stands for every word that the vocabulary lacks."""


class Tokenizer:
    """Base of the tokenizers. ``len()`` is the size of the vocabulary."""

    kind: ClassVar[str]

    def __len__(self) -> int:
        raise undefined(self, "__len__")

    def encode(self, text: str) -> Ids:
        """Return the ids of a text. Raises DataError for what the vocabulary lacks."""
        raise undefined(self, "encode")

    def pieces(self, ids: Iterable[int]) -> Iterator[str]:
        """Yield the text of each id as it comes; the pieces make the whole text."""
        raise undefined(self, "pieces")

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids."""
        return "".join(self.pieces(ids))

    def entries(self) -> list[Any]:
        """Return the vocabulary as JSON can hold it."""
        raise undefined(self, "entries")

    def save(self, path: str | Path) -> None:
        """Write the tokenizer to a JSON file."""
        values = {"kind": self.kind, "vocabulary": self.entries()}
        Path(path).write_text(json.dumps(values, ensure_ascii=False) + "\n", encoding="utf-8")


class ByteTokenizer(Tokenizer):
    """Take the bytes of UTF-8 text as tokens.

    Args:
        values: the bytes of the vocabulary; all 256 for None, then ids are bytes.

    Raises:
        OptionError: if a value is not a byte.

    >>> ndl.data.ByteTokenizer().encode("hé").tolist()
    [104, 195, 169]
    """

    kind = "bytes"

    def __init__(self, values: Iterable[int] | None = None) -> None:
        known = sorted(set(range(256) if values is None else values))
        if not known or not all(type(v) is int and 0 <= v < 256 for v in known):
            raise OptionError(f"ByteTokenizer: expected bytes from 0 to 255, got {known!r:.60}")
        self.values = np.array(known, np.uint8)
        self._ids = np.full(256, -1, np.int16)
        self._ids[self.values] = np.arange(len(known))

    def __len__(self) -> int:
        return len(self.values)

    def encode(self, text: str | bytes | Ids) -> Ids:
        """Return the ids of a text, of bytes, or of an array of bytes: uint8 [n].

        Raises:
            DataError: for a byte that is not in the vocabulary, with its place.
        """
        given = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        codes = given if isinstance(given, np.ndarray) else np.frombuffer(given, np.uint8)
        ids = self._ids[codes]
        if ids.size and ids.min() < 0:
            place = int(np.argmax(ids < 0))
            raise DataError(
                f"encode: byte {bytes(codes[place : place + 1])!r} at position {place} is not in "
                f"the vocabulary of {len(self)} bytes"
            )
        return ids.astype(np.uint8)

    def pieces(self, ids: Iterable[int]) -> Iterator[str]:
        """Yield text as soon as a character is complete; "\\ufffd" for bytes that are not UTF-8."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for i in ids:
            yield decoder.decode(self.values[i : i + 1].tobytes())
        yield decoder.decode(b"", final=True)

    def entries(self) -> list[int]:
        return [int(v) for v in self.values]


class WordTokenizer(Tokenizer):
    """Take words between spaces as tokens, and ``<eos>`` for the end of each line.

    Args:
        words: the vocabulary, in the order of the ids.

    Raises:
        OptionError: if a word is not text, or there twice.

    >>> ndl.data.WordTokenizer(["a", "b", "<eos>"]).encode("b a\\n").tolist()
    [1, 0, 2]
    """

    kind = "words"

    def __init__(self, words: Iterable[str]) -> None:
        self.words = list(words)
        self._ids = {word: i for i, word in enumerate(self.words)}
        if len(self._ids) != len(self.words) or not all(isinstance(w, str) for w in self.words):
            raise OptionError("WordTokenizer: expected different words, each a str")

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def of(cls, lines: Iterable[str], most: int | None = None) -> WordTokenizer:
        """Return a tokenizer of the words of a text, the most frequent ones first.

        Args:
            lines: of the text.
            most: size of the vocabulary, with ``<eos>`` and ``<unk>``; all words for None.
        """
        counts = Counter(word for line in lines for word in line.split())
        rest = [w for w, _ in counts.most_common() if w not in (END, UNKNOWN)]
        return cls([END, UNKNOWN, *rest[: None if most is None else max(0, most - 2)]])

    def encode(self, text: str, replace: bool = False) -> Ids:
        """Return the ids of a text, int32 [n].

        Args:
            text: lines of words; what follows the last newline gets no ``<eos>``.
            replace: take ``<unk>`` for words that the vocabulary lacks.

        Raises:
            DataError: for a word that the vocabulary lacks, unless it is replaced.
        """
        words = text.replace("\n", f" {END} ").split()
        default = self._ids.get(UNKNOWN) if replace else None
        ids = [self._ids.get(word, default) for word in words]
        if None in ids:
            word = words[ids.index(None)]
            raise DataError(
                f"encode: the word {word!r} is not in the vocabulary of {len(self)} words"
            )
        return np.array(ids, np.int32)

    def pieces(self, ids: Iterable[int]) -> Iterator[str]:
        """Yield words, with spaces between them and a newline for ``<eos>``."""
        between = ""
        for i in ids:
            word = self.words[i]
            yield "\n" if word == END else between + word
            between = "" if word == END else " "

    def entries(self) -> list[str]:
        return self.words


KINDS: dict[str, type[ByteTokenizer] | type[WordTokenizer]] = {
    kind.kind: kind for kind in (ByteTokenizer, WordTokenizer)
}


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Return the tokenizer that ``save`` wrote to a JSON file.

    Raises:
        DataError: if the file is missing, or not what ``save`` writes.

    >>> tokenizer = ndl.data.load_tokenizer("runs/gpt/tokenizer.json")  # doctest: +SKIP
    """
    try:
        values = json.loads(Path(path).read_bytes())
        return KINDS[values["kind"]](values["vocabulary"])
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: is not a saved tokenizer ({error!r:.80})") from None


class TextFile:
    """Read a text file as ids, its end held out.

    The file is read piece by piece; ids take one byte each for bytes, four for words.

    Attributes:
        tokenizer: made of the file: of all its bytes, or of the words of the training part.
        train: ids of the first part.
        held_out: ids of the rest.
        held_out_bytes: size of the rest in bytes.

    Args:
        path: of a UTF-8 text file.
        level: "bytes" or "words".
        held_out: share of the file that is held out, above 0 and below 1.
        most_words: size of the vocabulary of words; all words of the training part for None.

    Raises:
        DataError: if the file is missing, is not UTF-8 where words are read, or one of the parts
            would be empty.
        OptionError: for another level or share.

    >>> text = ndl.data.TextFile("book.txt", "words", most_words=5000)  # doctest: +SKIP
    """

    def __init__(
        self,
        path: str | Path,
        level: str = "bytes",
        held_out: float = 0.1,
        most_words: int | None = 10_000,
    ) -> None:
        if level not in KINDS:
            raise unknown("TextFile: level", level, KINDS)
        if not 0 < held_out < 1:
            raise OptionError(f"TextFile: expected held_out above 0 and below 1, got {held_out}")
        self.path = Path(path)
        try:
            size = self.path.stat().st_size
            if not self.path.is_file():
                raise DataError(f"{path}: is not a file")
            self._read(level, int(size * (1 - held_out)), most_words)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from None
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: is not UTF-8 text ({error.reason})") from None
        if not len(self.train) or not len(self.held_out):
            raise DataError(f"{path}: {size} bytes are too few to learn from and to hold out")

    def _read(self, level: str, end: int, most_words: int | None) -> None:
        if level == "bytes":
            values = np.fromfile(self.path, np.uint8)
            self.tokenizer: Any = ByteTokenizer(np.unique(values).tolist() if len(values) else None)
            ids = self.tokenizer.encode(values)
            self.train, self.held_out = ids[:end], ids[end:]
            self.held_out_bytes = len(self.held_out)
            return
        self.tokenizer = WordTokenizer.of(self._lines(0, end), most_words)
        self.train = self._words(0, end)
        rest = sum(len(line.encode()) for line in self._lines(0, end))
        self.held_out = self._words(rest, None)
        self.held_out_bytes = self.path.stat().st_size - rest

    def _words(self, start: int, end: int | None) -> Ids:
        parts = [self.tokenizer.encode(line, replace=True) for line in self._lines(start, end)]
        return np.concatenate(parts) if parts else np.empty(0, np.int32)

    def _lines(self, start: int, end: int | None) -> Iterator[str]:
        """Yield the lines that begin in a stretch of the file's bytes, each with a newline."""
        with open(self.path, "rb") as file:
            file.seek(start)
            for line in file:
                if end is not None and start >= end:
                    return
                start += len(line)
                yield line.decode("utf-8")
