"""`TFRecordLoader`: its batches, whatever the threads and contexts; copies, data sets, arguments, devices."""

# ruff: noqa: F811 - arguments of tests are named as the fixtures that are imported

from __future__ import annotations

import copy
import os
import pickle
import random
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loaders import (  # noqa: F401 - fixtures among them
    COUNT,
    all_kinds,
    expected,
    ids_of,
    nothing_left_behind,
    open_kind,
    paths,
)
from numbered import FEATURES, rows_of, write
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split

import torch_tfrecord as tfr
from torch_tfrecord import decode

# --- batches ----------------------------------------------------------------------------------------------------------


@all_kinds
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(
    "shuffle",
    [False, True, tfr.BlockShuffle(4, 3), tfr.QueueShuffle(20, 10)],
    ids=["sequential", "full", "block", "queue"],
)
def test_batches_are_those_of_the_sampler(paths: list[str], kind: str, drop_last: bool, shuffle: Any) -> None:
    dataset = open_kind(paths, kind)
    for rank in range(3):
        shared: dict[str, Any] = {"shuffle": shuffle, "seed": 5, "rank": rank, "drop_last": drop_last}
        sampler = tfr.RecordSampler(dataset, num_replicas=3, **shared)
        other = DataLoader(dataset, 8, sampler=sampler, collate_fn=tfr.collate, drop_last=drop_last)
        loader = tfr.TFRecordLoader(dataset, 8, world_size=3, **shared)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            mine, theirs = list(loader), list(other)
            assert len(mine) == len(loader) == len(theirs) == (4 if drop_last else 5)
            for batch, reference in zip(mine, theirs, strict=True):
                assert rows_of(batch) == rows_of(reference) == expected(ids_of(batch), kind)
                assert batch.record_ids is not None
                assert batch.record_ids.tolist() == ids_of(batch)
                assert batch.valid.tolist() == reference.valid.tolist()
        assert sum((~batch.valid).sum() for batch in mine) == (not drop_last and rank > 0)


@all_kinds
def test_threads_and_prefetch_change_nothing(paths: list[str], kind: str) -> None:
    dataset = open_kind(paths, kind)
    want = None
    for num_threads in (1, 2, 4, 16):
        for prefetch in (1, 2, 5, 100):
            loader = tfr.TFRecordLoader(dataset, 7, shuffle=True, seed=1, num_threads=num_threads, prefetch=prefetch)
            found = [rows_of(batch) for batch in loader]
            want = want or found
            assert found == want
    assert want is not None
    assert sorted(record["id"] for rows in want for record in rows) == list(range(COUNT))


