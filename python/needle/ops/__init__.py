"""All ops: a class per op, a function per op, and the course's names for both."""

from needle.ops.base import Composite, Elementwise, Linear, Multilinear, Op
from needle.ops.elementwise import (
    Abs,
    Add,
    BitwiseAnd,
    Divide,
    Equal,
    Exp,
    Greater,
    GreaterEqual,
    Less,
    LessEqual,
    Log,
    Maximum,
    Minimum,
    Multiply,
    Negative,
    NotEqual,
    Power,
    ReLU,
    ReLUGrad,
    Rsqrt,
    Sigmoid,
    Sign,
    Sqrt,
    Square,
    Subtract,
    Tanh,
    Where,
    absolute,
    add,
    bitwise_and,
    divide,
    equal,
    exp,
    greater,
    greater_equal,
    less,
    less_equal,
    log,
    maximum,
    minimum,
    multiply,
    negative,
    not_equal,
    power,
    relu,
    relu_grad,
    rsqrt,
    sigmoid,
    sign,
    sqrt,
    square,
    subtract,
    tanh,
    where,
)
from needle.ops.matmul import MatMul, matmul
from needle.ops.movement import (
    BroadcastTo,
    Cast,
    Concat,
    Copy,
    Pad,
    Permute,
    Reshape,
    Slice,
    SliceGrad,
    ToDevice,
    astype,
    broadcast_to,
    concat,
    copy,
    flip,
    pad,
    permute,
    reshape,
    squeeze,
    to_device,
    transpose,
    unsqueeze,
)
from needle.ops.reduce import (
    ArgMax,
    ArgMin,
    Max,
    Mean,
    Min,
    Sum,
    SumTo,
    amax,
    amin,
    argmax,
    argmin,
    mean,
    summation,
)
from needle.ops.tuples import MakeTensorTuple, TupleGetItem, make_tuple, tuple_get_item

# The course's names.
TensorOp = Op
EWiseAdd, EWiseMul, EWiseDiv, EWisePow, Negate = Add, Multiply, Divide, Power, Negative
Summation = Sum
negate = negative


def all_ops() -> list[type[Op]]:
    """Return every op class that has samples: the op database of tests, docs and export."""
    found: set[type[Op]] = set()
    todo = [Op]
    while todo:
        cls = todo.pop()
        todo += cls.__subclasses__()
        if cls.samples is not None and cls.__module__.startswith("needle."):
            found.add(cls)
    return sorted(found, key=lambda cls: (cls.__module__, cls.__name__))
