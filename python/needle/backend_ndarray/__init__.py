"""The course's array module: ``from needle import backend_ndarray as nd``."""

from needle.course.arrays import *
