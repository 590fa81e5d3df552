"""Reading raw records, one after another, in bounded memory."""

from __future__ import annotations

import io
import itertools
import os
import stat
from typing import TYPE_CHECKING, Literal, NoReturn, TypeAlias

from torch_tfrecord import sniff
from torch_tfrecord.faults import HEADER_BYTES, NOT_A_TFRECORD, RecordFault, frame_error, leave_out
from torch_tfrecord.native import core
from torch_tfrecord.paths import Paths, expand_paths, open_descriptor, working_folder

if TYPE_CHECKING:
    from collections.abc import Generator

    from typing_extensions import Self

    from torch_tfrecord.native._core import Fault

Verify: TypeAlias = Literal["none", "length", "all"]
OnError: TypeAlias = Literal["raise", "skip"]
Compression: TypeAlias = Literal["auto"] | None

_VERIFY_LEVELS = {"none": 0, "length": 1, "all": 2}
_CHUNK_BYTES = 1 << 18  # about what a core's own cache holds
_UNKNOWN = -1


def read_records(
    paths: Paths, *, compression: Compression = "auto", verify: Verify = "all", on_error: OnError = "raise"
) -> RecordIterator:
    """Read the records of files in order, as bytes.

    Files are opened as they are reached. A pipe, or a file that still grows, is read as far as it goes.

    Args:
        paths: A path, a glob pattern, a directory (the files in it), ``name@N`` (its N shards), or a list of them. What
            exists is taken literally; names that start with ``.`` or ``_``, and indexes, are left out of the others.
        compression: ``"auto"`` and None read uncompressed files, the only kind that this version reads. A compressed
            file is an error that says so.
        verify: ``"all"`` checks both checksums of each record, ``"length"`` only that of its length, ``"none"`` only
            that records stay inside their file.
        on_error: ``"raise"``: damage raises, after all records before it, and ends the iterator. ``"skip"``: a record
            whose data checksum is wrong is left out; after a damaged length the rest of that file is left out, since
            nothing tells where the next record starts. What is left out is listed in ``faults`` and logged.

    Returns:
        An iterator of the payloads.

    Raises:
        FileNotFoundError: Nothing is found for one of the paths.
        ValueError: An argument is none of its choices.

    Example:
        >>> import os, tempfile, torch_tfrecord as tfr
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "a.tfrecord")
        ...     with tfr.TFRecordWriter(path) as writer:
        ...         writer.write(b"alpha")
        ...         writer.write(b"beta")
        ...     list(tfr.read_records(path))
        [b'alpha', b'beta']
    """
    if compression not in ("auto", None):
        refuse_compression(compression, "'auto' or None")
    check_on_error(on_error)
    return RecordIterator(expand_paths(paths), verify=verify_level(verify), skip=on_error == "skip")


def refuse_compression(compression: object, accepted: str) -> NoReturn:
    """Raise ValueError for a compression that this version has not, however it is spelled."""
    if isinstance(compression, str) and compression.lower() in ("gzip", "zlib"):
        raise ValueError(f"compression {compression!r} comes in a later version: it must be {accepted} in this one")
    raise ValueError(f"compression must be {accepted}, not {compression!r}")


def verify_level(verify: str) -> int:
    """The core's number for ``verify``."""
    if verify not in _VERIFY_LEVELS:
        raise ValueError(f"verify must be one of {', '.join(map(repr, _VERIFY_LEVELS))}, not {verify!r}")
    return _VERIFY_LEVELS[verify]


def check_on_error(on_error: str) -> None:
    """Raise ValueError unless it is one of its choices."""
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error must be 'raise' or 'skip', not {on_error!r}")


class RecordIterator:
    """Iterates over the payloads of records, as bytes. Made by ``read_records``.

    Attributes:
        faults: What was left out so far, in order; always empty with ``on_error="raise"``.
    """

    def __init__(self, paths: list[str], *, verify: int, skip: bool) -> None:
        self.faults: list[RecordFault] = []
        self._paths = paths
        self._closed = False
        # Not a method's generator: it would refer back here, and a dropped iterator would keep its file open for long.
        self._pieces = _read_all(paths, working_folder(paths), verify, skip, self.faults)
        # Chained in C, because a Python frame for each record would cost more than reading it.
        self._payloads = itertools.chain.from_iterable(self._pieces)

    def __iter__(self) -> RecordIterator:
        return self

    def __next__(self) -> bytes:
        return next(self._payloads)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        files = f"{len(self._paths):,} file{'s' * (len(self._paths) != 1)}"
        more = ", ..." if len(self._paths) > 1 else ""
        left_out = f"; {len(self.faults):,} damaged places left out so far" if self.faults else ""
        state = "; closed" if self._closed else ""
        return f"RecordIterator(records of {files}: {self._paths[0]}{more}{left_out}{state})"

    def close(self) -> None:
        """Close the file that is open, if any, and end the iterator."""
        self._closed = True
        self._pieces.close()
        self._payloads = itertools.chain()


