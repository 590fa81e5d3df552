"""From columns to records in plain Python: ``encode_batch`` of ``_core.pyi``."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from torch_tfrecord.native.reference_example import BYTES, FLOAT32, INT64
from torch_tfrecord.native.reference_frames import frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from torch_tfrecord.native.reference_frames import Int64s

    EncodeColumn: TypeAlias = tuple[bytes, int, Any, int, Int64s | None, Int64s | None]

MAX_MESSAGE_BYTES = 2**31 - 1  # protobuf's own bound
_DTYPES: dict[int, type[np.generic]] = {BYTES: np.uint8, FLOAT32: np.float32, INT64: np.int64}


def encode_batch(columns: Sequence[EncodeColumn], rows: int, framed: bool) -> tuple[bytes, Int64s]:
    """Encode rows as Examples: see ``_core.pyi``."""
    if rows < 0:
        raise ValueError(f"rows must not be negative, but is {rows}")
    sources = sorted((Source.check(column, rows) for column in columns), key=lambda source: source.key)
    for one, other in pairwise(sources):
        if one.key == other.key:
            raise ValueError(f"key {one.key!r} comes twice")
    records = []
    for row in range(rows):
        entries = b"".join(_delimited(1, source.entry(row)) for source in sources)
        example = _delimited(1, entries)
        if len(example) > MAX_MESSAGE_BYTES:
            raise ValueError(f"the Example of row {row} has {len(example)} bytes; parsers take {MAX_MESSAGE_BYTES}")
        records.append(frame(example) if framed else example)
    return b"".join(records), np.array([0, *accumulate(map(len, records))], np.int64)


def _varint(value: int) -> bytes:
    """A varint; a negative number is written as its 64-bit two's complement, which takes ten bytes."""
    value %= 2**64
    groups = []
    while value >= 0x80:
        groups.append(value % 0x80 + 0x80)
        value //= 0x80
    return bytes([*groups, value])


def _delimited(field: int, content: bytes) -> bytes:
    """A field of wire type 2: tag, length, content."""
    return _varint(field * 8 + 2) + _varint(len(content)) + content


class Source(NamedTuple):
    """The values of one feature over all rows."""

    key: bytes
    kind: int
    values: NDArray[Any]
    row_offsets: list[int]  # rows + 1, in values
    value_offsets: list[int] | None  # for bytes: number of values + 1, in values' bytes

    @classmethod
    def check(cls, column: EncodeColumn, rows: int) -> Source:
        """Take a column. Raises ValueError where its sizes contradict one another."""
        key, kind, values, count, row_offsets, value_offsets = column
        if kind not in _DTYPES:
            raise ValueError(f"feature {key!r}: kind must be 1, 2 or 3, not {kind}")
        values = np.asarray(values)
        if values.dtype != _DTYPES[kind] or not values.flags.c_contiguous:
            raise ValueError(f"feature {key!r}: values must be contiguous {_DTYPES[kind].__name__}, not {values.dtype}")
        if (kind == BYTES) != (value_offsets is not None):
            raise ValueError(f"feature {key!r}: bytes have value_offsets, numbers have none")
        values = values.reshape(-1)
        num_values = len(values)
        if value_offsets is not None:
            num_values = len(value_offsets) - 1
            _check_offsets(key, "value_offsets", value_offsets, num_values, len(values))
        if row_offsets is None:
            if count < 0 or rows * count != num_values:
                raise ValueError(f"feature {key!r}: {rows} rows of {count} values are not {num_values} values")
            row_offsets = np.arange(rows + 1, dtype=np.int64) * count
        _check_offsets(key, "row_offsets", row_offsets, rows, num_values)
        return cls(key, kind, values, row_offsets.tolist(), None if value_offsets is None else value_offsets.tolist())

    def entry(self, row: int) -> bytes:
        """The map entry of one row."""
        begin, end = self.row_offsets[row : row + 2]
        if self.value_offsets is not None:
            bounds = self.value_offsets[begin : end + 1]
            pieces = pairwise(bounds)
            content = b"".join(_delimited(1, self.values[a:b].tobytes()) for a, b in pieces)
        elif begin == end:
            content = b""
        elif self.kind == FLOAT32:
            content = _delimited(1, self.values[begin:end].tobytes())
        else:
            content = _delimited(1, b"".join(map(_varint, self.values[begin:end].tolist())))
        return _delimited(1, self.key) + _delimited(2, _delimited(self.kind, content))


def _check_offsets(key: bytes, name: str, offsets: Int64s, size: int, last: int) -> None:
    """Offsets must be int64[size + 1] and climb from 0 to ``last``."""
    if offsets.dtype != np.int64 or offsets.shape != (size + 1,):
        raise ValueError(f"feature {key!r}: {name} must be int64[{size + 1}], not {offsets.dtype}{list(offsets.shape)}")
    if size < 0 or offsets[0] != 0 or offsets[-1] != last or np.any(np.diff(offsets) < 0):
        raise ValueError(f"feature {key!r}: {name} must climb from 0 to {last}")
