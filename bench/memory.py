"""Peak memory of a training process: import, the model, 200 steps; one framework per process."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness

STEPS = 200
SHAPES = {"input": 784, "hidden": 100, "blocks": 3, "classes": 10, "batch": 100}


def train(framework: str, steps: int) -> None:
    """Make the steps of ``training.py`` with one framework alone."""
    import numpy as np

    random = np.random.default_rng(0)
    x = random.standard_normal((SHAPES["batch"], SHAPES["input"]), np.float32)
    y = random.integers(0, SHAPES["classes"], SHAPES["batch"])
    step = _needle(x, y) if framework == "needle" else _torch(x, y)
    for _ in range(steps):
        step()


def _needle(x: Any, y: Any) -> Callable[[], Any]:
    import needle as ndl
    from needle.models.mlp_resnet import MLPResNet

    model = MLPResNet(SHAPES["input"], SHAPES["hidden"], SHAPES["blocks"])
    data, labels = ndl.Tensor(x, requires_grad=False), ndl.Tensor(y, requires_grad=False)
    loss, adam = ndl.nn.SoftmaxLoss(), ndl.optim.Adam(model.parameters(), lr=1e-3)
    return lambda: adam.minimize(loss(model(data), labels))


def _torch(x: Any, y: Any) -> Callable[[], Any]:
    import torch
    from twin import torch_model

    torch.set_num_threads(harness.THREADS)
    model = torch_model(0.1)
    data, labels = torch.from_numpy(x), torch.from_numpy(y)
    loss = torch.nn.CrossEntropyLoss()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        adam.zero_grad()
        loss(model(data), labels).backward()
        adam.step()

    return step


def peak() -> float:
    """Return the largest memory that this process held, in bytes.

    Where the system has it, of the program alone: ``getrusage`` counts what the process held
    before it became this program, which is its parent's memory.
    """
    status = Path("/proc/self/status")
    if status.exists():
        found = [t for t in status.read_text().splitlines() if t.startswith("VmHWM")]
        if found:
            return 1024.0 * int(found[0].split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return float(unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def peak_of(framework: str, malloc: str, steps: int) -> float:
    """Return the peak, in MB, of a new process that trains."""
    command = [sys.executable, __file__, "--child", framework, "--steps", str(steps)]
    done = subprocess.run(
        command, env=harness.environment(malloc), check=True, stdout=subprocess.PIPE
    )
    return float(json.loads(done.stdout)) / 1e6


def measure(quick: bool) -> dict[str, Any]:
    """Return the row."""
    steps, repeats = (2, 1) if quick else (STEPS, 3)
    peers = {}
    own = harness.figures([peak_of("needle", "stock", steps) for _ in range(repeats)])
    for malloc, name in harness.MALLOCS.items():
        theirs = harness.figures([peak_of("torch", malloc, steps) for _ in range(repeats)])
        ratio, ratio_min = own["median"] / theirs["median"], own["min"] / theirs["min"]
        peers[name] = {**theirs, "needle": own, "ratio": ratio, "ratio_min": ratio_min}
    row = {
        "name": "peak memory: import, MLP-ResNet, 200 steps", "group": "memory",
        "goals": "foundation",
        "target": 1 / 3, "unit": "MB", "peers": peers,
    }  # fmt: skip
    return harness.judged(row)


def main() -> None:
    make = harness.parser("memory")
    make.add_argument("--steps", type=int, default=STEPS, help=argparse.SUPPRESS)
    args = make.parse_args()
    if args.child:
        train(args.child, args.steps)
        print(json.dumps(peak()))
    else:
        harness.save("memory", [measure(args.quick)], args, versions=harness.versions())


if __name__ == "__main__":
    main()
