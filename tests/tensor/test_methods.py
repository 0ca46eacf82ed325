"""Where an op is found: as ``needle.ops.x``, as ``needle.x`` and as a method, under these names."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import ops
from needle.errors import (
    ArgumentError,
    AxesError,
    IndexRangeError,
    OptionError,
    ShapeError,
)

A = np.random.default_rng(0).uniform(-2, 2, (3, 4))
B = np.random.default_rng(1).uniform(0.5, 2, (3, 4))
WHOLE = np.random.default_rng(2).integers(0, 8, (3, 4))
COUNTS = np.random.default_rng(3).integers(1, 8, (3, 4))

LISTED = """
add subtract multiply divide power pow floor_divide remainder equal not_equal less less_equal
greater greater_equal logical_and logical_or logical_not logical_xor bitwise_and bitwise_or
bitwise_xor bitwise_invert bitwise_left_shift bitwise_right_shift where exp log log2 expm1 log1p
sqrt rsqrt square sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid erf softplus
relu leaky_relu elu gelu silu abs sign floor ceil round trunc clip minimum maximum isnan isinf
isfinite sum mean var std max min prod argmax argmin all any cumsum cumprod logsumexp reshape
permute transpose broadcast_to squeeze unsqueeze pad flip roll concat stack split unbind tile
repeat chunk dilate undilate tril triu diagonal meshgrid matmul tensordot einsum outer gather
scatter_add take one_hot embedding sort argsort topk searchsorted nonzero unique softmax
log_softmax cross_entropy layer_norm dropout uniform normal bernoulli randint permutation arange
linspace eye full zeros ones cast astype gelu_tanh mse_loss l1_loss huber_loss kl_divergence
bce_with_logits nll_loss rms_norm batch_norm argwhere cat clamp isclose count_nonzero allclose
cosine_similarity norm multinomial smooth_l1_loss hstack vstack diff nansum nanmean
scatter take_along_dim kthvalue logit cdist pairwise_distance bucketize unique_consecutive cov
corrcoef rot90 diag_embed addcmul addcdiv unfold fold pixel_shuffle pixel_unshuffle celu hardshrink
softshrink tanhshrink threshold softmin bce gaussian_nll_loss poisson_nll_loss triplet_margin_loss
cosine_embedding_loss hinge_embedding_loss margin_ranking_loss
frac fmod xlogy sinc heaviside erfc erfinv logcumsumexp block_diag tensor_split hsplit vsplit
atleast_1d atleast_2d atleast_3d column_stack dstack index_add index_copy index_fill nanmedian
lgamma digamma polygamma multigammaln i0 i0e i1 i1e ndtr log_ndtr logaddexp2 scatter_reduce
"""


@looped("name", LISTED.split())
def test_reachable_as_function(name):
    assert callable(getattr(ops, name))
    assert getattr(ndl, name) is getattr(ops, name) or name in ("ones", "zeros")


METHODS = {
    "add": (lambda x, y: x.add(y), lambda x, y: x + y),
    "sub": (lambda x, y: x.sub(y), lambda x, y: x - y),
    "subtract": (lambda x, y: x.subtract(y), lambda x, y: x - y),
    "mul": (lambda x, y: x.mul(y), lambda x, y: x * y),
    "multiply": (lambda x, y: x.multiply(y), lambda x, y: x * y),
    "div": (lambda x, y: x.div(y), lambda x, y: x / y),
    "divide": (lambda x, y: x.divide(y), lambda x, y: x / y),
    "true_divide": (lambda x, y: x.true_divide(y), lambda x, y: x / y),
    "neg": (lambda x, y: x.neg(), lambda x, y: -x),
    "negative": (lambda x, y: x.negative(), lambda x, y: -x),
    "floor_divide": (lambda x, y: x.floor_divide(y), lambda x, y: x // y),
    "remainder": (lambda x, y: x.remainder(y), lambda x, y: x % y),
    "atan2": (lambda x, y: x.atan2(y), np.arctan2),
    "leaky_relu": (lambda x, y: x.leaky_relu(0.1), lambda x, y: np.where(x > 0, x, 0.1 * x)),
    "elu": (lambda x, y: x.elu(2.0), lambda x, y: np.where(x > 0, x, 2 * np.expm1(x))),
    "gelu": (lambda x, y: x.gelu(approximate="tanh"),
             lambda x, y: x / (1 + np.exp(-np.sqrt(8 / np.pi) * (x + 0.044715 * x**3)))),
    "clamp": (lambda x, y: x.clamp(-1, 1), lambda x, y: np.clip(x, -1, 1)),
    "clamp above": (lambda x, y: x.clamp(max=0.5), lambda x, y: np.minimum(x, 0.5)),
    "copysign": (lambda x, y: y.copysign(x), lambda x, y: np.copysign(y, x)),
    "hypot": (lambda x, y: x.hypot(y), np.hypot),
    "logaddexp": (lambda x, y: x.logaddexp(y), np.logaddexp),
    "isclose": (lambda x, y: x.isclose(x + 1e-6 * y), lambda x, y: np.isclose(x, x + 1e-6 * y)),
    "clamp function": (lambda x, y: ndl.clamp(x, max=0.5), lambda x, y: np.minimum(x, 0.5)),
    "cat": (lambda x, y: ndl.cat([x, y], 1), lambda x, y: np.concatenate([x, y], 1)),
    "eq": (lambda x, y: x.eq(y), lambda x, y: x == y),
    "ne": (lambda x, y: x.ne(y), lambda x, y: x != y),
    "lt": (lambda x, y: x.lt(y), lambda x, y: x < y),
    "le": (lambda x, y: x.le(y), lambda x, y: x <= y),
    "gt": (lambda x, y: x.gt(y), lambda x, y: x > y),
    "ge": (lambda x, y: x.ge(y), lambda x, y: x >= y),
    "where": (lambda x, y: x.where(x > y, y), np.maximum),
    "count_nonzero": (lambda x, y: x.clip(0).count_nonzero(axis=1),
                      lambda x, y: np.count_nonzero(x > 0, 1)),
    "argwhere": (lambda x, y: x.clip(0).argwhere(), lambda x, y: np.argwhere(x > 0)),
    "searchsorted": (lambda x, y: x[0].sort(stable=True).searchsorted(y, "right"),
                     lambda x, y: np.searchsorted(np.sort(x[0]), y, "right")),
    "argsort": (lambda x, y: x.argsort(0, stable=False), lambda x, y: np.argsort(x, 0)),
    "amax": (lambda x, y: x.amax(0), lambda x, y: x.max(0)),
    "amin": (lambda x, y: x.amin(1, True), lambda x, y: x.min(1, keepdims=True)),
    "cummax": (lambda x, y: x.cummax(1)[0], lambda x, y: np.maximum.accumulate(x, 1)),
    "cummin": (lambda x, y: x.cummin(0)[0], lambda x, y: np.minimum.accumulate(x, 0)),
    "quantile": (lambda x, y: x.quantile(0.3, 1), lambda x, y: np.quantile(x, 0.3, 1)),
    "lerp": (lambda x, y: x.lerp(y, 0.25), lambda x, y: x + 0.25 * (y - x)),
    "clamp_min": (lambda x, y: x.clamp_min(0.5), lambda x, y: np.maximum(x, 0.5)),
    "clamp_max": (lambda x, y: x.clamp_max(0.5), lambda x, y: np.minimum(x, 0.5)),
    "nan_to_num": (lambda x, y: (x / 0.0).nan_to_num(1.0, 2.0, 3.0),
                   lambda x, y: np.where(x > 0, 2.0, 3.0)),
    "t": (lambda x, y: x.t() + x[0].t()[0], lambda x, y: x.T + x[0, 0]),
    "movedim": (lambda x, y: x.movedim(0, 1), lambda x, y: np.moveaxis(x, 0, 1)),
    "unflatten": (lambda x, y: x.unflatten(1, (2, -1)), lambda x, y: x.reshape(3, 2, 2)),
    "narrow": (lambda x, y: x.narrow(1, -3, 2), lambda x, y: x[:, 1:3]),
    "narrow from a tensor": (lambda x, y: x.narrow(0, ops.arange(3).max(), 1),
                             lambda x, y: x[2:]),
    "unique": (lambda x, y: x.round().unique(return_counts=True)[1],
               lambda x, y: np.unique(np.round(x), return_counts=True)[1]),
    "select": (lambda x, y: x.select(-1, -1), lambda x, y: x[:, -1]),
    "masked_select": (lambda x, y: x.masked_select(y[0] > 0), lambda x, y: x[:, y[0] > 0].ravel()),
    "index_add": (lambda x, y: x.index_add(1, ops.arange(-1, 1), y[:, :2]),
                  lambda x, y: x + np.pad(y[:, :2], ((0, 0), (0, 2)))[:, [1, 2, 3, 0]]),
    "median": (lambda x, y: x.median(0), lambda x, y: np.median(x, 0)),
    "ravel": (lambda x, y: x.T.ravel(), lambda x, y: x.T.ravel()),
    "round": (lambda x, y: round(x), lambda x, y: np.round(x)),
    "divmod": (lambda x, y: divmod(7.0, y)[1], lambda x, y: 7.0 % y),
    "where of an array": (lambda x, y: ndl.where(B > 1, x, y), lambda x, y: np.where(y > 1, x, y)),
    "take": (lambda x, y: x.take([2, 0], 1), lambda x, y: x[:, [2, 0]]),
    "take of nothing": (lambda x, y: ndl.take(x, []), lambda x, y: x[0, :0]),
    "take in range": (lambda x, y: ndl.take(x, range(1, 3), 0), lambda x, y: x[1:3]),
    "view": (lambda x, y: x.view(2, -1), lambda x, y: x.reshape(2, 6)),
    "view_as": (lambda x, y: x.view_as(y.T), lambda x, y: x.reshape(4, 3)),
    "reshape_as": (lambda x, y: x.reshape_as(y.T), lambda x, y: x.reshape(4, 3)),
    "expand": (lambda x, y: x.expand(2, -1, 4), lambda x, y: np.broadcast_to(x, (2, 3, 4))),
    "expand_as": (lambda x, y: x[:1].expand_as(y), lambda x, y: np.broadcast_to(x[:1], (3, 4))),
    "moveaxis": (lambda x, y: x.moveaxis(0, 1), lambda x, y: np.moveaxis(x, 0, 1)),
    "pad": (lambda x, y: x.pad(((1, 0), (0, 2)), "replicate"),
            lambda x, y: np.pad(x, ((1, 0), (0, 2)), "edge")),
    "repeat_interleave": (lambda x, y: x.repeat_interleave(2, 1), lambda x, y: np.repeat(x, 2, 1)),
    "index_select": (lambda x, y: x.index_select(1, ops.arange(2)), lambda x, y: x[:, :2]),
    "mm": (lambda x, y: x.mm(y.T), lambda x, y: x @ y.T),
    "bmm": (lambda x, y: x.unsqueeze(0).bmm(y.T.unsqueeze(0)), lambda x, y: (x @ y.T)[None]),
    "outer": (lambda x, y: x[0].outer(y[0]), lambda x, y: np.outer(x[0], y[0])),
    "scatter_add": (lambda x, y: x.scatter_add(0, ndl.zeros(3, 4, dtype="int64"), y),
                    lambda x, y: x + np.eye(3)[:, :1] * y.sum(0)),
    "cpu": (lambda x, y: x.cpu(), lambda x, y: x),
    "type_as": (lambda x, y: x.type_as(y > 1), lambda x, y: x.astype(bool)),
}  # fmt: skip


@looped("name", METHODS)
def test_methods(name):
    call, reference = METHODS[name]
    found = call(ndl.Tensor(A, dtype="float64"), ndl.Tensor(B, dtype="float64"))
    np.testing.assert_allclose(found.numpy(), reference(A, B), rtol=1e-12)


OF_INTEGERS = {
    "logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "floor_divide": np.floor_divide, "remainder": np.remainder,
}  # fmt: skip


@looped("name", OF_INTEGERS)
def test_methods_of_integers(name):
    x, y = ndl.Tensor(WHOLE), ndl.Tensor(COUNTS)
    np.testing.assert_array_equal(getattr(x, name)(y).numpy(), OF_INTEGERS[name](WHOLE, COUNTS))
    np.testing.assert_array_equal(x.bitwise_not().numpy(), ~WHOLE)


OVER_AXES = "sum mean max min amax amin prod all any var std logsumexp flip roll squeeze"


@looped("name", OVER_AXES.split())
def test_axis_is_another_name_of_axes(name):
    x = ndl.Tensor(A.reshape(3, 1, 4) if name == "squeeze" else A)
    more = (2,) if name == "roll" else ()
    axis = {"squeeze": 1, "roll": (0, 1), "flip": (0, 1)}.get(name, 0)
    expected = getattr(ops, name)(x, *more, axis)
    for found in (getattr(ndl, name)(x, *more, axis=axis), getattr(x, name)(*more, axis=axis)):
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
    for call in (ndl, ops):
        with pytest.raises(OptionError, match="two names of one argument"):
            getattr(call, name)(x, *more, axis, axis=axis)
    with pytest.raises(OptionError, match="two names of one argument"):
        getattr(x, name)(*more, axes=axis, axis=axis)
    if not more and name not in ("flip", "squeeze"):
        kept = getattr(ndl, name)(x, axis=1, keepdims=True)
        np.testing.assert_array_equal(kept.numpy(), getattr(x, name)(1, True).numpy())


def test_gelu_knows_its_approximations():
    x = ndl.Tensor(A)
    for name, expected in {"none": ops.gelu, False: ops.gelu, "tanh": ops.gelu_tanh}.items():
        for found in (ops.gelu(x, approximate=name), x.gelu(name), ndl.nn.GELU(name)(x)):
            np.testing.assert_array_equal(found.numpy(), expected(x).numpy())
    for wrong in ("tan", 2, None):
        with pytest.raises(OptionError, match="known: none, tanh"):
            ops.gelu(x, wrong)


def test_the_tensor_itself():
    x = ndl.zeros(2, 3)
    assert x.dim() == 2 and x.contiguous() is x
    assert x.nbytes == 24 and x.astype("int8").nbytes == 6


@looped("dtype", ["float32", "float64", "float16", "int32"])
@looped("decimals", [-2, -1, 0, 1, 3])
def test_round_to_decimals(dtype, decimals):
    values = np.concatenate([300 * A.ravel(), [0.25, 0.35, 125, -15, 1e30, np.inf, np.nan]])
    if dtype == "int32" or dtype == "float16":
        values = np.round(values[:-3], 2)
    x = ndl.Tensor(values, dtype=dtype)
    if dtype == "int32" and decimals < 0:
        with pytest.raises(OptionError, match=r"round: -\d decimals of int32"):
            x.round(decimals)
        return
    wide = x.numpy().astype("float32") if dtype == "float16" else x.numpy()
    expected = np.round(wide, decimals).astype(dtype)
    for out in (x.round(decimals), x.round(decimals=decimals), round(x, decimals),
                ops.round(x, np.int64(decimals)), ndl.round(x, decimals=decimals)):  # fmt: skip
        assert out.dtype == dtype
        np.testing.assert_array_equal(out.numpy(), expected)


def test_round_says_which_decimals_there_are():
    x = ndl.Tensor(A)
    with pytest.raises(ArgumentError, match="round: decimals is 1.5, not an integer"):
        x.round(1.5)
    with pytest.raises(OptionError, match="round: 40 decimals of float32\n  rule: from -30 to 30"):
        x.round(40)
    x.round(1).sum().backward()
    assert not x.grad.numpy().any()


@looped("shape", [(0, 3), (2, 0), (0,), (1, 0, 2)])
def test_the_repr_of_an_empty_tensor_has_its_shape(shape):
    text = "" if len(shape) == 1 else f", shape={shape}"
    assert repr(ndl.zeros(*shape)) == f"needle.Tensor([]{text})"
    assert repr(ndl.zeros(*shape, dtype="int8")) == f"needle.Tensor([]{text}, dtype=int8)"


def test_a_number_has_no_length_as_python_says_it():
    x = ndl.Tensor(1.0)
    for ask, of in ((len, x), (iter, x), (len, x.cached_data)):
        with pytest.raises(TypeError, match="0-dimensional"):
            ask(of)


COMPARISONS = {
    "eq": ops.equal, "ne": ops.not_equal, "lt": ops.less, "le": ops.less_equal,
    "gt": ops.greater, "ge": ops.greater_equal,
}  # fmt: skip


@looped("lazy", [False, True])
@looped("dtype", ["uint8", "int8", "int32", "int64", "bool"])
@looped("name", COMPARISONS)
def test_comparisons_with_integers_are_exact(name, dtype, lazy):
    info = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    values = np.array([*info, 1]).astype(dtype)
    x, compare = ndl.Tensor(values), getattr(operator, name)
    with ndl.lazy_mode(lazy):
        for number in (
            -1,
            0,
            1,
            127,
            128,
            255,
            256,
            300,
            -129,
            2**31,
            2**63,
            -(2**63) - 1,
            10**400,
        ):
            expected = [compare(int(v), number) for v in values]
            assert compare(x, number).tolist() == expected
            assert COMPARISONS[name](x, number).tolist() == expected
            assert compare(number, x).tolist() == [compare(number, int(v)) for v in values]


@looped("dtype", ["float32", "int32", "uint8", "bool"])
@looped("shape", [(), (4,), (2, 2), (0, 2)])
def test_in_asks_for_an_equal_element(shape, dtype):
    values = np.arange(1, 1 + int(np.prod(shape))).reshape(shape).astype(dtype)
    x = ndl.Tensor(values)
    for value in (1, 1.0, True, 2.0, 2.5, 9, 300, -1, np.int64(1), np.nan, np.inf):
        assert (value in x) == (values == value).any()
    assert (values[:1] in x if shape else x in x) == (values.size > 0)
    assert "one" not in x and None not in x


def test_isclose_knows_infinity_nan_and_integers():
    x = np.array([np.inf, -np.inf, np.nan, 1.0, np.inf, 0.0])
    y = np.array([np.inf, np.inf, np.nan, np.inf, 1.0, 1e-9])
    for equal_nan in (False, True):
        for dtype in ("float64", "bfloat16"):
            a, b = ndl.Tensor(x, dtype=dtype), ndl.Tensor(y, dtype=dtype)
            found = ops.isclose(a, b, equal_nan=equal_nan).numpy()
            np.testing.assert_array_equal(found, np.isclose(x, y, equal_nan=equal_nan))
    small, large = (ndl.Tensor(np.array([n], "uint8")) for n in (1, 255))
    assert not ops.isclose(small, large).item() and ops.isclose(large, 254, atol=2.0).item()


def test_allclose_is_a_bool():
    x = ndl.Tensor([1.0, np.nan])
    assert ndl.allclose(x, x + 1e-7, equal_nan=True) is True and x.allclose(x) is False
    assert not ndl.allclose(x[0], 1.1) and ndl.allclose(x[0], np.array([1.1], "f"), atol=0.2)
    assert ndl.allclose(ndl.zeros(0, 2), 1.0)


def test_the_cosine_beside_a_zero_vector_is_0_and_has_a_gradient():
    for dtype in ("float32", "float16"):
        x, y = ndl.Tensor(np.zeros((1, 3)), dtype=dtype), ndl.Tensor(A[:, :3], dtype=dtype)
        out = ndl.cosine_similarity(x, y)
        assert out.shape == (3,) and not out.numpy().any() and out.dtype == dtype
    x, y = ndl.Tensor(np.zeros((1, 3))), ndl.Tensor(A[:, :3])
    ndl.cosine_similarity(x, y).sum().backward()
    assert np.isfinite(x.grad.numpy()).all() and np.isfinite(y.grad.numpy()).all()


def test_gradients_flow_through_methods():
    x = ndl.Tensor(A)
    x.expand(2, -1, -1).sub(1.0).clamp(min=0.0).view(-1).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), 2.0 * (A > 1))


CALLS = {
    "transpose": (lambda x: x.transpose(0, 2), lambda x: np.swapaxes(x, 0, 2)),
    "transpose function": (lambda x: ops.transpose(x, 1, 2), lambda x: np.swapaxes(x, 1, 2)),
    "transpose, course": (lambda x: x.transpose(axes=(0, 1)), lambda x: np.swapaxes(x, 0, 1)),
    "permute": (lambda x: x.permute(2, 0, 1), lambda x: np.transpose(x, (2, 0, 1))),
    "flip": (lambda x: x.flip(0, 2), lambda x: np.flip(x, (0, 2))),
    "flip function": (lambda x: ops.flip(x, 0, -1), lambda x: np.flip(x, (0, 2))),
    "to a dtype": (lambda x: x.to(dtype="float64"), lambda x: x.astype("float64")),
    "to a type": (lambda x: x.to(np.float64), lambda x: x.astype("float64")),
    "to both": (lambda x: x.to("cpu_numpy", "float64"), lambda x: x.astype("float64")),
    "to a device": (lambda x: x.to(device="cpu_numpy").to(ndl.float32), lambda x: x),
}


@looped("name", CALLS)
def test_calls_as_pytorch_has_them(name):
    call, reference = CALLS[name]
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    out, expected = call(ndl.Tensor(x)), reference(x)
    assert out.dtype == expected.dtype
    np.testing.assert_array_equal(out.numpy(), expected)


def test_what_is_said_twice_or_too_often():
    x = ndl.zeros(2, 3, 4)
    with pytest.raises(ShapeError, match=r"axes \(2, 0, 1\) of 3(.*\n)+.*try: permute"):
        x.transpose(2, 0, 1)
    with pytest.raises(OptionError, match="two names of one argument"):
        x.flip(0, 1, axis=0)
    with pytest.raises(OptionError, match="target=needle.float32 and dtype='float64' are two"):
        x.to(ndl.float32, dtype="float64")
    with pytest.raises(OptionError, match="target='meta' and device='meta' are two"):
        x.to("meta", device="meta")
    with pytest.raises(AttributeError, match="no attribute 'tenser'") as caught:
        ndl.tenser  # noqa: B018
    assert caught.value.name == "tenser" and caught.value.obj is ndl


def test_backward_knows_gradient():
    x = ndl.Tensor([1.0, 2.0])
    (x * x).backward(gradient=ndl.Tensor([1.0, 10.0]))
    assert x.grad.tolist() == [2.0, 40.0]
    with pytest.raises(OptionError, match="out_grad=.* and gradient=.* are two names"):
        (x * x).backward(x, gradient=x)


@looped("axis", [None, 0, (0, 1)])
@looped("order", [2, None, "fro", 1, 0, 3, np.inf, -np.inf])
def test_norm(order, axis):
    size = np.abs(A) ** (2 if order in (None, "fro") else order) if order != 0 else A != 0
    if order in (np.inf, -np.inf):
        expected = (np.max if order > 0 else np.min)(np.abs(A), axis=axis, keepdims=True)
    else:
        root = 1 if order == 0 else 1 / (2 if order in (None, "fro") else order)
        expected = size.sum(axis=axis, keepdims=True) ** root
    found = ndl.Tensor(A, dtype="float64").norm(order, axis, True)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    same = ndl.norm(ndl.Tensor(A, dtype="float64"), order, axis=axis)
    np.testing.assert_allclose(same.numpy(), expected.reshape(same.shape), rtol=1e-12)


def test_norm_at_0_of_halves_and_of_integers():
    x = ndl.Tensor([[0.0, 0.0], [3.0, 4.0]])
    x.norm(axis=1).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [[0, 0], [0.6, 0.8]], rtol=1e-6)
    ndl.standard.linalg.vector_norm(x, axis=1).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [[0, 0], [0.6, 0.8]], rtol=1e-6)
    half = ndl.Tensor(np.full(4, 300.0), dtype="float16").norm()
    assert half.dtype == "float16" and half.item() == 600
    whole = ndl.Tensor([100, 100], dtype="int8").norm()
    assert whole.dtype == "float32" and whole.item() == pytest.approx(20000**0.5)
    assert np.isnan(ndl.Tensor([1.0, np.nan]).norm().item())
    with pytest.raises(OptionError, match="norm: unknown ord 'nuc'"):
        ndl.norm(x, "nuc")


def test_clip_knows_min_and_max_and_gather_pytorchs_order():
    x = ndl.Tensor(A)
    np.testing.assert_array_equal(x.clip(min=0).numpy(), x.clip(0).numpy())
    np.testing.assert_array_equal(ndl.clip(x, max=1, min=0).numpy(), x.clip(0, 1).numpy())
    with pytest.raises(OptionError, match="low=0 and min=1 are two names of one argument"):
        x.clip(0, min=1)
    best = x.argmax(1, True)
    for found in (x.gather(1, best), ndl.gather(x, 1, best), x.gather(best, 1)):
        np.testing.assert_array_equal(found.numpy(), x.numpy().max(1, keepdims=True))


def test_the_random_numbers_of_init_are_here():
    assert ndl.randn(2, 3, key=1).tolist() == ndl.init.randn(2, 3, key=1).tolist()
    assert ndl.rand(2, 3, key=1).tolist() == ndl.init.rand(2, 3, key=1).tolist()


def test_methods_that_pick_and_add_say_what_does_not_fit():
    x, pair = ndl.zeros(2, 3, 4), ops.arange(2)
    assert x.element_size() == 4 and x.is_floating_point() and not (x > 0).is_floating_point()
    for call, error, message in (
        (lambda: x.t(), AxesError, "t: x has 3 axes"),
        (lambda: x.narrow(1, 2, 2), IndexRangeError, "narrow: 2 elements from 2 of the 3"),
        (lambda: x.narrow(1, -4, 1), IndexRangeError, "narrow: 1 elements from -4"),
        (lambda: x.narrow(1, 0, -1), IndexRangeError, "narrow: -1 elements"),
        (lambda: x.narrow(3, 0, 1), IndexRangeError, "axis 3 is out of range"),
        (lambda: x.select(1, 3), IndexRangeError, "3"),
        (lambda: x.index_add(1, pair, ndl.zeros(2, 3, 4)), ShapeError, r"not \(2, 2, 4\)"),
        (lambda: x.index_add(1, pair.reshape(1, 2), ndl.zeros(2, 2, 4)), ShapeError, "index_add"),
        (lambda: x.index_add(1, 5 * pair, ndl.zeros(2, 2, 4)), IndexRangeError, "5"),
        (lambda: x.unflatten(1, (2, 2)), ShapeError, "unflatten: axis 1 of size 3"),
        (lambda: x.unflatten(1, (2, -1)), ShapeError, "unflatten: axis 1 of size 3"),
        (lambda: x.unflatten(1, (-1, -1)), ShapeError, "one may be -1"),
        (lambda: x.unflatten(3, (1, 1)), IndexRangeError, "axis 3"),
    ):
        with pytest.raises(error, match=message):
            call()
