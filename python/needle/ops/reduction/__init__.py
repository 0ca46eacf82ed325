"""Reductions and scans over axes, softmax among them."""
