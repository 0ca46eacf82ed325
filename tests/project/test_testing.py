"""The generated checks can fail: ops with one mistake each, and the check that finds it."""

from __future__ import annotations

import numpy as np
import pytest

import needle as ndl
from needle.backend import kernels
from needle.backend.ndarray import array
from needle.errors import GradientError, OptionError, ReleasedError, ShapeError
from needle.ops.core.families import Composite, Elementwise
from needle.ops.core.op import OUTPUT, Op
from needle.ops.core.samples import Sample, unary_samples, uniform
from needle.testing import CHECKS, Case, assert_close, check_gradients, check_op, tolerance
from needle.testing.checks import check_raises
from needle.testing.layouts import LAYOUTS

SAMPLES = unary_samples(0.5, 2.0, np.exp)


class Right(Elementwise):
    """Exponential."""

    function = "exp"
    floating = True
    saves = ((OUTPUT,),)
    samples = SAMPLES

    def derivative(self, out, i):
        return out


class WrongValue(Right):
    """Another function than the reference."""

    def compute(self, x):
        return kernels.elementwise("sqrt", x)


class WrongSpec(Right):
    """Says another dtype than it gives."""

    def infer(self, *specs):
        spec = super().infer(*specs)
        return ndl.backend.array.make_spec(ndl.int32, spec.device, spec.shape)


class WrongGradient(Right):
    """A derivative that is off by a thousandth."""

    def derivative(self, out, i):
        return out * 1.001


class WrongSecondOrder(Right):
    """The right gradient, cut off from the graph."""

    def derivative(self, out, i):
        return out.detach()


class WrongTangent(Right):
    """The right gradient; a forward rule of its own that forgets a factor."""

    def push(self, primals, tangents):
        return ndl.ops.exp(*primals), tangents[0]


class WrongSaves(Right):
    """Reads its input, which ``saves`` does not list."""

    def derivative(self, out, i):
        return ndl.ops.exp(out.inputs[0])


class WrongLazily(Right):
    """Gives another value without recording, as a composite with two ways might."""

    def compute(self, x):
        y = kernels.elementwise("exp", x)
        return y if ndl.graph.recording() else kernels.elementwise("add", y, y)


class WrongLayout(Right):
    """Takes the memory in its order, whatever the strides."""

    def compute(self, x):
        strides = x.compact_strides(x.shape)
        return kernels.elementwise("exp", x.as_strided(x.shape, strides) if x.size else x)


class WrongWhenEmpty(Right):
    """Fails where there is nothing to do."""

    samples = staticmethod(lambda: [Sample((uniform((3, 4)),), (), np.exp)])

    def compute(self, x):
        if not x.size:
            raise ZeroDivisionError
        return super().compute(x)


class WrongOnIntegers(Elementwise):
    """Rounds integers through float32."""

    function = "negative"
    samples = staticmethod(lambda: [Sample((uniform((3, 4), 1e9, 2e9),), (), np.negative)])

    def compute(self, x):
        return kernels.elementwise("negative", x.astype("float32")).astype(x.dtype)


class WrongOverride(Composite):
    """The square; the numpy device has its own mistaken way."""

    samples = staticmethod(lambda: [Sample((uniform((3, 4)),), (), np.square)])

    def expand(self, x):
        return x * x


@ndl.backend.override("cpu_numpy", "WrongOverride")
def _cube(op, x):
    return kernels.elementwise("multiply", kernels.elementwise("multiply", x, x), x)


MISTAKES = [
    (WrongValue, "value", AssertionError),
    (WrongSpec, "value", AssertionError),
    (WrongGradient, "gradient", GradientError),
    (WrongGradient, "forward", GradientError),
    (WrongTangent, "forward", GradientError),
    (WrongTangent, "second_order", GradientError),
    (WrongSecondOrder, "second_order", GradientError),
    (WrongSaves, "saves", ReleasedError),
    (WrongLazily, "lazy", AssertionError),
    (WrongLayout, "layouts", AssertionError),
    (WrongWhenEmpty, "small_shapes", ZeroDivisionError),
    (WrongOnIntegers, "integers", AssertionError),
    (WrongOverride, "override", AssertionError),
]


@pytest.mark.parametrize("op, check, error", MISTAKES, ids=lambda x: getattr(x, "__name__", x))
def test_each_mistake_is_found(op, check, error):
    where = ndl.cpu_numpy()
    with pytest.raises(error):
        for index, sample in enumerate(op.samples()):
            CHECKS[check].run(Case(op, index, sample), where)


def test_an_op_without_mistakes_passes(device):
    check_op(Right, device)


def test_a_missing_error_is_found():
    case = Case(Right, 0, Sample((uniform((3,)),), raises=ShapeError))
    with pytest.raises(AssertionError, match="expected ShapeError"):
        check_raises(case, ndl.cpu_numpy())


