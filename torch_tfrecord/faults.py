"""Faults in the frames of a file: from the core's plain tuples to errors and records that a person can act on."""

from __future__ import annotations

import dataclasses
import logging
import os
from typing import TYPE_CHECKING

from torch_tfrecord.errors import DataLossError, StaleIndexError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_tfrecord.native._core import Fault
    from torch_tfrecord.paths import StrPath

HEADER_BYTES = 12
FRAME_OVERHEAD = 16  # a frame is its payload and this much
MAX_LOGGED = 10  # faults of one reading that are logged one by one
NOT_A_TFRECORD = "not_a_tfrecord"  # reason of a RecordFault for a file that is something else from its first byte
_MAX_LISTED = 5  # faults that one error lists

LEAVE_OUT_OF_INDEX = 'TFRecordDataset(..., on_error="skip"), or an index built with verify="all" and on_error="skip"'

_CHECKSUMS = "stored {expected:#010x}, computed {found:#010x}"
_CUT = {
    "truncated_header": "truncated header, {found} of {expected} bytes. "
    "The file was cut short or has stray bytes at its end",
    "truncated_payload": "truncated record, {found:,} of the {expected:,} bytes after its header. "
    "The file was cut short",
}
_PAYLOAD_PROBLEMS = {
    "bad_tag": "a field tag that is none",
    "bad_varint": "a varint that is cut short or longer than 10 bytes",
    "bad_length": "a length of {expected:,} bytes where {found:,} are left",
    "bad_packed": "packed floats of {found:,} bytes, not a multiple of 4",
    "bad_group": "a group that does not end, or is nested more than 100 deep",
}

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class RecordFault:
    """Something that was left out because the caller chose ``on_error="skip"``.

    Attributes:
        path: The file.
        record: Number of the damaged record in its file, counted from 0.
        offset: Byte offset of that record's frame; in the uncompressed stream where the file is compressed.
        reason: What is wrong. ``data_crc``: one record was left out. ``inflate_checksum``: nothing was, but the
            checksum of the compressed stream, or gzip member, that ends here is wrong. ``length_crc``,
            ``truncated_header``, ``truncated_payload``, ``inflate_data``, ``inflate_truncated``,
            ``inflate_trailer_missing``, ``inflate_trailing``, ``not_a_tfrecord``: the rest of the file was left out.
        bytes_lost: How many bytes were left out; of a compressed file, uncompressed ones. None where that is not known:
            for a pipe, and where the rest of a compressed file cannot be uncompressed (always so for ``inflate_data``,
            ``inflate_truncated`` and ``inflate_trailing``).
    """

    path: str
    record: int
    offset: int
    reason: str
    bytes_lost: int | None

    def __str__(self) -> str:
        lost = "an unknown number of" if self.bytes_lost is None else f"{self.bytes_lost:,}"
        return f"{self.path}: record {self.record} at byte {self.offset}: {self.reason}, {lost} bytes left out"


def leave_out(faults: list[RecordFault], fault: RecordFault) -> None:
    """Add a fault to a list of them, and log it unless there are many."""
    faults.append(fault)
    if len(faults) <= MAX_LOGGED:
        logger.warning("left out: %s", fault)
    elif len(faults) == MAX_LOGGED + 1:
        logger.warning("left out: %s; more damage is listed in faults and not logged", fault)


def check_budget(faults: Sequence[RecordFault], max_faults: int | None) -> None:
    """Raise DataLossError if more was left out than is allowed.

    Args:
        faults: All there are so far.
        max_faults: How many may be; None: any number.
    """
    if max_faults is None or len(faults) <= max_faults:
        return
    listed = "; ".join(map(str, faults[:_MAX_LISTED]))
    more = f"; and {len(faults) - _MAX_LISTED:,} more" if len(faults) > _MAX_LISTED else ""
    places = f"{len(faults):,} place{'s' * (len(faults) > 1)}"
    raise DataLossError(f"damage in {places}, where max_faults={max_faults:,} allows less: {listed}{more}")


