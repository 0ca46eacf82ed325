"""Tensors on disk. No load path runs code from a file."""

from needle.io.checkpoint import Checkpoints
from needle.io.lock import FolderLock
from needle.io.programs import LoadedProgram, load_program, save_program
from needle.io.pytorch import from_torch
from needle.io.state import load, load_metadata, replacing, save, save_nested

__all__ = [
    "Checkpoints", "FolderLock", "LoadedProgram", "from_torch", "load", "load_metadata",
    "load_program", "replacing", "save", "save_nested", "save_program",
]  # fmt: skip
