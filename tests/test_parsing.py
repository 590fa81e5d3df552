"""Serialised Examples to values: one record, many, none; what each kind of feature becomes; what each error says."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from wire import delimited, entry, example, floats, ints, tag, texts, varint

import torch_tfrecord as tfr
from examples import message, parse, parse_one, plain

INT = tfr.FixedLenFeature((), torch.int64)
TEXT = tfr.FixedLenFeature((), bytes)


# --- what a feature becomes -------------------------------------------------------------------------------------------


def test_numbers_of_a_fixed_shape() -> None:
    records = [message({"f": [6 * i + j for j in range(6)]}) for i in range(3)]
    for shape in [(6,), (2, 3), (1, 6, 1)]:
        spec = tfr.FixedLenFeature(shape, torch.int64)
        one, many = parse_one(records[1], spec), parse(records, spec)
        assert one.dtype == many.dtype == torch.int64
        assert torch.equal(one, torch.arange(6, 12).view(shape))
        assert torch.equal(many, torch.arange(18).view(3, *shape))
        assert many.is_contiguous()


def test_scalar_numbers() -> None:
    records = [message({"f": [-0.5]}), message({"f": [1.0]})]
    spec = tfr.FixedLenFeature((), torch.float32)
    assert parse_one(records[0], spec).shape == ()
    assert torch.equal(parse(records, spec), torch.tensor([-0.5, 1.0]))


def test_bits_of_numbers_survive() -> None:
    bits = [0x7FC00001, 0x7F800001, 0xFFFFFFFF, 0x7F800000, 0xFF800000, 0x80000000, 0x00000001]
    payload = example(entry(b"f", delimited(2, delimited(1, struct.pack("<7I", *bits)))))
    found = parse_one(payload, tfr.FixedLenFeature((7,), torch.float32))
    assert [value % 2**32 for value in found.view(torch.int32).tolist()] == bits
    whole = [-(2**63), -1, 0, 2**63 - 1]
    assert parse_one(message({"f": whole}), tfr.VarLenFeature(torch.int64)).tolist() == whole


def test_one_string_a_record() -> None:
    records = [message({"f": [value]}) for value in (b"ab", b"", b"\x00\xff")]
    assert parse_one(records[0], TEXT) == b"ab"
    column = parse(records, TEXT)
    assert type(column) is tfr.Bytes
    assert column.tolist() == [b"ab", b"", b"\x00\xff"]
    assert column.offsets.tolist() == [0, 2, 2, 4]
    assert bytes(column.values.tolist()) == b"ab\x00\xff"


def test_strings_of_a_shape_are_nested_lists() -> None:
    records = [message({"f": [b"%d" % (6 * i + j) for j in range(6)]}) for i in range(2)]
    spec = tfr.FixedLenFeature((2, 3), bytes)
    assert parse_one(records[1], spec) == [[b"6", b"7", b"8"], [b"9", b"10", b"11"]]
    assert parse(records, spec)[0] == [[b"0", b"1", b"2"], [b"3", b"4", b"5"]]
    assert len(parse(records, spec)) == 2


def test_numbers_of_any_length() -> None:
    records = [message({"f": values}) for values in ([1, 2], (), [3], None)] + [message({})]
    spec = tfr.VarLenFeature(torch.int64)
    assert [parse_one(record, spec).tolist() for record in records] == [[1, 2], [], [3], [], []]
    column = parse(records, spec)
    assert type(column) is tfr.Ragged
    assert column.tolist() == [[1, 2], [], [3], [], []]
    assert column.offsets.tolist() == [0, 2, 2, 3, 3, 3]
    assert isinstance(column.values, torch.Tensor)
    assert column.values.dtype == parse_one(records[4], spec).dtype == torch.int64


def test_strings_of_any_length() -> None:
    records = [message({"f": [b"a", b""]}), message({}), message({"f": [b"bc"]})]
    spec = tfr.VarLenFeature(bytes)
    assert [parse_one(record, spec) for record in records] == [[b"a", b""], [], [b"bc"]]
    column = parse(records, spec)
    assert column.tolist() == [[b"a", b""], [], [b"bc"]]
    assert type(column.values) is tfr.Bytes
    assert column.values.tolist() == [b"a", b"", b"bc"]


def test_no_values_by_shape() -> None:
    records = [example(entry(b"f", delimited(kind))) for kind in (1, 2, 3)]
    assert parse([records[2]] * 2, tfr.FixedLenFeature((0,), torch.int64)).shape == (2, 0)
    assert parse_one(records[1], tfr.FixedLenFeature((2, 0), torch.float32)).shape == (2, 0)
    assert parse([records[0]] * 2, tfr.FixedLenFeature((2, 0), bytes)).tolist() == [[[], []]] * 2
    assert parse_one(records[0], tfr.FixedLenFeature((0,), bytes)) == []
    with pytest.raises(tfr.ParseError, match="found none"):
        parse_one(message({}), tfr.FixedLenFeature((0,), torch.int64))


def test_columns_keep_the_order_of_the_features() -> None:
    names = ["b", "z", "a", "y", "c"]
    specs = [INT, TEXT, tfr.VarLenFeature(torch.int64), tfr.FixedLenFeature((2,), torch.float32), INT]
    record = message({"a": [1], "b": [2], "c": [3], "y": [0.5, 1.5], "z": [b"x"]})
    batch = tfr.parse_example([record], dict(zip(names, specs, strict=True)))
    assert list(batch) == names
    assert [plain(batch[name][0]) for name in names] == [2, b"x", [1], [0.5, 1.5], 3]


def test_key_reads_a_feature_under_another_name() -> None:
    record = message({"file name": [7], "column": [1]})
    features = {
        "column": tfr.FixedLenFeature((), torch.int64, key="file name"),
        "again": tfr.VarLenFeature(torch.int64, key="file name"),
    }
    assert {name: plain(value) for name, value in tfr.parse_single_example(record, features).items()} == {
        "column": 7,
        "again": [7],
    }


def test_key_that_is_not_utf8() -> None:
    record = example(entry(b"\xff", ints(5)))
    spec = tfr.FixedLenFeature((), torch.int64, key=b"\xff".decode("utf-8", "surrogateescape"))
    assert parse_one(record, spec) == 5


@pytest.mark.parametrize(
    "spec",
    [
        tfr.FixedLenFeature((2,), torch.float32),
        TEXT,
        tfr.FixedLenFeature((2, 3), bytes),
        tfr.VarLenFeature(torch.int64),
        tfr.VarLenFeature(bytes),
        tfr.FixedLenFeature((2,), bytes, decode=tfr.DecodeRaw(torch.int16, (3,), little_endian=False)),
        tfr.FixedLenFeature((), bytes, decode=tfr.DecodeRaw(torch.int16, (-1,), little_endian=False)),
        tfr.FixedLenFeature((), bytes, decode=tfr.DecodeRaw(torch.bool, (2, -1))),
        tfr.FixedLenFeature((), bytes, decode=tfr.DecodeImage()),
        tfr.FixedLenFeature((), bytes, decode=tfr.DecodeImage(channels=1, size=(3, 4))),
    ],
    ids=repr,
)
def test_no_records(spec: Any) -> None:
    batch = tfr.parse_example([], {"f": spec, "n": INT})
    assert batch.num_records == len(batch["f"]) == 0
    assert batch["f"].tolist() == []
    assert batch["n"].shape == batch.record_ids.shape == (0,)  # type: ignore[union-attr]
    if isinstance(batch["f"], torch.Tensor):
        row_shape = {torch.float32: (2,), torch.int16: (2, 3), torch.uint8: (3, 4, 1)}[batch["f"].dtype]
        assert batch["f"].shape == (0, *row_shape)


def test_any_bytes_like_records() -> None:
    record = message({"f": [1]})
    views = [record, bytearray(record), memoryview(record), np.frombuffer(record, np.uint8)]
    assert parse(views, INT).tolist() == [1] * 4  # type: ignore[arg-type]
    assert parse(tuple(views), INT).tolist() == [1] * 4  # type: ignore[arg-type]
    for wrong in (record, bytearray(record), "text"):
        with pytest.raises(TypeError, match="takes a list of serialised Examples"):
            tfr.parse_example(wrong, {"f": INT})  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        tfr.parse_example(["text"], {"f": INT})  # type: ignore[list-item]


def test_batch_knows_its_records() -> None:
    batch = tfr.parse_example([message({"f": [i]}) for i in range(4)], {"f": INT})
    assert torch.equal(batch.record_ids, torch.arange(4))  # type: ignore[arg-type]
    assert torch.equal(batch.valid, torch.ones(4, dtype=torch.bool))


# --- defaults, duplicates ---------------------------------------------------------------------------------------------


def test_defaults_replace_what_is_absent_or_kindless_and_are_counted() -> None:
    records = [message({"f": [1, 2], "g": [b"x"]}), message({}), message({"f": None, "g": None})]
    features = {
        "f": tfr.FixedLenFeature((2,), torch.int64, [8, 9]),
        "g": tfr.FixedLenFeature((), bytes, b"none"),
        "h": tfr.FixedLenFeature((), torch.float32, 0.25),
    }
    batch = tfr.parse_example(records, features)
    assert batch["f"].tolist() == [[1, 2], [8, 9], [8, 9]]
    assert batch["g"].tolist() == [b"x", b"none", b"none"]
    assert batch["h"].tolist() == [0.25] * 3
    assert batch.num_defaulted == 7
    assert tfr.parse_example(records[:1], {"f": features["f"]}).num_defaulted == 0


def test_default_of_an_empty_list_is_not_taken() -> None:
    for spec in (tfr.FixedLenFeature((), torch.int64, 5), tfr.FixedLenFeature((2,), torch.int64, [5, 6])):
        with pytest.raises(tfr.ParseError, match=f"expected {spec.count} values .*, found 0"):
            parse_one(message({"f": ()}), spec)


def test_default_of_several_strings() -> None:
    spec = tfr.FixedLenFeature((2, 2), bytes, [[b"a", b""], [b"bcd", b"e"]])
    assert parse([message({}), message({"f": [b"1", b"2", b"3", b"4"]})], spec).tolist() == [
        [[b"a", b""], [b"bcd", b"e"]],
        [[b"1", b"2"], [b"3", b"4"]],
    ]


def test_entries_that_later_ones_replace_are_counted() -> None:
    twice = example(entry(b"f", ints(1)), entry(b"g", texts(b"a")), entry(b"f", ints(2)), entry(b"f", ints(3)))
    batch = tfr.parse_example([twice, twice, message({"f": [4], "g": [b"b"]})], {"f": INT, "g": TEXT})
    assert batch["f"].tolist() == [3, 3, 4]
    assert batch.num_duplicates == 4
    assert tfr.parse_example([twice], {"g": TEXT}).num_duplicates == 0  # f is not asked for
    last_kindless = example(entry(b"f", ints(1)), entry(b"f"))
    batch = tfr.parse_example([last_kindless], {"f": tfr.FixedLenFeature((), torch.int64, 9)})
    assert (batch["f"].tolist(), batch.num_duplicates, batch.num_defaulted) == ([9], 1, 1)


def test_floats_of_an_odd_list_are_joined() -> None:
    lone = tag(1, 5) + struct.pack("<f", 3.0)
    record = example(entry(b"f", floats(1.0, 2.0), delimited(2, lone)))
    assert parse_one(record, tfr.FixedLenFeature((3,), torch.float32)).tolist() == [1.0, 2.0, 3.0]


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "spec", "says"),
    [
        (message({}), INT, "feature 'f': expected a value, found none: the record has no feature.*; give it a default_value, "),
        (message({"f": None}), TEXT, "feature 'f': expected a value, found none"),
        (message({"f": [0.5]}), INT, "feature 'f': expected int64, found float32; change the spec's dtype"),
        (message({"f": [1]}), TEXT, "feature 'f': expected bytes, found int64"),
        (message({"f": [b"x"]}), tfr.VarLenFeature(torch.float32), "feature 'f': expected float32, found bytes"),
        (message({"f": [1, 2]}), INT, r"feature 'f': expected 1 values for shape \(\), found 2; change the spec's shape"),
        (message({"f": [1]}), tfr.FixedLenFeature((2, 2), torch.int64), r"expected 4 values for shape \(2, 2\), found 1"),
        (message({"f": [b"a"] * 3}), tfr.FixedLenFeature((2,), bytes), r"expected 2 values for shape \(2,\), found 3"),
        (message({"k": [1]}), tfr.FixedLenFeature((), bytes, key="k"), r"feature 'k' \(column 'f'\): expected bytes"),
    ],
)  # fmt: skip
def test_mismatch_names_record_feature_expected_found(bad: bytes, spec: Any, says: str) -> None:
    value: dict[Any, list[Any]] = {bytes: [b"x"], torch.int64: [1], torch.float32: [0.5]}
    good = message({spec.key or "f": value[spec.dtype] * getattr(spec, "count", 1)})
    with pytest.raises(tfr.ParseError, match=f"^record 2: .*{says}"):
        parse([good, good, bad, bad, good], spec)
    with pytest.raises(tfr.ParseError, match=f"^record 0: .*{says}"):
        parse_one(bad, spec)
    with pytest.raises(ValueError, match=says):  # the built-in that callers may catch
        parse_one(bad, spec)


def test_records_made_on_demand() -> None:
    """Items that nobody but the sequence holds, and that it makes anew each time."""
    records = [tfr.encode_example({"f": i}) for i in range(500)]

    class OnDemand(Sequence[bytes]):
        def __len__(self) -> int:
            return len(records)

        def __getitem__(self, index: Any) -> Any:
            return bytes(bytearray(records[index]))

    for source in (OnDemand(), tfr.Bytes.from_list(records), np.array(records, dtype=object), iter(records)):
        assert tfr.parse_example(source, {"f": INT})["f"].tolist() == list(range(500))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("item", "advice"),
    [
        ("text", "found str: give bytes"),
        (3, "found int: give bytes"),
        (tfr.Example(), r"Example: give its \.Serialize"),
    ],
)
def test_items_that_are_no_bytes(item: Any, advice: str) -> None:
    with pytest.raises(TypeError, match=f"record 1: expected a serialised Example as bytes, .*{advice}"):
        tfr.parse_example([tfr.encode_example({"f": 1}), item], {"f": INT})


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b"\x0a\x05", "byte 1 of the record: a length of 5 bytes where 0 are left"),
        (b"\x07", "byte 0 of the record: a field tag that is none"),
        (tag(9, 0) + b"\xff", "byte 1 of the record: a varint that is cut short"),
        (tag(7, 3), "a group that does not end"),
        (
            example(entry(b"f", delimited(3, b"\x0a\x64\x01"))),
            "feature 'f': byte .* a length of 100 bytes where 1 are left",
        ),
        (example(entry(b"f", b"\x1a\x01\x0a")), "feature 'f': byte .* a varint that is cut short"),
        (b"plain text, no proto", "of the record: .* Is it a serialised Example"),
    ],
)
def test_damage_names_its_place(bad: bytes, says: str) -> None:
    with pytest.raises(tfr.ParseError, match=f"^record 1: .*{says}"):
        parse([message({"f": [1]}), bad], INT)
    with pytest.raises(tfr.ParseError, match=f"^record 0: .*{says}"):
        parse_one(bad, tfr.VarLenFeature(torch.int64))


def test_damaged_floats() -> None:
    bad = example(entry(b"f", delimited(2, delimited(1, b"\0" * 6))))
    with pytest.raises(tfr.ParseError, match=r"feature 'f': byte .* packed floats of 6 bytes, not a multiple of 4"):
        parse_one(bad, tfr.VarLenFeature(torch.float32))


def test_damage_in_features_that_are_not_asked_for_is_not_looked_at() -> None:
    record = example(entry(b"g", b"\x1a\x01\x0a"), entry(b"f", ints(1)))
    assert parse_one(record, INT) == 1


def test_record_of_another_message_has_no_feature() -> None:
    with pytest.raises(tfr.ParseError, match="found none"):
        parse_one(tag(2, 0) + varint(5), INT)


def test_message_does_not_hold_the_payload() -> None:
    with pytest.raises(tfr.ParseError) as caught:
        parse_one(message({"f": [b"secret" * 1000]}), INT)
    assert "secret" not in str(caught.value)
