"""`TFRecordIterableDataset` over files that have an index: under real ``DataLoader`` workers, and resumed."""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import multiprocessing
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from doors import Seen, Setting, all_seen, expected, seen
from numbered import ID, write, write_shards
from torch.utils.data import ChainDataset, DataLoader

import torch_tfrecord as tfr

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than there are cores

COUNT = 47
SETTING = Setting(4, shuffle=True, seed=3)  # 12 batches
STEPS = 12


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_shards(tmp_path_factory.mktemp("stream"), [20, 0, 27])


def stream_of(paths: Any, setting: Setting = SETTING, **options: Any) -> tfr.TFRecordIterableDataset:
    return tfr.TFRecordIterableDataset(
        paths,
        ID,
        batch_size=setting.batch_size,
        shuffle=setting.shuffle,
        seed=setting.seed,
        drop_last=setting.drop_last,
        rank=setting.rank,
        world_size=setting.world_size,
        **options,
    )


def loader_of(stream: Any, num_workers: int = 2, **options: Any) -> DataLoader[Any]:
    return DataLoader(stream, batch_size=None, num_workers=num_workers, **options)


def epoch_of(number: int, setting: Setting = SETTING, start: int = 0) -> list[Seen]:
    return expected(COUNT, setting, epoch=number, start=start)


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


