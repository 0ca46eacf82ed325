"""``import needle``: fast, pulls in nothing heavy, and has the public names."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

import pytest

import needle

BUDGET = 0.05
MEASURE = """
import numpy, time, sys, json
before = time.process_time()
import needle
print(json.dumps([time.process_time() - before, sorted(sys.modules)]))
"""

PUBLIC = """
    Tensor Parameter TensorTuple Value NDArray Device cpu cpu_numpy cuda meta default_device
    all_devices DType float32 float64 bfloat16 float16 int8 int16 int32 int64 uint8 bool_
    result_type backward grad vjp value_and_grad no_grad lazy_mode checkpoint custom_gradient
    manual_seed from_dlpack config errors dtype device graph ops autograd backend
    backend_ndarray backend_selection __version__
    Op TensorOp TensorTupleOp BACKEND array_api nn init optim data io
    ones zeros ones_like zeros_like add add_scalar multiply mul_scalar power power_scalar divide
    divide_scalar transpose reshape broadcast_to summation matmul negate log exp relu tanh
    logsumexp logsoftmax stack split flip dilate undilate make_tuple tuple_get_item
    fused_add_scalars
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """CPU seconds (other processes do not count) of each of several imports, and what came in."""
    cache = tmp_path_factory.mktemp("bytecode")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(cache)
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    runs = []
    for _ in range(8):  # the first one compiles the modules and does not count
        done = subprocess.run(
            [sys.executable, "-c", MEASURE], env=env, capture_output=True, text=True, check=True
        )
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    return [seconds for seconds, _ in runs[1:]], set(runs[-1][1])


def test_import_costs_little_beside_numpy(measured):
    seconds, _ = measured
    assert statistics.median(seconds) <= BUDGET, seconds


@pytest.mark.parametrize("heavy", ["rich", "matplotlib", "ml_dtypes", "torch", "safetensors"])
def test_import_pulls_in_nothing_heavy(measured, heavy):
    _, modules = measured
    assert heavy not in modules


def test_public_names_exist():
    assert [name for name in PUBLIC.split() if not hasattr(needle, name)] == []


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError):
        needle.no_such_name  # noqa: B018
