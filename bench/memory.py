"""Peak memory of training processes: import, the model, some steps; one framework per process.

``compile.py`` has the rows of compiled steps beside eager ones, which are measured here, too.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness

SHAPES = {"input": 784, "hidden": 100, "blocks": 3, "classes": 10}
Step = Callable[[], Any]


def mlp_needle(batch: int, memory: str) -> Step:
    """Return a step of ``training.py``."""
    import needle as ndl
    from needle.models.mlp_resnet import MLPResNet

    x, y = _vectors(batch)
    model = MLPResNet(SHAPES["input"], SHAPES["hidden"], SHAPES["blocks"])
    data, labels = ndl.Tensor(x, requires_grad=False), ndl.Tensor(y, requires_grad=False)
    loss, adam = ndl.nn.SoftmaxLoss(), ndl.optim.Adam(model.parameters(), lr=1e-3)
    return lambda: adam.minimize(loss(model(data), labels))


def mlp_torch(batch: int, memory: str) -> Step:
    """Return the same by PyTorch."""
    import torch
    from twin import torch_model

    x, y = _vectors(batch)
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


def _vectors(batch: int) -> tuple[Any, Any]:
    import numpy as np

    random = np.random.default_rng(0)
    x = random.standard_normal((batch, SHAPES["input"]), np.float32)
    return x, random.integers(0, SHAPES["classes"], batch)


def course_needle(batch: int, memory: str) -> Step:
    """Return a step of the course's net in ``resnet.py``."""
    import resnet_shapes as shapes

    import needle as ndl
    from needle.models.resnet9 import ResNet9

    x, y = shapes.images(batch)
    image = ndl.ops.permute(ndl.Tensor(x, requires_grad=False), (0, 3, 1, 2))
    labels, model = ndl.Tensor(y, requires_grad=False), ResNet9()
    loss, adam = ndl.nn.SoftmaxLoss(), ndl.optim.Adam(model.parameters(), **shapes.COURSE_RULE)
    return lambda: adam.minimize(loss(model(image), labels))


def lstm_needle(batch: int, memory: str) -> Step:
    """Return a step of the LSTM of ``sequence.py``."""
    import numpy as np

    import needle as ndl

    vocabulary, width = 10_000, 100
    ids = np.random.default_rng(0).integers(0, vocabulary, (2, 40, batch))
    x, y = (ndl.Tensor(v, requires_grad=False) for v in (ids[0], ids[1].reshape(-1)))
    embedding, lstm = ndl.nn.Embedding(vocabulary, width), ndl.nn.LSTM(width, width, 2)
    head, loss = ndl.nn.Linear(width, vocabulary), ndl.nn.SoftmaxLoss()
    parameters = [p for module in (embedding, lstm, head) for p in module.parameters()]
    adam = ndl.optim.Adam(parameters, lr=1e-3)
    return lambda: adam.minimize(loss(head(lstm(embedding(x))[0].reshape((-1, width))), y))


def dawn_needle(batch: int, memory: str) -> Step:
    """Return a step of ``resnet.py``."""
    import resnet_shapes as shapes

    import needle as ndl
    from needle.models.resnet9 import DawnResNet9

    x, y = shapes.images(batch)
    image = ndl.ops.permute(ndl.Tensor(x, requires_grad=False), (0, 3, 1, 2))
    labels, model = ndl.Tensor(y, requires_grad=False), DawnResNet9()
    loss, sgd = ndl.nn.SoftmaxLoss(), ndl.optim.SGD(model.parameters(), **shapes.DAWN_RULE)
    return lambda: sgd.minimize(loss(model(image), labels))


def dawn_torch(batch: int, memory: str) -> Step:
    """Return the same by PyTorch."""
    import resnet_shapes as shapes
    import resnet_twin as twin
    import torch

    torch.set_num_threads(harness.THREADS)
    x, y = shapes.images(batch)
    model, image = twin.laid_out(twin.dawn_resnet9(), x, memory)
    return twin.trainer(model, twin.dawn_optimizer(model), image, torch.from_numpy(y))


def transformer_needle(batch: int, memory: str) -> Step:
    """Return a step of the Transformer of ``sequence.py``."""
    import needle as ndl
    from needle.models import GPT

    x, y = (ndl.Tensor(ids, requires_grad=False) for ids in _ids(batch))
    model = GPT(4096, 256, 256, 4, 8)
    adam = ndl.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    return lambda: adam.minimize(model.loss(x, y))


def transformer_torch(batch: int, memory: str) -> Step:
    """Return the same by PyTorch."""
    import torch
    from sequence_twin import TorchGPT, trainer

    torch.set_num_threads(harness.THREADS)
    x, y = map(torch.from_numpy, _ids(batch))
    model = TorchGPT(4096, 256, 256, 4, 8)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    return trainer(lambda: model.loss(x, y), adam)


def _ids(batch: int) -> Any:
    import numpy as np

    return np.random.default_rng(0).integers(0, 4096, (2, batch, 256))


@dataclass(frozen=True)
class Training:
    """What is trained, by each framework, and how the peak may compare.

    Attributes:
        memory: the layouts of PyTorch's images, and what they add to the peer's name.
    """

    name: str
    needle: Callable[[int, str], Step]
    torch: Callable[[int, str], Step]
    batch: int
    steps: int
    goals: str
    target: float
    memory: tuple[tuple[str, str], ...] = (("planes", ""),)


