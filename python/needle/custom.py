"""Functions with a gradient given by the user: ``custom_gradient``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from needle import executor, finite, forward, graph, reverse, structure
from needle.backend.ndarray import array, full_of
from needle.errors import GradientError, user_line
from needle.ops.base import Op
from needle.ops.tuples import make_tuple

__all__ = ["custom_gradient"]


class _Custom(Op):
    """A function with a gradient given by the user (see ``custom_gradient``)."""

    function: Callable[..., Any]
    pull: Any
    called = "custom_gradient"

    def __repr__(self) -> str:
        return f"{self.name}({structure.name_of(self.function)})"

    def setup(self) -> None:
        self.opaque = True

    def compute(self, *arrays: Any) -> Any:
        with executor.modes(recording=False, lazy=False):
            out = self.function(*map(graph.wrap, arrays))[0]
            return executor.value_of(make_tuple(*out) if isinstance(out, (tuple, list)) else out)

    def gradient(self, out_grad: Any, out: Any) -> Any:
        return self.pull(out_grad)


def custom_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function a gradient of its own.

    For a rule that is more stable or cheaper than that of the function's ops, or another one on
    purpose (straight-through estimators, clipped or reversed gradients). The rule may read the
    inputs and anything computed on the way; it is made of ops, so that higher derivatives follow.

    Forward mode (``jvp``, ``hvp``, ``linearize``) transposes the rule. So it must be linear in
    ``out_grad`` there, as every gradient is; clipping is not, and raises.

    Shapes:   pull: out_grad of the shape of out -> a gradient of the shape of each input
    Raises:   GradientError if the function does not return a pair of that form; in forward mode if
              the rule is not linear in ``out_grad``

    Args:
        function: takes tensors, returns ``(out, pull)``, where ``pull(out_grad)`` returns the
            gradients of the inputs: a tensor, or one (or None) per input. ``out`` is a tensor, or
            a tuple of them; then ``out_grad`` is a tuple, with None for those not floating.

    >>> @custom_gradient
    ... def log1pexp(x):
    ...     e = x.exp()
    ...     return (1 + e).log(), lambda out_grad: out_grad * (1 - 1 / (1 + e))
    """

    def call(*args: Any) -> Any:
        out, pull = _pair(function(*args))
        several = isinstance(out, (tuple, list))
        if several:
            out = make_tuple(*out)
        if type(out.spec) is tuple:
            pull = functools.partial(_pulled, pull, out.spec)
        held, level = executor.held(out), forward.top(args)
        if level:
            primals, tangents = forward.unbox(args, level)
            tangent = _tangent_of_rule(pull, out.spec, level, tangents)
            below = call(*primals)
            below = make_tuple(*below) if isinstance(below, tuple) else below
            held = forward.box(level, below, tangent)
        if graph.recording() and any(x.requires_grad for x in args):
            result = graph.record(_Custom(function, pull), args, held)
            if finite.on():
                finite.note(result.node, user_line())
        else:
            result = graph.wrap(held)
        return result.tuple() if several else result

    return call


def _pair(found: Any) -> Any:
    """Return what a function with a rule gave: its result, a tensor or a tuple, and the rule."""
    pair = found if isinstance(found, (tuple, list)) and len(found) == 2 else (None, None)
    out, pull = pair
    parts = list(out) if isinstance(out, (tuple, list)) else [out]
    if not parts or not callable(pull) or not all(isinstance(x, graph.TensorBase) for x in parts):
        inside = ", ".join(map(structure.kind, found)) if isinstance(found, (tuple, list)) else ""
        raise GradientError(
            f"custom_gradient: the function returned {structure.kind(found)}({inside})\n"
            "  rule: it returns (out, pull): a tensor or a tuple of tensors, and a function"
        )
    return out, pull


def _pulled(pull: Any, specs: Sequence[Any], out_grads: Any) -> Any:
    """Apply the rule of several results, with zeros where no gradient arrived."""
    return pull(
        tuple(
            graph.wrap(full_of(spec, 0.0)) if part is None and spec.dtype.is_floating else part
            for spec, part in zip(specs, out_grads, strict=True)
        )
    )


def _tangent_of_rule(pull: Any, spec: Any, level: int, tangents: Sequence[Any]) -> Any:
    def below(out_grad: Any) -> list[Any]:
        found = pull(out_grad)
        grads = found if isinstance(found, (tuple, list)) else (found,)
        return [None if g is None else forward.split(g, level)[0] for g in grads]

    _check_linear(below, spec)
    return reverse.transpose("custom_gradient", below, spec, tangents, graph.recording())


def check_rules(outs: Sequence[Any]) -> None:
    """Check the rules of ``custom_gradient`` below some results, which are to be transposed.

    Raises:
        GradientError: if one is not linear in ``out_grad``.
    """
    for node in graph.topo([graph.leaf(x) for x in outs], True):
        if type(node.op) is _Custom:
            _check_linear(functools.partial(node.op.gradient_as_tuple, out=None), node.spec)


def _check_linear(pull: Callable[[Any], Sequence[Any]], spec: Any) -> None:
    """Check on numbers of both signs and of two sizes that a rule adds up."""
    specs = spec if type(spec) is tuple else (spec,)
    rng = np.random.default_rng(0)
    small = [
        1e3 * rng.uniform(0.5, 1.0, part.shape) * rng.choice([-1.0, 1.0], part.shape)
        for part in specs
    ]
    large = [-8.0 * x * rng.uniform(0.8, 1.0, x.shape) for x in small]
    both = [a + b for a, b in zip(small, large, strict=True)]

    def pulled(values: Sequence[Any]) -> list[Any]:
        seeds = [
            graph.wrap(array(x, part.dtype, part.device)) if part.dtype.is_floating else None
            for x, part in zip(values, specs, strict=True)
        ]
        grads = pull(seeds if type(spec) is tuple else seeds[0])
        return [np.asarray(executor.value_of(g).astype("float64")) for g in grads if g is not None]

    with executor.modes(recording=False):
        found = [pulled(values) for values in (small, large, both, [0 * x for x in small])]
    for a, b, summed, zero in zip(*found, strict=True):
        off = np.abs(a + b - summed).max(initial=0.0)
        if off > 0.02 * np.abs(b).max(initial=0.0) or np.abs(zero).any():
            raise GradientError(
                "custom_gradient: the rule is not linear in out_grad, so forward mode cannot be "
                "derived from it\n"
                "  rule: pull(a) + pull(b) = pull(a + b), as for every gradient\n"
                "  try: reverse mode alone (grad, vjp, backward)"
            )
