"""Orders: what each promises, at any size, from any position; and the numbers that must never change."""

from __future__ import annotations

import dataclasses
import math
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import torch_tfrecord as tfr
from torch_tfrecord.order import BlockShuffle, QueueShuffle, Shuffle, _Key, check_shuffle, open_order, order_name

SHUFFLES: list[Shuffle] = [False, True, BlockShuffle(), BlockShuffle(3, 2), QueueShuffle(4, 2), QueueShuffle(1000)]
RANDOM_ACCESS: list[Shuffle] = [False, True, BlockShuffle(), BlockShuffle(3, 2), BlockShuffle(10**6, 10**6)]
MANY = 10**12

any_shuffle: st.SearchStrategy[Shuffle] = st.one_of(
    st.booleans(),
    st.builds(BlockShuffle, st.integers(1, 12), st.integers(1, 12)),
    st.builds(QueueShuffle, st.integers(1, 300)),
)
any_int = st.one_of(st.integers(0, 3), st.integers())


def whole(shuffle: Shuffle, size: int, seed: int = 0, epoch: int = 0) -> list[int]:
    indices: list[int] = open_order(shuffle, size, seed=seed, epoch=epoch).indices(np.arange(size)).tolist()
    return indices


def at(shuffle: Shuffle, size: int, positions: list[int], seed: int = 0, epoch: int = 0) -> list[int]:
    order = open_order(shuffle, size, seed=seed, epoch=epoch)
    indices: list[int] = order.indices(np.array(positions, np.int64)).tolist()
    return indices


# --- every order ------------------------------------------------------------------------------------------------------


@given(shuffle=any_shuffle, size=st.integers(0, 200), seed=any_int, epoch=any_int)
def test_each_index_comes_once(shuffle: Shuffle, size: int, seed: int, epoch: int) -> None:
    order = open_order(shuffle, size, seed=seed, epoch=epoch)
    indices = order.indices(np.arange(size))
    assert order.size == size
    assert indices.dtype == np.int64
    assert sorted(indices.tolist()) == list(range(size))


@given(shuffle=any_shuffle, size=st.integers(1, 200), data=st.data())
def test_any_positions_give_what_the_whole_order_has_there(shuffle: Shuffle, size: int, data: st.DataObject) -> None:
    """Asked for in any order and any number of times, one batch after another."""
    order = open_order(shuffle, size, seed=1, epoch=2)
    expected = whole(shuffle, size, 1, 2)
    for positions in data.draw(st.lists(st.lists(st.integers(0, size - 1), max_size=20), max_size=6)):
        kept = np.array(positions, np.int64)
        assert order.indices(kept).tolist() == [expected[position] for position in positions]
        assert kept.tolist() == positions


@pytest.mark.parametrize("shuffle", SHUFFLES, ids=order_name)
def test_large_orders_are_whole(shuffle: Shuffle) -> None:
    """Larger than a table, than a queue's run, than a pool."""
    size = 200_001
    order = open_order(shuffle, size, seed=5, epoch=0)
    indices = order.indices(np.arange(size))
    np.testing.assert_array_equal(np.sort(indices), np.arange(size))
    strided = np.arange(17, size, 1000)
    np.testing.assert_array_equal(order.indices(strided), indices[strided])
    backwards = np.arange(size)[::-1]
    np.testing.assert_array_equal(order.indices(backwards), indices[backwards])


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537])
def test_permutations_are_whole_where_their_method_changes(size: int) -> None:
    assert sorted(whole(True, size)) == list(range(size))
    assert sorted(whole(BlockShuffle(1, 10**6), size)) == list(range(size))


