"""Every function of the native kernels, over its whole range: no more units in the last place off
than ``tolerance.ULPS`` says, on every instruction set.

The exact values are float64 for float32 and, where the platform has them, 80-bit numbers for
float64. Half-precision functions are tried with every number there is.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from devices import ISAS
from looped import looped

import needle as ndl
from needle import ops
from needle.testing.tolerance import ULPS

pytestmark = pytest.mark.skipif(not ISAS, reason="the native kernels are not built")
WIDE = np.longdouble
HAS_WIDE = np.finfo(WIDE).nmant >= 63
UNITS = {"float32": (np.float32, np.float64), "float64": (np.float64, WIDE)}
DTYPES = ["float32", *["float64"] * HAS_WIDE]


# ---- exact values --------------------------------------------------------------------

PI = WIDE("3.14159265358979323846264338327950288")


def erf_series(x):
    """Return erf by its series of positive terms, for |x| up to 3 (Abramowitz, Stegun, 7.1.6)."""
    term = total = x
    for n in range(1, 120):
        term = term * 2 * x * x / (2 * n + 1)
        total = total + term
    return 2 / np.sqrt(PI) * np.exp(-x * x) * total


def erfc_fraction(x):
    """Return erfc exp(x^2) by its continued fraction, for x from 2 on (the same, 7.1.14)."""
    value = x
    for n in range(250, 0, -1):
        value = x + WIDE(n) / 2 / value
    return 1 / (np.sqrt(PI) * value)


def erf(x):
    t = np.minimum(np.abs(x), WIDE(8))
    large = 1 - erfc_fraction(np.maximum(t, 2)) * np.exp(-t * t)
    return np.copysign(np.where(t < 2, erf_series(np.minimum(t, 2)), large), x)


def exp_of_square(t):
    """Return exp(-t^2 / 2) of numbers that are not wider than float64: the square is exact in two
    parts, since rounding it to 80 bits would be felt where it is large."""
    head = t.astype(np.float32).astype(WIDE)
    rest = t - head
    return np.exp(-head * head / 2) * np.exp(-(head + rest / 2) * rest)


def gelu(x):
    t = np.abs(np.clip(x, -60, 60))
    root = np.sqrt(WIDE(2))
    near = (1 - erf_series(np.minimum(t / root, 2))) / 2
    tail = np.where(t < 2, near, erfc_fraction(np.maximum(t / root, 1.4)) * exp_of_square(t) / 2)
    return np.where(x < 0, -t * tail, x - t * tail)


def sigmoid_times(x, z):
    small = np.exp(-np.abs(z))
    return np.where(z < 0, x * small, x) / (1 + small)


def gelu_tanh(x):
    t = np.maximum(x, -30)
    return sigmoid_times(t, np.sqrt(8 / PI) * (t + WIDE("0.044715") * t**3))


def silu(x):
    return sigmoid_times(np.maximum(x, WIDE(-20000)), x)


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def wide(function):
    return lambda x: function(x.astype(WIDE))


EXACT = {
    **{
        name: getattr(np, name)
        for name in ("sqrt", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p")
    },
    **{name: getattr(np, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{name: getattr(np, "arc" + name[1:]) for name in ("asin", "acos", "atan")},
    **{name: getattr(np, "arc" + name[1:]) for name in ("asinh", "acosh", "atanh")},
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: sigmoid_times(1, x),
    "erf": wide(erf), "gelu": wide(gelu), "gelu_tanh": wide(gelu_tanh), "silu": wide(silu),
    "softplus": softplus,
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
}  # fmt: skip
BINARY = {
    "power": np.power,
    "atan2": np.arctan2,
    "hypot": np.hypot,
    "logaddexp": np.logaddexp,
}

# ---- arguments -----------------------------------------------------------------------

# Where functions change their ways, overflow, or end: numbers around each are tried.
PLACES = (
    0.0, 0.25, 27 / 32, 0.34657359, 0.41421356, 0.5, 0.70710678, 1.0, 1.41421356, 2.0, 2.41421356,
    math.pi / 4, math.pi / 2, math.pi, 3 * math.pi / 4, 100 * math.pi, 4.0, 6.0, 9.0, 10.0, 11.0,
    14.6, 20.0, 22.0, 26.0, 39.0, 88.72, 87.33, 89.4, 103.97, 104.0, 112.0, 127.0, 128.0, 149.0,
    150.0, 709.7, 708.3, 710.4, 745.1, 760.0, 1023.0, 1024.0, 1074.0, 1000000.0, 2.0**24, 2.0**28,
    2.0**53, 2.0**57,
)  # fmt: skip

# Where errors are largest, found by trying every float32 (and some float64): of every function.
HARD = (
    0.221043944, 0.223824427, 0.223874494, 0.500423312, 0.850954711, 0.943233669, 1.00701284,
    1.0300529, 1.03138602, 1.06132066, 1.06760871, 1.08445656, 1.14556611, 1.41824055, 1.42788112,
    2.08217859, 2.7464166, 2.7482834, 3.92418337, 3.92490602, 4.1572938, 12.1619091, 12.7175684,
    3442.40625, 9857.53516, 29771.3008,
    1.0026590827988597, 1.0633027339075634, 1.4215378712392317,
)  # fmt: skip


# Where a sine is nearly zero, no matter how large the argument: the closest there are to a multiple
# of pi / 2 (Muller et al., "Handbook of Floating-Point Arithmetic", 2nd edition, table 10.1).
CLOSEST = {"float32": (16367173, 72), "float64": (6381956970095103, 797)}


def multiples_of_a_quarter_turn(kind, random, count=1 << 10):
    """Return the numbers next to k pi / 2, for the first k, and k of every size."""
    limits = np.finfo(kind)
    first = np.arange(1, count, dtype=WIDE)
    sizes = np.exp2(random.uniform(0, limits.nmant, count).astype(WIDE))
    near = (np.concatenate([first, np.rint(sizes)]) * (PI / 2)).astype(kind)
    digits, exponent = CLOSEST[np.dtype(kind).name]
    worst = np.ldexp(kind(digits), exponent)
    return np.concatenate([near, np.nextafter(near, kind(0)), [worst]]).astype(kind)


@cache
def arguments(dtype, count=1 << 13):
    """Return numbers of every size, dense where functions bend and around ``PLACES``, and ``HARD``
    ones."""
    kind = UNITS[dtype][0]
    bits = np.dtype(f"i{kind().itemsize}")
    random = np.random.default_rng(1)
    top = np.array(np.inf, kind).view(bits)
    sizes = random.integers(0, top, count, bits).view(kind)
    places = np.array(PLACES, kind).view(bits)
    around = (places[:, None] + np.arange(-40, 41, dtype=bits)).ravel()
    around = np.clip(around, 0, top - 1).view(kind)
    largest = np.finfo(kind)
    ends = np.array([largest.tiny, largest.smallest_subnormal, largest.max], kind)
    least = random.integers(0, np.array(largest.tiny, kind).view(bits), 1 << 9, bits).view(kind)
    turns = multiples_of_a_quarter_turn(kind, random)
    positive = np.concatenate([sizes, around, ends, least, turns])
    spread = [random.uniform(-s, s, count).astype(kind) for s in (1.0, 4.0, 20.0, 86.0, 120.0)]
    hard = np.array(HARD, kind)
    return np.concatenate([positive, -positive, *spread, hard, -hard])


@cache
def pairs(dtype):
    """Return pairs of numbers: of any size, of like sizes, and with powers between all and nothing;
    of half of these the second are whole."""
    x = arguments(dtype)
    random = np.random.default_rng(2)
    y = random.permutation(x)
    near = (x * random.uniform(0.5, 1, x.size)).astype(x.dtype)
    small = random.uniform(-30, 30, x.size).astype(x.dtype)
    with np.errstate(all="ignore"):
        height = np.log2(np.abs(x.astype(np.float64)))
        ends = np.finfo(x.dtype).minexp * 1.2, np.finfo(x.dtype).maxexp * 1.01
        bend = np.nan_to_num(random.uniform(*ends, x.size) / height).astype(x.dtype)
        bend = np.concatenate([bend[::2], np.rint(bend[1::2])])
        first = np.concatenate([x, x, np.abs(x), np.abs(x[::2]), x[1::2]])
        return first, np.concatenate([y, near, small, bend])


def kernel(name, *values):
    function = getattr(ops, name)
    with ndl.no_grad():
        tensors = [
            ndl.Tensor(x, dtype=str(x.dtype), device="cpu", requires_grad=False) for x in values
        ]
        return function(*tensors).numpy()


def ulps_off(found, exact, kind, size=0.0):
    """Return the errors in units in the last place of the exact values, or of ``size`` if larger;
    in both, what rounds to infinity is infinite."""
    limits = np.finfo(kind)
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(np.maximum(np.abs(exact), size))
        exponent = np.clip(exponent - 1, limits.minexp, limits.maxexp - 1)
        unit = np.ldexp(exact.dtype.type(1), exponent - limits.nmant)
        beyond = np.ldexp(exact.dtype.type(1), limits.maxexp)
        error = np.clip(found, -beyond, beyond) - np.clip(exact, -beyond, beyond)
        same = np.isnan(found) & np.isnan(exact)
    return np.where(same, 0, np.where(np.isnan(error), np.inf, np.abs(error) / unit))


@cache
def exact_values(name, dtype):
    function = (EXACT | BINARY)[name]
    values = pairs(dtype) if name in BINARY else (arguments(dtype),)
    reference = UNITS[dtype][1]
    with np.errstate(all="ignore"):
        return values, function(*(x.astype(reference) for x in values)).astype(reference)


def worst(name, dtype):
    """Return the largest error of a function, and where it is."""
    values, exact = exact_values(name, dtype)
    size = np.maximum(*map(np.abs, values)) if name == "logaddexp" else 0.0
    found = kernel(name, *values).astype(exact.dtype)
    error = ulps_off(found, exact, UNITS[dtype][0], size)
    place = int(error.argmax())
    return float(error[place]), tuple(float(x[place]) for x in values)


@looped("dtype", DTYPES)
@looped("name", [*EXACT, *BINARY])
def test_units_in_the_last_place(isa, name, dtype):
    error, place = worst(name, dtype)
    assert error <= ULPS[name][dtype == "float64"], f"{name}{place} is {error:.3f} ulp off"


@looped("name", ["sqrt", "reciprocal", "sign"])
def test_single_operations_have_the_bits_of_numpy(isa, name):
    """Of any bits: special values and subnormals lie between others. Reciprocals of mantissas whose
    bits are all ones are nearest to halfway between two numbers."""
    random = np.random.default_rng(4)
    ones = (np.arange(512, dtype=np.uint32) << 23) + 0x7FFFFF
    specials = np.array([0.0, -0.0, np.inf, -np.inf, 1.0, 4.0], np.float32).view(np.uint32)
    some = random.integers(0, 1 << 32, 1 << 20, np.uint32)
    x = random.permutation(np.concatenate([some, ones, specials.repeat(50)])).view(np.float32)
    with np.errstate(all="ignore"):
        results = kernel(name, x), getattr(np, name)(x)
    found, expected = (np.where(y == y, y, np.float32("nan")).view(np.uint32) for y in results)
    np.testing.assert_array_equal(found, expected)


def test_floored_division_has_the_bits_of_exact_arithmetic(isa):
    """Next to multiples of the divisor, where rounding a quotient reaches an integer; quotients up
    to 2^28, which float64 resolves; subnormals."""
    random = np.random.default_rng(6)
    y = random.standard_normal((4, 1 << 16)).astype(np.float32)
    size = np.array([[1000.0], [1 << 23], [1 << 28], [9.0]])
    x = np.float32(y.astype(np.float64) * np.rint(random.uniform(-1, 1, y.shape) * size))
    x[:, ::3] = np.nextafter(x[:, ::3], np.float32(np.inf))
    x[:, 1::3] = np.nextafter(x[:, 1::3], np.float32(-np.inf))
    x[3], y[3] = np.rint(x[3] * 9) * np.float32(2.0**-149), np.rint(y[3] * 9) * 2.0**-149
    x, y = x[y != 0], y[y != 0]
    rest = np.fmod(x, y)
    quotient = (x.astype(np.float64) - rest) / y
    below = (rest != 0) & ((rest < 0) != (y < 0))
    floor = np.float32(np.where(quotient == below, np.copysign(0, x / y), quotient - below))
    modulo = np.where(rest == 0, np.copysign(np.float32(0), y), np.where(below, rest + y, rest))
    for name, expected in (("floor_divide", floor), ("remainder", modulo)):
        found = kernel(name, x, y)
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32), name)


def test_floored_division_of_integers_is_exact(isa):
    """Next to multiples of the divisor, up to where float64 has all whole numbers and beyond."""
    random = np.random.default_rng(7)
    b = random.integers(-(2**25), 2**25, 1 << 18)
    a = random.integers(-(2**26), 2**26, b.size) * b + random.integers(-1, 2, b.size)
    edges = [0, 1, -1, 7, -7, 2**52 - 1, 2**52, 2**52 + 1, -(2**52), 2**63 - 1, -(2**63)]
    for x, y in ((a, b), np.meshgrid(edges, edges), (a << random.integers(0, 12, a.size), b)):
        for name in ("floor_divide", "remainder"):
            with np.errstate(all="ignore"):
                expected = getattr(np, name)(x, y)
            np.testing.assert_array_equal(kernel(name, x, y), expected, name)


def test_float16_is_rounded_as_numpy_does(isa):
    bits = np.arange(0, 2**32, 9973, dtype=np.uint64).astype(np.uint32)
    wide = bits.view(np.float32)[~np.isnan(bits.view(np.float32))]
    with np.errstate(over="ignore"):
        expected = wide.astype(np.float16)
    found = ndl.Tensor(wide, device="cpu", requires_grad=False).astype("float16")
    np.testing.assert_array_equal(found.numpy().view(np.uint16), expected.view(np.uint16))
    back = found.astype("float32").numpy()
    np.testing.assert_array_equal(back, expected.astype(np.float32))


def test_bfloat16_is_rounded_to_nearest_even(isa):
    """As ml_dtypes does, NaN among others, too."""
    bits = np.arange(0, 2**32, 9973, dtype=np.uint64).astype(np.uint32)
    wide = bits.view(np.float32)
    with np.errstate(invalid="ignore"):
        expected = wide.astype(ndl.bfloat16.numpy)
    found = ndl.Tensor(wide, device="cpu", requires_grad=False).astype("bfloat16").numpy()
    assert (np.isnan(wide) == np.isnan(found.astype(np.float32))).all()
    usual = ~np.isnan(wide)
    np.testing.assert_array_equal(found[usual].view(np.uint16), expected[usual].view(np.uint16))


@looped("target", ["float32", "float64"])
def test_integers_are_rounded_once(isa, target):
    """Of every size, next to halves of units; larger ones stand alone between smaller ones."""
    random = np.random.default_rng(9)
    whole = random.integers(-(2**24), 2**24, 4000) << random.integers(0, 39, 4000)
    x = whole + random.integers(-1, 2, whole.size) * (1 << random.integers(0, 38, whole.size))
    edges = [0, 1, -1, 2**51 - 1, 2**51, -(2**51), -(2**51) - 1, 2**53 + 1, 2**63 - 1, -(2**63)]
    x = np.concatenate([x, x >> 12, np.arange(-500, 500), edges])
    found = ndl.Tensor(x, device="cpu").astype(target).numpy()
    np.testing.assert_array_equal(found, x.astype(target))


HALVES = {"float16": (10, -14, 65536.0), "bfloat16": (7, -126, 2.0**128)}


@cache
def every_half(dtype):
    """Return all finite numbers of a half-precision dtype, and where they are, as float64."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = bits.view(np.float16) if dtype == "float16" else bits
    if dtype == "bfloat16":
        values = (bits.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):
        wide = values.astype(np.float64)
    return wide[np.isfinite(wide)]


