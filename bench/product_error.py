"""The numerical error of float32 products: relative root mean square against float64.

python bench/product_error.py    prints a table; src/cpu/gemm/split.h quotes it

On each instruction set of this processor, and by PyTorch. Of the normal numbers the sums stay
small, those between 0 and 1 add up.
"""

from __future__ import annotations

import numpy as np
import torch

import needle as ndl
from needle import core

SIZES = ((128, 128, 128), (512, 512, 512), (2048, 2048, 2048), (16, 1024, 256))
KINDS = ("normal", "between 0 and 1")


def matrices(kind: str, m: int, k: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two matrices of one kind of numbers."""
    random = np.random.default_rng(0)
    draw = random.standard_normal if kind == "normal" else random.random
    return draw((m, k), np.float32), draw((k, n), np.float32)


def main() -> None:
    """Print the table."""
    sets = core.native.supported_isas()
    print(f"{'':40}" + "".join(f"{name:>10}" for name in (*sets, "PyTorch")))
    for kind in KINDS:
        for m, k, n in SIZES:
            a, b = matrices(kind, m, k, n)
            exact = a.astype(np.float64) @ b.astype(np.float64)
            found = []
            for name in sets:
                core.native.select_isa(name)
                x, y = (ndl.Tensor(v, requires_grad=False, device="cpu") for v in (a, b))
                found.append((x @ y).numpy())
            found.append((torch.from_numpy(a) @ torch.from_numpy(b)).numpy())
            errors = [np.sqrt(np.mean((f - exact) ** 2) / np.mean(exact**2)) for f in found]
            print(f"{f'{m} x {k} x {n}, {kind}':40}" + "".join(f"{e:10.1e}" for e in errors))


if __name__ == "__main__":
    main()
