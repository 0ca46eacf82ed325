"""Programs on disk: they give the bits of the function; strange files are refused."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import needle as ndl
from needle import cli, io, nn, optim
from needle.errors import ArgumentError, DataError, NeedleError, OptionError, ShapeError
from needle.io import programs
from needle.models.gpt import GPT
from needle.models.resnet9 import ResNet9

RNG = np.random.default_rng(0)


def network():
    ndl.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
    )


def through(model, folder, *inputs, device=None):
    """Save a module and return what the loaded program gives."""
    path = folder / "model.needle"
    model.save(path, *inputs)
    return io.load_program(path, device)


@pytest.mark.parametrize(
    "model, inputs",
    [
        (network, [RNG.standard_normal((5, 4))]),
        (lambda: ResNet9(), [RNG.standard_normal((2, 3, 32, 32))]),
        (lambda: nn.LSTM(3, 4, 2), [RNG.standard_normal((5, 2, 3))]),
        (lambda: GPT(11, 8, layers=1, width=8, heads=2), [RNG.integers(0, 11, (2, 8))]),
        (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GELU(), nn.Flatten()),
         [RNG.standard_normal((1, 2, 5, 5))]),
    ],
    ids=["mlp", "resnet9", "lstm", "gpt", "conv2d"],
)  # fmt: skip
def test_a_module_gives_the_same_bits(model, inputs, tmp_path):
    made = model()
    given = [ndl.Tensor(x, dtype="int64" if x.dtype.kind == "i" else None) for x in inputs]
    made.train()
    program = through(made, tmp_path, *given)
    assert made.training  # as it was
    with ndl.no_grad():
        wanted, got = made.eval()(*given), program(*given)
    flat = lambda x: [x] if isinstance(x, ndl.Tensor) else [z for y in x for z in flat(y)]  # noqa: E731
    for a, b in zip(flat(wanted), flat(got), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert set(program.parameters) >= {name for name, _ in made.named_parameters()} - {"pad"}


def test_a_program_runs_on_another_device(tmp_path):
    model, x = network(), RNG.standard_normal((5, 4)).astype(np.float32)
    program = through(model, tmp_path, ndl.Tensor(x), device="cpu_numpy")
    got = program(ndl.Tensor(x, device="cpu_numpy"))
    assert got.device == "cpu_numpy"
    np.testing.assert_allclose(got.numpy(), model.eval()(ndl.Tensor(x)).numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: optim.SGD(p, lr=optim.Chain((optim.Linear(0.1, 0.2, 3), 3), 0.05), momentum=0.9),
        lambda p: optim.Adam([{"params": p[:1], "lr": 0.1}, {"params": p[1:]}], amsgrad=True),
        lambda p: optim.NAdam(p, lr=optim.Warmup(2, optim.Cosine(0.1, 9)), weight_decay=0.1),
    ],
)
def test_a_training_step_goes_on_where_it_was_saved(make, tmp_path):
    x, y = ndl.Tensor(RNG.standard_normal((6, 4))), ndl.Tensor(RNG.integers(0, 3, 6))
    model, loss_function = network(), nn.SoftmaxLoss()
    opt = make(model.parameters())

    @ndl.compile
    def step(x, y):
        return {"loss": opt.minimize(loss_function(model(x), y)), "name": ["mlp", 1.5]}

    ndl.manual_seed(3)
    for _ in range(2):
        step(x, y)
    io.save_program(step, tmp_path / "step.needle", {id(p): n for n, p in model.named_parameters()})
    after = ndl.ops.random.get_state()
    wanted = [step(x, y)["loss"].item() for _ in range(4)]
    program = io.load_program(tmp_path / "step.needle")
    ndl.ops.random.set_state(after)
    results = [program(x, y) for _ in range(4)]
    assert [r["loss"].item() for r in results] == wanted
    assert results[0]["name"] == ["mlp", 1.5]
    for name, p in model.named_parameters():
        np.testing.assert_array_equal(p.numpy(), program.parameters[name].numpy())


def test_the_file_needs_no_code_of_the_model(tmp_path):
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter([2.0])

        def forward(self, x):
            return {"out": (x * self.scale, None)}

    Mine().save(tmp_path / "mine.needle", ndl.ones(3))
    code = (
        f"import needle as n; print(n.load_program({str(tmp_path / 'mine.needle')!r})(n.ones(3)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "'out': (needle.Tensor([2., 2., 2.])" in done.stdout


def test_the_command_shows_a_program(tmp_path, capsys):
    network().save(tmp_path / "m.needle", ndl.zeros(5, 4))
    assert cli.main(["show", str(tmp_path / "m.needle")]) == 0
    said = capsys.readouterr().out
    assert "0.weight: float32[4, 8]" in said and "relu" in said and "takes float32[5, 4]" in said
    assert cli.main(["show", str(tmp_path / "none.needle")]) == 1


def test_commands_draw_and_profile_a_program(tmp_path, capsys):
    path, page, trace = (str(tmp_path / name) for name in ("m.needle", "m.html", "t.json"))
    network().save(path, ndl.zeros(5, 4))
    assert cli.main(["show", path, "--draw", page]) == 0
    assert Path(page).read_text().count("<svg") == 2
    capsys.readouterr()
    assert cli.main(["profile", path, "--trace", trace, "--times", "1"]) == 0
    assert "measured us" in capsys.readouterr().out
    assert "relu" in Path(trace).read_text()
    program = ndl.load_program(path)
    ops = [row.op for row in ndl.forecast(program, ndl.zeros(5, 4)).rows]
    assert any(op.startswith("matmul") for op in ops)  # where kernels are joined: matmul + add
    with pytest.raises(ShapeError, match="argument 0"):
        ndl.profile(program, ndl.zeros(4, 4))


def test_what_cannot_be_saved(tmp_path):
    path, x = tmp_path / "f.needle", ndl.Tensor([1.0, 2.0])
    with pytest.raises(ArgumentError, match="expected a compiled function"):
        io.save_program(network(), path)
    f = ndl.compile(lambda x: x + 1.0)
    with pytest.raises(OptionError, match="this one has 0"):
        io.save_program(f, path)

    class Own(ndl.TensorOp):
        def compute(self, a):
            return a

    g = ndl.compile(lambda x: Own()(x) * 2.0)
    g(x)
    with pytest.raises(DataError, match="runs a Python function"):
        io.save_program(g, path)
    w = nn.Parameter([1.0])

    @ndl.compile
    def h(x):
        loss = (w * x).sum()
        loss.backward()
        return loss

    h(x)
    with pytest.raises(DataError, match=r"gradients in \.grad"):
        io.save_program(h, path)
    p = nn.Parameter([1.0])
    opt = optim.SGD([p], lr=lambda step: 0.1)
    k = ndl.compile(lambda x: opt.minimize((p * x).sum()))
    k(x)
    with pytest.raises(DataError, match="cannot be saved"):
        io.save_program(k, path)
    assert not path.exists()


def test_wrong_calls(tmp_path):
    program = through(network(), tmp_path, ndl.zeros(5, 4))
    with pytest.raises(ArgumentError, match="takes 1 tensors, got 2"):
        program(ndl.zeros(5, 4), ndl.zeros(5, 4))
    with pytest.raises(ShapeError, match=r"argument 0 of the program is float32\[5, 4\]"):
        program(ndl.zeros(6, 4))
    assert program(np.zeros((5, 4))).shape == (5, 3)
    view = ndl.zeros(4, 5).T
    assert (program(view).numpy() == program(ndl.zeros(5, 4)).numpy()).all()


def test_files_that_are_no_programs(tmp_path):
    io.save(tmp_path / "t.safetensors", {"w": ndl.ones(2)})
    with pytest.raises(DataError, match="is not a program"):
        io.load_program(tmp_path / "t.safetensors")
    with pytest.raises(DataError):
        io.load_program(tmp_path / "missing.needle")


def changed(value, rng):
    """Return a document with one thing changed somewhere."""
    path, place = [], value
    while isinstance(place, (dict, list)) and place and (not path or rng.random() < 0.85):
        keys = list(place) if isinstance(place, dict) else range(len(place))
        path.append(keys[rng.integers(len(keys))])
        place = place[path[-1]]
    found = json.loads(json.dumps(value))
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    others = [None, -1, 0, 1, 7, 2**62, 2**70, 1.5, "x", "Add", "argument", [], {}, [[]], True]
    inner[path[-1]] = others[rng.integers(len(others))]
    return found


def test_changed_files_are_refused_or_run(tmp_path):
    """Whatever a file says, the outcome is a program that runs, or one of Needle's errors."""
    model, path = network(), tmp_path / "m.needle"
    opt = optim.Adam(model.parameters())
    step = ndl.compile(lambda x, y: opt.minimize(nn.SoftmaxLoss()(model(x), y)))
    x, y = ndl.zeros(5, 4), ndl.zeros(5, dtype="int64")
    ndl.manual_seed(0)
    step(x, y)
    io.save_program(step, path)
    arrays = dict(io.load(path))
    document = json.loads(io.load_metadata(path)[programs.KEY])
    rng, refused = np.random.default_rng(1), 0
    for _ in range(120):
        io.save(path, arrays, {programs.KEY: json.dumps(changed(document, rng))})
        try:
            io.load_program(path)(x, y)
        except NeedleError:
            refused += 1
    assert 60 < refused < 120
