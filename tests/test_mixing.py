"""Scores of mixing: against a direct count, and against what theory says of each order."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord.mixing import Mixing, measure_mixing
from torch_tfrecord.order import BlockShuffle, QueueShuffle, Shuffle, open_order

N = 200_000


@given(
    shuffle=st.sampled_from([False, True, BlockShuffle(3, 4), QueueShuffle(5)]),
    size=st.integers(2, 60),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 5),
)
def test_scores_are_what_they_say(shuffle: Shuffle, size: int, seed: int, epoch: int) -> None:
    epoch_of_ids = open_order(shuffle, size, seed=seed, epoch=epoch).indices(np.arange(size)).tolist()
    positions = [epoch_of_ids.index(record) for record in range(size)]
    apart = [abs(positions[i + 1] - positions[i]) for i in range(size - 1)]
    moved = [abs(positions[i] - i) for i in range(size)]
    mixing = measure_mixing(shuffle, size, seed=seed, epoch=epoch)
    assert mixing.neighbours == pytest.approx(sum(apart) / len(apart) / ((size + 1) / 3))
    assert mixing.displacement == pytest.approx(sum(moved) / len(moved) / ((size**2 - 1) / (3 * size)))


def test_scores_of_a_uniform_permutation_are_one_on_average() -> None:
    for size in (2, 3, 10):
        found = [measure_mixing(True, size, seed=seed) for seed in range(3000)]
        assert np.mean([mixing.neighbours for mixing in found]) == pytest.approx(1, abs=0.05)
        assert np.mean([mixing.displacement for mixing in found]) == pytest.approx(1, abs=0.05)


def test_a_full_permutation_mixes_fully() -> None:
    mixing = measure_mixing(True, N)
    assert mixing.neighbours == pytest.approx(1, abs=0.01)
    assert mixing.displacement == pytest.approx(1, abs=0.01)


def test_the_sequence_mixes_nothing() -> None:
    mixing = measure_mixing(False, N)
    assert mixing.neighbours == pytest.approx(3 / (N + 1))
    assert mixing.displacement == 0


@pytest.mark.parametrize("capacity", [10, 100, 1000])
def test_a_queue_mixes_by_its_capacity(capacity: int) -> None:
    """Records leave after geometric times, whose mean and mean difference are a capacity; their mean deviation 2/e of it."""
    mixing = measure_mixing(QueueShuffle(capacity), N)
    assert mixing.neighbours == pytest.approx(3 * capacity / N, rel=0.07)
    assert mixing.displacement == pytest.approx(3 * 2 / math.e * capacity / N, rel=0.07)


def test_a_queue_of_all_records_mixes_fully() -> None:
    mixing = measure_mixing(QueueShuffle(N), N)
    assert mixing.neighbours == pytest.approx(1, abs=0.01)
    assert mixing.displacement == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("shuffle", [BlockShuffle(), BlockShuffle(64, 16), BlockShuffle(1000, 10)])
def test_blocks_go_far_and_neighbours_stay_within_a_pool(shuffle: BlockShuffle) -> None:
    """Two neighbours are a third of a pool apart; but at a block's edge, those of two blocks a third of all."""
    size = 1_000_000
    pool = shuffle.block_size * shuffle.window
    mixing = measure_mixing(shuffle, size)
    edge = 1 / shuffle.block_size
    assert mixing.displacement == pytest.approx(1, abs=0.05)
    assert mixing.neighbours == pytest.approx((1 - edge) * pool / size + edge, rel=0.05)


def test_scores_depend_on_shares_rather_than_sizes() -> None:
    """As the documentation says of measuring a large data set by a smaller one."""
    for large, small in ((QueueShuffle(5000), QueueShuffle(500)), (BlockShuffle(500, 40), BlockShuffle(500, 4))):
        one, other = measure_mixing(large, 1_000_000), measure_mixing(small, 100_000)
        assert one.neighbours == pytest.approx(other.neighbours, rel=0.05)
        assert one.displacement == pytest.approx(other.displacement, rel=0.1)


@pytest.mark.parametrize("size", [0, 1])
def test_too_few_records_to_mix(size: int) -> None:
    assert measure_mixing(True, size) == Mixing(0.0, 0.0)


def test_seed_and_epoch_count() -> None:
    scores = {measure_mixing(True, 100), measure_mixing(True, 100, seed=1), measure_mixing(True, 100, epoch=1)}
    assert len(scores) == 3
    assert measure_mixing(True, 100) == measure_mixing(True, 100, seed=0, epoch=0)


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="10000001 records would take too much memory; measure at most 10000000"):
        measure_mixing(True, 10_000_001)
    with pytest.raises(ValueError, match="is -1, and must be at least 0"):
        measure_mixing(True, -1)
    with pytest.raises(TypeError, match="shuffle must be"):
        measure_mixing("yes", 10)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        measure_mixing(True, 10.0)  # type: ignore[arg-type]
