"""`TFRecordLoader` in one process: right batches whatever the threads, errors at their turn, and nothing left behind."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import pickle
import random
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numbered import FEATURES, ID, row, rows_of, write, write_shards
from record_files import flip
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split

import torch_tfrecord as tfr
from torch_tfrecord import decode

COUNT = 100
SIZED = {name: FEATURES[name] for name in ("id", "halves")}
KINDS = {
    "sized": (SIZED, None),
    "ragged": (FEATURES, None),
    "python": (FEATURES, lambda record: record),
}
all_kinds = pytest.mark.parametrize("kind", list(KINDS))


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_shards(tmp_path_factory.mktemp("data"), [40, 0, 33, 27])


def open_kind(paths: Any, kind: str = "ragged", **options: Any) -> tfr.TFRecordDataset:
    features, transform = KINDS[kind]
    options.setdefault("transform", transform)
    return tfr.TFRecordDataset(paths, features, **options)


def expected(ids: Any, kind: str = "ragged") -> list[dict[str, Any]]:
    return [{name: value for name, value in row(int(i)).items() if name in KINDS[kind][0]} for i in ids]


def ids_of(batch: tfr.Batch) -> list[int]:
    ids: list[int] = batch["id"].tolist()
    return ids


def python_threads() -> set[threading.Thread]:
    return set(threading.enumerate())


def num_tasks() -> int:
    """Threads of this process, native ones too."""
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0


def descriptors() -> set[str]:
    return set(os.listdir("/dev/fd"))


def eventually(condition: Callable[[], Any], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.002)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    threads, open_before = python_threads(), descriptors()
    yield
    if python_threads() != threads or descriptors() != open_before:
        gc.collect()
    eventually(lambda: python_threads() <= threads)
    assert len(descriptors()) <= len(open_before)


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
    assert most <= prefetch + 2  # those ahead, the one that is made while one is given out, and the one in use
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


# --- the life of a pass -----------------------------------------------------------------------------------------------


@all_kinds
def test_nothing_starts_before_the_first_batch(paths: list[str], kind: str) -> None:
    dataset = open_kind(paths, kind)
    before, tasks, files = python_threads(), num_tasks(), descriptors()
    loader = tfr.TFRecordLoader(dataset, 8, num_threads=3, prefetch=20)
    iterator = iter(loader)
    assert (python_threads(), num_tasks(), descriptors()) == (before, tasks, files)
    assert loader.stats().queue_depth == 0
    assert loader.epoch == 0
    next(iterator)
    time.sleep(0.05)
    next(iterator)  # ragged batches are measured first, and filled after the next ``next``
    eventually(lambda: loader.stats().queue_depth == 11)
    assert len(python_threads() - before) == (kind == "python")


@all_kinds
def test_native_threads_belong_to_the_process_and_are_bounded(paths: list[str], kind: str) -> None:
    dataset = open_kind(paths, kind)
    list(tfr.TFRecordLoader(dataset, 8, num_threads=4))
    eventually(lambda: len(python_threads()) == 1)
    tasks = num_tasks()
    for _ in range(20):
        iterators = [iter(tfr.TFRecordLoader(dataset, 8, num_threads=4, prefetch=9)) for _ in range(5)]
        for iterator in iterators:
            next(iterator)
        del iterators, iterator
    eventually(lambda: num_tasks() <= tasks + 1)


def stop_by_break(loader: tfr.TFRecordLoader) -> None:
    for i, _ in enumerate(loader):
        if i == 2:
            break


def stop_by_error(loader: tfr.TFRecordLoader) -> None:
    def divide() -> None:
        for i, _ in enumerate(loader):
            1 / (2 - i)

    with pytest.raises(ZeroDivisionError):
        divide()


def stop_by_close(loader: tfr.TFRecordLoader) -> None:
    iterator = iter(loader)
    next(iterator)
    loader.close()
    for _ in range(2):
        with pytest.raises(tfr.CancelledError):
            next(iterator)
    with pytest.raises(ValueError, match="closed"):
        iter(loader)
    loader.close()
    assert loader.stats().batches == 1


def stop_by_context(loader: tfr.TFRecordLoader) -> None:
    with loader as same:
        assert same is loader
        iterator = iter(loader)
        next(iterator)
    with pytest.raises(tfr.CancelledError):
        next(iterator)


def stop_by_garbage(loader: tfr.TFRecordLoader) -> None:
    iterator: Any = iter(loader)
    next(iterator)
    cycle: list[Any] = [iterator]
    cycle.append(cycle)
    gone = weakref.ref(iterator)
    del iterator, cycle
    gc.collect()
    assert gone() is None


def stop_at_the_end(loader: tfr.TFRecordLoader) -> None:
    iterator = iter(loader)
    assert len(list(iterator)) == len(loader)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)
    loader.close()
    with pytest.raises(StopIteration):
        next(iterator)


@all_kinds
@pytest.mark.parametrize(
    "stop", [stop_by_break, stop_by_error, stop_by_close, stop_by_context, stop_by_garbage, stop_at_the_end]
)
def test_every_pass_ends(paths: list[str], kind: str, stop: Callable[[tfr.TFRecordLoader], None]) -> None:
    before, files = python_threads(), len(descriptors())
    dataset = open_kind(paths, kind)
    loader = tfr.TFRecordLoader(dataset, 8, prefetch=3)
    stop(loader)
    eventually(lambda: python_threads() == before)
    assert loader.stats().queue_depth == 0
    del loader, dataset
    assert len(descriptors()) == files


@all_kinds
def test_a_pass_lets_go_of_everything_at_once(paths: list[str], kind: str) -> None:
    """Without the garbage collector: not the order's memory nor the data set may wait for it."""
    gc.collect()
    gc.disable()
    try:
        dataset = open_kind(paths, kind)
        loader = tfr.TFRecordLoader(dataset, 8)
        stop_by_break(loader)
        gone = weakref.ref(dataset)
        eventually(lambda: len(python_threads()) == 1)
        del dataset, loader
        assert gone() is None
    finally:
        gc.enable()