def frame_error(
    fault: Fault,
    *,
    path: StrPath,
    record: int | None = None,
    base: int = 0,
    indexed: bool = False,
    compression: str | None = None,
) -> DataLossError | StaleIndexError:
    """The exception for a fault of a frame. It is returned, not raised.

    Args:
        fault: From ``split_frames``, ``File.scan``, ``Job.measure`` or ``Job.fill``, with one of the frame codes; or
            from ``InflateError.fault``.
        path: The file.
        record: Number of the damaged record in its file, or None where it is not known.
        base: Added to the fault's position to make it a byte offset in the file (``split_frames`` counts from the
            start of its buffer).
        indexed: Whether the frame was looked up in an index, so that an outdated index may be the cause.
        compression: ``gzip`` or ``zlib`` where the file is compressed: then offsets are in the uncompressed stream.

    Returns:
        StaleIndexError for ``length_mismatch``; DataLossError, with ``errno`` set, for ``io``; else DataLossError.

    Raises:
        ValueError: The code is not one of a frame.
    """
    code, _, _, position, expected, found = fault
    offset = base + position
    which = "record" if record is None else f"record {record}"
    stream = "" if compression in (None, "none") else " of the uncompressed stream"
    start = f"{os.fspath(path)}: {which} at byte {offset}{stream}"
    if code == "io":
        return DataLossError(found, f"{start}: reading failed: {os.strerror(found)}")
    if code == "length_mismatch":
        return StaleIndexError(
            f"{start}: the index says {expected:,} bytes of payload, the file says {found:,}. "
            "The file was changed after its index was made: build the index again"
        )
    if code.startswith("inflate_"):
        problem = _inflate_problem(fault, compression or "compressed")
    elif code == "data_crc":
        start += f" (payload at byte {offset + HEADER_BYTES})"
        problem = f"corrupted record, data checksum: {_CHECKSUMS.format(expected=expected, found=found)}"
    elif code == "length_crc":
        hint = " (Is this even a TFRecord file?)" if offset == 0 else ""
        problem = f"corrupted record, length checksum: {_CHECKSUMS.format(expected=expected, found=found)}{hint}"
    elif code in _CUT:
        problem = _CUT[code].format(expected=expected, found=found)
    else:
        raise ValueError(f"{code!r} is not a fault of a frame")
    return DataLossError(f"{start}: {problem}. {_advice(code, indexed=indexed)}")


def _inflate_problem(fault: Fault, kind: str) -> str:
    """What is wrong with a compressed stream, in words."""
    code, _, _, _, expected, found = fault
    if code == "inflate_data":
        return f"damaged {kind} data, about byte {found:,} of the file"
    if code == "inflate_truncated":
        return f"truncated {kind} stream, {found:,} bytes and no mark of its end. The file was cut short"
    if code == "inflate_trailer_missing":
        return (
            f"truncated {kind} stream: its data is whole, but only {found} of the {expected} bytes after it are there"
        )
    if code == "inflate_checksum":
        stored = _CHECKSUMS.format(expected=expected, found=found)
        return f"the {kind} data that ends here is not what was compressed, checksum or size: {stored}"
    if code == "inflate_trailing":
        what = f"bytes that begin with {found.to_bytes(expected, 'big').hex(' ')}" if found else "zero bytes"
        return f"data after the end of the {kind} stream: {what}"
    raise ValueError(f"{code!r} is not a fault of a frame")


def payload_problem(fault: Fault) -> str:
    """What is wrong inside a payload that is no message, in words: for the payload codes that begin with ``bad``."""
    code, _, _, position, expected, found = fault
    return f"byte {position} of the record: {_PAYLOAD_PROBLEMS[code].format(expected=expected, found=found)}"


def _advice(code: str, *, indexed: bool) -> str:
    restore = "Copy the file again from its source"
    if indexed and code == "data_crc":
        return f"{restore}, or leave this record out: {LEAVE_OUT_OF_INDEX}"
    if indexed:
        return f"{restore}; or, if it was changed on purpose, build its index again"
    if code == "data_crc":
        return f'{restore}, or pass on_error="skip" to leave this record out'
    if code == "length_crc":
        return (
            f'{restore}, or pass on_error="skip" to use the records before this one; '
            "`tfrecord-index repair` finds those after it"
        )
    if code == "inflate_checksum":
        return f'{restore}, or pass on_error="skip" to use the records whose own checksums are right'
    if code.startswith("inflate_"):
        return f'{restore}, or pass on_error="skip" to use the records before that'
    return f'{restore}, or pass on_error="skip" to use the records before this one'
