"""Run benchmarks one after the other.

python bench/run.py --goals foundation      the figures of the foundation
python bench/run.py --goals ops             those of the ops
python bench/run.py --goals images          those of convolution nets
python bench/run.py --goals sequence        those of sequence models
python bench/run.py --goals pipeline        those of loading and saving
python bench/run.py --all                   everything
python bench/run.py eager gemm --save       some subjects, recorded in bench/summary.json
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
GOALS = {
    "foundation": ("startup", "eager", "gemm", "training", "memory", "main_job"),
    "ops": (
        "elementwise",
        "reduce",
        "softmax_loss",
        "norm",
        "gemm",
        "optimizer",
        "indexing",
        "sort",
        "functions",
    ),
    "images": ("convolution", "images", "resnet", "memory"),
    "sequence": ("sequence", "memory"),
    "pipeline": ("loader", "checkpoint"),
    "compile": ("compile",),
}
COMPILED = (
    "gemm", "elementwise", "reduce", "softmax_loss", "norm", "optimizer", "indexing", "sort",
    "convolution", "images", "resnet", "sequence",
)  # fmt: skip
"""Subjects that also measure torch.compile."""


def main() -> None:
    """Do as the command line says."""
    make = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = sorted({name for names in GOALS.values() for name in names})
    make.add_argument(
        "subjects", nargs="*", choices=[[], *known], help="one of " + ", ".join(known)
    )
    make.add_argument("--goals", choices=GOALS, action="append", default=[])
    make.add_argument("--all", action="store_true", help="all subjects")
    make.add_argument("--quick", action="store_true", help="tiny sizes, nothing is written")
    make.add_argument("--save", action="store_true", help="update bench/summary.json")
    args = make.parse_args()
    wanted = GOALS if args.all else args.goals
    chosen = list(dict.fromkeys([*args.subjects, *(n for i in wanted for n in GOALS[i])]))
    if not chosen:
        make.error("nothing to run: name subjects, --goals foundation or --all")
    failed = []
    for name in chosen:
        print(f"== {name}", flush=True)
        start = time.perf_counter()
        flags = ["--quick"] if args.quick else ["--compile"] if name in COMPILED else []
        flags += ["--save"] if args.save else []
        done = subprocess.run([sys.executable, str(FOLDER / f"{name}.py"), *flags])
        print(f"   {time.perf_counter() - start:.0f} s", flush=True)
        failed += [name] if done.returncode else []
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
