"""The benchmarks' results: their summary, the tables made of it, and the page of every row."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
MODULES = ("harness", "record", "report", "tables", "timing")


@pytest.fixture(autouse=True)
def bench(monkeypatch):
    """Make the modules of bench/ importable."""
    monkeypatch.syspath_prepend(str(BENCH))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)


def results(**changes):
    """Return raw results of two rows with targets and a third without."""
    rows = [
        {"name": "slow", "group": "a", "target": 1.0, "ratio": 2.0, "met": False},
        {"name": "fast", "group": "b", "target": 1.0, "ratio": 0.5, "met": True},
        {"name": "free", "group": "b", "target": None, "ratio": 1.0, "met": None},
    ]
    for row in rows:
        peers = {"eager": {"median": 1.0}, "torch.compile": {"median": 2.0}}
        row |= {"needle": {"median": row["ratio"]}, "peers": peers, "best_peer": "eager"}
        row |= {"unit": "s", "ratio_min": row["ratio"]}
    mean = {"name": "all: geometric mean", "group": "", "target": 1.0, "ratio": 1.0, "met": True}
    return {
        "subject": "sort", "command": "python bench/sort.py", "date": "2020-02-03T04:05:06",
        "commit": "0123456789", "threads": 2, "versions": {"torch": "2.0", "driver": None},
        "machine": {"cpu": "A CPU", "cores": 4, "isa": ["avx2", "fma"]},
        "rows": [*rows, {**mean, "ratio_min": 1.0}], **changes,
    }  # fmt: skip


def test_an_entry_keeps_what_counts():
    import record

    assert record.entry(results()) == {
        "mean": 1.0, "worst": ["slow", 2.0], "rows": 3, "targets": 2, "met": 1,
        "peer": "PyTorch, eager and torch.compile", "groups": {"a": [2.0, 2.0], "b": [0.7071, 1.0]},
        "versions": {"torch": "2.0"}, "threads": 2, "date": "2020-02-03", "commit": "0123456789",
    }  # fmt: skip


def test_recording_changes_one_line(monkeypatch, tmp_path):
    import record

    before = record.SUMMARY.read_text()
    assert record.text(record.load()) == before
    monkeypatch.setattr(record, "SUMMARY", tmp_path / "summary.json")
    record.SUMMARY.write_text(before)
    known = {"cpu": "AMD EPYC, family 26", "cores": 2, "isa": ["avx2", "avx512f", "fma"]}
    record.record(results(machine=known))
    old, new = before.splitlines(), record.SUMMARY.read_text().splitlines()
    assert len(old) == len(new) and sum(a != b for a, b in zip(old, new, strict=True)) == 1
    record.record(results())  # of a machine that is new: a line for it, and one for the entry
    assert len(record.SUMMARY.read_text().splitlines()) == len(old) + 2
    with pytest.raises(
        ValueError, match="expected a whole run, got 'python bench/sort.py --quick'"
    ):
        record.record(results(command="python bench/sort.py --quick"))


def test_a_run_is_recorded_when_it_is_asked_to(monkeypatch, tmp_path):
    import harness
    import record

    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(record, "SUMMARY", tmp_path / "summary.json")
    rows = results()["rows"]
    for flags in (["--quick", "--save"], ["--only", "x", "--save"], []):
        harness.save("sort", rows, harness.parser("sort").parse_args(flags))
        assert not record.SUMMARY.exists()
    harness.save("sort", rows, harness.parser("sort").parse_args(["--compile", "--save"]))
    (machine,) = record.load()["subjects"]["sort"]
    raw = json.loads((record.RESULTS / machine / "sort.json").read_text())
    assert raw["command"] == "python bench/sort.py --compile" and raw["rows"] == rows


def test_the_summary_is_small_and_whole():
    import record
    import tables

    assert record.SUMMARY.stat().st_size <= 60_000
    summary = record.load()
    for subject, entries in summary["subjects"].items():
        for machine, entry in entries.items():
            assert machine in summary["machines"]
            assert {"versions", "date", "commit"} <= entry.keys(), (subject, machine)
            assert entry.get("met", 0) <= entry.get("targets", 0) <= entry.get("rows", 0)
    for subject, names in record.NAMED.items():
        if subject not in summary["subjects"]:  # not measured yet
            continue
        found = summary["subjects"][subject].values()
        assert set(names) <= {name for entry in found for name in entry.get("named", ())}
    assert all(any(line[1:]) for line in tables.areas(summary))


def test_the_tables_in_documents_are_those_of_the_summary():
    import tables

    for page in tables.PAGES:
        assert page.read_text() == tables.current(page), "run: python bench/tables.py"


def test_the_report_has_every_row(monkeypatch, tmp_path):
    import record
    import report

    monkeypatch.setattr(record, "RESULTS", tmp_path)
    assert "<summary>" in report.page() and "http" not in report.page()
    machine = "amd-epyc-family-26-avx512-2-cores"
    path = tmp_path / machine / "sort.json"
    path.parent.mkdir()
    path.write_text(json.dumps(results()))
    page = report.page()
    assert all(f"<td>{name}</td>" in page for name in ("slow", "fast", "free"))
    assert page.count('class="missed"') == 1


def test_fraction_of_the_limit():
    import report

    limits = {"flops": 100.0, "bytes": {"64 Ki": 40.0, "1 Mi": 20.0, "16 Mi": 10.0}}
    assert report.fraction({"needle": {"median": 2.0}, "flops": 50.0}, limits) == 0.25
    large = {"needle": {"median": 1e9}, "flops": 0, "bytes": 5e9}
    assert report.fraction(large, limits) == 0.5
    assert report.fraction(large, {"missing": "no compiler"}) is None


def test_machines_are_named_by_family_instruction_set_and_cores():
    import record

    for cpu, isa, cores, name in (
        ("AMD EPYC, family 26", ["avx2", "avx512f"], 2, "amd-epyc-family-26-avx512-2-cores"),
        ("AMD EPYC 9354 32-Core Processor", ["avx2"], 8, "amd-epyc-9354-32-core-avx2-8-cores"),
        ("Intel(R) Xeon(R) Processor, model 167", ["amx_bf16", "avx512f"], 2,
         "intel-xeon-model-167-amx-2-cores"),
        ("Intel(R) Core(TM) i7-8700 CPU @ 3.20GHz", [], 4, "intel-core-i7-8700-cpu-4-cores"),
        ("", [], 1, "1-cores"),
    ):  # fmt: skip
        assert record.key({"cpu": cpu, "isa": isa, "cores": cores}) == name


def test_the_median_process_counts():
    import harness

    processes = [{"eager": {"ratio": ratio, "median": ratio}} for ratio in (1.3, 0.9, 1.0)]
    assert harness.median_peers(processes)["eager"] == {
        "ratio": 1.0, "median": 1.0, "processes": 3,
    }  # fmt: skip
