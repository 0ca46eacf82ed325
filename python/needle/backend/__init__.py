"""Compute backends. The contract is in ``contract.py``; ``loading.py`` loads devices."""

from needle.backend.contract import Backend, find_override, override

__all__ = ["Backend", "find_override", "override"]