def test_check_gradients_names_the_input_and_both_numbers():
    def half_right(x, y):
        return x * y.detach() + y

    points = uniform((3,), 1, 2), uniform((3,), 1, 2)
    for mode in ("reverse", "forward"):
        with pytest.raises(GradientError, match=rf"{mode}, input 1.*is .*by finite differences"):
            check_gradients(half_right, *points, mode=mode)


def test_check_gradients_takes_integers_and_several_results():
    index = np.array([0, 2, 1])
    check_gradients(lambda x, i: (x * i.astype("float64"), x.exp()), uniform((3,)), index, order=2)


def test_check_gradients_lets_functions_assign_to_their_inputs():
    def function(x, y, n):
        n[0] = n[0] + 1
        y[0] = y[0] * 2.0
        x[1] = x[0] * y[1]
        return x * y * n.astype("float64")

    check_gradients(function, np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.arange(2), order=2)


def test_check_gradients_needs_something_to_differentiate():
    with pytest.raises(GradientError, match="no input is floating"):
        check_gradients(lambda i: i + 1, np.array([1, 2]))
    for wrong in (lambda x: 3.0, lambda x: {"out": x}):
        with pytest.raises(GradientError, match="check_gradients: the function returned"):
            check_gradients(wrong, uniform((3,)))
    with pytest.raises(GradientError, match="no result is floating"):
        check_gradients(lambda x: x > 0, uniform((3,)))
    with pytest.raises(GradientError, match="order 1 or 2, got 3"):
        check_gradients(lambda x: x, uniform((3,)), order=3)
    with pytest.raises(OptionError, match="did you mean 'forward'"):
        check_gradients(lambda x: x, uniform((3,)), mode="forwards")


class Product(Op):
    """x * y, with a gradient that some subclass gets wrong."""

    def compute(self, x, y):
        return kernels.elementwise("multiply", x, y)

    saves = ((0, 1), (0, 1))

    def gradient(self, out_grad, out):
        x, y = out.inputs
        return out_grad * y, out_grad * x


class Cut(Product):
    """One of the wrong shape."""

    def gradient(self, out_grad, out):
        x, y = out.inputs
        return (out_grad * y).sum(), out_grad * x


class Swapped(Product):
    """In the wrong order."""

    def gradient(self, out_grad, out):
        return super().gradient(out_grad, out)[::-1]


class Absent(Product):
    """None where there is a gradient."""

    def gradient(self, out_grad, out):
        return out_grad * out.inputs[1], None


class Short(Product):
    """A None is missing."""

    def gradient(self, out_grad, out):
        return (out_grad * out.inputs[1],)


class Shifted(Product):
    """Not linear in out_grad."""

    def gradient(self, out_grad, out):
        x, y = out.inputs
        return out_grad * y + 0.01, out_grad * x


class CutTangent(Product):
    """A tangent of the wrong shape."""

    def push(self, primals, tangents):
        out, tangent = super().push(primals, tangents)
        return out, tangent.sum()


@pytest.mark.parametrize("mode", ["reverse", "forward", "both"])
@pytest.mark.parametrize("op", [Cut, Swapped, Absent, Short, Shifted, CutTangent])
def test_wrong_derivatives_of_users_ops_are_found(op, mode):
    check_gradients(Product(), uniform((3,)), uniform((3,), seed=1), mode=mode, order=2)
    if (op, mode) in ((CutTangent, "reverse"), (Shifted, "forward")):
        return  # what this mode does not read
    with pytest.raises(GradientError):
        check_gradients(op(), uniform((3,)), uniform((3,), seed=1), mode=mode)


def test_tolerance_grows_with_the_length_and_the_roundings():
    assert tolerance("float32", 100) > tolerance("float32") > tolerance("float64", 10_000)
    assert tolerance("int32") == 0
    one = np.ones(3)
    assert_close(one + 1e-7, one, "float32")
    with pytest.raises(AssertionError, match=r"at \(1,\)"):
        assert_close(one + [0, 1e-5, 0], one, "float32")
    with pytest.raises(AssertionError, match="shape"):
        assert_close(np.ones(2), one, "float32")
    with pytest.raises(AssertionError):
        assert_close(np.array([np.nan, 1, 1]), one, "float32")
    with pytest.raises(AssertionError):
        assert_close(np.array([1, 2, 4]), np.array([1, 2, 3]), "int64")


def test_the_layouts_hold_the_same_values(device):
    values = uniform((3, 4, 2))
    dense = array(values, "float64", device)
    for name, layout in LAYOUTS.items():
        x = layout(dense)
        assert not x.is_dense(), name
        if name != "broadcast":
            np.testing.assert_array_equal(x.numpy(), values)


class Doubled(Op):
    """2 x; what a user might write."""

    samples = staticmethod(lambda: [Sample((uniform((2, 3)),), (), lambda x: 2 * x)])

    def compute(self, x):
        return kernels.elementwise("add", x, x)

    def gradient(self, out_grad, out):
        return (out_grad + out_grad,)


def test_a_users_own_op(device):
    check_op(Doubled, device)
