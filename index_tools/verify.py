"""``tfrecord-index verify``."""

from __future__ import annotations

import dataclasses
import os
import re
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from index_tools import EXIT_DAMAGED, EXIT_OK, EXIT_USAGE
from index_tools.show import is_index
from index_tools.streams import RoomError, open_stream
from index_tools.text import (
    REASONS,
    UNKNOWN_LOSS,
    format_bytes,
    number,
    second_stream,
    with_flags,
    write_json,
    write_lines,
)
from torch_tfrecord.errors import StaleIndexError, TFRecordError
from torch_tfrecord.faults import NOT_A_TFRECORD, RecordFault
from torch_tfrecord.index import RecordIndex
from torch_tfrecord.index_check import holds, missing_records
from torch_tfrecord.index_scan import MAX_THREADS, ShardScan, run_on_shards, scan_shard
from torch_tfrecord.inflated import LIMIT_VARIABLE, inflate_limit
from torch_tfrecord.paths import expand_paths
from torch_tfrecord.repair import Saved, salvage

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

_MORE_BEHIND = {
    "length_crc",
    "truncated_payload",
    NOT_A_TFRECORD,
}  # what ends the reading in order, but perhaps no more
_searching = threading.Lock()  # one file at a time is inflated to a temporary one: the limit is for all of them


@dataclasses.dataclass(frozen=True)
class _Task:
    """A data file to verify; what an index says of it, where it comes from one; or a path that stands for none."""

    path: str
    index: RecordIndex | None = None
    shard: int = 0
    missing: OSError | None = None


@dataclasses.dataclass
class _Result:
    """What was found in a file.

    Attributes:
        path: The file.
        compression: ``none``, ``gzip`` or ``zlib``; None if it could not be read at all.
        num_records: Whole records that are read in order.
        num_bytes: Of the file.
        faults: What is damaged.
        messages: The same in words.
        known: Whether the index knows of each, and leaves it out.
        num_salvageable: Whole records behind the damage that ends the reading in order; None where none ends it, or
            none could be looked for.
        search_problem: Why they were not looked for, or not up to the end.
        index_problem: Why the file is not the one that its index describes.
        error: Why it could not be read.
    """

    path: str
    compression: str | None = None
    num_records: int = 0
    num_bytes: int = 0
    faults: list[RecordFault] = dataclasses.field(default_factory=list)
    messages: list[str] = dataclasses.field(default_factory=list)
    known: list[bool] = dataclasses.field(default_factory=list)
    num_salvageable: int | None = None
    search_problem: str | None = None
    index_problem: str | None = None
    error: str | None = None

    def add(self, fault: RecordFault, message: str, *, known: bool = False) -> None:
        self.faults.append(fault)
        self.messages.append(message)
        self.known.append(known)

    @property
    def num_new(self) -> int:
        """Faults that no index knows."""
        return self.known.count(False)

    @property
    def is_bad(self) -> bool:
        return bool(self.num_new or self.index_problem or self.error)


def verify(options: argparse.Namespace) -> int:
    """Read files whole and report all damage."""
    tasks = [task for path in options.paths for task in _tasks(path)]
    if all(task.missing for task in tasks):
        raise next(task.missing for task in tasks if task.missing)
    progress = not options.quiet and not options.json
    results = run_on_shards(
        lambda number, advance: _verify_file(tasks[number], advance),
        [_size(task.path) for task in tasks],
        progress=progress,
        title="verifying",
        max_threads=options.threads or MAX_THREADS,
    )
    unread = any(result.error for result in results)  # and may be damaged or not
    status = EXIT_USAGE if unread else EXIT_DAMAGED if any(result.is_bad for result in results) else EXIT_OK
    if options.json:
        write_json(_as_document(results, status))
    elif not options.quiet:
        write_lines(_as_text(results))
    return status