def test_threads_and_prefetch_change_no_random_choice(paths: list[str]) -> None:
    def noisy(record: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
        return {"id": record["id"], "noise": torch.rand(3, generator=generator)}

    dataset = open_kind(paths, transform=noisy)
    epochs = []
    for num_threads, prefetch in ((1, 1), (2, 5), (4, 100)):
        loader = tfr.TFRecordLoader(dataset, 7, shuffle=True, num_threads=num_threads, prefetch=prefetch)
        epochs.append([[(ids_of(batch), batch["noise"].tolist()) for batch in loader] for _ in range(2)])
    assert epochs[0] == epochs[1] == epochs[2]
    assert epochs[0][0] != epochs[0][1]


@pytest.mark.parametrize("kind", ["sized", "ragged"])
def test_contexts_around_the_loop_change_nothing(paths: list[str], kind: str) -> None:
    dataset = open_kind(paths, kind)
    want = [rows_of(batch) for batch in tfr.TFRecordLoader(dataset, 8, rank=1, world_size=3)]

    def check() -> None:
        found = []
        for batch in tfr.TFRecordLoader(dataset, 8, rank=1, world_size=3):
            found.append(batch)
            assert batch.valid.device.type == "cpu"
        with torch.inference_mode(mode=False), torch.enable_grad(), torch.device("cpu"):
            assert [rows_of(batch) for batch in found] == want
            assert [batch.valid.tolist()[-1] for batch in found] == [True, True, True, True, False]
            for batch in found:
                assert not batch["halves"].is_inference()
                assert batch["halves"].dtype == torch.float32
                weights = torch.ones(2, dtype=torch.float32, requires_grad=True)
                (batch["halves"] @ weights).sum().backward()
                assert weights.grad is not None

    for context in (torch.inference_mode(), torch.no_grad(), torch.device("meta")):
        with context:
            check()
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        check()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


def test_contexts_around_the_loop_do_not_reach_transforms(paths: list[str]) -> None:
    def doubled(record: dict[str, Any]) -> dict[str, Any]:
        assert torch.is_grad_enabled()
        return {"id": record["id"] * torch.ones(2)}

    with torch.inference_mode(), torch.device("meta"):
        batches = list(tfr.TFRecordLoader(open_kind(paths, transform=doubled), 50))
    assert [batch["id"].device.type for batch in batches] == ["cpu", "cpu"]
    assert not batches[0]["id"].is_inference()
    assert batches[1]["id"][:, 1].tolist() == list(range(50, 100))


@all_kinds
def test_a_list_has_distinct_batches(paths: list[str], kind: str) -> None:
    batches = list(tfr.TFRecordLoader(open_kind(paths, kind), 8, prefetch=3))
    assert [rows_of(batch) for batch in batches] == [
        expected(range(i, min(i + 8, COUNT)), kind) for i in range(0, COUNT, 8)
    ]
    assert len({batch["id"].data_ptr() for batch in batches}) == len(batches)
    batches[3]["halves"].fill_(77)
    assert rows_of(batches[4]) == expected(range(32, 40), kind)


@pytest.mark.parametrize("kind", ["sized", "ragged"])
def test_what_is_held_is_never_overwritten(paths: list[str], kind: str) -> None:
    """While thousands of batches pass, of which some columns and rows are kept for a while."""
    loader = tfr.TFRecordLoader(open_kind(paths, kind), 3, shuffle=True, num_threads=4, prefetch=4)
    choose = random.Random(0)
    held: list[tuple[Any, list[Any]]] = []
    for _ in range(60):
        for batch in loader:
            assert rows_of(batch) == expected(ids_of(batch), kind)
            if choose.random() < 0.2:
                view = choose.choice([batch["id"], batch["halves"], batch["halves"][0], batch])
                held.append((view, view.tolist() if isinstance(view, torch.Tensor) else rows_of(view)))
            if len(held) > 50:
                view, content = held.pop(choose.randrange(50))
                assert (view.tolist() if isinstance(view, torch.Tensor) else rows_of(view)) == content
    assert loader.stats().batches == 60 * 34
    for view, content in held:
        assert (view.tolist() if isinstance(view, torch.Tensor) else rows_of(view)) == content


@pytest.mark.parametrize("prefetch", [1, 2, 6])
def test_arenas_alive_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefetch: int) -> None:
    alive, most, total = 0, 0, 0

    def allocate(nbytes: int, *, pin_memory: bool = False) -> tuple[torch.Tensor, Any]:
        nonlocal alive, most, total
        arena, memory = original(nbytes, pin_memory=pin_memory)
        alive, total = alive + 1, total + 1
        most = max(most, alive)
        weakref.finalize(memory, die)
        return arena, memory

    def die() -> None:
        nonlocal alive
        alive -= 1

    original = vars(decode)["allocate"]
    monkeypatch.setattr(decode, "allocate", allocate)
    dataset = tfr.TFRecordDataset(write(tmp_path / "data.tfrecord", 200), FEATURES)
    for _ in tfr.TFRecordLoader(dataset, 2, prefetch=prefetch, pin_memory=False):
        pass
    assert total == 100
    # Those ahead, the one that is made while one is given out, and the one in use. One more, since a column is ragged.
    assert most <= prefetch + 3
    del _
    assert alive == 0


def test_memory_does_not_grow(tmp_path: Path) -> None:
    """Ragged batches, each of another size."""
    sizes = np.random.default_rng(0).integers(0, 60_000, 400)
    with tfr.TFRecordWriter(tmp_path / "data.tfrecord") as writer:
        for size in sizes.tolist():
            writer.write_example({"blob": bytes(size)})
    loader = tfr.TFRecordLoader(
        tfr.TFRecordDataset(tmp_path / "data.tfrecord", {"blob": tfr.VarLenFeature(bytes)}), 8, shuffle=True
    )

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    if not os.path.exists("/proc/self/statm"):
        pytest.skip("needs /proc")
    for _ in range(10):
        list(map(len, loader))
    before = resident()
    for _ in range(40):
        assert sum(map(len, loader)) == 50
    assert loader.stats().batches == 2500
    assert resident() - before < 16 << 20  # an epoch has 12 MB


# --- what it is made of -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["pickle", "deepcopy", "copy"])
def test_a_copy_goes_on_by_itself(paths: list[str], how: str) -> None:
    ways: dict[str, Callable[[Any], Any]] = {
        "pickle": lambda loader: pickle.loads(pickle.dumps(loader)),
        "deepcopy": copy.deepcopy,
        "copy": copy.copy,
    }
    loader = tfr.TFRecordLoader(open_kind(paths), 8, shuffle=True, seed=3, rank=1, world_size=2, drop_last=True)
    epochs = [[ids_of(batch) for batch in loader] for _ in range(3)]
    loader.set_epoch(0)
    iterator = iter(loader)
    next(iterator)
    other = ways[how](loader)
    assert (other.epoch, other.state_dict()["epoch"], other.state_dict()["position"]) == (1, 1, 0)
    assert (len(other), other.batch_size, other.rank, other.world_size) == (6, 8, 1, 2)
    assert other.stats().batches == 0
    assert [[ids_of(batch) for batch in other] for _ in range(2)] == epochs[1:]
    assert loader.epoch == 0
    assert [ids_of(batch) for batch in iterator] == epochs[0][1:]
    other.close()
    assert [ids_of(batch) for batch in loader] == epochs[1]


def test_a_copy_of_a_loaded_state_is_resumed_too(paths: list[str]) -> None:
    loader = tfr.TFRecordLoader(open_kind(paths), 8)
    iterator = iter(loader)
    next(iterator)
    fresh = tfr.TFRecordLoader(open_kind(paths), 8)
    fresh.load_state_dict(loader.state_dict())
    assert ids_of(next(iter(pickle.loads(pickle.dumps(fresh))))) == list(range(8, 16))


