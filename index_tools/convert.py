"""``tfrecord-index convert``."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import numpy as np

from index_tools import EXIT_OK
from index_tools.show import open_index
from index_tools.streams import RecordReader
from index_tools.text import number, write_json, write_lines
from torch_tfrecord.errors import StaleIndexError
from torch_tfrecord.faults import FRAME_OVERHEAD
from torch_tfrecord.index import RecordIndex
from torch_tfrecord.index_arrays import array_checksums
from torch_tfrecord.index_check import missing_records
from torch_tfrecord.index_data import IndexData, sample_positions
from torch_tfrecord.index_file import check_target
from torch_tfrecord.index_scan import lengths_digest, open_shard, read_samples, scan_shards
from torch_tfrecord.index_text import kind_of_index, read_foreign_index, write_text_index
from torch_tfrecord.native import core
from torch_tfrecord.paths import expand_paths

if TYPE_CHECKING:
    import argparse

    from torch_tfrecord.index_scan import ShardScan
    from torch_tfrecord.index_text import ForeignIndex
    from torch_tfrecord.native._core import Int64s

_FOREIGN_SUFFIXES = (".idx", ".tfindex")


@dataclasses.dataclass(frozen=True)
class _Written:
    """An index file, the data files that it is of, and their records in it."""

    index: str
    data: list[str]
    num_records: int


def convert(options: argparse.Namespace) -> int:
    """Turn an index into text indexes, or text indexes into an index."""
    written = [_to_index(options)] if _are_foreign(options) else _to_text(options)
    if options.json:
        write_json({"files": [dataclasses.asdict(one) for one in written]})
    elif not options.quiet:
        write_lines([f"{one.index}: {number(one.num_records, 'record')} of {', '.join(one.data)}" for one in written])
    return EXIT_OK


def _are_foreign(options: argparse.Namespace) -> bool:
    """Whether the paths are indexes of other tools, and not ours or data."""
    if options.data:
        return True
    foreign = list(map(_is_foreign, options.paths))
    if any(foreign) and not all(foreign):
        raise ValueError("convert takes text indexes, or an index or data files, and not both at once")
    return all(foreign)


def _is_foreign(path: str) -> bool:
    if os.path.isdir(path):
        return bool(_indexes_in(path)) and not _has_data(path)
    if not os.path.isfile(path):
        return path.endswith(_FOREIGN_SUFFIXES)  # a pattern for some, or one that is missing
    kind = kind_of_index(path)
    if kind == "text" and not os.path.getsize(path):  # or data without records
        return path.endswith(_FOREIGN_SUFFIXES)
    return kind in {"text", "tfr-reader"} or (kind == "parquet" and path.endswith("index.parquet"))


def _expand(path: str) -> list[str]:
    """The text indexes that a path stands for: of a directory, those in it."""
    return (os.path.isdir(path) and _indexes_in(path)) or expand_paths(path)


def _indexes_in(folder: str) -> list[str]:
    names = (
        name for name in os.listdir(folder) if name.endswith(_FOREIGN_SUFFIXES) and not name.startswith((".", "_"))
    )
    return [os.path.join(folder, name) for name in sorted(names, key=os.fsencode)]


def _has_data(folder: str) -> bool:
    try:
        return bool(expand_paths(folder))
    except FileNotFoundError:
        return False


# --- to text ----------------------------------------------------------------------------------------------------------


def _to_text(options: argparse.Namespace) -> list[_Written]:
    index = open_index(options.paths, "raise", progress=not options.quiet and not options.json)
    for shard, path in enumerate(index.paths):
        _check_compression(path, index.shard_compression[shard], options.names)
        index.check_shard(shard, open_shard(path))
    targets = _targets(index, options.output, options.names)
    written = []
    for shard, target in enumerate(targets):
        if os.path.exists(target) and os.path.samefile(target, index.paths[shard]):
            raise ValueError(f"{target}: this is the data file, which an index must not replace: name another")
        records = index.records_in(shard)
        some = slice(records.start, records.stop)
        write_text_index(target, index.offsets[some], index.lengths[some])
        written.append(_Written(target, [index.paths[shard]], len(records)))
    return written


def _check_compression(path: str, compression: str, names: str) -> None:
    if compression == "none" or (compression, names) == ("gzip", "tfrecord"):
        return
    reader = "the tfrecord package reads gzip, but no zlib" if names == "tfrecord" else "DALI reads no compressed files"
    advice = "" if names == "tfrecord" or compression == "zlib" else " (--names tfrecord is for a package that does)"
    raise ValueError(f"{path}: compressed with {compression}, and {reader}{advice}: uncompress it first")


def _targets(index: RecordIndex, output: str, names: str) -> list[str]:
    """Which file each shard's text index goes to."""
    if len(index.paths) == 1 and not os.path.isdir(output):
        return [output]
    bases = [os.path.basename(path) for path in index.paths]
    if names == "dali":
        files = [base + ".idx" for base in bases]
    else:
        files = [base.removesuffix(".tfrecord") + ".tfindex" for base in bases]
    if len(set(files)) < len(files):
        raise ValueError("two of the data files have the same name, so their indexes cannot be in one directory")
    os.makedirs(output, exist_ok=True)
    return [os.path.join(output, file) for file in files]


