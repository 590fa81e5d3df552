"""Transforms and errors of a `TFRecordLoader`: in order, each at its batch, and nothing is lost."""

# ruff: noqa: F811 - arguments of tests are named as the fixtures that are imported

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from loaders import (  # noqa: F401 - fixtures among them
    COUNT,
    all_kinds,
    eventually,
    ids_of,
    nothing_left_behind,
    open_kind,
    paths,
)
from numbered import FEATURES, ID, row, write, write_shards
from record_files import flip

import torch_tfrecord as tfr

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


@all_kinds
def test_errors_on_the_way_to_a_device(tmp_path: Path, kind: str) -> None:
    with tfr.TFRecordWriter(tmp_path / "data.tfrecord") as writer:
        for i in range(50):
            writer.write_example({**row(i), "halves": [1.0] * (2 + (i in (12, 33, 34)))})
    loader = tfr.TFRecordLoader(open_kind(tmp_path / "data.tfrecord", kind), 8, device="cpu")
    assert_bad(loader, list(range(50)), {12, 33}, tfr.ParseError)


@pytest.mark.parametrize("where", ["transform", "batch_transform", "features"])
def test_stop_iteration_of_the_users_ends_no_pass(paths: list[str], where: str) -> None:
    def stop(value: Any) -> Any:
        raise StopIteration

    options: dict[str, Any] = {"features": FEATURES, where: stop}
    dataset = tfr.TFRecordDataset(paths, **options)
    stream = tfr.TFRecordIterableDataset(paths, batch_size=10, **options)
    for door in (stream, tfr.TFRecordLoader(dataset, 10)):
        with pytest.raises(RuntimeError, match="StopIteration"):
            next(iter(door))
    with pytest.raises(RuntimeError, match="StopIteration"):
        dataset.__getitems__([0])


@pytest.mark.parametrize("what", ["close", "next"])
def test_a_transform_may_not_wait_for_itself(paths: list[str], what: str) -> None:
    def transform(batch: tfr.Batch) -> tfr.Batch:
        if what == "close":
            loader.close()
        else:
            next(iterator)
        return batch

    loader = tfr.TFRecordLoader(tfr.TFRecordDataset(paths, FEATURES, batch_transform=transform), 10)
    iterator = iter(loader)
    if what == "close":
        with pytest.raises(tfr.CancelledError):
            next(iterator)
    else:
        with pytest.raises(RuntimeError, match="a transform asks the loader that called it"):
            next(iterator)
        iterator.close()


def test_prefetch_stays_within_the_files_that_may_be_open(tmp_path: Path) -> None:
    write_shards(tmp_path, [2] * 120)
    code = f"""
import resource, torch_tfrecord as tfr, torch
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
dataset = tfr.TFRecordDataset({str(tmp_path)!r}, {{"id": tfr.FixedLenFeature((), torch.int64)}})
ids = [n for batch in tfr.TFRecordLoader(dataset, 20, shuffle=True, prefetch=30) for n in batch["id"].tolist()]
assert sorted(ids) == list(range(240)), len(ids)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_loader_with_a_transform_works_while_python_exits(paths: list[str]) -> None:
    code = f"""
import atexit, torch, torch_tfrecord as tfr
features = {{"id": tfr.FixedLenFeature((), torch.int64)}}
dataset = tfr.TFRecordDataset({paths!r}, features, batch_transform=lambda batch: batch)
half = iter(tfr.TFRecordLoader(dataset, 10))
next(half)
atexit.register(lambda: print(len(list(half)), len(list(tfr.TFRecordLoader(dataset, 10)))))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    rest, whole = map(int, done.stdout.split())
    assert rest + 1 == whole
