"""The names and rules of the course that Needle follows where they differ from the rest.

Its modules put them where programs of the course look: operators on ``NDArray``, functions on
devices, names in ``needle.ops`` and ``needle.autograd``. Nobody below imports this room.
"""

from needle.course import arrays, autograd, devices, operators, ops

__all__ = ["arrays", "autograd", "devices", "operators", "ops"]
