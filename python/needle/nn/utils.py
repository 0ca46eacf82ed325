"""Gradient clipping, and all parameters as one vector, with PyTorch's names.

>>> model = nn.Linear(3, 2)
>>> vector = nn.utils.parameters_to_vector(model.parameters())
>>> vector.shape
(8,)
>>> nn.utils.vector_to_parameters(vector * 0.0, model.parameters())
>>> print(model.bias)
[[0. 0.]]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from needle import ops
from needle.autograd import no_grad
from needle.elsewhere import advice
from needle.errors import OptionError, ShapeError, explain, missing
from needle.executor import shape_of
from needle.nn.packed import pack_padded_sequence, pad_packed_sequence
from needle.optim.clip import clip_grad_norm, clip_grad_value
from needle.tensors import Tensor

__all__ = [
    "clip_grad_norm_", "clip_grad_value_", "pack_padded_sequence", "pad_packed_sequence",
    "parameters_to_vector", "vector_to_parameters",
]  # fmt: skip


def clip_grad_norm_(
    parameters: Iterable[Tensor] | Tensor,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale all gradients together to a norm of at most ``max_norm``; return the norm before.

    See ``optim.clip_grad_norm``. Where no tensor has a gradient the norm is 0, as in PyTorch.

    Args:
        parameters: a tensor or several; tensors without a gradient are skipped.
        max_norm: largest norm allowed.
        norm_type: must be 2, the Euclidean norm.
        error_if_nonfinite: raise when the norm is infinite or not a number.
        foreach: changes nothing.

    Raises:
        OptionError: for another norm_type.
    """
    if norm_type != 2:
        raise OptionError(
            f"clip_grad_norm_: norm_type={norm_type}\n  rule: 2, the Euclidean norm\n"
            "  try: clip_grad_value_ limits each element"
        )
    params = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    if not any(p.grad is not None for p in params if isinstance(p, Tensor)):
        return Tensor(0.0, requires_grad=False)
    return clip_grad_norm(params, max_norm, error_if_nonfinite=error_if_nonfinite)


def clip_grad_value_(
    parameters: Iterable[Tensor] | Tensor, clip_value: float, foreach: bool | None = None
) -> None:
    """Limit every element of every gradient to [-clip_value, clip_value].

    See ``optim.clip_grad_value``. ``foreach`` changes nothing.
    """
    clip_grad_value(parameters, clip_value)


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """Return the elements of all parameters as one vector; gradients flow to the parameters.

    Raises:
        OptionError: if there are no parameters.
    """
    parts = [ops.reshape(p, -1) for p in parameters]
    if not parts:
        raise OptionError("parameters_to_vector: got no parameters\n  try: model.parameters()")
    return ops.concat(parts, 0)


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Give all parameters new values, the parts of one vector; the vector keeps no part of them.

    Raises:
        ShapeError: if the vector has not as many elements as the parameters.
    """
    params = list(parameters)
    sizes = [p.size for p in params]
    if shape_of(vec) != (sum(sizes),):
        raise explain(
            ShapeError, "vector_to_parameters", f"the parameters have {sum(sizes)} elements",
            [("vec", vec)], "a vector of as many elements",
        )  # fmt: skip
    start = 0
    with no_grad():
        for p, n in zip(params, sizes, strict=True):
            p[...] = ops.reshape(vec[start : start + n].detach(), p.shape)
            start += n


if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name):
        raise missing("needle.nn.utils", name, advice("nn.utils", name))
