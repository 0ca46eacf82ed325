"""``python -m pytest tests/gpu -n auto``: what is tested on a real GPU, within two minutes.

With ``--device cuda-emu`` the same tests run in the emulator: so their own mistakes show where
there is no GPU.
"""

from __future__ import annotations

import where


def pytest_addoption(parser):
    parser.addoption("--device", default="cuda", help="cuda, cuda:1, or cuda-emu for the emulator")
    parser.addoption(
        "--course",
        metavar="FOLDER",
        help="holds hw3 and hw4 of github.com/dlsyscourse, whose CUDA cases are run",
    )


def pytest_configure(config):
    where.DEVICE = config.getoption("--device", "cuda")
    where.COURSE = config.getoption("--course", None)


def pytest_collection_finish(session):
    """Compile all kernels beforehand, on all cores: one by one would take most of the time.

    Of several processes of tests the first does it, others compile what they need meanwhile.
    """
    from needle import devices

    if not session.items or session.config.getoption("collectonly") or where.why_not():
        return
    if getattr(session.config, "workerinput", {}).get("workerid", "gw0") != "gw0":
        return
    if where.DEVICE.startswith("cuda-emu") or not any("test_op" in i.name for i in session.items):
        return
    from needle.backend.cuda.families import prepare

    prepare(devices.as_device(where.DEVICE).backend.driver.properties.arch)
