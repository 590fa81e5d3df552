"""What files that are no TFRecord files are told to be."""

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from record_files import ALPHA, BETA, PAYLOADS, flip, frames, header

from torch_tfrecord.encode import encode_example
from torch_tfrecord.errors import NotATFRecordError
from torch_tfrecord.faults import RecordFault
from torch_tfrecord.index import RecordIndex
from torch_tfrecord.records import read_records
from torch_tfrecord.sniff import compression_mismatch, compression_of, describe_file, is_plain, may_be_zlib


def image(kind: str) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (4, 4)).save(stream, kind)
    return stream.getvalue()


def archive(kind: str) -> bytes:
    stream = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(stream, "w") as zipped:
            zipped.writestr("a", "b")
    else:
        with tarfile.open(fileobj=stream, mode="w") as tarred:
            tarred.addfile(tarfile.TarInfo("a.txt"), io.BytesIO())
    return stream.getvalue()


def numpy_file() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.arange(3))
    return stream.getvalue()


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
ANNEX = b"/annex/objects/SHA256E-s43--0b4b.tfrecord\n"
EXAMPLE = encode_example({"a": 1, "b": b"x"})

FILES = {
    "html": (b"\n<!DOCTYPE HTML>\n<html>", "an HTML page: perhaps the error page of a download"),
    "xml": (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "an XML document"),
    "tar": (archive("tar"), "a tar archive"),
    "zip": (archive("zip"), "a zip archive"),
    "parquet": (b"PAR1" + bytes(20) + b"PAR1", "a Parquet file"),
    "lfs": (LFS, "a Git LFS pointer, not the data: fetch it with `git lfs pull`"),
    "annex": (ANNEX, "a git-annex pointer"),
    "json": (json.dumps({"a": [1, 2]}).encode(), "JSON text"),
    "jsonl": (b'{"a": 1}\n{"a": 2}\n' * 9000, "JSON text"),
    "example": (EXAMPLE, "a single Example message without the frames"),
    "examples": (EXAMPLE * 3, "a single Example message without the frames"),
    "recordio": (b"\x0a\x23\xd7\xce\x05\x00\x00\x00hello\x00\x00\x00", "a RecordIO file of MXNet"),
    "png": (image("PNG"), "a PNG image"),
    "jpeg": (image("JPEG"), "a JPEG image"),
    "zeros": (bytes(5000), "nothing but zero bytes"),
    "text": ("zwölf\tKäse\r\n".encode() * 10_000, "text"),
    "bzip2": (bz2.compress(b"abc"), "a bzip2-compressed file"),
    "xz": (lzma.compress(b"abc"), "an xz-compressed file"),
    "numpy": (numpy_file(), "a NumPy array file"),
    "s3": (b"<?xml version='1.0'?>\n<Error><Code>NoSuchKey</Code></Error>", "an XML document: perhaps the error page"),
    "gcs": (b'{"error": {"code": 403, "message": "denied"}}', "JSON text"),
    "zstd": (b"\x28\xb5\x2f\xfd\x04\x00" + bytes(20), "a zstd-compressed file"),
    "lz4": (b"\x04\x22\x4d\x18\x64\x40" + bytes(20), "an lz4-compressed file"),
    "old lz4": (b"\x02\x21\x4c\x18" + bytes(20), "an lz4-compressed file"),
    "snappy": (b"\xff\x06\x00\x00sNaPpY" + bytes(20), "a snappy-compressed file"),
    "7z": (b"7z\xbc\xaf\x27\x1c\x00\x04" + bytes(24), "a 7z archive"),
    "riegeli": (
        bytes.fromhex("83af70d10d884a3f0000000000000000400000000000000091bac23c9287e1a9") + bytes(32),
        "a Riegeli or ArrayRecord file",
    ),
    "avro": (b"Obj\x01\x04\x16avro.schema", "an Avro file"),
    "orc": (b"ORC\x0a\x0b" + bytes(20), "an ORC file"),
    "dali index": (b"0 47\n47 47\n94 1044\n", "an index of a TFRecord file as text"),
}


@pytest.mark.parametrize("name", FILES)
def test_named(name: str, tmp_path: Path) -> None:
    data, looks = FILES[name]
    path = tmp_path / name
    path.write_bytes(data)
    for read in (lambda: list(read_records(path)), lambda: RecordIndex.build(path)):
        with pytest.raises(NotATFRecordError) as info:
            read()
        assert str(info.value).startswith(f"{path}: not a TFRecord file: it looks like {looks}")


