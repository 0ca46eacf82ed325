"""What to write in place of names that PyTorch has and Needle has not, by the place of the name.

The errors about unknown names read these tables; ``""`` is the package itself. ``publish`` lists
the names that a package has.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

_COMPLEX = "the real and the imaginary part as two tensors; there are no complex dtypes"
_SPECTRA = "numpy.fft of x.numpy(); there are no complex dtypes"
_ONE_PROCESS = "one process and one device; model.to(device)"
_FLOAT = "the dtype of new tensors is float32; give dtype="

ELSEWHERE: dict[str, dict[str, str]] = {
    "": {
        "BoolTensor": 'needle.tensor(x, dtype="bool")',
        "ByteTensor": 'needle.tensor(x, dtype="uint8")',
        "DoubleTensor": 'needle.tensor(x, dtype="float64")',
        "FloatTensor": 'needle.tensor(x, dtype="float32")',
        "HalfTensor": 'needle.tensor(x, dtype="float16")',
        "IntTensor": 'needle.tensor(x, dtype="int32")',
        "LongTensor": 'needle.tensor(x, dtype="int64")',
        "amp": 'model.to("bfloat16"); there is no autocast',
        "autocast": 'model.to("bfloat16"); there is no autocast',
        "backends": "needle.config; results do not depend on a choice of algorithm",
        "binary_cross_entropy_with_logits": "needle.bce_with_logits",
        "cdouble": _COMPLEX,
        "cfloat": _COMPLEX,
        "combinations": "itertools.combinations of x.tolist()",
        "complex": _COMPLEX,
        "complex128": _COMPLEX,
        "complex64": _COMPLEX,
        "distributed": _ONE_PROCESS,
        "distributions": "needle.normal, needle.uniform, needle.bernoulli, needle.multinomial",
        "eig": "numpy.linalg.eig of x.numpy(); needle.linalg.eigh for symmetric matrices",
        "expit": "needle.sigmoid",
        "fft": _SPECTRA,
        "func": "needle.grad, vjp, jvp, jacobian, hessian, functional_call, in needle itself",
        "gammaln": "needle.lgamma",
        "hamming_window": "numpy.hamming",
        "hann_window": "numpy.hanning",
        "hub": "needle.io.load of a file that you have",
        "inner": "needle.tensordot(x, y, ([-1], [-1]))",
        "interpolate": "needle.ops.upsample",
        "istft": _SPECTRA,
        "jit": "with needle.lazy_mode():",
        "kl_div": "needle.kl_divergence",
        "logsigmoid": "needle.log_sigmoid",
        "logspace": "10.0 ** needle.linspace(0, 2, 3)",
        "mps": 'needle.device("cpu"), needle.cuda()',
        "multiprocessing": "multiprocessing; x.numpy() of each tensor goes to other processes",
        "mvlgamma": "needle.multigammaln",
        "onnx": "needle.io.save(model.state_dict(), path)",
        "pdist": "needle.cdist(x, x): the distances are above its diagonal",
        "polar": _COMPLEX,
        "profiler": "python -m cProfile, needle.cuda.synchronize() before each time",
        "quantization": 'model.to("bfloat16")',
        "random": "needle.manual_seed, needle.get_rng_state, needle.set_rng_state",
        "renorm": "x * (limit / x.norm(axis=1, keepdims=True)).clip(max=1)",
        "initial_seed": "needle.get_rng_state",
        "seed": "needle.manual_seed(time.time_ns() % 2**32)",
        "set_default_device": 'NEEDLE_DEVICE=cuda, or device="cuda" for each tensor',
        "set_default_dtype": _FLOAT,
        "set_default_tensor_type": _FLOAT,
        "set_num_threads": "NEEDLE_THREADS=4",
        "set_printoptions": "numpy.set_printoptions, which tensors are printed with",
        "sparse_coo_tensor": "a dense tensor; embeddings may keep gradients by rows",
        "special": "needle.erf, needle.sigmoid, needle.lgamma: functions are in needle itself",
        "stft": _SPECTRA,
        "use_deterministic_algorithms": "nothing: results do not change from run to run",
        "vdot": "needle.vecdot",
        "view_as_complex": _COMPLEX,
        "view_as_real": _COMPLEX,
        "vmap": "one call with a batch axis: functions broadcast",
    },
    "Tensor": {
        "aminmax": "needle.aminmax(x)",
        "apply_": "x.copy_(needle.tensor(list(map(f, x.ravel().tolist()))).view(x.shape))",
        "as_strided": "x.unfold(axis, size, step), or indexing",
        "cov": "needle.cov(x)",
        "cross": "needle.cross(x, y)",
        "data_ptr": "x.__dlpack__() shares the memory; the address is no part of the interface",
        "equal": "needle.equal(x, y).all()",
        "geometric_": "x.exponential_()",
        "histc": "needle.histc(x)",
        "imag": _COMPLEX,
        "is_pinned": "nothing: copies to a GPU are staged in pinned buffers anyway",
        "is_shared": "x.numpy() goes to other processes",
        "layout": "x.is_sparse is always False: tensors are dense",
        "log_normal_": "x.normal_(mean, std).exp_()",
        "map_": "x.copy_(f(x, y))",
        "names": "names of axes do not exist; x.shape",
        "new": "x.new_tensor(values), x.new_zeros(shape), x.new_empty(shape)",
        "put_": "x.view(-1)[index] = values of a flat tensor",
        "qr": "needle.linalg.qr(x)",
        "real": "x itself: there are no complex dtypes",
        "register_hook": "change x.grad before the step; needle.custom_gradient within a graph",
        "register_post_accumulate_grad_hook": "change x.grad before the step",
        "renorm": "x * (limit / x.norm(axis=1, keepdims=True)).clip(max=1)",
        "resize_": "x = x.reshape(shape), or needle.empty(shape)",
        "set_": "x.data = y",
        "share_memory_": "x.numpy() goes to other processes",
        "storage": "x.numpy()",
        "storage_offset": "x.numpy(); where elements lie is no part of the interface",
        "stride": "x.numpy().strides; where elements lie is no part of the interface",
        "svd": "needle.linalg.svd(x)",
        "to_dense": "x itself: tensors are dense",
        "to_sparse": "x itself: tensors are dense",
        "untyped_storage": "x.numpy()",
        "zero_grad": "x.grad = None",
    },
    "nn": {
        "AdaptiveLogSoftmaxWithLoss": "needle.linear_cross_entropy, which needs no logits",
        "AlphaDropout": "nn.Dropout",
        "CTCLoss": "nn.CrossEntropyLoss of aligned labels",
        "ChannelShuffle": "x.reshape(n, groups, -1, h, w).transpose(1, 2).reshape(n, -1, h, w)",
        "CrossMapLRN2d": "nn.BatchNorm2d",
        "DataParallel": _ONE_PROCESS,
        "EmbeddingBag": "nn.Embedding(n, d)(ids).sum(axis=1)",
        "FractionalMaxPool2d": "nn.MaxPool2d",
        "LazyConv2d": "nn.Conv2d with its number of channels",
        "LazyLinear": "nn.Linear with its number of inputs",
        "LocalResponseNorm": "nn.BatchNorm2d, nn.GroupNorm",
        "MultiLabelMarginLoss": "nn.BCEWithLogitsLoss",
        "MultiLabelSoftMarginLoss": "nn.BCEWithLogitsLoss",
        "MultiMarginLoss": "nn.CrossEntropyLoss",
        "NLLLoss2d": "nn.NLLLoss",
        "SoftMarginLoss": "needle.softplus(-y * x).mean()",
        "Softmax2d": "nn.Softmax(1)",
        "SyncBatchNorm": "nn.BatchNorm2d: there is one process",
        "TransformerDecoder": "nn.ModuleList of nn.TransformerDecoderLayer",
        "TransformerEncoder": "nn.Sequential of nn.TransformerEncoderLayer",
        "UpsamplingBilinear2d": 'nn.Upsample(mode="bilinear", align_corners=True)',
        "UpsamplingNearest2d": "nn.Upsample",
        "parallel": _ONE_PROCESS,
    },
    "nn.functional": {
        "affine_grid": "needle.meshgrid, and a product with the matrices",
        "ctc_loss": "F.cross_entropy of aligned labels",
        "grid_sample": "F.interpolate for grids that are regular",
        "multi_head_attention_forward": "nn.MultiheadAttention",
    },
    "nn.init": {
        "_calculate_fan_in_and_fan_out": "w.shape; calculate_gain, kaiming_normal_(w, mode=)",
    },
    "nn.utils": {
        "fuse_conv_bn_eval": "needle.fold_batch_norm(model)",
        "parametrizations": "normalise the weight in forward: needle.normalize(w, dim=1)",
        "parametrize": "compute the weight in forward",
        "prune": "with no_grad(): w.mul_(mask)",
        "remove_weight_norm": "needle.normalize(w, dim=1) in forward",
        "rnn": "nn.utils.pack_padded_sequence, nn.utils.pad_packed_sequence",
        "spectral_norm": "w / needle.linalg.matrix_norm(w, ord=2) in forward",
        "weight_norm": "needle.normalize(w, dim=1) in forward",
    },
    "optim": {
        "ASGD": "optim.SGD; average the parameters yourself",
        "Adamax": "optim.Adam",
        "LBFGS": "optim.Adam, or scipy.optimize with needle.value_and_grad",
        "Rprop": "optim.RMSprop",
        "SparseAdam": "optim.Adam: it takes gradients by rows",
        "swa_utils": "average the parameters yourself, under no_grad()",
    },
    "cuda": {
        "Event": "needle.cuda().record(), time.perf_counter() around needle.cuda.synchronize()",
        "FloatTensor": 'needle.tensor(x, device="cuda")',
        "Stream": 'with needle.cuda().stream("name"):',
        "amp": 'model.to("bfloat16"); there is no autocast',
        "comm": _ONE_PROCESS,
        "current_stream": 'with needle.cuda().stream("name"):',
        "device": 'device="cuda:1" for each tensor, model.to("cuda:1")',
        "get_device_capability": "needle.cuda().backend.driver.properties.arch",
        "get_device_properties": "needle.cuda().backend.driver.properties",
        "ipc_collect": "nothing: memory is not shared between processes",
        "max_memory_reserved": "needle.cuda.max_memory_allocated()",
        "mem_get_info": "needle.cuda().memory_info()",
        "memory_summary": "needle.cuda().memory_info()",
        "nvtx": "needle.cuda.synchronize() around what you time",
        "reset_peak_memory_stats": "needle.cuda.memory_allocated() before and after",
        "set_device": 'NEEDLE_DEVICE=cuda:1, or device="cuda:1" for each tensor',
        "stream": 'with needle.cuda().stream("name"):',
    },
    "utils.data": {
        "distributed": "needle.data.DistributedSampler",
        "get_worker_info": "needle.data.rng() draws numbers that do not depend on the worker",
    },
    "autograd": {
        "Function": "needle.custom_gradient, or a class derived from needle.Op",
        "Variable": "needle.Tensor: every tensor is a variable",
        "anomaly_mode": "with needle.check_finite():",
        "detect_anomaly": "with needle.check_finite():",
        "functional": "needle.jacobian, needle.hessian, needle.vjp, needle.jvp",
        "gradcheck": "needle.testing.check_gradients",
        "profiler": "python -m cProfile",
        "set_detect_anomaly": "with needle.check_finite():",
    },
    "linalg": {
        "eig": "numpy.linalg.eig of x.numpy(); eigh for symmetric matrices",
        "lstsq": "linalg.pinv(a) @ b",
        "multi_dot": "a @ b @ c",
    },
}


def advice(place: str, name: str) -> str:
    """Return what to write in place of a name; empty if it is not in the tables."""
    return ELSEWHERE.get(place, {}).get(name, "")


def publish(scope: dict[str, Any], *modules: str) -> None:
    """Give a package its ``__all__``: the public names in its scope, and those of modules.

    Type checkers take for public what ``import *`` and ``import name as name`` bring to a package.
    """
    here = {n for n, x in scope.items() if n[0] != "_" and not isinstance(x, ModuleType)}
    scope["__all__"] = sorted({*here, *modules} - {"TYPE_CHECKING"})
