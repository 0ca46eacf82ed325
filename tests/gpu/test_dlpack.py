"""Memory of a GPU shared with PyTorch by DLPack, both ways."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import where

import needle as ndl
from needle import devices

if where.why_not():
    pytest.skip(f"no GPU: {where.why_not()}", allow_module_level=True)
torch = pytest.importorskip("torch")
if not torch.cuda.is_available() or not where.DEVICE.startswith("cuda") or "emu" in where.DEVICE:
    pytest.skip("PyTorch has no GPU", allow_module_level=True)

GPU = devices.as_device(where.DEVICE)
KINDS = ("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8",
         "bool")  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_pytorch_reads_needle(kind):
    values = np.arange(24).reshape(4, 6) % 7
    x = ndl.Tensor(values, device=GPU, dtype=kind, requires_grad=False)
    for mine, exact in ((x, values), (x.transpose(), values.T), (x[1:3, ::2], values[1:3, ::2])):
        theirs = torch.from_dlpack(mine)
        assert str(theirs.dtype) == f"torch.{kind}" and theirs.is_cuda
        assert tuple(theirs.shape) == mine.shape
        right = exact.astype(bool) if kind == "bool" else exact
        np.testing.assert_array_equal(theirs.double().cpu().numpy(), right)


@pytest.mark.parametrize("kind", KINDS)
def test_needle_reads_pytorch(kind):
    theirs = (torch.arange(24, device="cuda").reshape(4, 6) % 7).to(getattr(torch, kind))
    for tensor in (theirs, theirs.T, theirs[1:3, ::2]):
        mine = ndl.from_dlpack(tensor)
        assert mine.dtype == kind and mine.device == GPU
        place = mine.realize_cached_data()
        assert place.handle.address == tensor.data_ptr()
        np.testing.assert_array_equal(mine.numpy().astype("float64"), tensor.double().cpu().numpy())


def test_writes_are_seen_by_both():
    x = ndl.Tensor(np.zeros(8), device=GPU, requires_grad=False)
    theirs = torch.from_dlpack(x)
    theirs += 3
    torch.cuda.synchronize()
    assert x.numpy().tolist() == [3.0] * 8
    x.realize_cached_data().fill(5.0)
    GPU.synchronize()
    assert theirs.tolist() == [5.0] * 8


def test_streams_wait_for_each_other():
    """Long work in one library's stream, its result used at once in the other's."""
    side = torch.cuda.Stream()
    for step in range(20):
        x = ndl.Tensor(np.full((2048, 2048), 1 / 2048), device=GPU, requires_grad=False)
        for _ in range(10):
            x = x @ x * 1.0
        with torch.cuda.stream(side):
            theirs = torch.from_dlpack(x) + step
            for _ in range(10):
                theirs = theirs + 1
            back = ndl.from_dlpack(theirs)
        assert back.numpy()[7, 7] == pytest.approx(1 / 2048 + step + 10, rel=1e-4)


def test_memory_is_not_reused_while_the_other_reads():
    side = torch.cuda.Stream()
    for step in range(20):
        x = ndl.Tensor(np.full((4 << 20,), float(step)), device=GPU, requires_grad=False)
        with torch.cuda.stream(side):
            theirs = torch.from_dlpack(x)
            for _ in range(20):
                slow = theirs.exp()
            total = theirs.mean()
        del x, theirs, slow
        gc.collect()
        others = [ndl.Tensor(np.full((4 << 20,), -1.0), device=GPU) for _ in range(2)]
        assert total.item() == pytest.approx(step)
        del others
