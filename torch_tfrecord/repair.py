"""Finding records again behind damage.

A record begins where 8 bytes of length are followed by their checksum, so the next one after damage can be looked for
at every byte. What is found so may also be a record inside a record, where payloads are TFRecord data themselves. Two
signs tell those apart, where enough of the outer record is left:

    * its header is whole, and the next record begins just where it says: then what lies between is its payload;
    * its header is damaged, but its payload is whole, up to where the next record begins: so its checksum says. Then
      the outer record is not even lost.

Where neither holds, every record that is found is taken: rather one too many than one too few.

Looking for these signs is bounded, so that a file in which much looks like headers takes time in proportion to its
size: see ``_Effort``.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_tfrecord.errors import DataLossError
from torch_tfrecord.faults import FRAME_OVERHEAD, HEADER_BYTES
from torch_tfrecord.native import core

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_tfrecord.native._core import Fault, Int64s

_FOOTER_BYTES = FRAME_OVERHEAD - HEADER_BYTES
_LENGTH_BYTES = 5  # that count, of the 8: no record is as long as 2**40 bytes
_TOO_LONG = 1 << 8 * _LENGTH_BYTES
_SEARCHED_AT_ONCE = 1 << 20
_SCANNED_AT_ONCE = 1 << 26
_AHEAD_BYTES = 1 << 26  # how far behind damage to look for the end of a record that holds others
_AHEAD_TIMES = 16
_LOOKED_BACK = 8  # whole records before damage, to see whether they hold others
_WINDOWS_KEPT = 8
_EFFORT_LEAST = 1 << 30  # see ``_Effort``
_EFFORT_A_BYTE = 256
_SEARCH_COST = 16  # of a byte that is searched for headers, where one that is checked costs 1
_CALL_COST = 1 << 13
_NEST_COST = 1 << 15
_SHORT_BYTES = 1 << 16  # frames that are always checked


@dataclasses.dataclass(frozen=True)
class Saved:
    """Whole records, in file order.

    Attributes:
        offsets: int64[records], byte offsets of their frames.
        lengths: int64[records], bytes of their payloads.
        mended: Whether their headers are damaged and their lengths come from where the next record begins. Their
            payloads' checksums are right.
    """

    offsets: Int64s
    lengths: Int64s
    mended: bool = False


@dataclasses.dataclass(frozen=True)
class Lost:
    """Bytes [start, end) of a file that give no record.

    Attributes:
        start: Where the damage was met.
        end: Where the next record begins, or the file ends.
        reason: As in ``RecordFault``.
        records: How many records these bytes are known to have been: 1 if there is a header, which is whole, else 0.
        perhaps_more: Whether they may have been more.
    """

    start: int
    end: int
    reason: str
    records: int
    perhaps_more: bool


def salvage(file: core.File, path: str, start: int = 0) -> Iterator[Saved | Lost]:
    """Go through a damaged file, or a whole one.

    Args:
        file: The file.
        path: Its name, for errors.
        start: Where a record begins, or damage.

    Yields:
        All bytes from ``start`` to the end of the file, in order, as records and as bytes without any.

    Raises:
        DataLossError: Reading fails, or the file is cut short meanwhile.
    """
    return _Salvage(file, path).pieces(start)


def find_header(file: core.File, start: int, end: int) -> int:
    """The first byte of [start, end) at which a frame may begin that also ends by ``end``; ``end`` if there is none.

    Its length has the right checksum; its payload is not looked at. Raises OSError.
    """
    for base in range(start, end, _SEARCHED_AT_ONCE):
        data = file.read(base, min(_SEARCHED_AT_ONCE, end - base) + HEADER_BYTES - 1)
        positions = header_positions(data, min(end - base, _TOO_LONG - 1))
        fits = base + positions + _lengths_at(data, positions) + FRAME_OVERHEAD <= end
        if fits.any():
            return base + int(positions[fits][0])
    return end


def header_positions(data: bytes, longest: int = _TOO_LONG - 1) -> Int64s:
    """Where the headers of frames may begin.

    Args:
        data: Some bytes.
        longest: The largest length of a payload to look for, below 2**40.

    Returns:
        int64[found]: positions in ``data``, ascending, of 8 bytes of length and their checksum.
    """
    size = len(data) - HEADER_BYTES + 1
    if size <= 0:
        return np.empty(0, np.int64)
    # One length, and one checksum, at every byte: views that overlap.
    lengths = np.ndarray(size, "<u8", data, 0, (1,))
    checksums = np.ndarray(size, "<u4", data, 8, (1,))
    found = np.flatnonzero(lengths <= longest)
    # Runs of zeros are common: most positions that are left may be in one, and are done with here.
    found = found[(lengths[found] > 0) | (checksums[found] == core.masked_crc32c(bytes(8)))]
    some = lengths[found]
    crc = np.full(len(found), core.crc32c(bytes(8)), np.uint32)
    for place, changes in enumerate(_crc_tables()):
        crc ^= changes[some >> np.uint64(8 * place) & np.uint64(255)]
    masked = (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(0xA282EAD8)
    positions: Int64s = found[masked == checksums[found]].astype(np.int64, copy=False)
    return positions


@functools.cache
def _crc_tables() -> list[np.ndarray[Any, np.dtype[np.uint32]]]:
    """By place in the length, and then by byte there, what that byte changes in the checksum of eight zeros."""
    zero = core.crc32c(bytes(8))

    def change(place: int, byte: int) -> int:
        return core.crc32c(bytes(place) + bytes([byte]) + bytes(7 - place)) ^ zero

    return [np.array([change(place, byte) for byte in range(256)], np.uint32) for place in range(_LENGTH_BYTES)]


class _Effort:
    """What may still be spent on looking at bytes again, in bytes that are checked.

    A walk looks at every byte once. Damage makes it look at some again, and many false headers at the same ones again
    and again. When the effort is spent, damage is met without looking around, and no long frame is tried.
    """

    def __init__(self, size: int) -> None:
        self._left = _EFFORT_LEAST + _EFFORT_A_BYTE * size

    @property
    def is_spent(self) -> bool:
        return self._left < 0

    def spend(self, cost: int) -> None:
        self._left -= cost + _CALL_COST


class _Headers:
    """The headers in a file whose frames end by some place, searched a window at a time and kept for a while."""

    def __init__(self, file: core.File, end: int, effort: _Effort) -> None:
        self._file = file
        self._end = end
        self._effort = effort
        self._windows: dict[int, tuple[Int64s, Int64s]] = {}  # by their starts, the oldest first

    def first(self, start: int) -> int:
        """The first header from ``start`` on; the end if there is none."""
        return next((int(begins[0]) for begins, _ in self.between(start, self._end)), self._end)

    def between(self, start: int, stop: int) -> Iterator[tuple[Int64s, Int64s]]:
        """Begins and ends of the frames that begin in [start, stop), window by window; none of them is empty."""
        for base in range(start - start % _SEARCHED_AT_ONCE, stop, _SEARCHED_AT_ONCE):
            begins, ends = self._window(base)
            low, high = begins.searchsorted((start, stop))
            if low < high:
                yield begins[low:high], ends[low:high]

    def _window(self, base: int) -> tuple[Int64s, Int64s]:
        window = self._windows.get(base)
        if window is None:
            data = self._file.read(base, min(_SEARCHED_AT_ONCE, self._end - base) + HEADER_BYTES - 1)
            self._effort.spend(_SEARCH_COST * len(data))
            positions = header_positions(data, min(self._end - base, _TOO_LONG - 1))
            ends = base + positions + _lengths_at(data, positions) + FRAME_OVERHEAD
            window = base + positions[ends <= self._end], ends[ends <= self._end]
            self._windows[base] = window
            if len(self._windows) > _WINDOWS_KEPT:
                del self._windows[next(iter(self._windows))]
        return window


def _lengths_at(data: bytes, positions: Int64s) -> Int64s:
    if not len(positions):
        return positions
    lengths = np.ndarray(len(data) - HEADER_BYTES + 1, "<u8", data, 0, (1,))
    found: Int64s = lengths[positions].astype(np.int64)
    return found


def _near_lengths(header: bytes) -> list[int]:
    """The length in a damaged header, if only one bit of it or of its checksum is wrong; ascending."""
    length, checksum = int.from_bytes(header[:8], "little"), header[8:]
    turned = (length ^ 1 << bit for bit in range(8 * _LENGTH_BYTES))
    lengths = [
        near for near in turned if core.masked_crc32c(near.to_bytes(8, "little")).to_bytes(4, "little") == checksum
    ]
    return sorted([length, *lengths])


class _Salvage:
    """One walk through one file."""

    def __init__(self, file: core.File, path: str) -> None:
        self._file = file
        self._path = path
        self._end = file.size()
        self._effort = _Effort(self._end)
        self._headers = _Headers(file, self._end, self._effort)
        self._before: list[tuple[int, int]] = []  # offsets and lengths of the whole records met last

    def pieces(self, at: int) -> Iterator[Saved | Lost]:
        while at < self._end:
            offsets, lengths, stop, fault = self._scan(at)
            if len(offsets):
                yield Saved(offsets, lengths)
                self._before = list(
                    zip(offsets[-_LOOKED_BACK:].tolist(), lengths[-_LOOKED_BACK:].tolist(), strict=True)
                )
            at = stop
            if fault is not None:
                piece, at = self._behind(at, fault)
                yield piece

    def _scan(self, at: int) -> tuple[Int64s, Int64s, int, Fault | None]:
        """The whole records from here on, as ``File.scan`` says them, and what ends them."""
        if not self._effort.is_spent:
            found = self._file.scan(at, _SCANNED_AT_ONCE, 2)
            if found[3] is not None and found[3][0] == "data_crc":
                self._effort.spend(core.frame_size(self._file.read(found[2], HEADER_BYTES)))
            return found
        offsets, lengths, stop, fault = self._file.scan(at, 1, 1)
        if fault is None and stop - at > _SHORT_BYTES:
            return offsets[:0], lengths[:0], at, ("data_crc", 0, -1, at, 0, 0)
        return (offsets, lengths, stop, fault) if fault is not None else self._file.scan(at, 1, 2)

    def _behind(self, at: int, fault: Fault) -> tuple[Saved | Lost, int]:
        """What lies at damage, and where the next record begins."""
        code = fault[0]
        if code == "io":
            raise DataLossError(fault[5], f"{self._path}: reading failed: {os.strerror(fault[5])}")
        if self._file.size() < self._end:
            raise DataLossError(f"{self._path}: the file was cut short while it was read")
        if code in {"data_crc", "truncated_payload"}:
            trusted = self._trusted_end(at, code)
            after = self._headers.first(at + 1) if trusted is None else trusted
            return Lost(at, after, code, 1, perhaps_more=trusted is None), after
        end = self._end_of_headless(at)
        if end is None:
            found = self._headers.first(at + 1)
            return Lost(at, found, code, 0, perhaps_more=True), found
        length = end - at - FRAME_OVERHEAD
        return Saved(np.array([at], np.int64), np.array([length], np.int64), mended=True), end

    def _trusted_end(self, at: int, code: str) -> int | None:
        """Where a record ends whose header is whole and whose payload is not; None if its header is not to be trusted.

        A payload with missing or added bytes does not end where its header says, but by chance.
        """
        if self._effort.is_spent:
            return None
        end = min(at + core.frame_size(self._file.read(at, HEADER_BYTES)), self._end)
        if code == "truncated_payload":
            # Cut short, and what it holds are not its neighbours; or else many more of its own bytes are missing.
            plausible = self._nests() or self._headers.first(at + 1) == self._end
        else:
            plausible = self._is_boundary(end)
        return end if plausible and not self._is_crossed(at + 1, end) else None

    def _is_boundary(self, at: int) -> bool:
        """Whether a record begins here or the file ends, as far as can be told."""
        return at == self._end or self._begins(at) or self._end_of_headless(at) is not None

    def _is_whole(self, at: int) -> bool:
        """Whether a whole record lies here, not just what begins like one."""
        if at >= self._end:
            return False
        self._effort.spend(min(core.frame_size(self._file.read(at, HEADER_BYTES)), self._end - at))
        return self._file.scan(at, 1, 2)[3] is None

    def _begins(self, at: int) -> bool:
        return len(header_positions(self._file.read(at, HEADER_BYTES))) > 0

    def _is_crossed(self, start: int, end: int) -> bool:
        """Whether what begins in [start, end) shows that no frame from before ``start`` ends at ``end``.

        A frame inside a payload ends before that payload's own checksum. So one that ends just where the outer one
        should, or a whole one that ends behind that, is not inside: bytes are missing, or were added.
        """
        for begins, ends in self._headers.between(start, end):
            self._effort.spend(len(ends))
            if (ends == end).any():
                return True
            for begin in begins[ends > end].tolist():
                if self._effort.is_spent:
                    return False
                if self._is_whole(begin):
                    return True
            if self._effort.is_spent:
                return False
        return False

    def _nests(self) -> bool:
        """Whether the last whole records hold others, so that the next one may, too."""
        bodies = [(offset + HEADER_BYTES, offset + HEADER_BYTES + length) for offset, length in self._before]
        self._effort.spend(sum(_NEST_COST + _SEARCH_COST * (end - body) for body, end in bodies))
        return any(find_header(self._file, body, end) < end for body, end in bodies)

    def _end_of_headless(self, at: int) -> int | None:
        """Where the frame at ``at``, whose header is damaged, ends, if its payload is whole."""
        body = at + HEADER_BYTES
        if body + _FOOTER_BYTES > self._end or self._effort.is_spent:
            return None
        near = [body + length + _FOOTER_BYTES for length in _near_lengths(self._file.read(at, HEADER_BYTES))]
        found = self._headers.first(body + _FOOTER_BYTES)
        for ends in ([end for end in near if end <= self._end], self._ends(found)):
            crc, done = 0, body
            for end in ends:
                footer = end - _FOOTER_BYTES
                crc, done = self._crc(done, footer, crc), footer
                if core.masked_crc32c(b"", crc).to_bytes(4, "little") == self._file.read(footer, _FOOTER_BYTES):
                    # A header looks like a payload of 8 bytes and its checksum.
                    is_header = end == body + HEADER_BYTES and self._is_whole(body)
                    return None if is_header else end
        return None

    def _crc(self, start: int, end: int, crc: int) -> int:
        """The checksum of some more bytes."""
        self._effort.spend(end - start)
        for base in range(start, end, _SEARCHED_AT_ONCE):
            crc = core.crc32c(self._file.read(base, min(_SEARCHED_AT_ONCE, end - base)), crc)
        return crc

    def _ends(self, found: int) -> Iterator[int]:
        """Where a record may end that perhaps holds those at ``found``: at headers, each behind further frames."""
        limit = min(found + _AHEAD_BYTES, self._end)
        for _ in range(_AHEAD_TIMES):
            yield found
            if found >= limit or self._effort.is_spent:
                return
            passed, _, stop, _ = self._file.scan(found, limit - found, 1)
            self._effort.spend(_SEARCH_COST * FRAME_OVERHEAD * len(passed))
            found = self._headers.first(stop)
