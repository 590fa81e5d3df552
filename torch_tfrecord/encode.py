"""Encoding: from Python values, NumPy arrays and torch tensors to ``Example`` messages.

A feature holds int64, float32 or bytes values in a flat list; its shape is not stored. So:

    ============================================  ==============================================================
    value                                         becomes
    ============================================  ==============================================================
    int, bool, and arrays of them                 int64
    float, and arrays of any float type           float32, rounded; a finite value beyond float32 is an error
    bytes, bytearray, memoryview                  one bytes value
    str                                           one bytes value, UTF-8
    list, tuple, range, nested or of arrays       their values end to end, row-major; ints among floats are floats
    array or tensor without values                an empty list of its kind
    None, and lists that hold no values           nothing: the feature is left out, since no kind is known
    ============================================  ==============================================================
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from torch_tfrecord.native import core
from torch_tfrecord.values import (
    BYTES,
    Values,
    from_array,
    from_scalars,
    is_tensor,
    join,
    offsets_of,
    tensor_to_array,
    to_values,
)

if TYPE_CHECKING:
    from torch_tfrecord.native._core import EncodeColumn, Int64s


@dataclasses.dataclass(frozen=True)
class _Column:
    """A feature over all rows of a batch: ``count`` values a row, or as many as ``row_offsets`` says."""

    rows: int
    values: Values | None  # None: no value in any row, and so no kind
    count: int
    row_offsets: Int64s | None


def encode_example(features: Mapping[str | bytes, Any] | Mapping[str, Any]) -> bytes:
    """Encode one ``Example``. Equal features always give equal bytes, in whatever order they come.

    Args:
        features: Values by feature name: numbers, bytes, str, None, and lists, NumPy arrays and torch tensors of them.
            Ints and bools are stored as int64, all floats as float32, arrays row-major without their shape. None and
            empty lists leave their feature out; an empty array is stored as an empty list of its kind.

    Returns:
        The serialized message: names sorted by their bytes, lists packed.

    Raises:
        ValueError: An int outside int64, a finite float outside float32, or a name that comes twice (as str and bytes).
        TypeError: A value that no feature can hold, such as a complex number, or bytes mixed with numbers.

    Example:
        >>> import torch_tfrecord as tfr
        >>> tfr.encode_example({"label": 7}) == tfr.encode_example({"label": [7]})
        True
        >>> tfr.encode_example({"label": 7}).hex()
        '0a100a0e0a056c6162656c12051a030a0107'
    """
    return core.encode_batch(example_columns(features), 1, False)[0]


def example_columns(features: Mapping[str | bytes, Any] | Mapping[str, Any]) -> list[EncodeColumn]:
    """Turn the features of one ``Example`` into columns of one row for ``core.encode_batch``; as `encode_example`."""
    columns: list[EncodeColumn] = []
    for name, value in _checked(features).items():
        try:
            values = to_values(value)
        except (TypeError, ValueError) as error:
            _refuse(name, error)
        if values is not None:
            columns.append((_key(name), values.kind, values.items, values.count, None, values.ends))
    return columns


def encode_columns(batch: Mapping[str | bytes, Any] | Mapping[str, Any]) -> tuple[list[EncodeColumn], int]:
    """Turn a batch of features into columns for ``core.encode_batch``.

    Args:
        batch: By feature name, a value for each of B rows:

            * an array or tensor ``[B, ...]``;
            * a list of B numbers, bytes or str;
            * a list of B lists or arrays, of any lengths. Those without values are stored as empty lists;
            * ``Bytes`` and ``Ragged`` as batches of this package have them: anything with ``values`` and ``offsets``.

    Returns:
        The columns and B. A feature that has no value in any row is left out, since its kind is not known.

    Raises:
        ValueError: Features differ in B, there is none, offsets are wrong, or as in ``encode_example``.
        TypeError: As in ``encode_example``; or None for a row, because a batch writes each feature in each row.
    """
    columns: list[EncodeColumn] = []
    first: tuple[str | bytes, int] | None = None
    for name, value in _checked(batch).items():
        try:
            column = _to_column(value)
        except (TypeError, ValueError) as error:
            _refuse(name, error)
        first = first or (name, column.rows)
        if column.rows != first[1]:
            raise ValueError(f"feature {name!r} has {column.rows} rows, but feature {first[0]!r} has {first[1]}")
        values = column.values
        if values is not None:
            columns.append((_key(name), values.kind, values.items, column.count, column.row_offsets, values.ends))
    if first is None:
        raise ValueError("a batch without features has no known number of rows")
    return columns, first[1]


def _checked(features: Any) -> Mapping[str | bytes, Any]:
    """The mapping itself, once its names are known to be str or bytes, each once."""
    if not isinstance(features, Mapping):
        raise TypeError(f"features must be a dict of values by name, not {type(features).__name__}")
    for name in features:
        if not isinstance(name, (str, bytes)):
            raise TypeError(f"a feature's name must be str or bytes, not {type(name).__name__}: {name!r}")
        if isinstance(name, bytes) and name.decode("utf-8", "surrogateescape") in features:
            raise ValueError(f"feature {name!r} comes twice, as str and as bytes")
    return features


def _key(name: str | bytes) -> bytes:
    # Names that are not UTF-8 are read as str with surrogate escapes, so they must be written from such too.
    return name if isinstance(name, bytes) else name.encode("utf-8", "surrogateescape")


def _refuse(name: str | bytes, error: Exception) -> NoReturn:
    raised = TypeError if isinstance(error, TypeError) else ValueError
    raise raised(f"feature {name!r}: {error}") from error


def _to_column(value: Any) -> _Column:
    if is_tensor(value):
        value = tensor_to_array(value)
    if isinstance(value, np.ndarray):
        return _from_array(value)
    if hasattr(value, "values") and hasattr(value, "offsets"):
        return _from_offsets(value)
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview)):
        return _from_rows(value)
    raise TypeError(f"a batch needs a value for each row, in a list or an array, not one {type(value).__name__}")


def _from_array(array: np.ndarray[Any, Any]) -> _Column:
    if array.ndim == 0:
        raise ValueError("a batch needs a value for each row, but this array has no dimension")
    if array.dtype.kind == "O":
        return _from_rows(array.tolist())
    count = math.prod(array.shape[1:])
    return _Column(len(array), from_array(array), count, None)


def _from_rows(rows: Sequence[Any]) -> _Column:
    if not len(rows):
        return _Column(0, None, 0, None)
    scalars = from_scalars(rows)
    if scalars is not None:
        return _Column(len(rows), scalars, 1, None)
    parts = []
    for row, value in enumerate(rows):
        if value is None:
            raise TypeError(f"row {row} is None, but a batch writes each feature in each row: use write_example")
        try:
            parts.append(to_values(value))
        except (TypeError, ValueError) as error:
            raise type(error)(f"row {row}: {error}") from error
    known = [part for part in parts if part is not None]
    if not known:
        return _Column(len(rows), None, 0, None)
    counts = np.fromiter((0 if part is None else part.count for part in parts), np.int64, len(parts))
    return _Column(len(rows), join(known), 0, offsets_of(counts))


def _from_offsets(column: Any) -> _Column:
    """From a ``Bytes`` (offsets of values, in bytes) or a ``Ragged`` (offsets of rows, in values)."""
    values, offsets = column.values, _offsets(column.offsets)
    if hasattr(values, "values") and hasattr(values, "offsets"):
        items = _bytes_values(values)
    elif hasattr(column, "shape"):  # of one row of a Bytes
        items = _bytes_values(column)
        count = math.prod(column.shape)
        return _Column(items.count // max(count, 1), items, count, None)
    else:
        array = np.asarray(tensor_to_array(values) if is_tensor(values) else values)
        flat = from_array(array)
        if flat is None:
            return _Column(len(offsets) - 1, None, 0, None)
        items, offsets = flat, offsets * math.prod(array.shape[1:])
    if offsets[-1] > items.count:
        raise ValueError(f"offsets end at {offsets[-1]}, but there are {items.count} values")
    return _Column(len(offsets) - 1, _part(items, int(offsets[0]), int(offsets[-1])), 0, offsets - offsets[0])


def _bytes_values(column: Any) -> Values:
    offsets = _offsets(column.offsets)
    data = np.asarray(tensor_to_array(column.values) if is_tensor(column.values) else column.values).reshape(-1)
    if data.dtype != np.uint8:
        raise TypeError(f"bytes must be held as uint8, not as {data.dtype}")
    if offsets[-1] > len(data):
        raise ValueError(f"offsets end at {offsets[-1]}, but there are {len(data)} bytes")
    return Values(BYTES, np.ascontiguousarray(data[offsets[0] : offsets[-1]]), offsets - offsets[0])


def _part(values: Values, start: int, stop: int) -> Values:
    """Values ``start`` to ``stop``, half-open."""
    if values.ends is None:
        return Values(values.kind, values.items[start:stop], None)
    ends = values.ends[start : stop + 1]
    return Values(values.kind, values.items[ends[0] : ends[-1]], ends - ends[0])


def _offsets(offsets: Any) -> Int64s:
    array = np.asarray(tensor_to_array(offsets) if is_tensor(offsets) else offsets)
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "iu":
        raise ValueError(f"offsets must be ints in one dimension, one more than rows, not {array.dtype}{array.shape}")
    array = array.astype(np.int64, copy=False)
    if array[0] < 0 or (array[1:] < array[:-1]).any():
        raise ValueError("offsets must not be negative and must not fall")
    return array
