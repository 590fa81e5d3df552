"""Open data files of one process: few at a time, each checked against the index when it is opened."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import threading
import weakref

from torch_tfrecord.index import RecordIndex
from torch_tfrecord.native import core

# All data sets of a process share one budget of open files. What is opened first is closed first; a file that somebody
# still reads stays open until they let go of it.
_open: dict[tuple[int, int], core.File] = {}
_lock = threading.RLock()  # a data set may be collected, and forgotten here, at any moment
_numbers = itertools.count()


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603 - a forked child must not wait for a thread that it does not have
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


def limit() -> int:
    """How many files to keep open: a quarter of what the process may have, so that others find room."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, min(512, soft // 4)) if soft != resource.RLIM_INFINITY else 512


class OpenFiles:
    """Shards of an index, opened when they are first read. For any number of threads."""

    def __init__(self, index: RecordIndex) -> None:
        self._index = index
        self._number = next(_numbers)
        weakref.finalize(self, _forget, self._number).atexit = False

    def get(self, shard: int) -> core.File:
        """The open file of a shard.

        Raises:
            FileNotFoundError: It is gone.
            StaleIndexError: It is not the file that the index describes.
        """
        file = _open.get((self._number, shard))
        if file is not None:
            return file
        file = open_shard(self._index, shard)
        _close_down_to(limit() - 1)
        with _lock:
            return _open.setdefault((self._number, shard), file)


def open_shard(index: RecordIndex, shard: int) -> core.File:
    """Open a shard as ``index.open_shard`` does, closing others where there are too many open files."""
    try:
        return index.open_shard(shard)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        _close_down_to(0)  # others have opened more than their share
        return index.open_shard(shard)


def _close_down_to(count: int) -> None:
    with _lock:
        while len(_open) > count:
            _open.pop(next(iter(_open)), None)


def _forget(number: int) -> None:
    with _lock:
        for key in list(_open):
            if key[0] == number:
                _open.pop(key, None)
