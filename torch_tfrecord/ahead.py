"""Batches that are made ahead of the one that is asked for."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from typing import Any, Protocol

from torch_tfrecord.errors import CancelledError


class Work(Protocol):
    """A batch on its way: a `Decoding`, or one of the classes that have these methods."""

    def advance(self) -> bool:
        """Go on without waiting; whether ``result`` needs not wait."""
        ...

    def result(self) -> Any:
        """Wait for the batch; or raise what went wrong, each time it is asked for."""
        ...

    def cancel(self) -> None:
        """Drop what has not begun."""
        ...

    @property
    def finished_at(self) -> float:
        """Seconds of ``time.monotonic()`` when nothing was left to do but ``result``; 0.0 before."""
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
        try:
            raise self._error
        finally:
            del self  # else the error's traceback holds this frame, the frame this work, and the work the error

    def cancel(self) -> None:
        """Nothing."""


class Ahead:
    """The batches of the steps 0, 1, ... in this order, of which some are on their way before they are asked for.

    For one thread at a time, but for ``num_ready``. After an interrupt (KeyboardInterrupt, say) in ``take`` it must be
    closed.

    Args:
        num_steps: How many there are.
        start: Begins to make the batch of a step.
        depth: How many to have on their way while one is used.
        is_full: Whether it is better to begin no more now, though fewer are on their way.

    Attributes:
        step: The step whose batch comes next.
        idle_seconds: Time in which everything on its way was done, though more could have been begun.
        wait_seconds: Time in which ``take`` waited.
    """

    def __init__(
        self, num_steps: int, start: Callable[[int], Work], depth: int, is_full: Callable[[], bool] | None = None
    ) -> None:
        self._num_steps = num_steps
        self._start: Callable[[int], Work] | None = start  # None: closed
        self._depth = depth
        self._is_full = is_full or _never
        self._queue: collections.deque[Work] = collections.deque()  # of the steps from ``step`` on
        self.step = 0
        self.idle_seconds = 0.0
        self.wait_seconds = 0.0

    @property
    def num_ready(self) -> int:
        """Batches that could be taken without waiting. Any thread may ask, at any time."""
        return sum(work.finished_at > 0 for work in tuple(self._queue))

    @property
    def head(self) -> Work | None:
        """The batch that comes next, if it is on its way."""
        return self._queue[0] if self._queue else None

    def take(self) -> Any:
        """The batch of ``step``, which must be one. What went wrong with it is raised, and the next step comes next.

        Raises:
            CancelledError: It was closed.
        """
        self._note_idle()
        if not self._queue:
            self._fill()
        if not self._queue:
            raise CancelledError("the pass was ended before its last batch")
        began = 0.0 if is_ready(self._queue[0]) else time.monotonic()
        batch = failure = None
        try:
            batch = self._queue[0].result()
        except Exception as error:  # noqa: BLE001 - it is raised below, where others that come now are not its sequels
            failure = error
        finally:
            if began:
                self.wait_seconds += time.monotonic() - began
        self._go_on()
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # as in ``Failed.result``
        return batch

    def _note_idle(self) -> None:
        if self._queue and self.step + len(self._queue) < self._num_steps:
            finished = [work.finished_at for work in self._queue]
            if all(finished):
                self.idle_seconds += max(time.monotonic() - max(finished), 0.0)

    def _go_on(self) -> None:
        if self._queue:  # a signal's handler may have closed it
            self._queue.popleft()
            self.step += 1
            self._advance()
            self._fill()

    def _advance(self) -> None:
        for work in tuple(self._queue):
            is_ready(work)

    def _fill(self) -> None:
        """Begin as many as are missing."""
        while len(self._queue) < self._depth and self.step + len(self._queue) < self._num_steps and self._start:
            if self._queue and self._is_full():
                return
            self._queue.append(_begun(self._start, self.step + len(self._queue)))

    def close(self) -> None:
        """Drop what is on its way, and begin nothing more."""
        self._start = None  # which also lets go of its owner, as does the next line
        self._is_full = _never
        while self._queue:
            self._queue.pop().cancel()


def _never() -> bool:
    return False


def is_ready(work: Work) -> bool:
    """Let work go on; whether it has its result. What goes wrong on the way, ``result`` meets again."""
    try:
        return work.advance()
    except Exception:  # noqa: BLE001
        return True


def _begun(start: Callable[[int], Work], step: int) -> Work:
    try:
        return start(step)
    except Exception as error:  # noqa: BLE001 - it is raised when it is this batch's turn
        return Failed(error)
