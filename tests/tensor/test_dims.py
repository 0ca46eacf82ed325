"""PyTorch's ``dim=`` and ``keepdim=`` beside ``axis=`` and ``keepdims=``."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import nn, ops
from needle.errors import ArgumentError, NeedleError, OptionError
from needle.ops.core import dims

try:
    import torch
except ImportError:
    torch = None

VALUES = np.random.default_rng(3).integers(0, 4, (3, 4, 5)).astype(np.float32)  # with ties
VALUES[0, 1, 2] = np.nan
FIRST, PLACES = VALUES[:1].copy(), np.array([[[1], [0], [2], [1]]] * 3)

CALLS = """
    sum(dim=1) sum(dim=(0,2),keepdim=True) sum(dim=None) sum(dim=-1,dtype=F64) mean(dim=0)
    prod(dim=1) max(dim=1) max(dim=-1,keepdim=True) min(dim=0) amax(dim=(0,1)) amin(dim=1)
    argmax(dim=1) argmin(dim=2,keepdim=True) argmax(dim=None) any(dim=1) all(dim=0,keepdim=True)
    var(dim=1) var(dim=(0,1),keepdim=True) std(dim=2) var(dim=0,unbiased=False) std(unbiased=True)
    var(dim=0,correction=0) std(0,keepdim=True) std(dim=None) median(dim=1) median(1,keepdim=True)
    nanmedian(dim=2) mode(dim=1) mode(dim=0,keepdim=True) sort(dim=1) sort(dim=0,descending=True)
    argsort(dim=1,stable=True) cummax(dim=1) cummin(dim=0) cumsum(dim=2) cumprod(dim=1)
    kthvalue(2,dim=1) topk(2,dim=0) topk(2,dim=2,largest=False,sorted=True) logsumexp(dim=1)
    softmax(dim=1) log_softmax(dim=0) logcumsumexp(dim=1) nansum(dim=1) nanmean(dim=0,keepdim=True)
    count_nonzero(dim=1) quantile(0.3,dim=1,keepdim=True) norm(p=1,dim=1) norm(dim=(0,1))
    unsqueeze(dim=1) squeeze(dim=1) squeeze(dim=(0,1)) flip(dims=(0,2)) roll(1,dims=0)
    roll(shifts=(1,2),dims=(0,1)) rot90(1,dims=(0,1)) permute(dims=(2,0,1))
    transpose(dim0=0,dim1=2) swapaxes(0,1) unbind(dim=1) split(2,dim=1) split([1,3],dim=1)
    split(split_size=2,dim=2) chunk(2,dim=2) chunk(chunks=2,dim=1) tensor_split(2,dim=2)
    flatten(start_dim=1) flatten(start_dim=0,end_dim=1) unflatten(dim=1,sizes=(2,2))
    narrow(dim=1,start=1,length=2) select(dim=0,index=1) diagonal(dim1=0,dim2=1)
    diagonal(offset=1,dim1=1,dim2=2) gather(dim=2,index=P) take_along_dim(P,dim=2)
    index_select(dim=1,index=I) index_add(dim=0,index=I,source=S) repeat_interleave(2,dim=1)
    index_add(dim=0,index=I,source=S,alpha=2) index_copy(dim=0,index=I,source=S)
    index_fill(dim=1,index=I,value=7) scatter(dim=2,index=P,value=1.5)
    unfold(dimension=1,size=2,step=1)
    scatter(dim=2,index=P,src=X) scatter_add(dim=2,index=P,src=X) diff(dim=1) tril(diagonal=1)
    repeat_interleave(repeats=2,dim=0)
