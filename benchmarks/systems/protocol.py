"""What all systems under test have in common: the lines they speak with the driver, and the clock.

A system is a process that reads one JSON request a line from stdin and answers each with one JSON line on stdout. It
runs in an environment of its own, so this module needs no more than the standard library and numpy.

    =========  ========================================  =========================================================
    command    request                                   answer
    =========  ========================================  =========================================================
    (start)    -                                         ``versions``, ``crc``
    settings   dataset, job                              ``settings``: candidates, of which the driver keeps the best
    run        dataset, job, setting, min_seconds,       records, elements, batches, epochs, seconds, cpu_seconds,
               max_seconds, skip_batches                 first_batch_seconds, setup_seconds, request_cpu_seconds,
                                                         peak_rss (bytes)
    sums       dataset, job, setting                     ``sums``: for each column dtype, count and sum
    =========  ========================================  =========================================================

A request that a system cannot do is answered by ``unsupported``, a failure by ``error``, each with a reason.
"""

import functools
import gc
import json
import os
import random
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

BATCH = 256
SEED = 7

Dataset = dict[str, Any]  # the data set's manifest
Setting = dict[str, Any]
Epoch = Callable[[], Iterable[Any]]


class UnsupportedError(Exception):
    """The system has no way to do this job; the text says why."""


class System(Protocol):
    """One reader of TFRecord files. Batches are whatever objects it delivers by itself."""

    crc: str  # "yes" or "no": are the records' checksums checked?

    def versions(self) -> dict[str, str]:
        """Versions of the packages that matter for the result."""

    def settings(self, dataset: Dataset, job: str) -> list[Setting]:
        """Settings worth trying on two cores. Raises UnsupportedError for a job that it has no way to do."""

    def open(self, dataset: Dataset, job: str, setting: Setting) -> Epoch:
        """Make all that can be kept from epoch to epoch; the result starts a pass over the data each time."""

    def touch(self, batch: Any) -> tuple[int, int]:
        """Take every column out of a batch; return the number of rows, and of elements in all columns."""

    def arrays(self, batch: Any) -> dict[str, np.ndarray]:
        """All values of each column, for the sums."""


def frames(path: str) -> Iterator[tuple[int, int]]:
    """Offset and length of each payload of a file, for systems that need an index; checks nothing."""
    size = Path(path).stat().st_size
    with Path(path).open("rb") as file:
        offset = 0
        while offset < size:
            file.seek(offset)
            length = int.from_bytes(file.read(8), "little")
            yield offset + 12, length
            offset += length + 16


def write_index(path: str, folder: Path) -> str:
    """Write the text index that several readers share: offset and size of each frame, one a line."""
    index = folder / (Path(path).name + ".idx")
    index.write_text("".join(f"{offset - 12} {length + 16}\n" for offset, length in frames(path)))
    return str(index)


def random_batches(records: int) -> list[list[int]]:
    """A fixed permutation of all record ids, cut into batches; the same for every system."""
    order = list(range(records))
    random.Random(SEED).shuffle(order)
    return [order[start : start + BATCH] for start in range(0, records, BATCH)]


