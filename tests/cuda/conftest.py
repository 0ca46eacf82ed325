"""What the tests of CUDA share."""

from __future__ import annotations

import pytest


@pytest.fixture
def late():
    """Let the emulator work only when somebody waits for it, and of other streams only as needed.

    A wait that is missing gives poisoned memory.
    """
    from emulated import DRIVER, EMU

    EMU.synchronize()
    before, DRIVER.late = DRIVER.late, True
    yield DRIVER
    EMU.synchronize()
    DRIVER.late = before
