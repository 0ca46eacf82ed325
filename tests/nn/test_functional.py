"""``needle.nn.functional``: the calls that PyTorch users write give what PyTorch gives."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from beside_pytorch import needs_torch
from looped import looped

import needle as ndl
import needle.nn.functional as F
from needle.errors import OptionError, ShapeError

try:
    import torch
    import torch.nn.functional as theirs_F
except ImportError:
    torch = theirs_F = None

RNG = np.random.default_rng(3)


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape)


class Fixed(np.ndarray):
    """An array of which no gradient is taken."""


def fixed(x: Any) -> Any:
    return np.asarray(x).view(Fixed)


X, IMAGE, ROW, VOLUME = normal(4, 6), normal(2, 4, 8, 6), normal(2, 4, 9), normal(2, 4, 4, 4, 6)
Y, SHARE = RNG.random((4, 6)), 1 / (1 + np.exp(-X))
IDS, LABELS = np.array([[0, 2], [1, 1]]), np.array([0, 2, 5, -100])
FOUR = [fixed(normal(4)), fixed(RNG.random(4) + 0.5)]
SIGNS = fixed([1.0, -1.0, 1.0, -1.0])
Q, K, V = normal(2, 2, 3, 4), normal(2, 2, 5, 4), normal(2, 2, 5, 4)


def call(name: str, *args: Any, **named: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    return name, args, named


PLAIN = ["relu", "relu6", "selu", "silu", "mish", "hardsigmoid", "hardswish"]
SHRINK = ["sigmoid", "tanh", "logsigmoid", "softsign", "tanhshrink"]
CALLS = [
    *(call(name, X, inplace=False) for name in PLAIN),
    *(call(name, X) for name in SHRINK),
    call("elu", X, alpha=0.5), call("celu", X, alpha=0.5), call("hardshrink", X, lambd=0.3),
    call("leaky_relu", X, negative_slope=0.2), call("softplus", X, beta=2.0, threshold=1.0),
    call("softplus", 30 * X), call("gelu", X), call("gelu", X, approximate="tanh"),
    call("prelu", X, normal(6)), call("softshrink", X, lambd=0.3), call("threshold", X, 0.1, 2.0),
    call("hardtanh", X, min_val=-0.5, max_val=0.2), call("glu", X, dim=0),
    call("softmax", X, dim=0), call("log_softmax", X, dim=0), call("softmin", X, dim=1),
    call("linear", X, normal(5, 6), normal(5)), call("linear", X[0], normal(5, 6)),
    call("bilinear", X, normal(4, 3), normal(2, 6, 3), bias=normal(2)),
    call("embedding", IDS, X, padding_idx=1), call("embedding", IDS, X, padding_idx=-3),
    call("one_hot", IDS), call("one_hot", IDS, num_classes=5),
    call("conv1d", ROW, normal(6, 2, 3), normal(6), stride=2, padding=1, groups=2),
    call("conv2d", IMAGE, normal(6, 4, 3, 3), bias=normal(6), padding="same", dilation=2),
    call("conv3d", VOLUME, normal(3, 4, 2, 2, 2)),
    call("conv_transpose1d", ROW, normal(4, 3, 3), stride=2, output_padding=1),
    call("conv_transpose2d", IMAGE, normal(4, 3, 3, 2), stride=2, padding=1),
    call("conv_transpose3d", VOLUME, normal(4, 3, 3, 2, 2), stride=2),
    call("layer_norm", IMAGE, (8, 6), weight=normal(8, 6), bias=normal(8, 6)),
    call("layer_norm", X, (6,)), call("rms_norm", X, (6,)),
    call("rms_norm", X, [6], weight=normal(6), eps=1e-3), call("instance_norm", IMAGE),
    call("group_norm", IMAGE, 2, weight=normal(4), bias=normal(4)),
    call("batch_norm", IMAGE, None, None, normal(4), normal(4), training=True),
    call("batch_norm", IMAGE, *FOUR, normal(4), normal(4)), call("batch_norm", IMAGE, *FOUR),
    *(call("pad", IMAGE, widths) for widths in ((1, 2), (1, 2, 0, 3), (-1, 2, 0, -2))),
    *(call("pad", IMAGE, (1, 2, 2, 0), mode=m) for m in ("reflect", "replicate", "circular")),
    call("pad", IMAGE, (1, 2), value=3.0),
    *(call("interpolate", IMAGE, size=(5, 9), mode=m) for m in ("nearest", "bicubic", "area")),
    *(call("interpolate", IMAGE, scale_factor=1.7, mode=m) for m in ("bilinear", "area")),
    call("interpolate", IMAGE, scale_factor=1.7, mode="bilinear", align_corners=True),
    call("interpolate", IMAGE, scale_factor=1.7, mode="bilinear", recompute_scale_factor=True),
    call("pixel_shuffle", IMAGE, 2), call("pixel_unshuffle", IMAGE, 2),
    call("unfold", IMAGE, 3, padding=1), call("fold", normal(2, 12, 9), (4, 4), (2, 2)),
    *(call(f"max_pool{i}d", x, 2, stride=1) for i, x in ((1, ROW), (2, IMAGE), (3, VOLUME))),
    *(call(f"avg_pool{i}d", x, 2, padding=1, count_include_pad=False)
      for i, x in ((1, ROW), (2, IMAGE), (3, VOLUME))),
    *(call(f"adaptive_{kind}_pool{i}d", x, 3)
      for kind in ("avg", "max") for i, x in ((1, ROW), (2, IMAGE), (3, VOLUME))),
    call("scaled_dot_product_attention", Q, K, V, attn_mask=normal(3, 5)),
    call("scaled_dot_product_attention", Q, K, V, is_causal=True),
    call("scaled_dot_product_attention", K, K, V, is_causal=True, scale=0.3),
    call("cross_entropy", X, LABELS), call("cross_entropy", X, fixed(Y)),
    call("cross_entropy", X, np.arange(4), weight=fixed(RNG.random(6)), label_smoothing=0.1),
    call("cross_entropy", IMAGE, RNG.integers(0, 4, size=(2, 8, 6)), reduction="none"),
    call("cross_entropy", X[0], np.array(2)), call("nll_loss", X, LABELS),
    call("binary_cross_entropy", SHARE, fixed(Y), weight=fixed(RNG.random((4, 6)))),
    call("binary_cross_entropy_with_logits", X, fixed(Y), pos_weight=fixed(RNG.random(6))),
    *(call(f"{name}_loss", X, Y, reduction="sum") for name in ("mse", "l1", "smooth_l1", "huber")),
    call("smooth_l1_loss", X, Y, beta=0.3), call("huber_loss", X, Y, delta=0.3),
    call("kl_div", X, Y), call("kl_div", X, X - 1, reduction="batchmean", log_target=True),
    call("gaussian_nll_loss", X, Y, Y + 0.5, full=True), call("poisson_nll_loss", X, Y, full=True),
    call("cosine_embedding_loss", X, Y, SIGNS, margin=0.2), call("cosine_similarity", X, Y),
    call("hinge_embedding_loss", X, fixed(np.sign(X)), margin=0.5),
    call("margin_ranking_loss", X[:, 0].copy(), Y[:, 0].copy(), SIGNS),
    call("triplet_margin_loss", X, Y, SHARE, swap=True), call("normalize", X, dim=0, p=1.0),
    call("pairwise_distance", X, Y, keepdim=True), call("normalize", X),
]  # fmt: skip


def _ours(x: Any) -> Any:
    if not isinstance(x, np.ndarray):
        return x
    return ndl.Tensor(np.asarray(x), dtype=x.dtype.name, requires_grad=not isinstance(x, Fixed))


def _theirs(x: Any) -> Any:
    if not isinstance(x, np.ndarray):
        return x
    needs = x.dtype.kind == "f" and not isinstance(x, Fixed)
    return torch.tensor(np.asarray(x), requires_grad=needs)


@needs_torch
@pytest.mark.filterwarnings("ignore:reduction")
@looped("name, args, named", CALLS)
def test_calls_give_what_pytorch_gives(name, args, named):
    mine = [_ours(x) for x in (*args, *named.values())]
    other = [_theirs(x) for x in (*args, *named.values())]
    n = len(args)
    out = getattr(F, name)(*mine[:n], **dict(zip(named, mine[n:], strict=True)))
    expected = getattr(theirs_F, name)(*other[:n], **dict(zip(named, other[n:], strict=True)))
    assert out.shape == tuple(expected.shape)
    assert str(out.dtype) == str(expected.dtype).removeprefix("torch.")
    np.testing.assert_allclose(out.numpy(), expected.detach().numpy(), rtol=1e-6, atol=1e-9)
    if not expected.requires_grad:
        return
    weight = np.random.default_rng(1).normal(size=out.shape)
    (out * ndl.Tensor(weight, dtype="float64")).sum().backward()
    (expected * torch.tensor(weight)).sum().backward()
    for x, y in zip(mine, other, strict=True):
        if isinstance(y, torch.Tensor) and y.requires_grad:
            np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-6, atol=1e-9)


@needs_torch
def test_arguments_have_pytorchs_names_and_order():
    deprecated = {"size_average", "reduce", "_stacklevel", "out", "max_norm", "norm_type"}
    deprecated |= {"scale_grad_by_freq", "eps"}  # the latter of gumbel_softmax
    for name in set(F.__all__) - {"upsample"}:  # an old name of interpolate, with its arguments
        try:
            known = list(inspect.signature(getattr(theirs_F, name)).parameters)
        except (ValueError, AttributeError):  # a function without a signature
            continue
        if known == ["args", "kwargs"]:
            continue
        own = list(inspect.signature(getattr(F, name)).parameters)
        assert set(own) <= set(known), name
        kept = [arg for arg in known if arg in own]
        assert own == kept, name
        assert set(known) - set(own) <= deprecated | {"weight"}, name


@needs_torch
def test_batch_norm_moves_running_statistics_as_pytorch_does():
    ours = [ndl.Tensor(np.asarray(x), dtype="float64", requires_grad=False) for x in FOUR]
    theirs = [torch.tensor(np.asarray(x)) for x in FOUR]
    F.batch_norm(_ours(IMAGE), *ours, training=True, momentum=0.3)
    theirs_F.batch_norm(torch.tensor(IMAGE), *theirs, training=True, momentum=0.3)
    for x, y in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-9)
    with pytest.raises(ShapeError, match="a single value per channel"):
        F.batch_norm(ndl.ones(1, 3), None, None, training=True)
    with pytest.raises(OptionError, match="needed in evaluation"):
        F.batch_norm(ndl.ones(2, 3), None, None)


def test_random_functions():
    ndl.manual_seed(0)
    x = ndl.ones(4000)
    for out in (F.dropout(x, 0.25), F.dropout2d(x.reshape((40, 100, 1, 1)), 0.25)):
        assert 0.7 < (out != 0).astype("float32").mean().item() < 0.8
        assert np.allclose(out.numpy()[out.numpy() != 0], 4 / 3)
    image = F.dropout2d(ndl.ones(8, 8, 3, 3)).numpy().reshape(64, 9)
    assert set(image.sum(1)) == {0.0, 18.0}
    assert F.dropout3d(x, training=False) is x and F.dropout(x, training=False) is x
    logits = ndl.Tensor(np.log([[0.1, 0.2, 0.7]])).broadcast_to((3000, 3))
    draws = F.gumbel_softmax(logits, hard=True, dim=1)
    assert set(draws.numpy().round(5).ravel()) == {0.0, 1.0}
    np.testing.assert_allclose(draws.numpy().mean(0), [0.1, 0.2, 0.7], atol=0.04)
    point = ndl.Tensor([0.5, 0.2])
    (F.gumbel_softmax(point, hard=True) * ndl.Tensor([1.0, 3.0])).sum().backward()
    assert (point.grad.numpy() != 0).all(), "hard draws have the gradient of soft ones"


def test_what_is_not_there_says_what_to_do():
    for wrong, error, message in (
        (lambda: F.softmax(ndl.ones(2, 2)), OptionError, "try: dim=1"),
        (lambda: F.max_pool2d(IMAGE, 2, return_indices=True), OptionError, "return_indices"),
        (lambda: F.avg_pool2d(IMAGE, 2, divisor_override=3), OptionError, "divisor_override"),
        (lambda: F.interpolate(_ours(IMAGE), 4, antialias=True), OptionError, "antialias"),
        (lambda: F.pad(ndl.ones(2), (1, 1, 1, 1)), OptionError, "4 widths"),
        (lambda: F.layer_norm(ndl.ones(2, 3), (2,)), ShapeError, "normalized_shape is"),
        (lambda: F.instance_norm(ndl.ones(2, 3, 4), *FOUR), OptionError, "nn.InstanceNorm2d"),
        (lambda: F.gumbel_softmax(ndl.ones(2), tau=0.0), OptionError, "tau > 0"),
        (lambda: F.relu_, AttributeError, r"x = F.relu\(x\)"),
        (lambda: F.embedding_bag, AttributeError, "F.embedding"),
    ):
        with pytest.raises(error, match=message):
            wrong()
