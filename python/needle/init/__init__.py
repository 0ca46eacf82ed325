"""Tensors of constants or random numbers, and the usual initial weights."""

from needle.init.basic import (
    constant,
    one_hot,
    ones,
    ones_like,
    rand,
    rand_like,
    randb,
    randn,
    randn_like,
    zeros,
    zeros_like,
)
from needle.init.scaled import (
    kaiming_normal,
    kaiming_uniform,
    orthogonal,
    xavier_normal,
    xavier_uniform,
)
from needle.init.truncated import trunc_normal
from needle.ops.core.kinds import check_all as _check_all

__all__ = [
    "constant", "kaiming_normal", "kaiming_uniform", "one_hot", "ones", "ones_like", "orthogonal",
    "rand", "rand_like", "randb", "randn", "randn_like", "trunc_normal", "xavier_normal",
    "xavier_uniform", "zeros", "zeros_like",
]  # fmt: skip

_check_all(globals())
