"""`TFRecordIterableDataset`: whole batches, shared out over ranks and workers, that can go on where they stopped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from torch.utils.data import Dataset, IterableDataset, get_worker_info

from torch_tfrecord.checks import check_integer
from torch_tfrecord.dataset import TFRecordDataset
from torch_tfrecord.drawing import Draw, Indices
from torch_tfrecord.epochs import Begun, Board
from torch_tfrecord.errors import StateError
from torch_tfrecord.explain import Explanation, explain
from torch_tfrecord.faults import RecordFault
from torch_tfrecord.index import RecordIndex
from torch_tfrecord.order import Shuffle, check_shuffle, open_order, order_name
from torch_tfrecord.paths import Paths
from torch_tfrecord.ranks import resolve_rank
from torch_tfrecord.recipe import Recipe
from torch_tfrecord.records import check_max_faults, check_on_error, verify_level
from torch_tfrecord.shard import Share
from torch_tfrecord.state import Passes, Source
from torch_tfrecord.steps import Pass, Steps
from torch_tfrecord.unindexed import Unindexed, is_unindexable


class TFRecordIterableDataset(IterableDataset[Any]):
    """A stream of whole batches, for a ``DataLoader`` with ``batch_size=None``.

    Every worker computes the same order and makes its own steps of it: the first worker the steps 0, n, 2n, and so on.
    The ``DataLoader`` takes from them by turns, so any number of workers gives the same batches in the same order, no
    record twice and none lost, and all ranks have equally many. Each pass is the next epoch, counted at its first
    batch, or where its workers begin; ``set_epoch`` names another, and reaches workers that are already at work.

    A batch that cannot be made raises when it is its turn; the one after it comes with the next ``next``.

    torchdata's ``StatefulDataLoader`` keeps, with workers, a state of each: it goes on at any batch, with the same
    ``num_workers``, ``world_size`` and ``batch_size`` only. Without workers, and in what ``state_dict`` gives, the
    state says nothing of these, so that all of them may change; but with ``num_workers=0`` that loader, too, goes on
    from nothing but its own states with ``num_workers=0``.

    Input without an index, that is a pipe, or files with ``index=False``, is read in the order in which it comes, by
    one process: without ``len``, shuffling, ranks and states, and by worker 0 alone; an error ends its pass.

    Args:
        paths: As for `TFRecordDataset`.
        features: As for `TFRecordDataset`.
        batch_size: Records of a batch; of each rank.
        shuffle: False: in order; True: a full permutation for each epoch; or a `BlockShuffle` or `QueueShuffle`.
        seed: Of the order, and of transforms that take a ``generator``; in [-2**255, 2**255). All ranks need the same.
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
        max_faults: As for `TFRecordDataset`; without an index, as for `read_records`, in each pass.

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
        max_faults: int | None = None,
    ) -> None:
        super().__init__()
        verify_level(verify)
        check_on_error(on_error)
        check_max_faults(max_faults, on_error)
        self.batch_size = check_integer(batch_size, "batch_size", 1)
        self.shuffle = check_shuffle(shuffle)
        self.drop_last = bool(drop_last)
        self.rank, self.world_size = resolve_rank(rank, world_size)
        self.dataset: TFRecordDataset | None = None
        self._unindexed: Unindexed | None = None
        if isinstance(paths, Dataset):
            raise TypeError("TFRecordIterableDataset takes paths, not a data set: TFRecordLoader takes one")
        paths = paths if isinstance(paths, str | os.PathLike) else list(paths)
        if index is False or (index is None and is_unindexable(paths)):
            self._refuse_unindexed(subset)
            recipe = Recipe(features, transform, batch_transform)
            self._unindexed = Unindexed(paths, recipe, verify=verify, on_error=on_error, max_faults=max_faults)
        else:
            self.dataset = TFRecordDataset(
                paths,
                features,
                index=index,
                transform=transform,
                batch_transform=batch_transform,
                verify=verify,
                on_error=on_error,
                max_faults=max_faults,
            )
            if subset is not None:
                self.dataset = self.dataset.select(subset)
        self._board = Board(check_integer(seed, "seed"))
        self._passes = Passes(self._board)  # those of this process
        self._seen = 0  # passes that workers had begun when this process last said which one is the newest
        self._steps: Steps | None = None  # in a worker: its part of the newest pass
        self._resumed = False  # whether that part is of a state that was loaded, and is to be taken up

    def _refuse_unindexed(self, subset: Indices | None) -> None:
        if self.world_size > 1:
            advice = "pass rank=0, world_size=1, and give each rank input of its own"
            raise ValueError(f"input without an index cannot be divided over {self.world_size} ranks: {advice}")
        if self.shuffle is not False or subset is not None:
            what = "shuffled" if self.shuffle is not False else "selected from"
            advice = "it is read in the order in which it comes; copy it to a file, which has an index"
            raise ValueError(f"input without an index cannot be {what}: {advice}")

    @property
    def seed(self) -> int:
        """Of the order: as given, or as in the state that was loaded last."""
        return self._board.seed

    @property
    def faults(self) -> tuple[RecordFault, ...]:
        """What was left out of the input with ``on_error="skip"``.

        Without an index, by the newest pass of this process so far; a worker only logs what it leaves out.
        """
        return tuple(self._unindexed.faults) if self._unindexed is not None else self._indexed().index.faults

    @property
    def epoch(self) -> int:
        """The epoch at work, or the next one if none is; with workers, the one that they began last."""
        return self._board.newest[0] if self._by_workers else self._passes.state[0]

    @property
    def _by_workers(self) -> bool:
        """Whether the newest pass is one of workers."""
        return self._board.announced != self._seen

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
            return Pass(self._passes, self._read)
        if self._unindexed is not None:
            return self._read_unindexed(self._board.begin()) if worker.id == 0 else iter(())
        if self._steps is None or not self._resumed:
            self._steps = self._steps_of(self._board.begin(), worker.id, worker.num_workers)
        self._resumed = False
        return self._steps

    def _read(self, epoch: int, start: int) -> Iterator[Any]:
        """The batches of a pass of this process."""
        self._seen = self._board.announced
        begun = Begun(self.seed, epoch, start)
        return self._steps_of(begun) if self._unindexed is None else self._read_unindexed(begun)

    def _read_unindexed(self, begun: Begun) -> Iterator[Any]:
        assert self._unindexed is not None
        return self._unindexed.batches(Draw(begun.seed, begun.epoch), self.batch_size, drop_last=self.drop_last)

    def _steps_of(self, begun: Begun, first: int = 0, stride: int = 1, made: int = 0) -> Steps:
        """The steps ``first``, ``first + stride``, and so on of a pass."""
        share = self._share(begun.start)
        order = open_order(self.shuffle, share.size, seed=begun.seed, epoch=begun.epoch)
        steps = range(first, share.num_batches(self.batch_size, drop_last=self.drop_last), stride)
        return Steps(self._indexed().for_pass(), begun, order, share, self.batch_size, steps, made)

    def _source(self) -> Source:
        dataset = self._indexed()
        return Source(dataset.fingerprint, len(dataset), order_name(self.shuffle))

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Where this rank stands: a small dict of plain values.

        Args:
            batches: Batches of the newest pass that were trained on, counted from where it began. Workers run ahead of
                what the ``DataLoader`` delivers, so with them it must be given, once the first batch of the pass is
                there; not so under torchdata's ``StatefulDataLoader``, which keeps the state of each worker. None: all
                that this process has made.

        Raises:
            ValueError: Workers made the batches, and their number is not given; or it is negative.
            TypeError: The input has no index.
        """
        source = self._source()
        if get_worker_info() is not None:
            return {} if self._steps is None else self._state_of_worker(source, self._steps)
        if batches is None:
            if self._by_workers:
                advice = "pass batches=, how many were, or use torchdata's StatefulDataLoader, which knows"
                raise ValueError(f"workers run ahead of what the DataLoader delivers: {advice}")
            return source.state(self.seed, *self._passes.state)
        batches = check_integer(batches, "batches", 0)
        epoch, start = self._board.newest if self._by_workers else self._passes.newest or self._passes.state
        return source.state(self.seed, epoch, self._share(start).position_after(batches * self.batch_size))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state in the next pass, with whatever number of ranks and workers. Its seed is taken over.

        Raises:
            StateError: The state is of other data, another order or another version.
            TypeError: The input has no index.
        """
        source = self._source()
        if get_worker_info() is None:
            self._board.seed, epoch, position = source.read(state)
            self._passes.load(epoch, position)
            self._seen = self._board.announced
        elif state:
            self._load_state_of_worker(source, state)

    def _state_of_worker(self, source: Source, steps: Steps) -> dict[str, Any]:
        """For torchdata's ``StatefulDataLoader``: where this worker stands among these others."""
        return {"pass": source.state(*steps.begun), "made": steps.made, "topology": self._topology()}

    def _load_state_of_worker(self, source: Source, state: Mapping[str, Any]) -> None:
        was, now = state.get("topology"), self._topology()
        if was != now:
            advice = "go on with the same ones, or save and load the stream's own state_dict(batches=...)"
            raise StateError(f"the state of a StatefulDataLoader's worker is of {was}, this is {now}: {advice}")
        worker = get_worker_info()
        assert worker is not None
        begun = Begun(*source.read(state["pass"]))
        if worker.id == 0:
            self._board.resume(begun)
        self._steps = self._steps_of(begun, worker.id, worker.num_workers, check_integer(state["made"], "made", 0))
        self._resumed = True

    def _topology(self) -> str:
        worker = get_worker_info()
        assert worker is not None
        of_ranks = f"world_size={self.world_size} with batch_size={self.batch_size}"
        return f"worker {worker.id} of num_workers={worker.num_workers}, {of_ranks}"

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

    def __repr__(self) -> str:
        what = "input without an index" if self.dataset is None else repr(self.dataset)
        how = f"batch_size={self.batch_size}, order={order_name(self.shuffle)!r}, seed={self.seed}"
        who = f"drop_last={self.drop_last}, rank={self.rank}, world_size={self.world_size}"
        return f"TFRecordIterableDataset({what}, {how}, {who})"

    def __getstate__(self) -> dict[str, Any]:
        # A copy has no pass at work: its next one is the one that would be next here.
        return {**self.__dict__, "_passes": None, "_steps": None, "_resumed": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._passes = Passes(self._board)
        self._seen = self._board.announced
