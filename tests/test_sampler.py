"""`RecordSampler`: what frameworks expect of a sampler, data sets of all kinds, torch's and torchdata's loaders."""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Iterator, Sized
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from doors import DOORS, Door, Setting, all_seen, expected, seen
from numbered import ID, write_shards
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    StackDataset,
    Subset,
    TensorDataset,
)

import torch_tfrecord as tfr
from torch_tfrecord.drawing import SampledIndex
from torch_tfrecord.order import open_order


@pytest.fixture
def dataset(tmp_path: Path) -> tfr.TFRecordDataset:
    return tfr.TFRecordDataset(write_shards(tmp_path, [13, 0, 10]), ID)


class OfLength:
    """Something with a length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


# --- as frameworks see it ---------------------------------------------------------------------------------------------


def test_it_is_a_distributed_sampler_without_a_process_group(dataset: tfr.TFRecordDataset) -> None:
    assert not torch.distributed.is_initialized()
    sampler = tfr.RecordSampler(dataset)
    assert isinstance(sampler, DistributedSampler)
    assert (sampler.rank, sampler.num_replicas, sampler.epoch, sampler.seed) == (0, 1, 0, 0)
    assert (sampler.shuffle, sampler.drop_last, sampler.dataset) == (True, False, dataset)
    assert sorted(sampler) == list(range(23))
    assert tfr.RecordSampler(dataset, shuffle=False).shuffle is False
    assert tfr.RecordSampler(dataset, shuffle=tfr.QueueShuffle(5)).shuffle is True


def test_ranks_come_from_the_environment(dataset: tfr.TFRecordDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    sampler = tfr.RecordSampler(dataset)
    assert (sampler.rank, sampler.num_replicas, sampler.num_samples) == (2, 4, 6)
    sampler = tfr.RecordSampler(dataset, rank=0, num_replicas=1)
    assert (sampler.rank, sampler.num_replicas, sampler.num_samples) == (0, 1, 23)


@pytest.mark.parametrize(
    ("length", "ranks", "drop_last", "num_samples", "num_padded", "num_dropped"),
    [
        (23, 1, False, 23, [0], 0),
        (23, 4, False, 6, [0, 0, 0, 1], 0),
        (23, 4, True, 5, [0, 0, 0, 0], 3),
        (24, 4, True, 6, [0, 0, 0, 0], 0),
        (2, 5, False, 1, [0, 0, 1, 1, 1], 0),
        (2, 5, True, 0, [0] * 5, 2),
        (0, 3, False, 0, [0] * 3, 0),
    ],
)
def test_lengths(
    length: int, ranks: int, drop_last: bool, num_samples: int, num_padded: list[int], num_dropped: int
) -> None:
    samplers = [
        tfr.RecordSampler(OfLength(length), rank=rank, num_replicas=ranks, drop_last=drop_last) for rank in range(ranks)
    ]
    assert {len(sampler) for sampler in samplers} == {sampler.num_samples for sampler in samplers} == {num_samples}
    assert {sampler.total_size for sampler in samplers} == {num_samples * ranks}
    assert [sampler.num_padded for sampler in samplers] == num_padded
    assert {sampler.num_dropped for sampler in samplers} == {num_dropped}
    assert [len(list(sampler)) for sampler in samplers] == [num_samples] * ranks
    torchs: DistributedSampler[int] = DistributedSampler(range(length), ranks, 0, drop_last=drop_last)  # type: ignore[arg-type]
    if length >= ranks:  # torch's has -1 rows otherwise
        assert (torchs.num_samples, torchs.total_size) == (num_samples, num_samples * ranks)


def test_ranks_read_as_those_of_torchs_sampler() -> None:
    for rank in range(4):
        ours = tfr.RecordSampler(OfLength(23), shuffle=False, rank=rank, num_replicas=4)
        assert list(ours) == list(DistributedSampler(range(23), 4, rank, shuffle=False))  # type: ignore[arg-type]


def test_the_epoch_is_an_attribute(dataset: tfr.TFRecordDataset) -> None:
    sampler = tfr.RecordSampler(dataset)
    first = list(sampler)
    assert sampler.epoch == 1
    sampler.epoch = 0
    assert list(sampler) == first
    assert list(sampler) != first


def test_wrong_arguments(dataset: tfr.TFRecordDataset) -> None:
    for rank, num_replicas in [(2, 2), (-1, 2), (0, 0)]:
        with pytest.raises(ValueError, match=r"rank is|world_size is"):
            tfr.RecordSampler(dataset, rank=rank, num_replicas=num_replicas)
    with pytest.raises(TypeError, match="shuffle must be False, True, BlockShuffle"):
        tfr.RecordSampler(dataset, shuffle="yes")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        tfr.RecordSampler(dataset, seed=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rows is -1, and must be at least 0"):
        tfr.RecordSampler(dataset).state_dict(rows=-1)


def test_indices_are_plain_where_nobody_asks(dataset: tfr.TFRecordDataset) -> None:
    """They are faster to make and to send. The one that pads has a mark."""
    assert {type(index) for index in tfr.RecordSampler(dataset)} == {int}
    *rest, last = tfr.RecordSampler(dataset, seed=3, rank=1, num_replicas=2)
    assert {type(index) for index in rest} == {int}
    assert isinstance(last, SampledIndex)
    assert (last.seed, last.epoch, last.valid) == (3, 0, False)


def test_it_pickles_with_its_state(dataset: tfr.TFRecordDataset) -> None:
    sampler = tfr.RecordSampler(dataset, seed=4)
    sampler.set_epoch(2)
    back = pickle.loads(pickle.dumps(sampler))
    assert back.state_dict() == sampler.state_dict()
    assert list(back) == list(sampler)


def test_draws_are_counted_one_by_one(dataset: tfr.TFRecordDataset) -> None:
    sampler = tfr.RecordSampler(dataset, rank=0, num_replicas=2)
    positions = [sampler.state_dict()["position"] for _ in sampler]
    assert positions == [*range(2, 23, 2), 23]
    assert (sampler.state_dict()["epoch"], sampler.state_dict()["position"]) == (1, 0)


def test_a_short_last_batch_may_be_counted_as_a_whole_one(dataset: tfr.TFRecordDataset) -> None:
    """What a sampler leaves out was not read, so fewer ranks read it when they go on."""
    sampler = tfr.RecordSampler(dataset, rank=3, num_replicas=4, drop_last=True)
    for delivered, batch in enumerate(DataLoader(dataset, 4, sampler=sampler, collate_fn=tfr.collate), 1):
        assert batch.num_records == (4, 1)[delivered - 1]
    state = sampler.state_dict(rows=delivered * 4)
    assert (state["epoch"], state["position"]) == (0, 20)
    alone = tfr.RecordSampler(dataset, rank=0, num_replicas=1)
    alone.load_state_dict(state)
    assert list(alone) == open_order(True, 23, seed=0, epoch=0).indices(np.arange(20, 23)).tolist()
    padded = tfr.RecordSampler(dataset, rank=3, num_replicas=4)
    padded.load_state_dict(state)
    assert len(list(padded)) == 1
    assert padded.state_dict(rows=400)["position"] == 23


# --- other samplers and loaders of torch ------------------------------------------------------------------------------


class SortedBatches(BatchSampler):
    """As samplers do that put records of like lengths together."""

    def __iter__(self) -> Iterator[list[int]]:
        return (sorted(batch) for batch in super().__iter__())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batch_samplers(dataset: tfr.TFRecordDataset, num_workers: int) -> None:
    setting = Setting(5, True, rank=1, world_size=2)
    whole = expected(23, setting, epoch=0)
    for kind in (BatchSampler, SortedBatches):
        sampler = tfr.RecordSampler(dataset, rank=1, num_replicas=2)
        batches = kind(sampler, 5, drop_last=False)
        found = all_seen(DataLoader(dataset, batch_sampler=batches, num_workers=num_workers, collate_fn=tfr.collate))
        if kind is BatchSampler:
            assert found == whole
        else:
            ordered = [sorted(zip(*step, strict=True)) for step in whole]
            assert [list(zip(*step, strict=True)) for step in found] == ordered


def test_batches_of_indices_without_automatic_batching(dataset: tfr.TFRecordDataset) -> None:
    sampler = BatchSampler(tfr.RecordSampler(dataset, rank=1, num_replicas=2), 5, drop_last=False)
    loader = DataLoader(dataset, sampler=sampler, batch_size=None, collate_fn=tfr.collate)
    assert all_seen(loader) == expected(23, Setting(5, True, rank=1, world_size=2), epoch=0)


def test_default_collate(dataset: tfr.TFRecordDataset) -> None:
    batches = list(DataLoader(dataset, 5, sampler=tfr.RecordSampler(dataset)))
    assert [tuple(batch["id"].tolist()) for batch in batches] == [
        ids for ids, _ in expected(23, Setting(5, True), epoch=0)
    ]


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("data", [Numbers(), TensorDataset(torch.arange(23))], ids=["numbers", "tensors"])
def test_data_sets_of_other_kinds(data: Any, num_workers: int) -> None:
    whole = [list(ids) for ids, _ in expected(23, Setting(5, True, rank=1, world_size=2), epoch=0)]
    sampler = tfr.RecordSampler(data, rank=1, num_replicas=2)
    loader = DataLoader(data, 5, sampler=sampler, num_workers=num_workers)
    found = [batch[0] if isinstance(batch, list) else batch for batch in loader]
    assert [batch.tolist() for batch in found] == whole
    state = sampler.state_dict(rows=5)
    assert (state["fingerprint"], state["position"]) == ("", 10)
    resumed = tfr.RecordSampler(data, rank=1, num_replicas=2)
    resumed.load_state_dict(state)
    assert list(resumed) == whole[1] + whole[2]
    with pytest.raises(tfr.StateError, match="23 records then, 24 now"):
        tfr.RecordSampler(range(24)).load_state_dict(state)


# --- data sets made of others -----------------------------------------------------------------------------------------


def jitter(record: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    return {**record, "noise": torch.rand((), generator=generator)}


def noise_of(batch: tfr.Batch) -> list[float]:
    return [float(value) for value in batch["noise"]]


def test_a_subset_has_the_state_of_the_selection(dataset: tfr.TFRecordDataset) -> None:
    numbers = random.Random(0).sample(range(23), 11)
    subset = Subset(Subset(dataset, range(23)), numbers)
    sampler = tfr.RecordSampler(subset, rank=0, num_replicas=1)
    loader = DataLoader(subset, 4, sampler=sampler, collate_fn=tfr.collate)
    order = open_order(True, 11, seed=0, epoch=0).indices(np.arange(11))
    assert torch.cat([batch["id"] for batch in loader]).tolist() == np.array(numbers)[order].tolist()
    selected = dataset.select(numbers)
    assert sampler.state_dict() == tfr.RecordSampler(selected).state_dict() | {"epoch": 1}
    with pytest.raises(tfr.StateError, match="other content"):
        tfr.RecordSampler(Subset(dataset, range(11))).load_state_dict(sampler.state_dict())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_padding_and_epochs_reach_the_parts_of_a_concatenation(tmp_path: Path, num_workers: int) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    one = tfr.TFRecordDataset(write_shards(tmp_path / "a", [3]), ID, transform=jitter)
    two = tfr.TFRecordDataset(write_shards(tmp_path / "b", [1]), ID, transform=jitter)
    for parts in ([one, two], [two, one]):
        both: ConcatDataset[Any] = ConcatDataset(parts)
        samplers = [tfr.RecordSampler(both, seed=5, rank=rank, num_replicas=5) for rank in range(5)]
        rows = []
        for _ in range(2):  # epochs
            for sampler in samplers:
                loader = DataLoader(both, 4, sampler=sampler, num_workers=num_workers, collate_fn=tfr.collate)
                ((number, valid, noise),) = [(b["id"].tolist(), b.valid.tolist(), noise_of(b)) for b in loader]
                rows.append((*number, *valid, *noise))
        for epoch in range(2):
            found = rows[5 * epoch : 5 * epoch + 5]
            assert [valid for _, valid, _ in found] == [True, True, True, True, False]
            assert sorted(number for number, _, _ in found[:4]) == [0, 0, 1, 2]
            alone = tfr.TFRecordLoader(one, 4, seed=5, rank=0, world_size=1)
            alone.set_epoch(epoch)
            (batch,) = alone
            assert {noise for _, _, noise in found} == set(noise_of(batch))


def test_fingerprints_of_concatenations(dataset: tfr.TFRecordDataset) -> None:
    def fingerprint(*parts: Any) -> str:
        found: str = tfr.RecordSampler(ConcatDataset(parts)).state_dict()["fingerprint"]
        return found

    assert fingerprint(dataset, dataset[:5]) == fingerprint(dataset[:], Subset(dataset, range(5)))
    different = [(dataset, dataset), (dataset, dataset[:5]), (dataset[:5], dataset), (dataset,)]
    assert len({fingerprint(*parts) for parts in different}) == 4
    assert fingerprint(dataset, Numbers()) == ""


@pytest.mark.parametrize("named", [False, True])
def test_stacked_data_sets(dataset: tfr.TFRecordDataset, named: bool) -> None:
    noisy = tfr.TFRecordDataset(dataset.index.paths, ID, transform=jitter)
    stack = StackDataset(x=noisy, y=Numbers()) if named else StackDataset(noisy, Numbers())
    sampler = tfr.RecordSampler(stack, seed=5, rank=1, num_replicas=2)
    batches = list(DataLoader(stack, 12, sampler=sampler, collate_fn=tfr.collate))
    batch, numbers = (batches[0]["x"], batches[0]["y"]) if named else batches[0]
    assert batch["id"].tolist() == numbers.tolist()
    assert batch.valid.tolist() == [True] * 11 + [False]
    (same,) = tfr.TFRecordLoader(noisy, 12, shuffle=True, seed=5, rank=1, world_size=2)
    assert noise_of(batch) == noise_of(same)


# --- a plain transform and a plain sampler ----------------------------------------------------------------------------


def test_a_generator_without_an_epoch_is_warned_of(dataset: tfr.TFRecordDataset) -> None:
    noisy = tfr.TFRecordDataset(dataset.index.paths, ID, transform=jitter)
    subset = Subset(noisy, range(23))
    for loader in (
        DataLoader(noisy, 23, shuffle=True, collate_fn=tfr.collate),
        DataLoader(subset, 23, sampler=tfr.RecordSampler(subset), collate_fn=tfr.collate),
    ):
        with pytest.warns(UserWarning, match="the indices carry no epoch"):
            (first,) = loader
        with pytest.warns(UserWarning, match="sample with tfr.RecordSampler, or read through tfr.TFRecordLoader"):
            (second,) = loader
        pairs = [dict(zip(batch["id"].tolist(), noise_of(batch), strict=True)) for batch in (first, second)]
        assert pairs[0] == pairs[1]
        assert len(set(pairs[0].values())) == 23
    (batch,) = DataLoader(noisy, 23, sampler=tfr.RecordSampler(noisy), collate_fn=tfr.collate)  # without a warning
    assert noisy.read_batch(range(23)).num_records == batch.num_records == 23


# --- torchdata --------------------------------------------------------------------------------------------------------


def stateful_loader(sampler: tfr.RecordSampler, num_workers: int, **options: Any) -> Any:
    module = pytest.importorskip("torchdata.stateful_dataloader")
    return module.StatefulDataLoader(
        sampler.dataset, 4, sampler=sampler, num_workers=num_workers, collate_fn=tfr.collate, **options
    )


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchdatas_loader_knows_how_far_it_got(
    dataset: tfr.TFRecordDataset, num_workers: int, drop_last: bool
) -> None:
    def sampler() -> tfr.RecordSampler:
        return tfr.RecordSampler(dataset, seed=5, rank=1, num_replicas=2, drop_last=drop_last)

    setting = Setting(4, True, 5, drop_last, 1, 2)
    first, second, third = (expected(23, setting, epoch=epoch) for epoch in range(3))
    assert len(first) == (2 if drop_last else 3)
    loader = stateful_loader(sampler(), num_workers, drop_last=drop_last)
    assert all_seen(loader) == first
    iterator = iter(loader)
    for number in range(1, len(second)):
        assert seen(next(iterator)) == second[number - 1]
        state = loader.state_dict()
        resumed = stateful_loader(sampler(), num_workers, drop_last=drop_last)
        resumed.load_state_dict(state)
        assert all_seen(resumed) == second[number:]
        assert all_seen(resumed) == third


# --- all doors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOORS)
def test_states_of_equal_steps_are_equal(dataset: tfr.TFRecordDataset, name: str) -> None:
    """Those of all doors, with what they leave out in the end."""
    for drop_last, world_size in itertools.product((False, True), (1, 2, 4)):
        setting = Setting(3, True, 5, drop_last, world_size - 1, world_size)
        door, loader = Door(name, dataset, setting), Door("loader", dataset, setting)
        for number, _ in enumerate(zip(door, loader, strict=True), 1):
            assert door.state(number) == loader.state(number)


def test_sized() -> None:
    assert isinstance(OfLength(3), Sized)
    assert list(tfr.RecordSampler("abcd", shuffle=False, rank=1, num_replicas=2)) == [1, 3]
