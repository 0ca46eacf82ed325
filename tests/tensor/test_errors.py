"""Error messages: what was wrong in numbers, each tensor, the rule, what to try."""

from __future__ import annotations

import operator
import pickle

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import errors, ops
from needle.elsewhere import ELSEWHERE
from needle.errors import (
    ArgumentError,
    DtypeError,
    IndexRangeError,
    NeedleError,
    ShapeError,
)


def tensor(*shape: int, dtype: str = "float32") -> ndl.Tensor:
    return ndl.Tensor(np.zeros(shape), dtype=dtype)


DEVICE = str(ndl.default_device())
EMULATOR = ", cuda-emu" if "cuda-emu" in map(lambda d: d.name, ndl.all_devices()) else ""

WRONG = {
    "matmul": (
        lambda: tensor(32, 128) @ tensor(10, 128),
        ShapeError,
        f"""matmul: inner sizes differ, 128 and 10
  a: float32[32, 128] {DEVICE}
  b: float32[10, 128] {DEVICE}
  rule: a[..., m, k] @ b[..., k, n] -> [..., m, n]
  try: a @ b.transpose()   (b looks like a weight stored as [out, in])""",
    ),
    "matmul of a number": (
        lambda: tensor() @ tensor(3, 4),
        ShapeError,
        f"""matmul: expected operands with at least 2 axes, got 0 and 2
  a: float32[] {DEVICE}
  b: float32[3, 4] {DEVICE}
  rule: a[..., m, k] @ b[..., k, n] -> [..., m, n]""",
    ),
    "dtypes": (
        lambda: tensor(3) + tensor(3, dtype="int64"),
        DtypeError,
        f"""add: dtypes float32 and int64 do not mix
  x: float32[3] {DEVICE}
  y: int64[3] {DEVICE}
  rule: integers mix with integers, floats with floats (array API standard)
  try: cast one, for example y.astype("float32")""",
    ),
    "dtypes, the narrow one first": (
        lambda: tensor(3, dtype="bool") * tensor(3, dtype="float64"),
        DtypeError,
        f"""multiply: dtypes bool and float64 do not mix
  x: bool[3] {DEVICE}
  y: float64[3] {DEVICE}
  rule: integers mix with integers, floats with floats (array API standard)
  try: cast one, for example x.astype("float64")""",
    ),
    "broadcast": (
        lambda: tensor(3, 4) + tensor(2, 4),
        ShapeError,
        """add: shapes do not broadcast, axis -2 has sizes 3 and 2
  shapes: (3, 4), (2, 4)
  rule: aligned at the last axis, sizes are equal or one of them is 1""",
    ),
    "reshape": (
        lambda: tensor(3, 4).reshape(5, 2),
        ShapeError,
        """reshape: 12 elements of shape (3, 4) do not fill (5, 2)
  rule: the product of the sizes stays the same; one size may be -1""",
    ),
    "broadcast_to": (
        lambda: tensor(3, 4).broadcast_to((3, 5)),
        ShapeError,
        """broadcast_to: shape (3, 4) does not broadcast to (3, 5)
  rule: aligned at the last axis, sizes are equal or the source's is 1""",
    ),
    "transpose": (
        lambda: tensor(3, 4).transpose((0,)),
        ShapeError,
        f"""transpose: axes (0,) of 2 dimensions
  x: float32[3, 4] {DEVICE}
  rule: swaps exactly two axes
  try: permute(x, axes) for any order""",
    ),
    "index": (
        lambda: tensor(3, 4)[1, 4],
        IndexRangeError,
        "index 4 is out of range for axis 1 of size 4",
    ),
    "truth": (
        lambda: bool(tensor(3)),
        ShapeError,
        """the truth of a tensor of shape (3,) is ambiguous
  try: .any(), .all(), or `is None` to ask whether there is a tensor""",
    ),
    "dtype name": (
        lambda: tensor(3, dtype="flaot32"),
        errors.OptionError,
        """unknown dtype 'flaot32'; did you mean 'float32'?
  known: bfloat16, bool, float16, float32, float64, int16, int32, int64, int8, uint8""",
    ),
    "device name": (
        lambda: ndl.Tensor([1.0], device="cpuu"),
        errors.DeviceError,
        f"""unknown device 'cpuu'; did you mean 'cpu'?
  known: cpu, cuda, cpu_numpy, meta{EMULATOR}""",
    ),
    "no gradient": (
        lambda: ndl.Tensor([1.0], requires_grad=False).backward(),
        errors.GradientError,
        f"""backward: the tensor requires no gradient
  out: float32[1] {DEVICE}
  rule: a gradient flows from a result to the leaves with requires_grad=True
  try: check requires_grad of the inputs, no_grad() and detach()""",
    ),
}  # fmt: skip


