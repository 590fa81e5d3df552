"""The index file: its layout as docs/formats.md has it, and files that are not what they say."""

import copy
import gc
import hashlib
import json
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from record_files import ALPHA, BETA, PAYLOADS, flip, masked, write_file

from torch_tfrecord.errors import DataLossError, StaleIndexError
from torch_tfrecord.index import RecordIndex
from torch_tfrecord.index_data import sample_positions
from torch_tfrecord.index_scan import open_shard

MTIME_NS = 1_700_000_000_123_456_789


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    (tmp_path / "train.tfrecord").write_bytes(ALPHA + BETA)
    os.utime(tmp_path / "train.tfrecord", ns=(0, MTIME_NS))
    path = tmp_path / "i.tfrindex"
    RecordIndex.build(tmp_path / "train.tfrecord").save(path)
    return path


HEADER = {
    "verify": "length",
    "shards": [
        {
            "path": "train.tfrecord",
            "size": 41,
            "records": 2,
            "mtime_ns": MTIME_NS,
            "lengths_digest": hashlib.blake2b(struct.pack("<2q", 5, 4), digest_size=16).hexdigest(),
            "checksums": [masked(struct.pack("<2q", 0, 21)), masked(struct.pack("<2q", 5, 4))],
            "samples": [int.from_bytes(ALPHA[-4:], "little"), int.from_bytes(BETA[-4:], "little")],
            "stream": None,
        }
    ],
    "faults": [],
}


