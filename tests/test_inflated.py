"""Compressed files read at random: the records of the plain twin, in a temporary file that vanishes."""

from __future__ import annotations

import gc
import io
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compressed_files import KINDS, compress, compress_file, write_compressed
from doors import DOORS, Door, Setting, all_seen, expected
from numbered import FEATURES, ID, ids, plain, row, rows_of, write, write_shards
from record_files import flip, frames
from test_files import open_descriptors, wait_for
from torch.utils.data import DataLoader, Subset

import torch_tfrecord as tfr
from torch_tfrecord import inflated
from torch_tfrecord.inflate import InflatedFile

COUNT = 60
LINUX = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="looks into /proc")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("TMPDIR", str(place))
    return place


@pytest.fixture
def paths(tmp_path: Path, folder: Path) -> list[str]:
    """One file of each kind, and a plain one."""
    (tmp_path / "data").mkdir()
    names = write_shards(tmp_path / "data", [20, 10, 5, 25])
    for name, kind in zip(names, KINDS, strict=False):
        compress_file(name, kind)
    return names


# --- the same records ---


def test_what_an_index_says(paths: list[str], tmp_path: Path) -> None:
    index = tfr.RecordIndex.build(paths)
    plain_index = tfr.RecordIndex.build(write(tmp_path / "plain", COUNT))
    assert index.shard_compression == ("gzip", "zlib", "gzip", "none")
    assert plain_index.shard_compression == ("none",)
    assert index.shard_bytes.tolist() == [os.path.getsize(path) for path in paths]
    assert index.shard_stream_bytes.sum() == plain_index.num_bytes
    assert index.lengths.tolist() == plain_index.lengths.tolist()
    index.save(tmp_path / "i.tfrindex")
    again = tfr.RecordIndex.open(tmp_path / "i.tfrindex")
    assert again.shard_compression == index.shard_compression
    assert again.shard_stream_bytes.tolist() == index.shard_stream_bytes.tolist()
    assert again.fingerprint == index.fingerprint
    again.verify()
    for shard in range(4):
        assert again.open_shard(shard).size() == os.path.getsize(paths[shard])


@pytest.mark.parametrize("kind", KINDS)
def test_a_twin_has_the_same_fingerprint(tmp_path: Path, kind: str) -> None:
    one = tfr.RecordIndex.build(write(tmp_path / "a", COUNT))
    compress_file(str(tmp_path / "a"), kind)
    assert tfr.RecordIndex.build(tmp_path / "a").fingerprint == one.fingerprint


def test_random_access(paths: list[str]) -> None:
    dataset = tfr.TFRecordDataset(paths, FEATURES)
    order = np.random.default_rng(0).permutation(COUNT)
    assert rows_of(dataset.read_batch(order)) == [row(i) for i in order.tolist()]
    assert plain(dataset[-1]) == row(COUNT - 1)
    assert [plain(record) for record in dataset] == list(map(row, range(COUNT)))
    assert ids(dataset[50:3:-7]) == list(range(50, 3, -7))
    assert ids(dataset.select([3, 3, 59, 0])) == [3, 3, 59, 0]
    assert dataset.read_batch([])["id"].tolist() == []
    subset = Subset(dataset, [30, 1])
    assert [int(subset[i]["id"]) for i in range(2)] == [30, 1]
    raw = tfr.TFRecordDataset(paths, None)
    assert raw[[59, 0, 25]].tolist() == [raw[59], raw[0], raw[25]]
    assert raw[25] == list(tfr.read_records(paths[1]))[5]


@pytest.mark.parametrize("backwards", [False, True])
def test_no_more_is_inflated_than_is_needed(paths: list[str], backwards: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflated, "_PIECE_BYTES", 100)
    dataset = tfr.TFRecordDataset(paths, FEATURES)
    shards = dataset._reader._inflated
    assert shards is not None
    assert int(dataset[12]["id"]) == 12
    end = dataset.index[13].offset
    assert end <= shards._reached[0] < end + 100
    assert shards._reached[1:] == [0, 0, 0]
    for i in range(COUNT)[:: -1 if backwards else 1]:
        assert int(dataset[i]["id"]) == i
    assert shards._reached == [*dataset.index.shard_stream_bytes.tolist()[:3], 0]
    assert not shards._streams


