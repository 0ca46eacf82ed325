"""Optimizer: parameter groups, state, and the code that all update rules share."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from needle import executor, graph, ops, tracing
from needle.backend.axes import integer
from needle.backend.ndarray import NDArray, array
from needle.errors import (
    ArgumentError,
    DataError,
    DtypeError,
    OptionError,
    RangeError,
    ShapeError,
    describe,
    explain,
    no_tensor,
    unknown,
)
from needle.ops.core import update
from needle.ops.core.attributes import real
from needle.ops.core.update import Batch, State
from needle.ops.index.row_sparse import RowSparse, cleared, each, parts
from needle.optim.schedules import Rate
from needle.tensors import Parameter, Tensor

RANGES = {
    "lr": (0.0, math.inf), "weight_decay": (0.0, math.inf), "eps": (0.0, math.inf),
    "dampening": (0.0, math.inf), "momentum": (0.0, 1.0), "alpha": (0.0, 1.0),
    "beta1": (0.0, 1.0), "beta2": (0.0, 1.0), "lr_decay": (0.0, math.inf),
    "initial_accumulator_value": (0.0, math.inf), "rho": (0.0, 1.0),
    "momentum_decay": (0.0, math.inf),
}  # fmt: skip
"""Lower bound (included) and upper bound (excluded) of each number."""

FLAGS = ("nesterov", "amsgrad", "centered", "maximize")
"""Settings that are True or False."""


Params = Iterable[Tensor] | Iterable[Mapping[str, Any]]
"""Parameters, or groups of them: dicts with "params" and a group's own numbers."""

Number = Rate | bool | None
Numbers = dict[str, float]
"""The numbers of a step by name: floats, and flags."""

_R = TypeVar("_R")


class Group(dict[str, Any]):
    """Parameters and their own numbers; for other numbers, ``group[name]`` asks the optimizer.

    Assigning ``group["lr"] = 0.1`` gives the group its own number. ``in`` and ``get`` only see the
    group's own numbers.
    """

    def __init__(self, values: Mapping[str, Any], optimizer: Optimizer) -> None:
        super().__init__(values)
        self._optimizer = optimizer

    def __missing__(self, name: str) -> Any:
        if name not in self._optimizer.numbers:
            raise KeyError(name)
        return getattr(self._optimizer, name)


