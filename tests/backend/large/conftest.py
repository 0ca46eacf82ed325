"""The native kernels as the tests of large arrays run them."""

from __future__ import annotations

import pytest

from needle import core


@pytest.fixture
def isa(isa, two_threads):
    """Run the test on this instruction set, two threads, all but small results past the caches."""
    core.native.set_streaming_bytes(4096)
    yield isa
    core.native.set_streaming_bytes(0)


@pytest.fixture
def count_as_zen(isa):
    """Return what makes the kernels choose as for a generation of AMD's Zen, or for others (0)."""
    yield core.native.count_as_zen
    core.native.count_as_zen(-1)
