"""Gradients by rows, of ``Embedding(sparse=True)``: what takes them, and that dense ones agree."""

import copy

import numpy as np
import pytest
from small_updates import DEVICES

import needle as ndl
from needle import nn, optim
from needle.errors import ArgumentError, NonFiniteError, OptionError, ShapeError
from needle.ops import RowSparse

IDS = [[1, 4, 1], [6, 4, 1]]
ROWS = [1, 4, 6]
START = np.random.default_rng(1).normal(size=(8, 5)).astype(np.float32)
FACTORS = np.random.default_rng(2).normal(size=(2, 3, 5)).astype(np.float32)


def layer(sparse=True, device=None, **settings):
    """An embedding whose table is START."""
    made = nn.Embedding(8, 5, sparse=sparse, device=device, **settings)
    made.weight.data = ndl.Tensor(START, device=device)
    return made


def loss(embedding, ids=IDS, scale=1.0):
    """A number whose gradient differs in every element that was looked up."""
    out = embedding(ids)
    return (out * ndl.Tensor(scale * FACTORS.reshape(out.shape), device=out.device)).sum()


def trained(make, embedding, batches=(IDS,)):
    opt = make(embedding.parameters())
    for ids in batches:
        embedding.zero_grad()
        loss(embedding, ids).backward()
        opt.step()
    return embedding.weight.numpy()


