"""Make a page of the program needle_from_zero.py: its comments become text, the rest code."""

from __future__ import annotations

import re
from itertools import groupby


def _is_text(line: str) -> bool:
    """Return whether a line is text: it begins with ``# `` at the left margin, or is only ``#``."""
    return re.match(r"#( |$)", line) is not None


def page(source: str) -> str:
    """Return a program as a Markdown page.

    >>> page("# A *sum*:\\n1 + 2\\n")
    'A *sum*:\\n\\n```python\\n1 + 2\\n```\\n'
    """
    parts = []
    for is_text, lines in groupby(source.splitlines(), _is_text):
        text = "\n".join(line[2:] if is_text else line for line in lines).strip("\n")
        if text:
            parts.append(text if is_text else f"```python\n{text}\n```")
    return "\n\n".join(parts) + "\n"
