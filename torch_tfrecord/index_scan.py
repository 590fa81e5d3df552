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
from torch_tfrecord.index_data import Compression, Shard, Stream, sample_pieces, sample_positions
from torch_tfrecord.index_file import open_regular
from torch_tfrecord.index_stream import StreamWalk, head_of_stream, inflate_file
from torch_tfrecord.native import core
from torch_tfrecord.progress import Progress, ProgressMeter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch_tfrecord.errors import TFRecordError
    from torch_tfrecord.inflate import Kind
    from torch_tfrecord.native._core import Fault, Int64s

_PIECE_BYTES = 1 << 26
MAX_THREADS = 32  # more than there are cores: disks like several requests at once

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
    task: Callable[[int, Callable[[int], bool]], Result],
    sizes: Sequence[int],
    *,
    progress: Progress,
    title: str,
    max_threads: int = MAX_THREADS,
) -> list[Result]:
    """Run a task for each shard on threads.

    Args:
        task: Called with the shard's number and a function that it calls after every piece with the bytes done since,
            and that returns True when it should stop early because its result is not wanted any more.
        sizes: Bytes of each shard, to show progress by.
        progress: See ``ProgressMeter``.
        title: What is being done.
        max_threads: How many shards at a time, at most.

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

    threads = max(1, min(len(sizes), max_threads))
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
    """Walk the frames of a file, plain or compressed.

    Args:
        path: The file.
        verify: 1 checks the lengths' checksums, 2 both.
        skip: Whether to go on after damage where that is possible, instead of raising.
        advance: See ``run_on_shards``.

    Raises:
        DataLossError: Damage, without ``skip``; a failed read also with it.
        CancelledError: ``advance`` said so.
    """
    descriptor = open_regular(path, "a TFRecord file")
    # Before anything is read: what is written while the scan goes on gets another time.
    mtime_ns = os.fstat(descriptor).st_mtime_ns
    file = core.File(descriptor)

    def step(count: int) -> None:
        if advance(count):
            raise CancelledError(f"the scan of {path} was stopped")

    with naming(path):
        scan = _Scan(path, file, mtime_ns, skip=skip)
        kind = scan.kind()
        if kind is None:
            return scan.finish_plain(file.size())
        if kind == "none":
            return _scan_plain(scan, file, verify, step)
        return _scan_stream(scan, file, kind, verify, step)


def scan_shards(
    paths: Sequence[str],
    verify: int,
    *,
    skip: bool,
    progress: Progress,
    title: str,
    known: Callable[[int], ShardScan | None] = lambda _: None,
) -> list[ShardScan]:
    """Scan files, several at a time.

    Args:
        paths: The files.
        verify: As for ``scan_shard``.
        skip: As for ``scan_shard``.
        progress: See ``ProgressMeter``.
        title: What is being done.
        known: Gives what an earlier scan found in a file that is still the same, by its number; None: it is scanned.

    Raises:
        DataLossError: The first damage in file order, without ``skip``.
    """

    def scan(number: int, advance: Callable[[int], bool]) -> ShardScan:
        return known(number) or scan_shard(paths[number], verify, skip=skip, advance=advance)

    return run_on_shards(scan, [os.stat(path).st_size for path in paths], progress=progress, title=title)


def _scan_plain(scan: _Scan, file: core.File, verify: int, step: Callable[[int], None]) -> ShardScan:
    offset = 0
    while True:
        offsets, lengths, end, fault = file.scan(offset, _PIECE_BYTES, verify)
        scan.add(offsets, lengths)
        step(end - offset)
        if fault is None:
            if end == offset:  # nothing more came, so this is the end of the file
                return scan.finish_plain(end)
            offset = end
            continue
        error = scan.error_of(fault)
        _, _, _, position, _, _ = fault
        if fault[0] != "data_crc":
            scan.leave_out(fault, error, file.size() - position)
            return scan.finish_plain(file.size())
        size = core.frame_size(file.read(position, HEADER_BYTES))
        scan.leave_out(fault, error, size)
        offset = position + size


def _scan_stream(scan: _Scan, file: core.File, kind: Kind, verify: int, step: Callable[[int], None]) -> ShardScan:
    scan.compression = kind
    stream = inflate_file(file, kind)
    walk = StreamWalk(stream, verify)
    passed = 0

    def advance() -> None:
        nonlocal passed
        count, passed = stream.compressed_offset - passed, stream.compressed_offset
        step(count)

    footers = []
    while not walk.done:
        piece = walk.next()
        scan.add(piece.offsets, piece.lengths)
        footers.append(piece.footers)
        advance()
        if piece.fault is not None:
            error = scan.error_of(piece.fault)
            scan.leave_out(piece.fault, error, walk.pass_by(piece.fault, advance))
    size = file.size()
    samples = read_pieces(file, size)
    stored = np.concatenate(footers) if footers else np.empty(0, np.uint32)
    return scan.finish(
        size, tuple(stored[sample_positions(len(stored))].tolist()), Stream(kind, walk.position, samples)
    )


class _Scan:
    """What a scan of one file has found so far."""

    def __init__(self, path: str, file: core.File, mtime_ns: int, *, skip: bool) -> None:
        self.compression: Kind | None = None
        self._path = path
        self._file = file
        self._mtime_ns = mtime_ns
        self._skip = skip
        self._pieces: list[tuple[Int64s, Int64s]] = [(np.empty(0, np.int64), np.empty(0, np.int64))]
        self._frames = 0  # passed so far, those left out included
        self._faults: list[RecordFault] = []
        self._errors: list[TFRecordError] = []

    def kind(self) -> Compression | None:
        """How the file is compressed; None: it is no TFRecord file, and may be left out. Raises where it may not."""
        head = self._file.read(0, HEADER_BYTES)
        if not head or sniff.is_plain(head):
            return "none"
        head = self._file.read(0, sniff.SNIFF_BYTES)
        size = self._file.size()
        whole = len(head) == size
        kind = sniff.compression_of(head)
        if kind is not None:
            head, whole = head_of_stream(inflate_file(self._file, kind), sniff.SNIFF_BYTES)
            if len(head) < HEADER_BYTES or sniff.is_plain(head):
                return kind
        error = sniff.not_a_tfrecord(self._path, head, whole=whole, compression=kind or "none")
        if error is None:
            return kind or "none"
        if not self._skip:
            raise error
        self._note(RecordFault(self._path, 0, 0, NOT_A_TFRECORD, size), error)
        return None

    def add(self, offsets: Int64s, lengths: Int64s) -> None:
        self._pieces.append((offsets, lengths))
        self._frames += len(offsets)

    def error_of(self, fault: Fault) -> TFRecordError:
        """The error of damage that may be left out; raises it where it may not."""
        error = frame_error(fault, path=self._path, record=self._frames, compression=self.compression)
        if fault[0] == "io" or not self._skip:
            raise error
        return error

    def leave_out(self, fault: Fault, error: TFRecordError, lost: int | None) -> None:
        """Note damage that cost some bytes; None: nobody knows how many."""
        code, _, _, position, _, _ = fault
        self._note(RecordFault(self._path, self._frames, position, code, lost), error)
        self._frames += code == "data_crc"  # other damage is no record, or has none behind it

    def finish_plain(self, size: int) -> ShardScan:
        offsets, lengths = self._arrays()
        samples = read_samples(self._file, offsets, lengths)
        if samples is None:
            raise DataLossError(f"{self._path}: the file was cut short while it was scanned")
        return self.finish(size, samples, None)

    def finish(self, size: int, samples: tuple[int, ...], stream: Stream | None) -> ShardScan:
        offsets, lengths = self._arrays()
        shard = Shard(
            path=self._path,
            size=size,
            records=len(offsets),
            mtime_ns=self._mtime_ns,
            lengths_digest=lengths_digest(lengths),
            checksums=array_checksums(offsets, lengths),
            samples=samples,
            stream=stream,
        )
        return ShardScan(shard, offsets, lengths, self._faults, self._errors)

    def _arrays(self) -> tuple[Int64s, Int64s]:
        self._pieces = [
            (np.concatenate([piece[0] for piece in self._pieces]), np.concatenate([piece[1] for piece in self._pieces]))
        ]
        return self._pieces[0]

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


def read_pieces(file: core.File, size: int) -> tuple[int, ...]:
    """Masked CRC-32C of the sampled pieces of a compressed file."""
    return tuple(core.masked_crc32c(file.read(start, count)) for start, count in sample_pieces(size))
