"""Compressed files above the limit: read in order, in bounded memory, and not in any other."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compressed_files import KINDS, compress, compress_file, write_compressed
from doors import DOORS, Door, Setting, all_seen, expected
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numbered import FEATURES, ID, ids, row, rows_of, write_shards
from record_files import flip, frames
from test_files import open_descriptors, wait_for
from torch.utils.data import DataLoader

import torch_tfrecord as tfr
from torch_tfrecord import forward
from torch_tfrecord.inflated import LIMIT_VARIABLE

COUNT = 60
REFUSED = "records are read in another order than the one in which they lie.*read in order.*uncompress the files.*set T"


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that next to nothing may be kept uncompressed."""
    monkeypatch.setenv(LIMIT_VARIABLE, "300")
    monkeypatch.setattr(forward, "_PIECE_BYTES", 100)


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    names = write_shards(tmp_path, [20, 10, 5, 25])
    for name, kind in zip(names, KINDS, strict=False):
        compress_file(name, kind)
    return names


def test_in_order(paths: list[str]) -> None:
    dataset = tfr.TFRecordDataset(paths, FEATURES)
    for _ in range(3):
        for begin in range(0, COUNT, 7):
            places = range(begin, min(begin + 7, COUNT))
            assert rows_of(dataset.read_batch(places)) == [row(i) for i in places]
    assert ids(dataset[3::5]) == list(range(3, COUNT, 5))
    assert [int(record["id"]) for record in dataset] == list(range(COUNT))
    raw = tfr.TFRecordDataset(paths, None)
    assert list(raw) == list(tfr.read_records(paths))


@pytest.mark.parametrize("world_size", [1, 3, 7])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", DOORS)
def test_doors(paths: list[str], name: str, num_workers: int, world_size: int) -> None:
    """All ranks, also those that repeat the first records at the end; one epoch after another; from the middle."""
    dataset = tfr.TFRecordDataset(paths, ID)
    workers = {"num_workers": num_workers} if name != "loader" else {}
    for setting in Setting(4, world_size=world_size).ranks():
        door = Door(name, dataset, setting, **workers)
        for _ in range(3):
            assert all_seen(door) == expected(COUNT, setting, epoch=0)
        batches = iter(door)
        for _ in range(2):
            next(batches)
        state = door.state(2)
        del batches
        door = Door(name, dataset, setting, **workers)
        door.reader.load_state_dict(state)
        assert all_seen(door) == expected(COUNT, setting, epoch=0)[2:]


