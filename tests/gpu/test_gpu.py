"""``python -m pytest tests/gpu``: the op suite against the NumPy device, the arena under load, the
kernels in the large, and the memory checker, on a real GPU."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import needle as ndl
from needle import ops
from needle.backend import kernels
from needle.backend.ndarray import array
from needle.testing.checks import CHECKS, cases, check_raises

if not ndl.cuda().enabled():
    pytest.skip(f"no GPU: {ndl.cuda().reason()}", allow_module_level=True)

GOOD = [case for op in ops.all_ops() for case in cases(op)]
BAD = [case for op in ops.all_ops() for case in cases(op, raising=True)]
rng = np.random.default_rng(0)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("case", GOOD, ids=str)
def test_op(case, check):
    if CHECKS[check].applies(case, ndl.cuda()):
        CHECKS[check].run(case, ndl.cuda())


@pytest.mark.parametrize("case", BAD, ids=str)
def test_wrong_input(case):
    check_raises(case, ndl.cuda())


@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(1 << 20,), (999, 1001), (3, 70000)])
def test_reductions_of_large_arrays(shape, kind):
    values = rng.standard_normal(shape)
    x = array(values, kind, "cuda")
    exact = x.numpy().astype(np.float64)
    eps = {"float32": 1e-6, "float64": 1e-14, "bfloat16": 1e-2, "float16": 1e-3}[kind]
    for axes in {(0,), (len(shape) - 1,), tuple(range(len(shape)))}:
        found = kernels.reduce("sum", x, axes).numpy().astype(np.float64)
        scale = np.sqrt(exact.size)
        np.testing.assert_allclose(found / scale, exact.sum(axis=axes) / scale, atol=eps, rtol=eps)
        np.testing.assert_array_equal(
            kernels.reduce("max", x, axes).numpy().astype(np.float64), exact.max(axis=axes)
        )


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("m, n, k", [(1000, 1000, 1000), (1024, 512, 2048), (77, 4096, 33)])
def test_products(kind, m, n, k):
    a, b = np.rint(2 * rng.standard_normal((m, k))), np.rint(2 * rng.standard_normal((k, n)))
    exact = array(a @ b, kind, "cpu_numpy").numpy().astype(float)
    for turn in (False, True):
        left = array(a.T.copy(), kind, "cuda").permute((1, 0)) if turn else array(a, kind, "cuda")
        right = array(b.T.copy(), kind, "cuda").permute((1, 0)) if turn else array(b, kind, "cuda")
        found = kernels.matmul(left, right).numpy().astype(float)
        np.testing.assert_array_equal(found, exact)


def test_the_arena_under_load():
    device, kept = ndl.cuda(), []
    for step in range(3000):
        size = int(rng.integers(1, 1 << 20))
        kept.append((step, array(np.full(size, step % 251, "uint8"), "uint8", device)))
        if len(kept) > 50:
            value, x = kept.pop(int(rng.integers(len(kept))))
            assert (x.numpy() == value % 251).all()
    kept.clear()
    assert device.memory_info()["cached"] > 0


def test_two_runs_of_a_training_give_the_same_bits():
    from needle import nn, optim

    def weights():
        ndl.manual_seed(1)
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to("cuda")
        optimizer = optim.Adam(model.parameters(), lr=0.01)
        x = ndl.Tensor(np.cos(np.arange(64.0 * 256)).reshape(256, 64), device="cuda")
        y = ndl.Tensor(np.arange(256) % 10, device="cuda", dtype="int64")
        for _ in range(20):
            optimizer.minimize(nn.SoftmaxLoss()(model(x), y))
        return b"".join(p.numpy().tobytes() for p in model.parameters())

    assert weights() == weights()


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_compute_sanitizer(tool):
    program = shutil.which("compute-sanitizer")
    if program is None:
        pytest.skip("compute-sanitizer is not installed")
    here = str(Path(__file__))
    command = [program, "--tool", tool, "--error-exitcode", "9", sys.executable, "-m", "pytest"]
    done = subprocess.run(
        [*command, "-q", here, "-k", "test_op and value or products and 77"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
