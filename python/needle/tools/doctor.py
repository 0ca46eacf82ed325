"""``needle doctor``: what this installation is, and whether it computes rightly."""

from __future__ import annotations

import json
import os
import platform
import sys
from typing import Any

import numpy as np

from needle import config, core, device, executor, ops
from needle.device import Device
from needle.testing.checks import Case, cases
from needle.testing.tolerance import assert_close

Findings = dict[str, Any]


def examine() -> Findings:
    """Return everything the doctor finds; ``findings["ok"]`` says whether all is well."""
    import needle

    checks = {where.name: check_ops(where) for where in device.all_devices() if where.enabled()}
    return {
        "needle": needle.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "backends": [_backend(where) for where in device.all_devices()],
        "default_device": device.default_device().name,
        "instruction_set": core.native.isa() if core.native is not None else None,
        "instruction_sets": core.native.supported_isas() if core.native is not None else [],
        "native": core.native_error or "in use",
        "threads": config.thread_count(),
        "cores": config.cores(),
        "memory": _memory(),
        "switches": {name: v for name, v in vars(config.current()).items() if v not in ("", 0)},
        "ops": checks,
        "ok": all(not check["failures"] for check in checks.values()),
    }


def _backend(where: Device) -> dict[str, Any]:
    return {"name": where.name, "enabled": where.enabled(), "reason": where.reason()}


def _memory() -> dict[str, int | None]:
    """Return the bytes of memory that this machine has, and those that are free."""
    found: dict[str, int | None] = {"total": None, "available": None}
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        page = os.sysconf("SC_PAGE_SIZE")
        found["total"] = page * os.sysconf("SC_PHYS_PAGES")
        if "SC_AVPHYS_PAGES" in os.sysconf_names:
            found["available"] = page * os.sysconf("SC_AVPHYS_PAGES")
    return found


# ---- ops -------------------------------------------------------------------------------


def check_ops(where: Device) -> dict[str, Any]:
    """Run every op's samples in float32 on a device, and compare them with the NumPy device.

    The NumPy device itself is compared with the references in float64.

    Returns:
        The number of ops and samples, and a line for each sample that failed.
    """
    chosen = [case for op in ops.all_ops() for case in cases(op)]
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
    """Return what is wrong with a sample on a device, in a line, or None."""
    reference = device.cpu_numpy()
    kind = "float32" if "float32" in case.dtypes else case.dtypes[0]
    try:
        expected = _expected(case) if where == reference else _run(case, kind, reference)
        for found, exact in zip(_run(case, kind, where), expected, strict=True):
            assert_close(found, exact, kind, case.length(), repr(case.make()))
    except Exception as error:  # whatever goes wrong in an op is a finding, not the doctor's end
        line = (str(error).strip() or "no message").splitlines()[0]
        return f"{case}: {type(error).__name__}: {line}"
    return None


def _run(case: Case, kind: str, where: Device) -> list[Any]:
    """Return the results of a sample as NumPy arrays."""
    value = executor.value_of(case.make()(*case.inputs(kind, where)))
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
    """Return the findings for people."""
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
        ("switches", " ".join(f"{k}={v}" for k, v in findings["switches"].items())),
    ]
    lines = [f"{name:10} {text}" for name, text in rows]
    lines += ["", "backends"]
    for backend in findings["backends"]:
        lines += _backend_lines(backend, findings)
    lines += ["", "all is well" if findings["ok"] else "something is wrong: see FAILED above"]
    return "\n".join(lines)


def _backend_lines(backend: dict[str, Any], findings: Findings) -> list[str]:
    name = backend["name"]
    if not backend["enabled"]:
        return [f"  {name:10} missing: {backend['reason']}"]
    check = findings["ops"][name]
    failures = check["failures"]
    default = ", default" if name == findings["default_device"] else ""
    against = "its references" if name == "cpu_numpy" else "the numpy backend"
    verdict = f"{len(failures)} FAILED" if failures else "passed"
    line = f"  {name:10} enabled{default}; {check['ops']} ops, {check['samples']} samples"
    return [f"{line} against {against}: {verdict}", *(f"    FAILED {text}" for text in failures)]


def _gigabytes(size: int | None) -> str:
    return "?" if size is None else f"{size / 2**30:.1f} GiB"
