"""Derivatives as functions of functions: ``jvp``, ``linearize``, ``jacobian``, ``hvp``.

They compose with each other and with ``grad`` and ``vjp`` in any order. Forward mode is in
``forward`` (what a tensor holds meanwhile) and in ``Op.push`` (the rule of each family of ops).

``linearize`` and the forward way of ``jacobian`` transpose the transpose: reverse mode runs once on
a variable output gradient, and its graph, linear in that, is walked for each tangent. ``hvp`` is
``jvp`` of ``grad``, ``hessian`` is ``jacobian`` of ``grad``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from needle import autograd, executor, forward, graph, reverse, tree
from needle.backend.ndarray import array
from needle.checkpoint import check_rules
from needle.errors import DtypeError, GradientError, OptionError, ShapeError, explain
from needle.ops.core.starts import stand_ins, starts
from needle.ops.shape.movement import reshape
from needle.ops.shape.tuples import stack

if TYPE_CHECKING:
    from needle.tensors import Tensor
    from needle.typing import Values

__all__ = ["hessian", "hvp", "jacobian", "jvp", "linearize"]


def jvp(function: Callable[..., Any], primals: Any, tangents: Any) -> tuple[Any, Any]:
    """Return ``function(*primals)`` and its derivative along ``tangents``: forward mode.

        out, tangent = f(x), J(x) v

    The function runs once, on pairs of a value and a tangent. A pair is freed after its last use,
    so memory does not grow with the depth of the function (if an input or a parameter requires a
    gradient, the graph is recorded as usual; see ``no_grad``). One call costs a small multiple of
    the function for any number of results: for few inputs and many results it is cheaper than
    ``vjp``. ``item``, ``numpy`` and ``bool`` in the function read the value.

    Shapes:   each tangent has the shape of its primal; out's tangent that of out
    Dtypes:   floating; integer and bool inputs take None for a tangent
    Raises:   GradientError for a wrong number of tangents, or a result that is not a tensor;
              ShapeError, DtypeError where a tangent does not fit its primal
    Source:   Griewank, Walther, "Evaluating Derivatives", 2008, section 3.1

    Args:
        function: takes the primals, returns a tensor or (nested) tuples and lists of tensors.
        primals: a tuple of tensors, or one tensor.
        tangents: for each primal a tensor, a NumPy array or a number; None for zero.

    Returns:
        The result and its tangent (None in place of a tensor that is not floating).

    >>> out, slope = ndl.jvp(lambda x: x * x, (Tensor([3.0]),), (Tensor([1.0]),))
    >>> slope.numpy()
    array([6.], dtype=float32)
    """
    xs, vs = _several(primals), _several(tangents)
    if len(xs) != len(vs):
        raise GradientError(
            f"jvp: expected one tangent for each primal, got {len(vs)} for {len(xs)}"
        )
    vs = tuple(_tangent("jvp", x, v) for x, v in zip(xs, vs, strict=True))
    own = [stand_ins([x])[0] if v is None else x for x, v in zip(xs, vs, strict=True)]
    out, tangent = forward.push(tree.checked("jvp", function), own, vs)
    return out, _filled(out, tangent)


def linearize(function: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """Return ``function(*primals)`` and its derivative there, as a linear map of tangents.

    The function runs once; each call of the map costs only the linear part of ``jvp``, and can be
    differentiated too. The map keeps the same values as reverse mode.

    Shapes:   each tangent has the shape of its primal; the map's result that of out
    Raises:   as ``jvp``; GradientError: if there is not one tangent per primal.
    Source:   Radul, Paszke, Frostig, Johnson, Maclaurin, "You Only Linearize Once", 2023,
              arXiv:2204.10923; here the map is the transpose of the transpose (``vjp``)

    >>> out, push = ndl.linearize(lambda x: x * x, Tensor([3.0]))
    >>> print(push(Tensor([1.0])), push(Tensor([10.0])))
    [6.] [60.]
    """
    outer = graph.recording()
    result, leaves = _traced("linearize", function, primals)
    map_of = _pushed(result, leaves)

    def push(*tangents: Any) -> Any:
        if len(tangents) != len(primals):
            raise GradientError(
                f"linearize: expected one tangent for each of {len(primals)} primals, "
                f"got {len(tangents)}"
            )
        vs = [_tangent("linearize", x, v) for x, v in zip(primals, tangents, strict=True)]
        return map_of(vs, graph.recording() and outer and forward.needs((*primals, *vs)))

    return result, push


def _traced(name: str, function: Callable[..., Any], inputs: Sequence[Tensor]) -> tuple[Any, Any]:
    """Return a function's recorded result, and the inputs that start its graph."""
    for x in inputs:
        _tangent(name, x, None)  # must be a tensor
    nodes, tensors = starts(inputs)
    with executor.modes(recording=True):
        return tree.checked(name, function)(*tensors), nodes


