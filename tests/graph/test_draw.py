"""needle.draw: pages whose pictures have every node and edge."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

import needle as ndl
from needle import nn, ops, optim
from needle.errors import ArgumentError
from needle.tools.draw import page
from needle.tools.layout import MOST, Stop, layers


class Tags(HTMLParser):
    """The tags of a page; each must be closed."""

    VOID = {"meta", "input", "rect", "path"}

    def __init__(self, text):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)
        assert self.open == ["html", "body"] or self.open == ["html"] or not self.open

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def of(self, kind):
        return [a for _, a in self.found if kind in (a.get("class") or "").split()]


def test_a_tensor_is_drawn_with_its_nodes_and_edges():
    x = ndl.Tensor([1.0, 2.0], requires_grad=True)
    x.name = "x<1>"
    text = page((ops.tanh(x * 3) * x).sum())
    tags = Tags(text)
    assert len(tags.of("node")) == 6 and len(tags.of("edge")) == 6
    assert len(tags.of("given")) == 2 and len(tags.of("result")) == 1
    ids = {a["data-node"] for a in tags.of("node")}
    assert {a[k] for a in tags.of("edge") for k in ("data-from", "data-to")} <= ids
    assert "x&lt;1&gt;" in text and ">3<" in text and "multiply *" in text


def test_a_compiled_function_is_drawn_before_and_after_its_passes():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.1))
    optimizer = optim.Adam(model.parameters())
    ndl.manual_seed(0)
    step = ndl.compile(lambda x: optimizer.minimize((model(x) ** 2).mean()))
    step(ndl.ones(2, 4))
    text = page(step)
    found = re.findall(r"as (traced|it runs): (\d+) operations", text)
    assert [name for name, _ in found] == ["traced", "it runs"]
    assert int(found[0][1]) > int(found[1][1]) > 5
    assert "running_mean" in text and "state of 0.weight" in text and "argument 1" in text
    assert f"at {__file__}:" in text
    Tags(text)


def test_a_page_is_written_and_needs_nothing_else(tmp_path):
    path = tmp_path / "page.html"
    ndl.draw(ndl.ones(2, requires_grad=True) * 2, path)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and "http" not in text


def test_what_has_no_graph_is_refused(tmp_path):
    for what, problem in (
        (3, "expected a tensor or a compiled function, got int"),
        ([ndl.ones(1), None], "got None"),
        (ndl.ones(2), "the tensor has no graph"),
        ([], "the tensor has no graph"),
        (ndl.compile(lambda x: x), "no program yet"),
    ):
        with pytest.raises(ArgumentError, match=problem):
            ndl.draw(what, tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_layers_follow_the_longest_path():
    below = {"a": [], "b": ["a"], "c": ["b"], "d": ["a", "c"], "late": [], "e": ["d", "late"]}
    found = layers(below)
    assert [[x for x in row if not isinstance(x, Stop)] for row in found.rows] == [
        ["a"], ["b"], ["c"], ["d", "late"], ["e"],
    ]  # fmt: skip
    assert found.stops == {("a", "d"): [Stop("a", "d", 1), Stop("a", "d", 2)]}


def test_edges_do_not_cross_where_they_need_not():
    below = {f"x{i}": [] for i in range(6)} | {f"y{i}": [f"x{5 - i}"] for i in range(6)}
    top, bottom = layers(below).rows
    assert [x[1] for x in top] == [below[y][0][1] for y in bottom]


def test_wide_layers_are_several_rows():
    below = {i: [] for i in range(3 * MOST)} | {"all": list(range(3 * MOST))}
    rows = [[x for x in row if not isinstance(x, Stop)] for row in layers(below).rows]
    assert list(map(len, rows)) == [MOST, MOST, MOST, 1]


def test_long_graphs_are_laid_out_without_recursion():
    below = {0: []} | {i: [i - 1] for i in range(1, 5000)}
    assert len(layers(below).rows) == 5000
