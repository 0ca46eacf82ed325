"""Methods that change a tensor: it gets the value of the method without the underscore."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import inplace
from needle.errors import ArgumentError, DtypeError, GradientError, OptionError, ShapeError

MATRIX = np.arange(1.0, 7.0, dtype=np.float32).reshape(2, 3) / 8
INTEGERS = np.arange(6).reshape(2, 3)
ROWS = np.array([1, 0])
ARGUMENTS = {
    "addcdiv": (MATRIX, MATRIX + 1), "addcmul": (MATRIX, MATRIX), "clamp": (0.2, 0.5),
    "clamp_max": (0.5,), "clamp_min": (0.5,), "clip": (0.2, 0.5), "cumprod": (1,), "cumsum": (0,),
    "index_add": (0, ROWS, MATRIX), "index_copy": (0, ROWS, MATRIX), "index_fill": (0, ROWS, 2.0),
    "index_put": ((ROWS,), MATRIX), "lerp": (MATRIX, 0.5), "masked_fill": (MATRIX > 0.3, 9.0),
    "masked_scatter": (MATRIX > 0.3, MATRIX), "polygamma": (1,), "scatter": (0, INTEGERS % 2, 5.0),
    "scatter_add": (0, INTEGERS % 2, MATRIX), "scatter_reduce": (0, INTEGERS % 2, MATRIX, "amax"),
    "swapaxes": (0, 1), "transpose": (0, 1), "unsqueeze": (0,),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), (INTEGERS,)),
    **dict.fromkeys((
        "add", "atan2", "copysign", "div", "divide", "eq", "floor_divide", "fmod", "ge", "gt",
        "hypot", "le", "logical_and", "logical_or", "logical_xor", "lt", "mul", "multiply", "ne",
        "pow", "remainder", "sub", "subtract", "true_divide", "xlogy",
    ), (MATRIX[::-1],)),
}  # fmt: skip


def given(name):
    """The tensor and the arguments for a method."""
    tensors = [
        tuple(map(ndl.tensor, x)) if isinstance(x, tuple)
        else ndl.tensor(x.copy()) if isinstance(x, np.ndarray) else x
        for x in ARGUMENTS.get(name, ())
    ]  # fmt: skip
    values = INTEGERS if name.startswith("bitwise") else MATRIX + (name == "acosh")
    return ndl.tensor(values), tensors


@looped("name", [name[:-1] for name in inplace.InPlace.__annotations__])
def test_a_twin_gives_the_tensor_the_value_of_the_method(name):
    x, args = given(name)
    before = x * 1
    expected = getattr(x, name)(*args)
    assert getattr(x, f"{name}_")(*args) is x
    np.testing.assert_array_equal(x.numpy(), expected.numpy())
    assert x.dtype == before.dtype and before.tolist() != [0]
    assert inspect.signature(getattr(x, f"{name}_")) == inspect.signature(getattr(x, name))


def test_a_twin_is_part_of_the_graph_like_an_assignment():
    w = ndl.tensor([1.0, 2.0], requires_grad=True)
    y = w * 3
    z = y * y
    y.mul_(2).add_(1)
    y.sum().backward()
    assert w.grad.tolist() == [6.0, 6.0]
    z.sum().backward()  # of the old value
    assert w.grad.tolist() == [18.0, 36.0]
    x = ndl.zeros(2)
    x.add_(w * w)
    x.sum().backward()
    assert w.grad.tolist() == [2.0, 4.0]


def test_a_leaf_that_learns_changes_under_no_grad_only():
    w = ndl.nn.Parameter(np.ones(2))
    with pytest.raises(GradientError, match=r"add_: .*leaf(.*\n)+.*try: with no_grad\(\): x.add_"):
        w.add_(1)
    with ndl.no_grad():
        assert (
            w.add_(1).sub_(
                0.5,
            )
            is w
            and w.requires_grad
            and w.is_leaf()
        )
        w.clamp_(max=1.25)
    assert w.tolist() == [1.25, 1.25]
    w.fill_(3).zero_()
    w.copy_(ndl.tensor([1, 2]))
    assert w.tolist() == [1.0, 2.0] and w.dtype == "float32" and w.requires_grad


def test_what_changes_data_changes_its_owner():
    w = ndl.nn.Parameter(np.ones((2, 2)))
    w.data.add_(1)
    w.data[0] = 5.0
    w.data.mul_(2).clamp_(max=8)
    w.data -= 1
    assert w.tolist() == [[7.0, 7.0], [3.0, 3.0]] and w.requires_grad
    (w * w).sum().backward()
    w.grad.data.zero_()
    assert w.grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    data = w.data
    data += 1
    w.data.detach().add_(1)
    assert w.tolist() == data.tolist() == [[8.0, 8.0], [4.0, 4.0]]


def test_a_change_of_a_view_warns():
    x = ndl.zeros(3, 2)
    for change in (lambda: x[0].fill_(1), lambda: x[:, 1].add_(1), lambda: x.T.zero_()):
        with pytest.warns(UserWarning, match=r"is a view(.*\n)+.*try: x\[0\] = 0"):
            change()
    assert x.tolist() == [[0.0, 0.0]] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (x + 1).fill_(1)
        x.clone().add_(1)
        ndl.empty((3,)).normal_()


def test_what_does_not_fit_is_refused():
    x = ndl.tensor([1.0, 2.0])
    with pytest.raises(ShapeError, match=r"add_: x would become float32\[3, 2\]"):
        x.add_(ndl.ones(3, 2))
    with pytest.raises(DtypeError, match=r"exp_: x would become float32(.*\n)+.*x = x.exp"):
        ndl.tensor([1]).exp_()
    with pytest.raises(DtypeError, match="uniform_: x is int64"):
        ndl.tensor([1]).uniform_()
    with pytest.raises(ArgumentError, match="std is 'a'"):
        x.normal_(0, "a")
    with pytest.raises(OptionError, match="lambd is 0"):
        x.exponential_(0)
    with pytest.raises(ShapeError):
        x.copy_(ndl.ones(3))
    with pytest.raises(ArgumentError, match="generator is 3"):
        x.normal_(generator=3)
    assert x.tolist() == [1.0, 2.0]


def test_draws_have_their_distribution():
    ndl.manual_seed(0)
    x = ndl.empty((4000,))
    assert abs(x.normal_(2, 3).mean().item() - 2) < 0.3 and abs(x.std().item() - 3) < 0.3
    assert x.uniform_(1, 2).min().item() >= 1 and x.max().item() < 2
    assert abs(x.exponential_(4).mean().item() - 0.25) < 0.03 and x.min().item() >= 0
    assert abs(x.bernoulli_(0.25).mean().item() - 0.25) < 0.05
    assert set(x.random_(2, 5).tolist()) == {2.0, 3.0, 4.0} and x.random_(2).max().item() == 1
    assert x.random_().max().item() > 2**23
    g = ndl.Generator().manual_seed(5)
    first = x.normal_(generator=g).tolist()
    assert x.normal_(generator=g).tolist() != first
    assert x.normal_(generator=g.manual_seed(5)).tolist() == first and g.initial_seed() == 5
