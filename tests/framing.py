"""Frames made by hand, and files of them walked by the native core."""

import os
import struct
from pathlib import Path
from typing import TypeAlias

import crc32c as crc32c_package
import numpy as np

from torch_tfrecord.native import _core

Fault: TypeAlias = tuple[str, int, int, int, int, int]
INT64_MAX = 2**63 - 1


def mask(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def masked(data: bytes) -> int:
    return mask(crc32c_package.crc32c(data))


def header(length: int) -> bytes:
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", masked(packed))


def frame(payload: bytes) -> bytes:
    return header(len(payload)) + payload + struct.pack("<I", masked(payload))


def open_bytes(folder: Path, content: bytes) -> _core.File:
    """Make a file of some bytes, and open it."""
    path = folder / "file.tfrecord"
    path.write_bytes(content)
    return open_file(path)


def open_file(path: Path, flags: int = os.O_RDONLY) -> _core.File:
    return _core.File(os.open(path, flags))


def scan_all(file: _core.File, *, verify: int, max_bytes: int = 2**62) -> tuple[list[int], list[int], Fault | None]:
    """Walk a file in pieces. A fault's row counts from the start of the file, as if it were one piece."""
    offsets: list[int] = []
    lengths: list[int] = []
    offset = 0
    while True:
        some_offsets, some_lengths, offset, fault = file.scan(offset, max_bytes, verify)
        assert some_offsets.dtype == some_lengths.dtype == np.int64
        if fault is not None:
            fault = (fault[0], fault[1] + len(offsets), *fault[2:])
            assert fault[3] == offset
        offsets += some_offsets.tolist()
        lengths += some_lengths.tolist()
        if fault is not None or offset == file.size():
            return offsets, lengths, fault
