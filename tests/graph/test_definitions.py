"""The tests of the graph hold on the definitions in Python too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from needle import core

SUBJECTS = """
gradients checkpoint custom_gradient lifetimes exceptions copies deep_chains lazy_mode modes gate
"""
PARTS = "reference graph executor reverse checkpoint value core backend/array"
FILES = [str(Path(__file__).parent / f"test_{subject}.py") for subject in SUBJECTS.split()]


@pytest.mark.heavy("src/core/*", *map("python/needle/{}.py".format, PARTS.split()))
@pytest.mark.skipif(core.native is None, reason="this run is the one on the definitions")
def test_all_of_it_on_the_python_definitions():
    env = {**os.environ, "NEEDLE_NATIVE": "off", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *FILES]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
