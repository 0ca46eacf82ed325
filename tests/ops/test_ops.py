"""Every op, on every sample, device and dtype: generated from the op database."""

from __future__ import annotations

import os

import pytest
from devices import DEVICES

import needle as ndl
from needle import core, ops
from needle.ops.base import Composite, Elementwise, Linear, Multilinear, Op
from needle.testing.checks import CHECKS, cases, check_raises

GOOD = [case for op in ops.all_ops() for case in cases(op)]
BAD = [case for op in ops.all_ops() for case in cases(op, raising=True)]

GATES = ["on", "off"] if core.native is not None else ["off"]
"""The native gate, open and closed; without the native module there is only the definition."""

ONCE = () if os.environ.get("ALL_CHECKS") else ("second_order",)
"""Checks for the first device only: a derivative of derivatives is made of ops that are checked on
all of them, and takes minutes. .ci/run has a step of its own for the others."""

RUNS = [
    pytest.param(case, where, name, gate, id=f"{case}-{where.name}-{name}-fast={gate}")
    for case in GOOD
    for where in map(ndl.device.as_device, DEVICES)
    for name, check in CHECKS.items()
    if check.applies(case, where) and (name not in ONCE or where.name == DEVICES[0])
    for gate in (GATES if check.gated and where.name == "cpu" else GATES[:1])
]


@pytest.mark.parametrize("case, where, check, gate", RUNS)
def test_op(case, where, check, gate):
    with ndl.config(fast=gate):
        CHECKS[check].run(case, where)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("case", BAD, ids=str)
def test_wrong_input(case, where, gate):
    with ndl.config(fast=gate):
        check_raises(case, ndl.device.as_device(where))


# ---- the database itself -------------------------------------------------------

WITHOUT_SAMPLES = {
    "ToDevice": "its result is on another device: test_devices.py",
    "TupleGetItem": "its input is a tuple: test_gradients.py",
    "Identity": "starts the graph of an expansion; every composite tests it",
    "_Checkpoint": "holds a function of the user: test_checkpoint.py",
    "_Custom": "holds a function of the user: test_custom_gradient.py",
}


def concrete(cls: type) -> list[type]:
    below = [op for sub in cls.__subclasses__() for op in concrete(sub)]
    families = (Op, Elementwise, Linear, Multilinear, Composite)
    abstract = cls in families or below
    return below if abstract else [cls]


OPS = sorted(
    {
        cls
        for cls in concrete(Op)
        if cls.__module__.startswith("needle.") and not cls.__module__.startswith("needle.testing")
    },
    key=lambda cls: cls.__name__,
)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.__name__)
def test_every_op_has_samples(op):
    if op.__name__ in WITHOUT_SAMPLES:
        assert op.samples is None, "it has samples now: take it off the list"
        return
    assert cases(op), "give it samples"
    assert any(case.sample.reference for case in cases(op))
