"""check_finite: the first NaN or infinity, with the op and the line that made it."""

from __future__ import annotations

import numpy as np
import pytest

import needle as ndl
from needle import nn, ops, optim
from needle.errors import NonFiniteError


def tensor(*values, device=None):
    return ndl.Tensor(list(values), device=device)


def here(offset):
    """``file:line`` of the caller's next lines."""
    import sys

    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno + offset}"


def caught(function):
    with pytest.raises(NonFiniteError) as caught, ndl.check_finite():
        out = function()
        out.numpy()
    return str(caught.value)


def test_forward(device, mode):
    x, y = tensor(1.0, 0.0, -1.0, device=device), tensor(0.0, 0.0, 0.0, device=device)
    line = here(3)

    def ratio():
        return (x * 2.0) / y + 1.0

    text = caught(ratio)
    assert text.startswith("divide: 1 NaN and 2 infinities in float32[3]")
    assert f"called at {line}" in text and "all inputs were finite" in text
    with pytest.raises(ArithmeticError), ndl.check_finite():
        ops.log(-x).numpy()
    assert np.isnan(ops.log(y - 1.0).numpy()).all()  # outside nothing is checked


def test_second_derivatives_name_the_line_too(device, mode):
    x = tensor(0.0, 1.0, device=device)
    line = here(3)

    def loss(x):
        return (x**1.5).sum()

    text = caught(lambda: ndl.hvp(loss, x, 1.0))
    assert "in the gradient of power" in text and f"called at {line}" in text
    text = caught(lambda: ndl.grad(lambda x: ndl.jvp(loss, x, 1.0)[1])(x))
    assert f"called at {line}" in text


def test_backward_names_the_op_and_the_line_of_its_forward_call(device, mode):
    x = tensor(4.0, 0.0, device=device)
    with pytest.raises(NonFiniteError) as caught, ndl.check_finite():
        line = here(1)
        out = ops.sqrt(x)
        out.sum().backward()
        x.grad.numpy()
    text = str(caught.value)
    assert "1 infinity in float32[2]" in text
    assert f"in the gradient of sqrt, called at {line}" in text


def test_a_rule_of_ones_own_is_named_with_its_line(mode):
    @ndl.custom_gradient
    def broken(x):
        return x * 1.0, lambda g: g / 0.0

    with pytest.raises(NonFiniteError) as caught, ndl.check_finite():
        x = tensor(1.0)
        line = here(1)
        out = broken(x)
        out.sum().backward()
        x.grad.numpy()
    assert f"in the gradient of custom_gradient(broken), called at {line}\n" in str(caught.value)


def test_within_a_checkpoint_the_op_is_named_and_then_the_region():
    lines = []

    def block(x):
        lines.append(here(1))
        return ops.sqrt(x).sum()

    with pytest.raises(NonFiniteError) as caught, ndl.check_finite():
        line = here(1)
        out = ndl.checkpoint(block)(tensor(4.0, 0.0))
        out.backward()
    text = str(caught.value)
    assert f"in the gradient of sqrt, called at {lines[0]}\n" in text
    assert f"in the gradient of checkpoint(block), called at {line}\n" in text
    assert "MT19937" not in text and "state" not in text


@pytest.mark.parametrize("index", [0, [0, 1], slice(None)])
def test_an_assignment_is_named(mode, index):
    def assign():
        x = tensor(1.0, 2.0) * 1.0
        lines.append(here(1))
        x[index] = np.nan
        return x

    lines = []
    text = caught(assign)
    assert text.startswith("assignment: 1 NaN in float32[]") and f"called at {lines[0]}" in text
    with ndl.check_finite():
        x = tensor(1.0, 2.0)
        x[index] = -np.inf  # a mask
        assert np.isinf(x.numpy()).any()


