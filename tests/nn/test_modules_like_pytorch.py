"""Modules that PyTorch has too."""

from __future__ import annotations

import numpy as np
import pytest
from beside_pytorch import (
    COUNTS,
    LOGS,
    RNG,
    ROW_SIGNS,
    SHARES,
    SIGNS,
    VARIANCES,
    compare,
    needs_torch,
    tensor,
)

import needle as ndl
from needle import nn
from needle.errors import (
    ArgumentError,
    IndexRangeError,
    OptionError,
    ShapeError,
)

try:
    import torch
    import torch.nn.functional as F
except ImportError:  # then derivatives, devices and errors are tested all the same
    torch = F = None


def module(name, *args, shapes=((6, 5),), target=None, **settings):
    """Return what makes two modules, the shapes of what they take, and a target behind it."""
    ours = {k: v[1] if isinstance(v, tuple) else v for k, v in settings.items()}
    theirs = {v[0] if isinstance(v, tuple) else k: ours[k] for k, v in settings.items()}

    def make():
        return getattr(nn, name)(*args, **ours), getattr(torch.nn, name)(*args, **theirs)

    return pytest.param(make, shapes, target, id=f"{name}{args or ''}")


PICTURE, SEQUENCE = ((2, 3, 5, 6),), ((2, 3, 7),)
TWO, THREE = ((6, 5),) * 2, ((6, 5),) * 3
MODULES = [
    module("CELU", 2.0), module("Hardshrink", 0.3), module("Softshrink", 0.3), module("Tanhshrink"),
    module("Softplus", 2.0, 0.5), module("Threshold", 0.1, 20.0),
    module("Softmin", axis=("dim", -1)),
    *(module(f"{kind}Pad1d", size, shapes=SEQUENCE)
      for kind in ("Zero", "Reflection", "Replication", "Circular") for size in (2, (3, 1))),
    *(module(f"{kind}Pad2d", size, shapes=PICTURE)
      for kind in ("Zero", "Reflection", "Replication", "Circular") for size in (2, (1, 4, 2, 0))),
    module("ConstantPad1d", (1, 2), 3.5, shapes=SEQUENCE),
    module("ConstantPad2d", 1, -1.0, shapes=PICTURE),
    module("AdaptiveMaxPool1d", 3, shapes=SEQUENCE),
    module("AdaptiveMaxPool2d", (3, None), shapes=PICTURE),
    module("AdaptiveMaxPool3d", 2, shapes=((2, 3, 4, 5, 3),)),
    module("AdaptiveAvgPool3d", (1, None, 2), shapes=((2, 3, 4, 5, 3),)),
    module("PixelShuffle", 3, shapes=((2, 9, 2, 3),)),
    module("PixelUnshuffle", 2, shapes=((1, 2, 4, 6),)),
    module("Unfold", 3, padding=1, stride=2, shapes=PICTURE),
    module("Fold", (5, 6), (2, 3), shapes=((2, 12, 16),)),
    module("CosineSimilarity", axis=("dim", 1), shapes=TWO),
    module("CosineSimilarity", shapes=((2, 4, 3),) * 2),
    module("PairwiseDistance", 3.0, keepdims=("keepdim", True), shapes=TWO),
    module("KLDivLoss", log_target=True, shapes=TWO),
    module("KLDivLoss", reduction="batchmean", shapes=((6, 5),), target=np.exp(LOGS)),
    module("CosineEmbeddingLoss", 0.2, shapes=TWO, target=ROW_SIGNS),
    module("HingeEmbeddingLoss", target=SIGNS), module("HingeEmbeddingLoss", 0.3, target=SIGNS),
    module("MarginRankingLoss", 0.3, reduction="sum", shapes=TWO, target=SIGNS),
    module("TripletMarginLoss", shapes=THREE),
    module("TripletMarginLoss", 0.4, p=3.0, eps=1e-3, swap=True, reduction="none", shapes=THREE),
    module("GaussianNLLLoss", full=True, shapes=TWO, target=VARIANCES),
    module("PoissonNLLLoss", full=True, target=COUNTS),
    module("PoissonNLLLoss", log_input=False, eps=5.0, reduction="none", target=COUNTS),
]  # fmt: skip


