"""The front door: README.md is short, its figures are measured, its links lead to files."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SUMMARY = json.loads((ROOT / "bench" / "summary.json").read_text())["subjects"]
MACHINE = "intel-xeon-model-207-avx512-2-cores"
PAGES = ("README.md", "bench/README.md", "docs/performance.md", "docs/course.md")
FOLDERS = (".ci", "apps", "bench", "cmake", "docs", "python", "src", "tests")
MADE, RAW = {".so", ".pyc", ".html"}, ROOT / "bench" / "results"
"""Suffixes, and a folder, of files that a checkout does not have."""


def quoted(subject: str, name: str) -> str:
    """Return the ratio of a row that the summary keeps."""
    ours, theirs, _ = SUMMARY[subject][MACHINE]["named"][name]
    return f"{ours / theirs:.2f}"


def test_readme_is_short_and_in_order():
    assert len(README.split()) <= 700
    assert len((ROOT / "bench" / "README.md").read_text().splitlines()) <= 150
    parts = [
        "# Needle", "- **You can read it.**", "](docs/layers.svg)", "## Try it", "## An example",
        "## Where to go", "## How fast", "## What is not there",
    ]  # fmt: skip
    places = [README.index(part) for part in parts]
    assert places == sorted(places)


def test_the_figures_in_the_text_are_those_of_the_summary():
    """The table is compared in test_bench_report.py."""
    step = quoted("resnet", "training step, the course's ResNet-9, Adam, batch 128")
    assert f"takes {step} of the time that PyTorch needs" in README
    peak = quoted("memory", "peak memory: import, MLP-ResNet, 200 steps")
    assert f"needs {peak} of PyTorch's memory" in README
    found = [entries[MACHINE] for entries in SUMMARY.values() if MACHINE in entries]
    largest = max(entry["worst"][1] for entry in found)
    assert f"The largest ratio among all rows on this machine is {largest:.2f}." in README
    table = README[README.index("<!-- table front") : README.index("<!-- end of table")]
    assert len(table.strip().splitlines()) - 4 <= 6


def test_links_lead_to_files():
    for page in PAGES:
        path = ROOT / page
        links = re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", path.read_text())
        inside = [link for link in links if "://" not in link]
        missing = [link for link in inside if not (path.parent / link).exists()]
        assert inside and missing == [], f"{page} links to files that do not exist: {missing}"


def test_a_checkout_is_small():
    """At most 6 MB, without what is built or measured there."""
    files = [path for path in ROOT.iterdir() if path.is_file()]
    files += [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    kept = [path for path in files if path.suffix not in MADE and RAW not in path.parents]
    large = sorted(((path.stat().st_size, str(path)) for path in kept), reverse=True)
    assert sum(size for size, _ in large) <= 6 * 2**20, f"the largest: {large[:10]}"
