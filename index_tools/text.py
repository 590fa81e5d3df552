"""Numbers and names as people like to read them."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from torch_tfrecord.faults import LEAVE_OUT_OF_INDEX

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
_SKIP = re.compile('pass on_error="skip"[^.;]*')
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
