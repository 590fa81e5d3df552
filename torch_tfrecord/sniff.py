"""What a file that is no TFRecord file looks like, told from its first bytes."""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING

from torch_tfrecord.errors import NotATFRecordError
from torch_tfrecord.native import core

if TYPE_CHECKING:
    from torch_tfrecord.paths import StrPath

SNIFF_BYTES = 1 << 16  # how many first bytes to give; more add nothing

_GZIP = b"\x1f\x8b\x08"
_MAGICS = (
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"PAR1", "a Parquet file"),
    (b"ARROW1", "an Arrow file"),
    (b"\x0a\x23\xd7\xce", "a RecordIO file of MXNet"),
    (b"PK\x03\x04", "a zip archive"),
    (b"PK\x05\x06", "an empty zip archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd-compressed file"),
    (b"BZh", "a bzip2-compressed file"),
    (b"\xfd7zXZ\x00", "an xz-compressed file"),
    (b"\x93NUMPY", "a NumPy array file"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"TFRINDEX", "an index file of this package, not the data"),
    (b"version https://git-lfs.github.com/spec/", "a Git LFS pointer, not the data: fetch it with `git lfs pull`"),
)
_DECOMPRESS = {
    "gzip": "gunzip",
    "zlib": "python3 -c 'import sys, zlib; sys.stdout.buffer.write(zlib.decompress(sys.stdin.buffer.read()))'",
}


def is_plain(head: bytes) -> bool:
    """Whether the first 12 bytes hold a length with the right checksum: then the file is an uncompressed TFRecord file.

    No magic number decides this. The bytes that open a gzip file are also the length of a plain first record of 559,903
    bytes, so this question comes before any other.
    """
    return len(head) >= 12 and core.masked_crc32c(head[:8]) == int.from_bytes(head[8:12], "little")


def compression_of(head: bytes) -> str | None:
    """``gzip`` or ``zlib`` if the first bytes of a file that is not plain look so, else None."""
    if head[:3] == _GZIP:
        return "gzip"
    # Two zlib header bytes occur by chance in one of a few hundred files, so the data after them must inflate too. No
    # whole zlib file is shorter than 8 bytes.
    if len(head) >= 8 and head[0] & 15 == 8 and head[0] >> 4 <= 7 and int.from_bytes(head[:2], "big") % 31 == 0:
        return None if _inflate(head, 15) is None else "zlib"
    return None


def describe_file(head: bytes, *, whole: bool) -> str | None:
    """What a file that is no plain TFRecord file looks like, as a noun phrase, or None where nothing fits.

    Args:
        head: Its first ``SNIFF_BYTES`` bytes, or all.
        whole: Whether ``head`` is all of the file.
    """
    compression = compression_of(head)
    if compression is not None:
        return _describe_compressed(head, compression)
    for magic, name in _MAGICS:
        if head.startswith(magic):
            return name
    if head[257:262] == b"ustar":
        return "a tar archive"
    if len(head) >= 12 and not head.strip(b"\0"):
        return "nothing but zero bytes: it was reserved but never written"
    if whole and head[:1] == b"\x0a" and _is_example(head):
        return "a single Example message without the frames of a TFRecord file"
    return _describe_text(head)


def not_a_tfrecord(path: StrPath, head: bytes, *, whole: bool) -> NotATFRecordError | None:
    """The error for a file whose first frame is bad, or None where it looks like nothing else, so is damaged.

    Args:
        path: The file.
        head: Its first ``SNIFF_BYTES`` bytes, or all.
        whole: Whether ``head`` is all of the file.
    """
    name = os.fspath(path)
    looks = describe_file(head, whole=whole)
    if looks is None:
        return None
    compression = compression_of(head)
    if compression is None or "inside" in looks:
        return NotATFRecordError(f"{name}: not a TFRecord file: it looks like {looks}")
    return NotATFRecordError(
        f"{name}: it looks like {looks}, and this version reads uncompressed files only. "
        f"Decompress it first: {_DECOMPRESS[compression]} < OLD > NEW"
    )


def is_sequence_example(payload: bytes) -> bool:
    """Whether a record, which parses as an Example, is a SequenceExample with feature lists.

    Both have their features, or context, in field 1; field 2 tells.
    """
    at = 0
    while payload[at : at + 1] == b"\x0a":  # field 1. Most records hold nothing else, so this is quick
        size = shift = 0
        more = True
        while more:
            at += 1
            size |= (payload[at] & 127) << shift
            shift += 7
            more = payload[at] > 127
        at += 1 + size
    if at >= len(payload):
        return False
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - seldom needed

    from torch_tfrecord.messages import SequenceExample  # noqa: PLC0415

    try:
        return len(SequenceExample.FromString(payload).feature_lists.feature_list) > 0
    except DecodeError:
        return False


def _inflate(head: bytes, window_bits: int) -> tuple[bytes, bool] | None:
    """The first bytes of a compressed stream, and whether these are all; or None where it is not one."""
    stream = zlib.decompressobj(window_bits)
    try:
        return stream.decompress(head, 4096), stream.eof
    except zlib.error:
        return None


def _describe_compressed(head: bytes, compression: str) -> str:
    inflated = _inflate(head, 31 if compression == "gzip" else 15)
    if inflated is None:
        return f"a damaged {compression}-compressed file"
    inner, whole = inflated
    if is_plain(inner):
        return f"a {compression}-compressed TFRecord file"
    looks = None if compression_of(inner) else describe_file(inner, whole=whole)
    return f"a {compression}-compressed file" + (f" (inside: {looks})" if looks else "")


def _is_example(data: bytes) -> bool:
    """Whether a whole message parses as an Example with at least one feature that has a kind."""
    features = core.describe(data)
    return isinstance(features, list) and any(kind for _, kind, _ in features)


def _describe_text(head: bytes) -> str | None:
    try:
        # The last few bytes may be the start of a character.
        text = head.decode("utf-8") if len(head) < SNIFF_BYTES else head[:-4].decode("utf-8", "ignore")
    except UnicodeDecodeError:
        return None
    if any(ord(character) < 32 and character not in "\t\n\v\f\r\b\x1b" for character in text):
        return None
    start = text.lstrip("\ufeff \t\r\n")[:64].lower()
    if not start:
        return None
    if start.startswith(("<!doctype html", "<html", "<head")):
        return "an HTML page: perhaps the error page of a download"
    if start.startswith("<"):
        return "an XML document: perhaps the error page of a download"
    if start.startswith(("{", "[")):
        return "JSON text"
    if "/annex/objects/" in text[:4096]:
        return "a git-annex pointer, not the data: fetch it with `git annex get`"
    return "text"
