"""Jobs that are started and not waited for: results, order of calls, cancelling, threads, forks, ends of processes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from jobs import both_cores, is_sized, native, needs_native, open_file, part_sizes, place, run
from record_files import frame
from strategies import Column, Rows, batches
from wire import entry, example, ints, texts

from torch_tfrecord.native import reference
from torch_tfrecord.native.reference import FIXED, RAGGED

NUMBERS: Column = (b"i", 3, FIXED, 2, -1, None)
TEXT: Column = (b"s", 1, RAGGED, 0, -1, None)
SIZED, UNSIZED = [NUMBERS], [NUMBERS, TEXT]
both_sizes = pytest.mark.parametrize("columns", [SIZED, UNSIZED], ids=["sized", "ragged"])


def int64s(*values: int) -> Any:
    return np.array(values, np.int64)


def record(i: int) -> bytes:
    return example(entry(b"i", ints(i, -i)), entry(b"s", texts(b"%d" % i, b"x" * (i % 5))))


PAYLOADS = [record(i) for i in range(3000)]


class Started:
    """A job whose measure and fill are started, polled, and then waited for."""

    def __init__(self, job: Any) -> None:
        self._job = job

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def _poll(self) -> Any:
        end = time.monotonic() + 60
        while not self._job.done():
            assert time.monotonic() < end
            time.sleep(1e-5)
        return self._job.wait()

    def measure(self, num_threads: int) -> Any:
        assert self._job.start_measure(num_threads) is None
        return self._poll()

    def fill(self, arena: Any, placements: Any, num_threads: int) -> Any:
        assert self._job.start_fill(arena, placements, num_threads) is None
        return self._poll()


def placed(job: Any, columns: list[Column]) -> tuple[Any, Any]:
    """An arena for a job, and where its columns go."""
    placements, nbytes = place(part_sizes(job, columns))
    return np.zeros(nbytes, np.uint8), int64s(*placements)


# --- results ----------------------------------------------------------------------------------------------------------


@needs_native
@settings(max_examples=60)
@given(batches())
def test_what_is_started_ends_as_what_is_waited_for(rows: Rows) -> None:
    for core in (reference, native):
        decoder = core.Decoder(rows.columns)
        for measure in (True, False) if is_sized(rows.columns) else (True,):
            for num_threads in (1, 3):
                expected = run(decoder.parse(rows.payloads), rows.columns, measure=measure)
                job = Started(decoder.parse(rows.payloads))
                assert run(job, rows.columns, measure=measure, num_threads=num_threads) == expected


@both_cores
@both_sizes
def test_rows_of_a_file_in_many_chunks(core: Any, columns: list[Column]) -> None:
    payloads = [
        record(i) + b"\x9a\x01" + b"\xff\x01" + bytes(255) for i in range(3000)
    ]  # an unknown field of 255 bytes
    frames = [frame(payload) for payload in payloads]
    file = open_file(core, b"".join(frames))
    lengths = int64s(*map(len, payloads))
    offsets = np.cumsum(lengths + 16) - lengths - 16

    def job() -> Any:
        return core.Decoder(columns).read([file], None, offsets, lengths, 2)

    expected = run(job(), columns, measure=columns is UNSIZED)
    assert expected.fault is None
    assert run(Started(job()), columns, measure=columns is UNSIZED, num_threads=2) == expected


@both_cores
@both_sizes
def test_the_first_bad_row_is_told(core: Any, columns: list[Column]) -> None:
    payloads = [record(i) * 20 for i in range(2000)]
    for row in (700, 1100, 1999):
        payloads[row] = example(entry(b"i", ints(1, 2, 3)), entry(b"s", texts(b"")))
    job = core.Decoder(columns).parse(payloads)
    if job.sized:
        job.start_fill(*placed(job, columns), 2)
    else:
        job.start_measure(2)
    for _ in range(2):
        assert job.wait() == ("count", 700, 0, 0, 2, 3)
    with pytest.raises(ValueError):
        job.start_fill(np.zeros(1 << 20, np.uint8), int64s(*[0] * 3 * len(columns)), 2)
    with pytest.raises(ValueError):
        job.start_measure(2)


@both_cores
@both_sizes
def test_many_jobs_at_once(core: Any, columns: list[Column]) -> None:
    """Among them empty ones and blocking ones; they are waited for in any order."""
    decoder = core.Decoder(columns)
    counts = [0, 1, 400, 3, 50] * 6
    jobs = [decoder.parse([record(1000 * n + i) for i in range(count)]) for n, count in enumerate(counts)]
    if columns is UNSIZED:
        for job in jobs:
            job.start_measure(2)
        assert [job.wait() for job in jobs] == [None] * len(jobs)
    arenas = [placed(job, columns) for job in jobs]
    started = [n for n in range(len(jobs)) if n % 4]
    for n in started:
        jobs[n].start_fill(*arenas[n], 2)
    for n in range(0, len(jobs), 4):
        assert jobs[n].fill(*arenas[n], 2) is None
    random.Random(0).shuffle(started)
    assert [jobs[n].wait() for n in started] == [None] * len(started)
    for n, (arena, placements) in enumerate(arenas):
        found = arena[placements[0] :][: 16 * counts[n]].view(np.int64).tolist()
        assert found == [value for i in range(counts[n]) for value in (1000 * n + i, -1000 * n - i)]


# --- the course of a job ----------------------------------------------------------------------------------------------


@both_cores
def test_order_of_calls(core: Any) -> None:
    job = core.Decoder(UNSIZED).parse([record(1)])
    assert job.done()
    assert job.finished_at == 0
    with pytest.raises(ValueError):
        job.wait()
    with pytest.raises(ValueError):
        job.start_fill(np.zeros(256, np.uint8), int64s(0, -1, -1, 16, 32, 64), 1)
    before = time.monotonic()
    job.start_measure(1)
    too_early: list[Callable[[], Any]] = [
        lambda: job.start_measure(1),
        lambda: job.measure(1),
        lambda: job.num_bytes(1),
        lambda: job.values(1),
        lambda: job.start_fill(np.zeros(256, np.uint8), int64s(0, -1, -1, 16, 32, 64), 1),
    ]
    for early in too_early:
        with pytest.raises(ValueError):
            early()
    assert job.num_values(0) == 2  # known from the start
    assert job.wait() is None
    assert job.wait() is None
    assert job.done()
    assert before <= job.finished_at <= time.monotonic()
    assert job.values(1) == [b"1", b"x"]
    with pytest.raises(ValueError):
        job.start_measure(1)
    arena, placements = placed(job, UNSIZED)
    measured_at = job.finished_at
    job.start_fill(arena, placements, 1)
    with pytest.raises(ValueError):
        job.fill(arena, placements, 1)
    assert job.wait() is None
    assert measured_at <= job.finished_at <= time.monotonic()
    with pytest.raises(ValueError):
        job.start_fill(arena, placements, 1)
    assert job.values(1) == [b"1", b"x"]


@both_cores
def test_bad_arguments_start_nothing(core: Any) -> None:
    job = core.Decoder(SIZED).parse([record(1)])
    for arena, numbers, error in (
        (np.zeros(8, np.uint8), [0, -1, -1], ValueError),
        (np.zeros(64, np.uint8), [4, -1, -1], ValueError),
        (np.zeros(64, np.uint8), [0, -1], ValueError),
        (bytes(64), [0, -1, -1], (ValueError, BufferError)),
        (None, [0, -1, -1], TypeError),
    ):
        with pytest.raises(error):
            job.start_fill(arena, int64s(*numbers), 1)
        with pytest.raises(ValueError):
            job.wait()
    arena = np.zeros(16, np.uint8)
    assert job.fill(arena, int64s(0, -1, -1), 0) is None
    assert arena.view(np.int64).tolist() == [1, -1]


@both_cores
@pytest.mark.parametrize("stage", ["new", "started", "waited", "failed"])
def test_a_cancelled_job_is_of_no_use(core: Any, stage: str) -> None:
    job = core.Decoder(UNSIZED).parse([b"damaged" if stage == "failed" else record(1)] * 3)
    if stage != "new":
        job.start_measure(1)
    if stage in ("waited", "failed"):
        job.wait()
    for _ in range(2):
        job.cancel()
    assert (job.rows, job.sized) == (3, False)
    for use in (
        job.wait,
        job.done,
        job.num_defaulted,
        job.num_duplicates,
        lambda: job.measure(1),
        lambda: job.start_measure(1),
        lambda: job.num_values(0),
        lambda: job.num_bytes(0),
        lambda: job.values(1),
        lambda: job.start_fill(np.zeros(256, np.uint8), int64s(0, -1, -1, 16, 32, 64), 1),
    ):
        with pytest.raises(ValueError, match="cancelled"):
            use()


# --- long work --------------------------------------------------------------------------------------------------------

BIG = example(entry(b"i", ints(1, 2)), entry(b"s", texts(bytes(1 << 20))))


def long_job(rows: int = 200_000) -> Any:
    """A job that takes minutes and little memory: one record of a megabyte, again and again."""
    file = open_file(native, frame(BIG))
    return native.Decoder(SIZED).read([file], None, np.zeros(rows, np.int64), np.full(rows, len(BIG)), 2)


def start_long(num_threads: int = 2) -> Any:
    job = long_job()
    job.start_fill(np.zeros(16 * job.rows, np.uint8), int64s(0, -1, -1), num_threads)
    return job


@contextmanager
def quick(seconds: float = 20) -> Iterator[None]:
    """Fail where something takes as long as the job would."""
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < seconds


@needs_native
def test_start_does_not_wait() -> None:
    with quick(5):
        jobs = [start_long() for _ in range(3)]
        assert [job.done() for job in jobs] == [False] * 3
        assert [job.finished_at for job in jobs] == [0] * 3
        for job in jobs:
            job.cancel()


@needs_native
def test_nobody_waits_for_the_jobs_of_others() -> None:
    first = start_long()
    with quick():
        for n in range(20):
            job = native.Decoder(UNSIZED).parse([record(n)] * 5000)
            job.start_measure(2)
            assert job.wait() is None
            arena, placements = placed(job, UNSIZED)
            assert job.fill(arena, placements, 2) is None
        assert not first.done()
        del first


@needs_native
@pytest.mark.parametrize("blocking", [False, True])
def test_wait_can_be_interrupted(blocking: bool) -> None:
    job = long_job()
    arena = np.zeros(16 * job.rows, np.uint8)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    with quick():
        timer.start()
        if blocking:
            with pytest.raises(KeyboardInterrupt):
                job.fill(arena, int64s(0, -1, -1), 2)
        else:
            job.start_fill(arena, int64s(0, -1, -1), 2)
            with pytest.raises(KeyboardInterrupt):
                job.wait()
        timer.join()
        assert not job.done()  # it goes on
        with pytest.raises(ValueError, match="at work"):
            job.measure(1)
        job.cancel()


@needs_native
def test_cancel_ends_a_wait_in_another_thread() -> None:
    job = start_long()
    errors: list[ValueError] = []

    def wait() -> None:
        try:
            job.wait()
        except ValueError as error:
            errors.append(error)

    waiting = [threading.Thread(target=wait) for _ in range(2)]
    with quick():
        for thread in waiting:
            thread.start()
        time.sleep(0.1)
        job.cancel()
        for thread in waiting:
            thread.join()
    assert [str(error) for error in errors] == ["this job was cancelled"] * 2


@needs_native
def test_several_threads_may_wait() -> None:
    payloads = [record(i) * 50 for i in range(5000)]
    job = native.Decoder(UNSIZED).parse(payloads)
    job.start_measure(1)
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(job.wait())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [None] * 3
    assert job.num_values(1) == 2 * len(payloads)


# --- memory -----------------------------------------------------------------------------------------------------------


@needs_native
@pytest.mark.parametrize("end", ["wait", "cancel", "drop"])
def test_the_arena_is_kept_as_long_as_something_may_write_there(end: str) -> None:
    arena = bytearray(16 * 100)
    job = native.Decoder(SIZED).parse([record(i) for i in range(100)])
    job.start_fill(arena, int64s(0, -1, -1), 1)
    with pytest.raises(BufferError):
        arena.append(0)
    if end == "wait":
        job.wait()
    elif end == "cancel":
        job.cancel()
    else:
        del job
    arena.append(0)


class Worker:
    """Jobs in flight, to each of which something happens at a random moment."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.decoders = [(native.Decoder(columns), columns) for columns in (SIZED, UNSIZED)]
        self.flying: list[tuple[Any, list[Column], int, Any, Any]] = []
        self.graves: list[Any] = []  # arenas of jobs that died; each now holds a pattern
        self.finished = 0

    def launch(self) -> None:
        decoder, columns = self.random.choice(self.decoders)
        rows = self.random.choice((0, 1, 30, 2000))
        job = decoder.parse(PAYLOADS[:rows])
        num_threads = self.random.randrange(1, 4)
        if columns is UNSIZED:
            job.start_measure(num_threads)
            if self.random.random() < 0.3:
                self.end(job)
                return
            assert job.wait() is None
        arena, placements = placed(job, columns)
        job.start_fill(arena, placements, num_threads)
        self.flying.append((job, columns, rows, arena, placements))

    def end(self, job: Any) -> None:
        if self.random.random() < 0.5:
            job.cancel()

    def step(self) -> None:
        if len(self.flying) < self.random.randrange(1, 8):
            self.launch()
            return
        job, _, rows, arena, placements = self.flying.pop(self.random.randrange(len(self.flying)))
        time.sleep(self.random.choice((0, 0, 1e-5, 1e-4, 1e-3)))
        if self.random.random() < 0.5:
            assert job.wait() is None
            found = arena[placements[0] :][: 16 * rows].view(np.int64).reshape(rows, 2)
            assert (found[:, 0] == np.arange(rows)).all()
            assert (found[:, 1] == -np.arange(rows)).all()
            self.finished += 1
            return
        self.end(job)
        del job
        arena[:] = 0x5A
        self.graves.append(arena)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self.flying.clear()


