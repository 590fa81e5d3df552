"""Compressed files read in sequence: the exact rule for each situation, in both cores, and nothing lost in silence."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import logging
import os
import random
import re
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
from compressed_files import KINDS, codec, compress
from inflate_oracle import expect, inflate_slowly
from isal import isal_zlib
from jobs import both_cores, native
from record_files import ALPHA, BETA, PAYLOADS, flip, frame, frames, header, starts, write_file
from tensorflow_oracle import run_blocks

from torch_tfrecord import inflate, record_file, sniff
from torch_tfrecord.errors import DataLossError, NotATFRecordError
from torch_tfrecord.records import Compression, OnError, Verify, read_records
from torch_tfrecord.writer import TFRecordWriter

MEMORY = """
import resource, sys
from torch_tfrecord.errors import DataLossError
from torch_tfrecord.records import read_records
next(read_records({small!r}))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
count = size = 0
try:
    for record in read_records({path!r}):
        count += 1
        size += len(record)
    error = ""
except DataLossError as problem:
    error = str(problem)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(count, size, grown * (1 if sys.platform == "darwin" else 1024), error)
"""

PLACE = re.compile(r": record (\d+) at byte (\d+) of the uncompressed stream")
REASONS = {
    "truncated header": "truncated_header",
    "truncated record": "truncated_payload",
    "length checksum": "length_crc",
    "data checksum": "data_crc",
    "damaged": "inflate_data",
    "and no mark of its end": "inflate_truncated",
    "bytes after it are there": "inflate_trailer_missing",
    "is not what was compressed": "inflate_checksum",
    "data after the end of": "inflate_trailing",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.tfrecord"


@pytest.fixture(params=["isal", "zlib"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With "zlib", as a pipe is inflated; with "isal", as a file is."""
    if request.param == "zlib":
        monkeypatch.setattr(isal_zlib, "decompressobj", lambda _: inflate._Careful())
    return str(request.param)


