"""Loading what a PyTorch program saved into the same architecture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from needle import executor, graph, nn, ops
from needle.errors import ArgumentError
from needle.io.state import AnyPath, load
from needle.nn.loading import as_array
from needle.nn.module import Mismatch, Module, StateDict
from needle.tensors import Tensor


class _Pair(NamedTuple):
    """A tensor of a module, its name in PyTorch's state, and what makes its values of those."""

    own: str
    theirs: str
    tensor: Tensor
    convert: Callable[[Tensor], Tensor]


def from_torch(
    model: Module,
    source: AnyPath | Mapping[str, Any],
    *,
    strict: bool = True,
    rename: Callable[[str], str] | None = None,
) -> Mismatch:
    """Load a PyTorch model's ``state_dict`` into a model of the same architecture.

    Modules have the same names in both. The values of ``Linear``, ``Conv``, recurrent layers and
    attention change their layout, norms, embeddings and ``Conv2d`` are the same. The prefixes
    ``module.`` and ``_orig_mod.`` are left out, and so are the counters ``num_batches_tracked``.

    Args:
        model: takes the values: all of them, or none if there is an error.
        source: a safetensors file, or the state itself; its tensors may be PyTorch's.
        strict: whether missing and unexpected names are errors.
        rename: returns this model's name, in PyTorch's spelling, for a name of the source.

    Returns:
        The missing names of the model, and the names of the source that have no place in it.

    Raises:
        DataError: for a file that cannot be read; listing every missing and unexpected name and
            every wrong shape.
        ArgumentError: if the source is neither a path nor a dict.

    >>> model = nn.Sequential(nn.Linear(3, 2))
    >>> state = {"0.weight": np.ones((2, 3), np.float32), "0.bias": np.zeros(2, np.float32)}
    >>> ndl.io.from_torch(model, state)
    Mismatch(missing=[], unexpected=[])
    >>> model[0].weight.shape
    (3, 2)
    """
    if not isinstance(model, Module):
        raise ArgumentError(f"from_torch: expected a module, got {type(model).__name__}")
    given = dict(source if isinstance(source, Mapping) else load(source))
    for alias, name in getattr(source, "aliases", {}).items():
        given.setdefault(alias, given[name])
    names = {name: _shortened(name) if rename is None else rename(name) for name in given}
    values = {names[name]: value for name, value in given.items()}
    state = StateDict()
    for pair in _pairs(model, "", ""):
        if pair.theirs in values:
            state[pair.own] = _converted(values[pair.theirs], pair)
    known = {pair.theirs for pair in _pairs(model, "", "")}
    for name, value in values.items():
        if name not in known and not name.endswith("num_batches_tracked"):
            state[name] = value
    return model.load_state_dict(state, strict)


def _shortened(name: str) -> str:
    """Return a name without the prefixes of wrappers around a model."""
    for prefix in ("module.", "_orig_mod."):
        name = name.removeprefix(prefix)
    return name


def _converted(value: object, pair: _Pair) -> Any:
    """Return a value in Needle's layout; as it is, where its axes do not fit, for the error."""
    with executor.modes(recording=False, lazy=False):
        x = graph.wrap(as_array(value, pair.tensor))
        try:
            return pair.convert(x)
        except ValueError:
            return x


def _same(x: Tensor) -> Tensor:
    return x


def _turned(x: Tensor) -> Tensor:
    return ops.permute(x, (1, 0))


def _row(x: Tensor) -> Tensor:
    return ops.reshape(x, (1, -1))


def _course(x: Tensor) -> Tensor:
    return ops.permute(x, (2, 3, 1, 0))


_LAYOUTS: tuple[tuple[type[Module], dict[str, Callable[[Tensor], Tensor]]], ...] = (
    (nn.Linear, {"weight": _turned, "bias": _row}),
    (nn.Conv, {"weight": _course}),
    (
        nn.MultiheadAttention,
        {f"{name}_weight": _turned for name in ("in_proj", "q_proj", "k_proj", "v_proj")},
    ),
)
"""How the own tensors of a class are converted; all others stay as they are."""

_CELL = {"W_ih": "weight_ih", "W_hh": "weight_hh", "bias_ih": "bias_ih", "bias_hh": "bias_hh"}


def _pairs(module: Module, own: str, theirs: str) -> Iterator[_Pair]:
    """Yield the tensors of a module and all below, with both names, which begin as given."""
    layers: dict[Any, str] = {nn.RNN: "rnn_cells", nn.GRU: "gru_cells", nn.LSTM: "lstm_cells"}
    if isinstance(module, (nn.RNNCell, nn.GRUCell, nn.LSTMCell)):
        yield from _of_cell(module, own, theirs, "")
        return
    for kind, cells in layers.items():
        if isinstance(module, kind):
            count = 2 if module.bidirectional else 1
            for i, cell in enumerate(getattr(module, cells)):
                end = f"_l{i // count}" + ("_reverse" if i % count else "")
                yield from _of_cell(cell, f"{own}{cells}.{i}.", theirs, end)
            return
    layout = next((found for kind, found in _LAYOUTS if isinstance(module, kind)), {})
    for name, item, saved in module._found(unique=False, recurse=False):
        if isinstance(item, Module):
            yield from _pairs(item, f"{own}{name}.", f"{theirs}{name}.")
        elif saved:
            yield _Pair(f"{own}{name}", f"{theirs}{name}", item, layout.get(name, _same))


def _of_cell(cell: Module, own: str, theirs: str, end: str) -> Iterator[_Pair]:
    for name, other in _CELL.items():
        tensor = getattr(cell, name)
        if tensor is not None:
            convert = _turned if name.startswith("W") else _same
            yield _Pair(f"{own}{name}", f"{theirs}{other}{end}", tensor, convert)
