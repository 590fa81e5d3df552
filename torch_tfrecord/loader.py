"""`TFRecordLoader`: batches decoded ahead by native threads of this process."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import ConcatDataset, Subset

from torch_tfrecord.checks import check_integer
from torch_tfrecord.dataset import TFRecordDataset
from torch_tfrecord.drawing import Draw
from torch_tfrecord.errors import CancelledError
from torch_tfrecord.explain import Explanation, explain
from torch_tfrecord.loading import Loading, Options
from torch_tfrecord.order import Shuffle, check_shuffle, open_order, order_name
from torch_tfrecord.python_thread import PythonThread
from torch_tfrecord.ranks import resolve_rank
from torch_tfrecord.shard import Share
from torch_tfrecord.state import Passes, Source
from torch_tfrecord.stats import Counts, LoaderStats

if TYPE_CHECKING:
    from typing_extensions import Self

_beginning = threading.RLock()  # two iterators must not begin the same epoch


def _renew_lock() -> None:
    global _beginning  # noqa: PLW0603 - a forked child must not wait for a thread that it does not have
    _beginning = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class TFRecordLoader:
    """Delivers batches of one rank, decoded ahead by native threads: the fastest door, and the recommended one.

    Iterating is a pass over an epoch. Each pass is the next epoch, counted at its first batch; ``set_epoch`` names
    another. Nothing starts before the first batch is asked for, and everything ends with the pass, with a ``break``,
    with an exception in the loop, or with ``close``. Several iterators may be at work at once, each in its own epoch.
    The same arguments give the same batches as a ``DataLoader`` with a `RecordSampler`, or a `TFRecordIterableDataset`.

    Images, transforms and parsers of your own need Python: one thread calls them ahead, in order and never at the same
    time. Where they are slow, ``DataLoader`` workers are the better choice.

    A batch that cannot be made raises when it is its turn; the one after it comes with the next ``next``.

    Args:
        dataset: The records; a ``Subset`` of them, from ``random_split`` say, is taken for `TFRecordDataset.select`.
        batch_size: Records of a batch; of each rank.
        shuffle: False: in order; True: a full permutation for each epoch; or a `BlockShuffle` or `QueueShuffle`.
        seed: Of the order, and of transforms that take a ``generator``. All ranks need the same.
        drop_last: True leaves out what does not fill a batch on each rank. False delivers a short last batch; ranks
            that are short of a row then repeat a record, which is marked in ``batch.valid``.
        rank: This process's rank. None, for this and ``world_size``: what ``torch.distributed`` says if a process group
            is initialised, else ``RANK`` and ``WORLD_SIZE`` of the environment, else rank 0 of 1.
        world_size: Number of ranks.
        num_threads: Native threads that decode; None: ``torch.get_num_threads()``.
        prefetch: Batches that are made ahead of the one in use; at least 1. Memory grows with it.
        pin_memory: Whether batches lie in page-locked memory. None: if there is a CUDA device.
        device: Where batches are to be delivered. They are copied there one batch ahead, on CUDA beside the
            computation. None: they stay in the memory of the host.

    Attributes:
        dataset: The records.
        batch_size: As given.
        rank: This process's rank.
        world_size: Number of ranks.

    Raises:
        TypeError: ``dataset`` is no `TFRecordDataset`.
        ValueError: A number is out of its range.

    Example:
        >>> import torch, torch_tfrecord as tfr
        >>> dataset = tfr.TFRecordDataset("numbers.tfrecord", {"n": tfr.FixedLenFeature((), torch.int64)})
        >>> with tfr.TFRecordLoader(dataset, 32, shuffle=True, seed=1) as loader:
        ...     sizes = [batch.num_records for batch in loader]
        >>> sizes, loader.epoch, loader.stats().records
        ([32, 32, 32, 4], 1, 100)
    """

    def __init__(
        self,
        dataset: TFRecordDataset | Subset[Any],
        batch_size: int,
        *,
        shuffle: Shuffle = False,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        num_threads: int | None = None,
        prefetch: int = 2,
        pin_memory: bool | None = None,
        device: torch.device | str | int | None = None,
    ) -> None:
        self.dataset = _as_dataset(dataset)
        self.batch_size = check_integer(batch_size, "batch_size", 1)
        self.shuffle = check_shuffle(shuffle)
        self.seed = check_integer(seed, "seed")
        self.drop_last = drop_last
        self.rank, self.world_size = resolve_rank(rank, world_size)
        self._options = Options(
            batch_size=self.batch_size,
            drop_last=drop_last,
            num_threads=None if num_threads is None else check_integer(num_threads, "num_threads", 1, 2**16),
            prefetch=check_integer(prefetch, "prefetch", 1),
            pin_memory=pin_memory,
            device=None if device is None else torch.device(device),
        )
        self._passes = Passes()
        self._counts = Counts()
        self._iterators: weakref.WeakValueDictionary[int, LoaderIterator] = weakref.WeakValueDictionary()
        self._closed = False

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch."""
        return self._share().num_batches(self.batch_size, drop_last=self.drop_last)

    def __iter__(self) -> LoaderIterator:
        if self._closed:
            raise ValueError("this loader is closed")
        iterator = LoaderIterator(self._passes, self._open)
        self._iterators[id(iterator)] = iterator
        return iterator

    def _open(self, epoch: int, start: int) -> Loading:
        """What makes the batches of an epoch from a position on."""
        share = self._share(start)
        order = open_order(self.shuffle, share.size, seed=self.seed, epoch=epoch)
        return Loading(self.dataset, order, share, Draw(self.seed, epoch), self._options, self._counts)

    def _share(self, start: int = 0) -> Share:
        return Share(len(self.dataset), self.rank, self.world_size, self.drop_last, start)

    @property
    def epoch(self) -> int:
        """The epoch at work, or the next one if none is."""
        return self._passes.state[0]

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass read this epoch; from where a loaded state of this epoch stands, else from its start."""
        self._passes.set_epoch(epoch)

    @property
    def sampler(self) -> TFRecordLoader:
        """The loader itself: frameworks call ``loader.sampler.set_epoch``."""
        return self

    def _source(self) -> Source:
        return Source(self.dataset.fingerprint, len(self.dataset), order_name(self.shuffle))

    def state_dict(self) -> dict[str, Any]:
        """What was delivered: a small dict of plain values, for ``torch.save`` or JSON, equal on all ranks.

        Batches made ahead do not count. Taken in the loop it says where that pass stands, even after the last batch;
        taken after the loop, that the next epoch is to come.
        """
        return self._source().state(self.seed, *self._passes.state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state in the next pass, with whatever number of ranks, and any batch size.

        With the same ranks x batch size the remaining steps are the same; otherwise the same records follow in the same
        order. The seed of the state is taken over.

        Raises:
            StateError: The state is of other data, another order or another version.
        """
        self.seed, epoch, position = self._source().read(state)
        self._passes.load(epoch, position)

    def stats(self) -> LoaderStats:
        """What was done so far."""
        return LoaderStats(
            **vars(self._counts),
            queue_depth=sum(iterator.num_ready for iterator in self._alive()),
            faults=len(self.dataset.index.faults),
        )

    def explain(self) -> Explanation:
        """Who reads what in the next pass: prints as a table, and says whether each record comes exactly once."""
        epoch, start = self._passes.next
        return explain(
            len(self.dataset),
            batch_size=self.batch_size,
            shuffle=self.shuffle,
            seed=self.seed,
            epoch=epoch,
            start=start,
            world_size=self.world_size,
            drop_last=self.drop_last,
        )

    def close(self) -> None:
        """End all passes, wherever they are: their iterators raise CancelledError, and no new ones can be made."""
        self._closed = True
        for iterator in self._alive():
            iterator.close()

    def _alive(self) -> list[LoaderIterator]:
        # The dictionary itself cannot be walked through while other threads make iterators.
        return [iterator for reference in self._iterators.valuerefs() if (iterator := reference()) is not None]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        # A copy has no passes at work: it stands where the next one begins, and has delivered nothing.
        state = {name: value for name, value in self.__dict__.items() if name not in ("_iterators", "_counts")}
        return {**state, "_passes": self._passes.next}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _passes=Passes(), _counts=Counts(), _iterators=weakref.WeakValueDictionary())
        self._passes.load(*state["_passes"])

    def __repr__(self) -> str:
        how = f"batch_size={self.batch_size}, order={order_name(self.shuffle)!r}, seed={self.seed}"
        who = f"drop_last={self.drop_last}, rank={self.rank}, world_size={self.world_size}"
        return f"TFRecordLoader({self.dataset!r}, {how}, {who})"