def test_the_tangent_names_the_op_that_it_belongs_to(mode):
    x = tensor(4.0, 0.0)
    with pytest.raises(NonFiniteError) as caught, ndl.check_finite():
        line = here(1)
        ndl.jvp(lambda x: ops.sqrt(x) * 2.0, x, 1.0)[1].numpy()
    assert f"in the tangent of sqrt, called at {line}\n" in str(caught.value)
    with pytest.raises(NonFiniteError) as caught, ndl.check_finite():
        line = here(1)
        ndl.jvp(ops.log, x, 1.0)[0].numpy()
    text = str(caught.value)
    assert text.startswith("log: 1 infinity") and f"called at {line}\n" in text
    assert "tangent" not in text


def test_what_waits_is_checked_when_it_is_computed():
    x = tensor(0.0, 1.0)
    with ndl.lazy_mode():
        with ndl.check_finite():
            line = here(1)
            y = ops.log(x)
        z = ops.log(x)
    assert np.isinf(z.numpy()).any()
    with pytest.raises(NonFiniteError, match="^log: 1 infinity") as caught:
        y.numpy()
    assert f"called at {line}" in str(caught.value)


def test_forward_mode_and_second_order():
    x = tensor(0.0)
    with ndl.check_finite(), pytest.raises(NonFiniteError, match="test_nancheck.py"):
        ndl.jvp(ops.sqrt, x, 1.0)
    with ndl.check_finite(), pytest.raises(NonFiniteError, match="in the gradient of"):
        ndl.grad(ndl.grad(lambda x: (x**1.5).sum()))(x)


def test_masks_and_what_a_composite_does_within_are_no_errors(device, mode):
    scores = tensor(1.0, 2.0, 3.0, device=device)
    mask = tensor(0.0, -np.inf, 0.0, device=device)
    with ndl.check_finite():
        out = ops.softmax(scores + mask)
        out.sum().backward()
        assert out.numpy()[1] == 0.0 and scores.grad.numpy().shape == (3,)
        ops.logsumexp(mask).numpy()
        ops.isnan(tensor(np.nan, device=device)).numpy()
        ops.argmax(scores).numpy()


def test_a_nan_that_was_there_is_found_at_its_first_use():
    x = tensor(1.0, np.nan)
    text = caught(lambda: x * 2.0)
    assert text.startswith("multiply: 1 NaN") and "x already had 1 NaN in float32[2]" in text
    text = caught(lambda: ops.maximum(tensor(np.inf) - np.inf, 0.0))
    assert text.startswith("subtract: 1 NaN") and "x already had 1 infinity" in text


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
def test_other_dtypes(device, kind):
    x = ndl.Tensor([3e4, 1.0], dtype=kind, device=device)
    with pytest.raises(NonFiniteError, match="1 infinity"), ndl.check_finite():
        ops.exp(x)


def test_an_optimizers_update():
    model = nn.Linear(1, 1)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with ndl.check_finite():
        model(ndl.Tensor([[1e5]], requires_grad=False)).sum().backward()
        optimizer.step()  # with a gate that is closed, gradients may have strides of their own
        model.weight.grad = ndl.Tensor([[np.nan]])
        with pytest.raises(NonFiniteError, match='update made 1 NaN.*\n.*"weight"'):
            optimizer.step()


def test_the_setting_and_the_end_of_the_block():
    with ndl.config(finite="on"), pytest.raises(NonFiniteError):
        ops.log(tensor(0.0))
    x = tensor(2.0)
    assert not np.isfinite((x / 0.0).numpy())
    with ndl.check_finite():
        y = ops.square(x)
    y.sum().backward()
    assert x.grad.item() == 4.0


def test_a_power_of_zero_is_no_alarm(device, mode):
    x, y = tensor(0.0, 2.0, device=device), tensor(2.0, 3.0, device=device)
    with ndl.check_finite():
        slope = ndl.grad(lambda y: (x**y).sum())(y)
        np.testing.assert_allclose(slope.numpy(), [0.0, 8.0 * np.log(2.0)], rtol=1e-6)
