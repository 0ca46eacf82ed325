"""Operators, and augmented assignments."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle.errors import (
    ArgumentError,
    DtypeError,
)

WHOLE = np.random.default_rng(2).integers(0, 8, (3, 4))
COUNTS = np.random.default_rng(3).integers(1, 8, (3, 4))

# ---- augmented assignments ---------------------------------------------------------


SIGNS = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "//": np.floor_divide, "%": np.remainder,
    "**": np.power, "&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor,
    "<<": np.left_shift, ">>": np.right_shift,
}  # fmt: skip


@looped("sign", SIGNS)
def test_augmented_assignments_give_what_the_operators_do(sign):
    names = {"x": ndl.Tensor(WHOLE), "y": ndl.Tensor(COUNTS), "z": ndl.Tensor(WHOLE), "two": 2}
    exec(f"old = x\nx {sign}= y\nz {sign}= two", names)
    np.testing.assert_array_equal(names["x"].numpy(), SIGNS[sign](WHOLE, COUNTS))
    np.testing.assert_array_equal(names["z"].numpy(), SIGNS[sign](WHOLE, 2))
    assert names["old"] is names["x"]


WIDENING = {
    "int8 += int16[3]": (ndl.errors.DtypeError, r"x \+= y: x would become int16\[3\]\n  x: int8"),
    "int64 += 1.5": (ndl.errors.DtypeError, r"become float32\[3\]\n.*\n  y: float 1.5\n  rule:"),
    "int64 /= 2": (ndl.errors.DtypeError, "try: x = x / y"),
    "int64 **= 0.5": (ndl.errors.DtypeError, r"x \*\*= y"),
    "bool += 1": (ndl.errors.DtypeError, r"x would become int64"),
    "float32 -= float64[3]": (ndl.errors.DtypeError, r"x -= y: x would become float64\[3\]"),
    "float32 *= float32[2, 3]": (ndl.errors.ShapeError, r"x \*= y: x would become float32\[2, 3\]"),
    "float32 @= float32[3]": (ndl.errors.ShapeError, r"x @= y: x would become float32\[\]"),
}


@looped("mode", ["eager", "lazy"])
@looped("code", WIDENING)
def test_augmented_assignments_keep_dtype_and_shape(code, mode):
    kind, sign, other = code.split(" ", 2)
    if "[" in other:
        name, sizes = other[:-1].split("[")
        other = f"ndl.ops.ones(({sizes},), dtype='{name}')"
    error, text = WIDENING[code]
    names = {"ndl": ndl, "x": ndl.ops.ones((3,), dtype=kind)}
    before = names["x"]
    with ndl.config(mode=mode), pytest.raises(error, match=text):
        exec(f"x {sign} {other}", names)
    assert names["x"] is before


def test_augmented_assignments_are_differentiable_and_the_courses_widen():
    x = ndl.Tensor([1.0, 2.0], requires_grad=True)
    y = x * 1.0
    y *= x
    y += 1
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]
    with ndl.config(backend="np"):
        z = ndl.ops.ones((3,), dtype="float32")
        z += ndl.ops.ones((2, 3), dtype="float64")
        assert z.shape == (2, 3) and z.dtype == "float64"


# ---- operators and other classes ---------------------------------------------------


class Answering:
    """Another library's array: it knows what to do beside a tensor."""

    def __radd__(self, x):
        return "answered"

    __rsub__ = __rmul__ = __rtruediv__ = __rpow__ = __rmatmul__ = __rfloordiv__ = __radd__
    __rmod__ = __rdivmod__ = __rand__ = __ror__ = __rxor__ = __rlshift__ = __rrshift__ = __radd__
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __radd__


NAMES = "add sub mul truediv pow matmul floordiv mod and_ or_ xor lshift rshift lt le gt ge"
OPERATORS = {name: getattr(operator, name) for name in NAMES.split()} | {"divmod": divmod}


@looped("name", [*OPERATORS, "eq", "ne"])
def test_operators_ask_the_other_class(name):
    x = ndl.Tensor([[1, 2], [3, 4]], dtype="int64")
    assert getattr(operator, name, divmod)(x, Answering()) == "answered"


@looped("other", [None, "a", [1, 2], (1, 2), {1}, 2j, object()])
@looped("name", OPERATORS)
def test_operators_say_what_they_cannot_use(name, other):
    x = ndl.Tensor([[1, 2], [3, 4]], dtype="int64")
    if name == "matmul":
        x = x.astype("float32")
    with pytest.raises(ArgumentError, match="expected a tensor or a number, got"):
        OPERATORS[name](x, other)


