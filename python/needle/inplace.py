"""What changes a tensor: methods such as ``x.add_(y)``, and augmented assignments, ``x += y``.

``x.add_(y)`` gives x the value of ``x.add(y)``, and returns x. Only this tensor has the new value.
Results computed before keep the old one, and so do the tensors that x was taken from:
``x[0].zero_()`` leaves x as it is, and warns. ``x.data`` is the exception: what changes it changes
x.

``x += y`` adds to x, which keeps its dtype and shape. Where no gradient flows, x stays the same
object with a new value, as with ``x[...] = x + y``: other variables for it see the new value, and
``with no_grad(): w -= lr * w.grad`` updates the leaf w. Where a gradient flows, the variable is
bound to a new tensor, the result of an op; with ``NEEDLE_BACKEND=np`` always, as in the course.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from needle import config, executor, forward, graph, ops, tracing
from needle.errors import (
    ArgumentError,
    DtypeError,
    GradientError,
    NeedleError,
    OptionError,
    ShapeError,
    explain,
)
from needle.ops.core.attributes import real
from needle.ops.core.starts import become, is_start
from needle.ops.random import drawing

if TYPE_CHECKING:
    from needle.ops.random.stream import Generator
    from needle.tensors import Tensor
    from needle.typing import Operand

Twin = Callable[..., "Tensor"]
"""A method that gives a tensor the value of another method; its dtype and shape stay."""

Reshaping = Callable[..., "Tensor"]
"""One that may change the tensor's shape, or takes it out of its graph."""


def assign(x: Any, out: Any, name: str) -> Any:
    """Give x the value of out, and return x.

    Raises:
        GradientError: if x is a leaf that requires a gradient and out depends on it.
    """
    is_leaf = is_start(x)
    if is_leaf and x.requires_grad and out.requires_grad and graph.recording():
        raise explain(
            GradientError, name, "the tensor is a leaf that requires a gradient", [("x", x)],
            "a leaf has no history", f"with no_grad(): x.{name}(...)",
        )  # fmt: skip
    _warn_of_view(x, name)
    waits = out.array is None and not x.requires_grad
    if out.requires_grad or not is_leaf or forward.top((x, out)) or waits:
        graph.rebind(x, out if out is not x else out.detach())
    elif tracing.current() is not None:
        become(x, out)
    else:
        graph.set_array(x, executor.array_of(out))
    return written(x)


def written(x: Any) -> Any:
    """Return x, whose value changed; if it is the ``.data`` of a tensor, change that too."""
    owner = getattr(x, "owner", None)
    if owner is not None and tracing.current() is not None:
        become(owner, x)
    elif owner is not None:
        graph.set_array(owner, executor.array_of(x))
    return x


def _warn_of_view(x: Any, name: str) -> None:
    """Warn once for each place in a program that changes a view."""
    array = x.array
    if array is None or forward.top((x,)) or x.spec.size == 0 or array.is_compact():
        return
    if not graph.exclusive(x):
        warnings.warn(
            f"{name}: the tensor is a view; only itself changes, not the tensor it was taken from\n"
            "  try: x[0] = 0, or x[0] += y, in place of x[0].zero_() or x[0].add_(y)",
            stacklevel=4,
        )


def _fitting(x: Any, out: Any, name: str) -> Any:
    """Return the new value of x, which has its dtype and shape; comparisons are cast.

    Raises:
        DtypeError: if the dtype would change.
        ShapeError: if the shape would change.
    """
    new, old = out.spec, x.spec
    if new.dtype is not old.dtype and new.dtype.kind == "b":
        out = ops.astype(out, old.dtype)
        new = out.spec
    if new.dtype is old.dtype and new.shape == old.shape:
        return out
    kind: type[NeedleError] = ShapeError if new.dtype is old.dtype else DtypeError
    raise explain(
        kind, name, f"x would become {new.dtype}{list(new.shape)}", [("x", x)],
        "the dtype and the shape stay", f"x = x.{name[:-1]}(...)",
    )  # fmt: skip


def _twin(method: Callable[..., Any], name: str, keeps: bool) -> Callable[..., Any]:
    """Return the method that gives a tensor the result of another method."""

    def change(self: Any, *args: Any, **named: Any) -> Any:
        out = method(self, *args, **named)
        return assign(self, _fitting(self, out, change.__name__) if keeps else out, change.__name__)

    change.__name__ = f"{name}_"
    change.__qualname__ = f"InPlace.{name}_"
    change.__wrapped__ = method  # type: ignore[attr-defined]  # for its signature
    change.__doc__ = f"Give x the value of ``x.{name}(...)``, and return x.\n\n{method.__doc__}"
    return change


def _real(name: str, **numbers: Any) -> None:
    for what, value in numbers.items():
        real(f"{name}: {what}", value)


