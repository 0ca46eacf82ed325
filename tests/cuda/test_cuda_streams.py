"""What is asynchronous on CUDA, in the emulator: streams, pinned buffers, DLPack, late errors.

The fixture ``late`` lets the emulator do work only when somebody waits for it, and of other streams
only what that needs: a wait that is missing gives poisoned memory.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import needle as ndl
from needle import config, nn, optim
from needle import device as devices
from needle.backend import kernels
from needle.backend.ndarray import array
from needle.errors import DeviceError, DtypeError, IndexRangeError

if not any(d.name == "cuda-emu" and d.enabled() for d in ndl.all_devices()):
    pytest.skip("no compiler for the emulator", allow_module_level=True)

from needle.backend.cuda import dlpack, errors, pinned
from needle.backend.cuda.dlpack import PLAIN, VERSIONED
from needle.backend.cuda.driver import NoMemory

EMU = devices.as_device("cuda-emu")
DRIVER = EMU.backend.driver
rng = np.random.default_rng(0)


@pytest.fixture
def late():
    """Do work when it is waited for."""
    EMU.synchronize()
    before, DRIVER.late = DRIVER.late, True
    yield DRIVER
    EMU.synchronize()
    DRIVER.late = before


def draw(*shape):
    return rng.standard_normal(shape).astype("float32")


def waits(call):
    """Return how many times the host waits in a call."""
    before = DRIVER.waits
    call()
    return DRIVER.waits - before


# ---- nobody waits ----------------------------------------------------------------------


def test_work_runs_when_it_is_waited_for(late):
    x = ndl.Tensor(draw(3, 4), device=EMU)
    launches = late.launches
    event_before = EMU.record()
    y = (x * x).sum()
    event = EMU.record()
    assert late.launches > launches and not event_before.done() and not event.done()
    late.run(EMU.backend.streams.main, most=1)  # the clock moves by one piece of work
    assert not event.done()
    event.wait()
    assert event.done() and event_before.done()
    assert y.item() == pytest.approx(float((x.numpy() ** 2).sum()), rel=1e-5)


def train(where, steps=3, labels="int64"):
    """Return a function that trains a small model and one that reads the losses."""
    ndl.manual_seed(5)
    model = nn.Sequential(
        nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2),
        nn.LayerNorm1d(8), nn.Linear(8, 4),
    ).to(where)  # fmt: skip
    optimizers = [
        optim.Adam(model.parameters(), lr=0.01),
        optim.RMSprop(model.parameters(), lr=0.001, momentum=0.9, centered=True),
        optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
    ]
    random = np.random.default_rng(1)
    x, y = random.standard_normal((steps, 16, 6)), random.integers(0, 4, (steps, 16))
    losses = []

    def run():
        for inputs, wanted in zip(x, y, strict=True):
            rows = ndl.Tensor(inputs, device=where, requires_grad=False)[np.arange(16)[::-1]]
            wanted = ndl.Tensor(wanted[::-1].copy(), device=where, dtype=labels)
            loss = nn.SoftmaxLoss()(model(rows), wanted)
            model_loss = loss + (ndl.one_hot(wanted, 4) * model(rows)).mean()
            model_loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(model_loss.detach())

    return (
        run,
        lambda: (
            [loss.item() for loss in losses] + [float(p.numpy().sum()) for p in model.parameters()]
        ),
    )


@pytest.mark.parametrize("labels", ["int64", "float32"])
def test_training_waits_for_nothing_but_its_losses(late, labels):
    run, read = train(EMU, labels=labels)
    launches = late.launches
    assert waits(run) == 0 and late.launches > launches + 50
    other, exact = train(devices.cpu_numpy(), labels=labels)
    other()
    np.testing.assert_allclose(read(), exact(), rtol=1e-3, atol=1e-4)


def test_indexing_waits_for_nothing(late):
    x = ndl.Tensor(draw(5, 6), device=EMU)
    i, j = (ndl.Tensor(n, device=EMU, dtype="int64") for n in ([0, -1, 3], [2, 0, 5]))
    results = []

    def run():
        results.append(x[i])
        results.append(x[i, j])
        results.append(x[[1, 2], 3])
        results.append(ndl.one_hot(i + 1, 5))
        results.append(ndl.gather(x, i.reshape(3, 1), 0))
        results.append(nn.Embedding(6, 2, device=EMU)(j))

    assert waits(run) == 0
    values = x.numpy()
    np.testing.assert_array_equal(results[0].numpy(), values[[0, -1, 3]])
    np.testing.assert_array_equal(results[1].numpy(), values[[0, -1, 3], [2, 0, 5]])
    np.testing.assert_array_equal(results[2].numpy(), values[[1, 2], 3])


BAD = {
    "index": (lambda x, bad: x[bad, bad], [0, 7], "index: the index at position 1 .* axis 0"),
    "one hot": (lambda x, bad: ndl.one_hot(bad, 5), [0, 5], r"label at position 1 .* 5 classes"),
    "gather": (lambda x, bad: ndl.gather(x, bad.reshape(2, 1), 0), [1, -6], r"position \(1, 0\)"),
    "whole": (lambda x, bad: ndl.one_hot(bad, 5), [0.0, 2.5], "position 1 is not a whole"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_values_are_told_at_the_next_wait(late, name):
    call, values, message = BAD[name]
    x = ndl.Tensor(draw(5, 5), device=EMU)
    bad = ndl.Tensor(values, device=EMU, dtype="float32" if name == "whole" else "int64")
    results = []
    assert waits(lambda: results.append(call(x, bad))) == 0
    kind = DtypeError if name == "whole" else IndexRangeError
    with pytest.raises(kind, match=message):
        results[0].numpy()
    x.numpy()  # told once


def test_an_error_names_the_line_that_asked(late):
    x = ndl.Tensor(draw(5, 5), device=EMU)
    with config(debug=1):
        y = ndl.gather(x, ndl.Tensor([[9]], device=EMU, dtype="int64"), 0)
    with pytest.raises(IndexRangeError, match=r"called at .*test_cuda_streams\.py:\d+"):
        y.numpy()


def test_calls_that_went_well_are_forgotten_while_nobody_waits(monkeypatch):
    monkeypatch.setattr(errors, "EVERY", 4)
    EMU.synchronize()
    x, index = array(draw(5), "float32", EMU), array([1, 2], "int64", EMU)
    for _ in range(40):
        kernels.gather(x, index, 0)
        assert len(EMU.backend.pending.calls) <= 8
    kernels.gather(x, array([5], "int64", EMU), 0)
    with pytest.raises(IndexRangeError, match="position 0 is out of range for 5"):
        for _ in range(10):  # found by a look that nobody asked for
            kernels.gather(x, index, 0)
    EMU.synchronize()


def test_tickets_begin_again(monkeypatch):
    monkeypatch.setattr(errors, "TICKETS", EMU.backend.pending.next + 2)
    x = array(draw(5), "float32", EMU)
    for _ in range(3):
        kernels.gather(x, array([1], "int64", EMU), 0)
    assert EMU.backend.pending.next == 1
    kernels.gather(x, array([7], "int64", EMU), 0)
    with pytest.raises(IndexRangeError):
        EMU.synchronize()


# ---- streams ---------------------------------------------------------------------------


def test_a_result_of_another_stream_is_waited_for(late):
    x = ndl.Tensor(draw(50), device=EMU, requires_grad=False)
    with EMU.stream("one"):
        y = x * 2
        with EMU.stream("two"):
            z = y + 1
        y = y * y
    assert waits(lambda: None) == 0 and len({id(late.rows[s]) for s in late.rows}) >= 3
    np.testing.assert_allclose((z - y).numpy(), 2 * x.numpy() + 1 - 4 * x.numpy() ** 2, rtol=1e-5)


def test_without_the_wait_the_result_is_wrong(late, monkeypatch):
    """So the test above can fail."""
    monkeypatch.setattr(EMU.backend.streams, "enter", lambda block: None)
    x = ndl.Tensor(np.ones(50), device=EMU, requires_grad=False)
    with EMU.stream("one"):
        y = x * 2
    assert (y + 1).numpy().tolist() != [3.0] * 50


def test_streams_by_random_programs(late):
    """Tensors made, changed and dropped in three streams are what one stream would make of them."""
    names, choose = (None, "one", "two"), np.random.default_rng(7)
    held = [ndl.Tensor(draw(8), device=EMU, requires_grad=False) for _ in range(4)]
    exact = [x.numpy() for x in held]
    for step in range(300):
        a, b, where = choose.integers(4), choose.integers(4), names[choose.integers(3)]
        with EMU.stream(where) if where else config():
            held[a] = held[a] * 0.5 + held[b] * 0.25
        exact[a] = exact[a] * np.float32(0.5) + exact[b] * np.float32(0.25)
        if step % 50 == 49:
            a = choose.integers(4)
            np.testing.assert_allclose(held[a].numpy(), exact[a], rtol=1e-5)
    for x, y in zip(held, exact, strict=True):
        np.testing.assert_allclose(x.numpy(), y, rtol=1e-5)


def test_memory_that_another_stream_used_last_is_not_reused_before(late):
    x = array(draw(1000), "float32", EMU)
    x.numpy()
    place, expected = x.handle.address, 2 * x.numpy()
    with EMU.stream("side"):
        y = kernels.elementwise("add", x, x)
    del x
    EMU.backend.arena.collect()
    assert place in {gone.address for gone in EMU.backend.arena.waiting}
    again = [array(np.zeros(1000), "float32", EMU) for _ in range(3)]
    assert all(other.handle.address != place for other in again)
    np.testing.assert_array_equal(y.numpy(), expected)
    EMU.backend.arena.collect()
    assert not EMU.backend.arena.waiting  # now it may be


def test_events_order_streams(late):
    with EMU.stream("one"):
        ndl.Tensor(draw(9), device=EMU)
        event = EMU.record()
    EMU.wait(event)
    assert not event.done()
    ndl.Tensor([1.0], device=EMU).item()
    assert event.done()


def test_streams_on_devices_that_compute_at_once():
    for where in (devices.cpu(), devices.cpu_numpy()):
        with where.stream("side"):
            x = ndl.Tensor([1.0, 2.0], device=where) + 1
        where.wait(where.record())
        assert where.record().done() and x.numpy().tolist() == [2, 3]
        assert where.pinned((2, 3), "int32").shape == (2, 3)


def test_a_training_in_a_stream_of_its_own(late):
    run, read = train(EMU)
    with EMU.stream("training"):
        run()
    other, exact = train(devices.cpu_numpy())
    other()
    np.testing.assert_allclose(read(), exact(), rtol=1e-3, atol=1e-4)


# ---- pinned buffers --------------------------------------------------------------------


def test_a_buffer_is_not_reused_before_its_copy(late):
    parts = [draw(700) for _ in range(5)]
    tensors = []
    assert waits(lambda: tensors.extend(array(part, "float32", EMU) for part in parts)) == 0
    pool = EMU.backend.pinned_buffers
    with pool.lock:
        places = [buffer.address for buffer in pool.busy]
    assert len(places) == len(set(places)) >= 5
    for x, part in zip(tensors, parts, strict=True):
        np.testing.assert_array_equal(x.numpy(), part)


def test_what_would_happen_without_its_event(late, monkeypatch):
    """So the test above can fail."""
    pool = EMU.backend.pinned_buffers
    give = pool.give
    monkeypatch.setattr(pool, "give", lambda buffer, *events: give(buffer))  # without events
    first, second = array(np.ones(700), "float32", EMU), array(np.zeros(700), "float32", EMU)
    assert first.numpy().tolist() != [1.0] * 700 and second.numpy().tolist() == [0.0] * 700


def test_the_source_may_be_changed_at_once(late):
    values = np.ones(1000, "float32")
    x = ndl.Tensor(values, device=EMU)
    values[:] = 7
    assert x.numpy().tolist() == [1.0] * 1000


def test_large_copies_pass_through_in_pieces(late, monkeypatch):
    monkeypatch.setattr(pinned, "PIECE", 4096)
    values = draw(9000)
    x = array(values, "float32", EMU)
    np.testing.assert_array_equal(x.numpy(), values)


def test_many_copies_wait_for_earlier_ones(late, monkeypatch):
    monkeypatch.setattr(pinned, "LIMIT", EMU.backend.pinned_buffers.total + (1 << 16))
    parts = [draw(4000) for _ in range(20)]
    tensors = [array(part, "float32", EMU) for part in parts]
    assert EMU.backend.pinned_buffers.total <= pinned.LIMIT
    for x, part in zip(tensors, parts, strict=True):
        np.testing.assert_array_equal(x.numpy(), part)


@pytest.mark.parametrize("kind", ["float32", "int64", "bfloat16", "bool"])
def test_arrays_in_pinned_memory_are_copied_as_they_are(late, kind):
    values = EMU.pinned((40, 30), kind)
    assert values.shape == (40, 30) and values.dtype == ndl.dtype.as_dtype(kind).numpy
    values[...] = exact = np.rint(draw(40, 30)).astype(values.dtype)
    pool = EMU.backend.pinned_buffers
    before = pool.total
    x = ndl.Tensor(values, device=EMU, dtype=kind, requires_grad=False)
    with pytest.raises(ValueError, match="read-only"):  # the copy is under way
        values[0] = 1
    place = values.ctypes.data
    del values
    gc.collect()
    assert EMU.pinned((40, 30), kind).ctypes.data != place and pool.total >= before
    np.testing.assert_array_equal(x.numpy(), exact)
    EMU.synchronize()
    gc.collect()
    assert place in {EMU.pinned((40, 30), kind).ctypes.data for _ in range(1)} | {
        buffer.address for kept in pool.free.values() for buffer in kept
    }


def test_batches_pass_through_pinned_memory(late):
    x = draw(12, 5)
    dataset = ndl.data.NDArrayDataset(x, np.arange(12))
    batches = []
    loader = ndl.data.DataLoader(dataset, 4, device=EMU)
    with EMU.stream("batches"):
        assert waits(lambda: batches.extend(loader)) == 0
    for i, (inputs, labels) in enumerate(batches):
        np.testing.assert_array_equal(inputs.numpy(), x[4 * i : 4 * i + 4])
        assert labels.numpy().tolist() == list(range(4 * i, 4 * i + 4))


@pytest.fixture
def one_buffer(monkeypatch):
    """Let the host have one more pinned buffer."""
    EMU.synchronize()
    pool, pin, made = EMU.backend.pinned_buffers, DRIVER.pin, []
    with pool.lock:
        pool._collect()
        monkeypatch.setattr(pool, "free", {})

    def pin_once(nbytes):
        if made:
            raise NoMemory
        made.append(pin(nbytes))
        return made[0]

    monkeypatch.setattr(DRIVER, "pin", pin_once)
    return pool


@pytest.mark.parametrize("call", ["pinned", "upload", "download", "synchronize"])
def test_a_host_without_pinned_memory_says_so(call, one_buffer):
    x = ndl.ones(8, device=EMU)
    taken = ndl.take(x, ndl.arange(3, device=EMU))  # its check is a copy to the host, too
    held = EMU.pinned((2,), "float64")
    calls = {
        "pinned": lambda: EMU.pinned((1 << 20,), "float64"),
        "upload": lambda: ndl.Tensor(draw(700), device=EMU),
        "download": taken.numpy,
        "synchronize": EMU.synchronize,
    }
    with pytest.raises(ndl.errors.OutOfMemoryError, match="pinned memory left .* bytes were asked"):
        calls[call]()
    del held
    assert taken.numpy().tolist() == [1.0] * 3


def test_a_copy_that_finds_no_buffer_gives_back_those_it_had(one_buffer, monkeypatch):
    monkeypatch.setattr(pinned, "PIECE", 4096)
    x, before = ndl.ones(3000, device=EMU), one_buffer.total
    with pytest.raises(ndl.errors.OutOfMemoryError, match="pinned"):
        x.numpy()
    assert one_buffer.total == before + 4096
    one_buffer._collect()
    assert [len(kept) for kept in one_buffer.free.values()] == [1]


# ---- several GPUs ----------------------------------------------------------------------


def test_a_second_gpu_has_memory_and_kernels_of_its_own():
    second = devices.as_device("cuda-emu:1")
    x = ndl.Tensor(draw(4, 5), device=second)
    assert x.device == "cuda-emu:1" != EMU and devices.as_device("cuda-emu:0") is EMU
    np.testing.assert_allclose(ndl.softmax(x, axis=1).sum(axis=1).numpy(), np.ones(4), rtol=1e-6)
    np.testing.assert_array_equal((x.to(EMU) + 1).to(second).numpy(), x.numpy() + 1)
    with pytest.raises(DeviceError, match=r"devices cuda-emu:1\(\) and cuda-emu\(\)"):
        x + x.to(EMU)


@pytest.mark.parametrize(
    "name, message",
    [("cuda-emu:2", "there is no emulated GPU 2: there are 2"), ("cuda:x", "there is no 'cuda:x'"),
     ("cuda:-1", "there is no 'cuda:-1'"), ("cpu:1", "there is no 'cpu:1'")],
)  # fmt: skip
def test_numbers_that_do_not_exist(name, message):
    with pytest.raises(DeviceError, match=message):
        ndl.Tensor([1.0], device=name)
    assert not ndl.cuda(77).enabled() and ndl.cuda(0) is ndl.cuda()


# ---- DLPack ----------------------------------------------------------------------------


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
        ("main", "not the number"),
        (True, "not the number"),
    ],
)
def test_streams_that_are_not_allowed(stream, message):
    with pytest.raises(BufferError, match=message):
        ndl.Tensor([1.0], device=EMU).__dlpack__(stream=stream)


def test_devices_that_are_asked_for():
    x = ndl.Tensor(draw(3), device=EMU, requires_grad=False)
    assert x.__dlpack_device__() == (12, 0)
    np.testing.assert_array_equal(np.from_dlpack(Host(x)), x.numpy())  # a copy
    with pytest.raises(BufferError, match=r"is DLPack's \(12, 0\), \(2, 0\) was asked for"):
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
    with pytest.raises(DeviceError, match="not available: there is no emulated GPU 5"):
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
