"""Normal values within limits, by the inverse of the normal distribution function."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from needle.backend.ndarray import array
from needle.errors import OptionError
from needle.init.basic import floating, leaf, sizes
from needle.ops import random
from needle.ops.core.attributes import real
from needle.tensors import Tensor

if TYPE_CHECKING:
    from needle.typing import DeviceLike, DTypeLike

# Coefficients of rational functions, highest power first: for quantiles from 0.075 to 0.925, for
# the tails down to about 1e-11, and for everything beyond.
_MIDDLE = (
    (2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4,
     4.5921953931549871457e4, 1.3731693765509461125e4, 1.9715909503065514427e3,
     1.3314166789178437745e2, 3.3871328727963666080e0),
    (5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4,
     2.1213794301586595867e4, 5.3941960214247511077e3, 6.8718700749205790830e2,
     4.2313330701600911252e1, 1.0),
)  # fmt: skip
_TAIL = (
    (7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
     1.27045825245236838258e0, 3.64784832476320460504e0, 5.76949722146069140550e0,
     4.63033784615654529590e0, 1.42343711074968357734e0),
    (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2,
     1.48103976427480074590e-1, 6.89767334985100004550e-1, 1.67638483018380384940e0,
     2.05319162663775882187e0, 1.0),
)  # fmt: skip
_FAR = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3,
     2.65321895265761230930e-2, 2.96560571828504891230e-1, 1.78482653991729133580e0,
     5.46378491116411436990e0, 6.65790464350110377720e0),
    (2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5,
     7.86869131145613259100e-4, 1.48753612908506148525e-2, 1.36929880922735805310e-1,
     5.99832206555887937690e-1, 1.0),
)  # fmt: skip


_HALF = 2.0**-25
"""Half the distance between two draws: a draw of 0 stands for all numbers below 2**-24."""

_PART = 8192
"""Number of values that are computed at a time, to stay in the processor's caches."""


def _quotient(parts: tuple[tuple[float, ...], tuple[float, ...]], r: Any) -> Any:
    return np.polyval(parts[0], r) / np.polyval(parts[1], r)


def _quantile(p: Any) -> Any:
    """Return where the normal distribution function is p, in (0, 1), float64.

    Wichura, "Algorithm AS 241: the percentage points of the normal distribution", 1988.
    """
    q = p - 0.5
    out = q * _quotient(_MIDDLE, 0.180625 - np.minimum(np.abs(q), 0.425) ** 2)
    tails = np.abs(q) > 0.425
    r = np.sqrt(-np.log(np.minimum(p, 1.0 - p)[tails]))
    far = np.where(r > 5.0, _quotient(_FAR, r - 5.0), _quotient(_TAIL, r - 1.6))
    out[tails] = np.copysign(far, q[tails])
    return out


def _share(z: float) -> float:
    """Return the normal distribution function of z, exact to rounding below 0."""
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


def trunc_normal(
    *shape: int,
    mean: float = 0.0,
    std: float = 1.0,
    low: float = -2.0,
    high: float = 2.0,
    device: DeviceLike = None,
    dtype: DTypeLike = "float32",
    requires_grad: bool = False,
    key: int | None = None,
) -> Tensor:
    """Return normal values within [low, high], as if others were drawn again.

    The limits apply to the values (PyTorch's a and b) and are not multiples of std. Each value
    takes one uniform draw. Values and limits are rounded to the dtype. The other
    settings are those of ``rand``.

    Args:
        shape: sizes, one by one or as one tuple.
        mean: mean of the distribution before truncation; it may lie outside the limits.
        std: its standard deviation.
        low: lower limit.
        high: upper limit.

    Raises:
        OptionError: if std is not positive, or float64 has no numbers to draw within the limits.
        DtypeError: if dtype is not floating.

    >>> x = ndl.init.trunc_normal(1000, std=0.02, low=-0.04, high=0.04)
    >>> (abs(x) <= 0.04).all().item()
    True
    """
    kind = floating("trunc_normal", dtype)
    mean, std = real("trunc_normal: mean", mean), real("trunc_normal: std", std)
    low, high = real("trunc_normal: low", low), real("trunc_normal: high", high)
    if not 0 < std < math.inf or not low < high:
        raise OptionError(
            f"trunc_normal: std={std}, low={low}, high={high}\n  rule: std > 0 and low < high"
        )
    ends = (low - mean) / std, (high - mean) / std
    right = ends[0] > 0  # far on the right, draw the mirror image on the left
    below, above = (_share(z) for z in ((-ends[1], -ends[0]) if right else ends))
    if not above - below > np.finfo(np.float64).tiny:
        raise OptionError(
            f"trunc_normal: between {ends[0]:g} and {ends[1]:g} standard deviations from the mean\n"
            "  rule: float64 must have numbers there\n  try: limits nearer to the mean"
        )
    draw = random.rand(sizes("trunc_normal", shape, 8), device, key)
    values = draw.numpy().astype(np.float64)
    for part in np.split(values.reshape(-1), range(_PART, values.size, _PART)):
        z = _quantile(below + (above - below) * (part + _HALF))
        part[:] = np.clip((-z if right else z) * std + mean, low, high)
    return leaf(array(values, kind, draw.device), requires_grad)
