"""The functions that have no subject of their own, and what elementwise.py has not.

Beside PyTorch's. Of 1024 x 1024 elements the kernel counts, of 16 x 16 the call. Rows whose name
ends with "gradient" are the function and its backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from harness import TOLERANCE, Case, Options, both, main

import needle as ndl

F = torch.nn.functional
Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(0)


STEP = {"bfloat16": 1 / 128}
"""From a number to the next, at most: so much may results differ that are both rounded well."""


@dataclass
class Row:
    """A function of Needle and of PyTorch, and the arrays that both take."""

    name: str
    needle: Callable[..., Any]
    torch: Callable[..., Any]
    arrays: tuple[Array, ...]
    differentiable: bool = True
    random: bool = False


def normal(*shape: int) -> Array:
    """Return normal float32."""
    return RANDOM.standard_normal(shape, np.float32)


def integers(high: int, *shape: int) -> Array:
    """Return int64 in [0, high)."""
    return RANDOM.integers(0, high, shape)


def along_axes(n: int) -> Iterator[Row]:
    """Yield the functions along an axis of an n x n matrix."""
    x, y, positive = normal(n, n), normal(n, n), np.abs(normal(n, n)) + 0.1
    index, true = integers(n, n, n), normal(n, n) > 0
    factors = np.clip(positive, 0.5, 1.5)
    distinct = RANDOM.permutation(n * n).reshape(n, n).astype(np.float32)
    k = max(3, n // 64)
    for d in (0, 1):
        at = f"axis {d}"
        yield Row(
            f"cumsum, {at}", lambda a, d=d: ndl.cumsum(a, d), lambda a, d=d: a.cumsum(d), (x,)
        )
        yield Row(
            f"cumprod, {at}",
            lambda a, d=d: ndl.cumprod(a, d),
            lambda a, d=d: a.cumprod(d),
            (factors,),
            n < 100,
        )
        yield Row(
            f"prod, {at}", lambda a, d=d: ndl.prod(a, d), lambda a, d=d: a.prod(d), (factors,)
        )
        for name in ("logsumexp", "softmax", "log_softmax", "std"):
            ours, theirs = getattr(ndl, name), getattr(torch, name)
            more = {"correction": 0} if name == "std" else {}
            yield Row(
                f"{name}, {at}",
                lambda a, f=ours, d=d: f(a, d),
                lambda a, f=theirs, d=d, m=more: f(a, d, **m),
                (x,),
            )
        yield Row(
            f"argmin, {at}",
            lambda a, d=d: ndl.argmin(a, d),
            lambda a, d=d: a.argmin(d),
            (x,),
            False,
        )
        yield Row(
            f"all, {at}", lambda a, d=d: ndl.all(a, d), lambda a, d=d: a.all(d), (true,), False
        )
        yield Row(
            f"any, {at}", lambda a, d=d: ndl.any(a, d), lambda a, d=d: a.any(d), (true,), False
        )
        yield Row(
            f"sort, {at}", lambda a, d=d: ndl.sort(a, d), lambda a, d=d: a.sort(d)[0], (distinct,)
        )
        yield Row(
            f"argsort, {at}",
            lambda a, d=d: ndl.argsort(a, d),
            lambda a, d=d: a.argsort(d),
            (distinct,),
            False,
        )
        yield Row(
            f"topk of {k}, {at}",
            lambda a, d=d: ndl.topk(a, k, d)[0],
            lambda a, d=d: a.topk(k, d)[0],
            (distinct,),
        )
        yield Row(
            f"gather, {at}",
            lambda a, i, d=d: ndl.gather(a, i, d),
            lambda a, i, d=d: a.gather(d, i),
            (x, index),
        )
        yield Row(
            f"scatter_add, {at}",
            lambda a, i, d=d: ndl.scatter_add(i, a, d, (n, n)),
            lambda a, i, d=d: torch.zeros(n, n).scatter_add(d, i, a),
            (x, index),
        )
        yield Row(
            f"take, {at}",
            lambda a, i, d=d: ndl.take(a, i, d),
            lambda a, i, d=d: a.index_select(d, i),
            (x, index[0]),
        )
        yield Row(f"flip, {at}", lambda a, d=d: ndl.flip(a, d), lambda a, d=d: a.flip(d), (x,))
        yield Row(
            f"roll, {at}", lambda a, d=d: ndl.roll(a, 5, d), lambda a, d=d: a.roll(5, d), (x,)
        )
        yield Row(
            f"concat, {at}",
            lambda a, b, d=d: ndl.concat([a, b], d),
            lambda a, b, d=d: torch.cat([a, b], d),
            (x, y),
        )
        yield Row(
            f"stack, {at}",
            lambda a, b, d=d: ndl.stack([a, b], d),
            lambda a, b, d=d: torch.stack([a, b], d),
            (x, y),
        )
        yield Row(
            f"chunk in 4, {at}",
            lambda a, d=d: ndl.chunk(a, 4, d)[0],
            lambda a, d=d: a.chunk(4, d)[0],
            (x,),
        )
        few = normal(8, 8)
        yield Row(
            f"unbind of 8, {at}",
            lambda a, d=d: ndl.unbind(a, d)[0],
            lambda a, d=d: a.unbind(d)[0],
            (few,),
        )
        half = normal(n // 2, n // 2)
        yield Row(
            f"repeat 4 times, {at}",
            lambda a, d=d: ndl.repeat(a, 4, d),
            lambda a, d=d: a.repeat_interleave(4, d),
            (half,),
        )


def moving(n: int) -> Iterator[Row]:
    """Yield functions that move elements, and indexing."""
    x, true, wide = normal(n, n), normal(n, n) > 0, normal(n // 8, n // 8, 64)
    flat, places, index = normal(n * n), integers(n * n, n * n), integers(n, n, n)
    images = normal(max(1, n // 16), n // 8, n // 8)
    half = normal(n // 2, n // 2)
    yield Row(
        "pad by zeros",
        lambda a: ndl.pad(a, ((1, 1), (1, 1))),
        lambda a: F.pad(a, (1, 1, 1, 1)),
        (x,),
    )
    edge = min(2, n // 8 - 1) if n > 8 else 0
    for mode in ("reflect", "replicate"):
        yield Row(
            f"pad, {mode}",
            lambda a, m=mode: ndl.pad(a, ((0, 0), (edge, edge), (edge, edge)), mode=m),
            lambda a, m=mode: F.pad(a, (edge,) * 4, mode=m),
            (images,),
        )
    yield Row("tile 2 x 2", lambda a: ndl.tile(a, (2, 2)), lambda a: a.tile(2, 2), (half,))
    yield Row("tril", ndl.tril, torch.tril, (x,))
    yield Row("triu", ndl.triu, torch.triu, (x,))
    yield Row("diagonal", ndl.diagonal, torch.diagonal, (x,))
    yield Row("transpose, copied", lambda a: a.T + 0, lambda a: a.T.contiguous(), (x,))
    yield Row(
        "permute, multiplied",
        lambda a: ndl.permute(a, (2, 0, 1)) * 2,
        lambda a: a.permute(2, 0, 1) * 2,
        (wide,),
    )
    yield Row(
        "one_hot of 256",
        lambda i: ndl.one_hot(i, 256),
        lambda i: F.one_hot(i, 256).float(),
        (index[: max(1, n // 256)] % 256,),
        False,
    )
    yield Row("searchsorted", ndl.searchsorted, torch.searchsorted, (np.sort(flat), flat), False)
    yield Row(
        "nonzero",
        lambda m: ndl.nonzero(m)[0],
        lambda m: m.nonzero(as_tuple=True)[0],
        (true,),
        False,
    )
    yield Row("unique, int64", ndl.unique, torch.unique, (index,), False)
    yield Row("unique, float32", ndl.unique, torch.unique, (x,), False)
    yield Row("count_nonzero", ndl.count_nonzero, torch.count_nonzero, (true,), False)
    yield Row("x[mask]", lambda a, m: a[m], lambda a, m: a[m], (x, true))
    yield Row("x[indices]", lambda a, i: a[i], lambda a, i: a[i], (flat, places))
    yield Row("x[rows]", lambda a, i: a[i], lambda a, i: a[i], (x, index[0]))
    yield Row(
        "x[rows, columns]",
        lambda a, i, j: a[i, j],
        lambda a, i, j: a[i, j],
        (x, index[0], index[1]),
    )
    yield Row("x[::2, ::3], multiplied", lambda a: a[::2, ::3] * 2, lambda a: a[::2, ::3] * 2, (x,))
    yield Row("where", ndl.where, torch.where, (true, x, normal(n, n)))
    yield from assignments(n)


def assignments(n: int) -> Iterator[Row]:
    """Yield assignments, each to an array of its own."""
    x, true, rows = normal(n, n), normal(n, n) > 0, integers(n, n)

    def assigned(key: Any, value: Any) -> Callable[..., Any]:
        def run(a: Any, *more: Any) -> None:
            a[more[0] if key is None else key] = more[-1] if value is None else value

        return run

    top = slice(0, n // 2)
    for name, key, value, more in (
        ("x[:n] = 1", top, 1.0, ()),
        ("x[:n] = y", top, None, (normal(n // 2, n),)),
        ("x[mask] = 1", None, 1.0, (true,)),
        ("x[rows] = y", None, None, (rows, normal(n, n))),
        ("x[rows] = 1", None, 1.0, (rows,)),
        ("x[3, 4] = 1", (3, 4), 1.0, ()),
    ):
        run = assigned(key, value)
        yield Row(name, run, run, (x.copy(), *more), False)


def products(n: int) -> Iterator[Row]:
    """Yield products and einsum."""
    x, y, flat = normal(n, n), normal(n, n), normal(n * n)
    half, other, row = normal(n // 2, n // 2), normal(n // 2, n // 2), normal(n)
    q, k = normal(8, n // 8, 8, n // 16 or 1), normal(8, n // 8, 8, n // 16 or 1)
    for name, *arrays in (
        ("ij,jk->ik", half, other),
        ("bqhd,bkhd->bhqk", q, k),
        ("ij,ij->i", x, y),
        ("i,j->ij", row, row),
        ("ij->ji", x),
        ("ii->", x),
        ("ij,jk,kl->il", half, other, half[:, :8]),
    ):
        yield Row(
            f"einsum {name}",
            lambda *a, e=name: ndl.einsum(e, *a),
            lambda *a, e=name: torch.einsum(e, *a),
            tuple(np.ascontiguousarray(a) for a in arrays),
        )
    cube = normal(max(2, n // 16), 4, n // 8)
    yield Row(
        "tensordot over 2 axes",
        lambda a: ndl.tensordot(a, a.permute((1, 2, 0)), 2),
        lambda a: torch.tensordot(a, a.permute(1, 2, 0), 2),
        (cube,),
    )
    yield Row("outer", ndl.outer, torch.outer, (row, row))
    yield Row("matrix @ vector", ndl.matmul, torch.matmul, (x, row))
    yield Row("vector @ matrix", ndl.matmul, torch.matmul, (row, x))
    yield Row("vector @ vector", ndl.matmul, torch.matmul, (flat, flat))
    for m in (3, 8, 16):
        yield Row(
            f"{n} products of {m} x {m}",
            ndl.matmul,
            torch.matmul,
            (normal(n, m, m), normal(n, m, m)),
        )
    shared = normal(8, n // 8, n // 8)
    yield Row("batch @ matrix", ndl.matmul, torch.matmul, (shared, shared[0].copy()))
    yield Row("matrix @ batch", ndl.matmul, torch.matmul, (shared[0].copy(), shared))
    yield Row(
        "product of int64",
        ndl.matmul,
        torch.matmul,
        (integers(9, n // 8, n // 8), integers(9, n // 8, n // 8)),
        False,
    )
    yield Row(
        "product of float64", ndl.matmul, torch.matmul, (half.astype(float), other.astype(float))
    )


def losses(n: int) -> Iterator[Row]:
    """Yield losses and norms."""
    x, y, p, labels = normal(n, n), normal(n, n), RANDOM.random((n, n), np.float32), integers(n, n)
    p = 0.9 * p + np.float32(0.05)
    for name in ("mse_loss", "l1_loss", "huber_loss"):
        yield Row(name, getattr(ndl, name), getattr(F, name), (x, y))
    yield Row("bce_with_logits", ndl.bce_with_logits, F.binary_cross_entropy_with_logits, (x, p))
    yield Row(
        "kl_divergence",
        ndl.kl_divergence,
        lambda a, b: F.kl_div(a, b, reduction="batchmean"),
        (np.log(p[::-1].copy()), p),
    )
    yield Row("nll_loss", ndl.nll_loss, F.nll_loss, (x, labels))
    yield Row("cross_entropy", ndl.cross_entropy, F.cross_entropy, (x, labels))
    yield Row(
        "cross_entropy, smoothed",
        lambda a, i: ndl.cross_entropy(a, i, label_smoothing=0.1),
        lambda a, i: F.cross_entropy(a, i, label_smoothing=0.1),
        (x, labels),
    )
    yield Row(
        "layer_norm", ndl.layer_norm, lambda a, w, b: F.layer_norm(a, (n,), w, b), (x, x[0], x[1])
    )
    yield Row("rms_norm", ndl.rms_norm, lambda a, w: F.rms_norm(a, (n,), w, 1e-5), (x, x[0]))


def made(n: int) -> Iterator[Row]:
    """Yield what makes tensors: random numbers and others."""
    x, size = normal(n, n), n * n
    for name, ours, theirs in (
        ("dropout", lambda a: ndl.dropout(a, 0.5), lambda a: F.dropout(a, 0.5)),
        ("uniform", lambda a: ndl.uniform((n, n)), lambda a: torch.rand(n, n)),
        ("normal", lambda a: ndl.normal((n, n)), lambda a: torch.randn(n, n)),
        ("randint", lambda a: ndl.randint((n, n), 0, 100), lambda a: torch.randint(0, 100, (n, n))),
        ("permutation", lambda a: ndl.permutation(size), lambda a: torch.randperm(size)),
        (
            "bernoulli",
            lambda a: ndl.bernoulli((n, n), 0.3),
            lambda a: torch.empty(n, n, dtype=torch.bool).bernoulli_(0.3),
        ),
    ):
        yield Row(name, ours, theirs, (x,), name == "dropout", random=True)
    for name, ours, theirs in (
        ("arange", lambda a: ndl.arange(size), lambda a: torch.arange(size)),
        ("linspace", lambda a: ndl.linspace(0, 1, size), lambda a: torch.linspace(0, 1, size)),
        ("eye", lambda a: ndl.eye(n), lambda a: torch.eye(n)),
        ("full", lambda a: ndl.full((n, n), 3.0), lambda a: torch.full((n, n), 3.0)),
        ("zeros", lambda a: ndl.zeros(n, n), lambda a: torch.zeros(n, n)),
        (
            "meshgrid",
            lambda a: ndl.meshgrid(a[0], a[1])[0] * 2,
            lambda a: torch.meshgrid(a[0], a[1], indexing="xy")[0] * 2,
        ),
    ):
        yield Row(name, ours, theirs, (x,), False)


def other_dtypes(n: int) -> Iterator[Row]:
    """Yield casts and functions of other dtypes than float32."""
    x, y, index, true = normal(n, n), normal(n, n), integers(1000, n, n), normal(n, n) > 0
    for a, b in (
        ("float32", "bfloat16"),
        ("float32", "float16"),
        ("float32", "float64"),
        ("float32", "int32"),
        ("int64", "float32"),
        ("bool", "float32"),
    ):
        source = {"float32": x, "int64": index, "bool": true}[a]
        yield Row(
            f"{a} to {b}",
            lambda v, b=b: v.astype(b),
            lambda v, b=b: v.to(getattr(torch, b)),
            (source,),
            False,
        )
    ours, theirs = (ndl.Tensor(v).astype("bfloat16") for v in (x, y))
    t, u = (torch.from_numpy(v).bfloat16() for v in (x, y))
    for name, f in (
        ("x + y", lambda a, b: a + b),
        ("x @ y", lambda a, b: a @ b),
        ("sum, axis 1", lambda a, b: a.sum(1)),
    ):
        yield Row(f"bfloat16 {name}", lambda f=f: f(ours, theirs), lambda f=f: f(t, u), (), False)
    yield Row("bfloat16 exp", lambda: ndl.exp(ours), lambda: torch.exp(t), (), False)
    yield Row(
        "bfloat16 softmax", lambda: ndl.softmax(ours, 1), lambda: torch.softmax(t, 1), (), False
    )
    for name in ("exp", "log", "sin", "tanh", "sigmoid", "erf"):
        yield Row(
            f"float64 {name}",
            getattr(ndl, name),
            getattr(torch, name),
            (np.abs(x).astype(float) + 0.1,),
        )
    some = index % 30 + 1
    for name, f in (
        ("x + y", lambda a, b: a + b),
        ("x * y", lambda a, b: a * b),
        ("x // y", lambda a, b: a // b),
        ("x % y", lambda a, b: a % b),
        ("x < y", lambda a, b: a < b),
        ("x << y", lambda a, b: a << b),
    ):
        yield Row(f"int64 {name}", f, f, (index, some), False)
        yield Row(f"int32 {name}", f, f, (index.astype(np.int32), some.astype(np.int32)), False)
    yield Row("int64 sum, axis 1", lambda a: a.sum(1), lambda a: a.sum(1), (index,), False)
    yield Row("int64 max", lambda a: a.max(), lambda a: a.max(), (index,), False)


def elementwise(n: int) -> Iterator[Row]:
    """Yield what elementwise.py has not: gradients, and powers of numbers."""
    x, y = normal(n, n), normal(n, n)
    positive = np.abs(x) + 0.1
    for name, theirs in (
        ("relu", torch.relu), ("leaky_relu", F.leaky_relu), ("elu", F.elu), ("silu", F.silu),
        ("gelu", F.gelu), ("softplus", F.softplus), ("sigmoid", torch.sigmoid),
        ("log_sigmoid", F.logsigmoid), ("tanh", torch.tanh), ("erf", torch.erf),
        ("exp", torch.exp), ("expm1", torch.expm1), ("sin", torch.sin), ("cos", torch.cos),
        ("atan", torch.atan), ("asinh", torch.asinh), ("abs", torch.abs), ("square", torch.square),
    ):  # fmt: skip
        yield Row(name, getattr(ndl.ops, name), theirs, (x,))
    yield Row(
        "gelu of tanh",
        lambda a: ndl.gelu(a, "tanh"),
        lambda a: F.gelu(a, approximate="tanh"),
        (x,),
    )
    for name in ("log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal"):
        yield Row(name, getattr(ndl.ops, name), getattr(torch, name), (positive,))
    for power in (2, 3, 0.5, -0.5, -1, -2, 1.7):
        yield Row(f"x ** {power}", lambda a, p=power: a**p, lambda a, p=power: a**p, (positive,))
    yield Row("clip", lambda a: ndl.clip(a, -1, 1), lambda a: a.clip(-1, 1), (x,))
    for name, f in (("x / y", lambda a, b: a / b), ("x * y", lambda a, b: a * b)):
        yield Row(name, f, f, (x, positive))
    for name in ("maximum", "hypot", "atan2", "logaddexp"):
        yield Row(name, getattr(ndl.ops, name), getattr(torch, name), (x, y))
    yield Row(
        "where", lambda a, b: ndl.where(a > 0, a, b), lambda a, b: torch.where(a > 0, a, b), (x, y)
    )


PARTS = (along_axes, moving, products, losses, made, other_dtypes, elementwise)


def first(value: Any) -> Any:
    """Return the first of several results."""
    return value[0] if isinstance(value, (tuple, list)) else value


def forward(row: Row, name: str, group: str) -> Case:
    """Return the case of a function alone."""
    pairs = [both(a) for a in row.arrays]
    own, theirs = [p[0] for p in pairs], [p[1] for p in pairs]

    def run_ours() -> Any:
        out = row.needle(*own)
        return None if row.random else first(out)

    def run_theirs() -> Any:
        with torch.no_grad():
            return first(row.torch(*theirs))

    tolerance = STEP.get(name.split()[0], TOLERANCE)
    return Case(
        name, run_ours, run_theirs, target=1.0, goals="ops", group=group, tolerance=tolerance
    )


def gradient(row: Row, name: str, group: str) -> Case:
    """Return the case of a function and its gradient."""
    pairs = [both(a, grad=a.dtype == np.float32 or a.dtype == np.float64) for a in row.arrays]
    own, theirs = [p[0] for p in pairs], [p[1] for p in pairs]

    out = first(row.needle(*own))
    seed, t_seed = both(normal(*out.shape).astype(out.numpy().dtype))

    def run(function: Callable[..., Any], values: list[Any], g: Any) -> Any:
        for v in values:
            v.grad = None
        first(function(*values)).backward(g)
        return None if row.random else next(v.grad for v in values if v.grad is not None)

    return Case(
        name,
        lambda: run(row.needle, own, seed),
        lambda: run(row.torch, theirs, t_seed),
        target=1.0,
        goals="ops",
        group=group,
    )


def cases(options: Options) -> Iterator[Case]:
    """Yield all rows."""
    for n in (16,) if options.quick else (1024, 16):
        large = n > 16
        size, group = ("1024 x 1024", "functions") if large else ("16 x 16", "calls")
        for part in PARTS:
            for row in part(n):
                made_by = (forward, gradient) if row.differentiable else (forward,)
                for make in made_by:
                    name = f"{row.name}{', gradient' if make is gradient else ''}, {size}"
                    if options.only in name:
                        case = make(row, name, group)
                        case.torch_threads = 2 if large else 1
                        yield case


if __name__ == "__main__":
    main("functions", cases, seconds=0.1, mallocs=("stock",))
