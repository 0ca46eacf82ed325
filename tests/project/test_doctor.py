"""``needle doctor`` finds what is there, and what computes wrongly."""

from __future__ import annotations

import json

import numpy as np
import pytest

import needle as ndl
from needle import cli, config, core, ops
from needle.backend.numpy import NumpyBackend
from needle.tools import doctor


@pytest.fixture
def few_ops(monkeypatch):
    """The doctor looks at three ops only."""
    monkeypatch.setattr(ops, "all_ops", lambda: [ops.Add, ops.Sum, ops.MatMul])


def test_all_is_well(few_ops):
    found = doctor.examine()
    assert found["ok"] and found["needle"] == ndl.__version__ and found["numpy"] == np.__version__
    enabled = {b["name"] for b in found["backends"] if b["enabled"]}
    assert set(found["ops"]) == enabled and "cpu_numpy" in enabled
    for check in found["ops"].values():
        assert check["ops"] == 3 and check["samples"] > 3 and check["failures"] == []
    for backend in found["backends"]:
        assert backend["enabled"] == (backend["reason"] is None)
    assert found["threads"] >= 1 and found["memory"]["total"] > 2**20
    if core.native is not None:
        assert found["instruction_set"] in found["instruction_sets"]
    else:
        assert found["instruction_set"] is None and core.native_error in found["native"]


def test_the_disk(tmp_path):
    found = doctor.check_disk(str(tmp_path))
    assert found["free"] > 0 and found["locks"] == "by the system" and found["problem"] is None
    assert list(tmp_path.iterdir()) == []
    missing = doctor.check_disk(str(tmp_path / "no"))
    assert missing["problem"] == "No such file or directory" and missing["locks"] == "none"


@pytest.mark.skipif(core.native is None, reason="needs the native module")
def test_every_instruction_set_is_checked(few_ops, monkeypatch):
    found = doctor.examine()
    sets = {found["instruction_set"], *found["other_instruction_sets"]}
    assert sets == set(core.native.supported_isas())
    for isa, check in found["other_instruction_sets"].items():
        assert check["ops"] == 3 and check["failures"] == []
        assert f"with NEEDLE_ISA={isa}; 3 ops" in doctor.as_text(found)


def test_an_instruction_set_that_crashes_is_a_finding(few_ops, monkeypatch):
    monkeypatch.setattr(doctor, "_CHILD", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    (problem,) = doctor.check_isa("v3")["failures"]
    assert "signal 4" in problem


@pytest.mark.skipif(core.native is None, reason="needs the native module")
def test_onednn_is_looked_for(few_ops, monkeypatch):
    found = doctor.examine()["onednn"]
    assert found["enabled"] == (doctor.onednn.find()[0] is not None) and found["failures"] == []
    monkeypatch.setattr(doctor.onednn, "find", lambda: (None, "not installed"))
    text = doctor.as_text(doctor.examine())
    assert "without oneDNN: not installed" in text and "no problems found" in text


def test_text_names_every_backend(few_ops):
    text = doctor.as_text(doctor.examine())
    for where in ndl.all_devices():
        assert where.name in text
        if not where.enabled():
            assert f"missing: {where.reason()}" in text
    assert "no problems found" in text


def test_json(few_ops, capsys):
    assert cli.main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_a_wrong_kernel_is_found_and_the_exit_code_says_so(few_ops, monkeypatch, capsys):
    right = NumpyBackend.reduce

    def wrong(self, function, out, x, axes):
        right(self, function, out, x, axes)
        self.elementwise("add", out, out, out)

    monkeypatch.setattr(NumpyBackend, "reduce", wrong)
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "FAILED Sum-" in out and "FAILED Add-" not in out
    assert "expected" in out and "problems found" in out


def test_a_kernel_that_raises_is_a_finding(few_ops, monkeypatch):
    def broken(self, *arrays):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(ops.MatMul, "compute", broken)
    found = doctor.examine()
    failures = found["ops"]["cpu_numpy"]["failures"]
    assert not found["ok"] and failures
    assert all(text.startswith("MatMul-") and "no such kernel" in text for text in failures)


def test_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    with ndl.config(threads=5):
        assert ndl.config.thread_count() == 5
    with ndl.config(threads=0):  # whatever NEEDLE_THREADS says here
        assert ndl.config.thread_count() == 3
        for no_number in ("\N{SUPERSCRIPT TWO}", "x", "", "9" * 5000):
            monkeypatch.setenv("OMP_NUM_THREADS", no_number)
            assert 1 <= ndl.config.thread_count() <= ndl.config.MOST_THREADS
        monkeypatch.delenv("OMP_NUM_THREADS")
        assert ndl.config.thread_count() == ndl.config.cores()


QUOTAS = {
    "unified": ({"cpu.max": "150000 100000"}, "0::/", 2),
    "unlimited": ({"cpu.max": "max 100000"}, "0::/", 64),
    "around it": ({"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b", 3),
    "version 1": (
        {"cpu/a/cpu.cfs_quota_us": "50000", "cpu/a/cpu.cfs_period_us": "100000"},
        "4:memory:/x\n1:cpu:/a", 1,
    ),
    "joined": (
        {"cpu,cpuacct/cpu.cfs_quota_us": "400000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
        "2:cpu,cpuacct:/not/here", 4,
    ),
    "none of version 1": (
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "1:cpu:/", 64,
    ),
    "damaged": ({"cpu.max": "many few"}, "0::/\nnothing", 64),
}  # fmt: skip


@pytest.mark.parametrize("name", QUOTAS)
def test_cores_obey_a_containers_quota(name, monkeypatch, tmp_path):
    files, groups, expected = QUOTAS[name]
    for path, text in files.items():
        (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name / path).write_text(text + "\n")
    (tmp_path / "groups").write_text(groups + "\n")
    found = list(config._quotas(str(tmp_path / name), str(tmp_path / "groups")))
    monkeypatch.setattr(config, "_quotas", lambda: iter(found))
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(64), raising=False)
    assert config.cores() == expected
