"""The generated checks, which run for every op on every sample, device and dtype.

An op defines samples (inputs, static attributes, reference); the checks follow from these:
value, spec, gradient by finite differences, forward mode by finite differences and against reverse
mode (``<Jv, u> = <v, J'u>`` to rounding), the four second derivatives, lazy = compiled = eager,
``saves`` (every handle is dropped before differentiating), layouts (transposed, sliced, flipped,
broadcast), override = expansion, device = NumPy device, and the errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from needle import autograd, backend, devices, dtype, executor, graph
from needle.backend.ndarray import NDArray, array
from needle.compile import compile
from needle.errors import SingularError
from needle.ops.core.families import Composite, Elementwise
from needle.ops.core.op import Op
from needle.ops.core.samples import Sample
from needle.testing.gradients import check_gradients
from needle.testing.layouts import LAYOUTS
from needle.testing.tolerance import assert_close

if TYPE_CHECKING:
    from needle.devices import Device
    from needle.typing import DeviceLike


@dataclass(frozen=True)
class Case:
    """One sample of one op, in all of its dtypes or in those of ``kinds``."""

    op: type[Op]
    index: int
    sample: Sample
    kinds: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return f"{self.op.__name__}-{self.index}"

    @property
    def dtypes(self) -> list[str]:
        """The dtypes to cast floating inputs to; ["float64"] without floating inputs."""
        if self.kinds is not None:
            return list(self.kinds)
        if not self.takes_floats():
            return ["float64"]
        return list(self.sample.dtypes or map(str, dtype.FLOATS))

    def of_dtypes(self, *kinds: str) -> Case:
        """Return the same sample in some of its dtypes."""
        return replace(self, kinds=kinds)

    def arrays(self) -> list[Any]:
        """Return the inputs as NumPy arrays."""
        return [np.asarray(x) for x in self.sample.inputs]

    def make(self) -> Any:
        """Return the op with the sample's static attributes."""
        return self.op.of(*self.sample.static)

    def inputs(self, kind: str, where: Device) -> tuple[Any, ...]:
        """Return the inputs as leaves; floating ones in dtype ``kind``."""
        return tuple(map(_leaf, self.storage(kind, where)))

    def storage(self, kind: str, where: Device) -> list[NDArray]:
        """Return the inputs as arrays; floating ones in dtype ``kind``."""
        return [array(x, kind if x.dtype.kind == "f" else None, where) for x in self.arrays()]

    def has_gradient(self) -> bool:
        """Return whether gradients are checked on this sample."""
        return self.sample.gradient and self.op.is_differentiable and self.takes_floats()

    def takes_floats(self) -> bool:
        """Return whether any input is floating."""
        return any(x.dtype.kind == "f" for x in self.arrays())

    def length(self) -> int:
        """Return an upper bound of the number of terms of one element of the result."""
        return max([1, *(x.size for x in self.arrays())])


def cases(op: type[Op], raising: bool = False) -> list[Case]:
    """Return the valid samples of an op, or those that must raise."""
    samples = op.samples() if op.samples is not None else []
    made = [Case(op, i, sample) for i, sample in enumerate(samples)]
    return [case for case in made if (case.sample.raises is not None) == raising]


def _leaf(values: NDArray) -> Any:
    tensor = graph.wrap(values)
    tensor.requires_grad = values.dtype.is_floating
    return tensor


def _parts(result: Any) -> list[Any]:
    """Compute a result; return its arrays."""
    value = executor.primal_array(result)
    return list(value) if isinstance(value, tuple) else [value]


def _exact(case: Case, inputs: Any) -> list[Any]:
    """Return the reference's results for the same (rounded) inputs, in float64."""
    assert case.sample.reference is not None, "a sample needs a reference or an error"
    wide = [x.numpy() for x in inputs]
    wide = [x if x.dtype.kind in "biu" else x.astype(np.float64) for x in wide]
    with np.errstate(all="ignore"):
        result = case.sample.reference(*wide)
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _compare(case: Case, found: Any, exact: list[Any], kind: str, what: str) -> None:
    for part, expected in zip(_parts(found), exact, strict=True):
        assert_close(
            part.numpy(), expected, kind, case.length(), f"{case.make()!r}, {what}, {kind}"
        )


