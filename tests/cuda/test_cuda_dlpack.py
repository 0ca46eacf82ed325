"""DLPack on CUDA: streams, capsules, and those of other libraries."""

from __future__ import annotations

import gc
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from emulated import DRIVER, EMU, draw, waits

import needle as ndl
from needle import config
from needle.backend import kernels
from needle.backend.cuda import dlpack
from needle.backend.cuda.dlpack import PLAIN, VERSIONED
from needle.backend.ndarray import array
from needle.errors import DeviceError, DtypeError


class Reader:
    """Another library: its kernels run in a stream of its own."""

    def __init__(self, x, **options):
        self.stream = DRIVER.create_stream()
        self.capsule = x.__dlpack__(stream=self.stream, **options)
        name = VERSIONED if options.get("max_version") else PLAIN
        self.where = dlpack._pointer(self.capsule, name)
        self.made = dlpack._LAYOUTS[name].from_address(self.where)
        dlpack._rename(self.capsule, dlpack.USED[name])

    def values(self, wait=True):
        """What its stream reads."""
        tensor = self.made.tensor
        count = int(np.prod(tensor.shape[: tensor.ndim]))
        out = np.zeros(count, "float32")
        DRIVER.copy(out.ctypes.data, tensor.data, out.nbytes, self.stream)
        if wait:
            DRIVER.record(self.stream).wait()
        return out

    def free(self):
        dlpack._DELETER(self.made.deleter)(self.where)


def test_the_reader_waits_on_the_device(late):
    x = array(draw(30), "float32", EMU)
    y = kernels.elementwise("add", x, x)
    made = []
    assert waits(lambda: made.append(Reader(y))) == 0
    reader = made[0]
    assert (reader.made.tensor.device.type, reader.made.tensor.device.number) == (12, 0)
    exact = reader.values()
    reader.free()
    np.testing.assert_array_equal(exact, 2 * x.numpy())


def test_a_reader_that_does_not_want_to_wait_does_not(late):
    x = array(np.ones(30), "float32", EMU)
    y = kernels.elementwise("add", x, x)
    capsule = y.__dlpack__(stream=-1)
    place = dlpack._LAYOUTS[PLAIN].from_address(dlpack._pointer(capsule, PLAIN)).tensor.data
    out, stream = np.zeros(30, "float32"), DRIVER.create_stream()
    DRIVER.copy(out.ctypes.data, place, out.nbytes, stream)
    DRIVER.record(stream).wait()
    assert out.tolist() != [2.0] * 30  # nothing has been computed
    assert y.numpy().tolist() == [2.0] * 30


def test_memory_in_the_readers_stream_is_not_reused_before(late):
    x = array(draw(1000), "float32", EMU)
    exact, place = x.numpy(), x.handle.address
    reader = Reader(x)
    out = reader.values(wait=False)
    reader.free()
    del x
    EMU.backend.arena.collect()
    assert place in {gone.address for gone in EMU.backend.arena.waiting}
    others = [array(np.zeros(1000), "float32", EMU) for _ in range(3)]
    assert all(other.handle.address != place for other in others)
    DRIVER.record(reader.stream).wait()
    np.testing.assert_array_equal(out, exact)
    EMU.backend.arena.collect()
    assert not EMU.backend.arena.waiting


def test_capsules_keep_memory_and_give_it_back():
    x = array(draw(10), "float32", EMU)
    known = len(dlpack._given)
    capsule = x.__dlpack__()
    assert len(dlpack._given) == known + 1
    del capsule  # nobody took it
    gc.collect()
    assert len(dlpack._given) == known
    reader = Reader(x, max_version=(1, 1))
    place = x.handle.address
    del x
    gc.collect()
    assert reader.made.tensor.data == place and (reader.made.major, reader.made.flags) == (1, 0)
    reader.free()
    assert len(dlpack._given) == known


@pytest.mark.parametrize(
    "stream, message",
    [
        (0, "is not allowed"),
        (-2, "is not allowed"),
        ("main", "expected the number"),
        (True, "expected the number"),
    ],
)
def test_streams_that_are_not_allowed(stream, message):
    with pytest.raises(BufferError, match=message):
        ndl.Tensor([1.0], device=EMU).__dlpack__(stream=stream)