def use(core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read records with one of the two cores."""
    monkeypatch.setattr(record_file, "core", core)
    monkeypatch.setattr(sniff, "core", core)


def read(path: Path, **options: Any) -> tuple[list[bytes], DataLossError | None]:
    payloads: list[bytes] = []
    try:
        for payload in read_records(path, **options):
            payloads.append(payload)
    except DataLossError as error:
        return payloads, error
    return payloads, None


def reason_of(error: DataLossError) -> str:
    (reason,) = [code for says, code in REASONS.items() if says in str(error)]
    return reason


def skipped(path: Path, **options: Any) -> tuple[list[bytes], list[tuple[int, int, str, int | None]]]:
    iterator = read_records(path, on_error="skip", **options)
    payloads = list(iterator)
    assert {fault.path for fault in iterator.faults} <= {str(path)}
    return payloads, [(fault.record, fault.offset, fault.reason, fault.bytes_lost) for fault in iterator.faults]


def check(path: Path, data: bytes, kind: str, *, lenient: bool = False) -> bool:
    """Hold what is read from a damaged file against what zlib makes of it; whether they are the same.

    With ``lenient``, where zlib finds damage in the data, isal may go on and find the checksum wrong.
    """
    path.write_bytes(data)
    parts = inflate_slowly(data, codec(kind))
    strict, skipping = expect(parts, skip=False), expect(parts, skip=True)
    told: Any = codec(kind)  # since what is damaged in its first bytes may look like nothing
    payloads, error = read(path, compression=told)
    found = []
    if error is not None:
        place = PLACE.search(str(error))
        assert place, error
        found = [(int(place[1]), int(place[2]), reason_of(error))]
    got = skipped(path, compression=told)
    same = (payloads, found) == (strict.payloads, [fault[:3] for fault in strict.faults])
    same = same and got == (skipping.payloads, skipping.faults)
    assert same or (lenient and any(code == "inflate_data" for _, code in parts)), (strict, found, got)
    return same


# --- whole files ---


@both_cores
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verify", ["none", "length", "all"])
@pytest.mark.parametrize(
    "payloads", [[], [b""], PAYLOADS, [random.Random(1).randbytes(700_000), b"", b"x" * 3_000_000]]
)
def test_whole(
    path: Path, core: Any, kind: str, verify: Verify, payloads: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(core, monkeypatch)
    path.write_bytes(compress(frames(payloads), kind))
    told: list[Compression] = ["auto", "gzip", "GZIP"] if codec(kind) == "gzip" else ["auto", "zlib", "ZLIB"]
    for compression in told:
        for on_error in ("raise", "skip"):
            iterator = read_records(path, compression=compression, verify=verify, on_error=on_error)
            assert list(iterator) == payloads
            assert iterator.faults == []


@both_cores
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [12, 13, 27, 100, 4096])
def test_any_chunk_size_gives_the_same(
    path: Path, core: Any, kind: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(core, monkeypatch)
    payloads = [bytes([number]) * (number * 37 % 400) for number in range(60)]
    path.write_bytes(compress(frames(payloads), kind))
    monkeypatch.setattr(record_file, "_CHUNK_BYTES", chunk)
    for raw in (1, 2, 11, 1000):
        monkeypatch.setattr(inflate, "_CHUNK_BYTES", raw)
        monkeypatch.setattr(inflate, "_PIECE_BYTES", chunk % 7 + raw)
        assert list(read_records(path)) == payloads


@pytest.mark.parametrize("boundary", range(len(ALPHA + BETA) + 1))
def test_members_may_meet_anywhere(path: Path, boundary: int) -> None:
    data = ALPHA + BETA
    empty = gzip.compress(b"")
    path.write_bytes(empty + gzip.compress(data[:boundary]) + empty * 3 + gzip.compress(data[boundary:]) + empty)
    assert list(read_records(path)) == [b"alpha", b"beta"]


def test_several_files_of_several_kinds(tmp_path: Path) -> None:
    """The name of a file says nothing."""
    for name, data in {
        "a.gz": frames([b"plain"]),
        "b.tfrecord": gzip.compress(frames([b"gzip"])),
        "c.zz": b"",
        "d": zlib.compress(frames([b"zlib"])),
    }.items():
        (tmp_path / name).write_bytes(data)
    assert list(read_records(tmp_path)) == [b"plain", b"gzip", b"zlib"]


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_an_empty_file_is_whole_as_either_kind(path: Path, kind: Compression) -> None:
    path.touch()
    assert list(read_records(path, compression=kind)) == []


def test_a_plain_file_that_starts_like_gzip(path: Path) -> None:
    payload = bytes(559_903)  # its length is spelled 1f 8b 08 00 00 00 00 00
    write_file(path, [payload, b"next"])
    assert list(read_records(path)) == [payload, b"next"]
    with pytest.raises(NotATFRecordError, match=r"expected a gzip file, .* found a plain TFRecord file"):
        list(read_records(path, compression="gzip"))
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert list(read_records(path)) == [payload, b"next"]


CONTENTS = {None: frames(PAYLOADS), "gzip": gzip.compress(frames(PAYLOADS)), "zlib": zlib.compress(frames(PAYLOADS))}


@pytest.mark.parametrize("told", CONTENTS)
@pytest.mark.parametrize("is_really", CONTENTS)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_told_kind_that_is_not_the_content(path: Path, told: Any, is_really: str | None, on_error: OnError) -> None:
    path.write_bytes(CONTENTS[is_really])
    iterator = read_records(path, compression=told, on_error=on_error)
    if told == is_really:
        assert list(iterator) == PAYLOADS
        return
    looks = "a plain TFRecord file" if is_really is None else f"a {is_really}-compressed TFRecord file"
    wanted = "an uncompressed file" if told is None else f"a {told} file"
    says = f'{path}: expected {wanted}, as compression={told!r} says, found {looks}: pass compression="auto"'
    with pytest.raises(NotATFRecordError, match=re.escape(says)):
        list(iterator)
    assert list(iterator) == []


def test_told_kind_of_a_file_that_looks_like_nothing(path: Path) -> None:
    path.write_bytes(flip(CONTENTS["gzip"], 0))
    with pytest.raises(DataLossError, match="length checksum"):
        list(read_records(path))
    with pytest.raises(
        DataLossError, match="record 0 at byte 0 of the uncompressed stream: damaged gzip data, about byte 0"
    ):
        list(read_records(path, compression="gzip"))


# --- damage inside the uncompressed stream: as in a plain file ---


@both_cores
@pytest.mark.parametrize("kind", KINDS)
def test_uncompressed_stream_cut_at_every_byte(
    path: Path, core: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(core, monkeypatch)
    whole = frames(PAYLOADS)
    for size in range(len(whole) + 1):
        check(path, compress(whole[:size], kind), kind)


@both_cores
@pytest.mark.parametrize("kind", KINDS)
def test_uncompressed_stream_flipped_at_every_byte(
    path: Path, core: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(core, monkeypatch)
    whole = frames(PAYLOADS)
    ends = starts(PAYLOADS)
    for position in range(len(whole)):
        data = flip(whole, position, 1 << position % 8)
        check(path, compress(data, kind), kind)
        record = sum(end <= position for end in ends[1:])
        lost = len(whole) - ends[record] if position - ends[record] < 12 else ends[record + 1] - ends[record]
        _, ((number, offset, _, bytes_lost),) = skipped(path, compression="zlib" if kind == "zlib" else "gzip")
        assert (number, offset, bytes_lost) == (record, ends[record], lost)


TAILS = {
    "stray": b"tail",
    "garbage": b"garbage after it",
    "zeros": bytes(100),
    "header only": header(40),
    "no payload": header(40) + b"x",
    "no footer": header(4) + b"abcd\0\0",
    "2**31 + 10": header(2**31 + 10) + b"x",
    "2**32": header(2**32) + b"x",
    "2**40": header(2**40) + bytes(300_000),
    "2**63 - 1": header(2**63 - 1),
    "2**63": header(2**63),
    "2**64 - 4": header(2**64 - 4),
    "2**64 - 1": header(2**64 - 1) + bytes(300_000),
}


@both_cores
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tail", TAILS)
def test_what_stands_after_a_good_record(
    path: Path, core: Any, kind: str, tail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(core, monkeypatch)
    data = ALPHA + TAILS[tail]
    path.write_bytes(compress(data, kind))
    payloads, error = read(path)
    assert payloads == [b"alpha"]
    assert str(error).startswith(f"{path}: record 1 at byte 21 of the uncompressed stream: ")
    plain = path.with_suffix(".plain")
    plain.write_bytes(data)
    _, same = read(plain)
    assert str(error).replace(" of the uncompressed stream", "") == str(same).replace(str(plain), str(path))
    got, plain_faults = skipped(path), skipped(plain)
    assert got == plain_faults


@both_cores
def test_data_checksum_names_the_payload_too(path: Path, core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    use(core, monkeypatch)
    path.write_bytes(gzip.compress(ALPHA + flip(BETA, 13)))
    _, error = read(path)
    assert str(error).startswith(
        f"{path}: record 1 at byte 21 of the uncompressed stream (payload at byte 33): corrupted record, data checksum"
    )


# --- damage of the compressed stream ---


@both_cores
@pytest.mark.parametrize("kind", KINDS)
def test_cut_at_every_byte(path: Path, core: Any, kind: str, decoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never a clean end, also where the cut falls on the end of a record or in the next header."""
    use(core, monkeypatch)
    data = compress(frames([*PAYLOADS, random.Random(1).randbytes(100)]), kind)
    for size in range(1, len(data)):
        check(path, data[:size], kind)
        payloads, error = read(path)
        clean = kind == "members" and inflate_slowly(data[:size], "gzip")[-1][1] is None
        assert (error is None) <= clean
        assert PAYLOADS[: len(payloads)] == payloads[: len(PAYLOADS)]


def test_cut_on_record_boundaries_is_an_error(path: Path) -> None:
    """zlib's full flush puts one in the file after each record: TensorFlow takes such a cut for the end."""
    deflater = zlib.compressobj(wbits=31)
    data, ends = deflater.flush(zlib.Z_FULL_FLUSH), []
    for payload in PAYLOADS:
        data += deflater.compress(frame(payload)) + deflater.flush(zlib.Z_FULL_FLUSH)
        ends.append(len(data))
    for number, end in enumerate(ends, 1):
        path.write_bytes(data[:end])
        payloads, error = read(path)
        assert payloads == PAYLOADS[:number]
        at = starts(PAYLOADS)[number]
        assert str(error) == (
            f"{path}: record {number} at byte {at} of the uncompressed stream: truncated gzip stream, {end:,} bytes and "
            'no mark of its end. The file was cut short. Copy the file again from its source, or pass on_error="skip" '
            "to use the records before that"
        )
        assert skipped(path) == (PAYLOADS[:number], [(number, at, "inflate_truncated", None)])


@both_cores
@pytest.mark.parametrize("kind", KINDS)
def test_flip_at_every_byte(path: Path, core: Any, kind: str, decoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(core, monkeypatch)
    random_part = random.Random(2).randbytes(60)
    data = compress(frames([*PAYLOADS, random_part, b"ab" * 30, random_part]), kind)
    differ = 0
    for position in range(len(data)):
        damaged = flip(data, position, 1 << position * 3 % 8)
        differ += not check(path, damaged, kind, lenient=decoder == "isal")
    assert differ <= len(data) // 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_bit_of_4_kb(path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is read was written, and what was not read is a fault, or an error.

    Not always in order: a flipped distance in the compressed data can copy a whole earlier record in place of another,
    which only the checksum of the stream tells.
    """
    caplog.set_level(logging.CRITICAL)
    rng = random.Random(3)
    payloads = [b"%03d" % number + rng.randbytes(rng.randrange(40)) * rng.randrange(1, 4) for number in range(130)]
    data = compress(frames(payloads), kind)
    assert len(data) > 4000
    written = set(payloads)
    for bit in range(4096 * 8):
        path.write_bytes(flip(data, min(bit // 8, len(data) - 1), 1 << bit % 8))
        records = read_records(path, on_error="skip")
        kept = list(records)
        assert written.issuperset(kept), bit
        assert records.faults or kept == payloads, bit
        if bit % 16 == bit // 16 % 16:  # which costs as much again
            got, error = read(path)
            assert got == kept[: len(got)], bit
            assert (error is None) == (not records.faults), bit


@both_cores
@pytest.mark.parametrize(("kind", "size"), [("gzip", 8), ("zlib", 4)])
def test_missing_trailer(path: Path, core: Any, kind: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use(core, monkeypatch)
    for cut in range(1, size + 1):
        path.write_bytes(compress(ALPHA + BETA, kind)[:-cut])
        payloads, error = read(path)
        assert payloads == [b"alpha", b"beta"]
        assert str(error).startswith(
            f"{path}: record 2 at byte 41 of the uncompressed stream: truncated {kind} stream: its data is whole, but "
            f"only {size - cut} of the {size} bytes after it are there"
        )
        assert skipped(path) == ([b"alpha", b"beta"], [(2, 41, "inflate_trailer_missing", 0)])


@both_cores
@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_wrong_trailer(path: Path, core: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow delivers nothing then."""
    use(core, monkeypatch)
    for position in range(-8 if kind == "gzip" else -4, 0):
        path.write_bytes(flip(compress(ALPHA + BETA, kind), position))
        payloads, error = read(path)
        assert payloads == [b"alpha", b"beta"]
        assert f"the {kind} data that ends here is not what was compressed, checksum or size: stored 0x" in str(error)
        assert skipped(path) == ([b"alpha", b"beta"], [(2, 41, "inflate_checksum", 0)])


def test_wrong_trailer_of_a_member_costs_nothing_behind_it(path: Path) -> None:
    whole = frames(PAYLOADS)
    for boundary in range(len(whole) + 1):
        path.write_bytes(flip(gzip.compress(whole[:boundary]), -6) + gzip.compress(whole[boundary:]))
        record = sum(end <= boundary for end in starts(PAYLOADS)[1:])
        assert skipped(path) == (PAYLOADS, [(record, starts(PAYLOADS)[record], "inflate_checksum", 0)])
        assert read(path)[0] == PAYLOADS[:record]


@both_cores
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("tail", "says"),
    [
        (b"garbage", "bytes that begin with 67 61 72 62 61 67 65."),
        (b"\0", "zero bytes."),
        (bytes(10_000), "zero bytes."),
        (zlib.compress(ALPHA), f"bytes that begin with {zlib.compress(ALPHA)[:8].hex(' ')}."),
        (ALPHA, "bytes that begin with 05 00 00 00 00 00 00 00."),
    ],
    ids=["garbage", "zero", "zeros", "zlib", "plain"],
)
def test_what_follows_the_end(
    path: Path, core: Any, kind: str, tail: bytes, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(core, monkeypatch)
    path.write_bytes(compress(ALPHA + BETA, kind) + tail)
    payloads, error = read(path)
    assert payloads == [b"alpha", b"beta"]
    assert f"data after the end of the {codec(kind)} stream: {says}" in str(error)
    assert skipped(path) == ([b"alpha", b"beta"], [(2, 41, "inflate_trailing", None)])


# --- how much may be left out ---


def damaged_files(tmp_path: Path) -> list[str]:
    contents = [
        flip(ALPHA, 13) + BETA,
        gzip.compress(ALPHA + flip(BETA, 13)),
        zlib.compress(ALPHA)[:-1],
        b"<html>",
        compress(flip(ALPHA, 3), "gzip"),
    ]
    for number, content in enumerate(contents):
        (tmp_path / str(number)).write_bytes(content)
    return [str(tmp_path / str(number)) for number in range(len(contents))]


@pytest.mark.parametrize("max_faults", range(7))
def test_max_faults(tmp_path: Path, max_faults: int) -> None:
    iterator = read_records(damaged_files(tmp_path), on_error="skip", max_faults=max_faults)
    if max_faults >= 5:
        assert list(iterator) == [b"beta", b"alpha", b"alpha"]
        assert len(iterator.faults) == 5
        return
    with pytest.raises(DataLossError) as info:
        list(iterator)
    assert str(info.value).startswith(
        f"damage in {max_faults + 1} place{'s' * (max_faults > 0)}, where max_faults={max_faults} allows less: {iterator.faults[0]}"
    )
    assert len(iterator.faults) == max_faults + 1
    assert all(str(fault) in str(info.value) for fault in iterator.faults)
    assert list(iterator) == []


def test_max_faults_allows_as_many_good_records_as_there_are(path: Path) -> None:
    write_file(path, PAYLOADS)
    assert list(read_records(path, on_error="skip", max_faults=0)) == PAYLOADS


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_faults": 1}, 'max_faults .* needs on_error="skip"'),
        ({"max_faults": -1, "on_error": "skip"}, "max_faults must be None or an integer, 0 or more, not -1"),
        ({"max_faults": 1.0, "on_error": "skip"}, "max_faults must be None or an integer"),
        ({"max_faults": True, "on_error": "skip"}, "max_faults must be None or an integer"),
        ({"compression": ""}, "compression must be 'auto', 'gzip', 'zlib' or None, not ''"),
        ({"compression": "snappy"}, "compression must be 'auto', 'gzip', 'zlib' or None, not 'snappy'"),
        ({"compression": 31}, "compression must be"),
    ],
)
def test_wrong_choices(path: Path, options: dict[str, Any], says: str) -> None:
    write_file(path, PAYLOADS)
    with pytest.raises(ValueError, match=says):
        read_records(path, **options)


