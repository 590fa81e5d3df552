"""How records are read, rule by rule, by both cores, and where protobuf agrees, by it too.

The rules are numbered: 1 to 35 are odd encodings and damages of an Example, and what becomes of them. Positions in
faults are byte offsets in the payload.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import pytest
from jobs import both_cores, fill, needs_native, needs_upb, read_back
from protobuf_oracle import BYTES, FLOAT32, INT64, Features, read_by_protobuf
from strategies import Column
from wire import delimited, entry, example, floats, ints, tag, texts, varint

from torch_tfrecord.native import reference
from torch_tfrecord.native.reference import FIXED, RAGGED

ONE, TWO = struct.pack("<2f", 1.0, 2.0)[:4], struct.pack("<2f", 1.0, 2.0)[4:]
KINDLESS = (0, ())


def int_list(*values: int) -> tuple[int, tuple[int, ...]]:
    return INT64, values


class Case(NamedTuple):
    """A payload, and the features it means or the fault in it: code, position, expected, found."""

    rule: int
    title: str
    payload: bytes
    meaning: Features | tuple[str, int, int, int]
    protobuf_agrees: bool = True

    def __str__(self) -> str:
        return f"{self.rule}: {self.title}"


def of_f(*feature: bytes) -> bytes:
    """An Example with one feature ``f``. The content of its Feature begins at byte 9 where all is short."""
    return example(entry(b"f", *feature))


def unpacked_ints(*values: int) -> bytes:
    return b"".join(tag(1, 0) + varint(value) for value in values)


def run_of(*values: int) -> bytes:
    return delimited(1, *map(varint, values))


def group(number: int, *content: bytes) -> bytes:
    return b"".join((tag(number, 3), *content, tag(number, 4)))


def nested_groups(depth: int) -> bytes:
    return tag(7, 3) * depth + tag(7, 4) * depth


def _pair(first: bytes, second: bytes) -> bytes:
    """An Example whose one entry has two values."""
    return example(delimited(1, delimited(1, b"f"), delimited(2, first), delimited(2, second)))


CASES = [
    Case(1, "packed ints", of_f(ints(1, -1)), {b"f": int_list(1, -1)}),
    Case(1, "packed floats", of_f(floats(1.0, 2.0)), {b"f": (FLOAT32, (ONE, TWO))}),
    Case(1, "empty packed run", of_f(delimited(3, delimited(1))), {b"f": int_list()}),
    Case(2, "unpacked ints", of_f(delimited(3, unpacked_ints(1, 300))), {b"f": int_list(1, 300)}),
    Case(2, "unpacked floats", of_f(delimited(2, tag(1, 5), ONE, tag(1, 5), TWO)), {b"f": (FLOAT32, (ONE, TWO))}),
    Case(3, "two packed runs", of_f(delimited(3, run_of(1, 2), run_of(3))), {b"f": int_list(1, 2, 3)}),
    Case(3, "two float runs", of_f(delimited(2, delimited(1, ONE), delimited(1, TWO))), {b"f": (FLOAT32, (ONE, TWO))}),
    Case(4, "packed then unpacked", of_f(delimited(3, run_of(1), unpacked_ints(2, 3))), {b"f": int_list(1, 2, 3)}),
    Case(5, "unpacked then packed", of_f(delimited(3, unpacked_ints(1, 2), run_of(3))), {b"f": int_list(1, 2, 3)}),
    Case(6, "packed floats of 6 bytes", of_f(delimited(2, delimited(1, ONE, b"\1\2"))), ("bad_packed", 13, 4, 6)),
    Case(7, "packed ints past their list", of_f(delimited(3, b"\x0a\x64\x01")), ("bad_length", 12, 100, 1)),
    Case(7, "packed floats past their list", of_f(delimited(2, b"\x0a\x08", ONE)), ("bad_length", 12, 8, 4)),
    Case(8, "list past its Feature", of_f(b"\x1a\x04\x0a\x01\x01"), ("bad_length", 10, 4, 3)),
    Case(9, "list shorter than its content", of_f(b"\x1a\x02\x0a\x01\x01"), ("bad_length", 12, 1, 0)),
    Case(10, "bytes past their list", of_f(delimited(1, b"\x0a\x03ab")), ("bad_length", 12, 3, 2)),
    Case(11, "two kinds, ints last", of_f(floats(1.0), ints(7)), {b"f": int_list(7)}),
    Case(11, "two kinds, bytes last", of_f(ints(7), texts(b"x")), {b"f": (BYTES, (b"x",))}),
    Case(11, "a kind, another, the first again", of_f(ints(7), floats(1.0), ints(8)), {b"f": int_list(8)}),
    Case(11, "the last kind is empty", of_f(ints(7), delimited(2)), {b"f": (FLOAT32, ())}),
    Case(11, "a replaced kind is damaged", of_f(b"\x1a\x01\x0a", texts(b"x")), ("bad_varint", 12, 0, 0)),
    Case(12, "same kind twice", of_f(ints(1), ints(2)), {b"f": int_list(1, 2)}),
    Case(12, "bytes twice", of_f(texts(b"a", b"b"), texts(b"c")), {b"f": (BYTES, (b"a", b"b", b"c"))}),
    Case(13, "unknown field before the kind", of_f(tag(9, 0), varint(5), ints(1)), {b"f": int_list(1)}),
    Case(13, "kind number 4", of_f(delimited(4, run_of(1))), {b"f": KINDLESS}),
    Case(13, "kind of another wire type", of_f(tag(3, 0), varint(5)), {b"f": KINDLESS}),
    Case(13, "kind as a group", of_f(group(3, run_of(1))), {b"f": KINDLESS}),
    Case(13, "tag in five bytes", of_f(tag(3, 2, 5), b"\x03", run_of(1)), {b"f": int_list(1)}),
    Case(14, "unknown field after the kind", of_f(ints(1), delimited(9, b"abc")), {b"f": int_list(1)}),
    Case(15, "unknown field in a list", of_f(delimited(3, tag(9, 5), ONE, run_of(1))), {b"f": int_list(1)}),
    Case(15, "floats in an int list", of_f(delimited(3, tag(1, 5), ONE, run_of(1))), {b"f": int_list(1)}),
    Case(15, "an int in a bytes list", of_f(delimited(1, unpacked_ints(5))), {b"f": (BYTES, ())}),
    Case(16, "unknown field in Features", example(delimited(5, b"x"), entry(b"f", ints(1))), {b"f": int_list(1)}),
    Case(
        16,
        "unknown field in an entry",
        example(delimited(1, delimited(1, b"f"), delimited(3, b"x"), delimited(2, ints(1)))),
        {b"f": int_list(1)},
        protobuf_agrees=False,
    ),
    *(
        Case(
            17,
            f"unknown field of wire type {wire_type}",
            tag(9, wire_type) + value + of_f(ints(1)),
            {b"f": int_list(1)},
        )
        for wire_type, value in ((0, varint(-1)), (1, b"8bytes.."), (2, b"\x03abc"), (5, b"four"))
    ),
    Case(18, "unknown group", group(9, unpacked_ints(1), group(4)) + of_f(ints(1)), {b"f": int_list(1)}),
    Case(18, "100 groups deep", nested_groups(100) + of_f(ints(1)), {b"f": int_list(1)}),
    Case(18, "101 groups deep", nested_groups(101) + of_f(ints(1)), ("bad_group", 100, 0, 0)),
    Case(18, "group without an end", of_f(ints(1)) + tag(9, 3) + unpacked_ints(1), ("bad_group", 17, 0, 0)),
    Case(18, "group ends as another", tag(9, 3) + tag(8, 4), ("bad_tag", 1, 0, 0)),
    Case(18, "end of no group", of_f(ints(1)) + tag(9, 4), ("bad_tag", 14, 0, 0)),
    Case(18, "group past its message", example(tag(9, 3)) + tag(9, 4), ("bad_group", 3, 0, 0)),
    Case(19, "unknown field past the end", of_f(ints(1)) + b"\x4a\x05abc", ("bad_length", 15, 5, 3)),
    Case(20, "field number 0", of_f(ints(1)) + b"\x02\x00", ("bad_tag", 14, 0, 0)),
    Case(20, "wire type 6", b"\x0e\x00" + of_f(ints(1)), ("bad_tag", 0, 0, 0)),
    Case(20, "wire type 7", b"\x0f\x00" + of_f(ints(1)), ("bad_tag", 0, 0, 0)),
    Case(20, "tag over 32 bits", varint(2**32 + 8) + b"\x00", ("bad_tag", 0, 0, 0)),
    Case(20, "tag of six bytes", tag(9, 0, 6) + b"\x00", ("bad_tag", 0, 0, 0)),
    Case(20, "tag cut short", of_f(ints(1)) + b"\x8a", ("bad_varint", 14, 0, 0)),
    Case(21, "duplicate key", example(entry(b"f", ints(1)), entry(b"f", texts(b"x"))), {b"f": (BYTES, (b"x",))}),
    Case(22, "duplicate key, the last kindless", example(entry(b"f", ints(1)), entry(b"f")), {b"f": KINDLESS}),
    Case(
        23,
        "features twice",
        example(entry(b"f", ints(1)), entry(b"g", ints(2))) + of_f(ints(3)),
        {b"f": int_list(3), b"g": int_list(2)},
    ),
    Case(24, "value before key", example(delimited(1, delimited(2, ints(1)), delimited(1, b"f"))), {b"f": int_list(1)}),
    Case(25, "entry without key", example(delimited(1, delimited(2, ints(1)))), {b"": int_list(1)}),
    Case(26, "entry without value", example(delimited(1, delimited(1, b"f"))), {b"f": KINDLESS}),
    Case(27, "empty entry", example(delimited(1)), {b"": KINDLESS}),
    Case(28, "key twice, no value", example(delimited(1, delimited(1, b"f"), delimited(1, b"g"))), {b"g": KINDLESS}),
    Case(29, "value twice, same kind", _pair(ints(1), ints(2)), {b"f": int_list(1, 2)}),
    Case(29, "value twice, two kinds", _pair(ints(1), texts(b"x")), {b"f": (BYTES, (b"x",))}),
    Case(29, "value twice, the second kindless", _pair(ints(1), b""), {b"f": int_list(1)}),
    Case(30, "key is not UTF-8", example(entry(b"\xff\xfe", ints(1))), {b"\xff\xfe": int_list(1)}, False),
    Case(31, "damage in a feature", of_f(delimited(3, b"\x0a\x64\x01")), ("bad_length", 12, 100, 1)),
    Case(32, "varint of 10 bytes", of_f(delimited(3, delimited(1, varint(5, 10)))), {b"f": int_list(5)}),
    Case(32, "bits beyond 64", of_f(delimited(3, delimited(1, b"\x85" + b"\x80" * 8 + b"\x7e"))), {b"f": int_list(5)}),
    Case(32, "varint of 11 bytes", of_f(delimited(3, delimited(1, varint(5, 11)))), ("bad_varint", 13, 0, 0)),
    Case(
        32, "second varint of a run cut short", of_f(delimited(3, delimited(1, b"\x01\x80"))), ("bad_varint", 14, 0, 0)
    ),
    Case(32, "unpacked varint cut short", of_f(delimited(3, b"\x08\xff")), ("bad_varint", 12, 0, 0)),
    Case(32, "length cut short", of_f(b"\x1a\x80"), ("bad_varint", 10, 0, 0)),
    Case(32, "four bytes cut short", of_f(delimited(2, tag(1, 5), b"abc")), ("bad_length", 12, 4, 3)),
    Case(32, "eight bytes cut short", of_f(tag(9, 1), b"1234567"), ("bad_length", 10, 8, 7)),
    Case(33, "length + 2**32", of_f(b"\x1a", varint(2**32 + 3), run_of(1)), ("bad_length", 10, 2**32 + 3, 3)),
    Case(33, "length 2**64 - 1", of_f(b"\x1a", varint(-1), run_of(1)), ("bad_length", 10, 2**63 - 1, 3)),
    Case(33, "length in five bytes", of_f(b"\x1a", varint(3, 5), run_of(1)), {b"f": int_list(1)}),
    Case(33, "length in ten bytes", of_f(b"\x1a", varint(3, 10), run_of(1)), {b"f": int_list(1)}, False),
    Case(34, "zero byte appended", of_f(ints(1)) + b"\0", ("bad_tag", 14, 0, 0)),
    Case(35, "odd bytes values", of_f(texts(b"\0\0", b"\xff\xfe", b"")), {b"f": (BYTES, (b"\0\0", b"\xff\xfe", b""))}),
]

# Examples in hex that are known to be read so by protobuf; None: refused.
VECTORS: list[tuple[str, Features | None]] = [
    ("0a160a140a0166120f1a0d0a0b01ffffffffffffffffff01", {b"f": int_list(1, -1)}),
    ("0a0e0a0c0a016612071a05080108ac02", {b"f": int_list(1, 300)}),
    ("0a100a0e0a016612091a070a0201020a0103", {b"f": int_list(1, 2, 3)}),
    ("0a100a0e0a016612091a07080108020a0103", {b"f": int_list(1, 2, 3)}),
    ("0a0c0a0a12051a030a01010a0166", {b"f": int_list(1)}),
    ("0a050a030a0166", {b"f": KINDLESS}),
    ("0a140a120a0166120d1a030a010112060a0400000040", {b"f": (FLOAT32, (TWO,))}),
    ("0a110a0f0a0166120a1a030a01011a030a0102", {b"f": int_list(1, 2)}),
    ("0a130a110a016612051a030a010112051a030a0102", {b"f": int_list(1, 2)}),
    ("0a070a050a01661200", {b"f": KINDLESS}),
    ("0a090a070a016612021a00", {b"f": int_list()}),
    ("0a130a0a0a016612051a030a01010a050a01661200", {b"f": KINDLESS}),
    ("0a110a0f0a0166120a12080a060000803f0102", None),
    ("0a0e0a0c0a0166120748051a030a0101", {b"f": int_list(1)}),
    ("0a0c0a0a0a016612051a020a0101", None),
    ("0a0c0a0a0a016612051a030a6401", None),
    ("0a160a140a0166120f1a0d0a0b8080808080808080808001", None),
    ("", {}),
    ("0a00", {}),
]


def read(core: Any, payload: bytes) -> Features | tuple[str, int, int, int]:
    """All features of a record, or the fault as a Case has it."""
    described = core.describe(payload)
    if isinstance(described, tuple):
        code, row, column, *numbers = described
        assert (row, column) == (0, -1)
        return code, *numbers
    features, _ = read_back(core, payload, [(key, kind) for key, kind, _ in described])
    assert list(features) == [key for key, kind, _ in described if not kind] + [
        key for key, kind, _ in described if kind
    ]
    return features


@both_cores
@pytest.mark.parametrize("case", CASES, ids=str)
def test_rules(core: Any, case: Case) -> None:
    assert read(core, case.payload) == case.meaning


DAMAGED = [case for case in CASES if isinstance(case.meaning, tuple)]


@both_cores
@pytest.mark.parametrize("case", DAMAGED, ids=str)
def test_faults_name_row_and_column(core: Any, case: Case) -> None:
    def measure(*keys: bytes) -> Any:
        columns: list[Column] = [(key, BYTES, RAGGED, 0, -1, None) for key in keys]
        return core.Decoder(columns).parse([b"", case.payload]).measure(1)

    assert isinstance(case.meaning, tuple)
    code, *numbers = case.meaning
    inside_f = measure(b"g") is None  # then the damage is not noticed
    assert measure(b"g", b"f", b"f") == (code, 1, 1 if inside_f else -1, *numbers)


@needs_upb
@pytest.mark.parametrize("case", [case for case in CASES if case.protobuf_agrees], ids=str)
def test_protobuf_agrees(case: Case) -> None:
    assert read_by_protobuf(case.payload) == (None if isinstance(case.meaning, tuple) else case.meaning)


def test_each_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == set(range(1, 36))


@both_cores
@pytest.mark.parametrize(("payload", "meaning"), VECTORS)
def test_vectors(core: Any, payload: str, meaning: Features | None) -> None:
    found = read(core, bytes.fromhex(payload))
    assert (None if isinstance(found, tuple) else found) == meaning
    assert read_by_protobuf(bytes.fromhex(payload)) == meaning


@both_cores
@pytest.mark.parametrize(
    ("data", "crc", "masked"),
    [
        (b"", "00000000", "a282ead8"),
        (b"a", "c1d04330", "28e46e78"),
        (b"123456789", "e3069283", "c78ab0e5"),
        (bytes(32), "8a9136aa", "0fd7fffa"),
        (b"\xff" * 32, "62a8ab43", "f909b029"),
        (bytes(range(32)), "46dd794e", "951f7892"),
    ],
)
def test_checksum_vectors(core: Any, data: bytes, crc: str, masked: str) -> None:
    assert f"{core.crc32c(data):08x}" == crc
    assert f"{core.masked_crc32c(data):08x}" == masked


@both_cores
@pytest.mark.parametrize(
    ("payload", "frame"),
    [
        (b"", "000000000000000029039807d8ea82a2"),
        (b"alpha", "0500000000000000eab2043e616c7068618adc8501"),
        (b"beta", "040000000000000042455204626574615fd3f639"),
    ],
)
def test_frame_vectors(core: Any, payload: bytes, frame: str) -> None:
    assert core.frame(payload).hex() == frame
    assert core.split_frames(bytes.fromhex(frame), 2, -1) == ([payload], len(payload) + 16, None)


# --- what columns make of it ------------------------------------------------------------------------------------------

DEFAULT = struct.pack("<q", 9)


def read_one(core: Any, payload: bytes, column: Column) -> tuple[Any, int, int]:
    """The bytes of a column's values in one record, or the fault; and the numbers of defaults and duplicates."""
    job = core.Decoder([column]).parse([payload])
    fault = job.measure(1)
    if fault is not None:
        return fault, 0, 0
    fault, arena, (begin, *_) = fill(job, [column])
    assert fault is None
    return arena[begin : begin + job.num_bytes(0)], job.num_defaulted(), job.num_duplicates()