def test_a_long_way_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is passed by nothing is kept, not even where a window would have room for nothing."""
    monkeypatch.setenv(LIMIT_VARIABLE, "0")
    path = write_compressed(tmp_path / "a", [bytes([number % 256]) * 1000 for number in range(400)])
    dataset = tfr.TFRecordDataset(path, None)
    for i in (3, 4, 200, 399):
        assert dataset[i] == bytes([i % 256]) * 1000


def test_many_ranks_and_small_shards(tmp_path: Path) -> None:
    """Most of what is inflated is of other ranks."""
    paths = write_shards(tmp_path, [20] * 20)
    for path in paths:
        compress_file(path)
    dataset = tfr.TFRecordDataset(paths, ID)
    for setting in Setting(3, world_size=19).ranks()[::6]:
        assert all_seen(Door("stream", dataset, setting)) == expected(400, setting, epoch=0)


@pytest.mark.parametrize("name", DOORS)
def test_several_passes_at_once(paths: list[str], name: str) -> None:
    dataset = tfr.TFRecordDataset(paths, ID)
    doors = [Door(name, dataset, Setting(6)) for _ in range(3)]
    if name == "sampler":  # whose passes share the place of the data set
        doors = doors[:1]
    passes = [iter(door) for door in doors]
    for step in range(10):
        for batches in passes:
            assert next(batches)["id"].tolist() == list(range(6 * step, 6 * step + 6))


@pytest.mark.parametrize("name", DOORS)
def test_shuffling_is_refused(paths: list[str], name: str) -> None:
    door = Door(name, tfr.TFRecordDataset(paths, ID), Setting(20, shuffle=True))
    with pytest.raises(ValueError, match=REFUSED):
        list(door)


def test_by_workers_too(paths: list[str]) -> None:
    dataset = tfr.TFRecordDataset(paths, ID)
    draw = torch.Generator().manual_seed(0)
    loader = DataLoader(dataset, COUNT, shuffle=True, num_workers=2, collate_fn=tfr.collate, generator=draw)
    with pytest.raises(ValueError, match=REFUSED):
        list(loader)


def test_the_first_batch_is_refused_before_anything_is_inflated(tmp_path: Path) -> None:
    path = write_compressed(tmp_path / "a", [bytes(1000)] * 1000)
    dataset = tfr.TFRecordDataset(path, None)
    reader = dataset._reader._forward
    assert reader is not None
    order = np.random.default_rng(0).permutation(1000)[:16].tolist()
    with pytest.raises(ValueError, match=f"^{path}: {REFUSED}"):
        dataset.__getitems__(order)
    assert reader._windows == {}
    assert dataset.__getitems__(range(10)) == [bytes(1000)] * 10


def test_reading_one_by_one_at_random_is_refused_soon(paths: list[str]) -> None:
    dataset = tfr.TFRecordDataset(paths, ID)
    order = np.random.default_rng(0).permutation(COUNT).tolist()

    def read() -> None:
        for i in order * 3:
            assert int(dataset[i]["id"]) == i

    with pytest.raises(ValueError, match=REFUSED):
        read()


def test_a_little_disorder_is_within_the_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "20000")
    path = write_compressed(tmp_path / "a", [bytes([number % 256]) * 1000 for number in range(400)])
    dataset = tfr.TFRecordDataset(path, None)
    draw = np.random.default_rng(0)
    for begin in range(0, 400, 8):
        order = (begin + draw.permutation(8)).tolist()
        assert dataset.__getitems__(order) == [bytes([i % 256]) * 1000 for i in order]
    assert dataset._reader._forward is not None
    assert dataset._reader._forward._granted == dataset._reader._forward._most_granted


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 700), min_size=1, max_size=30),
    window=st.integers(0, 2000),
    kinds=st.lists(st.sampled_from((*KINDS, "none")), min_size=1, max_size=3),
    draw=st.data(),
)
def test_whatever_is_read_is_right(
    tmp_path: Path, sizes: list[int], window: int, kinds: list[str], draw: st.DataObject
) -> None:
    """Any places in any order: the records, or a refusal."""
    payloads = [bytes([number]) * size for number, size in enumerate(sizes)]
    paths = [str(tmp_path / str(shard)) for shard in range(len(kinds))]
    for path, kind in zip(paths, kinds, strict=True):
        Path(path).write_bytes(frames(payloads) if kind == "none" else compress(frames(payloads), kind))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(LIMIT_VARIABLE, str(window))
        dataset = tfr.TFRecordDataset(paths, None, index=tfr.RecordIndex.build(paths))
    everything = payloads * len(kinds)
    for _ in range(4):
        places = draw.draw(st.lists(st.integers(0, len(everything) - 1), max_size=8))
        if draw.draw(st.booleans()):
            places.sort()
        try:
            assert dataset.__getitems__(places) == [everything[i] for i in places]
        except ValueError as error:
            assert "in another order" in str(error)  # noqa: PT017
            assert len(set(kinds)) > 1 or "none" not in kinds


# --- memory, descriptors, temporary files ---

STREAM = """
import resource, sys, torch_tfrecord as tfr
path, count = sys.argv[1], 600
index = tfr.RecordIndex.build(path)
dataset = tfr.TFRecordDataset(path, None, index=index)
dataset[0]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
stream = tfr.TFRecordIterableDataset(path, None, index=index, batch_size=16, rank=1, world_size=2)
found = sum(len(batch) for batch in stream)
assert found == count // 2, found
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_is_bounded(tmp_path: Path) -> None:
    """600 MB, of which one rank reads the half."""
    path = tmp_path / "a"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for number in range(600):
            file.write(frames([bytes([number % 256]) * 1_000_000]))
    command = [sys.executable, "-c", STREAM, str(path)]
    environment = {**os.environ, LIMIT_VARIABLE: "100000000"}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert run.stderr == ""
    assert int(run.stdout) < 100_000  # kB: a batch of 16 MB a few times, and a window of 16 MB


