"""How a file is compressed, and what one that is no TFRecord file looks like, told from its first bytes."""

from __future__ import annotations

import os
import re
import zlib
from typing import TYPE_CHECKING

from torch_tfrecord.errors import NotATFRecordError
from torch_tfrecord.inflate import GZIP_MAGIC
from torch_tfrecord.native import core

if TYPE_CHECKING:
    from torch_tfrecord.inflate import Kind
    from torch_tfrecord.paths import StrPath

SNIFF_BYTES = 1 << 16  # how many first bytes to give; more add nothing

_WINDOW_BITS: dict[Kind, int] = {"gzip": 31, "zlib": 15}  # that zlib tells formats by
_ZLIB_TRIAL = 4096  # bytes that must inflate where they are no frame
_TEXT_INDEX = re.compile(r"[0-9]+ [0-9]+\n[0-9 \n]*")
_TOLD = {None: "an uncompressed file", "gzip": "a gzip file", "zlib": "a zlib file"}
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
    (b"\x04\x22\x4d\x18", "an lz4-compressed file"),
    (b"\x02\x21\x4c\x18", "an lz4-compressed file"),
    (b"\xff\x06\x00\x00sNaPpY", "a snappy-compressed file"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    # Both begin with a chunk that holds nothing, so is always the same.
    (b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f", "a Riegeli or ArrayRecord file"),
    (b"Obj\x01", "an Avro file"),
    (b"ORC", "an ORC file"),
    (b"\x93NUMPY", "a NumPy array file"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"TFRINDEX", "an index file of this package, not the data"),
    (b"version https://git-lfs.github.com/spec/", "a Git LFS pointer, not the data: fetch it with `git lfs pull`"),
)


def is_plain(head: bytes) -> bool:
    """Whether the first 12 bytes hold a length with the right checksum: then the file is an uncompressed TFRecord file.

    No magic number decides this. The bytes that open a gzip file are also the length of a plain first record of 559,903
    bytes, so this question comes before any other.
    """
    return len(head) >= 12 and core.masked_crc32c(head[:8]) == int.from_bytes(head[8:12], "little")


def compression_of(head: bytes) -> Kind | None:
    """``gzip`` or ``zlib`` if the first bytes of a file that is not plain look so, else None."""
    if head.startswith(GZIP_MAGIC):
        return "gzip"
    # Two zlib header bytes occur by chance in one of a few hundred files, so what follows must inflate too. No whole
    # zlib file is shorter than 8 bytes.
    if len(head) >= 8 and _has_zlib_header(head):
        start = _inflate(head, 15, 12)
        if start is not None and (is_plain(start[0]) or _inflate(head, 15, _ZLIB_TRIAL) is not None):
            return "zlib"
    return None


def may_be_zlib(head: bytes) -> bool:
    """Whether more than these first bytes are needed to tell a zlib file, for one that is read from a pipe."""
    if not _has_zlib_header(head):
        return False
    start = _inflate(head, 15, 12)
    return start is not None and len(start[0]) < 12 and not start[1]


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
    if _is_snappy(head):
        return "a snappy-compressed TFRecord file"
    return _describe_text(head)


def not_a_tfrecord(
    path: StrPath, head: bytes, *, whole: bool, compression: str | None = None
) -> NotATFRecordError | None:
    """The error for a file whose first frame is bad, or None where it looks like nothing else, so is damaged.

    Args:
        path: The file.
        head: Its first ``SNIFF_BYTES`` bytes, or all; uncompressed.
        whole: Whether ``head`` is all of it.
        compression: ``gzip`` or ``zlib`` where the file is compressed so; None or ``none`` where it is not.
    """
    looks = describe_file(head, whole=whole)
    if looks is None:
        return None
    if compression not in (None, "none"):
        looks = f"a {compression}-compressed file (inside: {looks})"
    return NotATFRecordError(f"{os.fspath(path)}: not a TFRecord file: it looks like {looks}")


def compression_mismatch(path: StrPath, head: bytes, told: str | None) -> NotATFRecordError | None:
    """The error for a file that is not compressed as the caller says, or None where it is, or looks like nothing.

    Args:
        path: The file.
        head: Its first ``SNIFF_BYTES`` bytes, or all.
        told: ``gzip``, ``zlib``, or None for a plain file.
    """
    found = None if is_plain(head) else compression_of(head)
    if found == told or not (found or is_plain(head)):
        return None
    looks = "a plain TFRecord file" if found is None else _describe_compressed(head, found)
    return NotATFRecordError(
        f"{os.fspath(path)}: expected {_TOLD[told]}, as compression={told!r} says, found {looks}: "
        f'pass compression="auto", which tells by the content'
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


def _has_zlib_header(head: bytes) -> bool:
    return head[:1] != b"" and head[0] & 15 == 8 and head[0] >> 4 <= 7 and int.from_bytes(head[:2], "big") % 31 == 0


def _inflate(head: bytes, window_bits: int, most: int) -> tuple[bytes, bool] | None:
    """The first bytes of a compressed stream, and whether these are all; or None where it is not one."""
    stream = zlib.decompressobj(window_bits)
    try:
        return stream.decompress(head, most), stream.eof
    except zlib.error:
        return None


def _describe_compressed(head: bytes, compression: Kind) -> str:
    start = _inflate(head, _WINDOW_BITS[compression], 12)
    if start is not None and is_plain(start[0]):
        return f"a {compression}-compressed TFRecord file"
    inflated = _inflate(head, _WINDOW_BITS[compression], SNIFF_BYTES)
    looks = None if inflated is None else describe_file(inflated[0], whole=inflated[1])
    return f"a {compression}-compressed file" + (f" (inside: {looks})" if looks else "")


def _is_snappy(head: bytes) -> bool:
    """Whether blocks of snappy begin with a frame: TensorFlow's, behind a length, or Hadoop's, behind two."""
    return any(is_plain(_unsnap(head[begin : begin + 64], 12)) for begin in (4, 8))


def _unsnap(block: bytes, most: int) -> bytes:
    """The first bytes of a snappy block, as far as its own first bytes and short elements tell."""
    made = bytearray()
    at = next((i + 1 for i in range(5) if block[i : i + 1] < b"\x80"), 5)  # behind the size, a varint
    while len(made) < most and at < len(block):
        tag = block[at]
        if tag & 3 == 0 and tag >> 2 < 60:  # a literal
            made += block[at + 1 : at + 2 + (tag >> 2)]
            at += 2 + (tag >> 2)
            continue
        width = (0, 1, 2, 4)[tag & 3]  # of the distance of a copy
        size = (tag >> 2 & 7) + 4 if width == 1 else (tag >> 2) + 1
        distance = int.from_bytes(block[at + 1 : at + 1 + width], "little") + (tag >> 5 << 8) * (width == 1)
        if not 0 < distance <= len(made):
            break
        for _ in range(size):
            made.append(made[-distance])
        at += 1 + width
    return bytes(made)


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
    if _TEXT_INDEX.fullmatch(text[:4096]):
        return "an index of a TFRecord file as text, for DALI or the tfrecord package, not the data"
    if "/annex/objects/" in text[:4096]:
        return "a git-annex pointer, not the data: fetch it with `git annex get`"
    return "text"