# ---- the checks ----------------------------------------------------------------


def check_value(case: Case, where: Device) -> None:
    """Check each result against the reference, and its spec against the inferred one."""
    op = case.make()
    for kind in case.dtypes:
        inputs = case.inputs(kind, where)
        out = op(*inputs)
        _compare(case, out, _exact(case, inputs), kind, "value")
        inferred = op.infer(*map(executor.spec_of, op.prepare(inputs)))
        expected = list(inferred) if isinstance(inferred, tuple) else [inferred]
        specs = [part.spec for part in _parts(out)]
        assert specs == expected, f"{op!r}: inferred {expected}, got {specs}"


def check_integers(case: Case, where: Device) -> None:
    """Check that elementwise functions are exact on integers, and wrap around as in NumPy."""
    assert case.sample.reference is not None
    for kind in ("int8", "int32", "int64", "uint8"):
        values = [x if x.dtype.kind != "f" else _rounded(x, kind) for x in case.arrays()]
        try:
            expected = case.sample.reference(*values)
        except (TypeError, ValueError):  # NumPy does not define the function for integers
            continue
        found = case.make()(*[_leaf(array(x, None, where)) for x in values]).numpy()
        np.testing.assert_array_equal(found, expected, err_msg=f"{case.make()!r}, {kind}")


def _rounded(x: Any, kind: str) -> Any:
    return np.rint(
        np.nan_to_num(np.abs(x) if kind.startswith("u") else x, posinf=9, neginf=-9)
    ).astype(kind)


def check_gradient(case: Case, where: Device) -> None:
    """Check the gradient against finite differences."""
    check_gradients(case.make(), *case.inputs("float64", where), mode="reverse")


def check_forward(case: Case, where: Device) -> None:
    """Check the derivative by forward mode against finite differences, and <Jv, u> = <v, J'u>."""
    check_gradients(case.make(), *case.inputs("float64", where), mode="both")


def check_second_order(case: Case, where: Device) -> None:
    """Check the second derivatives by all combinations of reverse and forward mode."""
    check_gradients(case.make(), *case.inputs("float64", where), order=2)


def _with_gradients(
    case: Case, kind: str, where: Device, keep: bool = True, alone: int | None = None
) -> list[Any]:
    """Return the result and the inputs' gradients as NumPy arrays.

    The op's inputs are results of other ops, so that their values can be freed; ``keep`` keeps all
    tensors alive until the gradients are computed. ``alone``: the only input that requires grad.
    """
    leaves = case.inputs(kind, where)
    for i, leaf in enumerate(leaves):
        leaf.requires_grad = leaf.requires_grad and alone in (None, i)
    inner = [executor.apply(_COPY, x) for x in leaves]
    held = [inner]
    out = case.make()(*inner)
    values = [part.numpy() for part in _parts(out)] if keep else []
    if not case.has_gradient():
        return values
    total = _weighted_sum(out, where)
    if not keep:
        held.clear()
        del inner, out
    if alone is not None and not total.requires_grad:  # this input has no gradient
        return values
    total.backward()
    return values + [x.grad.numpy() for x in leaves if x.grad is not None]


def _weighted_sum(out: Any, where: Device) -> Any:
    """Return the sum of all floating results, with a separate weight for each element."""
    total = None
    for part in out.tuple() if isinstance(out.spec, tuple) else (out,):
        if part.dtype.is_floating:
            weight = np.cos(np.arange(1.0, 1.0 + part.size)).reshape(part.shape)
            term = (part * graph.wrap(array(weight, part.dtype, where))).sum().astype("float64")
            total = term if total is None else total + term
    return total


