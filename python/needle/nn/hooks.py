"""Hooks: functions that run before and after a module's ``forward``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from needle import tracing
from needle.errors import ArgumentError

_Hook = tuple[Callable[..., Any], bool]


class Handle:
    """What registering a hook returns: ``remove()`` removes it, and so does the end of ``with``."""

    def __init__(self, hooks: list[_Hook], entry: _Hook) -> None:
        self._hooks, self._entry = hooks, entry

    def remove(self) -> None:
        """Remove the hook; a second time does nothing."""
        tracing.changed()
        self._hooks[:] = [entry for entry in self._hooks if entry is not self._entry]

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


class Hooks:
    """The hooks of one module, in the order in which they run."""

    def __init__(self) -> None:
        self.before: list[_Hook] = []
        self.after: list[_Hook] = []

    def compared(self) -> tuple[object, ...]:
        """Return what must be equal for a program of the module to hold."""
        return (*self.before, None, *self.after)

    def add(
        self, hooks: list[_Hook], hook: Callable[..., Any], prepend: bool, with_kwargs: bool
    ) -> Handle:
        """Add a hook to one of the lists.

        Raises:
            ArgumentError: if it cannot be called.
        """
        if not callable(hook):
            raise ArgumentError(f"expected a function as a hook, got {hook!r:.60}")
        entry = (hook, with_kwargs)
        tracing.changed()
        hooks.insert(0 if prepend else len(hooks), entry)
        return Handle(hooks, entry)

    def call(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the module's ``forward`` with all hooks.

        Raises:
            ArgumentError: if a hook that takes keyword arguments returns something else than both.
        """
        for hook, with_kwargs in list(self.before):
            given = hook(module, args, kwargs) if with_kwargs else hook(module, args)
            if given is None:
                continue
            if with_kwargs:
                if not isinstance(given, tuple) or len(given) != 2:
                    raise ArgumentError(
                        f"forward pre-hook: expected (args, kwargs) or None, got {given!r:.60}"
                    )
                args, kwargs = given
            else:
                args = given if isinstance(given, tuple) else (given,)
        out = module.forward(*args, **kwargs)
        for hook, with_kwargs in list(self.after):
            new = hook(module, args, kwargs, out) if with_kwargs else hook(module, args, out)
            out = out if new is None else new
        return out