# --- from text --------------------------------------------------------------------------------------------------------


def _to_index(options: argparse.Namespace) -> _Written:
    foreign = [read_foreign_index(name) for path in options.paths for name in _expand(path)]
    data = expand_paths(options.data) if options.data else [_data_beside(one.path) for one in foreign]
    if len(data) != len(foreign):
        counts = f"{number(len(foreign), 'text index')} and {number(len(data), 'data file')}"
        raise ValueError(f"{counts}: there must be one for each, in the same order".replace("indexs", "indexes"))
    check_target(options.output, data)
    progress = not options.quiet and not options.json
    scans = scan_shards(data, 1, skip=True, progress=progress, title="comparing")  # damage elsewhere is no matter
    chosen = [_choose(scan, _positions(one, scan)) for one, scan in zip(foreign, scans, strict=True)]
    offsets = np.concatenate([scan.offsets for scan in chosen])
    lengths = np.concatenate([scan.lengths for scan in chosen])
    data_of_index = IndexData(
        [scan.shard for scan in chosen], offsets, lengths, [scan.faults for scan in chosen], "length"
    )
    # A text index cannot tell of damage, so what the scan found of it is known again from here on.
    index = RecordIndex(data_of_index)
    index.save(options.output)
    return _Written(options.output, data, len(index))


def _data_beside(path: str) -> str:
    """The data file that an index is of, told by its name."""
    stem = path
    for suffix in _FOREIGN_SUFFIXES:
        stem = stem.removesuffix(suffix)
    found = [name for name in (stem, f"{stem}.tfrecord", f"{stem}.tfrecords") if name != path and os.path.isfile(name)]
    if len(found) != 1:
        problem = (
            f"several files may be the data: {', '.join(found)}" if found else "no data file of this name beside it"
        )
        raise ValueError(f"{path}: {problem}: name it with --data")
    return found[0]


def _positions(foreign: ForeignIndex, scan: ShardScan) -> Int64s:
    """Which of a file's records an index of another tool names: int64[n], ascending.

    Raises:
        StaleIndexError: The index is not of this file.
        DataLossError: It may be, but the file is damaged where the index has records.
    """
    problem = None
    offsets = foreign.offsets
    found = np.searchsorted(scan.offsets, offsets)
    if not len(offsets) and len(scan.offsets):
        problem = f"it is empty, and the data has {number(len(scan.offsets), 'record')}"
    elif (offsets[1:] <= offsets[:-1]).any():
        problem = (
            "its offsets do not ascend, so it is of another order of records, which no index keeps: sort its lines"
        )
    elif len(offsets):
        problem = _mismatch(foreign, scan)
    if problem is None:
        return found
    if scan.errors:
        raise scan.errors[-1]
    start = f"{foreign.path}: this is no index of {scan.shard.path}"
    if scan.shard.stream is not None:
        problem += f". That file is compressed with {scan.shard.stream.kind}: the index may be of its compressed bytes"
    raise StaleIndexError(f"{start}: {problem}. Make one from the data: tfrecord-index build")


def _mismatch(foreign: ForeignIndex, scan: ShardScan) -> str | None:
    """The first entry that is no record of the data."""
    missing = missing_records(scan, foreign.offsets, None)
    if not missing.any() and foreign.sizes is not None:
        missing = missing_records(scan, foreign.offsets, foreign.sizes - FRAME_OVERHEAD)
    if not missing.any():
        return None
    first = int(np.argmax(missing))
    offset = int(foreign.offsets[first])
    size = "" if foreign.sizes is None else f" of {number(int(foreign.sizes[first]), 'byte')}"
    entry = f"entry {first} names a record{size} at byte {offset:,}, where"
    if offset >= scan.shard.stream_bytes:
        return f"{entry} the data has ended: it has {scan.shard.stream_bytes:,} bytes"
    there = scan.lengths[scan.offsets == offset]
    return f"{entry} one of {int(there[0]) + FRAME_OVERHEAD:,} bytes begins" if len(there) else f"{entry} none begins"


def _choose(scan: ShardScan, positions: Int64s) -> ShardScan:
    """A part of what a scan found, as if there were no more."""
    if len(positions) == len(scan.offsets):
        return scan
    offsets, lengths = scan.offsets[positions], scan.lengths[positions]
    shard = dataclasses.replace(
        scan.shard,
        records=len(offsets),
        lengths_digest=lengths_digest(lengths),
        checksums=array_checksums(offsets, lengths),
        samples=_samples(scan, positions),
    )
    return dataclasses.replace(scan, shard=shard, offsets=offsets, lengths=lengths)


def _samples(scan: ShardScan, positions: Int64s) -> tuple[int, ...]:
    """The payload checksums of some of the chosen records, as a scan of them would find."""
    if scan.shard.stream is None:
        samples = read_samples(open_shard(scan.shard.path), scan.offsets[positions], scan.lengths[positions])
        if samples is None:
            raise StaleIndexError(f"{scan.shard.path}: the file was cut short while it was compared")
        return samples
    reader = RecordReader(RecordIndex(IndexData([scan.shard], scan.offsets, scan.lengths, [[]], "length")))
    sampled = positions[sample_positions(len(positions))].tolist()
    return tuple(core.masked_crc32c(reader.read(record)) for record in sampled)