def check_lazy(case: Case, where: Device) -> None:
    """Check that lazy mode gives the same bits, also of gradients, and computes nothing early."""
    for kind in case.dtypes:
        eager = _with_gradients(case, kind, where)
        with autograd.lazy_mode():
            out = case.make()(*case.inputs(kind, where))
            assert out.array is None, f"{case.make()!r} was computed in lazy mode"
            lazy = _with_gradients(case, kind, where)
        for a, b in zip(eager, lazy, strict=True):
            assert a.dtype == b.dtype and a.tobytes() == b.tobytes(), f"{case}, {kind}: {a} != {b}"


def check_compiled(case: Case, where: Device) -> None:
    """Check that a compiled function gives the same bits, also of gradients, in two calls."""
    op = case.make()

    def run(*leaves: Any) -> Any:
        out = op(*[executor.apply(_COPY, x) for x in leaves])
        if case.has_gradient():
            _weighted_sum(out, where).backward()
        return out

    for kind in case.dtypes:
        eager, compiled = _with_gradients(case, kind, where), compile(run)
        for leaves in (case.inputs(kind, where), case.inputs(kind, where)):
            out = compiled(*leaves)
            parts = out if isinstance(out, tuple) else (out,)
            found = [part.numpy() for part in parts]
            found += [x.grad.numpy() for x in leaves if x.grad is not None]
            for a, b in zip(eager, found, strict=True):
                assert a.dtype == b.dtype and a.tobytes() == b.tobytes(), (
                    f"{case}, {kind}: {a} != {b}"
                )


def check_saves(case: Case, where: Device) -> None:
    """Check that gradients, of all inputs or of one, only need the values listed in ``saves``."""
    kept = _with_gradients(case, "float64", where)
    freed = _with_gradients(case, "float64", where, keep=False)
    for a, b in zip(kept[-len(freed) :], freed, strict=True):
        np.testing.assert_array_equal(a, b)
    inputs = [i for i, x in enumerate(case.inputs("float64", where)) if x.requires_grad]
    for i in inputs if len(inputs) > 1 else ():
        for part in _with_gradients(case, "float64", where, keep=False, alone=i):
            assert any(np.array_equal(part, x) for x in freed), f"{case}: input {i} alone"


def check_layouts(case: Case, where: Device) -> None:
    """Check that transposed, sliced, flipped and broadcast inputs give the same result."""
    op = case.make()
    for kind in case.dtypes:
        dense = case.storage(kind, where)
        for name, layout in LAYOUTS.items():
            inputs = [_leaf(layout(x)) for x in dense]
            copies = [_leaf(x.array.copy()) for x in inputs]
            refused = _refusal(op, copies)
            if refused is not None:  # repeated values may be a singular matrix
                assert _refusal(op, inputs) is refused, f"{op!r}, {name}: {refused} was expected"
                continue
            exact = [part.numpy().astype(np.float64) for part in _parts(op(*copies))]
            if kind == "float32":
                _compare(case, op(*inputs), _exact(case, inputs), kind, name)
            else:
                _compare(case, op(*inputs), exact, kind, name)


def _refusal(op: Op, inputs: Any) -> type[Exception] | None:
    try:
        op(*inputs)
    except SingularError as error:
        return type(error)
    return None


def check_small_shapes(case: Case, where: Device) -> None:
    """Check empty, 0-d and one-element operands (of elementwise ops; others have such samples)."""
    for shape in ((0,), (2, 0, 1), (), (1,), (1, 1)):
        count = int(np.prod(shape))
        inputs = tuple(np.resize(x.reshape(-1)[:count], shape) for x in case.arrays())
        sample = Sample(inputs, case.sample.static, case.sample.reference)
        small = replace(case, sample=sample)
        check_value(small, where)


def check_override(case: Case, where: Device) -> None:
    """Check a device's override of a composite against the expansion."""
    found = backend.find_override(where.name, case.op.__name__)
    op: Any = case.make()
    assert found is not None
    for kind in case.dtypes:
        inputs = op.prepare(case.inputs(kind, where))
        arrays = [executor.primal_array(x) for x in inputs]
        result = found(op, *arrays)
        if result is NotImplemented:
            continue
        exact = op.expanded(*arrays)
        pairs = zip(_tuple(result), _tuple(exact), strict=True)
        for a, b in pairs:
            assert a.spec is b.spec or a.spec == b.spec, f"{op!r}: {a.spec}, not {b.spec}"
            wide = b.numpy() if b.dtype.kind != "f" else b.numpy().astype(np.float64)
            assert_close(a.numpy(), wide, b.dtype, case.length(), f"{op!r}, override, {kind}")


