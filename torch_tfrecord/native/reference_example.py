"""The messages of an Example in plain Python.

    Example          1 features: Features
    Features         1 feature: map entries
    map entry        1 key: bytes, 2 value: Feature
    Feature          one of 1 bytes_list, 2 float_list, 3 int64_list, or none ("kindless")
    BytesList        1 value: repeated bytes
    FloatList        1 value: repeated float, packed or not
    Int64List        1 value: repeated int64, packed or not

Any of these fields may come several times and in any order: lists are joined, messages are merged, and otherwise the
last one counts. A SequenceExample has its context where an Example has its features, so its context can be read too.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from torch_tfrecord.native.reference_wire import (
    FOUR_BYTES,
    LENGTH_DELIMITED,
    VARINT,
    Field,
    WireError,
    fields,
    read_varint,
    to_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from torch_tfrecord.native.reference_frames import Fault, Int64s

KINDLESS, BYTES, FLOAT32, INT64 = range(4)  # the three kinds are also their field numbers in Feature
ITEM_BYTES = {FLOAT32: 4, INT64: 8}

# Bytes values as a tuple; numbers as the raw little-endian bytes of all values, so that each NaN keeps its bits.
Values: TypeAlias = bytes | tuple[bytes, ...]


@dataclass(frozen=True)
class Feature:
    """What an Example holds under one name."""

    kind: int
    values: Values

    def __len__(self) -> int:
        """Number of values."""
        return len(self.values) // ITEM_BYTES.get(self.kind, 1)


class FeatureError(Exception):
    """Damage inside the feature of a wanted key: the cause is the WireError."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self.key = key


def read_example(data: bytes, is_wanted: Callable[[bytes], bool]) -> tuple[dict[bytes, Feature], int]:
    """Read the wanted features of an Example; the others are stepped over without a look inside.

    Returns:
        Features by key, in the order of each key's first entry; and how many entries were replaced by a later one.

    Raises:
        WireError: Damage outside of wanted features.
        FeatureError: Damage inside one.
    """
    features: dict[bytes, Feature] = {}
    num_replaced = 0
    for example_field in fields(data, 0, len(data)):
        if not _is_message(example_field, 1):
            continue
        for features_field in fields(data, example_field.begin, example_field.end):
            if not _is_message(features_field, 1):
                continue
            key, values = _read_entry(data, features_field)
            if is_wanted(key):
                num_replaced += key in features
                try:
                    features[key] = _read_feature(data, values)
                except WireError as error:
                    raise FeatureError(key) from error
    return features, num_replaced


def _is_message(field: Field, number: int) -> bool:
    """Whether this is that field; with another wire type it is an unknown one."""
    return field.number == number and field.wire_type == LENGTH_DELIMITED


def _read_entry(data: bytes, entry: Field) -> tuple[bytes, list[Field]]:
    """The key of a map entry, empty where it has none, and its values: mostly one, but none and several are legal."""
    key = b""
    values = []
    for field in fields(data, entry.begin, entry.end):
        if _is_message(field, 1):
            key = data[field.begin : field.end]
        elif _is_message(field, 2):
            values.append(field)
    return key, values


def _read_feature(data: bytes, messages: list[Field]) -> Feature:
    """Merge the Feature messages of one entry: a list joins onto one of its kind, and replaces one of another kind."""
    feature = Feature(KINDLESS, ())
    for message in messages:
        for field in fields(data, message.begin, message.end):
            if field.wire_type != LENGTH_DELIMITED or field.number not in _LIST_READERS:
                continue
            values = _LIST_READERS[field.number](data, field)
            if field.number == feature.kind:
                values = feature.values + values  # type: ignore[operator]  # one kind, so both bytes or both tuples
            feature = Feature(field.number, values)
    return feature


def _read_bytes_list(data: bytes, message: Field) -> Values:
    values = [field for field in fields(data, message.begin, message.end) if _is_message(field, 1)]
    return tuple(data[value.begin : value.end] for value in values)


def _read_float_list(data: bytes, message: Field) -> Values:
    values = []
    for field in fields(data, message.begin, message.end):
        if _is_message(field, 1) and (field.end - field.begin) % 4 != 0:
            raise WireError("bad_packed", field.begin, expected=4, found=field.end - field.begin)
        if field.number == 1 and field.wire_type in (LENGTH_DELIMITED, FOUR_BYTES):
            values.append(data[field.begin : field.end])
    return b"".join(values)


def _read_int64_list(data: bytes, message: Field) -> Values:
    runs = [
        _read_packed(data, field.begin, field.end)  # a value that stands alone is read like a run of one
        for field in fields(data, message.begin, message.end)
        if field.number == 1 and field.wire_type in (LENGTH_DELIMITED, VARINT)
    ]
    return b"".join(runs)


def _read_packed(data: bytes, begin: int, end: int) -> bytes:
    """Varints end to end, as raw numbers."""
    values = []
    at = begin
    while at < end:
        value, at = read_varint(data, at, end)
        values.append(struct.pack("<Q", value))
    return b"".join(values)


_LIST_READERS: dict[int, Callable[[bytes, Field], Values]] = {
    BYTES: _read_bytes_list,
    FLOAT32: _read_float_list,
    INT64: _read_int64_list,
}


def describe(payload: Buffer) -> list[tuple[bytes, int, int]] | Fault:
    """Names of an Example, each with kind and number of values; or the first fault: see ``_core.pyi``."""
    try:
        features, _ = read_example(to_bytes(payload), lambda _: True)
    except WireError as error:
        return wire_fault(error, row=0, column=-1)
    except FeatureError as error:
        return wire_fault(error.__cause__, row=0, column=-1)
    return [(key, feature.kind, len(feature)) for key, feature in features.items()]


def decode_packed(data: Buffer, plain: bool = False) -> Int64s:  # noqa: ARG001
    """Values of a packed run of varints: see ``_core.pyi``."""
    data = to_bytes(data)
    try:
        return np.frombuffer(_read_packed(data, 0, len(data)), np.int64)
    except WireError as error:
        raise ValueError(f"the varint at {error.position} is longer than 10 bytes or cut short") from error


def wire_fault(error: BaseException | None, *, row: int, column: int) -> Fault:
    """A WireError as the fault of a row."""
    assert isinstance(error, WireError)
    return error.code, row, column, error.position, error.expected, error.found
