"""The core's permutations and shuffle queue: the native core against its twin, and both against what is promised."""

from __future__ import annotations

import os
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import both_cores, native, needs_native

from torch_tfrecord.native import reference
from torch_tfrecord.native.reference_order import Random

KEYS = [3 * i**40 % 2**64 for i in range(1, 9)]

sizes = st.integers(0, 300)
key_numbers = st.integers(0, 2**64 - 1)
key_lists = st.lists(key_numbers, min_size=8, max_size=13)


def draws(queue: Any, counts: list[int], skipped: set[int]) -> dict[int, int]:
    """Position to number of what a queue gives in runs of some sizes, of which some are skipped."""
    found: dict[int, int] = {}
    for i, count in enumerate(counts):
        begin = queue.position
        if i in skipped:
            queue.skip(count)
        else:
            found.update(enumerate(queue.take(count).tolist(), begin))
        assert queue.position == begin + count
    return found


@st.composite
def cuts(draw: st.DrawFn, size: int) -> list[int]:
    """Sizes of the parts that some cuts make of a range."""
    places = sorted(draw(st.lists(st.integers(0, size), max_size=5)))
    return [end - begin for begin, end in pairwise([0, *places, size])]


# --- native against twin ----------------------------------------------------------------------------------------------


@needs_native
@given(size=sizes, key=key_numbers)
def test_permutations_are_the_same(size: int, key: int) -> None:
    ids = native.permutation(size, key)
    assert ids.dtype == np.int64
    np.testing.assert_array_equal(ids, reference.permutation(size, key))


@needs_native
@given(size=st.one_of(sizes, st.integers(0, 2**62)), keys=key_lists, data=st.data())
def test_bijections_are_the_same(size: int, keys: list[int], data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, size - 1), max_size=20)) if size else []
    positions = np.array(numbers, np.int64)
    bijections = [core.Bijection(size, keys) for core in (native, reference)]
    for way in ("ids", "positions"):
        one, other = (getattr(bijection, way)(positions) for bijection in bijections)
        assert one.dtype == other.dtype == np.int64
        np.testing.assert_array_equal(one, other)


@needs_native
@given(size=sizes, capacity=st.integers(1, 400), key=key_numbers, data=st.data())
def test_queues_are_the_same(size: int, capacity: int, key: int, data: st.DataObject) -> None:
    counts = data.draw(cuts(size))
    skipped = data.draw(st.sets(st.integers(0, len(counts) - 1)))
    queues = [core.ShuffleQueue(size, capacity, key) for core in (native, reference)]
    assert draws(queues[0], counts, skipped) == draws(queues[1], counts, skipped)


@needs_native
@pytest.mark.parametrize("size", [255, 256, 257, 70_000])
def test_large_runs_are_the_same(size: int) -> None:
    """Larger than what is computed together, and than what is computed under the GIL."""
    np.testing.assert_array_equal(native.permutation(size, 5), reference.permutation(size, 5))
    positions = np.arange(size)
    for way in ("ids", "positions"):
        one, other = (getattr(core.Bijection(size, KEYS), way)(positions) for core in (native, reference))
        np.testing.assert_array_equal(one, other)
    one, other = (core.ShuffleQueue(size, 5000, 5).take(size) for core in (native, reference))
    np.testing.assert_array_equal(one, other)


# --- what is promised -------------------------------------------------------------------------------------------------


def test_the_generator_is_splitmix64() -> None:
    """The first numbers that it gives from 0, as they are known from its publication."""
    random = Random(0)
    assert [random.next() for _ in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@pytest.mark.parametrize("bound", [1, 2, 3, 2**62, 3 * 2**62, 2**63 + 1])
def test_draws_below_a_bound_are_fair(bound: int) -> None:
    """Of 2**63 + 1, nearly every second draw must be refused; to take it would favour every second number."""
    random = Random(bound)
    found = [random.below(bound) for _ in range(2000)]
    assert min(found) >= 0
    assert max(found) < bound
    assert abs(sum(found) / 2000 / bound - 0.5 + 0.5 / bound) < 0.03
    if bound > 3:
        assert 0.45 < sum(number % 2 for number in found) / 2000 < 0.55


@both_cores
@pytest.mark.parametrize("size", [0, 1, 2, 3, 10, 1000])
def test_each_number_comes_once(core: Any, size: int) -> None:
    numbers = np.arange(size)
    bijection = core.Bijection(size, KEYS)
    for ids in (core.permutation(size, 1), bijection.ids(numbers), core.ShuffleQueue(size, 7, 1).take(size)):
        np.testing.assert_array_equal(np.sort(ids), numbers)


@both_cores
@given(size=st.integers(1, 2**62), keys=key_lists, data=st.data())
def test_a_bijection_goes_back(core: Any, size: int, keys: list[int], data: st.DataObject) -> None:
    numbers = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)), np.int64)
    bijection = core.Bijection(size, keys)
    for there, back in ((bijection.ids, bijection.positions), (bijection.positions, bijection.ids)):
        found = there(numbers)
        assert ((found >= 0) & (found < size)).all()
        np.testing.assert_array_equal(back(found), numbers)


@both_cores
@given(size=sizes, capacity=st.integers(1, 60), key=key_numbers, data=st.data())
def test_a_queue_is_the_same_however_it_is_read(
    core: Any, size: int, capacity: int, key: int, data: st.DataObject
) -> None:
    whole = core.ShuffleQueue(size, capacity, key).take(size).tolist()
    counts = data.draw(cuts(size))
    skipped = data.draw(st.sets(st.integers(0, len(counts) - 1)))
    found = draws(core.ShuffleQueue(size, capacity, key), counts, skipped)
    assert found == {position: whole[position] for position in found}
    assert sorted(whole) == list(range(size))
    # A number can leave once it has entered: the first `capacity` at once, each later one a draw later.
    assert all(number < position + capacity for position, number in enumerate(whole))


