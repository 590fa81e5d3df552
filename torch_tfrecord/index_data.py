"""What an index holds: plain data, as it is scanned, kept in memory and written to a file."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_tfrecord.faults import RecordFault
    from torch_tfrecord.index_arrays import MappedFile
    from torch_tfrecord.inflate import Kind
    from torch_tfrecord.native._core import Int64s

Compression: TypeAlias = Literal["none", "gzip", "zlib"]

_PIECE_BYTES = 4096


@dataclasses.dataclass(frozen=True)
class Stream:
    """What a compressed data file holds, uncompressed. Offsets of its records count in this stream.

    Attributes:
        kind: ``gzip`` or ``zlib``.
        size: Bytes of the stream, up to its end or to damage.
        samples: Masked CRC-32C of pieces of the compressed file, see ``sample_pieces``.
    """

    kind: Kind
    size: int
    samples: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Shard:
    """One data file, as it was when it was scanned.

    Attributes:
        path: The file.
        size: Its bytes.
        records: How many of its records are in the index.
        mtime_ns: When it was last modified, in nanoseconds: a hint, since copies may have other times.
        lengths_digest: 32 hex digits: BLAKE2b of the int64 lengths of those records.
        checksums: Masked CRC-32C of their int64 offsets, and of their int64 lengths.
        samples: Stored payload checksums of up to 16 of them, see ``sample_positions``.
        stream: None for a plain file.
    """

    path: str
    size: int
    records: int
    mtime_ns: int
    lengths_digest: str
    checksums: tuple[int, int]
    samples: tuple[int, ...]
    stream: Stream | None = None

    @property
    def compression(self) -> Compression:
        """``none``, ``gzip`` or ``zlib``."""
        return "none" if self.stream is None else self.stream.kind

    @property
    def stream_bytes(self) -> int:
        """Bytes that offsets count in: those of the file, or of what it is uncompressed."""
        return self.size if self.stream is None else self.stream.size


@dataclasses.dataclass(frozen=True)
class IndexData:
    """Everything that an index file holds.

    Attributes:
        shards: The data files, in order.
        offsets: int64[records], byte offset of each record's frame in its shard, shard after shard.
        lengths: int64[records], bytes of each record's payload.
        faults: What was left out when the shards were scanned: one list a shard, in file order.
        verify: What was checked then: ``length`` or ``all``.
        mapped: The file that the arrays are views of, to be checked before each use of them; None: they are in memory.
    """

    shards: Sequence[Shard]
    offsets: Int64s
    lengths: Int64s
    faults: Sequence[Sequence[RecordFault]]
    verify: str
    mapped: MappedFile | None = None


def sample_positions(records: int) -> list[int]:
    """Which records of a shard are sampled: at most 16, evenly spread, the first and the last among them."""
    if records <= 16:
        return list(range(records))
    return [number * (records - 1) // 15 for number in range(16)]


def sample_pieces(size: int) -> list[tuple[int, int]]:
    """Which pieces of a compressed file are sampled, as (offset, bytes): at most 16 of 4096 bytes, evenly spread.

    The first and the last are among them; the last one holds a checksum of everything, or of the last gzip member.
    """
    starts = {number * max(size - _PIECE_BYTES, 0) // 15 for number in range(16)}
    return [(start, min(_PIECE_BYTES, size - start)) for start in sorted(starts)]
