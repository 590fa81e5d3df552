"""The index file: where each record of some shards lies. ``docs/formats.md`` describes the format.

A file is written under a temporary name and renamed, so readers see all of it or nothing, and several processes may
write the same one at once. Reading checks the header and the sizes and maps the arrays without touching them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import mmap
import os
import re
import secrets
import struct
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from torch_tfrecord.errors import StaleIndexError
from torch_tfrecord.faults import RecordFault
from torch_tfrecord.native import core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch_tfrecord.native._core import Int64s
    from torch_tfrecord.paths import StrPath

MAGIC = b"TFRINDEX"
VERSION = 1
_START = struct.Struct("<8sIIQII")  # magic, version, bytes of JSON, records, checksum, zero
_CHECKED = 24  # bytes of it that the checksum covers, before the JSON
_ALIGNMENT = 64
_DIGEST = re.compile("[0-9a-f]{32}")


@dataclasses.dataclass(frozen=True)
class Shard:
    """One data file, as it was when it was scanned.

    Attributes:
        path: The file.
        size: Its bytes.
        records: How many of its records are in the index.
        lengths_digest: 32 hex digits: BLAKE2b of the int64 lengths of those records.
        samples: Stored payload checksums of up to 16 of them, see ``sample_positions``.
    """

    path: str
    size: int
    records: int
    lengths_digest: str
    samples: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class IndexData:
    """Everything that an index file holds.

    Attributes:
        shards: The data files, in order.
        offsets: int64[records], byte offset of each record's frame in its shard, shard after shard.
        lengths: int64[records], bytes of each record's payload.
        faults: What was left out when the shards were scanned.
        verify: What was checked then: ``length`` or ``all``.
    """

    shards: Sequence[Shard]
    offsets: Int64s
    lengths: Int64s
    faults: Sequence[RecordFault]
    verify: str


def write_index_file(path: StrPath, data: IndexData) -> None:
    """Write an index file, replacing an older one in one step. Raises OSError."""
    target = os.fspath(path)
    folder = os.path.dirname(os.path.abspath(target))
    numbers = {shard.path: number for number, shard in enumerate(data.shards)}
    document = {
        "verify": data.verify,
        "shards": [{**dataclasses.asdict(shard), "path": portable_path(shard.path, folder)} for shard in data.shards],
        "faults": [[numbers[f.path], f.record, f.offset, f.reason, f.bytes_lost] for f in data.faults],
    }
    text = json.dumps(document, separators=(",", ":")).encode()
    checked = _START.pack(MAGIC, VERSION, len(text), len(data.offsets), 0, 0)[:_CHECKED]
    checksum = core.masked_crc32c(checked + text)
    start = _START.pack(MAGIC, VERSION, len(text), len(data.offsets), checksum, 0)
    padding = bytes(-(len(start) + len(text)) % _ALIGNMENT)
    temporary = os.path.join(folder, f".{os.path.basename(target)[:40]}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.writelines((start, text, padding))
            file.writelines(np.ascontiguousarray(array, "<i8").data for array in (data.offsets, data.lengths))
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def read_index_file(path: StrPath) -> IndexData:
    """Read an index file. The arrays are views of a mapping of it, read-only, which is never written to in place.

    Raises:
        StaleIndexError: It is no index file, damaged, or of another version.
        OSError: It cannot be read; FileNotFoundError if it is missing.
    """
    name = os.fspath(path)
    with open(name, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        document, records, arrays_at = _read_header(name, file, size)
        if arrays_at + 16 * records != size:
            raise _damaged(
                name, f"it is {size:,} bytes long, but {records:,} records need {arrays_at + 16 * records:,}"
            )
        data = _Checker(name).data(document, records)
        if not records:
            return data
        try:
            mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except ValueError:
            raise _damaged(name, "it is being cut short") from None
    offsets = np.frombuffer(mapping, "<i8", records, arrays_at)
    lengths = np.frombuffer(mapping, "<i8", records, arrays_at + 8 * records)
    return dataclasses.replace(data, offsets=offsets, lengths=lengths)


def portable_path(path: str, folder: str) -> str:
    """A path as an index in ``folder`` names it: relative where it is in or below that folder, else absolute."""
    absolute = os.path.abspath(path)
    relative = os.path.relpath(absolute, folder)
    return absolute if relative.split(os.sep, 1)[0] == os.pardir else relative


def sample_positions(records: int) -> list[int]:
    """Which records of a shard are sampled: at most 16, evenly spread, the first and the last among them."""
    if records <= 16:
        return list(range(records))
    return [number * (records - 1) // 15 for number in range(16)]


def _read_header(name: str, file: IO[bytes], size: int) -> tuple[Any, int, int]:
    """The JSON document, the number of records, and where the arrays start."""
    start = file.read(_START.size)
    if start[: len(MAGIC)] != MAGIC:
        raise StaleIndexError(f"{name}: this is not an index file of torch_tfrecord")
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
        faults = [self._fault(item, shards) for item in self._typed(fields.get("faults"), list, "faults")]
        verify = self._typed(fields.get("verify"), str, "verify")
        if verify not in ("length", "all"):
            raise _damaged(self._name, f"verify is {verify!r}")
        nothing = np.empty(0, np.int64)
        return IndexData(shards, nothing, nothing, faults, verify)

    def _shard(self, item: Any) -> Shard:
        fields = self._typed(item, dict, "shard")
        records = self._count(fields.get("records"), "records")
        samples = [self._count(crc, "sample") for crc in self._typed(fields.get("samples"), list, "samples")]
        if len(samples) != len(sample_positions(records)) or max(samples, default=0) >= 2**32:
            raise _damaged(self._name, f"the samples of a shard of {records:,} records are wrong")
        digest = self._typed(fields.get("lengths_digest"), str, "lengths_digest")
        if _DIGEST.fullmatch(digest) is None:
            raise _damaged(self._name, "lengths_digest is not 32 hex digits")
        return Shard(
            path=self._path(self._typed(fields.get("path"), str, "path")),
            size=self._count(fields.get("size"), "size"),
            records=records,
            lengths_digest=digest,
            samples=tuple(samples),
        )

    def _path(self, path: str) -> str:
        try:
            named = os.fsencode(path)
        except UnicodeEncodeError:
            named = b""
        if not named or b"\0" in named or os.pardir in path.split(os.sep):
            raise _damaged(self._name, f"it names a shard {path!r:.80}")
        return os.path.join(self._folder, path)

    def _fault(self, item: Any, shards: Sequence[Shard]) -> RecordFault:
        values = self._typed(item, list, "fault")
        if len(values) != 5:
            raise _damaged(self._name, "a fault has not five parts")
        shard, record, offset, reason, lost = values
        number = self._count(shard, "fault's shard")
        if number >= len(shards):
            raise _damaged(self._name, f"a fault is in shard {number} of {len(shards)}")
        return RecordFault(
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