def check_halves(name, dtype, *values):
    """Compare a function of half-precision numbers, given as float64, with the exact one."""
    with np.errstate(all="ignore"):
        exact = (EXACT | BINARY)[name](*values).astype(np.float64)
    tensors = [
        ndl.Tensor(x.astype(np.float32), device="cpu", requires_grad=False).astype(dtype)
        for x in values
    ]
    found = getattr(ops, name)(*tensors).astype("float32").numpy().astype(np.float64)
    mantissa, least, beyond = HALVES[dtype]
    size = np.maximum(*map(np.abs, values)) if name == "logaddexp" else 0.0
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(np.maximum(np.abs(exact), size))
        unit = np.ldexp(1.0, np.maximum(exponent - 1, least) - mantissa)
        clipped = np.clip(exact, -beyond, beyond)
        error = np.abs(np.clip(found, -beyond, beyond) - clipped) / unit
        error = np.where(np.isnan(found) & np.isnan(exact), 0, error)
    place = int(np.where(np.isnan(error), np.inf, error).argmax())
    allowed = 0.5 + ULPS[name][0] / 2 ** (23 - mantissa)
    where = tuple(float(x[place]) for x in values)
    assert error[place] <= allowed, f"{name}{where} is {error[place]:.4f} ulp off"


@looped("dtype", HALVES)
@looped("name", EXACT)
def test_halves_are_rounded_once_from_float32(isa, name, dtype):
    check_halves(name, dtype, every_half(dtype))


