"""Tensors on disk. No load path runs code from a file."""

from needle.io.state import load, load_metadata, replacing, save
