"""Which positions of an epoch each rank reads: pure arithmetic, without torch and I/O.

Rank r of W takes the positions p with p mod W = r, so what all ranks together read in a step depends on W times the
batch size only. All ranks have equally many rows, hence equally many batches, so no rank ever waits for another.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch_tfrecord.native._core import Int64s


@dataclasses.dataclass(frozen=True)
class Share:
    """What one rank reads of the positions [start, size) of an epoch.

    Attributes:
        size: Positions of the whole epoch, as many as records.
        rank: This reader's number, in [0, world_size).
        world_size: Readers among whom the epoch is divided.
        drop_last: What happens to a remainder that does not go round: True leaves it out, False gives each rank a last
            row, for which the ranks that are short take the first positions of the order again.
        start: Positions before it have been read already, by whatever number of ranks.

    Example:
        >>> from torch_tfrecord.shard import Share
        >>> [Share(10, rank, 4).positions(0, 3).tolist() for rank in range(4)]
        [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]
        >>> Share(10, 2, 4).num_padded, Share(10, 2, 4, drop_last=True).num_dropped
        (1, 2)
    """

    size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    start: int = 0

    @property
    def remaining(self) -> int:
        """Positions that are left for all ranks together."""
        return max(self.size - self.start, 0)

    @property
    def rows(self) -> int:
        """Rows of this rank, and of each other."""
        if self.drop_last:
            return self.remaining // self.world_size
        return -(-self.remaining // self.world_size)

    @property
    def num_padded(self) -> int:
        """Rows of this rank that repeat a record: 0 or 1, and then it is the last row."""
        return int(self.rows > 0 and self._last_position() >= self.size)

    @property
    def num_dropped(self) -> int:
        """Positions that no rank reads, with ``drop_last``."""
        return self.remaining % self.world_size if self.drop_last else 0

    def _last_position(self) -> int:
        return self.start + (self.rows - 1) * self.world_size + self.rank

    def positions(self, begin: int, end: int) -> Int64s:
        """Where the rows [begin, end) of this rank stand in the order, for 0 <= begin <= end <= rows.

        Returns:
            int64[end - begin], in [0, size): ascending, but for a last row that pads.
        """
        first = self.start + begin * self.world_size + self.rank
        positions = np.arange(first, first + (end - begin) * self.world_size, self.world_size, dtype=np.int64)
        if begin < end == self.rows and self.num_padded:
            positions[-1] %= self.size
        return positions

    def batch(self, step: int, batch_size: int) -> tuple[int, int]:
        """The rows [begin, end) of a batch."""
        begin = step * batch_size
        return begin, min(begin + batch_size, self.rows)

    def valid(self, begin: int, end: int) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        """``bool[end - begin]``, False for the row that pads; None if none of these does."""
        if not (self.num_padded and end == self.rows > begin):
            return None
        valid = np.ones(end - begin, np.bool_)
        valid[-1] = False
        return valid

    def num_batches(self, batch_size: int, *, drop_last: bool) -> int:
        """Batches of this rank, and of each other; the last is short, or left out by ``drop_last``."""
        return self.rows // batch_size if drop_last else -(-self.rows // batch_size)

    def position_after(self, rows: int) -> int:
        """The position that all ranks together have reached when each has read so many rows, or all it has."""
        return min(self.start + min(rows, self.rows) * self.world_size, max(self.size, self.start))
