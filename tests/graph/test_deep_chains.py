"""Chains of very many ops are built, run backward and destroyed."""

from __future__ import annotations

import threading
import warnings

import numpy as np
from small_graphs import constant, live_values, tensor
from threads import in_threads

import needle as ndl
from needle import core

DEEP = 20_000 if core.native is None else 100_000
"""Python's own recursion ends at 1,000, a thread's stack somewhere beyond 10,000."""


def chain(depth: int) -> None:
    x = tensor(2)
    h = x
    for _ in range(depth):
        h = h + 1.0
    h.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.ones(2))
    del h


def test_a_deep_chain_is_built_run_backward_and_destroyed():
    chain(DEEP)


def test_the_same_in_a_thread_with_a_small_stack():
    old = threading.stack_size(256 * 1024)
    try:
        in_threads(lambda: chain(DEEP))
    finally:
        threading.stack_size(old)


def test_a_retained_chain_is_destroyed():
    x = tensor(2)
    h = x
    for _ in range(DEEP):
        h = h * 1.0
    h.sum().backward(retain_graph=True)
    del h


def test_a_lazy_chain_holds_one_value():
    x = constant(2)
    before = live_values()
    with ndl.lazy_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        h = x
        for _ in range(30_000):
            h = h + 1.0
        peak = live_values() - before
        np.testing.assert_allclose(h.numpy(), np.full(2, 30_001.0))
    assert peak <= 1 and live_values() - before <= 2  # the constant 1.0 may be among them
