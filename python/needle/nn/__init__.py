"""Layers, losses, and ``Module``, from which models are made."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from needle.elsewhere import advice as _advice
from needle.elsewhere import publish as _publish
from needle.errors import missing as _missing
from needle.nn.activation import *
from needle.nn.attention import *
from needle.nn.containers import *
from needle.nn.conv import *
from needle.nn.fold import *
from needle.nn.image_norm import *
from needle.nn.layers import *
from needle.nn.loss import *
from needle.nn.module import *
from needle.nn.norm import *
from needle.nn.packed import *
from needle.nn.pool import *
from needle.nn.recurrent import *
from needle.nn.substitution import *
from needle.nn.transformer import *
from needle.ops.core.dims import speak_layers as _speak_layers
from needle.ops.core.kinds import check_all as _check_all
from needle.ops.core.kinds import check_layers as _check_layers
from needle.tensors import Parameter as Parameter

_speak_layers(globals())
_check_layers(globals())
_check_all(globals())

_ROOMS = ("functional", "init", "utils")
"""Modules with PyTorch's names, imported at their first use."""
_publish(globals(), *_ROOMS)

if TYPE_CHECKING:
    from needle.nn import functional as functional
    from needle.nn import init as init
    from needle.nn import utils as utils
else:  # type checkers would give every misspelt name a type

    def __getattr__(name):
        if name in _ROOMS:
            return _import_module(f"needle.nn.{name}")
        raise _missing("needle.nn", name, _advice("nn", name))
