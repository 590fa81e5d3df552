"""Scanning data files for where their records lie, many at once."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import os
import threading
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from torch_tfrecord import sniff
from torch_tfrecord.errors import CancelledError, DataLossError
from torch_tfrecord.faults import HEADER_BYTES, NOT_A_TFRECORD, RecordFault, frame_error
from torch_tfrecord.index_arrays import array_checksums
from torch_tfrecord.index_file import Shard, open_regular, sample_positions
from torch_tfrecord.native import core
from torch_tfrecord.progress import Progress, ProgressMeter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch_tfrecord.errors import TFRecordError
    from torch_tfrecord.native._core import Fault, Int64s

_PIECE_BYTES = 1 << 26
_MAX_THREADS = 32  # more than there are cores: disks like several requests at once

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class ShardScan:
    """What a scan found in one file.

    Attributes:
        shard: The file, with its size where the scan ended.
        offsets: int64[records], byte offsets of the frames of whole records.
        lengths: int64[records], bytes of their payloads.
        faults: What is damaged, in order.
        errors: The same as exceptions.
    """

    shard: Shard
    offsets: Int64s
    lengths: Int64s
    faults: list[RecordFault]
    errors: list[TFRecordError]


def open_shard(path: str, *, folder: str = "") -> core.File:
    """Open a data file for reading by position; a relative path starts from ``folder`` where that is given.

    Raises:
        IsADirectoryError: The path is a directory.
        OSError: It cannot be opened, or is a pipe or a device, which has no positions.
    """
    return core.File(open_regular(path, "a TFRecord file", folder=folder))


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Name the file in an error of reading, of which the core knows only the number."""
    try:
        yield
    except OSError as error:
        if isinstance(error, DataLossError) or error.filename is not None:
            raise
        raise DataLossError(error.errno, f"{path}: reading failed: {error.strerror}") from error


def run_on_shards(
    task: Callable[[int, Callable[[int], bool]], Result], sizes: Sequence[int], *, progress: Progress, title: str
) -> list[Result]:
    """Run a task for each shard on threads.

    Args:
        task: Called with the shard's number and a function that it calls after every piece with the bytes done since,
            and that returns True when it should stop early because its result is not wanted any more.
        sizes: Bytes of each shard, to show progress by.
        progress: See ``ProgressMeter``.
        title: What is being done.

    Returns:
        Results in order. The first exception in order is raised, whichever came first in time.
    """
    stop = threading.Event()
    done = [0] * len(sizes)  # one slot a shard, so that no lock is needed

    def run(number: int) -> Result:
        def advance(count: int) -> bool:
            done[number] += count
            return stop.is_set()

        return task(number, advance)

    threads = max(1, min(len(sizes), _MAX_THREADS))
    pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="tfrecord-scan")
    try:
        with ProgressMeter(progress, sum(sizes), title) as meter:
            futures = [pool.submit(run, number) for number in range(len(sizes))]
            results = []
            for future in futures:
                while not future.done():
                    concurrent.futures.wait([future], timeout=meter.interval_seconds)
                    meter.update(sum(done))
                results.append(future.result())
            return results
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def scan_shard(path: str, verify: int, *, skip: bool, advance: Callable[[int], bool]) -> ShardScan:
    """Walk the frames of a file.

    Args:
        path: The file.
        verify: 1 checks the lengths' checksums, 2 both.
        skip: Whether to go on after damage where that is possible, instead of raising.
        advance: See ``run_on_shards``.

    Raises:
        DataLossError: Damage, without ``skip``; a compressed file or a failed read also with it.
        CancelledError: ``advance`` said so.
    """
    descriptor = open_regular(path, "a TFRecord file")
    # Before anything is read: what is written while the scan goes on gets another time.
    mtime_ns = os.fstat(descriptor).st_mtime_ns
    file = core.File(descriptor)
    with naming(path):
        return _scan_file(_Scan(path, file, mtime_ns, skip=skip), file, verify, advance)


