"""The passes: what each drops, and that a wrong one is found."""

from __future__ import annotations

import numpy as np
import pytest

import needle as ndl
from needle import nn, optim
from needle.compile import passes, rules
from needle.compile.passes import PASSES, printed, rewritten, run_passes
from needle.errors import NeedleError


def listing_of(function, *arguments):
    """The listing of a function after its passes; and before, by switching them off."""
    compiled = ndl.compile(function, mode="python")
    compiled(*arguments)
    (calls,) = compiled._calls.values()
    return calls[0].listing


def ops_of(listing):
    return [node.op.name for node in listing.order]


def before(monkeypatch, function, *arguments):
    monkeypatch.setattr(passes, "PASSES", ())
    return listing_of(function, *arguments)


X = ndl.Tensor([[1.0, -2.0], [3.0, 4.0]], requires_grad=False)

DROPPED = {
    "detach": (lambda x: x.detach() * 2, ["multiply"]),
    "permutes": (lambda x: x.T.T + 1, ["add"]),
    "reshape": (lambda x: x.reshape((2, 2)) + 1, ["add"]),
    "one": (lambda x: (x * 1) + 1, ["add"]),
    "negatives": (lambda x: ndl.ops.negative(-x) + 1, ["add"]),
    "numbers": (lambda x: x * (ndl.Tensor(2.0).exp() + 1), ["multiply"]),
    "twice": (lambda x: x.exp() + x.exp(), ["exp", "add"]),
    "unused": (lambda x: (x.exp(), x + 1)[1], ["add"]),
}


@pytest.mark.parametrize("name", list(DROPPED))
def test_what_passes_drop(name, monkeypatch):
    function, wanted = DROPPED[name]
    listing = listing_of(function, X)
    assert ops_of(listing) == wanted
    assert len(printed(listing).splitlines()) == len(wanted) + 1
    np.testing.assert_array_equal(ndl.compile(function)(X).numpy(), function(X).numpy())
    if name != "unused":
        assert len(before(monkeypatch, function, X).order) > len(wanted)


def test_what_passes_keep():
    assert ops_of(listing_of(lambda x: x + 0, X)) == ["add"]  # -0.0 + 0 is 0.0
    ndl.manual_seed(0)
    draws = ops_of(listing_of(lambda x: x + ndl.rand(2, 2) + ndl.rand(2, 2), X))
    ndl.manual_seed(None)
    assert draws.count("random_uniform") == 2

    def both():
        loss = ndl.checkpoint(lambda x: x.exp().sin())(w).sum()
        loss.backward()
        return loss, w.grad

    w = nn.Parameter(X)
    ops = ops_of(listing_of(both))
    assert ops.count("exp") == 2  # one for each run


def test_a_view_is_not_its_copy():
    """They are summed in another order."""
    x = ndl.Tensor(np.random.default_rng(0).standard_normal((5, 300)).astype(np.float32))
    x = x.detach().T
    rows = x[:1].detach().broadcast_to((300, 5)).detach()
    for function in (
        lambda x: (x * 1).sum(),
        lambda x: ndl.ops.negative(-x).sum(0),
        lambda x: (x.T * 1).sum(),
        lambda x: (x[::-1] * 1).cumsum(0),
        lambda x: x[0].broadcast_to((7, 5)).astype("float64").sum(),
    ):
        for given in (x, rows):
            wanted = function(given).numpy()
            np.testing.assert_array_equal(ndl.compile(function)(given).numpy(), wanted)


def test_updates_come_last():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    opt = optim.SGD(model.parameters(), lr=0.1)
    listing = listing_of(lambda x: opt.minimize(nn.SoftmaxLoss()(model(x), y)), X)
    names = ops_of(listing)
    assert set(names[names.index("update") :]) <= {"update", "tuple_get_item"}


y = ndl.Tensor([0, 1], dtype="int64")


def test_explain_names_ops_and_lines():
    function = ndl.compile(lambda x: (x * 2).exp(), mode="python")
    assert "call it first" in ndl.explain(function)
    function(X)
    text = ndl.explain(function)
    assert "multiply float32[2, 2]" in text
    assert f"{__file__}:{function._function.__code__.co_firstlineno}" in text
    with pytest.raises(ndl.errors.ArgumentError, match="compile"):
        ndl.explain(abs)


def test_check_finds_a_wrong_rule(monkeypatch):
    def wrong(work, node, inputs):
        return inputs[0] if type(node.op).__name__ == "Sum" else None

    monkeypatch.setattr(passes, "PASSES", (*PASSES, wrong))
    function = ndl.compile(lambda x: x.sum(0) * 2)
    with ndl.config(check="spec"), pytest.raises(NeedleError, match="wrong"):
        function(X)


def test_passes_leave_a_small_listing_alone():
    listing = listing_of(lambda x: x.exp() + x, X)
    again = run_passes(listing, check=True)
    assert again.order == listing.order
    assert rewritten(listing, rules.stop).outputs == listing.outputs
