"""Batches that are made ahead of the one that is asked for."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar

Batch_co = TypeVar("Batch_co", covariant=True)
Step = TypeVar("Step")


class Work(Protocol[Batch_co]):
    """A batch on its way: a `Decoding`, or one of the classes here."""

    def advance(self) -> bool:
        """Go on without waiting; whether ``result`` needs not wait."""
        ...

    def result(self) -> Batch_co:
        """Wait for the batch; or raise what went wrong."""
        ...

    def cancel(self) -> None:
        """Stop, and wait for what is at work."""
        ...

    @property
    def finished_at(self) -> float:
        """Seconds of ``time.monotonic()`` when it was done; 0.0 before."""
        ...


class Failed:
    """A batch that could not even be begun: the error waits for its turn."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.finished_at = time.monotonic()

    def advance(self) -> bool:
        """True."""
        return True

    def result(self) -> Any:
        """Raise."""
        raise self._error

    def cancel(self) -> None:
        """Nothing."""


class Called:
    """A batch that a Python thread makes."""

    def __init__(self, thread: PythonThread, function: Callable[[], Any]) -> None:
        self.finished_at = 0.0
        self._future: Future[Any] = thread.submit(self._run, function)

    def _run(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        finally:
            self.finished_at = time.monotonic()

    def advance(self) -> bool:
        """Whether the thread is done with it."""
        return self._future.done()

    def result(self) -> Any:
        """Wait for the batch."""
        return self._future.result()

    def cancel(self) -> None:
        """Drop it if the thread has not begun, else wait."""
        if not self._future.cancel():
            with contextlib.suppress(BaseException):
                self._future.exception()


class PythonThread:
    """One thread for what only Python can do. One, so that transforms are called in order, and never at the same time.

    It starts with the first call.
    """

    def __init__(self) -> None:
        self._ident: int | None = None
        self._executor = ThreadPoolExecutor(1, "torch_tfrecord", initializer=self._started)

    def _started(self) -> None:
        self._ident = threading.get_ident()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a function after those that were submitted before."""
        return self._executor.submit(function, *arguments)

    def close(self) -> None:
        """Drop the calls that have not begun, and wait for the thread to end."""
        ours = threading.get_ident() == self._ident  # garbage may be collected, and an iterator with it, in the thread
        self._executor.shutdown(wait=not ours, cancel_futures=True)


class Ahead(Generic[Step]):
    """A queue of batches, in the order of their steps, of which some are made ahead.

    Args:
        steps: What to make, one after another.
        start: Begins to make one.
        depth: How many to have on their way while one is used.
    """

    def __init__(self, steps: Iterator[Step], start: Callable[[Step], Work[Any]], depth: int) -> None:
        self._steps = steps
        self._start = start
        self._depth = depth
        self._queue: collections.deque[tuple[Step, Work[Any]]] = collections.deque()
        self.idle_seconds = 0.0  # in which everything on its way was done
        self.wait_seconds = 0.0  # in which ``take`` waited

    @property
    def num_ready(self) -> int:
        """Batches that could be taken without waiting."""
        return sum(work.advance() for _, work in list(self._queue))

    def head_is_ready(self) -> bool:
        """Whether there is a batch that could be taken without waiting."""
        return bool(self._queue) and self._queue[0][1].advance()

    def take(self) -> tuple[Step, Any] | None:
        """The next batch and its step; None if there are no more.

        What went wrong with it is raised, and the one after it comes next.
        """
        if not self._queue:
            self._top_up()
        if not self._queue:
            return None
        step, work = self._queue[0]
        began = 0.0 if work.advance() else time.monotonic()
        try:
            batch = work.result()
        except Exception:
            self._queue.popleft()
            self._top_up()
            raise
        if began:
            self.wait_seconds += time.monotonic() - began
        self._queue.popleft()
        self._top_up()
        return step, batch

    def _top_up(self) -> None:
        """Begin as many as are missing, and let the others go on."""
        done = [work.advance() for _, work in self._queue]
        if done and all(done):
            self.idle_seconds += max(time.monotonic() - max(work.finished_at for _, work in self._queue), 0.0)
        while len(self._queue) < self._depth:
            step = next(self._steps, None)
            if step is None:
                return
            try:
                work: Work[Any] = self._start(step)
            except Exception as error:  # noqa: BLE001 - it is raised when it is this batch's turn
                work = Failed(error)
            self._queue.append((step, work))

    def close(self) -> None:
        """Drop what is on its way, and wait for what is at work."""
        while self._queue:
            self._queue.pop()[1].cancel()
