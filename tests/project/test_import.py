"""``import needle``: pulls in nothing heavy, and has the public names."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import needle
from needle import core

PUBLIC = """
    Tensor Parameter TensorTuple Value NDArray Device cpu cpu_numpy cuda meta default_device
    all_devices DType float32 float64 bfloat16 float16 int8 int16 int32 int64 uint8 bool_
    result_type backward grad vjp value_and_grad no_grad lazy_mode checkpoint custom_gradient
    jvp jacobian hvp linearize check_finite
    manual_seed from_dlpack config errors dtype device graph ops autograd backend
    backend_ndarray backend_selection __version__
    Op TensorOp TensorTupleOp BACKEND array_api nn init optim data io
    ones zeros ones_like zeros_like add add_scalar multiply mul_scalar power power_scalar divide
    divide_scalar transpose reshape broadcast_to summation matmul negate log exp relu tanh
    logsumexp logsoftmax stack split flip dilate undilate make_tuple tuple_get_item
    fused_add_scalars
"""


@pytest.fixture(scope="module")
def imported():
    """The modules that ``import needle`` brings into a new process."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    code = "import sys, needle; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    return set(done.stdout.decode().split())


@pytest.mark.parametrize("room", ["nn", "optim", "data", "io", "recipes", "testing", "tools"])
def test_rooms_are_imported_at_their_first_use(imported, room):
    assert f"needle.{room}" not in imported  # the seconds are measured in bench/startup.py


@pytest.mark.parametrize(
    "heavy", ["rich", "matplotlib", "ml_dtypes", "torch", "safetensors", "difflib"]
)
def test_import_pulls_in_nothing_heavy(imported, heavy):
    assert heavy not in imported


def test_public_names_exist():
    assert [name for name in PUBLIC.split() if not hasattr(needle, name)] == []


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError):
        needle.no_such_name  # noqa: B018


@pytest.mark.skipif(core.native is None, reason="needs the native module")
def test_a_processor_without_the_compiled_instructions_gets_numpy_and_a_remedy(monkeypatch):
    native = core.native

    def refuse(name):
        raise ValueError("it was compiled for v4, which this processor lacks")

    monkeypatch.setattr(native, "select_isa", refuse)
    monkeypatch.setattr(native, "supported_isas", list)
    monkeypatch.setattr(core, "native", None)
    monkeypatch.setattr(core, "native_error", None)
    with pytest.warns(
        RuntimeWarning, match="compiled for v4.*pip install --force-reinstall"
    ) as got:
        core._load()
    assert core.native is None and "processor lacks" in core.native_error
    assert len(got) == 1 and "\n" not in str(got[0].message)
