"""The CUDA device without a GPU: what the op suite's small samples do not reach."""

from __future__ import annotations

import gc
import json
import threading

import numpy as np
import pytest
from dataset_files import write_mnist

import needle as ndl
from needle import cli, devices
from needle.backend import kernels
from needle.backend.functions import functions
from needle.backend.ndarray import array, empty
from needle.errors import DeviceError, IndexRangeError, OutOfMemoryError

if not any(d.name == "cuda-emu" and d.enabled() for d in ndl.all_devices()):
    pytest.skip("no compiler for the emulator", allow_module_level=True)

from needle.backend.cuda import geometry as geometries
from needle.backend.cuda.backend import _is_transpose
from needle.backend.cuda.geometry import geometry
from needle.backend.cuda.table import CPP

EMU = devices.as_device("cuda-emu")
rng = np.random.default_rng(0)
START = rng.bit_generator.state


@pytest.fixture(autouse=True)
def same_numbers():
    """Let a test draw the same numbers, whichever tests ran before it."""
    rng.bit_generator.state = START


def draw(*shape):
    return rng.standard_normal(shape)


@pytest.fixture(params=[0, 1, 2])
def order(request):
    """Run each kernel's threads as numbered, reversed, shuffled."""
    EMU.driver.order = request.param
    yield request.param
    EMU.driver.order = None


# ---- kernels in the large --------------------------------------------------------------


@pytest.mark.parametrize("shape, axes", [((40000,), (0,)), ((3, 9001), (1,)), ((5000, 3), (0,)),
                                         ((700, 65), (0,)), ((4, 70, 33), (0, 2))])  # fmt: skip
@pytest.mark.parametrize("name", ["sum", "max", "argmin", "mean"])
def test_long_reductions(order, shape, axes, name):
    axes = axes[:1] if name == "argmin" else axes  # one axis or all
    values = draw(*shape)
    found = kernels.reduce(name, array(values, "float64", EMU), axes).numpy()
    expected = getattr(np, name)(values, axis=axes[0] if name == "argmin" else axes)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "int64"])
