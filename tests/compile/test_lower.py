"""Native programs: they have the bits of the definition, and memory that is planned."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
from looped import looped

import needle as ndl
from needle import config, core, executor, graph, ops
from needle.backend import kernels
from needle.compile.listing import Listing
from needle.compile.lower import lower, why
from needle.compile.program import PythonProgram
from needle.errors import IndexRangeError, NotRecorded, OutOfMemoryError
from needle.ops.core.op import Op
from needle.ops.index.row_sparse import RowSparse
from needle.testing.checks import _weighted_sum, cases

pytestmark = pytest.mark.skipif(core.native is None, reason="needs the native module")

CPU = ndl.cpu()


def listing(function, *arrays, stores=()):
    """The listing of a function of tensors; stores: (number of a result, of the source)."""
    with ndl.config(mode="lazy"):
        tensors = [graph.wrap(x) for x in arrays]
        for x in tensors:
            x.requires_grad = x.dtype.is_floating
        results = function(*tensors)
        sources = [graph.leaf(x) for x in tensors]
        roots = [graph.leaf(x) for x in results]
        order = graph.topo(roots)
    given = set(sources)
    constants = [(n, graph.tensor_of(n).array) for n in order if n.op is None and n not in given]
    stored = {place for place, _ in stores}
    return Listing(
        [n for n in order if n.op is not None],
        sources,
        constants,
        [n for i, n in enumerate(roots) if i not in stored],
        [(roots[i], cell) for i, cell in stores],
    )


def same(found, expected):
    for x, y in zip(found, expected, strict=True):
        assert x.spec is y.spec
        np.testing.assert_array_equal(x.numpy(), y.numpy())


def matrix(*shape, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return ndl.Tensor(values).array


def whole(function, *arrays, stores=()):
    """The listing, and its native program."""
    made = listing(function, *arrays, stores=stores)
    program = lower(made)
    assert program is not None, why()
    return made, program


# ---- results -----------------------------------------------------------------------


def of_case(case):
    """What a sample gives, and the gradients of its inputs."""

    def function(*inputs):
        out = case.make()(*inputs)
        found = list(out.tuple()) if isinstance(out.spec, tuple) else [out]
        if case.has_gradient():
            total = _weighted_sum(out, CPU)
            total.backward()
            grads = [x.grad for x in inputs if x.requires_grad]
            found += [g for g in grads if g is not None and not isinstance(g, RowSparse)]
        return found

    return function


@looped("op", ops.all_ops(), ids=lambda op: op.__name__)
def test_every_op_with_its_gradient_as_a_program(op):
    for case in cases(op)[:4]:
        kind = next(iter(case.dtypes))
        arrays = case.storage(kind, CPU)
        made = listing(of_case(case), *arrays)
        program = lower(made)
        assert program is not None, f"{case}: {why()}"
        free = [False] * len(arrays)
        expected = PythonProgram(made).run(arrays, free)[0]
        for _ in range(2):
            same(program.run(arrays, free)[0], expected)


@pytest.mark.parametrize("size", [1, 1000, 70_001])
def test_a_draw_is_one_kernel_with_the_bits_of_other_devices(size):
    run = ndl.compile(lambda: ndl.rand(size))
    for _ in range(2):
        ndl.manual_seed(2**63 + 5)
        found = [run() for _ in range(2)][1].numpy()
    (call,) = run.calls()
    names = [call.program.listing.order[row.node].op.name for row in call.program.rows()]
    assert names.count("random_uniform") == 1
    ndl.manual_seed(2**63 + 5)
    expected = [ndl.rand(size, device="cpu_numpy") for _ in range(2)][1].numpy()
    ndl.manual_seed(None)
    np.testing.assert_array_equal(found, expected)


def test_outputs_are_new_memory_and_views_keep_their_shape():
    x, y = matrix(4, 5), matrix(5, 4)
    _, program = whole(lambda x, y: [x, x.permute((1, 0)), x @ y, (x @ y)[1:]], x, y)
    first, second = (program.run([x, y], [False, False])[0] for _ in range(2))
    same(first, [x, x.permute((1, 0)), *second[2:]])
    places = {a.handle.ptr() for a in (*first, *second, x)}
    assert len(places) == 9


def test_strided_arguments():
    x, y = matrix(5, 4).permute((1, 0)), matrix(4, 5)
    made, program = whole(lambda x, y: [ops.exp(x) + y], x, y)
    same(program.run([x, y], [False] * 2)[0], PythonProgram(made).run([x, y], [False] * 2)[0])


class Keeping(Op):
    """Keeps its result for another call."""

    is_differentiable = False
    kept = []

    def compute(self, x):
        Keeping.kept.append(kernels.elementwise("negative", x))
        return x


def test_nothing_is_kept_after_a_failed_dry_run():
    x = matrix(3, 3)
    made = listing(lambda x: [executor.apply(Keeping(), x) + 1.0], x)
    assert lower(made) is None and "keeps memory" in why()
    Keeping.kept.clear()
    assert core.native is not None and not core.native.is_recording()
    assert lower(listing(lambda x: [x + 1.0], x)) is not None and why() == ""


def test_reads_of_a_dry_run_are_refused():
    assert core.native is not None
    recording = core.native.Recording()
    recording.start()
    try:
        x = recording.source(matrix(2, 3).spec, ())
        for read in (x.numpy, lambda: memoryview(x), x.handle.ptr):
            with pytest.raises(NotRecorded):
                read()
    finally:
        recording.stop()


# ---- stores ------------------------------------------------------------------------


def test_a_store_is_written_in_place_only_where_nobody_else_sees_it():
    p, g = matrix(3, 40), matrix(3, 40, seed=1)
    _, program = whole(lambda p, g: [p - g * 0.5], p, g, stores=[(0, 0)])
    before, expected = p.numpy().copy(), p.numpy() - g.numpy() * np.float32(0.5)
    ((new,),) = program.run([p, g], [False, False])[1:]
    np.testing.assert_array_equal(p.numpy(), before)
    np.testing.assert_array_equal(new.numpy(), expected)
    ((new,),) = program.run([p, g], [True, False])[1:]
    assert new is p
    np.testing.assert_array_equal(p.numpy(), expected)


def test_a_cell_that_is_read_later_is_not_overwritten_early():
    p = matrix(64, 64)
    made, program = whole(lambda p: [p + 1.0, (p * 2.0).sum(), p @ p], p, stores=[(0, 0)])
    expected = PythonProgram(made).run([p], [False])
    found = program.run([p], [True])
    same([*found[0], *found[1]], [*expected[0], *expected[1]])


def test_cells_that_change_places():
    a, b = matrix(3, 3), matrix(3, 3, seed=1)
    old = a.numpy().copy(), b.numpy().copy()
    _, program = whole(lambda a, b: [b, a], a, b, stores=[(0, 0), (1, 1)])
    new = program.run([a, b], [True, True])[1]
    np.testing.assert_array_equal(new[0].numpy(), old[1])
    np.testing.assert_array_equal(new[1].numpy(), old[0])


def test_a_bad_index_raises_as_eager_mode_and_changes_nothing():
    table, index = matrix(5, 3), ndl.Tensor(np.array([0, 4, 9])).array
    p = matrix(3, 3)
    _, program = whole(
        lambda table, index, p: [p + ops.take(table, index, 0)], table, index, p, stores=[(0, 2)]
    )
    before = p.numpy().copy()
    with pytest.raises(IndexRangeError, match="9"):
        program.run([table, index, p], [True] * 3)
    np.testing.assert_array_equal(p.numpy(), before)
    good = ndl.Tensor(np.array([0, 4, 1])).array
    program.run([table, good, p], [True] * 3)


def test_memory_that_is_exhausted_stores_nothing():
    p = matrix(600, 600)
    _, program = whole(lambda p: [ops.exp(p).T @ (p * 2.0).T @ p], p, stores=[(0, 0)])
    before = p.numpy().copy()
    failed = []

    def run():  # a thread of its own has no arena yet
        with config.override(memory_limit=1 << 20), pytest.raises(OutOfMemoryError):
            program.run([p], [True])
        failed.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert failed
    np.testing.assert_array_equal(p.numpy(), before)


# ---- memory ------------------------------------------------------------------------


def chain(x, w):
    for _ in range(6):
        x = ops.tanh(x @ w) * 0.5 + x
    return [x, (x * x).sum()]


def test_values_that_live_at_once_do_not_overlap():
    made, program = whole(chain, matrix(33, 20), matrix(20, 20))
    plan = program.intervals()
    assert len(plan) > 6
    for i, a in enumerate(plan):
        assert a.offset % 64 == 0 and a.offset + a.nbytes <= program.arena_bytes
        for b in plan[:i]:
            at_once = a.first < b.last and b.first < a.last
            apart = a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
            assert apart or not at_once
    assert program.arena_bytes < sum(x.nbytes for x in plan) / 2
    assert {row.node for row in program.rows()} <= set(range(len(made.order))) | {-1}
    seconds = program.measure([matrix(33, 20), matrix(20, 20)], 2)
    assert len(seconds) == len(program.rows()) and min(seconds) >= 0


def test_results_take_the_place_of_inputs_that_die():
    x = matrix(300, 300)
    made, program = whole(lambda x: [ops.tanh(ops.exp(ops.sin(x * 0.5) + 1.0)) @ x], x)
    (value,) = program.intervals()
    assert program.arena_bytes == value.nbytes == 300 * 300 * 4 and value.last == 6
    same(program.run([x], [False])[0], PythonProgram(made).run([x], [False])[0])


def test_no_kernel_reads_a_value_that_is_dead():
    arrays = [matrix(33, 20), matrix(20, 20)]
    with config.override(check="poison"):
        made, program = whole(chain, *arrays)
    expected = PythonProgram(made).run(arrays, [False] * 2)[0]
    for _ in range(2):
        same(program.run(arrays, [False] * 2)[0], expected)


def test_four_threads_with_two_programs():
    arrays = [matrix(33, 20), matrix(20, 20)]
    programs = [whole(chain, *arrays), whole(lambda x, w: [ops.exp(x) @ w + 1.0], *arrays)]
    expected = [PythonProgram(made).run(arrays, [False] * 2)[0] for made, _ in programs]
    wrong = []

    def work(k):
        try:
            for _ in range(200):
                same(programs[k % 2][1].run(arrays, [False] * 2)[0], expected[k % 2])
        except BaseException:
            wrong.append(sys.exc_info()[1])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong
