"""What the tests of the graph share."""

from __future__ import annotations

import pytest

import needle as ndl


@pytest.fixture(params=["eager", "lazy"])
def mode(request):
    with ndl.lazy_mode(request.param == "lazy"):
        yield request.param
