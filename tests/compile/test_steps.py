"""Ten compiled training steps give the bits of ten eager ones: results and all state."""

from __future__ import annotations

import numpy as np
import pytest
from looped import looped
from steps import STEPS

import needle as ndl
from needle import graph, nn
from needle.compile import compile
from needle.ops import random

CALLS = 10


def values(tree):
    """The arrays of nested results."""
    if isinstance(tree, dict):
        return [x for part in tree.values() for x in values(part)]
    if isinstance(tree, (tuple, list)):
        return [x for part in tree for x in values(part)]
    return [tree.numpy()]


def state_of(objects):
    found = []
    for x in objects:
        state = x.state_dict()
        if isinstance(x, nn.Module):
            found += [(name, value.numpy()) for name, value in state.items()]
            continue
        found += [(k, v.numpy() if hasattr(v, "numpy") else v) for k, v in state.items()]
    return found


def ten(name, wrap):
    """Return results and state of ten calls, and the function that was called."""
    np.random.seed(0)
    ndl.manual_seed(1)
    step, objects, arguments = STEPS[name](np.random.default_rng(0))
    run = wrap(step)
    results = [values(run(*arguments(i))) for i in range(CALLS)]
    counter = random.get_state()
    ndl.manual_seed(None)
    return results, state_of(objects), counter, run


@looped("name", list(STEPS))
def test_ten_steps_have_the_bits_of_eager_ones(name):
    eager, compiled = ten(name, lambda f: f), ten(name, compile)
    for a, b in zip(eager[0], compiled[0], strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
    for (key, x), (same, y) in zip(eager[1], compiled[1], strict=True):
        assert key == same
        np.testing.assert_array_equal(x, y, err_msg=key)
    assert eager[2] == compiled[2]
    assert "1 programs" in repr(compiled[3])


def test_a_step_runs_its_function_once():
    calls = []

    @compile
    def twice(x):
        calls.append(1)
        return x * 2

    for i in range(3):
        assert twice(ndl.Tensor([float(i)])).item() == 2.0 * i
    assert len(calls) == 1
    twice(ndl.ones(3))
    assert len(calls) == 2


def test_lazy_detach_waits():
    with ndl.lazy_mode():
        x = ndl.ones(3) * 2
        y = x.detach()
        assert y.array is None
        assert not y.requires_grad
        assert y.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("mode", ["python", "nofuse", "on", "off"])
def test_modes_agree(mode):
    f = compile(lambda x: (x * x + x).sum(), mode=mode)
    assert f(ndl.Tensor([1.0, 2.0])).item() == 8.0
    assert graph.lazy() is False
