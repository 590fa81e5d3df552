"""Hypothesis strategies for records: on the wire in every legal shape, damaged, in batches with columns, in files.

A *logical* feature is ``(kind, values)``: kind 0 to 3 as in ``_core.pyi``; values a tuple of bytes (kind 1), of the raw
4 bytes of float32 (kind 2, so that no NaN changes its bits), or of int (kind 3). A strategy for wire bytes says also what
they mean, so that a reader can be held against the intention and not only against another reader.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st
from protobuf_oracle import BYTES, FLOAT32, INT64, KINDS, Feature, Features, set_feature
from wire import delimited, entry, example, tag, texts, varint

from torch_tfrecord.messages import Example
from torch_tfrecord.native.reference import FIXED, RAGGED
from torch_tfrecord.native.reference import frame as encode_frame

Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]
Column: TypeAlias = tuple[bytes, int, int, int, int, bytes | tuple[bytes, ...] | None]


# --- records on the wire ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dialect:
    """What to make use of. The two below differ where our rules and protobuf's do."""

    max_length_bytes: int  # of a varint that is a length
    any_key: bool  # also keys that are not UTF-8
    unknown_in_entry: bool


OURS = Dialect(max_length_bytes=10, any_key=True, unknown_in_entry=True)
PROTOBUF = Dialect(max_length_bytes=5, any_key=False, unknown_in_entry=False)

_COMMON_KEYS = (b"", b"a", b"b", b"image", b"eightlet", b"nine byte", "ключ".encode(), b"k" * 40)
_UNKNOWN_NUMBERS = (1, 2, 3, 4, 15, 16, 2047, 2**29 - 1)


def keys(dialect: Dialect) -> st.SearchStrategy[bytes]:
    """Mostly keys that come again, so that entries replace one another."""
    if dialect.any_key:
        return st.one_of(st.sampled_from((*_COMMON_KEYS, b"\xff\xfe")), st.binary(max_size=40))
    return st.one_of(st.sampled_from(_COMMON_KEYS), st.text(max_size=10).map(str.encode))


def _values(kind: int) -> st.SearchStrategy[Any]:
    if kind == BYTES:
        return st.binary(max_size=12)
    if kind == FLOAT32:
        return st.one_of(
            st.floats(width=32).map(lambda value: struct.pack("<f", value)), st.binary(min_size=4, max_size=4)
        )
    return st.one_of(st.integers(-3, 300), st.integers(-(2**63), 2**63 - 1))


def features_of(kind: int, *, count: int | None = None) -> st.SearchStrategy[Feature]:
    """Logical features of a kind, with ``count`` values or any number."""
    if kind == 0:
        return st.just((0, ()))
    values = st.lists(_values(kind), min_size=count or 0, max_size=5 if count is None else count)
    return values.map(lambda values: (kind, tuple(values)))


any_feature: st.SearchStrategy[Feature] = st.sampled_from((0, *KINDS)).flatmap(features_of)


def _padding(draw: Draw, most: int) -> int:
    """How long a varint shall be at least: mostly as short as it can."""
    return int(draw(_PADDING[most]))


_PADDING = {most: st.sampled_from((0,) * 20 + tuple(range(1, most + 1))) for most in (5, 10)}
_ONE_IN_TEN = st.sampled_from((False,) * 9 + (True,))


def _tag(draw: Draw, number: int, wire_type: int) -> bytes:
    return tag(number, wire_type, _padding(draw, 5))


def _delimited(draw: Draw, dialect: Dialect, number: int, content: bytes) -> bytes:
    length = varint(len(content), _padding(draw, dialect.max_length_bytes))
    return _tag(draw, number, 2) + length + content


def _value_bytes(draw: Draw, dialect: Dialect, wire_type: int) -> bytes:
    """Any value of a wire type that is no group."""
    if wire_type == 0:
        return varint(draw(st.integers(0, 2**64 - 1)), _padding(draw, 10))
    if wire_type == 2:
        content: bytes = draw(st.binary(max_size=5))
        return varint(len(content), _padding(draw, dialect.max_length_bytes)) + content
    return bytes(draw(st.binary(min_size=8, max_size=8) if wire_type == 1 else st.binary(min_size=4, max_size=4)))