class Optimizer:
    """Base of all optimizers. Subclasses define ``numbers``, ``slots`` and ``formula``.

    The numbers of a rule are attributes: ``opt.lr = 0.1`` applies from the next step on. A group
    may have its own numbers: ``[{"params": [...], "lr": 0.1}, ...]``. The learning rate, like any
    number, may be a schedule: a function of the step (see ``optim.schedules``). All optimizers take
    PyTorch's ``foreach`` and ``fused``, which change nothing.

    Attributes:
        params: all parameters.
        groups: dicts with "params" and the numbers that differ from the optimizer's; for all other
            numbers they return those of the optimizer. ``param_groups`` is the same list.
        t: number of steps so far.
        state: per slot ("m", "v", ...), an array for each parameter that was updated.

    >>> p = nn.Parameter(Tensor([1.0]))
    >>> opt = optim.SGD([{"params": [p], "lr": 0.5}], lr=0.1)
    >>> (p * p).sum().backward()
    >>> opt.step()
    >>> print(p)
    [0.]
    """

    numbers: ClassVar[tuple[str, ...]] = ("lr", "weight_decay")
    """Names of the numbers, which a group may have too."""
    optional: ClassVar[tuple[str, ...]] = ()
    """Names of the numbers that may be None."""
    slots: ClassVar[tuple[str, ...]] = ()
    """Names of the state arrays."""
    by_rows: ClassVar[bool] = False
    """Whether the rule takes gradients by rows (``ops.RowSparse``) if weight_decay is 0."""
    formula: ClassVar[Any] = None
    """The rule: a function ``(p, g, state, numbers) -> (p, state)`` of the parameter, its gradient,
    a tuple of the slots and an object with the numbers of the step, such as ``numbers.lr``, and the
    step ``numbers.t``, counted from 1. It is written with operators and elementwise methods of
    tensors, such as ``g.sqrt()``, and runs as one kernel. Slots start as zeros."""

    lr: Rate
    weight_decay: Rate

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "step" in cls.__dict__:  # of a class in the course's style, which counts no steps
            cls.step = _counting(cls.step)  # type: ignore[method-assign]

    def __init__(
        self, params: Params, lr: Rate, weight_decay: Rate = 0.0, **numbers: Number
    ) -> None:
        groups = _groups(type(self).__name__, params, self.numbers)
        self.groups = [Group(group, self) for group in groups]
        self.params: list[Tensor] = [p for group in self.groups for p in group["params"]]
        _check_params(type(self).__name__, self.params)
        for name, value in {"lr": lr, "weight_decay": weight_decay, **numbers}.items():
            setattr(self, name, value)
        for group in self.groups:
            self.check({n: group[n] for n in self.numbers if n in group or hasattr(self, n)})
        self.t = 0
        self.state: dict[str, State] = {slot: {} for slot in self.slots}

    def check(self, numbers: Mapping[str, Number]) -> None:
        """Check the numbers of the rule. The values of schedules are checked in each step.

        Raises:
            OptionError: if a value is of the wrong type, or out of range.
        """
        for name, value in numbers.items():
            unset = value is None and name in self.optional
            if name in FLAGS and not isinstance(value, (bool, np.bool_)):
                owner = type(self).__name__
                raise OptionError(f"{owner}: expected True or False for {name}, got {value!r:.60}")
            if name in RANGES and not unset and not callable(value):
                _check_number(type(self).__name__, name, value)

    def number(self, group: Mapping[str, Any], name: str) -> float:
        """Return a number for the next step: the group's own, or else the optimizer's."""
        value = group.get(name, getattr(self, name))
        return value(self.t) if callable(value) else value

    @property
    def param_groups(self) -> list[Group]:
        """The groups, under PyTorch's name."""
        return self.groups

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Add a group of parameters, which are updated from the next step on.

        The other parameters keep their state. A saved state only fits an optimizer with the same
        groups.

        Raises:
            OptionError: if the group is not valid for this optimizer.

        >>> p, q = nn.Parameter(Tensor([1.0])), nn.Parameter(Tensor([2.0]))
        >>> opt = optim.SGD([p], lr=0.1)
        >>> opt.add_param_group({"params": [q], "lr": 0.01})
        >>> [group["lr"] for group in opt.groups]
        [0.1, 0.01]
        """
        owner = type(self).__name__
        (found,) = _groups(owner, [group], self.numbers)
        _check_params(owner, [*self.params, *found["params"]])
        new = Group(found, self)
        self.check({name: new[name] for name in self.numbers})
        self.groups.append(new)
        self.params.extend(new["params"])

    @property
    def current_lr(self) -> float:
        """The learning rate of the next step, of the first group."""
        return float(self.number(self.groups[0], "lr"))

    def step(self) -> None:
        """Update every parameter that has a gradient.

        Raises:
            OptionError: if a number is out of range, or if a gradient is by rows and the rule needs
                a dense one; then no parameter changes.
        """
        trace = tracing.current()
        if trace is not None:
            if type(self).update is not Optimizer.update:
                raise tracing.refused(
                    f"{type(self).__name__} defines update(), whose numbers would be constants",
                    "define formula() as Needle's optimizers do, or step() outside the function",
                )
            trace.step(self)
            return
        having = [[p for p in group["params"] if p.grad is not None] for group in self.groups]
        chosen = self._chosen(having)
        with executor.modes(recording=False):
            if graph.pending():
                grads = [x for p in self.params for x in parts(p.grad)]
                executor.realize([x.node for x in grads if x.array is None])
            for params, numbers in zip(having, chosen, strict=True):
                if params and numbers.get("maximize"):
                    self._climb(params, numbers)
                elif params:
                    self.update(params, numbers)
        self.t += 1

    def _chosen(self, having: list[list[Tensor]]) -> list[Numbers]:
        """Return each group's numbers for the next step, checked."""
        chosen = [{n: self.number(group, n) for n in self.numbers} for group in self.groups]
        for params, numbers in zip(having, chosen, strict=True):
            self.check(numbers)
            self._check_rows(params, numbers)
        return chosen

    def begin(self, having: list[list[Tensor]]) -> list[Batch]:
        """Return the updates of the next step, and change nothing: ``step`` without running.

        Args:
            having: for each group the parameters to update.

        Raises:
            OptionError: as for ``step``.
        """
        return [
            batch._replace(climbs=bool(numbers.get("maximize")))
            for params, numbers in zip(having, self._chosen(having), strict=True)
            if params
            for batch in self.batches(params, numbers)
        ]

    def counted(self, batch: Batch, by: int = 1) -> None:
        """Note that a batch was updated; with ``by=-1`` that it was not after all."""

    def _check_rows(self, params: list[Tensor], numbers: Mapping[str, Number]) -> None:
        decay = numbers.get("weight_decay")
        if self.by_rows and not decay:
            return
        for p in params:
            if type(p.grad) is RowSparse:
                cause = f"weight_decay={decay} " if self.by_rows else ""
                raise explain(
                    OptionError, type(self).__name__,
                    f"{cause}needs a dense gradient: Embedding(sparse=False)",
                    [("parameter", p), ("gradient by rows", p.grad)],
                    "SGD, Adam, AdamW and Adagrad take gradients by rows if weight_decay is 0",
                )  # fmt: skip

    def _climb(self, params: list[Tensor], numbers: Numbers) -> None:
        """Update parameters by their negated gradients."""
        grads = [p.grad for p in params]
        try:
            for p, grad in zip(params, grads, strict=True):
                p.grad = each(ops.negative, grad)
            self.update(params, numbers)
        finally:
            for p, grad in zip(params, grads, strict=True):
                p.grad = grad

    def update(self, params: list[Tensor], numbers: Numbers) -> None:
        """Update parameters, which all have gradients, by the rule's step ``self.t + 1``."""
        for batch in self.batches(params, numbers):
            update.run(batch)
            self.counted(batch)

    def batches(self, params: list[Tensor], numbers: Numbers) -> Iterable[Batch]:
        """Return the calls of the device that ``update`` consists of: those of ``formula``."""
        if type(self).formula is None:
            raise NotImplementedError(f"{type(self).__name__} defines no formula()")
        return [self.batch(params, {"t": self.t + 1, **numbers})]

    def batch(
        self,
        params: list[Tensor],
        numbers: Mapping[str, float],
        states: Sequence[State | None] | None = None,
        **more: Any,
    ) -> Batch:
        """Return the update of parameters by the formula; ``states`` None: of all slots."""
        if states is None:
            states = list(self.state.values())
        known = {
            name: x if name == "t" or x is None or type(x) is bool else float(x)
            for name, x in numbers.items()
        }
        name = type(self).__name__.lower()
        return Batch(name, type(self).formula, params, tuple(states), known, **more)

    def reset_grad(self, set_to_none: bool = True) -> None:
        """Remove all gradients; with ``set_to_none=False`` set them to zero."""
        for p in self.params:
            p.grad = None if set_to_none or p.grad is None else cleared(p.grad)

    zero_grad = reset_grad

    def minimize(self, loss: Tensor) -> Tensor:
        """Remove old gradients, run ``loss.backward()`` and make a step; return the loss.

        While a graph of ``needle.static`` is defined, nothing runs: the result is what makes a step
        when a session runs it.

        >>> p = nn.Parameter(Tensor([1.0]))
        >>> opt = optim.SGD([p], lr=0.25)
        >>> for _ in range(3):
        ...     loss = opt.minimize((p * p).sum())
        >>> print(p)
        [0.125]
        """
        if not isinstance(loss, Tensor):
            raise no_tensor(loss)
        if tracing.active and getattr(tracing.current(), "static_graph", None) is not None:
            return tracing.current().static_graph.minimize(self, loss)
        self.reset_grad()
        loss.backward()
        self.step()
        return loss

    # ---- state -------------------------------------------------------------------

    def state_dict(self, copy: bool = True) -> dict[str, Any]:
        """Return a flat dict of numbers and tensors that lets a run continue exactly.

        Keys: ``step``; ``lr`` and the other numbers; ``group.0.lr`` for a group's own number;
        ``m.3`` for slot m of the parameter at position 3. Schedules are not included, because they
        are functions of the step.

        Args:
            copy: whether later steps leave the tensors as they are; False: they are the
                optimizer's own memory.

        >>> p = nn.Parameter(Tensor([1.0]))
        >>> opt = optim.SGD([p], lr=0.1)
        >>> opt.state_dict()
        {'step': 0, 'lr': 0.1, 'momentum': 0.0,
         'weight_decay': 0.0, 'nesterov': False, 'maximize': False}
        """
        numbers = {name: getattr(self, name) for name in self.numbers}
        for i, group in enumerate(self.groups):
            numbers |= {f"group.{i}.{name}": group[name] for name in self.numbers if name in group}
        state: dict[str, Any] = {"step": self.t}
        state |= {k: v for k, v in numbers.items() if v is not None and not callable(v)}
        for slot in self.slots:
            for i, p in enumerate(self.params):
                if p in self.state[slot]:
                    array = self.state[slot][p]
                    state[f"{slot}.{i}"] = graph.wrap(array.copy() if copy else array)
        return state

    def load_state_dict(self, state: Mapping[str, Any], copy: bool = True) -> None:
        """Restore a state, completely or, on an error, not at all.

        Args:
            state: of an optimizer of this kind.
            copy: False: tensors that fit become the optimizer's own memory, which steps change.

        Raises:
            ArgumentError: if it is not a dict.
            DataError: for names that this optimizer does not have, arrays that do not fit, or
                numbers out of range.
        """
        check_state(state)
        arrays: dict[str, State] = {slot: {} for slot in self.slots}
        places = self._places()
        for key, value in state.items():
            if key not in places and key != "step":
                raise DataError(
                    f"load_state_dict: the state has {key!r}; this {type(self).__name__} has "
                    f"{len(self.groups)} groups, {len(self.params)} parameters and the slots "
                    f"{', '.join(self.slots) or '(none)'}"
                )
            slot, p = places.get(key, ("", None))
            if slot in arrays:
                arrays[slot][p] = self._slot(key, p, value, copy)
        if "step" not in state:
            raise DataError("load_state_dict: the state has no 'step'")
        t = count("step", state["step"])
        self._check_state(state)
        self.t = t
        for key, value in state.items():
            name, group = places.get(key, ("", None))
            if name in self.numbers:
                self._set_number(group, name, value)
        for slot, values in arrays.items():
            self.state[slot].clear()
            self.state[slot].update(values)

    def _check_state(self, state: Mapping[str, Any]) -> None:
        own = {n: state.get(n, getattr(self, n)) for n in self.numbers}
        try:
            self.check(own)
            for i, group in enumerate(self.groups):
                self.check({n: state.get(f"group.{i}.{n}", group.get(n, own[n])) for n in own})
        except OptionError as error:
            raise DataError(f"load_state_dict: {error}") from None

    def _places(self) -> dict[str, tuple[str, Any]]:
        """Return (slot, parameter) or (number, group) for each key that a state may have."""
        places: dict[str, tuple[str, Any]] = {name: (name, None) for name in self.numbers}
        for i, group in enumerate(self.groups):
            places |= {f"group.{i}.{name}": (name, group) for name in self.numbers}
        for slot in self.slots:
            places |= {f"{slot}.{i}": (slot, p) for i, p in enumerate(self.params)}
        return places

    def _slot(self, key: str, p: Tensor, value: Any, copy: bool) -> NDArray:
        data = executor.primal_array(value) if isinstance(value, Tensor) else value
        try:
            if copy or not isinstance(data, NDArray) or data.device != p.device:
                data = array(data, getattr(data, "dtype", None), p.device)
        except (DtypeError, RangeError, ShapeError) as error:
            raise DataError(f"load_state_dict: {key}: {error}") from None
        kind = "float32" if p.dtype.itemsize == 2 else p.dtype
        if data.shape != p.shape or data.dtype.kind == "b":
            raise DataError(f"load_state_dict: {key} is {describe(data)}, of {describe(p)}")
        return data.astype(kind, copy=False)

    def _set_number(self, group: Group | None, name: str, value: object) -> None:
        if group is not None:
            group[name] = group[name] if callable(group.get(name)) else value
        elif not callable(getattr(self, name)):
            setattr(self, name, value)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.numbers)
        count = sum(p.size for p in self.params)
        return f"{type(self).__name__}({count:,} parameters, {values})"


