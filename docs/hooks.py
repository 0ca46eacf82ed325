"""What MkDocs calls while it builds the site: it adds the pages that are made of other files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from render_zero import page

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

DOCS = Path(__file__).parent


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for path, text in generated():
        files.append(File.generated(config, path, content=text))
    return files


def generated() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each page that no file in docs/ holds."""
    yield "needle_from_zero.md", page((DOCS / "needle_from_zero.py").read_text())