@looped("dtype", HALVES)
@looped("name", BINARY)
def test_halves_of_two_operands(isa, name, dtype):
    x = every_half(dtype)
    random = np.random.default_rng(3)
    for y in (random.permutation(x), random.choice(x[np.abs(x) < 30], x.size)):
        check_halves(name, dtype, x, y)


def erfc(x):
    t = np.maximum(np.abs(x), WIDE(0))
    tail = erfc_fraction(np.maximum(t, 2)) * exp_of_square(t) ** 2
    small = np.where(t < 2, 1 - erf_series(np.minimum(t, 2)), tail)
    return np.where(x < 0, 2 - small, small)


@looped("dtype", DTYPES)
def test_what_error_functions_leave_of_1_is_accurate(isa, dtype):
    kind = UNITS[dtype][0]
    x = arguments(dtype)
    x = x[np.abs(x) < (10.0 if dtype == "float32" else 26.5)]
    exact = erfc(x.astype(WIDE))
    found = ops.erfc(ndl.Tensor(x, dtype=dtype)).numpy()
    error = np.abs(found - exact) / np.spacing(np.abs(exact).astype(kind)).astype(WIDE)
    assert error.max() <= (0.51 if dtype == "float32" else 4.0), x[error.argmax()]


@looped("dtype", DTYPES)
def test_the_inverse_of_the_error_function_is_accurate(isa, dtype):
    kind = UNITS[dtype][0]
    x = arguments(dtype)
    rest = np.ldexp(np.random.default_rng(3).uniform(0.5, 1, 4000), -np.arange(4000) % 54)
    y = np.concatenate([x[np.abs(x) < 1], 1 - rest, rest - 1]).astype(kind)
    y = y[(np.abs(y) < 1) & (y != 0)]
    found = ops.erfinv(ndl.Tensor(y, dtype=dtype)).numpy()
    t, size = np.abs(found.astype(WIDE)), np.abs(y).astype(WIDE)
    over = np.where(size < 0.5, erf_series(np.minimum(t, 2)) - size, (1 - size) - erfc(t))
    error = np.abs(over) * np.exp(t * t) * np.sqrt(PI) / 2 / np.spacing(np.abs(found)).astype(WIDE)
    assert np.array_equal(np.signbit(found), np.signbit(y))
    assert error.max() <= (0.51 if dtype == "float32" else 3.0), y[error.argmax()]