def _unknown(draw: Draw, dialect: Dialect, known: Sequence[tuple[int, int]], depth: int = 0) -> bytes:
    """A field that is none of the known (number, wire type) pairs; groups nest three deep at most."""
    number = draw(st.sampled_from(_UNKNOWN_NUMBERS))
    wire_types = [t for t in (0, 1, 2, 3, 5) if (number, t) not in known and not (t == 3 and depth == 3)]
    wire_type = draw(st.sampled_from(wire_types))
    if wire_type != 3:
        return _tag(draw, number, wire_type) + _value_bytes(draw, dialect, wire_type)
    inside = [_unknown(draw, dialect, (), depth + 1) for _ in range(draw(st.integers(0, 2)))]
    return b"".join((_tag(draw, number, 3), *inside, _tag(draw, number, 4)))


def _with_unknown(draw: Draw, dialect: Dialect, fields: Sequence[bytes], known: Sequence[tuple[int, int]]) -> bytes:
    """Join fields, with an unknown one here and there."""
    joined = []
    for field in (*fields, b""):
        if draw(_ONE_IN_TEN):
            joined.append(_unknown(draw, dialect, known))
        joined.append(field)
    return b"".join(joined)


def _cut(draw: Draw, items: Sequence[Any], most: int) -> list[Sequence[Any]]:
    """Cut a sequence into 1 to ``most`` runs, some of them perhaps empty."""
    cuts = sorted(draw(st.lists(st.integers(0, len(items)), max_size=most - 1)))
    bounds = [0, *cuts, len(items)]
    return [items[a:b] for a, b in pairwise(bounds)]


def _list_message(draw: Draw, dialect: Dialect, kind: int, values: Sequence[Any]) -> bytes:
    """The content of a list message: packed runs, single values, or both."""
    if kind == BYTES:
        return _with_unknown(draw, dialect, [_delimited(draw, dialect, 1, value) for value in values], [(1, 2)])
    fields = []
    for run in _cut(draw, values, 3):
        encoded = [value if kind == FLOAT32 else varint(value, _padding(draw, 10)) for value in run]
        if draw(st.booleans()):
            fields.append(_delimited(draw, dialect, 1, b"".join(encoded)))
        else:
            fields += [_tag(draw, 1, 5 if kind == FLOAT32 else 0) + value for value in encoded]
    return _with_unknown(draw, dialect, fields, [(1, 2), (1, 5 if kind == FLOAT32 else 0)])


def _feature_messages(draw: Draw, dialect: Dialect, feature: Feature) -> list[bytes]:
    """The contents of an entry's value messages, which together mean ``feature``."""
    kind, values = feature
    fields = []
    if kind != 0:
        if (
            draw(st.integers(0, 4)) == 4
        ):  # lists that the real ones replace, because the last of them is of another kind
            other = draw(st.sampled_from([k for k in KINDS if k != kind]))
            for decoy in (*draw(st.lists(st.sampled_from(KINDS), max_size=2)), other):
                content = _list_message(draw, dialect, decoy, draw(features_of(decoy))[1])
                fields.append(_delimited(draw, dialect, decoy, content))
        for run in _cut(draw, values, 2):
            fields.append(_delimited(draw, dialect, kind, _list_message(draw, dialect, kind, run)))
    known = [(k, 2) for k in KINDS]
    messages = [_with_unknown(draw, dialect, run, known) for run in _cut(draw, fields, 2)]
    if kind == 0 and draw(st.booleans()):
        return []  # an entry without a value
    return messages


def _entry(draw: Draw, dialect: Dialect, key: bytes, feature: Feature) -> bytes:
    """The content of a map entry."""
    keys_written = [key] if key or draw(st.booleans()) else []
    if keys_written and draw(_ONE_IN_TEN):
        keys_written.insert(0, draw(keys(dialect)))  # the last one counts
    key_fields = [_delimited(draw, dialect, 1, written) for written in keys_written]
    value_fields = [_delimited(draw, dialect, 2, message) for message in _feature_messages(draw, dialect, feature)]
    before = draw(st.sampled_from((0, 0, len(value_fields))))
    fields = [*value_fields[:before], *key_fields, *value_fields[before:]]
    return _with_unknown(draw, dialect, fields, [(1, 2), (2, 2)]) if dialect.unknown_in_entry else b"".join(fields)


def encode_oddly(draw: Draw, dialect: Dialect, entries: Sequence[tuple[bytes, Feature]]) -> bytes:
    """An Example of these entries, in this order, in one of the many legal encodings."""
    messages = []
    for run in _cut(draw, entries, 3):
        fields = [_delimited(draw, dialect, 1, _entry(draw, dialect, key, feature)) for key, feature in run]
        if fields or draw(st.booleans()):
            messages.append(_delimited(draw, dialect, 1, _with_unknown(draw, dialect, fields, [(1, 2)])))
    return _with_unknown(draw, dialect, messages, [(1, 2)])


