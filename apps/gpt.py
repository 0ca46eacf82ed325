"""A whole GPT over characters. Run from the repository: python apps/gpt.py [FILE [STEPS]]

Each line of FILE is a document; without FILE they are names in Python's standard library.
"""

import re
import sys
from pathlib import Path

import numpy as np

import needle as ndl
from needle import nn, ops, optim

WIDTH, HEADS, LAYERS, CONTEXT = 16, 4, 1, 16
END = "\n"  # before and after each document


class Block(nn.Module):
    """Attention to the characters so far, then two linear layers; each adds to its input."""

    def __init__(self):
        super().__init__()
        sizes = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))
        self.qkv, self.out, self.up, self.down = (nn.Linear(*s, bias=False) for s in sizes)

    def forward(self, x):
        parts = self.qkv(ops.rms_norm(x)).reshape((len(x), 3, HEADS, -1))
        q, k, v = parts.permute((1, 2, 0, 3))  # each [heads, characters, WIDTH / HEADS]
        seen = ops.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.permute((1, 0, 2)).reshape(x.shape))
        return x + self.down(self.up(ops.rms_norm(x)).relu())


class GPT(nn.Module):
    """Logits of the next character after each character of a document."""

    def __init__(self, characters):
        super().__init__()
        self.characters, self.places = nn.Embedding(characters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.head = nn.Linear(WIDTH, characters, bias=False)
        for p in self.parameters():
            p.data = ndl.init.randn(*p.shape, std=0.08)

    def forward(self, ids):
        x = self.characters(ids) + self.places.weight[: len(ids)]
        return self.head(ops.rms_norm(self.blocks(x)))


def write(model, letters, random, temperature=0.5):
    """Return a new document, drawn character by character."""
    ids = [letters.index(END)]
    while len(ids) < CONTEXT and (len(ids) == 1 or letters[ids[-1]] != END):
        with ndl.no_grad():
            chances = ops.softmax(model(np.array(ids))[-1] / temperature).numpy()
        ids.append(int((chances.cumsum() > random.random() * chances.sum()).argmax()))
    return "".join(letters[i] for i in ids).strip(END)


def main(file=None, steps=2000):
    source = ndl.data.python_source().values.tobytes().decode("utf-8", "replace")
    names = sorted(set(re.findall(r"\b(?:def|import) ([a-z]{2,14})\b", source)))
    documents = Path(file).read_text("utf-8").splitlines() if file else names
    letters, steps = sorted({END, *"".join(documents)}), int(steps)
    ndl.manual_seed(0)
    random, model, mean = np.random.default_rng(0), GPT(len(letters)), 0.0
    optimizer = optim.Adam(model.parameters(), lr=optim.Linear(0.01, 0.0, steps), beta2=0.95)
    for step in range(1, steps + 1):
        text = (END + random.choice(documents) + END)[: CONTEXT + 1]
        ids = np.array([letters.index(c) for c in text])
        loss = optimizer.minimize(nn.SoftmaxLoss()(model(ids[:-1]), ids[1:]))
        mean += (loss.item() - mean) / min(step, 100)
        if step % 200 == 0:
            print(f"step {step}/{steps}  loss {mean:.3f}")
    print(*(write(model, letters, random) for _ in range(20)), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
