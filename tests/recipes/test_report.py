"""Reports of runs: what they say, that they open, and what damaged folders give."""

import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from needle import cli
from needle.errors import DataError, OptionError
from needle.tools import report
from needle.tools.report import facts, svg
from needle.tools.report.svg import Line

CONFIG = {
    "recipe": "line", "parameters": 2, "model": ["Linear(1, 1)"], "optimizer": "SGD(lr=0.1)",
    "chosen": {"data": None, "steps": 30, "lr": 0.5, "seed": 0, "preset": None},
    "settings": {"steps": 30, "lr": 0.5}, "data": {"rows": 8}, "environment": {"isa": "v3"},
}  # fmt: skip


def make(folder, config=CONFIG, steps=30, **extra):
    """Write the files of a run."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**config, **extra}))
    lines = [
        {"split": "train", "step": i, "seconds": i / 10, "loss": 1 / i, "lr": 0.1, "memory": 5.0,
         "gradient_norm": 2.0, "rows_per_second": 100.0, "loader_seconds": 0.5}
        for i in range(1, steps + 1)
    ]  # fmt: skip
    lines.append({"split": "held-out", "step": steps, "seconds": 4, "loss": 0.25, "final": True})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    return folder


class Checker(HTMLParser):
    """Reads a page: its tags are closed in order, and nothing comes from outside."""

    VOID = ("meta", "img", "line", "circle", "polyline", "path", "rect")

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.tags = [], [], []
        self.feed(text)
        assert not [t for t in self.open if t not in ("html",)], self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            if name in ("src", "href"):
                assert value.startswith("data:"), value
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_a_report_shows_everything_of_a_run(tmp_path, capsys):
    run = make(tmp_path / "run")
    (run / "confusion.json").write_text('{"names": ["cat", "dog"], "counts": [[5, 1], [0, 7]]}')
    (run / "sample.txt").write_text("once <upon> a time")
    (run / "wrong.png").write_bytes(b"\x89PNG" + bytes(100))
    assert cli.main(["report", str(run)]) == 0
    text = (run / "report.html").read_text()
    assert capsys.readouterr().out.strip() == str(run / "report.html")
    seen = " ".join(Checker(text).texts)
    for word in (
        "Curves", "Learning rate", "Norms and update ratios", "Throughput", "Memory", "Loader",
        "Confusion matrix", "cat", "once <upon> a time", "The run is complete: 30 steps.",
        "needle train line --steps 30 --lr 0.5", "Linear(1, 1)", "wrong.png", "held-out",
    ):  # fmt: skip
        assert word in seen, word
    assert "prefers-color-scheme: dark" in text and "<script" not in text
    found = json.loads((run / "report.json").read_text())
    assert found["summary"]["loss"] == 0.25 and found["pictures"] == ["wrong.png"]
    assert found["series"]["loss"]["train"][3] == [4, 0.25]
    assert cli.main(["report", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found


def test_a_report_escapes_what_it_quotes(tmp_path):
    names = {"names": ["<script>alert(1)</script>"], "counts": [[1]]}
    run = make(tmp_path / "run", model=["<script>"], recipe='"><script>')
    (run / "confusion.json").write_text(json.dumps(names))
    page = report.write(run).read_text()
    assert "<script" not in page
    Checker(page)


def test_a_report_stays_small(tmp_path):
    run = make(tmp_path / "run", steps=20_000)
    for i in range(30):
        (run / f"epoch-{i:03}.png").write_bytes(bytes(100_000))
    for i in range(9):
        (run / f"other{i}.png").write_bytes(bytes(100_000))
    page = report.write(run, tmp_path / "page.html")
    assert page.stat().st_size < 1_000_000 and (tmp_path / "page.json").exists()
    assert "epoch-029.png" in page.read_text() and "epoch-028" not in page.read_text()


@pytest.mark.parametrize(
    "lines, verdict",
    [
        ([], "no figures yet"),
        ([{"split": "train", "step": 3, "loss": 1.0}], "not complete: 3 of 30 steps"),
        ([{"split": "train", "step": 3, "loss": "nan"}], "the run diverged"),
    ],
)
def test_the_verdict(tmp_path, lines, verdict):
    run = make(tmp_path / "run")
    (run / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    assert verdict in report.write(run).read_text()


def test_what_is_not_a_run(tmp_path):
    with pytest.raises(OptionError, match=r"no config\.json"):
        report.write(tmp_path)
    run = make(tmp_path / "run")
    for text in ("[1]", "{", "\x00", '{"a":' * 5000):
        (run / "config.json").write_text(text)
        with pytest.raises(DataError):
            report.write(run)
    (run / "config.json").write_text("{}")  # of an unknown version: shown as far as it goes
    (run / "metrics.jsonl").write_text('{"split": 1}\n{"split": "train", "step": 1}\n')
    with pytest.raises(DataError, match="line 1"):
        report.write(run)
    assert not (run / "report.html").exists()


def test_comparing_runs(tmp_path, capsys):
    first = make(tmp_path / "first")
    second = make(tmp_path / "second", settings={"steps": 30, "lr": 0.25})
    out = tmp_path / "both.html"
    assert cli.main(["compare", str(first), str(second), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"settings\.lr +0\.5 +0\.25", said) and "settings.steps" not in said
    seen = " ".join(Checker(out.read_text()).texts)
    assert "first train" in seen and "second held-out" in seen
    assert cli.main(["compare", str(first), str(second), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["differences"] == {
        "settings.lr": {"first": 0.5, "second": 0.25}
    }
    assert cli.main(["compare", str(first)]) == 2
    assert "at least two runs" in capsys.readouterr().err
    same = report.compare([first, first])
    assert not same["differences"] and len(set(same["runs"])) == 2


def test_ticks_are_round_and_inside():
    rng = np.random.default_rng(0)
    for low, width in zip(rng.normal(size=200) * 100, 10 ** rng.uniform(-6, 6, 200), strict=True):
        marks = svg.ticks(low, low + width)
        assert 2 <= len(marks) <= 7
        assert all(low - 1e-6 * width <= m <= low + width * (1 + 1e-6) for m in marks)
    assert svg.ticks(1.0, 1.0) == [1.0]


def test_a_line_of_many_points_keeps_its_extremes():
    y = np.sin(np.arange(10_000)) * 0.1
    y[1234], y[5678], y[9] = 5, -5, math.nan
    points = svg.thinned(range(10_000), y)
    assert len(points) <= svg.POINTS and points == sorted(points)
    assert (1234, 5) in points and (5678, -5) in points


def test_charts_of_little():
    assert svg.chart([Line("a", [], [])]) == "" == svg.chart([Line("a", [1], [math.inf])])
    one = svg.chart([Line("one", [3], [0.5])])
    assert "<svg" not in one and "<b>0.5</b><small>one, step 3</small>" in one
    assert "circle" in svg.chart([Line("one", [3], [0.5]), Line("two", [1, 2], [0.0, 1.0])])
    assert "1e-5" in svg.chart([Line("log", [1, 2, 3], [1e-5, 1.0, 1e5])], log=True)
    assert facts.finite({"a": [math.nan, 1.0, (math.inf,)]}) == {"a": ["nan", 1.0, ["inf"]]}
