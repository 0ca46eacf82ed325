"""Arguments and settings that cannot hold are refused."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import config, core, errors, init, nn, ops
from needle.errors import (
    ArgumentError,
    DeviceError,
    DtypeError,
    GradientError,
    IndexRangeError,
    NeedleError,
    OptionError,
    ShapeError,
)


def tensor(*shape: int, dtype: str = "float32") -> ndl.Tensor:
    return ndl.Tensor(np.zeros(shape), dtype=dtype)


DEVICE = str(ndl.default_device())

ARGUMENTS = {
    "layer_norm, a shape": (
        lambda x: ops.layer_norm(x, (4,)), ArgumentError, r"layer_norm: weight is tuple \(4,\)",
    ),
    "unique": (lambda x: ops.unique(3), ArgumentError, "unique: expected a tensor, got int"),
    "nonzero": (lambda x: ops.nonzero([1]), ArgumentError, "nonzero: expected a tensor, got list"),
    "softplus": (lambda x: ops.softplus([1]), ArgumentError, "softplus: expected a tensor"),
    "sum of a list": (lambda x: ops.summation([1.0]), ArgumentError, "summation: expected"),
    "reshape of a list": (lambda x: ops.reshape([1.0], 1), ArgumentError, "reshape: expected a te"),
    "cumsum of a list": (lambda x: ops.cumsum([1.0]), ArgumentError, "cumsum: expected a tensor"),
    "stack of none": (lambda x: ops.stack(3), ArgumentError, "stack: expected a sequence"),
    "concat of none": (lambda x: ops.concat(3), ArgumentError, "concat: expected a seq"),
    "concat of a tensor of none": (lambda x: ops.concat(x.sum()), ArgumentError, "got needle"),
    "roll of a list": (lambda x: ops.roll([1.0], 1), ArgumentError, "roll: expected a tensor"),
    "roll by a name": (lambda x: ops.roll(x, None, 0), ArgumentError, "roll: expected an integer"),
    "tile": (lambda x: ops.tile(x, None), ArgumentError, "tile: expected an integer or"),
    "repeat of a list": (lambda x: ops.repeat([1.0], 2), ArgumentError, "repeat: expected a te"),
    "transpose": (lambda x: ops.transpose(x, 1), ShapeError, "transpose: axes .1,."),
    "operands": (lambda x: ops.exp(x, x), ArgumentError, "exp: expected 1 operands, got 2"),
    "sum over half an axis": (lambda x: x.sum(0.5), ArgumentError, "sum: expected an integer or"),
    "sum over a name": (lambda x: x.sum("a"), ArgumentError, "sum: axis is .a., not a"),
    "cumsum over two axes": (lambda x: ops.cumsum(x, (0, 1)), ArgumentError, r"cumsum: axis is"),
    "softmax over a list": (lambda x: ops.softmax(x, [0]), ArgumentError, "axis is int, not"),
    "flip": (lambda x: ops.flip(x, 0.5), ArgumentError, "flip: expected an integer or"),
    "permute": (lambda x: ops.permute(x, 0.5), ArgumentError, "permute: expected an integer or"),
    "broadcast_to": (lambda x: ops.broadcast_to(x, None), ArgumentError, "expected an integer"),
    "pad by half": (lambda x: ops.pad(x, 1.5), ArgumentError, "pad: expected an integer or"),
    "pad by names": (lambda x: ops.pad(x, "a"), ArgumentError, "pad: width is 'a'"),
    "pad by three": (lambda x: ops.pad(x, (1, 2, 3)), ShapeError, "for 2 axes"),
    "searchsorted": (
        lambda x: ops.searchsorted(x[0], x, side="up"), OptionError, "unknown side 'up'",
    ),
    "two dots": (lambda x: x[..., ...], IndexRangeError, r"index: 2 times \.\.\."),
    "two dots and an array": (lambda x: x[..., [0], ...], IndexRangeError, r"2 times \.\.\."),
    "three indices": (lambda x: x[0, 0, 0], IndexRangeError, "3 indices for 2 dimensions$"),
    "full": (lambda x: ops.full((-1,), 1), ShapeError, r"full: shape \(-1,\) has a negative size"),
    "init.zeros": (lambda x: ndl.zeros(2, -1), ShapeError, r"zeros: shape \(2, -1\)"),
    "init.rand": (lambda x: ndl.init.rand(-1), ShapeError, r"rand: shape \(-1,\)"),
    "init.randn": (lambda x: ndl.init.randn("a"), ArgumentError, "randn: size is 'a'"),
    "ones": (lambda x: ops.ones(2.5), ArgumentError, "ones: size is 2.5, not an integer"),
    "empty": (lambda x: ops.empty(-3), ShapeError, "empty: shape"),
    "eye": (lambda x: ops.eye(2, -1), ShapeError, r"eye: shape \(2, -1\)"),
    "linspace": (lambda x: ops.linspace(0, 1, -1), ShapeError, "linspace: shape"),
    "arange to NaN": (lambda x: ops.arange(np.nan), OptionError, "arange: from 0 to nan in steps"),
    "arange to infinity": (lambda x: ops.arange(np.inf), OptionError, "finite numbers"),
    "arange to a list": (lambda x: ops.arange([1]), ArgumentError, "three numbers"),
    "arange, too long": (lambda x: ops.arange(10**20), ShapeError, r"reach 2\*\*63"),
}  # fmt: skip


@looped("name", ARGUMENTS)
def test_arguments_that_are_no_tensor_no_axis_and_no_size(name):
    call, kind, text = ARGUMENTS[name]
    with pytest.raises(NeedleError, match=text) as caught:
        call(tensor(3, 4))
    assert type(caught.value) is kind


@looped(
    "widths, same",
    [
        (1, ((1, 1), (1, 1))),
        ((1, 2), ((1, 2), (1, 2))),
        (((2, 1),), ((2, 1), (2, 1))),
        (((1,), (2,)), ((1, 1), (2, 2))),
        (np.array([[1, 0], [0, 2]]), ((1, 0), (0, 2))),
    ],
)
@looped("mode", ["constant", "reflect"])
def test_pad_takes_widths_as_numpy_does(widths, same, mode):
    x = np.arange(12.0).reshape(3, 4)
    expected = np.pad(x, widths, mode)
    np.testing.assert_array_equal(expected, np.pad(x, same, mode))
    np.testing.assert_array_equal(ops.pad(ndl.Tensor(x), widths, mode).numpy(), expected)


NOW = config.initial()
ONCE = {
    "isa": "v3" if NOW.isa != "v3" else "v4",
    "native": "off" if NOW.native == "on" else "on",
    "emulator": "late" if NOW.emulator != "late" else "on",
}
WRONG_SETTINGS = {
    **{name: (value, OptionError, "read once, when needle is") for name, value in ONCE.items()},
    "device": ("zz", DeviceError, "unknown device 'zz'"),
    "mode": ("zz", OptionError, "must be one of eager, lazy"),
    "threads": ("zz", OptionError, "must be an integer"),
    "data": (3, OptionError, "NEEDLE_DATA=3: must be a string"),
    "cache": (3, OptionError, "NEEDLE_CACHE=3: must be a string"),
    "conv": ([], OptionError, "must be one of im2col"),
}


@looped("name", WRONG_SETTINGS)
def test_a_setting_that_cannot_hold_is_refused(name):
    value, kind, said = WRONG_SETTINGS[name]
    before = config.current()
    with pytest.raises(kind, match=said), ndl.config(**{name: value}):
        pass
    assert config.current() is before
    with ndl.config(**{name: getattr(before, name)}):  # as it is
        pass


PAIR = ops.make_tuple(tensor(2), tensor(2))
UNFIT = {
    "ones_like": (lambda: ndl.ones_like(3), ArgumentError, "ones_like: expected a tensor, got int"),
    "reshape_as": (lambda: tensor(2).reshape_as(3), ArgumentError, "expected a tensor, got int 3"),
    "view_as": (lambda: tensor(2).view_as(3), ArgumentError, "expected a tensor, got int 3"),
    "expand_as": (lambda: tensor(2).expand_as(3), ArgumentError, "expand_as: expected a tensor"),
    "type_as": (lambda: tensor(2).type_as(3), ArgumentError, "type_as: expected a tensor"),
    "backward": (lambda: ndl.backward(3), ArgumentError, "backward: expected a tensor, got int 3"),
    "tuple + 3": (lambda: PAIR + 3, TypeError, "unsupported operand"),
    "tuple + 1": (lambda: PAIR + PAIR[:1], TypeError, "TensorTuple: index is slice"),
    "tuple + tuple": (
        lambda: PAIR + ops.make_tuple(tensor(2)), ShapeError, "add: tuples of 2 and 1 tensors",
    ),
    "tuple of a word": (lambda: PAIR["a"], ArgumentError, "index is 'a', not an integer"),
    "too large": (lambda: ndl.Tensor(10**400), errors.RangeError, "too large for any dtype"),
    "too large for int64": (
        lambda: ndl.Tensor(2**70, dtype="int64"), errors.RangeError, "does not fit into int64",
    ),
    "zeros of bytes": (lambda: ndl.ops.zeros(b"ab"), ArgumentError, "zeros: expected an integer"),
    "zeros of a dict": (lambda: ndl.zeros({2: 3}), ArgumentError, "zeros: expected an integer or"),
    "zeros of a set": (lambda: ndl.zeros({2, 3}), ArgumentError, "zeros: expected an integer or"),
    "arange above": (
        lambda: ndl.arange(0, 300, dtype="uint8"), errors.RangeError, "299 does not fit into uint8",
    ),
    "arange below": (
        lambda: ndl.arange(3, -2, -1, dtype="uint8"), errors.RangeError, "-1 does not fit",
    ),
    "arange of much": (lambda: ndl.arange(2**70, 2**70 + 3), errors.RangeError, "into int64"),
    "assigned None": (lambda: ops.setitem(tensor(3), 0, None), DtypeError, "None is not made of"),
    "assigned a word": (lambda: ops.setitem(tensor(3), 0, "a"), DtypeError, "'a' is not made of"),
    "assigned a ragged list": (
        lambda: ops.setitem(tensor(3), 0, [[1], [1, 2]]), ShapeError, "assignment: lists within",
    ),
    "mT of a vector": (lambda: tensor(3).mT, ShapeError, "mT: there are fewer than two axes"),
}  # fmt: skip


@looped("name", UNFIT)
def test_what_does_not_fit_is_told(name):
    call, kind, said = UNFIT[name]
    with pytest.raises(kind, match=said):
        call()


def test_what_just_fits():
    assert ndl.arange(256, dtype="uint8").numpy()[-1] == 255
    assert ndl.arange(0, -129, -1, dtype="int8").numpy()[-1] == -128
    assert ndl.arange(300, 300, dtype="uint8").shape == (0,)
    assert ndl.Tensor([2**70, 1]).tolist() == [2.0**70, 1.0]  # float32 as all numbers of Python
    assert ndl.zeros(range(2, 4)).shape == ndl.zeros(np.array([2, 3])).shape == (2, 3)


@looped("shape", [(), (3,), (2, 3), (2, 3, 4)])
def test_tensors_can_be_looked_through(shape):
    x = tensor(*shape)
    names = {name for name, _ in inspect.getmembers(x)}
    assert {"T", "shape", "numpy"} <= names and ("mT" in names) == (len(shape) > 1)
    assert x.T.shape == (shape if len(shape) < 2 else (*shape[:-2], shape[-1], shape[-2]))


INDEX = ndl.Tensor([0, 1], dtype="int64")
PARTS = ops.split(tensor(2, 3), 0)

BESIDE = {
    "add": lambda x: ops.add(x, tensor(3)), "right of add": lambda x: tensor(3) + x,
    "less": lambda x: ops.less(x, tensor(3)), "right of less": lambda x: tensor(3) < x,
    "matmul": lambda x: ops.matmul(x, tensor(3, 3)),
    "where": lambda x: ops.where(x, tensor(3), tensor(3)),
}  # fmt: skip
ALONE = {
    "exp": ops.exp, "add": lambda x: ops.add(x, x), "less": lambda x: ops.less(x, x),
    "matmul": lambda x: ops.matmul(x, x), "transpose": ops.transpose, "clip": ops.clip,
    "take": lambda x: ops.take(x, [0], 0), "clip to 1": lambda x: ops.clip(x, 0, 1),
    "unbind": ops.unbind, "reshape": lambda x: ops.reshape(x, (3,)),
    "einsum": lambda x: ops.einsum("ij->i", x), "sort": ops.sort, "softmax": ops.softmax,
    "cumsum": ops.cumsum, "norm": ops.norm, "log_sigmoid": ops.log_sigmoid,
    "chunk": lambda x: ops.chunk(x, 2), "astype": lambda x: ops.astype(x, "int8"),
    "cast": lambda x: ops.cast(x, "int8"), "to_device": lambda x: ops.to_device(x, "cpu_numpy"),
    "masked_fill": lambda x: ops.masked_fill(x, tensor(2, 3) > 0, 1.0),
    "put": lambda x: ops.put(x, 0, 1.0), "getitem": lambda x: ops.getitem(x, 0),
    "setitem": lambda x: ops.setitem(x, 0, 1.0),
    "windows": lambda x: ops.windows(x, (0,), (1,), (1,), (1,)),
}  # fmt: skip
OTHERS = {"parts": PARTS, "array": np.ones((2, 3)), "number": 1.5, "none": None, "word": "words"}


@looped("given", OTHERS)
@looped("name", ALONE)
def test_what_is_no_tensor_is_said_to_be_none(name, given):
    with pytest.raises(ArgumentError, match="expected a tensor"):
        ALONE[name](OTHERS[given])


@looped("given", ["parts", "none"])
@looped("name", sorted(BESIDE))
def test_what_is_none_beside_a_tensor(name, given):
    with pytest.raises(ArgumentError, match="expected a tensor"):
        BESIDE[name](OTHERS[given])


def test_parts_of_a_tensor_are_no_index():
    with pytest.raises(ArgumentError, match="expected a tensor, got TensorTuple"):
        tensor(2, 3)[PARTS]


REFUSED = {
    "embedding": (lambda: ops.embedding(tensor(), [0]), ShapeError, "embedding: weight has no"),
    "median": (lambda: tensor(3, 0).median(), ShapeError, "median: no elements along axis 1"),
    "repeat": (lambda: ops.repeat(tensor(3), -1), ShapeError, "repeat: count -1 is below 0"),
    "repeat each": (lambda: ops.repeat(tensor(2), [-1, 1]), ShapeError, "repeat: count -1"),
    "repeat by half": (lambda: ops.repeat(tensor(2), 1.5), ArgumentError, "repeat: count is 1.5"),
    "repeat halves": (lambda: ops.repeat(tensor(2), [1.5, 1]), ArgumentError, "count is 1.5"),
    "repeat much": (lambda: ops.repeat(tensor(2), [2**62] * 2), ShapeError, r"reach 2\*\*63"),
    "tile": (lambda: ops.tile(tensor(3), (2, -1)), ShapeError, "tile: count -1 is below 0"),
    "topk": (lambda: ops.topk(tensor(3), 1.5), ArgumentError, "topk: k is 1.5, not an integer"),
    "matmul": (
        lambda: ops.matmul(tensor(2, 2) > 0, tensor(2, 2) > 0), DtypeError, "matmul: not defined",
    ),
    "upsample": (lambda: ops.upsample(tensor(1, 1, 3, 3), 2**62), ShapeError, "^upsample: shape"),
    "pool": (
        lambda: ops.adaptive_avg_pool2d(tensor(1, 1, 3, 3), 2**50), errors.OutOfMemoryError,
        "^adaptive_avg_pool2d",
    ),
    "eps": (lambda: ops.layer_norm(tensor(2, 3), eps="a"), ArgumentError, "eps is 'a', not a num"),
    "delta": (lambda: ops.huber_loss(tensor(2), tensor(2), delta="a"), ArgumentError, "delta is"),
    "p": (lambda: ops.dropout(tensor(2), "a"), ArgumentError, "dropout: p is 'a', not a number"),
    "correction": (lambda: ops.var(tensor(2), correction="1"), ArgumentError, "correction is '1'"),
    "order": (lambda: ops.norm(tensor(2), [1]), ArgumentError, r"norm: ord is \[1\], not a number"),
    "groups": (lambda: ops.group_norm(tensor(1, 4, 2), 1.5), ArgumentError, "groups is 1.5"),
    "classes": (lambda: ops.one_hot(INDEX, 1.9), ArgumentError, "one_hot: classes is 1.9"),
    "words": (lambda: ops.one_hot(INDEX, "3"), ArgumentError, "one_hot: classes is '3'"),
    "no classes": (lambda: ops.one_hot(INDEX, -1), OptionError, "one_hot: -1 classes"),
    "length": (lambda: ops.bincount(INDEX, minlength=1.5), ArgumentError, "minlength is 1.5"),
    "seed": (lambda: ndl.manual_seed(1.9), ArgumentError, "the seed is 1.9, not an integer"),
    "seed in words": (lambda: ndl.manual_seed("a"), ArgumentError, "the seed is 'a'"),
    "wide seed": (lambda: ndl.manual_seed(2**64), OptionError, "0 <= seed < 2"),
    "key": (lambda: ops.uniform((2,), key=-1), OptionError, "the seed is -1"),
    "linspace": (lambda: ops.linspace(1j, 1, 3), ArgumentError, "linspace: start is 1j"),
    "pad": (lambda: ops.pad(tensor(2, 2), [[1], [1, 2]]), ShapeError, "pad: widths"),
    "tensordot": (lambda: ops.tensordot(tensor(2), tensor(2), 1.5), ArgumentError, "axes is 1.5"),
    "many axes": (lambda: ops.tensordot(tensor(2), tensor(2), 2**31), ShapeError, "2147483648"),
}  # fmt: skip


@looped("name", REFUSED)
def test_arguments_that_mean_nothing_are_refused(name):
    call, kind, text = REFUSED[name]
    with pytest.raises(kind, match=text):
        call()


@looped("where", ["cpu_numpy", DEVICE.removesuffix("()")])
@looped("lazy", [False, True])
def test_a_step_beyond_the_axis_takes_its_first_element(where, lazy):
    with ndl.lazy_mode(lazy):
        x = ndl.Tensor([1.0, 2.0, 3.0], device=where)
        for step in (3, 2**62, 2**63 - 1, 2**63, 2**70):
            assert x[::step].tolist() == [1.0] and x[::-step].tolist() == [3.0]
            assert (x * 1.0)[1:2:step].tolist() == [2.0]


class Nothing(ops.TensorOp):
    def compute(self, x):
        return None


KERNEL = tensor(1, 1, 2, 2)
RAW = {
    "max pool": lambda: ops.adaptive_max_pool1d(tensor(1, 2, 3), 2**64),
    "max pool layer": lambda: nn.AdaptiveMaxPool1d(2**63)(tensor(1, 2, 1)),
    "one_hot": lambda: init.one_hot(None, INDEX),
    "orthogonal": lambda: init.orthogonal(2, 2, gain="x"),
    "Conv": lambda: nn.Conv(1, 1, ((1, 1), (0, 2))),
    "Residual": lambda: nn.Residual(tensor(3)),
    "solve_triangular": lambda: ops.solve_triangular(-1, tensor(3, 3), left=False),
    "kthvalue": lambda: ops.kthvalue(tensor(4, 4), 1, keepdims=np.array([1, 2])),
    "names": lambda: nn.Linear(2, 2).load_state_dict({5: tensor(1)}),
    "no array": lambda: Nothing()(tensor(1)),
    "lazily": lambda: Nothing()(tensor(1)).numpy(),
    "transposed": lambda: ops.conv_transpose2d(
        tensor(1, 1, 1, 1), tensor(1, 1, 2, 2), stride=2**61
    ),
    "stride": lambda: ops.conv2d(tensor(1, 1, 4, 4), tensor(1, 1, 2, 2), stride=2**63 - 1),
    "window": lambda: ops.avg_pool2d(tensor(1, 2, 4, 4), 2**62, ceil_mode=True),
    "window step": lambda: ops.max_pool2d(tensor(1, 2, 4, 4), 2, 2**62),
}


@looped("lazy", [False, True])
@looped("name", RAW)
def test_errors_are_needles(name, lazy):
    with ndl.lazy_mode(lazy), pytest.raises(NeedleError):
        RAW[name]()


@pytest.mark.skipif(core.native is None, reason="there such a tensor has no attributes at all")
def test_tensors_that_were_never_initialised():
    for call in (ndl.Tensor.numpy, lambda x: tensor(2) + x):
        with pytest.raises(GradientError, match="not initialised"):
            call(ndl.Tensor.__new__(ndl.Tensor))


@pytest.mark.skipif(core.native is None, reason="Python's arrays are made by anybody")
def test_only_needle_makes_arrays():
    with pytest.raises(TypeError):
        type(tensor(1).array)()
