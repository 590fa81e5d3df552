"""`Ahead` and `PythonThread`: the order of batches, errors, waits, and the life of the thread."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord.ahead import Ahead, Work
from torch_tfrecord.errors import CancelledError
from torch_tfrecord.python_thread import Called, PythonThread


class Fake:
    """Work that is done when the test says so; then it has a batch or an error."""

    def __init__(self, outcome: Any, *, done: bool = True) -> None:
        self.outcome = outcome
        self.finished_at = 0.0
        self.cancelled = False
        if done:
            self.finish()

    def finish(self, at: float | None = None) -> None:
        self.finished_at = time.monotonic() if at is None else at

    def advance(self) -> bool:
        return self.finished_at > 0

    def result(self) -> Any:
        if not self.finished_at:
            time.sleep(0.05)
            self.finish()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def cancel(self) -> None:
        self.cancelled = True


def eventually(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


# --- Ahead ------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 12), st.integers(1, 14), st.sets(st.integers(0, 11)), st.sets(st.integers(0, 11)))
def test_steps_come_in_order_and_errors_at_their_turn(count: int, depth: int, bad: set[int], worse: set[int]) -> None:
    begun: list[int] = []

    def start(step: int) -> Work:
        begun.append(step)
        if step in worse:
            raise OSError(step)
        return Fake(ValueError(step) if step in bad else step)

    ahead = Ahead(count, start, depth)
    assert begun == []
    for step in range(count):
        assert ahead.step == step
        if step in worse:
            with pytest.raises(OSError, match=f"^{step}$"):
                ahead.take()
        elif step in bad:
            with pytest.raises(ValueError, match=f"^{step}$"):
                ahead.take()
        else:
            assert ahead.take() == step
        assert begun == list(range(min(step + 1 + depth, count)))
        assert ahead.num_ready == len(begun) - step - 1
    assert ahead.step == count
    assert ahead.head is None


def test_no_more_are_on_their_way_than_asked_for() -> None:
    works = [Fake(step, done=False) for step in range(9)]
    begun: list[int] = []
    ahead = Ahead(9, lambda step: begun.append(step) or works[step], 3)  # type: ignore[func-returns-value]
    works[0].finish()
    assert ahead.take() == 0
    assert begun == [0, 1, 2, 3]
    assert ahead.num_ready == 0
    works[1].finish()
    works[3].finish()
    assert ahead.num_ready == 2
    assert ahead.head is works[1]


def test_what_goes_wrong_on_the_way_is_told_at_its_turn() -> None:
    class Stumbling(Fake):
        def advance(self) -> bool:
            if self.outcome == 2:
                raise MemoryError
            return super().advance()

        def result(self) -> Any:
            self.advance()
            return super().result()

    ahead = Ahead(5, Stumbling, 3)
    assert [ahead.take(), ahead.take()] == [0, 1]
    with pytest.raises(MemoryError):
        ahead.take()
    assert [ahead.take(), ahead.take()] == [3, 4]


def test_waits_of_the_consumer_are_measured() -> None:
    works = [Fake(0), Fake(1, done=False), Fake(ValueError(), done=False)]
    ahead = Ahead(3, works.__getitem__, 1)
    ahead.take()
    assert ahead.wait_seconds == 0
    ahead.take()
    assert 0.05 <= ahead.wait_seconds < 1
    with pytest.raises(ValueError):
        ahead.take()
    assert 0.1 <= ahead.wait_seconds < 2


@pytest.mark.parametrize("depth", [1, 3])
def test_idle_time_counts_from_when_all_was_done_while_more_could_have_been_begun(depth: int) -> None:
    works = [Fake(step) for step in range(5)]
    ahead = Ahead(5, works.__getitem__, depth)
    ahead.take()
    assert ahead.idle_seconds == 0
    for work in works[1 : depth + 1]:
        work.finish(time.monotonic() - 50)
    works[depth].finish(time.monotonic() - 10)
    ahead.take()
    assert 10 <= ahead.idle_seconds < 11
    works[depth + 1].finished_at = 0.0
    ahead.take()
    assert ahead.idle_seconds < 11


def test_there_is_no_idle_time_when_nothing_more_could_be_begun() -> None:
    works = [Fake(step) for step in range(4)]
    ahead = Ahead(4, works.__getitem__, 3)
    ahead.take()
    idle = ahead.idle_seconds
    for work in works:
        work.finish(1.0)  # long ago
    ahead.take()  # three are on their way, but all are begun that there are
    ahead.take()
    ahead.take()
    assert ahead.idle_seconds - idle < 0.5


def test_close_drops_what_is_on_its_way_and_begins_nothing_more() -> None:
    works = [Fake(step) for step in range(9)]
    ahead = Ahead(9, works.__getitem__, 3)
    ahead.take()
    ahead.close()
    assert [work.cancelled for work in works] == [False, True, True, True, False, False, False, False, False]
    assert ahead.num_ready == 0
    with pytest.raises(CancelledError):
        ahead.take()


def test_close_lets_go_of_whoever_begins_batches() -> None:
    class Owner:
        def __init__(self) -> None:
            self.ahead = Ahead(9, self.start, 3)

        def start(self, step: int) -> Work:
            return Fake(step)

    owner = Owner()
    owner.ahead.take()
    gone = weakref.ref(owner)
    gc.disable()
    try:
        owner.ahead.close()
        del owner
        assert gone() is None
    finally:
        gc.enable()


def test_a_close_from_within_take_is_survived() -> None:
    """As by the handler of a signal that comes while a batch is waited for."""

    class Closing(Fake):
        def result(self) -> Any:
            ahead.close()
            return super().result()

    ahead = Ahead(9, Closing, 2)
    assert ahead.take() == 0
    assert ahead.num_ready == 0


class Trouble(Exception):
    pass


def fail() -> Any:
    raise Trouble


@pytest.mark.parametrize("kind", ["failed", "called"])
def test_an_error_that_was_raised_is_held_by_nobody(kind: str) -> None:
    thread = PythonThread()

    def error_of_a_batch() -> weakref.ref[Exception]:
        ahead = Ahead(2, lambda _: thread.call(fail) if kind == "called" else fail(), 1)
        try:
            ahead.take()
        except Trouble as error:
            return weakref.ref(error)
        raise AssertionError("no error")

    gc.disable()
    try:
        gone = error_of_a_batch()
        thread.close()
        assert gone() is None
    finally:
        gc.enable()


# --- PythonThread -----------------------------------------------------------------------------------------------------


def test_calls_are_made_in_order_by_one_thread_that_starts_with_the_first() -> None:
    before = set(threading.enumerate())
    thread = PythonThread()
    assert set(threading.enumerate()) == before
    seen: list[tuple[int, int]] = []

    def note(i: int) -> int:
        seen.append((i, threading.get_ident()))
        return -i

    calls = [thread.call(partial(note, i)) for i in range(50)]
    assert [call.result() for call in reversed(calls)] == [-i for i in reversed(range(50))]
    assert [i for i, _ in seen] == list(range(50))
    assert len({ident for _, ident in seen}) == 1
    assert threading.get_ident() != seen[0][1]
    assert all(call.advance() and call.finished_at > 0 for call in calls)
    (worker,) = set(threading.enumerate()) - before
    assert worker.name == "torch_tfrecord"
    assert not worker.daemon
    thread.close()
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("error", [ValueError("x"), IndexError("x"), KeyError("x"), MemoryError("x"), OSError(2, "x")])
def test_errors_are_raised_by_result_each_time(error: Exception) -> None:
    def fail() -> Any:
        raise error

    thread = PythonThread()
    call, after = thread.call(fail), thread.call(lambda: 7)
    for _ in range(2):
        with pytest.raises(type(error)) as caught:
            call.result()
        assert caught.value is error
    assert after.result() == 7
    thread.close()


@pytest.mark.parametrize("error", [StopIteration(3), SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_what_would_end_a_loop_or_a_thread_is_an_error_of_the_batch(error: BaseException) -> None:
    def fail() -> Any:
        raise error

    thread = PythonThread()
    call, after = thread.call(fail), thread.call(lambda: 7)
    with pytest.raises(RuntimeError, match=f"^{type(error).__name__} was raised") as caught:
        call.result()
    assert caught.value.__cause__ is error
    assert after.result() == 7
    thread.close()


def test_close_drops_calls_that_have_not_begun_and_waits_for_the_one_that_has() -> None:
    thread = PythonThread()
    begun, made = threading.Event(), []

    def make(i: int) -> int:
        begun.set()
        time.sleep(0.1)
        made.append(i)
        return i

    calls = [thread.call(partial(make, i)) for i in range(5)]
    begun.wait()
    thread.close()
    assert made == [0]
    assert calls[0].result() == 0
    for call in (*calls[1:], thread.call(lambda: make(9))):
        with pytest.raises(CancelledError):
            call.result()
    assert made == [0]


def test_the_thread_may_close_itself() -> None:
    """As the garbage collector does, when it comes by there."""
    thread = PythonThread()
    assert thread.call(thread.close).result() is None
    eventually(lambda: all(other.name != "torch_tfrecord" for other in threading.enumerate()))


def test_a_close_that_does_not_wait_ends_the_thread_too() -> None:
    thread = PythonThread()
    begun, go_on = threading.Event(), threading.Event()
    call, dropped = thread.call(lambda: (begun.set(), go_on.wait())[1]), thread.call(go_on.wait)  # type: ignore[func-returns-value]
    begun.wait()
    thread.close(wait=False)
    with pytest.raises(CancelledError):
        dropped.result()
    go_on.set()
    assert call.result() is True
    eventually(lambda: all(other.name != "torch_tfrecord" for other in threading.enumerate()))


def test_an_idle_thread_keeps_no_batch_alive() -> None:
    class Batch:
        pass

    thread = PythonThread()
    call = thread.call(Batch)
    gone = weakref.ref(call.result())
    del call
    eventually(lambda: gone() is None, seconds=0.5)
    thread.close()


def test_another_thread_may_take_over() -> None:
    """What a thread began that has ended since is made for the next one."""
    thread = PythonThread()
    calls: list[Called] = []
    consumer = threading.Thread(target=lambda: calls.extend(thread.call(partial(int, i)) for i in range(3)))
    consumer.start()
    consumer.join()
    assert [call.result() for call in calls] == [0, 1, 2]
    thread.close()
