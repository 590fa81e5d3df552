"""Raw records, one after another: whole files, every damage, pipes, growing files."""

import os
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_files import ALPHA, BETA, PAYLOADS, flip, frame, frames, header, starts, write_file

from torch_tfrecord import record_file, records
from torch_tfrecord.errors import DataLossError, NotATFRecordError
from torch_tfrecord.faults import RecordFault
from torch_tfrecord.records import RecordIterator, read_records
from torch_tfrecord.writer import TFRecordWriter


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.tfrecord"


def read_until_error(iterator: RecordIterator) -> tuple[list[bytes], DataLossError | None]:
    payloads: list[bytes] = []
    try:
        for payload in iterator:
            payloads.append(payload)
    except DataLossError as error:
        return payloads, error
    return payloads, None


def test_vectors(path: Path) -> None:
    path.write_bytes(ALPHA + BETA)
    assert list(read_records(path)) == [b"alpha", b"beta"]


def test_empty_file(path: Path) -> None:
    path.touch()
    assert list(read_records(path)) == []


def test_several_files_in_order(tmp_path: Path) -> None:
    paths = [write_file(tmp_path / name, payloads) for name, payloads in [("b", [b"1"]), ("a", []), ("c", [b"2", b""])]]
    assert list(read_records(paths)) == [b"1", b"2", b""]
    assert list(read_records(tmp_path)) == [b"1", b"2", b""]


def test_missing_file_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_records(tmp_path / "no")


def test_relative_paths_survive_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        write_file(tmp_path / name, [name.encode()])
    monkeypatch.chdir(tmp_path)
    records = read_records(["a", "b", "c"])
    assert next(records) == b"a"
    monkeypatch.chdir("/")
    assert next(records) == b"b"
    (tmp_path / "c").unlink()
    with pytest.raises(FileNotFoundError) as info:
        next(records)
    assert info.value.filename == "c"


def test_repr(tmp_path: Path) -> None:
    one = write_file(tmp_path / "a", PAYLOADS)
    (tmp_path / "b").write_bytes(BETA[:-1])
    records = read_records([one, tmp_path / "b"], on_error="skip")
    assert repr(records) == f"RecordIterator(records of 2 files: {one}, ...)"
    list(records)
    records.close()
    assert repr(records) == f"RecordIterator(records of 2 files: {one}, ...; 1 damaged places left out so far; closed)"
    assert repr(read_records(one)) == f"RecordIterator(records of 1 file: {one})"


def test_opened_lazily(tmp_path: Path) -> None:
    paths = [write_file(tmp_path / "a", [b"1", b"2"]), write_file(tmp_path / "b", [b"3"])]
    iterator = read_records(paths)
    assert next(iterator) == b"1"
    os.unlink(paths[1])
    assert next(iterator) == b"2"
    with pytest.raises(FileNotFoundError):
        next(iterator)
    assert list(iterator) == []


def test_close_lets_go_of_the_file(path: Path) -> None:
    write_file(path, PAYLOADS)
    before = set(os.listdir("/dev/fd"))
    with read_records(path) as iterator:
        assert next(iterator) == b"alpha"
        assert len(os.listdir("/dev/fd")) == len(before) + 1
    assert set(os.listdir("/dev/fd")) == before
    assert list(iterator) == []
    iterator.close()
    dropped = read_records(path)
    next(dropped)
    del dropped
    assert set(os.listdir("/dev/fd")) == before


def test_iterator_is_its_own_iterator(path: Path) -> None:
    write_file(path, PAYLOADS)
    iterator = read_records(path)
    assert iter(iterator) is iterator
    assert next(iterator) == b"alpha"
    assert list(iterator) == PAYLOADS[1:]


@given(sizes=st.lists(st.integers(0, 300), max_size=30), chunk=st.sampled_from([12, 13, 16, 27, 28, 29, 100, 4096]))
@settings(max_examples=60)
def test_any_chunk_size_gives_the_same(sizes: list[int], chunk: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    payloads = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    path = tmp_path_factory.mktemp("chunk") / "a"
    write_file(path, payloads)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_file, "_CHUNK_BYTES", chunk)
        assert list(read_records(path)) == payloads


