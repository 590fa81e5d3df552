"""`TFRecordIterableDataset` over input that cannot be indexed: pipes that other processes fill, and files that grow."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from numbered import FEATURES, ID, row, rows_of, write
from record_files import flip, frame
from torch.utils.data import DataLoader

import torch_tfrecord as tfr
from torch_tfrecord.faults import RecordFault

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than there are cores


def record(i: int) -> bytes:
    """The frame of record i."""
    return frame(tfr.encode_example(row(i)))


def records(count: int, start: int = 0) -> bytes:
    return b"".join(map(record, range(start, start + count)))


def stream_of(path: Any, features: Any = ID, **options: Any) -> tfr.TFRecordIterableDataset:
    options = {"batch_size": 4, "rank": 0, "world_size": 1, **options}
    return tfr.TFRecordIterableDataset(path, features, **options)


def loader_of(stream: Any, num_workers: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(stream, batch_size=None, num_workers=num_workers, **options)


def ids(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def in_fours(count: int) -> list[list[int]]:
    return [list(range(i, min(i + 4, count))) for i in range(0, count, 4)]


@contextlib.contextmanager
def writing(path: Path, data: bytes) -> Iterator[None]:
    """A process that writes to a pipe, in pieces that end anywhere."""
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(BaseException), open(path, "wb", buffering=0) as pipe:
            pipe.writelines(data[begin : begin + 1000] for begin in range(0, len(data), 1000))
            code = 0
        os._exit(code)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


# --- pipes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_a_pipe_is_read_once_and_in_order(pipe: Path, num_workers: int) -> None:
    loader = loader_of(stream_of(pipe, FEATURES), num_workers)
    for _ in range(2):
        with writing(pipe, records(1001)):
            batches = list(loader)
        assert [number for batch in batches for number in rows_of(batch)] == [row(i) for i in range(1001)]
        assert ids(batches) == [batch.record_ids.tolist() for batch in batches] == in_fours(1001)


def test_pipes_and_files_are_read_one_after_another(pipe: Path, tmp_path: Path) -> None:
    paths = [write(tmp_path / "before", 3), pipe, write(tmp_path / "after", 4, start=5)]
    with writing(pipe, records(2, start=3)):
        assert ids(stream_of(paths)) == in_fours(9)


def test_raw_records_and_callables(pipe: Path) -> None:
    payloads = [tfr.encode_example(row(i)) for i in range(6)]
    with writing(pipe, records(6)):
        assert [column.tolist() for column in stream_of(pipe, None)] == [payloads[:4], payloads[4:]]
    with writing(pipe, records(6)):
        assert list(loader_of(stream_of(pipe, len), 1)) == [[*map(len, payloads[:4])], [*map(len, payloads[4:])]]


def test_transforms(pipe: Path) -> None:
    def noise(example: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
        return {"id": -example["id"], "noise": torch.rand((), generator=generator)}

    stream = stream_of(pipe, transform=noise)
    found = []
    for num_workers, epoch in ((0, 0), (2, 0), (2, 1)):
        stream.set_epoch(epoch)
        with writing(pipe, records(10)):
            batches = list(loader_of(stream, num_workers))
        assert ids(batches) == [[-i for i in batch] for batch in in_fours(10)]
        found.append([batch["noise"].tolist() for batch in batches])
        assert stream.epoch in (epoch, epoch + 1)
    assert found[0] == found[1] != found[2]


def run_script(script: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    setup = """
import sys, torch, torch_tfrecord as tfr
features = {"id": tfr.FixedLenFeature((), torch.int64)}
def loader_of(path, num_workers):
    stream = tfr.TFRecordIterableDataset(path, features, batch_size=4, rank=0, world_size=1)
    return torch.utils.data.DataLoader(stream, batch_size=None, num_workers=num_workers)
"""
    command = [sys.executable, "-c", setup + script, *arguments]
    return subprocess.run(command, capture_output=True, timeout=100, check=False, **options)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_standard_input(num_workers: int) -> None:
    script = 'print([batch["id"].tolist() for batch in loader_of("/dev/stdin", int(sys.argv[1]))])'
    done = run_script(script, str(num_workers), input=records(10))
    assert done.stdout.decode() == f"{in_fours(10)}\n", done.stderr.decode()


@pytest.mark.parametrize(("num_workers", "stalled"), [(0, False), (1, False), (1, True)])
def test_leaving_an_endless_pipe_does_not_hang(pipe: Path, num_workers: int, stalled: bool) -> None:
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException), open(pipe, "wb", buffering=0) as writer:
            for i in itertools.count():
                writer.write(record(i))
                while stalled and i == 8:
                    time.sleep(1)
        os._exit(0)
    script = """
for batch in loader_of(sys.argv[1], int(sys.argv[2])):
    print(batch["id"].tolist(), flush=True)
    break
