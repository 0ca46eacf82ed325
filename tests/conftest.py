"""What all tests share: the devices of this machine, and an undisturbed state around each test."""

from __future__ import annotations

import gc
import os
import shlex

import numpy as np
import pytest
from devices import DEVICES, HOST_DEVICES, ISAS  # before needle: it sets what needle reads

import needle as ndl
from needle import core, graph


@pytest.fixture(params=DEVICES)
def device(request):
    return ndl.device.as_device(request.param)


@pytest.fixture(params=HOST_DEVICES)
def host_device(request):
    return ndl.device.as_device(request.param)


@pytest.fixture(params=ISAS)
def isa(request):
    """Run the test on this instruction set of the native kernels."""
    before = core.native.isa()
    core.native.select_isa(request.param)
    yield request.param
    core.native.select_isa(before)


@pytest.fixture
def two_threads():
    """Run the test on the native kernels with two threads."""
    core.native.set_threads(2)
    with ndl.config(device="cpu"):
        yield
    core.native.set_threads(0)


@pytest.fixture(autouse=True)
def undisturbed():
    """Random numbers start the same for each test, and no test leaves a mode switched."""
    np.random.seed(0)
    ndl.manual_seed(None)
    yield
    assert graph.recording(), "the test left recording off"
    assert not graph.lazy(), "the test left lazy mode on"
    assert ndl.config.current() is ndl.config.initial(), "the test left a setting changed"


@pytest.fixture
def no_collector():
    """Run the test with the garbage collector off; it must find nothing afterwards."""
    gc.collect()
    gc.disable()
    yield
    found = gc.collect()
    gc.enable()
    assert found == 0, f"{found} objects were in reference cycles"


def pytest_collection_finish():
    """Collections pass over what is there before the first test: tens of thousands of items.

    With them each took a third of a second, and some tests collect hundreds of times.
    """
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A failing test prints the command that reruns only it."""
    report = yield
    if report.failed:
        switches = [f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith("NEEDLE_")]
        command = [*switches, "python -m pytest", shlex.quote(item.nodeid)]
        report.sections.append(("rerun only this test", " ".join(command)))
    return report
