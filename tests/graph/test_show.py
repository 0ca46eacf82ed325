"""needle.show: formulas that are true and readable; docs/differentiation.md has the real text."""

from __future__ import annotations

import math
import re
import subprocess
import sys

import numpy as np
import pytest

import needle as ndl
from needle import ops
from needle.errors import ArgumentError, GradientError
from needle.tools.show import shown


def formulas(function, *points):
    """The formulas alone, by what stands on the left."""
    lines = shown(function, *points).partition("\n\nat ")[0].splitlines()
    return {left.strip(): right for left, right in (line.split(" = ", 1) for line in lines)}


CASES = [
    (lambda x, y: x * y + ops.sin(x), {"f(x, y)": "x * y + sin(x)", "df/dx": "cos(x) + y"}),
    (lambda x: x**3 - 2 / x, {"f(x)": "x**3 - 2 / x", "df/dx": "2 / x**2 + 3 * x**2"}),
    (lambda x: x * 1 + 0, {"f(x)": "x", "df/dx": "1"}),
    (lambda x: -x * -x - (0 - x), {"f(x)": "x**2 + x", "df/dx": "1 + 2 * x"}),
    (lambda x: 1 - (2 - x), {"f(x)": "1 - (2 - x)", "df/dx": "1"}),
    (lambda x: (-x) ** 2 / (x * 2), {"f(x)": "(-x)**2 / (2 * x)"}),
    (lambda x: ops.tanh(x), {"f(x)": "tanh(x)", "df/dx": "1 - f**2"}),
    (lambda x: ops.sigmoid(x), {"f(x)": "sigmoid(x)", "df/dx": "f * (1 - f)"}),
    (lambda x: ops.where(x > 0, x, 0.1 * x), {"f(x)": "where(x > 0, x, 0.1 * x)"}),
]  # fmt: skip


@pytest.mark.parametrize("function, expected", CASES)
def test_formulas(function, expected):
    found = formulas(function)
    assert {name: found[name] for name in expected} == expected


def test_what_stands_in_several_places_gets_a_name():
    found = formulas(lambda x: ops.sin(ops.exp(x**2) * x) / (1 + ops.exp(x**2)))
    assert found["f(x)"] == "sin(a * x) / (a + 1)" and found["a"] == "exp(x**2)"
    found = formulas(lambda a: ops.sqrt(a * a + 1) * ops.log(a * a + 1))
    assert found["b"] == "a**2 + 1" and "a" not in found  # the input's name stays its own


