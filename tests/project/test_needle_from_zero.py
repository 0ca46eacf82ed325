"""docs/needle_from_zero.py: it runs, it is true of Needle's files, and it becomes a page."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "docs" / "needle_from_zero.py"
SOURCE = PROGRAM.read_text()


def test_it_runs_with_a_compiler_and_without_one(tmp_path):
    """On both of its devices the net learns; the program's own asserts check the rest."""
    runs = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM)], stdout=subprocess.PIPE, text=True, env=env, cwd=tmp_path
        )
        for env in (None, {"PATH": str(tmp_path)})  # an empty folder: no compiler there
    ]
    outputs = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    for output in outputs:
        loss, right = re.search(r"last loss (\S+), (\d+) of 64 right\n\Z", output).groups()
        assert float(loss) < 0.1
        assert int(right) == 64
    assert "there is no C compiler" in outputs[1]


def test_it_is_as_long_as_it_says():
    lengths = {
        node.name: sum(1 for line in ast.get_source_segment(SOURCE, node).splitlines() if line)
        for node in ast.parse(SOURCE).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    assert 800 <= len(SOURCE.splitlines()) <= 1200
    assert sum(lengths[name] for name in ("inputs_first", "walk", "backward")) <= 40
    assert lengths["Queue"] <= 60


def test_every_step_names_files_of_needle():
    steps = re.split(r"(?m)^# ## \d+\. ", SOURCE)[1:]
    assert len(steps) == 10
    for step in steps:
        text = re.sub(r"\n# ", " ", step)
        assert re.search(r"\*\*In Needle this is `\S+`, and it differs because\*\*", text), step[
            :40
        ]
        files = re.findall(r"`((?:python|src)/\S+)`", text)
        assert files and [path for path in files if not (ROOT / path).is_file()] == []


def test_the_page_has_all_of_it(monkeypatch):
    monkeypatch.syspath_prepend(str(PROGRAM.parent))
    from render_zero import page

    made = page(SOURCE)
    code = "\n".join(re.findall(r"(?ms)^```python\n(.*?)^```$", made))
    assert ast.dump(ast.parse(code)) == ast.dump(ast.parse(SOURCE))
    text = re.sub(r"(?ms)^```python\n.*?^```$", "", made)
    assert len(re.findall(r"(?m)^## ", text)) == 11
    assert not re.search(r"(?m)^(def|class|#include)\b", text)
