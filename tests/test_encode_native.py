"""The encoder, byte for byte against protobuf.

Protobuf's Python classes sort keys too when asked to be deterministic, but put ``"ab"`` before ``"a"``. So the tests take
single entries from protobuf and join them in the order of the keys' bytes.
"""

import struct
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from torch_tfrecord import messages
from torch_tfrecord.native import _core

Column = tuple[bytes, int, Any, int, "NDArray[np.int64] | None", "NDArray[np.int64] | None"]
BYTES, FLOAT, INT64 = 1, 2, 3
LISTS: dict[int, tuple[str, Any]] = {
    BYTES: ("bytes_list", messages.BytesList),
    FLOAT: ("float_list", messages.FloatList),
    INT64: ("int64_list", messages.Int64List),
}
VALUES = {
    BYTES: st.one_of(st.binary(max_size=5), st.binary(max_size=300)),
    FLOAT: st.floats(width=32, allow_nan=False),
    INT64: st.one_of(st.integers(-3, 300), st.integers(-(2**63), 2**63 - 1)),
}


def int64s(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def offsets_of(lengths: list[int]) -> NDArray[np.int64]:
    return np.concatenate([int64s([0]), np.cumsum(int64s(lengths), dtype=np.int64)])


def column(key: str, kind: int, rows: list[list[Any]], *, count: int | None = None) -> Column:
    """A column of lists, one a row; with row offsets unless each row is said to have ``count`` values."""
    flat = [value for row in rows for value in row]
    row_offsets = offsets_of(list(map(len, rows))) if count is None else None
    if kind == BYTES:
        values: NDArray[Any] = np.frombuffer(b"".join(flat), np.uint8)
        return key.encode(), kind, values, count or 0, row_offsets, offsets_of(list(map(len, flat)))
    values = np.array(flat, np.float32 if kind == FLOAT else np.int64)
    return key.encode(), kind, values, count or 0, row_offsets, None


def protobuf_example(features: dict[str, tuple[int, list[Any]]]) -> bytes:
    example = messages.Example()
    for key, (kind, values) in features.items():
        name, cls = LISTS[kind]
        example.features.feature[key].CopyFrom(messages.Feature(**{name: cls(value=values)}))
    return example.SerializeToString(deterministic=True)


def by_protobuf(features: dict[str, tuple[int, list[Any]]]) -> bytes:
    entries = b""
    for key in sorted(features, key=str.encode):
        example = messages.Example.FromString(protobuf_example({key: features[key]}))
        entries += example.features.SerializeToString()
    # An Example with one field of wire type 2 is that field's tag, length and content, whatever protobuf calls it.
    return messages.BytesList(value=[entries]).SerializeToString()


def pieces(encoded: tuple[bytes, NDArray[np.int64]]) -> list[bytes]:
    whole, offsets = encoded
    assert offsets.dtype == np.int64
    assert offsets[0] == 0
    assert offsets[-1] == len(whole)
    return [whole[begin:end] for begin, end in pairwise(offsets)]


@st.composite
def tables(draw: st.DrawFn) -> tuple[int, dict[str, tuple[int, list[list[Any]], int | None]]]:
    """Rows, and for each feature its kind, its list of values a row and their number where it is the same."""
    rows = draw(st.integers(0, 4))
    features = {}
    for key in draw(st.lists(st.text(max_size=6), unique=True, max_size=5)):
        kind = draw(st.sampled_from([BYTES, FLOAT, INT64]))
        count = draw(st.one_of(st.none(), st.integers(0, 4)))
        sizes = st.integers(0, 20) if count is None else st.just(count)
        values = [[draw(VALUES[kind]) for _ in range(draw(sizes))] for _ in range(rows)]
        features[key] = (kind, values, count)
    return rows, features


@settings(deadline=None)
@given(table=tables(), framed=st.booleans())
def test_any_columns_become_what_protobuf_writes(
    table: tuple[int, dict[str, tuple[int, list[list[Any]], int | None]]], framed: bool
) -> None:
    rows, features = table
    columns = [column(key, kind, values, count=count) for key, (kind, values, count) in features.items()]
    expected = [
        by_protobuf({key: (kind, values[row]) for key, (kind, values, _) in features.items()}) for row in range(rows)
    ]
    assert pieces(_core.encode_batch(columns, rows, framed)) == [
        _core.frame(record) if framed else record for record in expected
    ]


def test_all_of_protobufs_bytes_where_no_key_begins_with_another() -> None:
    features: dict[str, tuple[int, list[Any]]] = {
        "label": (INT64, [3]),
        "image": (BYTES, [b"\x89PNG"]),
        "box": (FLOAT, [0.5, 1, -2, 0]),
        "Ä": (BYTES, []),
    }
    columns = [column(key, kind, [values]) for key, (kind, values) in features.items()]
    assert pieces(_core.encode_batch(columns, 1, False)) == [protobuf_example(features)] == [by_protobuf(features)]


def test_an_example_by_hand() -> None:
    columns = [column("b", INT64, [[1, -1]], count=2), column("a", BYTES, [[b"x", b""]])]
    first = "0a0c 0a0161 1207 0a05 0a0178 0a00"
    second = "0a14 0a0162 120f 1a0d 0a0b 01 ffffffffffffffffff01"
    expected = bytes.fromhex("0a24" + first + second)
    assert pieces(_core.encode_batch(columns, 1, False)) == [expected]


@pytest.mark.parametrize(("kind", "feature"), [(BYTES, "0a00"), (FLOAT, "1200"), (INT64, "1a00")])
def test_an_empty_list_keeps_its_kind(kind: int, feature: str) -> None:
    expected = bytes.fromhex("0a09 0a07 0a0166 1202" + feature)
    assert by_protobuf({"f": (kind, [])}) == expected
    for count in (0, None):
        assert pieces(_core.encode_batch([column("f", kind, [[], []], count=count)], 2, False)) == [expected] * 2


def test_no_columns_and_no_rows() -> None:
    assert pieces(_core.encode_batch([], 2, False)) == [b"\x0a\x00"] * 2
    assert pieces(_core.encode_batch([], 0, True)) == []
    assert pieces(_core.encode_batch([column("f", FLOAT, [], count=3)], 0, True)) == []


def test_keys_are_sorted_by_bytes() -> None:
    keys = ["", "Z", "a", "a\0", "ab", "b", "ÿ", "\u20ac", "\U0001f600"]
    assert keys == sorted(keys, key=str.encode)
    for order in (keys, keys[::-1]):
        (record,) = pieces(_core.encode_batch([column(key, INT64, [[1]]) for key in order], 1, False))
        at = [record.index(bytes([0x0A, len(key.encode())]) + key.encode() + b"\x12\x05") for key in keys]
        assert at == sorted(at)
        assert record == by_protobuf({key: (INT64, [1]) for key in keys})


def test_keys_may_be_any_bytes() -> None:
    (record,) = pieces(_core.encode_batch([(b"\xff\0", INT64, int64s([7]), 1, None, None)], 1, False))
    assert record == bytes.fromhex("0a0d 0a0b 0a02ff00 1205 1a03 0a0107")


@pytest.mark.parametrize("size", [0, 1, 31, 32, 127, 128, 16_383, 16_384, 100_000])
def test_lengths_of_any_size(size: int) -> None:
    rng = np.random.default_rng(size)
    floats = rng.standard_normal(size).astype(np.float32).tolist()
    ints = rng.integers(-(2**63), 2**63 - 1, size).tolist()
    text = rng.bytes(size)
    columns = [column("f", FLOAT, [floats]), column("i", INT64, [ints], count=size), column("b", BYTES, [[text]])]
    assert pieces(_core.encode_batch(columns, 1, False)) == [
        by_protobuf({"f": (FLOAT, floats), "i": (INT64, ints), "b": (BYTES, [text])})
    ]


def test_every_size_of_varint() -> None:
    edges = [sign * (2**bits + step) for bits in range(63) for step in (-1, 0, 1) for sign in (1, -1)]
    values = [*edges, 2**63 - 1, -(2**63)]
    assert pieces(_core.encode_batch([column("i", INT64, [values])], 1, False)) == [by_protobuf({"i": (INT64, values)})]
    one_each = [[value] for value in values]
    assert pieces(_core.encode_batch([column("i", INT64, one_each, count=1)], len(values), False)) == [
        by_protobuf({"i": (INT64, row)}) for row in one_each
    ]


def test_bits_of_floats_are_kept() -> None:
    bits = struct.pack("<6I", 0x7FC00001, 0xFF800000, 0x7F800001, 0x80000000, 0x00000001, 0x7F7FFFFF)
    whole, _ = _core.encode_batch([(b"f", FLOAT, np.frombuffer(bits, np.float32), 6, None, None)], 1, False)
    assert whole.endswith(bits)


def test_arrays_of_several_dimensions_and_plain_buffers() -> None:
    images = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    flat = _core.encode_batch([(b"f", FLOAT, images.reshape(-1), 12, None, None)], 2, False)
    assert _core.encode_batch([(b"f", FLOAT, images, 12, None, None)], 2, False)[0] == flat[0]
    words = [column("b", BYTES, [[b"ab"], [b"c"]], count=1)]
    for buffer in (b"abc", bytearray(b"abc"), memoryview(b"abc")):
        plain: list[Column] = [(b"b", BYTES, buffer, 1, None, int64s([0, 2, 3]))]
        assert _core.encode_batch(plain, 2, True)[0] == _core.encode_batch(words, 2, True)[0]


def test_framed_rows_are_a_file() -> None:
    columns = [column("n", INT64, [[row] for row in range(1000)], count=1)]
    whole, offsets = _core.encode_batch(columns, 1000, True)
    plain = pieces(_core.encode_batch(columns, 1000, False))
    assert _core.split_frames(whole, 2, len(whole)) == (plain, len(whole), None)
    np.testing.assert_array_equal(offsets, offsets_of([16 + len(record) for record in plain]))


NUMBERS = np.arange(6, dtype=np.int64)
TEXT = np.frombuffer(b"abcdef", np.uint8)
REFUSED: dict[str, tuple[list[Column], int, str]] = {
    "negative rows": ([], -1, "rows"),
    "key twice": ([(b"k", INT64, NUMBERS, 2, None, None)] * 2, 3, "'k': comes twice"),
    "kind 0": ([(b"k", 0, NUMBERS, 2, None, None)], 3, "kind"),
    "kind 4": ([(b"k", 4, NUMBERS, 2, None, None)], 3, "kind"),
    "too many values": ([(b"k", INT64, NUMBERS, 1, None, None)], 3, "3 rows of 1 values are not 6 values"),
    "too few values": ([(b"k", INT64, NUMBERS, 3, None, None)], 3, "3 rows of 3 values are not 6 values"),
    "negative count": ([(b"k", INT64, NUMBERS, -2, None, None)], 3, "-2"),
    "count overflows": ([(b"k", INT64, NUMBERS, 2**62, None, None)], 4, "4 rows"),
    "row offsets too short": ([(b"k", INT64, NUMBERS, 0, int64s([0, 6]), None)], 3, "row_offsets must hold 3"),
    "row offsets too long": ([(b"k", INT64, NUMBERS, 0, int64s([0, 2, 6]), None)], 1, "row_offsets must hold 1"),
    "no row offsets at all": ([(b"k", INT64, NUMBERS, 0, int64s([]), None)], 0, "at least one"),
    "row offsets not from 0": ([(b"k", INT64, NUMBERS, 0, int64s([1, 6]), None)], 1, "climb from 0 to 6"),
    "row offsets negative": ([(b"k", INT64, NUMBERS, 0, int64s([0, -1, 6]), None)], 2, "climb from 0 to 6"),
    "row offsets fall": ([(b"k", INT64, NUMBERS, 0, int64s([0, 5, 4, 6]), None)], 3, "climb from 0 to 6"),
    "row offsets beyond": ([(b"k", INT64, NUMBERS, 0, int64s([0, 7]), None)], 1, "climb from 0 to 6"),
    "row offsets short of the end": ([(b"k", INT64, NUMBERS, 0, int64s([0, 5]), None)], 1, "climb from 0 to 6"),
    "row offsets huge": ([(b"k", INT64, NUMBERS, 0, int64s([0, 2**63 - 1, 6]), None)], 2, "climb from 0 to 6"),
    "row offsets of int32": ([(b"k", INT64, NUMBERS, 0, np.array([0, 6], np.int32), None)], 1, "must be int64"),
    "bytes without offsets": ([(b"k", BYTES, TEXT, 1, None, None)], 1, "value_offsets"),
    "numbers with offsets": ([(b"k", INT64, NUMBERS, 6, None, int64s([0, 6]))], 1, "value_offsets"),
    "value offsets beyond": ([(b"k", BYTES, TEXT, 1, None, int64s([0, 7]))], 1, "value_offsets must climb from 0 to 6"),
    "value offsets fall": (
        [(b"k", BYTES, TEXT, 2, None, int64s([0, 7, 6]))],
        1,
        "value_offsets must climb from 0 to 6",
    ),
    "value offsets do not make the rows": ([(b"k", BYTES, TEXT, 1, None, int64s([0, 6]))], 2, "2 rows of 1 values"),
    "floats of 64 bits": ([(b"k", FLOAT, np.zeros(3), 1, None, None)], 3, "must be float32"),
    "floats for ints": ([(b"k", INT64, np.zeros(3, np.float32), 1, None, None)], 3, "must be int64"),
    "unsigned ints": ([(b"k", INT64, np.zeros(3, np.uint64), 1, None, None)], 3, "must be int64"),
    "big-endian ints": ([(b"k", INT64, np.zeros(3, ">i8"), 1, None, None)], 3, "must be int64"),
    "truth values for bytes": ([(b"k", BYTES, np.zeros(3, bool), 1, None, int64s([0, 1, 2, 3]))], 3, "must be uint8"),
    "key not printable": ([(b"\xff\n'", INT64, NUMBERS, 1, None, None)], 3, "feature '\\?\\?''"),
    "five parts": ([(b"k", INT64, NUMBERS, 2, None)], 3, "tuple of 6"),  # type: ignore[list-item]
}


@pytest.mark.parametrize("name", REFUSED)
def test_contradictions_are_refused(name: str) -> None:
    columns, rows, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        _core.encode_batch(columns, rows, False)


def test_keys_are_bytes() -> None:
    with pytest.raises((TypeError, RuntimeError)):
        _core.encode_batch([("k", INT64, NUMBERS, 2, None, None)], 3, False)  # type: ignore[list-item]


def test_values_must_be_contiguous() -> None:
    with pytest.raises((ValueError, BufferError), match="contiguous"):
        _core.encode_batch([(b"k", INT64, NUMBERS[::2], 1, None, None)], 3, False)


def test_an_example_that_no_protobuf_parser_reads_is_refused() -> None:
    # The zeros are never touched, so they take no memory.
    floats = np.zeros(2**29, np.float32)
    with pytest.raises(
        ValueError, match="feature 'big': with it, the Example of row 1 would take more than 2147483647"
    ):
        _core.encode_batch([(b"big", FLOAT, floats, 0, int64s([0, 5, 2**29]), None)], 2, False)
    zeros = floats.view(np.uint8)
    with pytest.raises(ValueError, match="the Example of row 0"):
        _core.encode_batch(
            [
                (b"a", BYTES, zeros[: 2**30], 1, None, int64s([0, 2**30])),
                (b"b", BYTES, zeros[: 2**30], 1, None, int64s([0, 2**30])),
            ],
            1,
            False,
        )