@needs_torch
@pytest.mark.filterwarnings("ignore:reduction. .mean. divides")
@pytest.mark.parametrize("make, shapes, target", MODULES)
def test_modules_are_pytorchs(make, shapes, target):
    ours, theirs = make()
    arrays = [np.random.default_rng(i).normal(size=shape) for i, shape in enumerate(shapes)]
    mine, rest = [tensor(x) for x in arrays], []
    if target is not None:
        mine.append(tensor(target, requires_grad=False))
        rest.append(torch.tensor(target))
    compare(ours(*mine), mine[: len(arrays)], lambda *xs: theirs(*xs, *rest), arrays)


@needs_torch
def test_bce_loss_is_pytorchs():
    for how in ("mean", "sum", "none"):
        found = nn.BCELoss(how)(tensor(SHARES), tensor(SHARES[::-1].copy()))
        expected = torch.nn.BCELoss(reduction=how)(
            *map(torch.tensor, (SHARES, SHARES[::-1].copy()))
        )
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-12)


@needs_torch
@pytest.mark.parametrize("bias", [True, False])
def test_bilinear_is_pytorchs_with_its_state(bias):
    ours, theirs = nn.Bilinear(5, 4, 3, bias=bias), torch.nn.Bilinear(5, 4, 3, bias=bias)
    assert np.abs(ours.weight.numpy()).max() <= 5**-0.5
    ours.load_state_dict(theirs.state_dict())
    ours.double()
    theirs.double()
    x, y = RNG.normal(size=(2, 6, 5)), RNG.normal(size=(2, 6, 4))
    mine, other = (tensor(x), tensor(y)), [torch.tensor(z, requires_grad=True) for z in (x, y)]
    out, expected = ours(*mine), theirs(*other)
    np.testing.assert_allclose(out.numpy(), expected.detach().numpy(), rtol=1e-7, atol=1e-9)
    (out**2).sum().backward()
    (expected**2).sum().backward()
    pairs = [*zip(mine, other, strict=True), (ours.weight, theirs.weight)]
    for a, b in pairs + [(ours.bias, theirs.bias)] * bias:
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-6, atol=1e-8)
    assert repr(ours).startswith("Bilinear(5, 4, 3" + (")" if bias else ", bias=False)"))
    assert nn.Bilinear(5, 4, 3)(ndl.ones(5), ndl.ones(4)).shape == (3,)


def test_lists_and_tables_of_parameters_are_found_saved_and_learned():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = nn.ParameterList([nn.Parameter(ndl.ones(2)), ndl.zeros(3)])
            self.table = nn.ParameterDict({"a": ndl.ones(4)})

        def forward(self, x):
            return sum(p.sum() for p in self.rows) * x + self.table["a"].sum()

    model = Model()
    assert [name for name, _ in model.named_parameters()] == ["rows.0", "rows.1", "table.a"]
    model.rows.append(ndl.ones(1)).extend([ndl.ones(2)])
    model.rows += [ndl.ones(1)]
    model.table.update({"b": ndl.ones(1)})
    model.table["c"] = ndl.ones(1)
    del model.table["b"]
    assert len(model.rows) == 5 and len(model.rows[1:3]) == 2 and "b" not in model.table
    assert all(type(p) is nn.Parameter and p.requires_grad for p in model.parameters())
    first = model.rows[-1]
    model.rows[-1] = nn.Parameter(ndl.zeros(7))
    assert model.rows[4].shape == (7,) and first is not model.rows[4]
    state = model.state_dict()
    assert [*state] == [*(f"rows.{i}" for i in range(5)), "table.a", "table.c"]
    other = Model()
    other.rows.extend(ndl.zeros(n) for n in (1, 2, 7))
    other.table["c"] = ndl.zeros(1)
    other.load_state_dict(state)
    assert other.rows[2].tolist() == [1.0]
    optimizer = ndl.optim.SGD(other.parameters(), lr=0.5)
    optimizer.minimize(other(ndl.Tensor(1.0)))
    assert other.rows[2].tolist() == [0.5] and other.table["a"].tolist() == [0.5] * 4


def test_dropout_of_whole_channels_of_sequences_and_volumes():
    for layer, shape in ((nn.Dropout1d(0.5), (8, 9, 4)), (nn.Dropout3d(0.5), (4, 5, 2, 3, 2))):
        found = layer(ndl.ones(*shape)).numpy().reshape(*shape[:2], -1)
        assert set(found.ravel().tolist()) == {0.0, 2.0} and (found == found[..., :1]).all()
        with pytest.raises(ShapeError, match=f"{type(layer).__name__}: x has 1 axes"):
            layer(ndl.ones(3))


