"""``Spec``, ``Array``, ``Op``, ``Node``, ``TensorBase``: the definition of the native base types.

The native module (src/core) has the same names with the same behaviour; backend/array.py and
graph.py use it where it is available. The tests run on both.
"""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Iterable
from math import prod
from typing import Any

from needle.devices import Device
from needle.dtype import DType
from needle.errors import ShapeError
from needle.orders import pending_order as pending_order
from needle.orders import topo as topo

MAX_DIMS = 16


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a C-ordered array."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


class Spec:
    """dtype, device and shape of an array; interned, so equal specs are the same object."""

    __slots__ = ("dtype", "device", "shape", "size", "strides", "__weakref__")
    dtype: DType
    device: Device
    shape: tuple[int, ...]
    size: int
    strides: tuple[int, ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}] {self.device}"


_specs: dict[tuple[Any, ...], Spec] = {}


def make_spec(dtype: DType, device: Device, shape: tuple[int, ...]) -> Spec:
    """Return the spec of a dtype, device and shape; equal specs are the same object."""
    key = (dtype, device, shape)
    spec = _specs.get(key)
    if spec is None:
        if len(_specs) > 100_000:  # identity is only a shortcut; old specs stay valid
            _specs.clear()
        if len(shape) > MAX_DIMS:
            raise ShapeError(f"{len(shape)} dimensions, but at most {MAX_DIMS} are supported")
        if prod(max(size, 1) for size in shape) * dtype.itemsize >= 2**63:
            raise ShapeError(f"a shape of {len(shape)} dimensions has more than 2**63 bytes")
        spec = Spec()
        spec.dtype, spec.device, spec.shape = dtype, device, shape
        spec.size, spec.strides = prod(shape), dense_strides(shape)
        _specs[key] = spec
    return spec


class _Described:
    """The base of objects with a spec."""

    __slots__ = ()
    spec: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes; never computes anything."""
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        """Element type; never computes anything."""
        return self.spec.dtype

    @property
    def device(self) -> Device:
        """Device of the values; never computes anything."""
        return self.spec.device

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.spec.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.spec.size


class Array(_Described):
    """A view: spec, handle, offset and strides (in elements; None means dense)."""

    __slots__ = ("spec", "handle", "offset", "own_strides", "__weakref__")
    spec: Spec
    handle: Any
    offset: int
    own_strides: tuple[int, ...] | None

    @property
    def strides(self) -> tuple[int, ...]:
        return self.spec.strides if self.own_strides is None else self.own_strides

    def __buffer__(self, flags: int) -> memoryview:  # from Python 3.12 on
        return memoryview(self.device.backend.download(self))


_array_class: type = Array


def set_array_class(cls: type) -> None:
    """Set the subclass of Array for new arrays."""
    global _array_class
    _array_class = cls


def arrays() -> list[Any]:
    """Return all live arrays."""
    return [x for x in gc.get_objects() if issubclass(type(x), Array)]  # asks no proxy


def make_array(
    spec: Spec,
    handle: Any,
    offset: int = 0,
    strides: tuple[int, ...] | None = None,
    cls: type | None = None,
) -> Any:
    """Return an array over a handle; no checks."""
    self: Any = object.__new__(cls or _array_class)
    self.spec, self.handle, self.offset = spec, handle, offset
    self.own_strides = None if strides == spec.strides else strides
    return self


# ---- the graph ---------------------------------------------------------------------

OUTPUT = 63
"""The bit that stands for an op's own output in ``saves`` masks; inputs from 62 on share bit 62."""


class Op:
    """Native part of an op: everything the gate needs without calling Python.

    Attributes:
        kind: 0 for an op that only Python can run; else the gate's method (see ops/core/op.py).
        code: number of the elementwise function or reduction.
        params: numbers for the kind: a shape, an order of axes, ranges.
        save_masks: for each input, the values that the gradient with respect to it reads.
        opaque: whether the op holds a Python callable (its nodes can be part of a cycle).
        differentiable: whether gradients flow through it.
    """

    __slots__ = ("kind", "code", "params", "save_masks", "opaque", "differentiable")

    def __init__(self) -> None:
        self.kind, self.code, self.opaque, self.differentiable = 0, 0, False, True
        self.params: tuple[int, ...] = ()
        self.save_masks: tuple[int, ...] = ()


