"""Tests for your own ops, the same that Needle uses for its ops.

``check_gradients`` compares derivatives with finite differences; ``check_op`` runs every generated
check of an op class on its samples.
"""

from needle.testing.checks import CHECKS, Case, Check, cases, check_op
from needle.testing.gradients import check_gradients
from needle.testing.tolerance import assert_close, tolerance

__all__ = [
    "CHECKS", "Case", "Check", "assert_close", "cases", "check_gradients", "check_op",
    "tolerance",
]  # fmt: skip
