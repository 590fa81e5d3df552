"""``tfrecord-index repair``."""

from __future__ import annotations

import dataclasses
import errno
import os
import stat
from typing import TYPE_CHECKING, Any

import numpy as np

from index_tools import EXIT_DAMAGED, EXIT_OK
from index_tools.streams import Stream, open_stream
from index_tools.text import REASONS, format_bytes, number, second_stream, write_json, write_lines
from torch_tfrecord import sniff
from torch_tfrecord.errors import DataLossError
from torch_tfrecord.faults import FRAME_OVERHEAD, HEADER_BYTES
from torch_tfrecord.native import core
from torch_tfrecord.paths import expand_paths
from torch_tfrecord.repair import Lost, Saved, salvage
from torch_tfrecord.writer import TFRecordWriter

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from torch_tfrecord.inflate import InflateError

_READ_AT_ONCE = 1 << 22
_WHOLE = {"inflate_trailer_missing", "inflate_checksum"}  # errors of compressed files that cost no record
_MAX_LINES = 20  # of lost ranges as text; JSON lists all


@dataclasses.dataclass
class _Report:
    """What came of a repair."""

    lost: list[Lost] = dataclasses.field(default_factory=list)
    num_mended: int = 0

    @property
    def bytes_lost(self) -> int:
        return sum(lost.end - lost.start for lost in self.lost)

    @property
    def records_lost(self) -> int:
        return sum(lost.records for lost in self.lost)

    @property
    def num_uncertain(self) -> int:
        """Lost ranges that may have held more records than are known."""
        return sum(lost.perhaps_more for lost in self.lost)


def repair(options: argparse.Namespace) -> int:
    """Copy all whole records of a file to a new one."""
    (path,) = _one_file(options.input)
    _check_target(path, options.output, force=options.force)
    # What is inflated needs as much room as the output does, so it goes to the same place.
    stream = open_stream(path, folder=os.path.dirname(os.path.realpath(options.output)))
    compression = options.compression or stream.compression
    report = _Report()
    with TFRecordWriter(options.output, compression=None if compression == "none" else compression) as writer:
        for piece in salvage(stream.file, path):
            if isinstance(piece, Lost):
                report.lost.append(piece)
                continue
            for payload in _payloads(stream.file, path, piece):
                writer.write(payload)
            report.num_mended += len(piece.offsets) * piece.mended
        if not writer.num_records and (report.lost or _is_cut(stream)):
            _check_kind(path, stream)
            problem = f"no whole record was found in its {stream.file.size():,} bytes"
            raise DataLossError(f"{path}: {problem}, so {options.output} is not written")
    if options.json:
        write_json(_as_document(options, stream, compression, report, writer.num_records))
    elif not options.quiet:
        write_lines(_as_text(options, stream, report, writer.num_records))
    return EXIT_DAMAGED if report.lost or _is_cut(stream) else EXIT_OK


def _one_file(name: str) -> list[str]:
    files = expand_paths(name)
    if len(files) != 1:
        raise ValueError(f"{name}: {len(files)} files, and repair takes one at a time")
    return files


def _check_target(path: str, output: str, *, force: bool) -> None:
    folder = os.path.dirname(output)
    if not os.path.isdir(folder or os.curdir):
        raise FileNotFoundError(errno.ENOENT, f"the directory to write in, {folder}, is missing", output)
    try:
        found = os.stat(output)
    except FileNotFoundError:
        return
    if os.path.samestat(os.stat(path), found):
        raise ValueError(f"{output}: this is the damaged file itself, which is not changed: name another")
    if stat.S_ISREG(found.st_mode) and not force:
        raise ValueError(f"{output}: this file exists: name another, or replace it with --force")


def _is_cut(stream: Stream) -> bool:
    """Whether a compressed file holds more, which cannot be inflated."""
    return stream.error is not None and stream.error.code not in _WHOLE


