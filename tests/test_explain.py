"""Who reads what: hand-computed cases, a check that notices what is wrong, text for people."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from torch_tfrecord import explain as module
from torch_tfrecord.explain import CHECK_LIMIT, RankReads, StepReads, WorkerReads, explain, reads_exactly_once
from torch_tfrecord.order import BlockShuffle, Order, QueueShuffle, open_order
from torch_tfrecord.shard import Share

SHUFFLES: list[Any] = [False, True, BlockShuffle(3, 2), QueueShuffle(4, 3)]


class Listed:
    """An order that is what a test says it is."""

    def __init__(self, *records: int) -> None:
        self.records = np.array(records, np.int64)
        self.size = len(records)

    def indices(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.records[positions]


def pieces(*lists: list[int]) -> Iterator[NDArray[np.int64]]:
    return (np.array(positions, np.int64) for positions in lists)


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_a_tail_of_short_batches_and_padding() -> None:
    plan = explain(10, batch_size=2, world_size=4, num_workers=2)
    assert (plan.steps, plan.num_padded, plan.num_dropped) == (2, 2, 0)
    workers = (WorkerReads(0, batches=1, rows=2), WorkerReads(1, batches=1, rows=1))
    assert plan.ranks == tuple(RankReads(rank, 3, 2, 1, int(rank >= 2), 0, workers) for rank in range(4))
    assert plan.first_steps[:5] == (
        StepReads(0, 0, 0, 2, (0, 4)),
        StepReads(0, 1, 0, 2, (1, 5)),
        StepReads(0, 2, 0, 2, (2, 6)),
        StepReads(0, 3, 0, 2, (3, 7)),
        StepReads(1, 0, 1, 1, (8,)),
    )
    assert (plan.exactly_once, plan.checked) == (True, "all")


def test_drop_last_counts_both_causes() -> None:
    plan = explain(103, batch_size=10, world_size=4, num_workers=2, drop_last=True)
    # 103 = 4 ranks x 25 rows + 3 that do not go round; 25 rows = 2 batches + 5 rows a rank
    assert (plan.steps, plan.num_padded, plan.num_dropped) == (2, 0, 3 + 4 * 5)
    assert plan.ranks[3] == RankReads(3, 20, 2, 10, 0, 5, (WorkerReads(0, 1, 10), WorkerReads(1, 1, 10)))
    assert plan.exactly_once


def test_workers_take_steps_in_turn() -> None:
    plan = explain(100, batch_size=8, num_workers=3)  # 13 batches, the last of 4 rows is step 12: worker 0
    assert plan.ranks[0].workers == (WorkerReads(0, 5, 36), WorkerReads(1, 4, 32), WorkerReads(2, 4, 32))
    assert [reads.worker for reads in plan.first_steps] == [0, 1, 2]
    assert explain(100, batch_size=8).ranks[0].workers == (WorkerReads(0, 13, 100),)
    idle = explain(5, batch_size=8, num_workers=3).ranks[0].workers
    assert idle == (WorkerReads(0, 1, 5), WorkerReads(1, 0, 0), WorkerReads(2, 0, 0))


def test_a_resumed_epoch_on_other_ranks() -> None:
    plan = explain(100, batch_size=4, start=90, world_size=3)  # 10 records remain: 4 rows a rank, 2 repeat
    assert [(rank.rows, rank.batches, rank.padded) for rank in plan.ranks] == [(4, 1, 0), (4, 1, 1), (4, 1, 1)]
    assert [reads.records for reads in plan.first_steps] == [(90, 93, 96, 99), (91, 94, 97, 0), (92, 95, 98, 1)]
    assert (plan.start, plan.num_padded, plan.exactly_once) == (90, 2, True)
    assert explain(100, batch_size=4, start=100).steps == 0


def test_fewer_records_than_ranks() -> None:
    plan = explain(2, batch_size=8, world_size=5)
    assert [reads.records for reads in plan.first_steps] == [(0,), (1,), (0,), (1,), (0,)]
    assert (plan.num_padded, plan.exactly_once) == (3, True)
    assert explain(2, batch_size=8, world_size=5, drop_last=True).num_dropped == 2


def test_no_records() -> None:
    plan = explain(0, batch_size=8, world_size=2, num_workers=1)
    assert plan.ranks == tuple(RankReads(rank, 0, 0, 0, 0, 0, (WorkerReads(0, 0, 0),)) for rank in range(2))
    assert (plan.steps, plan.first_steps, plan.exactly_once) == (0, (), True)


@pytest.mark.parametrize("batch_size", [2**61, 2**62, 10**30])
def test_a_batch_larger_than_any_data(batch_size: int) -> None:
    plan = explain(10, batch_size=batch_size, world_size=3, num_workers=2)
    assert ([rank.last_batch for rank in plan.ranks], plan.exactly_once) == ([4, 4, 4], True)


def test_one_rank_is_described_and_all_are_checked() -> None:
    whole = explain(103, batch_size=10, world_size=4, shuffle=True)
    plan = explain(103, batch_size=10, world_size=4, shuffle=True, rank=2)
    assert plan.ranks == whole.ranks[2:3]
    assert plan.first_steps == tuple(reads for reads in whole.first_steps if reads.rank == 2)
    assert len(plan.first_steps) == 3
    assert (plan.num_padded, plan.exactly_once) == (whole.num_padded, True) == (1, True)


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_first_steps_follow_the_order(shuffle: Any) -> None:
    plan = explain(50, batch_size=6, shuffle=shuffle, seed=7, epoch=3, world_size=2, start=8)
    records = open_order(shuffle, 50, seed=7, epoch=3).indices(np.arange(50)).tolist()
    assert [reads.records for reads in plan.first_steps] == [
        tuple(records[8 + step * 12 + rank :: 2][:4]) for step in range(3) for rank in range(2)
    ]
    assert (plan.seed, plan.epoch) == (7, 3)


@given(
    size=st.integers(0, 200),
    part=st.floats(0, 1),
    world_size=st.integers(1, 5),
    num_workers=st.integers(0, 4),
    batch_size=st.integers(1, 30),
    drop_last=st.booleans(),
    shuffle=st.sampled_from(SHUFFLES),
)
def test_numbers_agree_with_one_another(
    size: int, part: float, world_size: int, num_workers: int, batch_size: int, drop_last: bool, shuffle: Any
) -> None:
    start = int(size * part)
    plan = explain(
        size,
        batch_size=batch_size,
        shuffle=shuffle,
        start=start,
        world_size=world_size,
        num_workers=num_workers,
        drop_last=drop_last,
    )
    assert plan.exactly_once
    assert sum(rank.rows for rank in plan.ranks) == size - start - plan.num_dropped + plan.num_padded
    assert plan.num_padded < world_size
    assert plan.num_dropped < world_size * batch_size
    assert 0 in {plan.num_padded, plan.num_dropped}
    for rank in plan.ranks:
        assert rank.batches == plan.steps
        assert sum(worker.batches for worker in rank.workers) == plan.steps
        assert sum(worker.rows for worker in rank.workers) == rank.rows
        assert rank.rows == max(plan.steps - 1, 0) * batch_size + rank.last_batch
        assert rank.last_batch <= batch_size
        assert len(rank.workers) == max(num_workers, 1)
    assert len(plan.first_steps) == min(plan.steps, 3) * world_size
    assert str(plan).endswith("(every row was enumerated)")


# --- the check --------------------------------------------------------------------------------------------------------


def test_the_check_accepts_what_is_right() -> None:
    order = Listed(2, 0, 3, 1)
    assert reads_exactly_once(order, [pieces([0, 2]), pieces([1], [3])], 0, 0)
    assert reads_exactly_once(order, [pieces([2], [1])], 1, 1)
    assert reads_exactly_once(Listed(), [pieces([])], 0, 0)


@pytest.mark.parametrize(
    "records",
    [(2, 0, 2, 1), (0, 1, 2, 4), (0, 1, 2, -1), (0, 0, 2, 3), (0, 1, 3, 3)],
    ids=["a duplicate", "too large", "negative", "a duplicate before the start", "a duplicate among the dropped"],
)
def test_the_check_notices_an_order_that_is_no_permutation(records: tuple[int, ...]) -> None:
    assert not reads_exactly_once(Listed(*records), [pieces([0, 1, 2, 3])], 0, 0)
    assert not reads_exactly_once(Listed(*records), [pieces([2])], 2, 1)


@pytest.mark.parametrize(
    ("readers", "start", "num_dropped"),
    [
        ([[0, 1], [2]], 0, 0),  # one is missing
        ([[0, 1], [2, 3, 3]], 0, 0),  # one is read twice in a piece
        ([[0, 1], [1, 2, 3]], 0, 0),  # one is read twice, by two readers
        ([[0, 1], [1, 3]], 0, 0),  # one instead of another
        ([[0, 1, 2, 3]], 1, 0),  # one that was read before the start
        ([[0, 1, 2, 3]], 0, 1),  # one that is counted as dropped
        ([[0, 1, 2]], 1, 0),  # the wrong end
        ([[0, 1, 2, 3], *[[0]] * 256], 0, 0),  # so often that a byte comes round
        ([], 0, 0),
    ],
)
def test_the_check_notices_wrong_readers(readers: list[list[int]], start: int, num_dropped: int) -> None:
    assert not reads_exactly_once(Listed(2, 0, 3, 1), [pieces(reader) for reader in readers], start, num_dropped)


def test_a_broken_order_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    order: Order = Listed(0, 1, 2, 3, 3)
    monkeypatch.setattr(module, "open_order", lambda *args, **options: order)
    plan = explain(5, batch_size=2, shuffle=True)
    assert not plan.exactly_once
    assert str(plan).splitlines()[-1] == (
        "check  FAILED: not every record is read exactly once (every row was enumerated)"
    )


@pytest.mark.parametrize("limit", [CHECK_LIMIT, 0], ids=["enumerated", "arithmetic"])
def test_broken_shares_are_reported(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(Share):
        @property
        def rows(self) -> int:
            return super().rows - 1

    monkeypatch.setattr(module, "CHECK_LIMIT", limit)
    assert explain(20, batch_size=2, world_size=2).exactly_once
    monkeypatch.setattr(module, "Share", Short)
    assert not explain(20, batch_size=2, world_size=2).exactly_once


def test_the_check_takes_pieces_across_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The positions of a rank, worker by worker, with rows to a piece as few as can be."""
    monkeypatch.setattr(module, "_CHUNK", 1)
    share = Share(23, 1, 2)  # rows 1, 3, .. 21, and one that pads
    found = [piece.tolist() for piece in module._Division(3, 2, drop_last=False).pieces(share)]
    assert found == [[1, 3, 5], [7, 9, 11], [], [13, 15, 17], [], [19, 21]]
    for shuffle in SHUFFLES:
        assert explain(23, batch_size=3, world_size=2, num_workers=2, shuffle=shuffle).exactly_once


