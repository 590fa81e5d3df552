"""Numbers and names as people like to read them."""

from __future__ import annotations

from torch_tfrecord.faults import LEAVE_OUT_OF_INDEX

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def format_bytes(count: int) -> str:
    """A number of bytes in the largest fitting unit: ``3.5 MiB``."""
    if count < 1024:
        return f"{count} bytes"
    power = min((count.bit_length() - 1) // 10, len(_UNITS))
    return f"{count / 1024**power:.1f} {_UNITS[power - 1]}"


def with_flags(message: str) -> str:
    """A message of the library with the command's flags for Python's arguments."""
    message = message.replace(LEAVE_OUT_OF_INDEX, "tfrecord-index build --verify all --on-error skip")
    return message.replace('pass on_error="skip"', "use --on-error skip")


def format_name(name: bytes) -> str:
    """A feature's name. What cannot be printed is escaped, since names come from files that nobody has checked."""
    text = name.decode("utf-8", "backslashreplace")
    return text if text.isprintable() and text else repr(text)