@both_cores
def test_a_queue_of_one_keeps_the_sequence(core: Any) -> None:
    assert core.ShuffleQueue(100, 1, 9).take(100).tolist() == list(range(100))


@both_cores
def test_a_queue_can_be_larger_than_what_passes_through_it(core: Any) -> None:
    one, other = (core.ShuffleQueue(50, capacity, 9).take(50).tolist() for capacity in (50, 2**62))
    assert one == other
    assert one != sorted(one)


@both_cores
def test_memory_is_bounded_by_capacity(core: Any) -> None:
    queue = core.ShuffleQueue(2**62, 10, 3)
    assert max(queue.take(1000)) < 1010
    assert core.Bijection(2**62, KEYS).ids(np.array([0, 2**62 - 1])).shape == (2,)


@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer ends the process instead")
@both_cores
@pytest.mark.parametrize("size", [2**46, 2**62])  # more bytes than there are addresses, or than there are numbers
def test_too_large_is_a_memory_error(core: Any, size: int) -> None:
    with pytest.raises(MemoryError):
        core.permutation(size, 1)
    with pytest.raises(MemoryError):
        core.ShuffleQueue(size, size, 1)


# --- refused ----------------------------------------------------------------------------------------------------------


@both_cores
@pytest.mark.parametrize("size", [-1, 2**62 + 1])
def test_sizes_are_checked(core: Any, size: int) -> None:
    message = rf"size must be 0 to 2\*\*62, but is {size}"
    with pytest.raises(ValueError, match=message):
        core.permutation(size, 0)
    with pytest.raises(ValueError, match=message):
        core.Bijection(size, KEYS)
    with pytest.raises(ValueError, match=message):
        core.ShuffleQueue(size, 1, 0)


@both_cores
@pytest.mark.parametrize("key", [-1, 2**64])
def test_keys_are_checked(core: Any, key: int) -> None:
    with pytest.raises(TypeError):
        core.permutation(5, key)
    with pytest.raises(TypeError):
        core.Bijection(5, [*KEYS, key])
    with pytest.raises(TypeError):
        core.ShuffleQueue(5, 2, key)


@both_cores
def test_a_bijection_needs_eight_keys(core: Any) -> None:
    with pytest.raises(ValueError, match="8 keys or more, not 7"):
        core.Bijection(5, KEYS[:7])


@both_cores
@pytest.mark.parametrize("way", ["ids", "positions"])
@pytest.mark.parametrize(("size", "bad"), [(0, 0), (1, 1), (5, -1), (5, 5), (300, -(2**63)), (300, 2**63 - 1)])
def test_numbers_outside_a_bijection_are_refused(core: Any, size: int, bad: int, way: str) -> None:
    numbers = np.array([0] * 299 * (size > 0) + [bad])
    with pytest.raises(IndexError, match=f"{bad} is outside a bijection of {size}"):
        getattr(core.Bijection(size, KEYS), way)(numbers)


@both_cores
def test_arrays_are_int64_of_one_dimension(core: Any) -> None:
    bijection = core.Bijection(100, KEYS)
    with pytest.raises(TypeError):
        bijection.ids(np.array([0.5]))
    with pytest.raises(TypeError):
        bijection.ids(np.array([1], np.uint64))
    with pytest.raises(ValueError, match="one dimension, not 2"):
        bijection.ids(np.zeros((2, 2), np.int64))
    numbers = np.arange(100)
    np.testing.assert_array_equal(bijection.ids(numbers[::3]), bijection.ids(numbers)[::3])
    np.testing.assert_array_equal(bijection.ids(numbers.astype(np.int32)), bijection.ids(numbers))


@both_cores
@pytest.mark.parametrize("way", ["take", "skip"])
@pytest.mark.parametrize(("size", "count"), [(0, 1), (5, 4), (5, -1), (5, 2**62)])
def test_a_queue_has_an_end(core: Any, size: int, count: int, way: str) -> None:
    queue = core.ShuffleQueue(size, 3, 0)
    queue.skip(min(size, 2))
    with pytest.raises(ValueError, match=f"0 to the {max(size - 2, 0)} that are left of {size}, but is {count}"):
        getattr(queue, way)(count)
    assert len(queue.take(max(size - 2, 0))) == max(size - 2, 0)


@both_cores
@pytest.mark.parametrize("capacity", [0, -1])
def test_a_queue_holds_something(core: Any, capacity: int) -> None:
    with pytest.raises(ValueError, match=f"capacity must be at least 1, but is {capacity}"):
        core.ShuffleQueue(5, capacity, 0)


@needs_native
def test_a_queue_is_not_for_two_threads_at_once() -> None:
    """The second one is told so, and no number comes twice."""
    queue = native.ShuffleQueue(2_000_000, 1000, 1)
    found: list[np.ndarray[Any, Any]] = []
    errors: set[str] = set()

    def drain() -> None:
        for _ in range(50):
            try:
                found.append(queue.take(20_000))
            except ValueError as error:
                errors.add(str(error))

    threads = [threading.Thread(target=drain) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = np.concatenate(found)
    assert len(numbers) == queue.position
    assert len(np.unique(numbers)) == len(numbers)
    assert errors <= {"this queue is at work in another thread"}
