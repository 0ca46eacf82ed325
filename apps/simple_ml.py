"""The course's programs: MNIST files, softmax regression, a two-layer network; CIFAR-10; PTB."""

from __future__ import annotations

import numpy as np

import needle as ndl
from needle import nn
from needle.data.mnist import read_idx


def parse_mnist(image_filename, label_filename):
    """Read gzipped MNIST files.

    Returns:
        Images, float32 [n, 784] in [0, 1], and labels, uint8 [n].
    """
    images = read_idx(image_filename, 3)
    return images.reshape(len(images), -1).astype(np.float32) / 255, read_idx(label_filename, 1)


def softmax_loss(Z, y_one_hot):
    """Return the mean over the batch of ``logsumexp(Z) - Z[label]``.

    Args:
        Z: logits, a tensor [n, classes].
        y_one_hot: a tensor of the same shape with a 1 at each label.
    """
    return (ndl.ops.logsumexp(Z, axes=(1,)) - (Z * y_one_hot).sum(axes=(1,))).sum() / Z.shape[0]


def nn_epoch(X, y, W1, W2, lr=0.1, batch=100):
    """Run one epoch of SGD, in order, for the network ``relu(X @ W1) @ W2``.

    Args:
        X: NumPy array [n, features].
        y: NumPy labels [n].
        W1: tensor [features, hidden].
        W2: tensor [hidden, classes].
        lr: learning rate.
        batch: rows per step; the last step has what is left.

    Returns:
        The new W1 and W2.
    """
    classes = W2.shape[1]
    for start in range(0, len(X), batch):
        x = ndl.Tensor(X[start : start + batch], requires_grad=False)
        labels = np.eye(classes, dtype=X.dtype)[y[start : start + batch]]
        loss = softmax_loss(ndl.ops.relu(x @ W1) @ W2, ndl.Tensor(labels, requires_grad=False))
        loss.backward()
        W1, W2 = (ndl.Tensor((W - lr * W.grad).detach()) for W in (W1, W2))
    return W1, W2


def loss_err(h, y):
    """Return the softmax loss and the error rate of logits h, a tensor, for NumPy labels y."""
    one_hot = np.eye(h.shape[1], dtype=str(h.dtype))[y]
    loss = softmax_loss(h, ndl.Tensor(one_hot, requires_grad=False))
    return loss.numpy(), np.mean(h.numpy().argmax(axis=1) != y)


# ---- CIFAR-10 ----------------------------------------------------------------------


def epoch_general_cifar10(dataloader, model, loss_fn=None, opt=None):
    """Run once over CIFAR-10: train with an optimizer, evaluate without.

    Returns:
        Mean accuracy and mean loss per image.
    """
    np.random.seed(4)
    loss_fn = loss_fn or nn.SoftmaxLoss()
    model.train(opt is not None)
    right, total, count = 0, 0.0, 0
    for x, y in dataloader:
        if opt is None:
            with ndl.no_grad():
                logits = model(x)
                loss = loss_fn(logits, y)
        else:
            logits = model(x)
            loss = loss_fn(logits, y)
            opt.minimize(loss)
        right += int((logits.numpy().argmax(axis=1) == y.numpy()).sum())
        total += loss.item() * len(y)
        count += len(y)
    return right / count, total / count


def train_cifar10(
    model,
    dataloader,
    n_epochs=1,
    optimizer=ndl.optim.Adam,
    lr=0.001,
    weight_decay=0.001,
    loss_fn=nn.SoftmaxLoss,
):
    """Train on CIFAR-10; return mean accuracy and loss of the last epoch."""
    np.random.seed(4)
    opt = optimizer(model.parameters(), lr=lr, weight_decay=weight_decay)
    for _ in range(n_epochs):
        result = epoch_general_cifar10(dataloader, model, loss_fn(), opt)
    return result


def evaluate_cifar10(model, dataloader, loss_fn=nn.SoftmaxLoss):
    """Return mean accuracy and loss of a model on CIFAR-10."""
    np.random.seed(4)
    return epoch_general_cifar10(dataloader, model, loss_fn())


# ---- Penn Treebank -----------------------------------------------------------------


def epoch_general_ptb(
    data,
    model,
    seq_len=40,
    loss_fn=None,
    opt=None,
    clip=None,
    device=None,
    dtype="float32",
):
    """Run once over the Penn Treebank: train with an optimizer, evaluate without.

    The state goes on from batch to batch; gradients do not.

    Args:
        data: what ``batchify`` made.
        model: a language model.
        seq_len: words of each sequence through which gradients flow.
        loss_fn: of logits and targets; ``nn.SoftmaxLoss()`` for None.
        opt: an optimizer.
        clip: largest norm of the gradient.
        device: where the batches go.
        dtype: their element type.

    Returns:
        Mean accuracy and mean loss per word.
    """
    np.random.seed(4)
    loss_fn = loss_fn or nn.SoftmaxLoss()
    model.train(opt is not None)
    right, total, count, state = 0, 0.0, 0, None
    for i in range(0, len(data) - 1, seq_len):
        x, y = ndl.data.get_batch(data, i, seq_len, device=device, dtype=dtype)
        with ndl.set_grad_enabled(opt is not None):
            logits, state = model(x, state)
            loss = loss_fn(logits, y)
        state = tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()
        if opt is not None:
            opt.reset_grad()
            loss.backward()
            if clip is not None:
                ndl.optim.clip_grad_norm(opt.params, clip)
            opt.step()
        right += int((logits.numpy().argmax(axis=1) == y.numpy()).sum())
        total += loss.item() * len(y)
        count += len(y)
    return right / count, total / count


def train_ptb(
    model,
    data,
    seq_len=40,
    n_epochs=1,
    optimizer=ndl.optim.SGD,
    lr=4.0,
    weight_decay=0.0,
    loss_fn=nn.SoftmaxLoss,
    clip=None,
    device=None,
    dtype="float32",
):
    """Train on the Penn Treebank; return mean accuracy and loss per word of the last epoch."""
    np.random.seed(4)
    opt = optimizer(model.parameters(), lr=lr, weight_decay=weight_decay)
    for _ in range(n_epochs):
        result = epoch_general_ptb(data, model, seq_len, loss_fn(), opt, clip, device, dtype)
    return result


def evaluate_ptb(model, data, seq_len=40, loss_fn=nn.SoftmaxLoss, device=None, dtype="float32"):
    """Return mean accuracy and loss per word of a model on the Penn Treebank."""
    np.random.seed(4)
    return epoch_general_ptb(data, model, seq_len, loss_fn(), device=device, dtype=dtype)