def _pushed(
    result: Any, leaves: Sequence[Tensor]
) -> Callable[[Sequence[Tensor | None], bool], Any]:
    """Return the map from tangents of the leaves to that of a recorded result."""
    reached = [x for x in tree.flat(result) if x.requires_grad]
    check_rules(reached)
    seeds = [reverse.variable(x.spec) for x in reached]
    with executor.modes(recording=True):
        grads = reverse.collect(reached, seeds, leaves, True)

    def push(vs: Sequence[Tensor | None], create_graph: bool) -> Any:
        pairs = [(g, v) for g, v in zip(grads, vs, strict=True) if v is not None]
        pairs = [(g, v) for g, v in pairs if g.requires_grad]
        with executor.modes(recording=create_graph):
            found = reverse.collect([g for g, _ in pairs], [v for _, v in pairs], seeds, True)
        known = dict(zip(map(id, reached), found, strict=True))
        return _filled(result, tree.rebuilt(result, lambda x: known.get(id(x))))

    return push


@overload
def jacobian(
    function: Callable[..., Any], argnums: int = 0, mode: str | None = None
) -> Callable[..., Tensor]: ...
@overload
def jacobian(
    function: Callable[..., Any], argnums: Sequence[int], mode: str | None = None
) -> Callable[..., tuple[Any, ...]]: ...
def jacobian(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, mode: str | None = None
) -> Callable[..., Any]:
    """Return a function that gives all partial derivatives: ``J[i..., j...] = d out[i] / d x[j]``.

    Shapes:   out [i...], x [j...] -> [i..., j...]
    Raises:   GradientError if the function returns several tensors, or an argument or the result is
              not floating; IndexRangeError if argnums are out of range; OptionError for an unknown
              mode
    Source:   Griewank, Walther, "Evaluating Derivatives", 2008, sections 3.1 and 3.2

    Args:
        function: takes tensors, returns one tensor. Keyword arguments are passed on to it.
        argnums: which positional arguments to differentiate; a tuple gives a tuple.
        mode: "forward" takes one pass per element of x, "reverse" one per element of out; None
            chooses the one with fewer passes. The function itself runs once in both.

    >>> ndl.jacobian(lambda x: x * x)(Tensor([1.0, 2.0])).numpy()
    array([[2., 0.],
           [0., 4.]], dtype=float32)
    """
    if mode not in (None, "forward", "reverse"):
        raise OptionError(f"jacobian: mode is {mode!r}, must be 'forward', 'reverse' or None")

    tree.check_function("jacobian", function)

    def call(*args: Any, **named: Any) -> Any:
        wanted = autograd.places("jacobian", argnums, args)
        positions = tuple(dict.fromkeys(wanted))
        chosen = [args[i] for i in positions]

        def of_chosen(*inputs: Any) -> Any:
            every = list(args)
            for i, x in zip(positions, inputs, strict=True):
                every[i] = x
            return function(*every, **named)

        for x in chosen:
            _tangent("jacobian", x, 0.0)  # must be floating
        out, leaves = _traced("jacobian", of_chosen, chosen)
        size = sum(x.spec.size for x in chosen)
        few = size < _one(out).spec.size if mode is None else mode == "forward"
        found = dict(zip(positions, (_columns if few else _rows)(out, leaves), strict=True))
        every = tuple(found[i] for i in wanted)
        return every if isinstance(argnums, Sequence) else every[0]

    return call


