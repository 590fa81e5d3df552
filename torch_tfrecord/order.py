"""Orders: which record comes when in an epoch.

An *order* maps the positions 0 .. N-1 of an epoch to indices of a data set of N records. It is a function of the
shuffle, the seed, the epoch's number and N: pure arithmetic, without I/O and without state that has to be saved. Every
process that knows these four has the same order, and can begin anywhere in it.

    ==================  =======================================================  =======================================
    shuffle             what it promises                                         what it costs
    ==================  =======================================================  =======================================
    ``False``           records in the order of the files                        nothing
    ``True``            any record may come anywhere                             no memory to speak of; reads all over
    ``BlockShuffle``    blocks come anywhere; a block's records come near        reads fall into one pool of blocks
    ``QueueShuffle``    a record comes near where it lies, as in TF1             the queue's numbers; seeking is replay
    ==================  =======================================================  =======================================

``measure_mixing`` says how well each of them mixes a data set of a given size.

Keys are BLAKE2b digests of the order's name, version and options, the seed, the epoch and N, so that any int is a seed,
and orders of neighbouring seeds and epochs have nothing in common. Up to 65,536 numbers are permuted by the shuffle of
Fisher and Yates, in Durstenfeld's form (1964), with unbiased draws. Above that a permutation is computed point by
point: a Feistel network over the next power of two, walked until it comes back into range (Black and Rogaway, "Ciphers
with arbitrary finite domains", 2002). An order never changes: one that did would get another version in `order_name`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import numpy as np

from torch_tfrecord.checks import check_integer
from torch_tfrecord.native import core

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s: TypeAlias = NDArray[np.int64]

MAX_RECORDS = 2**62
_TABLE = 65_536  # numbers up to which a permutation is kept as a table; part of the orders' definition
_ROUNDS = 8  # of the Feistel network (statistics find fault with up to 5); part of the orders' definition
_CHUNK = 65_536  # positions that a queue draws at a time, and so bounds memory
_SKIP = 2**24  # draws a call, so that replay can be interrupted


@dataclass(frozen=True)
class BlockShuffle:
    """Shuffles blocks of neighbouring records, then the records of some blocks together: for slow random reads.

    The data set is cut into blocks of ``block_size`` records in sequence (the last one may be short), and the blocks
    are fully permuted. Each ``window`` blocks that follow one another are then a *pool*, whose records are fully
    permuted. An epoch reads pool after pool, and while it is in one, all reads fall into ``window`` stretches of
    ``block_size`` records: read-ahead and the page cache serve most of them, if the cache has room for a pool's bytes.
    Where single records are as large as the reads that a disk is good at, there is nothing to gain, and ``True`` mixes
    better.

    The defaults make pools of 65,536 records, from 256 places of the files. With records of 1 KB, a block is 256 KB,
    twice what Linux reads ahead by default, and a pool 64 MB. For larger records take smaller blocks, and pools that
    fit the cache. All records of a block come within one pool: where neighbours are alike (files sorted by class,
    frames of one video), have a window of at least as many blocks as a batch has records.

    Any position is computed directly, in at most 1 MiB of memory.

    Args:
        block_size: Records of a block.
        window: Blocks mixed at a time.

    Raises:
        ValueError: One of them is less than 1.

    Example:
        >>> import numpy as np, torch_tfrecord as tfr
        >>> from torch_tfrecord.order import open_order
        >>> order = open_order(tfr.BlockShuffle(block_size=3, window=2), 12, seed=0, epoch=0)
        >>> order.indices(np.arange(12)).tolist()
        [9, 0, 2, 10, 1, 11, 3, 7, 4, 8, 6, 5]
    """

    block_size: int = 256
    window: int = 256

    def __post_init__(self) -> None:
        for name in ("block_size", "window"):
            object.__setattr__(self, name, check_integer(getattr(self, name), f"BlockShuffle: {name}", 1))


@dataclass(frozen=True)
class QueueShuffle:
    """TF1's shuffle queue (``tf.train.shuffle_batch``, ``tf.RandomShuffleQueue``), run on record numbers.

    Records enter a buffer in the order of the files, and each one that leaves is drawn from it at random. Before a draw
    the buffer always holds ``capacity`` records, or all that remain, so the order depends on capacity and seed alone,
    never on timing. A record comes at most ``capacity - 1`` positions early; it then stays in the buffer for
    ``capacity`` draws on average, and now and then for many more. An epoch thus goes through the files from first to
    last: choose it to train as a TF1 program did, or where files can only be read in sequence. ``True`` mixes better,
    with less memory.

    The buffer holds numbers, 8 bytes each, and no data. To begin at a position, all draws before it are done again,
    some hundred million a second.

    Args:
        capacity: Records in the buffer.
        min_after_dequeue: The mixing promised, as in TF1: at least so many records stay in the buffer after each draw,
            as long as enough remain. The buffer is always full, so this is kept by any capacity that is larger, and
            does not change the order.

    Raises:
        ValueError: Not 0 <= min_after_dequeue < capacity.

    Example:
        >>> import numpy as np, torch_tfrecord as tfr
        >>> from torch_tfrecord.order import open_order
        >>> order = open_order(tfr.QueueShuffle(4, 3), 12, seed=0, epoch=0)
        >>> order.indices(np.arange(12)).tolist()
        [2, 3, 5, 0, 7, 1, 9, 4, 10, 8, 11, 6]
    """

    capacity: int
    min_after_dequeue: int = 0

    def __post_init__(self) -> None:
        for name, least in (("capacity", 1), ("min_after_dequeue", 0)):
            object.__setattr__(self, name, check_integer(getattr(self, name), f"QueueShuffle: {name}", least))
        if self.capacity <= self.min_after_dequeue:
            raise ValueError(
                f"QueueShuffle: capacity {self.capacity} must be bigger than min_after_dequeue "
                f"{self.min_after_dequeue}; take a capacity of {self.min_after_dequeue + 1} or more"
            )


Shuffle: TypeAlias = bool | BlockShuffle | QueueShuffle


class Order(Protocol):
    """Which index comes at which position. For one thread at a time."""

    size: int

    def indices(self, positions: Int64s) -> Int64s:
        """Indices at any positions in [0, size), int64 as they; IndexError beyond. Ascending positions cost least."""


def check_shuffle(shuffle: object) -> Shuffle:
    """A shuffle that a user gave. Raises TypeError if it is none."""
    if isinstance(shuffle, bool | np.bool_):
        return bool(shuffle)
    if isinstance(shuffle, BlockShuffle | QueueShuffle):
        return shuffle
    choices = "False, True, BlockShuffle(block_size, window) or QueueShuffle(capacity, min_after_dequeue)"
    raise TypeError(f"shuffle must be {choices}, not {shuffle!r}")


def order_name(shuffle: Shuffle) -> str:
    """What decides an order beside seed, epoch and size: its kind, options and version. Part of a saved state.

    Example:
        >>> order_name(True), order_name(QueueShuffle(1000, 500))
        ('permutation/1', 'QueueShuffle(capacity=1000)/1')
    """
    if isinstance(shuffle, BlockShuffle):
        return f"BlockShuffle(block_size={shuffle.block_size}, window={shuffle.window})/1"
    if isinstance(shuffle, QueueShuffle):
        return f"QueueShuffle(capacity={shuffle.capacity})/1"
    return "permutation/1" if shuffle else "sequential/1"


def open_order(shuffle: Shuffle, size: int, *, seed: int, epoch: int) -> Order:
    """The order of one epoch. Opens at once, whatever the size.

    Args:
        shuffle: False, True, or a shuffle's description.
        size: Number of records, 0 to 2**62.
        seed: Any int.
        epoch: Number of the epoch, any int.

    Raises:
        TypeError: ``shuffle`` is none, or a number is not an int.
        ValueError: ``size`` is out of range.

    Example:
        >>> import numpy as np
        >>> order = open_order(True, 10**12, seed=0, epoch=3)
        >>> order.indices(np.array([0, 1, 10**12 - 1])).tolist()
        [597190454961, 20616726876, 184923202897]
    """
    shuffle = check_shuffle(shuffle)
    size = check_integer(size, "the number of records", 0)
    if size > MAX_RECORDS:
        raise ValueError(f"an order has at most 2**62 records, not {size}")
    key = _Key(
        f"{order_name(shuffle)} seed={check_integer(seed, 'seed')} epoch={check_integer(epoch, 'epoch')} size={size}"
    )
    if isinstance(shuffle, BlockShuffle):
        return _BlockOrder(shuffle, size, key)
    if isinstance(shuffle, QueueShuffle):
        return _QueueOrder(shuffle, size, key)
    return _PermutedOrder(size, key) if shuffle else _SequentialOrder(size)


class _Key(NamedTuple):
    """Where random numbers come from: a text, of which each part of an order makes its own."""

    text: str

    def of(self, part: str) -> _Key:
        return _Key(f"{self.text} {part}")

    def number(self) -> int:
        """64 bits."""
        return int.from_bytes(hashlib.blake2b(self.text.encode(), digest_size=8).digest(), "little")


class _Table:
    """A permutation as a table, with the methods of ``core.Bijection``."""

    def __init__(self, ids: Int64s) -> None:
        self._ids = ids

    def ids(self, positions: Int64s) -> Int64s:
        return np.take(self._ids, positions)

    def positions(self, ids: Int64s) -> Int64s:
        inverse = np.empty_like(self._ids)
        inverse[self._ids] = np.arange(len(inverse))
        return np.take(inverse, ids)


def _permutation(size: int, key: _Key) -> _Table | core.Bijection:
    """A uniformly random permutation of 0 .. size-1."""
    if size <= _TABLE:
        return _Table(core.permutation(size, key.number()))
    return core.Bijection(size, [key.of(f"round={i}").number() for i in range(_ROUNDS)])


def _check_positions(positions: Int64s, size: int) -> None:
    if len(positions) and not (positions.min() >= 0 and positions.max() < size):
        bad = positions[(positions < 0) | (positions >= size)][0]
        raise IndexError(f"position {bad} of an order of {size} records")


class _SequentialOrder:
    def __init__(self, size: int) -> None:
        self.size = size

    def indices(self, positions: Int64s) -> Int64s:
        _check_positions(positions, self.size)
        return np.array(positions)


class _PermutedOrder:
    def __init__(self, size: int, key: _Key) -> None:
        self.size = size
        self._permutation = _permutation(size, key)

    def indices(self, positions: Int64s) -> Int64s:
        _check_positions(positions, self.size)
        return self._permutation.ids(positions)


class _BlockOrder:
    """Positions become *slots* by a permutation within their pool, and slots records by one of the blocks.

    Slots count the records of the permuted blocks end to end. One block is short of ``_missing`` records, so from its
    end on slots are counted as if it were whole: then each block has a place of ``_block_size`` slots.
    """

    def __init__(self, shuffle: BlockShuffle, size: int, key: _Key) -> None:
        self.size = size
        self._key = key
        self._block_size = max(1, min(shuffle.block_size, size))
        num_blocks = -(-size // self._block_size)
        self._window = max(1, min(shuffle.window, num_blocks))
        self._blocks = _permutation(num_blocks, key.of("blocks"))
        self._missing = num_blocks * self._block_size - size
        self._short_place = num_blocks  # no place
        if self._missing:
            self._short_place = int(self._blocks.positions(np.array([num_blocks - 1]))[0])
        self._pool = -1, _permutation(0, key)  # the latest: its number, and how its slots are permuted

    def indices(self, positions: Int64s) -> Int64s:
        _check_positions(positions, self.size)
        pools = self._whole(positions) // (self._block_size * self._window)
        if np.any(np.diff(pools) < 0):  # pool by pool, and back
            order = np.argsort(pools, kind="stable")
            indices = np.empty_like(positions)
            indices[order] = self.indices(positions[order])
            return indices
        edges = [*np.flatnonzero(np.diff(pools, prepend=-1)).tolist(), len(pools)]
        slots = np.empty_like(positions)
        for begin, end in pairwise(edges):
            first, permutation = self._open_pool(int(pools[begin]))
            slots[begin:end] = first + permutation.ids(positions[begin:end] - first)
        places, offsets = np.divmod(self._whole(slots), self._block_size)
        return self._blocks.ids(places) * self._block_size + offsets

    def _whole(self, slots: Int64s) -> Int64s:
        """Slots as if the short block were whole."""
        end = (self._short_place + 1) * self._block_size - self._missing
        return slots + self._missing * (slots >= end)

    def _first_slot(self, pool: int) -> int:
        place = pool * self._window
        return min(place * self._block_size - self._missing * (place > self._short_place), self.size)

    def _open_pool(self, pool: int) -> tuple[int, _Table | core.Bijection]:
        """First slot of a pool, and the permutation of its slots."""
        first = self._first_slot(pool)
        if self._pool[0] != pool:
            self._pool = pool, _permutation(self._first_slot(pool + 1) - first, self._key.of(f"pool={pool}"))
        return first, self._pool[1]


class _QueueOrder:
    """Replays the queue up to the positions asked for, and starts again for earlier ones."""

    def __init__(self, shuffle: QueueShuffle, size: int, key: _Key) -> None:
        self.size = size
        self._capacity = min(shuffle.capacity, size)
        self._key = key.number()
        self._queue: core.ShuffleQueue | None = None

    def indices(self, positions: Int64s) -> Int64s:
        _check_positions(positions, self.size)
        # What lies ahead first: the rest, such as the first positions that fill up the last batch, starts anew.
        ahead = positions >= (0 if self._queue is None else self._queue.position)
        order = np.lexsort((positions, ~ahead))
        wanted = positions[order]
        split = int(np.count_nonzero(ahead))
        indices = np.empty_like(positions)
        indices[order] = np.concatenate([self._ascending(wanted[:split]), self._ascending(wanted[split:])])
        return indices

    def _ascending(self, positions: Int64s) -> Int64s:
        indices = np.empty_like(positions)
        done = 0
        while done < len(positions):
            first = int(positions[done])
            queue = self._seek(first)
            drawn = queue.take(min(int(positions[-1]) - first + 1, _CHUNK))
            until = int(np.searchsorted(positions, first + len(drawn)))
            indices[done:until] = drawn[positions[done:until] - first]
            done = until
        return indices

    def _seek(self, position: int) -> core.ShuffleQueue:
        queue = self._queue
        if queue is None or queue.position > position:
            queue = self._queue = core.ShuffleQueue(self.size, self._capacity, self._key)
        while queue.position < position:
            queue.skip(min(position - queue.position, _SKIP))
        return queue
