"""What type checkers see of the package, and ``inspect.signature`` and ``help`` of functions."""

from __future__ import annotations

import functools
import importlib
import inspect
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import needle
from needle import ops

PACKAGES = (
    "needle", "needle.data", "needle.init", "needle.io", "needle.models", "needle.nn",
    "needle.nn.functional", "needle.ops", "needle.optim", "needle.optim.lr_scheduler",
    "needle.recipes", "needle.standard", "needle.testing", "needle.utils", "needle.utils.data",
)  # fmt: skip

OTHERS = ("OptionError", "advice", "import_module", "missing", "unknown")
"""Functions that the packages use, and do not offer."""

TENSORS = """
import needle
import needle as ndl


def double(x: needle.Tensor) -> needle.Tensor:
    return needle.relu(x).exp() * 2.0


x = needle.ones(2, 3)
total: needle.Tensor = double(x).sum(axis=1).reshape((2, 1))
total.backward()
slope: ndl.Tensor = ndl.grad(lambda w: (w * w).sum())(x)
pair: tuple[ndl.Tensor, ...] = ndl.grad(lambda a, b: (a * b).sum(), argnums=(0, 1))(x, x)
square: ndl.Tensor = ndl.hessian(lambda w: (w * w).sum())(x)
shape: tuple[int, ...] = (x @ x.T)[0].shape
kind: ndl.DType = ndl.float32
"""
MODEL = """
import needle.nn as nn
import needle.nn.functional as F
from needle import Tensor


class Net(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, hidden), nn.Linear(hidden, 2)
        self.body = nn.Sequential(nn.LayerNorm(hidden), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.body(self.first(x)))


def loss_of(model: Net, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y) + nn.MSELoss()(x, x)


count: int = Net(8).num_parameters()
"""
TRAINING = """
from collections.abc import Iterator

from needle import Tensor, io, nn, no_grad, optim
from needle.data import DataLoader
from needle.optim.lr_scheduler import StepLR


def train(model: nn.Linear, loader: DataLoader) -> Iterator[float]:
    optimizer = optim.Adam(model.parameters(), lr=0.1, betas=(0.9, 0.99))
    scheduler = StepLR(optimizer, 3)
    for x, y in loader:
        loss: Tensor = nn.CrossEntropyLoss()(model(x), y)
        optimizer.minimize(loss)
        scheduler.step()
        yield float(loss.item())
    with no_grad():
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    io.save("model.safetensors", model.state_dict())
"""
WRONG = """
import needle
from needle import nn

needle.Tensr
nn.Linaer(3, 2)
nn.Linear(3, 2)("text")
needle.ones(2).sum(1).exq()
text: str = needle.relu(needle.ones(2))
"""


@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
def test_programs_are_typed(tmp_path):
    """Strict mypy accepts three programs, and finds what is wrong in the fourth, line by line."""
    programs = {"tensors": TENSORS, "model": MODEL, "training": TRAINING, "wrong": WRONG}
    for name, text in programs.items():
        (tmp_path / f"{name}.py").write_text(text)
    settings = tmp_path / "mypy.ini"
    package = Path(needle.__file__).parents[1]
    settings.write_text(f"[mypy]\nstrict = true\nfollow_imports = silent\nmypy_path = {package}\n")
    command = [sys.executable, "-m", "mypy", "--config-file", settings, "--no-error-summary",
               "--cache-dir", tmp_path / "cache", *sorted(tmp_path.glob("*.py"))]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert [line for line in lines if not line.startswith("wrong.py:")] == [], done.stderr
    assert [int(line.split(":")[1]) for line in lines] == [5, 6, 7, 8, 9], done.stdout


@pytest.mark.parametrize("name", PACKAGES)
def test_all_names_what_is_there(name):
    module = importlib.import_module(name)
    names = module.__all__
    assert len(set(names)) == len(names) and all(hasattr(module, each) for each in names)
    own = {
        each for each, value in vars(module).items()
        if not each.startswith("_") and (inspect.isclass(value) or inspect.isroutine(value))
        and getattr(value, "__module__", "").startswith("needle")
    }  # fmt: skip
    assert sorted(own - {*names, *OTHERS}) == []


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_function_has_a_signature(name):
    module = importlib.import_module(name)
    public: dict[str, Any] = {}
    for each in module.__all__:
        value = getattr(module, each)
        if inspect.isclass(value):
            members = {f"{each}.{m}": getattr(value, m) for m in dir(value) if m[0] != "_"}
            public |= {m: f for m, f in members.items() if inspect.isfunction(f)}
        elif callable(value) and each not in ("Schedule", "config"):  # an alias, and a module
            public[each] = value
    for each, function in public.items():
        assert isinstance(inspect.signature(function), inspect.Signature), each


def test_signatures_of_ops_have_their_inputs():
    """An op that is not in the table has one input."""
    functions = [f for f in vars(ops).values() if isinstance(f, functools.partial)]
    assert len(functions) > 70
    for function in functions:
        op = type(function.args[0])
        counts = {len(sample.inputs) for sample in op.samples() if sample.raises is None}
        assert counts == {len(inspect.signature(function).parameters)}, op
    assert str(inspect.signature(ops.where)) == "(condition, x, y, /)"
