"""RecordIndex: what it finds, and what it notices about damage and changed data."""

import gzip
import io
import logging
import os
import pickle
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from record_files import ALPHA, BETA, PAYLOADS, flip, frame, frames, header, starts, write_file

from torch_tfrecord.dataset import TFRecordDataset
from torch_tfrecord.errors import DataLossError, NotATFRecordError, StaleIndexError
from torch_tfrecord.faults import RecordFault
from torch_tfrecord.index import RecordIndex, RecordLocation
from torch_tfrecord.index_scan import open_shard
from torch_tfrecord.records import read_records


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.tfrecord"


def three_shards(folder: Path) -> list[str]:
    """Two records, none, three records."""
    shards = [[b"alpha", b"beta"], [], [b"", b"c" * 300, b"dd"]]
    return [write_file(folder / f"t-{number:05d}-of-00003", payloads) for number, payloads in enumerate(shards)]


def test_vectors(path: Path) -> None:
    path.write_bytes(ALPHA + BETA)
    index = RecordIndex.build(path)
    assert len(index) == 2
    assert list(index) == [RecordLocation(str(path), 0, 5), RecordLocation(str(path), 21, 4)]  # type: ignore[call-overload]
    assert (index[1].path, index[1].offset, index[1].length) == (str(path), 21, 4)
    assert index.num_bytes == 41
    assert index.faults == ()


@pytest.mark.parametrize("verify", ["length", "all"])
def test_several_shards(tmp_path: Path, verify: Any) -> None:
    paths = three_shards(tmp_path)
    index = RecordIndex.build(str(tmp_path / "t@3"), verify=verify)
    assert index.paths == tuple(paths)
    assert [tuple(index[i]) for i in range(5)] == [
        (paths[0], 0, 5),
        (paths[0], 21, 4),
        (paths[2], 0, 0),
        (paths[2], 16, 300),
        (paths[2], 332, 2),
    ]
    assert index[-1] == index[4]
    assert index[np.int64(-5)] == index[0]
    assert index.shard_sizes.tolist() == [2, 0, 3]
    assert index.shard_bytes.tolist() == [41, 0, 350]
    assert index.num_bytes == 391
    assert index.verify_level == verify
    index.verify()


@pytest.mark.parametrize("number", [5, -6, 2**70])
def test_no_such_record(tmp_path: Path, number: int) -> None:
    three_shards(tmp_path)
    with pytest.raises(IndexError, match=f"record {number} of an index of 5 records"):
        RecordIndex.build(tmp_path)[number]


def test_index_by_something_else(tmp_path: Path) -> None:
    three_shards(tmp_path)
    with pytest.raises(TypeError):
        RecordIndex.build(tmp_path)[1.0]  # type: ignore[index]


def test_empty_files(tmp_path: Path) -> None:
    paths = [write_file(tmp_path / name, []) for name in "ab"]
    index = RecordIndex.build(paths)
    assert len(index) == 0
    assert index.shard_sizes.tolist() == [0, 0]
    index.verify()
    index.save(tmp_path / "i.tfrindex")
    again = RecordIndex.open(tmp_path / "i.tfrindex")
    assert (len(again), again.paths, again.fingerprint) == (0, index.paths, index.fingerprint)
    shards, offsets, lengths = again.locate(np.empty(0, np.int64))
    assert shards is not None
    assert (shards.size, offsets.size, lengths.size) == (0, 0, 0)


