"""A billion records: orders open, seek and resume at once, and memory does not grow with their number."""

from __future__ import annotations

import mmap
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from doors import DOORS, Door, Setting
from record_files import write_file

import torch_tfrecord as tfr
from torch_tfrecord.index_arrays import array_checksums
from torch_tfrecord.index_data import IndexData, Shard, sample_positions
from torch_tfrecord.order import Shuffle, open_order

N = 10**9
SHARDS = 10_000
SHUFFLES: list[Shuffle] = [False, True, tfr.BlockShuffle(), tfr.BlockShuffle(4096, 1000)]
MOST_BYTES = 5 << 20  # that may be in use on top of the index; a list of the order would take 8 GB
MOST_SECONDS = 0.5  # of the fastest of three runs, with room for slow machines: it takes milliseconds


def zeros(count: int) -> Any:
    """int64[count] that lie in no memory until they are looked at."""
    memory = mmap.mmap(-1, 8 * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
    return np.frombuffer(memory, np.int64)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> tfr.TFRecordDataset:
    """Files of 100,000 records each, which all are the one record of one file: an empty Example, at its beginning."""
    path = write_file(Path(tmp_path_factory.mktemp("billion")) / "empty", [b""])
    checksum = int.from_bytes(Path(path).read_bytes()[12:16], "little")
    each = N // SHARDS
    checksums = array_checksums(zeros(each), zeros(each))
    shard = Shard(path, 16, each, 0, "0" * 32, checksums, (checksum,) * len(sample_positions(each)))
    index = tfr.RecordIndex(IndexData([shard] * SHARDS, zeros(N), zeros(N), [()] * SHARDS, "length"))
    features = {"n": tfr.FixedLenFeature((), torch.int64, default_value=-1)}
    return tfr.TFRecordDataset([path] * SHARDS, features, index=index)


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


def at_once(function: Callable[[], Any]) -> Any:
    """What a function gives, which must not take long."""
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        result = function()
        seconds.append(time.monotonic() - began)
    assert min(seconds) < MOST_SECONDS
    return result


@pytest.mark.parametrize("shuffle", SHUFFLES, ids=str)
def test_orders_open_and_seek(shuffle: Shuffle) -> None:
    last = np.arange(N - 1000, N)

    def ends() -> list[int]:
        order = open_order(shuffle, N, seed=3, epoch=2)
        return [*order.indices(last).tolist(), *order.indices(np.array([0, N // 2])).tolist()]

    with little_memory():
        found = ends()
    assert found == at_once(ends)
    assert len(set(found)) == 1002
    assert all(0 <= index < N for index in found)
    if shuffle is False:
        assert found == [*last.tolist(), 0, N // 2]


@pytest.mark.parametrize("shuffle", SHUFFLES, ids=str)
@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (5, 7)])
def test_a_sampler_opens_and_resumes(shuffle: Shuffle, rank: int, world_size: int) -> None:
    def make() -> tfr.RecordSampler:
        return tfr.RecordSampler(range(N), shuffle=shuffle, seed=3, rank=rank, num_replicas=world_size)

    def begin() -> list[int]:
        return list(islice(make(), 5))

    def resume() -> list[int]:
        sampler = make()
        state = sampler.state_dict()
        sampler.load_state_dict({**state, "epoch": 2, "position": N - 7 * 1000})
        assert sampler.epoch == 2
        found = list(iter(sampler))  # a list of the sampler itself would first make room for len(sampler)
        assert sampler.state_dict() == {**state, "epoch": 3}
        return found

    with little_memory():
        begin()
        resume()
    first, rest = at_once(begin), at_once(resume)
    positions = rank + world_size * np.arange(5)
    assert first == open_order(shuffle, N, seed=3, epoch=0).indices(positions).tolist()
    positions = np.arange(N - 7000 + rank, N, world_size)
    assert rest == open_order(shuffle, N, seed=3, epoch=2).indices(positions).tolist()
    assert len(make()) == -(-N // world_size)


@pytest.mark.parametrize("shuffle", SHUFFLES, ids=str)
@pytest.mark.parametrize("name", DOORS)
def test_records_are_read_from_the_first_and_to_the_last(
    dataset: tfr.TFRecordDataset, name: str, shuffle: Shuffle
) -> None:
    batch_size, rest = 16, 40
    door = Door(name, dataset, Setting(batch_size, shuffle, seed=3))
    state = door.state(0)

    def begin() -> list[int]:
        door.reader.set_epoch(0)
        first: list[int] = next(iter(door)).record_ids.tolist()
        return first

    def resume() -> list[int]:
        door.reader.load_state_dict({**state, "epoch": 2, "position": N - rest})
        batches = list(door)
        assert [batch.num_records for batch in batches] == [16, 16, 8]
        assert all((batch["n"] == -1).all() for batch in batches)
        assert door.reader.state_dict() == {**state, "epoch": 3}
        return [number for batch in batches for number in batch.record_ids.tolist()]

    first, last = begin(), resume()  # which open files, and check the index of each
    with little_memory():
        begin()
        resume()
    assert at_once(begin) == first
    assert at_once(resume) == last
    assert first == open_order(shuffle, N, seed=3, epoch=0).indices(np.arange(batch_size)).tolist()
    assert last == open_order(shuffle, N, seed=3, epoch=2).indices(np.arange(N - rest, N)).tolist()
    assert len(door.batches) == N // batch_size


def test_parts_of_it_are_small_too(dataset: tfr.TFRecordDataset) -> None:
    with little_memory():
        part = dataset[5 : N - 5 : 3][::-1]
        assert part.read_batch([0, -1]).record_ids.tolist() == [range(5, N - 5, 3)[-1], 5]
        assert part.fingerprint != dataset.fingerprint
        loader = tfr.TFRecordLoader(part, 16, shuffle=True)
        assert next(iter(loader)).num_records == 16
