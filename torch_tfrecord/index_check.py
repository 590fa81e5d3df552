"""Whether data files are still those of an index: cheaply, by samples, or by reading them all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from torch_tfrecord.index_scan import open_shard, read_pieces, read_samples, scan_shards

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch_tfrecord.faults import RecordFault
    from torch_tfrecord.index_data import Shard
    from torch_tfrecord.index_scan import ShardScan
    from torch_tfrecord.native import core
    from torch_tfrecord.native._core import Int64s
    from torch_tfrecord.progress import Progress


def change_of(
    file: core.File, shard: Shard, offsets: Int64s, lengths: Int64s, faults: Sequence[RecordFault]
) -> str | None:
    """What tells that an open data file is not the one that was scanned, as the end of "the file ...", or None.

    A plain file is compared by its size and the stored checksums of sampled records, a compressed one by its size and
    sampled pieces: nothing is inflated.
    """
    size = file.size()
    if size != shard.size:
        return _other_size(size, shard)
    if shard.stream is not None:
        same = read_pieces(file, size) == shard.stream.samples
    else:
        same = read_samples(file, offsets, lengths) == shard.samples
    if not same:
        return "has other content now than it had"
    # Damage that was left out is not sampled: of a plain file its first and last place are looked at.
    if shard.stream is None and any(file.scan(f.offset, 1, 2)[3] is None for f in (*faults[:1], *faults[-1:])):
        return "is whole now where it was damaged"
    return None


def verify_shards(
    shards: Sequence[Shard],
    faults: Sequence[Sequence[RecordFault]],
    arrays: Callable[[int], tuple[Int64s, Int64s]],
    *,
    progress: Progress,
) -> tuple[int, str] | None:
    """Read all data files and check every checksum.

    Args:
        shards: What is expected of them.
        faults: What is known to be wrong with each.
        arrays: Gives the offsets and lengths of the records that are expected in a shard, which may be some of its
            records only.
        progress: See ``ProgressMeter``.

    Returns:
        The first shard that is not the one expected, and in what, as ``change_of``; None if all are.

    Raises:
        DataLossError: Damage that is not known.
    """
    scans = scan_shards([shard.path for shard in shards], 2, skip=True, progress=progress, title="verifying")
    for number, (scan, expected) in enumerate(zip(scans, shards, strict=True)):
        known = {(fault.offset, fault.reason) for fault in faults[number]}
        if scan.shard.size != expected.size:
            return number, _other_size(scan.shard.size, expected)
        for fault, error in zip(scan.faults, scan.errors, strict=True):
            if (fault.offset, fault.reason) not in known:
                raise error
        found = {(fault.offset, fault.reason) for fault in scan.faults}
        if not known <= found or not holds(scan, expected, *arrays(number)):
            return number, "holds other records now than it did"
    return None


def holds(scan: ShardScan, expected: Shard, offsets: Int64s, lengths: Int64s) -> bool:
    """Whether a scan of a file found an index's records of it, which may be some of the file's only.

    Args:
        scan: With all checksums checked.
        expected: What the index says of the file.
        offsets: int64[n], where its records are.
        lengths: int64[n], of their payloads.
    """
    if missing_records(scan, offsets, lengths).any() or scan.shard.stream != expected.stream:
        return False
    if len(offsets) == len(scan.offsets):
        return scan.shard.samples == expected.samples
    # Of some records others are sampled. In a compressed file their checksums cannot be looked up, but its pieces,
    # which are part of ``stream``, are the same.
    if expected.stream is not None:
        return True
    return read_samples(open_shard(expected.path), offsets, lengths) == expected.samples


def missing_records(scan: ShardScan, offsets: Int64s, lengths: Int64s | None) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """bool[n], which of some records a scan did not find, with these offsets and, unless None, these lengths."""
    if not len(scan.offsets):
        return np.ones(len(offsets), np.bool_)
    nearest = scan.offsets.searchsorted(offsets).clip(max=len(scan.offsets) - 1)
    missing: np.ndarray[Any, np.dtype[np.bool_]] = scan.offsets[nearest] != offsets
    return missing if lengths is None else missing | (scan.lengths[nearest] != lengths)


def _other_size(size: int, shard: Shard) -> str:
    return f"is {size:,} bytes long now and was {shard.size:,}"
