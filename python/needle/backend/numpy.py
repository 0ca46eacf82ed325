"""The NumPy device: short and simple, the reference for all other devices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from needle import config
from needle.backend import memory
from needle.backend.contract import Backend

_ERF, _ERFC = np.frompyfunc(math.erf, 1, 1), np.frompyfunc(math.erfc, 1, 1)


def _erf(x: Any) -> Any:
    return np.asarray(_ERF(x)).astype(x.dtype)


def _sigmoid(x: Any) -> Any:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def _finite_below(x: Any) -> Any:
    """x, or -1000 where it is less: there the functions below are 0, not infinity times 0."""
    return np.maximum(x, x.dtype.type(-1000))


def _silu(x: Any) -> Any:
    return _finite_below(x) * _sigmoid(x)


def _gelu(x: Any) -> Any:
    return 0.5 * _finite_below(x) * np.asarray(_ERFC(-math.sqrt(0.5) * x)).astype(x.dtype)


def _gelu_tanh(x: Any) -> Any:
    return _finite_below(x) * _sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))


def _silu_slope(x: Any) -> Any:
    x = np.clip(x, -1000, 1000)
    return _sigmoid(x) * (1 + x * _sigmoid(-x))


def _gelu_slope(x: Any) -> Any:
    x = np.clip(x, -40, 40)
    below = 0.5 * np.asarray(_ERFC(-math.sqrt(0.5) * x)).astype(x.dtype)
    return below + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _gelu_tanh_slope(x: Any) -> Any:
    x = np.clip(x, -40, 40)
    a = math.sqrt(8 / math.pi)
    z = a * (x + 0.044715 * x * x * x)
    return _sigmoid(z) * (1 + x * _sigmoid(-z) * a * (1 + 3 * 0.044715 * x * x))


def _divide_integers(function: Any) -> Any:
    """Integer division by zero gives 0, as in the native kernels; floats as NumPy."""

    def divide(x: Any, y: Any) -> Any:
        if x.dtype.kind not in "iu":
            return function(x, y)
        return np.where(y == 0, 0, function(x, np.where(y == 0, 1, y))).astype(x.dtype)

    return divide


def _floor_divide(x: Any, y: Any) -> Any:
    """As NumPy, but where one is infinite floor(x / y), as the array API standard says."""
    if x.dtype.kind in "iu":
        return _whole_quotient(x, y)
    return np.where(np.isinf(x) | np.isinf(y), np.floor(x / y), np.floor_divide(x, y))


_whole_quotient = _divide_integers(np.floor_divide)


def _shift(function: Any) -> Any:
    """Shift counts outside the width give 0 (or the sign, to the right)."""

    def shift(x: Any, y: Any) -> Any:
        bits = 8 * x.dtype.itemsize
        y = y.astype(np.int64)
        if function is np.right_shift and x.dtype.kind == "i":
            return function(x, np.where((y < 0) | (y >= bits), bits - 1, y).astype(x.dtype))
        wide = (y < 0) | (y >= bits)
        return np.where(wide, 0, function(x, np.where(wide, 0, y).astype(x.dtype))).astype(x.dtype)

    return shift


def _huber(x: Any, y: Any, delta: Any) -> Any:
    near = np.minimum(np.maximum(x - y, -delta), delta)
    return near * (x - y - near / 2)


def _power(x: Any, y: Any) -> Any:
    """x ** y; for integers and negative y, 1 / x ** -y truncated to 1, -1 or 0."""
    if y.dtype.kind == "f":  # NumPy may take the square root, which differs at -inf and -0
        ends = (y == 0.5) & ((x == 0) | (x == -np.inf))
        return np.where(ends, np.abs(x), np.power(x, y))
    if y.dtype.kind != "i" or not (y < 0).any():
        return np.power(x, y)
    sign = np.where(x == 1, 1, np.where(x == -1, 1 - 2 * (y & 1), 0))
    return np.where(y < 0, sign, np.power(x, np.maximum(y, 0)))


# Functions of functions.def whose NumPy name differs, or that NumPy lacks.
FUNCTIONS: dict[str, Any] = {
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "power": _power, "rsqrt": lambda x: 1 / np.sqrt(x), "round": np.rint, "abs": np.absolute,
    "sigmoid": _sigmoid, "erf": _erf, "gelu": _gelu, "gelu_tanh": _gelu_tanh,
    "softplus": lambda x: np.logaddexp(x, np.zeros_like(x)),
    "relu": lambda x: np.maximum(x, np.zeros_like(x)),
    "silu": _silu,
    "bitwise_invert": np.invert,
    "bitwise_left_shift": _shift(np.left_shift), "bitwise_right_shift": _shift(np.right_shift),
    "floor_divide": _floor_divide, "remainder": _divide_integers(np.remainder),
    "where": np.where,
    "clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "squared_difference": lambda x, y: np.square(x - y),
    "squared_difference_grad": lambda x, y, g: (x - y) * (g + g),
    "huber": _huber,
    "relu_grad": lambda x, g: np.where(x > 0, g, np.zeros_like(g)),
    "sigmoid_grad": lambda x, g: g * (x * (1 - x)),
    "tanh_grad": lambda x, g: g * (1 - x * x),
    "silu_grad": lambda x, g: g * _silu_slope(x),
    "gelu_grad": lambda x, g: g * _gelu_slope(x),
    "gelu_tanh_grad": lambda x, g: g * _gelu_tanh_slope(x),
    "leaky_relu_grad": lambda x, slope, g: np.where(x > 0, g, slope * g),
    "leaky_relu": lambda x, slope: np.where(x > 0, x, slope * x),
    "elu": lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
}  # fmt: skip


def _mean(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    count = math.prod(x.shape[i] for i in axis)  # numpy.mean would warn where it is 0
    return np.true_divide(np.sum(x, axis=axis, keepdims=keepdims), x.dtype.type(count))


REDUCTIONS: dict[str, Any] = {
    "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "mean": _mean,
    "any": np.any, "all": np.all, "argmax": np.argmax, "argmin": np.argmin,
}  # fmt: skip

SCANS: dict[str, Any] = {
    "cumsum": np.cumsum, "cumprod": np.cumprod,
    "cummax": np.maximum.accumulate, "cummin": np.minimum.accumulate,
}  # fmt: skip


def view(x: Any) -> Any:
    """Return the NumPy view of an array of this device."""
    step = x.dtype.itemsize
    if not x.size:  # the strides and offset of an empty array may point anywhere
        return np.empty(x.shape, x.dtype.numpy)
    return np.ndarray(
        x.shape,
        x.dtype.numpy,
        buffer=x.handle,
        offset=x.offset * step,
        strides=[stride * step for stride in x.strides],
    )


def _wide(x: Any) -> Any:
    """Half-precision values as float32, in which every device computes them."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x


