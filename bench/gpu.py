"""Needle on a GPU, beside PyTorch: ``python bench/gpu.py [FILE.json]``.

Prints a table and writes JSON. Bandwidths are fractions of what a copy reaches in the same run;
launches, products and training steps are beside PyTorch's where PyTorch with CUDA is installed.
Each figure is the median of 20 runs after 5, but for launches (2000 in a row) and the first use of
a kernel (a new process).

``--quick`` takes tiny sizes, and ``--device cuda-emu`` runs in the emulator, beside PyTorch on the
CPU: to see that the program works, not how fast anything is.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import record

import needle as ndl
from needle import config, devices, nn, optim
from needle.backend import kernels
from needle.backend.cuda.jit import OPTIONS, Cache, Nvrtc, Unit, key, pack, unpack
from needle.backend.ndarray import array, empty
from needle.models import MLPResNet
from needle.models.resnet9 import ResNet9


class Figure(NamedTuple):
    """A row: what was measured, the value, and what it should be at least or at most."""

    name: str
    value: float
    least: float | None = None
    most: float | None = None

    def verdict(self) -> str:
        """Return "yes" or "no" where there is a target."""
        if self.least is None and self.most is None:
            return ""
        good = (self.least is None or self.value >= self.least) and (
            self.most is None or self.value <= self.most
        )
        return "yes" if good else "no"

    def target(self) -> str:
        """Return the target as text."""
        least = f">= {self.least:g}" if self.least is not None else ""
        return least + (f"<= {self.most:g}" if self.most is not None else "")


class Bench:
    """The device, PyTorch beside it or None, and the sizes."""

    def __init__(self, name: str, quick: bool) -> None:
        self.name, self.quick = name, quick
        self.device = devices.as_device(name)
        self.wait = self.device.backend.synchronize
        self.torch, self.peer = _pytorch(name)

    def torch_wait(self) -> None:
        """Wait for PyTorch."""
        if self.peer == "cuda":
            self.torch.cuda.synchronize()

    def seconds(self, call: Callable[[], Any], peer: bool = False) -> float:
        """Return the seconds of one call."""
        wait = self.torch_wait if peer else self.wait
        for _ in range(1 if self.quick else 5):
            call()
        wait()
        times = []
        for _ in range(2 if self.quick else 20):
            start = time.perf_counter()
            call()
            wait()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def launches(self, call: Callable[[], Any], peer: bool = False) -> float:
        """Return the seconds per call of many in a row."""
        wait, count = self.torch_wait if peer else self.wait, 5 if self.quick else 2000
        for _ in range(5 if self.quick else 100):
            call()
        wait()
        start = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        return (time.perf_counter() - start) / count


def _pytorch(name: str) -> tuple[Any, str]:
    """Return PyTorch and its name of the device; None where it has none."""
    try:
        import torch
    except ImportError:
        return None, ""
    if name.startswith("cuda-emu"):
        return torch, "cpu"
    return (torch, "cuda") if torch.cuda.is_available() else (None, "")


def eager(bench: Bench) -> Iterator[Figure]:
    """What an operation costs the host, where the device has next to nothing to do."""
    calls: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {
        "x + x": ((16,), lambda x: x + x),
        "recorded x + x": ((16,), lambda x: x + x),
        "x + 2": ((16,), lambda x: x + 2.0),
        "x + row": ((16, 16), lambda x: x + x[0]),
        "x @ x": ((16, 16), lambda x: x @ x),
        "x.sum()": ((16,), lambda x: x.sum()),
        "x.reshape()": ((4, 4), lambda x: x.reshape((16,))),
    }
    for name, (shape, call) in calls.items():
        needs = name.startswith("recorded")
        x = ndl.Tensor(np.ones(shape), device=bench.device, requires_grad=needs)
        mine = bench.launches(lambda call=call, x=x: call(x))
        yield Figure(f"eager {name} of 16, us", mine * 1e6)
        if bench.torch:
            y = bench.torch.ones(shape, device=bench.peer, requires_grad=needs)
            theirs = bench.launches(lambda call=call, y=y: call(y), peer=True)
            yield Figure(f"eager {name}: Needle's time / PyTorch's", mine / theirs, most=1.0)


def first_use(bench: Bench) -> Iterator[Figure]:
    """A kernel that no process used before; then one that finds it in the cache."""
    program = (
        "import time, numpy as np, needle as ndl\n"
        f"where = ndl.devices.as_device({bench.name!r})\n"
        "x = ndl.Tensor(np.ones(16), device=where, requires_grad=False)\n"
        "x.numpy(); start = time.perf_counter()\n"
        "ndl.tanh(x); where.synchronize()\n"
        "print(time.perf_counter() - start)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, most in (("first use of a kernel, s", 1.0), ("from the cache, s", 0.005)):
            done = subprocess.run(
                [sys.executable, "-c", program], env=config.environment(cache=folder),
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            yield Figure(name, float(done.stdout), most=most)


def bandwidths(bench: Bench) -> Iterator[Figure]:
    rows = 8 if bench.quick else 256 << 10
    count, device = rows * 1024, bench.device
    x, y = (empty((rows, 1024), "float32", device) for _ in range(2))
    x.fill(0.5)
    y.fill(0.25)
    copy = 8 * count / bench.seconds(lambda: x.copy())
    yield Figure("copy, GB/s", copy / 1e9)
    tensor = ndl.Tensor(x, requires_grad=False)
    weight = ndl.Tensor(np.ones(1024), device=device, requires_grad=False)
    calls = {  # and the bytes of each element that pass through memory
        "elementwise x + y": (lambda: kernels.elementwise("add", x, y), 12),
        "elementwise exp": (lambda: kernels.elementwise("exp", x), 8),
        "sum of rows": (lambda: kernels.reduce("sum", x, (1,)), 4),
        "sum of columns": (lambda: kernels.reduce("sum", x, (0,)), 4),
        "sum of all": (lambda: kernels.reduce("sum", x, (0, 1)), 4),
        "softmax": (lambda: ndl.softmax(tensor, axis=1), 8),
        "layer norm": (lambda: ndl.ops.layer_norm(tensor, weight, weight), 8),
    }
    for name, (call, nbytes) in calls.items():
        rate = nbytes * count / bench.seconds(call)
        yield Figure(f"{name} / copy", rate / copy, least=0.85)


def host_copies(bench: Bench) -> Iterator[Figure]:
    values = np.ones((1 << 12) if bench.quick else (64 << 20), "float32")
    x = array(values, "float32", bench.device)
    there = bench.seconds(lambda: array(values, "float32", bench.device))
    back = bench.seconds(x.numpy)
    yield Figure("host to device, GB/s", values.nbytes / there / 1e9)
    yield Figure("device to host, GB/s", values.nbytes / back / 1e9)
    if bench.torch:
        y = bench.torch.from_numpy(values)
        z = y.to(bench.peer)
        theirs = bench.seconds(lambda: y.to(bench.peer, copy=True), peer=True)
        yield Figure("host to device: Needle's time / PyTorch's", there / theirs)
        theirs = bench.seconds(lambda: z.to("cpu", copy=True), peer=True)
        yield Figure("device to host: Needle's time / PyTorch's", back / theirs)


def products(bench: Bench) -> Iterator[Figure]:
    for kind, size, least in (("float32", 4096, 0.7), ("bfloat16", 8192, 0.5)):
        n = 64 if bench.quick else size
        values = np.random.default_rng(0).standard_normal((n, n), np.float32)
        x = array(values, kind, bench.device)
        mine = bench.seconds(lambda x=x: kernels.matmul(x, x))
        yield Figure(f"{kind} product of {n}, TFLOP/s", 2 * n**3 / mine / 1e12)
        if bench.torch:
            bench.torch.backends.cuda.matmul.allow_tf32 = False
            y = bench.torch.tensor(values, dtype=getattr(bench.torch, kind), device=bench.peer)
            theirs = bench.seconds(lambda y=y: y @ y, peer=True)
            yield Figure(f"{kind} product: PyTorch's time / Needle's", theirs / mine, least=least)


def _needle_step(model: Any, x: Any, y: Any, device: Any) -> Callable[[], Any]:
    model.to(device)
    optimizer, loss = optim.Adam(model.parameters(), lr=1e-3), nn.SoftmaxLoss()
    inputs = ndl.Tensor(x, device=device, requires_grad=False)
    labels = ndl.Tensor(y, device=device, dtype="int64")
    return lambda: optimizer.minimize(loss(model(inputs), labels))


def _torch_step(bench: Bench, model: Any, x: Any, y: Any) -> Callable[[], Any]:
    torch = bench.torch
    model.to(bench.peer)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=bench.peer == "cuda")
    inputs, labels = (torch.tensor(v, device=bench.peer) for v in (x, y))

    def step() -> None:
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def training(bench: Bench) -> Iterator[Figure]:
    random, n = np.random.default_rng(0), 4 if bench.quick else 0
    mlp = random.standard_normal((n or 100, 784), np.float32)
    images = random.standard_normal((n or 128, 3, 32, 32), np.float32)
    twins = _twins() if bench.torch else (None, None)
    models = (("MLP", MLPResNet(784), mlp, twins[0]), ("ResNet-9", ResNet9(), images, twins[1]))
    for name, model, x, twin in models:
        ndl.manual_seed(0)
        y = np.arange(len(x)) % 10
        mine = bench.seconds(_needle_step(model, x, y, bench.device))
        yield Figure(f"{name} step of {len(x)}, ms", 1e3 * mine)
        if twin is not None:
            theirs = bench.seconds(_torch_step(bench, twin, x, y), peer=True)
            yield Figure(f"{name} step: Needle's time / PyTorch's", mine / theirs)


def _twins() -> tuple[Any, Any]:
    """Return PyTorch's models."""
    from resnet_twin import course_resnet9
    from twin import torch_model

    return torch_model(0.1), course_resnet9()


