"""The three front doors keep one set of rules: each record once or counted, equal steps, one order, exact resume."""

from __future__ import annotations

import functools
import io
import itertools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from doors import DOORS, Door, Seen, Setting, all_seen, by_step, expected, flat, seen, stream_of
from hypothesis import given, settings
from hypothesis import strategies as st
from numbered import ID, row, write, write_shards

import torch_tfrecord as tfr
from torch_tfrecord.epochs import Begun
from torch_tfrecord.order import Shuffle

MAX_RECORDS = 200
SHUFFLES: list[Shuffle] = [False, True, tfr.BlockShuffle(4, 2), tfr.QueueShuffle(7)]
DataSets = Callable[[tuple[int, ...]], tfr.TFRecordDataset]


@pytest.fixture(scope="module")
def of_sizes(tmp_path_factory: pytest.TempPathFactory) -> DataSets:
    """Makes a data set of shards with so many records each."""
    folder = tmp_path_factory.mktemp("doors")
    numbers = itertools.count()

    @functools.cache
    def make(counts: tuple[int, ...]) -> tfr.TFRecordDataset:
        place = folder / str(next(numbers))
        place.mkdir()
        paths = write_shards(place, list(counts))
        return tfr.TFRecordDataset(paths, ID, index=tfr.RecordIndex.build(paths))

    return make


@st.composite
def shards(draw: st.DrawFn) -> tuple[int, ...]:
    """Records of each file: up to 200 in all, some files empty."""
    total = draw(st.integers(0, MAX_RECORDS) | st.integers(0, 12))
    cuts = sorted(draw(st.lists(st.integers(0, total), max_size=5)))
    return tuple(end - begin for begin, end in itertools.pairwise([0, *cuts, total]))


shuffles = (
    st.booleans()
    | st.builds(tfr.BlockShuffle, st.integers(1, 20), st.integers(1, 5))
    | st.builds(tfr.QueueShuffle, st.integers(1, 60))
)
batch_sizes = st.integers(1, 40) | st.sampled_from([64, 250])
worlds = st.builds(
    Setting,
    batch_size=batch_sizes,
    shuffle=shuffles,
    seed=st.integers(-(2**70), 2**70),
    drop_last=st.booleans(),
    world_size=st.integers(1, 5),
)


def read_as_workers(door: Door, num_workers: int, epoch: int) -> list[Seen]:
    """A pass of a stream, step by step as so many workers make them and a DataLoader takes them."""
    workers = [
        door.reader._steps_of(Begun(door.setting.seed, epoch, 0), worker, num_workers) for worker in range(num_workers)
    ]
    by_turns = itertools.chain.from_iterable(itertools.zip_longest(*workers))
    return [seen(batch) for batch in by_turns if batch is not None]


# --- each record once, in one order -----------------------------------------------------------------------------------


@settings(max_examples=150)
@given(counts=shards(), world=worlds, num_workers=st.integers(1, 4))
def test_all_doors_read_every_record_once_or_count_it(
    of_sizes: DataSets, counts: tuple[int, ...], world: Setting, num_workers: int
) -> None:
    dataset = of_sizes(counts)
    size = sum(counts)
    doors = {name: [Door(name, dataset, setting) for setting in world.ranks()] for name in DOORS}
    for epoch in range(2):
        ranks = [all_seen(door) for door in doors["loader"]]
        assert ranks == [expected(size, setting, epoch=epoch) for setting in world.ranks()]
        for name in ("sampler", "stream"):
            assert [all_seen(door) for door in doors[name]] == ranks
        assert [read_as_workers(door, num_workers, epoch) for door in doors["stream"]] == ranks

        assert {len(door.batches) for of_name in doors.values() for door in of_name} == {len(ranks[0])}
        for steps in zip(*ranks, strict=True):
            assert len({len(numbers) for numbers, _ in steps}) == 1
        read = Counter(flat(ranks))
        num_padded = sum(not valid for steps in ranks for _, marks in steps for valid in marks)
        num_dropped = size - len(read)
        assert set(read.values()) <= {1}
        assert num_padded == 0 if world.drop_last or world.world_size == 1 else num_padded < world.world_size
        assert num_dropped < world.world_size * world.batch_size if world.drop_last else num_dropped == 0

        stats = [door.reader.stats() for door in doors["loader"]]
        assert {s.dropped for s in stats} == {num_dropped * (epoch + 1)}
        assert sum(s.padded for s in stats) == num_padded * (epoch + 1)
        samplers = [door.reader for door in doors["sampler"]]
        assert sum(sampler.num_padded for sampler in samplers) == num_padded
        assert {sampler.num_dropped for sampler in samplers} == {size % world.world_size if world.drop_last else 0}


