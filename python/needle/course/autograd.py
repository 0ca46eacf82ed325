"""The course's functions of a graph, its names in ``needle.autograd``, and its lazy mode."""

from __future__ import annotations

import functools
import operator
import sys
import types
from collections.abc import Sequence
from typing import Any

from needle import autograd, executor, graph
from needle.errors import ArgumentError
from needle.ops.core.op import Op
from needle.ops.elementwise.arithmetic import Add, Negative, Subtract
from needle.tensors import Tensor
from needle.value import TensorTuple, Value

__all__ = [
    "Tensor", "TensorOp", "TensorTuple", "TensorTupleOp", "Value", "compute_gradient_of_variables",
    "find_topo_sort", "sum_node_list", "topo_sort_dfs",
]  # fmt: skip

TensorOp = TensorTupleOp = Op


def compute_gradient_of_variables(output_tensor: Any, out_grad: Any) -> None:
    """Store the gradient of ``output_tensor`` in ``.grad`` of every tensor below, as a graph."""
    autograd.backward(output_tensor, out_grad, create_graph=True)


def find_topo_sort(node_list: Sequence[Any]) -> list[Any]:
    """Return all tensors below, inputs first: depth first in the order of inputs.

    The list follows the course: every tensor has its value (freed ones are computed again), Python
    numbers are not listed, and ``a - b`` is ``a + (-b)``, two results.
    """
    found: dict[Any, Any] = {}
    order: list[Any] = []
    for node in graph.topo([graph.leaf(x) for x in node_list]):
        inputs = [found[below] for below in node.inputs]
        if isinstance(node.op, Subtract) and not _is_number(node.inputs[1]):
            inputs[1] = _recorded(Negative.of(), [inputs[1]])
            order.append(inputs[1])
            found[node] = _recorded(Add.of(), inputs)
        else:
            tensor = graph.tensor_of(node)
            freed = tensor.array is None and node.done
            found[node] = _recorded(node.op, inputs) if freed else tensor
        if not _is_number(node):
            order.append(found[node])
    return order


def topo_sort_dfs(node: Any, visited: set[Any], topo_order: list[Any]) -> None:
    """Append the tensors below ``node`` that are not in ``visited``, and it, inputs first."""
    stack = [(node, iter(node.inputs))]
    visited.add(node)
    while stack:
        tensor, inputs = stack[-1]
        for below in inputs:
            if below not in visited:
                visited.add(below)
                stack.append((below, iter(below.inputs)))
                break
        else:
            topo_order.append(tensor)
            stack.pop()


def sum_node_list(node_list: Sequence[Any]) -> Any:
    """Return the sum of tensors; of one tensor, that tensor.

    Raises:
        ArgumentError: if there are none.
    """
    if not node_list:
        raise ArgumentError("sum_node_list: expected at least one tensor, got none")
    return functools.reduce(operator.add, node_list)


def _is_number(node: Any) -> bool:
    return node.op is None and not node.needs and getattr(node.spec, "shape", None) == ()


def _recorded(op: Any, inputs: Sequence[Any]) -> Any:
    """Return the result of an op as part of the graph, even if it requires no gradient."""
    with executor.modes(recording=False, lazy=False):
        array = op.compute(*map(executor.primal_array, inputs))
    return graph.record(op, inputs, array)


class _Autograd(types.ModuleType):
    """Lets programs of the course write ``needle.autograd.LAZY_MODE = True``."""

    @property
    def LAZY_MODE(self) -> bool:
        """Whether this thread postpones computation."""
        return bool(graph.lazy())

    @LAZY_MODE.setter
    def LAZY_MODE(self, on: bool) -> None:
        graph.set_lazy(bool(on))

    @property
    def TENSOR_COUNTER(self) -> int:
        """Number of live tensors."""
        return int(graph.live_tensors())


vars(autograd).update({name: globals()[name] for name in __all__})
sys.modules["needle.autograd"].__class__ = _Autograd
