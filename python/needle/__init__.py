"""Needle: the necessary elements of deep learning.

Type checkers take what ``import *`` and ``as`` bring here for public; ``__all__`` is the same.
"""

from importlib import import_module as _import_module
from math import inf as inf
from math import nan as nan
from math import pi as pi
from typing import TYPE_CHECKING

from needle import autograd as autograd
from needle import backend as backend
from needle import backend_ndarray as backend_ndarray
from needle import backend_selection as backend_selection
from needle import config as config
from needle import devices as devices
from needle import dtype as dtype
from needle import errors as errors
from needle import graph as graph
from needle import init as init
from needle import ops as ops
from needle.autograd import *
from needle.backend.ndarray import NDArray as NDArray
from needle.backend_selection import BACKEND as BACKEND
from needle.backend_selection import array_api as array_api
from needle.checkpoint import *
from needle.compile import compile as compile
from needle.compile import explain as explain
from needle.derivatives import *
from needle.devices import *
from needle.dtype import *
from needle.elsewhere import advice as _advice
from needle.elsewhere import publish as _publish
from needle.gpus import Cuda as Cuda
from needle.init import ones as ones
from needle.init import ones_like as ones_like
from needle.init import rand as rand
from needle.init import rand_like as rand_like
from needle.init import randn as randn
from needle.init import randn_like as randn_like
from needle.init import zeros as zeros
from needle.init import zeros_like as zeros_like
from needle.ops.core.kinds import check_all as _check_all
from needle.ops.random import manual_seed as manual_seed
from needle.ops.toplevel import *
from needle.tensors import *

cuda = Cuda()

# PyTorch's names. Like ``all``, ``any`` and ``round`` some hide Python's own here, as there.
device = Device
float, double, half, long, int, short = float32, float64, float16, int64, int32, int16
char, byte, bool = int8, uint8, bool_
newaxis = None

__version__ = "0.1.0"

_check_all(globals())

if TYPE_CHECKING:
    from needle import data as data
    from needle import io as io
    from needle import nn as nn
    from needle import optim as optim
    from needle import scalar as scalar
    from needle import standard as standard
    from needle import static as static
    from needle import testing as testing
    from needle import train as train
    from needle import utils as utils
    from needle.io import load as load
    from needle.io import load_program as load_program
    from needle.io import save_nested as save
    from needle.nn import fold_batch_norm as fold_batch_norm
    from needle.nn import functional_call as functional_call
    from needle.pytorch import *
    from needle.standard import linalg as linalg
    from needle.tools.costs import forecast as forecast
    from needle.tools.costs import profile as profile
    from needle.tools.draw import draw as draw
    from needle.tools.show import show as show

_MODULES = (
    "array_api", "autograd", "backend", "backend_ndarray", "backend_selection", "config", "devices",
    "dtype", "errors", "graph", "init", "ops",
)  # fmt: skip

# Rooms that a program may do without are imported at their first use.
_ROOMS = ("data", "io", "nn", "optim", "scalar", "standard", "static", "testing", "train", "utils")
_TOOLS = {"draw": "draw", "forecast": "costs", "profile": "costs", "show": "show"}
_FILES = {"save": "save_nested", "load": "load", "load_program": "load_program"}


if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name):
        if name in _ROOMS:
            return _import_module(f"needle.{name}")
        if name == "linalg":
            return _import_module("needle.standard.linalg")
        if name in _TOOLS:
            return getattr(_import_module(f"needle.tools.{_TOOLS[name]}"), name)
        if name in _FILES:
            return getattr(_import_module("needle.io"), _FILES[name])
        if name in ("fold_batch_norm", "functional_call"):
            return getattr(_import_module("needle.nn"), name)
        if name == "__all__":  # PyTorch's names are a room too
            later = *_MODULES, *_ROOMS, *_TOOLS, *_FILES, "fold_batch_norm", "functional_call"
            pytorch = _import_module("needle.pytorch").__all__
            _publish(globals(), "__version__", "linalg", *later, *pytorch)
            return globals()[name]
        if not name.startswith("_") and name in _import_module("needle.pytorch").__all__:
            return globals().setdefault(name, getattr(_import_module("needle.pytorch"), name))
        raise errors.missing("needle", name, _elsewhere(name))


def _elsewhere(name: str) -> str:
    """Return where Needle has a name that it has not here; empty if nowhere."""
    if name.startswith("_"):
        return ""
    if told := _advice("", name):
        return told
    for place in ("init", "nn", "optim", "data", "io", "ops", "standard", "standard.linalg"):
        if hasattr(_import_module(f"needle.{place}"), name):
            return f"needle.{place}.{name}"
    return f"x.{name}(...) of a tensor x" if hasattr(Tensor, name) else ""


def __dir__() -> list[str]:
    return sorted(
        {*globals(), *_ROOMS, *_FILES, *_TOOLS, "fold_batch_norm", "functional_call", "linalg"}
    )
