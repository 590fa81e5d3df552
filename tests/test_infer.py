"""Specs found from records."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from record_files import flip, frames, starts, write_file
from wire import delimited, entry, example, ints, tag, texts, varint

import torch_tfrecord as tfr
from torch_tfrecord.messages import Example

INT, FLOAT, TEXT = torch.int64, torch.float32, bytes


def write(path: Path, records: Sequence[dict[str, Any]]) -> str:
    return write_file(path, [tfr.encode_example(record) for record in records])


def schema(path: Path, *records: dict[str, Any], **options: Any) -> tfr.Schema:
    return tfr.infer_schema(write(path / "a.tfrecord", records), **options)


def test_one_number_of_values_is_a_fixed_length(tmp_path: Path) -> None:
    record = {"n": 1, "x": [0.5, 1.5, 2.5], "s": b"text", "pair": [b"a", b"b"]}
    found = schema(tmp_path, record, {**record, "n": 2})
    assert type(found) is tfr.Schema
    assert found == {
        "n": tfr.FixedLenFeature((), INT),
        "pair": tfr.FixedLenFeature((2,), TEXT),
        "s": tfr.FixedLenFeature((), TEXT),
        "x": tfr.FixedLenFeature((3,), FLOAT),
    }
    assert list(found) == sorted(found)


@pytest.mark.parametrize(
    "records",
    [
        [{"v": [1, 2], "n": 0}, {"v": [1], "n": 0}],
        [{"v": 1, "n": 0}, {"n": 0}],
        [{"n": 0}, {"v": 1, "n": 0}],
        [{"v": 1, "n": 0}, {"v": [], "n": 0}],  # written without a kind
    ],
)
def test_any_other_is_of_any_length(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    assert schema(tmp_path, *records) == {"n": tfr.FixedLenFeature((), INT), "v": tfr.VarLenFeature(INT)}


def test_list_that_is_always_empty(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a", [example(entry(b"e", delimited(2)))] * 2)
    assert tfr.infer_schema(path) == {"e": tfr.VarLenFeature(FLOAT)}


def test_values_are_counted_after_merging(tmp_path: Path) -> None:
    twice = example(entry(b"f", ints(1, 2, 3)), entry(b"f", texts(b"a"), ints(4), ints(5)))
    path = write_file(
        tmp_path / "a", [twice, example(entry(b"f", delimited(3, tag(1, 0), b"\1", delimited(1, b"\2"))))]
    )
    assert tfr.infer_schema(path) == {"f": tfr.FixedLenFeature((2,), INT)}


def test_printed_schema_reads_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [{"n": 1, "s": [b"a", b"b"], "quote'": [0.5]}, {"n": 2, "s": [], "quote'": [1.5]}])
    found = tfr.infer_schema(path)
    assert repr(found) == (
        "{\n"
        "    'n': tfr.FixedLenFeature((), torch.int64),\n"
        '    "quote\'": tfr.FixedLenFeature((), torch.float32),\n'
        "    's': tfr.VarLenFeature(bytes),\n"
        "}"
    )
    features = eval(repr(found), {"tfr": tfr, "torch": torch})
    assert features == found
    batch = tfr.TFRecordDataset(path, features).read_batch([0, 1])
    assert batch["n"].tolist() == [1, 2]
    assert batch["quote'"].tolist() == [0.5, 1.5]
    assert batch["s"].tolist() == [[b"a", b"b"], []]


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a", [example(entry(b"\xff", ints(5)), entry("ключ".encode(), ints(6)))])
    found = tfr.infer_schema(path)
    assert set(found) == {"ключ", "\udcff"}
    assert eval(repr(found), {"tfr": tfr, "torch": torch}) == found
    assert [int(value) for value in tfr.TFRecordDataset(path, found)[0].values()] == [6, 5]


def test_features_without_a_kind_are_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record = Example()
    record.features.feature["none"].Clear()
    record.features.feature["n"].int64_list.value.append(3)
    path = write_file(tmp_path / "a", [bytes(record.SerializeToString())] * 3)
    with caplog.at_level(logging.WARNING, "torch_tfrecord"):
        assert tfr.infer_schema(path) == {"n": tfr.FixedLenFeature((), INT)}
    assert [entry.getMessage() for entry in caplog.records] == [
        "infer_schema: feature 'none' has no kind set in any record; it is left out"
    ]


def test_several_files_share_the_records_looked_at(tmp_path: Path) -> None:
    one, two = {"a": 1}, {"a": [1, 2]}
    paths = [write(tmp_path / "x", [one, one, two]), write(tmp_path / "y", [one, one, one])]
    assert tfr.infer_schema(paths, max_records=4) == {"a": tfr.FixedLenFeature((), INT)}
    assert tfr.infer_schema(paths, max_records=5) == {"a": tfr.VarLenFeature(INT)}  # 3 of each file
    assert tfr.infer_schema(paths, max_records=0) == {"a": tfr.VarLenFeature(INT)}
    assert tfr.infer_schema(paths, max_records=1) == {"a": tfr.FixedLenFeature((), INT)}
    assert tfr.infer_schema(str(tmp_path / "*")) == {"a": tfr.VarLenFeature(INT)}
    assert tfr.infer_schema(paths[1]) == {"a": tfr.FixedLenFeature((), INT)}


def test_records_that_were_not_looked_at_may_differ(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [{"a": 1}, {"a": [1, 2]}])
    dataset = tfr.TFRecordDataset(path, tfr.infer_schema(path, max_records=1))
    with pytest.raises(tfr.ParseError, match=r"record 1 .*expected 1 values .*found 2; .*read it as VarLenFeature"):
        dataset[1]


def test_feature_of_two_kinds(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [{"a": 1}, {"a": 2}, {"a": 0.5}])
    with pytest.raises(tfr.ParseError) as info:
        tfr.infer_schema(path)
    size = len(tfr.encode_example({"a": 1})) + 16
    assert str(info.value) == (
        f"feature 'a' has different dtypes: int64 in {path}: record 0 at byte 0, float32 in {path}: record 2 at byte "
        f"{2 * size}; no one spec reads them: write it with one dtype, leave it out of specs written by hand, or read "
        "raw bytes with features=None and parse them yourself"
    )


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"plain text", r"not an Example: byte \d+ of the record: .*; features=None reads raw bytes$"),
        (b"\x0a\x64", r"not an Example: byte 1 of the record: a length of 100 bytes where 0 are left;"),
        (example(entry(b"f", b"\x1a\x01\x0a")), r"not an Example: byte \d+ of the record: a varint that is cut short"),
    ],
)
def test_records_that_are_no_examples(tmp_path: Path, payload: bytes, says: str) -> None:
    first = tfr.encode_example({"n": 1})
    path = write_file(tmp_path / "a", [first, payload])
    with pytest.raises(tfr.ParseError, match=f"{path}: record 1 at byte {len(first) + 16}: {says}"):
        tfr.infer_schema(path)


def sequence(context: dict[str, int], steps: int) -> bytes:
    message = tfr.SequenceExample()
    for name, value in context.items():
        message.context.feature[name].int64_list.value.append(value)
    for step in range(steps):
        message.feature_lists.feature_list["steps"].feature.append(tfr.Feature(int64_list=tfr.Int64List(value=[step])))
    return bytes(message.SerializeToString())


@pytest.mark.parametrize("context", [{}, {"n": 1}, {str(i): i for i in range(100)}])
def test_sequence_examples_are_refused(tmp_path: Path, context: dict[str, int]) -> None:
    first = sequence({"n": 1}, 0)  # not to be told from an Example
    path = write_file(tmp_path / "a", [first, sequence(context, 3)])
    says = f"{path}: record 1 at byte {len(first) + 16}: a SequenceExample, which .*features=None.*FromString"
    with pytest.raises(tfr.ParseError, match=says):
        tfr.infer_schema(path)
    messages = tfr.TFRecordDataset(path, tfr.SequenceExample.FromString)  # what the message advises
    assert len(messages[1].feature_lists.feature_list["steps"].feature) == 3


@pytest.mark.parametrize("unknown", [tag(2, 0) + varint(5), delimited(2, b"\xff"), delimited(2), delimited(3, b"x")])
def test_examples_with_unknown_fields_are_examples(tmp_path: Path, unknown: bytes) -> None:
    path = write_file(tmp_path / "a", [tfr.encode_example({"n": 1}) + unknown])
    assert tfr.infer_schema(path) == {"n": tfr.FixedLenFeature((), INT)}


def test_negative_number_of_records(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_records must be 0, for all records, or more, not -1"):
        schema(tmp_path, {"n": 1}, max_records=-1)


@pytest.mark.parametrize("payloads", [[], [b"", b""], [tag(2, 0) + varint(5)] * 3])
def test_nothing_to_find(tmp_path: Path, payloads: list[bytes]) -> None:
    path = write_file(tmp_path / "a", payloads)
    with pytest.raises(tfr.ParseError, match=f"{path}: no feature in {len(payloads)} records: .*features=None"):
        tfr.infer_schema(path)


def test_damaged_and_missing_files(tmp_path: Path) -> None:
    payloads = [tfr.encode_example({"n": i}) for i in range(3)]
    damaged = tmp_path / "a"
    damaged.write_bytes(frames(payloads)[:-1])
    with pytest.raises(tfr.DataLossError, match=f"{damaged}: record 2 at byte {starts(payloads)[2]}: truncated"):
        tfr.infer_schema(damaged)
    assert tfr.infer_schema(damaged, max_records=2) == {"n": tfr.FixedLenFeature((), INT)}
    with pytest.raises(FileNotFoundError):
        tfr.infer_schema(tmp_path / "no")


def test_damage_is_left_out_on_request(tmp_path: Path) -> None:
    good = tfr.encode_example({"n": 1})
    payloads = [good, good, b"no Example", good]
    path, whole = tmp_path / "a.tfrecord", frames(payloads)
    ends = starts(payloads)
    path.write_bytes(flip(whole, ends[1] + 12))
    with pytest.raises(tfr.DataLossError, match=r'record 1 at .* or pass on_error="skip"'):
        tfr.infer_schema(path)
    with pytest.raises(tfr.ParseError, match=f"record 2 at byte {ends[2]}: not an Example"):
        tfr.infer_schema(path, on_error="skip")
    path.write_bytes(flip(frames([good] * 3), ends[1] + 12))
    assert tfr.infer_schema(path, on_error="skip") == {"n": tfr.FixedLenFeature((), INT)}
    with pytest.raises(ValueError, match="on_error must be 'raise' or 'skip'"):
        tfr.infer_schema(path, on_error="ignore")  # type: ignore[arg-type]
