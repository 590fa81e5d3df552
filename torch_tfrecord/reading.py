"""From record ids to the places of records in open files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from torch_tfrecord.decode import Frames, Origin, read_payloads
from torch_tfrecord.files import OpenFiles, limit
from torch_tfrecord.index import RecordIndex
from torch_tfrecord.records import verify_level

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

    Args:
        index: Where records lie.
        verify: "all", "length" or "none": which checksums are checked when records are read.
    """

    def __init__(self, index: RecordIndex, verify: str) -> None:
        self._index = index
        self._verify = verify_level(verify)
        self._files = OpenFiles(index)

    def locate(self, ids: Ids) -> Located:
        """Find records. Raises as ``frames`` does."""
        return Located(ids, self.frames(ids), self.origins(ids))

    def frames(self, ids: Ids) -> Frames | list[bytes]:
        """Where records lie; or what they are, where not all their files may be open at once.

        Args:
            ids: int64[n], record ids in [0, len(index)).

        Raises:
            FileNotFoundError: A file is gone.
            StaleIndexError: A file is not the one that the index describes.
        """
        shards, offsets, lengths = self._index.locate(ids)
        if shards is None or not shards.size or (shards == shards[0]).all():
            shard = 0 if shards is None or not shards.size else int(shards[0])
            files = [self._files.get(shard)] if ids.size else []
            return Frames(files, None, offsets, lengths, self._verify)
        used, file_of = np.unique(shards, return_inverse=True)
        if len(used) > limit():
            return self._in_turns(ids, file_of // limit())
        files = [self._files.get(int(shard)) for shard in used]
        return Frames(files, file_of.astype(np.int64, copy=False), offsets, lengths, self._verify)

    def payloads(self, ids: Ids) -> list[bytes]:
        """The records themselves, as they are. Raises as ``frames`` does, and DataLossError for damage."""
        records = self.frames(ids)
        return records if isinstance(records, list) else read_payloads(records, self.origins(ids))

    def _in_turns(self, ids: Ids, turns: Ids) -> list[bytes]:
        """Payloads of records that lie in more files than may be open at once."""
        payloads = [b""] * len(ids)
        for turn in range(int(turns.max()) + 1):
            rows = np.flatnonzero(turns == turn)
            for row, payload in zip(rows, self.payloads(ids[rows]), strict=True):
                payloads[row] = payload
        return payloads

    def origins(self, ids: Ids) -> Callable[[int], Origin]:
        """A function that says of a row of ``ids`` where its record comes from, for messages."""

        def origin(row: int) -> Origin:
            _, number = self._index.record_in_file(int(ids[row]))
            path, offset, _ = self._index[int(ids[row])]
            return Origin(number, path, offset, lambda: self.payloads(ids[row : row + 1])[0])

        return origin
