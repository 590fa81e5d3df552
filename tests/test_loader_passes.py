"""Passes of a `TFRecordLoader`: how they begin and end, threads and interrupts of the user, and nothing left behind."""

# ruff: noqa: F811 - arguments of tests are named as the fixtures that are imported

from __future__ import annotations

import gc
import itertools
import random
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from loaders import (  # noqa: F401 - fixtures among them
    COUNT,
    all_kinds,
    descriptors,
    eventually,
    ids_of,
    nothing_left_behind,
    num_tasks,
    open_kind,
    paths,
    python_threads,
    stop_by_break,
)
from numbered import FEATURES, write

import torch_tfrecord as tfr

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
    before = python_threads()
    dataset = open_kind(paths, kind)
    list(tfr.TFRecordLoader(dataset, 8, num_threads=4))
    eventually(lambda: python_threads() <= before)
    tasks = num_tasks()
    for _ in range(20):
        iterators = [iter(tfr.TFRecordLoader(dataset, 8, num_threads=4, prefetch=9)) for _ in range(5)]
        for iterator in iterators:
            next(iterator)
        del iterators, iterator
    eventually(lambda: num_tasks() <= tasks + 1)


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
    gc.collect()  # what other tests left
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
    before = python_threads()
    try:
        dataset = open_kind(paths, kind)
        loader = tfr.TFRecordLoader(dataset, 8)
        stop_by_break(loader)
        gone = weakref.ref(dataset)
        eventually(lambda: python_threads() <= before)
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
    lock, begun, held = threading.Lock(), threading.Event(), threading.Event()
    before = python_threads()

    def locked(batch: tfr.Batch) -> tfr.Batch:
        if 10 in ids_of(batch):
            begun.set()
            held.wait()
        with lock:
            return batch

    iterator = iter(tfr.TFRecordLoader(tfr.TFRecordDataset(paths, FEATURES, batch_transform=locked), 10))
    next(iterator)
    begun.wait()
    with lock:
        held.set()
        del iterator
    eventually(lambda: python_threads() <= before)


# --- interrupts -------------------------------------------------------------------------------------------------------


class Interrupt(BaseException):
    pass


# One that comes while a weak reference dies cannot be raised: Python reports it, and the loop goes on.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@all_kinds
def test_after_an_interrupt_the_state_counts_what_was_returned(paths: list[str], kind: str) -> None:
    """An interrupt anywhere in ``next`` ends the pass. Resumed from its state, it loses and repeats nothing."""

    armed = [False]

    def interrupt(*_: Any) -> None:
        if armed[0]:
            raise Interrupt

    choose = random.Random(0)
    loader = tfr.TFRecordLoader(open_kind(paths, kind), 1, num_threads=2, prefetch=3)
    found: list[int] = []

    def begin() -> Iterator[Any]:
        iterator = iter(loader)
        for batch in itertools.islice(iterator, 1):  # a thread starts, where Python itself is not safe from interrupts
            found.extend(ids_of(batch))
        return iterator

    iterator = begin()
    ended = epochs = 0
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        while epochs < 8:
            batch = None
            signal.setitimer(signal.ITIMER_REAL, choose.uniform(1e-5, 1e-3))
            try:
                armed[0] = True
                for batch in iterator:  # noqa: B007
                    break  # Python calls no handler on the way out of a ``for``'s ``next``
                armed[0] = False
                if batch is None:
                    epochs += 1
                    iterator = begin()
            except Interrupt:
                armed[0] = False
            except tfr.CancelledError:
                armed[0] = False
                ended += 1
                loader.load_state_dict(loader.state_dict())
                iterator = begin()
            found += [] if batch is None else ids_of(batch)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ended > 0
    assert found == [*list(range(COUNT)) * 8, 0]


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
