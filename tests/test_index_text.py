"""The text indexes of DALI and of the tfrecord package, and tfr-reader's binary ones."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_files import ALPHA, BETA, write_file

from torch_tfrecord.errors import StaleIndexError
from torch_tfrecord.index import RecordIndex
from torch_tfrecord.index_text import kind_of_index, read_foreign_index, write_text_index


def int64s(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def binary(*entries: tuple[int, int, int]) -> bytes:
    return struct.pack("<Q", len(entries)) + b"".join(struct.pack("<3Q", *entry) for entry in entries)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"0 47\n47 47\n", "text"),
        (b"0 47", "text"),
        (b"  0\t47\r\n", "text"),
        (b"", "text"),
        (binary(), "tfr-reader"),
        (binary((0, 21, 5), (21, 41, 4)), "tfr-reader"),
        (b"PAR1....", "parquet"),
        (b"TFRINDEX....", "torch_tfrecord"),
        (b"0 47\nx", None),
        (b"-1 47\n", None),
        (b"\n\n", None),
        (ALPHA, None),
        (binary((0, 21, 5)) + b"x", None),
        (bytes(16), None),
    ],
)
def test_kind_of_index(content: bytes, kind: str | None, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)
    assert kind_of_index(tmp_path / "a") == kind


def test_kind_of_an_index_of_ours(tmp_path: Path) -> None:
    RecordIndex.build(write_file(tmp_path / "a", [b"x"])).save(tmp_path / "i")
    assert kind_of_index(tmp_path / "i") == "torch_tfrecord"


@pytest.mark.parametrize(
    ("content", "offsets", "sizes"),
    [
        (b"0 21\n21 20\n", [0, 21], [21, 20]),
        (b"0 21\n21 20", [0, 21], [21, 20]),
        (b"\n 0\t21 \r\n\n21  20\n", [0, 21], [21, 20]),
        (b"0 21 21 20", [0, 21], [21, 20]),
        (b"0\n21\n", [0, 21], None),
        (b"0", [0], None),
        (b"", [], []),
        (b"999999999999999999 16\n", [10**18 - 1], [16]),
    ],
)
def test_text(content: bytes, offsets: list[int], sizes: list[int] | None, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)
    index = read_foreign_index(tmp_path / "a")
    assert (index.kind, index.offsets.tolist()) == ("text", offsets)
    assert index.offsets.dtype == np.int64
    assert (None if index.sizes is None else index.sizes.tolist()) == sizes


def test_binary(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(binary((0, 21, 5), (41, 61, 4)))
    index = read_foreign_index(tmp_path / "a")
    assert index.kind == "tfr-reader"
    assert index.sizes is not None
    assert (index.offsets.tolist(), index.sizes.tolist()) == ([0, 41], [21, 20])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"0 21\n21\n", "damaged text index: 3 numbers, and not pairs"),
        (b"0 21\n" * 20_000 + b"0 x\n", "damaged text index: line 20001 is not made of numbers"),
        (b"1000000000000000000 16\n", "damaged text index: a number has more than 18 digits"),
        (binary((0, 21, 6)), "damaged index of tfr-reader"),
        (binary((0, 2**64 - 1, 2**64 - 17)), "damaged index of tfr-reader"),
        (b"PAR1....", "a Parquet file: tfr-reader's index of a directory is not read"),
        (b"TFRINDEX....", "this is an index of torch_tfrecord"),
        (b"<html>", "this is neither a text index nor tfr-reader's"),
        (ALPHA + BETA, "this is neither a text index nor tfr-reader's"),
    ],
)
def test_what_is_refused(content: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(StaleIndexError, match=problem) as caught:
        read_foreign_index(tmp_path / "a")
    assert str(tmp_path / "a") in str(caught.value)


@given(st.lists(st.tuples(st.integers(0, 2**50), st.integers(0, 2**40)), max_size=20))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[int, int]]) -> None:
    path = tmp_path_factory.mktemp("index") / "a.idx"
    write_text_index(path, int64s(*(offset for offset, _ in entries)), int64s(*(length for _, length in entries)))
    assert path.read_text() == "".join(f"{offset} {length + 16}\n" for offset, length in entries)
    index = read_foreign_index(path)
    assert index.offsets.tolist() == [offset for offset, _ in entries]
    assert index.sizes is not None
    assert index.sizes.tolist() == [length + 16 for _, length in entries]


def test_many_lines(tmp_path: Path) -> None:
    offsets = np.arange(200_001, dtype=np.int64) * 20
    write_text_index(tmp_path / "a", offsets, np.full(200_001, 4))
    assert read_foreign_index(tmp_path / "a").offsets.tolist() == offsets.tolist()
    assert os.listdir(tmp_path) == ["a"]


def test_only_text_indexes_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("0 17\n")
    (tmp_path / "empty").touch()
    for name in ("old", "empty", "new"):
        write_text_index(tmp_path / name, int64s(0), int64s(5))
        assert (tmp_path / name).read_text() == "0 21\n"
    write_file(tmp_path / "data", [b"x"])
    (tmp_path / "notes").write_text("notes")
    for name in ("data", "notes"):
        with pytest.raises(ValueError, match="this file is no text index, so it is not replaced"):
            write_text_index(tmp_path / name, int64s(0), int64s(5))
    assert (tmp_path / "notes").read_text() == "notes"
    for target, kind in [(tmp_path, IsADirectoryError), (tmp_path / "no" / "a", FileNotFoundError)]:
        with pytest.raises(kind):
            write_text_index(target, int64s(0), int64s(5))
