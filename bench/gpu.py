"""Needle on a GPU, beside PyTorch: ``python bench/gpu.py [FILE.json]``.

Prints a table and writes JSON. Bandwidths are fractions of what a copy reaches in the same run;
products and launches are beside PyTorch's where PyTorch with CUDA is installed. Each figure is the
median of 20 runs after 5.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from datetime import date

import numpy as np

import needle as ndl
from needle.backend import kernels
from needle.backend.ndarray import array, empty

COUNT = 256 << 20
"""Elements of the arrays whose bandwidth is measured."""


def median(call, synchronize, repeats=20):
    """Seconds of one call."""
    for _ in range(5):
        call()
    synchronize()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def launches(call, synchronize, count=2000):
    """Seconds per call of many in a row."""
    for _ in range(100):
        call()
    synchronize()
    start = time.perf_counter()
    for _ in range(count):
        call()
    synchronize()
    return (time.perf_counter() - start) / count


def pytorch():
    """PyTorch with a GPU, or None."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def bandwidths(device, wait):
    rows = COUNT // 1024
    x = empty((rows, 1024), "float32", device)
    x.fill(0.5)
    copy = 8 * COUNT / median(lambda: x.copy(), wait)
    found = {"copy, GB/s": copy / 1e9}
    tensor = ndl.Tensor(x, requires_grad=False)
    weight = ndl.Tensor(np.ones(1024), device=device, requires_grad=False)
    calls = {
        "elementwise add": (lambda: kernels.elementwise("add", x, x), 12),
        "elementwise exp": (lambda: kernels.elementwise("exp", x), 8),
        "sum of rows": (lambda: kernels.reduce("sum", x, (1,)), 4),
        "sum of columns": (lambda: kernels.reduce("sum", x, (0,)), 4),
        "sum of all": (lambda: kernels.reduce("sum", x, (0, 1)), 4),
        "softmax": (lambda: ndl.softmax(tensor, axis=1), 8),
        "layer norm": (lambda: ndl.ops.layer_norm(tensor, weight, weight), 8),
    }
    for name, (call, nbytes) in calls.items():
        # x + x reads one array; count what passes through memory
        nbytes = 8 if name == "elementwise add" else nbytes
        found[f"{name} / copy"] = nbytes * COUNT / median(call, wait) / copy
    return found


def products(device, wait, torch):
    found = {}
    for kind, n in (("float32", 4096), ("bfloat16", 8192)):
        x = array(np.ones((n, n), "float32"), kind, device)
        mine = median(lambda x=x: kernels.matmul(x, x), wait)
        found[f"{kind} product of {n}, TFLOP/s"] = 2 * n**3 / mine / 1e12
        if torch:
            torch.backends.cuda.matmul.allow_tf32 = False
            y = torch.ones(n, n, device="cuda", dtype=getattr(torch, kind))
            theirs = median(lambda y=y: y @ y, torch.cuda.synchronize)
            found[f"{kind} product of {n}: PyTorch's time / Needle's"] = theirs / mine
    return found


def eager(device, wait, torch):
    x = ndl.Tensor(np.ones(16), device=device, requires_grad=False)
    mine = launches(lambda: x + x, wait)
    found = {"eager x + x, us": mine * 1e6}
    if torch:
        y = torch.ones(16, device="cuda")
        found["eager x + x: Needle's time / PyTorch's"] = mine / launches(
            lambda: y + y, torch.cuda.synchronize
        )
    return found


def training(device, wait):
    from needle import nn, optim
    from needle.models import MLPResNet

    ndl.manual_seed(0)
    model = MLPResNet(784).to(device)
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    x = ndl.Tensor(np.random.rand(100, 784), device=device, requires_grad=False)
    y = ndl.Tensor(np.arange(100) % 10, device=device, dtype="int64")
    loss = nn.SoftmaxLoss()
    return {"MLP step, ms": 1e3 * median(lambda: optimizer.minimize(loss(model(x), y)), wait)}


def main(path):
    device = ndl.cuda()
    if not device.enabled():
        print(f"no GPU: {device.reason()}")
        return
    torch, wait = pytorch(), device.backend.synchronize
    facts = device.backend.driver.properties
    figures = {}
    for measure in (
        lambda: eager(device, wait, torch), lambda: bandwidths(device, wait),
        lambda: products(device, wait, torch), lambda: training(device, wait),
    ):  # fmt: skip
        for name, value in measure().items():
            figures[name] = value
            print(f"{name:55} {value:10.3f}", flush=True)
    result = {
        "date": date.today().isoformat(), "device": facts.name, "arch": facts.arch,
        "needle": ndl.__version__, "python": platform.python_version(),
        "compiler": device.backend.driver.compiler.version,
        "torch": torch.__version__ if torch else None, "figures": figures,
    }  # fmt: skip
    if path:
        with open(path, "w") as file:
            json.dump(result, file, indent=2)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