_serials = itertools.count()


class Node:
    """One operation, or a leaf (op None). Only its value changes: it is computed and freed.

    Nodes and tensors are numbered as they are made (``serial``).
    """

    __slots__ = (
        "op", "inputs", "spec", "value", "needs", "done", "released", "serial",
        "_claims", "_held", "_tensor", "_receiver", "__weakref__",
    )  # fmt: skip

    def __init__(self, op: Any, inputs: tuple[Node, ...], spec: Any, needs: bool, done: bool):
        self.op, self.inputs, self.spec = op, inputs, spec
        self.needs, self.done, self.value = needs, done, None
        self.released = False  # whether its gradient will not run any more
        self._claims = self._held = 0
        self.serial = next(_serials)
        self._tensor: Any = None
        self._receiver: Any = None

    def claim(self, value: Any) -> None:
        self._claims += 1
        if value is not None:
            self.value = value

    def unclaim(self) -> None:
        self._claims -= 1
        if self._claims == 0:
            self.value = None

    def drop(self, keep: int) -> None:
        """Give up the claims that are not in the mask ``keep``."""
        gone = self._held & ~keep
        self._held &= keep
        for i, node in enumerate(self.inputs):
            if gone >> min(i, 62) & 1:
                node.unclaim()
        if gone >> OUTPUT & 1:
            self.unclaim()

    def __del__(self) -> None:
        if not self.done:
            _modes.pending = max(0, _modes.pending - 1)
        if self._held & ~(1 << OUTPUT):
            self.drop(1 << OUTPUT)
        # Freeing a long chain must not recurse: inputs wait in a list that one call empties.
        _modes.graveyard.append(self.inputs)
        self.inputs = ()
        if _modes.burying:
            return
        _modes.burying = True
        while _modes.graveyard:
            _modes.graveyard.pop()
        _modes.burying = False


class _Modes(threading.local):
    recording = True
    lazy = False
    open = True  # whether native functions may act
    journal: list[Any] | None = None
    pending = 0
    burying = False

    def __init__(self) -> None:
        self.graveyard: list[tuple[Node, ...]] = []


_modes = _Modes()


class TensorBase(_Described):
    """A mutable handle: array (or None), node (or None), grad, name, and whether it is a parameter
    of the derivative."""

    __slots__ = ("array", "_node", "_grad", "name", "serial", "_requires_grad", "__weakref__")
    array: Any
    serial: int
    _grad: Any
    name: str | None
    _node: Any
    _requires_grad: bool

    @property
    def node(self) -> Any:
        """The node this tensor stands for, or None where no graph was needed."""
        return self._node

    @property
    def spec(self) -> Any:
        """The spec (of a tuple: a tuple of them); never computes anything."""
        array = self.array
        if array is None:
            return self._node.spec
        return tuple(a.spec for a in array) if type(array) is tuple else array.spec

    @property
    def grad(self) -> Any:
        """The gradient that ``backward`` stored, or None."""
        if _modes.journal is not None:
            _modes.journal.append(self)
        return self._grad

    @grad.setter
    def grad(self, value: Any) -> None:
        _note(self)
        self._grad = value

    @property
    def op(self) -> Any:
        """The op that made this value, or None for a leaf."""
        return None if self._node is None else self._node.op

    @property
    def inputs(self) -> list[Any]:
        """The tensors that the op was applied to."""
        return [] if self._node is None else [tensor_of(below) for below in self._node.inputs]

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow to or through this tensor."""
        node = self._node
        return self._requires_grad if node is None or node.op is None else node.needs

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        _note(self)
        self._requires_grad = bool(value)
        if self._node is not None and self._node.op is None:
            self._node._tensor = None
            self._node = None


_tensor_class: type = TensorBase
_tuple_class: type = TensorBase


def set_tensor_classes(tensor: type, pair: type) -> None:
    """Set the classes of results: of one array, and of a tuple of them."""
    global _tensor_class, _tuple_class
    _tensor_class, _tuple_class = tensor, pair


def init_tensor(self: Any, array: Any, requires_grad: bool) -> None:
    """Fill a new tensor object: a leaf."""
    self.array, self._node, self._grad, self.name = array, None, None, None
    self.serial = next(_serials)
    self._requires_grad = requires_grad


def _new(array: Any, node: Any, is_tuple: bool) -> Any:
    cls = _tuple_class if is_tuple else _tensor_class
    self: Any = object.__new__(cls)
    init_tensor(self, array, False)
    self._node = node
    if node is not None:
        node._tensor = weakref.ref(self)
    return self


def wrap(array: Any) -> Any:
    """Return a tensor of an array (or tuple of arrays), without graph."""
    return _new(array, None, type(array) is tuple)


def leaf(tensor: Any) -> Any:
    """Return the tensor's node; make a leaf if it has none."""
    node = tensor._node
    if node is None:
        node = Node(None, (), tensor.spec, tensor._requires_grad, True)
        node._tensor = node._receiver = weakref.ref(tensor)
        tensor._node = node
    return node