def _counting(step: Callable[..., _R]) -> Callable[..., _R]:
    """Return a method ``step`` that counts itself if it does not do so: schedules read ``t``."""

    @functools.wraps(step)
    def counted(self: Optimizer, *args: object, **kwargs: object) -> _R:
        before = self.__dict__.get("t")
        result = step(self, *args, **kwargs)
        if before is not None and self.__dict__.get("t") == before:
            self.t = before + 1
        return result

    return counted


def count(name: str, value: object) -> int:
    """Return a number of steps from a state.

    Raises:
        DataError: if it is not an integer >= 0.
    """
    try:
        steps = integer(name, value)
    except ArgumentError:
        steps = -1
    if steps < 0:
        raise DataError(f"load_state_dict: {name} is {value!r:.60}\n  rule: an integer >= 0")
    return steps


def check_state(state: object) -> None:
    """Check that a state is a dict.

    Raises:
        ArgumentError: if it is not.
    """
    if not isinstance(state, Mapping):
        raise ArgumentError(f"load_state_dict: expected a dict, got {state!r:.60}")


def _check_number(owner: str, name: str, value: object) -> None:
    low, high = RANGES[name]
    try:
        number = real(name, value)
    except ArgumentError:
        raise OptionError(f"{owner}: expected a number for {name}, got {value!r:.60}") from None
    if not low <= number < high:
        raise OptionError(f"{owner}: {name}={value} is outside [{low:g}, {high:g})")


