"""The pool of threads: results do not depend on who computes them, or on how many do."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading

import numpy as np
import pytest
from devices import DEVICES

import needle as ndl
from needle import config

pytestmark = pytest.mark.skipif("cpu" not in DEVICES, reason="there is no native module")

SHAPES = (300, 400)
VALUES = np.random.RandomState(0).rand(*SHAPES).astype("float32")


def compute():
    """Return what has gone through each kind of region: shares, tasks, stretches of memory."""
    x = ndl.Tensor(VALUES, device=ndl.cpu(), requires_grad=False)
    product = x @ x.transpose()
    return [y.numpy() for y in (ndl.exp(x), product, product.sum(axes=(0,)), ndl.sort(x, axis=0))]


def same(found, expected):
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 64, 100])
def test_results_do_not_depend_on_the_number_of_threads(threads):
    expected = compute()
    with config.override(threads=threads):
        for _ in range(3):
            found = compute()
            assert np.array_equal(found[0], expected[0])
            np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)
            np.testing.assert_allclose(found[2], expected[2], rtol=1e-5)
            assert np.array_equal(found[3], expected[3])


def test_threads_of_python_compute_at_the_same_time():
    expected, wrong = compute(), []

    def many():
        wrong.extend(i for i in range(20) if not same(compute(), expected))

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="processes are not forked here"
)
def test_a_forked_process_has_threads_of_its_own():
    expected = compute()  # so that this process has threads
    with multiprocessing.get_context("fork").Pool(2) as forked:
        found = [forked.apply_async(compute) for _ in range(4)]
        assert all(same(result.get(60), expected) for result in found)


def test_no_more_threads_than_the_pool_can_hold():
    with config.override(threads=1000):
        assert config.thread_count() == config.MOST_THREADS == 64


@pytest.mark.parametrize("call", ["ndl.softmax(x, -1)", "ndl.sort(x)", "x @ x", "x[x > 0]"])
def test_a_program_ends_while_its_daemon_threads_compute(call):
    code = (
        "import threading, needle as ndl\n"
        "x, begun = ndl.ones((700, 700)), threading.Barrier(3)\n"
        "def compute():\n"
        "    begun.wait()\n"
        f"    while True: {call}\n"
        "for _ in range(2): threading.Thread(target=compute, daemon=True).start()\n"
        "begun.wait()\n"
        f"for _ in range(5): {call}\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