"""
    begin = time.monotonic()
    try:
        done = run_script(script, str(pipe), str(num_workers))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert (done.returncode, done.stdout.decode()) == (0, "[0, 1, 2, 3]\n"), done.stderr.decode()
    assert time.monotonic() - begin < 60


# --- files without an index -----------------------------------------------------------------------------------------------


def test_a_file_that_grows_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "growing"
    data = records(1000)
    position = 0
    found = []
    with open(path, "wb", buffering=0) as file:
        file.write(data[:100_003])
        stream = stream_of(path, index=False)
        position = 100_003
        for batch in stream:
            found.append(batch["id"].tolist())
            file.write(data[position : position + 1009])
            position = min(position + 1009, len(data))
    assert found == in_fours(1000)
    assert not list(tmp_path.glob("*.tfrindex"))


@pytest.mark.parametrize("num_workers", [0, 3])
def test_a_relative_path_is_known_again(tmp_path: Path, num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "data", 10)
    monkeypatch.chdir(tmp_path)
    loader = loader_of(stream_of("data", index=False), num_workers)
    monkeypatch.chdir("/")
    assert [ids(loader), ids(loader)] == [in_fours(10)] * 2


# --- damage, and tails ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_damage_raises_after_all_records_before_it(tmp_path: Path, num_workers: int, drop_last: bool) -> None:
    for damage, message in (
        (flip(record(6), 12) + records(9), "record 6 at byte .* data checksum"),
        (record(6)[:-1], "record 6 at byte .* truncated record"),
        (record(6)[:5], "record 6 at byte .* truncated header"),
    ):
        path = tmp_path / "damaged"
        path.write_bytes(records(6) + damage)
        batches = iter(loader_of(stream_of(path, index=False, drop_last=drop_last), num_workers))
        assert ids([next(batches), next(batches)]) == in_fours(6)
        with pytest.raises(tfr.DataLossError, match=message):
            next(batches)
        assert list(batches) == []


def test_a_record_that_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(records(5) + frame(tfr.encode_example({"id": [1, 2]})))
    batches = iter(stream_of([path, path], index=False))
    assert next(batches)["id"].tolist() == [0, 1, 2, 3]
    with pytest.raises(tfr.ParseError, match=f"^{path} and 1 more: record 5: feature 'id'"):
        next(batches)
    batches = iter(stream_of(path, index=False))
    next(batches)
    with pytest.raises(tfr.ParseError, match=f"^{path}: record 5: feature 'id'"):
        next(batches)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_damage_is_left_out_and_counted(pipe: Path, num_workers: int) -> None:
    stream = stream_of(pipe, on_error="skip", index=False)
    data = records(3) + flip(record(3), 12) + records(6, start=4) + record(10)[:7]
    with writing(pipe, data):
        assert ids(loader_of(stream, num_workers)) == [[0, 1, 2, 4], [5, 6, 7, 8], [9]]
    found = [
        RecordFault(str(pipe), 3, len(records(3)), "data_crc", len(record(3))),
        RecordFault(str(pipe), 10, len(records(10)), "truncated_header", 7),
    ]
    assert list(stream.faults) == ([] if num_workers else found)  # a worker logs them, in its process
    with writing(pipe, records(1)):
        assert ids(stream) == [[0]]
    assert list(stream.faults) == []


def test_a_tail_that_is_dropped_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "data", 10)
    with caplog.at_level(logging.WARNING, "torch_tfrecord.unindexed"):
        assert ids(stream_of(path, index=False, drop_last=True, batch_size=5)) == [[*range(5)], [*range(5, 10)]]
        assert caplog.messages == []
        assert ids(stream_of(path, index=False, drop_last=True)) == in_fours(8)
        assert caplog.messages == [f"{path}: the last 2 records fill no batch, and were dropped"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_empty_input(tmp_path: Path, num_workers: int) -> None:
    assert list(loader_of(stream_of(write(tmp_path / "data", 0), index=False), num_workers)) == []


# --- what there is not ----------------------------------------------------------------------------------------------------


def test_what_needs_an_index_is_refused(pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for options, message in (
        ({"world_size": 2}, "cannot be divided over 2 ranks: pass rank=0, world_size=1"),
        ({"shuffle": True}, "cannot be shuffled: .* copy it to a file"),
        ({"shuffle": tfr.QueueShuffle(2)}, "cannot be shuffled"),
        ({"subset": [0]}, "cannot be selected from"),
    ):
        with pytest.raises(ValueError, match=f"input without an index {message}"):
            stream_of(pipe, **options)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="cannot be divided over 4 ranks"):
        tfr.TFRecordIterableDataset(pipe, ID, batch_size=1)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        stream_of("nowhere", index=False)


def test_what_has_no_answer_is_an_error(pipe: Path) -> None:
    stream = stream_of(pipe)
    assert stream.dataset is None
    for ask in (
        lambda: len(stream),
        lambda: len(loader_of(stream, 0)),
        stream.state_dict,
        lambda: stream.load_state_dict({}),
        stream.explain,
    ):
        with pytest.raises(TypeError, match="input without an index has no length, no order to explain and no state"):
            ask()


def test_a_pipe_with_an_index_is_no_such_input(pipe: Path, tmp_path: Path) -> None:
    index = tfr.RecordIndex.build(write(tmp_path / "data", 3))
    with pytest.raises(tfr.StaleIndexError, match="the index is of other files"):
        stream_of(pipe, index=index)
