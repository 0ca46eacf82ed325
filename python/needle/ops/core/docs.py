"""The sections that the docstrings of all elementwise ops share."""

from __future__ import annotations

import re

from needle.dtype import DType

_KINDS = {"f": "floating", "iu": "integer", "b": "bool"}
_SECTION = re.compile(r"^ +[A-Z][a-z]+:", re.M)


def kinds_of(accepts: str) -> list[str]:
    """Return the names of kinds of dtypes given by their letters."""
    return [name for letters, name in _KINDS.items() if letters in accepts]


def with_contract(text: str, accepts: str, floating: bool, result: DType | None) -> str:
    """Return the docstring of an elementwise op with the sections that it lacks.

    Args:
        text: its own docstring.
        accepts: letters of the kinds of dtypes that it takes.
        floating: whether other dtypes become floats.
        result: dtype of the result; None: that of the operands.
    """
    taken = (
        "floating; integers and bools become floats" if floating else ", ".join(kinds_of(accepts))
    )
    given = "" if result is None else f" -> {result}"
    sections = {
        "Shapes": "any; operands broadcast",
        "Dtypes": f"{taken}{given}; operands are promoted",
        "Raises": "ShapeError if shapes do not broadcast; DtypeError for other dtypes",
    }
    missing = [f"    {k + ':':9} {v}\n" for k, v in sections.items() if f"{k}:" not in text]
    text, example = split_example(text)
    gap = "\n" if _SECTION.search(text) else "\n\n"
    return text.rstrip() + gap + "".join(missing) + (f"\n{example}" if example else "    ")


def split_example(text: str) -> tuple[str, str]:
    """Return a docstring without its example, and the example."""
    start = text.find("    >>> ")
    return (text, "") if start < 0 else (text[:start], text[start:])