def test_the_loader_lives_as_long_as_its_iterators(paths: list[str]) -> None:
    assert [ids_of(batch)[0] for batch in tfr.TFRecordLoader(open_kind(paths), 50)] == [0, 50]
    iterator = iter(tfr.TFRecordLoader(open_kind(paths), 50))
    assert ids_of(next(iterator))[0] == 0


@all_kinds
def test_two_iterators_at_once(paths: list[str], kind: str) -> None:
    loader = tfr.TFRecordLoader(open_kind(paths, kind), 8, shuffle=True)
    orders = [[ids_of(batch) for batch in loader] for _ in range(2)]
    loader.set_epoch(0)
    assert [[ids_of(a), ids_of(b)] for a, b in zip(loader, loader, strict=True)] == list(
        map(list, zip(*orders, strict=True))
    )
    loader.set_epoch(0)
    first, second = iter(loader), iter(loader)
    next(second)
    assert loader.epoch == 0
    assert ids_of(next(first)) == orders[1][0]
    next(second)
    assert loader.state_dict()["epoch"] == 1
    assert loader.state_dict()["position"] == 8
    assert sum(1 for _ in first) == 12
    assert loader.epoch == 2
    next(second)
    assert loader.epoch == 2


def test_empty_data(tmp_path: Path) -> None:
    loader = tfr.TFRecordLoader(tfr.TFRecordDataset(write(tmp_path / "none.tfrecord", 0), FEATURES), 8)
    assert (len(loader), list(loader), loader.epoch) == (0, [], 1)
    small = tfr.TFRecordLoader(tfr.TFRecordDataset(write(tmp_path / "few.tfrecord", 3), FEATURES), 8, drop_last=True)
    assert (len(small), list(small), small.epoch, small.stats().dropped) == (0, [], 1, 3)


