"""``checkpoint`` as PyTorch calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from needle.checkpoint import checkpoint as checkpointed
from needle.errors import OptionError

__all__ = ["checkpoint"]


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """Return ``function(*args)``, and run it once more for the gradient: less memory is kept.

    See ``needle.checkpoint``, which returns a function. ``use_reentrant`` changes nothing.

    Raises:
        OptionError: for ``preserve_rng_state=False``: random numbers are always the same again.

    >>> from needle.utils.checkpoint import checkpoint
    >>> x = Tensor([1.0, 2.0])
    >>> checkpoint(lambda x: x * x, x, use_reentrant=False).sum().backward()
    >>> print(x.grad)
    [2. 4.]
    """
    if not preserve_rng_state:
        raise OptionError("checkpoint: preserve_rng_state=False is not available")
    return checkpointed(function)(*args, **kwargs)
