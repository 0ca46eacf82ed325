"""Which device the tests in this folder run on, and where the course's tests lie."""

from __future__ import annotations

import needle as ndl

DEVICE = "cuda"
COURSE: str | None = None


def why_not() -> str | None:
    """Return why these tests cannot run, or None."""
    return ndl.devices.as_device(DEVICE).reason()
