"""Functions of the native module do as the definition in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from looped import looped
from small_arrays import NATIVE, counted, same_memory

import needle as ndl
from needle import NDArray, dtype
from needle.backend import find_override, kernels
from needle.backend.ndarray import array
from needle.errors import (
    NeedleError,
)
from needle.ops.loss.losses import CrossEntropyGrad


def outcome(run, x: NDArray) -> tuple:
    """What a method gives, or the error it raises; both with all that can be seen of them."""
    try:
        y = run(x)
    except (NeedleError, TypeError, OverflowError) as error:
        return type(error), str(error)
    places = None if 0 in y.shape else y.strides
    return y.shape, y.dtype, places, same_memory(x, y), y.numpy().tobytes()


HUGE = 2**32
METHODS = {
    "reshape": [
        lambda x, s=s: x.reshape(s)
        for s in (
            (6, 4), [4, 6], 24, (-1,), (2, -1), (0, 5), (HUGE, HUGE), (2**70,), (4.0, 6), (),
            (2, 2, 6), (4, 3, 1, 2), (1, 4, 6, 1), (8, 3),
        )
    ],
    "permute": [
        lambda x, s=s: x.permute(s)
        for s in ((1, 0), [1, 0], (0, 1), (0, 0), (-1, 0), (0,), (2, 0, 1), (1, 2**70), (True, 0))
    ],
    "broadcast_to": [
        lambda x, s=s: x[:1].broadcast_to(s)
        for s in (
            (3, 6), (2, 4, 6), [1, 6], (6,), (4, 5), (-1, 6), (0, 6), (1,) * 17, (2**70, 6),
            (2**62, 6),
        )
    ],
    "slice": [
        lambda x, r=r: x.slice(r)
        for r in (
            [(0, 4, 1), (0, 6, 1)], [(3, 4, -1), (1, 2, 3)], [(0, 0, 1), (0, 6, 1)],
            ((0, 2, 1), (0, 6, 2)), [(0, 5, 1), (0, 6, 1)], [(-1, 1, 1), (0, 6, 1)], [(0, 4, 1)],
            [(0, 2, 2**62), (0, 6, 1)], [(0, 4), (0, 6)], [(0, -1, 1), (0, 6, 1)],
        )
    ],
    "squeeze": [lambda x, a=a: x[:1].squeeze(a) for a in (0, (0,), 1, None, (0, 0), -2, 5)],
    "unsqueeze": [lambda x, a=a: x.unsqueeze(a) for a in (0, (0, 3), -1, (1, 1), 9)],
    "copy": [lambda x: x.copy(), lambda x: x.astype("int64"), lambda x: x.astype("bfloat16")],
    "elementwise": [
        lambda x: kernels.elementwise("add", x, x), lambda x: kernels.elementwise("add", x, x[0]),
        lambda x: kernels.elementwise("less", x, x, dtype=dtype.bool_),
        lambda x: kernels.elementwise("add", x, x.astype("int64")),
        lambda x: kernels.elementwise("add", x, x[:2]), lambda x: kernels.elementwise("nothing", x),
        lambda x: kernels.elementwise("exp", x, x), lambda x: kernels.elementwise("gcd", x, x),
        lambda x: kernels.elementwise("where", x, x, x),
    ],
    "reduce": [
        lambda x, f=f, a=a: kernels.reduce(f, x, a, f == "max")
        for f in ("sum", "max", "mean", "argmax", "all", "prod", "variance")
        for a in ((), (0,), (1,), (0, 1), (1, 0), (0, 0), (2,), (-1,))
    ],
}  # fmt: skip


@pytest.mark.skipif(not NATIVE, reason="needs the native module")
@looped("layout", ["dense", "turned", "reversed", "empty", "int64"])
@looped("method", METHODS)
def test_native_functions_do_as_the_definition(method: str, layout: str) -> None:
    x = array(counted(4, 6), "int64" if layout == "int64" else "float32", ndl.cpu())
    x = {
        "turned": lambda: x.reshape((6, 4)).permute((1, 0)),
        "reversed": lambda: x.flip((0, 1)),
        "empty": lambda: x[:, :0],
    }.get(layout, lambda: x)()
    for i, run in enumerate(METHODS[method]):
        found = outcome(run, x)
        with ndl.config(fast="off"):
            assert found == outcome(run, x), f"{method} {i}"


NORM_GRADIENTS = {
    "plain": {},
    "one row": {"g": (3,), "x": (3,), "mean": (), "rstd": ()},
    "no rows": {"g": (0, 3), "x": (0, 3), "mean": (0,), "rstd": (0,)},
    "a column fewer in g": {"g": (4, 2)},
    "a row fewer in mean": {"mean": (3,)},
    "rows of rstd in two axes": {"rstd": (2, 2)},
    "a longer weight": {"weight": (4,)},
    "a weight of two axes": {"weight": (1, 3)},
}


NORM_SHAPES = {"g": (4, 3), "x": (4, 3), "weight": (3,), "mean": (4,), "rstd": (4,)}


@pytest.mark.skipif(not NATIVE, reason="needs the native module")
@looped("double", [(), ("mean",), ("weight",), tuple(NORM_SHAPES)])
@looped("case", NORM_GRADIENTS)
@looped("name", ["LayerNormGrad", "RMSNormGrad"])
def test_gradients_of_norms_are_the_definition_s(
    name: str, case: str, double: tuple[str, ...]
) -> None:
    """With native functions and without: the same arrays, or nothing (the expansion is used)."""
    shapes, fits = NORM_SHAPES | NORM_GRADIENTS[case], case in ("plain", "one row")
    if name == "RMSNormGrad":
        shapes.pop("mean")
        fits |= case == "a row fewer in mean"
    wide = [x for x in shapes if x in double]
    fits &= len(wide) in (0, len(shapes))
    values = [
        array(counted(*shape) + i, "float64" if x in wide else "float32", ndl.cpu())
        for i, (x, shape) in enumerate(shapes.items())
    ]
    run = find_override("cpu", name)
    found = run(None, *values)
    with ndl.config(fast="off"):
        defined = run(None, *values)
    assert (found is NotImplemented) == (defined is NotImplemented) == (not fits)
    for x, y in zip(found, defined, strict=True) if fits else ():
        assert x.shape == y.shape and x.dtype == y.dtype
        np.testing.assert_array_equal(x.numpy(), y.numpy())


@pytest.mark.skipif(not NATIVE, reason="needs the native module")
@looped(
    "change",
    [
        {}, {"g": lambda: array(2.0, "float32", ndl.cpu()).broadcast_to((2, 3))},
        {"labels": lambda: array([[0, 1, 2], [-1, 3, 0]], "int8", ndl.cpu())},
        {"labels": lambda: array([[0, 1, 2], [3, 4, 0]], "int64", ndl.cpu())},
        {"labels": lambda: array([0, 1, 2], "int64", ndl.cpu())},
        {"g": lambda: array(np.ones((3, 2)), "float32", ndl.cpu())},
        {"g": lambda: array(np.ones((2, 3)), "float64", ndl.cpu())},
        {"shift": lambda: array(np.ones((2, 3)), "float64", ndl.cpu())},
        {"rest": lambda: array(np.ones((2, 3)), "float64", ndl.cpu())},
        {"rest": lambda: array(np.ones((2, 1)), "float32", ndl.cpu())},
        {"logits": lambda: array(counted(4, 3, 2).T, "float16", ndl.cpu())},
    ],
)  # fmt: skip
@looped("smoothing", [0.0, 0.1])
def test_gradients_of_cross_entropy_are_the_definition_s(change, smoothing) -> None:
    values = {
        "g": array(counted(2, 3), "float32", ndl.cpu()),
        "logits": array(counted(2, 3, 4) % 5, "float32", ndl.cpu()),
        "labels": array([[0, 1, 2], [3, -1, 0]], "int64", ndl.cpu()),
        "shift": array(counted(2, 3) + 3, "float32", ndl.cpu()),
        "rest": array(counted(2, 3) / 8, "float32", ndl.cpu()),
    } | {name: make() for name, make in change.items()}
    op, run = CrossEntropyGrad.of(-1, smoothing), find_override("cpu", "CrossEntropyGrad")

    def outcome() -> Any:
        try:
            found = run(op, *values.values())
        except NeedleError as error:
            return type(error), str(error)
        return found if found is NotImplemented else (found.spec, found.numpy().tobytes())

    found = outcome()
    with ndl.config(fast="off"):
        assert found == outcome()
