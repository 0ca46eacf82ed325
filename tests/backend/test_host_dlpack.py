"""Arrays of other libraries: the buffer protocol, DLPack, memory that is shared."""

from __future__ import annotations

import gc
import hashlib
import weakref

import numpy as np
import pytest
from small_arrays import NATIVE, counted

import needle as ndl
from needle import dtype
from needle.backend.ndarray import array
from needle.errors import (
    DtypeError,
)


def test_array_interface(device):
    x = array(counted(2, 3), "float32", device)
    np.testing.assert_array_equal(np.asarray(x), counted(2, 3))
    assert np.asarray(x, dtype="float64").dtype == np.float64
    assert np.array(x).base is None
    np.testing.assert_array_equal(np.asarray(ndl.Tensor(x)), counted(2, 3))
    np.testing.assert_array_equal(counted(2, 3) + x, 2 * counted(2, 3))


def test_asarray_shares_host_memory(host_device):
    x = array(counted(3), "float32", host_device)
    np.asarray(x)[0] = 5
    assert x.numpy()[0] == 5


@pytest.mark.skipif(not NATIVE, reason="the buffer protocol before Python 3.12 is native")
def test_buffer_protocol():
    x = array(counted(3, 4), "float32", "cpu")
    view = memoryview(x[::2, ::-1])
    assert (view.shape, view.strides, view.format) == ((2, 4), (32, -4), "f")
    assert view.tolist() == counted(3, 4)[::2, ::-1].tolist()
    memoryview(x)[1, 1] = -1.0
    assert x.numpy()[1, 1] == -1
    assert bytes(x[0]) == counted(1, 4).tobytes()
    for bad in (x.astype("bfloat16"), array([1.0], "float32", "cpu_numpy")):
        with pytest.raises(BufferError):
            memoryview(bad)
    with pytest.raises(BufferError, match="not contiguous"):
        hashlib.sha256(x[:, ::2])
    view = memoryview(x)
    gone = weakref.ref(x)
    del x
    assert gone() is not None and view[0, 1] == 1.0


SHARED = [kind.numpy.type for kind in dtype.ALL if kind != "bfloat16"]


@pytest.mark.parametrize("kind", SHARED, ids=lambda kind: kind.__name__)
def test_dlpack_with_numpy(kind, host_device):
    values = np.arange(12).reshape(3, 4).astype(kind)
    for source in (values, values[::-1, ::2], values.T, values[:0], values[1, 2:3].reshape(())):
        x = ndl.from_dlpack(source, device=host_device, copy=False)
        assert isinstance(x, ndl.Tensor) and not x.requires_grad and x.device == host_device
        np.testing.assert_array_equal(x.numpy(), source)
        back = np.from_dlpack(x)
        np.testing.assert_array_equal(back, source)
        if source.size:
            forwards = min(source.strides, default=1) > 0  # what is not is given as a copy
            assert np.shares_memory(back, values) == forwards
            source[...] = 1
            assert x.numpy().all()


def test_dlpack_copies_where_it_must_or_may(device):
    values = counted(4)
    x = ndl.from_dlpack(values, device=device, copy=True)
    values[0] = 9
    assert x.numpy()[0] == 0
    swapped = counted(4).astype(">f4")
    np.testing.assert_array_equal(ndl.from_dlpack(swapped, device=device).numpy(), counted(4))
    with pytest.raises(BufferError, match="without a copy"):
        ndl.from_dlpack(swapped, device=device, copy=False)
    with pytest.raises(TypeError, match="does not offer __dlpack__"):
        ndl.from_dlpack([1.0])
    for kind in ("complex64", "uint16"):
        with pytest.raises(DtypeError, match=f"from_dlpack: .*'{kind}'"):
            ndl.from_dlpack(np.ones(3, kind))


