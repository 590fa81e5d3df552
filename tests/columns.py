"""A batch with a column of each kind, and what it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

import torch_tfrecord as tfr

FEATURES = {
    "label": tfr.FixedLenFeature((), torch.int64),
    "weights": tfr.FixedLenFeature((2,), torch.float32),
    "name": tfr.FixedLenFeature((), bytes),
    "pair": tfr.FixedLenFeature((2,), bytes),
    "tokens": tfr.VarLenFeature(torch.int64),
    "words": tfr.VarLenFeature(bytes),
    "blob": tfr.FixedLenFeature((), bytes, decode=tfr.DecodeRaw(torch.uint8, (-1, 2))),
    "bonus": tfr.FixedLenFeature((), torch.int64, 7),
}


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    """What the records of a batch hold, as plain Python."""
    return [
        {
            "label": i,
            "weights": [i + 0.5, -i],
            "name": b"n%d" % i,
            "pair": [b"a" * (i % 3), b"b%d" % i],
            "tokens": list(range(i % 4)),
            "words": [b"w" * j for j in range(i % 3)],
            "blob": np.arange(2 * (i % 3), dtype=np.uint8).reshape(-1, 2).tolist(),
            "bonus": 7,
        }
        for i in range(start, start + count)
    ]


def make(count: int = 5, start: int = 0, features: Mapping[str, Any] | None = None) -> tfr.Batch:
    records = []
    for row in rows(count, start):
        stored = {**row, "blob": bytes(byte for pair in row["blob"] for byte in pair)}
        del stored["bonus"]
        records.append(tfr.encode_example(stored))
    return tfr.parse_example(records, features or FEATURES)


def content(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: column.tolist() for name, column in batch.items()}


def expected(count: int = 5, start: int = 0) -> dict[str, Any]:
    return {name: [row[name] for row in rows(count, start)] for name in FEATURES}


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors inside a batch or a column."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for column in value.values():
            yield from tensors(column)
    elif isinstance(value, tfr.Bytes | tfr.Ragged):
        for part in vars(value).values():
            yield from tensors(part)


def span(tensor: torch.Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
