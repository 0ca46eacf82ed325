"""The engine of single numbers: derivatives by finite differences, networks, pictures."""

import math
from xml.etree import ElementTree

import pytest

from needle.scalar import MLP, Value, draw

FUNCTIONS = {
    "sum": lambda x, y: x + 3 + y + x,
    "difference": lambda x, y: 2 - x - y,
    "product": lambda x, y: x * y * x * 2,
    "quotient": lambda x, y: 1 / x + y / x / 3,
    "power": lambda x, y: x**3 + y**-1 + x**0.5 + x**0,
    "exp": lambda x, y: (x * y).exp() + y.log(),
    "tanh": lambda x, y: (x - y).tanh() * -x,
    "relu": lambda x, y: (x - y).relu() + (y - x).relu() * 2,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives(name):
    function, point = FUNCTIONS[name], (1.3, 0.7)
    inputs = [Value(v) for v in point]
    function(*inputs).backward()
    for i, x in enumerate(inputs):
        ends = []
        for step in (1e-6, -1e-6):
            moved = [Value(v + step * (i == j)) for j, v in enumerate(point)]
            ends.append(function(*moved).data)
        assert math.isclose(x.grad, (ends[0] - ends[1]) / 2e-6, rel_tol=1e-6, abs_tol=1e-8)


def test_a_long_chain_needs_no_recursion():
    x = y = Value(1.0)
    for _ in range(20_000):
        y = y + 0.5
    y.backward()
    assert x.grad == 1.0 and y.data == 10_001.0


def test_gradients_add_up_until_they_are_set_to_zero():
    model = MLP(2, [3, 1], seed=1)
    assert len(model.parameters()) == 3 * 3 + 4
    for _ in range(2):
        model([1.0, 2.0])[0].backward()
    assert model.layers[-1].neurons[0].bias.grad == 2.0
    model.zero_grad()
    assert not any(p.grad for p in model.parameters())
    with pytest.raises(ValueError, match="2 inputs was given 1"):
        model([1.0])


def test_the_picture_shows_every_value_and_edge():
    x = Value(2.0, "x < 3")
    picture = ElementTree.fromstring(draw(x * x + 1))
    tags = [element.tag.partition("}")[2] for element in picture.iter()]
    assert tags.count("rect") == 4 and tags.count("path") == 4
    assert "x < 3" in "".join(picture.itertext())