# --- passes, in this process and by workers -----------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3, 4])
def test_any_number_of_workers_gives_the_same_batches(paths: list[str], num_workers: int) -> None:
    for setting in (
        SETTING,
        Setting(8, tfr.QueueShuffle(10), 1, drop_last=True, rank=1, world_size=3),  # 1 batch, for up to 4 workers
        Setting(3, tfr.BlockShuffle(4, 2), 2**70, rank=1, world_size=2),  # the last row pads
    ):
        loader = loader_of(stream_of(paths, setting), num_workers)
        for epoch in range(2):
            batches = list(loader)
            assert {type(batch) for batch in batches} == {tfr.Batch}
            assert all(batch["id"].is_shared() == (num_workers > 0) for batch in batches)
            assert all_seen(batches) == epoch_of(epoch, setting)
            assert len(loader) == len(batches)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_epochs_follow_one_another(paths: list[str], num_workers: int) -> None:
    stream = stream_of(paths)
    persistent = loader_of(stream, num_workers, persistent_workers=num_workers > 0)
    fresh = loader_of(stream, num_workers)
    for epoch, loader in enumerate((persistent, fresh, persistent, fresh, persistent)):
        assert all_seen(loader) == epoch_of(epoch)
    for epoch, loader in ((9, persistent), (2, fresh), (2, persistent)):
        stream.set_epoch(epoch)
        assert stream.epoch == epoch
        assert all_seen(loader) == epoch_of(epoch)
    assert all_seen(persistent) == epoch_of(3)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_start_methods(paths: list[str], method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Persistent workers, of a rank that is known by its environment in this process only."""
    multiprocessing.set_forkserver_preload(["torch_tfrecord.epochs"])  # spares each worker the import of torch
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    stream = tfr.TFRecordIterableDataset(paths, ID, batch_size=4, shuffle=True, seed=3)
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    setting = Setting(4, True, 3, rank=1, world_size=2)
    loader = loader_of(stream, multiprocessing_context=method, persistent_workers=True)
    for epoch in range(2):
        assert all_seen(loader) == epoch_of(epoch, setting)
    stream.set_epoch(7)
    assert all_seen(loader) == epoch_of(7, setting)
    stream.load_state_dict(stream.state_dict(batches=2))
    assert all_seen(loader) == epoch_of(7, setting)[2:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_pass_that_is_left_early_counts(paths: list[str], num_workers: int) -> None:
    stream = stream_of(paths)
    for persistent in (False, num_workers > 0):
        stream.set_epoch(0)
        loader = loader_of(stream, num_workers, persistent_workers=persistent)
        for epoch in range(3):
            for step, batch in enumerate(loader):
                assert seen(batch) == epoch_of(epoch)[step]
                if step == 2:
                    break
        assert all_seen(loader) == epoch_of(3)


def test_several_loaders_at_once(paths: list[str]) -> None:
    stream = stream_of(paths)
    loaders = [loader_of(stream, 2), loader_of(stream, 0), loader_of(stream, 3)]
    found = list(zip(*(map(seen, loader) for loader in loaders), strict=True))
    passes = [list(batches) for batches in zip(*found, strict=True)]
    assert sorted(passes) == sorted(epoch_of(epoch) for epoch in range(3))  # which is whose is a race
    assert all_seen(loaders[0]) == epoch_of(3)


def test_threads_that_start_loaders_at_the_same_time(paths: list[str]) -> None:
    stream = stream_of(paths)
    passes: list[list[Seen]] = []
    barrier = threading.Barrier(2)

    def read() -> None:
        for _ in range(3):
            barrier.wait()
            passes.append(all_seen(loader_of(stream, 2)))

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(passes) == sorted(epoch_of(epoch) for epoch in range(6))


def test_equal_seeds_of_torch_do_not_confuse_passes(paths: list[str]) -> None:
    loader = loader_of(stream_of(paths))
    for epoch in range(3):
        torch.manual_seed(0)
        assert all_seen(loader) == epoch_of(epoch)


@pytest.mark.parametrize("prefetch_factor", [1, 2])
def test_streams_in_a_chain(paths: list[str], prefetch_factor: int) -> None:
    """Whose workers come to the next stream at different steps."""
    setting = Setting(10, True)  # 5 batches: one worker has more of them than the other
    chain = ChainDataset([stream_of(paths, setting) for _ in range(4)])
    loader = loader_of(chain, prefetch_factor=prefetch_factor)
    for epoch in range(2):
        assert sorted(all_seen(loader)) == sorted(4 * epoch_of(epoch, setting))


def test_transforms_make_the_same_random_choices(paths: list[str]) -> None:
    def noise(record: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
        return {**record, "noise": torch.rand((), generator=generator)}

    found = []
    for num_workers in (0, 1, 3):
        loader = loader_of(stream_of(paths, transform=noise), num_workers)
        found.append([batch["noise"].tolist() for _ in range(2) for batch in loader])
    assert found[0] == found[1] == found[2]
    assert len({number for batch in found[0] for number in batch}) == 2 * COUNT


def test_records_that_are_no_examples(paths: list[str]) -> None:
    payloads = list(tfr.read_records(paths))
    raw = tfr.TFRecordIterableDataset(paths, None, batch_size=20)
    assert [column.tolist() for column in loader_of(raw)] == [payloads[:20], payloads[20:40], payloads[40:]]
    sizes = tfr.TFRecordIterableDataset(paths, len, batch_size=30)
    assert list(loader_of(sizes)) == [[*map(len, payloads[:30])], [*map(len, payloads[30:])]]


# --- what goes wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
def test_after_a_batch_that_cannot_be_made_comes_the_next(tmp_path: Path, num_workers: int) -> None:
    with tfr.TFRecordWriter(tmp_path / "a") as writer:
        for i in range(20):
            writer.write_example({"id": [i] * (2 if i == 5 else 1)})
    stream = tfr.TFRecordIterableDataset(tmp_path / "a", ID, batch_size=2)
    batches = iter(loader_of(stream, num_workers))
    found: list[Any] = []
    while True:
        try:
            found.append(next(batches)["id"].tolist())
        except tfr.ParseError:
            found.append("error")
        except StopIteration:
            break
    assert found == [[0, 1], [2, 3], "error", *([i, i + 1] for i in range(6, 20, 2))]


def kill_a_worker(paths: list[str], file: Path) -> None:
    """Write down torch's error, and the next pass. In a process of its own: torch raises whenever a child ends then."""
    loader = loader_of(stream_of(paths), prefetch_factor=1)

    def broken_pass() -> str:
        batches = iter(loader)
        try:
            assert seen(next(batches)) == epoch_of(0)[0]
            os.kill(batches._workers[1].pid, signal.SIGKILL)  # type: ignore[attr-defined]
            list(batches)
        except RuntimeError as error:
            return str(error)
        return "no error"

    message = broken_pass()
    file.write_text(json.dumps([message, all_seen(loader)]))


def test_a_worker_that_is_killed(paths: list[str], tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=kill_a_worker, args=(paths, tmp_path / "found"))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    message, next_pass = json.loads((tmp_path / "found").read_text())
    assert re.search(r"DataLoader worker .* (killed by signal|exited unexpectedly)", message)
    assert next_pass == as_json(epoch_of(1))


class Stop(Exception):
    """In a loop."""


def traces(wanted: dict[str, Any] | None = None) -> dict[str, Any]:
    """What this process has that could be left behind, once that is what is wanted: threads of queues end by themselves."""
    end = time.monotonic() + 10
    while wanted is not None and traces() != wanted and time.monotonic() < end:
        time.sleep(0.01)
    gc.collect()
    return {
        "threads": threading.active_count(),
        "children": multiprocessing.active_children(),
        "descriptors": sorted(os.listdir("/dev/fd")),
        "shared memory": sorted(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else [],
    }


@pytest.mark.parametrize("num_workers", [0, 2])
def test_nothing_is_left_behind(paths: list[str], num_workers: int) -> None:
    all_seen(loader_of(stream_of(paths), num_workers))  # what is made once for a process
    before = traces()
    stream = stream_of(paths)
    loader = loader_of(stream, num_workers)
    assert len(list(loader)) == STEPS
    for _ in loader:
        break
    with contextlib.suppress(Stop):
        for _ in loader:
            raise Stop
    both = zip(loader, loader_of(stream, num_workers), strict=True)
    next(both)
    batches = list(loader_of(stream, num_workers, persistent_workers=num_workers > 0))
    del stream, loader, both, batches, _
    assert traces(before) == before


# --- copies and forks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda stream: pickle.loads(pickle.dumps(stream))])
def test_copies(paths: list[str], duplicate: Any) -> None:
    stream = stream_of(paths)
    batches = iter(stream)
    next(batches)
    other = duplicate(stream)
    assert all_seen(loader_of(other)) == epoch_of(1)
    assert all_seen(other) == epoch_of(2)
    assert all_seen(batches) == epoch_of(0)[1:]
    assert all_seen(loader_of(stream)) == epoch_of(1)
    assert stream.state_dict(batches=3)["epoch"] == 1


def test_a_fork_while_passes_are_at_work(paths: list[str]) -> None:
    stream = stream_of(paths)
    here = iter(stream)
    assert seen(next(here)) == epoch_of(0)[0]
    by_workers = iter(loader_of(stream))
    assert seen(next(by_workers)) == epoch_of(1)[0]
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(BaseException):
            assert all_seen(here) == epoch_of(0)[1:]
            assert all_seen(stream) == epoch_of(2)
            assert all_seen(loader_of(stream)) == epoch_of(3)
            code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert all_seen(here) == epoch_of(0)[1:]
    assert all_seen(by_workers) == epoch_of(1)[1:]
    assert all_seen(stream) == epoch_of(2)


# --- ranks --------------------------------------------------------------------------------------------------------------

MEMBER = """
import sys
import torch
import torch_tfrecord as tfr

if __name__ == "__main__":
    path, store, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.distributed.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    features = {"id": tfr.FixedLenFeature((), torch.int64)}
    stream = tfr.TFRecordIterableDataset(path, features, batch_size=4)
    loader = torch.utils.data.DataLoader(stream, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    print([batch["id"].tolist() for batch in loader])
    torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_the_rank_of_a_process_group_reaches_spawned_workers(tmp_path: Path) -> None:
    script = tmp_path / "member.py"
    script.write_text(MEMBER)
    command = [sys.executable, str(script), write(tmp_path / "data", 10), str(tmp_path / "store")]
    members = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(2)]
    try:
        printed = [member.communicate(timeout=200)[0] for member in members]
    finally:
        for member in members:
            member.kill()
    assert [json.loads(text) for text in printed] == [[[0, 2, 4, 6], [8]], [[1, 3, 5, 7], [9]]]


# --- states -------------------------------------------------------------------------------------------------------------


def test_resume_in_this_process_at_every_batch(paths: list[str]) -> None:
    stream = stream_of(paths)
    for epoch in range(2):
        for step, _ in enumerate(stream, 1):
            state = json.loads(json.dumps(stream.state_dict()))
            assert (state["epoch"], state["position"]) == (epoch, min(4 * step, COUNT))
            assert len(json.dumps(state)) < 1000
            other = stream_of(paths)
            other.load_state_dict(state)
            assert all_seen(other) == epoch_of(epoch)[step:]
            assert seen(next(iter(other))) == epoch_of(epoch + 1)[0]
        assert stream.state_dict()["epoch"] == epoch + 1


@pytest.mark.parametrize("persistent", [False, True])
def test_resume_with_workers(paths: list[str], persistent: bool) -> None:
    stream = stream_of(paths)
    loader = loader_of(stream, persistent_workers=persistent)
    all_seen(loader)
    states = [stream.state_dict(batches=step) for step, _ in enumerate(loader, 1)]
    assert [(state["epoch"], state["position"]) for state in states] == [
        (1, min(4 * step, COUNT)) for step in range(1, STEPS + 1)
    ]
    for step in (1, 6, 11, 12):
        stream.load_state_dict(states[step - 1])  # workers that exist take it up, too
        assert stream.epoch == 1
        assert stream.state_dict() == states[step - 1]
        batches = iter(loader)
        rest = epoch_of(1)[step:]
        if rest:
            assert seen(next(batches)) == rest[0]
            again = stream.state_dict(batches=1)  # from where the resumed pass began
            assert again["position"] == min(4 * (step + 1), COUNT)
            assert all_seen(batches) == rest[1:]
        assert all_seen(batches) == []
        assert all_seen(loader) == epoch_of(2)


def test_resume_with_other_workers_ranks_and_batches(paths: list[str]) -> None:
    stream = stream_of(paths)
    list(zip(range(5), loader_of(stream, 3), strict=False))
    state = stream.state_dict(batches=5)
    for num_workers in (0, 1, 2):
        for setting in (
            SETTING,
            Setting(2, True, 3, rank=1, world_size=2),
            Setting(7, True, 3),
            Setting(3, True, 3, drop_last=True, rank=2, world_size=3),
        ):
            other = stream_of(paths, setting)
            other.load_state_dict(state)
            loader = loader_of(other, num_workers)
            assert all_seen(loader) == epoch_of(0, setting, start=20)
            assert all_seen(loader) == epoch_of(1, setting)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_seed_of_a_state_is_taken_over_by_workers_that_are_there(paths: list[str], num_workers: int) -> None:
    stream = stream_of(paths, Setting(4, True, 99))
    loader = loader_of(stream, num_workers, persistent_workers=num_workers > 0)
    assert all_seen(loader) == epoch_of(0, Setting(4, True, 99))
    stream.load_state_dict({**stream_of(paths).state_dict(batches=2), "epoch": 5})
    assert stream.seed == 3
    assert all_seen(loader) == epoch_of(5)[2:]
    assert all_seen(loader) == epoch_of(6)


def test_with_workers_the_number_of_batches_is_needed(paths: list[str]) -> None:
    stream = stream_of(paths)
    before = stream.state_dict()
    all_seen(loader_of(stream))
    with pytest.raises(ValueError, match="workers run ahead of what the DataLoader delivers: pass batches="):
        stream.state_dict()
    with pytest.raises(ValueError, match="batches is -1, and must be at least 0"):
        stream.state_dict(batches=-1)
    assert stream.state_dict(batches=STEPS)["position"] == COUNT
    stream.set_epoch(0)
    assert stream.state_dict() == stream.state_dict(batches=0) == before
    all_seen(stream)
    assert stream.state_dict() == {**before, "epoch": 1}


def test_a_state_of_a_worker_is_none_of_the_stream(paths: list[str]) -> None:
    stream = stream_of(paths)
    with pytest.raises(tfr.StateError, match="no state of version 1"):
        stream.load_state_dict({"pass": stream.state_dict(), "made": 0, "topology": ""})


# --- killed and started again -------------------------------------------------------------------------------------------

EVERY = 3  # batches between two states
EPOCHS = 3


def train(paths: list[str], folder: Path, num_workers: int) -> None:
    """Write each batch to a log, and now and then where the stream stands and how long the log is."""
    os.setpgid(0, 0)
    stream = stream_of(paths)
    with open(folder / "log", "a") as log:
        if (folder / "state").exists():
            saved = json.loads((folder / "state").read_text())
            stream.load_state_dict(saved["state"])
            log.truncate(saved["length"])
        else:
            log.truncate(0)
        loader = loader_of(stream, num_workers)
        for _ in range(stream.epoch, EPOCHS):
            for batches, batch in enumerate(loader, 1):
                log.write(f"{json.dumps(seen(batch))}\n")
                log.flush()
                if batches % EVERY == 0:
                    state = stream.state_dict(batches=batches if num_workers else None)
                    (folder / "new").write_text(json.dumps({"state": state, "length": log.tell()}))
                    os.replace(folder / "new", folder / "state")
                time.sleep(0.02)
    (folder / "done").touch()


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_training_that_is_killed_goes_on_where_it_saved(paths: list[str], tmp_path: Path, num_workers: int) -> None:
    chance = random.Random(num_workers)
    kills = 0
    while not (tmp_path / "done").exists():
        process = multiprocessing.get_context("fork").Process(target=train, args=(paths, tmp_path, num_workers))
        process.start()
        process.join(chance.uniform(0.05, 0.3) if kills < 6 else None)
        if process.is_alive():
            process.kill()
            process.join()
            kills += 1
            assert process.pid is not None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # torch's workers miss the end of a parent that comes too early
        assert process.exitcode in (0, -signal.SIGKILL)
    assert kills >= 2
    log = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert log == as_json([batch for epoch in range(EPOCHS) for batch in epoch_of(epoch)])


# --- arguments ----------------------------------------------------------------------------------------------------------


def test_arguments_are_checked(paths: list[str]) -> None:
    for options, error, message in (
        ({"batch_size": 0}, ValueError, "batch_size is 0, and must be at least 1"),
        ({"batch_size": 2.0}, TypeError, "batch_size is 2.0, not an integer"),
        ({"shuffle": "yes"}, TypeError, "shuffle must be"),
        ({"seed": 0.5}, TypeError, "seed is 0.5, not an integer"),
        ({"seed": 2**255}, ValueError, "seed is .* must be in"),
        ({"rank": 2, "world_size": 2}, ValueError, "rank is 2"),
        ({"verify": "some"}, ValueError, "verify must be one of"),
        ({"on_error": "ignore"}, ValueError, "on_error must be"),
        ({"subset": [COUNT]}, IndexError, f"record {COUNT} of a data set"),
        ({"features": {}}, ValueError, "features"),
        ({"paths": "nothing"}, FileNotFoundError, "nothing"),
        ({"index": "nothing"}, FileNotFoundError, "nothing"),
    ):
        arguments: dict[str, Any] = {"paths": paths, "features": ID, "batch_size": 1, **options}
        with pytest.raises(error, match=message):
            tfr.TFRecordIterableDataset(**arguments)


def test_what_it_says_of_itself(paths: list[str], tmp_path: Path) -> None:
    stream = tfr.TFRecordIterableDataset(
        (path for path in paths), ID, batch_size=5, subset=range(1, COUNT, 2), rank=1, world_size=2, drop_last=True
    )
    assert (stream.rank, stream.world_size, stream.batch_size, stream.drop_last, stream.seed) == (1, 2, 5, True, 0)
    assert stream.dataset is not None
    assert (len(stream.dataset), len(stream), stream.epoch, stream.faults) == (23, 2, 0, ())
    assert [number for batch in stream for number in batch["id"].tolist()] == list(range(3, COUNT - 5, 4))
    assert stream.explain(num_workers=3).epoch == 1
    assert stream.explain(num_workers=3).exactly_once
    empty = tfr.RecordIndex.build(write(tmp_path / "empty", 0))
    nothing = tfr.TFRecordIterableDataset(tmp_path / "empty", ID, batch_size=1, index=empty)
    assert nothing.dataset is not None
    assert nothing.dataset.index is empty
    assert list(loader_of(nothing)) == list(nothing) == []


def test_damaged_records_that_are_left_out_are_listed(tmp_path: Path) -> None:
    path = write(tmp_path / "a", 10)
    data = bytearray(Path(path).read_bytes())
    data[tfr.RecordIndex.build(path)[4].offset + 14] ^= 1
    Path(path).write_bytes(data)
    stream = tfr.TFRecordIterableDataset(path, ID, batch_size=4, on_error="skip")
    assert [batch["id"].tolist() for batch in loader_of(stream)] == [[0, 1, 2, 3], [5, 6, 7, 8], [9]]
    assert [(fault.record, fault.reason) for fault in stream.faults] == [(4, "data_crc")]
