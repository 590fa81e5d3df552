"""The arrays of an index: mapped from its file, and checked before they are believed."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import numpy as np

from torch_tfrecord.errors import StaleIndexError
from torch_tfrecord.faults import FRAME_OVERHEAD
from torch_tfrecord.native import core

if TYPE_CHECKING:
    from torch_tfrecord.native._core import Int64s

_CHECKED_AT_ONCE = 1 << 20  # records, so that what is computed of them stays small


class MappedFile:
    """A mapped index file that can tell whether it still has the size it had.

    To touch a page that was cut off the file since would end the process (SIGBUS), so ``check`` comes before each use
    of the arrays. The mapping keeps a descriptor of its own, and both are closed when its last user lets go.
    """

    def __init__(self, name: str, descriptor: int, size: int) -> None:
        self.mapping = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
        self._name = name
        self._size = size

    def check(self) -> None:
        """Raise StaleIndexError if the file has another size now."""
        size = self.mapping.size()
        if size != self._size:
            raise StaleIndexError(
                f"{self._name}: the index file had {self._size:,} bytes when it was opened and has {size:,} now: build "
                "the index again and reopen it. A file in use must not be written to: save a new one over it instead"
            )


def problem_of(offsets: Int64s, lengths: Int64s, *, checksums: tuple[int, int], size: int) -> str | None:
    """What is wrong with the numbers that an index holds for one shard, or None.

    Args:
        offsets: int64[records], those of this shard.
        lengths: int64[records], likewise.
        checksums: What ``array_checksums`` gave for them when they were new.
        size: Bytes of the data file.
    """
    if array_checksums(offsets, lengths) != checksums:
        return "the checksum of its offsets or lengths is wrong"
    room = size - FRAME_OVERHEAD
    for start in range(0, len(offsets), _CHECKED_AT_ONCE):
        starts, sizes = offsets[start : start + _CHECKED_AT_ONCE], lengths[start : start + _CHECKED_AT_ONCE]
        # In this order, because room - sizes could overflow for larger sizes.
        if sizes.min() < 0 or sizes.max() > room or starts.min() < 0 or (starts > room - sizes).any():
            return "a record lies outside its file"
    return None


def array_checksums(offsets: Int64s, lengths: Int64s) -> tuple[int, int]:
    """Masked CRC-32C of the offsets and of the lengths of a shard's records, as the file holds them."""
    first, second = (core.masked_crc32c(np.ascontiguousarray(array, "<i8").data) for array in (offsets, lengths))
    return first, second
