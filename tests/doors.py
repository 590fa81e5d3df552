"""The three front doors behind one face, and a plain model of what they must deliver."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import DataLoader

import torch_tfrecord as tfr
from torch_tfrecord.order import Shuffle, open_order

DOORS = ("sampler", "stream", "loader")

Seen: TypeAlias = tuple[tuple[int, ...], tuple[bool, ...]]  # of a batch: record ids, and which rows are valid


@dataclasses.dataclass(frozen=True)
class Setting:
    """The arguments that all doors have in common."""

    batch_size: int
    shuffle: Shuffle = False
    seed: int = 0
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1

    def of_rank(self, rank: int) -> Setting:
        return dataclasses.replace(self, rank=rank)

    def ranks(self) -> list[Setting]:
        return [self.of_rank(rank) for rank in range(self.world_size)]


class Door:
    """One of the doors on one rank.

    Attributes:
        reader: What knows the epoch and has a state.
        batches: What is iterated.
    """

    def __init__(self, name: str, dataset: tfr.TFRecordDataset, setting: Setting, **workers: Any) -> None:
        self.name = name
        self.setting = setting
        self.reader: Any
        self.batches: Any
        common: dict[str, Any] = {"shuffle": setting.shuffle, "seed": setting.seed, "drop_last": setting.drop_last}
        if name == "sampler":
            self.reader = tfr.RecordSampler(dataset, **common, rank=setting.rank, num_replicas=setting.world_size)
            self.batches = DataLoader(
                dataset,
                setting.batch_size,
                sampler=self.reader,
                drop_last=setting.drop_last,
                collate_fn=tfr.collate,
                **workers,
            )
            return
        common |= {"rank": setting.rank, "world_size": setting.world_size, "batch_size": setting.batch_size}
        if name == "stream":
            self.reader = stream_of(dataset, **common)
            self.batches = DataLoader(self.reader, batch_size=None, **workers)
        else:
            self.reader = self.batches = tfr.TFRecordLoader(dataset, **common)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def state(self, delivered: int) -> dict[str, Any]:
        """The state after so many batches of the pass at work."""
        if self.name == "sampler":
            state: dict[str, Any] = self.reader.state_dict(rows=delivered * self.setting.batch_size)
        elif self.name == "stream":
            state = self.reader.state_dict(batches=delivered)
        else:
            state = self.reader.state_dict()
        return state


def stream_of(dataset: tfr.TFRecordDataset, **options: Any) -> tfr.TFRecordIterableDataset:
    """A stream of the records of a data set, whole or selected from."""
    recipe = dataset.recipe
    return tfr.TFRecordIterableDataset(
        list(dataset.index.paths),
        recipe.features,
        index=dataset.index,
        subset=dataset._rows,
        transform=recipe.transform,
        batch_transform=recipe.batch_transform,
        **options,
    )


def seen(batch: tfr.Batch) -> Seen:
    assert batch.record_ids is not None
    if "id" in batch:
        assert torch.equal(batch["id"], batch.record_ids)
    return tuple(batch.record_ids.tolist()), tuple(batch.valid.tolist())


def all_seen(batches: Iterable[tfr.Batch]) -> list[Seen]:
    return [seen(batch) for batch in batches]


def expected(size: int, setting: Setting, *, epoch: int, start: int = 0) -> list[Seen]:
    """What a rank reads from a position of an epoch on, one row after another, as the documents say it."""
    order = open_order(setting.shuffle, size, seed=setting.seed, epoch=epoch).indices(np.arange(size)).tolist()
    left = size - start
    rows = left // setting.world_size if setting.drop_last else (left + setting.world_size - 1) // setting.world_size
    steps = []
    for begin in range(0, rows, setting.batch_size):
        numbers = range(begin, min(begin + setting.batch_size, rows))
        if len(numbers) < setting.batch_size and setting.drop_last:
            break
        positions = [start + row * setting.world_size + setting.rank for row in numbers]
        steps.append((tuple(order[p % size] for p in positions), tuple(p < size for p in positions)))
    return steps


def flat(ranks: list[list[Seen]]) -> list[int]:
    """The records that all ranks read, in the order of the epoch, without those that pad."""
    rows = [[pair for step in steps for pair in zip(*step, strict=True)] for steps in ranks]
    return [number for row in zip(*rows, strict=True) for number, valid in row if valid]


def by_step(ranks: list[list[Seen]]) -> list[list[int]]:
    """The same for each step."""
    return [flat([[step] for step in steps]) for steps in zip(*ranks, strict=True)]
