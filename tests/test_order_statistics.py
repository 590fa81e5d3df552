"""Orders are as random as they promise: uniform, and independent of the orders of other seeds and epochs.

Seeds are fixed, so each test always gives the same answer. Bounds are those that a right order keeps 999 times in 1000.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import pytest

import torch_tfrecord as tfr
from torch_tfrecord.native import core
from torch_tfrecord.order import BlockShuffle, QueueShuffle, Shuffle, _Key, open_order

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

pytestmark = pytest.mark.skipif(tfr.backend == "python", reason="the twin gives the same numbers, and takes minutes")


def order_of(shuffle: Shuffle, size: int, seed: int = 0, epoch: int = 0) -> Array:
    return open_order(shuffle, size, seed=seed, epoch=epoch).indices(np.arange(size))


def bijection_of(size: int, seed: int) -> Array:
    """A permutation by Feistel rounds, of any size: orders use them for large ones only."""
    key = _Key(f"statistics seed={seed} size={size}")
    return core.Bijection(size, [key.of(f"round={i}").number() for i in range(8)]).ids(np.arange(size))


def chi_square_bound(freedom: int, deviations: float) -> float:
    """A quantile of the chi-square distribution, given as one of the normal distribution (Wilson and Hilferty)."""
    spread = 2 / (9 * freedom)
    return float(freedom * (1 - spread + deviations * math.sqrt(spread)) ** 3)


def assert_chi_square(statistic: float, freedom: int) -> None:
    """Neither too far from what is expected, nor too near."""
    low, high = chi_square_bound(freedom, -3.0902), chi_square_bound(freedom, 3.0902)
    assert low < statistic < high, (statistic, freedom)


def assert_fits(counts: Iterable[float], expected: Iterable[float], freedom: int | None = None) -> None:
    found, wanted = np.array([*counts], float), np.array([*expected], float)
    assert wanted.min() >= 5
    assert_chi_square(float(((found - wanted) ** 2 / wanted).sum()), len(wanted) - 1 if freedom is None else freedom)


def assert_unrelated(rows: Array, columns: Array, num_rows: int, num_columns: int, size: int | None = None) -> None:
    """Check that two labels of the same items have nothing to do with one another.

    Args:
        rows: First label of each item, 0 .. num_rows-1.
        columns: Second label.
        num_rows: Number of first labels.
        num_columns: Number of second labels.
        size: Items that are permuted at a time, which makes counts a little more regular; None for all.
    """
    table = np.bincount(rows * num_columns + columns, minlength=num_rows * num_columns)
    table = table.reshape(num_rows, num_columns).astype(float)
    expected = np.outer(table.sum(1), table.sum(0)) / table.sum()
    assert expected.min() >= 5
    statistic = ((table - expected) ** 2 / expected).sum()
    size = len(rows) if size is None else size
    assert_chi_square(statistic * (size - 1) / size, (num_rows - 1) * (num_columns - 1))


def test_the_bounds_are_those_of_the_tables() -> None:
    for freedom, low, high in ((10, 1.479, 29.588), (23, 7.529, 49.728), (100, 61.918, 149.449)):
        assert chi_square_bound(freedom, 3.0902) == pytest.approx(high, rel=0.015)
        assert chi_square_bound(freedom, -3.0902) == pytest.approx(low, rel=0.15)


# --- uniform ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "shuffle",
    [True, BlockShuffle(1, 10), BlockShuffle(10, 1), QueueShuffle(5)],
    ids=["permutation", "one pool", "one block", "a queue of all"],
)
def test_every_permutation_is_equally_likely(shuffle: Shuffle, size: int) -> None:
    rounds = 50 * math.factorial(size)
    found = Counter(tuple(order_of(shuffle, size, seed).tolist()) for seed in range(rounds))
    assert_fits((found[order] for order in itertools.permutations(range(size))), [50] * math.factorial(size))


def test_every_epoch_permutes_anew() -> None:
    found = Counter(tuple(order_of(True, 4, 0, epoch).tolist()) for epoch in range(2400))
    assert_fits((found[order] for order in itertools.permutations(range(4))), [100] * 24)


@pytest.mark.parametrize("make", [lambda size, seed: order_of(True, size, seed), bijection_of], ids=["table", "rounds"])
@pytest.mark.parametrize("size", [2, 3, 17, 50, 64])
def test_every_record_comes_equally_often_at_each_position(make: Callable[[int, int], Array], size: int) -> None:
    orders = np.array([make(size, seed) for seed in range(2000)])
    positions = np.broadcast_to(np.arange(size), orders.shape)
    assert_unrelated(positions.ravel(), orders.ravel(), size, size, size)


@pytest.mark.parametrize("size", [65_537, 100_000, 131_072, 1_000_000])
@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (0, 1), (1, 0), (123, 45)])
def test_large_permutations_are_uniform(size: int, seed: int, epoch: int) -> None:
    """By stretches of positions and of records, and by their lowest bits, in which a bad network shows first."""
    indices, positions = order_of(True, size, seed, epoch), np.arange(size)
    for some_positions in (positions * 32 // size, positions % 32):
        for some_indices in (indices * 32 // size, indices % 32):
            assert_unrelated(some_positions, some_indices, 32, 32)


@pytest.mark.parametrize("size", [65_537, 131_072, 1_000_000])
def test_what_follows_what_is_uniform(size: int) -> None:
    """Records one after another, and at the distance at which the halves of a network of rounds meet again."""
    indices = order_of(True, size, 3)
    for distance in (1, 2, 256, 512, 1024):
        first, second = indices[:-distance], indices[distance:]
        assert_unrelated(first * 32 // size, second * 32 // size, 32, 32)
        assert_unrelated(first % 32, second % 32, 32, 32)


@pytest.mark.parametrize("size", [1000, 1024, 2048])
def test_rounds_are_random_on_small_domains(size: int) -> None:
    """Summed over many keys, where five rounds would fail."""
    half = 2 ** ((size - 1).bit_length() // 2)
    orders = np.array([bijection_of(size, seed) for seed in range(300)])
    positions = np.broadcast_to(np.arange(size), orders.shape)
    for some_positions in (positions * 8 // size, positions % 8):
        for some in (orders * 8 // size, orders % 8):
            assert_unrelated(some_positions.ravel(), some.ravel(), 8, 8, size)
    first, second = orders[:, :-half], orders[:, half:]
    assert_unrelated((first * 8 // size).ravel(), (second * 8 // size).ravel(), 8, 8)
    assert_unrelated((first % 8).ravel(), (second % 8).ravel(), 8, 8)


# --- independent ------------------------------------------------------------------------------------------------------

PAIRS = {
    "seeds": lambda i: ((i, 0), (i + 1, 0)),
    "epochs": lambda i: ((7, i), (7, i + 1)),
    "seed + epoch": lambda i: ((i, 1), (i + 1, 0)),
    "seed, epoch": lambda i: ((i, i + 1), (i + 1, i)),
    "64 bits": lambda i: ((i, 0), (i + 2**64, 0)),
    "sign": lambda i: ((i + 1, 0), (-i - 1, 0)),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize(("size", "rounds"), [(100, 1000), (70_000, 100)])
def test_orders_have_nothing_in_common(size: int, rounds: int, pair: Callable[[int], tuple[Any, Any]]) -> None:
    """Two permutations agree at a Poisson number of positions, 1 on average, and their ranks are not correlated."""
    agreements = []
    squares = 0.0
    for i in range(rounds):
        one, other = (order_of(True, size, *numbers) for numbers in pair(i))
        agreements.append(int((one == other).sum()))
        squares += (size - 1) * float(np.corrcoef(one, other)[0, 1]) ** 2
    assert_chi_square(squares, rounds)
    found = np.bincount(np.minimum(agreements, 3), minlength=4)
    expected = [rounds * math.exp(-1) / math.factorial(n) for n in range(3)]
    assert_fits(found, [*expected, rounds - sum(expected)])


@pytest.mark.parametrize("size", [101, 70_001])
def test_a_record_more_makes_another_order(size: int) -> None:
    agreements = [int((order_of(True, size, i)[:-1] == order_of(True, size - 1, i)).sum()) for i in range(100)]
    assert abs(sum(agreements) - 100) < 3.3 * 10


def test_neighbouring_pools_are_permuted_apart() -> None:
    """Two pools of one epoch, block for block, agree as often as chance has it."""
    indices = order_of(BlockShuffle(100, 1), 100_000).reshape(1000, 100) % 100
    agreements = (indices[1:] == indices[:-1]).sum(1)
    assert abs(int(agreements.sum()) - 999) < 3.3 * math.sqrt(999)


# --- blocks -----------------------------------------------------------------------------------------------------------


def test_block_orders_have_their_exact_distribution() -> None:
    """Blocks 01 23 4, two a pool: all 3! orders of blocks times all permutations of each pool."""
    blocks = [(0, 1), (2, 3), (4,)]
    chances: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for one, other, last in itertools.permutations(blocks):
        pools = [*itertools.permutations(one + other)], [*itertools.permutations(last)]
        for order in itertools.product(*pools):
            chances[sum(order, ())] += 1 / 6 / len(pools[0]) / len(pools[1])
    assert sum(chances.values()) == pytest.approx(1)
    found = Counter(tuple(order_of(BlockShuffle(2, 2), 5, seed).tolist()) for seed in range(5000))
    assert set(found) <= set(chances)
    assert_fits((found[order] for order in chances), (5000 * chance for chance in chances.values()))


@pytest.mark.parametrize(
    ("shuffle", "size"),
    [(BlockShuffle(100, 50), 500_000), (BlockShuffle(1000, 100), 500_000), (BlockShuffle(7, 9), 6300)],
)
def test_pools_are_uniform_inside(shuffle: BlockShuffle, size: int) -> None:
    pool = shuffle.block_size * shuffle.window
    indices = order_of(shuffle, size, 2).reshape(-1, pool)
    ranks = np.argsort(np.argsort(indices, axis=1), axis=1)
    positions = np.broadcast_to(np.arange(pool), indices.shape)
    parts = 7 if pool < 100 else 20
    assert_unrelated((positions * parts // pool).ravel(), (ranks * parts // pool).ravel(), parts, parts, pool)


def test_blocks_come_uniformly() -> None:
    found = np.array([order_of(BlockShuffle(10, 2), 200, seed)[::20] // 10 for seed in range(2000)])
    positions = np.broadcast_to(np.arange(10), found.shape)
    table = np.bincount((positions * 20 + found).ravel(), minlength=200)
    assert_fits(table, [100] * 200, freedom=190)


# --- queue ------------------------------------------------------------------------------------------------------------


def position_chances(record: int, size: int, capacity: int) -> Array:
    """The exact distribution of a record's position.

    It is in the buffer from one draw on, and each draw takes one of those in there, as many as `capacity` or remain.
    """
    chances = np.zeros(size)
    stays = 1.0
    for position in range(max(0, record - capacity + 1), size):
        held = min(capacity, size - position)
        chances[position] = stays / held
        stays *= 1 - 1 / held
    assert chances.sum() == pytest.approx(1)
    return chances


@pytest.mark.parametrize("capacity", [2, 5, 20, 40])
def test_a_queue_has_its_exact_distribution(capacity: int) -> None:
    """Of the position of each of some records: the first and last ones, and those that enter first."""
    size, rounds = 40, 5000
    orders = np.array([order_of(QueueShuffle(capacity), size, seed) for seed in range(rounds)])
    position_of = np.argsort(orders, axis=1)
    for record in {0, 1, capacity - 1, min(capacity, size - 1), 20, size - 1}:
        expected = rounds * position_chances(record, size, capacity)
        found = np.bincount(position_of[:, record], minlength=size)
        assert found[expected == 0].sum() == 0
        common = expected >= 5
        rare = rounds - expected[common].sum()
        if rare >= 5:
            assert_fits([*found[common], rounds - found[common].sum()], [*expected[common], rare])
        else:
            assert abs(rounds - found[common].sum() - rare) < 15
            assert_fits(found[common], expected[common])


def test_the_first_draw_of_a_queue_is_uniform() -> None:
    first = [open_order(QueueShuffle(50), 10**9, seed=seed, epoch=0).indices(np.array([0]))[0] for seed in range(5000)]
    assert_fits(np.bincount(first, minlength=50), [100] * 50)


@pytest.mark.parametrize("capacity", [10, 1000])
def test_records_stay_in_a_queue_for_geometric_times(capacity: int) -> None:
    """In one long epoch: how many draws a record is passed over, once it has entered."""
    size = 500_000
    position_of = np.argsort(order_of(QueueShuffle(capacity), size, 1))
    records = np.arange(capacity, size - 20 * capacity)
    passed = position_of[records] - (records - capacity + 1)
    assert passed.min() == 0
    edges = sorted({math.floor(math.log(1 - part / 12) / math.log(1 - 1 / capacity)) for part in range(12)})
    chances = -np.diff([*((1 - 1 / capacity) ** edge for edge in edges), 0])
    found = np.histogram(passed, [*edges, np.inf])[0]
    assert_fits(found, len(records) * chances)


def test_places_of_a_queue_are_drawn_independently() -> None:
    """In a queue that has all records, the first draws are of a permutation."""
    orders = np.array([order_of(QueueShuffle(30), 30, seed)[:2] for seed in range(20_000)])
    found = Counter(map(tuple, orders.tolist()))
    pairs = [*itertools.permutations(range(30), 2)]
    assert_fits((found[pair] for pair in pairs), [20_000 / len(pairs)] * len(pairs))
