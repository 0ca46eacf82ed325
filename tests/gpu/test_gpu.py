"""The op suite, kernels in the large, the arena under load, streams and memory checks on a GPU."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import where
from looped import Gathered

import needle as ndl
from needle import devices, ops
from needle.backend import kernels
from needle.backend.ndarray import array, empty
from needle.testing.checks import CHECKS, cases, check_raises

if where.why_not():
    pytest.skip(f"no GPU: {where.why_not()}", allow_module_level=True)

GPU = devices.as_device(where.DEVICE)
REAL = not where.DEVICE.startswith("cuda-emu")
SAME_KERNELS = {"second_order", "forward"}
"""Checks that reach no kernel that the others do not; those run everywhere else."""
rng = np.random.default_rng(0)
START = rng.bit_generator.state


@pytest.fixture(autouse=True)
def same_numbers():
    """Let a test draw the same numbers, whichever tests ran before it."""
    rng.bit_generator.state = START


@pytest.mark.parametrize("op", ops.all_ops(), ids=lambda op: op.__name__)
def test_op(op):
    gathered = Gathered("ONLY_CHECK")
    for case in cases(op):
        for name, check in CHECKS.items():
            if name not in SAME_KERNELS and check.applies(case, GPU):
                gathered.run(f"{case}/{name}", check.run, case, GPU)
    for case in cases(op, raising=True):
        gathered.run(f"{case}/raises", check_raises, case, GPU)
    gathered.finish()


@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(1 << 20,), (999, 1001), (3, 70000)] if REAL else [(99, 101)])
def test_reductions_of_large_arrays(shape, kind):
    values = rng.standard_normal(shape)
    x = array(values, kind, where.DEVICE)
    exact = x.numpy().astype(np.float64)
    eps = {"float32": 1e-6, "float64": 1e-14, "bfloat16": 1e-2, "float16": 1e-3}[kind]
    for axes in {(0,), (len(shape) - 1,), tuple(range(len(shape)))}:
        found = kernels.reduce("sum", x, axes).numpy().astype(np.float64)
        scale = np.sqrt(exact.size)
        np.testing.assert_allclose(found / scale, exact.sum(axis=axes) / scale, atol=eps, rtol=eps)
        np.testing.assert_array_equal(
            kernels.reduce("max", x, axes).numpy().astype(np.float64), exact.max(axis=axes)
        )


PRODUCTS = [(1000, 1000, 1000), (1024, 512, 2048), (77, 4096, 33)] if REAL else [(77, 64, 33)]


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("m, n, k", PRODUCTS)
def test_products(kind, m, n, k):
    a, b = np.rint(2 * rng.standard_normal((m, k))), np.rint(2 * rng.standard_normal((k, n)))
    exact = array(a @ b, kind, "cpu_numpy").numpy().astype(float)
    for turn in (False, True):
        left = (
            array(a.T.copy(), kind, where.DEVICE).permute((1, 0))
            if turn
            else array(a, kind, where.DEVICE)
        )
        right = (
            array(b.T.copy(), kind, where.DEVICE).permute((1, 0))
            if turn
            else array(b, kind, where.DEVICE)
        )
        found = kernels.matmul(left, right).numpy().astype(float)
        np.testing.assert_array_equal(found, exact)


def test_the_arena_under_load():
    device, kept = GPU, []
    for step in range(3000 if REAL else 300):
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
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(where.DEVICE)
        optimizer = optim.Adam(model.parameters(), lr=0.01)
        x = ndl.Tensor(np.cos(np.arange(64.0 * 256)).reshape(256, 64), device=where.DEVICE)
        y = ndl.Tensor(np.arange(256) % 10, device=where.DEVICE, dtype="int64")
        for _ in range(20):
            optimizer.minimize(nn.SoftmaxLoss()(model(x), y))
        return b"".join(p.numpy().tobytes() for p in model.parameters())

    assert weights() == weights()


def test_large_indices():
    """More than 2**31 elements: offsets are computed in 64 bits."""
    if not REAL:
        pytest.skip("takes more memory than the emulator has")
    if GPU.backend.driver.properties.memory < 12 << 30:
        pytest.skip("takes 8 GiB of GPU memory")
    rows = (1 << 31) // 1024 + 3
    x = empty((rows, 1024), "int8", GPU)
    x.fill(1)
    x.slice([(rows - 1, 1, 1), (0, 1024, 1)]).fill(2)
    sums = kernels.reduce("sum", x, (0,))
    assert (sums.numpy() == rows + 1).all()
    last = kernels.elementwise("add", x, x).slice([(rows - 2, 2, 1), (1022, 2, 1)])
    assert last.numpy().tolist() == [[2, 2], [4, 4]]


def test_streams_overlap_and_agree():
    """Integers, which wrap around: any order of adding gives the same, a missing wait does not."""
    size, steps = (512, 60) if REAL else (16, 6)
    values = rng.integers(-100, 100, (size, size), dtype=np.int32)
    x = ndl.Tensor(values, device=GPU, dtype="int32")
    results, exact = [], []
    for step in range(steps):
        with GPU.stream(f"stream {step % 3}"):
            y = x @ x if step < 3 else results[step - 3] @ x
            results.append(y + results[step - 1] if step else y)
        y = values @ values if step < 3 else exact[step - 3] @ values
        exact.append(y + exact[step - 1] if step else y)
    for found, right in zip(results, exact, strict=True):
        np.testing.assert_array_equal(found.numpy(), right)


def test_copies_from_pinned_memory():
    for _ in range(20):
        values = GPU.pinned((1 << 20,), "float32") if REAL else GPU.pinned((1 << 12,), "float32")
        values[...] = exact = rng.standard_normal(values.shape).astype("float32")
        x = ndl.Tensor(values, device=GPU)
        del values
        np.testing.assert_array_equal(x.numpy(), exact)


def test_other_threads_use_the_gpu():
    x, found = ndl.Tensor(np.arange(100.0), device=GPU), []
    workers = [threading.Thread(target=lambda: found.append((x + x).sum().item())) for _ in "1234"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == [9900.0] * 4


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_compute_sanitizer(tool):
    program = shutil.which("compute-sanitizer")
    if program is None or not REAL:
        pytest.skip("compute-sanitizer is not installed, or this is no GPU")
    here = str(Path(__file__))
    command = [program, "--tool", tool, "--error-exitcode", "9", sys.executable, "-m", "pytest"]
    done = subprocess.run(
        [*command, "-q", here, "--device", where.DEVICE, "-x", "-p", "no:cacheprovider",
         "-k", "(test_op and value and 0) or (products and 77)"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