ABSENT, EMPTY, ONE_VALUE = of_f(ints(1)).replace(b"f", b"g"), of_f(delimited(3)), of_f(ints(1))
KINDLESS_F = of_f()
MISSING = ("missing", 0, 0, 0, 0, 0)


@both_cores
@pytest.mark.parametrize(
    ("payload", "required", "defaulted", "no_values", "ragged"),
    [
        (ABSENT, MISSING, DEFAULT, MISSING, b""),
        (b"", MISSING, DEFAULT, MISSING, b""),
        (KINDLESS_F, MISSING, DEFAULT, MISSING, b""),
        (example(entry(b"f", ints(1)), entry(b"f")), MISSING, DEFAULT, MISSING, b""),
        (EMPTY, ("count", 0, 0, 0, 1, 0), ("count", 0, 0, 0, 1, 0), b"", b""),
        (ONE_VALUE, struct.pack("<q", 1), struct.pack("<q", 1), ("count", 0, 0, 0, 0, 1), struct.pack("<q", 1)),
        (of_f(floats(1.0)), *[("kind", 0, 0, 0, INT64, FLOAT32)] * 4),
        (of_f(delimited(1)), *[("kind", 0, 0, 0, INT64, BYTES)] * 4),
    ],
    ids=["absent", "empty Example", "kindless", "last entry kindless", "empty", "one", "floats", "empty other kind"],
)
def test_absent_kindless_and_empty_are_three_things(
    core: Any, payload: bytes, required: Any, defaulted: Any, no_values: Any, ragged: Any
) -> None:
    assert read_one(core, payload, (b"f", INT64, FIXED, 1, -1, None))[0] == required
    found, num_defaulted, _ = read_one(core, payload, (b"f", INT64, FIXED, 1, -1, DEFAULT))
    assert (found, num_defaulted) == (defaulted, int(defaulted == DEFAULT))
    assert read_one(core, payload, (b"f", INT64, FIXED, 0, -1, None))[0] == no_values
    found, num_defaulted, _ = read_one(core, payload, (b"f", INT64, RAGGED, 0, -1, None))
    assert (found, num_defaulted) == (ragged, 0)


