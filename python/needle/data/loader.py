"""DataLoader: batches of a data set, in order or shuffled, made ahead by workers."""

from __future__ import annotations

import contextvars
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from needle.backend import dlpack
from needle.data import order as orders
from needle.data.augment import Augment
from needle.data.collate import collate
from needle.data.dataset import Dataset
from needle.data.engine import Engine, Inline, Plan, Threads
from needle.data.order import Progress
from needle.data.passes import Pass
from needle.data.samplers import Sampler
from needle.data.stats import Stats
from needle.data.stream import IterableDataset
from needle.data.worker import Fetch
from needle.devices import as_device
from needle.dtype import as_dtype
from needle.errors import ArgumentError, DataError, OptionError, explain, unknown
from needle.ops import random
from needle.tensors import Tensor

if TYPE_CHECKING:
    from needle.typing import DeviceLike, DTypeLike

__all__ = ["DataLoader", "collate"]

STATE_VERSION = 1


class DataLoader:
    """Iterate over a data set in batches, as tensors that require no gradient.

    With a seed the order of a pass and the random numbers of each item are functions of (seed,
    epoch, index), so the batches have the same bits for any number of workers of either kind.
    Without one, shuffling draws one ``np.random.permutation`` when a pass begins (from Needle's own
    generator after ``needle.manual_seed``).

    ``state_dict`` may be saved after any batch; a loader that loads it goes on behind that batch.

    Args:
        dataset: a ``Dataset``, anything with ``__len__`` and ``__getitem__``, or an
            ``IterableDataset``.
        batch_size: items per batch; the last batch may be shorter.
        shuffle: whether to draw a new order for every pass.
        sampler: a ``Sampler``, or another iterable of indices, in the place of ``shuffle``.
        batch_sampler: an iterable of lists of indices, in the place of ``batch_size``.
        num_workers: workers that make batches ahead; with 0 the caller makes each one.
        collate_fn: makes a batch (arrays or strings, or a tuple, list or dict of them) from a list
            of items; ``collate`` for None.
        pin_memory: for programs written for PyTorch: batches for a GPU always go through pinned
            memory.
        drop_last: whether to skip a last batch that is shorter.
        timeout: longest wait for a batch in seconds; 0: no limit while the workers live.
        worker_init_fn: called in each worker with its number, before its first batch.
        prefetch_factor: batches that each worker makes ahead; 2 for None.
        persistent_workers: whether workers stay for the next pass; None: yes.
        generator: a ``random.Generator`` from which the seed is taken.
        seed: of the order and of the items' random numbers.
        device: device of the tensors; the default device for None.
        dtype: dtype of floating tensors; that of their values for None.
        workers: "thread", "process", or None: threads where a data set of arrays and its transform
            are native code, else processes.
        transform: an ``Augment`` for the images of a batch (its first field, [n, h, w, c]), or a
            function of the batch.

    Raises:
        OptionError: if an argument is out of range, or does not go together with another.
        ArgumentError: if the data set has no length or no items by index, such as a generator.
        DataError: if workers are processes, and the data set cannot be pickled.

    >>> dataset = ndl.data.NDArrayDataset(np.ones((10, 3), np.float32), np.arange(10))
    >>> loader = ndl.data.DataLoader(dataset, batch_size=4, shuffle=True)
    >>> [(x.shape, y.shape) for x, y in loader]
    [((4, 3), (4,)), ((4, 3), (4,)), ((2, 3), (2,))]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 300.0,
        worker_init_fn: Callable[[int], Any] | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool | None = None,
        generator: random.Generator | None = None,
        seed: int | None = None,
        device: DeviceLike = None,
        dtype: DTypeLike = None,
        workers: str | None = None,
        transform: Augment | Callable[[Any], Any] | None = None,
    ) -> None:
        if not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
            raise OptionError(f"DataLoader: expected batch_size >= 1, got {batch_size!r}")
        self.dataset, self.batch_size, self.shuffle = dataset, int(batch_size), shuffle
        self.sampler, self.batch_sampler, self.drop_last = sampler, batch_sampler, drop_last
        self.num_workers, self.timeout = num_workers, timeout
        self.prefetch_factor = 2 if prefetch_factor is None else prefetch_factor
        self.persistent_workers = persistent_workers is not False
        self.collate_fn, self.worker_init_fn, self.transform = collate_fn, worker_init_fn, transform
        self.pin_memory, self.device = pin_memory, device
        self.dtype = None if dtype is None else as_dtype(dtype)
        self._check_dataset()
        self._check_options()
        self.seed = _seed(seed, generator)
        self.workers = workers if num_workers == 0 else _kind(self, workers)
        self._progress = Progress(0, ended=True)
        self._pass: Pass | None = None
        self._stats, self._resumed = Stats(), False
        self._next_epoch = 0
        self._team = _Team()

    # ---- checks ------------------------------------------------------------------------

    def _check_dataset(self) -> None:
        dataset = self.dataset
        if isinstance(dataset, IterableDataset):
            if self.shuffle or self.sampler is not None or self.batch_sampler is not None:
                raise OptionError(
                    "DataLoader: a stream has its own order\n"
                    "  rule: no shuffle, sampler or batch_sampler\n"
                    "  try: ndl.data.ShuffleBuffer(dataset, 1000)"
                )
            if isinstance(self.num_workers, int) and self.num_workers > dataset.shards:
                raise OptionError(
                    f"DataLoader: num_workers={self.num_workers}, but the stream has "
                    f"{dataset.shards} shards\n  rule: a shard is read by one worker"
                )
        elif not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise ArgumentError(
                f"DataLoader: {type(dataset).__name__} is not a data set\n"
                "  rule: a data set has __len__ and __getitem__, or is an IterableDataset\n"
                "  try: list(dataset), if it fits into memory"
            )

    def _check_options(self) -> None:
        for name, least in (("num_workers", 0), ("prefetch_factor", 1)):
            value = getattr(self, name)
            if not isinstance(value, (int, np.integer)) or value < least or value is True:
                raise OptionError(f"DataLoader: expected {name} >= {least}, got {value!r:.40}")
        if not isinstance(self.timeout, (int, float)) or not self.timeout >= 0:
            raise OptionError(f"DataLoader: expected timeout >= 0, got {self.timeout!r:.40}")
        if self.sampler is not None and self.shuffle:
            raise OptionError("DataLoader: a sampler has its own order\n  try: shuffle=False")
        given = (self.batch_size != 1, self.shuffle, self.sampler is not None, self.drop_last)
        if self.batch_sampler is not None and any(given):
            raise OptionError(
                "DataLoader: a batch_sampler says which items make a batch\n"
                "  rule: no batch_size, shuffle, sampler or drop_last beside it"
            )

    # ---- passes ------------------------------------------------------------------------

    def _length(self) -> int:
        """Return the number of samples in a pass."""
        return len(self.dataset if self.sampler is None else self.sampler)  # type: ignore[arg-type]

    def __len__(self) -> int:
        """Return the number of batches in a pass.

        Raises:
            ArgumentError: for a stream, which has no length.
        """
        if isinstance(self.dataset, IterableDataset):
            raise ArgumentError("DataLoader: a stream has no length")
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        items = self._length()
        return items // self.batch_size if self.drop_last else -(-items // self.batch_size)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which has not begun a pass and has no workers."""
        fresh: dict[str, Any] = {"_pass": None, "_team": None, "_stats": Stats()}
        return {**self.__dict__, **fresh, "_progress": Progress(self._next_epoch, ended=True)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._team = _Team()

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass, or go on with the one that was loaded.

        Without workers several passes of one loader may run at the same time.
        """
        return self._new_pass()

    def _new_pass(self) -> Pass:
        if self._pass is not None and self.num_workers:
            self._pass.leave("this pass has ended, because another one of the loader has begun")
        progress = self._begin()
        engine = self._engine()
        engine.begin()
        plan = Plan(iter(()), engine.workers * engine.depth, engine.workers * engine.depth + 2)
        ended: set[int] = set()
        plan.tasks = self._tasks(progress, ended, engine.workers)
        self._stats.begin()
        convert = self._converter(engine)
        keep, team = self.persistent_workers, self._team  # no reference to the loader

        def close(broken: bool) -> None:
            if broken or not keep:
                team.close(engine, 0.2 if broken else 1.0)

        self._pass = Pass(
            engine, plan, progress, convert, self._stats, self.timeout, self.drop_last, ended, close
        )
        return self._pass

    def _converter(self, engine: Engine) -> Callable[[Any], Any]:
        """Return what makes tensors of a batch. Threads do it where tensors share host memory."""
        if not isinstance(engine, Threads):
            return functools.partial(to_tensors, device=self.device, dtype=self.dtype)
        shares = hasattr(as_device(self.device).backend, "adopt")
        for fetch in engine.fetches:  # by the settings that hold now
            fetch.finish = _Convert(self.device, self.dtype) if shares else None
        if shares:
            return _unchanged
        return functools.partial(to_tensors, device=self.device, dtype=self.dtype)

    def __next__(self) -> Any:
        """Return the next batch of the latest pass; begin a pass if needed."""
        return next(self._pass or self._new_pass())

    def _begin(self) -> Progress:
        """Return the progress of a new pass, or of the loaded one."""
        if self._resumed:
            self._resumed = False
            return self._progress
        self._progress = progress = Progress(self._next_epoch, self.seed)
        self._next_epoch += 1
        if isinstance(self.dataset, IterableDataset):
            progress.shards = [0] * self.dataset.shards
        return progress

    def _tasks(self, progress: Progress, ended: set[int], workers: int) -> Iterator[Any]:
        if isinstance(self.dataset, IterableDataset):
            self._draw_seed(progress, self.num_workers > 0)
            return orders.shard_tasks(progress, ended, self.batch_size, workers)
        if self.batch_sampler is not None:
            ours = hasattr(self.batch_sampler, "batches")
            self._draw_seed(progress, ours or self.num_workers > 0)
            return orders.batch_tasks(self.batch_sampler, progress, workers)
        length = self._length()
        order = orders.order_of(
            length, bool(self.shuffle), self.sampler, self._draw_seed(progress), self.seed
        )
        self._draw_seed(progress, self.num_workers > 0)
        return orders.sample_tasks(
            order, length, self.batch_size, self.drop_last, progress, workers
        )

    def _draw_seed(self, progress: Progress, needed: bool | None = None) -> Progress:
        """Draw the seed of a pass if the loader has none and it needs one."""
        if needed is None:
            needed = isinstance(self.sampler, Sampler)
        if needed and progress.seed is None:
            progress.seed = int(random.host_integers(0, 2**31 - 1, 1)[0])
        return progress

    # ---- engines -----------------------------------------------------------------------

    def _engine(self) -> Engine:
        if self.num_workers == 0:
            return Inline(Fetch(self.dataset, self.collate_fn, self.transform))
        if not self._team.engines:
            self._team.engines.append(self._start())
        return self._team.engines[0]

    def _start(self) -> Engine:
        if self.workers == "process":
            from needle.data.processes import Processes

            return Processes(
                Fetch(self.dataset, self.collate_fn, self.transform),
                self.num_workers, self.prefetch_factor, self.worker_init_fn,
            )  # fmt: skip
        fetches = [
            Fetch(self.dataset, self.collate_fn, self.transform) for _ in range(self.num_workers)
        ]
        return Threads(fetches, self.prefetch_factor, self.worker_init_fn)

    def close(self) -> None:
        """End the workers. A later pass starts new ones."""
        if self._pass is not None and self.num_workers:
            self._pass.leave("the loader was closed", end_workers=True)
        _close_all(self._team.engines)

    # ---- state and figures ---------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of an epoch; passes count up from 0 by themselves."""
        self._next_epoch = int(epoch)
        self._resumed = False

    def state_dict(self) -> dict[str, Any]:
        """Return where the latest pass is, as numbers, texts, lists and dicts.

        It counts the samples that were handed out, not those that workers have made ahead.
        """
        p = self._progress
        if p.ended:
            p = Progress(self._next_epoch, self.seed, shards=[0] * len(p.shards))
        stream = isinstance(self.dataset, IterableDataset)
        return {
            "version": STATE_VERSION,
            "epoch": p.epoch,
            "position": p.position,
            "seed": p.seed,
            "order": orders.saved_order(p.order),
            "shards": list(p.shards),
            "length": None if stream else len(self.dataset),
            "batch_size": self.batch_size,
            "data": fingerprint(self.dataset),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass go on where a loader was that had this state.

        The batch size and the workers may differ; the data set may not.

        Raises:
            DataError: if the state is not one of a loader, or of another data set or seed.
        """
        try:
            version, data = state["version"], state["data"]
            progress = Progress(
                int(state["epoch"]), state["seed"], int(state["position"]), state["order"],
                [int(n) for n in state["shards"]],
            )  # fmt: skip
            length = state["length"]
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"DataLoader: this is not the state of a loader ({type(error).__name__}: {error})"
            ) from None
        if version != STATE_VERSION:
            raise DataError(f"DataLoader: state of version {version}, expected {STATE_VERSION}")
        own = fingerprint(self.dataset)
        if data != own:
            raise explain(
                DataError, "DataLoader", f"the state is of the data set {data}, this one is {own}",
                rule="a pass goes on with the same data",
            )  # fmt: skip
        self._check_position(progress, length)
        if self._pass is not None:
            self._pass.leave("this pass has ended, because a state was loaded")
        self._pass = None
        self._progress, self._next_epoch = progress, progress.epoch + 1
        self._resumed = True

    def _check_position(self, progress: Progress, length: Any) -> None:
        if self.seed is not None and progress.seed != self.seed:
            raise DataError(
                f"DataLoader: the state is of seed {progress.seed}, the loader has {self.seed}"
            )
        stream = isinstance(self.dataset, IterableDataset)
        shards = self.dataset.shards if stream else 0
        if len(progress.shards) not in {shards, 0} or progress.position < 0:
            raise DataError(
                f"DataLoader: a state of {len(progress.shards)} shards at position "
                f"{progress.position}; the data set has {shards} shards"
            )
        if stream and not progress.shards:
            progress.shards = [0] * shards
        if length is not None and progress.position > max(length, 0) and self.sampler is None:
            raise DataError(f"DataLoader: position {progress.position} of {length} samples")

    def stats(self) -> dict[str, Any]:
        """Return where the time goes.

        ``seconds`` has those of all passes, ``epoch_seconds`` those of the latest: ``wait`` is what
        the caller waited for batches; ``fetch``, ``transform``, ``collate`` and ``copy`` are what
        the workers needed to make them, all together. ``bottleneck`` is a line for the user if a
        tenth of the latest steps was spent waiting, else None.
        """
        kind = self.workers if self.num_workers else "none"
        return {**self._stats.report(), "workers": kind, "num_workers": self.num_workers}

    def __repr__(self) -> str:
        kind = f", {self.num_workers} {self.workers} workers" if self.num_workers else ""
        size = "batches of a sampler" if self.batch_sampler is not None else self.batch_size
        return f"DataLoader({type(self.dataset).__name__}, batch_size={size}{kind})"


def fingerprint(dataset: Any) -> str:
    """Return a short text that differs for different data sets."""
    if isinstance(dataset, Dataset):
        return dataset.fingerprint()
    size = "" if isinstance(dataset, IterableDataset) else f"[{len(dataset)}]"
    return f"{type(dataset).__name__}{size}"


def _seed(seed: int | None, generator: object) -> int | None:
    if generator is None:
        if seed is not None:
            random.Generator(seed)  # checks it
        return seed
    if seed is not None or not isinstance(generator, random.Generator):
        raise OptionError(
            f"DataLoader: seed={seed!r:.40}, generator={generator!r:.60}\n"
            "  rule: one of them; a generator is a needle.ops.random.Generator"
        )
    key, counter = generator.take(4)
    low, high, *_ = random.SampleStream(key, 0, counter).four()
    return high << 32 | low


def _kind(loader: DataLoader, workers: str | None) -> str:
    """Return the kind of workers; check that processes can have the data set."""
    if workers not in (None, "thread", "process"):
        raise unknown("DataLoader: workers", workers, ("thread", "process"))
    native = loader.transform is None or isinstance(loader.transform, Augment)
    arrays = isinstance(loader.dataset, Dataset) and loader.dataset.in_memory()
    kind = workers or ("thread" if native and arrays and not loader.collate_fn else "process")
    if kind == "process":
        from needle.data.pickling import check_picklable

        for name in ("dataset", "collate_fn", "transform", "worker_init_fn"):
            check_picklable(name, getattr(loader, name))
    return kind


class _Team:
    """The workers of a loader, which end when neither it nor one of its passes is left."""

    def __init__(self) -> None:
        self.engines: list[Engine] = []
        weakref.finalize(self, _close_all, self.engines)

    def close(self, engine: Engine, grace: float) -> None:
        """End an engine; its workers have so many seconds to end by themselves."""
        if engine in self.engines:
            self.engines.remove(engine)
            engine.close(grace)


def _close_all(engines: list[Engine]) -> None:
    while engines:
        engines.pop().close()


def _unchanged(batch: object) -> Any:
    return batch


class _Convert:
    """Makes tensors in a worker thread, with the settings of the thread that made this object."""

    def __init__(self, device: DeviceLike, dtype: DTypeLike) -> None:
        self.device, self.dtype = device, dtype
        self.settings = contextvars.copy_context()

    def __call__(self, batch: Any, fresh: bool) -> Any:
        settings = self.settings.copy()
        return settings.run(to_tensors, batch, self.device, self.dtype, fresh)


def to_tensors(batch: Any, device: DeviceLike, dtype: DTypeLike = None, fresh: bool = False) -> Any:
    """Return a batch with every array as a tensor without gradient; strings stay.

    Args:
        batch: arrays and strings, or a tuple, list or dict of them.
        device: device of the tensors.
        dtype: dtype of floating tensors; that of their values for None.
        fresh: whether nobody else has the arrays, so that their memory may be taken over.
    """
    if isinstance(batch, (str, bytes)):
        return batch
    if isinstance(batch, (tuple, list)):
        return tuple(to_tensors(field, device, dtype, fresh) for field in batch)
    if isinstance(batch, dict):
        return {name: to_tensors(field, device, dtype, fresh) for name, field in batch.items()}
    kind = dtype if np.asarray(batch).dtype.kind == "f" else None
    whole = isinstance(batch, np.ndarray) and batch.flags.c_contiguous and batch.flags.writeable
    if fresh and whole and kind is None and batch.dtype in _KEPT and batch.size:
        batch = dlpack.from_dlpack(batch, as_device(device))
    return Tensor(batch, device=device, dtype=kind, requires_grad=False)


_KEPT = tuple(map(np.dtype, ("float32", "uint8", "int64", "int32")))
"""Dtypes of arrays that a tensor has too; float64 values become float32."""
