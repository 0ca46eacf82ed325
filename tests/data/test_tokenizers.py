"""Tokenizers of bytes and words, and text files as ids."""

from __future__ import annotations

import numpy as np
import pytest

from needle import data
from needle.errors import DataError, OptionError


def test_bytes_there_and_back(tmp_path):
    text = "naïve\n€"
    every = data.ByteTokenizer()
    assert every.encode(text).tolist() == list(text.encode()) and len(every) == 256
    few = data.ByteTokenizer(text.encode())
    ids = few.encode(text)
    assert ids.dtype == "uint8" and sorted(set(ids.tolist())) == list(range(len(few)))
    few.save(tmp_path / "few.json")
    for tokenizer in (every, few, data.load_tokenizer(tmp_path / "few.json")):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    with pytest.raises(DataError, match="byte b'b' at position 1 is not in the vocabulary of 10"):
        few.encode("abe")
    with pytest.raises(OptionError, match="expected bytes from 0 to 255"):
        data.ByteTokenizer([256])


def test_characters_appear_when_their_bytes_are_complete():
    pieces = list(data.ByteTokenizer().pieces(b"a\xe2\x82\xacb\xff\xe2"))
    assert pieces == ["a", "", "", "€", "b", "\ufffd", "", "\ufffd"]


def test_words_there_and_back(tmp_path):
    lines = ["the cat\n", "the dog\n"]
    words = data.WordTokenizer.of(lines, most=4)
    assert words.words == ["<eos>", "<unk>", "the", "cat"]
    assert words.encode("the cat\nthe", replace=True).tolist() == [2, 3, 0, 2]
    assert words.encode("a dog", replace=True).tolist() == [1, 1]
    with pytest.raises(DataError, match="the word 'dog' is not in the vocabulary of 4 words"):
        words.encode("the dog")
    with pytest.raises(DataError, match="the word 'b' is not"):
        data.WordTokenizer(["a"]).encode("a b", replace=True)
    words.save(tmp_path / "words.json")
    again = data.load_tokenizer(tmp_path / "words.json")
    assert again.decode([2, 3, 0, 2, 1]) == "the cat\nthe <unk>"
    assert len(data.WordTokenizer.of(lines)) == 5
    with pytest.raises(OptionError, match="expected different words"):
        data.WordTokenizer(["a", "a"])


@pytest.mark.parametrize(
    "content", ["", "[]", '{"kind": "letters", "vocabulary": []}', '{"kind": "bytes"}',
                '{"kind": "words", "vocabulary": [1]}', '{"kind": "bytes", "vocabulary": ["a"]}'],
)  # fmt: skip
def test_a_damaged_tokenizer_is_refused(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(DataError, match="cannot be read"):
        data.load_tokenizer(path)
    path.write_text(content)
    with pytest.raises(DataError, match=r"tokenizer\.json: is not a saved tokenizer"):
        data.load_tokenizer(path)


def test_the_end_of_a_file_is_held_out(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"a b\nc a\nb b\n d\xc3\xa9")
    text = data.TextFile(path, held_out=0.25)
    assert len(text.train) == 12 and text.train.dtype == "uint8"
    assert text.tokenizer.decode(text.held_out) == " dé"
    assert text.held_out_bytes == len(text.held_out) == 4
    words = data.TextFile(path, "words", held_out=0.25)
    assert words.tokenizer.decode(words.train) == "a b\nc a\nb b\n"
    assert words.tokenizer.decode(words.held_out) == "<unk>" and words.held_out_bytes == 4
    # a line belongs to the part in which it begins
    words = data.TextFile(path, "words", held_out=0.5, most_words=3)
    assert words.tokenizer.decode(words.train) == "a <unk>\n<unk> a\n"
    assert words.held_out_bytes == 8 and np.array_equal(words.held_out, [1, 1, 0, 1])


def test_files_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "text"
    with pytest.raises(DataError, match="text: cannot be read"):
        data.TextFile(path)
    with pytest.raises(DataError, match="is not a file"):
        data.TextFile(tmp_path)
    for content in (b"", b"a"):
        path.write_bytes(content)
        for level in ("bytes", "words"):
            with pytest.raises(DataError, match=f"{len(content)} bytes are too few"):
                data.TextFile(path, level)
    path.write_bytes(b"a\xff\n" * 9)
    assert len(data.TextFile(path).tokenizer) == 3
    with pytest.raises(DataError, match="is not UTF-8 text"):
        data.TextFile(path, "words")
    with pytest.raises(OptionError, match="level"):
        data.TextFile(path, "letters")
    with pytest.raises(OptionError, match="held_out above 0 and below 1"):
        data.TextFile(path, held_out=1.0)
