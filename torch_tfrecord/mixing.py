"""How well an order mixes: two scores, measured, so that speed can be weighed against randomness."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torch_tfrecord.checks import check_integer
from torch_tfrecord.order import Shuffle, open_order

MAX_SIZE = 10_000_000
_CHUNK = 65_536  # positions asked for at a time


@dataclass(frozen=True)
class Mixing:
    """How far an order takes records, as a share of what a uniformly random permutation does.

    0 means not at all, and about 1 as far as can be wished for. Neither is the whole truth: an order in reverse has a
    large displacement, and one that deals records out round robin sets neighbours far apart, without any chance in
    them.

    Attributes:
        neighbours: Mean distance, in the epoch, of two records that are neighbours in the files, over (N + 1) / 3.
            Where neighbours are alike, such as frames of one video or a file of one class, a low score means batches of
            records that are alike.
        displacement: Mean distance of a record's position in the epoch from its index, over (N**2 - 1) / 3N. A low
            score means that each epoch goes through the files from their first to their last record.
    """

    neighbours: float
    displacement: float


def measure_mixing(shuffle: Shuffle, size: int, *, seed: int = 0, epoch: int = 0) -> Mixing:
    """Measure how well a shuffle mixes a data set of some size.

    It walks through a whole epoch of numbers, without data: tens of millions a second, and 8 bytes of memory a record.
    Both scores depend on the ratio of a queue's capacity, or a pool's records, to the size much more than on the size:
    measure a large data set by a smaller one, with a capacity or window that is smaller by as much.

    Args:
        shuffle: As the loaders take it: False, True, `BlockShuffle` or `QueueShuffle`.
        size: Records, 0 to 10,000,000. Fewer than two records score 0.
        seed: Seed of the order.
        epoch: Its epoch.

    Raises:
        TypeError: ``shuffle`` is none.
        ValueError: ``size`` is out of range.

    Example:
        >>> import torch_tfrecord as tfr
        >>> mixing = tfr.measure_mixing(tfr.QueueShuffle(1000), 100_000)
        >>> round(mixing.neighbours, 3), round(mixing.displacement, 3)
        (0.03, 0.022)
    """
    size = check_integer(size, "size")
    if size > MAX_SIZE:
        raise ValueError(f"the mixing of {size} records would take too much memory; measure at most {MAX_SIZE}")
    order = open_order(shuffle, size, seed=seed, epoch=epoch)
    if size < 2:
        return Mixing(0.0, 0.0)
    position_of = np.empty(size, np.int64)
    for begin in range(0, size, _CHUNK):
        positions = np.arange(begin, min(begin + _CHUNK, size))
        position_of[order.indices(positions)] = positions
    apart = moved = 0
    for begin in range(0, size, _CHUNK):
        positions = position_of[begin : begin + _CHUNK + 1]  # and the next chunk's first one
        apart += int(np.abs(np.diff(positions)).sum())
        positions = positions[:_CHUNK]
        moved += int(np.abs(positions - np.arange(begin, begin + len(positions))).sum())
    uniform = (size + 1) / 3
    return Mixing(apart / (size - 1) / uniform, moved / size / (uniform * (size - 1) / size))
