"""All ops: a class per op, and a function per op. The room ``course`` adds its names for both.

Each folder is a chapter. A module says in ``__all__`` which of its names are public.
"""

from typing import TYPE_CHECKING

from needle.elsewhere import publish as _publish
from needle.ops.core.attributes import *
from needle.ops.core.dims import speak_all as _speak_all
from needle.ops.core.families import *
from needle.ops.core.kinds import check_all as _check_all
from needle.ops.core.meanings import *
from needle.ops.core.op import *
from needle.ops.core.primitives import *
from needle.ops.elementwise.activation import *
from needle.ops.elementwise.arithmetic import *
from needle.ops.elementwise.bessel import *
from needle.ops.elementwise.functions import *
from needle.ops.elementwise.gamma import *
from needle.ops.elementwise.gaussian import *
from needle.ops.elementwise.logic import *
from needle.ops.elementwise.piecewise import *
from needle.ops.elementwise.rounding import *
from needle.ops.elementwise.special import *
from needle.ops.elementwise.trigonometry import *
from needle.ops.image.conv import *
from needle.ops.image.convolution import *
from needle.ops.image.convolution_bias import *
from needle.ops.image.interpolation import *
from needle.ops.image.pooling import *
from needle.ops.image.resample import *
from needle.ops.image.windows import *
from needle.ops.index.basic_index import *
from needle.ops.index.indexing import *
from needle.ops.index.row_sparse import *
from needle.ops.index.select import *
from needle.ops.index.slices import *
from needle.ops.index.sorting import *
from needle.ops.linalg import solve as _solve
from needle.ops.linalg.contraction import *
from needle.ops.linalg.factorizations import *
from needle.ops.linalg.matmul import *
from needle.ops.linalg.solve import *
from needle.ops.loss.distance import *
from needle.ops.loss.likelihood import *
from needle.ops.loss.linear_cross_entropy import *
from needle.ops.loss.losses import *
from needle.ops.norm.batch_norm_relu import *
from needle.ops.norm.group_norm import *
from needle.ops.norm.norms import *
from needle.ops.random.draws import *
from needle.ops.random.sampling import *
from needle.ops.reduction.euclidean import *
from needle.ops.reduction.reduce import *
from needle.ops.reduction.scan import *
from needle.ops.reduction.softmax import *
from needle.ops.sequence.attention import *
from needle.ops.sequence.recurrent import *
from needle.ops.sequence.recurrent_grad import *
from needle.ops.sequence.rotary import *
from needle.ops.shape.creation import *
from needle.ops.shape.diagonals import *
from needle.ops.shape.movement import *
from needle.ops.shape.padding import *
from needle.ops.shape.rearrange import *
from needle.ops.shape.tuples import *

if TYPE_CHECKING:
    from needle.course.ops import *

# NumPy's and PyTorch's. Like ``all``, ``any`` and ``round`` they hide Python's own here, as there.
abs, sum, max, min, pow, cast = absolute, sum_, max_, min_, power, astype
cat = concatenate = concat
dot, reverse = matmul, flip
norm = _solve.norm  # of a matrix, not the chapter of that name

# PyTorch's names of arguments, in functions whose axes mean what they mean there.
_INSIDE = {"batch_norm", "batch_norm_relu", "dilate", "meshgrid", "scatter_add", "undilate"}
_speak_all(globals(), {*globals()} - _INSIDE - {"per_axis", "windows"})
_check_all(globals())

_publish(globals())
