"""Serialised Examples in memory to tensors: ``tf.io``'s names, one rule for one record and for many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torch_tfrecord.batch import Batch
from torch_tfrecord.decode import Origin, decode
from torch_tfrecord.plan import compile_features


def parse_example(serialized: Sequence[bytes], features: Mapping[str, Any]) -> Batch:
    """Parse serialised Examples into a batch.

    As ``tf.io.parse_example``, with protobuf's rules where TensorFlow's fast parser departs from them: lists in several
    parts are joined, and a feature without a kind is absent.

    Args:
        serialized: Examples as bytes-like objects.
        features: Specs by column name.

    Returns:
        A `Batch` of ``len(serialized)`` rows, columns in the order of ``features``.

    Raises:
        ParseError: A record does not fit; the message names the first such record and the feature.
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
    job = plan.decoder.parse(serialized)
    return decode(plan, job, lambda row: Origin(row, payload=lambda: serialized[row]), np.arange(job.rows))


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
