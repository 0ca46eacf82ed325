"""A recipe that trains in a moment, for tests of the training loop."""

from __future__ import annotations

import math

import numpy as np

import needle as ndl
from needle import nn, optim
from needle.recipes.recipe import Recipe, Shuffled


class Line(Recipe):
    """Fit y = 3 x by one weight."""

    name = "line"
    summary = "a line"
    item = "points"
    batch_size = 4
    lr = 0.1
    epochs = 2

    def load(self, report):
        report("loading")
        x = np.linspace(-1, 1, 20, dtype=np.float32)[:, None]
        self.train = ndl.data.NDArrayDataset(x, 3 * x)

    def describe_data(self):
        return {"points": 20}

    def model(self):
        return nn.Linear(1, 1)

    def optimizer(self, model, steps):
        return optim.SGD(model.parameters(), lr=optim.Constant(self.lr))

    def steps_per_epoch(self):
        return -(-len(self.train) // self.batch_size)

    def batches(self):
        order = Shuffled(len(self.train))
        return self.loader(self.train, batch_size=self.batch_size, sampler=order)

    def loss(self, model, batch):
        x, y = batch
        return ((model(x) - y) ** 2).mean()

    def shown(self, loss):
        return {"root": math.sqrt(loss)}

    def evaluate(self, model, check, final):
        check()
        assert not model.training
        return {"error": abs(float(model.weight.item()) - 3)}

    def conclude(self, model, figures):
        return [f"error {figures['error']:.3f}"]