def test_a_pass_that_cannot_begin_uses_up_no_epoch(paths: list[str]) -> None:
    loader = tfr.TFRecordLoader(open_kind(paths), 8, device="cuda:99")
    iterator = iter(loader)
    for _ in range(2):
        with pytest.raises((RuntimeError, AssertionError)):
            next(iterator)
    assert loader.state_dict()["epoch"] == 0
    assert loader.stats().batches == 0


# --- transforms -------------------------------------------------------------------------------------------------------


def test_transforms_are_called_in_order_ahead_and_never_at_once(paths: list[str]) -> None:
    seen: list[int] = []
    callers, at_work = set(), threading.Lock()

    def look(record: dict[str, Any]) -> dict[str, Any]:
        assert at_work.acquire(blocking=False)
        seen.append(int(record["id"]))
        callers.add(threading.get_ident())
        time.sleep(0)
        at_work.release()
        return record

    loader = tfr.TFRecordLoader(open_kind(paths, transform=look), 10, shuffle=True, num_threads=4, prefetch=3)
    iterator = iter(loader)
    order = ids_of(next(iterator))
    eventually(lambda: len(seen) == 40)
    time.sleep(0.01)
    assert len(seen) == 40
    for batch in iterator:
        order += ids_of(batch)
    assert seen == order
    assert len(callers) == 1
    assert threading.get_ident() not in callers


@pytest.mark.parametrize("features", [None, len])
def test_records_that_are_not_parsed(tmp_path: Path, features: Any) -> None:
    with tfr.TFRecordWriter(tmp_path / "data.tfrecord") as writer:
        for i in range(25):
            writer.write(b"x" * i)
    batches = list(tfr.TFRecordLoader(tfr.TFRecordDataset(tmp_path / "data.tfrecord", features), 10))
    found = [list(batch) if features else batch.tolist() for batch in batches]
    want = [features(b"x" * i) if features else b"x" * i for i in range(25)]
    assert found == [want[:10], want[10:20], want[20:]]


def test_batch_transforms(paths: list[str]) -> None:
    def split(batch: tfr.Batch) -> tuple[torch.Tensor, Any]:
        return batch["id"] * 2, batch["tokens"]

    dataset = tfr.TFRecordDataset(paths, FEATURES, batch_transform=split)
    found = list(tfr.TFRecordLoader(dataset, 40))
    assert [doubled.tolist() for doubled, _ in found] == [
        [2 * i for i in range(a, b)] for a, b in ((0, 40), (40, 80), (80, 100))
    ]
    assert found[2][1].tolist() == [list(range(i % 4)) for i in range(80, 100)]


# --- errors -----------------------------------------------------------------------------------------------------------


def outcomes(loader: tfr.TFRecordLoader) -> list[Any]:
    """What each ``next`` gives: the ids of a batch, or the error."""
    iterator = iter(loader)
    found: list[Any] = []
    while True:
        try:
            found.append(ids_of(next(iterator)))
        except StopIteration:
            return found
        except Exception as error:  # noqa: BLE001
            found.append(error)


def assert_bad(loader: tfr.TFRecordLoader, order: list[int], bad: set[int], kind: type[Exception]) -> list[Exception]:
    """Check that a batch raises if it has a bad record, and that all others come. Returns the errors."""
    size = loader.batch_size
    found = outcomes(loader)
    errors = []
    for begin, outcome in zip(range(0, len(order), size), found, strict=True):
        wanted = order[begin : begin + size]
        if bad & set(wanted):
            assert type(outcome) is kind, outcome
            errors.append(outcome)
        else:
            assert outcome == wanted
    assert errors
    return errors


@all_kinds
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("prefetch", [1, 2, 30])
def test_a_damaged_record_is_told_at_its_batch(tmp_path: Path, kind: str, shuffle: bool, prefetch: int) -> None:
    path = Path(write(tmp_path / "data.tfrecord", 60))
    dataset = open_kind(path, kind)
    order = [i for batch in tfr.TFRecordLoader(dataset, 7, shuffle=shuffle) for i in ids_of(batch)]
    data = path.read_bytes()
    mtime = path.stat().st_mtime_ns
    for record in (20, 21, 50):
        data = flip(data, dataset.index[record].offset + 30)
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(mtime, mtime))
    loader = tfr.TFRecordLoader(dataset, 7, shuffle=shuffle, prefetch=prefetch)
    errors = assert_bad(loader, order, {20, 21, 50}, tfr.DataLossError)
    assert str(path) in str(errors[0])
    assert loader.epoch == 1
    assert loader.stats().batches == 9 - len(errors)