def test_an_index_in_place_of_data(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(ALPHA)
    RecordIndex.build(tmp_path / "a").save(tmp_path / "a.tfrindex")
    with pytest.raises(NotATFRecordError, match="it looks like an index file of this package"):
        list(read_records(tmp_path / "a.tfrindex"))


COMPRESSED = {
    "gzip": (gzip.compress(ALPHA + BETA), "gzip", "a gzip-compressed TFRecord file"),
    "empty gzip": (gzip.compress(b""), "gzip", "a gzip-compressed file"),
    "random gzip": (gzip.compress(b"\xff" + os.urandom(50)), "gzip", "a gzip-compressed file"),
    "damaged gzip": (gzip.compress(ALPHA)[:10] + b"\xff" * 20, "gzip", "a gzip-compressed file"),
    "zlib": (zlib.compress(ALPHA + BETA), "zlib", "a zlib-compressed TFRecord file"),
    "stored": (zlib.compress(ALPHA + BETA, 0), "zlib", "a zlib-compressed TFRecord file"),
    "level 9": (zlib.compress(ALPHA + BETA, 9), "zlib", "a zlib-compressed TFRecord file"),
    "empty zlib": (zlib.compress(b""), "zlib", "a zlib-compressed file"),
    "large zlib": (zlib.compress(frames([os.urandom(100_000)])), "zlib", "a zlib-compressed TFRecord file"),
    "zlib damaged behind a frame": (
        zlib.compress(ALPHA + BETA, 0)[:30] + b"\xff" * 99,
        "zlib",
        "a zlib-compressed TFRecord file",
    ),
    "twice": (
        gzip.compress(zlib.compress(ALPHA)),
        "gzip",
        "a gzip-compressed file (inside: a zlib-compressed TFRecord file)",
    ),
}


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed(name: str) -> None:
    data, kind, looks = COMPRESSED[name]
    assert not is_plain(data)
    assert compression_of(data) == kind
    assert describe_file(data, whole=True) == looks


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_named_inside_a_compressed_file(name: str, kind: str, tmp_path: Path) -> None:
    data, looks = FILES[name]
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if kind == "gzip" else zlib.compress(data))
    for read in (lambda: list(read_records(path)), lambda: RecordIndex.build(path)):
        with pytest.raises(NotATFRecordError) as info:
            read()
        assert str(info.value).startswith(
            f"{path}: not a TFRecord file: it looks like a {kind}-compressed file (inside: {looks}"
        )
    records = read_records(path, on_error="skip")
    assert list(records) == []
    assert records.faults == [RecordFault(str(path), 0, 0, "not_a_tfrecord", path.stat().st_size)]


def test_how_much_tells_a_zlib_file() -> None:
    """As it comes out of a pipe: the first 12 bytes inside, and no more."""
    data = zlib.compress(frames([os.urandom(1000)]), 0)
    undecided = [size for size in range(len(data)) if may_be_zlib(data[:size])]
    assert undecided == list(range(2, 2 + 5 + 12))
    assert compression_of(data[:19]) == "zlib"
    assert not may_be_zlib(zlib.compress(b""))
    assert not may_be_zlib(b"\x78\x9c" + b"\xff" * 10)
    assert not may_be_zlib(gzip.compress(data))
    assert not may_be_zlib(ALPHA)
    assert not may_be_zlib(b"")


@pytest.mark.parametrize("told", [None, "gzip", "zlib"])
def test_mismatch(told: str | None) -> None:
    for content, kind, name in (
        (ALPHA, None, "a plain TFRecord file"),
        (gzip.compress(ALPHA), "gzip", "a gzip-compressed TFRecord file"),
        (zlib.compress(ALPHA), "zlib", "a zlib-compressed TFRecord file"),
        (gzip.compress(archive("tar")), "gzip", "a gzip-compressed file (inside: a tar archive)"),
    ):
        error = compression_mismatch("a", content, told)
        assert (error is None) == (kind == told)
        assert error is None or f"found {name}: pass" in str(error)
    for content in (b"", ALPHA[:11], b"garbage of some length", flip(ALPHA, 3)):
        assert compression_mismatch("a", content, told) is None


# --- snappy: made by hand, as no package for it is at hand ---


def snappy_block(data: bytes) -> bytes:
    """As TensorFlow writes: the size, then 60 bytes at a time without compression."""
    block = bytes([len(data) & 127 | 128, len(data) >> 7])
    for begin in range(0, len(data), 60):
        piece = data[begin : begin + 60]
        block += bytes([len(piece) - 1 << 2]) + piece
    return block


@pytest.mark.parametrize(
    "block",
    [
        snappy_block(frames([b"x" * 1000])),
        # A header of 5, then zeros as a copy of the zero before: literal of 2 bytes, copy of 6 with distance 1.
        b"\x15" + bytes([1 << 2]) + ALPHA[:2] + bytes([6 - 4 << 2 | 1, 1]) + bytes([12 << 2]) + ALPHA[8:],
        b"\x15" + bytes([1 << 2]) + ALPHA[:2] + bytes([6 - 1 << 2 | 2, 1, 0]) + bytes([12 << 2]) + ALPHA[8:],
        b"\x15" + bytes([1 << 2]) + ALPHA[:2] + bytes([6 - 1 << 2 | 3, 1, 0, 0, 0]) + bytes([12 << 2]) + ALPHA[8:],
    ],
    ids=["literal", "copy 1", "copy 2", "copy 4"],
)
def test_snappy_blocks(block: bytes) -> None:
    size = len(block).to_bytes(4, "big")
    assert describe_file(size + block, whole=True) == "a snappy-compressed TFRecord file"
    assert describe_file(b"\0\0\x04\0" + size + block, whole=True) == "a snappy-compressed TFRecord file"
    assert describe_file(size + block[:10], whole=True) != "a snappy-compressed TFRecord file"


@given(data=st.binary(max_size=80))
def test_any_bytes_are_described_or_not(data: bytes) -> None:
    describe_file(data, whole=True)
    describe_file(b"\0\0\0\x50" + data, whole=True)
    may_be_zlib(b"\x78\x9c" + data)


def test_damaged_tfrecords_are_not_taken_for_other_files() -> None:
    whole = frames(PAYLOADS)
    for position in range(12):
        for bit in range(8):
            head = flip(whole, position, 1 << bit)
            assert describe_file(head, whole=True) is None, (position, bit)
    for size in range(12):
        assert describe_file(whole[:size], whole=True) is None, size


@pytest.mark.parametrize("length", [559_903, 0x9C78, 0x0178, 0xDA78, 0x0A, 0x3C, 0x7B])
def test_lengths_that_spell_a_magic_number(length: int) -> None:
    head = header(length)
    assert is_plain(head)
    if length != 559_903:
        assert compression_of(flip(head, 9) + bytes(100)) is None


def test_a_short_file_is_not_called_zeros(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(11))
    assert describe_file(bytes(11), whole=True) is None
    assert describe_file(b"", whole=True) is None
    assert not is_plain(b"")
