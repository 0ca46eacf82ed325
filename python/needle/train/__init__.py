"""Training: the loop, what can happen during it, where its metrics go, and its progress."""

from needle.train.callbacks import (
    Best,
    Callback,
    EarlyStopping,
    Ema,
    Evaluate,
    FiniteCheck,
    Memory,
    Norms,
    Out,
)
from needle.train.folder import Folder
from needle.train.loggers import Logger, Picture, TensorBoard, Text, Trackio, WeightsAndBiases
from needle.train.progress import Progress
from needle.train.step import Optimizers
from needle.train.stop import Stop, Stopped
from needle.train.trainer import Result, Trainer