@pytest.mark.parametrize("most", [1, 2])
def test_few_streams_are_open_at_once(paths: list[str], most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflated, "_PIECE_BYTES", 10)
    monkeypatch.setattr(inflated, "_MAX_STREAMS", most)
    dataset = tfr.TFRecordDataset(paths, FEATURES)
    shards = dataset._reader._inflated
    assert shards is not None
    for i in (0, 20, 30, 1, 21, 31, *range(COUNT)):
        assert plain(dataset[i]) == row(i)
        assert len(shards._streams) <= most


@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", DOORS)
def test_doors(paths: list[str], name: str, num_workers: int, shuffle: bool) -> None:
    dataset = tfr.TFRecordDataset(paths, ID)
    workers = {"num_workers": num_workers} if name != "loader" else {}
    for setting in Setting(7, shuffle=shuffle, seed=3, world_size=2).ranks():
        door = Door(name, dataset, setting, **workers)
        for epoch in range(2):
            if name == "sampler":
                door.reader.set_epoch(epoch)
            assert all_seen(door) == expected(COUNT, setting, epoch=epoch)


def test_torchs_own_shuffling(paths: list[str]) -> None:
    dataset = tfr.TFRecordDataset(paths, ID)
    for num_workers in (0, 2):
        loader = DataLoader(dataset, 8, shuffle=True, num_workers=num_workers, collate_fn=tfr.collate)
        assert sorted(torch.cat([batch["id"] for batch in loader]).tolist()) == list(range(COUNT))


def test_a_state_of_the_plain_twin_is_good(tmp_path: Path, folder: Path) -> None:
    path = write(tmp_path / "a", COUNT)
    setting = Setting(7, shuffle=True, seed=3)
    door = Door("loader", tfr.TFRecordDataset(path, ID), setting)
    batches = iter(door)
    begun = [next(batches)["id"].tolist() for _ in range(3)]
    state = door.state(3)
    rest = [batch["id"].tolist() for batch in batches]
    compress_file(path)
    door = Door("loader", tfr.TFRecordDataset(path, ID), setting)
    door.reader.load_state_dict(state)
    assert [batch["id"].tolist() for batch in door] == rest
    assert len(begun + rest) == 9


# --- temporary files ---


def test_the_temporary_file_has_no_name(paths: list[str], folder: Path) -> None:
    dataset = tfr.TFRecordDataset(paths, ID)
    assert ids(dataset) == list(range(COUNT))
    assert os.listdir(folder) == []


@LINUX
def test_it_vanishes_with_the_data_set(paths: list[str], folder: Path) -> None:
    def of_ours() -> list[str]:
        links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
        return [link for link in map(_target, links) if link.startswith(str(folder))]

    dataset = tfr.TFRecordDataset(paths, ID)
    gc.collect()
    before = open_descriptors()
    assert of_ours() == []
    assert ids(dataset) == list(range(COUNT))
    assert len(of_ours()) == 2  # to write and to read
    assert open_descriptors() == before + 3  # and the plain file: no compressed one any more
    part = dataset[5:9]
    del dataset
    gc.collect()
    assert ids(part) == [5, 6, 7, 8]
    del part
    gc.collect()
    assert of_ours() == []
    assert open_descriptors() == before


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""


KILLED = """
import sys, torch_tfrecord as tfr
dataset = tfr.TFRecordDataset(sys.argv[1:], None)
assert len(dataset.__getitems__(range(len(dataset)))) == 60
print("read", flush=True)
input()
"""


def test_nothing_is_left_by_a_process_that_is_killed(paths: list[str], folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, *paths], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "read\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert os.listdir(folder) == []


