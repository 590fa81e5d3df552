"""`TFRecordDataset` under torch's own ``DataLoader``: every start method, sampler and container that users combine it with."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from numbered import FEATURES, ID, plain, row, rows_of, write, write_shards
from test_images import encode, record
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    StackDataset,
    Subset,
    random_split,
)

import torch_tfrecord as tfr

COUNT = 50


@pytest.fixture
def dataset(tmp_path: Path) -> tfr.TFRecordDataset:
    return tfr.TFRecordDataset(write_shards(tmp_path, [20, 0, 30]), FEATURES)


# What crosses to spawned processes must be importable there, so it is defined here and not inside a test.
def double(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "id": record["id"] * 2}


def negate(batch: tfr.Batch) -> tfr.Batch:
    batch["id"] = -batch["id"]
    return batch


def same(data: Any) -> Any:
    return data


def collate_and_look(data: Any) -> Any:
    batch = tfr.collate(data)
    batch["shared"] = torch.full((batch.num_records,), batch["id"].is_shared())
    return batch


def load(dataset: Dataset[Any], *, batch_size: int | None = 8, **options: Any) -> list[Any]:
    options.setdefault("collate_fn", tfr.collate)
    return list(DataLoader(dataset, batch_size=batch_size, **options))


def ids(batches: Iterable[Any]) -> list[int]:
    return [number for batch in batches for number in batch["id"].tolist()]


def rows_in(batches: Iterable[tfr.Batch]) -> list[dict[str, Any]]:
    return [record for batch in batches for record in rows_of(batch)]


# --- with and without collate_fn, in this process and in workers -------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_collate_gives_batches(dataset: tfr.TFRecordDataset, num_workers: int) -> None:
    batches = load(dataset, num_workers=num_workers)
    assert [type(batch) for batch in batches] == [tfr.Batch] * 7
    assert [batch.num_records for batch in batches] == [8] * 6 + [2]
    assert rows_in(batches) == [row(i) for i in range(COUNT)]
    assert [number for batch in batches for number in batch.record_ids.tolist()] == list(range(COUNT))
    assert all(batch.valid.all() for batch in batches)
    assert len({batch["id"].untyped_storage().data_ptr() for batch in batches}) == 7  # none in another's memory


@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_decode_into_shared_memory(dataset: tfr.TFRecordDataset, num_workers: int) -> None:
    batches = load(dataset, num_workers=num_workers, collate_fn=collate_and_look)
    assert {shared for batch in batches for shared in batch["shared"].tolist()} == {num_workers > 0}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_default_collate_gives_dicts(tmp_path: Path, num_workers: int) -> None:
    features = {name: FEATURES[name] for name in ("id", "halves", "name")}
    dataset = tfr.TFRecordDataset(write(tmp_path / "a", 10), features)
    batches = load(dataset, batch_size=4, num_workers=num_workers, collate_fn=None)
    assert [type(batch) for batch in batches] == [dict] * 3
    assert ids(batches) == list(range(10))
    assert batches[1]["halves"].tolist() == [[i + 0.5, -i] for i in range(4, 8)]
    assert batches[2]["name"] == [b"record 8", b"record 9"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_raw_records_and_callables(tmp_path: Path, num_workers: int) -> None:
    path = write(tmp_path / "a", 5)
    payloads = list(tfr.read_records(path))
    raw = tfr.TFRecordDataset(path, None)
    assert load(raw, batch_size=3, num_workers=num_workers, collate_fn=None) == [payloads[:3], payloads[3:]]
    columns = load(raw, batch_size=3, num_workers=num_workers)
    assert [type(column) for column in columns] == [tfr.Bytes] * 2
    assert [column.tolist() for column in columns] == [payloads[:3], payloads[3:]]
    sizes = load(tfr.TFRecordDataset(path, len), batch_size=5, num_workers=num_workers)
    assert sizes == [[len(payload) for payload in payloads]]
    examples = load(tfr.TFRecordDataset(path, tfr.Example.FromString), collate_fn=same, num_workers=num_workers)
    assert [list(message.features.feature["id"].int64_list.value) for message in examples[0]] == [[i] for i in range(5)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_transforms(dataset: tfr.TFRecordDataset, tmp_path: Path, num_workers: int) -> None:
    both = tfr.TFRecordDataset(str(tmp_path / "data@3"), FEATURES, transform=double, batch_transform=negate)
    batches = load(both, num_workers=num_workers)
    assert rows_in(batches) == [{**row(i), "id": -2 * i} for i in range(COUNT)]
    assert type(batches[0]) is tfr.Batch
    only_batches = tfr.TFRecordDataset(str(tmp_path / "data@3"), FEATURES, batch_transform=negate)
    assert rows_in(load(only_batches, num_workers=num_workers)) == [{**row(i), "id": -i} for i in range(COUNT)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_images(tmp_path: Path, num_workers: int) -> None:
    images = torch.randint(0, 256, (12, 6, 5, 3), dtype=torch.uint8)
    with tfr.TFRecordWriter(tmp_path / "a") as writer:
        for image in images:
            writer.write(record(encode(image.numpy())))
    for size in ((6, 5), None):
        feature = tfr.FixedLenFeature((), bytes, decode=tfr.DecodeImage(size=size))
        dataset = tfr.TFRecordDataset(tmp_path / "a", {"image": feature})
        dataset.read_batch(range(12))  # so that threads of this process have decoded images before a fork
        for collate in (tfr.collate, None):
            batches = load(dataset, batch_size=4, num_workers=num_workers, collate_fn=collate)
            assert torch.equal(torch.stack([batch["image"][i] for batch in batches for i in range(4)]), images)


# --- order, samplers, persistent workers, pinned memory -----------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_shuffle(dataset: tfr.TFRecordDataset, num_workers: int) -> None:
    options: dict[str, Any] = {"persistent_workers": True} if num_workers else {}
    loader = DataLoader(
        dataset,
        batch_size=7,
        shuffle=True,
        num_workers=num_workers,
        collate_fn=tfr.collate,
        generator=torch.Generator().manual_seed(0),
        **options,
    )
    epochs = [list(loader) for _ in range(3)]
    orders = [ids(batches) for batches in epochs]
    assert all(sorted(order) == list(range(COUNT)) for order in orders)
    assert len({tuple(order) for order in [*orders, range(COUNT)]}) == 4
    for batches, order in zip(epochs, orders, strict=True):  # all epochs are still whole, none overwritten
        assert rows_in(batches) == [row(i) for i in order]
        assert [number for batch in batches for number in batch.record_ids.tolist()] == order


def test_samplers(dataset: tfr.TFRecordDataset) -> None:
    assert ids(load(dataset, sampler=[4, 4, -1, 0], batch_size=3)) == [4, 4, 49, 0]
    assert sorted(ids(load(dataset, batch_size=9, drop_last=True, shuffle=False))) == list(range(45))
    batch_sampler = BatchSampler(RandomSampler(dataset, replacement=True, num_samples=30), 10, drop_last=False)
    batches = load(dataset, batch_size=1, batch_sampler=batch_sampler)
    assert [batch.num_records for batch in batches] == [10, 10, 10]
    assert rows_in(batches) == [row(i) for i in ids(batches)]


def test_single_records(dataset: tfr.TFRecordDataset) -> None:
    for num_workers in (0, 2):
        for collate in (None, tfr.collate):
            records = load(dataset, batch_size=None, num_workers=num_workers, collate_fn=collate)
            assert [plain(record) for record in records] == [row(i) for i in range(COUNT)]


def test_pinned_memory(dataset: tfr.TFRecordDataset) -> None:
    # Without an accelerator torch leaves memory as it is; with one, the batches are pinned. The values are the same.
    for num_workers in (0, 2):
        batches = load(dataset, pin_memory=True, num_workers=num_workers)
        assert [type(batch) for batch in batches] == [tfr.Batch] * 7
        assert rows_in(batches) == [row(i) for i in range(COUNT)]
        assert all(batch["id"].is_pinned() == torch.cuda.is_available() for batch in batches)


def test_empty_data(tmp_path: Path) -> None:
    dataset = tfr.TFRecordDataset(write(tmp_path / "a", 0), FEATURES)
    assert load(dataset) == load(dataset, collate_fn=None, num_workers=1) == []


# --- start methods ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_start_methods(dataset: tfr.TFRecordDataset, tmp_path: Path, method: str) -> None:
    dataset.read_batch([*range(COUNT)] * 20)  # files are open, native threads ran
    others = tfr.TFRecordDataset(str(tmp_path / "data@3"), FEATURES, transform=double)
    mixed: Dataset[Any] = ConcatDataset([dataset[::-1], others])
    loader = DataLoader(
        mixed,
        batch_size=30,
        num_workers=2,
        multiprocessing_context=method,
        collate_fn=tfr.collate,
        persistent_workers=True,
    )
    expected = [row(i) for i in reversed(range(COUNT))] + [{**row(i), "id": 2 * i} for i in range(COUNT)]
    epochs = [list(loader) for _ in range(2)]
    for batches in epochs:
        assert [type(batch) for batch in batches] == [tfr.Batch] * 4
        assert rows_in(batches) == expected


# --- containers of data sets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_subsets(dataset: tfr.TFRecordDataset, num_workers: int) -> None:
    assert rows_in(load(Subset(dataset, [40, 3, 3, 21]), num_workers=num_workers)) == [row(i) for i in (40, 3, 3, 21)]
    nested = Subset(Subset(dataset[10:], range(0, 40, 2)), [5, 0])
    assert ids(load(nested, num_workers=num_workers)) == [20, 10]
    parts = random_split(dataset, [0.5, 0.3, 0.2], torch.Generator().manual_seed(1))
    assert [len(part) for part in parts] == [25, 15, 10]
    found = [ids(load(part, shuffle=True, num_workers=num_workers)) for part in parts]
    assert sorted(sum(found, [])) == list(range(COUNT))  # noqa: RUF017
    assert ids(load(parts[0], collate_fn=partial(tfr.collate))) == list(parts[0].indices)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_concatenated(dataset: tfr.TFRecordDataset, tmp_path: Path, num_workers: int) -> None:
    more = tfr.TFRecordDataset(write(tmp_path / "more", 5, start=100), FEATURES)
    batches = load(ConcatDataset([dataset, more, more[1:2]]), batch_size=16, num_workers=num_workers)
    numbers = [*range(COUNT), *range(100, 105), 101]
    assert [type(batch) for batch in batches] == [tfr.Batch] * 4
    assert rows_in(batches) == [row(i) for i in numbers]
    fixed = tfr.TFRecordDataset(str(tmp_path / "more"), ID)
    assert ids(load(fixed + fixed, collate_fn=None, num_workers=num_workers)) == [*range(100, 105)] * 2


@pytest.mark.parametrize("num_workers", [0, 2])
def test_stacked(dataset: tfr.TFRecordDataset, num_workers: int) -> None:
    fixed = tfr.TFRecordDataset(list(dataset.index.paths), ID)
    stacked = StackDataset(forward=fixed, backward=fixed[::-1])
    batches = load(stacked, num_workers=num_workers, collate_fn=None)
    assert [number for batch in batches for number in batch["forward"]["id"].tolist()] == list(range(COUNT))
    assert [number for batch in batches for number in batch["backward"]["id"].tolist()] == list(range(COUNT))[::-1]
    pairs = load(StackDataset(fixed, fixed), num_workers=num_workers, batch_size=COUNT)
    assert pairs[0][0]["id"].tolist() == pairs[0][1]["id"].tolist() == list(range(COUNT))


# --- errors -------------------------------------------------------------------------------------------------------------


def fails(error: type[Exception], match: str, dataset: Dataset[Any], **options: Any) -> None:
    with pytest.raises(error, match=match) as caught:
        load(dataset, **options)
    # torch's error holds, in a cycle, the frames that hold its iterator, which would shut its workers down only when the
    # garbage collector comes by: slowly, or in a forked worker of the next loader, which it can break.
    traceback.clear_frames(caught.value.__traceback__)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_errors_of_workers_are_of_the_same_class_and_say_where(tmp_path: Path, num_workers: int) -> None:
    paths = write_shards(tmp_path, [10, 10])
    dataset = tfr.TFRecordDataset(paths, FEATURES)
    offset = dataset.index[13].offset
    late, gone = (tfr.TFRecordDataset(paths, FEATURES, index=dataset.index) for _ in range(2))

    wrong = tfr.TFRecordDataset(paths, {"id": tfr.FixedLenFeature((2,), torch.int64)})
    says = rf"{paths[0]}: record 0 at byte 0: feature 'id': expected 2 values for shape \(2,\), found 1"
    fails(tfr.ParseError, says, wrong, num_workers=num_workers)

    with tfr.TFRecordWriter(tmp_path / "other") as writer:
        for i in range(6):
            writer.write_example({"id": [i] * (1 + i // 4)})
    other = tfr.TFRecordDataset(tmp_path / "other", ID)
    says = rf"other: record 4 at byte {other.index[4].offset}: feature 'id'"
    fails(tfr.ParseError, says, other, batch_size=3, num_workers=num_workers)

    with open(paths[1], "r+b") as file:
        file.seek(offset + 20)
        byte = file.read(1)[0]
        file.seek(offset + 20)
        file.write(bytes([byte ^ 1]))
    says = rf"{paths[1]}: record 3 at byte {offset} .*data checksum"
    fails(tfr.DataLossError, says, dataset, num_workers=num_workers)

    os.truncate(paths[1], offset)
    says = f"{paths[1]}: the file is {offset:,} bytes long now"
    fails(tfr.StaleIndexError, says, late, num_workers=num_workers)
    os.unlink(paths[0])
    fails(FileNotFoundError, paths[0], gone, num_workers=num_workers)
    says = "record 99 of a data set of 20 records"
    fails(IndexError, says, dataset, sampler=[99], num_workers=num_workers)
