"""Arguments of the wrong kind, for functions of every room: an exception of Needle's, in words."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import data, nn, ops
from needle.errors import (
    ArgumentError,
    DtypeError,
    IndexRangeError,
    OptionError,
    RangeError,
    ShapeError,
)

x = ndl.Tensor(np.arange(6.0).reshape(2, 3))
image, kernel = ndl.Tensor(np.ones((1, 1, 4, 4))), ndl.Tensor(np.ones((1, 1, 2, 2)))
lines = ndl.Tensor(np.ones((1, 4, 4, 1)))
ragged, halves = [[1, 2], [3]], (0.5, 1.5)


def parameter():
    return nn.Parameter(ndl.Tensor(1.0))


WRONG = {
    # two axes, one of them where keepdims stands
    "x.sum(0, 1)": (ArgumentError, r"sum: keepdims is 1, neither.*\n  try: several axes"),
    "x.mean(1, 0)": (ArgumentError, "mean: keepdims is 0"),
    "x.max(0, 'a')": (ArgumentError, "max: keepdims is 'a'"),
    "x.var(0, 1)": (ArgumentError, "var: keepdims is 1"),
    "x.logsumexp(0, 1)": (ArgumentError, "logsumexp: keepdims is 1"),
    "x.logsumexp('ab')": (ArgumentError, "axis is 'a'"),
    # ops without attributes take tensors, and nothing by name
    "ops.add(x, x, alpha=2)": (ArgumentError, "add: unexpected argument 'alpha'\n  rule: tensors,"),
    "ops.exp(x=x)": (ArgumentError, "exp: unexpected argument 'x'"),
    "ops.tensordot(x, x, np.array('a'))": (ArgumentError, "tensordot: axes is array"),
    # two tensors, as PyTorch's max and min take them
    "ops.max(x, x)": (ArgumentError, r"max: expected axes[^$]*\n  try: maximum\(x, y\) for"),
    "x.min(x[0, 0])": (ArgumentError, r"min: expected axes[^$]*\n  try: minimum\(x, y\)"),
    # numbers of layers and optimizers
    "nn.Hardtanh('a')": (OptionError, "Hardtanh: min_val='a'"),
    "nn.Hardtanh(0.0, None)": (OptionError, "Hardtanh: max_val=None"),
    "optim.NAdam([parameter()], decoupled_weight_decay=None)": (ArgumentError, "NAdam: decoupled_"),
    "optim.RAdam([parameter()], decoupled_weight_decay=1)": (ArgumentError, "RAdam: decoupled_"),
    "ops.unflatten(x, 0, [None])": (ArgumentError, "unflatten: size is None"),
    "ops.upsample(image, scale_factor='2')": (ArgumentError, "upsample: scale_factor is '2'"),
    "ops.upsample(image, scale_factor=[None, 2])": (ArgumentError, "scale_factor is None"),
    "ops.upsample(image, scale_factor=1e400)": (OptionError, "scale_factor is inf"),
    "ops.upsample(image, 2, mode=['nearest'])": (OptionError, "unknown mode"),
    "ops.cross_entropy(x.sum(), 0, weight=x[0])": (ShapeError, "each of no classes"),
    "ops.cross_entropy(x.sum(), x.sum(), weight=x[0])": (ShapeError, "each of no classes"),
    # numbers that were cut off to whole ones
    "ops.conv2d(image, kernel, stride=halves)": (ArgumentError, r"stride is 0\.5, not an integer"),
    "ops.conv2d(image, kernel, padding=halves)": (ArgumentError, r"padding is 0\.5"),
    "ops.conv2d(image, kernel, dilation='12')": (ArgumentError, "dilation is '1'"),
    "ops.conv2d(image, kernel, groups=1.5)": (ArgumentError, r"conv2d: groups is 1\.5"),
    "ops.conv_transpose2d(image, kernel, groups='1')": (ArgumentError, "groups is '1'"),
    "ops.avg_pool2d(image, 2, padding=halves)": (ArgumentError, r"padding is 0\.5"),
    "ops.max_pool2d(image, '2')": (ArgumentError, "kernel_size is '2'"),
    "ops.conv(lines, kernel, 1.5)": (ArgumentError, r"conv: stride is 1\.5"),
    "x.narrow(0, 1.5, 1)": (ArgumentError, r"narrow: start is 1\.5, not an integer"),
    "x.narrow(0, 'a', 1)": (ArgumentError, "narrow: start is 'a'"),
    "x.narrow(0, 0, None)": (ArgumentError, "narrow: length is None"),
    "x.narrow(0, x[0], 1)": (ArgumentError, "narrow: start is needle.Tensor"),
    "x.kthvalue(1.5)": (ArgumentError, r"kthvalue: k is 1\.5, not an integer"),
    # numbers of any size
    "ops.linspace(0, 10**400, 3)": (ArgumentError, "linspace: stop is 10*, not a number"),
    "ops.linspace(0, 300, 4, dtype='uint8')": (RangeError, r"300\.0 does not fit into uint8"),
    "ops.linspace(0, np.inf, 4, dtype='int32')": (RangeError, "does not fit into int32"),
    "ops.arange(10**400, 10**400 + 1, dtype='float32')": (ArgumentError, "arange: start is 10*"),
    "x.masked_fill(x > 1, 10**400)": (DtypeError, "masked_fill: an integer of 1329 bits"),
    "ops.multinomial(x[1], 2**70, replacement=True)": (
        ShapeError,
        r"multinomial: shape .* reach 2\*\*63",
    ),
    "ops.linspace(0, 1, 3, endpoint='a')": (ArgumentError, "linspace: endpoint is 'a', neither"),
    # what is neither a number nor several
    "ops.reshape(x, shape=1.5)": (ArgumentError, r"reshape: expected an integer or"),
    "x.unflatten(1, [[1], [3]])": (ArgumentError, r"unflatten: size is \[1\], not an integer"),
    "ops.hstack(None)": (ArgumentError, "hstack: expected a sequence .* got None"),
    "ops.vstack(x.sum())": (ArgumentError, "vstack: expected a sequence of tensors, got needle"),
    "x.expand(None)": (ArgumentError, "expand: expected an integer or"),
    "ops.normal(x.sum(), 1.0)": (ArgumentError, "normal: expected an integer or"),
    "ops.linspace(ragged, 1, 3)": (ArgumentError, r"linspace: start is \[\[1, 2\], \[3\]\]"),
    "ops.linspace([0, 0], [1, 1, 1], 3)": (ShapeError, "linspace: shapes do not broadcast"),
    "ops.quantile(x, 'a')": (ArgumentError, "quantile: expected a number or a list"),
    "ops.quantile(x, 1j)": (ArgumentError, "quantile: .* got 1j"),
    "ops.quantile(x, ragged)": (ArgumentError, "quantile: expected"),
    "ops.repeat(x, 'abcdef')": (ArgumentError, "repeat: count is 'a'"),
    "ops.repeat(x, ragged)": (ArgumentError, r"repeat: count is \[1, 2\]"),
    "ops.repeat(x, {})": (ArgumentError, "repeat: expected an integer or"),
    "ops.repeat(x, np.ones((6, 2), int))": (ArgumentError, "repeat: count is array"),
    "ops.repeat(x, np.full(6, -1))": (ShapeError, "repeat: count -1 is below 0"),
    "ops.dilate(x, 1e300, 1)": (ArgumentError, r"dilate: expected an integer or"),
    "ops.dilate(x, 'a', 1)": (ArgumentError, "dilate: axis is 'a'"),
    "ops.lerp(x, x, None)": (ArgumentError, "lerp: weight is None, not a number"),
    "ops.einsum([], x)": (ArgumentError, r"einsum: expected the equation as a str, got \[\]"),
    "ops.stack({'a': 1})": (ArgumentError, "stack: expected a sequence of tensors"),
    "ragged in x": (ShapeError, "in: .* different lengths"),
    "ops.nll_loss(x.sum(), x.sum())": (ShapeError, "nll_loss: labels have shape"),
    "nn.Embedding(3, 2, padding_idx='a')": (ArgumentError, "Embedding: padding_idx is 'a'"),
    "nn.ModuleDict('ab')": (ArgumentError, "ModuleDict: expected a dict, got 'ab'"),
    "nn.ModuleList(3)": (ArgumentError, "ModuleList: expected an iterable of modules, got 3"),
    "nn.activation(None)": (OptionError, "unknown activation None"),
    "nn.Linear(2, 2).load_state_dict(3)": (ArgumentError, "expected a dict, got 3"),
    "nn.Linear(2, 2).load_state_dict('ab')": (ArgumentError, "expected a dict, got 'ab'"),
    "optim.Adam([parameter()]).load_state_dict(3)": (ArgumentError, "expected a dict, got 3"),
    "optim.SGD([parameter()]).load_state_dict(3)": (ArgumentError, "expected a dict, got 3"),
    "optim.SGD([parameter()]).minimize(None)": (ArgumentError, "minimize: expected a tensor"),
    "ndl.rand(2, low='a')": (ArgumentError, "rand: low is 'a', not a number"),
    "ndl.randn(2, std=1j)": (ArgumentError, "randn: std is 1j"),
    "init.randb(2, p=None)": (ArgumentError, "randb: p is None"),
    "init.trunc_normal(2, mean=np.ones(2))": (ArgumentError, "trunc_normal: mean is array"),
    "init.xavier_normal(2, 2, gain=1j)": (ArgumentError, "xavier_normal: gain is 1j"),
    "init.kaiming_uniform(None, 2)": (ArgumentError, "init: a fan is None"),
    "data.Normalise('a', 1)": (ArgumentError, "Normalise: mean='a', std=1\n  rule: one"),
    "data.Normalise([[1.0]], 1)": (OptionError, "Normalise: 1 means"),
    "data.ColourJitter(None)": (ArgumentError, "ColourJitter: brightness is None"),
    "data.mnist('/', train=None)": (OptionError, "expected True or False for train, got None"),
    "data.UnpairedImages('/', ('a',))": (
        OptionError,
        r"expected two folder names, got \('a',\)",
    ),
    "optim.Step('a', 2)": (ArgumentError, "Step: rate is 'a', not a number"),
    "optim.Step(0.1, None)": (ArgumentError, "Step: every is None"),
    "optim.Cosine(0.1, float('nan'))": (OptionError, "Cosine: steps=nan must be finite"),
    "optim.Linear(0.1, 'a', 5)": (ArgumentError, "Linear: end is 'a'"),
    "optim.Milestones(0.1, 3)": (ArgumentError, "expected a sequence of numbers for steps, got 3"),
    "optim.Milestones(0.1, 'ab')": (ArgumentError, r"Milestones: steps\[0\] is 'a'"),
    "optim.Polynomial(0.1, 5, -1)": (OptionError, "Polynomial: power=-1 must be positive"),
    "optim.Restarts(0.1, 5, float('inf'))": (OptionError, "Restarts: factor=inf must be finite"),
    "optim.Warmup(5, None)": (ArgumentError, "Warmup: then is None"),
    "optim.Chain((0.1,), 0.2)": (OptionError, "Chain: every part but the last must be a pair"),
    "optim.Chain((0.1, 5), 'a')": (ArgumentError, "Chain: schedule is 'a'"),
}


@looped("call", sorted(WRONG))
def test_what_was_wrong_is_told(call):
    kind, text = WRONG[call]
    with pytest.raises(kind, match=text):
        eval(call, {**globals(), "init": ndl.init, "optim": ndl.optim})


LAYERS = [
    cls for cls in vars(nn).values()
    if isinstance(cls, type) and issubclass(cls, nn.Module) and cls.forward is not nn.Module.forward
    and cls not in (nn.Identity, nn.Sequential, nn.Linear, nn.Embedding)  # which take lists, too
]  # fmt: skip


def layer(cls):
    """Make a layer of any class, by the first numbers that it takes."""
    if cls is nn.Applied:
        return cls(ndl.tanh)
    for given in ((), (2,), (2, 2), (2, 2, 2), (4, 4, 3), (2, 2, 2, 2)):
        try:
            return cls(*given)
        except (TypeError, ShapeError, OptionError):
            pass
    raise AssertionError(f"no layer {cls.__name__} was made")


@looped("given", [None, [[1.0, 2.0, 3.0]], "a"])
@looped("cls", LAYERS, ids=lambda cls: cls.__name__)
def test_a_layer_says_its_name_when_it_is_given_no_tensor(cls, given):
    made = nn.Residual(nn.ReLU()) if cls is nn.Residual else layer(cls)
    needed = inspect.signature(made.forward).parameters.values()
    several = [given for p in needed if p.default is p.empty]
    with pytest.raises(ArgumentError, match="expected a tensor( or a number)?, got"):
        made(*several)


@looped("given", [None, ragged, "a", {}, 1j, 2**70, [None]])
def test_what_is_no_index_of_a_data_set(given):
    items = data.NDArrayDataset(np.zeros((3, 2)))
    parts = data.ConcatDataset([items, data.Subset(items, [0, 1])])
    for dataset in (items, parts, parts.datasets[1]):
        with pytest.raises((ArgumentError, IndexRangeError), match="index"):
            dataset[given]
    with pytest.raises(IndexRangeError, match=f"index {-(2**70)} is out of range"):
        parts[-(2**70)]


def test_what_keepdims_may_be():
    assert x.sum(0, True).shape == x.sum(0, keepdims=np.bool_(True)).shape == (1, 3)
    assert x.sum((0, 1), keepdims=np.bool_(False)).shape == ()


def test_axes_that_can_be_read_once_have_a_gradient():
    y = ndl.Tensor(np.arange(6.0).reshape(2, 3))
    y.logsumexp(axis=(i for i in (0, 1))).backward()
    np.testing.assert_allclose(y.grad.numpy().sum(), 1, rtol=1e-6)


def test_a_weight_of_lerp_may_be_an_array():
    weight = np.array([0.0, 0.25, 1.0], np.float32)
    found = ops.lerp(x, x + 4, weight)
    np.testing.assert_array_equal(found.numpy(), x.numpy() + 4 * weight)


def test_no_tensors_broadcast_to_none():
    assert ops.broadcast_arrays() == []


def test_ends_of_arange_that_no_dtype_holds():
    assert ops.arange(2**63, 2**63).shape == (0,)
    assert ops.arange(-(2**70), -(2**71)).tolist() == []
    assert ops.arange(3, 10, 2**63).tolist() == [3]  # nor its step
    assert ops.arange(3, -10, -(10**30), dtype="int8").tolist() == [3]


def test_ends_and_steps_of_more_than_64_bits():
    assert ops.arange(-0.9, 2.1, 2**70).tolist() == [np.float32(-0.9)]
    assert ops.arange(2**70, 2**72, 2**70, dtype="float64").tolist() == [2**70, 2**71, 3 * 2**70]
    assert ops.arange(-(2**62), 2**62 + 1, 2**63).tolist() == [-(2**62), 2**62]
    assert ops.linspace(2**70, 0, 3, dtype="float64").tolist() == [2**70, 2**69, 0]
    assert ops.linspace(2**70, 0, 0).shape == (0,)


def test_axes_that_are_tensors_are_read_each_time():
    axis = ndl.Tensor(0, dtype="int64")
    assert x.sum((axis,)).shape == ops.amax(x, (np.array(0),)).shape == (3,)
    with ndl.no_grad():
        axis[...] = 1
    assert x.sum((axis,)).shape == ops.amax(x, (np.array(1),)).shape == (2,)


def test_axes_of_tensordot_that_are_tensors_are_read_each_time():
    square, axis = ndl.Tensor([[1.0, 2.0], [3.0, 4.0]]), ndl.Tensor(0, dtype="int64")
    assert ops.tensordot(square, square, ([axis], [0])).tolist() == [[10.0, 14.0], [14.0, 20.0]]
    with ndl.no_grad():
        axis[...] = 1
    assert ops.tensordot(square, square, ([axis], [0])).tolist() == [[7.0, 10.0], [15.0, 22.0]]


def test_numbers_that_are_numpys():
    places = ndl.Tensor([[2, 0], [1, 1]], dtype="int64")
    assert ops.gather(x, np.int64(1), places).tolist() == [[2.0, 0.0], [4.0, 4.0]]
    assert x.masked_select(np.array([True, False, True])).tolist() == [0.0, 2.0, 3.0, 5.0]
    assert ops.tensordot(x, x.T, np.array(1)).shape == (2, 2)
    assert ops.kthvalue(x, np.float32(2), 1)[0].tolist() == [1.0, 4.0]
    assert ops.reshape(x, shape=6).shape == ops.reshape(x, shape=-1).shape == (6,)


def test_the_number_of_large_steps_is_exact():
    n = 2**55
    assert ops.arange(0, 3 * n + 1, n).tolist() == [0, n, 2 * n, 3 * n]
    assert ops.arange(0, -3 * n - 1, -n).tolist() == [0, -n, -2 * n, -3 * n]


def test_counts_of_repeat_in_any_form():
    counts = [1, 0, 2, 0, 0, 1]
    expected = np.repeat(x.numpy().ravel(), counts)
    for given in (counts, tuple(counts), np.array(counts, np.uint8), ndl.Tensor(counts)):
        np.testing.assert_array_equal(ops.repeat(x, given).numpy(), expected)
