"""`TFRecordIterableDataset`: whole batches, shared out over ranks and workers, that can go on where they stopped."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from torch.utils.data import IterableDataset, get_worker_info

from torch_tfrecord.collation import collate
from torch_tfrecord.dataset import TFRecordDataset
from torch_tfrecord.drawing import Draw, Indices
from torch_tfrecord.epochs import Board
from torch_tfrecord.errors import StateError
from torch_tfrecord.explain import Explanation, explain
from torch_tfrecord.faults import RecordFault
from torch_tfrecord.index import RecordIndex
from torch_tfrecord.order import Shuffle, check_shuffle, open_order, order_name
from torch_tfrecord.paths import Paths
from torch_tfrecord.ranks import resolve_rank
from torch_tfrecord.recipe import Recipe
from torch_tfrecord.records import check_on_error, read_records, verify_level
from torch_tfrecord.shard import Share, check_batch_size
from torch_tfrecord.state import Passes, Source
from torch_tfrecord.unindexed import is_unindexable, make_batches


class TFRecordIterableDataset(IterableDataset[Any]):
    """A stream of whole batches, for a ``DataLoader`` with ``batch_size=None``.

    Every worker computes the same order and makes its own steps of it: the first worker the steps 0, n, 2n, and so on.
    The ``DataLoader`` takes from them by turns, so any number of workers gives the same batches in the same order, no
    record twice and none lost, and all ranks have equally many. Each pass is the next epoch; ``set_epoch`` names
    another, and reaches workers that are already at work.

    Input without an index, that is a pipe, or files with ``index=False``, is read in the order in which it comes, by
    one process: without ``len``, shuffling, ranks and states, and by worker 0 alone.

    Args:
        paths: As for `TFRecordDataset`.
        features: As for `TFRecordDataset`.
        batch_size: Records of a batch; of each rank.
        shuffle: False: in order; True: a full permutation for each epoch; or a `BlockShuffle` or `QueueShuffle`.
        seed: Of the order, and of transforms that take a ``generator``. All ranks need the same.
        drop_last: True leaves out what does not fill a batch on each rank. False delivers a short last batch; ranks
            that are short of a row then repeat a record, which is marked in ``batch.valid``.
        rank: This process's rank. None, for this and ``world_size``: what ``torch.distributed`` says if a process group
            is initialised, else ``RANK`` and ``WORLD_SIZE`` of the environment, else rank 0 of 1. Found out here, and
            carried to the workers.
        world_size: Number of ranks. ``rank=0, world_size=1`` turns sharding off, for frameworks that do it themselves.
        index: As for `TFRecordDataset`; or False for files that cannot be indexed now, because they grow, say.
        subset: Which records to read: a list of their numbers or a mask, as ``TFRecordDataset.select`` takes it.
        transform: As for `TFRecordDataset`: called with each record.
        batch_transform: As for `TFRecordDataset`: called with each batch.
        verify: As for `TFRecordDataset`.
        on_error: As for `TFRecordDataset`; without an index, as for `read_records`.

    Attributes:
        rank: This process's rank.
        world_size: Number of ranks.
        dataset: The `TFRecordDataset` whose records are read; None without an index.

    Raises:
        ValueError: ``batch_size`` is below 1; or input without an index was to be shuffled, divided or selected from.
        FileNotFoundError: There is no such file.
        DataLossError: A file is damaged or no TFRecord file.

    Example:
        >>> import torch, torch_tfrecord as tfr
        >>> features = {"n": tfr.FixedLenFeature((), torch.int64)}
        >>> stream = tfr.TFRecordIterableDataset("numbers.tfrecord", features, batch_size=4, shuffle=True, seed=7)
        >>> loader = torch.utils.data.DataLoader(stream, batch_size=None, num_workers=0)
        >>> len(loader), sorted(torch.cat([batch["n"] for batch in loader]).tolist()) == list(range(100))
        (25, True)
    """

    def __init__(
        self,
        paths: Paths,
        features: Mapping[str, Any] | Callable[[bytes], Any] | None,
        *,
        batch_size: int,
        shuffle: Shuffle = False,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        index: RecordIndex | str | os.PathLike[str] | Literal[False] | None = None,
        subset: Indices | None = None,
        transform: Callable[..., Any] | None = None,
        batch_transform: Callable[[Any], Any] | None = None,
        verify: str = "all",
        on_error: str = "raise",
    ) -> None:
        super().__init__()
        verify_level(verify)
        check_on_error(on_error)
        self.batch_size = check_batch_size(batch_size)
        self.shuffle = check_shuffle(shuffle)
        self.seed = operator.index(seed)
        self.drop_last = drop_last
        self.rank, self.world_size = resolve_rank(rank, world_size)
        self.dataset: TFRecordDataset | None = None
        self._unindexed: tuple[Paths, Recipe, Any, Any] | None = None
        self._faults: list[RecordFault] = []
        paths = paths if isinstance(paths, str | os.PathLike) else list(paths)
        if index is False or (index is None and is_unindexable(paths)):
            self._refuse_unindexed(subset)
            self._unindexed = (paths, Recipe(features, transform, batch_transform), verify, on_error)
        else:
            self.dataset = TFRecordDataset(
                paths,
                features,
                index=index or None,
                transform=transform,
                batch_transform=batch_transform,
                verify=verify,
                on_error=on_error,
            )
            if subset is not None:
                self.dataset = self.dataset.select(subset)
        self._board = Board()
        self._passes = Passes(self._board.next)
        self._seen = 0  # passes announced by workers when this process last knew where it stands
        self._at_work: _WorkerPass | None = None  # in a worker: the pass it makes batches of

    def _refuse_unindexed(self, subset: Indices | None) -> None:
        if self.world_size > 1:
            advice = "pass rank=0, world_size=1, and give each rank input of its own"
            raise ValueError(f"input without an index cannot be divided over {self.world_size} ranks: {advice}")
        if self.shuffle is not False or subset is not None:
            what = "shuffled" if self.shuffle is not False else "selected from"
            raise ValueError(f"input without an index cannot be {what}: it is read in the order in which it comes")

    @property
    def faults(self) -> tuple[RecordFault, ...]:
        """What was left out of the input with ``on_error="skip"``; without an index, by this process so far."""
        return tuple(self._faults) if self.dataset is None else self.dataset.index.faults

    @property
    def epoch(self) -> int:
        """The epoch at work, or the next one if none is."""
        if self._board.announced != self._seen:
            return self._board.newest.epoch
        return self._passes.state[0]

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass read this epoch; from where a loaded state of this epoch stands, else from its start."""
        self._passes.set_epoch(epoch)
        self._seen = self._board.announced

    def __len__(self) -> int:
        """Batches of this rank in an epoch. TypeError without an index."""
        return self._share().num_batches(self.batch_size, drop_last=self.drop_last)

    def _indexed(self) -> TFRecordDataset:
        if self.dataset is None:
            raise TypeError("input without an index has no length, no order to explain and no state")
        return self.dataset

    def _share(self, start: int = 0) -> Share:
        return Share(len(self._indexed()), self.rank, self.world_size, self.drop_last, start)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is None:
            return self._batches_here()
        if self.dataset is None:
            return self._unindexed_batches(self._board.begin().epoch) if worker.id == 0 else iter(())
        if self._at_work is None or self._at_work.begun:
            self._at_work = _WorkerPass(*self._board.begin())
        self._at_work.begun = True
        return self._batches_of_worker(self._at_work, worker.id, worker.num_workers)

    def _batches_here(self) -> Iterator[Any]:
        number, epoch, start = self._passes.begin()
        self._seen = self._board.announced
        if self.dataset is None:
            yield from self._unindexed_batches(epoch)
        else:
            share = self._share(start)
            for step, batch in self._batches(epoch, share, 0, 1):
                self._passes.deliver(number, epoch, share.position_after((step + 1) * self.batch_size))
                yield batch
        self._passes.finish(number)

    def _batches_of_worker(self, at_work: _WorkerPass, worker: int, num_workers: int) -> Iterator[Any]:
        first = worker + at_work.made * num_workers
        for _, batch in self._batches(at_work.epoch, self._share(at_work.start), first, num_workers):
            at_work.made += 1
            yield batch

    def _batches(self, epoch: int, share: Share, first: int, stride: int) -> Iterator[tuple[int, Any]]:
        dataset = self._indexed()
        order = open_order(self.shuffle, share.size, seed=self.seed, epoch=epoch)
        for step in range(first, share.num_batches(self.batch_size, drop_last=self.drop_last), stride):
            begin, end = share.batch(step, self.batch_size)
            draw = Draw(self.seed, epoch, share.valid(begin, end))
            located = dataset.locate(order.indices(share.positions(begin, end)))
            yield step, collate(dataset.recipe.items(located, draw))

    def _unindexed_batches(self, epoch: int) -> Iterator[Any]:
        assert self._unindexed is not None
        paths, recipe, verify, on_error = self._unindexed
        with read_records(paths, verify=verify, on_error=on_error) as records:
            self._faults = records.faults
            name = os.fspath(paths) if isinstance(paths, str | os.PathLike) else str(paths)
            draw = Draw(self.seed, epoch)
            yield from make_batches(
                records, recipe, draw, name=name, batch_size=self.batch_size, drop_last=self.drop_last
            )

    def _source(self) -> Source:
        dataset = self._indexed()
        return Source(dataset.fingerprint, len(dataset), order_name(self.shuffle))

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Where this rank stands: a small dict of plain values.

        Args:
            batches: Batches of the pass at work that were trained on, counted from where it began. Workers run ahead of
                what the ``DataLoader`` delivers, so with them it must be given; not so under torchdata's
                ``StatefulDataLoader``, which keeps the state of each worker. None: all that this process has made.

        Raises:
            ValueError: Workers made the batches, and their number is not given; or it is negative.
            TypeError: The input has no index.
        """
        if get_worker_info() is not None:
            return {} if self._at_work is None else self._at_work.state(self._source(), self.seed, self._topology())
        if batches is not None and batches < 0:
            raise ValueError(f"batches is {batches}, and must not be negative")
        source = self._source()
        by_workers = self._board.announced != self._seen
        if by_workers and batches is None:
            advice = "pass batches=, how many were, or use torchdata's StatefulDataLoader, which knows"
            raise ValueError(f"workers run ahead of what the DataLoader delivers: {advice}")
        if batches is None:
            return source.state(self.seed, *self._passes.state)
        epoch, start = self._board.newest if by_workers else self._passes.newest or self._passes.state
        return source.state(self.seed, epoch, self._share(start).position_after(batches * self.batch_size))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state in the next pass, with whatever number of ranks and workers. Its seed is taken over.

        Raises:
            StateError: The state is of other data, another order or another version.
            TypeError: The input has no index.
        """
        worker = get_worker_info()
        if worker is not None:
            if state:  # that of a worker of torchdata's StatefulDataLoader
                self.seed, self._at_work = _WorkerPass.of_state(state, self._source(), self._topology())
                self._board.next[:] = self._at_work.epoch + 1, 0
            return
        self.seed, epoch, position = self._source().read(state)
        self._passes.load(epoch, position)
        self._seen = self._board.announced

    def _topology(self) -> list[int]:
        worker = get_worker_info()
        assert worker is not None
        return [self.rank, self.world_size, self.batch_size, worker.id, worker.num_workers]

    def explain(self, *, num_workers: int = 0) -> Explanation:
        """Who reads what in the next pass: prints as a table, and says whether each record comes exactly once.

        Args:
            num_workers: Of the ``DataLoader``.
        """
        epoch, start = self._passes.next
        return explain(
            len(self._indexed()),
            batch_size=self.batch_size,
            shuffle=self.shuffle,
            seed=self.seed,
            epoch=epoch,
            start=start,
            world_size=self.world_size,
            num_workers=num_workers,
            drop_last=self.drop_last,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_passes"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._passes = Passes(self._board.next)


class _WorkerPass:
    """The pass that a worker makes batches of."""

    def __init__(self, epoch: int, start: int) -> None:
        self.epoch = epoch
        self.start = start
        self.made = 0  # batches, by this worker
        self.begun = False

    def state(self, source: Source, seed: int, topology: list[int]) -> dict[str, Any]:
        """Where the worker stands. Unlike a reader's state it is for this worker among these only."""
        return {**source.state(seed, self.epoch, self.start), "made": self.made, "topology": topology}

    @classmethod
    def of_state(cls, state: Mapping[str, Any], source: Source, topology: list[int]) -> tuple[int, _WorkerPass]:
        """Seed and pass of a state."""
        seed, epoch, start = source.read(state)
        if state.get("topology") != topology:
            names = "rank, world_size, batch_size, worker, num_workers"
            both = f"{state.get('topology')} then, {topology} now"
            raise StateError(f"the state of a StatefulDataLoader's worker fits the same {names} only: {both}")
        at_work = cls(epoch, start)
        at_work.made = int(state["made"])
        return seed, at_work