@both_cores
@pytest.mark.parametrize(
    ("values", "found"),
    [
        ((b"ab", b"cd"), b"abcd"),
        ((b"ab", b"c"), ("nbytes", 0, 0, 0, 2, 1)),
        ((b"abc", b""), ("nbytes", 0, 0, 0, 2, 3)),
        ((b"ab",), ("count", 0, 0, 0, 2, 1)),
        ((b"abcd",), ("count", 0, 0, 0, 2, 1)),
        (None, b"wxyz"),
    ],
)
def test_sized_bytes_lie_end_to_end(core: Any, values: Any, found: Any) -> None:
    column: Column = (b"f", BYTES, FIXED, 2, 2, b"wxyz")
    assert read_one(core, b"" if values is None else of_f(texts(*values)), column)[0] == found


@both_cores
def test_duplicates_are_counted_by_key(core: Any) -> None:
    payload = example(*(entry(b"f", ints(i)) for i in range(4)), *(entry(b"g", ints(i)) for i in range(3)))
    columns: list[Column] = [(key, INT64, RAGGED, 0, -1, None) for key in (b"f", b"f", b"h")]
    job = core.Decoder(columns).parse([payload, payload])
    assert job.measure(1) is None
    assert job.num_duplicates() == 6  # three of f in each record; g is not asked for