def check_raises(case: Case, where: Device) -> None:
    """Check that the call raises the expected error, also in lazy mode, on the line of the call."""
    expected = case.sample.raises
    assert expected is not None
    for lazy in (False, True):
        with autograd.lazy_mode(lazy):
            try:
                result = case.make()(*case.inputs("float32", where))
                if case.sample.by_value:
                    executor.primal_array(result)
                    where.synchronize()  # kernels may run later, and so their errors
            except expected:
                continue
        raise AssertionError(f"{case.make()!r}: expected {expected.__name__} ({lazy=})")


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


class _CopyOf(Op):
    """A copy, whose gradient reads nothing."""

    def compute(self, x: Any) -> Any:
        return x.copy()

    def gradient(self, out_grad: Any, out: Any) -> Any:
        return (out_grad,)


_COPY = _CopyOf.of()


def _always(case: Case, where: Device) -> bool:
    return True


def _has_gradient(case: Case, where: Device) -> bool:
    return case.has_gradient()


def _of_numbers(case: Case, where: Device) -> bool:
    return issubclass(case.op, Elementwise) and not case.op.floating and case.takes_floats()


def _can_shrink(case: Case, where: Device) -> bool:
    same = len({x.shape for x in case.arrays()}) == 1 and case.arrays()[0].size > 0
    return issubclass(case.op, Elementwise) and same


def _is_overridden(case: Case, where: Device) -> bool:
    found = backend.find_override(where.name, case.op.__name__)
    return issubclass(case.op, Composite) and found is not None


@dataclass(frozen=True)
class Check:
    """A check of a valid sample.

    Attributes:
        run: runs the check; raises an exception if it fails.
        applies: tells whether the check applies to a case on a device.
        gated: whether the result may differ between the native gate and its Python definition.
        holds: names of the checks that this one includes.
        by_dtype: whether the check repeats the same work for every dtype.
    """

    run: Callable[[Case, Any], None]
    applies: Callable[[Case, Any], bool] = _always
    gated: bool = False
    holds: tuple[str, ...] = ()
    by_dtype: bool = False


CHECKS = {
    "value": Check(check_value, gated=True),
    "integers": Check(check_integers, _of_numbers, gated=True),
    "gradient": Check(check_gradient, _has_gradient, gated=True),
    "forward": Check(check_forward, _has_gradient, holds=("gradient",)),
    "second_order": Check(check_second_order, _has_gradient, holds=("gradient", "forward")),
    "lazy": Check(check_lazy, gated=True, by_dtype=True),
    "compiled": Check(check_compiled, by_dtype=True),
    "saves": Check(check_saves, _has_gradient, gated=True),
    "layouts": Check(check_layouts, gated=True, by_dtype=True),
    "small_shapes": Check(check_small_shapes, _can_shrink, gated=True),
    "override": Check(check_override, _is_overridden),
}


def without_held(names: Iterable[str]) -> list[str]:
    """Return the names of checks, but for those that are part of another one of them."""
    names = list(names)
    held = {part for name in names for part in CHECKS[name].holds}
    return [name for name in names if name not in held]


def check_op(op: type[Op], where: DeviceLike = None) -> None:
    """Run every check on every sample of an op.

    >>> ndl.testing.check_op(ops.Exp)

    Raises:
        AssertionError, GradientError: if a check fails.
    """
    target = devices.as_device(where)
    for case in cases(op):
        applying = [name for name, check in CHECKS.items() if check.applies(case, target)]
        for name in without_held(applying):
            CHECKS[name].run(case, target)
    for case in cases(op, raising=True):
        check_raises(case, target)
