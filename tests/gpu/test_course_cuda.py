"""The CUDA cases of the course's own tests: hw3 tests/hw3/test_ndarray.py, hw4
tests/hw4/test_nd_backend.py.

They are the course's, so they are not in this repository:

    git clone https://github.com/dlsyscourse/hw3 FOLDER/hw3
    git clone https://github.com/dlsyscourse/hw4 FOLDER/hw4
    python -m pytest tests/gpu --course FOLDER
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import where

from needle import config

FILES = ["hw3/tests/hw3/test_ndarray.py", "hw4/tests/hw4/test_nd_backend.py"]

AS_CUDA = """
from needle import devices
devices._devices["cuda"] = devices.as_device({name!r})
"""
"""The course asks for ``cuda``; it gets the device under test."""


@pytest.mark.parametrize("file", FILES)
def test_the_course_on_cuda(file, tmp_path):
    if where.why_not():
        pytest.skip(f"no GPU: {where.why_not()}")
    if where.COURSE is None:
        pytest.skip("the course's tests are not here: --course FOLDER")
    source = Path(where.COURSE).resolve() / file
    (tmp_path / source.name).write_text(source.read_text())
    (tmp_path / "mugrade.py").write_text("def submit(x):\n    pass\n")  # the course's grader
    (tmp_path / "as_cuda.py").write_text(AS_CUDA.format(name=where.DEVICE))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "as_cuda", source.name, "-k", "cuda"],
        cwd=tmp_path, capture_output=True, text=True,
        env={**config.environment(backend="nd"), "PYTEST_ADDOPTS": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout, done.stdout[-3000:]
