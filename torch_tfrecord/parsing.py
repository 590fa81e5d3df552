"""Serialised Examples in memory to tensors: ``tf.io``'s names, one rule for one record and for many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch_tfrecord.batch import Batch
from torch_tfrecord.decode import Origin, decode
from torch_tfrecord.plan import compile_features


def parse_example(serialized: Iterable[bytes], features: Mapping[str, Any]) -> Batch:
    """Parse serialised Examples into a batch.

    As ``tf.io.parse_example``, with protobuf's rules where TensorFlow's fast parser departs from them: lists in several
    parts are joined, and a feature without a kind is absent.

    Args:
        serialized: Examples as bytes-like objects: a list, a `Bytes`, any iterable of them.
        features: Specs by column name.

    Returns:
        A `Batch` of ``len(serialized)`` rows, columns in the order of ``features``.

    Raises:
        ParseError: A record does not fit; the message names the first such record and the feature.
        TypeError: An item is not bytes-like, or ``features`` no mapping of specs.
        ValueError: ``features`` is empty.

    Example:
        >>> import torch, torch_tfrecord as tfr
        >>> records = [tfr.encode_example({"x": [1.0, 2.0]}), tfr.encode_example({"x": [3.0, 4.0]})]
        >>> tfr.parse_example(records, {"x": tfr.FixedLenFeature((2,), torch.float32)})["x"]
        tensor([[1., 2.],
                [3., 4.]])
    """
    if isinstance(serialized, bytes | bytearray | memoryview | str):
        raise TypeError("parse_example takes a list of serialised Examples; parse_single_example takes one")
    plan = compile_features(features)
    records = serialized if isinstance(serialized, list) else list(serialized)
    try:
        return decode(plan, records, lambda row: Origin(row, payload=lambda: records[row]))
    except (TypeError, BufferError):
        _check_serialized(records)
        raise


def _check_serialized(records: Sequence[Any]) -> None:
    """Say which item is not bytes-like, and what to do."""
    for row, record in enumerate(records):
        try:
            memoryview(record)
        except TypeError:
            to_bytes = "its .SerializeToString()" if hasattr(record, "SerializeToString") else "bytes"
            problem = f"expected a serialised Example as bytes, found {type(record).__name__}: give {to_bytes}"
            raise TypeError(f"record {row}: {problem}") from None


def parse_single_example(serialized: bytes, features: Mapping[str, Any]) -> dict[str, Any]:
    """Parse one serialised Example.

    Args:
        serialized: One Example, bytes-like.
        features: Specs by column name.

    Returns:
        Tensors, bytes, or lists of bytes by column name.

    Raises:
        ParseError: The record does not fit.
        ValueError: ``features`` is empty.

    Example:
        >>> import torch, torch_tfrecord as tfr
        >>> record = tfr.encode_example({"id": 7, "name": "seven"})
        >>> features = {"id": tfr.FixedLenFeature((), torch.int64), "name": tfr.FixedLenFeature((), bytes)}
        >>> tfr.parse_single_example(record, features)
        {'id': tensor(7), 'name': b'seven'}
    """
    return parse_example([serialized], features).row(0)