def test_matrices_calls_and_constants():
    x, w = np.arange(6.0).reshape(2, 3) - 2, np.full((3, 2), 0.5)
    found = formulas(lambda x, w: ops.relu(x @ w).sum(), (x, w))
    assert found["df/dx"] == "a @ w.T" and found["df/dw"] == "x.T @ a"
    found = formulas(ops.softmax, np.array([0.1, 2.0, -1.0]))
    assert found["df/dx"] == "softmax_grad(f, u, -1)"
    text = shown(lambda x: x * np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    assert "f(x)  = x * c1\n" in text and "c1    : float64[2]" in text and "u = [1., 2.]" in text


SMOOTH = [case[0] for case in CASES[:7]] + [
    lambda x, y: ops.exp(-x / y) * (x - y) / (x - (y - 1)) ** 2 - -(y**x),
    lambda x: ops.sin(ops.exp(x**2) * x) / (1 + ops.exp(x**2)),
    lambda x, y: ops.log(x * y + 1) * (x * y + 1) - 3 * x * (2 * y) / 5,
    lambda x: 2 ** -(x**2) / x / (x / 3) * (4 / x),
    lambda x: ops.silu(x) * ops.sigmoid(2 * x),
    lambda x: ops.gelu(x * x),
    lambda x, y: ops.squared_difference(x, y * y),
    lambda x: ops.cross_entropy(ops.stack([x, x * x]), ndl.Tensor(np.array(1))),
]


@pytest.mark.parametrize("function", SMOOTH[:-1])
def test_the_formulas_are_true(function):
    """As Python they give the same values as the function and its gradient."""
    found = formulas(function)
    names = next(iter(found))[2:-1].split(", ")
    points = dict(zip(names, (0.7, 1.3), strict=False))
    tensors = {name: ndl.Tensor(value, dtype="float64") for name, value in points.items()}
    space = {"sin": np.sin, "cos": np.cos, "exp": np.exp, "log": np.log, "tanh": np.tanh, **points}
    space |= {"where": np.where, "sqrt": np.sqrt, "erf": math.erf, "pi": math.pi}
    space["sigmoid"] = lambda x: 1 / (1 + np.exp(-x))
    space["silu"] = lambda x: x * space["sigmoid"](x)
    space["gelu"] = lambda x: x * (1 + math.erf(x / np.sqrt(2))) / 2
    pending = {"f" if name.startswith("f(") else name: text for name, text in found.items()}
    while pending:
        ready = [
            n for n, text in pending.items() if not set(re.findall(r"\b[a-z]\b", text)) - {*space}
        ]
        for name in ready:
            space[name] = eval(pending.pop(name), {}, space)
        assert ready, f"{pending} cannot be computed from {space}"
    assert space["f"] == pytest.approx(function(*tensors.values()).item())
    for i, name in enumerate(names):
        slope = ndl.grad(lambda *z: function(*z), i)(*tensors.values())
        assert space[f"df/d{name}"] == pytest.approx(slope.item())


@pytest.mark.parametrize("function", SMOOTH)
def test_the_three_answers_agree(function):
    rows = re.findall(r"^  df/d.+?((?: +[-+.\de]+){3})$", shown(function), re.M)
    assert len(rows) >= 2
    for row in rows:
        numerical, forward, reverse = map(float, row.split())
        assert forward == pytest.approx(reverse, rel=1e-7, abs=1e-12)
        assert numerical == pytest.approx(reverse, rel=1e-6, abs=1e-9)


def test_points():
    text = shown(lambda x, y: x * y, (3, 4.5), (1, 2))
    assert "at x = 3, y = 4.5\n" in text and "at x = 1, y = 2\n" in text
    assert "df/dx[5]" in shown(lambda x: x.sum(), np.ones(9))
    assert "df/dx[6]" not in shown(lambda x: x.sum(), np.ones(9))


def repeated(step, count):
    def function(x):
        for _ in range(count):
            x = step(x)
        return x

    return function


def test_values_that_are_used_again_and_again():
    """The formula is as long as the graph, not as the tree that it stands for."""
    found = formulas(repeated(lambda x: ops.sin(x) * (1 + x), 30), 0.5)
    assert "a1" in found and max(map(len, found.values())) < 1000
    assert sum(map(len, found.values())) < 10_000


@pytest.mark.parametrize("step", [lambda x: ops.sin(x), lambda x: x * 1.5 + x])
def test_what_is_too_long_for_a_formula(step):
    with pytest.raises(GradientError, match=r"show: .* \d+ operations\n.*at most 300"):
        ndl.show(repeated(step, 3000), 0.5)
    assert "df/dx" in formulas(repeated(step, 70), 0.5)


def test_a_function_may_assign_to_its_inputs():
    def function(x):
        x[0] = 5.0
        return x * x

    out = shown(function, np.array([1.0, 2.0]))
    assert out.splitlines()[0].startswith("f(x)  = ") and "x**2\n" not in out
    assert "at x = [1., 2.], u = [1., 2.]" in out
    rows = [line.split() for line in out.splitlines() if line.startswith("  df/dx")]
    assert rows == [["df/dx[0]", "0", "0", "0"], ["df/dx[1]", "8", "8", "8"]]


def test_names_that_inputs_have_mean_nothing_else():
    out = shown(lambda f: ops.exp(f)).splitlines()
    assert out[:2] == ["g(f)  = exp(f)", "dg/df = g"]
    point = (np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    table = np.array([5.0, 6.0])
    out = shown(lambda u, c1: u * c1 * ndl.Tensor(table, dtype="float64"), point)
    assert (
        "df/du    = v * c2 * c1" in out and "v = [1., 2.]" in out and "c2       : float64[2]" in out
    )


def test_errors():
    with pytest.raises(GradientError, match="got float"):
        ndl.show(lambda x: 1.0)
    with pytest.raises(GradientError, match="got int64"):
        ndl.show(lambda x: ops.argmax(x))
    with pytest.raises(GradientError, match="does not depend"):
        ndl.show(lambda x: ops.ones((), dtype="float64"))
    with pytest.raises(ArgumentError, match="expected a function, got int"):
        ndl.show(3)
    with pytest.raises(ArgumentError, match="a point has 1 values for 2 inputs"):
        ndl.show(lambda x, y: x * y, (1.0, 2.0), (1.0,))
    with pytest.raises(ArgumentError, match="6 values for 7 inputs"):
        ndl.show(lambda a, b, c, d, e, f, g: a * b * c * d * e * f * g)


def test_show_is_there_but_not_imported():
    """The command-line tools come at their first use."""
    program = "import sys, needle; print('needle.tools.show' in sys.modules, callable(needle.show))"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["False", "True"] and "show" in dir(ndl)


def test_a_region_of_the_user_shows_its_inputs_alone(capsys):
    ndl.show(lambda x: ndl.checkpoint(lambda a: a.sin() * a)(x))
    assert capsys.readouterr().out.splitlines()[0] == "f(x)  = checkpoint(x)"
