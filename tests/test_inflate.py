"""Inflating: any pieces give the same bytes, data come before errors, and each kind of damage has its name."""

from __future__ import annotations

import errno
import gzip
import io
import os
import random
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inflate_oracle import inflate_slowly
from record_files import flip, frames
from typing_extensions import Buffer

from torch_tfrecord import inflate
from torch_tfrecord.inflate import InflatedFile, InflateError, Kind

SIZES = st.integers(1, 300) | st.just(1 << 20)


class Source:
    """A file that gives at most so many bytes at a read; or a pipe."""

    def __init__(self, data: bytes, most: int = 1 << 20, *, pipe: bool = False) -> None:
        self.data = data
        self.position = 0
        self._most = most
        self._pipe = pipe

    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer)
        piece = self.data[self.position :][: min(self._most, len(view))]
        view[: len(piece)] = piece
        self.position += len(piece)
        return len(piece)

    def seekable(self) -> bool:
        return not self._pipe

    def seek(self, position: int, /) -> int:
        assert not self._pipe
        self.position = position
        return position

    def tell(self) -> int:
        assert not self._pipe
        return self.position


def read_all(file: InflatedFile, room: int = 1 << 16, *, start: int = 0) -> tuple[bytes, InflateError | None]:
    """All bytes from where it stands, and the error after them."""
    made = bytearray()
    buffer = bytearray(room)
    try:
        while count := file.readinto(buffer):
            made += buffer[:count]
            assert file.offset == start + len(made)
    except InflateError as error:
        return bytes(made), error
    return bytes(made), None


def outcome(data: bytes, kind: Kind, *, pipe: bool = False) -> tuple[bytes, tuple[str, int, int] | None]:
    made, error = read_all(InflatedFile(Source(data, pipe=pipe), kind))
    return made, None if error is None else (error.code, error.expected, error.found)


def members(*contents: bytes) -> bytes:
    return b"".join(gzip.compress(content, mtime=0) for content in contents)


def with_fields(content: bytes, flags: int, fields: bytes) -> bytes:
    """A gzip file with optional fields in its header."""
    whole = gzip.compress(content, mtime=0)
    return whole[:3] + bytes([flags]) + whole[4:10] + fields + whole[10:]


both_ways = pytest.mark.parametrize("pipe", [False, True], ids=["file", "pipe"])

DATA = frames([b"alpha", b"", random.Random(1).randbytes(200), b"ab" * 500])
FILES: dict[str, tuple[bytes, Kind]] = {
    "gzip": (gzip.compress(DATA, mtime=0), "gzip"),
    "stored": (gzip.compress(DATA, 0, mtime=0), "gzip"),
    "members": (members(DATA[:50], b"", DATA[50:51], DATA[51:], b""), "gzip"),
    "zlib": (zlib.compress(DATA), "zlib"),
}
DAMAGED = gzip.compress(DATA, mtime=0)[:10] + b"\xff" * 50  # a block of a kind that there is not


# --- whole streams ---


@both_ways
@pytest.mark.parametrize("name", FILES)
@given(most=SIZES, room=SIZES, chunk=SIZES, piece=SIZES)
def test_any_pieces_give_the_same(name: str, pipe: bool, most: int, room: int, chunk: int, piece: int) -> None:
    data, kind = FILES[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inflate, "_CHUNK_BYTES", chunk)
        patch.setattr(inflate, "_PIECE_BYTES", piece)
        file = InflatedFile(Source(data, most, pipe=pipe), kind)
        assert read_all(file, room) == (DATA, None)
        assert file.readinto(bytearray(room)) == 0
        assert file.compressed_offset == len(data)


@both_ways
@given(contents=st.lists(st.binary(max_size=100), max_size=6), most=SIZES)
def test_members(pipe: bool, contents: list[bytes], most: int) -> None:
    source = Source(members(*contents), most, pipe=pipe)
    assert read_all(InflatedFile(source, "gzip")) == (b"".join(contents), None)


