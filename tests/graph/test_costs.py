"""needle.forecast and needle.profile: the work of operations; measuring changes nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest

import needle as ndl
from needle import executor, nn, ops, optim
from needle.errors import ArgumentError, TraceError
from needle.testing.checks import cases
from needle.tools import limits


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """Limits that are not measured."""
    made = limits.Limits(1e9, 1e8, 1e10, 1e-6)
    monkeypatch.setattr("needle.tools.costs.limits", lambda device: made)


def training():
    ndl.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2))
    optimizer = optim.Adam(model.parameters())
    return model, optimizer, ndl.compile(lambda x: optimizer.minimize((model(x) ** 2).mean()))


def flops(function, *shapes):
    """The work of each operation by name."""
    inputs = [ndl.ones(shape) for shape in shapes]
    return {row.op: row.flops for row in ndl.forecast(function, *inputs).rows}


def test_the_work_of_operations():
    assert flops(lambda x, w: x @ w, (2, 5, 7), (7, 3))["matmul"] == 2 * 2 * 5 * 7 * 3
    assert flops(lambda x: ops.tanh(x), (4, 6)) == {"tanh": 24}
    assert flops(lambda x: x.sum(1), (4, 6)) == {"sum": 24}
    assert not flops(lambda x: ops.permute(x, (1, 0)) * 2, (4, 6)).get("permute")
    images, weight, out = (2, 9, 9, 4), (3, 3, 2, 6), (2, 5, 5, 6)
    one = ops.Convolution.of((2, 2), ((1, 1), (1, 1)), (1, 1), 2)
    work = 2 * np.prod(out) * 3 * 3 * 2
    assert flops(one, images, weight) == {"convolution": work}

    def grads(x, w):
        return ndl.grad(lambda x, w: one(x, w).sum(), (0, 1))(x, w)

    found = flops(grads, images, weight)
    assert found["convolution_input"] == found["convolution_weight"] == work


def test_every_op_tells_its_work():
    none = set()
    for op in ops.all_ops():
        case = cases(op)[0]
        kind = "float32" if "float32" in case.dtypes else case.dtypes[0]
        made = case.make()
        inputs = made.prepare(case.inputs(kind, ndl.cpu_numpy()))
        found = made.flops(*map(executor.spec_of, inputs))
        assert type(found) is int and found >= 0, op
        none |= {op.__name__} if found == 0 else set()
    assert none == {"BroadcastTo", "MakeTensorTuple", "Permute", "Reshape", "Slice"}


def test_a_composite_takes_what_its_expansion_takes():
    cells = nn.LSTM(3, 4)
    found = flops(lambda x: cells(x)[0], (5, 2, 3))
    products = 2 * 5 * 2 * (3 + 4) * 16
    assert products <= found["lstm"] <= 2 * products


def test_a_prediction_is_the_larger_of_work_and_bytes():
    known = limits.Limits(1e9, 1e8, 1e10, 1e-6)
    assert known.seconds(1e6, 1e3) == 1e-3
    assert known.seconds(10, 1e8) == 1.0
    assert known.seconds(10, 1e5) == 1e-5
    assert known.seconds(0, 0) == 1e-6
    product = ndl.forecast(lambda x: x @ x, ndl.ones(8, 8)).rows[0]
    assert product.predicted == known.seconds(product.flops, product.nbytes)
    assert product.measured is None and product.line.startswith(__file__)


def test_what_a_device_can_do_is_measured():
    found = limits.limits(ndl.cpu_numpy())
    assert min(found) > 0 and "GFLOP/s" in limits.as_text(found)


def test_a_forecast_runs_nothing():
    model, optimizer, step = training()
    x, before = ndl.ones(4, 8), [p.numpy().copy() for p in model.parameters()]
    costs = ndl.forecast(step, x)
    assert costs.measured is None and costs.predicted > 0
    assert costs.memory is None or costs.memory > 0
    assert optimizer.t == 0 and "update" in [row.op for row in costs.rows]
    for p, q in zip(model.parameters(), before, strict=True):
        np.testing.assert_array_equal(p.numpy(), q)
    step(x)
    assert optimizer.t == 1 and "1 programs" in repr(step)


@pytest.mark.parametrize("mode", ["on", "python"])
def test_a_profile_of_a_program_changes_nothing(mode, tmp_path):
    found = []
    for measured in (False, True):
        model, _, step = training()
        with ndl.config(compile=mode):
            step(ndl.ones(4, 8))
            if measured:
                costs = ndl.profile(step, ndl.ones(4, 8), path=tmp_path / "x.json", times=2)
                assert costs.measured > 0 and all(row.measured >= 0 for row in costs.rows)
            step(ndl.ones(4, 8))
        found.append([x.numpy().tobytes() for x in model.state_dict().values()])
    assert found[0] == found[1]


def test_a_profile_of_any_function_calls_it_once():
    calls = []
    w = ndl.Tensor(np.ones((3, 2)), requires_grad=True)

    def function(x):
        calls.append(1)
        loss = (x @ w).sum()
        loss.backward()
        return loss.item()

    costs = ndl.profile(function, ndl.ones(4, 3))
    assert len(calls) == 1 and w.grad.shape == (3, 2)
    assert [row.op for row in costs.rows][:2] == ["matmul", "sum"]
    backward = next(row for row in costs.rows[2:] if row.op == "matmul")
    assert "in the gradient of matmul" in backward.line and backward.flops == 2 * 4 * 3 * 2
    assert "measured us" in str(costs)


def test_a_trace_has_an_event_for_each_row(tmp_path):
    path = tmp_path / "trace.json"
    costs = ndl.profile(lambda x: ops.tanh(x) + 1, ndl.ones(4), path=path)
    events = json.loads(path.read_text())["traceEvents"]
    assert [e["name"] for e in events] == ["tanh", "add"] and len(costs.rows) == 2
    for event in events:
        assert event["ph"] == "X" and event["dur"] > 0 and {"ts", "pid", "tid"} <= event.keys()
    assert events[0]["ts"] + events[0]["dur"] <= events[1]["ts"]


def test_wrong_arguments_are_refused():
    for function in (ndl.forecast, ndl.profile):
        with pytest.raises(ArgumentError, match="expected a function"):
            function(3)
    with pytest.raises(ArgumentError, match="times is 0"):
        ndl.profile(lambda: None, times=0)
    with pytest.raises(TraceError, match="is read"):
        ndl.forecast(lambda x: x.item(), ndl.ones(1))