def test_no_temporary_file(paths: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    assert ids(tfr.TFRecordDataset(paths, ID)) == list(range(COUNT))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors by /proc")
def test_few_files_are_open(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [2] * 50)
    for path in paths:
        compress_file(path)
    dataset = tfr.TFRecordDataset(paths, ID)
    before = open_descriptors()
    assert ids(dataset) == list(range(100))
    assert open_descriptors() <= before + 2


# --- threads, forks, damage ---


def test_threads_at_once(paths: list[str]) -> None:
    dataset = tfr.TFRecordDataset(paths, ID)
    wrong: list[Any] = []

    def read() -> None:
        for begin in range(0, COUNT, 6):
            try:
                found = dataset.read_batch(range(begin, begin + 6))["id"].tolist()
            except ValueError:
                return  # the others are too far ahead
            if found != list(range(begin, begin + 6)):
                wrong.append(found)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_fork_in_the_middle(paths: list[str]) -> None:
    dataset = tfr.TFRecordDataset(paths, ID)
    assert ids(dataset[:30]) == list(range(30))
    child = os.fork()
    if child == 0:
        good = False
        try:
            torch.set_num_threads(2)
            good = ids(dataset[30:]) == list(range(30, COUNT))
        finally:
            os._exit(0 if good else 1)
    assert wait_for(child, seconds=60) == 0
    assert ids(dataset[30:]) == list(range(30, COUNT))


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_records_say_where_they_are(tmp_path: Path, kind: str) -> None:
    bad = tmp_path / "b"
    payloads = [b"gamma" * 100, b"delta" * 100, b"x"]
    bad.write_bytes(compress(flip(frames(payloads), 600), kind))
    dataset = tfr.TFRecordDataset(bad, None)
    with pytest.raises(tfr.DataLossError, match=f"{bad}: record 1 at byte 516 .*data checksum"):
        dataset.__getitems__([0, 1, 2])
    assert dataset.__getitems__([0, 2]) == [payloads[0], payloads[2]]
    whole = tfr.TFRecordDataset(bad, None, on_error="skip")
    assert list(whole) == [payloads[0], payloads[2]]


def test_a_record_that_does_not_fit_says_what_it_has(paths: list[str]) -> None:
    """Which is in memory: nothing is read again."""
    dataset = tfr.TFRecordDataset(paths, {"name": tfr.FixedLenFeature((), torch.int64)})
    with pytest.raises(tfr.ParseError, match=f"{paths[1]}: record 4 at byte .*'name': expected int64, found bytes"):
        dataset[24]
    missing = tfr.TFRecordDataset(paths, {"other": tfr.FixedLenFeature((), torch.int64)})
    with pytest.raises(tfr.ParseError, match="the record has 'halves', 'id', 'name'"):
        missing[24]


def test_another_file_is_noticed(tmp_path: Path) -> None:
    payloads = [bytes([number]) * 50 for number in range(100)]
    path = Path(write_compressed(tmp_path / "a", payloads))
    index = tfr.RecordIndex.build(path)
    write_compressed(path, payloads[:-1])
    with pytest.raises(tfr.StaleIndexError, match=f"{path}: the file .* when its index was built"):
        tfr.TFRecordDataset(path, None, index=index)[0]
