"""Shares: in every small world, each position is read once, or counted."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from torch_tfrecord.shard import Share

WORLDS = range(1, 7)
SIZES = range(41)


def shares(size: int, world_size: int, *, drop_last: bool = False, start: int = 0) -> list[Share]:
    return [Share(size, rank, world_size, drop_last, start) for rank in range(world_size)]


def rows(share: Share) -> list[int]:
    found: list[int] = share.positions(0, share.rows).tolist()
    return found


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world_size", WORLDS)
def test_every_position_once_or_counted(world_size: int, drop_last: bool) -> None:
    for size in SIZES:
        for start in range(size + 1):
            world = shares(size, world_size, drop_last=drop_last, start=start)
            read: Counter[int] = Counter()
            for share in world:
                assert share.num_padded in {0, 1}
                real, padding = np.split(share.positions(0, share.rows), [share.rows - share.num_padded])
                assert [p % world_size for p in (real - start).tolist()] == [share.rank] * len(real)
                assert all(0 <= p < size for p in padding)
                read.update(real.tolist())
            (num_dropped,) = {share.num_dropped for share in world}
            assert read == Counter(range(start, size - num_dropped))
            (num_rows,) = {share.rows for share in world}
            num_padded = sum(share.num_padded for share in world)
            assert num_rows * world_size == size - start - num_dropped + num_padded
            assert num_padded == 0 if drop_last else num_dropped == 0
            assert num_padded < world_size
            assert num_dropped < world_size


@pytest.mark.parametrize("drop_last", [False, True])
def test_any_range_of_rows_is_a_part_of_all(drop_last: bool) -> None:
    for size, world_size, start in [(0, 3, 0), (1, 3, 0), (2, 5, 0), (17, 4, 0), (17, 4, 3), (17, 4, 16), (17, 4, 17)]:
        for share in shares(size, world_size, drop_last=drop_last, start=start):
            whole = rows(share)
            for begin in range(share.rows + 1):
                for end in range(begin, share.rows + 1):
                    part = share.positions(begin, end)
                    assert part.dtype == np.int64
                    assert part.tolist() == whole[begin:end]


def test_padding_takes_the_first_positions_of_the_order() -> None:
    assert [rows(share) for share in shares(10, 4)] == [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]
    assert [share.num_padded for share in shares(10, 4)] == [0, 0, 1, 1]
    assert [rows(share) for share in shares(10, 4, start=9)] == [[9], [0], [1], [2]]
    assert [rows(share) for share in shares(2, 5)] == [[0], [1], [0], [1], [0]]  # fewer records than ranks
    assert [share.num_padded for share in shares(2, 5)] == [0, 0, 1, 1, 1]


def test_a_rest_that_does_not_go_round_is_dropped() -> None:
    world = shares(10, 4, drop_last=True)
    assert [rows(share) for share in world] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert [(share.num_padded, share.num_dropped) for share in world] == [(0, 2)] * 4
    assert [rows(share) for share in shares(3, 4, drop_last=True)] == [[], [], [], []]
    assert shares(3, 4, drop_last=True)[0].num_dropped == 3


def test_one_rank_pads_and_drops_nothing() -> None:
    for size in SIZES:
        for drop_last in (False, True):
            share = Share(size, drop_last=drop_last)
            assert rows(share) == list(range(size))
            assert (share.num_padded, share.num_dropped, share.remaining) == (0, 0, size)


@pytest.mark.parametrize("world_size", WORLDS)
def test_batches_are_equally_many_and_hold_all_rows(world_size: int) -> None:
    for size in SIZES:
        for batch_size in (1, 2, 3, 7, 50):
            for share in shares(size, world_size):
                sizes = [min(batch_size, share.rows - begin) for begin in range(0, share.rows, batch_size)]
                assert share.num_batches(batch_size, drop_last=False) == len(sizes)
                assert share.num_batches(batch_size, drop_last=True) == sizes.count(batch_size)


@pytest.mark.parametrize("world_size", WORLDS)
def test_another_world_goes_on_from_the_position_reached(world_size: int) -> None:
    for size in (0, 1, 5, 24, 37):
        for start in (0, size // 3, size):
            world = shares(size, world_size, start=start)
            for taken in range(world[0].rows + 1):
                read = Counter(
                    row for share in world for row in rows(share)[: min(taken, share.rows - share.num_padded)]
                )
                (position,) = {share.position_after(taken) for share in world}
                assert read == Counter(range(start, position))
                for others in (1, 2, 5):
                    rest = Counter[int]()
                    for share in shares(size, others, start=position):
                        rest.update(rows(share)[: share.rows - share.num_padded])
                    assert rest == Counter(range(position, size))
            assert position == size


def test_the_same_world_goes_on_with_the_same_rows() -> None:
    for drop_last in (False, True):
        for size in (0, 1, 5, 24, 37):
            for share in shares(size, 3, drop_last=drop_last):
                for taken in range(share.rows):
                    rest = Share(size, share.rank, 3, drop_last, share.position_after(taken))
                    assert rows(rest) == rows(share)[taken:]
                    assert rest.num_padded == share.num_padded


def test_position_after() -> None:
    share = Share(10, 2, 4)
    assert [share.position_after(n) for n in range(5)] == [0, 4, 8, 10, 10]
    share = Share(10, 0, 4, drop_last=True, start=1)
    assert [share.position_after(n) for n in range(share.rows + 3)] == [1, 5, 9, 9, 9]
    assert Share(10, start=10).position_after(0) == 10


def test_equal_rows_in_all_mean_equal_steps_for_another_split() -> None:
    """What all ranks together read in a step depends on world size times batch size only."""
    for size in (24, 37):
        steps = []
        for world_size, batch_size in [(1, 6), (2, 3), (3, 2), (6, 1)]:
            world = shares(size, world_size, drop_last=True)
            count = world[0].num_batches(batch_size, drop_last=True)
            steps.append(
                [
                    sorted(
                        position
                        for share in world
                        for position in share.positions(s * batch_size, (s + 1) * batch_size).tolist()
                    )
                    for s in range(count)
                ]
            )
        assert steps[1:] == steps[:-1]
        assert steps[0] == [list(range(s * 6, s * 6 + 6)) for s in range(size // 6)]


def test_shares_of_enormous_orders_are_arithmetic() -> None:
    size = 2**62
    share = Share(size, 2, 3)
    assert share.rows == -(-size // 3)
    assert (share.num_padded, Share(size, 0, 3).num_padded) == (1, 0)  # 2**62 = 1 (mod 3)
    assert share.positions(share.rows - 2, share.rows).tolist() == [size - 2, 1]
    assert share.positions(10**18, 10**18 + 2).tolist() == [3 * 10**18 + 2, 3 * 10**18 + 5]
    assert share.position_after(share.rows) == size
