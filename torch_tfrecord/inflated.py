"""Random access to compressed shards: each is uncompressed once, as far as it is needed, into a temporary file."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_tfrecord.errors import StaleIndexError, TFRecordError
from torch_tfrecord.faults import FRAME_OVERHEAD, frame_error
from torch_tfrecord.files import open_shard
from torch_tfrecord.index_scan import naming
from torch_tfrecord.index_stream import inflate_file
from torch_tfrecord.inflate import InflatedFile, InflateError
from torch_tfrecord.native import core

if TYPE_CHECKING:
    from torch_tfrecord.index import RecordIndex
    from torch_tfrecord.native._core import Int64s

LIMIT_VARIABLE = "TORCH_TFRECORD_INFLATE_BYTES"
_DEFAULT_LIMIT = 4 << 30
_PIECE_BYTES = 1 << 20
_MAX_STREAMS = 8  # that are open at once: each takes a descriptor and some memory

# A forked child has none of its parent's other threads: neither may it wait for them, nor use what they were changing.
_to_renew: weakref.WeakSet[Any] = weakref.WeakSet()


def renew_in_child(holder: Any) -> None:
    """Call ``renew`` of an object in each child that this process forks, as long as the object lives."""
    _to_renew.add(holder)


def _renew() -> None:
    for holder in list(_to_renew):
        holder.renew()


os.register_at_fork(after_in_child=_renew)


def inflate_limit() -> int:
    """How many bytes of an index's compressed shards may lie uncompressed in a temporary file.

    Raises:
        ValueError: The environment variable that says so holds no such number.
    """
    text = os.environ.get(LIMIT_VARIABLE, "")
    if not text.strip():
        return _DEFAULT_LIMIT
    if not text.strip().isascii() or not text.strip().isdigit():
        raise ValueError(f"the environment variable {LIMIT_VARIABLE} is {text!r}, and must be a number of bytes")
    return int(text)


class InflatedShards:
    """The compressed shards of an index in one temporary file, which has no name and vanishes with its last user.

    A shard has a range of the file, in which all bytes lie as in its stream. They are written in order, the first time
    that somebody needs them or those after them. For any number of threads, and for processes that were forked
    meanwhile: they go on in the same file, and whatever two of them write to one place is the same.

    Args:
        index: Of the shards.
    """

    def __init__(self, index: RecordIndex) -> None:
        self._index = index
        compressed = np.array([kind != "none" for kind in index.shard_compression])
        sizes = np.where(compressed, index.shard_stream_bytes, 0)
        self._starts: Int64s = np.concatenate(([0], np.cumsum(sizes)[:-1]))  # of the shards' ranges in the file
        self._reached = [0] * len(sizes)  # how far each shard's stream is in the file
        self._wanted = np.where(compressed, _ends(index), 0).tolist()  # nothing behind that is needed
        self._unfinished = {shard for shard, end in enumerate(self._wanted) if end > 0}
        self._streams: dict[int, InflatedFile] = {}  # those at work, the one that was used last at the end
        self._locks: dict[int, threading.Lock] = {}
        self._opening = threading.Lock()
        self._opened: tuple[core.File, int] | None = None  # to read, and a descriptor to write
        renew_in_child(self)

    def renew(self) -> None:
        """After a fork, in the child: begin anew with streams and locks. What is in the file is there to stay."""
        self._streams, self._locks = {}, {}
        self._opening = threading.Lock()

    @property
    def file(self) -> core.File:
        """The temporary file. Raises OSError."""
        return self._open()[0]

    def _open(self) -> tuple[core.File, int]:
        if self._opened is None:
            with self._opening:
                if self._opened is None:
                    with tempfile.TemporaryFile(prefix="torch_tfrecord-") as file:
                        reader, writer = core.File(os.dup(file.fileno())), os.dup(file.fileno())
                    weakref.finalize(self, os.close, writer).atexit = False
                    self._opened = reader, writer
        return self._opened

    def place(self, shards: Int64s, offsets: Int64s, lengths: Int64s) -> Int64s:
        """See to it that records are in the file.

        Args:
            shards: int64[n], their shards.
            offsets: int64[n], of their frames in the streams.
            lengths: int64[n], of their payloads.

        Returns:
            int64[n], where their frames are in the file.

        Raises:
            DataLossError: A stream is damaged before the end of one of them.
            StaleIndexError: A file is not the one that the index describes.
            OSError: The temporary file cannot be made or written, for want of room, say.
        """
        if self._unfinished:
            ends = np.zeros(len(self._reached), np.int64)
            np.maximum.at(ends, shards, offsets + lengths + FRAME_OVERHEAD)
            for shard in np.unique(shards).tolist():
                self._reach(shard, int(ends[shard]))
        return self._starts[shards] + offsets

    def _reach(self, shard: int, end: int) -> None:
        if self._reached[shard] >= end:
            return
        with self._lock(shard):
            self._inflate(shard, end)
        while len(self._streams) > _MAX_STREAMS:
            # To its end: if it were dropped, all of it would have to be inflated again for its next record.
            oldest = next(iter(list(self._streams)), shard)
            # What is wrong with it concerns those who want its records, and will be met again by them.
            with self._lock(oldest), contextlib.suppress(TFRecordError, OSError):
                self._inflate(oldest, self._wanted[oldest])

    def _lock(self, shard: int) -> threading.Lock:
        return self._locks.setdefault(shard, threading.Lock())

    def _inflate(self, shard: int, end: int) -> None:
        """Bring a shard so far, with its lock held. After an error its stream is begun anew."""
        if self._reached[shard] >= end:
            return
        stream = self._streams.pop(shard, None) or open_stream(self._index, shard)
        buffer = memoryview(bytearray(_PIECE_BYTES))
        while self._reached[shard] < end:
            count = read_stream(stream, buffer, self._index, shard)
            begin = stream.offset - count
            # A stream that was begun anew comes past what is in the file; one of a changed file may be too long.
            self._write(shard, buffer[max(self._reached[shard] - begin, 0) : min(self._wanted[shard] - begin, count)])
        if self._reached[shard] < self._wanted[shard]:
            self._streams[shard] = stream
        else:
            self._unfinished.discard(shard)

    def _write(self, shard: int, data: memoryview) -> None:
        _, writer = self._open()
        while data:
            try:
                count = os.pwrite(writer, data, int(self._starts[shard]) + self._reached[shard])
            except OSError as error:
                raise self._no_room(shard, error) from error
            self._reached[shard] += count
            data = data[count:]

    def _no_room(self, shard: int, error: OSError) -> OSError:
        folder = tempfile.gettempdir()
        total = int(self._starts[-1]) + self._wanted[-1]
        advice = f"name a folder with {total:,} bytes free by TMPDIR, or uncompress the data files for good"
        problem = f"cannot be uncompressed into a temporary file in {folder}: {error.strerror}: {advice}"
        return OSError(error.errno, f"{self._index.paths[shard]}: {problem}")


def _ends(index: RecordIndex) -> Int64s:
    """int64[shards], where the last record of each shard ends; 0 where there is none."""
    lasts = np.cumsum(index.shard_sizes) - 1
    ends = np.zeros(len(lasts), np.int64)
    some = index.shard_sizes > 0
    ends[some] = index.offsets[lasts[some]] + index.lengths[lasts[some]] + FRAME_OVERHEAD
    return ends


def open_stream(index: RecordIndex, shard: int) -> InflatedFile:
    """The stream of a compressed shard. Raises FileNotFoundError, StaleIndexError."""
    kind = index.shard_compression[shard]
    assert kind != "none"
    return inflate_file(open_shard(index, shard), kind)


def read_stream(stream: InflatedFile, buffer: memoryview, index: RecordIndex, shard: int) -> int:
    """Read some next bytes of a shard's stream, at least one.

    Raises:
        DataLossError: The stream is damaged, or the file cannot be read.
        StaleIndexError: The stream is at its end, though the index has more of it.
    """
    path = index.paths[shard]
    while True:
        try:
            with naming(path):
                count = stream.readinto(buffer)
        except InflateError as error:
            # Whether the records are what was written, their own checksums tell.
            if error.code == "inflate_checksum" and any(f.reason == error.code for f in index.faults_in(shard)):
                continue
            raise _stream_error(stream, error, index, shard) from None
        if count:
            return count
        problem = f"the uncompressed data ends at byte {stream.offset:,}, but its index has records behind that"
        raise StaleIndexError(f"{path}: {problem}. The file was changed since: build the index again")


def _stream_error(stream: InflatedFile, error: InflateError, index: RecordIndex, shard: int) -> Exception:
    """The error for the record at which a stream is damaged."""
    records = index.records_in(shard)
    number = int(index.offsets[records.start : records.stop].searchsorted(stream.offset, "right")) - 1
    record = records[max(number, 0)]
    fault = error.fault(index[record].offset)
    _, in_file = index.record_in_file(record)
    return frame_error(
        fault, path=index.paths[shard], record=in_file, indexed=True, compression=index.shard_compression[shard]
    )