def test_above_the_limit_the_check_is_arithmetic() -> None:
    plan = explain(10**15 + 1, batch_size=100, world_size=8, num_workers=4, shuffle=True)
    assert (plan.exactly_once, plan.checked, plan.num_padded) == (True, "arithmetic", 7)
    assert str(plan).splitlines()[-1] == (
        "check  1,000,000,000,000,001 records, each read exactly once, repeated rows aside "
        "(by arithmetic: too many records to enumerate)"
    )
    assert explain(CHECK_LIMIT + 1, batch_size=1).checked == "arithmetic"
    assert explain(2**62, batch_size=2**61, shuffle=BlockShuffle()).steps == 2


@pytest.mark.parametrize("shuffle", [True, BlockShuffle(), QueueShuffle(10_000)])
def test_the_check_at_its_limit(shuffle: Any) -> None:
    plan = explain(CHECK_LIMIT, batch_size=32, world_size=3, num_workers=2, shuffle=shuffle)
    assert (plan.exactly_once, plan.checked, plan.num_padded) == (True, "all", 2)


# --- text and data ----------------------------------------------------------------------------------------------------


def test_text() -> None:
    plan = explain(100, batch_size=8, world_size=3, num_workers=2, start=9, seed=-5, epoch=2)
    assert str(plan).splitlines() == [
        "records  100",
        "start    position 9: 91 records left to read",
        "order    sequential/1, seed -5, epoch 2",
        "readers  3 ranks, 2 workers each; batches of 8 rows",
        "",
        "rank  worker  batches  rows  last batch  repeated",
        "0     all           4    31           7         0",
        "      0             2    16",
        "      1             2    15",
        "1-2   all           4    31           7         1",
        "      0             2    16",
        "      1             2    15",
        "",
        "step  rank  worker  rows  records",
        "0     0     0          8  9, 12, 15, 18, ...",
        "0     1     0          8  10, 13, 16, 19, ...",
        "0     2     0          8  11, 14, 17, 20, ...",
        "1     0     1          8  33, 36, 39, 42, ...",
        "1     1     1          8  34, 37, 40, 43, ...",
        "1     2     1          8  35, 38, 41, 44, ...",
        "2     0     0          8  57, 60, 63, 66, ...",
        "2     1     0          8  58, 61, 64, 67, ...",
        "2     2     0          8  59, 62, 65, 68, ...",
        "",
        "tail   the last batch of each rank has 7 rows; 2 rows repeat records, so that all ranks read equally many",
        "check  91 records, each read exactly once, repeated rows aside (every row was enumerated)",
    ]