@both_cores
def test_features_that_are_not_asked_for_are_not_looked_at(core: Any) -> None:
    damaged = entry(b"bad", delimited(3, b"\x0a\x64\x01"))
    payload = example(damaged, entry(b"f", ints(1)))
    assert read_one(core, payload, (b"f", INT64, FIXED, 1, -1, None))[0] == struct.pack("<q", 1)
    assert read_one(core, payload, (b"bad", INT64, RAGGED, 0, -1, None))[0] == ("bad_length", 0, 0, 14, 100, 1)
    assert read_one(core, example(delimited(1, delimited(1, b"x"))), (b"f", INT64, RAGGED, 0, -1, None))[0] == b""
    # but its extent must be right, since the rest of the record hangs on it
    assert read_one(core, example(b"\x0a\x05\x0a\x01x"), (b"f", INT64, RAGGED, 0, -1, None))[0] == (
        "bad_length", 0, -1, 3, 5, 3,
    )  # fmt: skip


@both_cores
def test_a_whole_payload_is_taken_whatever_it_holds(core: Any) -> None:
    column: Column = (b"", 0, FIXED, 1, -1, None)
    payloads = [b"\xff" * 20, b"", ONE_VALUE]
    job = core.Decoder([column]).parse(payloads)
    assert job.measure(1) is None
    assert (job.values(0), job.num_values(0), job.num_bytes(0)) == (payloads, 3, 34)
    job = core.Decoder([column, (b"f", INT64, RAGGED, 0, -1, None)]).parse(payloads)
    assert job.measure(1) == ("bad_varint", 0, -1, 0, 0, 0)  # the other column needs an Example


@both_cores
def test_sequence_example_is_read_by_its_context(core: Any) -> None:
    payload = ONE_VALUE + delimited(2, delimited(1, delimited(1, b"steps"), delimited(2, delimited(1, ints(5)))))
    assert read(core, payload) == {b"f": int_list(1)}


@needs_native
def test_cores_agree_on_constants() -> None:
    from jobs import native

    assert (native.FIXED, native.RAGGED) == (reference.FIXED, reference.RAGGED) == (0, 1)
