"""What files that are no TFRecord files are told to be."""

import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from record_files import ALPHA, BETA, PAYLOADS, flip, frames, header

from torch_tfrecord.encode import encode_example
from torch_tfrecord.errors import NotATFRecordError
from torch_tfrecord.index import RecordIndex
from torch_tfrecord.records import read_records
from torch_tfrecord.sniff import compression_of, describe_file, is_plain


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
    "tar.gz": (gzip.compress(archive("tar")), "a gzip-compressed file (inside: a tar archive)"),
    "example.gz": (gzip.compress(EXAMPLE), "a gzip-compressed file (inside: a single Example message"),
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


@pytest.mark.parametrize(
    ("data", "looks"),
    [
        (gzip.compress(ALPHA + BETA), "a gzip-compressed TFRecord file"),
        (gzip.compress(b""), "a gzip-compressed file"),
        (gzip.compress(os.urandom(50)), "a gzip-compressed file"),
        (gzip.compress(ALPHA)[:10] + b"\xff" * 20, "a damaged gzip-compressed file"),
        (zlib.compress(ALPHA + BETA), "a zlib-compressed TFRecord file"),
        (zlib.compress(ALPHA + BETA, 0), "a zlib-compressed TFRecord file"),
        (zlib.compress(ALPHA + BETA, 9), "a zlib-compressed TFRecord file"),
        (zlib.compress(b""), "a zlib-compressed file"),
        (zlib.compress(frames([os.urandom(100_000)])), "a zlib-compressed TFRecord file"),
    ],
    ids=range(9),
)
def test_compressed(data: bytes, looks: str, tmp_path: Path) -> None:
    path = tmp_path / "a b"
    path.write_bytes(data)
    how = "gunzip < OLD > NEW" if "gzip" in looks else "zlib.decompress"
    with pytest.raises(NotATFRecordError, match="this version reads uncompressed files only") as info:
        RecordIndex.build(path, on_error="skip")
    assert str(info.value).startswith(f"{path}: it looks like {looks}, and this version")
    assert how in str(info.value)


def test_the_command_it_names_works(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_bytes(zlib.compress(ALPHA))
    with pytest.raises(NotATFRecordError) as info:
        list(read_records(path))
    command = str(info.value).split("first: ")[1].replace("OLD", str(path)).replace("NEW", str(tmp_path / "new"))
    subprocess.run(command, shell=True, check=True)
    assert (tmp_path / "new").read_bytes() == ALPHA


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