"""


def results(found):
    """The arrays of a result of either library."""
    several = isinstance(found, (tuple, list)) or type(found).__name__ == "TensorTuple"
    return [x for part in found for x in results(part)] if several else [np.asarray(found.detach())]


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
@looped("call", CALLS.split())
def test_a_call_means_what_it_means_in_pytorch(call):
    def answer(library, make):
        scope = {"P": make(PLACES), "I": make(np.array([0, 1])), "F64": library.float64}
        values = np.nan_to_num(VALUES) if call.startswith("mode") else VALUES
        scope |= {"x": make(values), "X": make(VALUES), "S": make(VALUES[:2])}
        return eval(f"x.{call}", scope)

    mine, theirs = answer(ndl, ndl.tensor), answer(torch, torch.tensor)
    assert getattr(mine, "_fields", None) == (("values", "indices") if hasattr(theirs, "values")
           and isinstance(theirs, tuple) else None)  # fmt: skip
    if call.startswith(("topk", "kthvalue", "sort", "median", "nanmedian")):
        mine, theirs = ((x.values, x.indices) for x in (mine, theirs))
        if "stable" not in call:  # which of equal elements is found may differ
            mine, theirs = mine[:1], theirs[:1]
    for x, y in zip(results(mine), results(theirs), strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_values_flow_to_the_found_elements_alone():
    x = ndl.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 0.0]], requires_grad=True)
    for call, expected in (
        (lambda: x.max(dim=1), [[0, 1, 0], [1, 0, 0]]),
        (lambda: x.min(dim=1), [[1, 0, 0], [0, 0, 1]]),
        (lambda: x.mode(dim=1), [[0, 0, 1], [0, 1, 0]]),
        (lambda: x.median(dim=1), [[0, 1, 0], [1, 0, 0]]),
    ):  # fmt: skip
        found = call()
        found.values.sum().backward()
        assert x.grad.tolist() == expected and not found.indices.requires_grad


def test_functions_and_layers_speak_pytorch_too():
    x = ndl.tensor(VALUES[1:])
    assert ndl.max(x, dim=1).values.tolist() == x.max(dim=1).values.tolist()
    assert ndl.cat([x, x], dim=1).shape == (2, 8, 5) and ndl.stack([x, x], dim=3).shape[-1] == 2
    assert ndl.var(x, dim=0).tolist() == ops.var(x, 0, correction=1).tolist()
    assert ndl.index_select(x, dim=1, index=ndl.tensor([0])).shape == (2, 1, 5)
    assert ndl.cross(x[..., :3], x[..., :3], dim=-1).tolist() == np.zeros((2, 4, 3)).tolist()
    assert ndl.trapezoid(x, dim=0).shape == (4, 5)
    assert ndl.normalize(x, p=1, dim=1).tolist() == ops.normalize(x, 1, 1).tolist()
    for layer in (nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.CosineSimilarity, nn.GLU):
        assert layer(dim=0).axis == layer(0).axis == 0
        assert "dim" in inspect.signature(layer).parameters
        assert "``dim=`` speaks PyTorch" in layer.__doc__


def test_without_the_names_nothing_changes():
    x = ndl.tensor(VALUES[1:])
    assert x.max(axis=1).shape == x.max(1).shape == (2, 5)
    np.testing.assert_allclose(x.var(axis=0).numpy(), VALUES[1:].var(0), rtol=1e-6)
    assert x.sort(1).shape == x.shape and len(x.split(1)) == 4
    assert pytest.raises(ArgumentError, x.unsqueeze) and ndl.softmax(x).shape == x.shape


WRONG = {
    "x.sum(axis=1, dim=0)": "axis=1 and dim=0 are two names of one argument",
    "x.sum(0, dim=0)": "axes=0 and dim=0 are two",
    "x.softmax(-1, dim=0)": "axis=-1 and dim=0 are two",
    "x.cat(0)": "no attribute",
    "x.sum(keepdims=True, keepdim=True)": "keepdims=True and keepdim=True are two",
    "x.max(axis=1, keepdim=True)": r"speaks NumPy(.*\n)+.*try: dim= and keepdim=",
    "x.max(dim=(0, 1))": r"max: dim=\(0, 1\)\n  rule: one dim",
    "x.max(dim=1.0)": "dim=1.0",
    "x.sum(dim='a')": "axis is 'a'",
    "x.sum(dim=0, keepdim='yes')": "keepdims is 'yes'",
    "x.var(dim=0, unbiased='no')": "unbiased is 'no'",
    "x.var(dim=0, unbiased=True, correction=0)": "unbiased and correction are two",
    "x.sort(dim=0, descending='no')": "descending is 'no'",
    "x.topk(2, dim=0, sorted=3)": "sorted is 3",
    "x.topk(2, largest='no')": "largest is 'no'",
    "x.median(dim=0, keepdim=1)": "keepdim is 1",
    "x.flip(0, 1, dims=(0,))": "two names of one argument",
    "x.permute(0, 1, dims=(0, 1))": "two names of one argument",
    "x.transpose(0, 1, dim0=0, dim1=1)": "two names of one argument",
    "x.transpose(dim0=0)": "expected dim0 and dim1",
    "x.index_add(dim=0)": "missing the argument 'index' and 'slices'",
    "x.split(dim=1)": "expected one size",
    "nn.Softmax(1, dim=1)": "axis=1 and dim=1 are two names",
}


@looped("call", WRONG)
def test_what_is_said_twice_or_wrongly_is_refused(call):
    with pytest.raises((NeedleError, AttributeError), match=WRONG[call]):
        eval(call, {"x": ndl.tensor(VALUES), "nn": nn})


def spoken():
    """All functions that have an axis, with their names."""
    places = {"ops": vars(ops), "Tensor": {n: getattr(ndl.Tensor, n) for n in dir(ndl.Tensor)}}
    for place, names in places.items():
        for name, function in names.items():
            if inspect.isfunction(function) and name[0] != "_" and name not in ops._INSIDE:
                yield place, name, function


def test_every_function_with_an_axis_has_a_dim_and_says_so():
    missing = []
    for place, name, function in spoken():
        parameters = inspect.signature(function).parameters
        if name.endswith("_") or not {"axis", "axes", "keepdims"} & set(parameters):
            continue
        more = [n for n, p in parameters.items() if p.default is ...]
        if not more or f"``{more[0]}=``" not in (function.__doc__ or ""):
            missing.append((place, name))
    assert {*missing} == {("ops", "per_axis"), ("ops", "windows")}
    assert len(list(spoken())) > 300 and dims.MEANINGS.keys() <= vars(ops).keys()
    with pytest.raises(OptionError):
        ops.sum(ndl.ones(2), 0, dim=0)
