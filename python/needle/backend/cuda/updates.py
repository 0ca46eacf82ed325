"""Optimizer steps over many tensors in few launches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any

from needle import dtype as dtypes
from needle.backend.cuda.geometry import pack
from needle.backend.cuda.table import CPP
from needle.backend.update import Adam, RMSprop, Sgd

if TYPE_CHECKING:
    from needle.backend.cuda.backend import CudaBackend

TENSORS, POINTERS, PIECE = 48, 6, 1024  # as in update.cu
HEAD = Struct(f"{1 + 2 * TENSORS}q")


def adam(backend: CudaBackend, rows: Sequence[Sequence[Any]], rule: Adam) -> None:
    """Step parameters; see ``Backend.adam``.

    Args:
        backend: the backend.
        rows: out, parameter, gradient, m and v of each tensor, dense.
        rule: numbers of the step.
    """
    decay = 0.0 if rule.decoupled else rule.weight_decay
    shrink = 1 - rule.lr * rule.weight_decay if rule.decoupled else 1.0
    numbers = (rule.beta1, rule.beta2, rule.eps, decay, shrink, rule.lr / rule.correction1,
               rule.correction2**-0.5)  # fmt: skip
    _launch(backend, "adam", rows, pack(*map(float, numbers)))


def sgd(backend: CudaBackend, rows: Sequence[Sequence[Any]], rule: Sgd) -> None:
    """Step parameters; see ``Backend.sgd``. rows: out, parameter, gradient, velocity (or not)."""
    numbers = map(float, (rule.lr, rule.momentum, 1 - rule.dampening, rule.weight_decay))
    _launch(backend, "sgd", rows, pack(*numbers, int(rule.nesterov), int(rule.first)))


def rmsprop(backend: CudaBackend, rows: Sequence[Sequence[Any]], rule: RMSprop) -> None:
    """Step parameters; see ``Backend.rmsprop``.

    Args:
        backend: the backend.
        rows: out, parameter, gradient, v, mean (or None) and momentum (or None) of each tensor.
        rule: numbers of the step.
    """
    numbers = (rule.lr, rule.alpha, rule.eps, rule.weight_decay, rule.momentum)
    _launch(backend, "rmsprop", rows, pack(*map(float, numbers)))


NAMES = ("adam", "sgd", "rmsprop")


def _family() -> Iterable[str]:
    return [f"{name}<{CPP[kind]}>" for name in NAMES for kind in dtypes.FLOATS]


def _launch(backend: CudaBackend, name: str, rows: Sequence[Sequence[Any]], rule: bytes) -> None:
    for kind in dict.fromkeys(row[0].dtype for row in rows):
        same = [row for row in rows if row[0].dtype is kind and row[0].size]
        found = backend.function("update.cu", f"{name}<{CPP[kind]}>", _family)
        for blocks, table in _tables(same):
            backend.launch(found, blocks, *table, rule)


def _tables(rows: Sequence[Sequence[Any]]) -> Iterator[tuple[int, list[Any]]]:
    """Yield a number of blocks and the struct ``Tensors`` for as many tensors as it can hold."""
    for first in range(0, len(rows), TENSORS):
        part = rows[first : first + TENSORS]
        sizes = [row[0].size for row in part]
        starts, blocks = [], 0
        for size in sizes:
            starts.append(blocks)
            blocks += -(-size // PIECE)
        left = TENSORS - len(part)
        rest, none = (0,) * left, (0,) * (POINTERS - len(part[0]))
        table: list[Any] = [HEAD.pack(len(part), *starts, *rest, *sizes, *rest)]
        for row in part:
            table += [0 if x is None else x for x in row]
            table += none
        yield blocks, [*table, bytes(8 * left * POINTERS)]
