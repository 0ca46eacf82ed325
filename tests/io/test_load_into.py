"""Checkpoints read into what is there: compared first, then written without a copy."""

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import executor, graph, nn, optim
from needle.errors import ArgumentError, DataError
from needle.io import Checkpoints


def made(seed=0, width=4):
    ndl.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 1))
    return model, optim.Adam(model.parameters(), lr=0.1)


def trained(model, opt, steps=3):
    x = ndl.Tensor(np.arange(6.0).reshape(2, 3))
    return [opt.minimize((model(x) ** 2).mean()).item() for _ in range(steps)]


def addresses(model, opt):
    arrays = [executor.primal_array(p) for p in model.parameters()]
    arrays += [x for slot in opt.state.values() for x in slot.values()]
    return [np.asarray(x).__array_interface__["data"][0] for x in arrays]


def bits(model, opt):
    found = {**model.state_dict(), **opt.state_dict()}
    return {k: np.asarray(x).tobytes() for k, x in found.items()}


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of a model that was trained for some steps, and what it does next."""
    model, opt = made()
    trained(model, opt)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(3, {"model": model.state_dict(), "opt": opt.state_dict(), "epoch": 1})
    checkpoints.expected = trained(model, opt)
    return checkpoints


def test_the_memory_stays_where_nobody_else_sees_it(saved):
    model, opt = made(1)
    trained(model, opt)
    before = addresses(model, opt)
    alone = all(graph.exclusive(p) for p in model.parameters())  # never, without native code
    assert saved.load_into({"model": model, "opt": opt}) == {"epoch": 1}
    assert not alone or addresses(model, opt) == before
    assert trained(model, opt) == saved.expected


def test_who_holds_old_values_keeps_them(saved):
    model, opt = made(1)
    old, moments = model.state_dict(), opt.state_dict()
    loss = (model(ndl.ones(2, 3)) ** 2).sum()
    before = {name: x.tolist() for name, x in old.items()}
    saved.load_into({"model": model, "opt": opt})
    assert {name: x.tolist() for name, x in old.items()} == before
    loss.backward()  # through the values that it was computed with
    assert moments["step"] == 0 and trained(model, opt) == saved.expected


def linear(**changes):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    for name, value in changes.items():
        setattr(model, name, value)
    return model


MISFITS = {
    "a name more": (lambda: (linear(more=nn.Linear(1, 1)), None), ["missing: more.weight"]),
    "a name less": (
        lambda: (nn.Sequential(nn.Linear(3, 4)), None),
        ["unexpected: 2.weight", "unexpected: 1."],
    ),
    "shapes": (
        lambda: (made(width=5)[0], None),
        ["wrong: 0.weight is float32[3, 5], the checkpoint has float32[3, 4]"],
    ),
    "a dtype": (
        lambda: (made()[0].to("float64"), None),
        ["wrong: 2.bias is float64[1, 1], the checkpoint has float32[1, 1]"],
    ),
    "an optimizer of another kind": (lambda: (None, optim.SGD(made()[0].parameters(), lr=0.1)),
                                     ["opt: wrong: the state has"]),
    "an optimizer of other shapes": (lambda: (None, made(width=5)[1]), ["opt: wrong: m.0 is"]),
}  # fmt: skip


@looped("name", MISFITS)
def test_all_differences_are_told_and_nothing_changes(name, tmp_path):
    model, opt = made()
    trained(model, opt)
    saved = Checkpoints(tmp_path / name)
    saved.save(3, {"model": model.state_dict(), "opt": opt.state_dict()})
    make, told = MISFITS[name]
    other, rule = (x or y for x, y in zip(make(), made(1), strict=True))
    before = bits(other, rule)
    with pytest.raises(DataError) as raised:
        saved.load_into({"model": other, "opt": rule, "none": other})
    for part in (*told, "differences", "none: the checkpoint has no such part"):
        assert part in str(raised.value), raised.value
    assert bits(other, rule) == before


def test_arrays_by_name(tmp_path):
    saved = Checkpoints(tmp_path)
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    state = {"a": values, "b": [ndl.ones(2), {"c": np.array([True, False])}], "n": 1}
    saved.save(0, {"part": state})
    a, b, c = np.zeros((3, 2), np.float32).T, ndl.zeros(2), np.zeros(2, bool)
    rest = saved.load_into({"part": {"a": a, "b": [b, {"c": c}]}})
    assert rest == {} and np.array_equal(a, values)
    assert b.tolist() == [1, 1] and c.tolist() == [True, False]
    c.flags.writeable = False
    with pytest.raises(DataError, match=r"2 differences\n  part: missing: d\n  part: wrong: b/1/c"):
        saved.load_into({"part": {"a": a, "b": [b, {"c": c}], "d": a}})
    with pytest.raises(ArgumentError, match="load_into: part: expected a module"):
        saved.load_into({"part": 3})


def test_tied_weights(tmp_path):
    table, head = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    head.weight = table.weight
    tied = nn.Sequential(table, head)
    free = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    saved = Checkpoints(tmp_path)
    path = saved.save(0, {"model": tied.state_dict(), "ema": tied.state_dict()})
    assert sum(x.stat().st_size for x in path.glob("*.safetensors")) < 4 * 4 + 200
    expected = table.weight.tolist()
    ema = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    saved.load_into({"model": free, "ema": ema})
    weights = [m.weight for m in (*free, *ema)]
    assert [w.tolist() for w in weights] == [expected] * 4
    arrays = [np.asarray(executor.primal_array(w)) for w in weights]
    assert len({x.ctypes.data for x in arrays}) == 4
    saved.save(1, {"model": free.state_dict()})
    with pytest.raises(DataError, match="1.weight is 0.weight here, not in the checkpoint"):
        saved.load_into({"model": tied})


def test_damage_that_is_seen_late_is_mended_by_an_older_checkpoint(saved):
    model, opt = made(1)
    path = saved.save(4, {"model": model.state_dict(), "opt": opt.state_dict(), "epoch": 2})
    with open(path / "model.safetensors", "r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    told = []
    saved.note = told.append
    assert saved.load_into({"model": model, "opt": opt}) == {"epoch": 1}
    assert trained(model, opt) == saved.expected
    assert "model.safetensors: it has changed since it was saved" in told[0]


def test_other_objects_load_their_part(tmp_path):
    opt = made()[1]
    plateau = optim.ReduceLROnPlateau(opt)
    plateau.best = 7.0
    saved = Checkpoints(tmp_path)
    saved.save(0, {"schedule": plateau.state_dict()})
    other = optim.ReduceLROnPlateau(opt)
    assert saved.load_into({"schedule": other}) == {} and other.best == 7.0