KERNELS = {
    "elementwise.cu": "elementwise_dense<f_tanh, float, 4>", "reduce.cu": "reduce<Sum, float, i32>",
    "softmax.cu": "softmax<false, float, 4>", "norm.cu": "layer_norm<true, float, 4>",
    "matmul.cu": "matmul<float, 128, 128, 8, 8, 8, true, false>",
    "matmul_tc.cu": "matmul_tc<bf16, true, false, true, 256>",
}  # fmt: skip


def compilation(arch: str) -> Iterator[Figure]:
    """NVRTC's share of a first use, and the cache's of a later one; needs no GPU."""
    compiler = Nvrtc()
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(Path(folder))
        for file, expression in KERNELS.items():
            unit, times = Unit(file, (expression,)), []
            start = time.perf_counter()
            cubin, names, _ = compiler.compile(unit, arch)
            yield Figure(f"{file}: compile for {arch}, s", time.perf_counter() - start, most=1.0)
            cache.put(key(unit, *OPTIONS, arch, compiler.version), pack(cubin, names))
            for _ in range(50):
                start = time.perf_counter()
                found = cache.find(key(unit, *OPTIONS, arch, compiler.version))
                assert found is not None and unpack(found.read_bytes())[0] == cubin
                times.append(time.perf_counter() - start)
            yield Figure(f"{file}: from the cache, s", statistics.median(times), most=0.005)