@pytest.mark.parametrize("size", [2**18 - 17, 2**18 - 16, 2**18 - 15, 2**18, 3_000_000])
def test_big_records_between_small_ones(path: Path, size: int) -> None:
    payloads = [b"a", os.urandom(size), b"b", b"", os.urandom(700_000), b"c"]
    write_file(path, payloads)
    assert list(read_records(path)) == payloads


# --- damage ---


def test_truncation_at_every_byte(path: Path) -> None:
    whole = frames(PAYLOADS)
    ends = starts(PAYLOADS)
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        iterator = read_records(path)
        payloads, error = read_until_error(iterator)
        count = sum(end <= size for end in ends[1:])
        assert payloads == PAYLOADS[:count], size
        offset, rest = ends[count], size - ends[count]
        if rest == 0:
            assert error is None
            continue
        kind = "truncated header" if rest < 12 else "truncated record"
        assert str(error).startswith(f"{path}: record {count} at byte {offset}: {kind}"), size
        assert list(iterator) == []  # finished after the error
        skipping = read_records(path, on_error="skip")
        assert list(skipping) == PAYLOADS[:count]
        assert skipping.faults == [
            RecordFault(str(path), count, offset, kind.replace(" ", "_").replace("record", "payload"), rest)
        ]


@pytest.mark.parametrize("mask", [0x01, 0x80])
def test_flip_at_every_byte(path: Path, mask: int) -> None:
    whole = frames(PAYLOADS)
    ends = starts(PAYLOADS)
    for position in range(len(whole)):
        path.write_bytes(flip(whole, position, mask))
        record = sum(end <= position for end in ends[1:])
        start, end = ends[record], ends[record + 1]
        in_header = position - start < 12
        payloads, error = read_until_error(read_records(path))
        assert payloads == PAYLOADS[:record], position
        kind = "length" if in_header else "data"
        assert type(error) is DataLossError
        assert f": record {record} at byte {start}" in str(error)
        assert f"corrupted record, {kind} checksum" in str(error), position

        skipping = read_records(path, on_error="skip")
        assert list(skipping) == PAYLOADS[:record] + ([] if in_header else PAYLOADS[record + 1 :])
        lost = len(whole) - start if in_header else end - start
        assert skipping.faults == [RecordFault(str(path), record, start, f"{kind}_crc", lost)]


def test_data_checksum_only_where_asked(path: Path) -> None:
    whole = frames(PAYLOADS)
    path.write_bytes(flip(whole, 13))
    changed = [bytes([b"alpha"[0], b"alpha"[1] ^ 1]) + b"pha"]
    assert list(read_records(path, verify="length")) == changed + PAYLOADS[1:]
    assert list(read_records(path, verify="none")) == changed + PAYLOADS[1:]
    path.write_bytes(flip(whole, 9))
    assert list(read_records(path, verify="none")) == PAYLOADS
    with pytest.raises(DataLossError, match="length checksum"):
        list(read_records(path, verify="length"))


def test_skip_goes_on_with_the_next_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    whole = frames(PAYLOADS)
    first.write_bytes(flip(whole, 13) + b"tail")
    second.write_bytes(whole)
    iterator = read_records([first, second], on_error="skip")
    assert list(iterator) == PAYLOADS[1:] + PAYLOADS
    assert iterator.faults == [
        RecordFault(str(first), 0, 0, "data_crc", 21),
        RecordFault(str(first), 4, len(whole), "truncated_header", 4),
    ]
    assert [record.getMessage() for record in caplog.records] == [f"left out: {fault}" for fault in iterator.faults]