def test_devices_that_are_asked_for():
    x = ndl.Tensor(draw(3), device=EMU, requires_grad=False)
    assert x.__dlpack_device__() == (12, 0)
    np.testing.assert_array_equal(np.from_dlpack(Host(x)), x.numpy())  # a copy
    with pytest.raises(BufferError, match=r"is DLPack.s \(12, 0\), not \(2, 0\)"):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="without a copy"):
        x.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(BufferError, match="host memory has no streams"):
        x.__dlpack__(dl_device=(1, 0), stream=1)
    with pytest.raises(ndl.errors.GradientError, match="export"):
        (ndl.Tensor([1.0], device=EMU) * 2).__dlpack__()


class Host:
    """A tensor whose memory its reader wants on the host."""

    def __init__(self, x):
        self.x = x

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **options):
        return self.x.__dlpack__(**{**options, "dl_device": (1, 0)})


class Giver:
    """Another library, whose tensor was made in a stream of its own."""

    def __init__(self, x, **changes):
        self.x, self.changes, self.asked = x, changes, []

    def __dlpack_device__(self):
        return self.changes.get("device", (12, 0))

    def __dlpack__(self, **options):
        self.asked.append(options)
        if self.changes.get("old") and "max_version" in options:
            raise TypeError("unexpected keyword max_version")
        capsule = self.x.__dlpack__(**options)
        name = PLAIN if self.changes.get("old") else VERSIONED
        made = dlpack._LAYOUTS[name].from_address(dlpack._pointer(capsule, name))
        self.changes.get("change", lambda made: None)(made)
        return capsule


@pytest.mark.parametrize("old", [False, True])
def test_memory_of_another_library_is_shared(late, old):
    with EMU.stream("theirs"):
        x = array(draw(4, 6), "float32", EMU)
        theirs = kernels.elementwise("add", x, x).permute((1, 0))
    giver = Giver(theirs, old=old)
    known, made = len(dlpack._given), []
    assert waits(lambda: made.append(ndl.from_dlpack(giver))) == 0
    mine = made.pop()
    assert giver.asked[-1]["stream"] == EMU.backend.streams.main
    assert mine.device == EMU and mine.shape == (6, 4) and not mine.requires_grad
    y = mine + 1
    place = theirs.handle.address
    assert mine.realize_cached_data().handle.address == place
    np.testing.assert_allclose(y.numpy(), 2 * x.numpy().T + 1)
    z = mine * 3
    del mine
    EMU.backend.arena.collect()
    assert len(dlpack._given) == known + 1  # our stream still uses it
    np.testing.assert_allclose(z.numpy(), 6 * x.numpy().T, rtol=1e-6)
    EMU.synchronize()
    assert len(dlpack._given) == known


def test_capsules_of_every_dtype_and_layout():
    for kind in ndl.dtype.ALL:
        values = np.rint(4 * draw(3, 4)).astype(kind.numpy)
        for view in (lambda x: x, lambda x: x.flip(0), lambda x: x.slice([(1, 2, 1), (0, 2, 2)]),
                     lambda x: x.slice([(0, 0, 1), (0, 4, 1)])):  # fmt: skip
            x = view(array(values, kind, EMU))
            back = ndl.from_dlpack(Giver(x))
            assert back.dtype == kind and back.shape == x.shape
            np.testing.assert_array_equal(back.numpy(), x.numpy())
    scalar = ndl.from_dlpack(Giver(array(3.5, "float32", EMU)))
    assert scalar.shape == () and scalar.item() == 3.5


def no_strides(made):
    made.tensor.strides = None


def an_offset(made):
    made.tensor.data -= 4
    made.tensor.byte_offset = 4


def test_capsules_as_others_make_them():
    values = draw(3, 4)
    for change in (no_strides, an_offset):
        x = ndl.from_dlpack(Giver(array(values, "float32", EMU), change=change))
        np.testing.assert_array_equal(x.numpy(), values)

    def read_only(made):
        made.flags = dlpack.READ_ONLY

    x = ndl.from_dlpack(Giver(array(values, "float32", EMU), change=read_only))
    with pytest.raises(ValueError, match="read-only"):
        x.realize_cached_data().fill(0)
    with pytest.raises(BufferError, match="needs version"):
        x.__dlpack__()
    assert Reader(x, max_version=(1, 0)).made.flags == dlpack.READ_ONLY


