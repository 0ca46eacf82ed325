"""What a traced function may not do: the error names the line, and nothing has changed."""

from __future__ import annotations

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import graph, nn, optim
from needle.errors import ArgumentError, RetraceError, TraceError
from needle.ops import random


class World:
    """A model, its optimizer and data: what a function could change."""

    def __init__(self):
        np.random.seed(0)
        ndl.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.opt = optim.Adam(self.model.parameters())
        self.x = ndl.Tensor(np.random.rand(3, 4), requires_grad=False)
        self.outside = ndl.Tensor([1.0, 2.0], requires_grad=False)
        self.kept = []
        self.sparse = nn.Embedding(5, 2, sparse=True)

    def state(self):
        tensors = [*self.model.parameters(), *self.model.buffers(), self.outside]
        found = [
            (id(x), id(x.array), x.array.numpy().tobytes(), x.requires_grad, x.grad is None)
            for x in tensors
        ]
        moments = {k: v.numpy().tobytes() for k, v in self.opt.state_dict().items() if "." in k}
        return found, moments, self.opt.t, random.get_state(), self.model.training


def train(w):
    return w.opt.minimize((w.model(w.x) ** 2).mean())


def _step(act):
    """A step, and then what is refused."""

    def run(w):
        loss = train(w)
        return act(w, loss) or loss

    return run


REFUSED = {
    "item": _step(lambda w, y: y.item() and None),
    "numpy": _step(lambda w, y: y.numpy() and None),
    "print": _step(lambda w, y: print(y)),  # noqa: T201
    "branch": _step(lambda w, y: 1 if y > 0 else None),
    "float": _step(lambda w, y: float(y) and None),
    "index": _step(lambda w, y: [1, 2][ndl.argmax(w.x)]),
    "dlpack": _step(lambda w, y: np.from_dlpack(w.outside) and None),
    "tensor from outside": _step(lambda w, y: w.outside.tolist() and None),
    "parameter": _step(lambda w, y: w.model.parameters()[0].numpy().sum() and None),
    "argument": lambda w: w.x.sum().item(),
    "nonzero": _step(lambda w, y: ndl.nonzero(y)),
    "mask": _step(lambda w, y: w.x[w.x > 0]),
    "attribute": _step(lambda w, y: setattr(w.model, "calls", 1)),
    "eval": _step(lambda w, y: w.model.eval() and None),
    "seed": _step(lambda w, y: ndl.manual_seed(1)),
    "host": _step(lambda w, y: random.host_uniform() and None),
    "kept": _step(lambda w, y: w.kept.append(y * 2)),
    "kept list": _step(lambda w, y: w.kept.append([w.x + y])),
    "frozen": _step(lambda w, y: w.model.requires_grad_(False) and None),
    "result": _step(lambda w, y: object()),
    "finite norm": _step(
        lambda w, y: optim.clip_grad_norm(_with_grads(w), 1.0, error_if_nonfinite=True)
    ),
    "rows": lambda w: optim.SGD(w.sparse.parameters()).minimize(
        w.sparse(ndl.Tensor([1, 2], dtype="int64")).sum()
    ),
    "seen twice": lambda w: w.x.sum() + w.outside.sum(),
}


def _with_grads(w):
    (w.model(w.x) ** 2).mean().backward()
    return w.model.parameters()


@looped("name", list(REFUSED))
def test_what_would_be_a_constant_is_refused(name):
    w = World()
    function = REFUSED[name]

    @ndl.compile
    def compiled(x):
        inner = World.__new__(World)
        inner.__dict__.update(w.__dict__, x=x)
        return function(inner)

    try:
        before = w.state()
        with pytest.raises(TraceError) as caught:
            compiled(w.outside if name == "seen twice" else w.x)
        assert "rule:" in str(caught.value)
        assert "try:" in str(caught.value)
        assert w.state() == before
        assert not graph.lazy()
        assert graph.recording()
        assert train(w).item() > 0  # all goes on
    finally:
        ndl.manual_seed(None)


def test_the_error_names_the_line():
    def f(x):
        y = x * 2
        return y.item()  # this line

    with pytest.raises(TraceError, match=rf"{__file__}:{f.__code__.co_firstlineno + 2}"):
        ndl.compile(f)(ndl.ones(1))


def test_draws_need_a_seed():
    @ndl.compile
    def f(x):
        return x + ndl.randn(3)

    with pytest.raises(TraceError, match="manual_seed"):
        f(ndl.ones(3))


def test_an_error_of_the_function_leaves_all_as_it_was():
    w = World()

    @ndl.compile
    def f(x):
        train(w)
        return x @ ndl.ones(7)

    try:
        before = w.state()
        with pytest.raises(ndl.errors.ShapeError):
            f(w.x)
        assert w.state() == before
    finally:
        ndl.manual_seed(None)


def test_arguments_that_are_no_tensors():
    with pytest.raises(TraceError, match="static"):
        ndl.compile(lambda x, n: x * n)(ndl.ones(2), 3)
    with pytest.raises(TraceError, match="static"):
        ndl.compile(lambda x, n: x * n)(ndl.ones(2), np.ones(2))
    with pytest.raises(TraceError, match="hashable"):
        ndl.compile(lambda x, n: x * n[0], static="n")(ndl.ones(2), [3])
    with pytest.raises(ArgumentError):
        ndl.compile(3)
    with pytest.raises(ndl.errors.OptionError, match="'m'"):
        ndl.compile(lambda x, n: x, static=("m",))
    with pytest.raises(ndl.errors.OptionError, match="nofuse"):
        ndl.compile(lambda x: x, mode="fast")


def test_too_many_programs():
    f = ndl.compile(lambda x: x * 2, max_traces=2)
    f(ndl.ones(1)), f(ndl.ones(2)), f(ndl.ones(1))
    with pytest.raises(RetraceError, match="drop_last"):
        f(ndl.ones(3))


def test_a_result_has_no_gradient_to_flow():
    w = nn.Parameter(ndl.ones(2))
    y = ndl.compile(lambda x: (x * w).sum())(ndl.ones(2))
    assert y.requires_grad
    with pytest.raises(ndl.errors.GradientError, match="compiled"):
        y.backward()
    with pytest.raises(TraceError, match="detach"):
        ndl.compile(lambda x: x * 2)(w * 2)
