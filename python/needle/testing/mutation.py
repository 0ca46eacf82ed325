"""Mutated calls of ops: samples with other shapes, dtypes, layouts, values and attributes, valid
and invalid ones.

For every such call the devices must agree on the result, or all raise an error of Needle, or a
TypeError for arguments of a wrong Python type. See ``check_mutant``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from needle import config, devices, dtype, executor, graph
from needle.backend.ndarray import NDArray, array
from needle.errors import NeedleError
from needle.ops.core.op import Op
from needle.testing.checks import Case
from needle.testing.layouts import LAYOUTS
from needle.testing.tolerance import assert_close

Pick = Callable[[int], int]
"""``pick(n)`` returns a number below n, from a random generator or from hypothesis."""

NUMBERS = (-1, 0, 1, 2, 3, -2, -3, 7, 100, 2**31, -(2**31), 2**40, 2**62, 2**63, -(2**63), 2**70)
FLOATS = (0.0, -1.0, 0.5, 1.0, 2.0, 1e30, float("inf"), float("nan"), -0.0)
SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e4, -1.0, 127.0)
WHOLE = (-1, 0, 1, 5, 100, 2**31, -(2**31), 2**62)
STRANGE = (None, "bogus", (), 1.5, True, (1, 2), object)
WAYS: dict[str, Callable[[NDArray], NDArray]] = {"plain": lambda x: x, **LAYOUTS}
LIMIT = 2**27
"""Limit of the bytes of a mutant; larger ones must be refused."""


@dataclass(frozen=True)
class Mutant:
    """A call of an op.

    Attributes:
        op: class of the op.
        static: static attributes.
        values: NumPy arrays of the inputs.
        kinds: the dtype of each input.
        layouts: the name of the layout of each input.
    """

    op: type[Op]
    static: tuple[Any, ...]
    values: tuple[Any, ...]
    kinds: tuple[str, ...]
    layouts: tuple[str, ...]

    def __repr__(self) -> str:
        inputs = ", ".join(
            f"{kind}{list(x.shape)} {layout} {np.array2string(x, threshold=12)}"
            for x, kind, layout in zip(self.values, self.kinds, self.layouts, strict=True)
        )
        return f"{self.op.__name__}{self.static}({inputs})"

    def inputs(self, where: Any) -> list[Any]:
        """Return the inputs as tensors of a device; floating ones require gradients."""
        found = []
        for x, kind, layout in zip(self.values, self.kinds, self.layouts, strict=True):
            with np.errstate(all="ignore"):
                stored: NDArray = WAYS[layout](array(x, kind, where))
            tensor = graph.wrap(stored)
            tensor.requires_grad = stored.dtype.is_floating
            found.append(tensor)
        return found


def mutate(case: Case, pick: Pick) -> Mutant:
    """Return a call that differs from a sample in up to four ways."""
    values = [x.copy() for x in case.arrays()]
    kinds = [x.dtype.name if x.dtype.kind != "f" else "float32" for x in values]
    layouts = ["plain"] * len(values)
    static = list(case.sample.static)
    for _ in range(1 + pick(4)):
        what = ("shape", "dtype", "layout", "values", "static", "kind", "count")[pick(7)]
        if what == "static" and static:
            i = pick(len(static))
            static[i] = _other(static[i], pick)
        elif what == "kind":  # of all floating inputs
            new = str(dtype.FLOATS[pick(len(dtype.FLOATS))])
            kinds = [new if k in map(str, dtype.FLOATS) else k for k in kinds]
        elif what == "count":
            if pick(4) == 0:
                values, kinds, layouts = _recount(values, kinds, layouts, pick)
        elif values:
            i = pick(len(values))
            if what == "shape":
                values[i] = _reshaped(values[i], pick)
            elif what == "dtype":
                kinds[i] = str(dtype.ALL[pick(len(dtype.ALL))])
            elif what == "layout":
                layouts[i] = list(WAYS)[pick(len(WAYS))]
            elif what == "values" and values[i].size:
                values[i] = _spoilt(values[i], pick)
    return Mutant(case.op, tuple(static), tuple(values), tuple(kinds), tuple(layouts))


def _recount(values: Any, kinds: Any, layouts: Any, pick: Pick) -> Any:
    if pick(2) and values:
        return values[:-1], kinds[:-1], layouts[:-1]
    more = (values[-1:] or [np.ones(2)])[0]
    return [*values, more], [*kinds, (kinds[-1:] or ["float32"])[0]], [*layouts, "plain"]


def _reshaped(x: Any, pick: Pick) -> Any:
    shape = list(x.shape)
    way = pick(6)
    if way == 0 and shape:
        shape[pick(len(shape))] = pick(6)
    elif way == 1 and shape:
        del shape[pick(len(shape))]
    elif way == 2:
        shape.insert(pick(len(shape) + 1), 1 + pick(3))
    elif way == 3 and shape:
        shape = [shape[i] for i in np.random.default_rng(pick(100)).permutation(len(shape))]
    elif way == 4 and shape:
        shape[pick(len(shape))] = 33 + pick(100)
    else:
        shape = [pick(5) for _ in range(pick(6))]
    if not x.size:
        return np.ones(shape, x.dtype)
    return np.resize(x, shape)


def _spoilt(x: Any, pick: Pick) -> Any:
    flat = x.copy().reshape(-1)
    for _ in range(1 + pick(3)):
        value = SPECIAL[pick(len(SPECIAL))]
        if x.dtype.kind == "f":
            flat[pick(flat.size)] = value
        elif x.dtype.kind in "iu":
            flat[pick(flat.size)] = np.int64(WHOLE[pick(len(WHOLE))]).astype(x.dtype)
    return flat.reshape(x.shape)


def _other(value: Any, pick: Pick) -> Any:
    """Return another attribute, mostly of the same type."""
    if pick(8) == 0:
        return STRANGE[pick(len(STRANGE))]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return NUMBERS[pick(len(NUMBERS))]
    if isinstance(value, float):
        return FLOATS[pick(len(FLOATS))]
    if isinstance(value, tuple):
        parts = list(value)
        if parts and pick(3):
            i = pick(len(parts))
            parts[i] = _other(parts[i], pick)
        elif parts and pick(2):
            del parts[pick(len(parts))]
        else:
            parts.insert(pick(len(parts) + 1), parts[0] if parts else NUMBERS[pick(4)])
        return tuple(parts)
    return STRANGE[pick(len(STRANGE))]


def _outcome(mutant: Mutant, where: Any, lazy: bool = False) -> Any:
    """Return the arrays of a call on a device, or its exception."""
    try:
        with config.override(memory_limit=LIMIT), np.errstate(all="ignore"):
            inputs = mutant.inputs(where)
            with executor.modes(lazy=lazy):
                out = executor.primal_array(mutant.op.of(*mutant.static)(*inputs))
        parts = out if isinstance(out, tuple) else (out,)
        return [part.numpy() for part in parts if part.size * part.dtype.itemsize <= LIMIT]
    except (NeedleError, TypeError) as error:
        assert str(error), f"{mutant!r}: {type(error).__name__} without a message"
        return error


def check_mutant(mutant: Mutant, where: Any) -> None:
    """Check that a device gives the NumPy device's result or error, in eager and lazy mode.

    Raises:
        AssertionError: if results differ, or only one of them is an error.
        Exception: any exception that is neither Needle's nor a TypeError.
    """
    found = _outcome(mutant, where)
    for other, name in (
        (_outcome(mutant, devices.cpu_numpy()), "the numpy device"),
        (_outcome(mutant, where, lazy=True), "lazy mode"),
    ):
        if isinstance(found, Exception) or isinstance(other, Exception):
            both = isinstance(found, Exception) and isinstance(other, Exception)
            assert both, f"{mutant!r}: {found!r}, with {name} {other!r}"
            continue
        for a, b in zip(found, other, strict=True):
            assert a.dtype == b.dtype, f"{mutant!r}: {a.dtype}, with {name} {b.dtype}"
            _compare(mutant, a, b, name)


def _compare(mutant: Mutant, a: Any, b: Any, name: str) -> None:
    kinds = [dtype.as_dtype(kind) for kind in mutant.kinds]
    floats = [k for k in (*kinds, dtype.as_dtype(a.dtype)) if k.is_floating]
    coarse = min(
        floats, key=lambda k: (k.itemsize, k == "float16"), default=dtype.as_dtype(a.dtype)
    )
    length = max([1, *(x.size for x in mutant.values)])
    if not dtype.as_dtype(b.dtype).is_floating:
        assert_close(a, b, a.dtype, 1, f"{mutant!r}, against {name}")
        return
    exact = b.astype(np.float64)
    with np.errstate(all="ignore"):
        narrow = exact.astype(coarse.numpy).astype(np.float64)
    exact = np.where(np.isinf(narrow), exact, narrow)  # the result may be wider than an input
    found = a.astype(np.float64)
    if mutant.op.__name__.startswith("Conv"):  # which may skip the zeros of the padding
        exact = np.where(np.isnan(exact) | np.isnan(found), found, exact)
    assert_close(found, exact, "float64", length, f"{mutant!r}, against {name}", coarse)
