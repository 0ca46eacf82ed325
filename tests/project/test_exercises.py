"""docs/read_the_source.md: what it mentions exists, and its answers are right."""

from __future__ import annotations

import ast
import math
import re
import sys
from pathlib import Path

import pytest

from needle import core, devices
from needle.testing.checks import check_op

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "read_the_source.md").read_text()
SECTIONS = re.findall(r"(?ms)^## \d+\. `(\S+)`\n(.*?)(?=^## )", PAGE)


def defined(path: Path) -> set[str]:
    """Return the functions, classes, methods and variables that a file defines."""
    text = path.read_text()
    if path.suffix != ".py":
        return set(re.findall(r"(?m)^\S.*?\b(\w+)\(.*\{$", text))
    names = set()
    for node in ast.walk(ast.parse(text)):
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for part in (
            getattr(node, "body", ()) if isinstance(node, (ast.Module, ast.ClassDef)) else ()
        ):
            targets = (
                [part.target] if isinstance(part, ast.AnnAssign) else getattr(part, "targets", ())
            )
            names |= {prefix + target.id for target in targets if isinstance(target, ast.Name)}
            names |= {prefix + part.name} if hasattr(part, "name") else set()
    return names


def test_the_path_is_short_and_names_what_is_there():
    files = [ROOT / path for path, _ in SECTIONS]
    assert 0 < len(files) <= 10
    assert sum(len(path.read_text().splitlines()) for path in files) <= 6000
    for path, (_, text) in zip(files, SECTIONS, strict=True):
        names = set(re.findall(r"\*\*`([\w.]+)`\*\*", text))
        assert len(names) >= 3
        assert names - defined(path) == set(), path


def test_every_file_that_it_mentions_is_there():
    mentioned = set(re.findall(r"`((?:python|src|docs)/[\w./]+)`", PAGE))
    assert len(mentioned) > len(SECTIONS)
    assert [path for path in mentioned if not (ROOT / path).is_file()] == []


@pytest.fixture
def exercises(monkeypatch):
    """The answers, with a registry of devices of their own."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    monkeypatch.setattr(devices, "_devices", dict(devices._devices))
    import exercises

    yield exercises
    del sys.modules["exercises"]


def test_the_answers_are_right(exercises):
    assert len(re.findall(r"(?m)^### \d", PAGE)) == len(re.findall("<summary>", PAGE)) == 5
    assert exercises.kept_values() == (["x", "exp"], [])
    check_op(exercises.Softsign2, devices.cpu_numpy())
    native = core.native is not None
    assert exercises.calls_of_the_definition(fast="on") == (0 if native else 1)
    assert exercises.calls_of_the_definition(fast="off") == 1
    assert exercises.calls_of_the_definition(mode="lazy") == 1
    assert exercises.counted() == {"multiply": 4, "exp": 1, "add": 1}
    assert exercises.slope_by_hand(2.0) == pytest.approx(math.cos(2) * 2 + math.sin(2), abs=1e-6)


def test_the_page_names_the_answers(exercises):
    answers = re.findall(r"See ((?:`\w+`(?: and )?)+)", PAGE)
    assert len(answers) == 5
    for name in re.findall(r"`(\w+)`", " ".join(answers)):
        assert hasattr(exercises, name), name