def test_text_of_one_rank_that_drops() -> None:
    plan = explain(11, batch_size=2, world_size=3, drop_last=True, rank=1)
    assert str(plan).splitlines() == [
        "records  11",
        "order    sequential/1, seed 0, epoch 0",
        "readers  rank 1 of 3, no workers; batches of 2 rows",
        "",
        "rank  worker  batches  rows  last batch  left out",
        "1     all           1     2           2         1",
        "",
        "step  rank  worker  rows  records",
        "0     1     -          2  1, 4",
        "",
        "tail   all batches are full; 5 records left out: 2 for want of a full round of the ranks, 3 for want of full batches",
        "check  6 records, each read exactly once (every row was enumerated)",
    ]


def test_text_stays_short() -> None:
    plan = explain(10**6, batch_size=64, world_size=64, num_workers=16, shuffle=True)
    lines = str(plan).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 120
    start = lines.index("rank  worker  batches    rows  last batch  repeated")
    assert lines[start + 1 : start + 5] == [
        "0-63  all         245  15,625           9         0",
        "      0-3          16   1,024",
        "      4            16     969",
        "      5-15         15     960",
    ]
    steps = [line.split()[:3] for line in lines if line.endswith("...")]
    assert steps[:4] == [["0", "0", "0"], ["0", "1", "0"], ["..."], ["0", "63", "0"]]
    assert len(steps) == 12


