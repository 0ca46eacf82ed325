"""The error of exhausted memory, with the largest arrays that use it.

Where memory ends, the system's or the setting ``memory_limit``, blocks that are kept for reuse go
back first; then OutOfMemoryError names the largest arrays and who holds them, from a registry of
all arrays and tensors that only their allocation touches, not their reuse. The native gate hands
the case to ``executor.apply``, which tries again and says in which op.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from needle import config, core
from needle.backend.array import arrays
from needle.errors import OutOfMemoryError, explain

SHOWN = 8
"""Number of kinds of arrays in a report."""

origins: Callable[[], dict[int, str]] = dict
"""A function that returns the origin of arrays by identity; the executor sets it."""

_RULE = "memory in use, cached and requested must fit into the limit and into the system"
_ADVICE = (
    "a smaller batch; checkpoint(function) to keep less for gradients; no_grad() where you need "
    "no gradients; `del` unused tensors"
)
_LINES = "; NEEDLE_DEBUG=1 names the lines that made the tensors"


def real() -> AbstractContextManager[None]:
    """Return a block that computes even within a dry run: for arrays that are kept for later."""
    return nullcontext() if core.native is None else core.native.Real()


def _advice() -> str:
    return _ADVICE if config.current().debug >= 1 else _ADVICE + _LINES


def exhausted(backend: Any, nbytes: int) -> OutOfMemoryError:
    """Return the error for ``nbytes`` bytes that a device cannot allocate.

    Args:
        backend: the device's ``Backend``.
        nbytes: number of bytes requested.
    """
    info = backend.memory_info()
    limit = size_text(info["limit"]) if info["limit"] else "none but the system's"
    problem = (
        f"no memory for {size_text(nbytes)} ({nbytes} bytes) on {backend.name}\n"
        f"  in use: {size_text(info['live'])}, cached: {size_text(info['cached'])}, "
        f"limit: {limit}"
    )
    rows = _largest(backend.name)
    if rows:
        problem = "\n    ".join([f"{problem}\n  largest:", *rows])
    error = explain(OutOfMemoryError, "allocate", problem, (), _RULE, _advice())
    error.requested, error.memory = nbytes, info
    return error


def ask(backend: Any, nbytes: int) -> None:
    """Check that memory fits into the limit before work begins elsewhere.

    Raises:
        OutOfMemoryError: if another ``nbytes`` bytes would exceed the limit.
    """
    info = backend.memory_info()
    if info["limit"] and info["live"] + nbytes > info["limit"]:
        raise exhausted(backend, nbytes)


def typed(error: MemoryError) -> OutOfMemoryError:
    """Return a MemoryError of NumPy or Python as OutOfMemoryError."""
    if isinstance(error, OutOfMemoryError):
        return error
    problem = f"the system has no memory left: {str(error) or type(error).__name__}"
    return explain(OutOfMemoryError, "allocate", problem, (), _RULE, _advice())


def _largest(device: str) -> list[str]:
    """Return a line for each kind of the largest blocks of a device."""
    known = origins()
    blocks: dict[int, Any] = {}
    for x in arrays():
        if x.device.name == device and hasattr(x.handle, "ptr"):
            place = x.handle.ptr()
            other = blocks.get(place)
            if other is None or (id(x) in known, x.size) > (id(other) in known, other.size):
                blocks[place] = x
    rows: dict[str, list[int]] = {}
    for x in blocks.values():
        origin = known.get(id(x), "an array without a tensor, such as an optimizer's")
        rows.setdefault(f"{x.dtype}{list(x.shape)}  {origin}", []).append(x.handle.nbytes)
    ordered = sorted(rows.items(), key=lambda row: -sum(row[1]))
    return [f"{size_text(sum(n))}{_times(n)}  {row}" for row, n in ordered[:SHOWN]]


def _times(sizes: list[int]) -> str:
    return f" = {len(sizes)} x {size_text(sizes[0])}" if len(sizes) > 1 else ""


def size_text(nbytes: int) -> str:
    """Return a number of bytes as readable text: ``1.5 MiB``."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} bytes"