@pytest.mark.parametrize("shuffle", SHUFFLES, ids=order_name)
@pytest.mark.parametrize("size", [0, 1, 2, 1000, 100_000])
def test_positions_are_checked(shuffle: Shuffle, size: int) -> None:
    order = open_order(shuffle, size, seed=0, epoch=0)
    assert order.indices(np.empty(0, np.int64)).tolist() == []
    for bad in (-1, size, 2**62):
        with pytest.raises(IndexError, match=f"position {bad} of an order of {size} records"):
            order.indices(np.array([0, bad] if size else [bad]))
    if size:
        assert order.indices(np.array([0])).tolist() == whole(shuffle, size)[:1]


def test_sequential_is_the_identity() -> None:
    positions = np.array([5, 0, 9, 9])
    indices = open_order(False, 10, seed=3, epoch=4).indices(positions)
    assert indices.tolist() == [5, 0, 9, 9]
    assert not np.shares_memory(indices, positions)


# --- seeds and epochs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", SHUFFLES[1:], ids=order_name)
def test_seed_epoch_and_size_each_make_another_order(shuffle: Shuffle) -> None:
    one = at(shuffle, 5000, list(range(200)))
    assert one == at(shuffle, 5000, list(range(200)))
    for seed, epoch, size in ((1, 0, 5000), (0, 1, 5000), (-1, 0, 5000), (0, -1, 5000), (2**64, 0, 5000), (0, 0, 5001)):
        assert at(shuffle, size, list(range(200)), seed, epoch) != one


def test_options_of_a_shuffle_make_another_order() -> None:
    orders = [whole(shuffle, 20) for shuffle in (BlockShuffle(4, 5), BlockShuffle(4, 6), BlockShuffle(5, 5))]
    orders += [whole(QueueShuffle(capacity), 20) for capacity in (20, 21)] + [whole(True, 20)]
    assert len({tuple(order) for order in orders}) == len(orders)


def test_the_promised_mixing_does_not_change_a_queue() -> None:
    assert whole(QueueShuffle(10, 0), 50) == whole(QueueShuffle(10, 9), 50)


def test_any_int_is_a_seed() -> None:
    assert whole(True, 30, np.int64(7)) == whole(True, 30, 7)
    assert sorted(whole(True, 30, -(10**40), 10**40)) == list(range(30))
    for options in ({"seed": 0.0, "epoch": 0}, {"seed": 0, "epoch": "1"}, {"seed": None, "epoch": 0}):
        with pytest.raises(TypeError):
            open_order(True, 30, **options)


