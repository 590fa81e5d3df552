"""Indexes of other tools: the text indexes of DALI and of the ``tfrecord`` package, and tfr-reader's binary one."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import stat
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from torch_tfrecord.errors import StaleIndexError
from torch_tfrecord.faults import FRAME_OVERHEAD
from torch_tfrecord.index_file import MAGIC, open_regular, replacing
from torch_tfrecord.sniff import is_plain

if TYPE_CHECKING:
    from torch_tfrecord.native._core import Int64s
    from torch_tfrecord.paths import StrPath

IndexKind: TypeAlias = Literal["torch_tfrecord", "text", "tfr-reader", "parquet"]

_HEAD_BYTES = 1 << 16
_MAX_DIGITS = 18  # more do not fit in int64 for sure, and no file is as large
_LINES_AT_ONCE = 1 << 16


@dataclasses.dataclass(frozen=True)
class ForeignIndex:
    """What an index of another tool says. Nothing of it has been compared with the data.

    Attributes:
        path: The index file.
        kind: ``text`` or ``tfr-reader``.
        offsets: int64[records], byte offsets of frames.
        sizes: int64[records], bytes of whole frames; None where the index does not say.
    """

    path: str
    kind: IndexKind
    offsets: Int64s
    sizes: Int64s | None


def kind_of_index(path: StrPath) -> IndexKind | None:
    """What kind of index a file is, told by its content; None: none that is known, perhaps data.

    An empty file may be the text index of no records, or data without records: it is called ``text``.

    Raises:
        OSError: It cannot be read; FileNotFoundError if it is missing.
    """
    with open(open_regular(path, "an index"), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_HEAD_BYTES)
    if head.startswith(MAGIC):
        return "torch_tfrecord"
    if head.startswith(b"PAR1"):
        return "parquet"
    if re.fullmatch(rb"[0-9\s]*", head) is not None and (not head or head.strip()):
        return "text"
    # An empty record's frame and such an index of nothing begin alike, but no frame is so short.
    fits = size % 24 == 8 and int.from_bytes(head[:8], "little") == size // 24
    return "tfr-reader" if fits and not is_plain(head) else None


def read_foreign_index(path: StrPath) -> ForeignIndex:
    """Read an index of another tool.

    Raises:
        StaleIndexError: It is damaged or none that is known.
        OSError: It cannot be read; FileNotFoundError if it is missing.
    """
    name = os.fspath(path)
    kind = kind_of_index(name)
    if kind == "parquet":
        problem = "a Parquet file: tfr-reader's index of a directory is not read, only its .idx of one file"
        raise StaleIndexError(f"{name}: {problem}; or build an index of the data: tfrecord-index build")
    if kind not in ("text", "tfr-reader"):
        looks = "an index of torch_tfrecord" if kind else "neither a text index nor tfr-reader's"
        raise StaleIndexError(f"{name}: this is {looks}, so it cannot be read as one of DALI or the tfrecord package")
    with open(open_regular(name, "an index"), "rb") as file:
        data = file.read()
    if kind == "tfr-reader":
        return _binary_index(name, data)
    return _text_index(name, data)


def write_text_index(path: StrPath, offsets: Int64s, lengths: Int64s) -> None:
    """Write a text index as DALI and the ``tfrecord`` package read it, replacing an older one in one step.

    Args:
        path: The file to write.
        offsets: int64[records], byte offset of each record's frame.
        lengths: int64[records], bytes of each record's payload.

    Raises:
        ValueError: The path is a file that is no text index: such are not replaced.
        OSError: It cannot be written; FileNotFoundError where its directory is missing.
    """
    name = os.fspath(path)
    _check_target(name)
    with replacing(os.path.realpath(name)) as file:
        for start in range(0, len(offsets), _LINES_AT_ONCE):
            some = slice(start, start + _LINES_AT_ONCE)
            pairs = zip(offsets[some].tolist(), lengths[some].tolist(), strict=True)
            file.write("".join(f"{offset} {length + FRAME_OVERHEAD}\n" for offset, length in pairs).encode())


def _check_target(name: str) -> None:
    """Refuse to write an index where that would destroy something else."""
    folder = os.path.dirname(name)
    if not os.path.isdir(folder or os.curdir):
        raise FileNotFoundError(errno.ENOENT, f"the directory to write in, {folder}, is missing", name)
    try:
        found = os.stat(name)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "a directory stands where a text index is to be written", name)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "an index is written to a regular file, not to a device or a pipe", name)
    if kind_of_index(name) != "text":
        raise ValueError(f"{name}: this file is no text index, so it is not replaced: name another, or remove it first")


def _text_index(name: str, data: bytes) -> ForeignIndex:
    if re.fullmatch(rb"[0-9\s]*", data) is None:
        line = next(i for i, text in enumerate(data.split(b"\n")) if re.fullmatch(rb"[0-9\s]*", text) is None)
        raise StaleIndexError(f"{name}: damaged text index: line {line + 1} is not made of numbers")
    if re.search(rb"[0-9]{%d}" % (_MAX_DIGITS + 1), data) is not None:
        raise StaleIndexError(f"{name}: damaged text index: a number has more than {_MAX_DIGITS} digits")
    numbers = np.array(data.split(), "S").astype(np.int64)
    if data.strip() and all(len(line.split()) <= 1 for line in data.split(b"\n")):
        return ForeignIndex(name, "text", numbers, None)
    if len(numbers) % 2:
        raise StaleIndexError(f"{name}: damaged text index: {len(numbers):,} numbers, and not pairs of offset and size")
    return ForeignIndex(name, "text", numbers[0::2], numbers[1::2])


def _binary_index(name: str, data: bytes) -> ForeignIndex:
    entries = np.frombuffer(data, "<i8", offset=8).reshape(-1, 3).astype(np.int64)
    starts, ends, lengths = entries.T
    if entries.size and (entries.min() < 0 or (ends - starts != lengths + FRAME_OVERHEAD).any()):
        raise StaleIndexError(f"{name}: damaged index of tfr-reader: an entry's size does not fit its start and end")
    return ForeignIndex(name, "tfr-reader", starts, ends - starts)
