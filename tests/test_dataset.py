"""`TFRecordDataset` without a loader: values, slices, shards, options, threads, forks."""

from __future__ import annotations

import os
import pickle
import random
import resource
import sys
import threading
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numbered import FEATURES, ID, ids, plain, row, rows_of, write, write_shards
from record_files import starts
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

import torch_tfrecord as tfr


@pytest.fixture
def path(tmp_path: Path) -> str:
    return write(tmp_path / "ten.tfrecord", 10)


@pytest.fixture
def dataset(path: str) -> tfr.TFRecordDataset:
    return tfr.TFRecordDataset(path, FEATURES)


# --- values -----------------------------------------------------------------------------------------------------------


def test_records(dataset: tfr.TFRecordDataset) -> None:
    assert len(dataset) == 10
    assert [plain(dataset[i]) for i in range(10)] == [row(i) for i in range(10)]
    assert [plain(dataset[-i]) for i in range(1, 11)] == [row(10 - i) for i in range(1, 11)]
    assert [plain(record) for record in dataset] == [row(i) for i in range(10)]
    assert list(dataset[0]) == list(FEATURES)
    assert dataset[torch.tensor(3)]["id"] == dataset[np.int64(3)]["id"] == 3
    assert repr(dataset) == "TFRecordDataset(10 records in 1 file)"


def test_batches(dataset: tfr.TFRecordDataset) -> None:
    batch = dataset.read_batch([7, 3, 3, -1])
    assert type(batch) is tfr.Batch
    assert rows_of(batch) == [row(i) for i in (7, 3, 3, 9)]
    assert batch.record_ids is not None
    assert batch.record_ids.tolist() == [7, 3, 3, 9]
    for indices in (np.array([2, 5]), torch.tensor([2, 5]), [np.int32(2), torch.tensor(5)], range(2, 8, 3)):
        assert dataset.read_batch(indices)["id"].tolist() == [2, 5]
    nothing = dataset.read_batch([])
    assert nothing.num_records == 0
    assert list(nothing) == list(FEATURES)


def test_records_that_are_not_there(dataset: tfr.TFRecordDataset) -> None:
    for wrong in (10, -11, 2**62, -(2**62)):
        with pytest.raises(IndexError, match=f"record {wrong} of a data set of 10 records"):
            dataset[wrong]
        with pytest.raises(IndexError, match=f"record {wrong} of a data set of 10 records"):
            dataset.read_batch([0, wrong])
    for index in (1.5, "1", None, [1.5], [[1]]):
        with pytest.raises(TypeError):
            dataset[index]  # type: ignore[index]
    for indices in ([1.5], [True, False], np.array([1.0])):
        with pytest.raises(TypeError, match="records are read by integers"):
            dataset.read_batch(indices)  # type: ignore[arg-type]


def test_every_slice_is_as_of_a_list(tmp_path: Path) -> None:
    dataset = tfr.TFRecordDataset(write_shards(tmp_path, [3, 0, 2]), ID)
    numbers = list(range(5))
    bounds = (None, *range(-6, 7))
    for start, stop, step in product(bounds, bounds, (None, -3, -2, -1, 1, 2, 3)):
        part = dataset[start:stop:step]
        assert type(part) is tfr.TFRecordDataset
        assert ids(part) == numbers[start:stop:step], (start, stop, step)
    with pytest.raises(ValueError, match="zero"):
        dataset[::0]


def test_slices_of_slices(dataset: tfr.TFRecordDataset) -> None:
    slices = [slice(2, 9), slice(None, None, -2), slice(-4, None), slice(1, 8, 3), slice(5, 5)]
    for first, second in product(slices, slices):
        part = dataset[first][second]
        numbers = list(range(10))[first][second]
        assert ids(part) == numbers
        for i, number in enumerate(numbers):
            assert part[i]["id"] == part[i - len(numbers)]["id"] == number
        with pytest.raises(IndexError, match=f"of a data set of {len(numbers)} records"):
            part[len(numbers)]
        batch = part.read_batch(range(len(part)))
        assert batch.record_ids.tolist() == numbers  # ids are of the whole data set


# --- files ------------------------------------------------------------------------------------------------------------