def test_every_record_bad(path: Path) -> None:
    payloads = [b"%d" % number for number in range(50)]
    path.write_bytes(b"".join(flip(frame(payload), 12) for payload in payloads))
    iterator = read_records(path, on_error="skip")
    assert list(iterator) == []
    assert [fault.record for fault in iterator.faults] == list(range(50))
    assert sum(fault.bytes_lost or 0 for fault in iterator.faults) == path.stat().st_size


@pytest.mark.parametrize("length", [100, 2**31 + 10, 2**40, 2**63 - 1, 2**63, 2**64 - 4, 2**64 - 1])
@pytest.mark.parametrize("verify", ["none", "all"])
def test_length_beyond_the_file(path: Path, length: int, verify: records.Verify) -> None:
    path.write_bytes(ALPHA + header(length) + b"only this")
    payloads, error = read_until_error(read_records(path, verify=verify))
    assert payloads == [b"alpha"]
    assert str(error).startswith(f"{path}: record 1 at byte 21: truncated record, 9 of the ")


def test_huge_length_takes_no_memory(path: Path) -> None:
    path.write_bytes(header(2**36) + bytes(100))
    code = f"""
import resource
from torch_tfrecord.errors import DataLossError
from torch_tfrecord.records import read_records
limit = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + 2**31
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    list(read_records({str(path)!r}))
except DataLossError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "truncated record, 100 of the 68,719,476,740 bytes" in result.stdout


@pytest.mark.parametrize(
    "argument", [{"verify": "some"}, {"on_error": "ignore"}, {"compression": "lz4"}, {"compression": ""}]
)
def test_wrong_choice(path: Path, argument: dict[str, str]) -> None:
    write_file(path, PAYLOADS)
    with pytest.raises(ValueError, match=f"{next(iter(argument))} must be "):
        read_records(path, **argument)  # type: ignore[arg-type]


# --- other files ---


def test_something_else(path: Path, tmp_path: Path) -> None:
    path.write_text("<!DOCTYPE html><html><body>404</body></html>")
    with pytest.raises(NotATFRecordError, match="it looks like an HTML page"):
        list(read_records(path))
    good = write_file(tmp_path / "good", [b"1"])
    iterator = read_records([path, good], on_error="skip")
    assert list(iterator) == [b"1"]
    assert iterator.faults == [RecordFault(str(path), 0, 0, "not_a_tfrecord", 44)]


def test_directory_in_place_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_file(path, [])
    iterator = read_records(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(IsADirectoryError, match="a directory stands where a TFRecord file is expected"):
        next(iterator)


# --- pipes and growing files ---


def feed(path: Path, pieces: list[bytes]) -> threading.Thread:
    def write() -> None:
        with open(path, "wb", buffering=0) as pipe:
            pipe.writelines(pieces)

    thread = threading.Thread(target=write)
    thread.start()
    return thread


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("piece", [1, 7, 10_000, 1_000_000])
def test_pipe(pipe: Path, piece: int) -> None:
    payloads = [b"alpha", b"", b"x" * (3000 if piece < 10 else 700_000), b"omega"]
    data = frames(payloads)
    thread = feed(pipe, [data[i : i + piece] for i in range(0, len(data), piece)])
    assert list(read_records(pipe)) == payloads
    thread.join()


def test_pipe_delivers_before_its_end(pipe: Path) -> None:
    going_on = threading.Event()

    def write() -> None:
        with open(pipe, "wb", buffering=0) as stream:
            stream.write(ALPHA)
            assert going_on.wait(60)
            stream.write(BETA)

    thread = threading.Thread(target=write)
    thread.start()
    iterator = read_records(pipe)
    assert next(iterator) == b"alpha"
    going_on.set()
    assert list(iterator) == [b"beta"]
    thread.join()


def test_damage_in_a_pipe(pipe: Path) -> None:
    thread = feed(pipe, [ALPHA, BETA[:-1]])
    payloads, error = read_until_error(read_records(pipe))
    thread.join()
    assert payloads == [b"alpha"]
    assert str(error).startswith(f"{pipe}: record 1 at byte 21: truncated record, 7 of the 8 bytes")
    thread = feed(pipe, [ALPHA, flip(BETA, 0)])
    iterator = read_records(pipe, on_error="skip")
    assert list(iterator) == [b"alpha"]
    thread.join()
    assert [(fault.reason, fault.offset, fault.bytes_lost) for fault in iterator.faults] == [("length_crc", 21, None)]


def test_announced_length_in_a_pipe_takes_no_memory(pipe: Path) -> None:
    thread = feed(pipe, [header(2**50), bytes(1000)])
    with pytest.raises(DataLossError, match="truncated record, 1,000 of the"):
        list(read_records(pipe))
    thread.join()


def test_growing_file(path: Path) -> None:
    """Each read finds what was appended since, also where the end was in the middle of a frame."""
    big = frame(os.urandom(400_000))
    path.write_bytes(ALPHA + BETA[:5])

    def append(data: bytes) -> None:
        with open(path, "ab") as file:
            file.write(data)

    iterator = read_records(path)
    assert next(iterator) == b"alpha"
    append(BETA[5:] + big[:9])
    assert next(iterator) == b"beta"
    append(big[9:])
    assert next(iterator) == big[12:-4]
    assert list(iterator) == []


def test_file_that_shrinks(path: Path) -> None:
    payloads = [os.urandom(100_000) for _ in range(10)]
    write_file(path, payloads)
    iterator = read_records(path)
    assert next(iterator) == payloads[0]
    os.truncate(path, 500_000)
    got, error = read_until_error(iterator)
    assert got == payloads[1:4]
    assert "record 4 at byte 400064: truncated record, 99,924 of the 100,004 bytes" in str(error)


@given(
    data=st.binary(max_size=200)
    | st.builds(
        lambda ps, tail: frames(ps) + tail, st.lists(st.binary(max_size=20), max_size=4), st.binary(max_size=40)
    )
)
@settings(max_examples=200)
def test_any_bytes_end_in_records_or_an_error(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    payloads, error = read_until_error(read_records(path))
    assert (error is None) == (frames(payloads) == data)
    assert data.startswith(frames(payloads))


def test_memory_is_bounded(path: Path) -> None:
    """A file of 64 MB in small records is read within a few."""
    piece = frames([struct.pack("<Q", number) * 100 for number in range(1000)])
    with open(path, "wb") as file:
        file.writelines([piece] * 80)
    code = f"""