def _groups(owner: str, params: Params, numbers: Iterable[str]) -> list[dict[str, Any]]:
    """Return parameter groups from a list of tensors, or of dicts."""
    if isinstance(params, Tensor) or hasattr(params, "named_parameters"):
        raise OptionError(
            f"{owner}: expected a list of tensors, got {type(params).__name__}\n"
            "  try: model.parameters()"
        )
    if not isinstance(params, Iterable):
        raise OptionError(
            f"{owner}: expected a list of tensors, got {params!r:.60}\n  try: model.parameters()"
        )
    given = list(params)
    if not given:
        raise OptionError(f"{owner}: got no parameters\n  try: model.parameters()")
    if not any(isinstance(group, dict) for group in given):
        return [{"params": given}]
    groups = []
    for group in given:
        if not isinstance(group, dict) or "params" not in group:
            raise OptionError(f'{owner}: expected a dict with "params" for every group')
        for name in group:
            if name != "params" and name not in numbers:
                raise unknown(f"{owner}: setting of a group", name, numbers)
        groups.append({**group, "params": _tensors_of(owner, group["params"])})
    return groups


def _tensors_of(owner: str, params: object) -> list[Tensor]:
    if isinstance(params, Tensor):
        return [params]
    if not isinstance(params, Iterable) or hasattr(params, "named_parameters"):
        raise OptionError(
            f'{owner}: expected a list of tensors as "params" of a group, got {params!r:.60}\n'
            "  try: model.parameters()"
        )
    return list(params)