def test_shards_are_one_sequence(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [3, 0, 4, 0, 0, 1])
    stem = str(tmp_path / "data")
    everything: list[Any] = [paths, tmp_path, str(tmp_path), stem + "-*", stem + "@6", stem + "@*", map(Path, paths)]
    for given in everything:
        dataset = tfr.TFRecordDataset(given, FEATURES)
        assert rows_of(dataset.read_batch(range(8))) == [row(i) for i in range(8)]
        assert repr(dataset) == "TFRecordDataset(8 records in 6 files)"
    shuffled = [5, 0, 7, 3, 3, 2, 6]
    assert dataset.read_batch(shuffled)["id"].tolist() == shuffled
    assert ids(tfr.TFRecordDataset([paths[2], paths[0], paths[2]], ID)) == [3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6]


def test_only_empty_files(tmp_path: Path) -> None:
    dataset = tfr.TFRecordDataset(write_shards(tmp_path, [0, 0]), ID)
    assert len(dataset) == 0
    assert ids(dataset) == []
    with pytest.raises(IndexError):
        dataset[0]
    with pytest.raises(IndexError):
        dataset[-1]


def test_missing_files(tmp_path: Path) -> None:
    for missing in ("no", "no@2", "no-*", ["no"]):
        with pytest.raises(FileNotFoundError):
            tfr.TFRecordDataset(str(tmp_path / missing) if isinstance(missing, str) else missing, ID)
    with pytest.raises(ValueError, match="paths is empty"):
        tfr.TFRecordDataset([], ID)