# --- blocks -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 200), any_int)
def test_pools_are_whole_blocks(block_size: int, window: int, size: int, seed: int) -> None:
    """Walk through an epoch: it is pool after pool, each of `window` whole blocks; the last one of those that remain."""
    indices = whole(BlockShuffle(block_size, window), size, seed)
    blocks = {block: set(range(size)[block * block_size : (block + 1) * block_size]) for block in range(size)}
    blocks = {block: records for block, records in blocks.items() if records}
    begin = pools = 0
    while begin < size:
        count = min(window, len(blocks))
        full = count * block_size
        short = len(blocks[max(blocks)]) % block_size
        # The last block may be short: the pool has it if whole blocks do not fill the positions.
        sizes = {full} | ({full - block_size + short} if short else set())
        found = next((n for n in sizes if is_pool(indices[begin : begin + n], blocks, block_size, count)), None)
        assert found is not None, (begin, indices)
        for block in {index // block_size for index in indices[begin : begin + found]}:
            del blocks[block]
        begin += found
        pools += 1
    assert not blocks
    assert pools == math.ceil(math.ceil(size / block_size) / window)


def is_pool(indices: list[int], blocks: dict[int, set[int]], block_size: int, count: int) -> bool:
    chosen = {index // block_size for index in indices}
    return len(chosen) == count and set().union(*(blocks.get(block, set()) for block in chosen)) == set(indices)


def test_one_block_or_pool_is_a_full_permutation() -> None:
    for shuffle in (BlockShuffle(10**30, 1), BlockShuffle(1, 10**30), BlockShuffle(10**30, 10**30)):
        indices = whole(shuffle, 100)
        assert sorted(indices) == list(range(100))
        assert np.mean(np.abs(np.diff(indices))) > 20


def test_a_window_of_one_shuffles_within_blocks() -> None:
    indices = np.array(whole(BlockShuffle(10, 1), 100)).reshape(10, 10)
    assert (indices // 10 == indices[:, :1] // 10).all()
    assert (np.sort(indices) != indices).any(axis=1).all()


# --- queue ------------------------------------------------------------------------------------------------------------


def test_a_queue_goes_on_and_starts_again_only_for_earlier_positions() -> None:
    order: Any = open_order(QueueShuffle(10), 1000, seed=0, epoch=0)
    expected = whole(QueueShuffle(10), 1000)
    for begin in (0, 100, 300):
        assert order.indices(np.arange(begin, begin + 100)).tolist() == expected[begin : begin + 100]
        assert order._queue.position == begin + 100
    queue = order._queue
    assert order.indices(np.array([999, 998, 998])).tolist() == [expected[999], expected[998], expected[998]]
    assert order._queue is queue
    assert order.indices(np.array([5])).tolist() == [expected[5]]
    assert order._queue.position == 6


def test_padding_at_the_end_replays_nothing() -> None:
    """The first positions fill up the last batch: what lies ahead is drawn before the queue starts again."""
    far = 20_000_000 if tfr.backend == "native" else 20_000
    order: Any = open_order(QueueShuffle(10), 10**9, seed=0, epoch=0)
    order.indices(np.array([far]))
    queue = order._queue
    positions = np.array([far + 1, 0, far + 2, 1])
    indices = order.indices(positions)
    assert queue.position == far + 3
    assert order._queue.position == 2
    assert indices.tolist() == at(QueueShuffle(10), 10**9, positions.tolist())


@pytest.mark.parametrize("capacity", [1, 2, 500])
def test_a_record_is_at_most_a_queue_early(capacity: int) -> None:
    early = np.array(whole(QueueShuffle(capacity), 3000)) - np.arange(3000)
    assert early.max() == capacity - 1
    assert early.min() <= 1 - capacity


# --- 10**12 records ---------------------------------------------------------------------------------------------------

NO_ROOM = """
import resource, sys, time
import numpy as np
from torch_tfrecord.order import *
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
for size in (10**9, 10**12, 2**62):
    for shuffle in (False, True, BlockShuffle(), BlockShuffle(1, 1), BlockShuffle(10**6, 10**6), BlockShuffle(10**30)):
        positions = np.array([0, 1, size // 3, size - 2, size - 1])
        start = time.perf_counter()
        indices = open_order(shuffle, size, seed=1, epoch=2).indices(positions)
        seconds = time.perf_counter() - start
        assert len(set(indices.tolist())) == 5 and 0 <= indices.min() and indices.max() < size, indices
        assert seconds < 1, (shuffle, size, seconds)
    order = open_order(QueueShuffle(1000), size, seed=1, epoch=2)
    assert order.indices(np.arange(100)).max() < 1100
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of memory that is kept")
def test_memory_and_time_do_not_grow_with_the_number_of_records() -> None:
    """In a process that has room for 2 GiB: a byte a record would be too much."""
    subprocess.run([sys.executable, "-c", NO_ROOM], check=True, timeout=120)


@pytest.mark.parametrize("shuffle", RANDOM_ACCESS, ids=order_name)
def test_far_apart_positions_of_a_huge_order(shuffle: Shuffle) -> None:
    order = open_order(shuffle, MANY, seed=0, epoch=0)
    positions = np.random.default_rng(0).integers(0, MANY, 50)
    indices = order.indices(positions)
    assert len(np.unique(indices)) == 50
    np.testing.assert_array_equal([order.indices(positions[i : i + 1])[0] for i in range(50)], indices)
    if shuffle is not False:
        assert 0.25 < indices.mean() / MANY < 0.75


def test_the_short_block_of_a_huge_order() -> None:
    """All blocks but one are whole; around it, positions still meet records one to one."""
    order: Any = open_order(BlockShuffle(1000, 10), MANY + 3, seed=0, epoch=0)
    place = order._short_place
    assert order._missing == 997
    begin = place // 10 * 10 * 1000 - 10_000
    indices = order.indices(np.arange(begin, begin + 30_000))
    assert len(np.unique(indices)) == 30_000
    assert {MANY, MANY + 1, MANY + 2} <= set(indices.tolist())
    blocks, counts = np.unique(indices // 1000, return_counts=True)
    assert dict(zip(blocks.tolist(), counts.tolist(), strict=True))[MANY // 1000] == 3


# --- describing a shuffle ---------------------------------------------------------------------------------------------


def test_names() -> None:
    assert [order_name(shuffle) for shuffle in SHUFFLES] == [
        "sequential/1",
        "permutation/1",
        "BlockShuffle(block_size=256, window=256)/1",
        "BlockShuffle(block_size=3, window=2)/1",
        "QueueShuffle(capacity=4)/1",
        "QueueShuffle(capacity=1000)/1",
    ]


@pytest.mark.parametrize("shuffle", SHUFFLES, ids=order_name)
def test_shuffles_are_accepted(shuffle: Shuffle) -> None:
    assert check_shuffle(shuffle) is shuffle


def test_numpy_bools_become_bools() -> None:
    assert check_shuffle(np.True_) is True
    assert check_shuffle(np.False_) is False


@pytest.mark.parametrize("wrong", [None, 0, 1, "yes", "BlockShuffle", BlockShuffle, 1000, [True]])
def test_other_things_are_no_shuffles(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"shuffle must be False, True, BlockShuffle\(.*not "):
        check_shuffle(wrong)
    with pytest.raises(TypeError):
        open_order(wrong, 10, seed=0, epoch=0)  # type: ignore[arg-type]


def test_shuffles_are_plain_values() -> None:
    for shuffle in (BlockShuffle(5, 6), QueueShuffle(7, 3)):
        assert pickle.loads(pickle.dumps(shuffle)) == shuffle
        assert hash(shuffle) == hash(dataclasses.replace(shuffle))
        assert eval(repr(shuffle)) == shuffle
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(shuffle, dataclasses.fields(shuffle)[0].name, 1)
    assert BlockShuffle(np.int64(5), 6) == BlockShuffle(5, 6)
    assert "np" not in order_name(QueueShuffle(np.int64(5), 0))


@pytest.mark.parametrize("name", ["block_size", "window"])
def test_blocks_are_checked(name: str) -> None:
    for wrong in (0, -5):
        with pytest.raises(ValueError, match=f"BlockShuffle: {name} is {wrong}, and must be at least 1"):
            BlockShuffle(**{name: wrong})
    for kind in (1.5, "8", None):
        with pytest.raises(TypeError):
            BlockShuffle(**{name: kind})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("capacity", "least", "message"),
    [
        (10, 10, "capacity 10 must be bigger than min_after_dequeue 10; take a capacity of 11 or more"),
        (5, 10, "capacity 5 must be bigger than min_after_dequeue 10"),
        (10, -1, "min_after_dequeue is -1, and must be at least 0"),
        (0, 0, "capacity is 0, and must be at least 1"),
    ],
)
def test_queues_are_checked(capacity: int, least: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        QueueShuffle(capacity, least)


def test_queues_are_made_of_ints() -> None:
    for arguments in ((1.5, 0), (5, None), ("5", 0)):
        with pytest.raises(TypeError):
            QueueShuffle(*arguments)


@pytest.mark.parametrize("shuffle", SHUFFLES, ids=order_name)
def test_sizes_are_checked(shuffle: Shuffle) -> None:
    for wrong, message in ((-1, "is -1, and must be at least 0"), (2**62 + 1, r"at most 2\*\*62 records")):
        with pytest.raises(ValueError, match=message):
            open_order(shuffle, wrong, seed=0, epoch=0)
    with pytest.raises(TypeError):
        open_order(shuffle, 10.0, seed=0, epoch=0)  # type: ignore[arg-type]


def test_they_are_public() -> None:
    assert tfr.BlockShuffle is BlockShuffle
    assert tfr.QueueShuffle is QueueShuffle


# --- numbers that never change ----------------------------------------------------------------------------------------
# A saved state names the version of its order. Where one of these changes, that version must, too.

FAR = [0, 1, 2, 34_567, 69_999]
HUGE = [0, 1, 2, MANY // 2, MANY - 1]
FROZEN: list[Any] = [
    (False, 13, 0, 0, [*range(13)], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
    (True, 13, 0, 0, [*range(13)], [9, 6, 3, 5, 2, 10, 4, 11, 7, 1, 8, 12, 0]),
    (BlockShuffle(3, 2), 13, 0, 0, [*range(13)], [6, 12, 8, 7, 9, 0, 10, 11, 1, 2, 5, 4, 3]),
    (QueueShuffle(4, 2), 13, 0, 0, [*range(13)], [0, 2, 1, 5, 7, 6, 3, 10, 9, 4, 8, 12, 11]),
    (True, 13, 2**100, 0, [*range(13)], [8, 0, 9, 4, 1, 7, 12, 2, 11, 3, 6, 5, 10]),
    (True, 13, -1, 7, [*range(13)], [3, 5, 11, 12, 2, 1, 6, 10, 8, 7, 4, 9, 0]),
    (True, 65_536, 1, 2, [0, 1, 2, 65534, 65535], [42184, 46071, 51909, 52714, 29764]),
    (True, 70_000, 1, 2, FAR, [44902, 8895, 5234, 4466, 68493]),
    (BlockShuffle(), 70_000, 1, 2, FAR, [69202, 35558, 7465, 14452, 23792]),
    (BlockShuffle(3, 2), 70_000, 1, 2, FAR, [50344, 17521, 17520, 31350, 18356]),
    (QueueShuffle(4, 2), 70_000, 1, 2, FAR, [1, 4, 5, 34569, 69996]),
    (QueueShuffle(1000), 70_000, 1, 2, FAR, [523, 381, 480, 35508, 66227]),
    (BlockShuffle(1000, 100), 250_001, 1, 2, [0, 1, 100000, 200000, 250000], [126214, 50208, 193935, 41081, 142921]),
    (False, MANY, 1, 2, HUGE, [0, 1, 2, 500000000000, 999999999999]),
    (True, MANY, 1, 2, HUGE, [986128560945, 168871651630, 773127563960, 409713195714, 380913507736]),
    (BlockShuffle(), MANY, 1, 2, HUGE, [540806159604, 79889115587, 542590976152, 459591274169, 618077591117]),
    (BlockShuffle(3, 2), MANY, 1, 2, HUGE, [530214140987, 530214140985, 582055478779, 32472607050, 704262865403]),
    (BlockShuffle(1000, 100), MANY, 1, 2, HUGE, [7720687989, 524618228612, 239133013916, 610166134543, 637807425172]),
    (QueueShuffle(1000), MANY, 1, 2, [0, 1, 2, 100000, 100001], [208, 232, 780, 99820, 100626]),
]


@pytest.mark.parametrize(("shuffle", "size", "seed", "epoch", "positions", "indices"), FROZEN)
def test_frozen_orders(
    shuffle: Shuffle, size: int, seed: int, epoch: int, positions: list[int], indices: list[int]
) -> None:
    assert at(shuffle, size, positions, seed, epoch) == indices


def test_frozen_keys() -> None:
    key = _Key("permutation/1 seed=0 epoch=0 size=12")
    assert key.number() == 0x7E4D3FA0FA7721AF
    assert key.of("round=0").text == "permutation/1 seed=0 epoch=0 size=12 round=0"
    assert key.of("round=0").number() == 0xC43232EE4A2FAFFA
    assert _Key("").number() == 0xB4B2797457A0A6E4