def _tasks(path: str) -> Iterator[_Task]:
    if is_index(path):
        index = RecordIndex.open(path)
        yield from (_Task(name, index, shard) for shard, name in enumerate(index.paths))
        return
    try:
        yield from map(_Task, expand_paths(path))
    except OSError as error:
        yield _Task(path, missing=error)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _verify_file(task: _Task, advance: Callable[[int], bool]) -> _Result:
    result = _Result(task.path)
    if task.missing is not None:
        result.error = f"{task.path}: {task.missing.strerror or task.missing}"
        return result
    try:
        scan = scan_shard(task.path, 2, skip=True, advance=advance)
        result.compression = scan.shard.compression
        result.num_records = scan.shard.records
        result.num_bytes = scan.shard.size
        expected = task.index.faults_in(task.shard) if task.index is not None else ()
        known = {(fault.offset, fault.reason) for fault in expected}
        for fault, error in zip(scan.faults, scan.errors, strict=True):
            message = _in_words(fault, error, compressed=scan.shard.stream is not None)
            result.add(fault, message, known=(fault.offset, fault.reason) in known)
        if task.index is not None:
            result.index_problem = _compare(scan, task.index, task.shard)
        for fault in scan.faults:
            if fault.reason in _MORE_BEHIND:  # one at most, as the reading in order ends there
                _search_behind(fault, result)
    except TFRecordError as error:  # reading failed
        fault = RecordFault(task.path, result.num_records, 0, "io", None)
        result.add(fault, with_flags(str(error), can_skip=False))
    except OSError as error:
        result.error = f"{task.path}: {error.strerror or error}"
    return result


def _search_behind(end: RecordFault, result: _Result) -> None:
    """Find what is behind the damage that ends the reading in order: records for `repair`, and more damage."""
    limit = inflate_limit()
    with _searching:
        try:
            stream = open_stream(end.path, most=limit)
        except RoomError as error:
            result.search_problem = f"no record was looked for behind that: the file {error.strerror}"
            return
        pieces = salvage(stream.file, end.path, end.offset)
        found = sum(len(piece.offsets) for piece in pieces if isinstance(piece, Saved))
    if stream.is_limited and limit <= end.offset:
        result.search_problem = f"no record was looked for behind that, as {LIMIT_VARIABLE} is {limit:,} bytes"
        return
    result.num_salvageable = found
    if stream.is_limited:
        result.search_problem = (
            f"records were looked for up to byte {limit:,} of the uncompressed stream only, as {LIMIT_VARIABLE} says"
        )
    if stream.error is not None and stream.error.code not in {fault.reason for fault in result.faults}:
        at = stream.file.size()
        fault = RecordFault(end.path, end.record, at, stream.error.code, None)
        message = f"{end.path}: at byte {at} of the uncompressed stream: {REASONS[stream.error.code]}"
        # An index that knows of the damage before that could not know of more.
        result.add(fault, message, known=result.known[result.faults.index(end)])


def _compare(scan: ShardScan, index: RecordIndex, shard: int) -> str | None:
    """Why an index does not describe what was found in a file; None if it does. It may leave records out."""
    try:
        said = index.scan_of(shard, scan.shard.path)
    except StaleIndexError as error:
        return str(error)
    offsets, lengths = said.offsets, said.lengths
    if scan.shard.size != index.shard_bytes[shard]:
        return f"the index was made when the file had {index.shard_bytes[shard]:,} bytes"
    missing = missing_records(scan, offsets, lengths)
    if not missing.any():
        same = holds(scan, said.shard, offsets, lengths)
        return None if same else "the file has other content now than when the index was made"
    first = int(np.argmax(missing))
    place = f"{lengths[first]:,} bytes at byte {offsets[first]}"
    return f"{number(int(missing.sum()), 'record')} of the index cannot be read where it says, first of them {place}"