@pytest.mark.parametrize("level", [0, 1, 6, 9])
@pytest.mark.parametrize("strategy", [zlib.Z_DEFAULT_STRATEGY, zlib.Z_HUFFMAN_ONLY, zlib.Z_FIXED, zlib.Z_RLE])
def test_large(level: int, strategy: int) -> None:
    content = random.Random(2).randbytes(300_000) + b"text " * 200_000 + bytes(3_000_000)
    deflater = zlib.compressobj(level, zlib.DEFLATED, 31, 9, strategy)
    data = b"".join(
        deflater.compress(content[i : i + 70_000]) + deflater.flush(zlib.Z_SYNC_FLUSH)
        for i in range(0, len(content), 70_000)
    )
    data += deflater.flush()
    assert outcome(data, "gzip") == (content, None)
    assert outcome(data, "gzip", pipe=True) == (content, None)


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_an_empty_file_is_an_empty_stream(kind: Kind) -> None:
    assert outcome(b"", kind) == (b"", None)


def test_an_empty_buffer_gets_nothing() -> None:
    file = InflatedFile(Source(FILES["gzip"][0]), "gzip")
    assert file.readinto(bytearray()) == 0
    assert read_all(file) == (DATA, None)


def test_head_that_was_read_already() -> None:
    for name, (data, kind) in FILES.items():
        for size in (0, 1, 5, 30, len(data)):
            for pipe in (False, True):
                source = Source(data, 100, pipe=pipe)
                source.position = size
                assert read_all(InflatedFile(source, kind, data[:size])) == (DATA, None), (name, size)


def test_stream_inside_a_file(tmp_path: Path) -> None:
    """Its start is where the file stands, also where damage makes it be read again."""
    data = flip(FILES["gzip"][0], 120)
    (tmp_path / "a").write_bytes(b"something before" + data)
    with open(tmp_path / "a", "rb", buffering=0) as raw:
        assert isinstance(raw, io.FileIO)
        raw.seek(16)
        made, error = read_all(InflatedFile(raw, "gzip"))
    assert error is not None
    assert (made, error.code) == inflate_slowly(data, "gzip")[0]


# --- headers ---


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        (1, b""),  # perhaps text
        (4, b"\x03\x00abc"),
        (4, b"\x00\x00"),
        (4, b"\xff\xff" + bytes(65535)),
        (8, b"name.tfrecord\0"),
        (16, b"a comment\0"),
        (4 + 8 + 16, b"\x01\x00x" + b"name\0" + b"\0"),
    ],
)
@both_ways
def test_optional_fields(flags: int, fields: bytes, pipe: bool) -> None:
    data = with_fields(DATA, flags, fields)
    assert gzip.decompress(data) == DATA
    assert outcome(data, "gzip", pipe=pipe) == (DATA, None)
    assert outcome(members(b"x") + data, "gzip", pipe=pipe) == (b"x" + DATA, None)
    for size in range(1, min(10 + len(fields), 60)):
        assert outcome(data[:size], "gzip", pipe=pipe) == (b"", ("inflate_truncated", 0, size))


def test_checksum_of_the_header() -> None:
    head = with_fields(DATA, 2 + 8, b"name\0")[:15]
    checksum = (zlib.crc32(head) & 0xFFFF).to_bytes(2, "little")
    data = head + checksum + gzip.compress(DATA, mtime=0)[10:]
    assert outcome(data, "gzip") == (DATA, None)
    assert outcome(flip(data, 12), "gzip") == (b"", ("inflate_data", 0, 0))
    assert outcome(members(b"x") + flip(data, 16), "gzip")[1] == ("inflate_data", 0, len(members(b"x")))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (flip(FILES["gzip"][0], 0), "gzip"),
        (flip(FILES["gzip"][0], 2), "gzip"),
        (flip(FILES["gzip"][0], 3, 0x80), "gzip"),  # a reserved flag
        (FILES["zlib"][0], "gzip"),
        (FILES["gzip"][0], "zlib"),
        (flip(FILES["zlib"][0], 0), "zlib"),
        (b"\x88\x1c" + FILES["zlib"][0][2:], "zlib"),  # a window of 64 KiB
        (b"\x78\xbb\0\0\0\0" + FILES["zlib"][0][2:], "zlib"),  # a preset dictionary
        (b"x", "gzip"),
    ],
    ids=range(9),
)
def test_wrong_headers(data: bytes, kind: Kind) -> None:
    assert outcome(data, kind) == (b"", ("inflate_data", 0, 0))


