"""Recurrent layers, attention, training steps of language models, and generation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Case, Options, both, main
from sequence_twin import (
    TorchGPT,
    TorchLanguageModel,
    TorchTinyGPT,
    copy,
    gpt_pairs,
    lstm_pairs,
    tiny_pairs,
    trainer,
)

import needle as ndl
from needle import models, nn, ops, optim

F = torch.nn.functional
LENGTH, BATCH = 40, 16
"""Steps and rows of the recurrent layers."""


def cases(options: Options) -> Iterator[Case]:
    """Yield all rows."""
    for hidden, target in ((100, 0.5), (256, 0.8)) if not options.quick else ((8, None),):
        for layers in (1, 2):
            yield lstm_case(hidden, layers, target)
    for length in (256, 1024) if not options.quick else (70,):
        for depth in (32, 64):
            yield from attention_cases(length, depth)
    yield lstm_step(options.quick)
    yield transformer_step(options.quick)
    yield generation(options.quick)
    yield tiny_gpt_step()


def lstm_case(hidden: int, layers: int, target: float | None) -> Case:
    """Return the row of ``nn.LSTM`` forward and backward."""
    random = np.random.default_rng(0)
    x, t = both(random.standard_normal((LENGTH, BATCH, hidden), np.float32), grad=True)
    ours, theirs = nn.LSTM(hidden, hidden, layers), torch.nn.LSTM(hidden, hidden, layers)
    copy(lstm_pairs(ours.lstm_cells, theirs))

    def needle() -> Any:
        out, _ = ours(x)
        out.backward()
        return x.grad

    def peer(function: Callable[..., Any] = theirs) -> Any:
        t.grad = None
        out, _ = function(t)
        out.backward(torch.ones_like(out))
        return t.grad

    return Case(
        f"LSTM {hidden}, {layers} layers, forward and backward", needle, peer, target=target,
        group="recurrent", goals="sequence",
    )  # fmt: skip


def attention_cases(length: int, depth: int) -> Iterator[Case]:
    """Yield the rows of causal attention: forward, and with its gradients."""
    random = np.random.default_rng(0)
    shape = (8, 8, length, depth)
    pairs = [both(random.standard_normal(shape, np.float32), grad=True) for _ in range(3)]
    g, tg = both(random.standard_normal(shape, np.float32))
    (q, k, v), (tq, tk, tv) = zip(*pairs, strict=True)
    attend = ops.scaled_dot_product_attention

    def forward() -> Any:
        with ndl.no_grad():
            return attend(q, k, v, is_causal=True)

    def backward() -> Any:
        attend(q, k, v, is_causal=True).backward(g)
        return q.grad

    def peer(function: Any = F.scaled_dot_product_attention) -> Any:
        with torch.no_grad():
            return function(tq, tk, tv, is_causal=True)

    def peer_backward(function: Any = F.scaled_dot_product_attention) -> Any:
        for x in (tq, tk, tv):
            x.grad = None
        function(tq, tk, tv, is_causal=True).backward(tg)
        return tq.grad

    name = f"causal attention 8 x 8 x {length} x {depth}"
    attention = F.scaled_dot_product_attention
    work = 2.0 * 8 * 8 * length * length * depth  # of the scores below the diagonal
    yield Case(
        f"{name}, forward", forward, peer, lambda compiler: partial(peer, compiler(attention)),
        target=0.75, group="attention", goals="sequence", flops=work,
    )  # fmt: skip
    yield Case(
        f"{name}, forward and backward", backward, peer_backward,
        lambda compiler: partial(peer_backward, compiler(attention)),
        target=0.6, group="attention", goals="sequence", flops=3.5 * work,
    )  # fmt: skip


# ---- training steps ------------------------------------------------------------------


def lstm_step(quick: bool) -> Case:
    """Return the row of the LSTM language model."""
    vocabulary, width = (50, 8) if quick else (10_000, 100)
    random = np.random.default_rng(0)
    ids, labels = random.integers(0, vocabulary, (2, LENGTH, BATCH))
    twin = TorchLanguageModel(vocabulary, width, width, 2)
    embedding, lstm = nn.Embedding(vocabulary, width), nn.LSTM(width, width, 2)
    head = nn.Linear(width, vocabulary)
    copy([(embedding.weight, twin.embedding.weight), *lstm_pairs(lstm.lstm_cells, twin.lstm),
          (head.weight, twin.head.weight), (head.bias, twin.head.bias)])  # fmt: skip
    parameters = [p for module in (embedding, lstm, head) for p in module.parameters()]
    adam = optim.Adam(parameters, lr=1e-3)
    x, y = (ndl.Tensor(v, requires_grad=False) for v in (ids, labels.reshape(-1)))

    def needle() -> Any:
        out, _ = lstm(embedding(x))
        loss = ops.linear_cross_entropy(
            out.reshape((-1, width)), head.weight, y, head.bias.reshape(-1)
        )
        adam.minimize(loss)
        return loss

    tx, ty = torch.from_numpy(ids), torch.from_numpy(labels)
    peer = trainer(
        lambda: twin.loss(tx, ty), torch.optim.Adam(twin.parameters(), lr=1e-3, fused=True)
    )
    return Case(
        "training step, LSTM language model, Adam", needle, peer, target=0.65, group="steps",
        goals="sequence",
    )  # fmt: skip


def tiny_gpt_step() -> Case:
    """Return the row of a step of ``apps/gpt.py``: one document, 4,192 parameters."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "apps"))
    import gpt

    model, twin = gpt.GPT(27), TorchTinyGPT(27, gpt.WIDTH, gpt.HEADS, gpt.CONTEXT)
    copy(tiny_pairs(model, twin))
    ids, labels = np.random.default_rng(0).integers(0, 27, (2, gpt.CONTEXT))
    adam, loss_function = optim.Adam(model.parameters(), lr=1e-3), nn.SoftmaxLoss()

    def needle() -> Any:
        loss = loss_function(model(ids), labels)
        adam.minimize(loss)
        return loss

    tx, ty = torch.from_numpy(ids), torch.from_numpy(labels)
    rule = torch.optim.Adam(twin.parameters(), lr=1e-3, fused=True)
    peer = trainer(lambda: F.cross_entropy(twin(tx), ty), rule)
    return Case(
        "training step, apps/gpt.py, one document", needle, peer, target=0.3, group="steps",
        goals="sequence", torch_threads=1,
    )  # fmt: skip


