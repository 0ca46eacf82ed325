"""Devices: a name and the backend that holds its bytes and kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from needle import config
from needle.errors import DeviceError, nearest

__all__ = ["Device", "all_devices", "cpu", "cpu_numpy", "default_device", "meta"]


class Device:
    """A place where arrays live. Two devices are equal when their names are.

    ``Device("cuda:1")`` and ``Device("cuda", 1)`` return the known device of that name; see
    ``as_device``. Other attributes are looked up in the backend, so you can ask a device for its
    functions: ``device.synchronize()``, ``hasattr(device, "matmul_tiled")``.

    >>> ndl.device("cpu") == "cpu"
    True

    Args:
        device: the name of a device, or a device.
        index: its number, if the name has none.

    Attributes:
        name: name of the device.
        backend: its ``Backend``, loaded on first access; raises a DeviceError with the reason if
            the device is not available.

    Raises:
        DeviceError: for an unknown name.
    """

    __slots__ = ("name", "backend", "_load", "_reason")
    name: str
    backend: Any
    _load: Callable[[], Any]
    _reason: str | None

    def __new__(cls, device: Any, index: int | None = None) -> Device:
        if index is None:
            return as_device(device)
        if ":" in str(device) or type(index) is not int:
            raise DeviceError(f"expected a name without a number, and a number, got {device!r}, "
                              f"{index!r}\n  try: device({str(device)!r})")  # fmt: skip
        return as_device(f"{device}:{index}" if index or device in _loaders else device)

    @classmethod
    def loaded_by(cls, name: str, load: Callable[[], Any]) -> Device:
        """Return a new device; ``load`` returns its backend or raises DeviceError."""
        self = object.__new__(cls)
        self.name, self._load, self._reason = name, load, None
        return self

    @property
    def type(self) -> str:
        """The name without the number: ``cuda`` of ``cuda:1``."""
        return self.name.partition(":")[0]

    @property
    def index(self) -> int | None:
        """The number of one of several devices of a kind; None for a kind with one device."""
        kind, _, number = self.name.partition(":")
        return int(number or 0) if kind in _loaders else None

    def _loaded(self) -> Any:
        if self._reason is None:
            try:
                self.backend = self._load()
                return self.backend
            except DeviceError as error:
                self._reason = str(error)
        raise DeviceError(f"device {self.name!r} is not available: {self._reason}")

    def is_loaded(self) -> bool:
        """Return whether the backend is in use already."""
        try:
            return object.__getattribute__(self, "backend") is not None
        except AttributeError:
            return False

    def enabled(self) -> bool:
        """Return whether the device can be used; never raises."""
        return self.reason() is None

    def reason(self) -> str | None:
        """Return why the device cannot be used, or None if it can."""
        try:
            return None if self.backend is not None else "no backend"
        except DeviceError:
            return self._reason

    def __getattr__(self, name: str) -> Any:
        if name == "backend":
            return self._loaded()
        if name.startswith("__") and name not in further:
            raise AttributeError(name)
        try:
            return further[name](self) if name in further else getattr(self.backend, name)
        except (AttributeError, DeviceError):
            raise AttributeError(f"device {self.name!r} has no attribute {name!r}") from None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Device):
            return self.name == other.name
        return self.name == other if isinstance(other, str) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"{self.name}()"

    def __str__(self) -> str:
        return f"{self.name}()"

    def __deepcopy__(self, memo: Any) -> Device:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return as_device, (self.name,)


further: dict[str, Callable[[Device], Any]] = {}
"""More attributes of devices, by functions that return them; the room ``course`` has some."""
_devices: dict[str, Device] = {}
_loaders: dict[str, Callable[[int], Any]] = {}
_further: dict[str, Device] = {}


def register(name: str, load: Callable[[], Any]) -> Device:
    """Add a device; ``load`` returns its backend or raises DeviceError with the reason."""
    device = _devices[name] = Device.loaded_by(name, load)
    return device


def register_several(name: str, load: Callable[[int], Any]) -> Device:
    """Add devices ``name``, ``name:1``, ``name:2``, ...; ``load`` is called with the number."""
    _loaders[name] = load
    return register(name, partial(load, 0))


def _numbered(name: str) -> Device | None:
    """Return the device of a name like ``cuda:1``, or None for other names."""
    kind, _, number = name.partition(":")
    if kind not in _loaders or not (number.isascii() and number.isdigit()):
        return None
    return _nth(kind, int(number))


def _nth(kind: str, number: int) -> Device:
    """Return the device of a kind and a number, which may not exist."""
    if number == 0:
        return _devices[kind]
    name = f"{kind}:{number}"
    if name not in _further:
        _further[name] = Device.loaded_by(name, partial(_loaders[kind], number))
    return _further[name]


def as_device(device: Any) -> Device:
    """Return the device of that name, the default device for None, or the device itself.

    ``cuda:1`` is the second GPU. A device that cannot be used raises an error on first use.

    Raises:
        DeviceError: for an unknown name.
    """
    if isinstance(device, Device):
        return device
    if device is None:
        return default_device()
    name = str(device).removesuffix("()")
    found = _devices.get(name) or _numbered(name)
    if found is None:
        raise DeviceError(
            f"unknown device {name!r}{nearest(name, _devices)}\n  known: {', '.join(_devices)}"
        )
    return found


_default: Any = None, None
"""The latest settings, and their default device."""


def default_device() -> Device:
    """Return the device of ``config.device``, or else that of ``config.backend``.

    The latter is the native CPU; it is the NumPy device with ``NEEDLE_BACKEND=np`` or without the
    native module.
    """
    global _default
    settings = config.current()
    known, found = _default
    if known is not settings:
        found = as_device(settings.device) if settings.device else _cpu(settings)
        _default = settings, found
    return found


def cpu() -> Device:
    """Return the CPU: native kernels, or NumPy with ``NEEDLE_BACKEND=np`` or without them."""
    return _cpu(config.current())


def _cpu(settings: config.Config) -> Device:
    native = _devices["cpu"]
    return native if settings.backend != "np" and native.enabled() else _devices["cpu_numpy"]


def cpu_numpy() -> Device:
    """Return the NumPy device, the reference for all others."""
    return _devices["cpu_numpy"]


def meta() -> Device:
    """Return the device whose arrays have a shape and a dtype but no data."""
    return _devices["meta"]


def cuda(number: int = 0) -> Device:
    """Return the CUDA device of this number.

    A number that does not exist raises no error: see ``.enabled()`` and ``.reason()``.

    Raises:
        DeviceError: if it is not a number.
    """
    if type(number) is not int:
        raise DeviceError(f"cuda: expected the number of a GPU, got {number!r:.60}")
    return _nth("cuda", number)


def all_devices() -> list[Device]:
    """Return every device that holds data, also those that cannot be used here."""
    return [device for name, device in _devices.items() if name != "meta"]