def test_a_name_without_end_is_refused_in_little_memory() -> None:
    file = InflatedFile(Source(with_fields(b"", 8, b"x" * 10_000_000)), "gzip")
    made, error = read_all(file)
    assert error is not None
    assert (made, error.code) == (b"", "inflate_data")
    assert file._taken < 2_000_000


# --- damage ---


@both_ways
def test_trailer(pipe: bool) -> None:
    data = FILES["gzip"][0]
    crc = zlib.crc32(DATA)
    assert outcome(flip(data, -8), "gzip", pipe=pipe) == (DATA, ("inflate_checksum", crc ^ 1, crc))
    assert outcome(flip(data, -4), "gzip", pipe=pipe) == (DATA, ("inflate_checksum", len(DATA) ^ 1, len(DATA)))
    adler = zlib.adler32(DATA)
    assert outcome(flip(FILES["zlib"][0], -1), "zlib", pipe=pipe) == (DATA, ("inflate_checksum", adler ^ 1, adler))
    for cut in range(1, 9):
        assert outcome(data[:-cut], "gzip", pipe=pipe) == (DATA, ("inflate_trailer_missing", 8, 8 - cut))
    for cut in range(1, 5):
        assert outcome(FILES["zlib"][0][:-cut], "zlib", pipe=pipe) == (DATA, ("inflate_trailer_missing", 4, 4 - cut))


@both_ways
def test_reading_goes_on_behind_a_wrong_checksum(pipe: bool) -> None:
    file = InflatedFile(Source(flip(members(b"first"), -5) + members(b"second"), pipe=pipe), "gzip")
    made, error = read_all(file)
    assert error is not None
    assert (made, error.code) == (b"first", "inflate_checksum")
    buffer = bytearray(10)
    assert file.readinto(buffer) == 6
    assert bytes(buffer[:6]) == b"second"
    assert file.offset == 11
    assert file.readinto(buffer) == 0


@both_ways
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "tail", [b"g", b"\0", b"garbage and more of it", bytes(1000), b"\x1f\x8cxxxxxxxx", FILES["zlib"][0]]
)
def test_what_follows_the_end(name: str, tail: bytes, pipe: bool) -> None:
    data, kind = FILES[name]
    peeked = tail[:8]
    expected = ("inflate_trailing", len(peeked), int.from_bytes(peeked, "big"))
    assert outcome(data + tail, kind, pipe=pipe) == (DATA, expected)


def test_a_second_zlib_stream_is_an_error() -> None:
    data = zlib.compress(b"first") + zlib.compress(b"second")
    assert outcome(data, "zlib") == (
        b"first",
        ("inflate_trailing", 8, int.from_bytes(zlib.compress(b"second")[:8], "big")),
    )


@both_ways
def test_a_second_member_that_is_cut(pipe: bool) -> None:
    second = members(b"second")
    for size in range(1, 10):
        whole = members(b"first")
        assert outcome(whole + second[:size], "gzip", pipe=pipe) == (
            b"first",
            ("inflate_truncated", 0, len(whole) + size),
        )


