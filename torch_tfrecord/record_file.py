"""The records of one file, plain or compressed, one after another, in bounded memory."""

from __future__ import annotations

import dataclasses
import os
import stat
from typing import TYPE_CHECKING, Literal

from torch_tfrecord import sniff
from torch_tfrecord.faults import HEADER_BYTES, NOT_A_TFRECORD, RecordFault, check_budget, frame_error, leave_out
from torch_tfrecord.inflate import InflatedFile, InflateError
from torch_tfrecord.native import core

if TYPE_CHECKING:
    import io
    from collections.abc import Generator

    from torch_tfrecord.inflate import Kind
    from torch_tfrecord.native._core import Fault

_CHUNK_BYTES = 1 << 18  # about what a core's own cache holds
_CUT_SHORT = ("truncated_header", "truncated_payload", "inflate_truncated", "inflate_trailer_missing")
_UNKNOWN = -1
_INT64_MAX = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class Reading:
    """What is the same for all files of an iterator.

    Attributes:
        folder: What a relative path starts from.
        compression: What the files must be, or ``auto``.
        verify: The core's number for it.
        skip: Whether damage is left out.
        max_faults: How much of it.
        faults: What was left out so far.
    """

    folder: str
    compression: Literal["auto"] | Kind | None
    verify: int
    skip: bool
    max_faults: int | None
    faults: list[RecordFault]


