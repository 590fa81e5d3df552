"""Numbers and names as people like to read them."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

from torch_tfrecord.faults import LEAVE_OUT_OF_INDEX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_tfrecord.faults import RecordFault

REASONS = {  # of faults, in words
    "data_crc": "the data checksum is wrong",
    "length_crc": "the length checksum is wrong",
    "truncated_header": "a header is cut short, or there are stray bytes at the end",
    "truncated_payload": "the record is cut short",
    "inflate_data": "the compressed data are damaged, and what follows cannot be inflated",
    "inflate_truncated": "the compressed data are cut short",
    "inflate_trailer_missing": "the compressed data are whole, but their checksum after them is missing",
    "inflate_checksum": "the checksum of the compressed data is wrong",
    "inflate_trailing": "the compressed data are followed by something else",
}
UNKNOWN_LOSS = {"inflate_data", "inflate_truncated", "inflate_trailing"}  # behind which nothing can be inflated
_MAX_FAULTS = 5  # that are listed as text
_SKIP = re.compile('pass on_error="skip"[^.;]*(; `tfrecord-index repair` finds those after it)?')
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def format_bytes(count: int) -> str:
    """A number of bytes in the largest fitting unit: ``3.5 MiB``."""
    if count < 1024:
        return f"{count} bytes"
    power = min((count.bit_length() - 1) // 10, len(_UNITS))
    return f"{count / 1024**power:.1f} {_UNITS[power - 1]}"


def number(count: int, noun: str) -> str:
    """A number of things: ``1 record``, ``2,000 records``."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def second_stream(start: bytes) -> str:
    """What to add where a compressed stream is followed by something that begins like this."""
    is_zlib = start[:1] == b"\x78" and len(start) > 1 and int.from_bytes(start[:2], "big") % 31 == 0
    return ": a second zlib stream, it seems, and only gzip allows several" if is_zlib else ""


def left_out_in_words(faults: Sequence[RecordFault]) -> list[str]:
    """The first damaged places that an index leaves out, a line each."""
    lines = [f"left out: {_fault_in_words(fault)}" for fault in faults[:_MAX_FAULTS]]
    return [*lines, f"and {len(faults) - _MAX_FAULTS:,} more"] if len(faults) > _MAX_FAULTS else lines


def _fault_in_words(fault: RecordFault) -> str:
    reason = REASONS.get(fault.reason, "the file is no TFRecord file")
    lost = ""
    if fault.reason in UNKNOWN_LOSS:
        lost = " (and what the rest of the stream held)"
    elif fault.bytes_lost:
        lost = f" ({number(fault.bytes_lost, 'byte')})"
    return f"{fault.path}: record {fault.record} at byte {fault.offset:,}: {reason}{lost}"


def with_flags(message: str, *, can_skip: bool = True) -> str:
    """A message of the library with a command's flags for Python's arguments.

    Args:
        message: The message.
        can_skip: Whether the command has the flag ``--on-error``.
    """
    message = message.replace(LEAVE_OUT_OF_INDEX, "tfrecord-index build --verify all --on-error skip")
    if not can_skip:
        return _SKIP.sub("save what is whole with `tfrecord-index repair`", message)
    return message.replace('pass on_error="skip"', "use --on-error skip")


def format_name(name: bytes) -> str:
    """A feature's name. What cannot be printed is escaped, since names come from files that nobody has checked."""
    text = name.decode("utf-8", "backslashreplace")
    return text if text.isprintable() and text else repr(text)


def printable(text: str) -> str:
    """Text, perhaps with names of files in it, in which what would break lines or cannot be shown is escaped.

    Example:
        >>> printable("two" + chr(10) + "lines") == "two" + chr(92) + "nlines"
        True
    """
    return "".join(character if character.isprintable() else _escape(character) for character in text)


def write_json(document: Any) -> None:
    """Write a document to standard output, on one line."""
    sys.stdout.write(json.dumps(document) + "\n")


def write_lines(lines: list[str]) -> None:
    """Write lines to standard output, each of them printable."""
    sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))


def _escape(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte of a name that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return repr(character)[1:-1]