TRAININGS = {
    "mlp": Training("MLP-ResNet, 200 steps", mlp_needle, mlp_torch, 100, 200, "foundation", 1 / 3),
    "dawn": Training(
        "DAWNBench ResNet-9, batch 64, 5 steps", dawn_needle, dawn_torch, 64, 5, "images", 0.8,
        (("planes", ""), ("channels last", ", channels last")),
    ),
    "transformer": Training(
        "Transformer language model, batch 8, 5 steps", transformer_needle, transformer_torch, 8, 5,
        "sequence", 0.65,
    ),
}  # fmt: skip


STEPS: dict[str, tuple[str, Callable[[int, str], Step], int]] = {
    "mlp": ("MLP-ResNet, batch 100, Adam", mlp_needle, 100),
    "course": ("the course's ResNet-9, batch 128, Adam", course_needle, 128),
    "dawn": ("DAWNBench ResNet-9, batch 64, SGD Nesterov", dawn_needle, 64),
    "lstm": ("LSTM language model, batch 16, Adam", lstm_needle, 16),
    "transformer": ("Transformer language model, batch 8, AdamW", transformer_needle, 8),
}
"""Compiled steps: name, the function that makes one, and its batch."""


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


def held(which: str, quick: bool) -> tuple[int, int]:
    """Return the bytes at the peak of some steps of "training/compile's mode", and those at rest.

    Those of arrays, as the device counts them.
    """
    import gc

    import needle as ndl

    name, mode = which.split("/")
    ndl.manual_seed(0)
    _, make, batch = STEPS[name]
    step = ndl.compile(make(2 if quick else batch, ""), mode=mode)
    for _ in range(3):
        step()
    gc.collect()
    info = ndl.cpu().backend.memory_info()
    return info["peak"] + info["workspaces"], info["live"]


def above(name: str, quick: bool) -> dict[str, Any]:
    """Return the row of what a compiled step takes beside parameters and the optimizer's state."""
    found = {mode: child(f"{name}/{mode}", "stock", quick) for mode in ("on", "off")}
    rest = found["on"][1]  # an eager step leaves gradients
    own, theirs = (
        harness.figures([(peak - rest) / 1e6]) for peak, _ in (found["on"], found["off"])
    )
    ratio = own["median"] / theirs["median"]
    peers = {"Needle, eager": {**theirs, "needle": own, "ratio": ratio, "ratio_min": ratio}}
    row = {
        "name": f"memory of a step: {STEPS[name][0]}", "group": "memory", "goals": "compile",
        "target": 0.8, "unit": "MB", "peers": peers,
    }  # fmt: skip
    return harness.judged(row)


def train(which: str, quick: bool) -> None:
    """Make the steps of "training/framework/layout" with that framework alone."""
    name, framework, memory = which.split("/")
    chosen = TRAININGS[name]
    step = getattr(chosen, framework)(2 if quick else chosen.batch, memory)
    for _ in range(2 if quick else chosen.steps):
        step()


def child(which: str, malloc: str, quick: bool) -> Any:
    """Return what a new process prints that trains."""
    command = [sys.executable, __file__, "--child", which, *(["--quick"] if quick else [])]
    done = subprocess.run(
        command, env=harness.environment(malloc), check=True, stdout=subprocess.PIPE
    )
    return json.loads(done.stdout)


def peak_of(which: str, malloc: str, quick: bool) -> float:
    """Return the peak, in MB, of a new process that trains."""
    return float(child(which, malloc, quick)) / 1e6


def measure(name: str, quick: bool) -> dict[str, Any]:
    """Return the row of a training."""
    chosen = TRAININGS[name]

    def peaks(framework: str, malloc: str) -> dict[str, float]:
        which = f"{name}/{framework}"
        return harness.figures([peak_of(which, malloc, quick) for _ in range(1 if quick else 3)])

    own, peers = peaks("needle/", "stock"), {}
    mallocs = list(harness.MALLOCS.items())[: 1 if quick else None]
    for malloc, peer in mallocs:
        for memory, suffix in chosen.memory:
            theirs = peaks(f"torch/{memory}", malloc)
            ratio, ratio_min = own["median"] / theirs["median"], own["min"] / theirs["min"]
            peers[peer + suffix] = {**theirs, "needle": own, "ratio": ratio, "ratio_min": ratio_min}
    row = {
        "name": f"peak memory: import, {chosen.name}", "group": "memory", "goals": chosen.goals,
        "target": chosen.target, "unit": "MB", "peers": peers,
    }  # fmt: skip
    return harness.judged(row)


def main() -> None:
    args = harness.parser("memory").parse_args()
    if args.child:
        if args.child.count("/") == 1:
            print(json.dumps(held(args.child, args.quick)))
            return
        train(args.child, args.quick)
        print(json.dumps(peak()))
        return
    chosen = [name for name, training in TRAININGS.items() if args.only in training.name]
    rows = [measure(name, args.quick) for name in chosen]
    harness.save("memory", rows, args, versions=harness.versions())


if __name__ == "__main__":
    main()