@st.composite
def wire_examples(draw: Draw, dialect: Dialect = OURS) -> tuple[bytes, Features, int]:
    """A payload, what it means, and how many of its entries are replaced by a later one."""
    entries = draw(st.lists(st.tuples(keys(dialect), any_feature), max_size=6))
    return encode_oddly(draw, dialect, entries), dict(entries), len(entries) - len(dict(entries))


@st.composite
def example_messages(draw: Draw) -> Example:
    """Examples as protobuf messages, to be serialised by protobuf."""
    message = Example()
    for key, (kind, values) in draw(st.lists(st.tuples(st.text(max_size=40), any_feature), max_size=6)):
        set_feature(message.features.feature[key], (kind, values))
    return message


# --- damage -----------------------------------------------------------------------------------------------------------


@st.composite
def damaged(draw: Draw, data: bytes) -> bytes:
    """The bytes with one to three accidents, which may leave them legal."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        accident = draw(st.sampled_from(("flip", "set", "cut", "drop", "insert", "repeat")))
        if accident == "cut":
            data = data[:at]
        elif accident == "insert":
            runs = st.sampled_from((b"\x00", b"\x80" * 11, b"\xff" * 10, b"\x0b", b"\x0c", b"\x7f", b"\x0a\x7f"))
            data = data[:at] + draw(st.one_of(st.binary(min_size=1, max_size=4), runs)) + data[at:]
        elif accident == "repeat":
            data = data[:at] + data[max(at - draw(st.integers(1, 20)), 0) :]
        elif at < len(data):
            byte = {"flip": data[at] ^ 1 << draw(st.integers(0, 7)), "set": draw(st.integers(0, 255))}.get(accident)
            data = data[:at] + (b"" if byte is None else bytes([byte])) + data[at + 1 :]
    return data


# --- batches and their columns ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """A batch: payloads, and columns that fit them, or do not."""

    payloads: list[bytes]
    columns: list[Column]


@st.composite
def batches(draw: Draw, dialect: Dialect = OURS, max_rows: int = 4) -> Rows:
    """Rows that are alike, with exceptions, and columns that mostly ask for what is there."""
    schema = draw(
        st.dictionaries(
            keys(dialect), st.tuples(st.sampled_from(KINDS), st.none() | st.integers(0, 4)), min_size=1, max_size=4
        )
    )
    rows = []
    for _ in range(draw(st.sampled_from((0, *range(1, max_rows + 1))))):
        entries = []
        for key, (kind, count) in schema.items():
            whim = draw(st.integers(0, 19))
            if whim > 1:
                entries.append((key, draw(features_of(kind, count=count))))
            if whim in (1, 19):
                entries.append((key, draw(any_feature)))
        rows.append(draw(st.permutations(entries)))
    columns = [draw(_columns(schema, rows)) for _ in range(draw(st.sampled_from((0, 1, 2, 3, 4, 6))))]
    return Rows([encode_oddly(draw, dialect, row) for row in rows], columns)


@st.composite
def _columns(
    draw: Draw, schema: dict[bytes, tuple[int, int | None]], rows: list[list[tuple[bytes, Feature]]]
) -> Column:
    key = draw(st.sampled_from(sorted(schema)) if schema else st.just(b"absent"))
    kind, count = schema.get(key, (draw(st.sampled_from(KINDS)), 1))
    whim = draw(st.integers(0, 19))
    if whim == 0:
        return b"", 0, FIXED, 1, -1, None
    if whim == 1:
        key = draw(st.just(b"absent") | keys(OURS))
    if whim == 2:
        kind = draw(st.sampled_from(KINDS))
    if whim == 3 or count is None:
        count = draw(st.none() | st.integers(0, 5))
    if count is None or whim == 4:
        return key, kind, RAGGED, 0, -1, None
    found = [
        value for row in rows for k, (_, values) in row if k == key for value in values if isinstance(value, bytes)
    ]
    sizes = st.sampled_from([len(value) for value in found]) if found else st.integers(0, 3)
    nbytes = draw(st.just(-1) | sizes) if kind == BYTES else -1
    return key, kind, FIXED, count, nbytes, draw(st.none() | _defaults(kind, count, nbytes))


def _defaults(kind: int, count: int, nbytes: int) -> st.SearchStrategy[bytes | tuple[bytes, ...]]:
    if kind == BYTES and nbytes < 0:
        return st.lists(st.binary(max_size=5), min_size=count, max_size=count).map(tuple)
    size = count * (nbytes if kind == BYTES else {FLOAT32: 4, INT64: 8}[kind])
    return st.binary(min_size=size, max_size=size)


def large_batch(random: Random, max_rows: int = 200) -> Rows:
    """Many rows with long lists in the plain encoding of common writers; at times a few rows are damaged."""
    schema = []
    for i in range(random.randint(1, 8)):
        kind = random.choice(KINDS)
        count = random.choice((None, 1, random.randint(0, 40)))
        nbytes = random.choice((-1, random.randint(0, 140))) if kind == BYTES else -1
        schema.append((b"%d" % i + b"k" * random.choice((0, 3, 7, 8, 30, 118, 130)), kind, count, nbytes))
    payloads = []
    for _ in range(random.randint(1, max_rows)):
        entries = []
        for key, kind, count, nbytes in schema:
            values = [
                _random_value(random, kind, nbytes) for _ in range(random.randint(0, 60) if count is None else count)
            ]
            if kind == INT64:
                padded = random.random() < 0.3
                values = [varint(value, random.choice((0, 10)) if padded else 0) for value in values]
            entries.append(entry(key, texts(*values) if kind == BYTES else delimited(kind, delimited(1, *values))))
        if random.random() < 0.3:
            random.shuffle(entries)
        payloads.append(example(*entries))
    for _ in range(random.choice((0, 0, 1, 3))):
        row = random.randrange(len(payloads))
        payload = bytearray(payloads[row])
        payload[random.randrange(len(payload))] ^= 1 << random.randrange(8)
        payloads[row] = bytes(payload)
    columns: list[Column] = []
    for key, kind, count, nbytes in schema:
        if count is None:
            columns.append((key, kind, RAGGED, 0, -1, None))
        elif random.random() < 0.9:
            columns.append((key, kind, FIXED, count, nbytes, None))
    if random.random() < 0.5:  # then perhaps all are sized
        columns = [column for column in columns if column[2] == FIXED and (column[1] != BYTES or column[4] >= 0)]
    return Rows(payloads, columns)


def _random_value(random: Random, kind: int, nbytes: int) -> Any:
    if kind == BYTES:
        return random.randbytes(random.randint(0, 140) if nbytes < 0 else nbytes)
    if kind == FLOAT32:
        return random.randbytes(4)
    return random.getrandbits(random.choice((1, 7, 8, 14, 21, 32, 63, 64)))


# --- files ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frames:
    """A file of frames: its bytes, and where the whole ones lay before any damage."""

    data: bytes
    payloads: list[bytes]
    offsets: list[int]


@st.composite
def frames(draw: Draw) -> Frames:
    payloads = draw(st.lists(st.binary(max_size=40), max_size=6))
    whole = [encode_frame(payload) for payload in payloads]
    offsets = [sum(map(len, whole[:i])) for i in range(len(whole))]
    return Frames(b"".join(whole), payloads, offsets)


# --- columns to encode ------------------------------------------------------------------------------------------------


@st.composite
def row_lists(draw: Draw) -> list[Features]:
    """Rows that all have the same keys, each of one kind."""
    kinds = draw(st.dictionaries(keys(PROTOBUF), st.sampled_from(KINDS), max_size=4))
    counts = {key: draw(st.none() | st.integers(0, 3)) for key in kinds}
    return [
        {key: draw(features_of(kind, count=counts[key])) for key, kind in kinds.items()}
        for _ in range(draw(st.integers(0, 4)))
    ]


def encode_columns(rows: list[Features]) -> list[tuple[bytes, int, Any, int, Any, Any]]:
    """The same rows as ``encode_batch`` takes them; ``count`` where all rows have as many values, else row_offsets."""
    columns = []
    for key in rows[0] if rows else ():
        kind = rows[0][key][0]
        lists = [row[key][1] for row in rows]
        values = [value for some in lists for value in some]
        if kind == INT64:
            array = np.array(values, np.int64)
        else:
            array = np.frombuffer(b"".join(values), np.uint8 if kind == BYTES else np.float32)
        counts = [len(some) for some in lists]
        row_offsets = None if len(set(counts)) == 1 else np.cumsum([0, *counts], dtype=np.int64)
        value_offsets = np.cumsum([0, *map(len, values)], dtype=np.int64) if kind == BYTES else None
        columns.append((key, kind, array, counts[0], row_offsets, value_offsets))
    return columns
