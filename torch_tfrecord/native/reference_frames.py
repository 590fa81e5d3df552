"""TFRecord frames in plain Python: checksums, frames in memory, frames in files.

A frame, all numbers little-endian:

    ======  ====  =========================================
    offset  size  content
    ======  ====  =========================================
    0       8     payload length L, unsigned
    8       4     masked CRC-32C of those 8 bytes
    12      L     payload
    12 + L  4     masked CRC-32C of the payload
    ======  ====  =========================================

A file is frames end to end and nothing else.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, final

import crc32c as crc32c_package
import numpy as np

from torch_tfrecord.native.reference_wire import INT64_MAX, to_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    Int64s: TypeAlias = NDArray[np.int64]

Fault: TypeAlias = tuple[str, int, int, int, int, int]  # code, row, column, position, expected, found

HEADER_BYTES = 12
FOOTER_BYTES = 4
_PIECE_BYTES = 2**20  # files are read in pieces, so that no claimed length allocates more than the file holds
_IMPLEMENTATION = "portable"  # the crc32c package may use hardware, but has no choice to offer


def crc32c(data: Buffer, crc: int = 0) -> int:
    """CRC-32C (Castagnoli) of ``data``, which follows bytes whose checksum is ``crc``."""
    return int(crc32c_package.crc32c(to_bytes(data), crc))


def masked_crc32c(data: Buffer, crc: int = 0) -> int:
    """CRC-32C as frames store it."""
    return _mask(crc32c(data, crc))


def _mask(crc: int) -> int:
    """Rotate right by 15 bits and add a constant: a checksum inside checked data would otherwise degenerate."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def crc32c_implementations() -> list[str]:
    """Names of the implementations."""
    return [_IMPLEMENTATION]


def crc32c_implementation() -> str:
    """Name of the implementation in use."""
    return _IMPLEMENTATION


def set_crc32c_implementation(name: str) -> None:
    """Choose an implementation. Raises ValueError for a name that is not among them."""
    if name not in crc32c_implementations():
        raise ValueError(f"no CRC-32C implementation {name!r} here; there is {', '.join(crc32c_implementations())}")


class Header(NamedTuple):
    """The first 12 bytes of a frame."""

    length: int  # bytes of payload, 0 to 2**64 - 1: not to be believed before its checksum
    length_crc: int

    @classmethod
    def unpack(cls, data: bytes) -> Header:
        """Take apart 12 bytes."""
        if len(data) != HEADER_BYTES:
            raise ValueError(f"a frame's header has {HEADER_BYTES} bytes, not {len(data)}")
        return cls(*struct.unpack("<QI", data))

    def crc_mismatch(self) -> tuple[int, int] | None:
        """None, or the stored and the computed checksum of the length."""
        computed = masked_crc32c(struct.pack("<Q", self.length))
        return None if computed == self.length_crc else (self.length_crc, computed)


def frame_size(header: Buffer) -> int:
    """Whole size of the frame that these 12 header bytes announce, capped to 2**63 - 1; unchecked."""
    return min(Header.unpack(to_bytes(header)).length + HEADER_BYTES + FOOTER_BYTES, INT64_MAX)


def frame(payload: Buffer) -> bytes:
    """The frame of one payload."""
    payload = to_bytes(payload)
    length = struct.pack("<Q", len(payload))
    return b"".join(
        (length, struct.pack("<I", masked_crc32c(length)), payload, struct.pack("<I", masked_crc32c(payload)))
    )


def split_frames(data: Buffer, verify: int, limit: int) -> tuple[list[bytes], int, Fault | None]:
    """Take whole frames from the start of a buffer: see ``_core.pyi``."""
    data = to_bytes(data)
    frames, end, fault = _walk(data, verify, limit)
    return [data[at + HEADER_BYTES : at + HEADER_BYTES + length] for at, length in frames], end, fault


def scan_frames(data: Buffer, verify: int, limit: int) -> tuple[Int64s, Int64s, int, Fault | None]:
    """Find whole frames at the start of a buffer: see ``_core.pyi``."""
    frames, end, fault = _walk(to_bytes(data), verify, limit)
    offsets, lengths = np.array(frames, np.int64).reshape(-1, 2).T.copy()
    return offsets, lengths, end, fault


def _walk(data: bytes, verify: int, limit: int) -> tuple[list[tuple[int, int]], int, Fault | None]:
    """Offsets and payload lengths of whole frames, where they end, and the fault of the next one."""
    check_verify(verify)
    if limit != -1 and limit < len(data):
        raise ValueError(f"limit is {limit}, less than the {len(data)} bytes of data; -1 means not known")
    frames: list[tuple[int, int]] = []
    at = 0

    def fault(code: str, expected: int, found: int) -> tuple[list[tuple[int, int]], int, Fault]:
        return frames, at, (code, len(frames), -1, at, min(expected, INT64_MAX), found)

    while True:
        if limit != -1 and 0 < limit - at < HEADER_BYTES:
            return fault("truncated_header", HEADER_BYTES, limit - at)
        if len(data) - at < HEADER_BYTES:
            return frames, at, None
        body = at + HEADER_BYTES
        header = Header.unpack(data[at:body])
        if verify >= 1 and (mismatch := header.crc_mismatch()):
            return fault("length_crc", *mismatch)
        footer = body + header.length
        end = footer + FOOTER_BYTES
        if limit != -1 and end > limit:
            return fault("truncated_payload", end - body, limit - body)
        if end > len(data):
            return frames, at, None
        if verify >= 2 and (mismatch := data_crc_mismatch(data[body:footer], data[footer:end])):
            return fault("data_crc", *mismatch)
        frames.append((at, header.length))
        at = end


