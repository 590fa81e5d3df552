"""The index file: where each record of some shards lies. ``docs/formats.md`` describes the format.

A file is written under a temporary name and renamed, so readers see all of it or nothing, and several processes may
write the same one at once. Reading checks the header and the sizes; it maps large arrays without touching them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import re
import secrets
import stat
import struct
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from torch_tfrecord.errors import StaleIndexError
from torch_tfrecord.faults import RecordFault
from torch_tfrecord.index_arrays import MappedFile
from torch_tfrecord.index_data import IndexData, Shard, Stream, sample_pieces, sample_positions
from torch_tfrecord.native import core
from torch_tfrecord.paths import INDEX_SUFFIX, NAME_PART, hint_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch_tfrecord.paths import StrPath

MAGIC = b"TFRINDEX"
VERSION = 3
TEMPORARY_SUFFIX = f"{INDEX_SUFFIX}.tmp"  # of what is being written
_START = struct.Struct("<8sIIQII")  # magic, version, bytes of JSON, records, checksum, zero
_CHECKED = 24  # bytes of it that the checksum covers, before the JSON
_ALIGNMENT = 64
_READ_BYTES = 1 << 20  # arrays of up to this size are read into memory, larger ones are mapped
_DIGEST = re.compile("[0-9a-f]{32}")


def open_regular(path: StrPath, what: str, *, folder: str = "") -> int:
    """Open a regular file for reading and return its descriptor, which the caller closes.

    Never waits, as opening a pipe without a writer would.

    Args:
        path: The file, as errors name it.
        what: What it should be, with an article, for errors.
        folder: What a relative path starts from; "": the working directory.

    Raises:
        IsADirectoryError: The path is a directory.
        OSError: It cannot be opened, or is a pipe or a device; FileNotFoundError if it is missing.
    """
    name = os.fspath(path)
    try:
        descriptor = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise OSError(error.errno, error.strerror, name) from None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, f"a directory stands where {what} is expected", name)
    others = "read_records and TFRecordIterableDataset stream such data, without an index"
    problem = f"a pipe or a device stands where {what} is expected ({others})"
    raise OSError(errno.ESPIPE, problem, name)


def check_target(path: StrPath, data_files: Sequence[str]) -> None:
    """Refuse to write an index where that would destroy something else.

    Args:
        path: The index file to write.
        data_files: The files that it is of.

    Raises:
        ValueError: The path is one of the data files, under whatever name, or a file that is no index.
        FileNotFoundError: Its directory is missing.
        OSError: It is a directory, a device or a pipe.
    """
    target = os.fspath(path)
    folder = os.path.dirname(target)
    if not os.path.isdir(folder or os.curdir):
        problem = hint_of(target) or f"the directory to write in, {folder}, is missing"
        raise FileNotFoundError(errno.ENOENT, problem, target)
    try:
        found = os.stat(target)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "a directory stands where an index is to be written", target)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "an index is written to a regular file, not to a device or a pipe", target)
    for file in data_files:
        with contextlib.suppress(OSError):
            if os.path.samestat(found, os.stat(file)):
                raise ValueError(
                    f"{target}: this is the data file {file}, which an index must not replace: name another"
                )
    # A damaged index of ours may have lost its magic number.
    if found.st_size and not target.endswith(INDEX_SUFFIX) and not is_index_file(target):
        raise ValueError(f"{target}: this file is no index, so it is not replaced: name another, or remove it first")


def is_index_file(path: StrPath) -> bool:
    """Whether a file begins as an index does. Raises OSError."""
    with open(open_regular(path, "an index or a TFRecord file"), "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def write_index_file(path: StrPath, data: IndexData) -> None:
    """Write an index file, replacing an older one in one step. Raises OSError, and ValueError as ``check_target``."""
    target = os.fspath(path)
    check_target(target, [shard.path for shard in data.shards])
    folder = os.path.dirname(os.path.abspath(target))
    document = {
        "verify": data.verify,
        "shards": [{**dataclasses.asdict(shard), "path": portable_path(shard.path, folder)} for shard in data.shards],
        "faults": [
            [shard, fault.record, fault.offset, fault.reason, fault.bytes_lost]
            for shard, faults in enumerate(data.faults)
            for fault in faults
        ],
    }
    text = json.dumps(document, separators=(",", ":")).encode()
    checked = _START.pack(MAGIC, VERSION, len(text), len(data.offsets), 0, 0)[:_CHECKED]
    checksum = core.masked_crc32c(checked + text)
    start = _START.pack(MAGIC, VERSION, len(text), len(data.offsets), checksum, 0)
    padding = bytes(-(len(start) + len(text)) % _ALIGNMENT)
    with replacing(target) as file:
        file.writelines((start, text, padding))
        file.writelines(np.ascontiguousarray(array, "<i8").data for array in (data.offsets, data.lengths))


@contextlib.contextmanager
def replacing(path: StrPath) -> Iterator[IO[bytes]]:
    """Write a file under a temporary name, then put it in the place of an older one: others see that or the new one.

    Raises:
        OSError: It cannot be written.
    """
    target = os.fspath(path)
    folder, name = os.path.split(os.path.abspath(target))
    temporary = os.path.join(folder, f".{name[:NAME_PART]}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")
    try:
        with open(temporary, "xb") as file:
            yield file
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, target) from None
        raise


def read_index_file(path: StrPath) -> IndexData:
    """Read an index file: its header, and its arrays where they are small. Large ones are mapped, not read.

    The numbers in the arrays are not looked at; their checksums are there to check them by.

    Raises:
        StaleIndexError: It is no index file, damaged, or of another version.
        OSError: It cannot be read or is no regular file; FileNotFoundError if it is missing.
    """
    name = os.fspath(path)
    with open(open_regular(name, "an index"), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        document, records, arrays_at = _read_header(name, file, size)
        if arrays_at + 16 * records != size:
            raise _damaged(
                name, f"it is {size:,} bytes long, but {records:,} records need {arrays_at + 16 * records:,}"
            )
        data = _Checker(name).data(document, records)
        if 16 * records <= _READ_BYTES:
            file.seek(arrays_at)
            arrays = file.read(16 * records)
            if len(arrays) < 16 * records:
                raise _damaged(name, "it is being cut short")
            both = np.frombuffer(arrays, "<i8")
            return dataclasses.replace(data, offsets=both[:records], lengths=both[records:])
        try:
            mapped = MappedFile(name, file.fileno(), size)
        except ValueError:
            raise _damaged(name, "it is being cut short") from None
    offsets = np.frombuffer(mapped.mapping, "<i8", records, arrays_at)
    lengths = np.frombuffer(mapped.mapping, "<i8", records, arrays_at + 8 * records)
    return dataclasses.replace(data, offsets=offsets, lengths=lengths, mapped=mapped)


def portable_path(path: str, folder: str) -> str:
    """A path as an index in ``folder`` names it: relative where it is in or below that folder, else absolute."""
    absolute = os.path.abspath(path)
    relative = os.path.relpath(absolute, folder)
    return absolute if relative.split(os.sep, 1)[0] == os.pardir else relative


def _read_header(name: str, file: IO[bytes], size: int) -> tuple[Any, int, int]:
    """The JSON document, the number of records, and where the arrays start."""
    start = file.read(_START.size)
    if start[: len(MAGIC)] != MAGIC:
        raise StaleIndexError(
            f"{name}: this is not an index file of torch_tfrecord; `tfrecord-index convert` makes one of another tool's"
        )
    if len(start) < _START.size:
        raise _damaged(name, f"it is only {size} bytes long")
    _, version, text_size, records, checksum, _ = _START.unpack(start)
    if version != VERSION:
        raise StaleIndexError(f"{name}: index file version {version}, this one reads {VERSION}: build the index again")
    arrays_at = -(-(_START.size + text_size) // _ALIGNMENT) * _ALIGNMENT
    if arrays_at > size:
        raise _damaged(name, f"its header needs {arrays_at:,} bytes, but it has {size:,}")
    text = file.read(text_size)
    if core.masked_crc32c(start[:_CHECKED] + text) != checksum:
        raise _damaged(name, "the checksum of its header is wrong")
    try:
        return json.loads(text), records, arrays_at
    except (ValueError, RecursionError) as error:
        raise _damaged(name, f"its header is not JSON ({error})") from None


def _damaged(name: str, problem: str) -> StaleIndexError:
    return StaleIndexError(f"{name}: damaged index file: {problem}: build the index again")


class _Checker:
    """Turns the JSON document into plain data, believing nothing of it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._folder = os.path.dirname(name)

    def data(self, document: Any, records: int) -> IndexData:
        fields = self._typed(document, dict, "header")
        shards = [self._shard(item) for item in self._typed(fields.get("shards"), list, "shards")]
        total = sum(shard.records for shard in shards)
        if total != records:
            raise _damaged(self._name, f"its shards have {total:,} records, its header says {records:,}")
        faults: list[list[RecordFault]] = [[] for _ in shards]
        for item in self._typed(fields.get("faults"), list, "faults"):
            number, fault = self._fault(item, shards)
            faults[number].append(fault)
        verify = self._typed(fields.get("verify"), str, "verify")
        if verify not in ("length", "all"):
            raise _damaged(self._name, f"verify is {verify!r}")
        nothing = np.empty(0, np.int64)
        return IndexData(shards, nothing, nothing, faults, verify)

    def _shard(self, item: Any) -> Shard:
        fields = self._typed(item, dict, "shard")
        records = self._count(fields.get("records"), "records")
        samples = self._checksums(fields.get("samples"), len(sample_positions(records)), "samples")
        of_offsets, of_lengths = self._checksums(fields.get("checksums"), 2, "checksums")
        mtime_ns = fields.get("mtime_ns")
        if type(mtime_ns) is not int:
            raise _damaged(self._name, f"mtime_ns is {mtime_ns!r:.40}")
        digest = self._typed(fields.get("lengths_digest"), str, "lengths_digest")
        if _DIGEST.fullmatch(digest) is None:
            raise _damaged(self._name, "lengths_digest is not 32 hex digits")
        return Shard(
            path=self._path(self._typed(fields.get("path"), str, "path")),
            size=self._count(fields.get("size"), "size"),
            records=records,
            mtime_ns=mtime_ns,
            lengths_digest=digest,
            checksums=(of_offsets, of_lengths),
            samples=samples,
            stream=self._stream(fields.get("stream"), self._count(fields.get("size"), "size")),
        )

    def _stream(self, item: Any, size: int) -> Stream | None:
        if item is None:
            return None
        fields = self._typed(item, dict, "stream")
        kind = fields.get("kind")
        if kind not in ("gzip", "zlib"):
            raise _damaged(self._name, f"the kind of a stream is {kind!r:.40}")
        samples = self._checksums(fields.get("samples"), len(sample_pieces(size)), "stream's samples")
        return Stream(kind, self._count(fields.get("size"), "stream's size"), samples)

    def _checksums(self, values: Any, number: int, what: str) -> tuple[int, ...]:
        found = tuple(self._count(crc, what) for crc in self._typed(values, list, what))
        if len(found) != number or max(found, default=0) >= 2**32:
            raise _damaged(self._name, f"the {what} of a shard are not {number} checksums")
        return found

    def _path(self, path: str) -> str:
        try:
            named = os.fsencode(path)
        except UnicodeEncodeError:
            named = b""
        if not named or b"\0" in named or os.pardir in path.split(os.sep):
            raise _damaged(self._name, f"it names a shard {path!r:.80}")
        return os.path.join(self._folder, path)

    def _fault(self, item: Any, shards: Sequence[Shard]) -> tuple[int, RecordFault]:
        """The number of the shard that a fault is in, and the fault."""
        values = self._typed(item, list, "fault")
        if len(values) != 5:
            raise _damaged(self._name, "a fault has not five parts")
        shard, record, offset, reason, lost = values
        number = self._count(shard, "fault's shard")
        if number >= len(shards):
            raise _damaged(self._name, f"a fault is in shard {number} of {len(shards)}")
        return number, RecordFault(
            path=shards[number].path,
            record=self._count(record, "fault's record"),
            offset=self._count(offset, "fault's offset"),
            reason=self._typed(reason, str, "fault's reason"),
            bytes_lost=None if lost is None else self._count(lost, "fault's bytes"),
        )

    def _count(self, value: Any, what: str) -> int:
        # bool is a kind of int in Python, but not in a file.
        if type(value) is not int or not 0 <= value < 2**63:
            raise _damaged(self._name, f"{what} is {value!r:.40}")
        return value

    def _typed(self, value: Any, kind: type, what: str) -> Any:
        if not isinstance(value, kind):
            raise _damaged(self._name, f"{what} is not a {kind.__name__}")
        return value
