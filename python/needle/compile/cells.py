"""Cells: the places outside a program that it reads before a run, and maybe writes after it."""

from __future__ import annotations

from typing import Any, NamedTuple

from needle import executor, graph, tracing
from needle.backend.ndarray import NDArray, full_of


class Argument(NamedTuple):
    """A tensor that the function is called with."""

    place: int

    def tensor(self, arguments: list[Any]) -> Any:
        return arguments[self.place]

    def put(self, arguments: list[Any], array: NDArray) -> None:
        graph.set_array(arguments[self.place], array)


class Held(NamedTuple):
    """A tensor that the function finds outside: a parameter, say."""

    owner: Any

    def tensor(self, arguments: list[Any]) -> Any:
        return self.owner

    def put(self, arguments: list[Any], array: NDArray) -> None:
        graph.set_array(self.owner, array)


class Buffer(NamedTuple):
    """A module's buffer: the tensor that the attribute holds now; a new one is assigned."""

    attributes: dict[str, Any]
    name: str

    def tensor(self, arguments: list[Any]) -> Any:
        return self.attributes.get(self.name)

    def put(self, arguments: list[Any], array: NDArray) -> None:
        old = self.attributes.get(self.name)
        if old is None:
            tracing.changed()
        else:
            tracing.replaced(old)
        self.attributes[self.name] = graph.wrap(array)


class Grad(NamedTuple):
    """The gradient of a tensor: a new one is assigned."""

    of: Any  # Argument or Held

    def tensor(self, arguments: list[Any]) -> Any:
        return self.of.tensor(arguments).grad

    def put(self, arguments: list[Any], array: NDArray | None) -> None:
        self.of.tensor(arguments).grad = None if array is None else graph.wrap(array)


class Slot(NamedTuple):
    """A state of an optimizer for a parameter, which belongs to the optimizer alone.

    It starts with a value, where it is missing.
    """

    state: dict[Any, NDArray]
    parameter: Any
    spec: Any
    start: float

    def array(self) -> NDArray:
        found = self.state.get(self.parameter)
        return full_of(self.spec, self.start) if found is None else found

    def put(self, arguments: list[Any], array: NDArray) -> None:
        self.state[self.parameter] = array


def found(cell: Any, arguments: list[Any]) -> tuple[Any, bool]:
    """Return the array in a cell, and whether a store may write there; None if there is none."""
    if type(cell) is Slot:
        return cell.array(), True
    tensor = cell.tensor(arguments)
    if not isinstance(tensor, graph.TensorBase):
        return None, False
    alone = type(cell) in (Held, Argument) and graph.exclusive(tensor)  # asked before we hold it
    return executor.array_of(tensor), alone
