"""Op and its families. An op is one class: its maths, its derivative, its samples.

    Elementwise   one row of functions.def; ``derivative`` gives both directions
    Linear        its tangent is the op itself; ``gradient`` is its transpose
    Multilinear   linear in each input: one term per input
    Composite     ``expand`` in terms of other ops; a device may override it as a whole

``compute`` works on arrays, ``gradient`` on tensors, so that gradients are graph again.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from needle import backend, core, devices, dtype, executor, forward, graph, reverse, tracing
from needle.backend import kernels
from needle.backend.array import Array, make_array, make_spec
from needle.dtype import DType
from needle.errors import ArgumentError, DeviceError, DtypeError, GradientError, explain
from needle.ops.core import work
from needle.ops.core.attributes import check_attribute, exact, operand_count, save_mask
from needle.ops.core.docs import kinds_of, with_contract
from needle.ops.core.foreign import wrapping
from needle.ops.core.operands import as_tensors, has_gradients, promoted
from needle.ops.core.samples import Sample
from needle.ops.core.signatures import signature_of

if TYPE_CHECKING:
    from needle.tensors import Tensor

__all__ = ["Composite", "Elementwise", "Identity", "Linear", "Multilinear", "Op", "all_ops"]

KINDS = core.numbers("op")
"""Kinds of ops that the native gate can run without Python."""

_VIEWS = tuple(KINDS[kind] for kind in ("reshape", "permute", "broadcast", "slice", "item"))

PROMOTIONS = core.numbers("promotion")
"""What ``promotes`` may be."""

OUTPUT = "output"
"""Stands in ``saves`` for the op's own result."""

Static = Any
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_interned: dict[tuple[Any, ...], Op] = {} if core.native is None else core.native.known_ops


def _remade(cls: type[Op], *values: Static) -> Op:
    """Return the one op equal to a copy from another process or a file."""
    return cls.of(*values)


