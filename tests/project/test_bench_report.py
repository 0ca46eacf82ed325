"""The tables of bench/README.md are those of the committed results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def report(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    for name in ("report", "harness"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import report

    return report


def test_readme_is_up_to_date(report):
    assert report.README.read_text() == report.current(), "run: python bench/report.py"


def test_every_result_is_in_the_readme(report):
    text = report.README.read_text()
    for path in report.RESULTS.glob("*/*.json"):
        assert f"### {path.stem}" in text
        found = json.loads(path.read_text())
        names = found["figures"] if path.stem == "gpu" else [row["name"] for row in found["rows"]]
        for name in names:
            assert name.split(", ")[0] in text


def test_fraction_of_the_limit(report):
    limits = {"flops": 100.0, "bytes": {"64 Ki": 40.0, "1 Mi": 20.0, "16 Mi": 10.0}}
    assert report.fraction({"needle": {"median": 2.0}, "flops": 50.0}, limits) == 0.25
    large = {"needle": {"median": 1e9}, "flops": 0, "bytes": 5e9}
    assert report.fraction(large, limits) == 0.5
    assert report.fraction(large, {"missing": "no compiler"}) is None


@pytest.mark.parametrize(
    ("cpu", "folder"),
    [
        ("AMD EPYC, family 26", "amd-epyc-family-26"),
        ("AMD EPYC, family 25, AVX2", "amd-epyc-family-25-avx2"),
        ("AMD EPYC 9354 32-Core Processor", "amd-epyc-9354-32-core"),
        ("Intel(R) Xeon(R) Processor", "intel-xeon"),
        ("Intel(R) Xeon(R) Processor, model 167", "intel-xeon-model-167"),
        ("Intel(R) Core(TM) i7-8700 CPU @ 3.20GHz", "intel-core-i7-8700-cpu"),
        ("", "unknown"),
    ],
)
def test_results_lie_in_a_folder_of_the_processor(report, cpu, folder):
    import harness

    assert harness.folder(cpu) == folder


def test_the_median_process_counts(report):
    import harness

    processes = [{"eager": {"ratio": ratio, "median": ratio}} for ratio in (1.3, 0.9, 1.0)]
    assert harness.median_peers(processes)["eager"] == {
        "ratio": 1.0, "median": 1.0, "processes": 3,
    }  # fmt: skip
