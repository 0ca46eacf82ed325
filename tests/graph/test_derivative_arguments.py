"""What derivatives take: several results, integers, functions that do not fit."""

from __future__ import annotations

import numpy as np
import pytest
from forward_mode import close, tensor

import needle as ndl
from needle import ops
from needle.errors import (
    ArgumentError,
    DtypeError,
    GradientError,
    IndexRangeError,
    OptionError,
    ShapeError,
)

# ---- errors --------------------------------------------------------------------------


def test_errors():
    x = tensor([1.0, 2.0])
    whole = ndl.Tensor(np.array([1, 2]))
    with pytest.raises(GradientError, match="each primal, got 2 for 1"):
        ndl.jvp(ops.exp, (x,), (x, x))
    with pytest.raises(ShapeError, match="the shapes of a tangent"):
        ndl.jvp(ops.exp, (x,), (tensor([1.0]),))
    with pytest.raises(DtypeError, match="dtype or device"):
        ndl.jvp(ops.exp, (x,), (x.astype("float32"),))
    with pytest.raises(DtypeError, match="int64"):
        ndl.jvp(ops.exp, (whole,), (1.0,))
    with pytest.raises(DtypeError, match="int64"):
        ndl.jacobian(ops.exp)(whole)
    with pytest.raises(GradientError, match="expected tensors as primals, got list"):
        ndl.linearize(ops.exp, [1.0])
    with pytest.raises(GradientError, match="returned float"):
        ndl.jvp(lambda x: x.sum().item(), (x,), (x,))
    with pytest.raises(OptionError, match="mode is 'sideways'"):
        ndl.jacobian(ops.exp, mode="sideways")
    with pytest.raises(GradientError, match="one tensor, not tuple"):
        ndl.jacobian(lambda x: (x, x))(x)
    with pytest.raises(GradientError, match="floating"):
        ndl.jacobian(ops.argmax)(x)
    with pytest.raises(GradientError, match="expected a scalar"):
        ndl.hvp(ops.exp, x, x)
    _, push = ndl.linearize(ops.exp, x)
    with pytest.raises(GradientError, match="each of 1 primals, got 0"):
        push()
    with pytest.raises(ShapeError, match="matmul"):
        ndl.jvp(lambda x: x.reshape(2, 1) @ x.reshape(2, 1), (x,), (x,))


def test_an_integer_input_takes_none():
    x, index = tensor([[1.0, 2.0]]), ndl.Tensor(np.array([1]))
    out, tangent = ndl.jvp(lambda x, i: ops.take(x, i, 1), (x, index), (x, None))
    close(tangent, [[2.0]])


def test_a_result_may_outlive_its_jvp():
    """A tensor that a function puts aside still has its value, and can be computed with."""
    aside = []
    ndl.jvp(lambda x: aside.append(x * 2.0) or x, (tensor([3.0]),), (1.0,))
    assert aside[0].item() == 6.0 and (aside[0] + 1.0).numpy() == [7.0]
    close(ndl.jvp(lambda x: x * aside[0], (tensor([1.0]),), (1.0,))[1].detach(), [6.0])


def test_vjp_of_several_results(mode):
    x, u, v = tensor([2.0, 3.0]), tensor([1.0, -1.0]), tensor(5.0)
    out, pull = ndl.vjp(lambda x: (x * x, [x.sum(), ops.argmax(x)]), x)
    assert isinstance(out, tuple) and isinstance(out[1], list)
    expected = 2 * x.numpy() * u.numpy() + 5.0
    for found in (pull(u, [v, None]), pull((u, [v, None])), pull((u, (5.0, None)))):
        close(found[0], expected)
    close(pull()[0], 2 * x.numpy() + 1.0)
    close(pull(None, (v, None))[0], [5.0, 5.0])
    close(ndl.grad(lambda x: pull(u, (v, None))[0].sum() + x.sum())(x), [1.0, 1.0])
    _, pull = ndl.vjp(ops.split, x)
    close(pull((v, None))[0], [5.0, 0.0])
    close(pull(ops.split(u))[0], u.numpy())


def test_vjp_of_several_results_can_be_differentiated(mode):
    def norm_of_pulled(x):
        _, pull = ndl.vjp(lambda x: (x * x, x * x * x), x)
        return pull(x, ops.ones_like(x))[0].sum()  # 2 x^2 + 3 x^2

    close(ndl.grad(norm_of_pulled)(tensor([2.0])), [20.0])
    close(ndl.jvp(norm_of_pulled, tensor([2.0]), 1.0)[1], 20.0)