class InPlace:
    """The methods of tensors whose names end with an underscore.

    Those that only have a type here are the twins of the methods without the underscore.
    """

    __slots__ = ()

    abs_: Twin
    acos_: Twin
    acosh_: Twin
    add_: Twin
    addcdiv_: Twin
    addcmul_: Twin
    asin_: Twin
    asinh_: Twin
    atan2_: Twin
    atan_: Twin
    atanh_: Twin
    bitwise_and_: Twin
    bitwise_not_: Twin
    bitwise_or_: Twin
    bitwise_xor_: Twin
    ceil_: Twin
    clamp_: Twin
    clamp_max_: Twin
    clamp_min_: Twin
    clip_: Twin
    copysign_: Twin
    cos_: Twin
    cosh_: Twin
    cumprod_: Twin
    cumsum_: Twin
    detach_: Reshaping
    digamma_: Twin
    div_: Twin
    divide_: Twin
    elu_: Twin
    eq_: Twin
    erf_: Twin
    erfc_: Twin
    erfinv_: Twin
    exp2_: Twin
    exp_: Twin
    expm1_: Twin
    floor_: Twin
    floor_divide_: Twin
    fmod_: Twin
    frac_: Twin
    ge_: Twin
    gt_: Twin
    hypot_: Twin
    index_add_: Twin
    index_copy_: Twin
    index_fill_: Twin
    index_put_: Twin
    le_: Twin
    leaky_relu_: Twin
    lerp_: Twin
    lgamma_: Twin
    log10_: Twin
    log1p_: Twin
    log2_: Twin
    log_: Twin
    logical_and_: Twin
    logical_not_: Twin
    logical_or_: Twin
    logical_xor_: Twin
    logit_: Twin
    lt_: Twin
    masked_fill_: Twin
    masked_scatter_: Twin
    mul_: Twin
    multiply_: Twin
    nan_to_num_: Twin
    ne_: Twin
    neg_: Twin
    negative_: Twin
    polygamma_: Twin
    pow_: Twin
    reciprocal_: Twin
    relu_: Twin
    remainder_: Twin
    round_: Twin
    rsqrt_: Twin
    scatter_: Twin
    scatter_add_: Twin
    scatter_reduce_: Twin
    sigmoid_: Twin
    sign_: Twin
    silu_: Twin
    sin_: Twin
    sinc_: Twin
    sinh_: Twin
    softplus_: Twin
    sqrt_: Twin
    square_: Twin
    squeeze_: Reshaping
    sub_: Twin
    subtract_: Twin
    swapaxes_: Reshaping
    t_: Reshaping
    tan_: Twin
    tanh_: Twin
    transpose_: Reshaping
    tril_: Twin
    triu_: Twin
    true_divide_: Twin
    trunc_: Twin
    unsqueeze_: Reshaping
    xlogy_: Twin

    def zero_(self) -> Tensor:
        """Set all elements to 0."""
        return self.fill_(0)

    def fill_(self, value: Operand) -> Tensor:
        """Set all elements to one value."""
        _warn_of_view(self, "fill_")
        ops.setitem(self, ..., value)
        return written(self)

    def copy_(self, other: Operand, non_blocking: bool = False) -> Tensor:
        """Set the elements to those of another tensor, which is broadcast, cast and moved.

        Raises:
            ShapeError: if it does not broadcast to the shape of x.
        """
        spec = executor.spec_of(self)
        other = other if isinstance(other, graph.TensorBase) else ops.full_like(self, other)
        moved = ops.to_device(ops.astype(other, spec.dtype), spec.device)
        moved = ops.broadcast_to(moved, spec.shape)
        return assign(self, ops.copy(moved) if moved is other else moved, "copy_")

    def _drawn(self, name: str, draw: Callable[..., Any], *args: Any, generator: Any) -> Any:
        spec = executor.spec_of(self)
        if spec.dtype.kind != "f":
            raise explain(DtypeError, name, f"x is {spec.dtype}", [("x", self)], "floating numbers")
        with executor.modes(recording=False), drawing(generator):
            drawn = draw(spec.shape, *args, dtype=spec.dtype, device=spec.device)
        return assign(self, drawn, name)

    def normal_(
        self, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None
    ) -> Tensor:
        """Draw all elements from a normal distribution."""
        _real("normal_", mean=mean, std=std)
        return self._drawn("normal_", ops.normal, mean, std, generator=generator)

    def uniform_(
        self, low: float = 0.0, high: float = 1.0, *, generator: Generator | None = None
    ) -> Tensor:
        """Draw all elements uniformly from [low, high); PyTorch calls them ``from`` and ``to``."""
        _real("uniform_", low=low, high=high)
        return self._drawn("uniform_", ops.uniform, low, high, generator=generator)

    def exponential_(self, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
        """Draw all elements from an exponential distribution of rate ``lambd``.

        Raises:
            OptionError: if the rate is not positive.
        """
        if not real("exponential_: lambd", lambd) > 0.0:
            raise OptionError(f"exponential_: lambd is {lambd}\n  rule: positive")
        self._drawn("exponential_", ops.uniform, 0.0, 1.0, generator=generator)
        with executor.modes(recording=False):
            return assign(self, ops.log1p(-self) * (-1.0 / lambd), "exponential_")  # type: ignore[operator]

    def bernoulli_(self, p: float = 0.5, *, generator: Generator | None = None) -> Tensor:
        """Set each element to 1 with probability p, else to 0.

        Raises:
            OptionError: if p is not in [0, 1].
        """
        spec = executor.spec_of(self)
        with executor.modes(recording=False), drawing(generator):
            drawn = ops.bernoulli(spec.shape, p, dtype=spec.dtype, device=spec.device)
        return assign(self, drawn, "bernoulli_")

    def random_(
        self, low: int = 0, high: int | None = None, *, generator: Generator | None = None
    ) -> Tensor:
        """Draw integers from [low, high); with one number from [0, number).

        Without any, up to the largest that the dtype holds exactly (and below 2**31).
        """
        spec = executor.spec_of(self)
        if high is None:
            digits = {2: 8 if spec.dtype.name == "bfloat16" else 11, 4: 24}.get(
                spec.dtype.itemsize, 31
            )
            bits = digits if spec.dtype.kind == "f" else 8 * spec.dtype.itemsize - 1
            low, high = (0, low) if low else (0, 2 ** min(bits, 31))
        with executor.modes(recording=False), drawing(generator):
            drawn = ops.randint(spec.shape, low, high, dtype=spec.dtype, device=spec.device)
        return assign(self, drawn, "random_")


def complete(cls: type) -> None:
    """Give a class of tensors the twins of its methods."""
    for twin, kind in InPlace.__annotations__.items():
        name = twin[:-1]
        setattr(InPlace, twin, _twin(getattr(cls, name), name, kind == "Twin"))


# ---- augmented assignments -----------------------------------------------------------


def _kept(x: Any, out: Any, sign: str, other: Any) -> Any:
    """Return the result of ``x <sign> other``, which must have the dtype and shape of x.

    With ``NEEDLE_BACKEND=np`` any result is allowed, as in the course.

    Raises:
        ArgumentError: if it is not a tensor, because the other operand defines the operator.
        DtypeError: if the dtype would change.
        ShapeError: if the shape would change.
    """
    if not isinstance(out, graph.TensorBase):
        raise explain(
            ArgumentError, f"x {sign}= y", f"x would become a {type(out).__name__}",
            [("x", x), ("y", other)], "x stays a tensor", f"x = x {sign} y",
        )  # fmt: skip
    new, old = out.spec, x.spec
    same = new.dtype is old.dtype and new.shape == old.shape
    if same or config.current().backend == "np":
        return out
    kind: type[NeedleError] = ShapeError if new.dtype is old.dtype else DtypeError
    raise explain(
        kind, f"x {sign}= y", f"x would become {new.dtype}{list(new.shape)}",
        [("x", x), ("y", other)], "an augmented assignment keeps dtype and shape",
        f"x = x {sign} y",
    )  # fmt: skip


def _assigned(x: Any, out: Any) -> Any:
    """Return x with the value of out if out requires no gradient, else out."""
    fixed = x.requires_grad and not is_start(x)
    if out.requires_grad or fixed or forward.top((x, out)) or config.current().backend == "np":
        return out
    if out.array is None and not x.requires_grad:  # lazy mode
        graph.rebind(x, out)
    elif tracing.current() is not None:
        become(x, out)
    else:
        graph.set_array(x, executor.array_of(out))
    return x


def _of_op(op: Any, sign: str) -> Callable[[Any, Any], Any]:
    def augmented(self: Any, other: Any) -> Any:
        out = executor.apply(op, self, other)
        if out.spec is not self.spec:
            out = _kept(self, out, sign, other)
        return _assigned(self, out)

    return augmented


def _of_operator(function: Callable[[Any, Any], Any], sign: str) -> Callable[[Any, Any], Any]:
    def augmented(self: Any, other: Any) -> Any:
        return _assigned(self, _kept(self, function(self, other), sign, other))

    return augmented


class Augmented:
    """The augmented assignments of tensors."""

    __slots__ = ()

    __iadd__ = _of_op(ops.Add.of(), "+")
    __isub__ = _of_op(ops.Subtract.of(), "-")
    __imul__ = _of_op(ops.Multiply.of(), "*")
    __itruediv__ = _of_op(ops.Divide.of(), "/")
    __ifloordiv__ = _of_operator(operator.floordiv, "//")
    __imod__ = _of_operator(operator.mod, "%")
    __ipow__ = _of_operator(operator.pow, "**")
    __imatmul__ = _of_operator(operator.matmul, "@")
    __iand__ = _of_operator(operator.and_, "&")
    __ior__ = _of_operator(operator.or_, "|")
    __ixor__ = _of_operator(operator.xor, "^")
    __ilshift__ = _of_operator(operator.lshift, "<<")
    __irshift__ = _of_operator(operator.rshift, ">>")