PARTS = {
    "eager": eager, "first use": first_use, "bandwidths": bandwidths, "host copies": host_copies,
    "products": products, "training": training,
}  # fmt: skip


def facts(bench: Bench) -> dict[str, Any]:
    """Return what the figures depend on, as bench/record.py expects it."""
    driver = bench.device.backend.driver
    real = not bench.name.startswith("cuda-emu")
    device, arch = driver.properties.name, driver.properties.arch
    return {
        "subject": "gpu", "command": "python bench/gpu.py", "date": date.today().isoformat(),
        "commit": record.commit(), "machine": {"cpu": device, "isa": [arch]},
        "quick": bench.quick,
        "versions": {
            "needle": ndl.__version__, "python": platform.python_version(),
            "numpy": np.__version__, "driver": driver.version if real else None,
            "compiler": driver.compiler.version if real else driver.version,
            "torch": bench.torch.__version__ if bench.torch else None,
        },
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("path", nargs="?", metavar="FILE.json", help="where to write the figures")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    parser.add_argument("--compile", metavar="sm_90", help="time NVRTC alone; needs no GPU")
    options = parser.parse_args()
    if options.compile:
        for figure in compilation(options.compile):
            print(f"{figure.name:55} {figure.value:10.4g} {figure.target():>10} {figure.verdict()}")
        return 0
    where = devices.as_device(options.device)
    if not where.enabled():
        print(f"no GPU: {where.reason()}")
        return 1
    bench, figures = Bench(options.device, options.quick), {}
    print(f"{'what':55} {'figure':>10} {'target':>10} reached")
    for part in PARTS.values():
        for figure in part(bench):
            target, verdict = figure.target(), figure.verdict()
            figures[figure.name] = {"value": figure.value, "target": target, "reached": verdict}
            print(f"{figure.name:55} {figure.value:10.4g} {target:>10} {verdict}", flush=True)
    if options.path:
        with open(options.path, "w") as file:
            json.dump({**facts(bench), "figures": figures}, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
