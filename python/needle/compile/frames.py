"""Arguments and results: nested tuples, lists and dicts of tensors and of other objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from needle import graph
from needle.tree import like, plain

PLAIN = (type(None), bool, str, bytes, type(Ellipsis))
"""Types of objects that count as a part of the structure wherever they are."""


class Leaf:
    """The place of a tensor in a structure."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "tensor"


TENSOR = Leaf()


def flatten(tree: Any, tensors: list[Any], other: Callable[[Any], Any]) -> Any:
    """Append the tensors of a tree to a list, in order; return the rest, which can be a key.

    Args:
        tree: nested tuples, lists and dicts.
        tensors: the list.
        other: returns what stands for any other object.
    """
    if isinstance(tree, graph.TensorBase):
        if type(tree.spec) is tuple:
            return flatten(plain(tree), tensors, other)
        tensors.append(tree)
        return TENSOR
    if isinstance(tree, (tuple, list)):
        return type(tree), tuple([flatten(x, tensors, other) for x in tree])
    if type(tree) is dict:
        return dict, tuple([(key, flatten(x, tensors, other)) for key, x in tree.items()])
    return (type(tree), tree) if isinstance(tree, PLAIN) else other(tree)


def filled(frame: Any, tensors: Iterator[Any]) -> Any:
    """Return a tree whose places of tensors are filled with those that follow."""
    if frame is TENSOR:
        return next(tensors)
    if isinstance(frame, (tuple, list)):
        return like(frame, [filled(x, tensors) for x in frame])
    if type(frame) is dict:
        return {key: filled(x, tensors) for key, x in frame.items()}
    return frame


def frame_of(tree: Any) -> Any:
    """Return a tree with places of tensors in place of the tensors."""
    if isinstance(tree, graph.TensorBase):
        several = type(tree.spec) is tuple
        return tuple(TENSOR for _ in tree.spec) if several else TENSOR
    if isinstance(tree, (tuple, list)):
        return like(tree, map(frame_of, tree))
    return {key: frame_of(x) for key, x in tree.items()} if type(tree) is dict else tree


def rebuilt(tree: Any, tensors: Iterator[Any], other: Callable[[Any], Any]) -> Any:
    """Return a tree with its tensors replaced by those that follow, and other objects, too."""
    if isinstance(tree, graph.TensorBase):
        if type(tree.spec) is tuple:
            return rebuilt(plain(tree), tensors, other)
        return next(tensors)
    if isinstance(tree, (tuple, list)):
        return like(tree, [rebuilt(x, tensors, other) for x in tree])
    if type(tree) is dict:
        return {key: rebuilt(x, tensors, other) for key, x in tree.items()}
    return tree if isinstance(tree, PLAIN) else other(tree)
