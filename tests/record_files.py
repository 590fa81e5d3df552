"""TFRecord files for tests, made without the package: so that a mistake of its own is not shared by its tests."""

from __future__ import annotations

import struct
from itertools import accumulate
from typing import TYPE_CHECKING

import crc32c

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ALPHA = bytes.fromhex("0500000000000000eab2043e616c7068618adc8501")  # two frames as TensorFlow writes them
BETA = bytes.fromhex("040000000000000042455204626574615fd3f639")
PAYLOADS = [b"alpha", b"", b"beta", b"x" * 40]


def masked(data: bytes) -> int:
    crc = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def header(length: int) -> bytes:
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", masked(packed))


def frame(payload: bytes) -> bytes:
    return header(len(payload)) + payload + struct.pack("<I", masked(payload))


def frames(payloads: Sequence[bytes]) -> bytes:
    return b"".join(map(frame, payloads))


def starts(payloads: Sequence[bytes]) -> list[int]:
    """Byte offset of each frame, and the end."""
    return list(accumulate((16 + len(payload) for payload in payloads), initial=0))


def write_file(path: Path, payloads: Sequence[bytes]) -> str:
    path.write_bytes(frames(payloads))
    return str(path)


def flip(data: bytes, position: int, mask: int = 0x01) -> bytes:
    """The same bytes with one of them changed."""
    changed = bytearray(data)
    changed[position] ^= mask
    return bytes(changed)