_LONG, _LONG_LINE = 512, 4096


def _by_rows(x: Any, axes: tuple[int, ...]) -> bool:
    """Return whether NumPy adds many elements one by one: it sums last axes of a row as a tree."""
    count = math.prod(x.shape[axis] for axis in axes)
    return count > _LONG and not (x.is_dense() and axes == tuple(range(axes[0], x.ndim)))


def _indices(index: Any, axis: int) -> tuple[Any, ...]:
    grid = list(np.ogrid[tuple(slice(0, size) for size in index.shape)])
    grid[axis] = index
    return tuple(grid)


def philox(key: int, blocks: Any, high: int = 0) -> Any:
    """Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).

    Args:
        key: 64 bits.
        blocks: uint64 [n], the low 64 bits of the counters.
        high: the high 64 bits.

    Returns:
        uint32 [n, 4].
    """
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    c0, c1 = blocks & mask, blocks >> shift
    c2, c3 = (np.full_like(blocks, word) for word in (high & 0xFFFFFFFF, high >> 32))
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            (p1 >> shift) ^ c1 ^ np.uint64(k0),
            p1 & mask,
            (p0 >> shift) ^ c3 ^ np.uint64(k1),
            p0 & mask,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


class Memory(np.ndarray[Any, Any]):
    """A handle: flat bytes."""

    live = 0  # bytes, of all handles that allocate made
    counted = 0  # bytes, of this one; views of it count nothing

    def ptr(self) -> int:
        """Return the address."""
        return int(self.ctypes.data)

    def __del__(self) -> None:
        type(self).live -= self.counted  # at exit the names of the module no longer exist


