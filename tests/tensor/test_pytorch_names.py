"""Names that PyTorch has at its top level, and what they mean there."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings

import numpy as np
import pytest
from looped import looped
from pytorch_names import TABLE

import needle as ndl
from needle.errors import ArgumentError, DeviceError, DtypeError, GradientError, NeedleError

try:
    import torch
except ImportError:
    torch = None


def test_tensor_has_the_dtypes_of_its_values():
    kinds = [ndl.tensor(x).dtype for x in ([1.0], [1, 2], True, np.ones(2), np.int8(3))]
    assert kinds == ["float32", "int64", "bool", "float64", "int8"]
    assert ndl.tensor([1, 2], dtype=ndl.float32).dtype == "float32"
    with pytest.raises(DtypeError):
        ndl.tensor("ab")


def test_tensor_copies_and_requires_no_gradient():
    values = np.ones(2)
    x, shared, also = ndl.tensor(values), ndl.from_numpy(values), ndl.as_tensor(values)
    values[0] = 5.0
    assert [t.tolist() for t in (x, shared, also)] == [[1.0, 1.0], [5.0, 1.0], [5.0, 1.0]]
    w = ndl.tensor([1.0, 2.0], requires_grad=True)
    y = w * 2
    assert w.requires_grad and not x.requires_grad and not ndl.tensor(y).requires_grad
    assert ndl.as_tensor(y) is y and ndl.as_tensor(y, dtype="float64").dtype == "float64"
    assert ndl.is_tensor(y) and not ndl.is_tensor(values)
    with pytest.raises(ArgumentError, match=r"expected a NumPy array.*\n.*needle.tensor"):
        ndl.from_numpy([1.0])


def test_device_is_the_class_of_devices():
    where = ndl.device("cpu_numpy")
    assert where is ndl.cpu_numpy() and isinstance(where, ndl.device) and ndl.device(where) is where
    assert (where.type, where.index) == ("cpu_numpy", None)
    second = ndl.device("cuda", 1)
    assert second is ndl.device("cuda:1") and (second.type, second.index) == ("cuda", 1)
    assert ndl.device("cuda", 0) is ndl.device("cuda") and ndl.device("cuda").index == 0
    for wrong in (("gpu",), ("cuda:1", 1), ("cuda", "1"), ("cpu", 1)):
        with pytest.raises(DeviceError):
            ndl.device(*wrong)


def test_size_is_a_number_and_a_method():
    x = ndl.zeros(2, 3)
    assert x.size == 6 and x.size() == (2, 3) and x.size(0) == 2 and x.size(-1) == 3
    assert isinstance(x.size(), ndl.Size) and x.size().numel() == 6 and x.size(dim=1) == 3
    assert pickle.loads(pickle.dumps(x.size)) == 6 and copy.copy(x.size) == 6
    with pytest.raises(IndexError):
        x.size(2)


def test_what_a_tensor_is():
    x = ndl.tensor([[1.0, 2.0]])
    assert (x.is_cuda, x.is_sparse, x.itemsize, x.nelement(), x.ndimension()) == (0, 0, 4, 2, 2)
    assert (
        x.cpu().device == ndl.cpu()
        and x.pin_memory() is x
        and x.is_contiguous()
        and x.grad_fn is None
    )
    y = ndl.tensor([1.0], requires_grad=True) * 2
    assert y.grad_fn is y.op and x.type() == "float32" and x.type(ndl.int64).dtype == "int64"
    kinds = ["float", "double", "half", "bfloat16", "long", "int", "short", "char", "byte", "bool"]
    assert all(getattr(x, kind)().dtype is getattr(ndl, kind) for kind in kinds)
    if not ndl.cuda.is_available():
        with pytest.raises(DeviceError):
            x.cuda()


def test_cuda_answers_without_a_gpu(monkeypatch):
    monkeypatch.setattr(ndl.cuda(), "_reason", "none")
    cuda = ndl.cuda
    if cuda.is_available():
        pytest.skip("there is a GPU")
    assert cuda.device_count() == cuda.memory_allocated() == cuda.max_memory_allocated() == 0
    assert cuda.memory_reserved("cuda:0") == cuda.current_device() == 0
    assert cuda.synchronize() is cuda.empty_cache() is None and not cuda.is_bf16_supported()
    with pytest.raises(DeviceError, match="not available"):
        cuda.get_device_name()
    with pytest.raises(DeviceError, match="expected a GPU, got 'cpu"):
        cuda.synchronize("cpu")
    with pytest.raises(AttributeError, match=r"no attribute 'Event'\n  try: "):
        cuda.Event()
    cuda.manual_seed_all(3)
    first = ndl.randn(2).tolist()
    ndl.manual_seed(3)
    assert ndl.randn(2).tolist() == first


def test_cuda_asks_the_emulator():
    emulated = ndl.device("cuda-emu") if any(d == "cuda-emu" for d in ndl.all_devices()) else None
    if emulated is None or not emulated.enabled():
        pytest.skip("no emulator")
    x = ndl.zeros(1000, device=emulated)
    assert ndl.cuda.memory_allocated("cuda-emu") >= x.nbytes
    assert ndl.cuda.max_memory_allocated("cuda-emu") >= x.nbytes
    assert ndl.cuda.get_device_name("cuda-emu") == "emulator"
    ndl.cuda.synchronize("cuda-emu")


def test_functions_that_are_methods_here():
    x, y = ndl.tensor([[1.0, 2.0], [3.0, 4.0]]), ndl.tensor([[0.0, 1.0], [1.0, 0.0]])
    swapped = [[2.0, 1.0], [4.0, 3.0]]
    assert ndl.mm(x, y).tolist() == swapped and ndl.fliplr(x).tolist() == swapped
    assert ndl.bmm(x[None], y[None]).tolist() == [swapped]
    assert ndl.addmm(y, x, y, beta=2, alpha=0).tolist() == (2 * y).tolist()
    assert ndl.mul(x, 2).tolist() == (x * 2).tolist() and ndl.sub(x, y, alpha=2)[0, 1].item() == 0
    assert x.add(y, alpha=3).tolist() == (x + 3 * y).tolist()
    assert ndl.div(x, 2, rounding_mode="floor").tolist() == [[0.0, 1.0], [1.0, 2.0]]
    assert list(inspect.signature(ndl.div).parameters) == ["x", "other", "rounding_mode"]
    assert ndl.histc(x, 3, 1, 4).tolist() == [1.0, 1.0, 2.0]
    assert ndl.logdet(-x).isnan().item() and ndl.logdet(y @ x) == pytest.approx(np.log(2))
    assert ndl.trapezoid(x, ndl.tensor([0.0, 2.0])).tolist() == [3.0, 7.0]
    assert ndl.trapezoid(x, dx=2.0, axis=0).tolist() == [4.0, 6.0]
    assert ndl.finfo(ndl.float32).eps == np.finfo(np.float32).eps and ndl.iinfo(ndl.int8).max == 127
    assert ndl.vander(ndl.tensor([2.0]), 3, increasing=True).tolist() == [[1.0, 2.0, 4.0]]
    with pytest.raises(ArgumentError, match="alpha and beta is 'a'"):
        x.add(y, alpha="a")


def test_random_functions_and_modes():
    g = ndl.Generator()
    first = ndl.randperm(9, generator=g.manual_seed(1)).tolist()
    assert ndl.randperm(9, generator=g.manual_seed(1)).tolist() == first != list(range(9))
    w = ndl.tensor([1.0], requires_grad=True)
    with ndl.inference_mode():
        assert not ndl.is_grad_enabled() and not (w * w).requires_grad
    with ndl.inference_mode(False):
        assert ndl.is_grad_enabled() and (w * w).requires_grad
    with pytest.raises(ArgumentError, match="inference_mode: mode is 3"), ndl.inference_mode(3):
        pass


def thing(place):
    """What a place of PyTorch's names is here."""
    found = ndl.tensor([[1.0]]) if place == "Tensor" else ndl
    for part in place.split(".") if place not in ("", "Tensor") else ():
        found = getattr(found, part)
    return found