@pytest.mark.parametrize(
    "call, error, message",
    [
        (
            lambda: nn.ZeroPad2d((1, 2)),
            OptionError,
            r"ZeroPad2d: padding=\(1, 2\)\n  rule: one integer >= 0, or 4",
        ),
        (lambda: nn.ReflectionPad1d(-1), OptionError, "ReflectionPad1d: padding=-1"),
        (lambda: nn.ZeroPad1d(0.5), ArgumentError, "ZeroPad1d: padding is 0.5"),
        (lambda: nn.ZeroPad2d(1)(ndl.ones(3)), ShapeError, "ZeroPad2d: x has 1 axes"),
        (lambda: nn.ConstantPad1d(1, "a"), OptionError, "ConstantPad1d: value='a'"),
        (lambda: nn.PixelShuffle(1.5), ArgumentError, "PixelShuffle: factor is 1.5"),
        (lambda: nn.Bilinear(2.5, 1, 1), ArgumentError, "Bilinear: in1_features is 2.5"),
        (lambda: nn.Bilinear(0, 1, 1), OptionError, "Bilinear: in1_features=0"),
        (lambda: nn.CosineSimilarity(eps="a"), OptionError, "CosineSimilarity: eps='a'"),
        (lambda: nn.PairwiseDistance(-1), OptionError, "PairwiseDistance: p=-1"),
        (lambda: nn.CELU("a"), OptionError, "CELU: alpha='a'"),
        (lambda: nn.CELU(0.0), OptionError, "positive alpha, got 0.0"),
        (lambda: nn.Softplus(0.0), OptionError, "finite beta, got 0.0"),
        (lambda: nn.Softplus(1.0, "a"), OptionError, "Softplus: threshold='a'"),
        (lambda: nn.Softshrink(-1), OptionError, "Softshrink: lambd=-1"),
        (lambda: nn.Threshold(0, "a"), OptionError, "Threshold: value='a'"),
        (lambda: nn.KLDivLoss("men"), OptionError, "KLDivLoss: unknown reduction"),
        (lambda: nn.MSELoss("batchmean"), OptionError, "MSELoss: unknown reduction"),
        (lambda: nn.TripletMarginLoss("a"), OptionError, "TripletMarginLoss: margin='a'"),
        (lambda: nn.GaussianNLLLoss(eps=-1), OptionError, "GaussianNLLLoss: eps=-1"),
        (lambda: nn.ParameterList([3.0]), ArgumentError, "expected a tensor, got float"),
        (
            lambda: nn.ParameterList([ndl.ones(1)])[1],
            IndexRangeError,
            "index 1 is out of range",
        ),
        (lambda: nn.ParameterList()["a"], ArgumentError, "integer index, got 'a'"),
        (
            lambda: nn.ParameterDict({"a": nn.ReLU()}),
            ArgumentError,
            "expected a tensor, got ReLU",
        ),
        (
            lambda: nn.ParameterDict({"a.b": ndl.ones(1)}),
            OptionError,
            "expected a name .* got 'a.b'",
        ),
        (lambda: nn.ParameterDict({"aa": ndl.ones(1)})["ab"], OptionError, "did you mean 'aa'"),
    ],
)
def test_modules_say_what_does_not_fit(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    "layer, text",
    [
        (nn.ZeroPad2d(1), "(1, 1, 1, 1)"), (nn.ConstantPad1d((1, 0), 2.0), "(1, 0), value=2.0"),
        (nn.Fold(4, 2, stride=2), "output_size=4, kernel_size=2, stride=2"),
        (nn.PixelShuffle(2), "2"), (nn.Softplus(), ""), (nn.Softplus(2.0), "beta=2.0"),
        (nn.Threshold(0.1, 2.0), "0.1, 2.0"), (nn.AdaptiveMaxPool2d(3), "3"),
        (nn.TripletMarginLoss(2.0, swap=True), "margin=2.0, swap=True"),
        (nn.KLDivLoss("sum", log_target=True), "reduction='sum', log_target=True"),
        (nn.HingeEmbeddingLoss(), ""), (nn.PoissonNLLLoss(full=True), "full=True"),
        (nn.PairwiseDistance(), "p=2.0"), (nn.CosineSimilarity(-1), "axis=-1"),
    ],
)  # fmt: skip
def test_settings_are_shown(layer, text):
    assert layer.extra_repr() == text