def _saved(op: Any, nodes: tuple[Any, ...]) -> int:
    """Return the mask of values that the needed gradients of ``op`` will read."""
    mask = 0
    masks = op.save_masks
    for i, node in enumerate(nodes):
        if node.needs and masks:
            mask |= masks[min(i, len(masks) - 1)]
    return mask


def record(op: Any, tensors: Iterable[Any], array: Any) -> Any:
    """Return the tensor of a result that was computed and needs a gradient."""
    tensors = tuple(tensors)
    nodes = tuple(map(leaf, tensors))
    spec = tuple(a.spec for a in array) if type(array) is tuple else array.spec
    node = Node(op, nodes, spec, True, True)
    mask = _saved(op, nodes)
    for i, tensor in enumerate(tensors):
        if mask >> min(i, 62) & 1:
            nodes[i].claim(tensor.array)
    if mask >> OUTPUT & 1:
        node.claim(array)
    node._held = mask
    return _new(array, node, type(array) is tuple)


def pend(op: Any, tensors: Iterable[Any], spec: Any, needs: bool) -> Any:
    """Return the tensor of a result that is not computed yet."""
    tensors = tuple(tensors)
    nodes = tuple(map(leaf, tensors))
    node = Node(op, nodes, spec, needs, False)
    for input_node, tensor in zip(nodes, tensors, strict=True):
        input_node.claim(tensor.array)
    node._held = (1 << min(len(nodes), 63)) - 1
    if needs and _saved(op, nodes) >> OUTPUT & 1:
        node.claim(None)
        node._held |= 1 << OUTPUT
    _modes.pending += 1
    return _new(None, node, type(spec) is tuple)


def finish(node: Any, array: Any) -> None:
    """Give a pending node its value; it keeps only the claims that its gradient needs."""
    tensor = peek(node)
    with _finishing:  # one thread finishes a node and counts the claims
        if node.done:
            return
        if node._claims:
            node.value = array
        if tensor is not None:
            tensor.array = array
        node.done = True  # after the value: other threads ask for the value when this is set
        _modes.pending = max(0, _modes.pending - 1)
        if node.needs:
            node.drop(0 if node.released else _saved(node.op, node.inputs))
        else:
            node.drop(0)
            node.inputs = ()


_finishing = threading.RLock()


def release(node: Any) -> None:
    """Free the values for the node's gradient, which has run and will not run again."""
    node.released = True
    node.drop(0 if node.done else ~(1 << OUTPUT))


def peek(node: Any) -> Any:
    """Return the live tensor of a node, or None."""
    return node._tensor() if node._tensor is not None else None


