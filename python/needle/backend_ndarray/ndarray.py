"""The course's array module, under its other name."""

from needle.course.arrays import *
