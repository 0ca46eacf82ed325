"""Passes of a loader: plans, threads, random numbers of items, states, figures."""

from __future__ import annotations

import json
import random

import loader_sets
import numpy as np
import pytest
from loader_sets import AUGMENT, Faulty, Items, Stream, arrays, assert_same
from looped import looped

import needle as ndl
from needle import data
from needle.data import stats, worker
from needle.data.engine import Plan
from needle.errors import ArgumentError, DataError, OptionError, WorkerError

KINDS = {
    "arrays": lambda **more: data.DataLoader(arrays(), 16, True, transform=AUGMENT, **more),
    "items": lambda **more: data.DataLoader(Items(), 16, True, **more),
    "subset": lambda **more: data.DataLoader(
        data.Subset(Items(), range(0, 120, 2)), 16, drop_last=True, **more
    ),
    "stream": lambda **more: data.DataLoader(Stream(), 7, **more),
    "shuffled": lambda **more: data.DataLoader(data.ShuffleBuffer(Stream(), 9), 7, **more),
    "weights": lambda **more: data.DataLoader(
        arrays(), 16, sampler=data.WeightedRandomSampler(np.arange(300), 100), **more
    ),
    "lengths": lambda **more: data.DataLoader(
        Items(), batch_sampler=data.LengthBatchSampler(np.arange(120) % 17, 16), **more
    ),
}


def closed(loader):
    """Return all batches of a pass, and end the workers."""
    try:
        return list(loader)
    finally:
        loader.close()


# ---- the plan ----------------------------------------------------------------------


def task(number):
    return worker.Task(np.array([number]), 0, None)


@looped("seed", range(20))
def test_a_plan_hands_out_in_order_and_gives_no_slot_twice(seed):
    rng = random.Random(seed)
    workers, count = rng.randint(1, 5), rng.randint(0, 40)
    slots = rng.randint(1, 12)
    tasks = ((i % workers, task(i)) for i in range(count))
    plan = Plan(tasks, rng.randint(1, 12), slots)
    running, held, taken = [], set(), []
    while not plan.finished:
        while (job := plan.ask()) is not None:
            assert job.slot not in held and job.worker == job.number % workers
            held.add(job.slot)
            running.append(job)
        assert len(plan.jobs) <= min(plan.limit, slots)
        if running:
            job = running.pop(rng.randrange(len(running)))
            plan.done(job.number, worker.Batch(job.number, 1, ()))
        while (found := plan.take()) is not None:
            taken.append(found[1].values)
            held.remove(found[0].slot)
            plan.give_back(found[0])
    assert taken == list(range(count)) and not held


# ---- the same bits -----------------------------------------------------------------


@looped("name", KINDS)
def test_threads_give_the_bits_of_the_caller(name):
    np.random.seed(0)
    expected = closed(KINDS[name](seed=5))
    before = np.random.get_state()[2]
    for workers in (1, 2, 4):
        np.random.seed(workers)
        found = KINDS[name](seed=5, num_workers=workers, workers="thread")
        assert_same(closed(found), expected)
    if name != "lengths":  # the data set draws nothing from the process
        assert before == np.random.RandomState(0).get_state()[2]


def test_epochs_and_seeds_differ_and_repeat():
    loader = KINDS["items"](seed=5)
    first, second = list(loader), list(loader)
    assert not np.array_equal(first[0]["noise"].numpy(), second[0]["noise"].numpy())
    loader.set_epoch(1)
    assert_same(list(loader), second)
    other = list(KINDS["items"](seed=6))
    assert [b["name"] for b in other] != [b["name"] for b in first]
    generator = ndl.ops.random.Generator(7)
    a, b = (KINDS["items"](generator=generator).seed for _ in range(2))
    assert a != b and a == KINDS["items"](generator=ndl.ops.random.Generator(7)).seed


def test_without_a_seed_workers_draw_one_from_the_generator():
    found = []
    for _ in range(2):
        ndl.manual_seed(3)
        loader = KINDS["items"](num_workers=2, workers="thread")
        found.append([*loader, *closed(loader)])
    ndl.manual_seed(None)
    assert_same(found[0], found[1])