def test_who_sees_what_is_written_to_shared_memory(host_device):
    """What the other side writes, Needle sees; its own writes go to memory of its own."""
    values = counted(4)

    def shared():
        return ndl.from_dlpack(values, device=host_device, copy=False)

    def add(x):
        x += 1.0

    def assign(x):
        x[0] = 5.0

    def fill(x):
        x[x < 9] = 5.0

    def step(x):
        x.requires_grad = True
        x.sum().backward()
        ndl.optim.SGD([x], lr=1.0).step()

    for write in (add, assign, fill, step):
        x = shared()
        write(x)
        assert x.tolist() != values.tolist()
        np.testing.assert_array_equal(values, counted(4))
    x = shared()
    with ndl.lazy_mode():
        waits = x + 1.0
        values[0] = 7.0
        assert x.tolist() == [7, 1, 2, 3] and waits.tolist() == [8, 2, 3, 4]


def test_tensors_of_torch_are_read(host_device):
    torch = pytest.importorskip("torch")
    for kind in (torch.bfloat16, torch.float16, torch.float32, torch.int64):
        theirs = torch.arange(6).reshape(2, 3).T.to(kind)
        x = ndl.Tensor(theirs, device=host_device)
        assert f"torch.{x.dtype}" == str(kind) and x.device == host_device
        np.testing.assert_array_equal(x.numpy().astype("f8"), [[0, 3], [1, 4], [2, 5]])
        theirs[0, 0] = 9
        assert x[0, 0].item() == 0
        assert ndl.Tensor(theirs, dtype="float64").dtype == "float64"


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_views_whose_elements_share_memory_are_read_only_in_numpy(kind, host_device):
    row = ndl.ones((1, 3), dtype=kind, device=host_device)
    for view in (row.broadcast_to((4, 3)), row[:, :1].broadcast_to((1, 3))):
        values = np.asarray(view)
        assert not values.flags.writeable
        own = view.numpy()
        own[0, 0] = 5
        assert (
            own.astype("f4").sum() == own.size + 4
            and view.astype("float32").sum().item() == own.size
        )
    for whole in (row, row[:, ::2], row.transpose(), row.reshape((3, 1))[:1].broadcast_to((1, 1))):
        assert np.asarray(whole).flags.writeable


def test_more_elements_than_memory_holds_are_shown(host_device):
    huge = ndl.broadcast_to(ndl.ones((1,), device=host_device), (2**50,))
    for read in (huge.numpy, huge.tolist):
        with pytest.raises(ndl.errors.OutOfMemoryError, match="numpy: .*memory"):
            read()
    for text in (repr(huge), str(huge), f"{huge}"):
        assert "..." in text


def test_read_only_memory_stays_so(host_device):
    values = counted(4)
    values.flags.writeable = False
    x = ndl.from_dlpack(values, device=host_device, copy=False)
    with pytest.raises(ValueError, match="read-only"):
        x.realize_cached_data().fill(0)
    with pytest.raises(ValueError, match="read-only"):
        x.realize_cached_data()[0] = 1
    assert (x + 1).numpy()[0] == 1


def test_shared_memory_is_kept_alive(host_device):
    values = np.arange(1000.0)
    x = ndl.from_dlpack(values, device=host_device)
    expected = values.copy()
    gone = weakref.ref(values)
    del values
    gc.collect()
    assert gone() is not None
    np.testing.assert_array_equal(x.numpy(), expected)
    del x
    gc.collect()
    assert gone() is None


def test_dlpack_with_torch(host_device):
    torch = pytest.importorskip("torch")
    kinds = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8,
             torch.bool)  # fmt: skip
    for kind in kinds:
        theirs = torch.arange(6).reshape(2, 3).to(kind)
        x = ndl.from_dlpack(theirs.T, device=host_device, copy=False)
        assert str(kind) == f"torch.{x.dtype}"
        np.testing.assert_array_equal(x.numpy(), theirs.T.to(torch.float64).numpy())
        theirs[0, 1] = 0
        assert not x.numpy()[1, 0]
        back = torch.from_dlpack(x)
        assert back.data_ptr() == theirs.data_ptr() and back.dtype == kind
        back[1, 0] = 1
        assert theirs[0, 1] == 1
    with pytest.raises(DtypeError, match="complex64"):
        ndl.from_dlpack(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(ndl.errors.GradientError, match=r"export \.detach"):
        torch.from_dlpack(ndl.Tensor([1.0]) * 2.0)
