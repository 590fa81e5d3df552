"""Walking the frames of a compressed file: its stream is read in order, once, in bounded memory."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_tfrecord.faults import FRAME_OVERHEAD, HEADER_BYTES
from torch_tfrecord.inflate import InflatedFile, InflateError
from torch_tfrecord.native import core

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from torch_tfrecord.inflate import Kind
    from torch_tfrecord.native._core import Fault, Int64s

_BUFFER_BYTES = 1 << 20
_FOOTER_BYTES = FRAME_OVERHEAD - HEADER_BYTES
_INT64_MAX = 2**63 - 1


class FileStream:
    """An open file that is read in order. The position is kept here: processes that share the file do not share it."""

    def __init__(self, file: core.File) -> None:
        self._file = file
        self._position = 0

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill a buffer; fewer bytes only at the end of the file. Raises OSError."""
        with memoryview(buffer) as view:
            data = self._file.read(self._position, view.nbytes)
            view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, position: int, /) -> int:
        """Go to a position."""
        self._position = position
        return position

    def tell(self) -> int:
        """The position now."""
        return self._position


def inflate_file(file: core.File, kind: Kind) -> InflatedFile:
    """The stream of an open compressed file, from its beginning."""
    return InflatedFile(FileStream(file), kind)


def head_of_stream(stream: InflatedFile, size: int) -> tuple[bytes, bool]:
    """The first bytes of a stream, as far as it is not damaged, and whether they are all."""
    buffer = bytearray(size)
    filled = 0
    with memoryview(buffer) as view:
        while filled < size:
            try:
                count = stream.readinto(view[filled:])
            except InflateError:
                break
            if count == 0:
                return bytes(buffer[:filled]), True
            filled += count
    return bytes(buffer[:filled]), False


@dataclasses.dataclass(frozen=True)
class Piece:
    """Whole records that were found next in a stream, and what is wrong after them.

    Attributes:
        offsets: int64[records], byte offsets of their frames in the stream.
        lengths: int64[records], bytes of their payloads.
        footers: uint32[records], the stored checksums of their payloads.
        fault: What is wrong with the next record or behind it, at a position in the stream; or None.
    """

    offsets: Int64s
    lengths: Int64s
    footers: np.ndarray[Any, np.dtype[np.uint32]]
    fault: Fault | None


@dataclasses.dataclass
class _Long:
    """A record that the buffer cannot hold: it is passed piece by piece.

    Attributes:
        start: Byte offset of its frame in the stream.
        length: Bytes of its payload, as its header says.
        left: How many of them are still to come.
        crc: Checksum of those that came.
    """

    start: int
    length: int
    left: int
    crc: int = 0