def test_keyword_arguments_are_passed_on():
    x, y = tensor([1.0, 2.0]), tensor([3.0, 4.0])

    def f(x, *, scale, other):
        return (x * x * scale * other).sum()

    close(ndl.grad(f)(x, scale=2.0, other=y), [12.0, 32.0])
    close(ndl.value_and_grad(f)(x, scale=2.0, other=y)[0], 38.0)
    close(ndl.jacobian(f)(x, scale=2.0, other=y), [12.0, 32.0])


WRONG = {
    "pull of too few": (
        lambda x: ndl.vjp(lambda x: (x, x), x)[1](x), GradientError, "1 for a tuple of 2 results",
    ),
    "pull of too many": (
        lambda x: ndl.vjp(lambda x: (x, x), x)[1](x, x, x), GradientError, "3 for a tuple of 2",
    ),
    "pull of two for one": (
        lambda x: ndl.vjp(ops.exp, x)[1](x, x), GradientError, "one result, got 2",
    ),
    "pull of another shape": (
        lambda x: ndl.vjp(lambda x: (x, x), x)[1](x, x[0]), ShapeError, "shape",
    ),
    "vjp of no tensor": (
        lambda x: ndl.vjp(ops.exp, 3.0), GradientError, "argument 0 is float, not a tensor",
    ),
    "vjp to no tensor": (
        lambda x: ndl.vjp(lambda x: {"a": x}, x), GradientError, "vjp: the function returned dict",
    ),
    "grad of no such argument": (
        lambda x: ndl.grad(ops.exp, 3)(x), IndexRangeError, "argnums 3 with 1 positional",
    ),
    "jacobian of no such argument": (
        lambda x: ndl.jacobian(ops.exp, (0, 4))(x), IndexRangeError, r"argnums \(0, 4\) with 1",
    ),
    "grad of a named argument": (
        lambda x: ndl.grad(ops.exp, "x")(x), ArgumentError, "as argnums, got 'x'",
    ),
    "grad of no tensor": (
        lambda x: ndl.grad(ops.exp)(3.0), GradientError, "argument 0 is float, not a tensor",
    ),
    "grad of a list of tensors": (
        lambda x: ndl.grad(lambda xs: xs[0].sum())([x, x]), GradientError,
        r"argument 0 is list.*\n.*\n  try: an argument for each.*argnums=\(0, 1\)\)\(\*tensors\)",
    ),
    "grad to a number": (
        lambda x: ndl.grad(lambda x: 3.0)(x), GradientError, "a scalar tensor from .* got float",
    ),
    "grad to a pair": (
        lambda x: ndl.value_and_grad(lambda x: (x.sum(), x))(x), GradientError, "got tuple",
    ),
    "no rule": (
        lambda x: ndl.custom_gradient(lambda x: x)(x), GradientError, r"returned Tensor.*\n.*pull",
    ),
    "a rule for no tensor": (
        lambda x: ndl.custom_gradient(lambda x: ((x, 3.0), lambda g: g))(x), GradientError,
        r"\(tuple, function\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_functions_and_arguments_that_do_not_fit(name):
    call, kind, text = WRONG[name]
    with pytest.raises(kind, match=text):
        call(tensor([1.0, 2.0]))


# ---- integers and bools --------------------------------------------------------------


TABLE = ndl.Tensor([1.0, 4.0, 9.0])
TRUNCATED = {
    "cast and back": (lambda x: x.astype("int64").astype("float32").sum(), [0, 0]),
    "cast as a factor": (lambda x: (x * x.astype("int32").astype("float32")).sum(), [1, 2]),
    "cast to bool": (lambda x: (x * x.astype("bool").astype("float32")).sum(), [1, 1]),
    "table": (
        lambda x: (TABLE[x.astype("int64")] * (x - x.astype("int64") * 1.0)).sum(),
        [4, 9],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRUNCATED)
@pytest.mark.parametrize("lazy", [False, True])
def test_no_gradient_flows_through_integers_in_either_mode(name, lazy):
    function, expected = TRUNCATED[name]
    x = ndl.Tensor([1.5, 2.25])
    with ndl.lazy_mode(lazy):
        if name == "cast and back":
            assert not x.astype("int64").requires_grad
            assert not x.astype("int64").astype("float32").requires_grad
            with pytest.raises(GradientError, match="requires no gradient"):
                function(x).backward()
        else:
            function(x).backward()
            np.testing.assert_array_equal(x.grad.numpy(), expected)
        np.testing.assert_array_equal(ndl.grad(function)(x).numpy(), expected)
        for i, v in enumerate(np.eye(2, dtype=np.float32)):
            tangent = ndl.jvp(function, (x,), (ndl.Tensor(v),))[1]
            assert (0.0 if tangent is None else tangent.item()) == expected[i]


def test_gradients_are_with_respect_to_floating_tensors():
    n = ndl.arange(3)
    for derivative in (ndl.grad, ndl.value_and_grad, ndl.jacobian):
        with pytest.raises(DtypeError, match=r"argument 0 is int64|int64"):
            derivative(lambda x: (x * 0.5).sum())(n)
    assert not ndl.arange(3).requires_grad_().requires_grad
    out, pull = ndl.vjp(
        lambda x, n: (x * n).sum(), ndl.Tensor([1.0, 2.0, 3.0]), n.astype("int64") * 1.0
    )
    assert pull(ndl.ones(()))[0].tolist() == [0.0, 1.0, 2.0]
    out, pull = ndl.vjp(lambda x, n: x[n].sum(), ndl.Tensor([1.0, 2.0, 3.0]), n)
    dx, dn = pull()
    assert dx.tolist() == [1.0, 1.0, 1.0] and dn.tolist() == [0, 0, 0]


def test_hvp_beside_integers():
    x, places = tensor([1.0, 2.0, 3.0]), ndl.Tensor(np.array([0, 0, 2]))

    def function(x, places):
        return (x[places] ** 3).sum()

    product, nothing = ndl.hvp(function, (x, places), (np.ones(3), None))
    assert product.tolist() == [12.0, 0.0, 18.0] and nothing is None
    with pytest.raises(DtypeError, match="a tangent was given for a int64 tensor"):
        ndl.hvp(function, (x, places), (np.ones(3), np.ones(3)))
    with pytest.raises(DtypeError, match="argument 0 is int64"):
        ndl.hvp(lambda n: n.sum(), places, None)
    with pytest.raises(GradientError, match="expected tensors as primals, got float"):
        ndl.hvp(lambda x, y: (x * y).sum(), (x, 2.0), (1.0, None))


@pytest.mark.parametrize(
    "name", ["grad", "value_and_grad", "vjp", "jvp", "jacobian", "linearize", "checkpoint"]
)
def test_a_result_in_the_place_of_a_function_is_named(name):
    x = tensor([1.0, 2.0], requires_grad=True)
    others = {"jvp": ((x,), (x,)), "vjp": (x,), "linearize": (x,)}.get(name, ())
    with pytest.raises(ArgumentError, match=f"{name}: .* function, got Tensor(.|\n)*backward"):
        getattr(ndl, name)((x * x).sum(), *others)
    with pytest.raises(ArgumentError, match="custom_gradient: expected a function, got int"):
        ndl.custom_gradient(3)


def test_recording_within_no_grad(mode):
    x = tensor([1.0, 2.0], requires_grad=True)
    with ndl.no_grad():
        with ndl.enable_grad():
            y = (x * x).sum()
        with ndl.set_grad_enabled(True):
            assert (x * x).requires_grad
        assert not (x * x).requires_grad
    with ndl.set_grad_enabled(False):
        assert not (x * x).requires_grad
    y.backward()
    close(x.grad, [2.0, 4.0])


def test_ties_of_scatter_reduce_share_in_both_modes():
    """Forward mode moved with the value written last; reverse shares equally."""
    x, y = (ndl.Tensor([2.0, 2.0, 3.0], dtype="float64") for _ in range(2))
    index = ndl.Tensor([0, 0, 1], requires_grad=False, dtype="int64")
    for include in (True, False):

        def largest(x, y, include=include):
            return ndl.scatter_reduce(x, 0, index, y, "amax", include_self=include)

        forward, backward = (
            ndl.jacobian(largest, (0, 1), mode=mode)(x, y) for mode in ("forward", "reverse")
        )
        for a, b in zip(forward, backward, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-15)


def test_a_logarithm_of_no_probability_does_not_move():
    x = ndl.Tensor([-np.inf, -np.inf], dtype="float64")
    assert ndl.jvp(ndl.logsumexp, x, 1.0)[1].item() == 0.0
    np.testing.assert_array_equal(ndl.hvp(ndl.logsumexp, x, 1.0).numpy(), [0.0, 0.0])


@pytest.mark.parametrize(
    "call",
    [
        lambda f, x: ndl.grad(f)(x),
        ndl.vjp,
        ndl.linearize,
        lambda f, x: ndl.jacobian(f)(x),
        lambda f, x: ndl.jvp(f, (x,), (1.0,)),
        lambda f, x: ndl.jvp(f, x, None),
    ],
)
def test_several_results_of_an_op_are_no_argument(call):
    several = ndl.split(ndl.ones((2, 3)), 0)
    with pytest.raises(GradientError, match="TensorTuple"):
        call(lambda x: x[0].sum(), several)
