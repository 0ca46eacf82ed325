"""``needle torture`` on a program that stands for ``needle``: what survives, and what does not."""

from __future__ import annotations

import sys

import pytest

from needle.tools import torture

PROGRAM = """
import json, os, sys, time
fault, command, *rest = sys.argv[1:]
run = rest[0] if command == "resume" else rest[rest.index("--out") + 1]
os.makedirs(f"{run}/checkpoints", exist_ok=True)
state = f"{run}/checkpoints/state"
lines = json.load(open(state)) if command == "resume" and os.path.exists(state) else []
open(f"{run}/config.json", "w").close()
if fault == "forgets" and command == "resume":
    lines = lines[1:]
while len(lines) < 30:
    lines.append({"step": len(lines), "split": "train", "seconds": time.time()})
    part = f"{run}/checkpoints/.part"
    json.dump(lines, open(part, "w"))
    os.replace(part, state)
    time.sleep(0.005)
if fault == "ends badly" and command == "resume":
    sys.exit("it was resumed")
if fault == "differs":
    lines[3]["loss"] = len(lines) + (command == "resume")
open(f"{run}/metrics.jsonl", "w").write("".join(json.dumps(x) + "\\n" for x in lines))
open(f"{run}/weights.safetensors", "w").write(str(len(lines)))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it looks at /proc")
@pytest.mark.parametrize(
    "fault, says",
    [
        ("none", None),
        ("forgets", "line 1 of metrics.jsonl is "),
        ("ends badly", "code 1: it was resumed"),
        ("differs", "line 4 of metrics.jsonl"),
    ],
)
def test_what_does_not_survive_is_found(tmp_path, monkeypatch, fault, says):
    monkeypatch.setattr(torture.tempfile, "mkdtemp", lambda prefix: str(tmp_path))
    program = [sys.executable, "-S", "-E", "-c", PROGRAM, fault]
    if says is None:
        report = torture.torture(["train", "x"], 0.04, command=program)
        assert report.runs > 0 and report.attacks.total() > 0
        assert f"{report.runs} runs of 200 steps" in report.text()
        return
    with pytest.raises(torture.TortureError) as caught:
        torture.torture(["train", "x"], 1, command=program)
    assert says in str(caught.value)
