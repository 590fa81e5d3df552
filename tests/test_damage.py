"""Damaged files: each answer is a typed error that says where, or exactly the records that were written."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from numbered import FEATURES, ID, plain, row, write, write_shards
from record_files import flip, frame, frames, header, starts

import torch_tfrecord as tfr

COUNT = 3


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Path(write(tmp_path / "whole.tfrecord", COUNT))


def records_until_error(dataset: tfr.TFRecordDataset) -> dict[int, Any]:
    """Every record by number: its content, or the error that reading it raises."""
    found: dict[int, Any] = {}
    for i in range(len(dataset)):
        try:
            found[i] = plain(dataset[i])
        except tfr.TFRecordError as error:
            found[i] = error
    return found


def read(path: Path) -> dict[int, Any] | tfr.TFRecordError:
    """The same for a new data set of a file; or the error that making it raises."""
    try:
        index = tfr.RecordIndex.build(path)
    except tfr.TFRecordError as error:
        return error
    return records_until_error(tfr.TFRecordDataset(path, FEATURES, index=index))


def place_in(error: Exception, path: Path) -> tuple[int, int]:
    """The record number and byte offset that a message says."""
    found = re.search(re.escape(str(path)) + r": record (\d+) at byte (\d+)", str(error))
    assert found, str(error)
    return int(found[1]), int(found[2])


def test_file_cut_at_every_byte(path: Path) -> None:
    data = path.read_bytes()
    begins = starts(list(tfr.read_records(path)))
    index = tfr.RecordIndex.build(path)
    for size in range(len(data)):
        path.write_bytes(data[:size])
        whole = sum(begin <= size for begin in begins[1:])
        outcome = read(path)
        if size in begins:  # nothing tells that more was there, except an index of the whole file
            assert outcome == {i: row(i) for i in range(whole)}
        else:
            assert isinstance(outcome, tfr.DataLossError)
            assert str(path) in str(outcome)
            if size >= 12:  # fewer bytes may look like anything
                assert place_in(outcome, path) == (whole, begins[whole])
                assert "truncated" in str(outcome)
        with pytest.raises(tfr.StaleIndexError, match=f"{path}: the file is {size} bytes long now"):
            tfr.TFRecordDataset(path, FEATURES, index=index)[0]


def test_bit_flipped_at_every_byte(path: Path) -> None:
    data = path.read_bytes()
    payloads = list(tfr.read_records(path))
    begins = starts(payloads)
    index = tfr.RecordIndex.build(path)
    for position in range(len(data)):
        path.write_bytes(flip(data, position, 1 << position % 8))
        hit = sum(begin <= position for begin in begins) - 1
        in_header = position - begins[hit] < 12
        outcome = read(path)
        if in_header:
            assert isinstance(outcome, tfr.DataLossError), position
            assert place_in(outcome, path) == (hit, begins[hit])
        else:
            assert isinstance(outcome, dict)
            damaged = outcome.pop(hit)
            assert isinstance(damaged, tfr.DataLossError), position
            assert place_in(damaged, path) == (hit, begins[hit])
            assert outcome == {i: row(i) for i in range(COUNT) if i != hit}
        with pytest.raises(tfr.TFRecordError, match=str(path)):
            tfr.TFRecordDataset(path, FEATURES, index=index).read_batch(range(COUNT))


def test_bit_flipped_at_every_byte_under_right_checksums(path: Path) -> None:
    payloads = list(tfr.read_records(path))
    errors = 0
    for position in range(len(payloads[1])):
        for bit in range(8):
            changed = [payloads[0], flip(payloads[1], position, 1 << bit), payloads[2]]
            path.write_bytes(frames(changed))
            outcome = read(path)
            assert isinstance(outcome, dict)
            assert [outcome[0], outcome[2]] == [row(0), row(2)]
            if isinstance(outcome[1], Exception):
                errors += 1
                assert isinstance(outcome[1], tfr.ParseError)
                assert place_in(outcome[1], path) == (1, starts(payloads)[1])
                with pytest.raises(tfr.ParseError, match=r"^record 0: "):
                    tfr.parse_single_example(changed[1], FEATURES)
            else:  # another value, as it was written
                alone = plain(tfr.parse_single_example(changed[1], FEATURES))
                assert repr(outcome[1]) == repr(alone) != repr(row(1))  # by repr, in which NaN equals NaN
    assert errors > 100


@pytest.mark.parametrize(
    "length", [2**31 + 10, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 17, 2**64 - 16, 2**64 - 4, 2**64 - 1]
)
@pytest.mark.parametrize("before", [0, 2])
def test_huge_lengths_with_right_checksums(tmp_path: Path, length: int, before: int) -> None:
    path = tmp_path / "huge"
    payloads = [tfr.encode_example(row(i)) for i in range(before)]
    path.write_bytes(frames(payloads) + header(length) + bytes(100))
    begin = time.perf_counter()
    outcome = read(path)
    assert time.perf_counter() - begin < 1
    assert isinstance(outcome, tfr.DataLossError)
    assert place_in(outcome, path) == (before, starts(payloads)[-1])
    iterator = tfr.read_records(path)
    assert [next(iterator) for _ in range(before)] == payloads
    with pytest.raises(tfr.DataLossError):
        next(iterator)


def test_header_that_grew_after_the_index_was_made(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "a", 40, start=100))
    dataset = tfr.TFRecordDataset(path, ID)
    assert dataset[0]["id"] == 100  # now the file is open, and no longer compared with its index
    at = dataset.index[20].offset
    data = path.read_bytes()
    for length in (dataset.index[20].length + 1, 2**40, 2**64 - 1):
        with path.open("r+b") as file:
            file.seek(at)
            file.write(header(length))
        with pytest.raises(tfr.StaleIndexError, match=f"{path}: record 20 at byte {at}: the index says"):
            dataset.read_batch(range(40))
        assert dataset[21]["id"] == 121
    path.write_bytes(data)
    assert dataset.read_batch(range(40))["id"].tolist() == list(range(100, 140))


def test_payload_of_a_group_that_never_ends(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(frame(b"\x3b" * 100_000))
    outcome = read(path)
    assert isinstance(outcome, dict)
    with pytest.raises(tfr.ParseError, match=f"{path}: record 0 at byte 0: byte .*a group"):
        raise outcome[0]


# --- damage that is left out on request ---------------------------------------------------------------------------------


def test_skipping_leaves_whole_records_and_says_what_it_left_out(path: Path) -> None:
    data = path.read_bytes()
    begins = starts(list(tfr.read_records(path)))
    for position in range(len(data)):
        path.write_bytes(flip(data, position, 1 << position % 8))
        hit = sum(begin <= position for begin in begins) - 1
        in_header = position - begins[hit] < 12
        left = [i for i in range(COUNT) if i < hit or (i > hit and not in_header)]
        index = tfr.RecordIndex.build(path, verify="all", on_error="skip")
        dataset = tfr.TFRecordDataset(path, FEATURES, index=index)
        assert [plain(dataset[i]) for i in range(len(dataset))] == [row(i) for i in left]
        assert [(fault.path, fault.record, fault.offset) for fault in dataset.index.faults] == [
            (str(path), hit, begins[hit])
        ]
        lost = len(data) - begins[hit] if in_header else begins[hit + 1] - begins[hit]
        assert dataset.index.faults[0].bytes_lost == lost
        raw = tfr.TFRecordDataset(path, None, index=index)
        assert list(tfr.read_records(path, on_error="skip")) == [raw[i] for i in range(len(raw))]


def test_records_keep_their_numbers_where_some_were_left_out(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, [4, 5])
    whole = tfr.RecordIndex.build(paths)
    for number in (1, 5, 6):
        with open(whole[number].path, "r+b") as file:
            file.seek(whole[number].offset + 12)
            file.write(b"\xff")
    dataset = tfr.TFRecordDataset(paths, {"x": tfr.FixedLenFeature((2,), torch.int64, key="id")}, on_error="skip")
    assert len(dataset) == 6
    for place, number in enumerate((0, 2, 3, 4, 7, 8)):
        shard, record = divmod(number, 4) if number < 8 else (1, 4)
        where = f"{paths[shard]}: record {record} at byte {whole[number].offset}: "
        with pytest.raises(tfr.ParseError, match=f"^{where}"):
            dataset[place]


def test_kept_index_that_left_damage_out_is_not_used_where_damage_shall_raise(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(flip(data, len(data) - 1))
    for _ in range(2):
        assert len(tfr.TFRecordDataset(path, FEATURES, on_error="skip")) == COUNT - 1
        strict = tfr.TFRecordDataset(path, FEATURES)
        assert len(strict) == COUNT
        with pytest.raises(tfr.DataLossError, match=f"{path}: record 2 at byte"):
            strict[2]
    with pytest.raises(ValueError, match="on_error must be 'raise' or 'skip', not 'ignore'"):
        tfr.TFRecordDataset(path, FEATURES, on_error="ignore")


@pytest.mark.parametrize("position", [3, 70, -1])
def test_repaired_file_is_read_whole_again(path: Path, position: int) -> None:
    data = path.read_bytes()
    path.write_bytes(flip(data, position % len(data)))
    assert len(tfr.TFRecordDataset(path, FEATURES, on_error="skip")) < COUNT
    path.write_bytes(data)
    assert len(tfr.TFRecordDataset(path, FEATURES, on_error="skip")) == COUNT


# --- something else in place of a file ----------------------------------------------------------------------------------


def make_directory(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("content", "error", "says"),
    [
        (b"<!DOCTYPE html><html><body>Not found</body></html>", tfr.NotATFRecordError, "an HTML page"),
        (b'{"error": "no such file"}', tfr.NotATFRecordError, "JSON text"),
        (b"version https://git-lfs.github.com/spec/v1\noid", tfr.NotATFRecordError, "git lfs pull"),
        (bytes(100), tfr.NotATFRecordError, "zero bytes"),
        (tfr.encode_example({"id": 1}), tfr.DataLossError, ""),
        (b"\x00", tfr.DataLossError, "truncated header"),
        (make_directory, FileNotFoundError, "no data files in this directory"),
    ],
)
def test_something_else(tmp_path: Path, content: bytes | Callable[[Path], None], error: Any, says: str) -> None:
    path = tmp_path / "data.tfrecord"
    if callable(content):
        content(path)
    else:
        path.write_bytes(content)
    with pytest.raises(error, match=re.escape(str(path))) as caught:
        tfr.TFRecordDataset(path, ID)
    assert says in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["data.tfrecord"]  # and no index was left there


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    assert read(path) == {}
    assert len(tfr.TFRecordDataset(path, ID)) == 0


# --- whole records that do not fit --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (tfr.FixedLenFeature((), torch.float32, key="id"), r"feature 'id' \(column 'x'\): expected float32, found int64"),
        (tfr.FixedLenFeature((2,), bytes, key="name"), r"feature 'name' .*: expected 2 values for shape \(2,\), found 1"),
        (tfr.FixedLenFeature((), bytes, key="no"), "feature 'no' .*: expected a value, found none"),
        (
            tfr.FixedLenFeature((), bytes, decode=tfr.DecodeRaw(torch.int64, (3,)), key="name"),
            "feature 'name' .*: expected values of 24 bytes for DecodeRaw.*, found one of",
        ),
        (
            tfr.FixedLenFeature((), bytes, decode=tfr.DecodeRaw(torch.float64, (-1, 7)), key="name"),
            "expected a multiple of 56 bytes for DecodeRaw.*, found",
        ),
        (tfr.FixedLenFeature((), bytes, decode=tfr.DecodeImage(), key="name"), "expected an image, found"),
    ],
    ids=repr,
)  # fmt: skip
def test_mismatches_say_where(tmp_path: Path, spec: Any, says: str) -> None:
    paths = write_shards(tmp_path, [4, 0, 6])
    dataset = tfr.TFRecordDataset(paths, {**FEATURES, "x": spec})
    at = dataset.index[7].offset
    where = f"^{paths[2]}: record 3 at byte {at}: "
    readers: list[Callable[[], Any]] = [
        lambda: dataset[7],
        lambda: dataset[5:][2],
        lambda: dataset.read_batch([7, 0, 9]),
    ]
    for read_it in readers:
        with pytest.raises(tfr.ParseError, match=f"{where}.*{says}"):
            read_it()
    assert plain(tfr.TFRecordDataset(paths, FEATURES)[7]) == row(7)


def test_the_first_bad_record_of_a_batch_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with tfr.TFRecordWriter(path) as writer:
        for i in range(500):
            writer.write_example({"id": i if i % 100 != 77 else [i, i]})
    dataset = tfr.TFRecordDataset(path, ID)
    for indices in (range(500), range(499, -1, -1), [*range(200, 300), *range(100)]):
        first = next(i for i in indices if i % 100 == 77)
        with pytest.raises(tfr.ParseError, match=f"record {first} at byte {dataset.index[first].offset}: "):
            dataset.read_batch(indices)
