"""Open files: one budget a process, any number of threads; and what a process leaves when it ends."""

from __future__ import annotations

import gc
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from numbered import FEATURES, write_shards

import torch_tfrecord as tfr
from torch_tfrecord import files


def shards(folder: Path, counts: list[int]) -> list[str]:
    folder.mkdir()
    return write_shards(folder, counts)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """Leave so few descriptors that the budget is the least it can be."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_descriptors() + 40, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors by /proc")
@pytest.mark.usefixtures("few_descriptors")
def test_data_sets_share_one_budget(tmp_path: Path) -> None:
    datasets = [tfr.TFRecordDataset(shards(tmp_path / f"{i}", [1] * 30), FEATURES) for i in range(4)]
    together: torch.utils.data.ConcatDataset[Any] = torch.utils.data.ConcatDataset(datasets)
    before = open_descriptors()
    for _ in range(2):
        assert [int(together[i]["id"]) for i in range(120)] == [*range(30)] * 4
    assert open_descriptors() - before <= files.limit()
    del datasets, together
    gc.collect()
    assert open_descriptors() <= before


@pytest.mark.usefixtures("few_descriptors")
def test_threads_that_evict_one_another(tmp_path: Path) -> None:
    dataset = tfr.TFRecordDataset(shards(tmp_path / "data", [1] * 60), FEATURES)
    errors: list[BaseException] = []

    def read(seed: int) -> None:
        draw = random.Random(seed)
        try:
            for _ in range(300):
                i = draw.randrange(60)
                assert int(dataset[i]["id"]) == i
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    assert errors == []


def fail_in_a_loop(dataset: tfr.TFRecordDataset) -> None:
    for _ in torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=2, collate_fn=tfr.collate):
        raise RuntimeError("stop")


def test_breaks_and_errors_leave_no_descriptor(tmp_path: Path) -> None:
    dataset = tfr.TFRecordDataset(shards(tmp_path / "data", [20, 20]), FEATURES)
    before = 0
    for turn in range(4):
        for _ in torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=2, collate_fn=tfr.collate):
            break
        with pytest.raises(RuntimeError, match="stop"):
            fail_in_a_loop(dataset)
        gc.collect()
        if turn == 0:
            before = open_descriptors()  # torch and multiprocessing keep some from their first loader on
    assert open_descriptors() <= before


BUSY = """
import os, sys, threading, time
from torch_tfrecord.native import core
file = core.File(os.open(sys.argv[1], os.O_RDONLY))
offsets, lengths, _, _ = file.scan(0, 1 << 40, 2)
decoder = core.Decoder([(b"x", 2, core.RAGGED, 0, -1, None)])
started = threading.Barrier(4)
def read():
    started.wait()
    while True:
        file.scan(0, 1 << 40, 2)
        decoder.read([file], None, offsets, lengths, 2).measure(2)
for _ in range(3):
    threading.Thread(target=read, daemon=True).start()
started.wait()
time.sleep(0.2)
"""


def test_a_process_ends_while_threads_are_in_the_core(tmp_path: Path) -> None:
    """Daemon threads that come back from the core find no interpreter: that must not end in an abort.

    (torch's own functions do abort then, on Python before 3.14, so this test keeps to the core.)
    """
    with tfr.TFRecordWriter(tmp_path / "a.tfrecord") as writer:
        writer.write_batch({"x": torch.rand(20_000, 40)})
    command = [sys.executable, "-c", BUSY, str(tmp_path / "a.tfrecord")]
    for _ in range(5):
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (run.returncode, run.stderr) == (0, "")


def test_forks_while_threads_decode(tmp_path: Path) -> None:
    """A child has none of its parent's threads, and must not wait for a lock that one of them held."""
    dataset = tfr.TFRecordDataset(shards(tmp_path / "data", [500, 500]), FEATURES)
    stop = threading.Event()

    def decode() -> None:
        while not stop.is_set():
            dataset.read_batch(range(1000))

    threads = [threading.Thread(target=decode) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                good = False
                try:
                    torch.set_num_threads(2)
                    good = dataset.read_batch(range(0, 1000, 7))["id"].tolist() == list(range(0, 1000, 7))
                finally:
                    os._exit(0 if good else 1)
            assert wait_for(child, seconds=60) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def wait_for(child: int, seconds: float) -> int:
    """The exit status of a child; it is killed where it takes too long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError(f"a forked child did not end within {seconds} seconds")
