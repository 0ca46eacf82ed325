"""Static graphs: defined once, run in parts; equal to eager mode bit for bit."""

import gc
import weakref
from collections import namedtuple

import numpy as np
import pytest

import needle as ndl
from needle import nn, optim, static
from needle.errors import ArgumentError, FeedError, NeedleError, TraceError
from needle.static.pipeline import Model, Net

RNG = np.random.default_rng(0)
X = RNG.standard_normal((10, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 10)


def network():
    ndl.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
    )


def defined(model, opt):
    """Return placeholders, logits, loss and a step of the optimizer."""
    with static.Graph() as graph:
        x = static.Placeholder((10, 4), name="x")
        y = static.Placeholder((10,), "int64", name="y")
        logits = model(x)
        loss = nn.SoftmaxLoss()(logits, y)
        train = opt.minimize(loss)
    return graph, x, y, logits, loss, train


def state(model):
    return [v.numpy() for v in model.state_dict().values()]


@pytest.mark.parametrize(
    "make",
    [
        lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: optim.Adam(p, lr=optim.Cosine(0.1, 10), weight_decay=0.01),
    ],
)
def test_steps_are_those_of_eager_mode(make):
    model, eager = network(), network()
    opt, rule = make(model.parameters()), make(eager.parameters())
    ndl.manual_seed(1)
    _, x, y, _, loss, train = defined(model, opt)
    assert opt.t == 0 and all(
        (a == b).all() for a, b in zip(state(model), state(eager), strict=True)
    )
    session = static.Session()
    losses = [session.run([loss, train], {x: X, y: Y})[0].item() for _ in range(6)]
    ndl.manual_seed(1)
    wanted = [
        rule.minimize(nn.SoftmaxLoss()(eager(ndl.Tensor(X)), ndl.Tensor(Y))).item()
        for _ in range(6)
    ]
    assert losses == wanted and opt.t == 6
    assert all((a == b).all() for a, b in zip(state(model), state(eager), strict=True))


def test_only_what_is_fetched_runs():
    model = network()
    opt = optim.SGD(model.parameters(), lr=0.1)
    _, x, y, logits, loss, train = defined(model, opt)
    before, session = state(model), static.Session()
    values = session.run({"logits": logits, "again": (logits,)}, {x: X})  # y is not needed
    assert values["logits"].shape == (10, 3)
    assert (values["logits"].numpy() == values["again"][0].numpy()).all()
    assert opt.t == 0 and all((a == b).all() for a, b in zip(before, state(model), strict=True))
    assert session.run(train, {x: X, y: Y}) is None and opt.t == 1
    weight = session.run(model.parameters()[0])
    assert (weight.numpy() == model.parameters()[0].numpy()).all()
    assert not (weight.numpy() == before[0]).all()


def test_two_optimizers_make_their_own_steps():
    a, b = nn.Parameter([1.0]), nn.Parameter([2.0])
    first, second = optim.SGD([a], lr=0.5), optim.Adam([b], lr=0.5)
    with static.Graph():
        loss = (a * a * b).sum()
        step_a, step_b = first.minimize(loss), second.minimize(loss)
    session = static.Session()
    session.run(step_a)
    assert a.item() == 1 - 0.5 * 2 * 1 * 2 and b.item() == 2 and second.t == 0
    session.run([step_b, loss])
    assert a.item() == -1 and b.item() < 2 and (first.t, second.t) == (1, 1)


def test_a_step_is_made_once_in_a_run():
    w = nn.Parameter(ndl.Tensor([1.0]))
    opt = optim.SGD([w], lr=0.5)
    with static.Graph():
        x = static.Placeholder((1,))
        first, second = opt.minimize((w * x).sum()), opt.minimize((w * x * 2).sum())
    session, Pair = static.Session(), namedtuple("Pair", "before step")
    found = session.run(Pair(w, [first, first]), {x: [1.0]})
    assert (found.before.item(), found.step, w.item(), opt.t) == (1.0, [None, None], 0.5, 1)
    with pytest.raises(ArgumentError, match="same variable"):
        session.run([first, second], {x: [1.0]})
    assert (w.item(), opt.t) == (0.5, 1)


def test_gradients_are_nodes_of_the_graph():
    w = nn.Parameter([3.0])
    with static.Graph():
        x = static.Placeholder(())
        loss = (w * w * w * x).sum()
        (grad,) = static.gradients(loss, [w])
        (second,) = static.gradients(grad.sum(), [w])
        sizes = (grad * grad).sum()
    assert w.grad is None
    got = static.Session().run([grad, second, sizes], {x: 2.0})
    assert [v.item() for v in got] == [54.0, 36.0, 54.0**2]


def test_runs_see_values_that_others_wrote():
    w = nn.Parameter([1.0, 2.0])
    with static.Graph():
        x = static.Placeholder((2,))
        y = w * x
    session, other = static.Session(), static.Session()
    kept = session.run(y, {x: [1.0, 1.0]})
    w.data = ndl.Tensor([5.0, 7.0])
    assert session.run(y, {x: [1.0, 1.0]}).tolist() == [5, 7] == other.run(y, {x: [1, 1]}).tolist()
    assert kept.tolist() == [1, 2]  # results are new memory
    w.data = ndl.Tensor([1.0, 2.0, 3.0])
    with pytest.raises(NeedleError, match="another shape"):
        session.run(y, {x: [1.0, 1.0]})


