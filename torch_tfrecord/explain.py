"""Who reads what: an epoch laid out over ranks and workers, and a check that each record is read exactly once.

A *step* is one batch of every rank. Worker w of n takes the steps s of its rank with s mod n = w.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from torch_tfrecord.checks import check_integer
from torch_tfrecord.explain_text import format_explanation
from torch_tfrecord.order import Order, Shuffle, open_order, order_name
from torch_tfrecord.shard import Share

if TYPE_CHECKING:
    from torch_tfrecord.native._core import Int64s

CHECK_LIMIT = 10_000_000  # records up to which the check enumerates an epoch: about a second
_MAX_READERS = 100_000
_FIRST_STEPS = 3
_FIRST_RECORDS = 4  # of a step
_CHUNK = 2**20  # rows that the check looks at together


@dataclass(frozen=True)
class WorkerReads:
    """What one worker of a rank reads."""

    worker: int
    batches: int
    rows: int


@dataclass(frozen=True)
class RankReads:
    """What one rank reads.

    Attributes:
        rank: Its number.
        rows: Rows of all its batches.
        batches: How many, as many as steps.
        last_batch: Rows of the last one, 0 if there is none.
        padded: Rows that repeat a record: 0 or 1, and then it is the last row.
        dropped: Rows of its share that ``drop_last`` leaves out, because their batch would be short.
        workers: How its workers divide the batches. One, number 0, if there are none: the process itself.
    """

    rank: int
    rows: int
    batches: int
    last_batch: int
    padded: int
    dropped: int
    workers: tuple[WorkerReads, ...]


@dataclass(frozen=True)
class StepReads:
    """What one rank reads in one step: how many rows, and the indices of the first few records."""

    step: int
    rank: int
    worker: int
    rows: int
    records: tuple[int, ...]


@dataclass(frozen=True)
class Explanation:
    """Who reads what in an epoch. ``str()`` is a table for people, ``dataclasses.asdict`` suits JSON.

    Attributes:
        num_records: Records of the data set.
        order: Name of the order.
        seed: Of the order.
        epoch: Its number.
        start: Position in the epoch from which it is read; what lies before was read earlier.
        world_size: Number of ranks.
        num_workers: Workers a rank. 0: the process itself reads.
        batch_size: Rows of a full batch.
        drop_last: Whether what makes no full batch on each rank is left out.
        steps: Batches of each rank.
        ranks: All ranks, or the one that was asked for.
        first_steps: The first three steps of these ranks.
        num_padded: Rows of all ranks together that repeat a record.
        num_dropped: Records from ``start`` on that no rank reads in this epoch.
        exactly_once: Whether each record from ``start`` on is read once, or counted as dropped, and no row is more
            than that but those counted as padded.
        checked: How that was found: "all" by enumerating every row of every rank and worker; "arithmetic" from the
            sizes of the shares only, for more than 10 million records.
    """

    num_records: int
    order: str
    seed: int
    epoch: int
    start: int
    world_size: int
    num_workers: int
    batch_size: int
    drop_last: bool
    steps: int
    ranks: tuple[RankReads, ...]
    first_steps: tuple[StepReads, ...]
    num_padded: int
    num_dropped: int
    exactly_once: bool
    checked: Literal["all", "arithmetic"]

    def __str__(self) -> str:
        return format_explanation(self)


def explain(
    num_records: int,
    *,
    batch_size: int,
    shuffle: Shuffle = False,
    seed: int = 0,
    epoch: int = 0,
    start: int = 0,
    world_size: int = 1,
    num_workers: int = 0,
    drop_last: bool = False,
    rank: int | None = None,
) -> Explanation:
    """Say which rank and worker reads what in an epoch, and check that each record is read exactly once.

    Args:
        num_records: Records of the data set.
        batch_size: Rows of a batch, of one rank.
        shuffle: The order, as loaders take it.
        seed: Of the order.
        epoch: Its number.
        start: Position to begin at, as in a saved state.
        world_size: Number of ranks.
        num_workers: Workers of each rank; 0 if the process itself reads.
        drop_last: Leave out what makes no full batch on each rank, instead of a short last batch.
        rank: Describe this rank only. The check covers all.

    Raises:
        ValueError: A number is out of range.
        TypeError: ``shuffle`` is no order, or a number is not an int.

    Example:
        >>> from torch_tfrecord.explain import explain
        >>> print(explain(10, batch_size=2, world_size=4))
        records  10
        order    sequential/1, seed 0, epoch 0
        readers  4 ranks, no workers; batches of 2 rows
        <BLANKLINE>
        rank  worker  batches  rows  last batch  repeated
        0-1   all           2     3           1         0
        2-3   all           2     3           1         1
        <BLANKLINE>
        step  rank  worker  rows  records
        0     0     -          2  0, 4
        0     1     -          2  1, 5
        0     2     -          2  2, 6
        0     3     -          2  3, 7
        1     0     -          1  8
        1     1     -          1  9
        1     2     -          1  0 again
        1     3     -          1  1 again
        <BLANKLINE>
        tail   the last batch of each rank has 1 row; 2 rows repeat records, so that all ranks read equally many
        check  10 records, each read exactly once, repeated rows aside (every row was enumerated)
    """
    batch_size = check_integer(batch_size, "batch_size", 1)
    world_size = check_integer(world_size, "world_size", 1)
    num_workers = check_integer(num_workers, "num_workers", 0)
    if world_size * max(num_workers, 1) > _MAX_READERS:
        problem = f"{world_size} ranks with {num_workers} workers each are too many to lay out"
        raise ValueError(f"{problem}: {_MAX_READERS:,} readers at most")
    order = open_order(shuffle, num_records, seed=seed, epoch=epoch)
    start = check_integer(start, "start", 0, order.size)
    shares = [Share(order.size, r, world_size, bool(drop_last), start) for r in range(world_size)]
    shown = shares if rank is None else [shares[check_integer(rank, "rank", 0, world_size - 1)]]
    division = _Division(batch_size, max(num_workers, 1), bool(drop_last))
    ranks = [division.rank_reads(share) for share in shares]
    num_padded = sum(reads.padded for reads in ranks)
    num_dropped = shares[0].num_dropped + sum(reads.dropped for reads in ranks)
    if order.size <= CHECK_LIMIT:
        exactly_once = reads_exactly_once(order, [division.pieces(share) for share in shares], start, num_dropped)
    else:
        exactly_once = sum(reads.rows for reads in ranks) - num_padded + num_dropped == order.size - start
    return Explanation(
        num_records=order.size,
        order=order_name(shuffle),
        seed=check_integer(seed, "seed"),
        epoch=check_integer(epoch, "epoch"),
        start=start,
        world_size=world_size,
        num_workers=num_workers,
        batch_size=batch_size,
        drop_last=bool(drop_last),
        steps=ranks[0].batches,
        ranks=tuple(ranks[share.rank] for share in shown),
        first_steps=tuple(_first_steps(order, shown, division)),
        num_padded=num_padded,
        num_dropped=num_dropped,
        exactly_once=exactly_once,
        checked="all" if order.size <= CHECK_LIMIT else "arithmetic",
    )


def reads_exactly_once(order: Order, readers: Sequence[Iterator[Int64s]], start: int, num_dropped: int) -> bool:
    """Whether readers together read each record from a position on once, but for the last ones, which are dropped.

    Args:
        order: Is checked to be a permutation of all records, too.
        readers: The positions that each of them reads, in pieces, without rows that are counted as padding.
        start: Positions before it are read by nobody.
        num_dropped: Positions at the end of the order that nobody reads.
    """
    records = np.empty(order.size, np.int64)
    for begin in range(0, order.size, _CHUNK):
        piece = np.arange(begin, min(begin + _CHUNK, order.size))
        records[piece] = order.indices(piece)
    if np.any((records < 0) | (records >= order.size)):
        return False
    visits = np.zeros(order.size, np.uint8)
    visits[records] = 1
    if not visits.all():
        return False
    visits[:] = 0
    num_rows = 0
    for pieces in readers:
        for positions in pieces:
            visits[records[positions]] += 1  # a record twice in a piece counts once here, and so is missed below
            num_rows += len(positions)
    wanted = records[start : order.size - num_dropped]
    return num_rows == len(wanted) == int(visits.sum(dtype=np.int64)) and bool((visits[wanted] == 1).all())


@dataclass(frozen=True)
class _Division:
    """How the rows of a rank become batches, and these the work of its workers."""

    batch_size: int
    num_workers: int  # 1 for the process itself
    drop_last: bool

    def steps(self, share: Share) -> int:
        return share.num_batches(self.batch_size, drop_last=self.drop_last)

    def rows(self, share: Share) -> int:
        return min(self.steps(share) * self.batch_size, share.rows)

    def rank_reads(self, share: Share) -> RankReads:
        steps, rows = self.steps(share), self.rows(share)
        missing = steps * self.batch_size - rows  # rows by which the last batch is short
        workers = []
        for worker in range(self.num_workers):
            batches = len(range(worker, steps, self.num_workers))
            has_last = steps > 0 and (steps - 1) % self.num_workers == worker
            workers.append(WorkerReads(worker, batches, batches * self.batch_size - missing * has_last))
        last_batch = self.batch_size - missing if steps else 0
        dropped = share.rows - rows
        return RankReads(share.rank, rows, steps, last_batch, share.num_padded, dropped, tuple(workers))

    def pieces(self, share: Share) -> Iterator[Int64s]:
        """The positions that a rank reads, but for a row that pads: worker by worker, some steps at a time."""
        rows = self.rows(share) - share.num_padded
        chunk = max(_CHUNK // (self.batch_size * self.num_workers), 1) * self.num_workers  # steps
        for begin in range(0, self.steps(share), chunk):
            positions = share.positions(begin * self.batch_size, min((begin + chunk) * self.batch_size, rows))
            whole = len(positions) - len(positions) % self.batch_size
            for worker in range(self.num_workers if whole else 0):  # numpy refuses enormous rows, even none of them
                yield positions[:whole].reshape(-1, self.batch_size)[worker :: self.num_workers].ravel()
            yield positions[whole:]


def _first_steps(order: Order, shares: list[Share], division: _Division) -> Iterator[StepReads]:
    """Step by step, all ranks. The order is asked once, since to go back in it may be dear."""
    places = []
    positions = [np.empty(0, np.int64)]
    for step in range(min(division.steps(shares[0]), _FIRST_STEPS)):
        for share in shares:
            begin = step * division.batch_size
            end = min(begin + division.batch_size, division.rows(share))
            places.append((step, share.rank, end - begin))
            positions.append(share.positions(begin, min(end, begin + _FIRST_RECORDS)))
    indices = order.indices(np.concatenate(positions))
    taken = 0
    for (step, rank, rows), some in zip(places, positions[1:], strict=True):
        records = tuple(indices[taken : taken + len(some)].tolist())
        taken += len(some)
        yield StepReads(step, rank, step % division.num_workers, rows, records)