def test_one_path_twice(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a", PAYLOADS)
    index = RecordIndex.build([path, path])
    assert len(index) == 8
    assert index[0] == index[4]
    index.save(tmp_path / "i.tfrindex")
    assert RecordIndex.open(tmp_path / "i.tfrindex").paths == (path, path)


def test_repr_is_short(tmp_path: Path) -> None:
    paths = three_shards(tmp_path)
    assert repr(RecordIndex.build(paths)) == f"RecordIndex(5 records in 3 files, 391 bytes: {paths[0]}, ...)"
    assert repr(RecordIndex.build(paths[1])) == f"RecordIndex(0 records in 1 file, 0 bytes: {paths[1]})"


# --- locate ---


def test_locate(tmp_path: Path) -> None:
    index = RecordIndex.build(three_shards(tmp_path))
    ids = np.array([4, 0, 2, 2, 1, 3])
    shards, offsets, lengths = index.locate(ids)
    assert shards is not None
    assert [(index.paths[s], o, n) for s, o, n in zip(shards, offsets, lengths, strict=True)] == [index[i] for i in ids]
    assert shards.dtype == offsets.dtype == lengths.dtype == np.int64
    with pytest.raises(IndexError):
        index.locate(np.array([5]))


def test_locate_in_one_shard(path: Path) -> None:
    write_file(path, PAYLOADS)
    shards, offsets, lengths = RecordIndex.build(path).locate(np.array([3, 0]))
    assert shards is None
    assert offsets.tolist() == [57, 0]
    assert lengths.tolist() == [40, 5]


def test_arrays_cannot_be_written(tmp_path: Path) -> None:
    index = RecordIndex.build(three_shards(tmp_path))
    for array in (index.offsets, index.lengths, index.shard_sizes, index.shard_bytes):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_locate_is_quick(tmp_path: Path) -> None:
    """A batch of 256 takes microseconds; the bound is wide, since the machine may be busy."""
    paths = [write_file(tmp_path / str(number), [b""] * 2000) for number in range(50)]
    RecordIndex.build(paths).save(tmp_path / "i.tfrindex")
    index = RecordIndex.open(tmp_path / "i.tfrindex")
    ids = np.random.default_rng(0).integers(0, len(index), 256)
    best = min(_seconds(lambda: index.locate(ids)) for _ in range(200))
    assert best < 100e-6


def _seconds(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


# --- damage ---


def test_truncation_at_every_byte(path: Path) -> None:
    whole = frames(PAYLOADS)
    ends = starts(PAYLOADS)
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        count = sum(end <= size for end in ends[1:])
        offset, rest = ends[count], size - ends[count]
        if rest == 0:
            assert len(RecordIndex.build(path)) == count
            continue
        kind = "truncated header" if rest < 12 else "truncated record"
        with pytest.raises(DataLossError) as info:
            RecordIndex.build(path)
        assert str(info.value).startswith(f"{path}: record {count} at byte {offset}: {kind}"), size
        index = RecordIndex.build(path, on_error="skip")
        assert index.offsets.tolist() == ends[:count]
        reason = "truncated_header" if rest < 12 else "truncated_payload"
        assert index.faults == (RecordFault(str(path), count, offset, reason, rest),)
        index.verify()


def test_flip_at_every_byte(path: Path) -> None:
    whole = frames(PAYLOADS)
    ends = starts(PAYLOADS)
    write_file(path, PAYLOADS)
    good = RecordIndex.build(path)
    for position in range(len(whole)):
        path.write_bytes(flip(whole, position))
        record = sum(end <= position for end in ends[1:])
        start, end = ends[record], ends[record + 1]
        in_header = position - start < 12
        kind = "length" if in_header else "data"
        with pytest.raises(DataLossError, match=f"{kind} checksum") as info:
            RecordIndex.build(path, verify="all")
        assert f": record {record} at byte {start}" in str(info.value)
        with pytest.raises(DataLossError) as again:
            good.verify()
        assert str(again.value) == str(info.value)

        index = RecordIndex.build(path, verify="all", on_error="skip")
        rest = [] if in_header else ends[record + 1 : -1]
        assert index.offsets.tolist() == ends[:record] + rest
        lost = len(whole) - start if in_header else end - start
        assert index.faults == (RecordFault(str(path), record, start, f"{kind}_crc", lost),)
        index.verify()  # what is known does not raise
        if not in_header:
            quick = RecordIndex.build(path)  # does not look at payloads
            assert len(quick) == 4
            with pytest.raises(DataLossError, match="data checksum"):
                quick.verify()


def test_damage_that_was_mended_is_another_file(path: Path) -> None:
    """The index has some of the records of the mended file, but not because somebody chose them."""
    whole = frames(PAYLOADS)
    path.write_bytes(flip(whole, starts(PAYLOADS)[2] - 5))
    index = RecordIndex.build(path, verify="all", on_error="skip")
    index.verify()
    path.write_bytes(whole)
    with pytest.raises(StaleIndexError, match="holds other records now than it did"):
        index.verify()


def test_first_error_in_file_order(tmp_path: Path) -> None:
    big = frames([bytes(2_000_000)] * 20)
    (tmp_path / "1").write_bytes(big)
    (tmp_path / "2").write_bytes(big + b"x")
    (tmp_path / "3").write_bytes(b"y" + ALPHA)
    with pytest.raises(DataLossError, match=f"{tmp_path}/2: record 20"):
        RecordIndex.build(tmp_path)


def test_skip_over_several_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = frames(PAYLOADS)
    (tmp_path / "1").write_bytes(flip(flip(whole, 12), len(whole) - 1))
    (tmp_path / "2").write_text("<html>")
    (tmp_path / "3").write_bytes(whole)
    index = RecordIndex.build(tmp_path, verify="all", on_error="skip")
    assert index.shard_sizes.tolist() == [2, 0, 4]
    assert [(os.path.basename(f.path), f.record, f.reason, f.bytes_lost) for f in index.faults] == [
        ("1", 0, "data_crc", 21),
        ("1", 3, "data_crc", 56),
        ("2", 0, "not_a_tfrecord", 6),
    ]
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 3
    index.verify()
    index.save(tmp_path / "i.tfrindex")
    again = RecordIndex.open(tmp_path / "i.tfrindex")
    assert again.faults == index.faults
    assert again.fingerprint == index.fingerprint
    again.verify()


@pytest.mark.parametrize("length", [100, 2**40, 2**63 - 1, 2**63, 2**64 - 1])
def test_length_beyond_the_file(path: Path, length: int) -> None:
    path.write_bytes(ALPHA + header(length) + b"only this")
    with pytest.raises(DataLossError, match="record 1 at byte 21: truncated record, 9 of the"):
        RecordIndex.build(path)


@pytest.mark.parametrize("argument", [{"verify": "none"}, {"verify": ""}, {"on_error": "ignore"}])
def test_wrong_choice(path: Path, argument: Any) -> None:
    write_file(path, PAYLOADS)
    with pytest.raises(ValueError, match=f"{next(iter(argument))} must be "):
        RecordIndex.build(path, **argument)


def test_what_has_no_positions(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a pipe or a device stands where a TFRecord file is expected"):
        RecordIndex.build(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError):
        open_shard(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        RecordIndex.build(tmp_path / "no")


def test_a_wrong_checksum_of_a_member_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "a"
    payloads = [b"a", b"b", b"c", b"x", b"d"]
    members = [gzip.compress(frames(payloads[:2])), gzip.compress(flip(frames(payloads[2:]), 17 + 12))]
    path.write_bytes(flip(members[0], len(members[0]) - 8) + members[1])
    index = RecordIndex.build(path, verify="all", on_error="skip")
    assert [(fault.reason, fault.record, fault.bytes_lost) for fault in index.faults] == [
        ("inflate_checksum", 2, 0),
        ("data_crc", 3, 17),
    ]
    assert [index.record_in_file(record) for record in range(4)] == [(0, 0), (0, 1), (0, 2), (0, 4)]


@pytest.mark.parametrize("damage", ["inflate_data", "inflate_truncated", "inflate_trailing", "length_crc"])
def test_loss_in_a_compressed_file_that_nobody_can_know(tmp_path: Path, damage: str) -> None:
    members = [gzip.compress(frames([b"%d" % record for record in range(m, m + 100)])) for m in range(0, 1000, 100)]
    whole = b"".join(members)
    data = {
        "inflate_data": members[0] + members[1][:10] + b"\xff" * 40 + whole[len(members[0]) + 50 :],
        "inflate_truncated": whole[:-50],
        "inflate_trailing": zlib.compress(frames([b"a"])) + zlib.compress(frames([b"b"])),
        # The length is damaged, and behind it the stream is, too.
        "length_crc": members[0] + gzip.compress(flip(frames([b"a"]), 0)) + members[1][:-20],
    }[damage]
    path = tmp_path / "a"
    path.write_bytes(data)
    records = read_records(path, on_error="skip")
    count = len(list(records))
    index = RecordIndex.build(path, on_error="skip")
    assert len(index) == count > 0
    assert tuple(records.faults) == index.faults == TFRecordDataset(path, None, on_error="skip").faults
    (fault,) = index.faults
    assert (fault.reason, fault.bytes_lost) == (damage, None)
    assert str(fault).endswith(f"{damage}, an unknown number of bytes left out")
    index.save(tmp_path / "i.tfrindex")
    assert RecordIndex.open(tmp_path / "i.tfrindex").faults == index.faults


def test_faults_of_a_path_that_is_given_twice(tmp_path: Path) -> None:
    whole = frames(PAYLOADS)
    bad, good = tmp_path / "bad", write_file(tmp_path / "good", PAYLOADS)
    bad.write_bytes(flip(flip(whole, 12), 49) + b"tail")  # payloads 0 and 2, and the end
    index = RecordIndex.build([bad, good, bad], verify="all", on_error="skip")
    index.save(tmp_path / "i.tfrindex")
    for found in (index, RecordIndex.open(tmp_path / "i.tfrindex"), pickle.loads(pickle.dumps(index))):
        assert found.shard_sizes.tolist() == [2, 4, 2]
        assert [[fault.record for fault in found.faults_in(shard)] for shard in range(3)] == [[0, 2, 4], [], [0, 2, 4]]
        assert found.faults == (*found.faults_in(0), *found.faults_in(2))
        places = [found.record_in_file(record) for record in range(8)]
        assert places == [(0, 1), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 1), (2, 3)]
        assert found.record_in_file(-1) == (2, 3)
        found.verify()
        found.open_shard(2)
    with pytest.raises(IndexError, match="record 8 of an index of 8 records"):
        index.record_in_file(8)
    bad.write_bytes(flip(whole, 12) + b"tail")
    index.open_shard(0)  # the first and the last fault are still there
    bad.write_bytes(flip(whole, 49) + b"tail")
    for shard in (0, 2):
        with pytest.raises(StaleIndexError, match="is whole now where it was damaged"):
            index.open_shard(shard)


# --- files of it ---


def test_save_and_open(tmp_path: Path) -> None:
    index = RecordIndex.build(three_shards(tmp_path))
    index.save(tmp_path / "i.tfrindex")
    again = RecordIndex.open(tmp_path / "i.tfrindex")
    assert list(again) == list(index)  # type: ignore[call-overload]
    assert again.shard_sizes.tolist() == [2, 0, 3]
    assert again.shard_bytes.tolist() == [41, 0, 350]
    assert (again.fingerprint, again.num_bytes, again.verify_level) == (index.fingerprint, 391, "length")
    assert index.file == again.file == str(tmp_path / "i.tfrindex")
    again.verify()
    assert min(os.listdir(tmp_path)) == "i.tfrindex"


def test_moved_with_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "old"
    (old / "sub").mkdir(parents=True)
    paths = [write_file(old / "a", [b"1"]), write_file(old / "sub" / "b", [b"2"])]
    RecordIndex.build(paths).save(old / "i.tfrindex")
    new = tmp_path / "new"
    old.rename(new)
    index = RecordIndex.open(new / "i.tfrindex")
    assert index.paths == (str(new / "a"), str(new / "sub" / "b"))
    index.verify()
    monkeypatch.chdir(new)
    assert RecordIndex.open("i.tfrindex").paths == ("a", "sub/b")


def test_elsewhere_than_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("data", "here", "other"):
        (tmp_path / name).mkdir()
    write_file(tmp_path / "data" / "a", [b"1"])
    monkeypatch.chdir(tmp_path)
    index = RecordIndex.build("data/a")
    assert index.paths == ("data/a",)
    index.save("here/i.tfrindex")
    os.rename("here/i.tfrindex", "other/i.tfrindex")
    assert RecordIndex.open("other/i.tfrindex").paths == (str(tmp_path / "data" / "a"),)


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    path = write_file(tmp_path / os.fsdecode(b"caf\xe9"), [b"1"])
    RecordIndex.build(path).save(tmp_path / "i.tfrindex")
    assert RecordIndex.open(tmp_path / "i.tfrindex").paths == (path,)


def test_saving_fails_without_a_trace(tmp_path: Path) -> None:
    index = RecordIndex.build(write_file(tmp_path / "a", [b"1"]))
    with pytest.raises(FileNotFoundError):
        index.save(tmp_path / "no" / "i.tfrindex")
    (tmp_path / "dir").mkdir()
    with pytest.raises(IsADirectoryError):
        index.save(tmp_path / "dir")
    assert sorted(os.listdir(tmp_path)) == ["a", "dir"]
    assert index.file is None


def test_nothing_but_an_index_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a"
    index = RecordIndex.build(write_file(path, PAYLOADS))
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "a.tfrindex").symlink_to("a")
    for name in ("a", "link", "a.tfrindex"):
        with pytest.raises(ValueError, match=f"{name}: this is the data file {path}, which an index must not replace"):
            index.save(tmp_path / name)
    write_file(tmp_path / "b", PAYLOADS)
    with pytest.raises(ValueError, match="b: this file is no index, so it is not replaced"):
        index.save(tmp_path / "b")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not to a device or a pipe"):
        index.save(tmp_path / "pipe")
    assert index.file is None
    assert path.read_bytes() == (tmp_path / "b").read_bytes() == frames(PAYLOADS)
    assert sorted(os.listdir(tmp_path)) == ["a", "a.tfrindex", "b", "link", "pipe"]


def test_errors_of_saving_name_the_file_that_was_wanted(tmp_path: Path) -> None:
    index = RecordIndex.build(write_file(tmp_path / "a", [b"1"]))
    with pytest.raises(FileNotFoundError, match=f"the directory to write in, {tmp_path}/no, is missing") as info:
        index.save(tmp_path / "no" / "i")
    assert info.value.filename == f"{tmp_path}/no/i"


def test_relative_paths_survive_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(frames(PAYLOADS) + BETA[:-1])
    monkeypatch.chdir(tmp_path)
    index = RecordIndex.build("a", on_error="skip")
    monkeypatch.chdir("/")
    assert index.paths == ("a",)
    assert index.open_shard(0).size() == index.num_bytes
    index.verify()
    again = pickle.loads(pickle.dumps(index))
    index.save(tmp_path / "i.tfrindex")
    for other in (again, RecordIndex.open(tmp_path / "i.tfrindex")):
        assert other.paths == (str(tmp_path / "a"),)
        assert [fault.path for fault in other.faults] == [str(tmp_path / "a")]
        other.verify()
    (tmp_path / "a").unlink()
    with pytest.raises(FileNotFoundError) as info:
        index.open_shard(0)
    assert info.value.filename == "a"


def test_files_of_a_data_set_survive_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        write_file(tmp_path / name, [name.encode()])
    monkeypatch.chdir(tmp_path)
    dataset = TFRecordDataset(["a", "b"], None, index=RecordIndex.build(["a", "b"]))
    again = pickle.dumps(dataset)
    monkeypatch.chdir("/")
    assert dataset[0] == b"a"
    assert pickle.loads(again)[1] == b"b"
    (tmp_path / "b").unlink()
    with pytest.raises(FileNotFoundError) as info:
        dataset[1]
    assert info.value.filename == "b"


def test_missing_index_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RecordIndex.open(tmp_path / "no.tfrindex")


# --- fingerprints ---


def test_fingerprint_is_of_content_alone(tmp_path: Path) -> None:
    first = write_file(tmp_path / "a", PAYLOADS)
    second = write_file(tmp_path / "b", PAYLOADS)
    os.utime(second, (1, 1))
    one = RecordIndex.build(first).fingerprint
    assert RecordIndex.build(second).fingerprint == one
    assert RecordIndex.build(first, verify="all").fingerprint == one
    assert RecordIndex.build([first, second]).fingerprint == RecordIndex.build([second, first]).fingerprint
    assert len(one) == 32
    assert int(one, 16) >= 0


def test_fingerprint_is_frozen(path: Path) -> None:
    """Saved positions refer to it, so it must not change from version to version."""
    path.write_bytes(ALPHA + BETA)
    assert RecordIndex.build(path).fingerprint == "492a73f5ab5f42a8b9ab876099d06871"


def test_fingerprint_differs_with_content(tmp_path: Path) -> None:
    contents = [
        [b"ab", b"c"],
        [b"a", b"bc"],
        [b"ab", b"d"],
        [b"c", b"ab"],
        [b"ab", b"c", b""],
        [],
    ]
    paths = [write_file(tmp_path / str(number), payloads) for number, payloads in enumerate(contents)]
    prints = [RecordIndex.build(path).fingerprint for path in paths]
    prints += [RecordIndex.build(pair).fingerprint for pair in (paths[:2], paths[1::-1], [paths[0], paths[5]])]
    assert len(set(prints)) == len(prints)


# --- stale ---


def stale_index(path: Path, saved: Path) -> RecordIndex:
    write_file(path, [bytes([number]) * 50 for number in range(100)])
    RecordIndex.build(path).save(saved)
    return RecordIndex.open(saved)


def check(index: RecordIndex) -> None:
    index.check_shard(0, open_shard(index.paths[0]))


def test_unchanged(path: Path, tmp_path: Path) -> None:
    index = stale_index(path, tmp_path / "i.tfrindex")
    check(index)
    index.verify()
    os.utime(path, (1, 1))
    check(index)


@pytest.mark.parametrize("change", ["other content", "other layout", "appended", "truncated", "emptied", "one more"])
def test_changed(path: Path, tmp_path: Path, change: str) -> None:
    index = stale_index(path, tmp_path / "i.tfrindex")
    old = path.read_bytes()
    new = {
        "other content": frames([bytes([number + 1]) * 50 for number in range(100)]),
        "other layout": frames([b"\0" * 50, b"\1" * 34, b"\2" * 50, *[b"\3" * 50] * 97]) + frame(b""),
        "appended": old + frame(b"new"),
        "truncated": old[:-66],
        "emptied": b"",
        "one more": old + b"x",
    }[change]
    assert (len(new) == len(old)) == change.startswith("other")
    path.write_bytes(new)
    with pytest.raises(StaleIndexError, match=r"a\.tfrecord: the file .*i\.tfrindex was built: build the index again"):
        check(index)
    with pytest.raises(StaleIndexError, match="build the index again"):
        index.verify()


def test_deleted(path: Path, tmp_path: Path) -> None:
    index = stale_index(path, tmp_path / "i.tfrindex")
    path.unlink()
    with pytest.raises(FileNotFoundError):
        check(index)
    with pytest.raises(FileNotFoundError):
        index.verify()


def test_replaced_by_something_else(path: Path, tmp_path: Path) -> None:
    index = stale_index(path, tmp_path / "i.tfrindex")
    path.write_bytes(b"<html>" + b" " * (path.stat().st_size - 6))
    with pytest.raises(StaleIndexError, match="has other content now than it had"):
        check(index)
    with pytest.raises(NotATFRecordError, match="an HTML page"):
        index.verify()


# --- pickling ---


def test_pickle_in_memory(tmp_path: Path) -> None:
    index = RecordIndex.build(three_shards(tmp_path))
    again = pickle.loads(pickle.dumps(index))
    assert list(again) == list(index)  # type: ignore[call-overload]
    assert (again.fingerprint, again.paths, again.file) == (index.fingerprint, index.paths, None)


def test_pickle_of_a_file_is_small(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a", [b""] * 10_000)
    index = RecordIndex.build(path)
    assert len(pickle.dumps(index)) > 160_000
    index.save(tmp_path / "i.tfrindex")
    for saved in (index, RecordIndex.open(tmp_path / "i.tfrindex")):
        pickled = pickle.dumps(saved)
        assert len(pickled) < 300
        again = pickle.loads(pickled)
        assert (len(again), again.paths, again.fingerprint) == (10_000, (path,), index.fingerprint)


def test_pickle_survives_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path / "a", PAYLOADS)
    monkeypatch.chdir(tmp_path)
    RecordIndex.build("a").save("i.tfrindex")
    pickled = pickle.dumps(RecordIndex.open("i.tfrindex"))
    monkeypatch.chdir("/")
    assert pickle.loads(pickled).paths == (str(tmp_path / "a"),)


def test_pickle_when_the_file_was_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a"
    saved = tmp_path / "i.tfrindex"
    write_file(path, [b"1"])
    index = RecordIndex.build(path)
    index.save(saved)
    pickled = pickle.dumps(index)
    RecordIndex.build(path, verify="all").save(saved)
    assert len(pickle.loads(pickled)) == 1  # of the same content
    write_file(path, [b"2"])
    RecordIndex.build(path).save(saved)
    with pytest.raises(StaleIndexError, match="the index was built anew, of changed data, since it was pickled"):
        pickle.loads(pickled)
    saved.unlink()
    with pytest.raises(FileNotFoundError, match="the index file that a pickled RecordIndex names is missing"):
        pickle.loads(pickled)


# --- progress and interruption ---


def test_progress_function(tmp_path: Path) -> None:
    paths = three_shards(tmp_path)
    calls: list[tuple[int, int]] = []
    index = RecordIndex.build(paths, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (391, 391)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    calls.clear()
    index.verify(progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (391, 391)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = three_shards(tmp_path)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)  # as if it were not installed
    for stream, shown in [(Terminal(), "\rindexing: 100 % of 0.00 GiB\n"), (io.StringIO(), "")]:
        monkeypatch.setattr(sys, "stderr", stream)
        RecordIndex.build(paths, progress=True)
        assert stream.getvalue().endswith(shown)
        assert bool(stream.getvalue()) == bool(shown)
        stream.truncate(0)
        RecordIndex.build(paths)
        assert stream.getvalue().strip("\0") == ""


def test_an_error_in_the_progress_function_stops_the_build(tmp_path: Path) -> None:
    paths = three_shards(tmp_path)

    def fail(done: int, total: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        RecordIndex.build(paths, progress=fail)


def test_interrupt(tmp_path: Path) -> None:
    """Ctrl-C ends a long build soon: here of a thousand records of 1 GB, which are holes, over and over."""
    path = tmp_path / "a"
    size = 2**30
    with open(path, "wb") as file:
        for record in range(1000):
            file.seek(record * (size + 16))
            file.write(header(size))
        file.truncate(1000 * (size + 16))
    code = f"""
from torch_tfrecord.index import RecordIndex
print("ready", flush=True)
try:
    RecordIndex.build([{str(path)!r}] * 20_000)
except KeyboardInterrupt:
    print("interrupted")
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    start = time.monotonic()
    output, _ = process.communicate(timeout=60)
    assert time.monotonic() - start < 20
    assert output == "interrupted\n"
    assert process.returncode == 0
