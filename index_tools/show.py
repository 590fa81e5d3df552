"""``tfrecord-index show``."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any

from index_tools.text import format_bytes, format_name, with_flags
from torch_tfrecord.errors import DataLossError, StaleIndexError
from torch_tfrecord.explain_text import format_table
from torch_tfrecord.faults import FRAME_OVERHEAD, frame_error, payload_problem
from torch_tfrecord.index import RecordIndex
from torch_tfrecord.index_file import is_index_file
from torch_tfrecord.index_scan import open_shard
from torch_tfrecord.native import core
from torch_tfrecord.sniff import is_sequence_example

if TYPE_CHECKING:
    import argparse

    from torch_tfrecord.records import OnError

_KINDS = {0: "none", 1: "bytes", 2: "float", 3: "int64"}
_MAX_SHARDS = 20  # as text; JSON lists all
_SEQUENCE = (
    "a SequenceExample: what follows is its context only. This version reads such records raw: features=None, and "
    "tfr.SequenceExample.FromString to parse them"
)


def show(options: argparse.Namespace) -> None:
    """Say what is in files, or in an index of them."""
    skip = options.on_error == "skip"
    index = open_index(options.paths, options.on_error)
    described = [_describe(index, record, skip=skip) for record in range(min(options.records, len(index)))]
    if options.json:
        sys.stdout.write(json.dumps(_as_document(index, described)) + "\n")
    else:
        sys.stdout.write("\n".join(_as_text(index, described)) + "\n")


def open_index(paths: list[str], on_error: OnError) -> RecordIndex:
    """The index that was named, or one of the data files that were."""
    if len(paths) == 1 and _is_index_file(paths[0]):
        return RecordIndex.open(paths[0])
    return RecordIndex.build(paths, on_error=on_error, progress=True)


def _is_index_file(path: str) -> bool:
    try:
        return is_index_file(path)
    except OSError:
        return False  # a pattern, say


def _describe(index: RecordIndex, record: int, *, skip: bool) -> dict[str, Any]:
    """Where a record lies, and its features, or an error where it is no Example."""
    path, offset, length = index[record]
    place = {"record": record, "path": path, "offset": offset, "length": length}
    try:
        payload = _read(index, record)
    except DataLossError as error:
        if not skip:
            raise
        return {**place, "error": with_flags(str(error))}
    features = core.describe(payload)
    if isinstance(features, tuple):
        return {**place, "error": f"not an Example: {payload_problem(features)}"}
    if is_sequence_example(payload):
        place["note"] = _SEQUENCE
    named = [{"name": format_name(name), "kind": _KINDS[kind], "count": count} for name, kind, count in features]
    return {**place, "features": named}


def _read(index: RecordIndex, record: int) -> bytes:
    path, offset, length = index[record]
    file = open_shard(path)
    size = file.size()
    if offset < 0 or length < 0 or offset + length + FRAME_OVERHEAD > size:
        raise StaleIndexError(f"{path}: record {record} lies outside the file's {size:,} bytes: build the index again")
    data = file.read(offset, length + FRAME_OVERHEAD)
    payloads, _, fault = core.split_frames(data, 2, len(data))
    if fault is not None:
        raise frame_error(fault, path=path, base=offset, indexed=True)
    if len(payloads) != 1 or len(payloads[0]) != length:
        raise StaleIndexError(f"{path}: there is no record of {length:,} bytes at byte {offset}: build the index again")
    return payloads[0]


def _lengths(index: RecordIndex) -> dict[str, float] | None:
    if not len(index):
        return None
    lengths = index.lengths
    return {"min": int(lengths.min()), "mean": round(float(lengths.mean()), 1), "max": int(lengths.max())}


def _as_document(index: RecordIndex, described: list[dict[str, Any]]) -> dict[str, Any]:
    columns = zip(index.paths, index.shard_sizes.tolist(), index.shard_bytes.tolist(), strict=True)
    return {
        "index": index.file,
        "fingerprint": index.fingerprint,
        "compression": "none",
        "num_records": len(index),
        "num_bytes": index.num_bytes,
        "payload_bytes": _lengths(index),
        "shards": [{"path": path, "num_records": records, "num_bytes": size} for path, records, size in columns],
        "faults": [dataclasses.asdict(fault) for fault in index.faults],
        "records": described,
    }


def _as_text(index: RecordIndex, described: list[dict[str, Any]]) -> list[str]:
    shards = len(index.paths)
    lengths = _lengths(index)
    facts = [("records", f"{len(index):,}"), ("files", f"{shards:,}"), ("size", format_bytes(index.num_bytes))]
    if lengths is not None:
        facts.append(("payload", f"{lengths['min']:,} to {lengths['max']:,} bytes, {lengths['mean']:,} on average"))
    facts += [("compression", "none"), ("fingerprint", index.fingerprint)]
    if index.faults:
        facts.append(("left out", f"{len(index.faults):,} damaged places"))
    lines = format_table(facts)
    columns = zip(index.shard_sizes.tolist(), index.shard_bytes.tolist(), index.paths, strict=True)
    rows = [(f"{records:,}", f"{size:,}", path) for records, size, path in list(columns)[:_MAX_SHARDS]]
    lines += ["", *format_table([("records", "bytes", "file"), *rows], right=(0, 1))]
    if shards > _MAX_SHARDS:
        lines.append(f"and {shards - _MAX_SHARDS:,} more")
    for record in described:
        place = f"{record['length']:,} bytes at byte {record['offset']:,} of {record['path']}"
        lines += ["", f"record {record['record']}: {place}"]
        if "note" in record:
            lines.append(f"  {record['note']}")
        if "error" in record:
            lines.append(f"  {record['error']}")
        elif not record["features"] and "note" not in record:
            lines.append("  no features: another kind of message, or an empty Example")
        elif record["features"]:
            table = [(feature["name"], feature["kind"], f"{feature['count']:,}") for feature in record["features"]]
            lines += ["  " + line for line in format_table([("feature", "kind", "values"), *table], right=(2,))]
    return lines