def tensor_of(node: Any) -> Any:
    """Return the live tensor of a node, or a new one over its value."""
    tensor = peek(node)
    if tensor is None:
        tensor = _new(node.value, node, type(node.spec) is tuple)
        tensor._requires_grad = node.needs
    return tensor


def receiver_of(node: Any) -> Any:
    """Return the tensor that a gradient of the node belongs to, or None if it is gone."""
    known = node._tensor if node.op is not None else node._receiver
    return known() if known is not None else None


def set_array(tensor: Any, array: Any) -> None:
    """Give a tensor new data: it becomes a new leaf, outside all graphs.

    Old graphs keep the old value if they hold it; a value freed there must not appear again with
    new data.
    """
    _note(tensor)
    node = tensor._node
    if node is not None:
        if node.op is not None:
            tensor._requires_grad = node.needs
        node._tensor = None
        tensor._node = None
    tensor.array = array


def exclusive(tensor: Any) -> bool:
    """Return whether only this tensor holds its array and memory, so that an optimizer may write
    there. Always false here: an unneeded copy is correct too."""
    return False


def rebind(tensor: Any, source: Any) -> None:
    """Give a tensor the node and array of another one, which is dropped; old graphs stay as is."""
    if tensor is source:
        return
    _note(tensor)
    _note(source)
    old = tensor._node
    if old is not None:
        old._tensor = None
        if old.op is not None:
            tensor._requires_grad = source.requires_grad
    tensor.array, tensor._node = source.array, source._node
    source.array = source._node = None
    if tensor._node is not None:
        tensor._node._tensor = weakref.ref(tensor)


def set_journal(journal: list[Any] | None) -> list[Any] | None:
    """Note in this thread, in a list, how tensors are before they change; return the list before.

    A change appends (tensor, array, node, requires_grad, grad); reading ``grad`` the tensor alone.
    """
    old, _modes.journal = _modes.journal, journal
    return old


def _note(tensor: Any) -> None:
    if _modes.journal is not None:
        needs, grad = tensor._requires_grad, tensor._grad
        _modes.journal.append((tensor, tensor.array, tensor._node, needs, grad))


def restore(tensor: Any, array: Any, node: Any, requires_grad: bool, grad: Any) -> None:
    """Undo a noted change."""
    old = tensor._node
    if old is not None and peek(old) is tensor:
        old._tensor = None
    tensor.array, tensor._node, tensor._grad = array, node, grad
    tensor._requires_grad = requires_grad
    if node is not None:
        node._tensor = weakref.ref(tensor)


def recording() -> bool:
    """Return whether this thread records operations for gradients."""
    return _modes.recording


def set_recording(value: bool) -> bool:
    """Switch recording in this thread; return what it was."""
    old, _modes.recording = _modes.recording, value
    return old


def lazy() -> bool:
    """Return whether this thread postpones computation."""
    return _modes.lazy


def set_lazy(value: bool) -> bool:
    """Switch lazy mode in this thread; return what it was."""
    old, _modes.lazy = _modes.lazy, value
    return old


def set_open(value: bool) -> bool:
    """Open or close the native gate in this thread; return what it was."""
    old, _modes.open = _modes.open, value
    return old


def set_defaults(lazy: bool, open: bool) -> None:
    """Set the modes in which threads start."""
    _Modes.lazy, _Modes.open = lazy, open


def pending() -> int:
    """Return the number of operations that wait to be computed in this thread."""
    return _modes.pending


def next_serial() -> int:
    """Return a number above those of all nodes and tensors so far, and not above later ones."""
    return next(_serials)


def tensors() -> list[Any]:
    """Return all live tensors, without those whose constructor failed."""
    found = [x for x in gc.get_objects() if issubclass(type(x), TensorBase)]  # asks no proxy
    return [x for x in found if hasattr(x, "array")]


def live_tensors() -> int:
    """Return the number of live tensors."""
    return len(tensors())
