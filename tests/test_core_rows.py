"""Rows that an index names: what is checked of the index, and of the frames that it points at."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import both_cores, open_file
from strategies import Column
from wire import entry, example, ints, texts

from torch_tfrecord.native import reference
from torch_tfrecord.native.reference import FIXED, RAGGED

RECORD = example(entry(b"i", ints(1, 2)), entry(b"s", texts(b"ab", b"", b"cde")))
NUMBERS: Column = (b"i", 3, FIXED, 2, -1, None)
RAGGED_TEXT: Column = (b"s", 1, RAGGED, 0, -1, None)


def int64s(*values: int) -> Any:
    return np.array(values, np.int64)


@both_cores
@pytest.mark.parametrize(
    ("file_of", "offsets", "lengths", "verify"),
    [
        (None, [0, -1], [4, 4], 2),
        (None, [0, 0], [4, -4], 2),
        (None, [2**63 - 20], [4], 2),
        (None, [0], [2**63 - 1], 2),
        (None, [0, 20], [4], 2),
        ([0], [0, 20], [4, 4], 2),
        ([1], [0], [4], 2),
        ([-1], [0], [4], 2),
        ([2**40], [0], [4], 2),
        (None, [0], [4], 3),
        (None, [0], [4], -1),
    ],
)
def test_bad_indices_are_refused_at_read(core: Any, file_of: Any, offsets: Any, lengths: Any, verify: int) -> None:
    places = None if file_of is None else int64s(*file_of)
    with pytest.raises(ValueError):
        core.Decoder([NUMBERS]).read([open_file(core, b"")], places, int64s(*offsets), int64s(*lengths), verify)


@both_cores
@pytest.mark.parametrize("columns", [[NUMBERS], [RAGGED_TEXT]], ids=["sized", "ragged"])
@pytest.mark.parametrize("claimed", [10**7, 2**40, 2**62])
@pytest.mark.parametrize("in_header", [True, False])
def test_claimed_lengths_take_no_memory(core: Any, columns: list[Column], claimed: int, in_header: bool) -> None:
    frame = reference.frame(RECORD)
    if in_header:
        length = claimed.to_bytes(8, "little")
        frame = length + reference.masked_crc32c(length).to_bytes(4, "little") + frame[12:]
    job = core.Decoder(columns).read([open_file(core, frame)], None, int64s(0), int64s(claimed), 2)
    expected = ("truncated_payload", 0, -1, 0, claimed + 4, len(frame) - 12)
    if not in_header:
        expected = ("length_mismatch", 0, -1, 0, claimed, len(RECORD))
    if job.sized:
        assert job.fill(np.empty(64, np.uint8), int64s(0, -1, -1), 2) == expected
    else:
        assert job.measure(2) == expected


@both_cores
def test_frame_faults_come_in_order(core: Any) -> None:
    """Header, its checksum, the length, the payload, its checksum; each hidden by those before it."""
    good = reference.frame(RECORD)
    bad_crcs = bytearray(good)
    bad_crcs[9] ^= 1
    bad_crcs[-1] ^= 1
    stored, computed = (int.from_bytes(data[8:12], "little") for data in (bad_crcs, good))
    stored_data, computed_data = (int.from_bytes(data[-4:], "little") for data in (bad_crcs, good))
    size = len(RECORD)

    def measure(data: bytes | bytearray, length: int, verify: int) -> Any:
        job = core.Decoder([RAGGED_TEXT]).read(
            [open_file(core, b"pad" + data)], None, int64s(3), int64s(length), verify
        )
        return job.measure(1)

    assert measure(bad_crcs[:11], size, 2) == ("truncated_header", 0, -1, 3, 12, 11)
    assert measure(b"", size, 0) == ("truncated_header", 0, -1, 3, 12, 0)
    assert measure(bad_crcs[:-1], size + 1, 1) == ("length_crc", 0, -1, 3, stored, computed)
    assert measure(bad_crcs[:-1], size + 1, 0) == ("length_mismatch", 0, -1, 3, size + 1, size)
    assert measure(bad_crcs[:-1], size - 1, 0) == ("length_mismatch", 0, -1, 3, size - 1, size)
    assert measure(bad_crcs[:-1], size, 0) == ("truncated_payload", 0, -1, 3, size + 4, size + 3)
    assert measure(good[:12] + bad_crcs[12:], size, 2) == ("data_crc", 0, -1, 3, stored_data, computed_data)
    assert measure(good[:12] + bad_crcs[12:], size, 1) is None
    assert measure(bad_crcs, size, 0) is None


@both_cores
def test_failed_reads_are_io_faults(core: Any, tmp_path: Path) -> None:
    directory = core.File(os.open(tmp_path, os.O_RDONLY))
    job = core.Decoder([RAGGED_TEXT]).read([directory], None, int64s(7), int64s(1), 2)
    assert job.measure(1) == ("io", 0, -1, 7, 0, errno.EISDIR)
    with pytest.raises(IsADirectoryError):
        directory.read(0, 1)


@both_cores
@pytest.mark.parametrize("offset", [51, 2**40, 2**62, 2**63 - 17])
def test_rows_beyond_the_end(core: Any, offset: int) -> None:
    job = core.Decoder([RAGGED_TEXT]).read([open_file(core, bytes(50))], None, int64s(offset), int64s(0), 0)
    assert job.measure(1) == ("truncated_header", 0, -1, offset, 12, 0)