def data_crc_mismatch(payload: bytes, footer: bytes) -> tuple[int, int] | None:
    """None, or the stored and the computed checksum of a payload."""
    (stored,) = struct.unpack("<I", footer)
    computed = masked_crc32c(payload)
    return None if stored == computed else (stored, computed)


def check_verify(verify: int) -> None:
    """Raise ValueError unless ``verify`` is 0, 1 or 2."""
    if verify not in (0, 1, 2):
        raise ValueError(f"verify must be 0 (bounds), 1 (length checksums) or 2 (both checksums), not {verify}")


@final
class File:
    """An open file descriptor that is read with ``pread``. Closed when the last user lets go of it."""

    _fd = -1  # for __del__, where __init__ has raised

    def __init__(self, fd: int) -> None:
        if fd < 0:
            raise ValueError(f"a file descriptor must not be negative, but is {fd}")
        self._fd = fd

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def size(self) -> int:
        """Size in bytes now. Raises OSError."""
        return os.fstat(self._fd).st_size

    def read(self, offset: int, size: int) -> bytes:
        """Bytes at an offset: fewer than ``size`` only at the end of the file. Raises OSError."""
        if offset < 0 or size < 0:
            raise ValueError(f"offset and size must not be negative, but are {offset} and {size}")
        size = min(size, max(self.size() - offset, 0))  # some systems refuse to read at a far offset
        pieces: list[bytes] = []
        while size > 0:
            piece = os.pread(self._fd, min(size, _PIECE_BYTES), offset)
            if not piece:
                break
            pieces.append(piece)
            offset += len(piece)
            size -= len(piece)
        return b"".join(pieces)

    def scan(self, offset: int, max_bytes: int, verify: int) -> tuple[Int64s, Int64s, int, Fault | None]:
        """Walk frames from ``offset``: see ``_core.pyi``."""
        if verify not in (1, 2):
            raise ValueError(f"verify must be 1 (length checksums) or 2 (both checksums), not {verify}")
        if offset < 0 or max_bytes < 1:
            raise ValueError(f"offset must be at least 0 and max_bytes at least 1, but are {offset} and {max_bytes}")
        offsets: list[int] = []
        lengths: list[int] = []
        fault: Fault | None = None
        pause = offset + max_bytes
        try:
            end = self.size()
            while offset < pause and offset != end:
                length = self._check_frame(offset, end, verify)
                offsets.append(offset)
                lengths.append(length)
                offset += HEADER_BYTES + length + FOOTER_BYTES
        except FrameError as error:
            fault = error.fault(len(offsets), offset)
        except OSError as error:
            fault = ("io", len(offsets), -1, offset, 0, error.errno or 0)
        return np.array(offsets, np.int64), np.array(lengths, np.int64), offset, fault

    def _check_frame(self, offset: int, end: int, verify: int) -> int:
        """Check the frame at ``offset`` in a file that ends at ``end``, and return the length of its payload."""
        header = read_header(self, offset, verify)
        body = offset + HEADER_BYTES
        if header.length + FOOTER_BYTES > end - body:
            raise FrameError("truncated_payload", header.length + FOOTER_BYTES, max(end - body, 0))
        if verify >= 2:
            read_payload(self, body, header.length, verify)
        return header.length


class FrameError(Exception):
    """Damage in a frame: a code of ``_core.pyi`` and the numbers that go with it."""

    def __init__(self, code: str, expected: int, found: int) -> None:
        super().__init__(code, expected, found)
        self.code = code
        self.expected = min(expected, INT64_MAX)
        self.found = min(found, INT64_MAX)

    def fault(self, row: int, offset: int) -> Fault:
        """As a fault of a row, whose frame lies at a byte offset."""
        return self.code, row, -1, offset, self.expected, self.found


def read_header(file: File, offset: int, verify: int) -> Header:
    """Read the header of the frame at ``offset``. Raises FrameError, OSError."""
    data = file.read(offset, HEADER_BYTES)
    if len(data) < HEADER_BYTES:
        raise FrameError("truncated_header", HEADER_BYTES, len(data))
    header = Header.unpack(data)
    if verify >= 1 and (mismatch := header.crc_mismatch()):
        raise FrameError("length_crc", *mismatch)
    return header


def read_payload(file: File, offset: int, length: int, verify: int) -> bytes:
    """Read the payload at ``offset``, which is 12 bytes into a frame. Raises FrameError, OSError."""
    data = file.read(offset, length + FOOTER_BYTES)
    if len(data) < length + FOOTER_BYTES:
        raise FrameError("truncated_payload", length + FOOTER_BYTES, len(data))
    payload, footer = data[:length], data[length:]
    if verify >= 2 and (mismatch := data_crc_mismatch(payload, footer)):
        raise FrameError("data_crc", *mismatch)
    return payload