@all_kinds
def test_a_missing_file_is_told_at_its_batches(tmp_path: Path, kind: str) -> None:
    paths = write_shards(tmp_path, [20, 20, 20])
    dataset = open_kind(paths, kind)
    os.rename(paths[1], paths[1] + ".moved")
    errors = assert_bad(tfr.TFRecordLoader(dataset, 8), list(range(60)), set(range(20, 40)), FileNotFoundError)
    assert all(paths[1] in str(error) for error in errors)
    assert not any(error.__context__ in errors for error in errors)
    os.rename(paths[1] + ".moved", paths[1])
    assert len(list(tfr.TFRecordLoader(dataset, 8))) == 8


@all_kinds
def test_a_record_that_does_not_fit_is_told_at_its_batch(tmp_path: Path, kind: str) -> None:
    with tfr.TFRecordWriter(tmp_path / "data.tfrecord") as writer:
        for i in range(50):
            writer.write_example({**row(i), "halves": [1.0] * (2 + (i == 33))})
    loader = tfr.TFRecordLoader(open_kind(tmp_path / "data.tfrecord", kind), 8)
    (error,) = assert_bad(loader, list(range(50)), {33}, tfr.ParseError)
    assert "halves" in str(error)
    assert "record 33" in str(error)


class Peculiar(Exception):
    pass


@pytest.mark.parametrize("where", ["transform", "batch_transform", "features"])
@pytest.mark.parametrize("kind", [ValueError, IndexError, KeyError, Peculiar, StopIteration, SystemExit])
def test_what_users_functions_raise_is_told_at_its_batch(
    paths: list[str], where: str, kind: type[BaseException]
) -> None:
    error = kind("x")

    def check(found: Any) -> Any:
        ids = (
            found["id"].tolist() if not isinstance(found, bytes) else tfr.parse_single_example(found, ID)["id"].tolist()
        )
        if 33 in (ids if isinstance(ids, list) else [ids]):
            raise error
        return found

    def parse(record: bytes) -> Any:
        return tfr.parse_single_example(check(record), ID)["id"]

    if where == "features":
        dataset = tfr.TFRecordDataset(paths, parse)
    else:
        dataset = tfr.TFRecordDataset(paths, FEATURES, **{where: check})  # type: ignore[arg-type]
    found = []
    iterator = iter(tfr.TFRecordLoader(dataset, 8))
    for step in range(13):
        if step == 4:
            with pytest.raises(RuntimeError if kind in (StopIteration, SystemExit) else kind) as caught:
                next(iterator)
            told = caught.value
            assert told is error or told.__cause__ is error or told.__cause__.__cause__ is error  # type: ignore[union-attr]
        else:
            batch = next(iterator)
            found += [int(i) for i in (batch if where == "features" else batch["id"])]
    assert list(iterator) == []
    assert found == [*range(32), *range(40, COUNT)]


@all_kinds
def test_the_state_right_after_an_error(tmp_path: Path, kind: str) -> None:
    with tfr.TFRecordWriter(tmp_path / "data.tfrecord") as writer:
        for i in range(40):
            writer.write_example({**row(i), "halves": [1.0] * (2 + (i == 19))})
    loader = tfr.TFRecordLoader(open_kind(tmp_path / "data.tfrecord", kind), 8)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    with pytest.raises(tfr.ParseError):
        next(iterator)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (0, 16)  # it was not delivered
    resumed = tfr.TFRecordLoader(open_kind(tmp_path / "data.tfrecord", kind), 8)
    resumed.load_state_dict(loader.state_dict())
    found = outcomes(resumed)
    assert isinstance(found[0], tfr.ParseError)
    assert found[1:] == [list(range(24, 32)), list(range(32, 40))]
    assert ids_of(next(iterator)) == list(range(24, 32))
    assert loader.state_dict()["position"] == 32
    loader.close()
    with pytest.raises(tfr.CancelledError):
        next(iterator)
    assert loader.state_dict()["position"] == 32