def test_wrong_feeds_and_fetches():
    with static.Graph() as graph:
        x = static.Placeholder((2,), name="x")
        y = x * 2.0
    session = static.Session()
    with pytest.raises(FeedError, match="placeholder 'x', float32.* has no value"):
        session.run(y)
    with pytest.raises(FeedError, match=r"got shape \(3,\)"):
        session.run(y, {x: [1.0, 2.0, 3.0]})
    with pytest.raises(FeedError, match="no placeholder of the graph"):
        session.run(y, {x: [1.0, 2.0], y: 1.0})
    with pytest.raises(ArgumentError, match="expected tensors to fetch, got"):
        session.run("y")
    with pytest.raises(ArgumentError, match="tensor of this graph"):
        static.Session(graph).run(ndl.Tensor([1.0]))
    with pytest.raises(ArgumentError, match="no graph has"):
        session.run(ndl.Tensor([1.0]))
    with pytest.raises(FeedError, match="feed_dict"):
        y.numpy()
    assert session.run(y, {x: np.float64([1, 2])}).dtype == "float32"


def test_wrong_definitions():
    with pytest.raises(ArgumentError, match=r"within `with static\.Graph"):
        static.Placeholder((2,))
    graph = static.Graph()
    with graph:
        with pytest.raises(ArgumentError, match="new graph"), static.Graph():
            pass
        with pytest.raises(ndl.errors.ShapeError, match="sizes >= 0"):
            static.Placeholder((-1,))
        x = static.Placeholder((3,))
        with pytest.raises(TraceError, match="is read"):
            x.sum().item()
        with pytest.raises(ndl.errors.ShapeError):
            x + ndl.ones(4)
    with pytest.raises(ArgumentError, match="new graph"), graph:
        pass
    with pytest.raises(ArgumentError, match="variable 'w' was made in the block"), static.Graph():
        w = nn.Parameter([1.0])
        w.name = "w"
    w = nn.Parameter([1.0])
    with pytest.raises(KeyError), static.Graph(), ndl.no_grad():
        w += 2.0
        raise KeyError
    assert w.item() == 1.0 and not ndl.graph.lazy()


def test_operations_show_the_graph():
    w = nn.Parameter([1.0, 2.0])
    with static.Graph() as graph:
        x = static.Placeholder((2,), name="x")
        y = (w * x).sum()
    shown = graph.operations()
    assert [op.type for op in shown][-2:] == ["Multiply", "Sum"]
    assert shown[-1].inputs[0] is shown[-2] and shown[-1].name.startswith("sum")
    assert len({op.name for op in shown}) == len(shown)
    assert "placeholders: x" in repr(graph) and str(y.spec) in repr(shown[-1])


def test_a_failing_run_changes_nothing():
    model = network()
    opt = optim.Adam(model.parameters(), lr=0.1)
    _, x, y, _, loss, train = defined(model, opt)
    session = static.Session()
    session.run(train, {x: X, y: Y})
    before, seed = state(model), ndl.ops.random.get_state()
    with pytest.raises(ndl.errors.IndexRangeError):
        session.run([loss, train], {x: X, y: np.full(10, 7)})
    assert opt.t == 1 and ndl.ops.random.get_state() == seed
    assert all((a == b).all() for a, b in zip(before, state(model), strict=True))


def test_a_session_keeps_what_it_knows_programs_by():
    """It knows them by identities: a new graph at the place of an old one must not get its own."""
    session = static.Session()
    with static.Graph() as graph:
        x = static.Placeholder((1,))
        y = x * 2.0
    assert session.run(y, {x: [1.0]}).item() == 2
    kept = weakref.ref(graph), weakref.ref(y)
    del graph, x, y
    gc.collect()
    assert all(ref() is not None for ref in kept)
    del session
    gc.collect()
    assert not any(ref() for ref in kept)


def test_graphs_are_freed():
    def define():
        with static.Graph() as graph:
            x = static.Placeholder((2,))
            y = x * x
        return static.Session(graph).run(y, {x: [1.0, 2.0]}).tolist()

    define()
    gc.collect()
    before = ndl.graph.live_tensors()
    for _ in range(5):
        assert define() == [1, 4]
    gc.collect()
    assert ndl.graph.live_tensors() <= before + 2


def test_the_pipeline_is_eager_training_layer_by_layer():
    def layers():
        ndl.manual_seed(2)
        return [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), lambda x: x * 2.0, nn.Linear(8, 3)]

    net = Net(layers())
    model = Model(net, nn.SoftmaxLoss(), optim.Adam(net.parameters(), lr=0.05))
    eager = layers()
    rule = optim.Adam([p for x in eager if isinstance(x, nn.Module) for p in x.parameters()], 0.05)
    x, y = ndl.Tensor(X, requires_grad=False), ndl.Tensor(Y)
    for _ in range(5):
        out = x
        for layer in eager:
            out = layer(out)
        loss = rule.minimize(nn.SoftmaxLoss()(out, y)).item()
        assert model.train_step(x, y) == loss
    pairs = zip(net.parameters(), rule.params, strict=True)
    assert all((p.numpy() == q.numpy()).all() for p, q in pairs)
    assert net.eval()(x).shape == (10, 3)
    with pytest.raises(ndl.errors.ShapeError, match="expected a gradient of shape"):
        net.backward(ndl.ones(2))
    net.forward(x)
    grads = net.backward(ndl.ones(10, 3))
    assert [set(g) for g in grads] == [{"weight", "bias"}] * 2 + [set(), set(), {"weight", "bias"}]
    with pytest.raises(ndl.errors.GradientError, match="a forward pass before"):
        net.backward(ndl.ones(10, 3))