def index_bytes(header: Any, arrays: bytes, *, records: int = 2, version: int = 3, magic: bytes = b"TFRINDEX") -> bytes:
    """An index file, made from the description alone."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    start = magic + struct.pack("<IIQ", version, len(text), records)
    start += struct.pack("<II", masked(start + text), 0)
    return start + text + bytes(-len(start + text) % 64) + arrays


ARRAYS = struct.pack("<4q", 0, 21, 5, 4)


def test_layout(saved: Path) -> None:
    data = saved.read_bytes()
    magic, version, text_size, records, checksum, zero = struct.unpack_from("<8sIIQII", data)
    assert (magic, version, records, zero) == (b"TFRINDEX", 3, 2, 0)
    assert checksum == masked(data[:24] + data[32 : 32 + text_size])
    assert json.loads(data[32 : 32 + text_size]) == HEADER
    arrays_at = (32 + text_size + 63) // 64 * 64
    assert not data[32 + text_size : arrays_at].strip(b"\0")
    assert data[arrays_at:] == ARRAYS


def test_the_documented_example_is_true(saved: Path) -> None:
    text = (Path(__file__).parent.parent / "docs" / "formats.md").read_text()
    assert json.loads(text.split("```json")[1].split("```")[0]) == HEADER


def test_made_by_another_program(saved: Path) -> None:
    saved.write_bytes(index_bytes(HEADER, ARRAYS))
    index = RecordIndex.open(saved)
    assert [tuple(index[i])[1:] for i in range(2)] == [(0, 5), (21, 4)]
    index.verify()


def test_at_most_16_bytes_a_record(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a", [b""] * 50_000)
    RecordIndex.build(path).save(tmp_path / "i.tfrindex")
    assert (tmp_path / "i.tfrindex").stat().st_size < 16 * 50_000 + 1000


def test_not_an_index_file(tmp_path: Path) -> None:
    for content in (b"", b"TFRIND", ALPHA, b"0 21\n21 20\n"):
        (tmp_path / "i").write_bytes(content)
        with pytest.raises(
            StaleIndexError, match="this is not an index file of torch_tfrecord; `tfrecord-index convert`"
        ):
            RecordIndex.open(tmp_path / "i")


def test_another_version(saved: Path) -> None:
    saved.write_bytes(index_bytes(HEADER, ARRAYS, version=2))
    with pytest.raises(StaleIndexError, match="index file version 2, this one reads 3: build the index again"):
        RecordIndex.open(saved)


def test_cut_at_every_byte(saved: Path) -> None:
    data = saved.read_bytes()
    for size in range(len(data)):
        saved.write_bytes(data[:size])
        with pytest.raises(StaleIndexError, match=r"i\.tfrindex: (damaged index file|this is not an index file)"):
            RecordIndex.open(saved)
    saved.write_bytes(data + b"\0")
    with pytest.raises(StaleIndexError, match="damaged index file: it is"):
        RecordIndex.open(saved)


def test_flip_at_every_byte(saved: Path) -> None:
    """All is checksummed; a wrong number in the arrays shows when their shard is first used."""
    data = saved.read_bytes()
    arrays_at = len(data) - len(ARRAYS)
    text_end = 32 + struct.unpack_from("<I", data, 12)[0]
    for position in range(len(data)):
        saved.write_bytes(flip(data, position))
        if position in range(28, 32) or position in range(text_end, arrays_at):
            RecordIndex.open(saved).verify()  # zeros without a meaning
        elif position < arrays_at:
            with pytest.raises(StaleIndexError):
                RecordIndex.open(saved)
        else:
            index = RecordIndex.open(saved)
            for use in (index.verify, lambda index=index: index.check_shard(0, open_shard(index.paths[0]))):
                with pytest.raises(
                    StaleIndexError,
                    match=rf"{saved}: damaged index file: the checksum of .* wrong \(of {index.paths[0]}\): build the",
                ):
                    use()


def changed(**changes: Any) -> dict[str, Any]:
    """The header with something else in its shard."""
    shard = {**HEADER["shards"][0], **changes}  # type: ignore[dict-item]
    return {**HEADER, "shards": [shard]}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b"1" * 10_000,
        b"null",
        [],
        {},
        {**HEADER, "verify": "none"},
        {**HEADER, "verify": 1},
        {**HEADER, "shards": None},
        {**HEADER, "shards": {}},
        {**HEADER, "shards": [1]},
        {**HEADER, "shards": []},
        {**HEADER, "faults": [1]},
        {**HEADER, "faults": [[0, 0, 0, "x"]]},
        {**HEADER, "faults": [[1, 0, 0, "x", 1]]},
        {**HEADER, "faults": [[0, -1, 0, "x", 1]]},
        {**HEADER, "faults": [[0, 0, 0, 5, 1]]},
        {**HEADER, "faults": [[True, 0, 0, "x", 1]]},
        changed(path=""),
        changed(path=3),
        changed(path="../train.tfrecord"),
        changed(path="a/../../b"),
        changed(path="a\0b"),
        changed(path="\ud800"),
        changed(size=-1),
        changed(size=2**63),
        changed(size=41.0),
        changed(size=True),
        changed(records=1),
        changed(records=-2),
        changed(records=10**30),
        changed(samples=[1]),
        changed(samples=[1, 2**32]),
        changed(samples=[1, -1]),
        changed(samples=[1, "a"]),
        changed(mtime_ns=None),
        changed(mtime_ns=1.5),
        changed(checksums=None),
        changed(checksums=[1]),
        changed(checksums=[1, 2**32]),
        changed(checksums=[-1, 1]),
        changed(lengths_digest=""),
        changed(lengths_digest="g" * 32),
        changed(lengths_digest="\udc80" * 32),
        changed(lengths_digest=None),
        changed(stream={}),
        changed(stream=3),
        changed(stream={"kind": "lzma", "size": 41, "samples": [1]}),
        changed(stream={"kind": ["gzip"], "size": 41, "samples": [1]}),
        changed(stream={"kind": "gzip", "size": -1, "samples": [1]}),
        changed(stream={"kind": "gzip", "size": 41, "samples": []}),
        changed(stream={"kind": "gzip", "size": 41, "samples": [1, 2]}),
        changed(stream={"kind": "gzip", "size": 41, "samples": [2**32]}),
    ],
    ids=lambda header: repr(header)[:40].encode("unicode_escape").decode(),
)
def test_hostile_header(header: Any, saved: Path) -> None:
    saved.write_bytes(index_bytes(header, ARRAYS))
    with pytest.raises(StaleIndexError, match=r"i\.tfrindex: damaged index file: "):
        RecordIndex.open(saved)


@pytest.mark.parametrize("records", [0, 1, 3, 2**60, 2**64 - 1])
def test_hostile_number_of_records(records: int, saved: Path) -> None:
    saved.write_bytes(index_bytes(HEADER, ARRAYS, records=records))
    with pytest.raises(StaleIndexError, match="damaged index file"):
        RecordIndex.open(saved)


EXTREMES = st.sampled_from([0, 1, 4, 5, 20, 21, 22, 41, 2**31, 2**40, 2**62, 2**63 - 1, 2**63 - 17, -1, -12, -(2**63)])


@given(numbers=st.lists(EXTREMES | st.integers(-(2**63), 2**63 - 1), min_size=4, max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
def test_hostile_arrays(numbers: list[int], saved: Path) -> None:
    """Also with the right checksums, as somebody can make them who wants to."""
    arrays = struct.pack("<4q", *numbers)
    saved.write_bytes(index_bytes(changed(checksums=[masked(arrays[:16]), masked(arrays[16:])]), arrays))
    index = RecordIndex.open(saved)
    assert [tuple(index[i])[1:] for i in range(2)] == [(numbers[0], numbers[2]), (numbers[1], numbers[3])]
    if arrays == ARRAYS:
        index.verify()
        return
    with pytest.raises(StaleIndexError):
        index.verify()
    offsets, lengths = index.locate(np.arange(2))[1:]
    assert (offsets.tolist(), lengths.tolist()) == (numbers[:2], numbers[2:])
    file = open_shard(index.paths[0])
    try:
        index.check_shard(0, file)
    except StaleIndexError:
        return
    assert all(
        0 <= offset <= offset + 16 + length <= 41 for offset, length in zip(numbers[:2], numbers[2:], strict=True)
    )
    # The samples are found where they were, so each frame ends where it should.
    assert [offset + length for offset, length in zip(numbers[:2], numbers[2:], strict=True)] == [5, 25]


@given(data=st.binary(max_size=300) | st.binary(max_size=200).map(lambda tail: b"TFRINDEX\3\0\0\0" + tail))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes(data: bytes, saved: Path) -> None:
    saved.write_bytes(data)
    with pytest.raises(StaleIndexError):
        RecordIndex.open(saved)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
)


@given(
    key=st.sampled_from(["verify", "shards", "faults", "new"]),
    shard_key=st.sampled_from(
        ["path", "size", "records", "mtime_ns", "checksums", "samples", "lengths_digest", "stream", "new"]
    ),
    value=json_values | st.just({"kind": "gzip", "size": 41, "samples": [masked(ALPHA + BETA)]}),
    inside=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
def test_any_change_of_the_header(key: str, shard_key: str, value: Any, inside: bool, saved: Path) -> None:
    """Either it is refused, or it is an index whose use does not crash."""
    header = changed(**{shard_key: value}) if inside else {**HEADER, key: value}
    saved.write_bytes(index_bytes(header, ARRAYS))
    try:
        index = RecordIndex.open(saved)
        assert len(index) == 2
        index.verify()
    except (StaleIndexError, DataLossError, FileNotFoundError, IsADirectoryError):
        return
    expected = RecordIndex.build(saved.parent / "train.tfrecord")
    assert [tuple(index[i])[1:] for i in range(2)] == [tuple(expected[i])[1:] for i in range(2)]


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (0, []),
        (1, [0]),
        (16, list(range(16))),
        (17, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16]),
        (151, list(range(0, 151, 10))),
    ],
)
def test_sample_positions(records: int, expected: list[int]) -> None:
    assert sample_positions(records) == expected


@given(st.integers(0, 2**62))
def test_sample_positions_are_distinct_and_inside(records: int) -> None:
    positions = sample_positions(records)
    assert len(positions) == len(set(positions)) == min(records, 16)
    assert positions == sorted(positions)
    if records:
        assert positions[0] == 0
        assert positions[-1] == records - 1


def test_mapping_outlives_a_replaced_file(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a", PAYLOADS)
    index = RecordIndex.build(path)
    index.save(tmp_path / "i.tfrindex")
    opened = RecordIndex.open(tmp_path / "i.tfrindex")
    RecordIndex.build(write_file(tmp_path / "b", [])).save(tmp_path / "i.tfrindex")
    assert opened.lengths.tolist() == [5, 0, 4, 40]


# --- files that are cut short while they are in use ---


def large(folder: Path) -> tuple[RecordIndex, Path]:
    """An index that is mapped: its arrays have more than 1 MiB."""
    path = write_file(folder / "a", [b""] * 70_000)
    saved = folder / "i.tfrindex"
    RecordIndex.build(path).save(saved)
    assert saved.stat().st_size > 2**20
    return RecordIndex.open(saved), saved


@pytest.mark.parametrize("size", [0, 100, 600_000, 1_120_000])
def test_cut_short_while_it_is_in_use(tmp_path: Path, size: int) -> None:
    index, saved = large(tmp_path)
    file = open_shard(index.paths[0])
    assert index.locate(np.array([69_999]))[1].tolist() == [69_999 * 16]
    index.check_shard(0, file)
    whole = saved.read_bytes()
    os.truncate(saved, size)
    for use in (
        lambda: index.locate(np.array([69_999])),
        lambda: index[-1],
        lambda: index.offsets,
        lambda: index.lengths,
        lambda: index.check_shard(0, file),
        lambda: index.record_in_file(5) and index[5],
        lambda: index.save(tmp_path / "other.tfrindex"),
        index.verify,
    ):
        with pytest.raises(
            StaleIndexError, match=rf"{saved}: the index file had {len(whole):,} bytes .* has {size:,} now: build the"
        ):
            use()
    assert (len(index), index.fingerprint) == (70_000, RecordIndex.build(index.paths[0]).fingerprint)
    assert sorted(os.listdir(tmp_path)) == ["a", "i.tfrindex"]
    saved.write_bytes(whole)
    assert index[-1].offset == 69_999 * 16


def test_small_index_is_in_memory(saved: Path) -> None:
    index = RecordIndex.open(saved)
    os.truncate(saved, 0)
    assert index.offsets.tolist() == [0, 21]
    index.verify()


def test_damage_in_a_mapped_index(tmp_path: Path) -> None:
    _, saved = large(tmp_path)
    data = saved.read_bytes()
    for position in (len(data) - 1, len(data) - 70_000 * 8 - 9):
        saved.write_bytes(flip(data, position))
        with pytest.raises(StaleIndexError, match="damaged index file"):
            RecordIndex.open(saved).open_shard(0)


@pytest.mark.parametrize("records", [10, 70_000])
def test_no_descriptor_is_left(tmp_path: Path, records: int) -> None:
    path = write_file(tmp_path / "a", [b""] * records)
    RecordIndex.build(path).save(tmp_path / "i.tfrindex")
    gc.collect()  # what other tests have left
    before = sorted(os.listdir("/proc/self/fd"))
    index = RecordIndex.open(tmp_path / "i.tfrindex")
    assert len(os.listdir("/proc/self/fd")) == len(before) + (records > 2**16)
    again = pickle.loads(pickle.dumps(copy.copy(index)))
    assert again[-1] == index[-1]
    del index, again
    gc.collect()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_forked_process_uses_and_closes_its_own(tmp_path: Path) -> None:
    _, saved = large(tmp_path)
    code = f"""
import os
from torch_tfrecord.index import RecordIndex
index = RecordIndex.open({str(saved)!r})
child = os.fork()
if not child:
    assert index[-1].offset == 69_999 * 16
    del index
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert index[-1].offset == 69_999 * 16
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


# --- what is no file ---


@pytest.mark.parametrize("name", ["data", "index"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    path = write_file(tmp_path / "data", PAYLOADS)
    RecordIndex.build(path).save(tmp_path / "index")
    index = RecordIndex.open(tmp_path / "index")
    os.unlink(tmp_path / name)
    os.mkfifo(tmp_path / name)
    use: Callable[[], object] = {
        "data": lambda: index.open_shard(0),
        "index": lambda: RecordIndex.open(tmp_path / "index"),
    }[name]
    with pytest.raises(OSError, match=r"a pipe or a device stands where an? (index|TFRecord file) is expected") as info:
        use()
    assert info.value.filename == str(tmp_path / name)
    os.unlink(tmp_path / name)
    os.mkdir(tmp_path / name)
    with pytest.raises(IsADirectoryError, match=r"a directory stands where an? (index|TFRecord file) is expected"):
        use()