class NumpyBackend(Backend):
    """Compute every primitive by one NumPy call."""

    name = "cpu_numpy"
    peak = 0

    def allocate(self, nbytes: int) -> Any:
        limit = config.current().memory_limit
        if limit and Memory.live + nbytes > limit:
            raise memory.exhausted(self, nbytes)
        try:
            handle = np.empty(nbytes, np.uint8).view(Memory)
        except (MemoryError, ValueError):  # ValueError: more than NumPy can count
            raise memory.exhausted(self, nbytes) from None
        handle.counted = nbytes
        Memory.live += nbytes
        NumpyBackend.peak = max(self.peak, Memory.live)
        return handle

    def memory_info(self) -> dict[str, int]:
        limit = config.current().memory_limit
        return {"live": Memory.live, "cached": 0, "peak": self.peak, "limit": limit}

    def adopt(self, values: Any) -> Any:
        """Return a handle over a flat NumPy array's memory."""
        return values.view(np.uint8).view(Memory)

    def upload(self, out: Any, values: Any) -> None:
        view(out)[...] = values

    def download(self, x: Any) -> Any:
        return view(x)

    def copy(self, out: Any, x: Any) -> None:
        with np.errstate(all="ignore"):
            values = view(x)
            if out.dtype.kind in "iu" and x.dtype.kind == "f":
                values = np.nan_to_num(values.astype(np.float64), nan=0.0)
                bounds = np.iinfo(out.dtype.numpy)
                high = values >= bounds.max
                values = np.clip(values, bounds.min, bounds.max)
                view(out)[...] = np.where(
                    high, bounds.max, np.where(high, 0, values).astype(out.dtype.numpy)
                )
                return
            if out.dtype.kind == "b":
                values = values != 0
            view(out)[...] = values.astype(out.dtype.numpy)

    def fill(self, out: Any, value: float) -> None:
        if out.dtype.kind in "iu":  # numbers out of range saturate, as in casts
            bounds = np.iinfo(out.dtype.numpy)
            value = 0 if value != value else min(max(value, int(bounds.min)), int(bounds.max))
        elif out.dtype.kind == "f":
            value = float(value)  # bfloat16 takes no integers of more than 64 bits
        with np.errstate(over="ignore"):
            view(out)[...] = value

    def elementwise(self, function: str, out: Any, *inputs: Any) -> None:
        call = FUNCTIONS.get(function) or getattr(np, function)
        with np.errstate(all="ignore"):
            view(out)[...] = call(*[_wide(view(x)) for x in inputs])

    def reduce(self, function: str, out: Any, x: Any, axes: tuple[int, ...]) -> None:
        values = _wide(view(x))
        if function.startswith("arg"):
            axis = axes[0] if len(axes) == 1 and x.ndim > 1 else None
            view(out)[...] = REDUCTIONS[function](values, axis=axis).reshape(out.shape)
            return
        dtype = {"dtype": out.dtype.numpy} if function in ("sum", "prod") else {}
        if values.dtype.itemsize != x.dtype.itemsize:
            dtype = {}
        if function in ("sum", "mean") and x.dtype.kind == "f" and _by_rows(x, axes):
            values, dtype = values.astype(np.float64), {}
        with np.errstate(all="ignore"):
            view(out)[...] = REDUCTIONS[function](values, axis=axes, keepdims=True, **dtype)

    def scan(self, function: str, out: Any, x: Any, axis: int) -> None:
        # float32 sums stop growing by ones at 2 ** 24
        is_long = x.dtype.kind == "f" and x.ndim and x.shape[axis] > _LONG_LINE
        dtype = np.float64 if function == "cumsum" and is_long else None
        more = {} if dtype is None else {"dtype": dtype}
        with np.errstate(all="ignore"):
            view(out)[...] = SCANS[function](_wide(view(x)), axis=axis, **more)

    def matmul(self, out: Any, a: Any, b: Any) -> None:
        with np.errstate(all="ignore"):
            view(out)[...] = np.matmul(_wide(view(a)), _wide(view(b)))

    def gather(self, out: Any, x: Any, index: Any, axis: int) -> int:
        where = view(index).astype(np.int64)
        bad = _first_bad(where, x.shape[axis])
        if bad < 0:
            values = np.broadcast_to(
                view(x), [x.shape[axis] if i == axis else size for i, size in enumerate(out.shape)]
            )
            view(out)[...] = values[_indices(where, axis)]
        return bad

    def scatter_add(self, out: Any, index: Any, updates: Any, axis: int) -> int:
        where = view(index).astype(np.int64)
        bad = _first_bad(where, out.shape[axis])
        view(out)[...] = 0
        if bad < 0:
            where = np.where(where < 0, where + out.shape[axis], where)
            target, values = view(out), _wide(view(updates))
            if out.dtype.kind == "f":  # many small numbers would not change a large sum
                target, values = np.zeros(out.shape), values.astype(np.float64)
            np.add.at(target, _indices(where, axis), values)
            with np.errstate(over="ignore", invalid="ignore"):
                view(out)[...] = target
        return bad

    puts = True

    def put(self, out: Any, index: Any, values: Any, axis: int) -> int:
        where = view(index).astype(np.int64)
        bad = _first_bad(where, out.shape[axis])
        if bad < 0:
            view(out)[_indices(where, axis)] = view(values)
        return bad

    def sort(self, values: Any, indices: Any, x: Any, axis: int, descending: bool) -> None:
        data = view(x)
        if descending:  # stable: reverse, sort, reverse, so that equal elements keep their order
            flipped = np.flip(data, axis)
            keys: tuple[Any, ...] = (flipped,)
            if x.dtype.kind == "f":
                nan = np.isnan(flipped)
                keys = np.where(nan, 0, _wide(flipped)), ~nan
            order = np.flip(np.lexsort(keys, axis), axis)
            order = data.shape[axis] - 1 - order
        else:
            order = np.argsort(_wide(data), axis=axis, kind="stable")
        order = order.take(range(values.shape[axis]), axis)
        view(indices)[...] = order
        view(values)[...] = np.take_along_axis(data, order, axis)

    def update_kernel(self, name: str, dtype: Any) -> Any:
        return _adam if name == "adam" else None

    def random_bits(self, out: Any, key: int, counter: int) -> None:
        words = out.size * (out.dtype.itemsize // 4)
        blocks = np.arange((words + 3) // 4, dtype=np.uint64) + np.uint64(counter)
        bits = philox(key, blocks).reshape(-1)[:words]
        view(out)[...] = np.ascontiguousarray(bits).view(out.dtype.numpy).reshape(out.shape)


@np.errstate(over="ignore", invalid="ignore")
def _adam(
    numbers: Any, flags: list[bool], outs: Any, params: Any, grads: Any, ms: Any, vs: Any
) -> None:
    numbers = view(numbers).tolist() if hasattr(numbers, "handle") else numbers
    lr, beta1, beta2, eps, weight_decay, correction1, correction2 = numbers
    for out, param, grad, *moments in zip(outs, params, grads, ms, vs, strict=True):
        p, g = _wide(view(param)), _wide(view(grad))
        m, v = map(view, moments)
        if flags[0]:
            p = p * (1 - lr * weight_decay)
        elif weight_decay:  # 0 times an infinite parameter is NaN
            g = g + weight_decay * p
        m[...] = beta1 * m + (1 - beta1) * g
        v[...] = beta2 * v + (1 - beta2) * g * g
        step = m / correction1 / (np.sqrt(v / correction2) + eps)
        view(out)[...] = p - lr * step


def _first_bad(index: Any, size: int) -> int:
    bad = np.flatnonzero((index < -size) | (index >= size))
    return int(bad[0]) if bad.size else -1
