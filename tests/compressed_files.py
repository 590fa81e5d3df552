"""Compressed TFRecord files for tests, and what reads the same records from them and from a plain twin."""

from __future__ import annotations

import gzip
import itertools
import zlib
from pathlib import Path

from record_files import frames

KINDS = ("gzip", "zlib", "members")


def compress(data: bytes, kind: str) -> bytes:
    """A whole file's bytes; "members" is gzip of many, one of them empty, whose boundaries lie anywhere."""
    if kind == "zlib":
        return zlib.compress(data)
    if kind == "gzip":
        return gzip.compress(data, mtime=0)
    cuts = sorted((0, 5, 12, len(data) // 3, len(data) // 3, len(data)))
    return b"".join(gzip.compress(data[begin:end], mtime=0) for begin, end in itertools.pairwise(cuts))


def codec(kind: str) -> str:
    """What an index calls it."""
    return "gzip" if kind == "members" else kind


def write_compressed(path: Path, payloads: list[bytes], kind: str = "gzip") -> str:
    path.write_bytes(compress(frames(payloads), kind))
    return str(path)


def compress_file(path: str, kind: str = "gzip") -> None:
    """Replace a plain file by a compressed one of the same name."""
    Path(path).write_bytes(compress(Path(path).read_bytes(), kind))
