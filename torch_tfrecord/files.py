"""Open data files of one process: few at a time, each checked against the index when it is opened."""

from __future__ import annotations

import os
import resource

from torch_tfrecord.index import RecordIndex
from torch_tfrecord.native import core


def _limit() -> int:
    """How many files to keep open: a quarter of what the process may have, so that others find room."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, min(512, soft // 4)) if soft != resource.RLIM_INFINITY else 512


class OpenFiles:
    """Shards of an index, opened when they are first read. The file opened first is closed first.

    Needs no lock: each step on the dict is atomic, and a file stays open as long as anybody reads it.

    Attributes:
        limit: How many stay open.
    """

    def __init__(self, index: RecordIndex) -> None:
        self._index = index
        self._files: dict[int, core.File] = {}
        self.limit = _limit()

    def get(self, shard: int) -> core.File:
        """The open file of a shard.

        Raises:
            FileNotFoundError: It is gone.
            StaleIndexError: It is not the file that the index describes.
        """
        file = self._files.get(shard)
        if file is not None:
            return file
        fresh = core.File(os.open(self._index.paths[shard], os.O_RDONLY | os.O_CLOEXEC))
        self._index.check_shard(shard, fresh)
        file = self._files.setdefault(shard, fresh)
        while len(self._files) > self.limit:
            self._files.pop(next(iter(self._files)), None)
        return file
