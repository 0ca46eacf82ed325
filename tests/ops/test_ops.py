"""Every op, on every device: one test runs all checks of its samples that are due (planned.py).

``ONLY_CHECK='Exp-3/layouts'`` runs that check of that sample alone, ``ALL_CHECKS=1`` everything.
"""

from __future__ import annotations

import planned
import pytest
from looped import looped

from needle import ops
from needle.ops.core.families import Composite, Elementwise, Multilinear
from needle.ops.core.op import Linear, Op
from needle.testing.checks import cases


@pytest.mark.parametrize("device_name, gate", planned.WHERE)
@pytest.mark.parametrize("op", ops.all_ops(), ids=lambda op: op.__name__)
def test_op(op, device_name, gate):
    planned.check(op, device_name, gate)


# ---- the database itself -------------------------------------------------------

WITHOUT_SAMPLES = {
    "ToDevice": "its result is on another device: test_devices.py",
    "TupleGetItem": "its input is a tuple: test_gradients.py",
    "Identity": "starts the graph of an expansion; every composite tests it",
    "Start": "the value of a tensor within a trace: tests/compile",
    "Again": "a second run of a checkpoint within a trace: tests/compile",
    "Placeholder": "a source of a program: tests/compile",
    "Feed": "a source of a static graph: tests/graph/test_static.py",
    "MatMulEpilogue": "made by a pass of programs: tests/compile",
    "Finite": "stops a program: tests/train",
    "Update": "a step of an optimizer as a node: tests/compile",
    "_Outside": "the result of a compiled function: tests/compile",
    "Fused": "made of steps of other ops: test_fuse.py",
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


@looped("op", OPS, ids=lambda op: op.__name__)
def test_every_op_has_samples(op):
    if op.__name__ in WITHOUT_SAMPLES:
        assert op.samples is None, "it has samples now: take it off the list"
        return
    assert cases(op), "give it samples"
    assert any(case.sample.reference for case in cases(op))
