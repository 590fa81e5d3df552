"""`TFRecordLoader.stats`: each number."""

# ruff: noqa: F811 - arguments of tests are named as the fixtures that are imported

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from loaders import (  # noqa: F401 - fixtures among them
    COUNT,
    all_kinds,
    eventually,
    nothing_left_behind,
    open_kind,
    paths,
    stop_by_break,
)
from numbered import FEATURES, write
from record_files import flip

import torch_tfrecord as tfr


@all_kinds
def test_counts(paths: list[str], kind: str) -> None:
    dataset = open_kind(paths, kind)
    sizes = [dataset.index[i].length for i in range(COUNT)]
    loader = tfr.TFRecordLoader(dataset, 8, rank=2, world_size=3, prefetch=4)
    stats = loader.stats()
    assert (stats.batches, stats.records, stats.bytes, stats.padded, stats.dropped, stats.faults) == (0, 0, 0, 0, 0, 0)
    mine = [*range(2, COUNT, 3), 1]  # the last one pads: 100 = 3 x 33 + 1
    iterator = iter(loader)
    for step in range(1, 6):
        next(iterator)
        stats = loader.stats()
        assert (stats.batches, stats.records) == (step, min(8 * step, 34))
        assert stats.bytes == sum(sizes[i] for i in mine[: 8 * step])
        assert stats.padded == (step == 5)
        assert 0 <= stats.queue_depth <= min(4, 5 - step)
    assert list(iterator) == []
    list(loader)
    stats = loader.stats()
    assert (stats.batches, stats.records, stats.padded, stats.dropped) == (10, 68, 2, 0)
    assert stats.bytes == 2 * sum(sizes[i] for i in mine)
    assert stats.consumer_wait_seconds >= 0
    assert stats.producer_wait_seconds >= 0


@all_kinds
def test_dropped_records_are_counted_when_the_pass_ends(paths: list[str], kind: str) -> None:
    loader = tfr.TFRecordLoader(open_kind(paths, kind), 8, rank=0, world_size=3, drop_last=True)
    for _ in loader:
        assert loader.stats().dropped == 0
    assert loader.stats().dropped == COUNT - 3 * 8 * 4
    assert loader.stats().records == 32
    stop_by_break(loader)
    assert loader.stats().dropped == 4
    list(loader)
    assert loader.stats().dropped == 8


def test_faults_are_those_of_the_index(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "data.tfrecord", 60))
    index = tfr.RecordIndex.build(path)
    path.write_bytes(flip(flip(path.read_bytes(), index[7].offset + 30), index[50].offset + 30))
    loader = tfr.TFRecordLoader(tfr.TFRecordDataset(path, FEATURES, on_error="skip"), 8)
    assert sum(batch.num_records for batch in loader) == 58
    assert loader.stats().faults == 2
    assert loader.stats().records == 58


def test_the_consumers_waits_grow_with_slow_transforms(paths: list[str]) -> None:
    def slow(batch: tfr.Batch) -> tfr.Batch:
        time.sleep(0.02)
        return batch

    loader = tfr.TFRecordLoader(tfr.TFRecordDataset(paths, FEATURES, batch_transform=slow), 10)
    began = time.monotonic()
    list(loader)
    took = time.monotonic() - began
    assert 0.15 <= loader.stats().consumer_wait_seconds <= took
    assert loader.stats().producer_wait_seconds < took / 2


@all_kinds
@pytest.mark.parametrize("prefetch", [1, 3])
def test_the_producers_waits_grow_with_a_slow_consumer(paths: list[str], kind: str, prefetch: int) -> None:
    loader = tfr.TFRecordLoader(open_kind(paths, kind), 10, prefetch=prefetch)
    began = time.monotonic()
    for _ in loader:
        time.sleep(0.02)
    took = time.monotonic() - began
    ahead = (10 - prefetch - 2) * 0.02  # after each batch but those with nothing more to begin
    assert ahead * 0.5 < loader.stats().producer_wait_seconds < took
    assert loader.stats().consumer_wait_seconds < took / 2


@all_kinds
def test_statistics_are_read_while_a_pass_is_at_work(paths: list[str], kind: str) -> None:
    loader = tfr.TFRecordLoader(open_kind(paths, kind), 3, prefetch=5)
    stop = threading.Event()
    seen, errors = [], []

    def look() -> None:
        while not stop.is_set():
            try:
                seen.append(loader.stats())
            except Exception as error:  # noqa: BLE001
                errors.append(error)
            time.sleep(1e-4)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for _ in range(15):
            list(loader)
            stop_by_break(loader)
    finally:
        stop.set()
        watcher.join()
    assert errors == []
    assert loader.stats().batches == 15 * (34 + 3)
    assert all(before.batches <= after.batches for before, after in itertools.pairwise(seen))
    assert all(0 <= stats.queue_depth <= 10 for stats in seen)


def test_statistics_do_not_wait_for_a_batch(paths: list[str]) -> None:
    go_on = threading.Event()

    def wait(batch: tfr.Batch) -> tfr.Batch:
        go_on.wait()
        return batch

    loader = tfr.TFRecordLoader(tfr.TFRecordDataset(paths, FEATURES, batch_transform=wait), 10)
    found: list[Any] = []
    consumer = threading.Thread(target=lambda: found.extend(loader))
    consumer.start()
    eventually(lambda: loader._passes.newest is not None)
    for _ in range(5):
        assert loader.stats().batches == 0
        assert loader.stats().queue_depth == 0
        assert loader.state_dict()["position"] == 0
    go_on.set()
    consumer.join()
    assert len(found) == 10