@pytest.mark.parametrize("name", FILES)
def test_cut_at_every_byte(name: str) -> None:
    data, kind = FILES[name]
    for size in range(len(data)):
        ((made, code),) = inflate_slowly(data[:size], kind)
        for source in (Source(data[:size]), Source(data[:size], 1), Source(data[:size], 7, pipe=True)):
            got, error = read_all(InflatedFile(source, kind), 50)
            assert (got, None if error is None else error.code) == (made, code), size
            assert DATA.startswith(got)
            if code == "inflate_truncated":
                assert error is not None
                assert error.found == size


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("decoder", ["zlib", "isal"])
def test_flip_at_every_byte(name: str, decoder: str) -> None:
    """As zlib says; only isal takes some streams whose code tables have gaps, and then finds their checksum wrong."""
    data, kind = FILES[name]
    lenient = 0
    for position in range(0, len(data), 1 + len(data) // 400):
        damaged = flip(data, position, 1 << position * 5 % 8)
        made, code = inflate_slowly(damaged, kind)[0]
        found = set()
        for most, room in ((1 << 20, 1 << 20), (1, 7), (13, 1)):
            got, error = read_all(InflatedFile(Source(damaged, most, pipe=decoder == "zlib"), kind), room)
            found.add((got, None if error is None else error.code))
        assert len(found) == 1, position
        if found != {(made, code)}:
            lenient += 1
            ((got, got_code),) = found
            assert (decoder, code) == ("isal", "inflate_data"), position
            assert got.startswith(made)
            assert got_code is not None or got == DATA
    assert lenient <= len(data) // 20


def test_damage_in_a_later_part() -> None:
    """All before it comes first, whatever was given before the damage was found."""
    content = b"".join(random.Random(3).randbytes(100) * 30 for _ in range(400))
    data = gzip.compress(content, mtime=0)
    for position in range(5000, len(data) - 8, 4001):
        damaged = flip(data, position, 0x10)
        decoder = zlib.decompressobj(31)
        made = decoder.decompress(damaged[:position])
        got, error = read_all(InflatedFile(Source(damaged), "gzip"))
        assert error is not None
        assert got.startswith(made)
        assert (got, error.code) == (
            read_all(InflatedFile(Source(damaged, 999, pipe=True), "gzip"), 999)[0],
            error.code,
        )


def test_damage_comes_again() -> None:
    for damaged in (DAMAGED, FILES["gzip"][0] + b"tail"):
        file = InflatedFile(Source(damaged), "gzip")
        made, first = read_all(file)
        again = read_all(file, start=len(made))[1]
        assert first is not None
        assert again is not None
        assert first.args == again.args


@both_ways
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_grows(name: str, pipe: bool) -> None:
    data, kind = FILES[name]
    source = Source(b"", pipe=pipe)
    file = InflatedFile(source, kind)
    got = bytearray()
    for size in range(0, len(data) + 1, 7):
        source.data = data[:size]
        made, error = read_all(file, start=len(got))
        got += made
        assert error is None or error.code in ("inflate_truncated", "inflate_trailer_missing")
    source.data = data
    got += read_all(file, start=len(got))[0]
    assert got == DATA


class Broken(Source):
    def readinto(self, buffer: Buffer, /) -> int:
        if self.position >= 40:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().readinto(memoryview(buffer)[:20])


def test_a_read_that_fails() -> None:
    with pytest.raises(OSError, match="Input/output error"):
        read_all(InflatedFile(Broken(FILES["gzip"][0]), "gzip"))


def test_most_left_is_never_less_than_what_comes() -> None:
    content = bytes(50_000_000)
    data = gzip.compress(content, mtime=0)
    file = InflatedFile(Source(data), "gzip")
    buffer = bytearray(1 << 18)
    while file.readinto(buffer):
        assert file.most_left(len(data)) >= len(content) - file.offset
    assert file.most_left(len(data)) <= 1 << 20


def test_pieces_are_bounded() -> None:
    """A bomb, 1000 times as large as its file: no call makes more than a piece of it."""
    file = InflatedFile(Source(gzip.compress(bytes(30_000_000), mtime=0)), "gzip")
    buffer = bytearray(1 << 24)
    counts = []
    while count := file.readinto(buffer):
        counts.append(count)
    assert sum(counts) == 30_000_000
    assert max(counts) <= inflate._PIECE_BYTES
