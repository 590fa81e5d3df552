"""From record ids to the places of records in open files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from torch_tfrecord.decode import Frames, Origin, read_payloads
from torch_tfrecord.files import OpenFiles, limit
from torch_tfrecord.forward import ForwardShards
from torch_tfrecord.index import RecordIndex
from torch_tfrecord.inflated import InflatedShards, inflate_limit
from torch_tfrecord.native import core

Ids: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class Located(NamedTuple):
    """Records of a batch, found in their files.

    Attributes:
        ids: int64[records], record ids.
        records: Where they lie, or what they are.
        origin: Says where record i comes from, for messages.
    """

    ids: Ids
    records: Frames | list[bytes]
    origin: Callable[[int], Origin]

    @property
    def num_bytes(self) -> int:
        """Bytes of their payloads."""
        if isinstance(self.records, Frames):
            return int(self.records.lengths.sum())
        return sum(map(len, self.records))


class Reader:
    """Finds the records of an index in its files, which it opens. For any number of threads.

    Those of compressed files are found in a temporary file, into which they are uncompressed; where they are too large
    for that, they are read in order, and this is the place in them of one pass.

    Args:
        index: Where records lie.
        verify: Which checksums are checked when records are read: 0 none, 1 those of lengths, 2 all.
    """

    def __init__(self, index: RecordIndex, verify: int) -> None:
        self._index = index
        self._verify = verify
        self._files = OpenFiles(index)
        self._compressed = np.array([kind != "none" for kind in index.shard_compression], np.bool_)
        self._inflated: InflatedShards | None = None
        self._forward: ForwardShards | None = None
        if self._compressed.any():
            # As Python's integers, which cannot overflow, whatever an index says.
            if sum(index.shard_stream_bytes[self._compressed].tolist()) <= inflate_limit():
                self._inflated = InflatedShards(index)
            else:
                self._forward = ForwardShards(index, self._verify)

    def for_pass(self) -> Reader:
        """A reader with a place of its own, where that matters; else this one."""
        return self if self._forward is None else Reader(self._index, self._verify)

    def locate(self, ids: Ids) -> Located:
        """Find records. Raises as ``frames`` does."""
        records = self.frames(ids)
        return Located(ids, records, self._origins(ids, records))

    def frames(self, ids: Ids) -> Frames | list[bytes]:
        """Where records lie; or what they are, where not all their files may be open at once, or have no places.

        Args:
            ids: int64[n], record ids in [0, len(index)).

        Raises:
            FileNotFoundError: A file is gone.
            StaleIndexError: A file is not the one that the index describes.
            DataLossError: A compressed file is damaged.
            ValueError: Records of compressed files that are too large for a temporary file are not read in order.
            OSError: There is no room for a temporary file.
        """
        shards, offsets, lengths = self._index.locate(ids)
        if not ids.size:
            return Frames([], None, offsets, lengths, self._verify)
        if shards is None:
            shards = np.zeros(len(ids), np.int64)
        if self._forward is not None:
            compressed = self._compressed[shards]
            if compressed.any():
                return self._in_order(self._forward, compressed, ids, shards, offsets, lengths)
        places = shards
        if self._inflated is not None:
            places, offsets = self._uncompressed(self._inflated, shards, offsets, lengths)
        if (places == places[0]).all():
            return Frames([self._open(int(places[0]))], None, offsets, lengths, self._verify)
        used, file_of = np.unique(places, return_inverse=True)
        if len(used) > limit():
            return self._in_turns(ids, file_of // limit())
        files = [self._open(int(place)) for place in used]
        return Frames(files, file_of.astype(np.int64, copy=False), offsets, lengths, self._verify)

    def _open(self, place: int) -> core.File:
        """The file of a shard; or for -1, the temporary file."""
        if place >= 0:
            return self._files.get(place)
        assert self._inflated is not None
        return self._inflated.file

    def _uncompressed(self, inflated: InflatedShards, shards: Ids, offsets: Ids, lengths: Ids) -> tuple[Ids, Ids]:
        """Numbers of files, -1 for the temporary one, and where records of compressed shards lie in that."""
        rows = np.flatnonzero(self._compressed[shards])
        places, offsets = shards.copy(), offsets.copy()
        places[rows] = -1
        offsets[rows] = inflated.place(shards[rows], offsets[rows], lengths[rows])
        return places, offsets

    def _in_order(
        self, forward: ForwardShards, compressed: Any, ids: Ids, shards: Ids, offsets: Ids, lengths: Ids
    ) -> list[bytes]:
        rows, others = np.flatnonzero(compressed), np.flatnonzero(~compressed)
        read = forward.payloads(ids[rows], shards[rows], offsets[rows], lengths[rows])
        return _merged(len(ids), (rows, read), (others, self.payloads(ids[others]) if others.size else []))

    def payloads(self, ids: Ids) -> list[bytes]:
        """The records themselves, as they are. Raises as ``frames`` does, and DataLossError for damage."""
        records = self.frames(ids)
        return records if isinstance(records, list) else read_payloads(records, self._origins(ids, records))

    def _in_turns(self, ids: Ids, turns: Ids) -> list[bytes]:
        """Payloads of records that lie in more files than may be open at once."""
        rows_of = [np.flatnonzero(turns == turn) for turn in range(int(turns.max()) + 1)]
        return _merged(len(ids), *((rows, self.payloads(ids[rows])) for rows in rows_of))

    def _origins(self, ids: Ids, records: Frames | list[bytes]) -> Callable[[int], Origin]:
        """A function that says of a row of ``ids`` where its record comes from, for messages."""

        def origin(row: int) -> Origin:
            shard, number = self._index.record_in_file(int(ids[row]))
            path, offset, _ = self._index[int(ids[row])]
            again = (
                (lambda: records[row]) if isinstance(records, list) else (lambda: self.payloads(ids[row : row + 1])[0])
            )
            return Origin(number, path, offset, again, self._index.shard_compression[shard])

        return origin


def _merged(count: int, *parts: tuple[Ids, list[bytes]]) -> list[bytes]:
    """Payloads in the order of their rows."""
    payloads = [b""] * count
    for rows, some in parts:
        for row, payload in zip(rows.tolist(), some, strict=True):
            payloads[row] = payload
    return payloads
