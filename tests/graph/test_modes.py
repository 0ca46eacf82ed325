"""Modes, settings and graphs in threads and tasks."""

from __future__ import annotations

import asyncio
import sys

import numpy as np
import pytest
from small_graphs import constant, modes, tensor, train
from threads import in_threads

import needle as ndl
from needle import graph


def test_modes_belong_to_the_thread():
    seen = []
    with ndl.lazy_mode(), ndl.no_grad():
        in_threads(lambda: seen.append((graph.lazy(), graph.recording())))
    assert seen == [(False, True)]


BLOCKS = {
    "lazy": lambda: ndl.config(mode="lazy"),
    "lazy_mode": ndl.lazy_mode,
    "eager": lambda: ndl.config(mode="eager"),
    "no_grad": ndl.no_grad,
    "enable_grad": ndl.enable_grad,
    "check_finite": ndl.check_finite,
    "debug": lambda: ndl.config(debug=0),
    "limit": lambda: ndl.config(memory_limit="1GiB"),
    "fast": lambda: ndl.config(fast="off"),
}


@pytest.mark.parametrize("first", BLOCKS)
@pytest.mark.parametrize("second", BLOCKS)
def test_after_the_blocks_of_all_tasks_the_modes_are_as_before(first, second):
    before = modes()

    async def both():
        entered, left = asyncio.Event(), asyncio.Event()

        async def one():
            with BLOCKS[first]():
                await entered.wait()
            left.set()

        async def other():
            with BLOCKS[second]():
                entered.set()
                await left.wait()

        await asyncio.gather(one(), other())

    asyncio.run(both())
    assert modes() == before
    assert (constant(2) * 2.0).array is not None


def test_blocks_are_left_in_any_order():
    """The one that was entered last and is not left yet rules."""
    lazy, eager, again = ndl.lazy_mode(), ndl.lazy_mode(False), ndl.lazy_mode()
    found = []
    for step in (lazy.__enter__, eager.__enter__, again.__enter__):
        step()
    for block in (lazy, again, eager):
        block.__exit__(None, None, None)
        found.append(graph.lazy())
    assert found == [True, False, False]


def test_a_task_does_not_switch_off_the_checks_of_another():
    async def both():
        checked = asyncio.Event()

        async def careless():
            with ndl.config(debug=0):
                await checked.wait()

        task = asyncio.create_task(careless())
        with ndl.check_finite():
            await asyncio.sleep(0)  # the other one enters its block
            with pytest.raises(ndl.errors.NonFiniteError):
                ndl.log(constant(2) - 2.0)
            checked.set()
            await task

    asyncio.run(both())


def test_a_thread_does_not_end_the_limit_of_another(device):
    def unrelated():
        with ndl.config(debug=0):
            pass
        with ndl.config(memory_limit=0, threads=1):
            pass

    with ndl.config(memory_limit=device.memory_info()["live"] + 4096):
        limit = device.memory_info()["limit"]
        in_threads(unrelated)
        assert device.memory_info()["limit"] == limit
        with pytest.raises(ndl.errors.OutOfMemoryError):
            ndl.zeros((4096,), device=device)
        in_threads(lambda: ndl.zeros((4096,), device=device))
    assert device.memory_info()["limit"] == 0


def test_four_threads_train():
    expected = [train(100, seed) for seed in range(4)]
    found: dict[int, np.ndarray] = {}

    def run(seed):
        def work():
            found[seed] = train(100, seed)

        return work

    in_threads(*map(run, range(4)))
    for seed in range(4):
        np.testing.assert_array_equal(found[seed], expected[seed])


def test_four_threads_realise_one_lazy_graph():
    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(20):
            x = tensor(4)
            with ndl.lazy_mode():
                h = x
                parts = []
                for _ in range(30):
                    h = (h * 0.5 + x).tanh()
                    parts.append(h)
            targets = (h, *parts[::10])
            in_threads(*[part.numpy for part in targets])
            reference = x.numpy()
            for _ in range(30):
                reference = np.tanh(reference * np.float32(0.5) + x.numpy())
            np.testing.assert_allclose(h.numpy(), reference, rtol=1e-5)
    finally:
        sys.setswitchinterval(old)
