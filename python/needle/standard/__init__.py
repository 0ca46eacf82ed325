"""Needle under the names of the Python array API standard 2024.12, for real dtypes.

``Tensor.__array_namespace__`` returns this module. Its functions take and return tensors. New
tensors (``zeros``, ``asarray``) require no gradient; computed ones can be differentiated as usual.
Complex dtypes, uint16, uint32, uint64 and the extension ``fft`` are not supported;
docs/array_api.md lists the consequences.
"""

from math import e as e
from math import inf as inf
from math import nan as nan
from math import pi as pi

from needle.dtype import bfloat16 as bfloat16
from needle.dtype import bool_ as _bool
from needle.dtype import float16 as float16
from needle.dtype import float32 as float32
from needle.dtype import float64 as float64
from needle.dtype import int8 as int8
from needle.dtype import int16 as int16
from needle.dtype import int32 as int32
from needle.dtype import int64 as int64
from needle.dtype import uint8 as uint8
from needle.elsewhere import publish as _publish
from needle.standard import linalg as linalg
from needle.standard.creation import *
from needle.standard.elementwise import *
from needle.standard.inspection import *
from needle.standard.linalg import matmul as matmul
from needle.standard.linalg import matrix_transpose as matrix_transpose
from needle.standard.linalg import tensordot as tensordot
from needle.standard.linalg import vecdot as vecdot
from needle.standard.manipulation import *
from needle.standard.searching import *
from needle.standard.statistics import *

bool = _bool
newaxis = None

__array_api_version__ = "2024.12"

_publish(globals(), "linalg")