def _scan_file(scan: _Scan, file: core.File, verify: int, advance: Callable[[int], bool]) -> ShardScan:
    if scan.is_something_else():
        return scan.finish(file.size())
    offset = 0
    while True:
        offsets, lengths, end, fault = file.scan(offset, _PIECE_BYTES, verify)
        scan.add(offsets, lengths)
        if advance(end - offset):
            raise CancelledError(f"the scan was stopped at byte {end}")
        if fault is None:
            if end == offset:  # nothing more came, so this is the end of the file
                return scan.finish(end)
            offset = end
            continue
        go_on_at = scan.leave_out(fault)
        if go_on_at is None:
            return scan.finish(file.size())
        offset = go_on_at


class _Scan:
    """What a scan of one file has found so far."""

    def __init__(self, path: str, file: core.File, mtime_ns: int, *, skip: bool) -> None:
        self._path = path
        self._file = file
        self._mtime_ns = mtime_ns
        self._skip = skip
        self._pieces: list[tuple[Int64s, Int64s]] = [(np.empty(0, np.int64), np.empty(0, np.int64))]
        self._frames = 0  # passed so far, those left out included
        self._faults: list[RecordFault] = []
        self._errors: list[TFRecordError] = []

    def is_something_else(self) -> bool:
        """Whether this is no TFRecord file and may be left out; raises where it may not."""
        head = self._file.read(0, HEADER_BYTES)
        if not head or sniff.is_plain(head):
            return False
        head = self._file.read(0, sniff.SNIFF_BYTES)
        size = self._file.size()
        error = sniff.not_a_tfrecord(self._path, head, whole=len(head) == size)
        if error is None:
            return False
        # A compressed file is not damaged: leaving all of it out is not what the caller asked for.
        if not self._skip or sniff.compression_of(head):
            raise error
        self._note(RecordFault(self._path, 0, 0, NOT_A_TFRECORD, size), error)
        return True

    def add(self, offsets: Int64s, lengths: Int64s) -> None:
        self._pieces.append((offsets, lengths))
        self._frames += len(offsets)

    def leave_out(self, fault: Fault) -> int | None:
        """Note damage and return where to go on, or None where the rest of the file is lost; or raise."""
        code, _, _, position, _, _ = fault
        error = frame_error(fault, path=self._path, record=self._frames)
        if code == "io" or not self._skip:
            raise error
        if code == "data_crc":
            size = core.frame_size(self._file.read(position, HEADER_BYTES))
            self._note(RecordFault(self._path, self._frames, position, code, size), error)
            self._frames += 1
            return position + size
        self._note(RecordFault(self._path, self._frames, position, code, self._file.size() - position), error)
        return None

    def finish(self, size: int) -> ShardScan:
        offsets = np.concatenate([piece[0] for piece in self._pieces])
        lengths = np.concatenate([piece[1] for piece in self._pieces])
        samples = read_samples(self._file, offsets, lengths)
        if samples is None:
            raise DataLossError(f"{self._path}: the file was cut short while it was scanned")
        shard = Shard(
            path=self._path,
            size=size,
            records=len(offsets),
            mtime_ns=self._mtime_ns,
            lengths_digest=lengths_digest(lengths),
            checksums=array_checksums(offsets, lengths),
            samples=samples,
        )
        return ShardScan(shard, offsets, lengths, self._faults, self._errors)

    def _note(self, fault: RecordFault, error: TFRecordError) -> None:
        self._faults.append(fault)
        self._errors.append(error)


def lengths_digest(lengths: Int64s) -> str:
    """32 hex digits that stand for the lengths of a shard's records."""
    return hashlib.blake2b(np.ascontiguousarray(lengths, "<i8").data, digest_size=16).hexdigest()


def read_samples(file: core.File, offsets: Int64s, lengths: Int64s) -> tuple[int, ...] | None:
    """The stored payload checksums of a shard's sampled records, or None where one lies outside the file."""
    samples = []
    for position in sample_positions(len(offsets)):
        at = int(offsets[position]) + HEADER_BYTES + int(lengths[position])
        stored = file.read(at, 4) if 0 <= at < 2**63 else b""
        if len(stored) < 4:
            return None
        samples.append(int.from_bytes(stored, "little"))
    return tuple(samples)
