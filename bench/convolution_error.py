"""The numerical error of each convolution algorithm: relative root mean square against float64.

python bench/convolution_error.py    prints the table of ``needle.ops.image.convolution``

Images and weights are standard normal; the reference is the expansion in float64 of the same
float32 numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import needle as ndl
from needle import executor
from needle.backend import onednn
from needle.ops.image.convolution import Convolution, ConvolutionInput, ConvolutionWeight

LAYERS = (
    (16, 32, 32, 32, 3, 1), (16, 128, 128, 16, 3, 1), (16, 512, 512, 4, 3, 1),
    (16, 64, 64, 16, 5, 1), (16, 64, 128, 32, 3, 2),
)  # fmt: skip
"""n, channels in and out, size of the images, size of the kernel, stride."""
ALGORITHMS = ("im2col", "direct", "winograd", *(("onednn",) if onednn.find()[0] else ()))


def run(op: Any, arrays: Any, algorithm: str, dtype: str) -> Any:
    """Return an op's result in float64."""
    with ndl.config(conv=algorithm):
        tensors = [ndl.Tensor(x, dtype=dtype, requires_grad=False) for x in arrays]
        return executor.apply(op, *tensors).numpy().astype(np.float64)


def main() -> None:
    """Print the table."""
    print(f"{'':40}" + "".join(f"{name:>10}" for name in ALGORITHMS))
    for n, c, k, size, kernel, stride in LAYERS:
        pad = kernel // 2
        out = size // stride
        geometry = (stride, stride), ((pad, pad),) * 2, (1, 1), 1
        random = np.random.default_rng(0)
        shapes = (n, size, size, c), (kernel, kernel, c, k), (n, out, out, k)
        x, w, g = (random.standard_normal(shape, np.float32) for shape in shapes)
        directions = {
            "forward": (Convolution.of(*geometry), (x, w)),
            "to the input": (ConvolutionInput.of(*geometry, (size, size)), (g, w)),
            "to the weights": (ConvolutionWeight.of(*geometry, (kernel, kernel)), (x, g)),
        }
        for name, (op, arrays) in directions.items():
            exact = run(op, arrays, "im2col", "float64")
            found = [run(op, arrays, a, "float32") - exact for a in ALGORITHMS]
            errors = [np.sqrt(np.mean(f**2) / np.mean(exact**2)) for f in found]
            title = f"{kernel}x{kernel} {c}-{k}@{size}" + (
                f" stride {stride}" if stride > 1 else ""
            )
            print(f"{title:24}{name:16}" + "".join(f"{e:10.1e}" for e in errors))


if __name__ == "__main__":
    main()