def setter(fields):
    def change(made):
        for path, value in fields.items():
            *way, last = path.split(".")
            place = made
            for name in way:
                place = getattr(place, name)
            setattr(place, last, value)

    return change


@pytest.mark.parametrize(
    "change, error, message",
    [
        (setter({"major": 2}), BufferError, "version 2.0"),
        (setter({"tensor.dtype.lanes": 2}), BufferError, "2 lanes of float32"),
        (setter({"tensor.dtype.code": 5, "tensor.dtype.bits": 64}), DtypeError, "complex64"),
        (setter({"tensor.dtype.code": 99}), DtypeError, "code 99"),
        (setter({"tensor.device.number": 1}), BufferError, r"device \(12, 1\)"),
        (setter({"tensor.byte_offset": 1}), BufferError, "not aligned"),
    ],
    ids=["version", "lanes", "complex", "code", "device", "alignment"],
)
def test_capsules_that_cannot_be(change, error, message):
    EMU.synchronize()
    known = len(dlpack._given)
    with pytest.raises(error, match=message):
        ndl.from_dlpack(Giver(array(draw(3), "float32", EMU), change=change))
    gc.collect()
    assert len(dlpack._given) == known  # it got it back


def test_wrong_givers():
    x = array(draw(3), "float32", EMU)
    with pytest.raises(DeviceError, match=r"device \(10, 0\), which Needle does not know"):
        ndl.from_dlpack(Giver(x, device=(10, 0)))
    with pytest.raises(DeviceError, match="not available: emulated GPU 5 does not exist"):
        ndl.from_dlpack(Giver(x, device=(12, 5)))
    if not ndl.cuda().enabled():
        with pytest.raises(DeviceError, match="'cuda' is not available"):
            ndl.from_dlpack(Giver(x, device=(2, 0)))
    with pytest.raises(
        BufferError, match=r"cpu.* cannot share memory of cuda-emu.* without a copy"
    ):
        ndl.from_dlpack(Giver(x), device="cpu_numpy", copy=False)
    np.testing.assert_array_equal(ndl.from_dlpack(Giver(x), device="cpu_numpy").numpy(), x.numpy())
    copied = ndl.from_dlpack(Giver(x), copy=True)
    assert copied.realize_cached_data().handle.address != x.handle.address


def test_pytorch_and_numpy_read_and_give_such_capsules(monkeypatch):
    """The emulator's memory is the host's, so it can pass for that."""
    monkeypatch.setattr(DRIVER, "properties", replace(DRIVER.properties, dlpack=(1, 0)))
    values = draw(3, 4)
    x = array(values, "float32", EMU).permute((1, 0))
    backend = EMU.backend

    class AsHost(Host):
        def __dlpack__(self, max_version=None, **options):
            return backend.to_dlpack(self.x, None, max_version, None)

    np.testing.assert_array_equal(np.from_dlpack(AsHost(x)), values.T)
    torch = pytest.importorskip("torch")
    theirs = torch.from_dlpack(backend.to_dlpack(x, None, None, None))
    theirs[0, 1] = 9.0
    assert x.numpy()[0, 1] == 9 and theirs.data_ptr() == x.handle.address

    class Theirs:
        tensor = theirs

        def __dlpack__(self, stream, **options):
            return self.tensor.__dlpack__(**options)

    mine = backend.from_dlpack(Theirs())
    np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
    del mine
    EMU.synchronize()
    gc.collect()


def test_a_capsule_may_outlive_the_interpreter():
    program = (
        "import ctypes, needle as ndl\n"
        "x = ndl.Tensor([1.0, 2.0], device='cuda-emu', requires_grad=False)\n"
        "kept = [x.__dlpack__(), ndl.from_dlpack(x)]\n"
        "kept.append(kept)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], env=config.environment(emulator="on"),
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