@needs_native
@pytest.mark.timeout(120, method="thread")  # which tells where every thread hangs
def test_jobs_that_die_at_random_moments_write_no_more() -> None:
    workers = [Worker(seed) for seed in range(3)]
    failed: list[BaseException] = []

    def work(worker: Worker) -> None:
        try:
            worker.run(steps=600)
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            failed.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert all(worker.finished > 100 for worker in workers)
    graves = [arena for worker in workers for arena in worker.graves]
    assert len(graves) > 300
    assert all((arena == 0x5A).all() for arena in graves)


# --- processes --------------------------------------------------------------------------------------------------------


def child_works(jobs: list[Any]) -> bool:
    """In a forked child: the jobs of the parent are lost, and new ones work."""
    for job in jobs:
        if not job.done():
            return False
        try:
            job.wait()
        except RuntimeError as error:
            if "another process" not in str(error):
                return False
        else:
            return False
    jobs.pop().cancel()
    jobs.clear()
    for _ in range(3):
        job = native.Decoder(UNSIZED).parse(PAYLOADS)
        job.start_measure(2)
        if job.wait() is not None:
            return False
        arena, placements = placed(job, UNSIZED)
        job.start_fill(arena, placements, 2)
        if job.wait() is not None or arena[placements[0] :][:16].view(np.int64).tolist() != [0, 0]:
            return False
    return True


