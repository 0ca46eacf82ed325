# # Needle from zero
#
# This page builds a small deep learning framework from nothing, in ten steps. In the end it trains
# a network on two devices, one of which computes in C. The small framework has the structure of
# Needle; each step ends with the file of Needle that does the same job, and how it differs.
#
# The page is one program. Download [needle_from_zero.py](needle_from_zero.py) and run it with
# `python needle_from_zero.py`; it needs nothing but Python. Most claims have an `assert` beside
# them, so if the program reaches its end, they are true.
#
# You need to know Python and the calculus taught at school: the derivative of `x * x` is `2 * x`,
# and the chain rule. You do not need NumPy. Numbers lie in `array.array`, the flat row of doubles
# in Python's standard library, because NumPy would hide two of the things that this page is about:
# how a table of numbers becomes a row of memory (step 1), and what a fast loop looks like (step
# 10).
import ctypes
import itertools
import math
import random
import shutil
import subprocess
import tempfile
import time
import weakref
from array import array as doubles
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple


# Some classes grow from step to step: this decorator adds a method to a class when its time has
# come. In a package all methods stand in the class.
def method(cls):
    """Add the function below to a class."""

    def add(function):
        setattr(cls, function.__name__, function)
        return function

    return add


# ## 1. An array with strides
#
# Memory is a row: place 0, place 1, place 2, and so on. A table with 2 rows and 3 columns is a way
# to *read* a row of six numbers: the element in row `i` and column `j` is at place `3 * i + j`. The
# pair `(3, 1)` is called the **strides**: how many places to go for one step along each axis.
#
# Shape, strides and the place of the first element (the **offset**) say everything about how to
# read the memory. Two arrays with different shapes and strides can share one memory. Such an array
# is called a **view**. To make one costs the same whether it has six elements or six million.
#
# The **spec** of an array is all that is known before anybody looks at its numbers: its shape, and
# the name of the device that it is on. Until step 9 there is one device that computes, "python".
#
# `Array` below has four views. `permute` puts the axes into another order, which transposes a
# matrix: the strides change places and the numbers stay. `slice` takes a part: for each axis the
# first index, how many elements, and the step, which may be negative. `broadcast_to` repeats an
# axis of size 1, or adds axes in front: the stride of a repeated axis is 0, so that each step along
# it stays at the same place. `reshape` gives the elements another shape; for a transposed array no
# strides exist that read the elements in the new order, so there they are copied.
class Spec(NamedTuple):
    """The shape of an array, and the name of the device where it is."""

    shape: tuple
    device: str


