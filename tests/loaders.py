"""What tests of `TFRecordLoader` share: data sets of each kind, and what a pass may leave behind: nothing."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from numbered import FEATURES, row, write_shards

import torch_tfrecord as tfr

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
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    threads, open_before = python_threads(), descriptors()
    yield
    if (
        "interrupt" in request.node.name
    ):  # an interrupt may hit Python's own finalizers, which then do not end their work
        return
    if python_threads() != threads or descriptors() != open_before:
        gc.collect()
    eventually(lambda: python_threads() <= threads)
    if len(descriptors()) > len(open_before):
        gc.collect()
    eventually(lambda: len(descriptors()) <= len(open_before))


def stop_by_break(loader: tfr.TFRecordLoader) -> None:
    for i, _ in enumerate(loader):
        if i == 2:
            break
