"""``tfrecord-index convert``: to the text indexes of other tools, and from them."""

from __future__ import annotations

import gzip
import json
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compressed_files import compress
from record_files import flip, frames, starts, write_file

import torch_tfrecord as tfr
from index_tools.__main__ import main
from torch_tfrecord.errors import DataLossError, StaleIndexError
from torch_tfrecord.index import RecordIndex

PAYLOADS = [b"record %d" % i * (i % 3 + 1) for i in range(40)]
LINES = [f"{start} {len(payload) + 16}" for start, payload in zip(starts(PAYLOADS), PAYLOADS, strict=False)]


def convert(*arguments: object) -> int:
    return main(["convert", *map(str, arguments)])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_file(tmp_path / "a.tfrecord", PAYLOADS)
    return tmp_path / "a.tfrecord"


def records(index: Path, path: Path) -> list[bytes]:
    dataset = tfr.TFRecordDataset(path, None, index=index)
    return list(dataset.read_batch(range(len(dataset)))) if len(dataset) else []


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 1) -> str:
    assert convert(*arguments) == status
    output = capsys.readouterr()
    assert output.out == ""
    return output.err


# --- to text ----------------------------------------------------------------------------------------------------------


def test_data_to_text(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(data, "-o", tmp_path / "a.idx") == 0
    assert capsys.readouterr().out == f"{tmp_path}/a.idx: 40 records of {data}\n"
    assert (tmp_path / "a.idx").read_text().splitlines() == LINES


def test_an_index_to_text(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RecordIndex.build(data).save(tmp_path / "i")
    assert convert(tmp_path / "i", "-o", tmp_path / "a.idx", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "files": [{"index": str(tmp_path / "a.idx"), "data": [str(data)], "num_records": 40}]
    }
    assert (tmp_path / "a.idx").read_text().splitlines() == LINES


def test_damage_that_is_left_out_stays_out(data: Path, tmp_path: Path) -> None:
    data.write_bytes(flip(data.read_bytes(), starts(PAYLOADS)[7] + 13))
    RecordIndex.build(data, verify="all", on_error="skip").save(tmp_path / "i")
    assert convert(tmp_path / "i", "-o", tmp_path / "a.idx", "--quiet") == 0
    assert (tmp_path / "a.idx").read_text().splitlines() == LINES[:7] + LINES[8:]


@pytest.mark.parametrize(
    ("names", "files"), [("dali", ["a.tfrecord.idx", "b.idx"]), ("tfrecord", ["a.tfindex", "b.tfindex"])]
)
def test_several_files(names: str, files: list[str], data: Path, tmp_path: Path) -> None:
    write_file(tmp_path / "b", PAYLOADS[:3])
    output = tmp_path / "indexes"
    for _ in range(2):
        assert convert(data, tmp_path / "b", "-o", output, "--names", names, "--quiet") == 0
        assert sorted(os.listdir(output)) == files
    assert (output / files[1]).read_text().splitlines() == LINES[:3]


def test_one_file_in_a_directory(data: Path, tmp_path: Path) -> None:
    assert convert(data, "-o", tmp_path, "--names", "tfrecord") == 0
    assert (tmp_path / "a.tfindex").read_text().splitlines() == LINES


def test_files_of_one_name(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").mkdir()
    write_file(tmp_path / "other" / "a.tfrecord", PAYLOADS)
    error = refusal(capsys, data, tmp_path / "other" / "a.tfrecord", "-o", tmp_path / "out", status=2)
    assert "two of the data files have the same name" in error


def test_a_stale_index_is_not_converted(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RecordIndex.build(data).save(tmp_path / "i")
    write_file(data, PAYLOADS[:5])
    assert "build the index again" in refusal(capsys, tmp_path / "i", "-o", tmp_path / "a.idx")
    assert not (tmp_path / "a.idx").exists()


def test_compressed_data_to_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, output = tmp_path / "a", tmp_path / "a.idx"
    path.write_bytes(compress(frames(PAYLOADS), "gzip"))
    assert "DALI reads no compressed files" in refusal(capsys, path, "-o", output, status=2)
    assert convert(path, "-o", output, "--names", "tfrecord", "--quiet") == 0
    assert output.read_text().splitlines() == LINES
    path.write_bytes(compress(frames(PAYLOADS), "zlib"))
    assert "reads gzip, but no zlib" in refusal(capsys, path, "-o", output, "--names", "tfrecord", status=2)


def test_data_is_never_replaced(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    assert "this is the data file" in refusal(capsys, data, "-o", data, status=2)
    assert "this is the data file" in refusal(capsys, empty, "-o", empty, status=2)
    (tmp_path / "notes").write_text("notes")
    assert "this file is no text index" in refusal(capsys, data, "-o", tmp_path / "notes", status=2)
    assert data.read_bytes() == frames(PAYLOADS)


# --- from text --------------------------------------------------------------------------------------------------------


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.parametrize("name", ["a.idx", "a.tfindex", "a.tfrecord.idx"])
def test_text_to_an_index(name: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The data is found by the index's name."""
    text, output = write_lines(tmp_path / name, LINES), tmp_path / "i.tfrindex"
    assert convert(text, "-o", output) == 0
    assert capsys.readouterr().out == f"{output}: 40 records of {data}\n"
    index, built = RecordIndex.open(output), RecordIndex.build(data)
    assert index.fingerprint == built.fingerprint
    assert index.offsets.tolist() == built.offsets.tolist()
    index.verify()


@pytest.mark.parametrize("chosen", [range(0, 40, 3), range(1), range(39, 40), range(10, 30)])
@pytest.mark.parametrize("kind", ["none", "gzip", "zlib", "members"])
def test_subsets_stay_subsets(
    chosen: range, kind: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, output = write_lines(tmp_path / "a.idx", [LINES[i] for i in chosen]), tmp_path / "i.tfrindex"
    if kind != "none":
        data.write_bytes(compress(frames(PAYLOADS), kind))
    assert convert(text, "--data", data, "-o", output, "--quiet") == 0
    assert records(output, data) == [PAYLOADS[i] for i in chosen]
    assert main(["verify", str(output)]) == 0
    RecordIndex.open(output).verify()
    if kind == "none":
        assert convert(output, "-o", tmp_path / "back.idx", "--quiet") == 0
        assert (tmp_path / "back.idx").read_text() == text.read_text()
    capsys.readouterr()


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "payload": lambda whole: flip(whole, starts(PAYLOADS)[3] + 12),  # of a record in the index
    "payload elsewhere": lambda whole: flip(whole, starts(PAYLOADS)[4] + 12),
    "other payload": lambda whole: whole.replace(frames([PAYLOADS[3]]), frames([b"x" * len(PAYLOADS[3])])),
    "other places": lambda whole: frames([*PAYLOADS[:2], PAYLOADS[3], PAYLOADS[2], *PAYLOADS[4:]]),
    "longer": lambda whole: whole + frames([b"more"]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_subset_of_changed_data(change: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, output = write_lines(tmp_path / "a.idx", LINES[3:40:12]), tmp_path / "i.tfrindex"
    assert convert(text, "--data", data, "-o", output, "--quiet") == 0
    index = RecordIndex.open(output)
    data.write_bytes(CHANGES[change](data.read_bytes()))
    with pytest.raises(DataLossError if change.startswith("payload") else StaleIndexError, match=re.escape(str(data))):
        index.verify()
    assert main(["verify", str(output)]) == 1
    capsys.readouterr()


def test_only_offsets(data: Path, tmp_path: Path) -> None:
    text = write_lines(tmp_path / "a.idx", [line.split()[0] for line in LINES[3:9]])
    assert convert(text, "-o", tmp_path / "i", "--quiet") == 0
    assert records(tmp_path / "i", data) == PAYLOADS[3:9]


def test_a_binary_index(data: Path, tmp_path: Path) -> None:
    begin = starts(PAYLOADS)
    entries = [struct.pack("<3Q", begin[i], begin[i + 1], len(PAYLOADS[i])) for i in range(40)]
    (tmp_path / "a.tfrecord.idx").write_bytes(struct.pack("<Q", 40) + b"".join(entries))
    assert convert(tmp_path / "a.tfrecord.idx", "-o", tmp_path / "i", "--quiet") == 0
    assert records(tmp_path / "i", data) == PAYLOADS


def test_known_damage_is_known_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A text index cannot tell of damage; a checksum of a gzip member that is wrong stops nobody who knows of it."""
    path = tmp_path / "a.tfrecord"
    first = gzip.compress(frames(PAYLOADS[:3]))
    path.write_bytes(flip(first, len(first) - 8) + gzip.compress(frames(PAYLOADS[3:6])))
    RecordIndex.build(path, on_error="skip").save(tmp_path / "i")
    assert records(tmp_path / "i", path) == PAYLOADS[:6]
    assert convert(tmp_path / "i", "-o", tmp_path / "a.idx", "--names", "tfrecord", "--quiet") == 0
    assert convert(tmp_path / "a.idx", "-o", tmp_path / "j", "--quiet") == 0
    index = RecordIndex.open(tmp_path / "j")
    assert [fault.reason for fault in index.faults] == ["inflate_checksum"]
    assert records(tmp_path / "j", path) == PAYLOADS[:6]


def test_a_directory_of_texts_back(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_file(tmp_path / "b", PAYLOADS[:6])
    assert convert(data, tmp_path / "b", "-o", tmp_path / "texts", "--quiet") == 0
    error = refusal(capsys, tmp_path / "texts", "-o", tmp_path / "i", status=2)
    assert "no data file of this name beside it: name it with --data" in error
    assert convert(tmp_path / "texts", "--data", data, tmp_path / "b", "-o", tmp_path / "i", "--quiet") == 0
    assert RecordIndex.open(tmp_path / "i").shard_sizes.tolist() == [40, 6]
    assert convert(data, tmp_path / "b", "-o", tmp_path, "--quiet") == 0  # beside the data
    (tmp_path / "texts" / "a.tfrecord").symlink_to(data)
    (tmp_path / "texts" / "b").symlink_to(tmp_path / "b")
    assert convert(tmp_path / "texts", "-o", tmp_path / "more", "--quiet") == 0  # there is data now: that is meant


def test_several_texts(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "b"
    write_file(other, PAYLOADS[:6])
    texts = [write_lines(tmp_path / "1.idx", LINES[2:4]), write_lines(tmp_path / "2.idx", LINES[:6])]
    assert convert(*texts, "--data", data, other, "-o", tmp_path / "i", "--json") == 0
    assert json.loads(capsys.readouterr().out)["files"] == [
        {"index": str(tmp_path / "i"), "data": [str(data), str(other)], "num_records": 8}
    ]
    index = RecordIndex.open(tmp_path / "i")
    assert index.shard_sizes.tolist() == [2, 6]
    dataset = tfr.TFRecordDataset([data, other], None, index=index)
    assert list(dataset.read_batch(range(8))) == PAYLOADS[2:4] + PAYLOADS[:6]
    error = refusal(capsys, *texts, "--data", data, "-o", tmp_path / "j", status=2)
    assert "2 text indexes and 1 data file: there must be one for each" in error


OTHERS: list[tuple[list[str], str]] = [
    ([], "it is empty, and the data has 40 records"),
    (["0 25", "26 30"], "entry 1 names a record of 30 bytes at byte 26, where none begins"),
    (["0 26"], "entry 0 names a record of 26 bytes at byte 0, where one of 24 bytes begins"),
    (["0 15"], "entry 0 names a record of 15 bytes at byte 0, where one of 24 bytes begins"),
    (["0 24", "999999 24"], "entry 1 names a record of 24 bytes at byte 999,999, where the data has ended"),
    (["24 32", "0 24"], "its offsets do not ascend"),
    (["0 24", "0 24"], "its offsets do not ascend"),
    (["0 0", "1 184"], "entry 1 names a record of 184 bytes at byte 1, where none begins"),
]


@pytest.mark.parametrize(("lines", "problem"), OTHERS)
def test_indexes_of_other_data(
    lines: list[str], problem: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = write_lines(tmp_path / "a.idx", lines)
    error = refusal(capsys, text, "-o", tmp_path / "i")
    assert error.startswith(f"tfrecord-index: error: {text}: this is no index of {data}: {problem}")
    assert not (tmp_path / "i").exists()


@pytest.mark.parametrize("lines", [[], ["0 229384"], ["0 300", "300 12"]])
def test_indexes_of_compressed_bytes(
    lines: list[str], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the tools make of a compressed file: nothing, or one line, or nonsense."""
    data.write_bytes(compress(frames(PAYLOADS), "gzip"))
    text = write_lines(tmp_path / "a.idx", lines)
    error = refusal(capsys, text, "-o", tmp_path / "i")
    assert "compressed with gzip: the index may be of its compressed bytes" in error


def test_an_index_without_records_of_data_without_records(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "a.idx").touch()
    assert convert(tmp_path / "a.idx", "-o", tmp_path / "i", "--quiet") == 0
    assert len(RecordIndex.open(tmp_path / "i")) == 0


def test_damaged_data(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data.write_bytes(flip(data.read_bytes(), starts(PAYLOADS)[20]))
    text = write_lines(tmp_path / "a.idx", LINES[:20])
    assert convert(text, "-o", tmp_path / "i", "--quiet") == 0
    assert records(tmp_path / "i", data) == PAYLOADS[:20]
    write_lines(text, LINES[:22])
    assert "length checksum" in refusal(capsys, text, "-o", tmp_path / "j")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["a.idx", "-o", "i"], 2, "a.idx: No such file or directory"),
        (["lonely.idx", "-o", "i"], 2, "no data file of this name beside it: name it with --data"),
        (["twice.idx", "-o", "i"], 2, "several files may be the data: twice, twice.tfrecord"),
        (["lonely.idx", "a.tfrecord", "-o", "i"], 2, "and not both at once"),
        (["lonely.idx", "--data", "a.tfrecord", "-o", "a.tfrecord"], 2, "this is the data file a.tfrecord"),
        (["lonely.idx", "--data", "a.tfrecord", "-o", "notes"], 2, "this file is no index"),
        (["notes", "--data", "a.tfrecord", "-o", "i"], 1, "this is neither a text index nor tfr-reader's"),
        (["bad.idx", "--data", "a.tfrecord", "-o", "i"], 1, "and not pairs of offset and size"),
        (["x/tfrds-reader-index.parquet", "-o", "i"], 1, "tfr-reader's index of a directory is not read"),
        (["a.tfrecord"], 2, "arguments are required: -o/--output"),
        (["a.tfrecord", "-o", "no/such/i"], 2, "the directory to write in, no/such, is missing"),
    ],
)
def test_usage(
    arguments: list[str],
    status: int,
    message: str,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("twice", "twice.tfrecord"):
        write_file(tmp_path / name, PAYLOADS)
    write_lines(tmp_path / "lonely.idx", LINES)
    write_lines(tmp_path / "twice.idx", LINES)
    write_lines(tmp_path / "bad.idx", ["0 24", "24"])
    (tmp_path / "notes").write_text("notes")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "tfrds-reader-index.parquet").write_bytes(b"PAR1")
    found: Any
    try:
        found = convert(*arguments)
    except SystemExit as error:
        found = error.code
    assert (found, data.read_bytes()) == (status, frames(PAYLOADS))
    assert message in capsys.readouterr().err
    assert not (tmp_path / "i").exists()


def test_many_records(tmp_path: Path) -> None:
    payloads = [b"%d" % i for i in range(100_000)]
    path = tmp_path / "a"
    write_file(path, payloads)
    assert convert(path, "-o", tmp_path / "a.idx", "--quiet") == 0
    assert convert(tmp_path / "a.idx", "-o", tmp_path / "i", "--quiet") == 0
    assert np.array_equal(RecordIndex.open(tmp_path / "i").offsets, RecordIndex.build(path).offsets)