def test_close_after_an_error(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [20, 20])
    dataset = open_kind(paths, "python")
    os.remove(paths[0])
    loader = tfr.TFRecordLoader(dataset, 10)
    iterator = iter(loader)
    with pytest.raises(FileNotFoundError):
        next(iterator)
    loader.close()
    with pytest.raises(tfr.CancelledError):
        next(iterator)


# --- statistics -------------------------------------------------------------------------------------------------------


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
    assert loader.stats().producer_wait_seconds < 0.1


@pytest.mark.parametrize("kind", ["sized", "python"])
@pytest.mark.parametrize("prefetch", [1, 3])
def test_the_producers_waits_grow_with_a_slow_consumer(paths: list[str], kind: str, prefetch: int) -> None:
    loader = tfr.TFRecordLoader(open_kind(paths, kind), 10, prefetch=prefetch)
    began = time.monotonic()
    for _ in loader:
        time.sleep(0.02)
    took = time.monotonic() - began
    ahead = (10 - prefetch - 1) * 0.02  # after each batch but those with nothing more to begin
    assert ahead * 0.5 < loader.stats().producer_wait_seconds < took
    assert loader.stats().consumer_wait_seconds < 0.1


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


# --- threads of the user ----------------------------------------------------------------------------------------------


def in_threads(functions: list[Callable[[], Any]]) -> list[Any]:
    """What functions return that run at the same time."""
    results: list[Any] = [None] * len(functions)
    barrier = threading.Barrier(len(functions))

    def run(i: int) -> None:
        barrier.wait()
        try:
            results[i] = functions[i]()
        except Exception as error:  # noqa: BLE001
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@all_kinds
def test_many_loaders_at_once(paths: list[str], kind: str) -> None:
    dataset = open_kind(paths, kind)

    def read(seed: int) -> list[list[int]]:
        loader = tfr.TFRecordLoader(dataset, 8, shuffle=True, seed=seed, num_threads=3)
        return [ids_of(batch) for _ in range(3) for batch in loader]

    want = [read(seed) for seed in range(6)]
    assert in_threads([lambda seed=seed: read(seed) for seed in range(6)]) == want  # type: ignore[misc]


def test_passes_of_one_loader_that_begin_at_once_are_different_epochs(paths: list[str]) -> None:
    loader = tfr.TFRecordLoader(open_kind(paths), 8, shuffle=True)
    epochs = [[ids_of(batch) for batch in loader] for _ in range(8)]
    loader.set_epoch(0)
    found = in_threads([lambda: [ids_of(batch) for batch in loader]] * 8)
    assert sorted(found) == sorted(epochs)
    assert loader.epoch == 8
    assert loader.stats().batches == 2 * 8 * 13


@all_kinds
def test_one_iterator_for_several_threads(paths: list[str], kind: str) -> None:
    iterator = iter(tfr.TFRecordLoader(open_kind(paths, kind), 3, shuffle=True))
    found = in_threads([lambda: [ids_of(batch) for batch in iterator]] * 4)
    assert sorted(i for batches in found for ids in batches for i in ids) == list(range(COUNT))


@pytest.mark.parametrize("busy", [False, True])
def test_a_close_by_another_thread(paths: list[str], busy: bool) -> None:
    def slow(batch: tfr.Batch) -> tfr.Batch:
        time.sleep(0 if busy else 0.05)
        return batch

    loader = tfr.TFRecordLoader(tfr.TFRecordDataset(paths, FEATURES, batch_transform=slow), 1)

    def consume() -> Any:
        while True:
            list(loader)

    def close() -> None:
        time.sleep(0.1)
        loader.close()

    began = time.monotonic()
    found, _ = in_threads([consume, close])
    assert isinstance(found, tfr.CancelledError) or "closed" in str(found)
    assert time.monotonic() - began < 5


