"""The static face: define a graph once, then run parts of it.

graph.py     Graph, Placeholder, Operation, gradients
session.py   Session, which makes programs of what is fetched
pipeline.py  a network as a list of layers with a forward and a backward pass
"""

from needle.static.graph import Graph, Operation, Placeholder, Train, Variable, gradients
from needle.static.session import Session

__all__ = ["Graph", "Operation", "Placeholder", "Session", "Train", "Variable", "gradients"]