FULL = """
import resource, sys, torch_tfrecord as tfr
dataset = tfr.TFRecordDataset(sys.argv[1], None)
for limit in (100_000, 300_000, resource.RLIM_INFINITY):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        print(dataset[399] == bytes([143]) * 1000)
    except OSError as error:
        print(type(error).__name__, error)
"""


def test_no_room_for_the_temporary_file(tmp_path: Path, folder: Path) -> None:
    path = write_compressed(tmp_path / "a", [bytes([number % 256]) * 1000 for number in range(400)])
    run = subprocess.run([sys.executable, "-c", FULL, path], capture_output=True, text=True, check=False)
    problem = f"cannot be uncompressed into a temporary file in {folder}: File too large: name a folder with 406,400"
    assert run.stderr == ""
    first, second, third = run.stdout.splitlines()
    assert first == second
    assert first.startswith(f"OSError [Errno 27] {path}: {problem} bytes free by TMPDIR")
    assert third == "True"


def test_a_missing_folder_for_temporary_files(paths: list[str], folder: Path) -> None:
    dataset = tfr.TFRecordDataset(paths, ID)
    folder.rmdir()
    with pytest.raises(FileNotFoundError, match=str(folder)):
        dataset[0]
    folder.mkdir()
    assert int(dataset[0]["id"]) == 0


@pytest.mark.parametrize("text", ["-1", "4GB", "1e9", "٣"])
def test_a_limit_that_is_no_number(paths: list[str], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(inflated.LIMIT_VARIABLE, text)
    with pytest.raises(ValueError, match=f"TORCH_TFRECORD_INFLATE_BYTES is '{text}', and must be a number of bytes"):
        tfr.TFRecordDataset(paths, ID)


@LINUX
def test_descriptors_of_many_compressed_files(tmp_path: Path, folder: Path) -> None:
    """However many there are, few are open, and those of others are closed where there are too many."""
    (tmp_path / "data").mkdir()
    paths = write_shards(tmp_path / "data", [2] * 100)
    for path in paths[:50]:
        compress_file(path)
    dataset = tfr.TFRecordDataset(paths, ID)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_descriptors() + 40, hard))
    try:
        order = np.random.default_rng(0).permutation(200).tolist()
        assert dataset.read_batch(order)["id"].tolist() == order
        assert [int(dataset[i]["id"]) for i in order] == order
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- threads and forks ---