class FileReader:
    """Reads one file through a buffer that always starts at a frame."""

    def __init__(self, path: str, file: io.FileIO, reading: Reading) -> None:
        self._path = path
        self._file = file
        self._reading = reading
        self._kind: Kind | None = None  # how the file is compressed
        self._stream: io.FileIO | InflatedFile = file  # what frames are read from
        self._buffer = bytearray(_CHUNK_BYTES)
        self._filled = 0  # bytes in the buffer
        self._offset = 0  # byte offset in the stream of the buffer's start
        self._record = 0  # number in the file of the record at the buffer's start
        self._ended = False  # the last read found the end of the stream, or the damage that ends it
        self._damage: InflateError | None = None
        self._passed: int | None = None  # bytes of the stream behind the buffer's start, once they were passed by

    def pieces(self) -> Generator[list[bytes], None, None]:
        """Yield lists of payloads."""
        self._read_up_to(HEADER_BYTES)
        if self._filled and not self._open_stream():
            return
        while True:
            end = self._end()
            payloads, fault = self._split(end)
            if payloads:
                yield payloads
            if fault is None and self._damage is not None:
                fault = self._damage.fault(0)
            if fault is None:
                if self._ended:
                    return
                fault = self._go_on(end)
            elif self._has_grown(fault, end):
                continue
            if fault is not None and not self._leave_out(fault, end):
                return

    # --- the start of a file ---

    def _open_stream(self) -> bool:
        """Find out what the file is, and get ready to read it; False if it is no TFRecord file, and left out."""
        head, told = self._head(), self._reading.compression
        if told != "auto" and (mismatch := sniff.compression_mismatch(self._path, head, told)):
            raise mismatch
        kind = told if told != "auto" else None if sniff.is_plain(head) else sniff.compression_of(head)
        whole = self._end() == len(head)
        if kind is not None:
            head, whole = self._begin_inflating(kind)
            if len(head) < HEADER_BYTES:
                return True
        if sniff.is_plain(head):
            return True
        error = sniff.not_a_tfrecord(self._path, head, whole=whole, compression=kind)
        if error is None:
            return True
        if not self._reading.skip:
            raise error
        size = os.fstat(self._file.fileno()).st_size if self._file.seekable() else None
        self._note(RecordFault(self._path, 0, 0, NOT_A_TFRECORD, size))
        return False

    def _head(self) -> bytes:
        """Enough of the file to tell how it is compressed."""
        if self._file.seekable() and not sniff.is_plain(self._start_of_buffer()):
            try:
                return os.pread(self._file.fileno(), sniff.SNIFF_BYTES, 0)
            except OSError as error:
                raise self._io_error(error) from error
        while sniff.may_be_zlib(self._start_of_buffer()) and not self._ended:
            self._make_room(_UNKNOWN)
            self._read()
        return self._start_of_buffer()

    def _begin_inflating(self, kind: Kind) -> tuple[bytes, bool]:
        """Read what is inside a compressed file from now on: its first bytes, and whether these are all."""
        # A file is read from its start again, in chunks whose places do not depend on what was read so far.
        again = self._file.seekable() and self._file.seek(0) == 0
        self._stream = InflatedFile(self._file, kind, b"" if again else bytes(self._buffer[: self._filled]))
        self._kind = kind
        self._filled, self._ended = 0, False
        self._read_up_to(HEADER_BYTES)
        if again and not sniff.is_plain(self._start_of_buffer()):
            self._read_up_to(min(sniff.SNIFF_BYTES, len(self._buffer)))
        return self._start_of_buffer(), self._ended and self._damage is None

    def _start_of_buffer(self) -> bytes:
        return bytes(self._buffer[: min(self._filled, sniff.SNIFF_BYTES)])

    # --- the buffer ---

    def _read_up_to(self, count: int) -> None:
        while self._filled < count and not self._ended:
            self._read()

    def _read(self) -> None:
        self._damage = None
        count = 0
        try:
            with memoryview(self._buffer) as view, view[self._filled :] as free:
                count = self._stream.readinto(free) or 0
        except InflateError as error:
            self._damage = error
        except OSError as error:
            raise self._io_error(error) from error
        self._filled += count
        self._ended = count == 0

    def _end(self) -> int:
        """Where the stream ends, as far as that is known now."""
        here = self._offset + self._filled
        if self._ended and self._damage is None:
            return here
        status = os.fstat(self._file.fileno())
        # Files of size 0 that yet have content are those that the system makes up as they are read.
        plain = self._kind is None and stat.S_ISREG(status.st_mode) and status.st_size > 0
        return max(status.st_size, here) if plain else _UNKNOWN

    def _has_grown(self, fault: Fault, end: int) -> bool:
        """Whether more has come of a file that seemed to be cut short."""
        if fault[0] not in _CUT_SHORT:
            return False
        if self._ended:
            self._make_room(_UNKNOWN)
            self._read()
            return not self._ended
        return self._end() > end

    def _split(self, end: int) -> tuple[list[bytes], Fault | None]:
        limit = _UNKNOWN if end == _UNKNOWN else end - self._offset
        with memoryview(self._buffer) as view, view[: self._filled] as data:
            payloads, used, fault = core.split_frames(data, self._reading.verify, limit)
        self._record += len(payloads)
        self._drop(used)
        return payloads, fault

    def _drop(self, count: int) -> None:
        """Let go of the first bytes of the buffer."""
        if count == 0:  # or each piece of a large record would move all that came before it
            return
        rest = self._filled - count
        self._buffer[:rest] = self._buffer[count : self._filled]
        self._filled = rest
        self._offset += count

    def _go_on(self, end: int) -> Fault | None:
        """Read more of the frame at the buffer's start; or, if so much cannot come, return that as a fault."""
        if self._filled == len(self._buffer) and isinstance(self._stream, InflatedFile) and self._file.seekable():
            wanted = core.frame_size(self._buffer[:HEADER_BYTES])
            size = os.fstat(self._file.fileno()).st_size
            if wanted > self._filled + self._stream.most_left(size):
                found = self._pass_rest()
                if self._damage is not None:
                    return self._damage.fault(0)
                body = wanted - HEADER_BYTES if wanted < _INT64_MAX else wanted  # which may be more than that
                return "truncated_payload", 0, -1, 0, body, found - HEADER_BYTES
        self._make_room(end)
        self._read()
        return None

    def _make_room(self, end: int) -> None:
        """Enlarge the buffer where a frame fills it.

        The frame's length has been checked by now, and fits in the file where its size is known. Where that is not
        known, memory grows with the bytes that do come, not with those announced.
        """
        size = len(self._buffer)
        if self._filled == size:
            wanted = core.frame_size(self._buffer[:HEADER_BYTES])
            self._buffer.extend(bytes(size if end == _UNKNOWN else max(wanted - size, size)))

    def _pass_rest(self) -> int:
        """Read on to the end without keeping anything: how many bytes that is from the buffer's start."""
        if self._passed is None:
            self._passed = self._filled
            while not self._ended:
                self._filled = 0
                self._read()
                self._passed += self._filled
        return self._passed

    # --- damage ---

    def _leave_out(self, fault: Fault, end: int) -> bool:
        """Note the damage at the buffer's start, and say whether there is more to read behind it; or raise."""
        if not self._reading.skip:
            raise self._error(fault)
        code = fault[0]
        if code == "data_crc":
            frame = core.frame_size(self._buffer[:HEADER_BYTES])
            self._note(RecordFault(self._path, self._record, self._offset, code, frame))
            self._record += 1
            self._drop(frame)
            return True
        if code == "inflate_checksum":  # another gzip member may follow, and records have checksums of their own
            self._note(RecordFault(self._path, self._record, self._offset, code, 0))
            self._damage, self._ended = None, False
            return True
        self._note(RecordFault(self._path, self._record, self._offset, code, self._bytes_left(end)))
        return False

    def _bytes_left(self, end: int) -> int | None:
        """How many bytes there are from the buffer's start on.

        None for a pipe, which may never end, and for a compressed file that cannot be inflated up to its end.
        """
        if end != _UNKNOWN:
            return end - self._offset
        if not self._file.seekable() or not self._kind:
            return None
        left = self._pass_rest()
        return left if self._damage is None or self._damage.is_at_end else None

    def _note(self, fault: RecordFault) -> None:
        leave_out(self._reading.faults, fault)
        check_budget(self._reading.faults, self._reading.max_faults)

    def _error(self, fault: Fault) -> Exception:
        code, row, column, _, expected, found = fault
        return frame_error(
            (code, row, column, 0, expected, found),
            path=self._path,
            record=self._record,
            base=self._offset,
            compression=self._kind,
        )

    def _io_error(self, error: OSError) -> Exception:
        return self._error(("io", 0, -1, 0, 0, error.errno or 0))