class Op(graph.OpBase):
    """A value: a class and its static attributes, declared as annotations.

    Attributes:
        static: names of the static attributes, in the order of the constructor.
        saves: for each input, the values that the gradient with respect to it reads: positions of
            inputs, or OUTPUT. The last entry holds for all further inputs. Values that are not
            listed may be freed. A user's op without ``saves`` keeps all values, as in the course;
            ((),) keeps none.
        structural: whether ``compute`` only combines values or splits them.
        called: the op's name, if it is not the words of the class name.
        promotes: which operands are promoted to one dtype: "nothing", "all", or all to a "floating"
            dtype; "first": only the first, to a floating dtype.
        samples: a function that returns the list of Sample that the generated tests run.
    """

    static: ClassVar[tuple[str, ...]] = ()
    saves: ClassVar[Sequence[Sequence[int | str]]] = ()
    is_differentiable: ClassVar[bool] = True
    structural: ClassVar[bool] = False
    called: ClassVar[str] = ""
    promotes: ClassVar[str] = "nothing"
    samples: ClassVar[Callable[[], list[Sample]] | None] = None
    is_foreign: ClassVar[bool] = False
    """Whether a user defined the op: then the results of its gradient are checked."""
    _masks: ClassVar[tuple[int, ...]] = ()
    takes: ClassVar[int | None] = None
    """How many operands ``expand`` or ``compute`` takes; None: any number."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.is_foreign = cls.__module__.split(".")[0] != "needle"
        own = cls.__dict__.get("__annotations__", {})
        added = tuple(name for name, kind in own.items() if "ClassVar" not in str(kind))
        inherited = [
            name for base in reversed(cls.__bases__) for name in getattr(base, "static", ())
        ]
        cls.static = (*dict.fromkeys(inherited), *added)
        if cls.is_foreign and cls.saves is Op.saves:
            cls.saves = ((*range(63), graph.OUTPUT),)
        if cls.is_foreign and "compute" in vars(cls):
            cls.compute = wrapping(cls.compute)  # type: ignore[method-assign]
        cls._masks = tuple(save_mask(entry, graph.OUTPUT) for entry in cls.saves)
        cls.takes = operand_count(getattr(cls, "expand", None)) or operand_count(cls.compute)

    def __init__(self, *values: Static, **named: Static) -> None:
        super().__init__()
        cls = type(self)
        if len(values) + len(named) > len(cls.static):
            raise ArgumentError(f"{cls.__name__} takes {len(cls.static)} attributes: {cls.static}")
        for name, value in zip(cls.static, values, strict=False):
            setattr(self, name, value)
        for name, value in named.items():
            setattr(self, name, value)
        missing = [name for name in cls.static if not hasattr(self, name)]
        if missing:
            raise ArgumentError(f"{cls.__name__} needs attributes {missing}")
        for name in cls.static:
            check_attribute(self, name)
        self.save_masks = cls._masks
        self.differentiable = cls.is_differentiable
        if cls.prepare is Op.prepare:
            self.kind, self.code = KINDS["compute"], PROMOTIONS[cls.promotes]
            self.params = (-1 if cls.takes is None else cls.takes,)
        self.setup()

    def setup(self) -> None:
        """Tell the native gate how to run this op; called once per instance."""

    @classmethod
    def of(cls, *values: Static) -> Any:
        """Return the one op with these attributes (hashable, in order).

        This is the definition; the native module's is used where there is one.
        """
        key = exact((cls, *values))
        try:
            op = _interned.get(key)
        except TypeError:  # not hashable, for example a list
            return cls(*values)
        if op is None:
            if len(_interned) > 10_000:  # only a shortcut; ops in use stay alive in their nodes
                _interned.clear()
            op = _interned[key] = cls(*values)
        return op

    @functools.cached_property
    def name(self) -> str:
        """The op's name as users write it: ``LayerNorm`` is ``layer_norm``."""
        return self.called or _WORDS.sub("_", type(self).__name__).lower()

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.static)
        return f"{self.name}({values})" if values else self.name

    def __deepcopy__(self, memo: Any) -> Op:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self), *(getattr(self, name) for name in self.static))

    def __call__(self, *inputs: Any) -> Any:
        return executor.apply(self, *inputs)

    # ---- what an op defines ----------------------------------------------------

    def prepare(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the inputs as tensors, promoted; Python numbers take the dtype of the tensors.

        The gate skips this where tensors have the dtypes already, unless a class overrides it.

        Raises:
            ArgumentError: if an input is not a tensor.
            DtypeError: if the dtypes do not mix.
        """
        if self.promotes == "nothing":
            return as_tensors(inputs, self.name)
        if self.promotes == "first":
            first, *rest = as_tensors(inputs, self.name)
            return (*promoted((first,), self.name, floating=True), *rest)
        return promoted(inputs, self.name, floating=self.promotes == "floating")

    def compute(self, *arrays: Any) -> Any:
        """Return the result array for input arrays; on the meta device, its spec."""
        raise NotImplementedError

    def gradient(self, out_grad: Any, out: Any) -> Any:
        """Return, per input, the gradient (a tensor) or None; one input: the tensor itself.

        Args:
            out_grad: gradient with respect to the result; for several results a sequence, with
                None for unused ones.
            out: the result; ``out.inputs`` are the inputs. Only those listed in ``saves`` have
                values.

        Raises:
            GradientError: if the op defines none.
        """
        raise GradientError(f"{self.name}: no gradient is defined")

    def gradient_as_tuple(self, out_grad: Any, out: Any) -> tuple[Any, ...]:
        """Return ``gradient`` as a tuple, one entry per input."""
        result = self.gradient(out_grad, out)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    def push(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """Return the result and its tangent, given tangents of some inputs (None: zero).

        For several results the tangent is a list. The default works for every op: ``gradient`` is
        linear in ``out_grad``, and its transpose gives the tangent.
        """
        create_graph = graph.recording() and forward.needs((*primals, *tangents))
        moving = iter(
            variables([x for x, t in zip(primals, tangents, strict=True) if t is not None])
        )
        inputs = [x if t is None else next(moving) for x, t in zip(primals, tangents, strict=True)]
        with executor.modes(recording=True):
            out = executor.apply(self, *inputs)
        pull = functools.partial(self.gradient_as_tuple, out=out)
        tangent = reverse.transpose(self, pull, out.spec, tangents, create_graph)
        if graph.recording() and any(x.requires_grad for x in primals):
            return out, tangent
        if out.array is not None:  # without the graph, which was made only for the transpose
            return graph.wrap(out.array), tangent
        return executor.apply(self, *primals), tangent

    def infer(self, *specs: Any) -> Any:
        """Return the spec of the result: ``compute`` on the meta device.

        Raises:
            DeviceError: if the operands are on several devices.
        """
        where = specs[0].device
        for spec in specs:
            if spec.device != where:
                raise DeviceError(f"{self.name}: operands on devices {where} and {spec.device}")
        meta = devices.meta()
        arrays = [make_array(make_spec(s.dtype, meta, s.shape), None) for s in specs]
        result = self.compute(*arrays)
        if isinstance(result, tuple):
            return tuple(make_spec(a.dtype, where, a.shape) for a in result)
        if not isinstance(result, Array):
            raise executor.not_an_array(self.name, result)
        return make_spec(result.dtype, where, result.shape)

    def flops(self, *specs: Any) -> int:
        """Return how many operations on numbers the op takes, about: one for each element."""
        return 0 if self.structural or self.kind in _VIEWS else work.elements(self.infer(*specs))


def needed(out: Any) -> list[bool]:
    """Return, per input of a result, whether its gradient is wanted."""
    return [node.needs for node in out.node.inputs]


def sum_to(x: Any, shape: tuple[int, ...]) -> Any:
    """Undo a broadcast: sum x over the axes that broadcasting from ``shape`` repeated."""
    if x.spec.shape == shape:
        return x
    from needle.ops.reduction.reduce import SumTo

    return executor.apply(SumTo.of(shape), x)


if core.native is not None:
    Op.of = classmethod(core.native.op_of)  # type: ignore[assignment,method-assign]


# ---- families ------------------------------------------------------------------


class Elementwise(Op):
    """A function of each element: one row of functions.def. Operands broadcast.

    Attributes:
        function: name of the row.
        result: dtype of the result; that of the operands for None.
        floating: whether integers are cast to the default float first.
        accepts: kinds of dtypes: f floating, i and u integers, b bool.
    """

    function: ClassVar[str]
    result: ClassVar[DType | None] = None
    floating: ClassVar[bool] = False
    accepts: ClassVar[str] = "fiu"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("__doc__")
        if own:
            cls.__doc__ = with_contract(own, cls.accepts, cls.floating, cls.result)

    @functools.cached_property
    def name(self) -> str:
        return self.function

    def setup(self) -> None:
        self.code = kernels.function_code(self.function)
        if self.code >= 0:
            self.kind = KINDS["elementwise"]
            self.params = (int(self.result is not None), int(self.floating))

    @classmethod
    @functools.cache
    def operands(cls) -> int | None:
        """Return the number of operands, from the samples."""
        return len(cls.samples()[0].inputs) if cls.samples is not None else None

    def prepare(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        count = self.operands()
        if count is not None and len(inputs) != count:
            raise ArgumentError(f"{self.name}: expected {count} operands, got {len(inputs)}")
        tensors = promoted(inputs, self.name, self.floating)
        kind = executor.spec_of(tensors[0]).dtype
        if kind.kind not in self.accepts:
            known = " or ".join(kinds_of(self.accepts))
            raise explain(
                DtypeError, self.name, f"not defined for {kind}",
                list(zip("xyz", tensors, strict=False)), f"dtypes are {known}",
                'cast first, for example x.astype("int64")',
            )  # fmt: skip
        return tensors

    def compute(self, *arrays: Any) -> Any:
        return kernels.elementwise(self.function, *arrays, dtype=self.result)

    def derivative(self, out: Any, i: int) -> Any:
        """Return the partial derivative with respect to input i, elementwise: both directions.

        The result is a number or a tensor. A bool tensor selects: 1 where it is true, else 0 (also
        for infinite gradients). A pair of bool tensors: 1 where the first is true, else 1/2 where
        the second is true, else 0.

        Raises:
            GradientError: if the op defines none.
        """
        raise GradientError(f"{self.name}: no derivative is defined")

    def gradient(self, out_grad: Any, out: Any) -> Any:
        nodes = out.node.inputs
        return tuple(
            sum_to(_scaled(out_grad, self.derivative(out, i)), node.spec.shape)
            if node.needs
            else None
            for i, node in enumerate(nodes)
        )

    def push(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        out = executor.apply(self, *primals)
        known = graph.record(self, primals, out.array) if out.node is None else out
        needs = graph.recording() and forward.needs(primals)
        terms = []
        for i, tangent in enumerate(tangents):
            if tangent is not None:
                with executor.modes(recording=needs):
                    factor = self.derivative(known, i)
                factor = out if factor is known else factor  # outside any graph
                if isinstance(factor, graph.TensorBase) or factor != 0.0:
                    terms.append(_scaled(tangent, factor))
        return out, spread_to(total(terms), out.spec.shape) if terms else None


class Linear(Op):
    """Linear in its one input: its tangent is the op itself, ``gradient`` its transpose."""

    def push(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        out = executor.apply(self, *primals)
        return out, executor.apply(self, *tangents) if out.spec.dtype.is_floating else None


class Multilinear(Op):
    """Linear in each input: its tangent is one term per input."""

    def push(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        terms = [
            executor.apply(self, *primals[:i], tangent, *primals[i + 1 :])
            for i, tangent in enumerate(tangents)
            if tangent is not None
        ]
        return executor.apply(self, *primals), total(terms)


class Composite(Op):
    """An op made of others: ``expand`` defines it; a device may override it as a whole.

    Unless a class overrides ``gradient``, the gradient is that of the expansion, which runs again
    from the inputs.
    """

    saves: ClassVar[Sequence[Sequence[int | str]]] = (tuple(range(8)),)

    def expand(self, *inputs: Any) -> Any:
        """Return the result (of several: a tuple) in terms of other ops, on tensors."""
        raise NotImplementedError

    def compute(self, *arrays: Any) -> Any:
        found = backend.find_override(arrays[0].device.name, type(self).__name__)
        if found is not None:
            result = found(self, *arrays)
            if result is not NotImplemented:
                return result
        return self.expanded(*arrays)

    def flops(self, *specs: Any) -> int:
        return work.of_expansion(self, specs)

    def expanded(self, *arrays: Any) -> Any:
        """Return the result array by the expansion, even if a device overrides it."""
        with executor.modes(recording=False, lazy=False):
            result = self.expand(*map(graph.wrap, arrays))
            if isinstance(result, tuple):
                return tuple(map(executor.primal_array, result))
            return executor.primal_array(result)

    def gradient(self, out_grad: Any, out: Any) -> Any:
        wanted, inputs = needed(out), out.inputs
        with executor.modes(recording=True):
            chosen = variables([x for x, want in zip(inputs, wanted, strict=True) if want])
            rest = iter(chosen)
            result = self.expand(
                *[next(rest) if want else x for x, want in zip(inputs, wanted, strict=True)]
            )
        if not isinstance(result, tuple):
            result, out_grad = (result,), (out_grad,)
        reached = [pair for pair in zip(result, out_grad, strict=True) if pair[1] is not None]
        outs, seeds = zip(*reached, strict=True)
        found = iter(reverse.collect(outs, seeds, chosen, graph.recording()))
        return tuple(next(found) if want else None for want in wanted)

    def push(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        cls = type(self)
        out, tangent = forward.push(self.expand, primals, tangents)
        overridden = backend.find_override(primals[0].spec.device.name, cls.__name__) is not None
        if isinstance(out, tuple):
            from needle.ops.shape.tuples import make_tuple

            out = make_tuple(*out)
        if overridden or (cls.compute, cls.expanded) != (Composite.compute, Composite.expanded):
            out = executor.apply(self, *primals)  # the same value, with the op's checks
        return out, tangent


class Identity(Linear):
    """Return x as a new node."""

    def compute(self, x: Any) -> Any:
        return x

    def gradient(self, out_grad: Any, out: Any) -> Any:
        return (out_grad,)


def variables(inputs: Sequence[Any]) -> list[Any]:
    """Return tensors of the same values, each of which starts a new graph.

    Where recording is on they stay connected to the inputs, so that their results can also be
    differentiated with respect to the inputs.
    """
    found = []
    for x in inputs:
        if graph.recording() and x.requires_grad:
            found.append(executor.apply(Identity.of(), x))
            continue
        if graph.lazy() and (tracing.current() or (x.array is None and not x.node.done)):
            found.append(graph.pend(Identity.of(), (x,), x.spec, True))
            continue
        start = graph.wrap(executor.array_of(x))
        start.requires_grad = has_gradients(x.spec.dtype)
        found.append(start)
    return found


class Placeholder(Op):
    """A value that a program's call brings: an argument, a cell, or numbers.

    Raises:   ArgumentError if it is computed

    Attributes:
        index: its place among the program's sources.
        strides: of its array, in elements; None for a dense one.
    """

    index: int
    strides: Any
    is_differentiable = False

    def compute(self, *arrays: Any) -> Any:
        raise ArgumentError(f"source {self.index} of a program has no value outside a call")


def aliases(tensors: Sequence[Any]) -> list[Any]:
    """Return other tensors of the same values, for a user's function, which may assign to them.

    After ``x[i] = y`` x stands for another value, and gradients with respect to x would be those
    with respect to that value.
    """
    return [executor.apply(Identity.of(), x) for x in tensors]


def starts(inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return nodes to differentiate with respect to, and their tensors for a user's function.

    None of the tensors is a leaf: a leaf stays a leaf when assigned to, and loses its old value.
    """
    tensors = variables(inputs)
    nodes = [graph.leaf(x) for x in tensors]
    with executor.modes(recording=True):
        return nodes, [x if x.op is not None else aliases([x])[0] for x in tensors]


def _scaled(x: Any, factor: Any) -> Any:
    """Return x times the result of ``derivative``: a number, a tensor, or bool tensors."""
    if isinstance(factor, tuple):
        whole, half = factor
        return _selected(whole, x, _selected(half, 0.5 * x, 0.0))
    if isinstance(factor, graph.TensorBase):
        return _selected(factor, x, 0.0) if factor.spec.dtype is dtype.bool_ else x * factor
    if factor == 0.0:  # also for infinite x
        return reverse.full_like(x, 0.0)
    return x if factor == 1.0 else -x if factor == -1.0 else x * factor


def _selected(chosen: Any, x: Any, other: Any) -> Any:
    from needle.ops.elementwise.arithmetic import where

    return where(chosen, x, other)


def total(terms: Sequence[Any]) -> Any:
    """Return the sum of tensors."""
    return functools.reduce(lambda x, y: x + y, terms)


def spread_to(x: Any, shape: tuple[int, ...]) -> Any:
    """Return x broadcast to a shape."""
    if x.spec.shape == shape:
        return x
    from needle.ops.shape.movement import broadcast_to

    return broadcast_to(x, shape)


@functools.cache
def export(cls: type[Op]) -> Callable[..., Tensor]:
    """Return the public function of an op without attributes: ``exp = export(Exp)``."""
    function: Any = functools.partial(executor.apply, cls.of())
    function.__signature__ = signature_of(cls.__name__)
    function.__name__ = function.__qualname__ = function.args[0].name
    function.__doc__ = cls.__doc__
    function.__reduce_ex__ = lambda protocol: (export, (cls,))  # copies are the function itself
    return function


def all_ops() -> list[type[Op]]:
    """Return every op class that has samples: the op database of tests, docs and export."""
    found: set[type[Op]] = set()
    todo = [Op]
    while todo:
        cls = todo.pop()
        todo += cls.__subclasses__()
        if cls.samples is not None and cls.__module__.startswith("needle."):
            found.add(cls)
    return sorted(found, key=lambda cls: (cls.__module__, cls.__name__))