def test_subsets(paths: list[str]) -> None:
    dataset = open_kind(paths)
    even = Subset(dataset, range(0, COUNT, 2))
    assert [i for batch in tfr.TFRecordLoader(even, 8) for i in ids_of(batch)] == list(range(0, COUNT, 2))
    inner = Subset(even, [3, 1, 3])
    assert [ids_of(batch) for batch in tfr.TFRecordLoader(inner, 8)] == [[6, 2, 6]]
    parts = random_split(dataset, [0.7, 0.3], torch.Generator().manual_seed(0))
    found = [[i for batch in tfr.TFRecordLoader(part, 8) for i in ids_of(batch)] for part in parts]
    assert [list(part.indices) for part in parts] == found
    assert sorted(found[0] + found[1]) == list(range(COUNT))


def test_other_data_sets_are_refused_with_advice(paths: list[str]) -> None:
    class Doubled(tfr.TFRecordDataset):
        def __getitem__(self, index: Any) -> Any:
            return [super().__getitem__(index)] * 2

    class Renamed(tfr.TFRecordDataset):
        pass

    class MySubset(Subset[Any]):
        pass

    dataset = open_kind(paths)
    stream = tfr.TFRecordIterableDataset(paths, FEATURES, batch_size=8)
    refused: list[tuple[Any, str]] = [
        (ConcatDataset([dataset, dataset]), "ConcatDataset: make one TFRecordDataset of all the paths"),
        (Doubled(paths, FEATURES), "Doubled: put what its class does into transform="),
        (MySubset(dataset, [1, 2]), "MySubset: put what its class does into transform="),
        (stream, "TFRecordIterableDataset: use torch's DataLoader"),
        (paths, "list: use torch's DataLoader"),
    ]
    for other, message in refused:
        with pytest.raises(TypeError, match=f"not {message}"):
            tfr.TFRecordLoader(other, 8)
    assert len(tfr.TFRecordLoader(Renamed(paths, FEATURES), 8)) == 13


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"batch_size": 0}, ValueError),
        ({"batch_size": 2.5}, TypeError),
        ({"num_threads": 0}, ValueError),
        ({"prefetch": 0}, ValueError),
        ({"prefetch": 1.5}, TypeError),
        ({"seed": "x"}, TypeError),
        ({"shuffle": "yes"}, TypeError),
        ({"rank": 3, "world_size": 3}, ValueError),
        ({"device": "nowhere"}, RuntimeError),
    ],
)
def test_arguments_are_checked(paths: list[str], options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        tfr.TFRecordLoader(open_kind(paths), **{"batch_size": 8, **options})


def test_frameworks_find_set_epoch_on_the_sampler(paths: list[str]) -> None:
    loader = tfr.TFRecordLoader(open_kind(paths), 8, shuffle=True)
    first = [ids_of(batch) for batch in loader]
    loader.sampler.set_epoch(0)
    assert [ids_of(batch) for batch in loader] == first
    assert "100 records" in repr(loader)
    assert "permutation/1" in repr(loader)


def test_explain_is_about_the_next_pass(paths: list[str]) -> None:
    loader = tfr.TFRecordLoader(open_kind(paths), 8, rank=0, world_size=3)
    assert "100" in str(loader.explain())
    next(iter(loader))


# --- devices ----------------------------------------------------------------------------------------------------------


@all_kinds
@pytest.mark.parametrize("prefetch", [1, 2, 30])
def test_delivery_to_a_device(paths: list[str], kind: str, prefetch: int) -> None:
    options: dict[str, Any] = {"rank": 1, "world_size": 3, "prefetch": prefetch}
    dataset = open_kind(paths, kind)
    plain = list(tfr.TFRecordLoader(dataset, 8, **options))
    here = list(tfr.TFRecordLoader(dataset, 8, device="cpu", **options))
    assert [rows_of(batch) for batch in here] == [rows_of(batch) for batch in plain]
    assert here[-1].valid.tolist() == plain[-1].valid.tolist() == [True, False]
    loader = tfr.TFRecordLoader(dataset, 8, device=torch.device("meta"), **options)
    for batch, other in zip(loader, plain, strict=True):
        assert {batch[name].device.type for name in ("id", "halves")} == {"meta"}
        assert batch.valid.device.type == "meta"
        assert batch["id"].shape == other["id"].shape
        assert loader.stats().queue_depth <= prefetch
    assert loader.stats().padded == 1
    assert loader.stats().batches == 5


def test_pinning_without_a_gpu_warns_where_the_loop_is(paths: list[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    loader = tfr.TFRecordLoader(open_kind(paths), 50, pin_memory=True)
    with pytest.warns(UserWarning, match="no CUDA device") as caught:
        batches = list(loader)
    assert [ids_of(batch)[0] for batch in batches] == [0, 50]
    assert caught[0].filename == __file__
    list(tfr.TFRecordLoader(open_kind(paths), 50, pin_memory=False))
