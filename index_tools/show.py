"""``tfrecord-index show``."""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Any

from index_tools import EXIT_OK
from index_tools.streams import RecordReader
from index_tools.text import format_bytes, format_name, left_out_in_words, number, with_flags, write_json, write_lines
from torch_tfrecord.errors import DataLossError
from torch_tfrecord.explain_text import format_table
from torch_tfrecord.faults import payload_problem
from torch_tfrecord.index import RecordIndex
from torch_tfrecord.index_file import is_index_file
from torch_tfrecord.native import core
from torch_tfrecord.sniff import is_sequence_example

if TYPE_CHECKING:
    import argparse

    from torch_tfrecord.records import OnError

_KINDS = {0: "none", 1: "bytes", 2: "float", 3: "int64"}
_EMPTY_EXAMPLES = (b"", b"\n\0")
_MAX_SHARDS = 20  # as text; JSON lists all
_SEQUENCE = (
    "a SequenceExample: what follows is its context only. This version reads such records raw: features=None, and "
    "tfr.SequenceExample.FromString to parse them"
)


def show(options: argparse.Namespace) -> int:
    """Say what is in files, or in an index of them."""
    skip = options.on_error == "skip"
    index = open_index(options.paths, options.on_error)
    reader = RecordReader(index)
    described = [_describe(index, reader, record, skip=skip) for record in range(min(options.records, len(index)))]
    if options.json:
        write_json(_as_document(index, described))
    else:
        write_lines(_as_text(index, described))
    return EXIT_OK


def open_index(paths: list[str], on_error: OnError, *, progress: bool = True) -> RecordIndex:
    """The index that was named, or one of the data files that were."""
    if len(paths) == 1 and is_index(paths[0]):
        return RecordIndex.open(paths[0])
    return RecordIndex.build(paths, on_error=on_error, progress=progress)


def is_index(path: str) -> bool:
    """Whether a path is an index file."""
    try:
        return is_index_file(path)
    except OSError:
        return False  # a pattern, say


def _describe(index: RecordIndex, reader: RecordReader, record: int, *, skip: bool) -> dict[str, Any]:
    """Where a record lies, and its features, or an error where it is no Example."""
    path, offset, length = index[record]
    place = {"record": record, "path": path, "offset": offset, "length": length}
    try:
        payload = reader.read(record)
    except DataLossError as error:
        if not skip:
            raise
        return {**place, "error": with_flags(str(error))}
    features = core.describe(payload)
    if isinstance(features, tuple):
        return {**place, "error": f"not an Example: {payload_problem(features)}"}
    if not features and payload not in _EMPTY_EXAMPLES and not is_sequence_example(payload):
        return {**place, "error": "not an Example: a message without features, of another kind"}
    if is_sequence_example(payload):
        place["note"] = _SEQUENCE
    named = [{"name": format_name(name), "kind": _KINDS[kind], "count": count} for name, kind, count in features]
    return {**place, "features": named}


def _lengths(index: RecordIndex) -> dict[str, float] | None:
    if not len(index):
        return None
    lengths = index.lengths
    return {"min": int(lengths.min()), "mean": round(float(lengths.mean()), 1), "max": int(lengths.max())}


def _compression(index: RecordIndex) -> dict[str, int]:
    """How many files are compressed how."""
    return dict(sorted(collections.Counter(index.shard_compression).items()))


def _as_document(index: RecordIndex, described: list[dict[str, Any]]) -> dict[str, Any]:
    kinds = list(_compression(index))
    columns = zip(
        index.paths,
        index.shard_sizes.tolist(),
        index.shard_bytes.tolist(),
        index.shard_compression,
        index.shard_stream_bytes.tolist(),
        strict=True,
    )
    keys = ("path", "num_records", "num_bytes", "compression", "uncompressed_bytes")
    return {
        "index": index.file,
        "fingerprint": index.fingerprint,
        "compression": kinds[0] if len(kinds) == 1 else "mixed",
        "num_records": len(index),
        "num_bytes": index.num_bytes,
        "payload_bytes": _lengths(index),
        "shards": [dict(zip(keys, column, strict=True)) for column in columns],
        "faults": [dataclasses.asdict(fault) for fault in index.faults],
        "records": described,
    }


def _as_text(index: RecordIndex, described: list[dict[str, Any]]) -> list[str]:
    lines = [*format_table(_facts(index)), "", *_shard_table(index)]
    if index.faults:
        lines += ["", *left_out_in_words(index.faults)]
    for record in described:
        place = f"{record['length']:,} bytes at byte {record['offset']:,} of {record['path']}"
        lines += ["", f"record {record['record']}: {place}"]
        if "note" in record:
            lines.append(f"  {record['note']}")
        if "error" in record:
            lines.append(f"  {record['error']}")
        elif not record["features"] and "note" not in record:
            lines.append("  an empty Example, without features")
        elif record["features"]:
            table = [(feature["name"], feature["kind"], f"{feature['count']:,}") for feature in record["features"]]
            lines += ["  " + line for line in format_table([("feature", "kind", "values"), *table], right=(2,))]
    return lines


def _facts(index: RecordIndex) -> list[tuple[str, str]]:
    lengths = _lengths(index)
    size = format_bytes(index.num_bytes)
    kinds = _compression(index)
    if "none" not in kinds or len(kinds) > 1:
        size += f", {format_bytes(int(index.shard_stream_bytes.sum()))} uncompressed"
    facts = [("records", f"{len(index):,}"), ("files", f"{len(index.paths):,}"), ("size", size)]
    if lengths is not None:
        facts.append(("payload", f"{lengths['min']:,} to {lengths['max']:,} bytes, {lengths['mean']:,} on average"))
    files = ", ".join(f"{kind} ({number(count, 'file')})" for kind, count in kinds.items())
    facts += [("compression", files if len(kinds) > 1 else next(iter(kinds)))]
    facts += [("fingerprint", index.fingerprint)]
    if index.faults:
        facts.append(("left out", number(len(index.faults), "damaged place")))
    return facts


def _shard_table(index: RecordIndex) -> list[str]:
    """Of the first files: their records, bytes and names, and compression where some have one."""
    head: tuple[str, ...] = ("records", "bytes")
    columns: list[list[str]] = [[f"{records:,}" for records in index.shard_sizes[:_MAX_SHARDS].tolist()]]
    columns.append([f"{size:,}" for size in index.shard_bytes[:_MAX_SHARDS].tolist()])
    if set(index.shard_compression) != {"none"}:
        head += ("uncompressed", "compression")
        columns.append([f"{size:,}" for size in index.shard_stream_bytes[:_MAX_SHARDS].tolist()])
        columns.append(list(index.shard_compression[:_MAX_SHARDS]))
    columns.append(list(index.paths[:_MAX_SHARDS]))
    lines = format_table([(*head, "file"), *zip(*columns, strict=True)], right=(0, 1, 2) if len(head) > 2 else (0, 1))
    more = len(index.paths) - _MAX_SHARDS
    return [*lines, f"and {more:,} more"] if more > 0 else lines