@pytest.mark.parametrize("shape", [(900, 96), (64, 1040), (3, 40, 48), (5, 7, 2064)])
def test_reductions_that_read_whole_pieces(order, kind, shape):
    """Rows and columns of an array, and of views that start between pieces or skip some."""
    values = np.rint(9 * draw(*shape)).astype("int8")
    values[(1,) * len(shape)] = 100
    x, full = array(values, kind, EMU), [(0, n, 1) for n in shape]
    rounded = "float16" if kind == "float16" else "int64"
    views = [full, [*full[:-1], (1, shape[-1] - 1, 1)], [*full[:-1], (0, shape[-1] // 2, 2)]]
    for view in views:
        part = x.slice(view)
        exact = values[tuple(slice(a, a + n * step, step) for a, n, step in view)].astype("int64")
        for axes in (
            (0,),
            (len(shape) - 1,),
            tuple(range(len(shape))),
            tuple(range(1, len(shape))),
        ):
            found = kernels.reduce("sum", part, axes).numpy().astype(float)
            np.testing.assert_array_equal(found, exact.sum(axes).astype(rounded).astype(float))
            found = kernels.reduce("max", part, axes).numpy().astype(float)
            np.testing.assert_array_equal(found, exact.max(axes))
        for axis in (0, len(shape) - 1):
            found = kernels.reduce("argmax", part, (axis,)).numpy()
            np.testing.assert_array_equal(found, exact.argmax(axis))


@pytest.mark.parametrize("shape, axis", [((1, 1000), 1), ((3, 257), 1), ((300, 5), 0)])
def test_long_scans(order, shape, axis):
    values = draw(*shape)
    found = kernels.scan("cumsum", array(values, "float64", EMU), axis).numpy()
    np.testing.assert_allclose(found, np.cumsum(values, axis), rtol=1e-12, atol=1e-10)
    values.reshape(-1)[200::211] = np.nan
    for largest, exact in ((True, np.maximum), (False, np.minimum)):
        for kind in ("float64", "int8", "bool"):
            x = array(np.nan_to_num(values * 9) if kind == "int8" else values, kind, EMU)
            best, places = kernels.extremes(x, axis, largest)
            assert best.dtype == kind
            np.testing.assert_array_equal(best.numpy(), exact.accumulate(x.numpy(), axis))
            where = np.take_along_axis(x.numpy(), places.numpy(), axis)
            np.testing.assert_array_equal(where, best.numpy())


TILES = [(260, 300, 70), (130, 140, 9), (33, 65, 40), (1, 7, 300)]


@pytest.mark.parametrize("m, n, k", TILES)
def test_products_of_every_tile_and_order(order, m, n, k):
    check_product("float32", m, n, k)


@pytest.mark.parametrize("kind", ["float64", "int64"])
@pytest.mark.parametrize("m, n, k", TILES)
def test_products_of_every_dtype(kind, m, n, k):
    check_product(kind, m, n, k)


def check_product(kind, m, n, k):
    a, b = np.rint(4 * draw(2, m, k)), np.rint(4 * draw(k, n))  # exact in float32
    left, right = array(a, kind, EMU), array(b.T.copy(), kind, EMU).permute((1, 0))
    found = kernels.matmul(left, right).numpy()
    np.testing.assert_array_equal(found, np.matmul(a, b))
    turned = array(a.transpose(0, 2, 1).copy(), kind, EMU).permute((0, 2, 1))
    np.testing.assert_array_equal(kernels.matmul(turned, right).numpy(), np.matmul(a, b))


def launched(function):
    """Return what a function returns, and the names of the kernels that it asked for."""
    names = []
    real = EMU.backend.function
    EMU.backend.function = lambda file, name, *rest: names.append(name) or real(file, name, *rest)
    try:
        return function(), names
    finally:
        del EMU.backend.function


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("m, n, k", [(136, 152, 72), (33, 47, 35), (264, 520, 264)])
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_products_on_tensor_cores(kind, m, n, k, turned):
    """Of few and of many tiles, of less depth than there is room for and of more."""
    a, b = np.rint(2 * draw(m, k)), np.rint(2 * draw(k, n))

    def stored(x, turn):
        return array(x.T.copy(), kind, EMU).permute((1, 0)) if turn else array(x, kind, EMU)

    found, names = launched(lambda: kernels.matmul(stored(a, turned[0]), stored(b, turned[1])))
    wide = "true" if m % 8 == n % 8 == k % 8 == 0 else "false"
    assert any(f"{wide}, {256 if n > 500 else 128}>" in name for name in names), names
    exact = array(a @ b, kind, "cpu_numpy").numpy().astype(float)  # rounded once
    np.testing.assert_array_equal(found.numpy().astype(float), exact)


def test_products_on_tensor_cores_of_batches_and_views(order):
    """Rows of tiles in groups; results whose lines do not start on 16 bytes, or are apart."""
    for m, n, k, batches in ((2200, 40, 40, 1), (40, 200, 48, 3)):
        a, b = np.rint(draw(batches, m, k + 8)), np.rint(draw(batches, k, n + 3))
        x = array(a, "bfloat16", EMU).slice([(0, batches, 1), (0, m, 1), (8, k, 1)])
        y = array(b, "bfloat16", EMU).slice([(0, batches, 1), (0, k, 1), (3, n, 1)])
        exact = array(a[:, :, 8:] @ b[:, :, 3:], "bfloat16", "cpu_numpy").numpy().astype(float)
        np.testing.assert_array_equal(kernels.matmul(x, y).numpy().astype(float), exact)
        for out in (
            empty((batches, m, n + 1), "bfloat16", EMU).slice(
                [(0, batches, 1), (0, m, 1), (1, n, 1)]
            ),
            empty((batches, n, m), "bfloat16", EMU).permute((0, 2, 1)),
        ):
            EMU.backend.matmul(out, x, y.copy())
            np.testing.assert_array_equal(out.numpy().astype(float), exact)


ROWS = [(1, 8), (9, 16), (5, 512), (3, 1024), (2, 2056), (1, 4096), (3, 7), (5, 1030), (1, 4104)]


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("rows, d", ROWS)
def test_rows_in_registers_and_out_of_them(order, rows, d, kind):
    """Short and long, whole pieces of 16 bytes or not; a NaN and infinities stay in their row."""
    values = draw(rows, d + 8)
    values[rows // 2, [0, d // 2]] = np.inf, -np.inf
    results = []
    for where in ("cuda-emu", "cpu_numpy"):
        whole = ndl.Tensor(array(values, kind, devices.as_device(where)))
        found = []
        for first in (8, 7):  # rows that start on 16 bytes, and such that do not
            x = whole[:, first : first + d]
            weight = ndl.Tensor(np.linspace(1, 2, d), device=where, dtype=kind)
            labels = ndl.Tensor(np.arange(rows) % d, device=where, dtype="int64")
            outs = [
                ndl.softmax(x, axis=1), ndl.log_softmax(x, axis=1),
                ndl.ops.layer_norm(x, weight, weight), ndl.ops.rms_norm(x, weight),
                ndl.cross_entropy(x, labels, reduction="none"),
            ]  # fmt: skip
            for out in outs:
                whole.grad = None
                (out * (out.detach() * 0 + 0.5)).sum().backward()
                found += [out.numpy().astype(float), whole.grad.numpy().astype(float)]
        results.append(found)
    eps = {"float32": 2e-5, "float64": 1e-12, "bfloat16": 2e-2}[kind]
    for found, exact in zip(*results, strict=True):
        np.testing.assert_allclose(found, exact, rtol=eps, atol=eps)


@pytest.mark.parametrize("rows, d", [(1100, 3), (700, 70), (5, 40)])
def test_batch_norm_of_many_rows(order, rows, d):
    """Whose sums over columns are made in several parts."""
    values, results = draw(rows, d), []
    for where in ("cuda-emu", "cpu_numpy"):
        x = ndl.Tensor(values, device=where, dtype="float64")
        weight, bias = (ndl.Tensor(np.linspace(1, n, d), device=where) for n in (2, 3))
        weight, bias = weight.astype("float64"), bias.astype("float64")
        out, mean, var = ndl.ops.batch_norm(x, weight, bias)
        grads = ndl.grad(lambda *a: (ndl.ops.batch_norm(*a)[0] ** 3).sum(), (0, 1, 2))(
            x, weight, bias
        )
        results.append([y.numpy() for y in (out, mean, var, *grads)])
    for found, exact in zip(*results, strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("n", [2, 700, 1024, 5000])
@pytest.mark.parametrize("descending", [False, True])
def test_long_sorts_are_stable(order, n, descending):
    values = np.rint(20 * draw(2, n))
    values[0, n // 2] = np.nan
    found = kernels.sort(array(values, "float32", EMU), 1, descending)
    exact = kernels.sort(array(values, "float32", "cpu_numpy"), 1, descending)
    for a, b in zip(found, exact, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_scatter_add_is_the_same_every_time():
    index, updates = rng.integers(0, 50, (3000, 1)), draw(3000, 7)
    sums = []
    for threads in range(3):
        EMU.driver.order = threads
        x, where = array(updates, "float32", EMU), array(index, "int64", EMU)
        sums.append(kernels.scatter_add(where.broadcast_to((3000, 7)), x, 0, (50, 7)).numpy())
    EMU.driver.order = None
    assert sums[0].tobytes() == sums[1].tobytes() == sums[2].tobytes()
    exact = np.zeros((50, 7))
    np.add.at(exact, index[:, 0], updates)
    np.testing.assert_allclose(sums[0], exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_random_bits_are_those_of_the_cpu(kind):
    for key_, counter, n in ((7, 0, 1001), (2**63 + 12345, 2**62 + 5, 37)):
        one, other = (
            kernels.random_bits((n,), key_, counter, ndl.dtype.as_dtype(kind), device).numpy()
            for device in (EMU, devices.cpu_numpy())
        )
        np.testing.assert_array_equal(one, other)


def test_indices_of_64_bits(monkeypatch):
    """Sizes beyond 2**31 need more memory than there is; so let the limit be smaller."""
    geometry.cache_clear()
    monkeypatch.setattr(geometries, "LIMIT", 0)
    monkeypatch.setattr(EMU.backend, "prepared", {})
    used = []
    real = EMU.backend.function
    monkeypatch.setattr(EMU.backend, "function", lambda f, e, *r: used.append(e) or real(f, e))
    a, b = draw(5, 6), draw(6)
    x, y = array(a, "float32", EMU), array(b, "float32", EMU)
    turned = x.permute((1, 0))
    results = [
        kernels.elementwise("add", turned, turned.flip(0)), kernels.reduce("sum", x, (0,)),
        kernels.reduce("max", x, (1,)), kernels.elementwise("multiply", x, y),
        kernels.gather(x, array([[1], [0], [5], [2], [2]], "int64", EMU), 1),
        kernels.sort(x, 1)[0], turned.astype("float64"),
    ]  # fmt: skip
    x.slice([(0, 5, 1), (1, 3, 2)]).fill(2.0)
    a32 = a.astype("float32")
    index = np.array([[1], [0], [5], [2], [2]])
    expected = [
        a32.T + a32.T[::-1], a32.sum(0), a32.max(1), a32 * b.astype("float32"),
        np.take_along_axis(a32, index, 1), np.sort(a32, 1), a32.T,
    ]  # fmt: skip
    for found, exact in zip(results, expected, strict=True):
        np.testing.assert_allclose(found.numpy(), exact, rtol=1e-6, atol=1e-6)
    a32[:, 1::2] = 2
    np.testing.assert_array_equal(x.numpy(), a32)
    kinds = {e.split("<")[0] for e in used if "i64>" in e}
    assert {"elementwise", "reduce", "gather", "sort_keys", "sort_results", "copy", "fill"} <= kinds
    geometry.cache_clear()


def test_what_is_too_long_for_the_grid_of_tiles_is_no_transpose():
    most = 32 * 65535
    for rows in (most, most + 1):
        turned = geometry((rows, 16), (16, 1), (1, rows))
        assert _is_transpose(turned) is (rows == most)
    for batches in (65535, 65536):
        turned = geometry((batches, 16, 17), (272, 17, 1), (272, 1, 16))
        assert _is_transpose(turned) is (batches == 65535)


def test_transposed_copies_pass_through_tiles(order):
    for shape in ((40, 70), (3, 33, 64), (17, 16)):
        for kind in ("float32", "int8", "float64"):
            values = np.rint(50 * draw(*shape)).astype(kind)
            axes = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
            turned = array(values, kind, EMU).permute(axes)
            np.testing.assert_array_equal(turned.copy().numpy(), values.transpose(axes))


def test_geometry_merges_axes():
    g = geometry((4, 1, 5, 6), (30, 99, 6, 1), (30, 7, 6, 1))
    assert g.shape == (120,) and g.dense() == 0 and g.index == "i32"
    assert geometry((4, 5), (5, 1), (0, 0)).dense() == 1
    assert geometry((4, 5), (5, 1), (0, 1)).dense() is None
    assert geometry((4, 5), (1, 4), (1, 4)).dense() == 0
    assert geometry((4, 5), (1, 4), (1, 4), keep_order=True).dense() is None
    assert geometry((2, 3), (1 << 31, 1)).index == "i64"
    assert geometry((), (), ()).dense() == 0 and geometry((0, 3), (3, 1)).count == 0


# ---- fused programs, updates -------------------------------------------------------------

PROGRAMS = {
    "affine": ((("multiply", (0, 1)), ("add", (3, 2)), ("tanh", (4,))), 3, 1),
    "choice": ((("greater", (0, 1)), ("where", (2, 0, 1)), ("negative", (3,))), 2, 2),
    "repeated": ((("add", (0, 0)), ("multiply", (1, 1))), 1, 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16"])
def test_fused_programs_are_their_steps(name, kind):
    program, n, outs = PROGRAMS[name]
    values = [draw(6, 7), draw(6, 7), draw(7)][:n]
    results = []
    for where in (EMU, devices.cpu_numpy()):
        inputs = [array(x, kind, where).broadcast_to((6, 7)) for x in values]
        targets = [empty((6, 7), kind, where) for _ in range(outs)]
        if where is EMU:
            where.backend.run_fused(program, targets, inputs)
        else:
            registers = list(inputs)
            for function, arguments in program:
                bools = {"dtype": ndl.dtype.bool_} if function == "greater" else {}
                registers.append(
                    kernels.elementwise(function, *[registers[i] for i in arguments], **bools)
                )
            targets = registers[-outs:]
        results.append([x.numpy().astype(float) for x in targets])
    eps = {"float32": 1e-6, "float64": 1e-14, "bfloat16": 8e-3}[kind]
    for found, exact in zip(*results, strict=True):
        np.testing.assert_allclose(found, exact, rtol=eps, atol=eps)


def test_updates_of_many_tensors_take_few_launches():
    from needle import nn, optim

    def trained(where):
        ndl.manual_seed(3)
        parameters = [
            nn.Parameter(np.full((n, 3), 0.5, "float32"), device=where) for n in range(1, 120, 2)
        ]
        optimizer = optim.AdamW(parameters, lr=0.1, weight_decay=0.1)
        for step in range(2):
            for i, p in enumerate(parameters):
                p.grad = ndl.Tensor(np.full(p.shape, i - 30.0 + step, "float32"), device=where)
            before = EMU.driver.launches
            optimizer.step()
            launches = EMU.driver.launches - before
        return launches, [p.numpy() for p in parameters]

    (launches, found), (_, exact) = trained("cuda-emu"), trained("cpu_numpy")
    assert launches == 2  # 48 tensors fit in one
    for a, b in zip(found, exact, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


# ---- memory, threads ------------------------------------------------------------------


def test_memory_that_ends_names_its_holders():
    gc.collect()
    limit = EMU.memory_info()["live"] + (1 << 20)
    kept = ndl.Tensor(np.zeros((300, 300), "float32"), device=EMU, requires_grad=False)
    kept.name = "a large one"
    with ndl.config(memory_limit=limit):
        with pytest.raises(OutOfMemoryError, match=r"(?s)cuda-emu.*largest:.*a large one"):
            ndl.Tensor(np.zeros((1000, 300), "float32"), device=EMU)
        assert (kept + 1).sum().item() == 90000  # and work goes on


def test_the_device_can_be_used_by_threads():
    x = ndl.Tensor(np.arange(100.0), device=EMU)
    found = []
    workers = [
        threading.Thread(target=lambda k=k: found.append(((x * k).sum().item(), 4950.0 * k)))
        for k in range(8)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 8 and all(a == b for a, b in found)


# ---- errors ----------------------------------------------------------------------------


def test_bad_indices_are_told_when_the_host_waits():
    x = array(draw(3, 4), "float32", EMU)
    kernels.gather(x, array([[0], [9], [-5]], "int64", EMU), 1)
    kernels.gather(x, array([[0], [1], [7]], "int64", EMU), 1)
    with pytest.raises(IndexRangeError, match=r"gather: the index at position \(1, 0\).*4 entries"):
        EMU.synchronize()
    EMU.synchronize()  # once
    np.testing.assert_array_equal(x.numpy().shape, (3, 4))


def test_bad_labels_are_told_too():
    logits = ndl.Tensor(draw(3, 4), device=EMU)
    loss = ndl.cross_entropy(logits, ndl.Tensor([0, 4, 1], device=EMU, dtype="int64"))
    with pytest.raises(IndexRangeError, match="label at position 1 is not one of 4 classes"):
        loss.item()


def test_every_function_of_the_table_has_a_kernel():
    assert set(CPP) == set(map(str, ndl.dtype.ALL))
    assert len(functions()) > 60 and functions()["where"].arity == 3
    assert functions()["isnan"].gives_bool and not functions()["exp"].gives_bool


# ---- the real device, as far as it goes without one ----------------------------------------


def test_cuda_never_raises_and_says_what_is_missing():
    where = ndl.cuda()
    if where.enabled():
        pytest.skip("there is a GPU")
    reason = where.reason()
    assert reason and "\n" not in reason
    assert any(word in reason for word in ("pip install", "driver", "GPU"))
    with pytest.raises(DeviceError, match="not available"):
        ndl.Tensor([1.0], device="cuda")


# ---- training --------------------------------------------------------------------------


def test_the_mlp_of_the_recipe_trains_as_on_the_reference():
    from needle import nn, optim
    from needle.models.mlp_resnet import MLPResNet

    x, y = draw(60, 12).astype("float32"), rng.integers(0, 4, 60)

    def losses(where):
        ndl.manual_seed(5)
        np.random.seed(5)
        model = MLPResNet(12, 16, num_blocks=2, num_classes=4, drop_prob=0.0)
        model.to(where)
        optimizer = optim.Adam(model.parameters(), lr=0.01)
        found = []
        for step in range(8):
            part = slice(step % 3 * 20, step % 3 * 20 + 20)
            inputs = ndl.Tensor(x[part], device=where, requires_grad=False)
            labels = ndl.Tensor(y[part], device=where, dtype="int64")
            loss = nn.SoftmaxLoss()(model(inputs), labels)
            optimizer.minimize(loss)
            found.append(loss.item())
        return found

    found, exact = losses("cuda-emu"), losses("cpu_numpy")
    np.testing.assert_allclose(found, exact, rtol=2e-4)
    assert found[6] < found[0]  # of the same batch


def test_the_recipe_of_the_mlp_runs(tmp_path):
    """``needle train mlp-mnist --device cuda-emu``, beside the NumPy device."""
    write_mnist(tmp_path / "data", 40)
    write_mnist(tmp_path / "data", 20, train=False)
    metrics = []
    for name in ("cuda-emu", "cpu_numpy"):
        command = [
            "train", "mlp-mnist", "--device", name, "--data", str(tmp_path / "data"), "--epochs",
            "2", "--batch-size", "20", "--seed", "3", "--out", str(tmp_path / name), "--quiet",
        ]  # fmt: skip
        assert cli.main(command) == 0
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        metrics.append([json.loads(line) for line in lines])
    for found, exact in zip(*metrics, strict=True):
        assert (found["split"], found["step"]) == (exact["split"], exact["step"])
        np.testing.assert_allclose(found["loss"], exact["loss"], rtol=2e-3)