def two_betas(owner: str, betas: Sequence[float]) -> tuple[float, float]:
    """Return beta1 and beta2.

    Raises:
        OptionError: if betas are not a pair.
    """
    if not isinstance(betas, (Sequence, np.ndarray)) or len(betas) != 2:
        raise OptionError(f"{owner}: expected two betas, got {betas!r:.60}")
    return betas[0], betas[1]


def groups_with_betas(owner: str, params: Params) -> Params:
    """Return parameters, or groups with beta1 and beta2 in place of betas, as a list."""
    several = isinstance(params, Iterable) and not isinstance(params, Tensor)
    if not several or hasattr(params, "named_parameters"):
        return params  # the optimizer will raise an error
    return [with_betas(owner, group) for group in params]


def with_betas(owner: str, group: Any) -> Any:
    """Return a parameter group with beta1 and beta2 in place of betas."""
    if not isinstance(group, dict) or "betas" not in group:
        return group
    beta1, beta2 = two_betas(owner, group["betas"])
    rest = {name: value for name, value in group.items() if name != "betas"}
    return {**rest, "beta1": beta1, "beta2": beta2}


def _check_params(owner: str, params: list[Tensor]) -> None:
    seen: dict[int, int] = {}
    for i, p in enumerate(params):
        if not isinstance(p, Tensor):
            raise OptionError(f"{owner}: parameter {i}: expected a tensor, got {type(p).__name__}")
        if p.op is not None:
            raise explain(
                OptionError, owner, f"parameter {i} is the result of {p.op}, not a leaf",
                [("parameter", p)], "parameters are leaves of the graph", ".detach() it first",
            )  # fmt: skip
        if not p.requires_grad and not isinstance(p, Parameter):  # a Parameter may only be frozen
            raise explain(
                OptionError, owner, f"parameter {i} has requires_grad=False", [("parameter", p)],
                "parameters need gradients", "requires_grad=True, or leave it out",
            )  # fmt: skip
        if id(p) in seen:
            raise explain(
                OptionError, owner, f"parameters {seen[id(p)]} and {i} are the same tensor",
                [("parameter", p)], "list every parameter once, or it would be updated twice",
            )  # fmt: skip
        seen[id(p)] = i
