"""Compressed files, uncompressed piece by piece: gzip, of any number of members, and zlib, around the whole file.

isal inflates; gzip's and zlib's headers and trailers are read here, since only so a missing trailer, a wrong one and
a stream that was cut can be told apart. isal drops what a call made before it met damage, so damaged data is inflated
again by zlib, which can be copied, and so be asked for less and less until it stops just before the damage. A pipe
cannot be read again: zlib inflates it from the start.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from isal import isal_zlib

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from torch_tfrecord.native._core import Fault

Kind: TypeAlias = Literal["gzip", "zlib"]

GZIP_MAGIC = b"\x1f\x8b\x08"
_MAX_RATIO = 1032  # no deflate stream makes more bytes of one: 258 from 2 bits
_MAX_HELD_BYTES = 1 << 20  # more than a decoder and this class hold, made and not given
_CHUNK_BYTES = 1 << 15  # read from the file at a time
_PIECE_BYTES = 1 << 18  # made at a time, at most: a file of any ratio is inflated in little memory
_MAX_HEADER_BYTES = 1 << 20  # a gzip header holds a file name and a comment of any length
_PEEKED_BYTES = 8  # of what follows the end, to say in an error
_RAW = -15  # window bits that mean deflate without header and trailer
# Its stub takes the class for an instance.
_ISAL_ERROR: type[Exception] = isal_zlib.error  # type: ignore[assignment]


class InflateError(Exception):
    """What is wrong with a compressed stream. Internal: ``frame_error`` makes the user's error of its ``fault``.

    Attributes:
        code: One of these, which are also reasons of a ``RecordFault``:

            ``inflate_data``: damaged; ``found`` is about where in the file.
            ``inflate_truncated``: the file ends before the stream does; ``found`` is the bytes of the file.
            ``inflate_trailer_missing``: the data is whole, its trailer has ``found`` of ``expected`` bytes.
            ``inflate_checksum``: the trailer says ``expected``, the data has ``found``. Reading may go on behind it.
            ``inflate_trailing``: the ``expected`` bytes (8, or fewer) behind the end are, big-endian, ``found``.
        expected: See there.
        found: See there.
    """

    def __init__(self, code: str, expected: int, found: int) -> None:
        super().__init__(code, expected, found)
        self.code = code
        self.expected = expected
        self.found = found

    @property
    def is_at_end(self) -> bool:
        """Whether all of the stream's data came before it. What comes behind other damage, nobody can tell."""
        return self.code == "inflate_trailer_missing"

    def fault(self, position: int) -> Fault:
        """The same in the core's form, for a record whose frame is at a position."""
        return self.code, 0, -1, position, self.expected, self.found


class RawFile(Protocol):
    """What a compressed file is read from, such as ``io.FileIO``."""

    def readinto(self, buffer: Buffer, /) -> int | None:
        """Fill a buffer, as far as a single read does; 0 at the end."""

    def seekable(self) -> bool:
        """Whether it can be read again: a pipe cannot."""

    def seek(self, position: int, /) -> int:
        """Go to a position; only where it is seekable."""

    def tell(self) -> int:
        """The position now; only where it is seekable."""


