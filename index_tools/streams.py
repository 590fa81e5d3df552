"""Reading data files of any compression: as files with positions, and record by record."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from typing import TYPE_CHECKING

import numpy as np

from torch_tfrecord import sniff
from torch_tfrecord.errors import StaleIndexError
from torch_tfrecord.faults import FRAME_OVERHEAD, frame_error
from torch_tfrecord.forward import ForwardShards
from torch_tfrecord.index_scan import naming, open_shard
from torch_tfrecord.index_stream import inflate_file
from torch_tfrecord.inflate import InflateError
from torch_tfrecord.native import core

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_tfrecord.index import RecordIndex
    from torch_tfrecord.inflate import InflatedFile, Kind

_PIECE_BYTES = 1 << 20


class RoomError(OSError):
    """There is no room for what is to be inflated, or no folder for it."""


@dataclasses.dataclass(frozen=True)
class Stream:
    """The uncompressed bytes of a data file, as far as they can be read.

    Attributes:
        file: The data file itself, or a temporary one that has no name.
        compression: ``gzip`` or ``zlib``; None for a plain file.
        error: What ends the readable part of a compressed file; None if it is whole.
        compressed_end: Where in the compressed file that is, about.
        is_limited: Whether there is more, which was not inflated because of the limit.
    """

    file: core.File
    compression: Kind | None
    error: InflateError | None = None
    compressed_end: int = 0
    is_limited: bool = False


def open_stream(path: str, *, folder: str | None = None, most: int | None = None) -> Stream:
    """Open a data file. A compressed one is inflated first, as far as it can be.

    Args:
        path: The file.
        folder: Where what is inflated goes, in a file without a name; None: the system's place for such files.
        most: How many bytes to inflate at most; None: all.

    Raises:
        DataLossError: Reading fails.
        OSError: It cannot be opened or is a pipe or a device; or there is no room for what is inflated.
    """
    file = open_shard(path)
    with naming(path):
        head = file.read(0, sniff.SNIFF_BYTES)
    kind = None if sniff.is_plain(head) else sniff.compression_of(head)
    if kind is None:
        return Stream(file, None)
    with contextlib.ExitStack() as stack:
        with _naming_room(path, folder):
            spool = stack.enter_context(tempfile.TemporaryFile(dir=folder))
        with naming(path):
            inflated = inflate_file(file, kind)
        error = None
        is_limited = False
        for piece in _pieces(inflated, path):
            if isinstance(piece, InflateError):
                error = error or piece
                continue
            is_limited = most is not None and inflated.offset > most
            room = len(piece) if most is None else len(piece) - max(inflated.offset - most, 0)
            with _naming_room(path, folder):
                _write(spool.fileno(), piece[:room])
            if is_limited:
                break
        return Stream(core.File(os.dup(spool.fileno())), kind, error, inflated.compressed_offset, is_limited)


@contextlib.contextmanager
def _naming_room(path: str, folder: str | None) -> Iterator[None]:
    """Say in an error of a temporary file which folder it is about: the data file is not to blame."""
    try:
        yield
    except OSError as error:
        where = folder or (os.curdir if folder == "" else "")
        with contextlib.suppress(OSError):  # where there is no folder for temporary files, the error says so
            where = where or tempfile.gettempdir()
        advice = "name another by TMPDIR" if folder is None else "write to another"
        problem = f"cannot be uncompressed into a temporary file in {where}: {error.strerror}"
        raise RoomError(error.errno, f"{problem}: make room in that folder, or {advice}", path) from None


def _pieces(inflated: InflatedFile, path: str) -> Iterator[memoryview | InflateError]:
    """All that can be inflated, and what is wrong with it."""
    buffer = memoryview(bytearray(_PIECE_BYTES))
    while True:
        try:
            with naming(path):
                count = inflated.readinto(buffer)
        except InflateError as error:
            yield error
            if error.code != "inflate_checksum":  # behind which there may be more
                return
            continue
        if count == 0:
            return
        yield buffer[:count]


def _write(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


class RecordReader:
    """Reads records of an index one after another."""

    def __init__(self, index: RecordIndex) -> None:
        self._index = index
        self._forward: ForwardShards | None = None  # of the compressed files

    def read(self, record: int) -> bytes:
        """A record's payload, checked. Raises DataLossError, StaleIndexError, OSError."""
        shard, _ = self._index.record_in_file(record)
        if self._index.shard_compression[shard] == "none":
            return self._read_plain(record)
        if self._forward is None:
            self._forward = ForwardShards(self._index, 2)
        _, offset, length = self._index[record]
        numbers = (np.array([value], np.int64) for value in (record, shard, offset, length))
        return self._forward.payloads(*numbers)[0]

    def _read_plain(self, record: int) -> bytes:
        path, offset, length = self._index[record]
        file = open_shard(path)
        size = file.size()
        rebuild = "build the index again"
        if offset < 0 or length < 0 or offset + length + FRAME_OVERHEAD > size:
            raise StaleIndexError(f"{path}: record {record} lies outside the file's {size:,} bytes: {rebuild}")
        data = file.read(offset, length + FRAME_OVERHEAD)
        payloads, _, fault = core.split_frames(data, 2, len(data))
        if fault is not None:
            raise frame_error(fault, path=path, base=offset, indexed=True)
        if len(payloads) != 1 or len(payloads[0]) != length:
            raise StaleIndexError(f"{path}: there is no record of {length:,} bytes at byte {offset}: {rebuild}")
        return payloads[0]
