"""The emulator of CUDA, the arena, and the cache of compiled kernels."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import needle as ndl
from needle import config
from needle.errors import DeviceError

if not any(d.name == "cuda-emu" and d.enabled() for d in ndl.all_devices()):
    pytest.skip("no compiler for the emulator", allow_module_level=True)

from needle.backend.cuda import jit
from needle.backend.cuda.arena import SLAB, Arena
from needle.backend.cuda.driver import Driver, NoMemory, Properties
from needle.backend.cuda.emulator import EmuDriver
from needle.backend.cuda.geometry import pack
from needle.backend.cuda.jit import Cache, Unit, key
from needle.backend.cuda.streams import Streams

MAIN = 16


@pytest.fixture(scope="module")
def driver():
    return EmuDriver()


# ---- the emulator reports what CUDA leaves undefined -------------------------------------


def run(driver, body, *parts, block=64, order=None, more=""):
    """Launch one block of a kernel given by its body; its parameters are ``i64* out, i64 n``."""
    text = f"{more}\n__global__ void probe(i64* out, i64 n) {{\n{body}\n}}\n"
    found = driver.load(Unit("prelude.cuh", ("probe",), text))["probe"]
    driver.order = order
    out = np.zeros(1024, np.int64)
    values = parts or (0,)
    driver.launch(found, (1, 1, 1), (block, 1, 1), 0, pack(out.ctypes.data, *values), MAIN)
    return out


@pytest.mark.parametrize(
    "body, message",
    [
        ("if (threadIdx.x < 32) __syncthreads();", "prelude.cuh.*|not reached by all"),
        (
            "if (threadIdx.x < 32) {\n__syncthreads();\n} else {\n__syncthreads();\n}",
            "two different",
        ),
        ("SHARED(char, room, [49153]);", "48 KiB"),
        ("__shfl_sync(1u, n, 0);", "lacks the lane"),
        ("__shfl_sync(kAllLanes >> 1, n, 31 - (int)threadIdx.x % 32 / 31);", "lacks"),
        (
            "if (threadIdx.x % 32 < 16) __syncwarp(kAllLanes);",
            "not reached by all|mask names lanes",
        ),
    ],
    ids=["missed", "different", "shared", "own lane", "other lane", "warp"],
)
@pytest.mark.parametrize("threads", [0, 1, 2])
def test_misuse_is_reported_with_its_line(driver, body, message, threads):
    with pytest.raises(DeviceError, match=message) as caught:
        run(driver, body, order=threads)
    assert "unit.cc:" in str(caught.value) and "thread" in str(caught.value)
    # the next kernel runs as if nothing had been
    assert run(driver, "__syncthreads();\nout[threadIdx.x] = 1;").sum() == 64


def test_warp_operations(driver):
    body = """const int lane = threadIdx.x % 32;
    out[threadIdx.x] = __shfl_xor_sync(kAllLanes, lane, 5)
      + 100 * __shfl_up_sync(kAllLanes, lane, 3)
      + 10000 * __shfl_down_sync(kAllLanes, lane, 3)
      + 1000000 * __shfl_sync(kAllLanes, lane, 9, 8);
    if (lane >= 4 && lane < 20)
      out[threadIdx.x] += 100000000ll * __shfl_xor_sync(0xffff0u, lane, 0);
    out[64 + threadIdx.x] = __ballot_sync(kAllLanes, lane % 3 == 0);"""
    lane = np.arange(32)
    expected = (lane ^ 5) + 100 * np.where(lane >= 3, lane - 3, lane)
    expected += 10000 * np.where(lane < 29, lane + 3, lane) + 1000000 * (lane // 8 * 8 + 1)
    expected = expected + 100000000 * np.where((lane >= 4) & (lane < 20), lane, 0)
    for threads in range(3):
        out = run(driver, body, order=threads)
        np.testing.assert_array_equal(out[:64], np.tile(expected, 2))
        assert set(out[64:128]) == {sum(1 << i for i in range(0, 32, 3))}


def test_shared_memory_starts_as_nonsense_in_every_block(driver):
    body = "SHARED(float, room, [64]);\nout[threadIdx.x] = room[threadIdx.x] != room[threadIdx.x];"
    assert run(driver, body).sum() == run(driver, body).sum() == 64


def test_copies_to_shared_memory_are_there_when_waited_for(driver):
    """And not before; the groups ended last may be left on their way."""
    body = """SHARED(i64, room, [64][4]);
    i64* own = room[threadIdx.x];
    copy_later(own, &out[64 + 4 * threadIdx.x], true);
    end_copies();
    copy_later(own + 2, &out[64 + 4 * threadIdx.x], false);
    end_copies();
    const bool early = own[1] != -1;
    wait_for_copies<1>();
    const bool late = own[1] != 5 || own[3] != -1;
    wait_for_copies<0>();
    out[threadIdx.x] = !early && !late && own[3] == 0;"""
    out = run(driver, "for (int i = 0; i < 4; ++i) out[64 + 4 * threadIdx.x + i] = 5;\n" + body,
              more='#include "mma_emu.h"')  # fmt: skip
    assert out[:64].all()
    with pytest.raises(DeviceError, match="boundary of 16 bytes"):
        run(driver, "SHARED(i64, room, [4]);\ncopy_later(&room[1], out, true);",
            more='#include "mma_emu.h"')  # fmt: skip


def test_a_missing_barrier_shows_in_some_order(driver):
    body = """SHARED(int, room, [64]);
    room[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = room[63 - threadIdx.x];"""
    wanted = np.arange(64)[::-1]
    right = [np.array_equal(run(driver, body, order=i)[:64], wanted) for i in range(3)]
    assert not all(right)
    whole = body.replace("\n    out", "\n__syncthreads();\n    out")
    assert all(np.array_equal(run(driver, whole, order=i)[:64], wanted) for i in range(3))


def test_a_write_out_of_bounds_is_found():
    driver = EmuDriver()
    arena = Arena(driver, Streams(driver))
    block = arena.allocate(80)
    run_at = driver.load(
        Unit("prelude.cuh", ("spill",), "__global__ void spill(char* p, i64 n) { p[n] = 1; }")
    )["spill"]
    driver.launch(run_at, (1, 1, 1), (1, 1, 1), 0, pack(block.address, 79), MAIN)
    del block
    arena.statistics()
    for place, words in ((80, "behind"), (-1, "before")):
        block = arena.allocate(80)
        driver.launch(run_at, (1, 1, 1), (1, 1, 1), 0, pack(block.address, place), MAIN)
        del block
        with pytest.raises(DeviceError, match=f"wrote {words} a block of 80 bytes"):
            arena.statistics()


def test_limits_of_a_launch(driver):
    found = driver.load(Unit("prelude.cuh", ("idle",), "__global__ void idle(i64 n) {}"))["idle"]
    for grid, block, shared in (
        ((1, 1, 1), (1025, 1, 1), 0), ((1, 65536, 1), (1, 1, 1), 0),
        ((1, 1, 1), (1, 1, 1), 227 * 1024 + 1),
    ):  # fmt: skip
        with pytest.raises(DeviceError, match="1024|65535|227 KiB"):
            driver.launch(found, grid, block, shared, pack(0), MAIN)


def test_a_kernel_that_does_not_compile_says_why(driver):
    with pytest.raises(DeviceError, match=r"(?s)broken<float>.*options: .*log: .*no_such_thing"):
        driver.load(
            Unit("prelude.cuh", ("broken<float>",),
                 "template <class T> __global__ void broken(i64 n) { no_such_thing(n); }")
        )  # fmt: skip


# ---- the cache -------------------------------------------------------------------------


def test_keys_change_with_everything_that_matters():
    unit = Unit("copy.cu", ("random_bits",))
    keys = {
        key(unit, "sm_90"), key(unit, "sm_80"), key(unit, "sm_90", "nvrtc 13.0"),
        key(Unit("copy.cu", ("random_bits",), "int x;"), "sm_90"),
        key(Unit("copy.cu", ("transpose<float>",)), "sm_90"),
        key(unit, "sm_90", folders=(jit.KERNELS, jit.EMULATOR)),
    }  # fmt: skip
    assert len(keys) == 6 and key(unit, "sm_90") in keys


def test_a_folder_that_cannot_be_written_costs_one_warning(tmp_path):
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "kernels")
    with pytest.warns(RuntimeWarning, match="NEEDLE_CACHE") as caught:
        assert cache.put("a", b"1").read_bytes() == b"1"
        cache.put("b", b"2")
    assert len(caught) == 1 and cache.find("a").read_bytes() == b"1" and cache.find("c") is None


@pytest.mark.heavy("python/needle/backend/cuda/*")
def test_kernels_run_from_memory_where_no_folder_can_be_written(tmp_path):
    """As root every folder can be written; so the cache is below a file."""
    (tmp_path / "file").write_text("")
    program = (
        "import needle as ndl\n"
        "x = ndl.Tensor([1.0, 2.0], device='cuda-emu')\n"
        "assert (x + x).sum().item() == 6\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True,
        env=config.environment(cache=str(tmp_path / "file"), emulator="on"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cannot keep compiled kernels") == 1


def test_a_full_disk_leaves_no_half_file(tmp_path, monkeypatch):
    cache = Cache(tmp_path)
    with monkeypatch.context() as patch, pytest.warns(RuntimeWarning, match="No space left"):
        patch.setattr(
            os, "replace", lambda a, b, real=os.replace: real(a, b) if str(tmp_path) not in str(b)
            else (_ for _ in ()).throw(OSError(28, "No space left on device")),
        )  # fmt: skip
        assert cache.put("a", b"1").read_bytes() == b"1"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.heavy("python/needle/backend/cuda/*")
def test_several_processes_may_fill_one_cache(tmp_path):
    program = (
        "import needle as ndl\n"
        "x = ndl.Tensor([1.0, 2.0], device='cuda-emu')\n"
        "assert (x + x).sum().item() == 6\n"
    )
    environment = {**os.environ, "NEEDLE_CACHE": str(tmp_path), "NEEDLE_EMULATOR": "on"}
    started = [
        subprocess.Popen([sys.executable, "-W", "ignore", "-c", program], env=environment)
        for _ in range(2)
    ]
    assert [process.wait() for process in started] == [0, 0]
    names = [path.name for path in (tmp_path / "kernels").iterdir()]
    assert names and not any(name.startswith(".") for name in names)


# ---- the arena -------------------------------------------------------------------------


class Later:
    """An event that passes when told to."""

    def __init__(self):
        self.passed = False

    def done(self):
        return self.passed

    def wait(self):
        self.passed = True


class Paper(Driver):
    """A driver whose memory is numbers only."""

    def __init__(self, memory):
        self.properties = Properties("paper", "none", memory, 1)
        self.given, self.next, self.streams = {}, 1 << 20, 0

    def allocate(self, nbytes):
        if sum(self.given.values()) + nbytes > self.properties.memory:
            raise NoMemory
        self.next += 2 * nbytes
        self.given[self.next] = nbytes
        return self.next

    def free(self, address):
        del self.given[address]

    def lent(self, address, nbytes, stream):
        pass

    returned = lent

    def create_stream(self):
        self.streams += 1
        return self.streams


def arena_of(driver):
    return Arena(driver, Streams(driver))


def test_blocks_are_aligned_apart_and_used_again():
    arena = arena_of(Paper(1 << 30))
    blocks = [arena.allocate(n) for n in (1, 100, 513, 5000, 3 << 20)]
    spans = sorted((b.address, b.address + b.nbytes) for b in blocks)
    assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))
    assert all(b.address % 256 == 0 for b in blocks)
    place = blocks[2].address
    del blocks[2]
    assert arena.allocate(600).address == place
    info = arena.statistics()
    assert info["peak"] >= info["live"] > 0 and info["cached"] > 0


def test_everything_comes_back_together():
    arena = arena_of(Paper(1 << 30))
    chosen = np.random.default_rng(1)
    blocks = []
    for _ in range(2000):
        if blocks and chosen.random() < 0.5:
            blocks.pop(chosen.integers(len(blocks)))
        else:
            blocks.append(arena.allocate(int(chosen.integers(1, 1 << 18))))
    spans = sorted((b.address, b.address + b.nbytes) for b in blocks)
    assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))
    blocks.clear()
    assert arena.statistics()["live"] == 0
    arena.trim()  # which gives slabs back that are one piece
    assert arena.driver.given == {} and not any(arena.free.values())


def test_a_block_that_another_stream_uses_waits_for_its_event():
    arena = arena_of(Paper(1 << 30))
    block, event = arena.allocate(1000), Later()
    place = block.address
    block.used_by(event)
    del block
    other = arena.allocate(1000)
    assert other.address != place
    event.passed = True
    assert arena.allocate(1000).address == place


def test_memory_that_only_events_hold_is_waited_for():
    arena = arena_of(Paper(SLAB))
    block, event = arena.allocate(SLAB), Later()
    block.used_by(event)
    del block
    assert arena.allocate(SLAB).nbytes == SLAB and event.passed


def test_cached_slabs_go_back_before_memory_ends():
    arena = arena_of(Paper(2 * SLAB))
    first = [arena.allocate(SLAB // 2) for _ in range(4)]
    del first
    whole = arena.allocate(2 * SLAB)
    with pytest.raises(NoMemory):
        arena.allocate(SLAB)
    assert whole.nbytes == 2 * SLAB


# ---- what waits for a GPU ----------------------------------------------------------------


@pytest.mark.heavy("tests/gpu/*", "python/needle/backend/cuda/*")
def test_the_tests_for_a_gpu_run_in_the_emulator():
    """So that they do not fail for a slip when there is a GPU at last."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--device", "cuda-emu",
         str(Path(__file__).parents[1] / "gpu"), "-k", "not test_op or Gather"],
        capture_output=True, text=True, env=config.environment(emulator="on"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 10
