"""Each test, and each case of a family, begins alike and leaves no mode switched."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

import needle as ndl
from needle import config, graph


@contextlib.contextmanager
def fresh() -> Iterator[None]:
    """Let random numbers start the same, and fail if a mode or a setting stays changed."""
    np.random.seed(0)
    ndl.manual_seed(None)
    before = config.current()
    yield
    assert graph.recording(), "the test left recording off"
    assert not graph.lazy(), "the test left lazy mode on"
    assert config.current() is before, "the test left a setting changed"