@looped("name", WRONG)
def test_messages(name):
    call, kind, text = WRONG[name]
    with pytest.raises(NeedleError) as caught:
        call()
    assert type(caught.value) is kind
    assert str(caught.value) == text


@looped("name", ["matmul", "dtypes", "broadcast", "reshape", "transpose"])
def test_the_same_messages_in_lazy_mode_on_the_users_line(name):
    call, kind, text = WRONG[name]
    with ndl.lazy_mode(), pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == text


def test_messages_are_the_same_with_the_gate_closed():
    for name in ("matmul", "dtypes", "broadcast"):
        call, kind, text = WRONG[name]
        with ndl.config(fast="off"), pytest.raises(kind) as caught:
            call()
        assert str(caught.value) == text


def test_parameters_are_named():
    weight = ndl.Parameter(np.zeros((4, 3)))
    weight.name = "head.weight"
    with pytest.raises(ShapeError, match=r'b: float32\[4, 3\] .*   parameter "head.weight"'):
        tensor(2, 3) @ weight


def test_makers_are_named_with_debug():
    with ndl.config(debug=1):
        x = ops.relu(tensor(2, 3))
        with pytest.raises(ShapeError, match=r"made by relu at .*test_errors.py:\d+"):
            x @ x


WAITING = {
    "inv": lambda x: ndl.linalg.inv(x),
    "cholesky": lambda x: ndl.linalg.cholesky(x - 1.0),
    "index": lambda x: ndl.take(x, ndl.Tensor([5], dtype="int64")),
    "memory": lambda x: ndl.broadcast_to(x[0, 0], (2**40,)) + 1.0,
}


@looped("name", WAITING)
def test_errors_of_what_waited_name_the_line_that_made_it(name):
    with ndl.config(debug=1), ndl.lazy_mode():
        x = tensor(2, 2) * 1.0
        y = WAITING[name](x)
        z = y + 1.0
        del x, y
    for _ in range(2):  # the node still waits
        with pytest.raises(NeedleError, match=r"called at .*test_errors\.py:\d+") as caught:
            z.numpy()
        text = str(caught.value)
        assert text.count("called at") == 1
        if caught.value.operands:
            assert "made by" in text.partition("called at")[2]


def test_what_waited_is_told_with_its_operands_without_debug_too():
    weight = ndl.Parameter(np.zeros((2, 2)))
    weight.name = "weight"
    with ndl.lazy_mode():
        y = ndl.linalg.inv(weight)
    with pytest.raises(errors.SingularError, match='parameter "weight"') as caught:
        y.numpy()
    assert "called at" not in str(caught.value)


def test_errors_are_also_the_builtin_ones():
    pairs = {
        "ShapeError": ValueError, "DtypeError": TypeError, "DeviceError": ValueError,
        "IndexRangeError": IndexError, "GradientError": RuntimeError, "DataError": ValueError,
        "ReleasedError": RuntimeError, "OptionError": ValueError, "OutOfMemoryError": MemoryError,
        "ArgumentError": TypeError, "RangeError": OverflowError, "ExchangeError": BufferError,
    }  # fmt: skip
    for name, builtin in pairs.items():
        kind = getattr(errors, name)
        assert issubclass(kind, builtin) and issubclass(kind, NeedleError)
        assert str(pickle.loads(pickle.dumps(kind("text")))) == "text"


def test_the_builder():
    error = errors.explain(
        ShapeError, "op", "sizes 1 and 2", [("x", tensor(2)), ("n", 3)], "the rule", "the advice"
    )
    assert str(error).splitlines() == [
        "op: sizes 1 and 2", f"  x: float32[2] {DEVICE}", "  n: int 3", "  rule: the rule",
        "  try: the advice",
    ]  # fmt: skip
    renamed = error.about([tensor(5), 4])
    assert "x: float32[5]" in str(renamed) and "n: int 4" in str(renamed)


