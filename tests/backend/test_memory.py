"""The limit of memory: how it is set, and what is said when it is reached."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from rooms import KIB, leaf, live, native, room

import needle as ndl
from needle import core, ops
from needle.backend import memory
from needle.errors import OptionError, OutOfMemoryError

# ---- the setting -------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, value",
    [
        ("0", 0),
        ("4096", 4096),
        ("64KiB", 65536),
        ("1.5 MiB", 3 << 19),
        ("2gib", 2 << 30),
        ("9223372036854775807", 2**63 - 1),
        ("9007199254740993", 2**53 + 1),
        ("0.5KiB", 512),
        ("8388607.5TiB", 2**63 - 2**39),
    ],
)
def test_sizes(text, value):
    with ndl.config(memory_limit=text) as settings:
        assert settings.memory_limit == value


@pytest.mark.parametrize("wrong", ["", "x", "-1", "3 parsecs", "1e9999", -1, 2**63, 1.5, True])
def test_what_is_no_size(wrong):
    with pytest.raises(OptionError, match="NEEDLE_MEMORY_LIMIT="), ndl.config(memory_limit=wrong):
        pass


@pytest.mark.parametrize("large", ["9223372036854775808", "99999999TiB", 2**63, "9" * 99])
def test_sizes_have_63_bits(large):
    with pytest.raises(OptionError, match=r"less than 2\*\*63"), ndl.config(memory_limit=large):
        pass


@pytest.mark.parametrize("name", ["MEMORY_LIMIT", "DEBUG", "MODE"])
def test_an_empty_variable_is_as_none(name):
    code = f"import needle; print(needle.config.initial().{name.lower()})"
    empty = {**os.environ, **ndl.config.environment(**{name: ""})}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=empty)
    assert run.stdout.strip() in ("0", "eager"), run.stderr


def test_the_limit_ends_with_its_block(device):
    with room(device, 100):
        assert device.memory_info()["limit"] > 0
    assert device.memory_info()["limit"] == 0
    assert leaf(device, 1000).shape == (1000,)


def test_statistics(device):
    before = live(device)
    x = leaf(device, 256, 256)
    info = device.memory_info()
    assert info["live"] - before >= 256 * 256 * 4 and info["peak"] >= info["live"]
    del x
    assert live(device) == before


# ---- the error ---------------------------------------------------------------------


def test_the_message(device):
    x, w = leaf(device, 64, 64), ndl.Parameter(np.ones((64, 64)), device=device)
    w.name = "head.weight"
    y = (x @ w).tanh()
    with room(device, 8 * KIB), pytest.raises(OutOfMemoryError) as caught:
        y @ w
    text = str(caught.value)
    assert text.startswith(f"matmul: no memory for 16.0 KiB (16384 bytes) on {device.name}\n")
    assert re.search(r"in use: .*, cached: .*, limit: ", text)
    assert 'float32[64, 64]  parameter "head.weight"' in text
    assert "float32[64, 64]  made by tanh" in text
    assert "  x: float32[64, 64]" in text and "  y: float32[64, 64] " in text
    assert caught.value.requested == 16384 and caught.value.memory["limit"] > 0
    assert isinstance(caught.value, MemoryError)


def test_makers_lines_are_named_with_debug(device):
    with ndl.config(debug=1):
        x = leaf(device, 64, 64)
        y = x.tanh().exp().sin()  # the values in between are kept for gradients only
        gc.collect()  # not while memory is short: what others left would make room
        with room(device, KIB), pytest.raises(OutOfMemoryError) as caught:
            y.exp()
    for op in ("tanh", "exp"):
        assert re.search(
            rf"made by {op} at .*test_memory.py:\d+, kept for a gradient", str(caught.value)
        )
    assert re.search(r"made by sin at .*test_memory.py:\d+", str(caught.value))


def test_leaves_lines_are_named_with_debug(device):
    with ndl.config(debug=1):
        x = ndl.Tensor(np.ones((64, 64)), device=device)
        w = ndl.Parameter(np.ones((32, 64)), device=device)
        one = ndl.ones(16, 64, device=device)
        w.name = "head.weight"
        gc.collect()  # as above
        with room(device, KIB), pytest.raises(OutOfMemoryError) as caught:
            x.exp()
    for made in ("made by Tensor", 'parameter "head.weight", made by Parameter', "made by ones"):
        assert re.search(rf"{made} at .*test_memory.py:\d+", str(caught.value)), made
    assert "NEEDLE_DEBUG" not in str(caught.value)
    assert one.maker.startswith("ones at ") and leaf(device, 2).maker is None
    with room(device, KIB), pytest.raises(OutOfMemoryError, match="NEEDLE_DEBUG=1 names"):
        x.exp()


def test_what_numpy_raises_becomes_typed(device, monkeypatch):
    x = leaf(device, 3)

    def exhausted(self, *arrays):
        raise MemoryError("Unable to allocate")

    monkeypatch.setattr(ops.Tanh, "compute", exhausted)
    with ndl.config(fast="off"), pytest.raises(OutOfMemoryError, match="tanh: the system has no"):
        x.tanh()


def test_more_than_any_machine_has(device):
    with pytest.raises(OutOfMemoryError):
        ndl.zeros(2**50, device=device)
    with pytest.raises(OutOfMemoryError):
        ndl.zeros(2**60, device=device)
    with pytest.raises(ndl.errors.ShapeError, match="2..63"):
        ndl.zeros(2**40, 2**40, device=device)
    with pytest.raises(ndl.errors.ShapeError):
        ndl.zeros(0, 2**40, 2**40, device=device)
    with pytest.raises(ndl.errors.ShapeError):
        leaf(device, 1).broadcast_to((2**40, 2**40))


def repeated(device, *shape: int, dtype: str = "float16") -> ndl.Tensor:
    return ndl.Tensor(1.0, dtype=dtype, device=device, requires_grad=False).broadcast_to(shape)


@pytest.mark.parametrize("m, k", [(8, 2**58), (16, 2**57), (64, 2**52), (1, 2**61)])
def test_products_that_no_machine_computes(device, m, k):
    """Their number of multiplications, modulo 2**64, is 0, which is that of an empty product."""
    a, b = repeated(device, m, k), repeated(device, k, m)
    with pytest.raises(ndl.errors.ShapeError, match=r"matmul: \d+ multiplications"):
        a @ b


@native
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("name", ["logsumexp", "softmax"])
def test_rows_longer_than_any_workspace(name, rows, kind):
    size = 2 ** (61 if kind == "float32" else 62) // (4 * rows)
    x = repeated(ndl.cpu(), rows, size, dtype=kind)
    with pytest.raises(OutOfMemoryError, match="no memory for"):
        getattr(ops, name)(x if kind != "float32" else x[:, ::-1], -1)


@pytest.mark.parametrize("device", ["cpu", "cpu_numpy"])
@pytest.mark.parametrize(
    "call",
    [
        lambda x: ops.cumsum(x, 1),
        lambda x: ops.cumprod(x, 1),
        lambda x: ops.pad(x, [(1, 1), (0, 0)], mode="edge"),
        lambda x: ops.pad(x, [(1, 1), (0, 0)]),
        lambda x: ops.flip(x, 0) + 1.0,
        lambda x: x.sum(axes=0),
    ],
)
def test_many_rows_without_elements_take_no_time(device, call):
    if device == "cpu" and core.native is None:
        device = "cpu_numpy"
    x = ndl.zeros(2**56, 0, device=device)
    assert call(x).numpy().size == 0


@native
@pytest.mark.parametrize("axis", [0, 1])
def test_long_lines_without_elements_are_sorted(axis):
    """On the native CPU: NumPy wants memory for them."""
    x = ndl.zeros(2**56, 0, device="cpu")
    assert ops.sort(x, axis).shape == ops.argsort(x, axis).shape == x.shape


def test_memory_that_ends_when_a_value_is_read_ends_in_the_op_that_waited(host_device):
    """Not in what reads it: numpy() has room to make for its own copy alone."""
    x = ndl.Tensor([1.0], device=host_device).broadcast_to((2**44,))
    with ndl.lazy_mode():
        out = (x + 1.0)[:3]
        with pytest.raises(OutOfMemoryError, match="^add: no memory for 65536.0 GiB"):
            out.numpy()


def test_points_that_have_no_room_are_not_worked_out(device):
    x = leaf(device, 1, 1, 2, 3)
    held = live(device)
    with room(device, 4 << 20), pytest.raises(OutOfMemoryError, match="no memory for 524288.0 GiB"):
        ops.upsample(x, size=(2**23, 2**24), mode="bilinear")
    assert live(device) == held


def test_text_of_sizes():
    found = [memory.size_text(n) for n in (5, 2048, 3 << 19, 5 << 30)]
    assert found == ["5 bytes", "2.0 KiB", "1.5 MiB", "5.0 GiB"]