# --- pipes and growing files ---


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def feed(pipe: Path, data: bytes, piece: int) -> threading.Thread:
    def write() -> None:
        # The reader may have seen enough before the end.
        with contextlib.suppress(BrokenPipeError), open(pipe, "wb", buffering=0) as stream:
            stream.writelines(data[begin : begin + piece] for begin in range(0, len(data), piece))

    thread = threading.Thread(target=write)
    thread.start()
    return thread


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("piece", [1, 3, 100, 1_000_000])
def test_pipe(pipe: Path, kind: str, piece: int) -> None:
    payloads = [b"alpha", b"", random.Random(1).randbytes(1000 if piece < 100 else 700_000), b"omega"]
    thread = feed(pipe, compress(frames(payloads), kind), piece)
    assert list(read_records(pipe)) == payloads
    thread.join()


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_pipe(pipe: Path, tmp_path: Path, kind: str) -> None:
    """The same as of a file, but for how much is lost."""
    data = compress(frames([*PAYLOADS, random.Random(1).randbytes(100)]), kind)
    for damaged in (data[:-3], data[:90], flip(data, 90, 4), data + b"tail", flip(data, len(data) - 4)):
        parts = expect(inflate_slowly(damaged, codec(kind)), skip=True)
        thread = feed(pipe, damaged, 7)
        payloads, faults = skipped(pipe)
        thread.join()
        assert payloads == parts.payloads
        assert [fault[:3] for fault in faults] == [fault[:3] for fault in parts.faults]


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_pipe_delivers_before_its_end(pipe: Path, kind: str) -> None:
    going_on = threading.Event()
    deflater = zlib.compressobj(wbits=31 if kind == "gzip" else 15)

    def write() -> None:
        with open(pipe, "wb", buffering=0) as stream:
            stream.write(deflater.compress(ALPHA) + deflater.flush(zlib.Z_SYNC_FLUSH))
            assert going_on.wait(60)
            stream.write(deflater.compress(BETA) + deflater.flush())

    thread = threading.Thread(target=write)
    thread.start()
    iterator = read_records(pipe)
    assert next(iterator) == b"alpha"
    going_on.set()
    assert list(iterator) == [b"beta"]
    thread.join()


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_growing_file(path: Path, kind: str) -> None:
    """Each read finds what was appended since, also where the end was in the middle of the compressed stream."""
    big = random.Random(1).randbytes(400_000)
    deflater = zlib.compressobj(wbits=31 if kind == "gzip" else 15)

    def append(data: bytes, flush: int = zlib.Z_SYNC_FLUSH) -> None:
        with open(path, "ab") as file:
            file.write(deflater.compress(data) + deflater.flush(flush))

    append(ALPHA + BETA[:5])
    iterator = read_records(path)
    assert next(iterator) == b"alpha"
    append(BETA[5:] + frame(big)[:9])
    assert next(iterator) == b"beta"
    append(frame(big)[9:], zlib.Z_FINISH)
    assert next(iterator) == big
    assert list(iterator) == []


