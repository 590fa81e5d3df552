"""A data set and its index: made, kept, given, refused; and files that change after it was made."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from numbered import ID, ids, write, write_shards

import torch_tfrecord as tfr


@pytest.fixture
def path(tmp_path: Path) -> str:
    return write(tmp_path / "ten.tfrecord", 10)


def test_index_is_made_once_and_kept_beside_the_data(path: str, tmp_path: Path) -> None:
    dataset = tfr.TFRecordDataset(path, ID)
    kept = [name for name in os.listdir(tmp_path) if name.endswith(".tfrindex")]
    assert len(kept) == 1
    assert dataset.index.file == str(tmp_path / kept[0])
    stamp = os.stat(tmp_path / kept[0]).st_mtime_ns
    assert ids(tfr.TFRecordDataset(path, ID)) == list(range(10))
    assert os.stat(tmp_path / kept[0]).st_mtime_ns == stamp


def test_index_is_given_as_an_object_or_a_path(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = tfr.RecordIndex.build(path)
    assert ids(tfr.TFRecordDataset(path, ID, index=index)) == list(range(10))
    place = tmp_path / "mine.tfrindex"
    index.save(place)
    for given in (place, str(place)):
        assert ids(tfr.TFRecordDataset(path, ID, index=given)) == list(range(10))
    monkeypatch.chdir(tmp_path)
    assert ids(tfr.TFRecordDataset("ten.tfrecord", ID, index="mine.tfrindex")) == list(range(10))
    assert [name for name in os.listdir(tmp_path) if name.endswith(".tfrindex")] == ["mine.tfrindex"]


def test_index_of_other_files_is_refused(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [2, 3])
    index = tfr.RecordIndex.build(paths)
    with pytest.raises(tfr.StaleIndexError, match="the index is of other files than paths: it has 2 files, not 1"):
        tfr.TFRecordDataset(paths[0], ID, index=index)
    with pytest.raises(tfr.StaleIndexError, match=f"it has {paths[0]} where paths give {paths[1]}"):
        tfr.TFRecordDataset(paths[::-1], ID, index=index)


def replace_by_same_size(path: str) -> None:
    write(path, 10, start=10)


def append(path: str) -> None:
    with open(path, "ab") as file:
        file.write(bytes(16))


def cut(path: str) -> None:
    os.truncate(path, os.path.getsize(path) - 1)


@pytest.mark.parametrize("change", [replace_by_same_size, append, cut])
def test_stale_index_is_refused(tmp_path: Path, change: Callable[[str], None]) -> None:
    path = write(tmp_path / "a.tfrecord", 10, start=20)
    before = tfr.TFRecordDataset(path, ID)  # has read nothing yet
    given = tfr.TFRecordDataset(path, ID, index=tfr.RecordIndex.build(path))
    change(path)
    for dataset in (before, given, pickle.loads(pickle.dumps(before)), before[3:]):
        with pytest.raises(tfr.StaleIndexError, match=f"{path}: .*build the index again"):
            dataset[0]
    if change is replace_by_same_size:
        assert ids(tfr.TFRecordDataset(path, ID)) == list(range(10, 20))  # the kept index is not used either


def test_index_file_cut_short_while_it_is_in_use(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord", 70_000)
    tfr.TFRecordDataset(path, ID)
    dataset = tfr.TFRecordDataset(path, ID)  # with the kept index, which is so large that it is mapped
    assert dataset[69_999]["id"] == 69_999
    os.truncate(str(dataset.index.file), 4096)
    with pytest.raises(tfr.StaleIndexError, match=f"{dataset.index.file}: the index file had .* and has 4,096 now"):
        dataset[69_999]
    assert tfr.TFRecordDataset(path, ID)[69_999]["id"] == 69_999  # built anew


def test_data_sets_of_different_choices_keep_indexes_of_their_own(path: str, tmp_path: Path) -> None:
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    for _ in range(2):
        kept = [tfr.TFRecordDataset(path, ID, on_error=choice).index.file for choice in ("raise", "skip")]
        stamps = [os.stat(str(file)).st_mtime_ns for file in kept]
    assert len(set(kept)) == 2
    assert [os.stat(str(file)).st_mtime_ns for file in kept] == stamps
    assert sorted(map(str, tmp_path.glob(".*"))) == sorted(map(str, kept))


# --- files that change while they are read ----------------------------------------------------------------------------


def test_file_cut_short_after_it_was_opened(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord", 2000)
    dataset = tfr.TFRecordDataset(path, ID)
    assert dataset[0]["id"] == 0
    offset = dataset.index[1000].offset
    os.truncate(path, offset + 20)
    assert dataset[999]["id"] == 999
    for wanted, at in ((1000, offset), (1999, dataset.index[1999].offset)):
        with pytest.raises(tfr.DataLossError, match=f"{path}: record {wanted} at byte {at}: truncated"):
            dataset[wanted]
    with pytest.raises(tfr.DataLossError, match=f"{path}: record 1000 at byte {offset}: truncated"):
        dataset.read_batch(range(2000))


def test_file_overwritten_after_it_was_opened(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord", 3)
    other = write(tmp_path / "b.tfrecord", 3, start=1000)
    dataset = tfr.TFRecordDataset(path, ID)
    assert dataset[0]["id"] == 0
    data = Path(other).read_bytes()
    with open(path, "r+b") as file:
        file.write(data)
    for i, at in ((0, 0), (1, dataset.index[1].offset)):
        with pytest.raises((tfr.StaleIndexError, tfr.DataLossError), match=f"{path}: record {i} at byte {at}"):
            dataset[i]


def test_file_replaced_or_deleted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord", 3)
    reads, late = (tfr.TFRecordDataset(path, ID) for _ in range(2))
    assert reads[0]["id"] == 0
    write(path, 5, start=7)  # a new file of the same name
    assert ids(reads) == [0, 1, 2]  # what was opened is read on
    with pytest.raises(tfr.StaleIndexError, match=path):
        late[0]
    os.unlink(path)
    assert ids(reads) == [0, 1, 2]
    with pytest.raises(FileNotFoundError, match=path):
        late[0]
    os.mkdir(path)
    with pytest.raises((tfr.StaleIndexError, IsADirectoryError), match=path):
        late[0]


def test_a_relative_index_is_known_again_after_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a", 5)
    monkeypatch.chdir(tmp_path)
    index = tfr.RecordIndex.build("a")
    monkeypatch.chdir("/")
    assert ids(tfr.TFRecordDataset(tmp_path / "a", ID, index=index)) == list(range(5))
    with pytest.raises(tfr.StaleIndexError, match="the index is of other files than paths"):
        tfr.TFRecordDataset(write(tmp_path / "b", 5), ID, index=index)
