"""The programs in docs/ print what the pages say.

A page's ``python`` blocks run in order, in one namespace; the ``text`` block that follows one is
what it prints.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

import needle as ndl
from needle import backend

DOCS = Path(__file__).parents[2] / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
PAGES = [*(p for p in sorted(DOCS.glob("*.md")) if "```text" in p.read_text()), *TUTORIALS]
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_page_prints_what_it_says(page, monkeypatch):
    monkeypatch.setattr(ndl.devices, "_devices", dict(ndl.devices._devices))
    monkeypatch.setattr(backend.contract, "_overrides", dict(backend.contract._overrides))
    space, compared = {"__name__": "example"}, 0
    for program, expected in BLOCK.findall(page.read_text()):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(program, "example.py", "exec"), space)
        if expected:
            compared += 1
            expected = expected.replace("cpu()", str(ndl.default_device()))
            assert out.getvalue() == expected, program
    assert compared >= 1


def test_there_is_a_page_for_each_tutorial():
    assert [path.stem for path in TUTORIALS] == [
        "debugging", "device", "first_model", "op", "optimizer",
    ]  # fmt: skip
