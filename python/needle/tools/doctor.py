"""``needle doctor``: describe this installation, and check its results."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from needle import config, core, devices, executor, io, ops
from needle.backend import onednn
from needle.backend.memory import size_text
from needle.devices import Device
from needle.errors import NeedleError
from needle.testing.checks import Case, cases
from needle.testing.tolerance import assert_close
from needle.tools.limits import Limits, limits
from needle.tools.limits import as_text as limits_text

Findings = dict[str, Any]


def examine() -> Findings:
    """Return all findings; ``findings["ok"]`` is true if there are no problems."""
    import needle

    checks = {where.name: check_ops(where) for where in devices.all_devices() if where.enabled()}
    chosen = core.native.isa() if core.native is not None else None
    possible = core.native.supported_isas() if core.native is not None else []
    others = {isa: check_isa(isa) for isa in possible if isa != chosen}
    library = check_onednn()
    return {
        "needle": needle.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "backends": [_backend(where) for where in devices.all_devices()],
        "default_device": devices.default_device().name,
        "instruction_set": chosen,
        "instruction_sets": possible,
        "native": core.native_error or "in use",
        "threads": config.thread_count(),
        "cores": config.cores(),
        "memory": _memory(),
        "disk": check_disk(),
        "limits": limits(devices.default_device())._asdict(),
        "switches": {name: v for name, v in vars(config.current()).items() if v not in ("", 0)},
        "ops": checks,
        "other_instruction_sets": others,
        "onednn": library,
        "ok": not any(c["failures"] for c in (*checks.values(), *others.values(), library)),
    }


def _backend(where: Device) -> dict[str, Any]:
    enabled = where.enabled()
    info = where.backend.memory_info() if enabled else {}
    return {"name": where.name, "enabled": enabled, "reason": where.reason(), "memory": info}


def _memory() -> dict[str, int | None]:
    """Return the total and the free bytes of memory of this machine."""
    found: dict[str, int | None] = {"total": None, "available": None}
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        page = os.sysconf("SC_PAGE_SIZE")
        found["total"] = page * os.sysconf("SC_PHYS_PAGES")
        if "SC_AVPHYS_PAGES" in os.sysconf_names:
            found["available"] = page * os.sysconf("SC_AVPHYS_PAGES")
    return found


def check_disk(folder: str | None = None) -> dict[str, Any]:
    """Return what a folder offers to runs: free bytes, kind of locks, and a checkpoint's way.

    Args:
        folder: the current one for None.

    Returns:
        "folder", "free", "locks" ("by the system", "by file" or "none") and "problem": why a
        checkpoint cannot be saved and loaded there, or None.
    """
    where = os.path.abspath(folder or os.curdir)
    found: dict[str, Any] = {"folder": where, "free": None, "locks": "none", "problem": None}
    try:
        found["free"] = shutil.disk_usage(where).free
        with tempfile.TemporaryDirectory(prefix=".needle-doctor-", dir=where) as place:
            found["locks"] = _locks(place)
            checkpoints = io.Checkpoints(os.path.join(place, "checkpoints"))
            checkpoints.save(1, {"part": {"x": np.arange(3.0)}, "step": 1})
            if checkpoints.load()["part"]["x"].tolist() != [0.0, 1.0, 2.0]:
                found["problem"] = "a checkpoint does not come back as it was saved"
    except (OSError, NeedleError) as error:
        found["problem"] = getattr(error, "strerror", None) or str(error)
    return found


def _locks(folder: str) -> str:
    with io.FolderLock(folder) as lock:
        return "by file" if lock.by_file else "by the system"


# ---- ops -------------------------------------------------------------------------------


def check_isa(isa: str) -> dict[str, Any]:
    """Run ``check_ops`` on the native CPU with another instruction set, in a child process."""
    names = [op.__name__ for op in ops.all_ops()]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _CHILD, *names],
        env=config.environment(isa=isa), capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode == 0:
        return dict(json.loads(done.stdout))
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"code {done.returncode}"
    last = (done.stderr.strip() or "no output").splitlines()[-1]
    return {"ops": 0, "samples": 0, "failures": [f"the process ended with {how}: {last}"]}


def check_onednn() -> dict[str, Any]:
    """Return whether oneDNN is available, its version or the reason, and ``check_ops`` results."""
    if core.native is None:
        return {"enabled": False, "found": "needs the native module", "failures": []}
    opened, found = onednn.find()
    if opened is None:
        return {"enabled": False, "found": found, "failures": []}
    names = [op.__name__ for op in ops.all_ops() if op.__name__.startswith("Convolution")]
    with config.override(conv="onednn"):
        return {"enabled": True, "found": found, **check_ops(devices.as_device("cpu"), names)}


_CHILD = """
import json, sys
from needle import devices
from needle.tools import doctor
print(json.dumps(doctor.check_ops(devices.as_device("cpu"), sys.argv[1:])))
"""


def check_ops(where: Device, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Run every op's samples in float32 on a device, and compare the results with the NumPy device.

    The results of the NumPy device itself are compared with the references in float64.

    Args:
        where: the device.
        names: names of op classes; all for None.

    Returns:
        The numbers of ops and samples, and a line for each failed sample.
    """
    wanted = [op for op in ops.all_ops() if names is None or op.__name__ in names]
    chosen = [case for op in wanted for case in cases(op)]
    failures = []
    for case in chosen:
        problem = _problem(case, where)
        if problem is not None:
            failures.append(problem)
    return {
        "ops": len({case.op for case in chosen}),
        "samples": len(chosen),
        "failures": failures,
    }