def dense(shape):
    """Return the strides of an array whose elements lie one after the other, row by row."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


@lru_cache(maxsize=1000)
def places(shape, strides, offset):
    """Return the places of all elements, row by row."""
    found = [offset]
    for size, stride in zip(shape, strides, strict=True):
        found = [place + i * stride for place in found for i in range(size)]
    return doubles("q", found)


class Array:
    """A way to read memory: spec, handle (the memory, as its device knows it), strides, offset."""

    def __init__(self, spec, handle, strides=None, offset=0):
        self.spec, self.shape, self.handle, self.offset = spec, spec.shape, handle, offset
        self.strides = dense(spec.shape) if strides is None else tuple(strides)

    @property
    def device(self):
        return DEVICES[self.spec.device]

    def places(self):
        return places(self.shape, self.strides, self.offset)

    def view(self, shape, strides, offset):
        return Array(Spec(tuple(shape), self.spec.device), self.handle, strides, offset)

    def permute(self, axes):
        """Return a view with the axes in another order."""
        shape, strides = [self.shape[i] for i in axes], [self.strides[i] for i in axes]
        return self.view(shape, strides, self.offset)

    def slice(self, ranges):
        """Return a view of a part: (first, count, step) for each axis."""
        pairs = list(zip(ranges, self.strides, strict=True))
        offset = self.offset + sum(first * stride for (first, _, _), stride in pairs)
        strides = [step * stride for (_, _, step), stride in pairs]
        return self.view([count for _, count, _ in ranges], strides, offset)

    def broadcast_to(self, shape):
        """Return a view with axes of size 1 repeated, and axes added in front."""
        added = len(shape) - len(self.shape)
        pairs = list(zip(self.shape, shape[max(added, 0) :], strict=False))
        if added < 0 or any(old not in (1, new) for old, new in pairs):
            raise ValueError(f"shape {self.shape} does not broadcast to {shape}")
        kept = [s if old == new else 0 for s, (old, new) in zip(self.strides, pairs, strict=True)]
        return self.view(shape, [0] * added + kept, self.offset)

    def reshape(self, shape):
        """Return the elements, row by row, under another shape: a view if they lie densely."""
        if math.prod(shape) != math.prod(self.shape):
            raise ValueError(f"the elements of shape {self.shape} do not fill {shape}")
        if self.strides == dense(self.shape):
            return self.view(shape, dense(shape), self.offset)
        return new_array(nested(shape, self.device.download(self)), self.spec.device)

    def tolist(self):
        """Return the numbers as nested lists."""
        return nested(self.shape, self.device.download(self))


# The arrays above never touch a number. That is the job of a **device**. It starts with three
# abilities: get memory, copy numbers from a list into it, and copy numbers out of it.
class Memory:
    """A device whose memory is a flat row of doubles."""

    def allocate(self, size):
        return doubles("d", bytes(8 * size))

    def upload(self, out, numbers):
        for place, number in zip(out.places(), numbers, strict=True):
            out.handle[place] = number

    def download(self, x):
        return [x.handle[place] for place in x.places()]


DEVICES = {"python": Memory()}


def empty(shape, device):
    """Return a new array."""
    return Array(Spec(tuple(shape), device), DEVICES[device].allocate(math.prod(shape)))


def new_array(values, device="python"):
    """Return an array with the numbers of nested lists."""
    shape, numbers = shape_and_numbers(values)
    out = empty(shape, device)
    out.device.upload(out, numbers)
    return out


def shape_and_numbers(values):
    """Return the shape of nested lists, and their numbers in one row."""
    if isinstance(values, (int, float)):
        return (), [float(values)]
    parts = [shape_and_numbers(part) for part in values]
    return (len(parts), *parts[0][0]), [number for _, row in parts for number in row]


def nested(shape, numbers):
    """Return numbers in a row as nested lists of a shape."""
    if not shape:
        return numbers[0]
    step = len(numbers) // shape[0]
    return [nested(shape[1:], numbers[i * step : (i + 1) * step]) for i in range(shape[0])]


# Here they are at work. Only the last `reshape` copies the numbers.
table = new_array([[1, 2, 3], [4, 5, 6]])
assert (table.shape, table.strides) == ((2, 3), (3, 1))
turned = table.permute((1, 0))
assert turned.tolist() == [[1, 4], [2, 5], [3, 6]]
assert (turned.shape, turned.strides) == ((3, 2), (1, 3))
last_column_upwards = table.slice([(1, 2, -1), (2, 1, 1)])
assert last_column_upwards.tolist() == [[6], [3]]
row = new_array([10, 20, 30])
assert row.broadcast_to((2, 3)).tolist() == [[10, 20, 30], [10, 20, 30]]
assert row.broadcast_to((2, 3)).strides == (0, 1)
assert table.reshape((3, 2)).tolist() == [[1, 2], [3, 4], [5, 6]]
for view in (turned, last_column_upwards, table.reshape((3, 2))):
    assert view.handle is table.handle, "a view shares the memory"
assert turned.reshape((6,)).handle is not table.handle, "this one had to be copied"

# **In Needle this is `python/needle/backend/ndarray.py`, and it differs because** there are ten
# dtypes instead of one, so a spec has a dtype as well, and equal specs are usually one object
# (`make_spec` in `python/needle/reference.py`), which makes them quick to compare. `reshape` finds
# a view in more cases than the dense one. Where the native module is loaded, the same views are
# made in C++.

# ## 2. An op
#
# An **op** is something that can be computed from arrays: add, multiply, the exponential. Many ops
# do the same thing to each element, so one loop serves them all, and only the formula differs. All
# formulas are in one table, written so that they mean the same in Python and in C; step 10 makes
# use of that.
FUNCTIONS = {
    "add": "x + y",
    "multiply": "x * y",
    "exp": "exp(x)",
    "tanh": "tanh(x)",
}
IN_PYTHON = {
    name: eval(f"lambda x, y=0: {text}", dict(vars(math))) for name, text in FUNCTIONS.items()
}


# The device learns three **kernels**. A kernel is a loop that computes; it gets the array to write
# to, which is new and dense, and the arrays to read from, which may have any strides. `sum_to` adds
# up what broadcasting had repeated, by a trick with step 1: it walks through `out` as if that had
# the shape of `x`, and where the stride is 0, all the numbers meet at one place.
class Loops(Memory):
    """A device that computes with the loops of Python."""

    def elementwise(self, name, out, *inputs):
        columns = [[x.handle[place] for place in x.places()] for x in inputs]
        out.handle[:] = doubles("d", map(IN_PYTHON[name], *columns))

    def sum_to(self, out, x):
        for to, place in zip(out.broadcast_to(x.shape).places(), x.places(), strict=True):
            out.handle[to] += x.handle[place]

    def matmul(self, out, a, b):
        for n, (i, j) in enumerate(itertools.product(range(a.shape[0]), range(b.shape[1]))):
            p, q = a.offset + i * a.strides[0], b.offset + j * b.strides[1]
            total = 0.0
            for _ in range(a.shape[1]):
                total += a.handle[p] * b.handle[q]
                p, q = p + a.strides[1], q + b.strides[0]
            out.handle[n] = total


DEVICES["python"] = Loops()


# Between ops and kernels stands a function that checks the operands. It stands there once, for all
# devices, so that kernels need not check anything.
def elementwise(name, *arrays):
    """Return a new array: a function of the table, applied to each element."""
    devices = {x.spec.device for x in arrays}
    if len(devices) > 1:
        raise ValueError(f"{name}: the operands are on different devices: {sorted(devices)}")
    longest = max(len(x.shape) for x in arrays)
    padded = [(1,) * (longest - len(x.shape)) + x.shape for x in arrays]
    shape = tuple(map(max, zip(*padded, strict=True)))  # broadcast_to checks that it fits
    out = empty(shape, devices.pop())
    out.device.elementwise(name, out, *[x.broadcast_to(shape) for x in arrays])
    return out


# Now the op itself. It may have a constant of its own, such as a shape or an order of axes; we call
# that its `static`.
class Op:
    """Something that can be computed: `compute` takes arrays and returns an array."""

    def __init__(self, static=None):
        self.static = static


class Elementwise(Op):
    """An op that applies the function of the table named `function` to each element."""

    def compute(self, *arrays):
        return elementwise(self.function, *arrays)


# An op is one class: its function, and `derivative(i, out, *inputs)`, what school calculus says
# about input number `i`. For `x * y`, the derivative with respect to input 0, which is `x`, is the
# other factor `y`. `out` is the result: the derivative of `exp(x)` is `exp(x)`, which we have
# computed already. The result of `derivative` is a number or, from step 3 on, a tensor.
class Add(Elementwise):
    function = "add"

    def derivative(self, i, out, x, y):
        return 1.0


class Multiply(Elementwise):
    function = "multiply"

    def derivative(self, i, out, x, y):
        return x if i else y


class Exp(Elementwise):
    function = "exp"

    def derivative(self, i, out, x):
        return out


class Tanh(Elementwise):
    function = "tanh"

    def derivative(self, i, out, x):
        return 1.0 - out * out


assert Add().compute(table, row).tolist() == [[11, 22, 33], [14, 25, 36]]
assert Multiply().compute(turned, turned).tolist() == [[1, 16], [4, 25], [9, 36]]

# **In Needle this is `python/needle/ops/core/op.py`, and it differs because** an op there also
# brings samples, from which its tests are generated, and says in `saves` which values its gradient
# will read, so that all others can be freed. `python/needle/ops/elementwise/arithmetic.py` has the
# classes, `src/common/functions.def` the table of formulas, and `python/needle/backend/kernels.py`
# the checks between the two.


# ## 3. A graph
#
# To differentiate a computation one has to know how its result came about. So we write it down: a
# **node** for each op that was applied, which points to the nodes of its inputs. Nodes with their
# inputs form a graph. A node without op is a **leaf**: numbers that the user gave.
#
# A node never changes, except that its value may come later (step 6). Users hold a **tensor**: a
# handle that points to a node. The difference matters when a parameter learns: `p.set(...)` lets
# the tensor `p` point to a new leaf, while computations from before still see the old one.
#
# `needs` says whether derivatives flow through a node: it is true of a leaf that wants a gradient,
# and of every result that depends on one.
class Node:
    """One op that was applied, or a leaf (op None)."""

    def __init__(self, op, inputs, spec, value, needs):
        self.op, self.inputs, self.spec = op, inputs, spec
        self.value, self.needs = value, needs
        self.owner = None  # the tensor, as a weak reference, which does not keep it alive


class Tensor:
    """What users hold: a handle to a node, and the gradient after `backward`."""

    def __init__(self, values, device="python", requires_grad=True):
        self.grad = None
        self.set(new_array(values, device), requires_grad)

    @classmethod
    def of(cls, node):
        """Return the living tensor of a node, or a new one."""
        tensor = node.owner and node.owner()
        if tensor is None:
            tensor = cls.__new__(cls)
            tensor.grad, tensor.node, node.owner = None, node, weakref.ref(tensor)
        return tensor

    def set(self, array, requires_grad=True):
        """Let the tensor stand for new numbers: a new leaf."""
        self.node = Node(None, (), array.spec, array, requires_grad)
        self.node.owner = weakref.ref(self)

    @property
    def shape(self):
        return self.node.spec.shape

    @property
    def device(self):
        return self.node.spec.device

    def tolist(self):
        return value_of(self).tolist()

    def __add__(self, other):
        return apply(Add(), self, other)

    def __mul__(self, other):
        return apply(Multiply(), self, other)

    def __matmul__(self, other):
        return apply(MatMul(), self, other)

    def __sub__(self, other):
        return self + other * -1.0

    def __rsub__(self, other):
        return self * -1.0 + other

    __radd__, __rmul__ = __add__, __mul__

    def exp(self):
        return apply(Exp(), self)

    def tanh(self):
        return apply(Tanh(), self)

    def sum(self):
        return apply(SumTo(()), self)

    def to(self, device):
        return apply(ToDevice(device), self)


# Every operation goes through one function, `apply`. It turns Python's numbers into tensors,
# computes, and records a node if a gradient may be asked for later. Whether to record at all is a
# **mode**, which a `with` block can change.
MODES = {"recording": True, "lazy": False}


@contextmanager
def modes(**changes):
    """Change modes within a `with` block."""
    before = dict(MODES)
    MODES.update(changes)
    try:
        yield
    finally:
        MODES.update(before)


def value_of(tensor):
    """Return the array of a tensor."""
    return tensor.node.value


def as_tensors(inputs):
    """Return inputs as tensors: a Python number goes where the tensor beside it is."""
    device = next(x.device for x in inputs if isinstance(x, Tensor))
    return [x if isinstance(x, Tensor) else Tensor(x, device, False) for x in inputs]


def recorded(op, tensors, value):
    """Return the tensor of a result; it remembers the op if derivatives may flow through it."""
    needs = MODES["recording"] and any(x.node.needs for x in tensors)
    inputs = tuple(x.node for x in tensors) if needs else ()
    return Tensor.of(Node(op if needs else None, inputs, value.spec, value, needs))


def run(op, tensors):
    """Compute an op and return the tensor of the result."""
    return recorded(op, tensors, op.compute(*[value_of(x) for x in tensors]))


def apply(op, *inputs):
    """Return the result of an op on tensors and numbers."""
    return run(op, as_tensors(inputs))


x = Tensor([[1, 2, 3], [4, 5, 6]])
scale = Tensor([1, 10, 100], requires_grad=False)
y = x * scale + 1
assert y.tolist() == [[2, 21, 301], [5, 51, 601]]
assert type(y.node.op) is Add and type(y.node.inputs[0].op) is Multiply
assert y.node.inputs[0].inputs == (x.node, scale.node)
with modes(recording=False):
    assert (x + x).node.op is None, "nothing was written down"

# **In Needle this is `python/needle/graph.py`, and it differs because** a node there keeps its
# value only as long as somebody has a claim on it: a gradient that will read it, or an op that
# still waits. Here it keeps the value as long as the node lives. The text of `Node` and
# `TensorBase` is in `python/needle/reference.py`, and `apply` is in `python/needle/executor.py`.
# All three exist in C++ as well (`src/core/types/graph.cc`, `src/core/gate/gate.cc`): for small
# arrays the time goes into the bookkeeping, not into the numbers.


# ## 4. Reverse mode in 40 lines
#
# Let `loss` be one number, computed in many steps from many numbers. For each of them we want to
# know: if I change it a little, how does the loss change? All those derivatives together are the
# **gradient**. Reverse mode finds it in one walk through the graph, from the loss down.
#
# The chain rule says how to go down one step. If `y = f(x)`, and `G` is the derivative of the loss
# with respect to `y`, then the one with respect to `x` is `G * f'(x)`. If `x` is used in two
# places, each sends its part and the parts are added. So a node can pass on its gradient only when
# all of its consumers have sent theirs. We therefore visit results before their inputs, in the
# order of `inputs_first` from its end. It uses no recursion, because a graph may be a chain of
# thousands of nodes.
def inputs_first(root, wanted):
    """Return the wanted nodes at and below a node, every node behind all of its inputs."""
    found, seen, path = [], {root}, [(root, iter(root.inputs))]
    while path:
        node, inputs = path[-1]
        below = next((x for x in inputs if x not in seen and wanted(x)), None)
        if below is None:
            found.append(path.pop()[0])
        else:
            seen.add(below)
            path.append((below, iter(below.inputs)))
    return found


def walk(out, seed):
    """Pass gradients from a result down; yield each node with its gradient."""
    gradients = {out.node: seed}
    for node in reversed(inputs_first(out.node, lambda below: below.needs)):
        gradient = gradients.pop(node)
        yield node, gradient
        if node.op is None:
            continue
        inputs = [Tensor.of(below) for below in node.inputs]
        parts = node.op.gradient(gradient, Tensor.of(node), *inputs)
        for below, part in zip(node.inputs, parts, strict=True):
            if below.needs:
                gradients[below] = gradients[below] + part if below in gradients else part


def backward(out):
    """Compute the gradient of a result with respect to all tensors below it, into `.grad`."""
    with modes(recording=False):
        for node, gradient in walk(out, apply(BroadcastTo(out.shape), Tensor(1.0, out.device))):
            if tensor := node.owner():
                tensor.grad = gradient


# `walk` calls the op's `gradient`, one step of the chain rule. For the elementwise family it
# follows from `derivative`. One detail: if an input was broadcast, one number of it went to several
# places, so what comes back from these places is added up.
@method(Elementwise)
def gradient(self, out_grad, out, *inputs):
    """Return, for each input, the gradient with respect to it (None if nobody needs it)."""
    return [
        apply(SumTo(x.shape), out_grad * self.derivative(i, out, *inputs)) if x.node.needs else None
        for i, x in enumerate(inputs)
    ]


# Note that `gradient` works on *tensors*, with the same ops as everything else. So a gradient can
# have a graph, and be differentiated again.
#
# A second family are the **linear** ops: those that move numbers or add them up. For them one step
# of the chain rule is the transpose, the same way backwards. `BroadcastTo` repeats, so its gradient
# adds up; `SumTo` adds up, so its gradient repeats.
class LinearOp(Op):
    """An op that is linear in its one input."""


class Permute(LinearOp):
    """Put the axes into the order `static`."""

    def compute(self, x):
        return x.permute(self.static)

    def gradient(self, out_grad, out, x):
        back = sorted(range(len(self.static)), key=lambda i: self.static[i])
        return [apply(Permute(back), out_grad)]


class BroadcastTo(LinearOp):
    """Repeat to the shape `static`."""

    def compute(self, x):
        return x.broadcast_to(self.static)

    def gradient(self, out_grad, out, x):
        return [apply(SumTo(x.shape), out_grad)]


class SumTo(LinearOp):
    """Add up to the shape `static`: undo a broadcast. To the shape () it is the sum of all."""

    def compute(self, x):
        if x.shape == self.static:
            return x
        out = empty(self.static, x.spec.device)
        x.device.sum_to(out, x)
        return out

    def gradient(self, out_grad, out, x):
        return [apply(BroadcastTo(x.shape), out_grad)]


# The product of matrices is linear in each of its two inputs. Its gradient consists of products,
# with transposed factors, and thanks to step 1 a transposed matrix costs nothing.
class MatMul(Op):
    """The product of two matrices."""

    def compute(self, a, b):
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
            raise ValueError(f"matmul: shapes {a.shape} and {b.shape} do not fit")
        out = empty((a.shape[0], b.shape[1]), a.spec.device)
        a.device.matmul(out, a, b)
        return out

    def gradient(self, out_grad, out, a, b):
        turn = Permute((1, 0))
        return [
            out_grad @ apply(turn, b) if a.node.needs else None,
            apply(turn, a) @ out_grad if b.node.needs else None,
        ]


# Is it right? We check it against the definition of the derivative: change one number a little in
# both directions and see how the result changes. This is called **finite differences**. It takes
# two runs for each number, which is why nobody trains with it, but as a check nothing is better.
def differences(f, x, step=1e-5):
    """Return the gradient of a function of one tensor, by its definition."""
    numbers = value_of(x).device.download(value_of(x))

    def moved(i, by):
        changed = [n + by if k == i else n for k, n in enumerate(numbers)]
        return f(Tensor(nested(x.shape, changed), x.device)).tolist()

    slopes = [(moved(i, step) - moved(i, -step)) / (2 * step) for i in range(len(numbers))]
    return nested(x.shape, slopes)


def close(a, b, tolerance=1e-6):
    """Return whether nested lists are the same but for rounding."""
    if isinstance(a, list):
        return len(a) == len(b) and all(close(p, q, tolerance) for p, q in zip(a, b, strict=True))
    return abs(a - b) <= tolerance * max(1.0, abs(a), abs(b))


def example(w):
    """A function of a 3 x 2 matrix with a bit of everything."""
    data = Tensor([[0.5, -1.0, 2.0], [1.5, 0.3, -0.7]], requires_grad=False)
    hidden = (data @ w).tanh() + apply(SumTo((1, 2)), w) * 0.1
    return (hidden * hidden * (1.0 - hidden.exp())).sum()


w = Tensor([[0.1, 0.2], [-0.3, 0.4], [0.5, -0.6]])
loss = example(w)
backward(loss)
assert close(w.grad.tolist(), differences(example, w))
print("step 4: reverse mode agrees with finite differences")


# `backward` puts the gradient into `.grad`, which suits training. Mathematics prefers a function:
# `grad(f)` is the derivative of `f`, a function again. `f` runs on a node of its own, so that other
# uses of `x` do not count; a broadcast to the same shape serves for it. As everything stays
# recorded, `grad(grad(f))` is the second derivative.
def grad(f):
    """Return the gradient of a function, which takes a tensor and returns a single number."""

    def gradient_of_f(x):
        node = Node(BroadcastTo(x.shape), (x.node,), x.node.spec, x.node.value, True)
        out = f(Tensor.of(node))
        return next(found for below, found in walk(out, Tensor(1.0, out.device)) if below is node)

    return gradient_of_f


slope = grad(lambda x: x * x * x)
assert slope(Tensor(2.0)).tolist() == 12.0, "3 * x * x"
assert grad(slope)(Tensor(2.0)).tolist() == 12.0, "6 * x"
assert grad(grad(slope))(Tensor(2.0)).tolist() == 6.0

# **In Needle this is `python/needle/reverse.py`, and it differs because** its `walk` also serves
# ops with several results, frees what it has used as it goes, and can be told where to stop.
# `python/needle/autograd.py` has `backward` and `grad`. A node there may have lost its value when
# its gradient is computed, so `gradient(out_grad, out)` finds the inputs by `out.inputs` and reads
# only those that the op listed in `saves`.


# ## 5. Forward mode by dual numbers
#
# Reverse mode asks: what moves this result? Forward mode asks: if I move the inputs in *this*
# direction, how does everything else move? It needs no graph. Each value is accompanied by its
# **tangent**, the speed at which it moves, and each op computes both. Such a pair is called a
# **dual number**.
#
# In our framework a dual number takes the place of an array in a node. Its two parts are tensors.
# So the op that computes a tangent goes through `apply` as well, and whatever else we can do with
# tensors, we can do with tangents.
class Dual(NamedTuple):
    """A value and its tangent, in place of an array. Both are tensors."""

    level: int
    primal: Tensor
    tangent: Tensor

    @property
    def spec(self):
        return self.primal.node.spec


# Each call of `jvp` gets a **level**, a number higher than those before. If derivatives are nested,
# a value may be a dual number whose parts are dual numbers of an outer `jvp`. The level keeps them
# apart: an op looks at the highest level first and takes inputs without that level as constants.
LEVELS = itertools.count(1)


def jvp(f, x, tangent):
    """Return f(x), and its derivative in the direction of the tangent."""
    level = next(LEVELS)
    out = f(Tensor.of(Node(None, (), x.node.spec, Dual(level, x, tangent), False)))
    value = out.node.value
    if isinstance(value, Dual) and value.level == level:
        return value.primal, value.tangent
    return out, out * 0.0  # it does not depend on x


def apply(op, *inputs):
    """Return the result of an op on tensors and numbers, some of which may be dual numbers."""
    tensors = as_tensors(inputs)
    duals = [x.node.value for x in tensors if isinstance(x.node.value, Dual)]
    if not duals:
        return run(op, tensors)
    level = max(dual.level for dual in duals)
    primals, tangents = [], []
    for x in tensors:
        moves = isinstance(x.node.value, Dual) and x.node.value.level == level
        primals.append(x.node.value.primal if moves else x)
        tangents.append(x.node.value.tangent if moves else None)
    return recorded(op, tensors, Dual(level, *op.push(primals, tangents)))


# `push` is the forward rule. There is one for each *family*, not one for each op. An elementwise op
# multiplies each tangent with its derivative, the one that reverse mode uses too. A linear op
# treats the tangent as it treats the value. A product has two terms: move one factor, then the
# other.
@method(Elementwise)
def push(self, primals, tangents):
    """Return the result and its tangent, given the tangents of inputs (None for constants)."""
    out = apply(self, *primals)
    terms = [
        tangent * self.derivative(i, out, *primals)
        for i, tangent in enumerate(tangents)
        if tangent is not None
    ]
    return out, apply(BroadcastTo(out.shape), sum(terms[1:], terms[0]))


@method(LinearOp)
def push(self, primals, tangents):
    return apply(self, *primals), apply(self, *tangents)


@method(MatMul)
def push(self, primals, tangents):
    (a, b), (da, db) = primals, tangents
    terms = ([] if da is None else [da @ b]) + ([] if db is None else [a @ db])
    return a @ b, sum(terms[1:], terms[0])


# The two modes must agree: the gradient, multiplied with a direction, is the slope in that
# direction.
direction = Tensor([[1.0, -2.0], [0.5, 3.0], [-1.5, 0.25]], requires_grad=False)
_, slope = jvp(example, w, direction)
assert close(slope.tolist(), (w.grad * direction).sum().tolist(), 1e-12)

# They also combine. Forward mode through a gradient gives the second derivative in a direction,
# which costs about as much as a few gradients, however large `w` is.
_, curvature = jvp(grad(example), w, direction)
step = direction * 1e-5
up, down = grad(example)(w + step), grad(example)(w - step)
assert close(curvature.tolist(), ((up - down) * 5e4).tolist(), 1e-5)

# The levels matter in examples like this one. The inner derivative of `x + y` with respect to `y`
# is 1, so the whole function is `x * 1`, and its derivative is 1. Without levels, the tangent of
# `x` would be taken for one of `y`, and the answer would be 2.
one = Tensor(1.0)
nest = jvp(lambda x: x * jvp(lambda y: x + y, one, one)[1], Tensor(5.0), one)
assert nest[1].tolist() == 1.0
print("step 5: forward mode agrees with reverse mode")

# **In Needle this is `python/needle/forward.py`, and it differs because** a `Dual` there is a kind
# of array, so the graph and the C++ code treat it like one and programs without forward mode pay
# nothing. An op with several results has a tuple of them. An op outside these families needs no
# rule for forward mode: its tangent is found by reverse mode applied twice (`transpose` in
# `python/needle/reverse.py`). The functions for users are in `python/needle/derivatives.py`.


# ## 6. Lazy evaluation
#
# So far an op was computed as soon as it was called, which is called **eager**. In **lazy** mode
# the op is only written down. Nothing is computed until somebody reads a number, and then only what
# that number depends on. We have a graph already; now nodes may wait for their value.
#
# The shape of the result must be known at once. A rule for it in every op would have to agree with
# `compute`. It is simpler to run `compute` itself, on a device that does nothing: all the checks
# and all the shapes are above the devices.
class Meta:
    """A device that knows shapes and has no numbers."""

    def allocate(self, size):
        return None

    def elementwise(self, *arguments):
        pass

    sum_to = matmul = elementwise


DEVICES["meta"] = Meta()


@method(Op)
def infer(self, *specs):
    """Return the spec of the result, without computing it."""
    arrays = [Array(Spec(spec.shape, "meta"), None) for spec in specs]
    return Spec(self.compute(*arrays).shape, specs[0].device)


# `run` gets a second case: write down and wait. `realize` computes what a node depends on, inputs
# first, with the order from step 4. A node through which no derivative flows then forgets its
# inputs, so that they can be freed.
def run(op, tensors):
    """Compute an op, or in lazy mode write it down; return the tensor of the result."""
    if not MODES["lazy"]:
        return recorded(op, tensors, op.compute(*[value_of(x) for x in tensors]))
    nodes = tuple(x.node for x in tensors)
    needs = MODES["recording"] and any(node.needs for node in nodes)
    return Tensor.of(Node(op, nodes, op.infer(*[node.spec for node in nodes]), None, needs))


def realize(root):
    """Compute a node and everything that it waits for."""
    for node in inputs_first(root, lambda below: below.value is None):
        node.value = node.op.compute(*[below.value for below in node.inputs])
        if not node.needs:
            node.op, node.inputs = None, ()


def value_of(tensor):
    """Return the array of a tensor, computed if it waits; of a dual number that of the value."""
    if tensor.node.value is None:
        realize(tensor.node)
    value = tensor.node.value
    return value_of(value.primal) if isinstance(value, Dual) else value


with modes(lazy=True):
    late = (x * 0.5).exp()
    unused = (x * 1e6).exp()  # would be too large a number
    assert late.shape == (2, 3) and late.node.value is None, "the shape is known, the values wait"
    backward(late.sum())
    assert x.grad.node.value is None, "gradients wait too"
    gradient_later = x.grad
assert close(gradient_later.tolist(), ((x * 0.5).exp() * 0.5).tolist())
assert unused.node.value is None, "nobody asked for it, so nobody computed it"
with modes(lazy=True):
    long = Tensor(0.0)
    for _ in range(10_000):
        long = long + 1.0
    assert long.node.value is None and long.tolist() == 10_000.0
print("step 6: lazy mode gives the same numbers, and only those that are read")

# **In Needle this is `python/needle/executor.py`, and it differs because** waiting nodes there drop
# values that nobody will need, errors can name the line that called the op (`NEEDLE_DEBUG=1`),
# several threads may ask for one value, and a graph that only grows leads to a warning. The device
# without numbers is `python/needle/backend/meta.py`, and `infer` is a method of `Op` in
# `python/needle/ops/core/families.py`, as here.


# ## 7. A module
#
# A network is a function with **parameters**, the numbers that it learns. A **module** is an object
# that holds parameters and defines `forward`. Its parameters are found by looking through its
# attributes, also those of modules within it, so nobody has to keep a list.
class Parameter(Tensor):
    """A tensor that a module learns."""


class Module:
    """Base of all layers and models. Subclasses define `forward`."""

    def __call__(self, x):
        return self.forward(x)

    def parameters(self):
        """Return all parameters in the attributes of the module, and in lists of them."""
        found = []
        for value in vars(self).values():
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, Parameter):
                    found.append(part)
                elif isinstance(part, Module):
                    found += part.parameters()
        return found


RANDOM = random.Random(0)


class Linear(Module):
    """x @ weight + bias."""

    def __init__(self, inputs, outputs, device="python"):
        bound = math.sqrt(6 / (inputs + outputs))
        rows = [[RANDOM.uniform(-bound, bound) for _ in range(outputs)] for _ in range(inputs)]
        self.weight = Parameter(rows, device)
        self.bias = Parameter([[0.0] * outputs], device)

    def forward(self, x):
        return x @ self.weight + self.bias


class Sequential(Module):
    """One layer after the other; a function without parameters is a layer too."""

    def __init__(self, *layers):
        self.layers = list(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


model = Sequential(Linear(3, 4), Tensor.tanh, Linear(4, 1))
assert [p.shape for p in model.parameters()] == [(3, 4), (1, 4), (4, 1), (1, 1)]
assert model(x).shape == (2, 1)

# **In Needle this is `python/needle/nn/module.py`, and it differs because** a module there also
# gives its parameters names (`0.weight`), saves and loads them, moves them to a device, has buffers
# (numbers that are kept and not learned), and knows whether it is in training. The layers are in
# `python/needle/nn/layers.py` and its neighbours.


# ## 8. An optimizer
#
# The gradient points to where the loss grows, so an **optimizer** moves each parameter a little the
# other way, again and again. Steps in the direction of the newest gradient alone zigzag through
# narrow valleys. With **momentum** the parameter moves like a heavy ball: it keeps most of its
# velocity and the gradient changes it a little, so zig and zag cancel.
class SGD:
    """Stochastic gradient descent with momentum."""

    def __init__(self, parameters, lr, momentum=0.9):
        self.parameters, self.lr, self.momentum = parameters, lr, momentum
        self.velocities = [0.0 for _ in parameters]

    def step(self):
        """Move all parameters by their velocities."""
        with modes(recording=False):
            for i, p in enumerate(self.parameters):
                self.velocities[i] = self.momentum * self.velocities[i] + p.grad
                p.set(value_of(p - self.lr * self.velocities[i]))


# Note that `step` is written with the same tensors as everything else, and without recording: the
# parameter gets a new leaf, and the graph of this step can be freed. Let us find the lowest place
# of a valley that is a hundred times as steep along one axis as along the other.
place = Parameter([1.0, 1.0])
before = place * 1.0
optimizer = SGD([place], lr=0.01)
for _ in range(300):
    distance = place - Tensor([0.3, -0.2], requires_grad=False)
    backward((Tensor([100.0, 1.0], requires_grad=False) * distance * distance).sum())
    optimizer.step()
assert close(place.tolist(), [0.3, -0.2], 1e-3)
assert before.node.inputs[0].value.tolist() == [1.0, 1.0], "old graphs see the old numbers"
print("step 8: the optimizer finds the lowest place")

# **In Needle this is `python/needle/optim/rules.py`, and it differs because** a rule there is one
# call of the device for all parameters (`sgd` in `python/needle/backend/contract.py`), which writes
# the new numbers over the old where nobody else can see them. Groups of parameters, schedules and
# saved states, which all rules share, are in `python/needle/optim/optimizer.py`.


# ## 9. A second device in 60 lines
#
# A graphics processor has memory of its own, which Python cannot read, and it works on its own: the
# program asks for an operation and goes on at once, while the device does one thing after the
# other. Only someone who wants to *see* a number has to wait.
#
# We build such a device from a thread. `ThreadPoolExecutor(1)` is a thread with a queue of
# requests, which it answers in order. `submit` returns at once with a **future**, a promise of the
# answer. The future of an allocation is our handle: the program can hold it and pass it on, and
# only the thread opens it. When the program forgets a handle, the memory is freed.
class Queue:
    """A device with memory of its own. A thread of its own runs the kernels of another device."""

    def __init__(self, kernels):
        self.kernels = kernels
        self.thread = ThreadPoolExecutor(1)
        self.requests = []

    def ask(self, kernel, *arguments):
        """Let the thread run a kernel; return at once."""
        self.requests.append(self.thread.submit(self.serve, kernel, arguments))

    def serve(self, kernel, arguments):
        """Run a kernel on the memory behind the handles. Only the thread comes here."""
        opened = [
            Array(x.spec, x.handle.result(), x.strides, x.offset) if isinstance(x, Array) else x
            for x in arguments
        ]
        return kernel(*opened)

    def allocate(self, size):
        return self.thread.submit(self.kernels.allocate, size)

    def upload(self, out, numbers):
        self.ask(self.kernels.upload, out, list(numbers))

    def download(self, x):
        requests, self.requests = self.requests, []
        for request in requests:
            request.result()  # waits, and raises what went wrong in it
        return self.thread.submit(self.serve, self.kernels.download, [x]).result()

    def elementwise(self, name, out, *inputs):
        self.ask(self.kernels.elementwise, name, out, *inputs)

    def sum_to(self, out, x):
        self.ask(self.kernels.sum_to, out, x)

    def matmul(self, out, a, b):
        self.ask(self.kernels.matmul, out, a, b)


DEVICES["queue"] = Queue(Loops())


# Nothing above the devices has to change: not the arrays, not the ops, not the graph. We only add
# an op that moves a tensor to another device. Its gradient moves back, so a graph may cross from
# device to device.
class ToDevice(LinearOp):
    """Copy to the device `static`."""

    def compute(self, x):
        out = empty(x.shape, self.static)
        out.device.upload(out, x.device.download(x))
        return out

    def infer(self, spec):
        return Spec(spec.shape, self.static)

    def gradient(self, out_grad, out, x):
        return [apply(ToDevice(x.device), out_grad)]


# The program does not wait: its requests pile up until somebody reads a number. And a function that
# computes a part of its result on each device has the right gradient.
far = Tensor([[1.0, 2.0], [3.0, 4.0]], "queue")
asked = far @ far + far
assert len(DEVICES["queue"].requests) == 3, "upload, matmul, add; nobody has waited yet"
assert asked.tolist() == [[8, 12], [18, 26]]


def example_on_both(w):
    return example(w).to("queue") * w.tanh().to("queue").sum()


loss = example_on_both(w)
backward(loss)
assert (loss.device, w.grad.device) == ("queue", "python")
assert close(w.grad.tolist(), differences(example_on_both, w))
print("step 9: a graph across two devices has the right gradient")

# **In Needle this is `python/needle/backend/contract.py`, and it differs because** its `Backend`
# has more kernels than our three (sort, gather, random numbers, and others), some with a default
# that is made of the others. `python/needle/backend/numpy.py` is the shortest whole device. The one
# that works like our queue is `python/needle/backend/cuda/backend.py`: a stream of the GPU in place
# of the thread, and `python/needle/backend/cuda/arena.py` for memory. `ToDevice` is in
# `python/needle/ops/shape/movement.py`.

# ## 10. A kernel in C
#
# Python's loops are slow because every number is an object. A C compiler turns the same loop into a
# handful of instructions of the processor. So we write the kernels again in C, compile them while
# the program runs, and call them through `ctypes`, which is part of Python.
#
# The formulas need not be written again: `FUNCTION` makes a loop of a formula, and is used once for
# each row of the table from step 2. `places` from step 1 says where the elements are.
C_SOURCE = r"""
#include <math.h>
#include <stdint.h>
#define FUNCTION(name, formula)                                                     \
  void c_##name(int64_t size, double *out, const double *xs, const double *ys,      \
                const int64_t *x_places, const int64_t *y_places) {                 \
    for (int64_t i = 0; i < size; i++) {                                            \
      const double x = xs[x_places[i]], y = ys[y_places[i]];                        \
      out[i] = formula;                                                             \
    }                                                                               \
  }