def _check_kind(path: str, stream: Stream) -> None:
    """Where no record was found: raise an error if the file looks like something else than records."""
    head = stream.file.read(0, sniff.SNIFF_BYTES)
    if not head:
        return
    whole = len(head) == stream.file.size()
    error = sniff.not_a_tfrecord(path, head, whole=whole, compression=stream.compression)
    if error is not None:
        raise error


def _payloads(file: core.File, path: str, saved: Saved) -> Iterator[bytes]:
    """Read records, a few at a time."""
    ends = saved.offsets + saved.lengths + FRAME_OVERHEAD
    begin = 0
    while begin < len(ends):
        start = int(saved.offsets[begin])
        end = max(int(np.searchsorted(ends, start + _READ_AT_ONCE, "right")), begin + 1)
        data = file.read(start, int(ends[end - 1]) - start)
        if saved.mended:
            payloads = [data[HEADER_BYTES : -(FRAME_OVERHEAD - HEADER_BYTES)]]
            same = core.masked_crc32c(payloads[0]).to_bytes(4, "little") == data[-4:]
        else:
            payloads, _, _ = core.split_frames(data, 2, len(data))
            same = len(payloads) == end - begin
        if not same:
            raise DataLossError(f"{path}: the file was changed while it was read")
        yield from payloads
        begin = end


def _as_document(
    options: argparse.Namespace, stream: Stream, compression: str | None, report: _Report, num_records: int
) -> dict[str, Any]:
    error = stream.error
    return {
        "input": options.input,
        "output": options.output,
        "input_compression": stream.compression or "none",
        "output_compression": compression or "none",
        "num_records": num_records,
        "num_mended": report.num_mended,
        "num_bytes": os.path.getsize(options.output),
        "bytes_lost": report.bytes_lost,
        "records_known_lost": report.records_lost,
        "ranges_with_perhaps_more": report.num_uncertain,
        "lost": [dataclasses.asdict(lost) for lost in report.lost],
        "stream_error": None if error is None else {"reason": error.code, "compressed_offset": stream.compressed_end},
    }


def _as_text(options: argparse.Namespace, stream: Stream, report: _Report, num_records: int) -> list[str]:
    size = format_bytes(os.path.getsize(options.output))
    mended = f", {report.num_mended:,} of them with a mended header" if report.num_mended else ""
    lines = [f"{options.output}: {number(num_records, 'record')}, {size}{mended}"]
    lines += [_lost_in_words(lost) for lost in report.lost[:_MAX_LINES]]
    if len(report.lost) > _MAX_LINES:
        lines.append(f"and {len(report.lost) - _MAX_LINES:,} more")
    if stream.error is not None:
        place = f" at about byte {stream.compressed_end:,} of {options.input}" if _is_cut(stream) else ""
        lines.append(f"{REASONS[stream.error.code]}{_following(stream.error)}{place}")
    if report.lost:
        lines.append(_sum_in_words(report) + (f", and {_rest(stream)}" if _is_cut(stream) else ""))
    elif _is_cut(stream):
        lines.append(f"lost: {_rest(stream)}")
    else:
        lines.append("nothing was lost")
    return lines


def _following(error: InflateError) -> str:
    return second_stream(error.found.to_bytes(error.expected, "big")) if error.code == "inflate_trailing" else ""


def _rest(stream: Stream) -> str:
    """What is lost of a compressed file, and nobody can tell how much."""
    behind = stream.error is not None and stream.error.code == "inflate_trailing"
    return "what follows the stream" if behind else "what the rest of the stream held"


def _sum_in_words(report: _Report) -> str:
    known = f"{number(report.records_lost, 'record')} and {report.bytes_lost:,} bytes known lost"
    places = number(report.num_uncertain, "place")
    return known + (f"; perhaps more records, in {places}" if report.num_uncertain else "")


def _lost_in_words(lost: Lost) -> str:
    known = number(lost.records, "record") if lost.records else "no known record"
    more = ", perhaps more" if lost.perhaps_more else ""
    return f"lost bytes {lost.start:,} to {lost.end:,}, {known}{more}: {REASONS[lost.reason]}"