def test_more_shards_than_files_may_be_open(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    already = len(os.listdir("/dev/fd"))
    paths = write_shards(tmp_path, [2] * 60)
    resource.setrlimit(resource.RLIMIT_NOFILE, (already + 60, hard))
    try:
        dataset = tfr.TFRecordDataset(paths, ID)
        numbers = random.Random(0).sample(range(120), 120)
        for _ in range(2):
            assert [int(dataset[i]["id"]) for i in numbers] == numbers
        assert len(os.listdir("/dev/fd")) < already + 60
        assert dataset.read_batch(numbers)["id"].tolist() == numbers
        raw = tfr.TFRecordDataset(paths, None, index=dataset.index)
        assert raw.__getitems__(numbers) == [raw[i] for i in numbers]
        with open(paths[57], "r+b") as file:
            file.write(bytes(20))
        with pytest.raises(tfr.DataLossError, match=f"{paths[57]}: record 0 at byte 0"):
            dataset.read_batch(range(120))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- features, transforms ---------------------------------------------------------------------------------------------


def payloads_of(path: str) -> list[bytes]:
    return list(tfr.read_records(path))


def test_raw_records(path: str) -> None:
    dataset = tfr.TFRecordDataset(path, None)
    payloads = payloads_of(path)
    assert [dataset[i] for i in range(10)] == payloads
    assert dataset[-1] == payloads[9]
    assert dataset.__getitems__([4, 4, 0]) == [payloads[4], payloads[4], payloads[0]]
    assert dataset.read_batch([1, 2]) == tfr.Bytes.from_list(payloads[1:3])
    assert dataset[::-1][0] == payloads[9]
    assert dataset.__getitems__([]) == []


def test_callable_features(path: str) -> None:
    dataset = tfr.TFRecordDataset(path, tfr.Example.FromString)
    assert [record.features.feature["id"].int64_list.value[0] for record in dataset] == list(range(10))
    for features in (tfr.Example.FromString, len):  # a list also of what no default_collate could stack
        items = tfr.TFRecordDataset(path, features).read_batch([0, 1])
        assert type(items) is list
        assert items == [features(payload) for payload in payloads_of(path)[:2]]


def test_transform(path: str) -> None:
    def double(record: dict[str, Any]) -> dict[str, Any]:
        return {**record, "id": record["id"] * 2, "new": 1.5}

    dataset = tfr.TFRecordDataset(path, FEATURES, transform=double)
    assert plain(dataset[4]) == {**row(4), "id": 8, "new": 1.5}
    batch = dataset.read_batch([4, 5, -1])
    assert type(batch) is tfr.Batch
    assert batch["new"].tolist() == [1.5] * 3
    assert [row for row in rows_of(batch)] == [{**row(i), "id": 2 * i, "new": 1.5} for i in (4, 5, 9)]  # noqa: C416
    pairs = tfr.TFRecordDataset(path, FEATURES, transform=lambda record: (record["halves"], int(record["id"])))
    assert pairs[3][1] == 3
    assert pairs.read_batch([3, 4])[0].tolist() == [[3.5, -3.0], [4.5, -4.0]]
    assert tfr.TFRecordDataset(path, None, transform=len)[0] == len(payloads_of(path)[0])
    assert tfr.TFRecordDataset(path, len, transform=str)[0] == str(len(payloads_of(path)[0]))


def test_batch_transform(path: str) -> None:
    def negate(batch: tfr.Batch) -> tfr.Batch:
        assert type(batch) is tfr.Batch
        batch["id"] = -batch["id"]
        batch["new"] = batch["halves"].sum(1)
        return batch

    dataset = tfr.TFRecordDataset(path, FEATURES, batch_transform=negate)
    assert dataset.read_batch([2, 3])["id"].tolist() == [-2, -3]
    assert plain(dataset[3]) == {**row(3), "id": -3, "new": 0.5}
    both = tfr.TFRecordDataset(path, FEATURES, batch_transform=negate, transform=lambda record: int(record["id"]))
    assert both[3] == -3
    assert both.read_batch([1, 2]).tolist() == [-1, -2]
    lists = tfr.TFRecordDataset(path, len, batch_transform=lambda items: [-item for item in items], transform=str)
    assert lists[0] == str(-len(payloads_of(path)[0]))
    no_rows = tfr.TFRecordDataset(path, FEATURES, batch_transform=lambda batch: {7})
    assert no_rows.read_batch([1, 2]) == {7}
    with pytest.raises(TypeError, match=r"gave set, which has no rows: read batches, by collate_fn=tfr\.collate"):
        no_rows[0]


@pytest.mark.parametrize("collate_fn", [None, tfr.collate])
def test_batch_transform_to_other_containers(path: str, collate_fn: Any) -> None:
    """What it makes has rows where it is made of columns, so both ways of loading and single records work."""

    def load(batch_transform: Any) -> tuple[Any, Any]:
        dataset = tfr.TFRecordDataset(path, FEATURES, batch_transform=batch_transform)
        return dataset[3], next(iter(DataLoader(dataset, batch_size=2, collate_fn=collate_fn)))

    one, batch = load(lambda batch: {"twice": batch["id"] * 2})
    assert one == {"twice": 6}
    assert batch["twice"].tolist() == [0, 2]
    one, batch = load(lambda batch: (batch["id"], batch["id"] * 2))
    assert one == (3, 6)
    assert [part.tolist() for part in batch] == [[0, 1], [0, 2]]
    one, batch = load(lambda batch: batch["id"])
    assert one == 3
    assert batch.tolist() == [0, 1]


def test_lists_of_indices(path: str) -> None:
    """As the samplers of batches in torch's documentation ask for them, with ``batch_size=None``."""
    dataset = tfr.TFRecordDataset(path, FEATURES)
    for indices in ([5, 2], (5, 2), np.array([5, 2]), torch.tensor([5, 2])):
        assert dataset[indices]["id"].tolist() == [5, 2]
    sampler = BatchSampler(SequentialSampler(dataset), 4, drop_last=False)
    batches = list(DataLoader(dataset, sampler=sampler, batch_size=None))
    assert [batch["id"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [record["id"].item() for record in dataset[7:]] == [7, 8, 9]


def test_options_are_checked(path: str) -> None:
    with pytest.raises(ValueError, match="verify must be one of 'none', 'length', 'all', not 'crc'"):
        tfr.TFRecordDataset(path, ID, verify="crc")
    with pytest.raises(TypeError, match="not a dict of specs, a callable or None"):
        tfr.TFRecordDataset(path, ["id"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="features is empty"):
        tfr.TFRecordDataset(path, {})
    with pytest.raises(TypeError, match=r"features\['id'\] is 3"):
        tfr.TFRecordDataset(path, {"id": 3})


def test_features_are_copied(path: str) -> None:
    features = dict(ID)
    dataset = tfr.TFRecordDataset(path, features)
    features["other"] = FEATURES["halves"]
    assert list(dataset[0]) == list(pickle.loads(pickle.dumps(dataset))[0]) == ["id"]


def test_verify_says_what_is_checked(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord", 3)
    second = starts(payloads_of(path))[1]
    data = bytearray((tmp_path / "a.tfrecord").read_bytes())
    data[data.index(b"record 1")] ^= 1
    (tmp_path / "a.tfrecord").write_bytes(data)
    strict = tfr.TFRecordDataset(path, FEATURES)
    assert plain(strict[0]) == row(0)
    with pytest.raises(tfr.DataLossError, match=rf"{path}: record 1 at byte {second} .*data checksum"):
        strict[1]
    for verify in ("length", "none"):
        assert plain(tfr.TFRecordDataset(path, FEATURES, verify=verify)[1]) == {**row(1), "name": b"secord 1"}
    data[second + 8] ^= 1  # the checksum of the length
    (tmp_path / "a.tfrecord").write_bytes(data)
    for verify in ("length", "all"):
        index = strict.index
        with pytest.raises(tfr.TFRecordError):
            tfr.TFRecordDataset(path, FEATURES, verify=verify, index=index)[1]


# --- pickles, threads, forks ------------------------------------------------------------------------------------------


def test_pickle_is_small_and_reads_the_same(tmp_path: Path) -> None:
    path = str(tmp_path / "many.tfrecord")
    with tfr.TFRecordWriter(path) as writer:
        writer.write_batch({"id": torch.arange(100_000)})
    dataset = tfr.TFRecordDataset(path, FEATURES | ID)
    assert len(pickle.dumps(dataset)) < 5000
    few = tfr.TFRecordDataset(path, ID)
    few.read_batch([5])  # what is open is not pickled
    for part, numbers in ((few, range(100_000)), (few[10:90_000:7], range(10, 90_000, 7))):
        data = pickle.dumps(part)
        assert len(data) < 5000
        twin = pickle.loads(data)
        assert len(twin) == len(numbers)
        assert twin.read_batch([0, 1, -1])["id"].tolist() == [numbers[0], numbers[1], numbers[-1]]


def test_pickle_of_an_index_that_is_in_no_file(path: str) -> None:
    dataset = tfr.TFRecordDataset(path, FEATURES, index=tfr.RecordIndex.build(path), transform=plain)
    twin = pickle.loads(pickle.dumps(dataset[2:]))
    assert [twin[i] for i in range(8)] == [row(i) for i in range(2, 10)]


def test_many_threads_at_once(tmp_path: Path) -> None:
    dataset = tfr.TFRecordDataset(write_shards(tmp_path, [300, 0, 500, 200]), FEATURES)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        generator = random.Random(seed)
        for _ in range(40):
            numbers = [generator.randrange(-1000, 1000) for _ in range(generator.choice((1, 7, 200)))]
            batch = dataset.read_batch(numbers)
            expected = [number % 1000 for number in numbers]
            if (
                batch["id"].tolist() != expected
                or batch["halves"][:, 0].tolist() != [number + 0.5 for number in expected]
                or batch["name"].tolist() != [b"record %d" % number for number in expected]
                or batch["tokens"].lengths.tolist() != [number % 4 for number in expected]
            ):
                wrong.append(numbers)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


def test_fork_after_native_threads_ran(tmp_path: Path) -> None:
    dataset = tfr.TFRecordDataset(write(tmp_path / "a.tfrecord", 3000), FEATURES)
    numbers = list(range(3000))
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        assert dataset.read_batch(numbers)["id"].tolist() == numbers  # with threads, also on one core
        for _ in range(3):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    batch = dataset.read_batch(numbers[::-1])
                    same = batch["id"].tolist() == numbers[::-1] and batch["name"][0] == b"record 2999"
                    status = 0 if same else 2
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert dataset.read_batch(numbers)["id"].tolist() == numbers
    finally:
        torch.set_num_threads(threads)
