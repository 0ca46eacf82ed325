"""A student's layers and optimizers, in the course's style: on Tensor, ops and init alone.

They use what such code uses: `if self.bias:`, assignments to `.data`, dictionaries of tensors.
"""

import needle as ndl
from needle import init, ops
from needle.autograd import Tensor


class Parameter(Tensor):
    """A tensor that is a parameter."""


def _unpack_params(value):
    if isinstance(value, Parameter):
        return [value]
    if isinstance(value, Module):
        return value.parameters()
    if isinstance(value, dict):
        return [p for v in value.values() for p in _unpack_params(v)]
    if isinstance(value, (list, tuple)):
        return [p for v in value for p in _unpack_params(v)]
    return []


def _child_modules(value):
    if isinstance(value, Module):
        return [value, *_child_modules(value.__dict__)]
    if isinstance(value, dict):
        return [m for v in value.values() for m in _child_modules(v)]
    if isinstance(value, (list, tuple)):
        return [m for v in value for m in _child_modules(v)]
    return []


class Module:
    def __init__(self):
        self.training = True

    def parameters(self):
        return _unpack_params(self.__dict__)

    def _children(self):
        return _child_modules(self.__dict__)

    def train(self):
        self.training = True
        for m in self._children():
            m.training = True

    def eval(self):
        self.training = False
        for m in self._children():
            m.training = False

    def __call__(self, *args):
        return self.forward(*args)


class Linear(Module):
    def __init__(self, in_features, out_features, bias=True, device=None, dtype="float32"):
        super().__init__()
        self.out_features = out_features
        weight = init.kaiming_uniform(in_features, out_features, device=device, dtype=dtype)
        self.weight = Parameter(weight)
        self.bias = None
        if bias:
            row = init.kaiming_uniform(out_features, 1, device=device, dtype=dtype)
            self.bias = Parameter(ops.transpose(row))

    def forward(self, x):
        out = ops.matmul(x, self.weight)
        if self.bias:
            out += ops.broadcast_to(self.bias, out.shape)
        return out


class ReLU(Module):
    def forward(self, x):
        return ops.relu(x)


class Flatten(Module):
    def forward(self, x):
        size = 1
        for n in x.shape[1:]:
            size *= n
        return ops.reshape(x, (x.shape[0], size))


class Sequential(Module):
    def __init__(self, *modules):
        super().__init__()
        self.modules = modules

    def forward(self, x):
        for module in self.modules:
            x = module(x)
        return x


class Residual(Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x):
        return self.fn(x) + x


class Dropout(Module):
    def __init__(self, p=0.5):
        super().__init__()
        self.p = p

    def forward(self, x):
        if not self.training:
            return x
        mask = init.randb(*x.shape, p=1 - self.p, device=x.device) / (1 - self.p)
        return x * mask


class BatchNorm1d(Module):
    def __init__(self, dim, eps=1e-5, momentum=0.1, device=None, dtype="float32"):
        super().__init__()
        self.dim, self.eps, self.momentum = dim, eps, momentum
        self.weight = Parameter(init.ones(dim, device=device, dtype=dtype))
        self.bias = Parameter(init.zeros(dim, device=device, dtype=dtype))
        self.running_mean = init.zeros(dim, device=device, dtype=dtype)
        self.running_var = init.ones(dim, device=device, dtype=dtype)

    def forward(self, x):
        n = x.shape[0]
        mean, var = self.running_mean, self.running_var
        if self.training:
            mean = ops.summation(x, axes=(0,)) / n
            centred = x - ops.broadcast_to(ops.reshape(mean, (1, self.dim)), x.shape)
            var = ops.summation(centred**2, axes=(0,)) / n
            m = self.momentum
            self.running_mean = ((1 - m) * self.running_mean + m * mean).detach()
            self.running_var = ((1 - m) * self.running_var + m * var).detach()

        def rows(v):
            return ops.broadcast_to(ops.reshape(v, (1, self.dim)), x.shape)

        return rows(self.weight) * (x - rows(mean)) / (rows(var) + self.eps) ** 0.5 + rows(
            self.bias
        )


class LayerNorm1d(Module):
    def __init__(self, dim, eps=1e-5, device=None, dtype="float32"):
        super().__init__()
        self.dim, self.eps = dim, eps
        self.weight = Parameter(init.ones(dim, device=device, dtype=dtype))
        self.bias = Parameter(init.zeros(dim, device=device, dtype=dtype))

    def forward(self, x):
        n = x.shape[0]

        def columns(v):
            return ops.broadcast_to(ops.reshape(v, (n, 1)), x.shape)

        centred = x - columns(ops.summation(x, axes=(1,)) / self.dim)
        var = columns(ops.summation(centred**2, axes=(1,)) / self.dim)
        return centred / (var + self.eps) ** 0.5 * ops.broadcast_to(
            self.weight, x.shape
        ) + ops.broadcast_to(self.bias, x.shape)


class SoftmaxLoss(Module):
    def forward(self, logits, y):
        one_hot = init.one_hot(logits.shape[1], y, device=logits.device)
        total = ops.summation(
            ops.logsumexp(logits, axes=(1,)) - ops.summation(logits * one_hot, (1,))
        )
        return total / logits.shape[0]


class Optimizer:
    def __init__(self, params):
        self.params = params

    def reset_grad(self):
        for p in self.params:
            p.grad = None


class SGD(Optimizer):
    def __init__(self, params, lr=0.01, momentum=0.0, weight_decay=0.0):
        super().__init__(params)
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.u = {}

    def step(self):
        for p in self.params:
            if p.grad is None:
                continue
            grad = ndl.Tensor(p.grad, dtype="float32").data + self.weight_decay * p.data
            u = grad * (1 - self.momentum)
            if p in self.u:
                u = u + self.momentum * self.u[p]
            self.u[p] = u.detach()
            p.data = p.data - self.lr * u


class Adam(Optimizer):
    def __init__(self, params, lr=0.01, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0):
        super().__init__(params)
        self.lr, self.beta1, self.beta2 = lr, beta1, beta2
        self.eps, self.weight_decay = eps, weight_decay
        self.t, self.m, self.v = 0, {}, {}

    def step(self):
        self.t += 1
        for p in self.params:
            if p.grad is None:
                continue
            grad = ndl.Tensor(p.grad, dtype="float32").data + self.weight_decay * p.data
            self.m[p] = (self.beta1 * self.m.get(p, 0) + (1 - self.beta1) * grad).detach()
            self.v[p] = (self.beta2 * self.v.get(p, 0) + (1 - self.beta2) * grad**2).detach()
            m = self.m[p] / (1 - self.beta1**self.t)
            v = self.v[p] / (1 - self.beta2**self.t)
            p.data = p.data - self.lr * m / (v**0.5 + self.eps)