def stirling(x, n):
    """Return log(gamma(x)), or its derivative n, for x > 0: from x + 40 on five terms suffice
    (Abramowitz, Stegun, 6.1.40, 6.4.11)."""
    k = np.arange(40).astype(WIDE)
    points, y = x[:, None] + k, x + 40
    numbers = [WIDE(b) / c for b, c in ((1, 6), (-1, 30), (1, 42), (-1, 30), (5, 66))]
    terms = enumerate(numbers, 1)
    if n == 0:
        series = sum(b / (2 * j * (2 * j - 1)) * y ** (1 - 2 * j) for j, b in terms)
        return (y - WIDE(0.5)) * np.log(y) - y + np.log(2 * PI) / 2 + series - np.log(points).sum(1)
    if n == 1:
        series = sum(b / (2 * j) * y ** (-2 * j) for j, b in terms)
        return np.log(y) - 1 / (2 * y) - series - (1 / points).sum(1)
    return 1 / y + y**-2 / 2 + sum(b * y ** (-2 * j - 1) for j, b in terms) + (points**-2).sum(1)


@looped("dtype", DTYPES)
def test_the_gamma_function_and_its_derivatives_are_accurate(isa, dtype):
    """Above 0, and below by reflection, in units in the last place or in what rounding leaves of
    the largest terms."""
    kind = UNITS[dtype][0]
    x = arguments(dtype)
    x = np.abs(x[(np.abs(x) < 1e6) & (np.abs(x) > 1e-12)])[::3]
    names = (("lgamma", 4), ("digamma", 6), ("polygamma", 8))
    for n, (name, units) in enumerate(names):
        function = (lambda t: ops.polygamma(1, t)) if n == 2 else getattr(ops, name)
        exact, t = stirling(x.astype(WIDE), n), x.astype(WIDE) % 1
        above, below = (function(ndl.Tensor(z, dtype=dtype)).numpy() for z in (x, -x))
        with np.errstate(all="ignore"):
            sine, slope = np.sin(PI * t), PI / np.tan(PI * t)
            mirrored = (np.log(PI / (x * np.abs(sine))) - exact, exact + 1 / x.astype(WIDE) + slope,
                        (PI / sine) ** 2 - exact + x.astype(WIDE) ** -2)[n]  # fmt: skip
        loose = 1e-16 if dtype == "float32" else (2e-17, 1e-15, 0.0)[n]
        unit = np.spacing(np.abs(exact).astype(kind)).astype(WIDE)
        error = np.abs(above - exact) / (unit + loose)
        assert error.max() <= (0.51 if dtype == "float32" else units), (name, x[error.argmax()])
        far = (t > 1e-3) & (t < 0.999) & (x < 1e3)  # from the poles: there -x is rounded
        size = np.maximum(np.abs(mirrored), 1)[far]
        error = np.abs(below[far] - mirrored[far]) / np.spacing(size.astype(kind)).astype(WIDE)
        assert error.max() <= (0.51 if dtype == "float32" else 2000), name