@overload
def hessian(function: Callable[..., Any], argnums: int = 0) -> Callable[..., Tensor]: ...
@overload
def hessian(
    function: Callable[..., Any], argnums: Sequence[int]
) -> Callable[..., tuple[Any, ...]]: ...
def hessian(function: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """Return a function that gives the second derivatives of a scalar function.

        H[i..., j...] = d^2 f / d x[i] d x[j]

    It costs one pass through the gradient's graph per element of x; ``hvp``, the product with a
    vector, costs one pass.

    Shapes:   x [i...] -> [i..., i...]; between two arguments x [i...] and y [j...]: [i..., j...]
    Raises:   GradientError if the function does not return a scalar; else as ``jacobian``
    Source:   Griewank, Walther, "Evaluating Derivatives", 2008, section 5.1

    Args:
        function: takes tensors, returns a scalar tensor. Keyword arguments are passed on to it.
        argnums: which positional arguments to differentiate; a tuple gives a tuple of tuples.

    >>> ndl.hessian(lambda x: (x * x * x).sum())(Tensor([1.0, 2.0])).numpy()
    array([[ 6.,  0.],
           [ 0., 12.]], dtype=float32)
    """
    tree.check_function("hessian", function)
    if not isinstance(argnums, Sequence):
        return jacobian(autograd.grad(function, argnums), argnums)
    rows = [jacobian(autograd.grad(function, i), argnums) for i in argnums]

    def call(*args: Any, **named: Any) -> Any:
        return tuple(row(*args, **named) for row in rows)

    return call


def hvp(function: Callable[..., Any], primals: Any, vectors: Any) -> Any:
    """Return the product of the Hessian of a scalar function and a vector: forward over reverse.

        d/de grad(f)(x + e v) at e = 0

    It costs a small multiple of the gradient; the Hessian itself is never formed.

    Shapes:   each vector and each result has the shape of its primal
    Raises:   GradientError if the function does not return a scalar; else as ``jvp``
    Source:   Pearlmutter, "Fast Exact Multiplication by the Hessian", 1994

    Args:
        function: takes the primals, returns a scalar tensor (one element).
        primals: a tuple of tensors, or one tensor.
        vectors: as ``tangents`` in ``jvp``.

    Returns:
        A tensor for one primal, a tuple of tensors for a tuple; None for one not floating.
    """
    xs = _several(primals)
    tensors = [(i, x) for i, x in enumerate(xs) if isinstance(x, graph.TensorBase)]
    moving = [i for i, x in tensors if x.spec.dtype.is_floating]
    slope = autograd.grad(function, moving or range(len(xs)))
    known = dict(zip(moving, jvp(slope, xs, vectors)[1], strict=True))
    found = tuple(known.get(i) for i in range(len(xs)))
    return found if isinstance(primals, (tuple, list)) else found[0]


# ---- rows and columns --------------------------------------------------------------


def _columns(out: Any, inputs: Sequence[Tensor]) -> list[Tensor]:
    push, create_graph = _pushed(out, inputs), graph.recording()
    found = []
    for k, x in enumerate(inputs):
        vs: list[Any] = [None] * len(inputs)
        columns = []
        for unit in _units(x):
            vs[k] = unit
            columns.append(push(vs, create_graph))
        found.append(_assembled(columns, -1, out, x))
    return found


def _rows(out: Any, inputs: Sequence[Tensor]) -> list[Tensor]:
    rows = [reverse.collect([out], [unit], inputs, True) for unit in _units(out)]
    return [_assembled([row[k] for row in rows], 0, out, x) for k, x in enumerate(inputs)]


def _assembled(parts: Sequence[Any], axis: int, out: Any, x: Tensor) -> Any:
    shape = (*out.spec.shape, *x.spec.shape)
    if not parts:
        spec = out.spec
        return graph.wrap(array(np.zeros(shape), spec.dtype, spec.device))
    return reshape(stack(parts, axis), shape)


def _units(x: Tensor) -> Iterator[Tensor]:
    """Yield the unit vectors of the shape of x."""
    spec = x.spec
    for i in range(spec.size):
        unit = np.zeros(spec.size)
        unit[i] = 1.0
        yield graph.wrap(array(unit.reshape(spec.shape), spec.dtype, spec.device))


def _one(out: Tensor) -> Tensor:
    if not isinstance(out, graph.TensorBase) or type(out.spec) is tuple:
        raise GradientError(f"jacobian: the function must return one tensor, not {tree.kind(out)}")
    if not out.spec.dtype.is_floating:
        raise GradientError(
            f"jacobian: the function returned {out.spec.dtype}, not a floating dtype"
        )
    return out


# ---- arguments and results ---------------------------------------------------------


def _several(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def _tangent(name: str, x: Tensor, v: Values | None) -> Tensor | None:
    """Return a tangent of x as a tensor, or None for zero."""
    if not isinstance(x, graph.TensorBase) or type(x.spec) is tuple:
        raise GradientError(f"{name}: expected tensors as primals, got {tree.kind(x)}")
    if v is None:
        return None
    spec = x.spec
    if not spec.dtype.is_floating:
        raise explain(
            DtypeError, name, f"a tangent was given for a {spec.dtype} tensor", [("primal", x)],
            "only floating tensors have tangents", "pass None as its tangent",
        )  # fmt: skip
    if isinstance(v, (int, float)):
        return reverse.full_like(x, float(v))
    if not isinstance(v, graph.TensorBase):
        v = autograd.vector(name, v, spec)
    if v.spec.shape != spec.shape:
        raise explain(
            ShapeError, name, "the shapes of a tangent and its primal differ",
            [("primal", x), ("tangent", v)], "a tangent is a direction in the space of its primal",
        )  # fmt: skip
    if v.spec != spec:
        raise explain(
            DtypeError, name, "a tangent differs from its primal in dtype or device",
            [("primal", x), ("tangent", v)], "", "cast it: tangent.astype(primal.dtype)",
        )  # fmt: skip
    return v


def _filled(out: Any, tangent: Any) -> Any:
    """Return a result's tangent with zeros where it has none; None where it is not floating."""
    if isinstance(out, (tuple, list)):
        return tree.like(out, [_filled(x, t) for x, t in zip(out, tangent, strict=True)])
    if tangent is None and out.spec.dtype.is_floating:
        return reverse.full_like(out, 0.0)
    return tangent
