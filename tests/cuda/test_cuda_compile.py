"""Every CUDA kernel compiles with NVRTC, without spilling registers; needs no GPU and no driver."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import needle as ndl
from needle.backend.cuda.families import FAMILIES, expressions
from needle.backend.cuda.jit import KERNELS, Nvrtc, Unit
from needle.errors import DeviceError

try:
    COMPILER = Nvrtc()
except DeviceError as error:
    pytest.skip(f"NVRTC: {error}", allow_module_level=True)

ARCHES = ("sm_80", "sm_90", "sm_100")

REGISTERS = {
    "elementwise": 96, "elementwise_dense": 96, "copy": 48, "copy_dense": 48, "transpose": 40,
    "fill": 40, "random_bits": 40, "reduce": 72, "reduce_finish": 64, "scan": 48, "scan_lines": 48,
    "matmul": 240, "matmul_tc": 255, "gather": 48, "scatter_keys": 48, "scatter_sum": 64,
    "sort_keys": 48, "sort_chunks": 40, "sort_merge": 48, "sort_results": 48, "softmax": 64,
    "softmax_grad": 80, "cross_entropy": 80, "cross_entropy_grad": 80, "layer_norm": 80,
    "layer_norm_grad": 96, "column_sums": 56, "column_finish": 48, "reciprocal_deviation": 32,
    "batch_norm": 48, "batch_norm_grad": 48, "adam": 72, "sgd": 56,
    "check_range": 48, "check_whole": 48,
}  # fmt: skip
"""The most registers that a thread of each kernel may use: more would leave too few threads on a
multiprocessor."""

SHARED = {
    "transpose": 8448, "reduce": 6144, "reduce_finish": 6144, "scan": 64, "matmul": 34816,
    "sort_chunks": 16384, "column_sums": 4096, "column_finish": 4096,
}  # fmt: skip
"""The most bytes of shared memory of a block; 64 for kernels that are not named."""

STACK = {"elementwise": 64, "elementwise_dense": 64}
"""Bytes of stack. float64 sine and its kin reduce large arguments there; others need none."""


FILES = sorted(path.name for path in KERNELS.glob("*.cu"))
assert set(FILES) == set(FAMILIES)
FEWER = {"elementwise.cu": 24, "copy.cu": 24, "reduce.cu": 12, "matmul.cu": 9, "matmul_tc.cu": 8,
         "scan.cu": 5, "softmax.cu": 5, "norm.cu": 5, "index.cu": 4, "sort.cu": 3}  # fmt: skip
"""Of these files each architecture compiles every so-maniest instantiation, another one each; all
of them, which take many minutes, with the variable ALL_KERNELS set."""


def chosen(file, arch):
    names = expressions(file)
    every = 1 if os.environ.get("ALL_KERNELS") else FEWER.get(file, 1)
    return tuple(names[ARCHES.index(arch) % every :: every])


def plain(symbol):
    """Return the kernel's name in a symbol: ``_Z<length><name>...``."""
    length = re.match(r"_Z(\d+)", symbol)
    return symbol[length.end() :][: int(length[1])]


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("file", FILES)
def test_no_kernel_spills(file, arch):
    unit = Unit(file, chosen(file, arch))
    _, names, log = COMPILER.compile(unit, arch, "--ptxas-options=-v")
    entries = re.findall(
        r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
        r"(\d+) bytes spill loads.*?Used (\d+) registers(?:[^\n]*?(\d+) bytes smem)?",
        log, re.DOTALL,
    )  # fmt: skip
    assert {symbol for symbol, *_ in entries} >= set(names.values())
    problems = []
    for symbol, stack, stores, loads, registers, shared in entries:
        name = plain(symbol)
        limits = (STACK.get(name, 0), 0, 0, REGISTERS[name], SHARED.get(name, 64))
        found = (int(stack), int(stores), int(loads), int(registers), int(shared or 0))
        if any(a > b for a, b in zip(found, limits, strict=True)):
            problems.append(f"{symbol}: stack, stores, loads, registers, shared {found} > {limits}")
    assert not problems, "\n".join(problems)


def disassembled(unit, arch, folder):
    tool = shutil.which("nvdisasm") or next(
        map(str, Path(sys.prefix).glob("lib/python*/site-packages/nvidia/*/bin/nvdisasm")), None
    )
    if tool is None:
        pytest.skip("nvdisasm is missing: pip install nvidia-cuda-nvdisasm")
    cubin = folder / "unit.cubin"
    cubin.write_bytes(COMPILER.compile(unit, arch)[0])
    return subprocess.run([tool, str(cubin)], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(
    "file, expression, wanted",
    [
        ("matmul_tc.cu", "matmul_tc<bf16, true, false, true, 256>",
         ["HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDSM.16.MT88.4", "LDGSTS.E.BYPASS"]),
        ("matmul_tc.cu", "matmul_tc<f16, true, true, true, 128>",
         ["HMMA.16816.F32", "LDSM.16.M88.4", "LDGSTS.E.BYPASS", "STG.E.128"]),
        ("matmul.cu", "matmul<float, 128, 128, 8, 8, 8, true, false>", ["FFMA", "LDS.128"]),
        ("elementwise.cu", "elementwise_dense<f_add, float, 4>", ["LDG.E.128", "STG.E.128"]),
        ("reduce.cu", "reduce<Sum, float, i32>", ["LDG.E.128"]),
        ("softmax.cu", "softmax<false, float, 4>", ["LDG.E.128", "STG.E.128"]),
        ("norm.cu", "layer_norm<true, bf16, 2>", ["LDG.E.128", "STG.E.128"]),
        ("copy.cu", "copy_dense<u32, u32, 4>", ["LDG.E.128", "STG.E.128"]),
    ],
)  # fmt: skip
def test_the_instructions_that_are_meant(file, expression, wanted, arch, tmp_path):
    text = disassembled(Unit(file, (expression,)), arch, tmp_path)
    for instruction in wanted:
        assert instruction in text, f"{expression} has no {instruction} for {arch}"


def test_a_kernel_that_does_not_compile_names_source_options_and_log():
    unit = Unit("copy.cu", ("broken",), "__global__ void broken(i64 n) { nonsense; }")
    with pytest.raises(DeviceError, match=r"(?s)copy.cu.*broken.*sm_90.*nonsense"):
        COMPILER.compile(unit, "sm_90")


def test_a_fused_program_compiles():
    from needle.backend.cuda import fused

    kinds = (ndl.float32, ndl.float32)
    program = (("greater", (0, 1)), ("where", (2, 0, 1)))
    name, text = fused.source(program, kinds, (ndl.float32,), (3,))
    unit = Unit("elementwise.cu", (f"{name}<i32>",), text)
    assert COMPILER.compile(unit, "sm_90")[0][:4] == b"\x7fELF"
