"""`TFRecordLoader` and the ends of processes: exits in the middle of a pass, signals, forks, DataLoader workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from numbered import ID, write_shards
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import torch_tfrecord as tfr

COUNTS = [40, 0, 33, 27]

# Runs each case in a fork of a process that has everything imported, which then ends as any interpreter does.
DRIVER = """
import os, signal, sys, threading, time, json, gc
import torch, torch_tfrecord as tfr

features = {"id": tfr.FixedLenFeature((), torch.int64), "tokens": tfr.VarLenFeature(torch.int64)}

def slow(batch):
    os.write(calls, b"x")
    time.sleep(0.2)
    return batch

def ids(batches):
    return [i for batch in batches for i in batch["id"].tolist()]

paths = "data-?????-of-00004"
native = tfr.TFRecordDataset(paths, features)
sleepy = tfr.TFRecordDataset(paths, features, batch_transform=slow)

def end_of(child):
    limit = time.monotonic() + 60
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > limit:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)

with open("cases.json") as file:
    cases = json.load(file)
ends, running = {}, []
for name, code in cases.items():
    if len(running) == 2:
        other, child = running.pop(0)
        ends[other] = end_of(child)
    child = os.fork()
    if child == 0:
        os.dup2(os.open(name + ".txt", os.O_WRONLY | os.O_CREAT), 2)
        os.dup2(2, 1)
        calls = os.open(name + ".calls", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        break
    running.append((name, child))
else:
    for other, child in running:
        ends[other] = end_of(child)
    with open("ends.json", "w") as file:
        json.dump(ends, file)
    sys.exit()
exec(compile(code, name, "exec"))
"""


class Case(NamedTuple):
    """What a process does, and how it must end."""

    code: str
    status: int = 0
    last_line: str = ""  # of what it prints; "": it prints nothing
    most_calls: int = 30  # of ``slow``: of the 48 that are begun ahead, an exit waits for the one at work


def cases() -> Iterator[tuple[str, Case]]:
    begin = "iterator = iter(tfr.TFRecordLoader({}, 2, prefetch=48)); next(iterator)\n"
    loop = "for batch in tfr.TFRecordLoader({}, 2, prefetch=48):\n    "
    for kind in ("native", "sleepy"):
        yield f"ends with a pass at work, {kind}", Case(begin.format(kind))
        yield f"ends with a pass in a cycle, {kind}", Case(begin.format(kind) + "iterator.x = [iterator]")
        yield f"sys.exit in the loop, {kind}", Case(loop.format(kind) + "sys.exit(3)", 3)
        yield (
            f"an error in the loop, {kind}",
            Case(loop.format(kind) + "1 / 0", 1, "ZeroDivisionError: division by zero"),
        )
        yield f"os._exit in the loop, {kind}", Case(loop.format(kind) + "os._exit(7)", 7)
        yield (
            f"SIGINT in the loop, {kind}",
            Case(loop.format(kind) + "os.kill(os.getpid(), signal.SIGINT); time.sleep(9)", -2, "KeyboardInterrupt"),
        )
        yield f"a thread goes on after the main one, {kind}", Case(AFTER_MAIN.format(kind=kind))
        yield f"a daemon has a pass, {kind}", Case(DAEMON.format(kind=kind))
        yield f"forks, {kind}", Case(FORKS.format(kind=kind), most_calls=200)
        yield f"a thread waits while another forks, {kind}", Case(FORKS_FROM_A_THREAD.format(kind=kind), most_calls=200)
    yield "SIGINT while a batch is waited for", Case(WAIT_FOR_SIGINT + "next(iterator)", -2, "KeyboardInterrupt")
    yield "SIGINT that is caught", Case(WAIT_FOR_SIGINT + CAUGHT)
    yield "closes in the handler of SIGTERM", Case(TERMINATED)


AFTER_MAIN = """
def read():
    time.sleep(0.1)
    assert not threading.main_thread().is_alive()
    assert ids(tfr.TFRecordLoader({kind}, 50)) == list(range(100))
    gone_on.append(tfr.TFRecordLoader({kind}, 50))
    os._exit(0 if ids(gone_on[0]) == list(range(100)) else 5)

gone_on = []
loader = iter(tfr.TFRecordLoader({kind}, 2))
next(loader)
threading.Thread(target=read).start()
"""

DAEMON = """
def read():
    iterator = iter(tfr.TFRecordLoader({kind}, 2, prefetch=48))
    next(iterator)
    begun.set()
    time.sleep(1000)

begun = threading.Event()
threading.Thread(target=read, daemon=True).start()
begun.wait()
"""

FORKS = """
loader = tfr.TFRecordLoader({kind}, 20, shuffle=True)
want = [ids([batch]) for batch in loader]
loader.set_epoch(0)
iterator = iter(loader)
assert ids([next(iterator)]) == want[0]
child = os.fork()
if child == 0:
    try:
        next(iterator)
    except RuntimeError as error:
        assert "forked" in str(error)
    else:
        os._exit(9)
    assert loader.stats().queue_depth == 0
    loader.set_epoch(0)
    assert [ids([batch]) for batch in loader] == want
    other = iter(loader)
    next(other)
else:
    assert end_of(child) == 0
    assert [ids([batch]) for batch in iterator] == want[1:]
"""

FORKS_FROM_A_THREAD = """
def read():
    for _ in range(20):
        for batch in loader:
            if stop:
                return

stop = []
loader = tfr.TFRecordLoader({kind}, 5, prefetch=3)
thread = threading.Thread(target=read)
thread.start()
children = []
for i in range(5):
    time.sleep(0.02)
    child = os.fork()
    if child == 0:
        loader.stats()
        loader.set_epoch(0)
        assert ids(next(iter(loader)) for _ in range(1)) == list(range(5))
        loader.close()
        gc.collect()
        break
    children.append(child)
else:
    stop.append(1)
    for child in children:
        assert end_of(child) == 0
    thread.join()
    assert loader.stats().batches > 0
"""

WAIT_FOR_SIGINT = """
signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
loader = tfr.TFRecordLoader(sleepy, 10)
iterator = iter(loader)
assert ids([next(iterator)]) == list(range(10))
signal.setitimer(signal.ITIMER_REAL, 0.05)
"""

CAUGHT = """
try:
    next(iterator)
except KeyboardInterrupt:
    pass
else:
    os._exit(9)
try:
    next(iterator)
except tfr.CancelledError:
    pass
else:
    os._exit(10)
loader.load_state_dict(loader.state_dict())
assert ids(loader) == list(range(10, 100))
"""

TERMINATED = """
def terminate(*_):
    states.append(loader.state_dict())
    loader.close()

states = []
signal.signal(signal.SIGTERM, terminate)
signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
loader = tfr.TFRecordLoader(sleepy, 10)
signal.setitimer(signal.ITIMER_REAL, 0.5)
found = []
try:
    for batch in loader:
        found += ids([batch])
except tfr.CancelledError:
    pass
else:
    os._exit(9)
assert 0 < len(found) < 100 and found == list(range(states[0]["position"]))
"""


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, int]]:
    """How each case ended: exit code, what it printed, and how often ``slow`` was called."""
    folder = tmp_path_factory.mktemp("ends")
    write_shards(folder, COUNTS)
    (folder / "cases.json").write_text(json.dumps({name: case.code for name, case in cases()}))
    path = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "ends.json").read_text())
    return {
        name: (status, (folder / f"{name}.txt").read_text(), (folder / f"{name}.calls").stat().st_size)
        for name, status in found.items()
    }


@pytest.mark.parametrize(("name", "case"), [pytest.param(*pair, id=pair[0]) for pair in cases()])
def test_a_process_ends_as_it_should(ends: dict[str, tuple[int, str, int]], name: str, case: Case) -> None:
    status, printed, calls = ends[name]
    assert (status, "Exception ignored" in printed) == (case.status, False), printed
    assert printed.count("Traceback") == bool(case.last_line), printed
    assert (printed.splitlines() or [""])[-1] == case.last_line
    assert calls <= case.most_calls


# --- inside workers of torch's DataLoader -----------------------------------------------------------------------------


class Stream(IterableDataset[Any]):
    """A loader in each worker, which is a daemonic process."""

    def __init__(self, dataset: tfr.TFRecordDataset) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        assert worker is not None
        loader = tfr.TFRecordLoader(self.dataset, 5, rank=worker.id, world_size=worker.num_workers, num_threads=2)
        for batch in loader:
            assert batch["id"].is_shared() or not self.dataset.recipe.is_native
            yield batch


class Pieces(Dataset[Any]):
    """A loader that came with the data set, and is used anew for each item."""

    def __init__(self, loader: tfr.TFRecordLoader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> list[int]:
        self.loader.set_epoch(index)
        return [i for batch in self.loader for i in batch["id"].tolist()]


@pytest.mark.parametrize("python", [False, True])
def test_a_loader_in_a_worker(tmp_path: Path, python: bool) -> None:
    transform = (lambda record: record) if python else None
    dataset = tfr.TFRecordDataset(write_shards(tmp_path, COUNTS), ID, transform=transform)
    files = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    batches = list(DataLoader(Stream(dataset), batch_size=None, num_workers=2))
    assert len(batches) == 20
    assert sorted(i for batch in batches for i in batch["id"].tolist()) == list(range(100))
    loader = tfr.TFRecordLoader(dataset, 7, shuffle=True)
    want = [[i for batch in loader for i in batch["id"].tolist()] for _ in range(4)]
    iterator = iter(loader)
    next(iterator)  # at work while the workers are forked
    assert list(DataLoader(Pieces(loader), batch_size=None, num_workers=2)) == want
    assert sum(batch.num_records for batch in iterator) == 93
    del batches
    if files:
        assert set(os.listdir("/dev/shm")) <= files


def test_a_loader_crosses_to_a_spawned_worker(tmp_path: Path) -> None:
    dataset = tfr.TFRecordDataset(write_shards(tmp_path, COUNTS), ID)
    loader = tfr.TFRecordLoader(dataset, 7, shuffle=True)
    want = [[i for batch in loader for i in batch["id"].tolist()] for _ in range(4)]
    items = DataLoader(Pieces(loader), batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert [torch.tensor(item).tolist() for item in items] == want