@settings(max_examples=50)
@given(
    counts=shards(),
    world=worlds,
    split=st.sampled_from([(6, (1, 2, 3, 6)), (12, (1, 2, 3, 4)), (20, (1, 2, 4, 5))]),
    name=st.sampled_from(DOORS),
)
def test_a_step_depends_on_ranks_times_batch_size_only(
    of_sizes: DataSets, counts: tuple[int, ...], world: Setting, split: tuple[int, tuple[int, ...]], name: str
) -> None:
    dataset = of_sizes(counts)
    product, world_sizes = split
    steps = []
    for world_size in world_sizes:
        setting = Setting(product // world_size, world.shuffle, world.seed, world.drop_last, 0, world_size)
        steps.append(by_step([all_seen(Door(name, dataset, of_rank)) for of_rank in setting.ranks()]))
    assert steps[1:] == steps[:-1]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("name", ["sampler", "stream"])
@pytest.mark.parametrize("num_workers", [1, 4])
def test_real_workers_change_nothing(of_sizes: DataSets, name: str, num_workers: int, drop_last: bool) -> None:
    dataset = of_sizes((9, 0, 30, 14))
    for rank, shuffle in [(0, False), (1, True)]:
        setting = Setting(4, shuffle, 5, drop_last, rank, 2)
        door = Door(name, dataset, setting, num_workers=num_workers)
        for epoch in range(2):
            assert all_seen(door) == expected(53, setting, epoch=epoch)
        assert len(door.batches) == len(expected(53, setting, epoch=0))


@pytest.mark.parametrize("name", DOORS)
def test_seeds_and_epochs_are_other_orders(of_sizes: DataSets, name: str) -> None:
    dataset = of_sizes((100,))
    door = Door(name, dataset, Setting(10, shuffle=True))
    passes = [all_seen(door), all_seen(door), all_seen(Door(name, dataset, Setting(10, shuffle=True, seed=1)))]
    orders = [[number for numbers, _ in steps for number in numbers] for steps in passes]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert all(sum(map(int.__eq__, one, other)) < 10 for one, other in itertools.combinations(orders, 2))


# --- resume -----------------------------------------------------------------------------------------------------------


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """A state that went to a file and came back: by torch, and as JSON."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    back: dict[str, Any] = torch.load(file)
    text = json.dumps(state)
    assert back == state == json.loads(text)
    assert len(text) < 1000
    return back


def advance(doors: list[Door], epoch: int, steps: int) -> tuple[list[list[Seen]], dict[str, Any]]:
    """Read some steps on all ranks: what they read, and the state, which is the same on all."""
    ranks, states = [], []
    for door in doors:
        door.reader.set_epoch(epoch)
        iterator = iter(door)
        ranks.append([seen(next(iterator)) for _ in range(steps)])
        states.append(saved(door.state(steps)))
    assert states[1:] == states[:-1]
    return ranks, states[0]


def opened(name: str, dataset: tfr.TFRecordDataset, world: Setting, state: dict[str, Any]) -> list[Door]:
    """A door on each rank, to go on from a state, with another seed to begin with."""
    doors = [Door(name, dataset, Setting(world.batch_size, world.shuffle, 99, world.drop_last, s.rank, s.world_size))
             for s in world.ranks()]  # fmt: skip
    for door in doors:
        door.reader.load_state_dict(state)
    return doors


names = st.sampled_from(DOORS)
topologies = st.lists(st.tuples(st.integers(1, 5), batch_sizes, names), min_size=3, max_size=3)


@settings(max_examples=100)
@given(counts=shards(), world=worlds, parts=topologies, data=st.data())
def test_the_order_goes_on_in_another_world_and_through_another_door(
    of_sizes: DataSets, counts: tuple[int, ...], world: Setting, parts: list[tuple[int, int, str]], data: st.DataObject
) -> None:
    """Stopped twice in one epoch, each time to go on elsewhere."""
    dataset = of_sizes(counts)
    epoch = data.draw(st.integers(0, 3), label="epoch")
    whole = flat([expected(sum(counts), Setting(1, world.shuffle, world.seed), epoch=epoch)])
    state: dict[str, Any] | None = None
    read: list[int] = []
    for number, (world_size, batch_size, name) in enumerate(parts):
        here = Setting(batch_size, world.shuffle, world.seed, world.drop_last, 0, world_size)
        if state is None:
            doors = [Door(name, dataset, setting) for setting in here.ranks()]
        else:
            doors = opened(name, dataset, here, state)
        start = len(read)
        rest = [expected(sum(counts), setting, epoch=epoch, start=start) for setting in here.ranks()]
        num_steps = len(rest[0])
        steps = data.draw(st.integers(0, num_steps), label="steps") if number < 2 else num_steps
        ranks, state = advance(doors, epoch, steps)
        assert ranks == [of_rank[:steps] for of_rank in rest]
        read += flat(ranks)
        assert state == {**state, "epoch": epoch, "position": len(read), "seed": world.seed}
        assert read == whole[: len(read)]
    if not world.drop_last:
        assert read == whole


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("name", DOORS)
def test_at_every_boundary_the_remaining_steps_are_the_same(
    of_sizes: DataSets, name: str, drop_last: bool, shuffle: Shuffle
) -> None:
    dataset = of_sizes((20, 0, 17))
    worlds = [Setting(batch_size, shuffle, 3, drop_last, 0, 6 // batch_size) for batch_size in (3, 2, 6)]
    whole = [[expected(37, setting, epoch=e) for setting in worlds[0].ranks()] for e in (1, 2)]
    doors = [Door(name, dataset, setting) for setting in worlds[0].ranks()]
    for steps in range(len(whole[0][0]) + 1):
        ranks, state = advance(doors, 1, steps)
        assert ranks == [rank[:steps] for rank in whole[0]]
        for world in worlds:
            others = opened(name, dataset, world, state)
            assert {other.reader.epoch for other in others} == {1}
            assert by_step([all_seen(other) for other in others]) == by_step([rank[steps:] for rank in whole[0]])
            assert by_step([all_seen(other) for other in others]) == by_step(whole[1])
            if world == worlds[0]:
                again = opened(name, dataset, world, state)
                assert [all_seen(other) for other in again] == [rank[steps:] for rank in whole[0]]


@pytest.mark.parametrize("name", DOORS)
def test_after_the_last_batch_and_after_the_end(of_sizes: DataSets, name: str) -> None:
    dataset = of_sizes((10,))
    setting = Setting(4, True)
    for drop_last in (False, True):
        setting = Setting(4, True, drop_last=drop_last)
        door = Door(name, dataset, setting)
        count = len(door.batches)
        for delivered, _ in enumerate(door, 1):
            state = door.state(delivered)
        assert (state["epoch"], state["position"]) == (0, 10 if not drop_last else 8)
        resumed = Door(name, dataset, setting)
        resumed.reader.load_state_dict(state)
        assert resumed.reader.epoch == 0
        assert all_seen(resumed) == []
        assert resumed.reader.epoch == 1
        assert all_seen(resumed) == expected(10, setting, epoch=1)

        state = door.reader.state_dict()
        assert (state["epoch"], state["position"]) == (1, 0)
        assert door.state(count)["epoch"] == (1 if name == "loader" else 0)  # where they are counted, in that pass
        resumed = Door(name, dataset, setting)
        resumed.reader.load_state_dict(state)
        assert all_seen(resumed) == expected(10, setting, epoch=1)


@pytest.mark.parametrize("name", DOORS)
def test_load_before_and_after_iter(of_sizes: DataSets, name: str) -> None:
    dataset = of_sizes((23,))
    setting = Setting(4, True, seed=2)
    whole = expected(23, setting, epoch=0)
    _, state = advance([Door(name, dataset, setting)], 0, 2)
    door = Door(name, dataset, setting)
    iterator = iter(door)
    door.reader.load_state_dict(state)
    assert all_seen(iterator) == whole[2:]  # nothing had begun
    iterator = iter(door)
    first = seen(next(iterator))
    door.reader.load_state_dict(state)
    assert [first, *all_seen(iterator)] == expected(23, setting, epoch=1)  # a pass at work goes on
    assert all_seen(door) == whole[2:]
    assert all_seen(door) == expected(23, setting, epoch=1)


@pytest.mark.parametrize("name", DOORS)
def test_a_state_that_was_loaded_can_be_saved_again(of_sizes: DataSets, name: str) -> None:
    dataset = of_sizes((23,))
    setting = Setting(4, True, seed=2)
    _, state = advance([Door(name, dataset, setting)], 3, 2)
    door = Door(name, dataset, setting)
    door.reader.load_state_dict(state)
    assert door.reader.state_dict() == door.state(0) == state
    iter(door)
    assert door.reader.state_dict() == state
    next(iter(door))
    assert door.state(1) == {**state, "position": 12}


@pytest.mark.parametrize("name", DOORS)
def test_a_pass_stopped_early_can_be_resumed_in_the_same_reader(of_sizes: DataSets, name: str) -> None:
    dataset = of_sizes((23,))
    setting = Setting(4, True)
    door = Door(name, dataset, setting)
    for delivered, _ in enumerate(door, 1):
        if delivered == 3:
            break
    state = door.state(3)
    assert (state["epoch"], state["position"]) == (0, 12)
    assert all_seen(door) == expected(23, setting, epoch=1)  # a break ends a pass
    door.reader.load_state_dict(state)
    assert all_seen(door) == expected(23, setting, epoch=0)[3:]


# --- epochs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOORS)
def test_epochs_are_counted_at_the_first_batch(of_sizes: DataSets, name: str) -> None:
    dataset = of_sizes((12,))
    setting = Setting(5, True)
    door = Door(name, dataset, setting)
    for _ in range(3):
        iter(door)
    assert door.reader.epoch == 0
    assert all_seen(door) == expected(12, setting, epoch=0)
    assert door.reader.epoch == 1
    iterator = iter(door)
    next(iterator)
    assert door.reader.epoch == 1
    del iterator
    assert all_seen(door) == expected(12, setting, epoch=2)


@pytest.mark.parametrize("name", DOORS)
def test_set_epoch(of_sizes: DataSets, name: str) -> None:
    dataset = of_sizes((12,))
    setting = Setting(5, True)
    door = Door(name, dataset, setting)
    door.reader.set_epoch(7)
    assert door.reader.epoch == 7
    assert all_seen(door) == expected(12, setting, epoch=7)
    assert all_seen(door) == expected(12, setting, epoch=8)
    for epoch in (0, 0, 3):
        door.reader.set_epoch(epoch)
        assert all_seen(door) == expected(12, setting, epoch=epoch)
    iterator = iter(door)
    next(iterator)
    door.reader.set_epoch(0)  # for the next pass, not for the one at work
    assert all_seen(iterator) == expected(12, setting, epoch=4)[1:]
    assert all_seen(door) == expected(12, setting, epoch=0)
    for wrong in (-1, 2**63):
        with pytest.raises(ValueError, match=f"epoch is {wrong}"):
            door.reader.set_epoch(wrong)
    for nothing in (1.0, "1", None, True):
        with pytest.raises(TypeError, match="not an integer"):
            door.reader.set_epoch(nothing)


@pytest.mark.parametrize("name", DOORS)
def test_set_epoch_of_a_loaded_epoch_keeps_the_place(of_sizes: DataSets, name: str) -> None:
    """Trainers call it at the start of each epoch, of the one they resume too."""
    dataset = of_sizes((23,))
    setting = Setting(4, True)
    _, state = advance([Door(name, dataset, setting)], 5, 2)
    door = Door(name, dataset, setting)
    door.reader.load_state_dict(state)
    door.reader.set_epoch(5)
    assert all_seen(door) == expected(23, setting, epoch=5)[2:]
    door.reader.set_epoch(5)
    assert all_seen(door) == expected(23, setting, epoch=5)
    door.reader.load_state_dict(state)
    door.reader.set_epoch(6)
    assert all_seen(door) == expected(23, setting, epoch=6)


@pytest.mark.parametrize("name", DOORS)
def test_two_iterators_at_once_are_two_epochs(of_sizes: DataSets, name: str) -> None:
    dataset = of_sizes((23,))
    setting = Setting(4, True)
    door = Door(name, dataset, setting)
    one, other = iter(door), iter(door)
    pairs = list(zip(one, other, strict=True))
    assert all_seen(first for first, _ in pairs) == expected(23, setting, epoch=0)
    assert all_seen(second for _, second in pairs) == expected(23, setting, epoch=1)
    assert all_seen(door) == expected(23, setting, epoch=2)


@pytest.mark.parametrize("name", DOORS)
def test_the_state_follows_the_pass_that_began_last(of_sizes: DataSets, name: str) -> None:
    dataset = of_sizes((23,))
    door = Door(name, dataset, Setting(4, True))
    old = iter(door)
    next(old)
    new = iter(door)
    next(new)
    next(new)
    next(old)
    state = door.state(2)
    assert (state["epoch"], state["position"], door.reader.epoch) == (1, 8, 1)
    assert len(list(old)) == 4
    state = door.state(2)
    assert (state["epoch"], state["position"], door.reader.epoch) == (1, 8, 1)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOORS)
def test_states_of_something_else_are_refused(tmp_path: Path, name: str) -> None:
    one, two, three = tmp_path / "1", tmp_path / "2", tmp_path / "3"
    for folder in (one, two, three):
        folder.mkdir()
    paths = write_shards(one, [30, 10])
    dataset = tfr.TFRecordDataset(paths, ID)
    longer = tfr.TFRecordDataset(write_shards(two, [30, 11]), ID)
    write_shards(three, [30, 10])
    with tfr.TFRecordWriter(three / "data-00001-of-00002") as writer:
        for i in range(30, 40):
            writer.write_example({**row(i), "name": b"RECORD 35"} if i == 35 else row(i))
    changed = tfr.TFRecordDataset(str(three), ID)
    assert changed.index.lengths.tolist() == dataset.index.lengths.tolist()

    def door(data: tfr.TFRecordDataset, shuffle: Shuffle) -> Door:
        return Door(name, data, Setting(4, shuffle))

    _, state = advance([door(dataset, tfr.QueueShuffle(20, 4))], 0, 3)
    same: Shuffle = tfr.QueueShuffle(20, 10)  # min_after_dequeue does not change the order
    door(dataset, same).reader.load_state_dict(state)
    for data, reason in [
        (longer, "of other data: 40 records then, 41 now"),
        (changed, "of other data: the same number of records, other content"),
        (dataset[1:], "of other data: 40 records then, 39 now"),
        (dataset[::-1], "of other data: the same number of records, other content"),
        (dataset.select([0, 0, *range(2, 40)]), "of other data: the same number of records, other content"),
    ]:
        with pytest.raises(tfr.StateError, match=reason):
            door(data, same).reader.load_state_dict(state)
    for shuffle in (False, True, tfr.QueueShuffle(21), tfr.BlockShuffle()):
        with pytest.raises(tfr.StateError, match=r"in order 'QueueShuffle\(capacity=20\)/1', this is"):
            door(dataset, shuffle).reader.load_state_dict(state)
    reader = door(dataset, same).reader
    before = reader.state_dict()
    with pytest.raises(tfr.StateError, match="no state of version 1: its version is 2"):
        reader.load_state_dict({**state, "version": 2})
    assert reader.state_dict() == before


def test_the_same_records_in_other_files_are_the_same_data(tmp_path: Path) -> None:
    """Paths and times do not count; and a selection is what it selects, however it was written."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    one, other = (tfr.TFRecordDataset(write_shards(tmp_path / name, [9, 8]), ID) for name in ("a", "b"))
    assert one.fingerprint == other.fingerprint
    _, state = advance([Door("loader", one, Setting(4, True))], 0, 2)
    Door("sampler", other, Setting(4, True)).reader.load_state_dict(state)
    _, state = advance([Door("loader", one[::2], Setting(4, True))], 0, 2)
    stream = tfr.TFRecordIterableDataset(other.index.paths, ID, batch_size=2, shuffle=True, subset=range(0, 17, 2))
    stream.load_state_dict(state)
    assert stream.epoch == 0


# --- real workers, stopped --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sampler", "stream"])
def test_with_workers_the_number_of_batches_says_where_it_stopped(of_sizes: DataSets, name: str) -> None:
    """Workers run ahead of the loop, so the caller counts."""
    dataset = of_sizes((40, 23))
    setting = Setting(4, True, seed=3, rank=1, world_size=2)
    whole = expected(63, setting, epoch=0)
    for stop in (1, 3, len(whole)):
        door = Door(name, dataset, setting, num_workers=2)
        read = []
        for batch in door:
            read.append(seen(batch))
            if len(read) == stop:
                break
        state = saved(door.state(stop))
        assert (state["epoch"], state["position"]) == (0, min(stop * 8, 63))
        resumed = Door(name, dataset, setting, num_workers=2)
        resumed.reader.load_state_dict(state)
        assert read + all_seen(resumed) == whole
        assert all_seen(resumed) == expected(63, setting, epoch=1)


def test_a_stream_counts_from_where_its_pass_began(of_sizes: DataSets) -> None:
    dataset = of_sizes((40, 23))
    stream = stream_of(dataset, batch_size=4, shuffle=True, rank=0, world_size=1)
    _, state = advance([Door("loader", dataset, Setting(4, True))], 0, 5)
    stream.load_state_dict(state)
    for number, batch in enumerate(stream, 1):
        assert stream.state_dict() == stream.state_dict(batches=number)
        assert stream.state_dict()["position"] == min(20 + 4 * number, 63)
        assert seen(batch) == expected(63, Setting(4, True), epoch=0)[number + 4]


def test_they_show_what_they_are(tmp_path: Path) -> None:
    path = write(tmp_path / "data.tfrecord", 5)
    dataset = tfr.TFRecordDataset(path, ID)
    loader = tfr.TFRecordLoader(dataset, 2, shuffle=True, seed=3, rank=1, world_size=2)
    parts = "batch_size=2, order='permutation/1', seed=3, drop_last=False, rank=1, world_size=2)"
    assert repr(loader) == f"TFRecordLoader(TFRecordDataset(5 records in 1 file), {parts}"
    stream = tfr.TFRecordIterableDataset(path, ID, batch_size=2, shuffle=True, seed=3, rank=1, world_size=2)
    assert repr(stream) == f"TFRecordIterableDataset(TFRecordDataset(5 records in 1 file), {parts}"
    sampler = tfr.RecordSampler(dataset, seed=3, rank=1, num_replicas=2)
    rest = "order='permutation/1', seed=3, drop_last=False, rank=1, num_replicas=2)"
    assert repr(sampler) == f"RecordSampler(3 rows, {rest}"


def test_mixed_up_arguments_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "data.tfrecord", 5)
    with pytest.raises(TypeError, match="make a TFRecordDataset of the paths first"):
        tfr.TFRecordLoader(path, 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes paths, not a data set"):
        tfr.TFRecordIterableDataset(tfr.TFRecordDataset(path, ID), ID, batch_size=2)