def test_unknown_names():
    error = errors.unknown("recipe", "minst", ["mnist", "bytes"])
    assert str(error) == "unknown recipe 'minst'; did you mean 'mnist'?\n  known: bytes, mnist"
    assert "did you mean" not in str(errors.unknown("recipe", "zzz", ["mnist"]))


TOO_LARGE = {
    "arange": lambda n: ops.arange(n),
    "linspace": lambda n: ops.linspace(0, 1, n),
    "eye": lambda n: ops.eye(n, 10),
    "full": lambda n: ops.full((n,), 1),
    "zeros": lambda n: ndl.zeros(n),
    "uniform": lambda n: ops.uniform((n,)),
    "permutation": lambda n: ops.permutation(n),
    "rand": lambda n: ndl.init.rand(n),
}


@looped("name", TOO_LARGE)
def test_more_than_the_memory_holds_is_said_of_the_function(name):
    with pytest.raises(errors.OutOfMemoryError, match=f"^{name}: "):
        TOO_LARGE[name](10**16)


def test_a_tensor_whose_making_failed_is_none_of_the_largest():
    unmade = ndl.Tensor.__new__(ndl.Tensor)  # as an error's traceback keeps it
    with pytest.raises(errors.OutOfMemoryError):
        ndl.zeros(10**16)
    del unmade


@looped(
    "module, name, advice",
    [
        (ndl, "cumulative_sum", "needle.standard.cumulative_sum"),
        (ndl, "ReLU", "needle.nn.ReLU"),
        (ndl, "AdamW", "needle.optim.AdamW"),
        (ndl, "DataLoader", "needle.data.DataLoader"),
        (ndl, "svd", "needle.ops.svd"),
        (ndl, "softplus_", "x.softplus_(...) of a tensor x"),
        (ndl, "stft", "numpy.fft of x.numpy()"),
        (ndl.nn, "LazyLinear", "nn.Linear with its number of inputs"),
        (ndl.autograd, "detect_anomaly", "with needle.check_finite():"),
        (ndl.data, "TensorDataset", "NDArrayDataset(x, y)"),
    ],
)
def test_a_name_that_is_elsewhere_is_found(module, name, advice):
    with pytest.raises(AttributeError) as caught:
        getattr(module, name)
    text = str(caught.value)
    assert text.startswith(f"module '{module.__name__}' has no attribute '{name}'\n  try: {advice}")
    assert caught.value.name == name and caught.value.obj is module


def test_what_is_said_to_be_elsewhere_is_not_here():
    for module in (ndl.optim, ndl.data):
        assert not module._ELSEWHERE.keys() & vars(module).keys()
    places = {"": ndl, "Tensor": tensor(2), "linalg": ndl.linalg}
    for place, names in ELSEWHERE.items():
        module = places[place] if place in places else operator.attrgetter(place)(ndl)
        assert [name for name in names if hasattr(module, name)] == []


def test_a_name_that_is_nowhere_is_only_missing():
    for module in (ndl, ndl.nn, ndl.optim, ndl.data, tensor(2)):
        with pytest.raises(AttributeError, match="has no attribute 'nowhere'$"):
            _ = module.nowhere
        assert not hasattr(module, "__nowhere__")


def test_names_of_methods_that_are_elsewhere_say_what_to_write():
    for x in (tensor(2), ndl.nn.Parameter(np.ones(2))):
        with pytest.raises(AttributeError, match="'register_hook'\n  try: change x.grad"):
            _ = x.register_hook


def test_what_is_no_tensor_is_named_with_its_library():
    for x in (np.ones(2), 1.0):
        with pytest.raises(ArgumentError, match=r"\n  try: needle.Tensor\(...\) makes a tensor"):
            ndl.exp(x)
    with pytest.raises(ArgumentError, match="expected a tensor, got numpy.ndarray\n"):
        ndl.exp(np.ones(2))
    with pytest.raises(ArgumentError, match="got list\n  try: needle.Tensor"):
        ndl.add(tensor(2), [1, 2])
    with pytest.raises(ArgumentError, match="got NoneType$"):
        ndl.add(tensor(2), None)


def test_an_item_of_a_batch_that_is_none():
    with pytest.raises(NeedleError, match="an item of the batch is None\n  try: a return"):
        ndl.data.collate([None])


def test_methods_that_a_subclass_lacks():
    with pytest.raises(NotImplementedError, match=r"Dataset defines no __len__\(\)"):
        len(ndl.data.Dataset())
