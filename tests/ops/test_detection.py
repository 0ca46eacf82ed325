"""Planted faults are found by the turns of the checks together, though the op has not changed.

Each fault shows in few places: in one dtype, layout, mode, order or device.
"""

from __future__ import annotations

import planned
import pytest
import turns
from looped import Gathered

import needle as ndl
from needle import graph, ops
from needle.backend import numpy as numpy_backend
from needle.errors import GradientError, ReleasedError
from needle.ops.core.attributes import save_mask


def tangent_of_matmul(patch):
    push = ops.MatMul.push

    def wrong(self, primals, tangents):
        out, tangent = push(self, primals, tangents)
        return out, None if tangent is None else tangent * 1.01

    patch.setattr(ops.MatMul, "push", wrong)
    return ops.MatMul, planned.FIRST


def gradient_of_cumsum_on_other_devices(patch):
    gradient = ops.CumSum.gradient

    def wrong(self, out_grad, out):
        (x,) = gradient(self, out_grad, out)
        return (x if x is None or x.device.name == "cpu" else x * 1.01,)

    patch.setattr(ops.CumSum, "gradient", wrong)
    return ops.CumSum, "cpu_numpy"


def exp_of_bfloat16_backwards(patch):
    elementwise = numpy_backend.NumpyBackend.elementwise

    def wrong(self, function, out, *inputs):
        elementwise(self, function, out, *inputs)
        backwards = any(stride < 0 for x in inputs for stride in x.strides)
        if function == "exp" and out.dtype == "bfloat16" and backwards:
            numpy_backend.view(out)[...] *= 2

    patch.setattr(numpy_backend.NumpyBackend, "elementwise", wrong)
    return ops.Exp, "cpu_numpy"


def sigmoid_of_float16_outside_the_gate(patch):
    compute = ops.Sigmoid.compute

    def wrong(self, x):
        out = compute(self, x)
        if ndl.config.current().fast == "off" and out.dtype == "float16":
            numpy_backend.view(out)[...] *= 1.1
        return out

    patch.setattr(ops.Sigmoid, "compute", wrong)
    return ops.Sigmoid, "cpu"


def multiply_saves_one_operand(patch):
    saves = ((), (0,))
    patch.setattr(ops.Multiply, "saves", saves)
    masks = tuple(save_mask(entry, graph.OUTPUT) for entry in saves)
    patch.setattr(ops.Multiply.of(), "save_masks", masks)  # instances are shared
    return ops.Multiply, planned.FIRST


def second_derivative_of_log_softmax(patch):
    gradient = ops.LogSoftmaxGrad.gradient

    def wrong(self, out_grad, out):
        return tuple(x if x is None else x * 1.01 for x in gradient(self, out_grad, out))

    patch.setattr(ops.LogSoftmaxGrad, "gradient", wrong)
    return ops.LogSoftmax, planned.FIRST


FAULTS = [
    tangent_of_matmul,
    gradient_of_cumsum_on_other_devices,
    exp_of_bfloat16_backwards,
    sigmoid_of_float16_outside_the_gate,
    multiply_saves_one_operand,
    second_derivative_of_log_softmax,
]


@pytest.mark.parametrize("fault", FAULTS)
def test_turns_find_a_fault(fault, monkeypatch):
    op, device = fault(monkeypatch)
    gates = [gate for name, gate in planned.WHERE if name == device]
    if not gates:
        pytest.skip(f"{device} is not built")
    found = []
    for turn in range(turns.TURNS):
        monkeypatch.setattr(turns, "turn", lambda turn=turn: turn)
        gathered = Gathered("CHECK_OF_A_FAULT")
        for gate in gates:
            with ndl.config(fast=gate):
                planned.run(gathered, op, device, gate, whole=False)
        found += [error for _, error in gathered.failed]
    assert found
    assert all(isinstance(x, (AssertionError, GradientError, ReleasedError)) for x in found)


@pytest.mark.parametrize("device, gate", planned.WHERE)
def test_each_check_and_dtype_has_its_turn_once(device, gate, monkeypatch):
    where = ndl.devices.as_device(device)
    for op in ops.all_ops():
        for case in planned.cases(op):
            whole = dict(planned.planned(case, where, gate, whole=True))
            if where.name != planned.FIRST or gate != planned.GATES[0]:
                whole.pop("compiled", None)  # which has its turns on the first device
            if "second_order" in whole:  # which holds forward, where both are due
                whole["forward"] = case
            had: dict[str, list[str]] = {}
            for turn in range(turns.TURNS):
                monkeypatch.setattr(turns, "turn", lambda turn=turn: turn)
                for name, part in planned.planned(case, where, gate, whole=False):
                    had.setdefault(name, []).extend(part.dtypes)
            assert {name: {*kinds} for name, kinds in had.items()} == {
                name: {*part.dtypes} for name, part in whole.items()
            }, case
