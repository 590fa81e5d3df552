"""torchdata's ``StatefulDataLoader`` over a `TFRecordIterableDataset`: saved at any batch, and taken up by a new one."""

from __future__ import annotations

import copy
import json
import traceback
from pathlib import Path
from typing import Any

import pytest
from doors import Seen, Setting, all_seen, expected
from numbered import ID, write, write_shards
from torchdata.stateful_dataloader import StatefulDataLoader

import torch_tfrecord as tfr

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than there are cores
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # by torch; torchdata calls it
]

COUNT = 31
SETTING = Setting(4, shuffle=True, seed=5)
STEPS = 8


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_shards(tmp_path_factory.mktemp("stateful"), [20, 11])


def stream_of(paths: Any, setting: Setting = SETTING) -> tfr.TFRecordIterableDataset:
    return tfr.TFRecordIterableDataset(
        paths,
        ID,
        batch_size=setting.batch_size,
        shuffle=setting.shuffle,
        seed=setting.seed,
        rank=setting.rank,
        world_size=setting.world_size,
    )


def loader_of(stream: Any, num_workers: int, **options: Any) -> Any:
    return StatefulDataLoader(stream, batch_size=None, num_workers=num_workers, **options)


def epoch_of(number: int, setting: Setting = SETTING) -> list[Seen]:
    return expected(COUNT, setting, epoch=number)


def states_of(loader: Any) -> list[Any]:
    """The states of a pass: before it, after each batch, and after its end."""
    states = [as_saved(loader.state_dict())]
    states += [as_saved(loader.state_dict()) for _ in loader]
    return [*states, as_saved(loader.state_dict())]


def as_saved(state: Any) -> Any:
    return json.loads(json.dumps(state))


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
def test_resume_at_every_batch(paths: list[str], num_workers: int) -> None:
    loader = loader_of(stream_of(paths), num_workers)
    assert all_seen(loader) == epoch_of(0)
    states = states_of(loader)
    for step, state in enumerate(states[: STEPS + 1]):
        stream = stream_of(paths, Setting(4, True, 99))  # its seed is taken over
        other = loader_of(stream, num_workers)
        other.load_state_dict(state)
        assert all_seen(other) == epoch_of(1)[step:]
        assert stream.seed == SETTING.seed
        assert all_seen(other) == epoch_of(2)
    other = loader_of(stream_of(paths), num_workers)
    other.load_state_dict(states[-1])
    assert all_seen(other) == epoch_of(2)
    assert all_seen(other) == epoch_of(3)


@pytest.mark.parametrize(
    "options", [{"snapshot_every_n_steps": 3}, {"persistent_workers": True}, {"prefetch_factor": 1}]
)
def test_options_of_the_loader(paths: list[str], options: dict[str, Any]) -> None:
    states = states_of(loader_of(stream_of(paths), 2, **options))
    for step in (0, 1, 4, 7, 8, 9):
        loader = loader_of(stream_of(paths), 2, **options)
        loader.load_state_dict(copy.deepcopy(states[step]))
        rest = epoch_of(0)[step:] if step <= STEPS else epoch_of(1)  # the last state is of after the end
        assert all_seen(loader) == rest
        assert all_seen(loader) == epoch_of(2 if step > STEPS else 1)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resumed_twice_in_an_epoch(paths: list[str], num_workers: int) -> None:
    state = states_of(loader_of(stream_of(paths), num_workers))[2]
    loader = loader_of(stream_of(paths), num_workers)
    loader.load_state_dict(state)
    again = states_of(loader)[3]
    loader.load_state_dict(again)  # into a loader that is in use
    assert all_seen(loader) == epoch_of(0)[5:]
    assert all_seen(loader) == epoch_of(1)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_set_epoch(paths: list[str], num_workers: int) -> None:
    stream = stream_of(paths)
    stream.set_epoch(6)
    state = states_of(loader_of(stream, num_workers))[3]
    stream = stream_of(paths)
    loader = loader_of(stream, num_workers)
    loader.load_state_dict(state)
    for epoch, rest in ((6, epoch_of(6)[3:]), (7, epoch_of(7)), (20, epoch_of(20))):
        stream.set_epoch(epoch)
        assert all_seen(loader) == rest
        assert stream.state_dict(batches=0)["epoch"] == epoch


def test_a_state_does_for_all_ranks(paths: list[str]) -> None:
    ranks = [Setting(4, True, 5, rank=rank, world_size=2) for rank in range(2)]
    state = states_of(loader_of(stream_of(paths, ranks[0]), 2))[2]
    for setting in ranks:
        loader = loader_of(stream_of(paths, setting), 2)
        loader.load_state_dict(state)
        assert all_seen(loader) == epoch_of(0, setting)[2:]


def test_with_workers_other_numbers_are_refused(paths: list[str], tmp_path: Path) -> None:
    state = states_of(loader_of(stream_of(paths), 2))[3]

    def refused(error: type[Exception], match: str, num_workers: int, stream: Any) -> None:
        loader = loader_of(stream, num_workers)
        loader.load_state_dict(copy.deepcopy(state))
        with pytest.raises(error, match=match) as caught:
            iter(loader)
        traceback.clear_frames(caught.value.__traceback__)  # which hold the iterator, and so its workers

    refused(
        tfr.StateError, "is of worker 0 of num_workers=2, .* this is worker 0 of num_workers=3", 3, stream_of(paths)
    )
    refused(
        tfr.StateError, "is of worker 0 of num_workers=2, .* this is worker 0 of num_workers=1", 1, stream_of(paths)
    )
    refused(AssertionError, "State doesn't contain key '_num_yielded'", 0, stream_of(paths))
    refused(tfr.StateError, "with batch_size=4, this is .* with batch_size=5", 2, stream_of(paths, Setting(5, True, 5)))
    two_ranks = Setting(4, True, 5, world_size=2)
    refused(tfr.StateError, "world_size=1 with .* world_size=2 with", 2, stream_of(paths, two_ranks))
    refused(tfr.StateError, "31 records then, 30 now", 2, stream_of(write(tmp_path / "other", 30)))


def test_without_workers_other_ranks_and_batches_go_on(paths: list[str]) -> None:
    state = states_of(loader_of(stream_of(paths), 0))[3]
    for setting in (Setting(5, True, 5), Setting(2, True, 5, rank=1, world_size=2)):
        loader = loader_of(stream_of(paths, setting), 0)
        loader.load_state_dict(copy.deepcopy(state))
        assert all_seen(loader) == expected(COUNT, setting, epoch=0, start=12)
        assert all_seen(loader) == epoch_of(1, setting)


def test_the_stream_s_own_state_is_bound_to_nothing(paths: list[str]) -> None:
    stream = stream_of(paths)
    for batches, _ in enumerate(loader_of(stream, 2), 1):
        if batches == 3:
            break
    other = stream_of(paths)
    other.load_state_dict(stream.state_dict(batches=3))
    assert all_seen(loader_of(other, 3)) == epoch_of(0)[3:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_input_without_an_index_has_no_state(paths: list[str], num_workers: int) -> None:
    loader = loader_of(tfr.TFRecordIterableDataset(paths, ID, batch_size=4, index=False), num_workers)
    with pytest.raises(TypeError, match="input without an index has no length") as caught:
        loader.state_dict()
    traceback.clear_frames(caught.value.__traceback__)
