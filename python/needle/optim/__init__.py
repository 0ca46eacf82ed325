"""Optimizers, clipping of gradients, and schedules of the learning rate."""

from needle.optim import schedules
from needle.optim.clip import clip_grad_norm, clip_grad_value
from needle.optim.optimizer import Optimizer
from needle.optim.rules import SGD, Adam, AdamW, Momentum, RMSprop
from needle.optim.schedules import Chain, Constant, Cosine, Linear, Schedule, Step, Warmup