def test_the_names_used_most_are_here_or_say_what_to_write():
    missing, silent = [], []
    for place, name in TABLE:
        try:
            getattr(thing(place), name)
        except AttributeError as error:
            (missing if "\n  try: " in str(error) else silent).append((place, name))
    assert silent == [] and len(TABLE) > 800
    assert len(missing) < 105, missing


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_the_table_has_names_of_pytorch():
    for place, name in TABLE:
        found = torch.Tensor if place == "Tensor" else torch
        for part in place.split(".") if place not in ("", "Tensor") else ():
            found = getattr(found, part)
        assert name in dir(found) or hasattr(found, name), (place, name)


def test_two_rows_unpacked_as_values_and_indices_warn_once():
    x = ndl.tensor([[1.0, 2.0], [3.0, 0.0]])

    def predict():
        _, places = x.max(1)
        return places

    with pytest.warns(UserWarning, match=r"max: two rows.*\n  try: values, indices = x.max\(dim"):
        assert predict().item() == 3.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict()
        for _ in x.max(1):
            pass
        first, second = x
        low, high = x.max(1).sqrt() + x.min(1)
        values, places = x.max(dim=1)
    with pytest.warns(UserWarning, match="sort: two rows"):
        values, places = ndl.sort(x, 1)
    with pytest.warns(UserWarning, match="min: two rows"):
        low, high = x.min(axis=1)


