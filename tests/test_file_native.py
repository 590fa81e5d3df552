"""Files read and walked by the native core."""

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import crc32c as crc32c_package
import numpy as np
import pytest
from framing import INT64_MAX, frame, header, mask, masked, open_bytes, open_file, scan_all
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_tfrecord.native import _core

WINDOW = 256 * 1024  # what a scan reads at once
GOOD = frame(b"alpha")


def test_file_size_and_read(tmp_path: Path) -> None:
    file = open_bytes(tmp_path, b"0123456789")
    assert file.size() == 10
    assert file.read(0, 10) == b"0123456789"
    assert file.read(3, 4) == b"3456"
    assert file.read(3, 0) == b""
    assert file.read(8, 5) == b"89"
    assert file.read(10, 1) == b""
    assert file.read(1000, 5) == b""


@pytest.mark.parametrize("size", [2**31, 2**40, 2**62, INT64_MAX])
def test_read_allocates_no_more_than_there_is(size: int, tmp_path: Path) -> None:
    file = open_bytes(tmp_path, b"0123456789")
    assert file.read(0, size) == b"0123456789"
    assert file.read(7, size) == b"789"
    assert file.read(INT64_MAX, size) == b""


def test_read_checks_its_arguments(tmp_path: Path) -> None:
    file = open_bytes(tmp_path, b"0123456789")
    for offset, size in ((-1, 1), (0, -1), (-(2**63), 1)):
        with pytest.raises(ValueError, match="must not be negative"):
            file.read(offset, size)
    with pytest.raises(ValueError, match="descriptor"):
        _core.File(-1)


