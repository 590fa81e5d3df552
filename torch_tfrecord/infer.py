"""`infer_schema`: look at records and write down the specs that read them."""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_tfrecord.errors import ParseError
from torch_tfrecord.faults import FRAME_OVERHEAD, payload_problem
from torch_tfrecord.native import core
from torch_tfrecord.paths import Paths, expand_paths
from torch_tfrecord.records import OnError, check_on_error, read_records
from torch_tfrecord.schema import Feature, FixedLenFeature, Schema, VarLenFeature
from torch_tfrecord.sniff import is_sequence_example

_DTYPES: dict[int, Any] = {1: bytes, 2: torch.float32, 3: torch.int64}
_NAMES = {1: "bytes", 2: "float32", 3: "int64"}

logger = logging.getLogger(__name__)


@dataclass
class _Seen:
    """What was seen of one name."""

    first: dict[int, str] = field(default_factory=dict)  # by kind: the first record that has it
    records: int = 0  # that have a kind set
    least: int = 1 << 62  # values a record
    most: int = 0


def infer_schema(paths: Paths, *, max_records: int = 10_000, on_error: OnError = "raise") -> Schema:
    """Find specs that read the Examples of some files.

    A feature with one number of values in all records becomes a `FixedLenFeature`, any other a `VarLenFeature`. Names
    whose features never have a kind set are left out, with a logged warning. Records beyond ``max_records`` may
    differ: then reading them is an error that says how.

    Args:
        paths: As for `TFRecordDataset`: a path, a glob, ``name@N``, a directory, or a list of them.
        max_records: How many records to look at, the first ones of every file. 0: all.
        on_error: ``"raise"``; or ``"skip"`` to leave damage out as `read_records` does, which logs what it leaves out.

    Returns:
        Specs by name, sorted; it prints as ready Python.

    Raises:
        ParseError: A record is no Example (a SequenceExample, say), there is no feature at all, or a feature has
            different dtypes.
        DataLossError: A file is damaged or no TFRecord file.
        ValueError: ``max_records`` is negative, or ``on_error`` none of its choices.

    Example:
        >>> import torch_tfrecord as tfr
        >>> print(tfr.infer_schema("numbers.tfrecord"))
        {
            'n': tfr.FixedLenFeature((), torch.int64),
        }
    """
    if max_records < 0:
        raise ValueError(f"max_records must be 0, for all records, or more, not {max_records}")
    check_on_error(on_error)
    files = expand_paths(paths)
    share = -(-max_records // len(files)) if max_records > 0 else None
    seen: dict[bytes, _Seen] = {}
    total = 0
    for path in files:
        number = offset = noted = 0
        records = read_records([path], on_error=on_error)
        for record in itertools.islice(records, share):
            for fault in records.faults[noted:]:  # those that lie before this record
                number += fault.reason == "data_crc"
                offset += fault.bytes_lost or 0
            noted = len(records.faults)
            _look(record, f"{path}: record {number} at byte {offset}", seen)
            number += 1
            offset += len(record) + FRAME_OVERHEAD
            total += 1
    schema = {_text(name): spec for name in sorted(seen) if (spec := _spec(_text(name), seen[name], total)) is not None}
    if not schema:
        raise ParseError(
            f"{files[0]}: no feature in {total} records: they are no Examples or empty; features=None reads raw bytes"
        )
    return Schema(schema)


def _look(record: bytes, where: str, seen: dict[bytes, _Seen]) -> None:
    features = core.describe(record)
    if isinstance(features, tuple):
        raise ParseError(f"{where}: not an Example: {payload_problem(features)}; features=None reads raw bytes")
    if is_sequence_example(record):
        raise ParseError(
            f"{where}: a SequenceExample, which this version reads only raw: "
            "with features=None, and parsed by tfr.SequenceExample.FromString"
        )
    for name, kind, count in features:
        entry = seen.setdefault(name, _Seen())
        if kind == 0:
            continue
        entry.first.setdefault(kind, where)
        entry.records += 1
        entry.least = min(entry.least, count)
        entry.most = max(entry.most, count)


def _spec(name: str, entry: _Seen, total: int) -> Feature | None:
    if not entry.first:
        logger.warning("infer_schema: feature %r has no kind set in any record; it is left out", name)
        return None
    if len(entry.first) > 1:
        found = ", ".join(f"{_NAMES[kind]} in {where}" for kind, where in entry.first.items())
        raise ParseError(
            f"feature {name!r} has different dtypes: {found}; no one spec reads them: write it with one dtype, "
            "leave it out of specs written by hand, or read raw bytes with features=None and parse them yourself"
        )
    dtype = _DTYPES[next(iter(entry.first))]
    if entry.records < total or entry.least != entry.most or entry.most == 0:
        return VarLenFeature(dtype)
    return FixedLenFeature(() if entry.most == 1 else (entry.most,), dtype)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