def _problem(case: Case, where: Device) -> str | None:
    """Return one line about the failure of a sample on a device, or None."""
    reference = devices.cpu_numpy()
    kind = "float32" if "float32" in case.dtypes else case.dtypes[0]
    try:
        expected = _expected(case) if where == reference else _run(case, kind, reference)
        for found, exact in zip(_run(case, kind, where), expected, strict=True):
            assert_close(found, exact, kind, case.length(), repr(case.make()))
    except Exception as error:  # an error of an op is a finding, and must not end the doctor
        line = (str(error).strip() or "no message").splitlines()[0]
        return f"{case}: {type(error).__name__}: {line}"
    return None


def _run(case: Case, kind: str, where: Device) -> list[Any]:
    """Return the results of a sample as NumPy arrays."""
    value = executor.primal_array(case.make()(*case.inputs(kind, where)))
    return [part.numpy() for part in (value if isinstance(value, tuple) else (value,))]


def _expected(case: Case) -> list[Any]:
    assert case.sample.reference is not None
    with np.errstate(all="ignore"):
        result = case.sample.reference(*case.arrays())
    return list(result) if isinstance(result, (tuple, list)) else [result]


# ---- text ------------------------------------------------------------------------------


def as_json(findings: Findings) -> str:
    """Return the findings as JSON."""
    return json.dumps(findings, indent=2)


def as_text(findings: Findings) -> str:
    """Return the findings as readable text."""
    memory = findings["memory"]
    isa, others = findings["instruction_set"], ", ".join(findings["instruction_sets"])
    rows = [
        ("needle", findings["needle"]),
        ("python", f"{findings['python']}  ({sys.executable})"),
        ("numpy", findings["numpy"]),
        ("platform", findings["platform"]),
        ("kernels", f"{isa}  (possible here: {others})" if isa else f"none: {findings['native']}"),
        ("threads", f"{findings['threads']} of {findings['cores']} cores"),
        ("memory", f"{_gigabytes(memory['available'])} free of {_gigabytes(memory['total'])}"),
        ("speed", limits_text(Limits(**findings["limits"]))),
        ("disk", _disk_text(findings["disk"])),
        ("switches", " ".join(f"{k}={v}" for k, v in findings["switches"].items())),
    ]
    lines = [f"{name:10} {text}" for name, text in rows]
    lines += ["", "backends"]
    for backend in findings["backends"]:
        lines += _backend_lines(backend, findings)
    lines += ["", "no problems found" if findings["ok"] else "problems found: see FAILED above"]
    return "\n".join(lines)


def _backend_lines(backend: dict[str, Any], findings: Findings) -> list[str]:
    name = backend["name"]
    if not backend["enabled"]:
        return [f"  {name:10} missing: {backend['reason']}"]
    default = ", default" if name == findings["default_device"] else ""
    against = "its references" if name == "cpu_numpy" else "the numpy backend"
    lines = _verdict(f"{name:10} enabled{default}; ", findings["ops"][name], against)
    memory = backend["memory"]
    if memory["peak"]:
        sizes = ", ".join(f"{size_text(memory[k])} {k}" for k in ("live", "cached", "peak"))
        lines.append(f"  {'':10} memory: {sizes}")
    if name == "cpu":
        for isa, check in findings["other_instruction_sets"].items():
            lines += _verdict(f"{'':10} with NEEDLE_ISA={isa}; ", check, against)
        lines += _onednn_lines(findings["onednn"], against)
    return lines


def _onednn_lines(check: dict[str, Any], against: str) -> list[str]:
    if not check["enabled"]:
        return [f"  {'':10} without oneDNN: {check['found']}"]
    start = f"{'':10} with NEEDLE_CONV=onednn ({check['found']}); "
    return _verdict(start, check, against)


def _verdict(start: str, check: dict[str, Any], against: str) -> list[str]:
    failures = check["failures"]
    verdict = f"{len(failures)} FAILED" if failures else "passed"
    line = f"  {start}{check['ops']} ops, {check['samples']} samples against {against}: {verdict}"
    return [line, *(f"    FAILED {text}" for text in failures)]


def _disk_text(disk: dict[str, Any]) -> str:
    told = f"{_gigabytes(disk['free'])} free in {disk['folder']}; locks {disk['locks']}; "
    return told + ("checkpoints work" if disk["problem"] is None else disk["problem"])


def _gigabytes(size: int | None) -> str:
    return "?" if size is None else f"{size / 2**30:.1f} GiB"
