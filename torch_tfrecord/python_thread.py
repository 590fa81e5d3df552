"""The thread that makes batches which need Python: images, transforms and parsers of the user's."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable
from typing import Any

from torch_tfrecord.errors import CancelledError

_LOOK_UP = 0.1  # seconds after which an idle thread asks whether anybody still wants it


class Called:
    """A batch that a `PythonThread` makes: `Work` for `Ahead`."""

    def __init__(self, thread: PythonThread, function: Callable[[], Any]) -> None:
        self.finished_at = 0.0
        self._thread = thread
        self._function: Callable[[], Any] | None = function
        self._done = threading.Event()
        self._batch: Any = None
        self._error: Exception | None = None

    def run(self) -> None:
        """Make the batch, in the thread."""
        assert self._function is not None
        self._batch, self._error = _outcome(self._function)
        self._finish()
        del self  # as in ``result``

    def _finish(self) -> None:
        self._function = None
        self.finished_at = time.monotonic()
        self._done.set()

    def advance(self) -> bool:
        """Whether the thread is done with it."""
        return self._done.is_set()

    def result(self) -> Any:
        """Wait for the batch."""
        if not self._done.is_set():
            self._thread.attend()
            self._done.wait()
        try:
            if self._error is not None:
                raise self._error
            return self._batch
        finally:
            del self  # else the error's traceback holds this frame, the frame this work, and the work the error

    def cancel(self) -> None:
        """Nothing: the thread drops what it has not begun when it is closed."""

    def drop(self) -> None:
        """It will not be made."""
        self._error = CancelledError("this batch was dropped before it was made")
        self._finish()


class PythonThread:
    """One thread for what only Python can do. One, so that transforms are called in order, and never at the same time.

    It starts with the first call, and ends by ``close``. The interpreter waits for it when it exits, so it ends as well
    when the thread that takes its batches has ended; if another thread then goes on to take them, it starts again.
    """

    def __init__(self) -> None:
        self._calls: collections.deque[Called] = collections.deque()
        self._changed = threading.Condition()  # reentrant: garbage may be collected, and close this, at any moment
        self._thread: threading.Thread | None = None
        self._consumer = threading.current_thread()
        self._closed = False

    def call(self, function: Callable[[], Any]) -> Called:
        """Call a function after those that came before."""
        call = Called(self, function)
        with self._changed:
            if self._closed:
                call.drop()
                return call
            self.attend()
            self._calls.append(call)
            self._changed.notify()
        return call

    def attend(self) -> None:
        """Note who takes the batches, and see that the thread is at work."""
        with self._changed:
            self._consumer = threading.current_thread()
            if self._thread is None and not self._closed:
                # A daemon would be stopped by the exit of the interpreter anywhere, even inside torch.
                thread = threading.Thread(target=self._run, name="torch_tfrecord", daemon=False)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while (call := self._next()) is not None:
            call.run()
            del call  # with its batch, which belongs to the consumer

    def _next(self) -> Called | None:
        with self._changed:
            while not self._closed and self._is_wanted():
                if self._calls:
                    return self._calls.popleft()
                self._changed.wait(_LOOK_UP)
            self._thread = None
            return None

    def _is_wanted(self) -> bool:
        consumer = self._consumer
        return threading.main_thread().is_alive() or (consumer.is_alive() and not consumer.daemon)

    def close(self, *, wait: bool = True) -> None:
        """Drop the calls that have not begun; the thread ends after the one at work.

        Args:
            wait: Whether to wait for that.
        """
        with self._changed:
            self._closed = True
            while self._calls:
                self._calls.popleft().drop()
            self._changed.notify()
            thread = self._thread
        if wait and thread is not None and thread is not threading.current_thread():
            thread.join()


def _outcome(function: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What a function returns, or what it raises. The error's traceback refers to this frame, and to no `Called`."""
    try:
        return function(), None
    except StopIteration as error:  # raised by ``next``, it would end the loop as if there were no more batches
        return None, _substitute(error)
    except Exception as error:  # noqa: BLE001 - it is raised when it is this batch's turn
        return None, error
    except BaseException as error:  # noqa: BLE001 - SystemExit, say, which would end this thread alone
        return None, _substitute(error)


def _substitute(error: BaseException) -> RuntimeError:
    substitute = RuntimeError(f"{type(error).__name__} was raised where a batch was made, by a transform or a parser")
    substitute.__cause__ = error
    return substitute
