"""Optimizers against a NumPy re-implementation of their formulas, on every device."""

import numpy as np
from looped import looped
from small_updates import DEVICES, RULES, STEPS, gradients, numpy_adam, parameter, run

import needle as ndl
from needle import nn, optim


@looped("device", DEVICES)
@looped("name", RULES)
@looped("dtype, tolerance", [("float64", 1e-12), ("float32", 2e-6)])
def test_rule(name, dtype, tolerance, device):
    make, reference = RULES[name]
    start = np.random.default_rng(1).normal(size=(3, 37))
    grads = gradients(start.shape)
    out = run(make, start, grads, dtype, device)
    np.testing.assert_allclose(out, reference(start, grads), rtol=tolerance, atol=tolerance)


@looped("device", DEVICES)
@looped("name", RULES)
def test_half_precision_keeps_its_state_in_float32(name, device):
    make, reference = RULES[name]
    start = np.arange(-4.0, 4.0) + 0.5
    grads = np.round(8 * gradients(start.shape, 3)) / 8
    p = parameter(start, "bfloat16", device)
    opt = make([p])
    exact = start
    for step, g in enumerate(grads):
        p.grad = ndl.Tensor(g, dtype="bfloat16", device=device)
        opt.step()
        exact = reference(start, grads[: step + 1])
    assert p.dtype == "bfloat16"
    assert all(a.dtype == "float32" for slot in opt.state.values() for a in slot.values())
    np.testing.assert_allclose(p.numpy().astype(np.float64), exact, rtol=0.03, atol=0.03)


@looped("device", DEVICES)
@looped("name", [x for x in RULES if x.startswith(("sgd", "nesterov", "adam", "rmsprop"))])
def test_a_devices_own_kernel_equals_the_formula(name, device):
    make, _ = RULES[name]
    start = np.random.default_rng(1).normal(size=(5, 7))
    grads = gradients(start.shape)
    own = run(make, start, grads, "float64", device)
    with ndl.config(overrides="off"):
        np.testing.assert_allclose(run(make, start, grads, "float64", device), own, rtol=1e-12)


@looped("device", DEVICES)
def test_any_strides(device):
    values, grads = np.arange(6.0).reshape(2, 3), gradients((3, 2))
    p = nn.Parameter(ndl.Tensor(values, device=device).detach().transpose())
    b = parameter([1.0, 2.0], device=device)
    opt = optim.Adam([p, b], 0.1)
    for g in grads:
        p.grad = ndl.Tensor(g.T.copy(), device=device).transpose()
        b.grad = ndl.ones(1, device=device).broadcast_to((2,))
        opt.step()
    np.testing.assert_allclose(p.numpy(), numpy_adam(values.T, grads, 0.1), rtol=1e-5)
    np.testing.assert_allclose(
        b.numpy(), numpy_adam(np.array([1.0, 2.0]), np.ones((STEPS, 2)), 0.1), rtol=1e-5
    )


def test_dtypes_and_empty_tensors_mix_in_one_optimizer():
    ps = [parameter([1.0], d) for d in ("float32", "float64", "float16")] + [parameter([])]
    opt = optim.SGD(ps, 0.5)
    for p in ps:
        p.grad = ndl.ones_like(p)
    opt.step()
    assert [p.numpy().tolist() for p in ps] == [[0.5], [0.5], [0.5], []]