import resource
from torch_tfrecord.records import read_records
iterator = read_records({str(path)!r})
next(iterator)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
count = sum(1 for _ in iterator)
print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, grown = map(int, result.stdout.split())
    assert count == 79_999
    assert grown * (1 if sys.platform == "darwin" else 1024) < 16_000_000


@pytest.mark.parametrize("compression", ["gzip", None])
def test_a_large_record_takes_time_in_proportion(
    pipe: Path, tmp_path: Path, compression: Literal["gzip"] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes in many pieces, and none of them moves those before it: what is moved is counted."""
    moved = 0
    drop = record_file.FileReader._drop

    class Counting(bytearray):
        def __getitem__(self, key: Any) -> Any:
            nonlocal moved
            found = super().__getitem__(key)
            moved += len(found) if isinstance(key, slice) else 0
            return found

    def counting_drop(reader: record_file.FileReader, count: int) -> None:
        if not isinstance(reader._buffer, Counting):
            reader._buffer = Counting(reader._buffer)
        drop(reader, count)

    monkeypatch.setattr(record_file.FileReader, "_drop", counting_drop)
    payload = bytes(32 << 20)
    whole = tmp_path / "whole"
    with TFRecordWriter(whole, compression=compression) as writer:
        writer.write(payload)
        writer.write(b"last")
    thread = feed(pipe, [whole.read_bytes()])
    for path in (whole, pipe):
        assert list(read_records(path)) == [payload, b"last"]
    thread.join()
    assert 0 < moved < 8 << 20