def small_gpt(quick: bool) -> tuple[Any, TorchGPT, tuple[int, int, int]]:
    """Return a model, its twin, and (vocabulary, context, batch)."""
    vocabulary, context, width, layers, batch = (
        (50, 24, 16, 2, 2) if quick else (4096, 256, 256, 4, 8)
    )
    heads = 2 if quick else 8
    model = models.GPT(vocabulary, 2 * context, width, layers, heads)
    twin = TorchGPT(vocabulary, 2 * context, width, layers, heads)
    copy(gpt_pairs(model, twin))
    return model, twin, (vocabulary, context, batch)


def transformer_step(quick: bool) -> Case:
    """Return the row of the Transformer language model."""
    model, twin, (vocabulary, context, batch) = small_gpt(quick)
    random = np.random.default_rng(0)
    ids, labels = random.integers(0, vocabulary, (2, batch, context))
    adam = optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    x, y = (ndl.Tensor(v, requires_grad=False) for v in (ids, labels))

    def needle() -> Any:
        loss = model.loss(x, y)
        adam.minimize(loss)
        return loss

    tx, ty = torch.from_numpy(ids), torch.from_numpy(labels)
    rule = torch.optim.AdamW(twin.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    peer = trainer(lambda: twin.loss(tx, ty), rule)

    def compiled(compiler: Any) -> Callable[[], Any]:
        loss = compiler(twin.loss)
        return trainer(lambda: loss(tx, ty), rule)

    return Case(
        "training step, Transformer language model, AdamW", needle, peer, compiled, target=0.8,
        group="steps", goals="sequence",
    )  # fmt: skip


def transformer_inference(quick: bool) -> Case:
    """Return the row of the Transformer's logits for one text."""
    model, twin, (vocabulary, context, _) = small_gpt(quick)
    ids = np.random.default_rng(0).integers(0, vocabulary, (1, context))
    x, tx = ndl.Tensor(ids, requires_grad=False), torch.from_numpy(ids)
    model.eval()
    twin.eval()

    def needle() -> Any:
        with ndl.no_grad():
            return model(x)

    def peer(function: Any = twin) -> Any:
        with torch.inference_mode():
            return function(tx)

    return Case(
        f"inference, Transformer, batch 1, {context} tokens", needle, peer,
        lambda compiler: partial(peer, compiler(twin)), target=1.0, group="inference",
        goals="sequence",
    )  # fmt: skip


def generation(quick: bool) -> Case:
    """Return the row of generating tokens one by one."""
    model, twin, (vocabulary, context, _) = small_gpt(quick)
    count = 16 if quick else context
    prompt = np.random.default_rng(0).integers(0, vocabulary, (1, 16))

    def needle() -> Any:
        return np.array(list(model.generate(prompt[0], count, temperature=0.0)))

    def peer() -> Any:
        return np.array(twin.generate(torch.from_numpy(prompt), count))

    return Case(
        f"{count} tokens, one by one, Transformer", needle, peer, target=1 / 3, group="generation",
        goals="sequence",
    )  # fmt: skip


if __name__ == "__main__":
    main("sequence", cases, seconds=4.0)
