"""What all tests share: the devices of this machine, and an undisturbed state around each test."""

from __future__ import annotations

import fnmatch
import gc
import os
import shlex
from pathlib import Path

import pytest
import turns
from devices import DEVICES, HOST_DEVICES, ISAS  # before needle: it sets what needle reads
from fresh_state import fresh

import needle as ndl
from needle import core

TESTS = Path(__file__).resolve().parent


@pytest.fixture(params=DEVICES)
def device(request):
    return ndl.devices.as_device(request.param)


@pytest.fixture(params=HOST_DEVICES)
def host_device(request):
    return ndl.devices.as_device(request.param)


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
    with fresh():
        yield


@pytest.fixture
def no_collector():
    """Run the test with the garbage collector off; it must find nothing afterwards."""
    gc.collect()
    gc.disable()
    yield
    found = gc.collect()
    gc.enable()
    assert found == 0, f"{found} objects were in reference cycles"


WITHOUT_KERNELS = """
cuda/* gpu/* project/test_floors.py project/test_docstrings.py project/test_cli.py
project/test_packaging.py project/test_import.py project/test_bench_*.py tensor/test_errors.py
tensor/test_*_arguments.py standard/test_standard_errors.py standard/test_standard_names.py
optim/test_optimizer_arguments.py ops/test_changed.py ops/test_detection.py data/test_source.py
"""
"""Tests that reach no native kernel, or none that others do not; all others are ``native``."""

KERNELS = ("src/*", "CMakeLists.txt", "python/needle/backend/[kno]*.py")
"""After a change of these, tests of single instruction sets run on all of them; else on one."""

LEFT_TO_OTHERS = pytest.StashKey[int]()


def pytest_report_header():
    return turns.header()


def pytest_collection_modifyitems(config, items):
    """Mark what reaches native kernels; leave out heavy ones whose turn it is not.

    A file or a test that is named on the command line runs whole.
    """
    config.stash[LEFT_TO_OTHERS] = 0
    for item in items:
        place = item.path.relative_to(TESTS).as_posix()
        if not any(fnmatch.fnmatch(place, pattern) for pattern in WITHOUT_KERNELS.split()):
            item.add_marker(pytest.mark.native)
    if any(".py" in name for name in config.args):
        return
    due, late = [], []
    for item in items:
        (due if is_due(item) else late).append(item)
    config.stash[LEFT_TO_OTHERS] = len(late)
    config.hook.pytest_deselected(items=late)
    # the longest first, so that no process works on when the others have finished
    items[:] = sorted(due, key=lambda item: item.get_closest_marker("heavy") is None)


def is_due(item) -> bool:
    """Return whether a test runs this time: it is light, has its turn, or its files changed."""
    heavy = item.get_closest_marker("heavy")
    indices = item.callspec.indices if hasattr(item, "callspec") else {}
    if turns.everything() or (heavy is None and "isa" not in indices):
        return True
    if turns.is_due(item.originalname, sum(indices.values())):
        return True
    files = heavy.args if heavy else KERNELS
    return turns.has_changed(f"tests/{item.path.relative_to(TESTS).as_posix()}", *files)


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):  # of a process of pytest-xdist
        left = session.config.stash.get(LEFT_TO_OTHERS, 0)
        session.config.workeroutput["left_to_others"] = left


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    node.config.stash[LEFT_TO_OTHERS] = getattr(node, "workeroutput", {}).get("left_to_others", 0)


def pytest_terminal_summary(terminalreporter, config):
    if left := config.stash.get(LEFT_TO_OTHERS, 0):
        terminalreporter.write_line(
            f"{left} tests were left to other turns: heavy ones, and instruction sets of kernels "
            "that did not change (ALL_CHECKS=1 runs them)"
        )


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