def test_file_that_grows_by_members(path: Path) -> None:
    path.write_bytes(gzip.compress(ALPHA))
    iterator = read_records(path)
    assert next(iterator) == b"alpha"
    with open(path, "ab") as file:
        file.write(gzip.compress(BETA))
    assert list(iterator) == [b"beta"]


# --- memory ---


def measure(path: Path) -> tuple[int, int, int, str]:
    """Records, their bytes, bytes that memory has grown by, and the error, when a process of its own reads a file."""
    small = path.with_name("small")
    small.write_bytes(gzip.compress(ALPHA))
    code = MEMORY.format(small=str(small), path=str(path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, size, grown, error = done.stdout.rstrip("\n").split(" ", 3)
    return int(count), int(size), int(grown), error


@pytest.mark.slow
@pytest.mark.skipif(native is None, reason="takes long in plain Python")
def test_four_gigabytes_in_little_memory(path: Path) -> None:
    payload = bytes(range(256)) * 3906
    member = gzip.compress(frame(payload) * 20)
    with open(path, "wb") as file:
        file.writelines([member] * 215)
    count, size, grown, error = measure(path)
    assert (count, size, error) == (4300, 4300 * len(payload), "")
    assert grown < 30_000_000


@pytest.mark.parametrize("length", [2**36, 2**40])
def test_announced_length_takes_no_memory(path: Path, length: int) -> None:
    """The bytes that do come are counted, and not kept: they cannot be so many."""
    zeros = gzip.compress(bytes(20_000_000))
    path.write_bytes(gzip.compress(ALPHA + header(length)) + zeros * 3)
    count, _, grown, error = measure(path)
    assert count == 1
    assert (
        f"record 1 at byte 21 of the uncompressed stream: truncated record, 60,000,000 of the {length + 4:,} by"
        in error
    )
    assert grown < 20_000_000
    assert skipped(path) == ([b"alpha"], [(1, 21, "truncated_payload", 60_000_012)])


def test_announced_length_before_damage(path: Path) -> None:
    path.write_bytes(gzip.compress(ALPHA + header(2**40) + bytes(1_000_000)) + b"tail")
    assert "record 1 at byte 21 of the uncompressed stream: data after the end" in str(read(path)[1])
    assert skipped(path) == ([b"alpha"], [(1, 21, "inflate_trailing", None)])


def test_announced_length_in_a_pipe(pipe: Path) -> None:
    thread = feed(pipe, gzip.compress(header(2**50) + bytes(1_000_000)), 100)
    with pytest.raises(DataLossError, match="truncated record, 1,000,000 of the"):
        list(read_records(pipe))
    thread.join()


def test_bomb_of_zeros(path: Path) -> None:
    """1 GB of nothing in 1 MB."""
    path.write_bytes(gzip.compress(bytes(10_000_000)) * 100)
    count, _, grown, error = measure(path)
    assert count == 0
    assert "it looks like a gzip-compressed file (inside: nothing but zero bytes" in error
    assert grown < 20_000_000


# --- TensorFlow ---


@pytest.mark.tensorflow
def test_what_tensorflow_writes(tmp_path: Path) -> None:
    code = """
import os, random
import tensorflow as tf
rng = random.Random(5)
payloads = [b"", b"alpha", rng.randbytes(700_000), *(rng.randbytes(rng.randrange(300)) for _ in range(1000)), b"x" * 2_000_000]
for kind in ("", "GZIP", "ZLIB"):
    for name, content in (("full", payloads), ("empty", [])):
        with tf.io.TFRecordWriter(f"{kind or 'plain'}-{name}", tf.io.TFRecordOptions(kind)) as writer:
            for payload in content:
                writer.write(payload)
    with tf.io.TFRecordWriter(f"{kind or 'plain'}-flushed", tf.io.TFRecordOptions(kind, flush_mode=2)) as writer:
        for payload in payloads[:50]:
            writer.write(payload)
            writer.flush()
result = len(payloads)
"""
    (count,) = run_blocks([("writing", 1, code)], tmp_path)
    rng = random.Random(5)
    payloads = [b"", b"alpha", rng.randbytes(700_000)]
    payloads += [rng.randbytes(rng.randrange(300)) for _ in range(1000)] + [b"x" * 2_000_000]
    assert len(payloads) == count
    for kind in ("plain", "GZIP", "ZLIB"):
        told: Any = None if kind == "plain" else kind
        for compression in ("auto", told):
            assert list(read_records(tmp_path / f"{kind}-full", compression=compression)) == payloads
            assert list(read_records(tmp_path / f"{kind}-empty", compression=compression)) == []
            assert list(read_records(tmp_path / f"{kind}-flushed", compression=compression)) == payloads[:50]


@pytest.mark.tensorflow
def test_what_we_write_for_tensorflow(tmp_path: Path) -> None:
    rng = random.Random(6)
    payloads = [b"", b"alpha", rng.randbytes(700_000), *(rng.randbytes(rng.randrange(300)) for _ in range(1000))]
    for kind in (None, "gzip", "zlib"):
        with TFRecordWriter(tmp_path / f"{kind}", compression=kind) as writer:
            for number, payload in enumerate(payloads):
                writer.write(payload)
                if number % 300 == 2:
                    writer.flush()
        TFRecordWriter(tmp_path / f"{kind}-empty", compression=kind).close()
    code = """
import hashlib
import tensorflow as tf
result = []
for name, kind in (("None", ""), ("gzip", "GZIP"), ("zlib", "ZLIB")):
    records = [record.numpy() for record in tf.data.TFRecordDataset(name, kind)]
    empty = [record.numpy() for record in tf.data.TFRecordDataset(name + "-empty", kind)]
    result.append([[hashlib.sha256(record).hexdigest() for record in records], len(empty)])
"""
    digests = [hashlib.sha256(payload).hexdigest() for payload in payloads]
    assert run_blocks([("reading", 1, code)], tmp_path) == [[[digests, 0]] * 3]