def reset_peak_rss() -> None:
    """Let the kernel forget the peak so far, where it offers that."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_rss() -> int:
    """Peak resident memory of this process in bytes (of worker processes: none)."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def cpu_seconds() -> float:
    """CPU time of this process, all threads, and of its ended worker processes."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)


class Stopwatch:
    """Counts batches; its time starts at the first pass or, to see the steady state, after ``skip_batches``."""

    def __init__(self, max_seconds: float, skip_batches: int) -> None:
        self.max_seconds, self.skip_batches = max_seconds, skip_batches
        self.records = self.elements = self.batches = 0
        self.first_batch_seconds = 0.0
        self.cpu_start = cpu_seconds()
        self.begin = self.start = time.perf_counter()

    def one_pass(self, batches: Iterable[Any], touch: Callable[[Any], tuple[int, int]]) -> None:
        """Take batches until they end or the time is over. Nothing is kept from one batch to the next."""
        for batch in batches:
            records, elements = touch(batch)
            now = time.perf_counter()
            self.first_batch_seconds = self.first_batch_seconds or now - self.begin
            if self.skip_batches:
                self.skip_batches -= 1
                self.cpu_start, self.start = cpu_seconds(), now
                continue
            self.records += records
            self.elements += elements
            self.batches += 1
            if now - self.start > self.max_seconds:
                break
        self.seconds = time.perf_counter() - self.start


def measure(epoch: Epoch, touch: Callable[[Any], tuple[int, int]], request: dict[str, Any]) -> dict[str, Any]:
    """Whole passes until ``min_seconds`` are over, but never longer than ``max_seconds``."""
    gc.collect()
    reset_peak_rss()
    watch = Stopwatch(request["max_seconds"], request["skip_batches"])
    epochs = 0
    while True:
        watch.one_pass(epoch(), touch)
        epochs += 1
        if watch.batches == 0:
            raise RuntimeError("a pass over the data gave no batch")
        if watch.seconds >= request["min_seconds"]:
            break
    return {
        "records": watch.records,
        "elements": watch.elements,
        "batches": watch.batches,
        "epochs": epochs,
        "seconds": watch.seconds,
        "cpu_seconds": cpu_seconds() - watch.cpu_start,
        "first_batch_seconds": watch.first_batch_seconds,
        "peak_rss": peak_rss(),
    }


def sums(epoch: Epoch, arrays: Callable[[Any], dict[str, np.ndarray]]) -> dict[str, dict[str, Any]]:
    """Count and sum of each column: float64 for floats, modulo 2**64 for integers."""
    found: dict[str, dict[str, Any]] = {}
    for batch in epoch():
        for name, values in arrays(batch).items():
            column = found.setdefault(name, {"dtype": str(values.dtype), "count": 0, "total": 0})
            column["count"] += int(values.size)
            if values.dtype.kind == "f":
                column["total"] += float(np.sum(values, dtype=np.float64))
            else:
                column["total"] = (column["total"] + int(np.sum(values.astype(np.uint64)))) % 2**64
    return found


def answer(system: System, request: dict[str, Any], opened: dict[str, tuple[Epoch, float]]) -> dict[str, Any]:
    """Do one request; ``opened`` keeps what passes of the same kind can share."""
    dataset, job = request["dataset"], request["job"]
    if request["command"] == "settings":
        return {"settings": system.settings(dataset, job)}
    if request["command"] == "sums":
        return {"sums": sums(system.open(dataset, job, request["setting"]), system.arrays)}
    cpu_start = cpu_seconds()
    key = json.dumps([dataset["name"], job, request["setting"]])
    if key not in opened:
        opened.clear()  # so that no idle pipeline of another setting uses memory or threads
        start = time.perf_counter()
        opened[key] = (system.open(dataset, job, request["setting"]), time.perf_counter() - start)
    epoch, setup_seconds = opened[key]
    run = measure(epoch, system.touch, request)
    return run | {"setup_seconds": setup_seconds, "request_cpu_seconds": cpu_seconds() - cpu_start}


def serve(make: Callable[[], System]) -> None:
    """Answer requests until stdin ends. ``make`` imports the library under test."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints goes to stderr, not between the answers
    opened: dict[str, tuple[Epoch, float]] = {}

    def attempt(work: Callable[[], dict[str, Any]]) -> None:
        try:
            reply = work()
        except UnsupportedError as error:
            reply = {"unsupported": str(error)}
        except Exception as error:  # noqa: BLE001  the driver shows it in the table and goes on
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=lines, flush=True)

    made: list[System] = []

    def answer_line(line: str) -> dict[str, Any]:
        return answer(made[0], json.loads(line), opened)

    def start() -> dict[str, Any]:
        made.append(make())
        return {"versions": made[0].versions(), "crc": made[0].crc}

    attempt(start)
    for line in sys.stdin:
        attempt(functools.partial(answer_line, line))