def test_threads_at_once(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflated, "_PIECE_BYTES", 50)
    monkeypatch.setattr(inflated, "_MAX_STREAMS", 1)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    errors: list[BaseException] = []

    def read(dataset: tfr.TFRecordDataset, seed: int) -> None:
        order = list(range(COUNT))
        random.Random(seed).shuffle(order)
        try:
            for begin in range(0, COUNT, 3):
                assert dataset.read_batch(order[begin : begin + 3])["id"].tolist() == order[begin : begin + 3]
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            errors.append(error)

    opened: list[int] = []
    open_stream = inflated.open_stream

    def counting(index: tfr.RecordIndex, shard: int) -> InflatedFile:
        opened.append(shard)
        return open_stream(index, shard)

    monkeypatch.setattr(inflated, "open_stream", counting)
    for turn in range(10):
        dataset = tfr.TFRecordDataset(paths, ID)
        threads = [threading.Thread(target=read, args=(dataset, 10 * turn + seed)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    sys.setswitchinterval(interval)
    assert errors == []
    assert sorted(opened) == sorted([0, 1, 2] * 10)  # each is inflated once


def test_fork_when_a_part_was_inflated(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Parent and child go on, each on its own, in the one file that they share."""
    monkeypatch.setattr(inflated, "_PIECE_BYTES", 50)
    dataset = tfr.TFRecordDataset(paths, ID)
    assert ids(dataset[:8]) == list(range(8))
    children = []
    for turn in range(4):
        child = os.fork()
        if child == 0:
            good = False
            try:
                torch.set_num_threads(2)
                good = all(int(dataset[i]["id"]) == i for i in range(turn, COUNT, 4))
            finally:
                os._exit(0 if good else 1)
        children.append(child)
    assert [int(dataset[i]["id"]) for i in range(COUNT)] == list(range(COUNT))
    assert [wait_for(child, seconds=60) for child in children] == [0] * 4


@pytest.fixture
def large(tmp_path: Path, folder: Path) -> tuple[str, list[bytes]]:
    payloads = [random.Random(number).randbytes(10_000) for number in range(300)]
    return write_compressed(tmp_path / "large", payloads), payloads


def test_forks_while_threads_inflate(large: tuple[str, list[bytes]]) -> None:
    """A child has the lock and the half-changed stream of a thread that it has not."""
    path, payloads = large
    index = tfr.RecordIndex.build(path)
    stop = threading.Event()
    datasets = [tfr.TFRecordDataset(path, None, index=index)]

    def read() -> None:
        while not stop.is_set():
            datasets[0] = tfr.TFRecordDataset(path, None, index=index)
            datasets[0][299]

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(20):
            time.sleep(0.002 * turn)
            child = os.fork()
            if child == 0:
                good = False
                try:
                    torch.set_num_threads(1)
                    good = all(datasets[0][i] == payloads[i] for i in (0, 150, 299))
                finally:
                    os._exit(0 if good else 1)
            assert wait_for(child, seconds=60) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


# --- changed and damaged files ---


@pytest.mark.parametrize("kind", KINDS)
def test_another_file_is_noticed(tmp_path: Path, kind: str, folder: Path) -> None:
    payloads = [bytes([number]) * 50 for number in range(100)]
    path = Path(write_compressed(tmp_path / "a", payloads, kind))
    index = tfr.RecordIndex.build(path)
    data = path.read_bytes()
    other = compress(frames([*payloads[:-1], b"\1" * 50]), kind)
    for content in (other, data + b"\0", data[:-1], flip(data, len(data) - 1), frames(payloads), b""):
        path.write_bytes(content)
        dataset = tfr.TFRecordDataset(path, None, index=index)
        with pytest.raises(tfr.StaleIndexError, match=f"{path}: the file .* when its index was built"):
            dataset[0]
    path.write_bytes(data)
    assert tfr.TFRecordDataset(path, None, index=index)[99] == b"c" * 50


def test_a_stream_that_became_longer_spoils_no_other(tmp_path: Path, folder: Path) -> None:
    """As after a change of the file that its samples do not show: what is too much goes nowhere."""
    first, second = tmp_path / "a", write_compressed(tmp_path / "b", [b"beta"] * 100)
    draw = random.Random(0)
    payloads = [draw.randbytes(1000) for _ in range(100)]
    first.write_bytes(compress(frames(payloads), "gzip"))
    index = tfr.RecordIndex.build([first, second])
    dataset = tfr.TFRecordDataset([first, second], None, index=index)
    shards = dataset._reader._inflated
    assert shards is not None
    assert dataset[199] == b"beta"
    longer = compress(frames([*payloads, b"x" * 5000]), "gzip")
    shards._streams[0] = InflatedFile(io.BytesIO(longer), "gzip")
    assert dataset.__getitems__(range(200)) == payloads + [b"beta"] * 100


def test_damage_that_no_sample_shows(large: tuple[str, list[bytes]]) -> None:
    """Records before it are read; others are an error that says where it is, each time anew."""
    path, payloads = large
    index = tfr.RecordIndex.build(path)
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:1_050_000] + bytes(10_000) + data[1_060_000:])
    dataset = tfr.TFRecordDataset(path, None, index=index)
    good = 0
    while good < 300:
        try:
            assert dataset[good] == payloads[good]
        except tfr.DataLossError as error:
            assert f"{path}: record {good} at byte {index[good].offset}" in str(error)  # noqa: PT017
            break
        good += 1
    assert 90 < good < 110
    for _ in range(2):
        with pytest.raises(tfr.DataLossError, match=f"record {good} at byte {index[good].offset}"):
            dataset[299]
    assert dataset[good - 1] == payloads[good - 1]


def test_damaged_records_say_where_they_are(tmp_path: Path, folder: Path) -> None:
    """A record's own checksum: its place is that in the stream, not that in the temporary file."""
    whole = write_compressed(tmp_path / "a", [b"alpha", b"beta"])
    bad = tmp_path / "b"
    bad.write_bytes(compress(flip(frames([b"gamma", b"delta", b"x"]), 35), "zlib"))
    dataset = tfr.TFRecordDataset([whole, bad], None)
    assert dataset.__getitems__([0, 2, 4]) == [b"alpha", b"gamma", b"x"]
    with pytest.raises(tfr.DataLossError, match=f"{bad}: record 1 at byte 21 .*data checksum"):
        dataset[3]
    unchecked = tfr.TFRecordDataset([whole, bad], None, verify="length")
    assert unchecked[3] != b"delta"


@pytest.mark.parametrize("kind", KINDS)
def test_left_out_on_request(tmp_path: Path, kind: str, folder: Path) -> None:
    """The index knows what is lost, so all ranks have equally much."""
    path = Path(write(tmp_path / "a", COUNT))
    compress_file(str(path), kind)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    with pytest.raises(tfr.DataLossError, match=f"{path}: record"):
        tfr.TFRecordDataset(path, ID)
    dataset = tfr.TFRecordDataset(path, ID, on_error="skip")
    count = len(dataset)
    assert 10 < count < COUNT
    assert ids(dataset) == list(range(count))
    assert [fault.record for fault in dataset.index.faults] == [count]
    for name in DOORS:
        ranks = [all_seen(Door(name, dataset, setting)) for setting in Setting(3, world_size=4).ranks()]
        assert len({len(steps) for steps in ranks}) == 1
        assert ranks == [expected(count, setting, epoch=0) for setting in Setting(3, world_size=4).ranks()]


def test_a_checksum_of_the_stream_that_is_known_to_be_wrong(tmp_path: Path, folder: Path) -> None:
    first, second = frames([b"alpha"]), frames([b"beta"])
    path = tmp_path / "a"
    member = compress(first, "gzip")
    path.write_bytes(flip(member, len(member) - 8) + compress(second, "gzip"))
    with pytest.raises(tfr.DataLossError, match=f"{path}: record 1"):
        tfr.TFRecordDataset(path, None)
    dataset = tfr.TFRecordDataset(path, None, on_error="skip")
    assert dataset.__getitems__([1, 0]) == [b"beta", b"alpha"]
    assert [(fault.reason, fault.bytes_lost) for fault in dataset.index.faults] == [("inflate_checksum", 0)]


@pytest.mark.parametrize("max_faults", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("door", [tfr.TFRecordDataset, tfr.TFRecordIterableDataset])
def test_budget_of_faults(tmp_path: Path, door: Any, max_faults: int | None, folder: Path) -> None:
    good = frames([b"alpha", b"beta", b"gamma"])
    (tmp_path / "a").write_bytes(flip(flip(good, 12), 33))
    (tmp_path / "b").write_bytes(compress(good[:-1], "gzip"))
    files = [tmp_path / "a", tmp_path / "b"]
    options: dict[str, Any] = {"batch_size": 1} if door is tfr.TFRecordIterableDataset else {}
    for _ in range(2):  # the second time the index is there
        for index in (None, tfr.RecordIndex.build(files, verify="all", on_error="skip")):
            options |= {"on_error": "skip", "max_faults": max_faults, "index": index}
            if max_faults in (None, 3):
                assert len(door(files, None, **options)) == 3
                continue
            with pytest.raises(tfr.DataLossError) as caught:
                door(files, None, **options)
            assert f"{tmp_path / 'a'}: record 0 at byte 0" in str(caught.value)