def test_a_dropped_pass_does_not_wait_for_a_transform(paths: list[str]) -> None:
    """Where garbage is collected, a lock may be held that the transform needs."""
    lock, begun = threading.Lock(), threading.Event()

    def locked(batch: tfr.Batch) -> tfr.Batch:
        if 10 in ids_of(batch):
            begun.set()
        with lock:
            return batch

    iterator = iter(tfr.TFRecordLoader(tfr.TFRecordDataset(paths, FEATURES, batch_transform=locked), 10))
    with lock:
        waiting = threading.Thread(target=lambda: None)
        waiting.start()
        waiting.join()
    next(iterator)
    with lock:
        begun.wait()
        del iterator
    eventually(lambda: len(python_threads()) == 1)


# --- interrupts -------------------------------------------------------------------------------------------------------


class Interrupt(BaseException):
    pass


@all_kinds
def test_after_an_interrupt_the_state_counts_what_was_returned(paths: list[str], kind: str) -> None:
    """An interrupt anywhere in ``next`` ends the pass. Resumed from its state, it loses and repeats nothing."""

    armed = [False]

    def interrupt(*_: Any) -> None:
        if armed[0]:
            raise Interrupt

    choose = random.Random(0)
    loader = tfr.TFRecordLoader(open_kind(paths, kind), 1, num_threads=2, prefetch=3)
    iterator = iter(loader)
    found = ids_of(next(iterator))  # a thread has started
    ended = epochs = 0
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        while epochs < 8:
            batch = None
            signal.setitimer(signal.ITIMER_REAL, choose.uniform(1e-5, 1e-3))
            try:
                armed[0] = True
                batch = next(iterator)
                armed[0] = False
            except Interrupt:
                armed[0] = False
            except StopIteration:
                armed[0] = False
                epochs += 1
                iterator = iter(loader)
            except tfr.CancelledError:
                armed[0] = False
                ended += 1
                loader.load_state_dict(loader.state_dict())
                iterator = iter(loader)
            found += [] if batch is None else ids_of(batch)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ended > 0
    assert found == list(range(COUNT)) * 8


def read_for_ever(loader: tfr.TFRecordLoader) -> None:
    while True:
        for _ in loader:
            pass


@all_kinds
def test_a_signals_handler_may_close_the_loader(paths: list[str], kind: str) -> None:
    for delay in (1e-4, 5e-4, 1e-3, 5e-3):
        loader = tfr.TFRecordLoader(open_kind(paths, kind), 1, prefetch=3)
        states: list[Any] = []

        def handle(*_: Any, loader: tfr.TFRecordLoader = loader, states: list[Any] = states) -> None:
            states.append(loader.state_dict())
            loader.stats()
            loader.close()

        before = signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, delay)
        try:
            with pytest.raises((tfr.CancelledError, ValueError), match="closed"):
                read_for_ever(loader)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert len(states) == 1


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


@all_kinds
def test_errors_on_the_way_to_a_device(tmp_path: Path, kind: str) -> None:
    with tfr.TFRecordWriter(tmp_path / "data.tfrecord") as writer:
        for i in range(50):
            writer.write_example({**row(i), "halves": [1.0] * (2 + (i in (12, 33, 34)))})
    loader = tfr.TFRecordLoader(open_kind(tmp_path / "data.tfrecord", kind), 8, device="cpu")
    assert_bad(loader, list(range(50)), {12, 33}, tfr.ParseError)


def test_pinning_without_a_gpu_warns_where_the_loop_is(paths: list[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    loader = tfr.TFRecordLoader(open_kind(paths), 50, pin_memory=True)
    with pytest.warns(UserWarning, match="no CUDA device") as caught:
        batches = list(loader)
    assert [ids_of(batch)[0] for batch in batches] == [0, 50]
    assert caught[0].filename == __file__
    list(tfr.TFRecordLoader(open_kind(paths), 50, pin_memory=False))
