"""Devices, settings, and the errors of arrays."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from devices import DEVICES
from small_arrays import counted

import needle as ndl
from needle import dtype
from needle.backend import kernels
from needle.backend.ndarray import array, empty, full
from needle.errors import (
    DeviceError,
    IndexRangeError,
    OptionError,
    ShapeError,
)


def test_wrong_shapes_are_shape_errors(device):
    x = array(counted(3, 4), "float32", device)
    wrong = {
        "reshape": lambda: x.reshape(5, 2), "reshape -1": lambda: x.reshape(-1, 5),
        "two unknown": lambda: x.reshape(-1, -1), "permute": lambda: x.permute((0, 0)),
        "broadcast": lambda: x.broadcast_to((3, 5)), "fewer axes": lambda: x.broadcast_to((4,)),
        "squeeze": lambda: x.squeeze(0), "windows": lambda: x.windows((0,), (4,)),
        "item": lambda: x.item(), "negative": lambda: empty((-1,), device=device),
        "17 axes": lambda: empty((1,) * 17, device=device), "matmul": lambda: x @ x,
        "course": lambda: x + x[0:1], "len": lambda: len(full((), 1, device=device)),
        "axis twice": lambda: x.flip((0, 0)), "pad": lambda: x.pad(((1, 1),)),
        "max of nothing": lambda: x[0:0].max(0),
        "17 of a view": lambda: x.reshape(3, 4, *(1,) * 15),
        "17 broadcast": lambda: x.broadcast_to((1,) * 15 + (3, 4)),
        "negative broadcast": lambda: x[0:1, 0:1].broadcast_to((-1, 2)),
    }  # fmt: skip
    passed = []
    for name, call in wrong.items():
        try:
            call()
        except ShapeError:
            continue
        passed.append(name)
    assert not passed


def test_too_many_axes_by_any_way(device):
    x = ndl.Tensor(counted(3), device=device)
    for call in (
        lambda: x.reshape(3, *(1,) * 16), lambda: x.broadcast_to((1,) * 16 + (3,)),
        lambda: x[(None,) * 16],
    ):  # fmt: skip
        with pytest.raises(ShapeError, match="17 dimensions, but at most 16"):
            call()
        with ndl.lazy_mode(), pytest.raises(ShapeError, match="17 dimensions, but at most"):
            call()


def test_wrong_axes_and_indices_are_index_errors(device):
    x = array(counted(3, 4), "float32", device)
    for call in (
        lambda: x.permute((0, 2)), lambda: x.flip(2), lambda: x[3], lambda: x[0, -5],
        lambda: x[0, 0, 0], lambda: x.sum(2), lambda: x.unsqueeze(4),
        lambda: kernels.gather(x, array([[0, 4]], "int64", device), 1),
        lambda: kernels.gather(x, array([[0, -5]], "int64", device), 1),
    ):  # fmt: skip
        with pytest.raises(IndexRangeError):
            call()
            device.synchronize()  # bad indices that a kernel found


def test_devices_do_not_mix(device):
    x = array(counted(3), "float32", device)
    other = array(counted(3), "float32", "meta")
    with pytest.raises(DeviceError, match="operands on devices"):
        kernels.elementwise("add", x, other)
    with pytest.raises(DeviceError, match="has no data"):
        other.numpy()
    with pytest.raises(DeviceError, match="unknown device 'gpu'"):
        array([1.0], device="gpu")
    if not ndl.cuda().enabled():
        with pytest.raises(DeviceError, match="not available"):
            array([1.0], device="cuda")


def test_tensors_on_two_devices_do_not_mix():
    if len(DEVICES) < 2:
        pytest.skip("there is one device")
    a, b = (ndl.Tensor(counted(3), device=d) for d in DEVICES[:2])
    with pytest.raises(DeviceError, match=r"(?s)devices.*x: float32\[3\].*move one with \.to"):
        a + b
    with ndl.lazy_mode(), pytest.raises(DeviceError):
        a + b


def test_moving_between_devices():
    for source in DEVICES:
        for target in DEVICES:
            x = ndl.Tensor(counted(3, 4), device=source)
            y = (x * 2.0).T.to(target)
            assert y.device == target and x.to(source) is x
            np.testing.assert_array_equal(y.numpy(), 2 * counted(3, 4).T)
            (y * y).sum().backward()
            assert x.grad.device == source
            np.testing.assert_array_equal(x.grad.numpy(), 8 * counted(3, 4))
            with ndl.lazy_mode():
                assert (x * 2.0).to(target).device == target


def test_devices_answer_questions(device):
    assert device.enabled() and device.reason() is None and device == device.name
    assert repr(device) == f"{device.name}()" and copy.deepcopy(device) is device
    assert pickle.loads(pickle.dumps(device)) is device
    assert not hasattr(device, "no_such_thing")
    assert ndl.cuda().enabled() == (ndl.cuda().reason() is None)
    assert ndl.meta() not in ndl.all_devices() and device in ndl.all_devices()


def test_settings():
    before = ndl.config.current()
    with ndl.config(debug=1, overrides="off") as settings:
        assert settings.debug == 1 and ndl.config.current() is settings
        with ndl.config(debug=0):
            assert ndl.config.current().overrides == "off"
    assert ndl.config.current() is before
    with pytest.raises(OptionError, match="did you mean 'debug'"), ndl.config(debgu=1):
        pass
    with pytest.raises(OptionError, match="must be one of on, off"), ndl.config(fast="maybe"):
        pass
    with ndl.config(device="cpu_numpy"):
        assert array([1.0]).device == "cpu_numpy"
    assert ndl.config.current() is before


def test_meta_arrays_have_specs_only():
    x = empty((3, 4), "int8", "meta")
    y = kernels.elementwise("equal", x, x, dtype=dtype.bool_).permute((1, 0))
    assert y.shape == (4, 3) and y.dtype == "bool" and y.device == "meta"


def test_texts(device):
    x = array([[1.5, 2]], "float32", device)
    assert str(x) == "[[1.5 2. ]]" and repr(x) == f"NDArray([[1.5 2. ]], device={device})"
    assert repr(ndl.Tensor([1.0, 2.0], device=device)) == "needle.Tensor([1., 2.])"
