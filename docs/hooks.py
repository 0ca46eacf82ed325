"""What MkDocs calls while it builds the site: it adds the pages that are made of other files."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import reference
from render_zero import page

from needle.tools import draw

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

DOCS = Path(__file__).parent
ROOT_PAGES = {"ARCHITECTURE.md": "architecture.md", "CONTRIBUTING.md": "contributing.md"}
"""Files beside the folder docs, and where they are in the site."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for path, text in generated():
        files.append(File.generated(config, path, content=text))
    return files


def generated() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each page that no file in docs/ holds."""
    yield "needle_from_zero.md", page((DOCS / "needle_from_zero.py").read_text())
    yield "step.html", picture((DOCS / "inspecting.md").read_text())
    yield from root_pages()
    for path, text in reference.pages().items():
        yield f"reference/{path}", text


def picture(text: str) -> str:
    """Return the page that ``draw`` makes of the compiled step in a page's first program."""
    space: dict[str, Any] = {"__name__": "example"}
    program = re.search(r"```python\n(.*?)```", text, re.S)
    assert program is not None
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(program[1], "example.py", "exec"), space)
    return draw.page(space["step"])


def root_pages() -> Iterator[tuple[str, str]]:
    """Yield the files of the root as pages, with links as they are within the site."""
    for source, path in ROOT_PAGES.items():
        text = (DOCS.parent / source).read_text()
        text = re.sub(r"\]\(docs/", "](", text)
        yield path, re.sub(r"\]\((\w+\.md)", lambda m: f"]({ROOT_PAGES.get(m[1], m[1])}", text)
