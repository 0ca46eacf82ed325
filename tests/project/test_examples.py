"""The examples in docstrings: each is run, and gives the result that it shows.

They know ``ndl`` and ``np``, ``Tensor``, ``nn``, ``ops`` and ``optim``. Numbers are shown with four
decimals, as all devices agree on those.
"""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import pkgutil
from pathlib import Path

import numpy as np
import pytest

import needle as ndl
from needle import nn, ops, optim

NAMES = {"ndl": ndl, "np": np, "Tensor": ndl.Tensor, "nn": nn, "ops": ops, "optim": optim}
INTERNAL = {"all_ops", "comparable", "convolve", "native_index", "significant"}
"""Functions of ``needle.ops`` that serve other modules only."""
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def modules() -> list[str]:
    """Return the names of the modules whose source shows an example."""
    found = [info.name for info in pkgutil.walk_packages(ndl.__path__, "needle.")]
    sources = {name: importlib.util.find_spec(name).origin or "" for name in found}
    return [n for n, p in sources.items() if p.endswith(".py") and ">>> " in Path(p).read_text()]


def run(name: str) -> tuple[int, str]:
    """Run the examples of a module; return how many failed, and what was said."""
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    tests = doctest.DocTestFinder().find(importlib.import_module(name), globs=dict(NAMES))
    for test in tests:
        np.random.seed(0)
        ndl.manual_seed(0)
        runner.run(test, out=said.append)
    return runner.failures, "".join(said)


@pytest.mark.parametrize("name", modules())
def test_examples(name):
    with np.printoptions(precision=4, suppress=True):
        failures, said = run(name)
    assert not failures, said


def test_a_wrong_example_fails():
    said: list[str] = []
    test = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append)
    assert "Expected:\n    3\nGot:\n    2" in "".join(said)


def test_every_function_of_ops_has_an_example():
    functions = {n: f for n, f in vars(ops).items() if callable(f) and not inspect.isclass(f)}
    public = {n for n in functions if not n.startswith("_")} - INTERNAL
    assert len(public) > 300
    assert not {n for n in public if ">>> " not in (inspect.getdoc(functions[n]) or "")}