def test_grad_of_tensors_is_a_tuple_of_gradients():
    x, w = ndl.tensor([1.0, 2.0], requires_grad=True), ndl.tensor([3.0, 4.0], requires_grad=True)
    y = (x * x * w).sum()
    (first,) = ndl.autograd.grad(y, x, create_graph=True)
    assert first.tolist() == [6.0, 16.0] and x.grad is None
    assert [g.tolist() for g in ndl.grad(first.sum(), [x, w])] == [[6.0, 8.0], [2.0, 4.0]]
    (twice,) = ndl.grad([x * 2, x * 3], x, grad_outputs=[ndl.ones(2), ndl.ones(2) * 2])
    assert twice.tolist() == [8.0, 8.0]
    unused = ndl.tensor(1.0, requires_grad=True)
    assert ndl.grad((x * 2).sum(), [x, unused], allow_unused=True)[1] is None
    with pytest.raises(GradientError, match=r"do not depend on input 1(.*\n)+.*try: allow_unused"):
        ndl.grad((x * 2).sum(), [x, unused])


def test_sizes_may_come_last_or_one_by_one():
    assert ndl.empty(2, 3).shape == ndl.empty((2, 3)).shape == (2, 3)
    drawn = [ndl.randint(3, (2, 3)), ndl.randint(0, 3, (2, 3)), ndl.randint(1, 3, size=(2, 3))]
    assert all(x.shape == (2, 3) and x.dtype == "int64" and x.max().item() < 3 for x in drawn)
    assert drawn[2].min().item() >= 1 and ndl.normal(0.0, 2.0, (2, 3)).shape == (2, 3)
    assert ndl.linspace(0, 1, steps=3).tolist() == ndl.linspace(0, end=1, num=3).tolist()
    assert ndl.arange(1, end=3).tolist() == [1, 2]
    x = ndl.tensor([[0.0, 1.0], [2.0, 0.0]])
    assert x.topk(1, 1, True, True)[1].tolist() == [[1], [0]]
    assert x.nonzero(as_tuple=False).tolist() == [[0, 1], [1, 0]]
    assert [i.tolist() for i in ndl.nonzero(x, as_tuple=True)] == [[0, 1], [1, 0]]
    with pytest.raises(ArgumentError, match="as_tuple is 2"):
        x.nonzero(as_tuple=2)


def test_a_leaf_is_asked_by_name_or_by_a_call():
    w = ndl.tensor([1.0], requires_grad=True)
    assert w.is_leaf and w.is_leaf() is True and not (w * 2).is_leaf and repr(w.is_leaf) == "True"


def test_linear_algebra_speaks_pytorch_too():
    x = ndl.tensor([[3.0, 4.0], [6.0, 8.0]])
    assert ndl.linalg.norm(x, dim=1).tolist() == [5.0, 10.0]
    assert ndl.linalg.norm(x, dim=1, keepdim=True).shape == (2, 1)
    assert ndl.std_mean(x, dim=1)[0].tolist() == x.std(dim=1).tolist()
    assert ndl.var_mean(x, unbiased=False)[0].tolist() == x.var().tolist()
    assert ndl.aminmax(x, dim=0).max.tolist() == [6.0, 8.0]


WRONG = """
    ndl.tensor([1.0],requires_grad="yes") ndl.tensor("ab") ndl.device("cuda",True) ndl.device(3)
    ndl.randperm(2.5) ndl.randperm(4,generator=3) ndl.Generator("gpu") ndl.vander(x[0],3,"yes")
    ndl.histc(x,2.5) ndl.tril_indices(2.5,3) ndl.trapezoid(x,dx="a") ndl.std_mean(x,unbiased="a")
    ndl.aminmax(x,dim=0,keepdim="a") ndl.grad((w*w).sum(),w,create_graph="yes") ndl.numel(3)
    ndl.grad((w*w).sum(),w,allow_unused="yes") ndl.grad((w*w).sum(),w,retain_graph=2)
    ndl.empty(2,"a") ndl.cuda("a") ndl.cuda(True) ndl.cuda.memory_allocated(1.5) x.size("a")
    x.clone().add_("a") x.clone().fill_("a") x.clone().copy_("a") x.clone().random_(2.5)
    x.requires_grad_("no") x.index_put(0,1.0) x.index_put((i,),1.0,accumulate="yes")
    x.max(dim=True) x.sum(dim=True) x.mode(keepdims="a") x.split(1.5,dim=0) x.argsort(stable="a")
    x.topk("a") x.squeeze(dim=0.5) x.flatten(start_dim="a") ndl.cat([x],dim="a") x.type("floot")
    ndl.nn.Softmax(dim=0.5)(x) x.repeat_interleave(1.5,dim=0) x.quantile("a",dim=0)
"""


@looped("call", WRONG.split())
def test_a_wrong_kind_of_option_is_refused(call):
    x, w = ndl.tensor([[1.0, 2.0, 3.0]]), ndl.tensor([1.0], requires_grad=True)
    with pytest.raises(NeedleError):
        eval(call, {"ndl": ndl, "x": x, "w": w, "i": ndl.tensor([0])})
