"""The thread that makes batches which need Python: images, transforms and parsers of the user's.

An interrupt (KeyboardInterrupt, say) may come anywhere in the thread that takes batches. So that none leaves a lock
held, there are no locks here but the one that an unmade batch is, and no ``threading.Condition`` or ``Event``.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from torch_tfrecord.errors import CancelledError

_LOOK_UP = 0.1  # seconds after which an idle thread asks whether anybody still wants it
_LOOK_AFTER = 1.0  # seconds after which one who waits asks whether the thread is there


class Called:
    """A batch that a `PythonThread` makes: `Work` for `Ahead`."""

    def __init__(self, thread: PythonThread, function: Callable[[], Any]) -> None:
        self.finished_at = 0.0
        self._thread = thread
        self._function: Callable[[], Any] | None = function
        self._unmade = threading.Lock()
        self._unmade.acquire()
        self._batch: Any = None
        self._error: Exception | None = None

    def run(self) -> None:
        """Make the batch, in the thread."""
        assert self._function is not None
        self._batch, self._error = _outcome(self._function)
        self._finish()
        del self  # as in ``result``

    def drop(self) -> None:
        """It will not be made."""
        self._error = CancelledError("this batch was dropped before it was made")
        self._finish()

    def _finish(self) -> None:
        self._function = None
        self.finished_at = time.monotonic()
        self._unmade.release()

    def advance(self) -> bool:
        """Whether the thread is done with it."""
        return self.finished_at > 0

    def result(self) -> Any:
        """Wait for the batch."""
        if not self.finished_at and not threading.main_thread().is_alive():
            self._thread.run_here()
        while not self.finished_at and not self._unmade.acquire(timeout=_LOOK_AFTER):
            self._thread.attend()
        try:
            if self._error is not None:
                raise self._error
            return self._batch
        finally:
            del self  # else the error's traceback holds this frame, the frame this work, and the work the error

    def cancel(self) -> None:
        """Nothing: the thread drops what it has not begun when it is closed."""


class PythonThread:
    """One thread for what only Python can do. One, so that transforms are called in order, and never at the same time.

    It starts with the first call, and ends by ``close``. The interpreter waits for it when it exits, so it ends as well
    when the main thread and the one that takes batches have ended. One thread at a time may call the methods.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Called | None] = queue.SimpleQueue()  # None: look up
        self._thread: threading.Thread | None = None
        self._consumer = threading.current_thread()
        self._closed = False

    def call(self, function: Callable[[], Any]) -> Called:
        """Call a function after those that came before."""
        call = Called(self, function)
        self.attend()
        self._calls.put(call)
        if self._closed:
            self._drop_all()
        return call

    def attend(self) -> None:
        """Note who takes the batches, and see that the thread is there."""
        self._consumer = threading.current_thread()
        gone = self._thread is None or not self._thread.is_alive()
        if gone and not self._closed and threading.main_thread().is_alive():
            # A daemon would be stopped by the exit of the interpreter anywhere, even inside torch.
            thread = threading.Thread(target=self._run, name="torch_tfrecord", daemon=False)
            thread.start()
            self._thread = thread

    @property
    def is_current(self) -> bool:
        """Whether this is the thread that runs now: then a transform of the user's asks."""
        return self._thread is threading.current_thread()

    def run_here(self) -> None:
        """Make what was not begun, in the caller's thread: when the interpreter exits, no other one can be had."""
        with contextlib.suppress(queue.Empty):
            while True:
                call = self._calls.get_nowait()
                if call is not None:
                    call.run()

    def _run(self) -> None:
        while self._is_wanted():
            try:
                call = self._calls.get(timeout=_LOOK_UP)
            except queue.Empty:
                continue
            if call is not None:
                call.run()
            del call  # with its batch, which belongs to the consumer

    def _is_wanted(self) -> bool:
        if self._closed:
            return False
        consumer = self._consumer
        return threading.main_thread().is_alive() or (consumer.is_alive() and not consumer.daemon)

    def close(self, *, wait: bool = True) -> None:
        """Drop the calls that have not begun; the thread ends after the one at work.

        Args:
            wait: Whether to wait for that.
        """
        self._closed = True
        self._drop_all()
        self._calls.put(None)
        thread = self._thread
        if wait and thread is not None and thread is not threading.current_thread():
            thread.join()

    def _drop_all(self) -> None:
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                return
            if call is not None:
                call.drop()


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