@looped("name", ["iadd", "isub", "imul", "ifloordiv", "imod", "ipow", "imatmul", "ilshift"])
def test_augmented_assignments_make_nothing_else_of_a_tensor(name):
    with pytest.raises(ArgumentError, match="expected a tensor|x would become a str"):
        getattr(operator, name)(ndl.Tensor([1, 2], dtype="int64"), Answering())


TWO, ONE = np.int64(2), np.int64(1)
SIZES = {
    "reshape": (lambda x: x.reshape([3, 2]), (3, 2)),
    "reshape, one by one": (lambda x: x.reshape(np.int64(3), TWO), (3, 2)),
    "reshape, an array": (lambda x: x.reshape(np.array([3, -1])), (3, 2)),
    "view": (lambda x: x.view([6]), (6,)),
    "permute": (lambda x: x.permute([2, 1, 0]), (3, 1, 2)),
    "sum": (lambda x: x.sum(axis=ONE), (2, 3)),
    "sum of several": (lambda x: x.sum([0, ONE]), (3,)),
    "squeeze": (lambda x: x.squeeze([1]), (2, 3)),
    "flip": (lambda x: x.flip(ONE), (2, 1, 3)),
    "repeat": (lambda x: x.repeat(TWO, ONE), (2, 2, 3)),
    "tile": (lambda x: x.tile([1, TWO, 1]), (2, 2, 3)),
    "roll": (lambda x: ndl.roll(x, ONE, TWO), (2, 1, 3)),
    "stack": (lambda x: ndl.stack([x, x], ONE), (2, 2, 1, 3)),
    "tensordot": (lambda x: ndl.tensordot(x, x, np.int64(3)), ()),
    "zeros": (lambda x: ndl.zeros([TWO, 3]), (2, 3)),
}


@looped("name", SIZES)
def test_sizes_and_axes_may_be_lists_and_numpy_integers(name):
    call, shape = SIZES[name]
    x = ndl.Tensor(np.arange(6.0).reshape(2, 1, 3))
    for _ in range(2):  # the second time what is known of the first may be used
        assert call(x).shape == shape


def test_a_number_is_formatted_as_one():
    assert f"{ndl.Tensor(3.14159):.2f} {ndl.ones(2)}" == f"3.14 {np.ones(2)}"
    with pytest.raises(DtypeError, match="1329 bits"):
        ndl.ones(2) + 10**400


@looped("make", [ndl.Tensor, ndl.nn.Parameter])
@looped("lazy", [False, True])
def test_a_leaf_that_is_updated_without_recording_stays_the_leaf(make, lazy):
    w = same = make(np.array([1.0, 2.0], np.float32), requires_grad=True)
    with ndl.lazy_mode(lazy):
        before = w * w
        for step in range(3):
            (w * w).sum().backward()
            with ndl.no_grad():
                w -= 0.25 * w.grad
                w @= ndl.Tensor([[1.0, 0.0], [0.0, 1.0]])
            assert w is same and w.requires_grad and w.op is None
            np.testing.assert_array_equal(w.numpy(), np.float32([1, 2]) / 2 ** (step + 1))
        before.sum().backward()  # of the old value, to the same leaf
        np.testing.assert_array_equal(w.grad.numpy(), [2, 4])
        w += 1.0  # recorded: part of the graph, another tensor
        assert w is not same and w.op is not None
        np.testing.assert_array_equal(same.numpy(), np.float32([1, 2]) / 8)


@looped("lazy", [False, True])
def test_who_else_holds_a_tensor_sees_augmented_assignments_unless_gradients_flow(lazy):
    with ndl.lazy_mode(lazy):
        x = ndl.Tensor([1.0, 2.0], requires_grad=False)
        y, row, twice = x, x[0], x * 2.0
        for _ in range(2):
            y += ndl.Tensor([3.0, 4.0], requires_grad=False)
        assert y is x and x.tolist() == [7.0, 10.0]
        assert row.item() == 1.0 and twice.tolist() == [2.0, 4.0]  # computed before
        speeds = [ndl.zeros(2, requires_grad=False) for _ in range(2)]
        for v in speeds:
            v += 1.0
            v *= 0.5
        assert [v.tolist() for v in speeds] == [[0.5, 0.5]] * 2
        w = ndl.Tensor([3.0, 4.0])
        y += w  # part of the graph
        assert y is not x and y.requires_grad and not x.requires_grad


def test_augmented_assignments_within_derivatives_are_other_tensors():
    x, w = ndl.Tensor([1.0, 2.0], requires_grad=False), ndl.Tensor([3.0, 4.0])
    _, tangent = ndl.jvp(lambda v: _scaled_in_place(w, v), (x,), (x,))
    assert tangent.tolist() == [3.0, 8.0] and w.tolist() == [3.0, 4.0]


def _scaled_in_place(w, v):
    with ndl.no_grad():
        w *= v
    return w
