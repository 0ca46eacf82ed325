"""Programs on disk: a compiled function, with its parameters, in one file without code.

The file is a safetensors file: arrays of constants, parameters, buffers and optimizers, and in its
metadata, as JSON, the nodes. ``load_program`` runs it without the Python code that made it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from needle import config, devices, executor, graph
from needle.compile import cells, passes
from needle.compile.build import Bound, needed
from needle.compile.call import Call
from needle.compile.compiled import Compiled, compile
from needle.compile.listing import Listing
from needle.compile.trace import Numbers, Step, Stream, signature
from needle.errors import ArgumentError, DataError, NeedleError, OptionError, ShapeError
from needle.io import codec, nested, state
from needle.ops.core.starts import Placeholder
from needle.tensors import Parameter, Tensor

if TYPE_CHECKING:
    from needle.backend.array import Spec
    from needle.typing import DeviceLike

KEY = "needle.program"
VERSION = 1


# ---- saving ------------------------------------------------------------------------------


def save_program(
    function: Any, path: str | os.PathLike[str], names: Mapping[int, str] | None = None
) -> None:
    """Write a compiled function that was called once, with all that it reads, to one file.

    Gradients of parameters that the function leaves in ``.grad``, ops and optimizers of yours, and
    Python functions inside (``custom_gradient``) cannot be saved. Gradients of arguments are left
    out.

    Args:
        function: a function made by ``compile``, with one program.
        path: path of the file; an existing file is replaced only when the new one is complete.
        names: for the identity of a tensor its name in the file.

    Raises:
        ArgumentError: if it is no compiled function.
        OptionError: if the function has no program yet, or several.
        DataError: for something that cannot be saved, or a file that cannot be written.

    >>> import tempfile
    >>> double = ndl.compile(lambda x: x * 2.0)
    >>> out = double(Tensor([1.0, 2.0]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ndl.io.save_program(double, f"{folder}/double.needle")
    ...     loaded = ndl.load_program(f"{folder}/double.needle")
    >>> print(loaded(Tensor([3.0, 4.0])))
    [6. 8.]
    """
    if not isinstance(function, Compiled):
        raise ArgumentError(f"save_program: expected a compiled function, got {function!r:.60}")
    calls = function.calls()
    if len(calls) != 1:
        raise OptionError(
            f"save_program: expected a function with one program, this one has {len(calls)}\n"
            "  try: compile it anew, and call it once before saving"
        )
    arrays, document = _Saver(calls[0], dict(names or {})).result()
    state.save(path, arrays, {KEY: nested.text(document)})


class _Saver:
    """Makes arrays and JSON of a call."""

    def __init__(self, call: Call, names: dict[int, str]) -> None:
        self.call, self.names = call, names
        self.arrays: dict[str, Any] = {}
        self.tensors: list[Any] = []  # that the program holds
        self.place: dict[int, int] = {}
        self.buffers: list[cells.Buffer] = []
        self.optimizers: list[Any] = []
        for step in call.steps:
            if all(step.optimizer is not x for x in self.optimizers):
                self.optimizers.append(step.optimizer)

    def result(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the arrays by name, and the rest."""
        call, bound = self.call, _without_gradients(self.call.bound)
        for optimizer in self.optimizers:
            for p in optimizer.params:
                self.held(p)
        document = {
            "version": VERSION,
            "sources": [
                {**self.cell(x), "spec": codec.encode_spec(s)}
                for x, s in zip(bound.sources, bound.specs, strict=True)
            ],
            **self.nodes(bound.listing),
            "delivered": [self.cell(x) for x in bound.delivered],
            "results": bound.results,
            "frame": codec.encode_frame(call.frame),
            "words": call.words,
            "steps": [self.step(x) for x in call.steps],
            "optimizers": [self.optimizer(i, x) for i, x in enumerate(self.optimizers)],
            "tensors": [self.tensor(i, x) for i, x in enumerate(self.tensors)],
            "buffers": [self.buffer(i, x) for i, x in enumerate(self.buffers)],
        }
        return self.arrays, document

    def nodes(self, listing: Listing) -> dict[str, Any]:
        """Return the nodes; each is known by its number, sources first, then constants."""
        number = {node: i for i, node in enumerate(listing.sources)}
        for node, array in listing.constants:
            self.arrays[f"constant.{len(number) - len(listing.sources)}"] = graph.wrap(array)
            number[node] = len(number)
        nodes = []
        for node in listing.order:
            nodes.append([codec.encode_op(node.op), [number[x] for x in node.inputs]])
            number[node] = len(number)
        return {
            "constants": len(listing.constants),
            "nodes": nodes,
            "outputs": [number[x] for x in listing.outputs],
            "stores": [[number[x], at] for x, at in listing.stores],
        }

    def held(self, tensor: Any) -> int:
        """Return the number of a tensor that the program holds."""
        if id(tensor) not in self.place:
            self.place[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return self.place[id(tensor)]

    def cell(self, x: Any) -> dict[str, Any]:
        """Return where a value comes from or goes to."""
        if isinstance(x, cells.Argument):
            return {"kind": "argument", "place": x.place}
        if isinstance(x, cells.Held):
            return {"kind": "tensor", "place": self.held(x.owner)}
        if isinstance(x, cells.Buffer):
            known = [(b.attributes is x.attributes and b.name == x.name) for b in self.buffers]
            if True not in known:
                self.buffers.append(x)
                known.append(True)
            return {"kind": "buffer", "place": known.index(True)}
        if isinstance(x, cells.Slot):
            for i, optimizer in enumerate(self.optimizers):
                for slot, values in optimizer.state.items():
                    if values is x.state:
                        where = self.held(x.parameter)
                        return {"kind": "slot", "of": i, "slot": slot, "place": where,
                                "start": x.start}  # fmt: skip
        if isinstance(x, Numbers):
            return {"kind": "numbers", "step": x.step, "batch": x.batch, "own": x.own,
                    "dtype": x.dtype}  # fmt: skip
        if isinstance(x, Stream):
            return {"kind": "stream"}
        raise DataError(
            "a program that reads or leaves gradients in .grad cannot be saved\n"
            "  try: an optimizer's step inside, or return the gradients"
        )

    def tensor(self, i: int, x: Any) -> dict[str, Any]:
        name = self.names.get(id(x)) or x.name or ""
        self.arrays[f"tensor.{i}"] = x.detach()
        return {"name": name, "learned": x.requires_grad}

    def buffer(self, i: int, x: cells.Buffer) -> dict[str, Any]:
        self.arrays[f"buffer.{i}"] = x.attributes[x.name].detach()
        return {"name": self.names.get(id(x.attributes[x.name])) or x.name}

    def step(self, step: Step) -> dict[str, Any]:
        of = next(i for i, x in enumerate(self.optimizers) if x is step.optimizer)
        return {"of": of, "having": [[self.held(p) for p in group] for group in step.having]}

    def optimizer(self, i: int, x: Any) -> dict[str, Any]:
        encoded = codec.encode_optimizer(x, self.place)
        numbers = {}
        for key, value in x.state_dict().items():
            if isinstance(value, Tensor):
                self.arrays[f"optimizer.{i}.{key}"] = value
            else:
                numbers[key] = value
        return {**encoded, "state": numbers}


def _without_gradients(bound: Bound) -> Bound:
    """Return a listing without the gradients by arguments, which nobody asks a file for."""
    listing, first = bound.listing, bound.results
    left = [
        i
        for i, cell in enumerate(bound.delivered)
        if not (isinstance(cell, cells.Grad) and isinstance(cell.of, cells.Argument))
    ]
    outputs = [*listing.outputs[:first], *(listing.outputs[first + i] for i in left)]
    kept = listing._replace(outputs=outputs)
    return needed(bound._replace(listing=kept, delivered=[bound.delivered[i] for i in left]))


# ---- loading -----------------------------------------------------------------------------


def load_program(path: str | os.PathLike[str], device: DeviceLike = None) -> LoadedProgram:
    """Return a program that was saved, ready to be called. No code of the file runs.

    Args:
        path: path of the file.
        device: where it runs; the default device for None.

    Raises:
        DataError: if the file is damaged, is no program, or needs ops that Needle has not got.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     nn.Linear(2, 1).save(f"{folder}/model.needle", ndl.zeros(1, 2))
    ...     program = ndl.load_program(f"{folder}/model.needle")
    >>> program
    LoadedProgram(2 nodes, 3 numbers held; takes float32[1, 2] cpu())
    """
    where = devices.as_device(device)
    text = state.load_metadata(path).get(KEY)
    if text is None:
        raise DataError(f"{os.fspath(path)}: is not a program\n  try: needle.io.load for tensors")
    try:
        return LoadedProgram(_Loader(nested.parse(text), state.load(path, where), where))
    except MemoryError:
        raise
    except Exception as error:  # whatever a strange file leads to, the file is the reason
        reason = str(error) if isinstance(error, NeedleError) else repr(error)
        raise DataError(f"{os.fspath(path)}: is not a valid program: {reason:.300}") from error


class _Loader:
    """Makes the parts of a call from JSON and arrays."""

    def __init__(self, document: Any, arrays: Mapping[str, Any], device: DeviceLike) -> None:
        if not isinstance(document, dict) or document.get("version") != VERSION:
            raise DataError(f"expected a program of version {VERSION}")
        self.document, self.arrays, self.device = document, arrays, device
        self.tensors = [self.tensor(i, x) for i, x in enumerate(document["tensors"])]
        self.names = [str(x["name"]) for x in document["tensors"]]
        self.buffers = {str(i): arrays[f"buffer.{i}"] for i in range(len(document["buffers"]))}
        self.optimizers = [self.optimizer(i, x) for i, x in enumerate(document["optimizers"])]
        self.steps = [self.step(i, x) for i, x in enumerate(document["steps"])]
        self.words = document["words"]
        if type(self.words) is not int or not 0 <= self.words < 2**62:
            raise DataError(f"expected a number of random words, got {self.words!r:.60}")
        self.specs = [codec.decode_spec(x["spec"], device) for x in document["sources"]]
        self.frame = codec.decode_frame(document["frame"])

    def tensor(self, i: int, x: Any) -> Any:
        array = self.arrays[f"tensor.{i}"]
        if x["learned"] is True:
            made = Parameter(array)
            made.name = str(x["name"])
            return made
        return array

    def optimizer(self, i: int, x: Any) -> Any:
        made = codec.decode_optimizer(x, self.tensors)
        start = f"optimizer.{i}."
        kept = {k.removeprefix(start): v for k, v in self.arrays.items() if k.startswith(start)}
        made.load_state_dict({**x["state"], **kept})
        return made

    def step(self, number: int, x: Any) -> Step:
        optimizer = self.optimizers[x["of"]]
        having = [[self.tensors[i] for i in group] for group in x["having"]]
        if len(having) != len(optimizer.groups):
            raise DataError("a step of an optimizer has other groups than the optimizer")
        batches = optimizer.begin(having)
        rules: list[set[tuple[bool, str]]] = [set() for _ in batches]
        for cell in self.document["sources"]:
            if cell["kind"] == "numbers" and cell["step"] == number:
                if not 0 <= cell["batch"] < len(batches):
                    raise DataError(f"a step has no batch {cell['batch']!r:.20}")
                rules[cell["batch"]].add((cell["own"] is True, str(cell["dtype"])))
        return Step(optimizer, having, rules, signature(batches, rules)[0])

    def cell(self, x: Any, spec: Any = None) -> Any:
        kind, place = x["kind"], x.get("place")
        if kind == "argument":
            return cells.Argument(int(place))
        if kind == "tensor":
            return cells.Held(self.tensors[place])
        if kind == "buffer":
            return cells.Buffer(self.buffers, next(n for n in self.buffers if n == str(place)))
        if kind == "slot":
            held = self.optimizers[x["of"]].state[x["slot"]]
            return cells.Slot(held, self.tensors[place], spec, float(x["start"]))
        if kind == "numbers":
            return Numbers(x["step"], x["batch"], x["own"] is True, str(x["dtype"]))
        if kind == "stream":
            return Stream()
        raise DataError(f"unknown kind of place {kind!r:.60}")

    def bound(self) -> Bound:
        """Return the listing, with its places outside."""
        document, specs = self.document, self.specs
        made = [graph.pend(Placeholder(i, None), (), s, False) for i, s in enumerate(specs)]
        constants = []
        for i in range(document["constants"]):
            made.append(self.arrays[f"constant.{i}"])
            constants.append((graph.leaf(made[-1]), executor.primal_array(made[-1])))
        order = []
        for value, places in document["nodes"]:
            op = codec.decode_op(value, self.device)
            inputs = [made[self.index(i, made)] for i in places]
            if op.takes not in (None, len(inputs)):
                raise DataError(f"{op.name} takes {op.takes} inputs, got {len(inputs)}")
            spec = op.infer(*[x.spec for x in inputs])
            made.append(graph.pend(op, inputs, spec, False))
            order.append(made[-1].node)
        sources = [self.cell(x, s) for x, s in zip(document["sources"], specs, strict=True)]
        outputs = [graph.leaf(made[self.index(i, made)]) for i in document["outputs"]]
        stores = []
        for value, at in document["stores"]:
            found = made[self.index(value, made)]
            if type(sources[self.index(at, specs)]) not in (cells.Held, cells.Slot):
                raise DataError("a value is stored where nothing can be stored")
            if found.spec != specs[at]:
                raise DataError(f"{found.spec} is stored as {specs[at]}")
            stores.append((graph.leaf(found), at))
        delivered = [self.cell(x) for x in document["delivered"]]
        results = document["results"]
        if not 0 <= results <= len(outputs) or len(outputs) - results != len(delivered):
            raise DataError("the numbers of results and of outputs do not fit")
        for cell, spec in zip(sources, specs, strict=True):
            self.check_cell(cell, spec)
        listing = Listing(order, [x.node for x in made[: len(specs)]], constants, outputs, stores)
        return Bound(listing, sources, specs, [None] * len(specs), delivered, results)

    @staticmethod
    def index(i: Any, values: Sequence[Any]) -> int:
        if type(i) is not int or not 0 <= i < len(values):
            raise DataError(f"there is no value {i!r:.20}")
        return i

    def check_cell(self, cell: object, spec: Spec) -> None:
        """Check that what a cell holds has the spec of its source."""
        if isinstance(cell, (cells.Held, cells.Buffer)):
            found = cell.tensor([]).spec
            if found != spec:
                raise DataError(f"a tensor is {found}, but the program reads {spec}")


class LoadedProgram:
    """A program from a file. Call it with the tensors that the saved function took, in order.

    A program with steps of an optimizer goes on where it was saved: its parameters, buffers and
    optimizers are its own.

    Attributes:
        inputs: the specs of the arguments.
        parameters: the tensors that it holds, by name.
    """

    __name__ = "program"

    def __init__(self, loader: _Loader) -> None:
        self._loader = loader
        self._bound = loader.bound()
        arguments = [
            (x.place, spec)
            for x, spec in zip(self._bound.sources, self._bound.specs, strict=True)
            if isinstance(x, cells.Argument)
        ]
        self.inputs = [spec for _, spec in sorted(arguments, key=lambda pair: pair[0])]
        if sorted(place for place, _ in arguments) != list(range(len(arguments))):
            raise DataError("the arguments of the program are not numbered from 0 on")
        self.parameters = {
            name or f"tensor.{i}": x
            for i, (name, x) in enumerate(zip(loader.names, loader.tensors, strict=True))
        }
        self._calls: dict[Any, Call] = {}
        self._call()

    def _call(self) -> Call:
        """Return the call for the settings of now."""
        settings = config.current()
        mode = "python" if settings.compile == "off" else settings.compile
        if settings not in self._calls:
            loader, count = self._loader, self._bound.results
            trace: Any = SimpleNamespace(
                steps=loader.steps, generator=loader.words or None, drawn=loader.words, modules={},
                below=list, static_graph=None,
            )  # fmt: skip
            found: Any = SimpleNamespace(cleared=[], needs=[False] * count, asked=[])
            self._calls[settings] = Call(self._bound, found, trace, loader.frame, mode, settings)
        return self._calls[settings]

    def __call__(self, *arguments: Any) -> Any:
        """Return what the saved function would return.

        Raises:
            ArgumentError: for another number of arguments.
            ShapeError: for an argument of another shape or dtype.
        """
        given = self._given(arguments)
        call, prepared = self._prepared(given)
        return call.run(given, prepared)

    def planned(self, *arguments: Any) -> tuple[Call, Any]:
        """Return the program for a call and its arrays; nothing runs. Errors as in a call."""
        return self._prepared(self._given(arguments))

    def calls(self) -> list[Call]:
        """Return the program, with its places."""
        return [self._call()]

    def _given(self, arguments: tuple[Any, ...]) -> list[Any]:
        if len(arguments) != len(self.inputs):
            raise ArgumentError(
                f"the program takes {len(self.inputs)} tensors, got {len(arguments)}\n  rule: "
                + ", ".join(map(str, self.inputs))
            )
        given = [x if isinstance(x, Tensor) else Tensor(x) for x in arguments]
        for i, (x, spec) in enumerate(zip(given, self.inputs, strict=True)):
            if x.spec != spec:
                raise ShapeError(f"argument {i} of the program is {spec}, got {x.spec}")
        return [_dense(x.detach()) for x in given]

    def _prepared(self, given: list[Any]) -> tuple[Call, Any]:
        call = self._call()
        prepared = call.prepared(given, config.current())
        if prepared is None:
            raise NeedleError(
                "the program draws random numbers, which have no seed\n  try: needle.manual_seed"
            )
        return call, prepared

    def show(self) -> str:
        """Return the program as text: a line for each node."""
        return passes.printed(self._bound.listing)

    def __repr__(self) -> str:
        held = sum(x.size for x in self.parameters.values())
        nodes = len(self._bound.listing.order)
        takes = ", ".join(map(str, self.inputs))
        steps = f", {len(self._loader.steps)} steps of optimizers" if self._loader.steps else ""
        return f"LoadedProgram({nodes} nodes, {held:,} numbers held{steps}; takes {takes})"


def _dense(x: Tensor) -> Tensor:
    array = executor.primal_array(x)
    return x if array.strides == array.spec.strides else graph.wrap(array.copy())


def save_module(module: Any, path: str | os.PathLike[str], examples: Sequence[Any]) -> None:
    """Write what a module computes in evaluation mode; see ``Module.save``."""
    training = [(m, m.training) for m in module.modules()]
    names = {id(p): name for name, p in module.named_parameters()}
    names |= {id(b): name for name, b in module.named_buffers()}
    function = compile(lambda *inputs: module(*inputs))
    module.eval()
    try:
        with executor.modes(recording=False):
            function(*[x if isinstance(x, Tensor) else Tensor(x) for x in examples])
        save_program(function, path, names)
    finally:
        for m, mode in training:
            m.training = mode
