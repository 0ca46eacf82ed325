"""Options of the wrong kind, of every public function and layer that has an example.

The calls are made of the examples in the docstrings: each argument in turn is replaced.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import functools
import inspect
import io
import warnings

import numpy as np
import pytest

import needle as ndl
from needle import data, init, nn, ops, optim
from needle.errors import NeedleError

WRONG = ("ab", b"a", 1.5, True, None, [1.5], {}, object(), np.ones(2), 1j)
ROOMS = {"needle": ndl, "ops": ops, "init": init, "nn": nn, "optim": optim}
NAMES = {
    "ndl": ndl, "np": np, "ops": ops, "nn": nn, "optim": optim, "init": init, "data": data,
    "Tensor": ndl.Tensor,
}  # fmt: skip
PLAIN = {"functional_call", "spawn", "compile"}  # of other programs, or with processes


def in_example(name, node):
    """Return whether a node of an example calls the function."""
    if not isinstance(node, ast.Call) or any(isinstance(a, ast.Starred) for a in node.args):
        return False
    return name == getattr(node.func, "attr", getattr(node.func, "id", None))


@functools.cache
def functions(room):
    """Return (name, function, signature, arguments) for those whose example calls them."""
    found = []
    names = getattr(ROOMS[room], "__all__", None) or dir(ROOMS[room])
    for name in sorted(names):
        function = getattr(ROOMS[room], name, None)
        if name[0] == "_" or name in PLAIN or not callable(function):
            continue
        with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
            signature = inspect.signature(function)
            given = arguments(name, function, signature)
            if given is not None:
                found.append((name, function, signature, given))
    return found


def arguments(name, function, signature):
    scope = dict(NAMES)
    for example in doctest.DocTestParser().get_examples(inspect.getdoc(function) or ""):
        tree = ast.parse(example.source)
        for node in ast.walk(tree):
            if in_example(name, node):
                args = [evaluated(a, scope) for a in node.args]
                named = {k.arg: evaluated(k.value, scope) for k in node.keywords}
                return signature.bind(*args, **named).arguments
        exec(compile(tree, "example", "exec"), scope)
    return None


def evaluated(node, scope):
    return eval(compile(ast.Expression(node), "example", "eval"), scope)


def called(function, signature, given):
    """Call a function with arguments by parameter: by position as long as none is left out."""
    args, named, gap = [], {}, False
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            args += given.get(name, ())
        elif parameter.kind is parameter.VAR_KEYWORD:
            named |= given.get(name, {})
        elif name not in given:
            gap = True
        elif parameter.kind is parameter.KEYWORD_ONLY or gap:
            named[name] = given[name]
        else:
            args.append(given[name])
    return function(*args, **named)


@pytest.mark.parametrize("room", ROOMS)
def test_options_of_the_wrong_kind_are_refused_or_taken(room, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some options are paths to write to
    raw, tried = [], 0
    for name, function, signature, given in functions(room):
        for parameter in signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            for value in WRONG:
                tried += 1
                try:
                    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
                        warnings.simplefilter("ignore")
                        called(function, signature, {**given, parameter.name: value})
                except NeedleError:
                    continue
                except Exception as error:
                    raw.append(f"{name}({parameter.name}={value!r:.20}): {error!r:.90}")
    assert tried > 300 and not raw, "\n".join(raw)


FLAGS = {
    "sort": lambda flag: ndl.sort(ndl.ones(3), descending=flag),
    "dropout": lambda flag: ndl.dropout(ndl.ones(3), 0.5, flag),
    "rand": lambda flag: ndl.rand(3, requires_grad=flag),
    "grad": lambda flag: ndl.grad(lambda x: x, create_graph=flag),
    "Linear": lambda flag: nn.Linear(2, 2, bias=flag),
    "Conv2d": lambda flag: nn.Conv2d(2, 2, 1, bias=flag),
}


@pytest.mark.parametrize("name", FLAGS)
def test_flags_are_true_or_false(name):
    for flag in (True, False, np.True_):
        FLAGS[name](flag)
    for flag in ("no", 1, None, np.ones(2)):
        with pytest.raises(NeedleError, match=rf"{name}: .* is .*, neither True nor False"):
            FLAGS[name](flag)
