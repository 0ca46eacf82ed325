"""A training step on an older processor: .ci/run has valgrind run this, which emulates one.

Usage: python tests/old_processor.py NAME; NAME is the instruction set that must have been chosen.
"""

import sys

import numpy as np

import needle as ndl
from needle import core, nn, optim
from needle.models.mlp_resnet import MLPResNet

chosen = core.native.isa() if core.native is not None else "none"
assert chosen == sys.argv[1], f"the instruction set is {chosen}"

ndl.manual_seed(0)
model = MLPResNet(20, 16)
optimizer = optim.Adam(model.parameters(), lr=0.01)
x = ndl.Tensor(np.cos(np.arange(600.0)).reshape(30, 20), requires_grad=False)
y = ndl.Tensor(np.arange(30) % 10, requires_grad=False)
losses = [optimizer.minimize(nn.SoftmaxLoss()(model(x), y)).item() for _ in range(5)]
assert losses[-1] < losses[0], losses