@looped("dtype", DTYPES)
def test_the_normal_distribution_has_accurate_tails(isa, dtype):
    kind = UNITS[dtype][0]
    x = arguments(dtype)
    x = x[(np.abs(x) < 1e15)].astype(kind)
    wide, root = x.astype(WIDE), np.sqrt(WIDE(2))
    t = np.maximum(-wide, WIDE(2))  # below -2 as log(scaled tail) - x^2 / 2
    tail = np.log(erfc_fraction(t / root) / 2) - t * t / 2
    near = np.log1p(-erfc(np.clip(wide, -3, 100) / root) / 2)
    exact = np.where(wide < -2, tail, near)
    tensor = ndl.Tensor(x, dtype=dtype)
    error = np.abs(ops.log_ndtr(tensor).numpy() - exact)
    error /= np.spacing(np.maximum(np.abs(exact), 1e-290).astype(kind)).astype(WIDE)
    error = error[exact < -1e-290 if dtype == "float64" else exact < -1e-37]
    assert error.max() <= (0.51 if dtype == "float32" else 8)
    ops.log_ndtr(tensor).sum().backward()
    far = x < -30  # the ratio of density and tail is -x - 1 / x + 2 / x^3 ...
    t = -wide[far]
    np.testing.assert_allclose(tensor.grad.numpy()[far], t + 1 / t - 2 * t**-3, rtol=3e-7)


def test_every_function_has_its_bound():
    assert set(ULPS) == {*EXACT, *BINARY}
