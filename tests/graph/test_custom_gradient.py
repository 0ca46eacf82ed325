"""custom_gradient: rules of the user, and what they may not do."""

from __future__ import annotations

import numpy as np
import pytest
from small_graphs import constant, live_values, tensor

import needle as ndl
from needle.errors import (
    GradientError,
)


def test_what_a_rule_does_to_its_gradient_changes_no_other():
    @ndl.custom_gradient
    def doubled(x):
        def pull(out_grad):
            out_grad *= 2.0
            return out_grad

        return x * 1.0, pull

    for _ in range(2):
        x, y = tensor(), tensor()
        doubled(x).backward()
        np.asarray(x.grad)[...] = 5.0
        (y * 1.0).backward()
        assert y.grad.item() == 1.0


def test_custom_gradient():
    @ndl.custom_gradient
    def reversed_gradient(x, y):
        return x * y, lambda g: (-g * y, g * 0.0)

    x, y = tensor(3), tensor(3, seed=1)
    (reversed_gradient(x, y) * 2.0).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), -2 * y.numpy(), rtol=1e-6)
    np.testing.assert_array_equal(y.grad.numpy(), np.zeros(3))
    with ndl.no_grad():
        assert reversed_gradient(x, y).op is None


@pytest.mark.parametrize("lazy", [False, True])
def test_a_custom_rule_reads_what_its_inputs_held(lazy):
    """Not what was assigned to them between the call and the gradient; nor are they changed."""

    @ndl.custom_gradient
    def squared(x, y):
        out = x * x * y
        y[0] = 100.0
        return out, lambda g: (2.0 * g * x * y, g * x * x)

    def total(w):
        x, y = w * 1.0, w * 2.0
        out = squared(x, y)
        x[1] = 50.0
        x += 1.0
        return out.sum() + 0.0 * x.sum() + 0.0 * y.sum()

    with ndl.lazy_mode(lazy):
        w = ndl.Tensor([1.0, 2.0, 3.0], dtype="float64")
        total(w).backward()
        np.testing.assert_array_equal(w.grad.numpy(), [2 * 100 + 2.0, 6 * 4.0, 6 * 9.0])
        x, y = ndl.Tensor([1.0, 2.0]), ndl.Tensor([3.0, 4.0])
        out = squared(x, y)
        with ndl.no_grad():
            x -= 1.0
            y[1] = 7.0
        out.sum().backward()
        assert x.grad.tolist() == [200.0, 16.0] and y.grad.tolist() == [1.0, 4.0]
        assert x.tolist() == [0.0, 1.0] and y.tolist() == [3.0, 7.0]


@pytest.mark.parametrize("lazy", [False, True])
def test_custom_gradient_takes_what_is_no_tensor(lazy):
    @ndl.custom_gradient
    def scaled(x, factor, names=(), *, shift=None):
        out = x * factor + (0.0 if shift is None else shift)
        if shift is None:
            return (out, out.sum()), lambda g: 2.0 * factor * (g[0] + g[1])
        return out, lambda g: (2.0 * factor * g, g * len(names))

    assert scaled.__name__ == "scaled"
    x, b = tensor(3), tensor(3, seed=1)
    with ndl.lazy_mode(lazy):
        scaled(x, 3.0)[1].backward()
        np.testing.assert_array_equal(x.grad.numpy(), np.full(3, 6.0))
        scaled(x, factor=3.0)[0].sum().backward()
        np.testing.assert_array_equal(x.grad.numpy(), np.full(3, 6.0))
        out = scaled(shift=b, names="ab", x=x, factor=np.float32(3.0))
        with ndl.no_grad():
            np.testing.assert_allclose(out.numpy(), (x * 3.0 + b).numpy(), rtol=1e-6)
        out.sum().backward()  # in the order of the call: shift, then x
        np.testing.assert_array_equal(b.grad.numpy(), np.full(3, 6.0))
        np.testing.assert_array_equal(x.grad.numpy(), np.full(3, 2.0))
        tangent = ndl.jvp(lambda x: scaled(x, 3.0)[0], x.detach(), 1.0)[1]
        np.testing.assert_array_equal(tangent.numpy(), np.full(3, 6.0))


MISFITS = {
    "shape": (lambda g: (g.sum(), None), r"input 0: float32\[3\] cpu.*\n  gradient: float32\[\] "),
    "dtype": (lambda g: (g.astype("float64"), g), r"float32\[3\].*\n  gradient: float64\[3\]"),
    "number": (lambda g: (0.0, g), r"gradient: float 0.0"),
    "few": (lambda g: g, "gave 1 gradients for 2 inputs"),
    "many": (lambda g: (g, g, g), "gave 3 gradients for 2 inputs"),
}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", MISFITS)
def test_a_custom_gradient_fits_its_input(name, lazy):
    def product(x, y):
        return x * y, rule

    rule, said = MISFITS[name]
    said = r"custom_gradient\(product\): (?s:.*)" + said
    function, x, y = ndl.custom_gradient(product), tensor(3), tensor(3, seed=1)
    with ndl.lazy_mode(lazy):
        calls = [lambda: function(x, y).sum().backward(),
                 lambda: ndl.grad(lambda x: function(x, y).sum())(x),
                 lambda: ndl.jvp(function, (x.detach(), y.detach()), (1.0, 1.0)),
                 lambda: ndl.linearize(lambda x: function(x, y), x)]  # fmt: skip
        for call in calls:
            with pytest.raises(GradientError, match=said):
                call()


def test_a_custom_gradient_that_nobody_needs_is_not_looked_at():
    function = ndl.custom_gradient(lambda x, y: (x * y, lambda g: (g * y, 0.0)))
    x, y = tensor(3), constant(3)
    function(x, y).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.numpy())
    np.testing.assert_array_equal(ndl.jvp(function, (x, y), (1.0, None))[1].numpy(), y.numpy())


def test_custom_gradient_does_not_keep_its_inputs():
    double = ndl.custom_gradient(lambda x, factor: (x * factor, lambda g: factor * g))
    x = tensor(8, 8)
    double(x, 2.0)  # the number becomes a constant that is kept
    before = live_values()
    out = double(double(x, 2.0), 2.0)
    assert live_values() - before == 1
    out.backward()
