"""`RecordSampler`: the order of an epoch, and one rank's share of it, for torch's ``DataLoader``."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Mapping, Sized
from typing import Any

from torch.utils.data import ConcatDataset, DistributedSampler, Subset

from torch_tfrecord.checks import check_integer
from torch_tfrecord.dataset import TFRecordDataset
from torch_tfrecord.drawing import SampledIndex
from torch_tfrecord.order import Shuffle, check_shuffle, open_order, order_name
from torch_tfrecord.ranks import resolve_rank
from torch_tfrecord.shard import Share
from torch_tfrecord.state import Passes, Source

_CHUNK = 4096  # rows that are drawn at a time


class RecordSampler(DistributedSampler[Any]):
    """Draws the records of one rank, epoch after epoch, and can go on from where it was stopped.

    A ``DistributedSampler``, so that Lightning and others leave it alone and call its ``set_epoch``; but it needs no
    process group, pads only where it must and says so, keeps no list of the order, and has a state. Each pass is the
    next epoch; ``set_epoch`` names another.

    Padding, and the epoch that a transform's ``generator`` depends on, reach the data set with the indices, through
    ``ConcatDataset`` and ``StackDataset`` too. A ``Subset`` loses them: use `TFRecordDataset.select` instead.

    Args:
        dataset: Anything with a length.
        shuffle: False: in order; True: a full permutation for each epoch; or a `BlockShuffle` or `QueueShuffle`.
        seed: Of the order. All ranks need the same.
        num_replicas: Number of ranks. None, for this and for ``rank``: what ``torch.distributed`` says if a process
            group is initialised, else ``WORLD_SIZE`` and ``RANK`` of the environment, else one rank.
        rank: This process's rank. ``rank=0, num_replicas=1`` reads everything.
        drop_last: What becomes of records that do not go round: False: ranks that are short repeat one of the order's
            first records as their last row, which is marked in ``batch.valid``; True: they are left out this epoch.

    Attributes:
        num_samples: Rows of this rank in an epoch: ``floor`` or ``ceil`` of records / ranks.
        num_padded: How many of them repeat a record: 0 or 1.
        num_dropped: Records that no rank reads in an epoch.

    Raises:
        ValueError: Rank and number of ranks contradict each other.
        TypeError: ``shuffle`` is none of the orders.

    Example:
        >>> import torch, torch_tfrecord as tfr
        >>> dataset = tfr.TFRecordDataset("numbers.tfrecord", {"n": tfr.FixedLenFeature((), torch.int64)})
        >>> sampler = tfr.RecordSampler(dataset, shuffle=True, seed=1, num_replicas=8, rank=7)
        >>> len(sampler), sampler.num_padded
        (13, 1)
        >>> loader = torch.utils.data.DataLoader(dataset, batch_size=13, sampler=sampler, collate_fn=tfr.collate)
        >>> next(iter(loader)).valid.sum()
        tensor(12)
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        shuffle: Shuffle = True,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
        drop_last: bool = False,
    ) -> None:
        rank, num_replicas = resolve_rank(rank, num_replicas)
        self._passes = Passes()
        self._shuffle = check_shuffle(shuffle)
        self._num_records = len(dataset)
        super().__init__(
            dataset,  # type: ignore[arg-type]
            num_replicas=num_replicas,
            rank=rank,
            shuffle=bool(shuffle),
            seed=check_integer(seed, "seed"),
            drop_last=drop_last,
        )
        share = self._share()
        self.num_samples = share.rows
        self.total_size = share.rows * num_replicas
        self.num_padded = share.num_padded
        self.num_dropped = share.num_dropped
        self._newest: _Drawn | None = None  # the pass that began last

    def _share(self, start: int = 0) -> Share:
        return Share(self._num_records, self.rank, self.num_replicas, self.drop_last, start)

    @property
    def epoch(self) -> int:
        """The epoch at work, or the next one if none is."""
        return self._passes.state[0]

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass read this epoch; from where a loaded state of this epoch stands, else from its start."""
        self._passes.set_epoch(epoch)
        self._newest = None

    def __repr__(self) -> str:
        how = f"order={order_name(self._shuffle)!r}, seed={self.seed}, drop_last={self.drop_last}"
        return f"RecordSampler({len(self)} rows, {how}, rank={self.rank}, num_replicas={self.num_replicas})"

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        number, epoch, start = self._passes.begin()
        drawn = self._newest = _Drawn(epoch, self._share(start))
        share = drawn.share
        order = open_order(self._shuffle, share.size, seed=self.seed, epoch=epoch)
        marked = _wants_generator(self.dataset)
        padding = share.rows if share.num_padded else 0  # the number of the row that pads
        for begin in range(0, share.rows, _CHUNK):
            end = min(begin + _CHUNK, share.rows)
            for row, index in enumerate(order.indices(share.positions(begin, end)).tolist(), begin + 1):
                drawn.rows = row
                if marked or row == padding:
                    yield SampledIndex(index, self.seed, epoch, valid=row != padding)
                else:
                    yield index
        drawn.ended = True
        self._passes.finish(number)

    @functools.cached_property
    def _source(self) -> Source:
        return Source(_fingerprint(self.dataset), self._num_records, order_name(self._shuffle))

    def state_dict(self, rows: int | None = None) -> dict[str, Any]:
        """Where this rank stands: a small dict of plain values.

        Args:
            rows: Rows of the pass at work that were trained on, counted from where it began. A ``DataLoader`` with
                workers draws ahead of what it delivers, so the sampler cannot know: pass batches x batch size; too
                much for a short last batch does no harm. None: all that were drawn, as torchdata's
                ``StatefulDataLoader`` wants it, which keeps the states of batches on their way.

        Raises:
            ValueError: ``rows`` is negative.
        """
        rows = None if rows is None else check_integer(rows, "rows", 0)
        epoch, position = self._passes.state
        drawn = self._newest
        if drawn is not None and (rows is not None or not drawn.ended):
            epoch, position = drawn.epoch, drawn.share.position_after(drawn.rows if rows is None else rows)
        elif rows is not None:  # no pass has begun
            position = self._share(position).position_after(rows)
        return self._source.state(self.seed, epoch, position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state in the next pass, with whatever number of ranks. Its seed is taken over.

        Raises:
            StateError: The state is of other data, another order or another version.
        """
        self.seed, epoch, position = self._source.read(state)
        self._passes.load(epoch, position)
        self._newest = None


@dataclasses.dataclass
class _Drawn:
    """What a pass has drawn."""

    epoch: int
    share: Share
    rows: int = 0
    ended: bool = False


def _wants_generator(dataset: Any) -> bool:
    """Whether a transform in a data set, or in one of several that it is made of, takes a ``generator``."""
    parts = getattr(dataset, "datasets", ())  # of ConcatDataset and StackDataset
    parts = parts.values() if isinstance(parts, Mapping) else parts
    return getattr(dataset, "wants_generator", False) or any(map(_wants_generator, parts))


def _fingerprint(dataset: Any) -> str:
    """Stands for the content of a data set; "" where that cannot be known."""
    if isinstance(dataset, ConcatDataset):
        parts = list(map(_fingerprint, dataset.datasets))
        return hashlib.blake2b(" ".join(parts).encode(), digest_size=16).hexdigest() if all(parts) else ""
    return str(getattr(_selected(dataset), "fingerprint", ""))


def _selected(dataset: Any) -> Any:
    """A ``Subset`` as a data set of its own, where there is a way."""
    if isinstance(dataset, Subset):
        whole = _selected(dataset.dataset)
        return whole.select(dataset.indices) if isinstance(whole, TFRecordDataset) else dataset
    return dataset
