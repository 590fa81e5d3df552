"""Compressed shards that are too large to be kept uncompressed: read in order, through a window that moves forward."""

from __future__ import annotations

import collections
import threading
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from torch_tfrecord.faults import FRAME_OVERHEAD, frame_error
from torch_tfrecord.inflated import LIMIT_VARIABLE, inflate_limit, open_stream, read_stream, renew_in_child
from torch_tfrecord.native import core

if TYPE_CHECKING:
    from torch_tfrecord.index import RecordIndex
    from torch_tfrecord.native._core import Int64s

_WINDOW_BYTES = 16 << 20
_PIECE_BYTES = 1 << 20
_MAX_WINDOWS = 2  # that are kept: of the shard at work, and of the one before


class ForwardShards:
    """Reads records of compressed shards in about the order in which they lie, in bounded memory.

    A little disorder is within the window. To go back further, a stream is inflated from its start. That is what a new
    pass does, or one that goes on somewhere; so it is granted for one shard, and again for as much as is read. Reading
    at random soon wants more than that.

    For any number of threads, one at a time.

    Args:
        index: Of the shards.
        verify: Which checksums to check: 0 none, 1 those of lengths, 2 all.
    """

    def __init__(self, index: RecordIndex, verify: int) -> None:
        self._index = index
        self._verify = verify
        self._windows: dict[int, _Window] = {}  # by shard, the one used last at the end
        self._lock = threading.Lock()
        self._window_bytes = min(_WINDOW_BYTES, inflate_limit())
        self._most_granted = int(index.shard_stream_bytes.max()) + self._window_bytes
        self._granted = self._most_granted  # bytes that may be inflated just to go back to a record
        self._at = 0, 0  # shard, and byte in its stream, behind what was read last
        renew_in_child(self)

    def renew(self) -> None:
        """After a fork, in the child: begin anew."""
        self._windows = {}
        self._lock = threading.Lock()

    def payloads(self, ids: Int64s, shards: Int64s, offsets: Int64s, lengths: Int64s) -> list[bytes]:
        """Read records.

        Args:
            ids: int64[n], their numbers.
            shards: int64[n], their shards.
            offsets: int64[n], of their frames in the streams.
            lengths: int64[n], of their payloads.

        Raises:
            ValueError: They are not in order.
            DataLossError: They are damaged.
            StaleIndexError: A file is not the one that the index describes.
        """
        ends = offsets + lengths + FRAME_OVERHEAD
        runs = _runs(shards, offsets, ends)
        frames: list[bytes] = []
        with self._lock:
            self._charge(runs)
            for run in runs:
                data = self._read(run)
                rows = slice(run.first, run.last + 1)
                places = zip((offsets[rows] - run.start).tolist(), (ends[rows] - run.start).tolist(), strict=True)
                frames += [data[begin:end] for begin, end in places]
            self._granted = min(self._granted + sum(map(len, frames)), self._most_granted)
        return self._split(b"".join(frames), ids, offsets, lengths)

    def _read(self, run: _Run) -> bytes:
        window = self._windows.pop(run.shard, None)
        if window is None or run.start < window.start:
            window = _Window(self._index, run.shard, self._window_bytes)
        data = window.read(run.start, run.end - run.start)
        self._windows[run.shard] = window
        while len(self._windows) > _MAX_WINDOWS:
            self._windows.pop(next(iter(self._windows)))
        return data

    def _charge(self, runs: list[_Run]) -> None:
        """Raise ValueError if to read these means to inflate more again than is granted."""
        starts = {shard: window.start for shard, window in self._windows.items()}
        at, cost = self._at, 0
        for run in runs:
            start = starts.pop(run.shard, None)
            if start is None or run.start < start:
                start = 0
                if (run.shard, run.start) < at:
                    cost += run.start
            at = run.shard, run.end
            starts[run.shard] = max(start, min(run.start, run.end - self._window_bytes))
            while len(starts) > _MAX_WINDOWS:
                starts.pop(next(iter(starts)))
            if cost > self._granted:
                raise ValueError(self._out_of_order(run))
        self._granted -= cost
        self._at = at

    def _out_of_order(self, run: _Run) -> str:
        sizes = zip(self._index.shard_compression, self._index.shard_stream_bytes.tolist(), strict=True)
        total = sum(size for kind, size in sizes if kind != "none")
        problem = (
            f"records are read in another order than the one in which they lie, but the compressed files are "
            f"{total:,} bytes uncompressed, more than the {inflate_limit():,} that may be kept in a temporary file"
        )
        advice = f"read in order, without shuffling; or uncompress the files for good; or set {LIMIT_VARIABLE} higher"
        return f"{self._index.paths[run.shard]}: {problem}: {advice}"

    def _split(self, data: bytes, ids: Int64s, offsets: Int64s, lengths: Int64s) -> list[bytes]:
        """The payloads of frames, checked."""
        payloads, end, fault = core.split_frames(data, self._verify, len(data))
        sizes = np.fromiter(map(len, payloads), np.int64, len(payloads))
        other = np.flatnonzero(sizes != lengths[: len(sizes)])
        if other.size:
            row = int(other[0])
            fault = ("length_mismatch", row, -1, 0, int(lengths[row]), int(sizes[row]))
        elif fault is None:
            return payloads
        code, row, column, _, expected, found = fault
        said = int.from_bytes(data[end : end + 8], "little")
        if code in ("truncated_payload", "data_crc") and said != lengths[row]:
            code, expected, found = "length_mismatch", int(lengths[row]), said
        shard, record = self._index.record_in_file(int(ids[row]))
        raise frame_error(
            (code, row, column, int(offsets[row]), expected, found),
            path=self._index.paths[shard],
            record=record,
            indexed=True,
            compression=self._index.shard_compression[shard],
        )


