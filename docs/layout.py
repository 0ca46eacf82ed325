"""An extension of mkdocstrings' parser: the one-line sections of Needle's docstrings as lists."""

from __future__ import annotations

from typing import Any

import griffe
from reference import with_lists  # docs/hooks.py has imported it


class Layout(griffe.Extension):
    """Rewrite every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_lists(obj.docstring.value)