def test_items_draw_independent_numbers():
    from needle.ops.random import SampleStream

    found = np.array([
        [SampleStream(seed, epoch, index).word() for index in range(500)]
        for seed in range(2) for epoch in range(2)
    ]) / 2**32  # fmt: skip
    assert len(np.unique(found)) == 2000
    assert np.abs(np.corrcoef(found) - np.eye(4)).max() < 5 / np.sqrt(500)
    counts, _ = np.histogram(found, 10)
    assert np.abs(counts - 200).max() < 5 * np.sqrt(200)
    augments = data.augment.uniforms(0, 0, np.arange(500), 1)[:, 0]
    assert np.abs(np.corrcoef(augments, found[0])[0, 1]) < 5 / np.sqrt(500)


# ---- states ------------------------------------------------------------------------


@looped("name", KINDS)
@looped("workers", [0, 2])
def test_a_pass_goes_on_at_any_batch(name, workers):
    more = {"num_workers": workers, "workers": "thread"} if workers else {}
    loader = KINDS[name](seed=5, **more)
    list(loader)
    expected, states = [], [loader.state_dict()]
    for batch in loader:
        expected.append(batch)
        states.append(json.loads(json.dumps(loader.state_dict())))
        assert len(json.dumps(states[-1])) < 4096
    following = list(loader)
    for done in (1, len(expected) // 2, len(expected)):
        again = KINDS[name](seed=5, num_workers=2 - workers, workers="thread")
        again.load_state_dict(states[done])
        assert_same(list(again), expected[done:])
        assert_same(closed(again), following)
    loader.close()


@pytest.mark.parametrize("own", [False, True])
def test_an_unseeded_pass_goes_on_and_draws_nothing(own):
    (ndl.manual_seed if own else np.random.seed)(3)
    loader = data.DataLoader(arrays(), 16, shuffle=True)
    expected, states = [], []
    for batch in loader:
        expected.append(batch)
        states.append(json.loads(json.dumps(loader.state_dict())))
        assert len(json.dumps(states[-1])) < 4096
    (ndl.manual_seed if own else np.random.seed)(4)
    before = ndl.ops.random.get_state()
    again = data.DataLoader(arrays(), 16, shuffle=True)
    again.load_state_dict(states[2])
    assert_same(list(again), expected[3:])
    assert str(ndl.ops.random.get_state()) == str(before)
    ndl.manual_seed(None)


@looped("position", [0, 1, 127, 128, 299])
def test_a_pass_goes_on_at_any_sample(position):
    whole = np.concatenate([y.numpy() for _, y in data.DataLoader(arrays(), 300, True, seed=1)])
    loader = data.DataLoader(arrays(), 16, True, seed=1, num_workers=2, workers="thread")
    loader.load_state_dict({**loader.state_dict(), "position": position})
    found = np.concatenate([y.numpy() for _, y in closed(loader)])
    np.testing.assert_array_equal(found, whole[position:])


def test_a_position_far_into_a_large_set_costs_no_replay():
    class Large(data.Dataset):
        def __len__(self):
            return 10**9

        def __getitem__(self, index):
            return index

    loader = data.DataLoader(Large(), 8, True, seed=1)
    loader.load_state_dict({**loader.state_dict(), "position": 9 * 10**8})
    first = next(iter(loader)).numpy()  # an array of the order would not fit into memory
    assert len(np.unique(first)) == 8 and loader.state_dict()["position"] == 9 * 10**8 + 8


def test_states_that_do_not_fit_are_refused():
    loader = data.DataLoader(arrays(), 16, True, seed=1)
    state = loader.state_dict()
    other = np.zeros((300, 6, 5, 3), np.uint8)
    for wrong, message in (
        (data.DataLoader(arrays(200), 16, True, seed=1), r"uint8\[300.*uint8\[200"),
        (data.DataLoader(data.NDArrayDataset(other, np.arange(300)), 16, seed=1), "the data set"),
        (data.DataLoader(arrays(), 16, True, seed=2), "of seed 1, the loader has 2"),
    ):
        with pytest.raises(DataError, match=message):
            wrong.load_state_dict(state)
    for changed, message in (
        ({"version": 2}, "version 2"), ({"position": 301}, "301 of 300"),
        ({"position": -1}, "position -1"), ({"epoch": "x"}, "not the state"),
        ({"shards": [1]}, "1 shards"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=message):
            loader.load_state_dict({**state, **changed})
    with pytest.raises(DataError, match="not the state of a loader"):
        loader.load_state_dict({})
    samplers = [data.DataLoader(arrays(), 16, sampler=order) for order in ([3, 1, 2], [1, 2, 3])]
    next(samplers[0])
    samplers[1].load_state_dict(samplers[0].state_dict())
    with pytest.raises(DataError, match="another order"):
        next(samplers[1])
    batches = [data.DataLoader(arrays(), batch_sampler=b) for b in ([[1, 2], [3]], [[1, 2, 3]])]
    next(batches[0])
    batches[1].load_state_dict(batches[0].state_dict())
    with pytest.raises(DataError, match="sample 2.*within a batch"):
        next(batches[1])


# ---- streams -----------------------------------------------------------------------


def test_ranks_share_a_stream():
    found = []
    for rank in range(3):
        stream = Stream()
        stream.rank, stream.world, stream.shards = rank, 3, 2
        found += [int(x[1]) for x, _ in stream]
    assert len(found) == len(set(found)) and set(range(90)) <= set(found)


def test_a_shuffled_stream_stays_within_its_windows():
    class Count(data.IterableDataset):
        shards = 1

        def items(self, shard, shards):
            yield from range(100)

    loader = data.DataLoader(data.ShuffleBuffer(Count(), 30), 100, seed=0)
    (first,), (second,) = ([b.numpy() for b in loader] for _ in range(2))
    assert not np.array_equal(first, second)
    for start in range(0, 100, 30):
        window = first[start : start + 30]
        assert sorted(window) == list(range(start, min(start + 30, 100)))
        assert not np.array_equal(window, np.sort(window))


def test_short_batches_of_a_stream_can_be_left_out():
    sizes = [len(y) for _, y in data.DataLoader(Stream(), 7, drop_last=True)]
    assert set(sizes) == {7}
    loader = data.DataLoader(Stream(), 7, drop_last=True, num_workers=2, workers="thread")
    assert [len(y) for _, y in closed(loader)] == sizes


# ---- faults, figures, arguments ----------------------------------------------------


def test_a_thread_that_raises_names_itself_and_the_items():
    loader = data.DataLoader(Faulty("fail"), 8, num_workers=2, workers="thread")
    found = iter(loader)
    assert [next(found).numpy()[0, 0] for _ in range(2)] == [0, 8]
    with pytest.raises(WorkerError, match=r"worker 0 raised ValueError: this item is bad") as info:
        next(found)
    assert "[16, 17, 18" in str(info.value) and "in fail" in info.value.trace
    assert info.value.worker == 0 and isinstance(info.value.__cause__, ValueError)
    with pytest.raises(DataError, match="ended with an error"):
        next(found)
    assert len(next(iter(loader))) == 8  # a new pass has new workers
    loader.close()


def test_a_thread_that_hangs_is_named_with_its_lines():
    loader_sets.BLOCKED.clear()
    loader = data.DataLoader(Faulty("block"), 8, num_workers=2, workers="thread", timeout=0.2)
    try:
        with pytest.raises(WorkerError, match=r"no batch within 0.2 s(.*\n)+.*in __getitem__"):
            list(loader)
    finally:
        loader_sets.BLOCKED.set()
        loader.close()


def test_a_new_pass_ends_the_one_before_it_on_the_same_workers():
    loader = data.DataLoader(arrays(), 16, num_workers=2, workers="thread")
    old = iter(loader)
    next(old)
    new = iter(loader)
    assert next(new)[1].tolist() == list(range(16))
    with pytest.raises(DataError, match="another one of the loader has begun"):
        next(old)
    next(new)
    loader.close()
    with pytest.raises(DataError, match="the loader was closed"):
        next(new)
    assert len(closed(loader)) == 19


def test_workers_begin_with_their_function_and_can_be_ended_each_pass():
    started = []
    loader = data.DataLoader(
        arrays(), 16, num_workers=2, workers="thread", worker_init_fn=started.append,
        persistent_workers=False,
    )  # fmt: skip
    list(loader)
    assert sorted(started) == [0, 1] and not loader._team.engines
    list(loader)
    assert sorted(started) == [0, 0, 1, 1]


def test_figures_say_where_time_goes():
    loader = data.DataLoader(arrays(), 16, transform=AUGMENT, num_workers=1)
    assert loader.workers == "thread" and "1 thread workers" in repr(loader)
    closed(loader)
    found = loader.stats()
    assert (found["batches"], found["samples"], found["epochs"]) == (19, 300, 1)
    assert set(found["seconds"]) == {"wait", "fetch", "transform", "collate", "copy"}
    assert all(x >= 0 for x in found["seconds"].values()) and found["seconds"]["transform"] > 0
    assert json.dumps(found)
    slow = stats.Stats()
    slow.begin()
    for step in range(25):
        assert (slow.bottleneck() is None) == (step <= stats.RECENT)
        slow.add(4, (500, 100, 100, 0), 1000 + 100 * step, 1050 + 100 * step)
    assert "50 % of a step" in slow.bottleneck() and "most of making one is fetch" in str(
        slow.report()["bottleneck"]
    )
    for step in range(25):
        slow.add(4, (500, 100, 100, 0), 9000 + 100 * step, 9001 + 100 * step)
    assert slow.bottleneck() is None


def test_batches_of_threads_follow_the_settings_of_their_pass():
    loader = data.DataLoader(arrays(), 16, num_workers=1, workers="thread")
    assert {str(y.device) for _, y in loader} == {str(ndl.default_device())}
    with ndl.config(device="cpu_numpy"):
        assert {str(y.device) for _, y in loader} == {"cpu_numpy()"}
    loader.close()


class Drawn(data.Dataset):
    """Draws for a whole batch, and in the functions of the loader."""

    def __len__(self):
        return 50

    def __getitem__(self, index):
        return float(index)

    def batch(self, indices):
        return indices + data.rng().random(len(indices))


def test_what_draws_for_a_whole_batch_is_the_same_everywhere():
    def noisy(batch):
        return batch + data.rng().random(len(batch))

    for more in ({"transform": noisy}, {"collate_fn": noisy}):
        found = [
            closed(data.DataLoader(Drawn(), 8, True, seed=1, num_workers=n, workers=kind, **more))
            for n, kind in ((0, None), (1, "thread"), (3, "thread"))
        ]
        assert_same(found[1], found[0])
        assert_same(found[2], found[0])
        values = np.concatenate([batch.numpy() % 1 for batch in found[0]])
        assert len(np.unique(values)) > 40
    assert ndl.ops.random.sample() is None


def test_floating_batches_may_have_another_dtype():
    for workers in (0, 1):
        loader = data.DataLoader(
            Faulty(), 8, dtype="float16", num_workers=workers, workers="thread" if workers else None
        )
        assert {batch.dtype for batch in closed(loader)} == {"float16"}
    x, y = next(iter(data.DataLoader(arrays(), 8, dtype="float16")))
    assert (x.dtype, y.dtype) == ("uint8", "int64")


def test_batches_of_threads_are_nobody_elses_memory():
    dataset = arrays()
    loader = data.DataLoader(dataset, 300, num_workers=1, workers="thread")
    (x, y) = closed(loader)[0]
    dataset.arrays[0][:] = 0
    assert x.numpy().any() and not x.requires_grad and y.tolist() == list(range(300))


@looped(
    "arguments, message",
    [
        ({"num_workers": -1}, "num_workers >= 0"), ({"num_workers": 1.5}, "num_workers"),
        ({"prefetch_factor": 0}, "prefetch_factor >= 1"), ({"timeout": -1}, "timeout >= 0"),
        ({"timeout": np.nan}, "timeout"), ({"seed": -1}, "0 <= seed"),
        ({"shuffle": True, "sampler": [1]}, "sampler has its own order"),
        ({"batch_sampler": [[1]], "drop_last": True}, "batch_sampler says"),
        ({"batch_sampler": [[1]], "batch_size": 3}, "batch_sampler says"),
        ({"workers": "threads", "num_workers": 1}, "did you mean 'thread'"),
        ({"seed": 1, "generator": ndl.ops.random.Generator(1)}, "one of them"),
        ({"generator": 3}, "generator is a needle"),
    ],
)  # fmt: skip
def test_wrong_arguments(arguments, message):
    with pytest.raises(OptionError, match=message):
        data.DataLoader(arrays(), **arguments)


def test_what_a_stream_cannot_do():
    for arguments, message in (
        ({"shuffle": True}, "its own order\n.*\n.*ShuffleBuffer"),
        ({"num_workers": 5}, "4 shards"),
    ):
        with pytest.raises(OptionError, match=message):
            data.DataLoader(Stream(), **arguments)
    with pytest.raises(ArgumentError, match="no length"):
        len(data.DataLoader(Stream()))
    with pytest.raises(OptionError, match="size >= 1"):
        data.ShuffleBuffer(Stream(), 0)