class _Run(NamedTuple):
    """Rows that lie one behind the other, and near, in a stream."""

    shard: int
    first: int  # row
    last: int
    start: int  # of the first frame in the stream, in bytes
    end: int  # of the last


def _runs(shards: Int64s, offsets: Int64s, ends: Int64s) -> list[_Run]:
    """Rows in their order as runs, whose frames begin in one stretch of the stream."""
    stretches = offsets // _PIECE_BYTES
    apart = (shards[1:] != shards[:-1]) | (offsets[1:] < ends[:-1]) | (stretches[1:] != stretches[:-1])
    firsts = np.flatnonzero(np.concatenate(([True], apart)))
    lasts = np.concatenate((firsts[1:] - 1, [len(offsets) - 1]))
    columns = (shards[firsts], firsts, lasts, offsets[firsts], ends[lasts])
    return [_Run(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


class _Window:
    """The part of a shard's stream that is in memory. It moves forward only.

    Attributes:
        start: Where it starts in the stream.
    """

    def __init__(self, index: RecordIndex, shard: int, size: int) -> None:
        self.start = 0
        self._size = size
        self._index = index
        self._shard = shard
        self._stream = open_stream(index, shard)
        self._pieces: collections.deque[bytes] = collections.deque()
        self._buffer = memoryview(bytearray(_PIECE_BYTES))

    def read(self, start: int, size: int) -> bytes:
        """Bytes of the stream, from ``start`` on, which is not before that of the window. Raises as ``read_stream``."""
        while self._stream.offset < start + size:
            count = read_stream(self._stream, self._buffer, self._index, self._shard)
            self._pieces.append(bytes(self._buffer[:count]))
            needed = min(start, self._stream.offset - self._size)
            while self._pieces and self.start + len(self._pieces[0]) <= needed:
                self.start += len(self._pieces.popleft())
        parts = []
        begin = start - self.start  # in a piece
        for piece in self._pieces:
            parts.append(piece[max(begin, 0) : max(begin + size, 0)])
            begin -= len(piece)
        return b"".join(parts)