@pytest.mark.parametrize("device", DEVICES)
def test_the_gradient_has_the_bits_of_the_dense_one(device):
    sparse, dense = layer(True, device), layer(False, device)
    for embedding in (sparse, dense):
        loss(embedding).backward()
    grad, expected = sparse.weight.grad, dense.weight.grad.numpy()
    assert type(grad) is RowSparse and type(dense.weight.grad) is ndl.Tensor
    assert (grad.shape, grad.dtype, grad.device) == ((8, 5), "float32", sparse.weight.device)
    assert grad.rows.tolist() == sum(IDS, []) and grad.values.shape == (6, 5)
    np.testing.assert_array_equal(grad.numpy(), expected)
    assert grad.merge() is grad and grad.rows.tolist() == ROWS and grad.values.shape == (3, 5)
    np.testing.assert_array_equal(grad.dense().numpy(), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("settings", [{}, {"maximize": True}], ids=str)
def test_sgd_and_adagrad_give_the_bits_of_dense_gradients(settings, device):
    batches = (IDS, [[0, 0, 1], [1, 2, 0]], IDS)
    for rule in (optim.SGD, optim.Adagrad):
        tables = [
            trained(lambda ps, rule=rule: rule(ps, 0.1, **settings), layer(s, device), batches)
            for s in (True, False)
        ]
        np.testing.assert_array_equal(*tables)
        assert (tables[0] != START).any(axis=1).tolist() == [i in (0, 1, 2, 4, 6) for i in range(8)]


def lazy_adam(batches, lr, beta1=0.9, beta2=0.999, eps=1e-8):
    """Adam that leaves rows without a gradient, and their averages, as they are."""
    p, m, v = START.astype(np.float64), np.zeros((8, 5)), np.zeros((8, 5))
    for t, ids in enumerate(batches, 1):
        flat = np.ravel(ids)
        g = np.zeros((8, 5))
        np.add.at(g, flat, FACTORS.reshape(-1, 5))
        at = np.unique(flat)
        m[at] = beta1 * m[at] + (1 - beta1) * g[at]
        v[at] = beta2 * v[at] + (1 - beta2) * g[at] ** 2
        p[at] -= lr * m[at] / (1 - beta1**t) / (np.sqrt(v[at] / (1 - beta2**t)) + eps)
    return p


BATCHES = (IDS, [[0, 0, 2], [3, 2, 0]], IDS, [[7, 6, 5], [4, 3, 2]])


@pytest.mark.parametrize("device", DEVICES)
def test_adam_is_lazy(device):
    expected = lazy_adam(BATCHES, 0.1)
    for rule in (optim.Adam, optim.AdamW):
        out = trained(lambda ps, r=rule: r(ps, 0.1, weight_decay=0.0), layer(True, device), BATCHES)
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    dense = trained(lambda ps: optim.Adam(ps, 0.1), layer(False, device), BATCHES)
    assert np.abs(dense - expected).max() > 0.05


def test_adam_is_pytorchs_sparse_adam():
    torch = pytest.importorskip("torch")
    table = torch.nn.Embedding(8, 5, sparse=True)
    table.weight.data = torch.tensor(START)
    # PyTorch adds eps before it corrects v, Needle after that, as Adam's paper: so a small one
    opt = torch.optim.SparseAdam(table.parameters(), 0.1, eps=1e-14)
    for ids in BATCHES:
        opt.zero_grad()
        (table(torch.tensor(ids)) * torch.tensor(FACTORS)).sum().backward()
        opt.step()
    out = trained(lambda ps: optim.Adam(ps, 0.1, eps=1e-14), layer(), BATCHES)
    np.testing.assert_allclose(out, table.weight.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_momentum_and_amsgrad_leave_the_other_rows(device):
    rules = [
        lambda ps: optim.SGD(ps, 0.1, 0.9), lambda ps: optim.Momentum(ps, 0.1, nesterov=True),
        lambda ps: optim.Adam(ps, 0.1, amsgrad=True),
    ]  # fmt: skip
    for make in rules:
        both = [trained(make, layer(s, device), (IDS, IDS)) for s in (True, False)]
        np.testing.assert_array_equal(*both)  # the same rows each time: the dense rule
        moved = trained(make, layer(True, device), (IDS, [[0] * 3] * 2))
        once = trained(make, layer(True, device), (IDS,))
        np.testing.assert_array_equal(moved[1:], once[1:])


@pytest.mark.parametrize("device", DEVICES)
def test_beside_other_parameters_and_in_half_precision(device):
    dtype = "bfloat16"
    embedding = nn.Embedding(8, 5, sparse=True, device=device, dtype=dtype)
    linear = nn.Linear(5, 2, device=device, dtype=dtype)
    before, kept = embedding.weight.numpy(), embedding.weight.detach()
    opt = optim.Adam([*embedding.parameters(), *linear.parameters()], 0.5)
    linear(embedding(IDS)).sum().backward()
    opt.step()
    moved = (embedding.weight.numpy() != before).any(axis=1)
    assert np.flatnonzero(moved).tolist() == ROWS and linear.bias.grad is not None
    np.testing.assert_array_equal(kept.numpy(), before)  # others see the old values
    assert {len(slot) for slot in opt.state.values()} == {3, 0}
    assert opt.m[embedding.weight].shape == (8, 5) and opt.m[embedding.weight].dtype == "float32"


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_add_up(device):
    def grads(run):
        tables = [layer(s, device) for s in (True, False)]
        for table in tables:
            run(table)
        return [table.weight.grad for table in tables]

    def twice(table):
        (loss(table) + loss(table, [0, 1, 2, 1, 0, 7], 0.5)).backward()

    def tied(table):
        (table(IDS) @ table.weight.T).sum().backward()

    def accumulated(table):
        for ids in (IDS, [0, 1, 2, 1, 0, 7]):
            loss(table, ids).backward(accumulate=True)

    def accumulated_beside_dense(table):
        (table.weight * 2).sum().backward()
        loss(table).backward(accumulate=True)
        loss(table).backward(accumulate=True)

    for run, kind in (
        (twice, RowSparse), (accumulated, RowSparse),
        (tied, ndl.Tensor), (accumulated_beside_dense, ndl.Tensor),
    ):  # fmt: skip
        sparse, dense = grads(run)
        assert type(sparse) is kind
        np.testing.assert_allclose(sparse.numpy(), dense.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_clipping_equals_that_of_dense_gradients(device):
    tables = [layer(s, device) for s in (True, False)]
    norms = []
    for table in tables:
        loss(table, scale=10.0).backward()
        optim.clip_grad_value(table.parameters(), 7.0)
        norms.append(float(optim.clip_grad_norm(table.parameters(), 2.0)))
    sparse, dense = (table.weight.grad.numpy() for table in tables)
    assert tables[0].weight.grad.rows.tolist() == ROWS
    np.testing.assert_allclose(*norms, rtol=1e-6)
    np.testing.assert_allclose(sparse, dense, rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(sparse), 2.0, rtol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_padding_and_no_ids_at_all(device):
    embedding = layer(True, device, padding_idx=4)
    opt = optim.Adam(embedding.parameters(), 0.1)
    loss(embedding).backward()
    opt.step()
    moved = (embedding.weight.numpy() != START).any(axis=1)
    assert np.flatnonzero(moved).tolist() == [1, 6]
    before = embedding.weight.numpy()
    embedding(np.zeros((0,), int)).sum().backward()
    assert float(optim.clip_grad_norm(embedding.parameters(), 1.0)) == 0.0
    opt.step()
    np.testing.assert_array_equal(embedding.weight.numpy(), before)


def test_what_forgets_copies_and_moves_gradients():
    embedding = layer()
    loss(embedding).backward()
    copied = copy.deepcopy(embedding)
    np.testing.assert_array_equal(copied.weight.grad.numpy(), embedding.weight.grad.numpy())
    assert copied.to("float64").weight.grad.values.dtype == "float64"
    for forget in (embedding.zero_grad, optim.SGD(embedding.parameters()).reset_grad):
        forget(set_to_none=False)
        assert embedding.weight.grad.rows.tolist() == [] and not embedding.weight.grad.numpy().any()
    assert copied.weight.grad.numpy().any()
    embedding.zero_grad()
    assert embedding.weight.grad is None
    assert "sparse=True" in repr(embedding) and "rows=" in repr(copied.weight.grad)


def test_the_state_of_an_optimizer_is_saved_and_loaded():
    first, second = layer(), layer()
    trained(lambda ps: optim.Adam(ps, 0.1), second)
    opt = optim.Adam(first.parameters(), 0.1)
    loss(first).backward()
    opt.step()
    other = optim.Adam(second.parameters(), 0.1)
    other.load_state_dict(opt.state_dict())
    for embedding, own in ((first, opt), (second, other)):
        loss(embedding, [3] * 6).backward()
        own.step()
    np.testing.assert_array_equal(first.weight.numpy(), second.weight.numpy())


def test_gradients_are_tensors_wherever_they_are_graph():
    embedding = layer()
    loss(embedding).backward()
    expected = embedding.weight.grad.numpy()

    def function(weight):
        return (ndl.ops.embedding(weight, IDS, sparse=True) * ndl.Tensor(FACTORS)).sum()

    (by_grad,) = (ndl.grad(function)(embedding.weight),)
    with ndl.no_grad():
        (by_vjp,) = ndl.vjp(function, embedding.weight)[1]()
    grads = [by_grad, by_vjp]
    loss(embedding).backward(create_graph=True)
    grads.append(embedding.weight.grad)
    with ndl.lazy_mode():
        loss(embedding).backward()
    grads.append(embedding.weight.grad)
    (
        ndl.ops.embedding(embedding.weight * 1.0, IDS, sparse=True) * ndl.Tensor(FACTORS)
    ).sum().backward()
    grads.append(embedding.weight.grad)
    for grad in grads:
        assert type(grad) is ndl.Tensor
        np.testing.assert_array_equal(grad.numpy(), expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda ps: optim.SGD(ps, weight_decay=0.1), optim.AdamW, optim.NAdam, optim.RAdam,
        optim.RMSprop, optim.Adadelta,
    ],
)  # fmt: skip
def test_other_rules_need_a_dense_gradient(make):
    embedding, linear = layer(), nn.Linear(5, 1)
    opt = make([*linear.parameters(), *embedding.parameters()])
    linear(embedding(IDS)).sum().backward()
    before = linear.weight.numpy()
    with pytest.raises(OptionError, match=r"needs a dense gradient: Embedding\(sparse=False\)"):
        opt.step()
    np.testing.assert_array_equal(linear.weight.numpy(), before)
    assert opt.t == 0


def test_anything_else_asks_for_the_dense_gradient():
    embedding = layer()
    loss(embedding).backward()
    grad, x = embedding.weight.grad, embedding.weight
    uses = [
        lambda: grad * 2, lambda: 2 * grad, lambda: grad - grad, lambda: x * grad, lambda: x @ grad,
        lambda: -grad, lambda: grad[0], lambda: np.asarray(grad), lambda: ndl.ops.square(grad),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(ArgumentError, match=r"\.dense\(\)"):
            use()
    with pytest.raises(AttributeError, match=r"no attribute 'sum'\n.*\.dense\(\)"):
        _ = grad.sum
    with pytest.raises(ArgumentError, match="sparse is 1, neither True nor False"):
        nn.Embedding(2, 2, sparse=1)
    embedding.weight.data = ndl.zeros((9, 5))
    with pytest.raises(ShapeError, match="does not fit its parameter"):
        optim.SGD(embedding.parameters()).step()


def test_check_finite_names_the_update():
    embedding = layer()
    loss(embedding).backward()
    with (
        ndl.check_finite(),
        pytest.raises(NonFiniteError, match=r"sgd: the update made (?s:.*)weight"),
    ):
        optim.SGD(embedding.parameters(), 3e38).step()
    np.testing.assert_array_equal(embedding.weight.numpy(), START)
