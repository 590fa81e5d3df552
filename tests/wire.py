"""What the protobuf wire is made of, and Examples by hand."""

from __future__ import annotations

import struct


def varint(value: int, size: int = 0) -> bytes:
    """A varint, padded to at least ``size`` bytes, which is legal up to ten."""
    value %= 2**64
    groups: list[int] = []
    while value >= 0x80 or len(groups) + 1 < size:
        groups.append(value % 0x80 + 0x80)
        value //= 0x80
    return bytes([*groups, value])


def tag(number: int, wire_type: int, size: int = 0) -> bytes:
    return varint(number * 8 + wire_type, size)


def delimited(number: int, *content: bytes) -> bytes:
    """A field of wire type 2."""
    joined = b"".join(content)
    return tag(number, 2) + varint(len(joined)) + joined


def entry(key: bytes, *feature: bytes) -> bytes:
    """A map entry as a field of Features, whose value is one Feature."""
    return delimited(1, delimited(1, key), delimited(2, *feature))


def example(*entries: bytes) -> bytes:
    return delimited(1, *entries)


def ints(*values: int) -> bytes:
    """An Int64List of one packed run, as a field of Feature."""
    return delimited(3, delimited(1, *map(varint, values)))


def floats(*values: float) -> bytes:
    return delimited(2, delimited(1, struct.pack(f"<{len(values)}f", *values)))


def texts(*values: bytes) -> bytes:
    return delimited(1, *(delimited(1, value) for value in values))