@pytest.mark.parametrize(
    ("size", "options", "tail", "check"),
    [
        (0, {}, "no batches", "0 records, each read exactly once"),
        (8, {}, "all batches are full", "8 records, each read exactly once"),
        (9, {}, "the last batch of each rank has 1 row", "9 records, each read exactly once"),
        (
            3,
            {"world_size": 2},
            "the last batch of each rank has 2 rows; 1 row repeats a record, so that all ranks read equally many",
            "3 records, each read exactly once, repeated rows aside",
        ),
        (
            1,
            {"drop_last": True},
            "no batches; 1 record left out: 1 for want of full batches",
            "0 records, each read exactly once",
        ),
        (
            9,
            {"drop_last": True, "world_size": 2},
            "all batches are full; 1 record left out: 1 for want of a full round of the ranks",
            "8 records, each read exactly once",
        ),
    ],
)
def test_the_tail_in_words(size: int, options: dict[str, Any], tail: str, check: str) -> None:
    lines = str(explain(size, batch_size=4, **options)).splitlines()
    assert lines[-2:] == [f"tail   {tail}", f"check  {check} (every row was enumerated)"]


def test_padding_is_marked_where_it_is_shown() -> None:
    assert "0     2     -          4  2, 5, 8, 0 again" in str(explain(11, batch_size=4, world_size=3)).splitlines()
    assert "again" not in str(explain(14, batch_size=5, world_size=3))  # the fifth row is not shown
    assert Counter(str(explain(11, batch_size=2, world_size=3)).split())["again"] == 1


def test_plain_data() -> None:
    plan = explain(10, batch_size=2, world_size=4, shuffle=QueueShuffle(3))
    document = json.loads(json.dumps(dataclasses.asdict(plan)))
    assert document["order"] == "QueueShuffle(capacity=3)/1"
    assert document["ranks"][2] == {
        "rank": 2,
        "rows": 3,
        "batches": 2,
        "last_batch": 1,
        "padded": 1,
        "dropped": 0,
        "workers": [{"worker": 0, "batches": 2, "rows": 3}],
    }
    assert document["exactly_once"] is True


def test_numpy_integers_become_ints() -> None:
    plan = explain(np.int64(10), batch_size=np.int32(2), seed=np.int64(1), start=np.int64(2), world_size=np.int8(2))
    assert plan == explain(10, batch_size=2, seed=1, start=2, world_size=2)
    json.dumps(dataclasses.asdict(plan))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0, and must be at least 1"),
        ({"world_size": 0}, "world_size is 0, and must be at least 1"),
        ({"num_workers": -1}, "num_workers is -1, and must be at least 0"),
        ({"start": -1}, r"start is -1, and must be in \[0, 10\]"),
        ({"start": 11}, r"start is 11, and must be in \[0, 10\]"),
        ({"rank": 2, "world_size": 2}, r"rank is 2, and must be in \[0, 1\]"),
        ({"rank": -1}, r"rank is -1, and must be in \[0, 0\]"),
    ],
)
def test_numbers_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        explain(10, **{"batch_size": 2, **options})


def test_other_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="number of records"):
        explain(-1, batch_size=2)
    with pytest.raises(TypeError, match="shuffle must be"):
        explain(10, batch_size=2, shuffle="full")  # type: ignore[arg-type]
    options: dict[str, Any]
    for options in ({"batch_size": 2.0}, {"batch_size": 2, "seed": 0.5}, {"batch_size": 2, "world_size": "2"}):
        with pytest.raises(TypeError):
            explain(10, **options)


def test_no_torch_is_needed() -> None:
    code = """
import sys
from torch_tfrecord.explain import explain
str(explain(100, batch_size=8, shuffle=True))
assert "torch" not in sys.modules, "imported"
"""
    subprocess.run([sys.executable, "-c", code], check=True)