def test_file_owns_its_descriptor(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    file = _core.File(descriptor)
    os.fstat(descriptor)
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_failed_reads_are_os_errors(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(GOOD)
    file = open_file(path, os.O_WRONLY)
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        file.read(0, 5)
    assert caught.value.errno == errno.EBADF
    offsets, lengths, end, fault = file.scan(0, 100, 1)
    assert (len(offsets), len(lengths), end) == (0, 0, 0)
    assert fault == ("io", 0, -1, 0, 0, errno.EBADF)


def test_sizes_follow_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(GOOD)
    file = open_file(path)
    with path.open("ab") as writer:
        writer.write(GOOD)
    assert file.size() == 42
    assert scan_all(file, verify=2) == ([0, 21], [5, 5], None)
    os.truncate(path, 21)
    assert file.read(0, 42) == GOOD
    # A walk that went further than the file now does.
    assert file.scan(42, 100, 2)[2:] == (42, ("truncated_header", 0, -1, 42, 12, 0))


def test_scan_checks_its_arguments(tmp_path: Path) -> None:
    file = open_bytes(tmp_path, GOOD)
    for verify in (-1, 0, 3):
        with pytest.raises(ValueError, match="verify"):
            file.scan(0, 1, verify)
    for offset, max_bytes in ((-1, 1), (0, 0), (0, -1)):
        with pytest.raises(ValueError, match="offset must be"):
            file.scan(offset, max_bytes, 1)


def test_scan_begins_at_any_frame_and_counts_rows_from_there(tmp_path: Path) -> None:
    content = GOOD + frame(b"") + frame(b"beta") + frame(bytes(40)) + b"xyz"
    file = open_bytes(tmp_path, content)
    offsets, lengths, end, fault = file.scan(37, 2**62, 2)
    assert (offsets.tolist(), lengths.tolist(), end) == ([37, 57], [4, 40], 113)
    assert fault == ("truncated_header", 2, -1, 113, 12, 3)
    fault = ("length_crc", 0, -1, 1, int.from_bytes(content[9:13], "little"), masked(content[1:9]))
    assert file.scan(1, 2**62, 2)[2:] == (1, fault)


def test_scan_pauses_after_max_bytes(tmp_path: Path) -> None:
    file = open_bytes(tmp_path, GOOD * 5)
    for max_bytes, frames in ((1, 1), (21, 1), (22, 2), (42, 2), (104, 5), (105, 5), (INT64_MAX, 5)):
        offsets, lengths, end, fault = file.scan(0, max_bytes, 1)
        assert (offsets.tolist(), lengths.tolist()) == ([0, 21, 42, 63, 84][:frames], [5] * frames)
        assert (end, fault) == (21 * frames, None)
    assert file.scan(105, 1, 1)[2:] == (105, None)


def test_scan_gives_arrays_that_outlive_the_file(tmp_path: Path) -> None:
    offsets, lengths, _, _ = open_bytes(tmp_path, GOOD * 1000).scan(0, 2**62, 1)
    np.testing.assert_array_equal(offsets, 21 * np.arange(1000))
    np.testing.assert_array_equal(lengths, np.full(1000, 5))
    offsets[0] = 7
    assert offsets[0] == 7


def write_frames(path: Path, sizes: Sequence[int]) -> list[int]:
    noise = np.random.default_rng(0).bytes(max(sizes, default=0))
    path.write_bytes(b"".join(frame(noise[:size]) for size in sizes))
    return [0, *accumulate(16 + size for size in sizes)]


@settings(deadline=None)
@given(
    sizes=st.lists(st.one_of(st.integers(0, 60), st.integers(0, 20_000)), max_size=30),
    max_bytes=st.integers(1, 50_000),
    verify=st.sampled_from([1, 2]),
)
def test_pieces_of_any_size_are_one_walk(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], max_bytes: int, verify: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "pieces.tfrecord"
    expected = (write_frames(path, sizes)[:-1], sizes, None)
    assert scan_all(open_file(path), verify=verify) == expected
    assert scan_all(open_file(path), verify=verify, max_bytes=max_bytes) == expected


@pytest.mark.parametrize("verify", [1, 2])
@pytest.mark.parametrize("windows", [1, 2])
def test_frames_that_lie_across_the_edge_of_a_window(tmp_path: Path, windows: int, verify: int) -> None:
    for shift in range(-40, 8):
        sizes = [windows * WINDOW + shift, 5, 0, *[3] * 300]
        offsets = write_frames(tmp_path / "file", sizes)
        file = open_file(tmp_path / "file")
        assert scan_all(file, verify=verify) == (offsets[:-1], sizes, None)


@pytest.mark.parametrize("at", [0, 1, WINDOW - 12, WINDOW, 3 * WINDOW - 1, 1_000_000 - 1])
def test_a_flipped_bit_in_a_large_payload(tmp_path: Path, at: int) -> None:
    offsets = write_frames(tmp_path / "file", [10, 1_000_000, 20])
    data = bytearray((tmp_path / "file").read_bytes())
    data[offsets[1] + 12 + at] ^= 16
    (tmp_path / "file").write_bytes(data)
    stored = int.from_bytes(data[offsets[2] - 4 : offsets[2]], "little")
    computed = masked(bytes(data[offsets[1] + 12 : offsets[2] - 4]))
    file = open_file(tmp_path / "file")
    assert scan_all(file, verify=2) == ([0], [10], ("data_crc", 1, -1, offsets[1], stored, computed))
    assert scan_all(file, verify=1) == (offsets[:-1], [10, 1_000_000, 20], None)


def test_scan_steps_over_a_payload_of_many_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    length = 2**36
    with path.open("wb") as writer:
        writer.write(GOOD + header(length))
        writer.seek(length + 4, os.SEEK_CUR)
        writer.write(GOOD)
    assert scan_all(open_file(path), verify=1) == ([0, 21, 37 + length], [5, length, 5], None)


CHECK_IN_LITTLE_MEMORY = """
import os, resource, sys
from pathlib import Path
from torch_tfrecord.native import _core

file = _core.File(os.open(sys.argv[1], os.O_RDONLY))
file.scan(0, 1, 2)
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * os.sysconf("SC_PAGESIZE") + 2**25
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
print(file.scan(0, 2**62, 2)[2:])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory by /proc")
def test_a_checked_scan_needs_no_memory_for_a_large_payload(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    length = 2**28
    with path.open("wb") as writer:
        writer.write(GOOD + header(length))
        writer.seek(length, os.SEEK_CUR)
        writer.write(b"abcd")
    command = [sys.executable, "-c", CHECK_IN_LITTLE_MEMORY, str(path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    crc = 0
    for _ in range(2**8):
        crc = crc32c_package.crc32c(bytes(2**20), crc)
    fault = ("data_crc", 1, -1, 21, int.from_bytes(b"abcd", "little"), mask(crc))
    assert answer.strip() == repr((21, fault))


def test_other_threads_run_during_a_scan(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    length = 2**28
    with path.open("wb") as writer:
        writer.write(header(length))
        writer.seek(length + 3, os.SEEK_CUR)
        writer.write(b"x")
    file = open_file(path)
    faults = []
    started = threading.Event()

    def work() -> None:
        started.set()
        faults.append(file.scan(0, 2**62, 2)[3])

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    turns = 0
    while thread.is_alive():
        time.sleep(0.001)
        turns += 1
    assert [fault and fault[0] for fault in faults] == ["data_crc"]
    assert turns > 10  # with the lock held all the time it would be one or two
