"""From files to what an index of them holds."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from torch_tfrecord.errors import StaleIndexError
from torch_tfrecord.faults import RecordFault, check_budget, leave_out
from torch_tfrecord.index_data import IndexData
from torch_tfrecord.index_scan import ShardScan, open_shard, scan_shards
from torch_tfrecord.paths import expand_paths
from torch_tfrecord.records import check_max_faults, check_on_error, verify_level

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch_tfrecord.index import RecordIndex
    from torch_tfrecord.paths import Paths
    from torch_tfrecord.progress import Progress
    from torch_tfrecord.records import OnError

IndexVerify: TypeAlias = Literal["length", "all"]


def index_verify_level(verify: str) -> int:
    """The core's number for the ``verify`` of an index, which cannot do without lengths."""
    if verify not in ("length", "all"):
        raise ValueError(f"verify must be 'length' or 'all' for an index, not {verify!r}")
    return verify_level(verify)


def build_data(
    paths: Paths,
    *,
    verify: IndexVerify,
    on_error: OnError,
    max_faults: int | None,
    progress: Progress,
    known: Mapping[str, KnownShard] | None = None,
) -> IndexData:
    """See ``RecordIndex.build``.

    Args:
        paths: See there.
        verify: See there.
        on_error: See there.
        max_faults: See there.
        progress: See there.
        known: What earlier indexes say of some of the files, by absolute path. Unchanged ones are not scanned.
    """
    check_on_error(on_error)
    check_max_faults(max_faults, on_error)
    level = index_verify_level(verify)
    names = expand_paths(paths)
    found = known or {}

    def from_earlier(number: int) -> ShardScan | None:
        earlier = found.get(os.path.abspath(names[number]))
        return None if earlier is None else earlier.scan_if_unchanged(names[number])

    skip = on_error == "skip"
    scans = scan_shards(names, level, skip=skip, progress=progress, title="indexing", known=from_earlier)
    faults: list[RecordFault] = []
    for scan in scans:
        for fault in scan.faults:
            leave_out(faults, fault)
    check_budget(faults, max_faults)
    offsets = np.concatenate([scan.offsets for scan in scans])
    lengths = np.concatenate([scan.lengths for scan in scans])
    return IndexData([scan.shard for scan in scans], offsets, lengths, [scan.faults for scan in scans], verify)


@dataclasses.dataclass(frozen=True)
class KnownShard:
    """What an earlier index says of a file.

    Attributes:
        index: The index.
        shard: The file's number in it.
    """

    index: RecordIndex
    shard: int

    def is_unchanged(self, path: str) -> bool:
        """Whether the file is as it was, under the path that it has now. Raises OSError, StaleIndexError."""
        self.index.check_shard(self.shard, open_shard(path))
        # The only sign of a file that was rewritten with the same size and the same samples.
        return os.stat(path).st_mtime_ns == self.index.shard_times[self.shard]

    def scan_if_unchanged(self, path: str) -> ShardScan | None:
        """What a scan of the file would find, or None if it is not as it was."""
        try:
            return self.index.scan_of(self.shard, path) if self.is_unchanged(path) else None
        except StaleIndexError:
            return None
