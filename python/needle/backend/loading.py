"""The devices that there are. The modules of each are loaded when it is first used."""

from __future__ import annotations

from typing import Any

from needle import config, core, devices
from needle.errors import DeviceError


def _load_cpu() -> Any:
    if core.native is None:
        raise DeviceError(f"the native module is missing ({core.native_error})")
    from needle.backend.native import NativeBackend

    return NativeBackend(core.native)


def _load_numpy() -> Any:
    from needle.backend.numpy import NumpyBackend

    return NumpyBackend()


def _load_meta() -> Any:
    from needle.backend.meta import MetaBackend

    return MetaBackend()


def _load_cuda(number: int) -> Any:
    from needle.backend.cuda import load_cuda

    return load_cuda(number)


def _load_emulator(number: int) -> Any:
    from needle.backend.cuda import load_emulator

    return load_emulator(number, config.initial().emulator)


CPU = devices.register("cpu", _load_cpu)
devices.register_several("cuda", _load_cuda)
devices.register("cpu_numpy", _load_numpy)
devices.register("meta", _load_meta)
if config.initial().emulator != "off":
    devices.register_several("cuda-emu", _load_emulator)


def _check_setting() -> None:
    if config.current().device:
        try:
            devices.default_device()
        except DeviceError as error:
            config.refuse(error)


_check_setting()
