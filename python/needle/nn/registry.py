"""Methods by which modules get, and give out, parts by name: PyTorch's names for attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from needle.errors import ArgumentError, OptionError, explain, unknown
from needle.nn.hooks import Handle, Hooks
from needle.tensors import Parameter, Tensor

if TYPE_CHECKING:
    from needle.nn.module import Module


class Registry:
    """The part of ``Module`` that names things."""

    _hooks: Hooks | None = None

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Set an attribute that is a parameter, or None where one may come later.

        Raises:
            OptionError: if the module has another attribute of that name, or the name has a dot.
            ArgumentError: if it is neither a Parameter nor None.

        >>> layer = nn.Identity()
        >>> layer.register_parameter("scale", nn.Parameter(ndl.ones(2)))
        >>> [name for name, _ in layer.named_parameters()]
        ['scale']
        """
        if param is not None and not isinstance(param, Parameter):
            raise ArgumentError(
                f"register_parameter: expected a Parameter or None, got {type(param).__name__}\n"
                "  try: nn.Parameter(x), or register_buffer for what is not learned"
            )
        self._register("register_parameter", name, param, Parameter)
        if param is None:
            vacant: tuple[str, ...] = getattr(self, "_vacant", ())
            object.__setattr__(self, "_vacant", (*vacant, name))

    def add_module(self, name: str, module: Registry | None) -> None:
        """Set an attribute that is a module, or None.

        Raises:
            OptionError: if the module has another attribute of that name, or the name has a dot.
            ArgumentError: if it is neither a module nor None.

        >>> model = nn.Identity()
        >>> model.add_module("head", nn.Linear(3, 2))
        >>> model.head
        Linear(3, 2)  8 parameters
        """
        if module is not None and not isinstance(module, Registry):
            raise ArgumentError(
                f"add_module: expected a module or None, got {type(module).__name__}"
            )
        self._register("add_module", name, module, Registry)

    register_module = add_module

    def _register(self, method: str, name: str, value: object, kind: type) -> None:
        if not isinstance(name, str) or not name or "." in name:
            raise OptionError(f"{method}: expected a name (a string without dots), got {name!r}")
        old = getattr(self, name, None)
        if old is not None and (name not in vars(self) or not isinstance(old, kind)):
            raise OptionError(
                f"{method}: {type(self).__name__} already has an attribute {name!r}, "
                f"a {type(old).__name__}"
            )
        setattr(self, name, value)

    def get_parameter(self, target: str) -> Parameter:
        """Return a parameter by its dotted name.

        Raises:
            OptionError: for an unknown name, with the nearest known one.

        >>> nn.Sequential(nn.Linear(3, 2)).get_parameter("0.weight").shape
        (3, 2)
        """
        found: Parameter = self._by_name("parameter", "named_parameters", target)
        return found

    def get_buffer(self, target: str) -> Tensor:
        """Return a buffer by its dotted name. See ``get_parameter``."""
        found: Tensor = self._by_name("buffer", "named_buffers", target)
        return found

    def get_submodule(self, target: str) -> Module:
        """Return a module by its dotted name; "" is this one. See ``get_parameter``.

        >>> nn.Sequential(nn.Linear(3, 2)).get_submodule("0")
        Linear(3, 2)  8 parameters
        """
        return self._by_name("module", "named_modules", target)

    def _by_name(self, what: str, method: str, target: str) -> Any:
        named = dict(getattr(self, method)(remove_duplicate=False))
        if target not in named:
            raise unknown(f"{type(self).__name__}: {what}", target, [n for n in named if n])
        return named[target]

    def _repr_html_(self) -> str:
        from needle import notebook  # only notebooks need it

        return notebook.of_module(self)

    # ---- hooks -----------------------------------------------------------------

    def _with_hooks(self) -> Hooks:
        if self._hooks is None:
            object.__setattr__(self, "_hooks", Hooks())
        assert self._hooks is not None
        return self._hooks

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> Handle:
        """Let a function run before ``forward``, in each call of the module.

        Args:
            hook: takes ``(module, args)``; returns None, or other arguments. With ``with_kwargs``
                it takes ``(module, args, kwargs)`` and returns None or ``(args, kwargs)``.
            prepend: whether it runs before the other hooks.
            with_kwargs: whether it takes keyword arguments too.

        Returns:
            A handle; ``handle.remove()`` removes the hook.

        Raises:
            ArgumentError: if the hook cannot be called.

        >>> layer = nn.ReLU()
        >>> handle = layer.register_forward_pre_hook(lambda module, args: (args[0] + 1.0,))
        >>> print(layer(Tensor([-2.0, 2.0])))
        [0. 3.]
        """
        hooks = self._with_hooks()
        return hooks.add(hooks.before, hook, prepend, with_kwargs)

    def register_forward_hook(
        self,
        hook: Callable[..., Any],
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> Handle:
        """Let a function run after ``forward``, in each call of the module.

        Args:
            hook: takes ``(module, args, output)``; returns None, or another output. With
                ``with_kwargs`` it takes ``(module, args, kwargs, output)``.
            prepend: whether it runs before the other hooks.
            with_kwargs: whether it takes keyword arguments too.
            always_call: must be False: hooks do not run after an error.

        Returns:
            A handle; ``handle.remove()`` removes the hook.

        Raises:
            ArgumentError: if the hook cannot be called.
            OptionError: for ``always_call=True``.

        >>> shapes = []
        >>> layer = nn.Linear(3, 2)
        >>> hook = lambda module, args, out: shapes.append(out.shape)
        >>> with layer.register_forward_hook(hook):
        ...     out = layer(ndl.ones(4, 3))
        >>> shapes
        [(4, 2)]
        """
        if always_call:
            raise OptionError("register_forward_hook: always_call=True is not available")
        hooks = self._with_hooks()
        return hooks.add(hooks.after, hook, prepend, with_kwargs)


def check_parameter(name: str, value: object) -> None:
    """Check that a value can take the place of a parameter.

    Raises:
        ArgumentError: if it is neither a parameter nor None.
    """
    if value is not None and not isinstance(value, Parameter):
        raise explain(
            ArgumentError, "assignment", f"{name} is a parameter, the new value is not",
            [("value", value)], "only another Parameter or None can replace a parameter",
            f"{name.rpartition('.')[2]}.data = y to change its values, Parameter(y) to replace it, "
            "or del first",
        )  # fmt: skip


def check_buffer(name: str, value: object) -> None:
    """Check that a value can be a buffer.

    Raises:
        ArgumentError: if it is neither a tensor nor None, or a parameter.
    """
    if value is not None and (not isinstance(value, Tensor) or isinstance(value, Parameter)):
        raise explain(
            ArgumentError, "assignment", f"{name} is a buffer, the new value cannot be one",
            [("value", value)], "a buffer is a tensor that is not learned, or None",
            "value.detach()" if isinstance(value, Parameter) else "Tensor(value)",
        )  # fmt: skip
