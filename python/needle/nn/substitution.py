"""A call of a module with other tensors in place of its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from needle import graph
from needle.errors import ArgumentError, ShapeError, explain, unknown
from needle.nn.module import Module
from needle.ops.core.starts import stand_ins
from needle.tensors import Tensor

if TYPE_CHECKING:
    from needle.typing import Values

__all__ = ["functional_call"]


def functional_call(
    module: Module,
    params: Mapping[str, Values],
    args: object = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Return ``module(*args, **kwargs)``, with these tensors in place of parameters and buffers.

    So a module becomes a function of its parameters, which ``grad``, ``jvp``, ``jacobian``,
    ``hessian`` and ``hvp`` differentiate. The module's own parameters do not change, and get no
    gradient from what is replaced. Other threads that use the module meanwhile see the tensors.

    Args:
        module: a module.
        params: tensors by dotted name, as ``named_parameters`` and ``named_buffers`` give them.
            What is not named stays. One name of a shared parameter replaces it everywhere.
        args: the arguments: a tuple, or the only one.
        kwargs: arguments by name.

    Raises:
        OptionError: for a name that the module does not have, with the nearest known one.
        ShapeError: for a tensor that has not the shape of what it replaces.
        ArgumentError: if params is not a dict.

    >>> layer, x = nn.Linear(2, 1, bias=False), Tensor([[1.0, 3.0]])
    >>> out = lambda w: nn.functional_call(layer, {"weight": w}, x)
    >>> print(ndl.jacobian(out)(layer.weight)[0, 0])
    [[1.]
     [3.]]
    """
    if not isinstance(params, Mapping):
        raise ArgumentError(f"functional_call: expected tensors by name, got {params!r:.60}")
    named: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    named |= dict(module.named_buffers(remove_duplicate=False))
    pairs = []
    for name, value in params.items():
        if name not in named:
            raise unknown("functional_call: parameter", name, named)
        given = value if isinstance(value, Tensor) else Tensor(value, requires_grad=False)
        if given.shape != named[name].shape:
            raise explain(
                ShapeError, "functional_call", f"{name} has another shape",
                [("the module's", named[name]), ("given", given)], "both have the same shape",
            )  # fmt: skip
        pairs.append((named[name], given))
    with ExitStack() as stack:
        stack.enter_context(_kept_buffers(module, params))
        for own, given in pairs:
            stack.enter_context(_standing_for(own, given))
        return module(*(args if isinstance(args, tuple) else (args,)), **(kwargs or {}))


@contextmanager
def _standing_for(tensor: Tensor, other: Tensor) -> Iterator[None]:
    """Let a tensor have the value, and the place in the graph, of another one."""
    (alias,) = stand_ins([other])
    kept, needed = graph.wrap(None), tensor.requires_grad
    graph.rebind(kept, tensor)
    try:
        needs = alias.requires_grad
        graph.rebind(tensor, alias)
        if needs != needed:
            tensor.requires_grad = needs
        yield
    finally:
        graph.rebind(tensor, kept)
        if tensor.requires_grad != needed:
            tensor.requires_grad = needed


@contextmanager
def _kept_buffers(module: Module, names: Mapping[str, object]) -> Iterator[None]:
    """Give modules back the buffers of these names, which a call may assign to."""
    kept = []
    for path, part in module.named_modules():
        for key in part._buffers:
            if (f"{path}.{key}" if path else key) in names:
                kept.append((part, key, part.__dict__[key]))
    try:
        yield
    finally:
        for part, key, tensor in kept:
            setattr(part, key, tensor)