@needs_native
def test_a_fork_loses_the_jobs_at_work() -> None:
    for turn in range(8):
        jobs = [start_long() for _ in range(3)]
        job = native.Decoder(UNSIZED).parse(PAYLOADS)
        job.start_measure(2)
        time.sleep(turn % 4 * 1e-3)
        child = os.fork()
        if child == 0:
            good = False
            try:
                jobs.append(job)
                del job
                good = child_works(jobs)
            finally:
                os._exit(0 if good else 1)
        assert wait_for(child, seconds=60) == 0
        assert job.wait() is None  # the parent's go on
        assert not jobs[0].done()
        for long in jobs:
            long.cancel()


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


@needs_native
def test_what_was_waited_for_survives_a_fork() -> None:
    job = native.Decoder(UNSIZED).parse([record(i) for i in range(100)])
    job.start_measure(2)
    assert job.wait() is None
    child = os.fork()
    if child == 0:
        good = False
        try:
            arena, placements = placed(job, UNSIZED)
            job.start_fill(arena, placements, 2)
            good = job.wait() is None and job.values(1)[:2] == [b"0", b""]
        finally:
            os._exit(0 if good else 1)
    assert wait_for(child, seconds=60) == 0


PRELUDE = """
import os, sys, threading, time
sys.path.insert(0, {tests!r})
from test_core_async import *
jobs = [start_long() for _ in range(3)]
time.sleep({delay})
"""
ENDS = {
    "falls off the end": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "os._exit": ("os._exit(4)", 4),
    "exception": ("raise SystemError('the end')", 1),
    "a cycle": ("cycle = [jobs]; cycle.append(cycle); del jobs", 0),
    "waiting daemon": ("threading.Thread(target=jobs[0].wait, daemon=True).start(); time.sleep(0.1)", 0),
    "cancelling daemon": ("threading.Thread(target=jobs[0].cancel, daemon=True).start()", 0),
    "kept alive": ("sys.kept = jobs; threading.kept = jobs", 0),
    "forks": ("child = os.fork()\nif child: assert os.waitpid(child, 0)[1] == 0", 0),
}