def _read_all(
    paths: list[str], folder: str, verify: int, skip: bool, faults: list[RecordFault]
) -> Generator[list[bytes], None, None]:
    for path in paths:
        yield from _FileReader(path, folder, verify, skip=skip, faults=faults).pieces()


class _FileReader:
    """Reads one file through a buffer that always starts at a frame."""

    def __init__(self, path: str, folder: str, verify: int, *, skip: bool, faults: list[RecordFault]) -> None:
        self._path = path
        self._folder = folder  # that a relative path starts from
        self._verify = verify
        self._skip = skip
        self._faults = faults
        self._buffer = bytearray(_CHUNK_BYTES)
        self._filled = 0  # bytes in the buffer
        self._offset = 0  # byte offset in the file of the buffer's start
        self._record = 0  # number in the file of the record at the buffer's start
        self._ended = False  # the last read found the end of the file

    def pieces(self) -> Generator[list[bytes], None, None]:
        """Yield lists of payloads."""
        with io.FileIO(open_descriptor(self._path, folder=self._folder)) as file:
            while self._filled < HEADER_BYTES and not self._ended:
                self._read(file)
            if self._filled and self._is_something_else(file):
                return
            while True:
                end = self._end(file)
                payloads, fault = self._split(end)
                if payloads:
                    yield payloads
                if fault is None:
                    if self._ended:
                        return
                    self._make_room(end)
                    self._read(file)
                elif not (self._has_grown(file, fault, end) or self._leave_out(fault, end)):
                    return

    def _read(self, file: io.FileIO) -> None:
        try:
            with memoryview(self._buffer) as view, view[self._filled :] as free:
                count = file.readinto(free) or 0
        except OSError as error:
            raise self._error(("io", 0, -1, 0, 0, error.errno or 0)) from error
        self._filled += count
        self._ended = count == 0

    def _end(self, file: io.FileIO) -> int:
        """Where the file ends, as far as that is known now."""
        here = self._offset + self._filled
        if self._ended:
            return here
        status = os.fstat(file.fileno())
        # Files of size 0 that yet have content are those that the system makes up as they are read.
        regular = stat.S_ISREG(status.st_mode) and status.st_size > 0
        return max(status.st_size, here) if regular else _UNKNOWN

    def _has_grown(self, file: io.FileIO, fault: Fault, end: int) -> bool:
        """Whether more has come of a file that seemed to be cut short."""
        if not fault[0].startswith("truncated"):
            return False
        if self._ended:
            self._make_room(_UNKNOWN)
            self._read(file)
            return not self._ended
        return self._end(file) > end

    def _split(self, end: int) -> tuple[list[bytes], Fault | None]:
        limit = _UNKNOWN if end == _UNKNOWN else end - self._offset
        with memoryview(self._buffer) as view, view[: self._filled] as data:
            payloads, used, fault = core.split_frames(data, self._verify, limit)
        self._record += len(payloads)
        self._drop(used)
        return payloads, fault

    def _drop(self, count: int) -> None:
        """Let go of the first bytes of the buffer."""
        rest = self._filled - count
        self._buffer[:rest] = self._buffer[count : self._filled]
        self._filled = rest
        self._offset += count

    def _make_room(self, end: int) -> None:
        """Enlarge the buffer where a frame fills it.

        The frame's length has been checked by now, and fits in the file where its size is known. Where that is not
        known, memory grows with the bytes that do come, not with those announced.
        """
        size = len(self._buffer)
        if self._filled == size:
            wanted = core.frame_size(self._buffer[:HEADER_BYTES])
            self._buffer.extend(bytes(size if end == _UNKNOWN else max(wanted - size, size)))

    def _is_something_else(self, file: io.FileIO) -> bool:
        """Whether this is no TFRecord file and may be left out; raises where it may not."""
        head = bytes(self._buffer[: min(self._filled, sniff.SNIFF_BYTES)])
        if sniff.is_plain(head):
            return False
        end = self._end(file)
        error = sniff.not_a_tfrecord(self._path, head, whole=end == len(head))
        if error is None:
            return False
        # A compressed file is not damaged: leaving all of it out is not what the caller asked for.
        if not self._skip or sniff.compression_of(head):
            raise error
        leave_out(self._faults, RecordFault(self._path, 0, 0, NOT_A_TFRECORD, None if end == _UNKNOWN else end))
        return True

    def _leave_out(self, fault: Fault, end: int) -> bool:
        """Note the damage at the buffer's start, and say whether there is more to read behind it; or raise."""
        if not self._skip:
            raise self._error(fault)
        code = fault[0]
        lost: int | None = None if end == _UNKNOWN else end - self._offset
        if code == "data_crc":
            lost = core.frame_size(self._buffer[:HEADER_BYTES])
        leave_out(self._faults, RecordFault(self._path, self._record, self._offset, code, lost))
        if code != "data_crc" or lost is None:
            return False
        self._record += 1
        self._drop(lost)
        return True

    def _error(self, fault: Fault) -> Exception:
        code, row, column, _, expected, found = fault
        return frame_error(
            (code, row, column, 0, expected, found), path=self._path, record=self._record, base=self._offset
        )