void c_matmul(double *out, const double *a, const double *b, int64_t rows, int64_t inner,
              int64_t columns, int64_t a_down, int64_t a_right, int64_t b_down, int64_t b_right) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) {
      double total = 0;
      for (int64_t k = 0; k < inner; k++)
        total += a[i * a_down + k * a_right] * b[k * b_down + j * b_right];
      out[i * columns + j] = total;
    }
}
"""
C_SOURCE += "".join(f"FUNCTION({name}, {formula})\n" for name, formula in FUNCTIONS.items())


# Without a compiler the program goes on with Python's loops.
def compiled(source):
    """Return the library of a C program, or None where there is no C compiler."""
    if shutil.which("cc") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        text, library = Path(folder, "kernels.c"), Path(folder, "kernels.so")
        text.write_text(source)
        command = ["cc", "-O2", "-shared", "-fPIC", "-o", library, text, "-lm"]
        subprocess.run(command, check=True)
        return ctypes.CDLL(str(library))


# The device with compiled kernels is the old one with two methods replaced. It keeps Python's
# `sum_to`: a device may take over one kernel at a time, the most worthwhile first.
def address(row, offset=0):
    """Return the address of an element of a row in memory, for C."""
    return ctypes.c_void_p(row.buffer_info()[0] + 8 * offset)


class Compiled(Loops):
    """A device with kernels in C for the functions of the table, and for products of matrices."""

    def __init__(self, library):
        self.library = library

    def elementwise(self, name, out, *inputs):
        x, y = inputs[0], inputs[-1]  # a function of one input does not look at y
        size, x_places, y_places = len(out.handle), x.places(), y.places()
        rows = map(address, (out.handle, x.handle, y.handle, x_places, y_places))
        getattr(self.library, f"c_{name}")(ctypes.c_int64(size), *rows)

    def matmul(self, out, a, b):
        numbers = map(ctypes.c_int64, (*a.shape, b.shape[1], *a.strides, *b.strides))
        starts = address(a.handle, a.offset), address(b.handle, b.offset)
        self.library.c_matmul(address(out.handle), *starts, *numbers)


library = compiled(C_SOURCE)
kernels = Loops() if library is None else Compiled(library)
square = new_array([[math.sin(60 * i + j) for j in range(60)] for i in range(60)])
results, seconds = [], []
for device in (Loops(), kernels):
    results.append(empty((60, 60), "python"))
    start = time.perf_counter()
    device.matmul(results[-1], square, square.permute((1, 0)))
    seconds.append(time.perf_counter() - start)
assert close(results[0].tolist(), results[1].tolist(), 1e-12)
if library is None:
    print("step 10: there is no C compiler (cc), so Python's loops do all the work")
else:
    print(
        f"step 10: the product of matrices in C takes 1/{seconds[0] / seconds[1]:.0f} of the time"
    )

# **In Needle this is `src/cpu/elementwise/elementwise.cc`, and it differs because** a kernel there
# is planned first: operands that lie densely go straight to a loop, others take a longer way
# (`src/common/kernels.h` is the contract). The loops are made from one table too,
# `src/common/functions.def`, for each dtype and each instruction set of the processor; they compute
# many numbers with one instruction, on several threads. Products of matrices
# (`src/cpu/gemm/gemm.cc`) are computed in blocks that fit into the processor's caches.
# `python/needle/backend/native.py` does what `Compiled` does here.


# ## The end: train a network on both devices
#
# Two spirals wind around each other, and the network is to tell them apart: its output should be 1
# for points of the one and -1 for points of the other. The loss is the mean squared distance from
# that, and the sign of the output is the network's answer.
#
# The first layer is on the device "python". Then the numbers move to "queue", which computes the
# rest, in C if there is a compiler. Meanwhile Python is already at the next op, because `ctypes`
# lets other threads run during a call. `backward` goes the same way back and brings each gradient
# to the device of its parameter.
angles = [0.5 + 0.2 * i for i in range(32)]
spiral = [[angle / 4 * math.cos(angle), angle / 4 * math.sin(angle)] for angle in angles]
inputs = Tensor(spiral + [[-x, -y] for x, y in spiral], requires_grad=False)
labels = [[-1]] * 32 + [[1]] * 32

DEVICES["queue"] = Queue(kernels)
targets = Tensor(labels, "queue", requires_grad=False)
RANDOM.seed(1)
there = Sequential(Linear(12, 12, "queue"), Tensor.tanh, Linear(12, 1, "queue"))
model = Sequential(Linear(2, 12), Tensor.tanh, lambda x: x.to("queue"), there)
optimizer = SGD(model.parameters(), lr=0.05)
for step in range(201):
    distance = model(inputs) - targets
    loss = (distance * distance).sum() * (1 / 64)
    backward(loss)
    optimizer.step()
    if step % 50 == 0:
        print(f"spirals: step {step:3}, loss {loss.tolist():.4f}")
assert {p.grad.device for p in model.parameters()} == {"python", "queue"}
right = sum(a[0] * b[0] > 0 for a, b in zip(model(inputs).tolist(), labels, strict=True))

# And this is what it has learned: which spiral it sees in each place of the plane.
plane = [[x / 10, -y / 5] for y in range(-9, 10) for x in range(-18, 19)]
picture = "".join("#" if z[0] > 0 else "." for z in model(Tensor(plane)).tolist())
print("\n".join(picture[start : start + 37] for start in range(0, len(picture), 37)))
print(f"last loss {loss.tolist():.4f}, {right} of 64 right")
assert right == 64

# That is the whole of it: arrays that are views of memory, ops with their derivatives, one graph
# for both directions of differentiation and for lazy evaluation, and devices below all that. Needle
# is the same design, with many more ops and much more care for speed and for errors. [Read the
# source](read_the_source.md) shows the way through it.