def _in_words(fault: RecordFault, error: TFRecordError, *, compressed: bool) -> str:
    if fault.reason not in REASONS:
        return with_flags(str(error), can_skip=False)
    stream = " of the uncompressed stream" if compressed else ""
    following = (
        re.search("bytes that begin with ([0-9a-f ]+)", str(error)) if fault.reason == "inflate_trailing" else None
    )
    more = second_stream(bytes.fromhex(following[1])) if following is not None else ""
    return f"{fault.path}: record {fault.record} at byte {fault.offset}{stream}: {REASONS[fault.reason]}{more}"


def _as_document(results: list[_Result], status: int) -> dict[str, Any]:
    return {
        "status": status,
        "num_files": len(results),
        "num_records": sum(result.num_records for result in results),
        "num_bytes": sum(result.num_bytes for result in results),
        "num_faults": sum(len(result.faults) for result in results),
        "num_known_faults": sum(sum(result.known) for result in results),
        "files": [_file_document(result) for result in results],
    }


def _file_document(result: _Result) -> dict[str, Any]:
    triples = zip(result.faults, result.messages, result.known, strict=True)
    return {
        "path": result.path,
        "compression": result.compression,
        "num_records": result.num_records,
        "num_bytes": result.num_bytes,
        "faults": [{**_fault_document(fault), "known": known, "message": message} for fault, message, known in triples],
        "num_salvageable": result.num_salvageable,
        "search_problem": result.search_problem,
        "index_problem": result.index_problem,
        "error": result.error,
    }


def _fault_document(fault: RecordFault) -> dict[str, Any]:
    return {key: value for key, value in dataclasses.asdict(fault).items() if key != "path"}


def _as_text(results: list[_Result]) -> list[str]:
    lines: list[str] = []
    for result in results:
        for fault, message, known in zip(result.faults, result.messages, result.known, strict=True):
            left_out = "; known, and left out of the index" if known else ""
            lines.append(message + _loss_in_words(fault, result) + left_out)
        if result.search_problem is not None:
            lines.append(f"{result.path}: {result.search_problem}")
        if result.index_problem is not None:
            lines.append(f"{result.path}: {result.index_problem}")
        if result.error is not None:
            lines.append(f"cannot read {result.error}")
    num_faults = sum(result.num_new for result in results)
    num_known = sum(sum(result.known) for result in results)
    bad = sum(result.is_bad for result in results)
    records = number(sum(result.num_records for result in results), "whole record")
    size = format_bytes(sum(result.num_bytes for result in results))
    verdict = f"{bad:,} of them bad, {number(num_faults, 'fault')}" if bad else "all is well"
    if num_known:
        verdict += f", but for {number(num_known, 'fault')} that the index leaves out"
    return [*lines, f"{number(len(results), 'file')}, {records}, {size}: {verdict}"]


def _loss_in_words(fault: RecordFault, result: _Result) -> str:
    """How much a fault costs, and what of it can be had back."""
    if fault.reason in UNKNOWN_LOSS:
        known = f"{number(fault.bytes_lost, 'byte')} and " if fault.bytes_lost else ""
        rest = "what follows it" if fault.reason == "inflate_trailing" else "what the rest of the stream held"
        return f" ({known}{rest} lost)"
    if not fault.bytes_lost and (fault.bytes_lost == 0 or fault.reason not in _MORE_BEHIND):
        return ""
    lost = "an unknown number of bytes" if fault.bytes_lost is None else number(fault.bytes_lost, "byte")
    if result.num_salvageable is None and result.search_problem is not None and fault.reason in _MORE_BEHIND:
        return f" ({lost}, all to the end, lost)"
    if result.num_salvageable is None or fault.reason not in _MORE_BEHIND:
        return f" ({lost} lost)"
    whole = number(result.num_salvageable, "whole record") if result.num_salvageable else "no whole record"
    if result.search_problem is not None:
        whole = f"{result.num_salvageable:,} or more whole records"
    for_repair = ", for `tfrecord-index repair` to save" if result.num_salvageable else ""
    return f" ({lost}, all to the end, lost; {whole} in them{for_repair})"
