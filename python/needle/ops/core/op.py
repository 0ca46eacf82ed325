"""Op: the class of all ops. An op is one class: its maths, its derivative, its samples.

``compute`` works on arrays, ``gradient`` on tensors, so that gradients are graph again. Two ops
that every other one needs are here too: ``Cast`` promotes operands, ``Identity`` starts a graph.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from needle import config, core, devices, executor, forward, graph, reverse, tracing
from needle import dtype as dtypes
from needle.backend.array import Array, make_array, make_spec
from needle.dtype import DType, as_dtype
from needle.errors import ArgumentError, DeviceError, DtypeError, GradientError, explain
from needle.ops.core import work
from needle.ops.core.attributes import check_attribute, exact, operand_count, save_mask
from needle.ops.core.foreign import wrapping
from needle.ops.core.operands import as_tensors, has_gradients, unified
from needle.ops.core.samples import Sample, uniform
from needle.ops.core.signatures import signature_of

if TYPE_CHECKING:
    from needle.backend.array import Spec
    from needle.typing import DTypeLike, Gradients, NDArray, Tensor
    from needle.value import Value

__all__ = ["Cast", "Identity", "Linear", "Op", "all_ops"]

KINDS = core.numbers("op")
"""Kinds of ops that the native gate can run without Python."""

_VIEWS = tuple(KINDS[kind] for kind in ("reshape", "permute", "broadcast", "slice", "item"))

PROMOTIONS = core.numbers("promotion")
"""What ``promotes`` may be."""

OUTPUT = "output"
"""Stands in ``saves`` for the op's own result."""

Static = Any
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_interned: dict[object, Op] = {} if core.native is None else core.native.known_ops


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

    def __init_subclass__(cls, **kwargs: object) -> None:
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

    def __deepcopy__(self, memo: object) -> Op:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return _remade, (type(self), *(getattr(self, name) for name in self.static))

    def __call__(self, *inputs: Any) -> Any:
        return executor.apply(self, *inputs)

    # ---- what an op defines ----------------------------------------------------

    def prepare(self, inputs: tuple[Any, ...]) -> tuple[Tensor, ...]:
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

    def flops(self, *specs: Spec) -> int:
        """Return how many operations on numbers the op takes, about: one for each element."""
        return 0 if self.structural or self.kind in _VIEWS else work.elements(self.infer(*specs))


def needed(out: Value) -> list[bool]:
    """Return, per input of a result, whether its gradient is wanted."""
    return [node.needs for node in out.node.inputs]


if core.native is not None:
    Op.of = classmethod(core.native.op_of)  # type: ignore[assignment,method-assign]


class Linear(Op):
    """Linear in its one input: its tangent is the op itself, ``gradient`` its transpose."""

    def push(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        out = executor.apply(self, *primals)
        return out, executor.apply(self, *tangents) if out.spec.dtype.is_floating else None


class Identity(Linear):
    """Return x as a new node."""

    def compute(self, x: NDArray) -> NDArray:
        return x

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (out_grad,)


class Cast(Linear):
    """Convert to another dtype. Floats are rounded towards zero to integers, and saturate.

    Shapes:   x [...] -> the same
    Dtypes:   any -> dtype
    Gradient: x, where both dtypes are floating
    """

    dtype: DType
    samples = staticmethod(
        lambda: [
            Sample((uniform((3, 4)),), (as_dtype("float64"),), lambda x: x, dtypes=("float32",)),
            Sample((uniform((3, 4), -9, 9),), (as_dtype("int32"),), np.trunc, gradient=False),
        ]
    )

    def setup(self) -> None:
        self.kind, self.params = KINDS["cast"], (self.dtype.code,)
        self.differentiable = self.dtype.kind == "f" or config.initial().backend == "np"

    def compute(self, x: NDArray) -> NDArray:
        return x.astype(self.dtype)

    def gradient(self, out_grad: Tensor, out: Tensor) -> Gradients:
        return (executor.apply(Cast.of(out.node.inputs[0].spec.dtype), out_grad),)


# ---- operands in one dtype, and the start of a graph -------------------------------


def promoted(inputs: tuple[Any, ...], name: str, floating: bool = False) -> tuple[Tensor, ...]:
    """Return the inputs as tensors of one dtype, a floating one if asked for.

    Python numbers are weak: they take the dtype of the tensors, unless that cannot hold their
    kind (a float with integers gives the default float, an integer with bools int64). NumPy
    integers and bools are also weak with floating tensors.

    Raises:
        ArgumentError: if none of them is a tensor, or one is neither a tensor nor a number.
        DtypeError: if the dtypes of the tensors do not mix.
    """
    tensors, kind = unified(inputs, name, floating)
    return tuple([cast(x, kind) for x in tensors])


def cast(x: Any, kind: DType) -> Tensor:
    """Return a tensor in another dtype; itself if it has it."""
    return x if executor.spec_of(x).dtype is kind else executor.apply(Cast.of(kind), x)


def widened(x: Any) -> Tensor:
    """Return x, in float32 where it is float16 or bfloat16: sums and exponentials need it."""
    return cast(x, dtypes.float32) if executor.spec_of(x).dtype.itemsize == 2 else x


def in_dtype(
    function: Callable[..., Tensor],
    kind: DTypeLike,
    x: Tensor,
    *args: object,
    floating: bool = False,
) -> Tensor:
    """Return ``function(x, *args)`` with x cast to a dtype first, as the argument ``dtype`` asks.

    Args:
        function: a function of a tensor.
        kind: the dtype, or its name.
        x: a tensor.
        args: the function's other arguments.
        floating: whether its results are floating.

    Raises:
        DtypeError: if they are but the dtype is not.
    """
    target = as_dtype(kind)
    if floating and target.kind != "f":
        name, problem = function.__name__, f"dtype is {target}"
        raise explain(DtypeError, name, problem, [("x", x)], "the result is floating")
    return cast(function(cast(x, target), *args), target)


def variables(inputs: Sequence[Tensor]) -> list[Tensor]:
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
            needs = has_gradients(x.spec.dtype)
            found.append(graph.pend(Identity.of(), (x,), x.spec, needs))
            continue
        start = graph.wrap(executor.array_of(x))
        start.requires_grad = has_gradients(x.spec.dtype)
        found.append(start)
    return found


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
