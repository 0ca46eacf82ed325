"""The one graph: ``Node`` (immutable: op, inputs, spec) and ``TensorBase`` (a mutable handle).

Lifetime of values. A live tensor holds its own array. A node holds its value only while there is a
*claim* on it:

    - a recorded consumer claims the inputs that its gradient will read (``Op.saves``);
    - a consumer that has not run yet (lazy mode) claims all its inputs;
    - a node whose own gradient reads its output claims itself.

When the last claim goes, the value goes. Strong references run only downward: tensor -> node ->
input nodes. A node knows its tensor without keeping it alive; a leaf also remembers the tensor
that gradients are delivered to, because ``p.data = x`` gives p a new leaf while old graphs must
still find p. So there is nothing for the garbage collector to find; only nodes whose op holds a
Python callable are shown to it. Destruction and every walk of the graph are loops, not recursion:
a chain of 100,000 ops is built, differentiated and destroyed.

``backward`` frees what it has used as it goes. A second one that needs any of that raises
ReleasedError, unless the first was told ``retain_graph=True``; what leaves hold is never freed.
With ``NEEDLE_BACKEND=np``, the course's dialect, it keeps the graph and records the gradients.

reference.py implements all of it in Python; the native module, if there is one, has types with the
same names and behaviour, which are used instead.
"""

from __future__ import annotations

import copyreg
from typing import TYPE_CHECKING, Any

from needle import core, reference
from needle.errors import GradientError, ReleasedError

_source: Any = reference if core.native is None else core.native

OUTPUT: int = reference.OUTPUT
if TYPE_CHECKING:
    from needle.reference import Node as Node
    from needle.reference import Op as OpBase
    from needle.reference import TensorBase as TensorBase
else:
    OpBase, Node, TensorBase = _source.Op, _source.Node, _source.TensorBase

# tensors of results
wrap, record, pend = _source.wrap, _source.record, _source.pend
init_tensor, set_tensor_classes = _source.init_tensor, _source.set_tensor_classes
set_journal, restore = _source.set_journal, _source.restore
set_array, rebind, exclusive = _source.set_array, _source.rebind, _source.exclusive
# nodes and their values
leaf, peek = _source.leaf, _source.peek
tensor_of, receiver_of = _source.tensor_of, _source.receiver_of
finish, release = _source.finish, _source.release
topo, pending_order = _source.topo, _source.pending_order
# modes, per thread
recording, set_recording = _source.recording, _source.set_recording
lazy, set_lazy = _source.lazy, _source.set_lazy
set_open, set_defaults = _source.set_open, _source.set_defaults
pending, live_tensors, tensors = _source.pending, _source.live_tensors, _source.tensors
next_serial = _source.next_serial


def released(tensor: Any) -> ReleasedError:
    """Return the error for reading a value that was freed."""
    maker = f"the result of {tensor.node.op}" if tensor.node.op else "a leaf"
    return ReleasedError(
        f"the value of {maker}, {tensor.node.spec}, was released because nothing needed it\n"
        "  rule: a value lives while a tensor or a gradient that is still to run needs it\n"
        "  try: keep the tensor itself in a variable; for a second backward() through one graph, "
        "backward(retain_graph=True)"
    )


def _refuse(node: Any) -> Any:
    raise GradientError("copy: nodes are part of one graph\n  try: a tensor's .detach()")


copyreg.pickle(Node, _refuse)
