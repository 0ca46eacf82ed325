"""The documentation site: the reference has every public name, and the navigation every page."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from needle import core, ops

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def reference():
    sys.path.insert(0, str(DOCS))
    try:
        yield importlib.import_module("reference")
    finally:
        sys.path.remove(str(DOCS))


def test_every_op_has_a_page_and_every_public_name_an_entry(reference):
    pages = reference.pages()
    for op in ops.all_ops():
        page = pages[f"ops/{op.__name__}.md"]
        assert all(f"\n{part}\n:   " in page for part in ("Shapes", "Gradient")), op
        assert all(f"\n## {part}\n" in page for part in ("Kernels", "Source")), op
    text = "\n".join(page for path, page in pages.items() if not path.startswith("ops/"))
    entries = set(re.findall(r"^::: (\S+)|\{ #(\S+) \}$", text, re.M))
    known = {(first or second).rpartition(".")[2] for first, second in entries}
    for room in reference.PACKAGES:
        for names in reference.public(room).values():
            missing = set(names) - known - {op.__name__ for op in ops.all_ops()}
            assert not missing, f"needle.{room}"
    assert {"Tensor", "jvp", "softmax", "Linear", "AdamW", "kaiming_uniform", "save"} <= known


def test_examples_of_ops_are_computed(reference):
    page = reference.op_page(ops.AddScalar)
    assert "## Example" in page and ">>> ndl.ops.AddScalar.of(" in page
    assert "## Example" not in reference.op_page(ops.Sum), "its docstring has one"
    assert "`cpu`, `cuda`: the row `exp`" in reference.op_page(ops.Exp)
    if core.native is not None:
        assert "a kernel of its own" in reference.op_page(ops.Softmax)


def test_one_line_sections_become_a_list(reference):
    text = "Do it.\n\n>>> f(1)\n[[2]\n [3]]\n\nShapes:   x [n] -> the same; y*\n"
    text += "Raises:   ShapeError if so,\n          or so\n\nMore."
    assert reference.with_lists(text) == (
        "Do it.\n\n```pycon\n>>> f(1)\n[[2]\n [3]]\n```\n\n"
        "Shapes\n:   `x [n] -> the same`; y\\*\n\n"
        "Raises\n:   [ShapeError][needle.errors.ShapeError] if so, or so\n\nMore."
    )


def test_the_navigation_names_every_page():
    """That it names no other page is checked by ``mkdocs build --strict``."""
    text = (ROOT / "mkdocs.yml").read_text()
    named = set(re.findall(r": ([\w/]+\.md)$", text.partition("\nnav:")[2], re.M))
    assert {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} <= named


def test_the_site_loads_nothing_from_elsewhere():
    text = (ROOT / "mkdocs.yml").read_text()
    assert "font: false" in text and "https:" not in text.partition("\nplugins:")[0]
    assert "https:" not in (DOCS / "site.css").read_text()