class StreamWalk:
    """Walks the frames of a stream, whatever their size, through one buffer, which always starts at a frame.

    Args:
        stream: From its beginning.
        verify: 1 checks the lengths' checksums, 2 both.
    """

    def __init__(self, stream: InflatedFile, verify: int) -> None:
        self._stream = stream
        self._verify = verify
        self._buffer = bytearray(_BUFFER_BYTES)
        self._filled = 0
        self._offset = 0  # in the stream, of the buffer's start
        self._ended = False  # the stream has, or is damaged
        self._error: InflateError | None = None
        self._long: _Long | None = None

    @property
    def done(self) -> bool:
        """Whether all was walked, and nothing is wrong with the rest."""
        return self._ended and self._error is None and self._filled == 0 and self._long is None

    @property
    def position(self) -> int:
        """How far the stream was walked, in bytes."""
        return self._offset

    def next(self) -> Piece:
        """The next records: perhaps none, though more will come. After a fault, ``pass_by`` comes first."""
        self._fill()
        if self._long is not None:
            return self._pass_long(self._long)
        limit = self._filled if self._ended and self._error is None else -1
        with memoryview(self._buffer) as view, view[: self._filled] as data:
            offsets, lengths, used, fault = core.scan_frames(data, self._verify, limit)
            footers = _footers(data, offsets + lengths)
        piece = Piece(offsets + self._offset, lengths, footers, self._placed(fault))
        self._drop(used)
        if fault is None and self._error is not None:
            return dataclasses.replace(piece, fault=self._error.fault(self._offset))
        if fault is None and self._filled == len(self._buffer):
            length = int.from_bytes(self._buffer[:8], "little")
            self._long = _Long(self._offset, length, length)
            self._drop(HEADER_BYTES)
        return piece

    def pass_by(self, fault: Fault, advance: Callable[[], object]) -> int | None:
        """Pass by damage: one record, or a wrong checksum of the stream, or else all that is left of the stream.

        Args:
            fault: From ``next``.
            advance: Called now and then where that takes long.

        Returns:
            Bytes of the stream that are lost; None where it cannot be inflated up to its end.
        """
        code, start = fault[0], fault[3]
        if code == "inflate_checksum":  # after which another member may follow
            self._error, self._ended = None, False
            return 0
        if code == "data_crc" and start == self._offset:
            self._drop(core.frame_size(self._buffer[:HEADER_BYTES]))
        elif code != "data_crc":
            self._long = None
            while not self._ended:
                self._drop(self._filled)
                self._fill()
                advance()
            self._drop(self._filled)
            error, self._error = self._error, None
            if error is not None and not error.is_at_end:
                return None
        return self._offset - start

    def _fill(self) -> None:
        with memoryview(self._buffer) as view:
            while not self._ended and self._filled < len(view):
                try:
                    count = self._stream.readinto(view[self._filled :])
                except InflateError as error:
                    self._error, count = error, 0
                self._filled += count
                self._ended = count == 0

    def _drop(self, count: int) -> None:
        """Let go of the first bytes of the buffer."""
        rest = self._filled - count
        self._buffer[:rest] = self._buffer[count : self._filled]
        self._filled = rest
        self._offset += count

    def _placed(self, fault: Fault | None) -> Fault | None:
        """A fault in the buffer as one in the stream."""
        if fault is None:
            return None
        code, row, column, position, expected, found = fault
        return code, row, column, self._offset + position, expected, found

    def _pass_long(self, long: _Long) -> Piece:
        count = min(long.left, self._filled)
        if self._verify >= 2:
            with memoryview(self._buffer) as view, view[:count] as data:
                long.crc = core.crc32c(data, long.crc)
        self._drop(count)
        long.left -= count
        if long.left == 0:
            self._fill()
            if self._filled >= _FOOTER_BYTES:
                return self._end_long(long)
        if not self._ended:
            return _no_records(None)
        if self._error is not None:
            return _no_records(self._error.fault(long.start))
        found = self._offset + self._filled - long.start - HEADER_BYTES
        self._drop(self._filled)
        wanted = min(long.length + _FOOTER_BYTES, _INT64_MAX)
        return _no_records(("truncated_payload", 0, -1, long.start, wanted, found))

    def _end_long(self, long: _Long) -> Piece:
        footer = bytes(self._buffer[:_FOOTER_BYTES])
        self._drop(_FOOTER_BYTES)
        self._long = None
        stored, computed = int.from_bytes(footer, "little"), core.masked_crc32c(b"", long.crc)
        if self._verify >= 2 and stored != computed:
            return _no_records(("data_crc", 0, -1, long.start, stored, computed))
        offsets, lengths = np.array([long.start], np.int64), np.array([long.length], np.int64)
        return Piece(offsets, lengths, np.array([stored], np.uint32), None)


def _no_records(fault: Fault | None) -> Piece:
    nothing = np.empty(0, np.int64)
    return Piece(nothing, nothing, nothing.astype(np.uint32), fault)


def _footers(data: memoryview, before: Int64s) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The 4 bytes that lie a header's size behind each of some places, as numbers."""
    quads = np.frombuffer(data, np.uint8)[before[:, None] + np.arange(HEADER_BYTES, FRAME_OVERHEAD)]
    footers: np.ndarray[Any, np.dtype[np.uint32]] = quads.view("<u4").reshape(-1)
    return footers