@needs_native
@pytest.mark.slow
@pytest.mark.parametrize("delay", [0, 0.05])
@pytest.mark.parametrize("end", list(ENDS))
def test_a_process_ends_while_jobs_are_at_work(end: str, delay: float) -> None:
    code, status = ENDS[end]
    prelude = PRELUDE.format(tests=os.path.dirname(__file__), delay=delay)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", prelude + code],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == status, done.stderr
    assert "the end" in done.stderr if end == "exception" else done.stderr == ""


NO_THREADS = """
import sys, threading
sys.path.insert(0, {tests!r})
from test_core_async import *
try:
    threading.Thread(target=print).start()
except RuntimeError:
    for columns in (SIZED, UNSIZED):
        job = native.Decoder(columns).parse(PAYLOADS)
        if columns is UNSIZED:
            job.start_measure(4)
            time.sleep(0.01)
            assert not job.done()
            assert job.wait() is None
        arena, placements = placed(job, columns)
        job.start_fill(arena, placements, 4)
        assert job.wait() is None
        assert job.done()
        assert arena[placements[0] + 16 :][:16].view(np.int64).tolist() == [1, -1]
    print("no threads")
"""


@needs_native
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="threads are kept from starting by the size of their stacks")
def test_a_system_that_gives_no_threads() -> None:
    import resource

    def huge_stacks() -> None:
        _, most = resource.getrlimit(resource.RLIMIT_STACK)
        resource.setrlimit(resource.RLIMIT_STACK, (1 << 46, most))

    if resource.getrlimit(resource.RLIMIT_STACK)[1] != resource.RLIM_INFINITY:
        pytest.skip("the size of stacks is limited here")
    done = subprocess.run(
        [sys.executable, "-c", NO_THREADS.format(tests=os.path.dirname(__file__))],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        preexec_fn=huge_stacks,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"},
    )
    assert (done.stdout, done.stderr) == ("no threads\n", "")
