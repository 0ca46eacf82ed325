"""Functions with PyTorch's names and arguments: ``import needle.nn.functional as F``.

Each calls the op that computes it, so results and gradients are those of ``needle.ops``; what is
different is the spelling (``input``, ``dim``, a weight [out, in]) and the defaults of PyTorch.
``inplace=True`` is accepted and changes nothing: use the result.

>>> import needle.nn.functional as F
>>> print(F.relu(Tensor([-1.0, 2.0])), F.softmax(ndl.zeros(1, 2), dim=1))
[0. 2.] [[0.5 0.5]]
"""

from typing import TYPE_CHECKING

from needle.elsewhere import advice as _advice
from needle.elsewhere import publish as _publish
from needle.errors import missing as _missing
from needle.nn.functional.activation import *
from needle.nn.functional.layers import *
from needle.nn.functional.loss import *
from needle.nn.functional.pool import *

_publish(globals())

_ELSEWHERE = {
    "alpha_dropout": "F.dropout",
    "embedding_bag": "F.embedding(ids, weight).mean(1), .sum(1) or .max(1)",
    "multi_head_attention_forward": "nn.MultiheadAttention",
    "pdist": "needle.cdist(x, x): the distances are above its diagonal",
    "soft_margin_loss": "needle.ops.softplus(-y * x).mean()",
}
"""Advice for names that PyTorch has in this module."""


if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name):
        if name.endswith("_") and name[:-1] in __all__:
            advice = f"x = F.{name[:-1]}(x): functions do not change their input"
            raise _missing("needle.nn.functional", name, advice)
        raise _missing(
            "needle.nn.functional", name, _ELSEWHERE.get(name) or _advice("nn.functional", name)
        )
