"""Files of records that each know their number, so that a test sees which it got."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import torch_tfrecord as tfr

FEATURES: dict[str, Any] = {
    "id": tfr.FixedLenFeature((), torch.int64),
    "halves": tfr.FixedLenFeature((2,), torch.float32),
    "name": tfr.FixedLenFeature((), bytes),
    "tokens": tfr.VarLenFeature(torch.int64),
}
ID = {"id": FEATURES["id"]}


def row(i: int) -> dict[str, Any]:
    """What record i holds."""
    return {"id": i, "halves": [i + 0.5, -i], "name": b"record %d" % i, "tokens": list(range(i % 4))}


def write(path: str | os.PathLike[str], count: int, *, start: int = 0) -> str:
    """A file of records ``start .. start + count - 1``."""
    with tfr.TFRecordWriter(path) as writer:
        for i in range(start, start + count):
            writer.write_example(row(i))
    return os.fspath(path)


def write_shards(folder: Path, counts: list[int]) -> list[str]:
    """Files ``data-00000-of-...``, whose records are numbered through."""
    names = [folder / f"data-{i:05d}-of-{len(counts):05d}" for i in range(len(counts))]
    return [
        write(name, count, start=sum(counts[:i])) for i, (name, count) in enumerate(zip(names, counts, strict=True))
    ]


def plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as ``row`` gives it."""
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in record.items()}


def rows_of(batch: tfr.Batch) -> list[dict[str, Any]]:
    """The records of a batch."""
    return [plain(batch.row(i)) for i in range(batch.num_records)]


def ids(dataset: tfr.TFRecordDataset) -> list[int]:
    """The numbers of all records of a data set, read as one batch."""
    found: list[int] = dataset.read_batch(range(len(dataset)))["id"].tolist()
    assert len(found) == len(dataset)
    return found