class InflatedFile:
    """The uncompressed bytes of a compressed file, in order, in bounded memory.

    Args:
        raw: The file, at the start of the stream, or behind ``head``. It is not closed.
        kind: What the stream is. An empty file is an empty stream of either kind.
        head: The first bytes of the stream, where they were read already.

    Attributes:
        offset: Bytes given so far: the place in the uncompressed stream.
    """

    def __init__(self, raw: RawFile, kind: Kind, head: bytes = b"") -> None:
        self.offset = 0
        self._raw = raw
        self._kind = kind
        self._chunk = bytearray(_CHUNK_BYTES)
        self._input = head  # bytes of the file that are to be inflated next
        self._taken = len(head)  # bytes of the file up to the end of the input
        self._start = raw.tell() - len(head) if raw.seekable() else None  # position in the file of the stream
        self._stage: Literal["header", "data", "trailer"] = "header"
        self._members = 0  # begun so far
        self._made = memoryview(b"")  # uncompressed bytes that were not given yet
        self._begin_data()

    @property
    def compressed_offset(self) -> int:
        """Bytes of the file that are inflated, about."""
        return self._taken - len(self._input)

    def most_left(self, size: int) -> int:
        """More uncompressed bytes than this cannot be left in a file of ``size`` bytes."""
        return (size - self.compressed_offset) * _MAX_RATIO + _MAX_HELD_BYTES

    def readinto(self, buffer: Buffer) -> int:
        """Fill a buffer as far as one step of inflating does.

        After ``inflate_truncated`` and ``inflate_trailer_missing`` another call reads what the file has grown by;
        after ``inflate_checksum`` it goes on behind the trailer. Other errors come again.

        Returns:
            The number of bytes; 0 at the end of a whole stream, and for an empty buffer.

        Raises:
            InflateError: The stream is damaged or cut short. All bytes before that were given by earlier calls.
            OSError: The file cannot be read.
        """
        with memoryview(buffer) as view:
            if view.nbytes and not self._made:
                self._made = memoryview(self._make())
            count = min(len(self._made), view.nbytes)
            view[:count] = self._made[:count]
        self._made = self._made[count:]
        self.offset += count
        return count

    def _make(self) -> bytes:
        """Some next bytes; none at the end."""
        while True:
            if self._stage == "header":
                if not self._has(1):
                    return b""
                self._pass_header()
            elif self._stage == "trailer":
                self._check_trailer()
            elif made := self._inflate():
                return made

    # --- the file ---

    def _read(self) -> bool:
        """Add to the input a chunk of the file, or of a pipe what there is; False at the end of the file.

        A file's chunks are of one size, however it is read: so isal, which decodes ahead, meets damage always alike.
        """
        filled = 0
        with memoryview(self._chunk) as chunk:
            while filled < len(chunk) and (count := self._raw.readinto(chunk[filled:])):
                filled += count
                if self._start is None:
                    break
            self._input += chunk[:filled]
        self._taken += filled
        return filled > 0

    def _has(self, count: int) -> bool:
        """Whether the input has so many bytes, or gets them now."""
        while len(self._input) < count:
            if not self._read():
                return False
        return True

    def _require(self, count: int) -> None:
        if not self._has(count):
            raise InflateError("inflate_truncated", 0, self._taken)

    def _pass(self, count: int) -> None:
        self._input = self._input[count:]

    # --- headers ---

    def _pass_header(self) -> None:
        """Pass the header of the stream, or of the next gzip member."""
        if self._members:
            self._refuse_what_follows()
        self._pass(self._gzip_header() if self._kind == "gzip" else self._zlib_header())
        self._members += 1
        self._begin_data()
        self._stage = "data"

    def _refuse_what_follows(self) -> None:
        """Raise unless another gzip member follows the end of one."""
        self._has(len(GZIP_MAGIC))
        if self._kind == "gzip" and GZIP_MAGIC.startswith(self._input[: len(GZIP_MAGIC)]):
            return
        self._has(_PEEKED_BYTES)
        peeked = self._input[:_PEEKED_BYTES]
        raise InflateError("inflate_trailing", len(peeked), int.from_bytes(peeked, "big"))

    def _gzip_header(self) -> int:
        """The size of the gzip header that the input starts with."""
        self._has(len(GZIP_MAGIC))
        if not GZIP_MAGIC.startswith(self._input[: len(GZIP_MAGIC)]):
            raise self._damaged()
        self._require(10)
        flags = self._input[3]
        if flags & 0xE0:  # reserved
            raise self._damaged()
        size = 10
        if flags & 4:  # an extra field
            self._require(size + 2)
            size += 2 + int.from_bytes(self._input[size : size + 2], "little")
        for text in (8, 16):  # a file name, a comment
            if flags & text:
                size = self._after_zero(size)
        if flags & 2:  # a checksum of the header
            self._require(size + 2)
            if zlib.crc32(self._input[:size]) & 0xFFFF != int.from_bytes(self._input[size : size + 2], "little"):
                raise self._damaged()
            size += 2
        self._require(size)
        return size

    def _after_zero(self, begin: int) -> int:
        """The place behind the first zero byte of the input from a place on."""
        while (found := self._input.find(0, begin)) < 0:
            if len(self._input) > _MAX_HEADER_BYTES:
                raise self._damaged()
            self._require(len(self._input) + 1)
        return found + 1

    def _zlib_header(self) -> int:
        self._require(2)
        method, flags = self._input[:2]
        wants_dictionary = flags & 0x20
        if method & 15 != 8 or method >> 4 > 7 or (method << 8 | flags) % 31 or wants_dictionary:
            raise self._damaged()
        return 2

    # --- data ---

    def _begin_data(self, *, again: bool = False, skip: int = 0) -> None:
        """Get ready for the data of a member, which start at the input.

        Args:
            again: Whether isal has met damage in it.
            skip: Bytes of it that were given already: they are made, but not given again.
        """
        careful = again or self._start is None
        self._decoder: Any = _Careful() if careful else isal_zlib.decompressobj(_RAW)
        self._data_at = self.compressed_offset
        self._skip = skip
        self._size = 0  # bytes made of the member
        self._checksum = 0 if self._kind == "gzip" else 1
        self._pending = False  # whether the decoder may hold more than it gave

    def _inflate(self) -> bytes:
        """Some next bytes of the member; perhaps none, also where it goes on."""
        if not self._input and not self._pending:
            self._require(1)
        try:
            made: bytes = self._decoder.decompress(self._input, _PIECE_BYTES)
        except _ISAL_ERROR:
            self._inflate_again()
            return b""
        except zlib.error:
            raise self._damaged() from None
        if self._decoder.eof:
            self._input = self._decoder.unused_data
            self._stage = "trailer"
        else:
            self._input = self._decoder.unconsumed_tail
        self._pending = bool(made)
        self._size += len(made)
        checksum = isal_zlib.crc32 if self._kind == "gzip" else isal_zlib.adler32
        self._checksum = checksum(made, self._checksum)
        skipped = min(self._skip, len(made))
        self._skip -= skipped
        return made[skipped:]

    def _inflate_again(self) -> None:
        """Go back to where the data of the member starts, for zlib to inflate them up to the damage."""
        assert self._start is not None
        self._raw.seek(self._start + self._data_at)
        self._input = b""
        self._taken = self._data_at
        self._begin_data(again=True, skip=self._size)

    def _damaged(self) -> InflateError:
        return InflateError("inflate_data", 0, self.compressed_offset)

    def _check_trailer(self) -> None:
        """Pass the trailer of a member and compare it with the data."""
        size = 8 if self._kind == "gzip" else 4
        if not self._has(size):
            raise InflateError("inflate_trailer_missing", size, len(self._input))
        trailer = self._input[:size]
        self._pass(size)
        self._stage = "header"
        stored = int.from_bytes(trailer[:4], "little" if self._kind == "gzip" else "big")
        if stored != self._checksum:
            raise InflateError("inflate_checksum", stored, self._checksum)
        stored = int.from_bytes(trailer[4:], "little")
        if self._kind == "gzip" and stored != self._size % 2**32:
            raise InflateError("inflate_checksum", stored, self._size % 2**32)


class _Careful:
    """zlib's decompressor of raw deflate data, which gives all there is before damage, and only then raises.

    Where a call fails, it is tried again from a copy, with less input, down to the byte that shows the damage; then for
    less output. What comes before the error does so not depend on how the input is cut into calls.
    """

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(_RAW)
        self._most_input = _CHUNK_BYTES
        self._most_output = _PIECE_BYTES
        self.eof = False
        self.unconsumed_tail = b""
        self.unused_data = b""

    def decompress(self, data: bytes, most: int) -> bytes:
        """As zlib's own, for input that was not given before and the earlier call's ``unconsumed_tail``."""
        while True:
            before = self._decoder.copy()
            feed = data[: self._most_input]
            try:
                made = self._decoder.decompress(feed, min(most, self._most_output))
            except zlib.error:
                self._decoder = before
                if len(feed) > 1:
                    self._most_input = len(feed) // 2
                elif self._most_output > 1:
                    self._most_output //= 2
                else:
                    raise
                continue
            rest = data[len(feed) :]
            self.eof = self._decoder.eof
            self.unconsumed_tail = b"" if self.eof else self._decoder.unconsumed_tail + rest
            self.unused_data = self._decoder.unused_data + rest if self.eof else b""
            return made