class LoaderIterator(Iterator[Any]):
    """One pass of a `TFRecordLoader`, in the process that made it. It ends when it is dropped.

    Several threads may take batches of it. KeyboardInterrupt and its like in ``next`` end the pass, too; the state of
    the loader then counts what ``next`` has returned.

    Args:
        passes: The passes of the loader.
        open_pass: Makes what makes the batches, for an epoch and the position to begin at.
    """

    def __init__(self, passes: Passes, open_pass: Callable[[int, int], Loading]) -> None:
        self._passes = passes
        self._open_pass = open_pass
        self._pid = os.getpid()
        self._lock = threading.RLock()  # reentrant: a signal's handler may close the loader
        self._number, self._epoch, self._start = -1, 0, 0  # as ``passes.begin`` gives them
        self._position: int | None = None  # that all ranks have reached with the batch delivered last
        self._loading: Loading | None = None
        self._thread: PythonThread | None = None  # that of the pass, also after its end
        self._stage = "new"  # then "at work", and at last "ended" or "closed"

    @property
    def num_ready(self) -> int:
        """Batches that are made and wait to be taken. Waits for nothing, whatever ``next`` does in another thread."""
        loading = self._loading
        return 0 if loading is None or self._is_foreign() else loading.num_ready

    def __next__(self) -> Any:
        position = self._position
        if self._is_foreign():
            raise RuntimeError(
                "this iterator belongs to the process that this one was forked from: make a new one here"
            )
        if self._is_asked_by_itself():
            raise RuntimeError(
                "a transform asks the loader that called it for a batch, which cannot come before it ends"
            )
        try:
            with self._lock:
                return self._next()
        except Exception:
            raise
        except BaseException:  # KeyboardInterrupt, say: nobody knows what is half done, and no batch is returned
            self.close(wait=False)
            self._passes.deliver(self._number, self._epoch, self._start if position is None else position)
            raise

    def _next(self) -> Any:
        if self._stage == "new":
            self._begin()
        loading = self._loading
        try:
            taken = None if loading is None else loading.take()
        except Exception:  # of a pass that was closed meanwhile it says no more than CancelledError below
            if self._stage != "closed":
                raise
        if self._stage == "closed":
            self._end("closed", wait=False)  # if a transform closed it, which could not wait for itself
            raise CancelledError("this pass was ended before its last batch: the loader was closed, or interrupted")
        if taken is None:
            self._finish()
            raise StopIteration
        self._position, batch = taken
        self._passes.deliver(self._number, self._epoch, self._position)
        return batch

    def _begin(self) -> None:
        with _beginning:
            self._loading = self._open_pass(*self._passes.next)
            self._thread = self._loading.thread
            self._number, self._epoch, self._start = self._passes.begin()
            if self._stage == "new":
                self._stage = "at work"

    def _finish(self) -> None:
        if self._stage == "at work":
            self._end("ended", wait=True)
            self._passes.finish(self._number)

    def _is_asked_by_itself(self) -> bool:
        """Whether the caller is a transform, say, that this pass calls: it must not wait for what waits for it."""
        return self._thread is not None and self._thread.is_current

    def _is_foreign(self) -> bool:
        return self._pid != os.getpid()

    def _end(self, stage: str, *, wait: bool) -> None:
        self._stage = stage
        loading, self._loading = self._loading, None
        if loading is not None:
            loading.close(wait=wait)

    def close(self, *, wait: bool = True) -> None:
        """End the pass: drop what is on its way, and wait for what is at work.

        Args:
            wait: Whether to wait for a transform that is at work.
        """
        if self._is_foreign():  # which has none of the threads, and perhaps a lock that nobody will release
            return
        if self._stage != "ended":
            self._stage = "closed"  # at once, so that a busy ``next`` in another thread sees it
        if self._is_asked_by_itself():
            return  # ``next`` has the lock, and waits for the transform that calls this
        with self._lock:
            if self._stage != "ended":
                self._end("closed", wait=wait)

    def __del__(self) -> None:
        # A transform is not waited for: garbage may be collected anywhere, also where a lock is held that it needs.
        self.close(wait=False)


def _as_dataset(dataset: Any) -> TFRecordDataset:
    """The data set itself: batches are made of its parts, past the methods by which a ``DataLoader`` reads it."""
    if type(dataset) is Subset:
        return _as_dataset(dataset.dataset).select(dataset.indices)
    kind = type(dataset)
    if isinstance(dataset, TFRecordDataset) and all(
        getattr(kind, name) is getattr(TFRecordDataset, name) for name in ("__getitem__", "__getitems__", "__len__")
    ):
        return dataset
    advice = "use torch's DataLoader, with tfr.collate"
    if isinstance(dataset, ConcatDataset):
        advice = "make one TFRecordDataset of all the paths, or use torch's DataLoader with tfr.collate"
    elif isinstance(dataset, str | os.PathLike):
        advice = "make a TFRecordDataset of the paths first"
    elif isinstance(dataset, TFRecordDataset | Subset):
        advice = "put what its class does into transform=, or use torch's DataLoader with tfr.collate"
    raise TypeError(f"TFRecordLoader reads a TFRecordDataset, or a Subset of one, not {kind.__name__}: {advice}")
