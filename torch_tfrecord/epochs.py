"""The count of epochs of a stream, in memory that its ``DataLoader`` workers share with the parent process."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
from typing import Any, NamedTuple

import torch
from torch.utils.data import get_worker_info

_SLOTS = 64  # passes that may be beginning at once
_PATIENCE = 120.0  # seconds that a worker waits for its pool's first one
_ANNOUNCED, _NEXT, _NEWEST, _RING = 0, 1, 3, 5


class Begun(NamedTuple):
    """A pass that has begun: its epoch, and the position it started from."""

    epoch: int
    start: int


class Board:
    """Says to all processes of a stream which epoch the next pass reads, and which one the newest pass reads.

    All workers of one pass must read the same epoch, and the next pass, perhaps by new processes, the next one, though
    nothing tells the parent's data set that a pass begins. So worker 0 takes the epoch off the board and announces it
    under a key that it shares with the other workers of that pass alone; they wait for the announcement.

    The words of the board, int64: passes announced by workers; epoch and start of the next pass; epoch and start of the
    newest one; then, by turns, announcements: a key, and epoch and start, each combined with the key by exclusive or,
    so that one that is only half written is never taken for whole.
    """

    def __init__(self) -> None:
        self.__setstate__({"_words": torch.zeros(_RING + 3 * _SLOTS, dtype=torch.int64, device="cpu")})

    @property
    def next(self) -> Any:
        """int64[2]: epoch and start of the next pass, to read and to write."""
        return self._view[_NEXT:_NEWEST]

    @property
    def newest(self) -> Begun:
        """The pass that workers announced last."""
        return Begun(*self._view[_NEWEST:_RING].tolist())

    @property
    def announced(self) -> int:
        """How many passes workers have announced."""
        return int(self._view[_ANNOUNCED])

    def begin(self) -> Begun:
        """Begin a pass in a worker: the epoch and start that all workers of this pass are given.

        Raises:
            RuntimeError: Worker 0 has not begun the pass within two minutes, or the parent is gone.
        """
        worker = get_worker_info()
        assert worker is not None
        key = self._key(worker.id, worker.seed)
        self._passes += 1
        return self._announce(key) if worker.id == 0 else self._await(key)

    def _key(self, worker: int, seed: int) -> int:
        """Equal in the workers of one pass, and in no others.

        A ``DataLoader`` starts its workers one after another, so the number of a worker's process less its number in
        the pool is the pool's own. The seed of the pool alone would not do: with torch's seed set again before each
        pass, it is the same in all.
        """
        identity = multiprocessing.current_process()._identity  # noqa: SLF001
        pool = (os.getppid(), *identity[:-1], identity[-1] - worker, seed - worker, self._passes)
        digest = hashlib.blake2b(repr(pool).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 2 | 1 << 61  # far above any epoch, and never 0

    def _announce(self, key: int) -> Begun:
        view = self._view
        begun = Begun(*self.next.tolist())
        self.next[:] = begun.epoch + 1, 0
        view[_NEWEST:_RING] = begun
        slot = _RING + 3 * int(view[_ANNOUNCED] % _SLOTS)
        view[slot + 1], view[slot + 2] = begun.epoch ^ key, begun.start ^ key
        view[slot] = key
        view[_ANNOUNCED] += 1
        return begun

    def _await(self, key: int) -> Begun:
        parent, end = os.getppid(), time.monotonic() + _PATIENCE
        while time.monotonic() < end and os.getppid() == parent:
            for slot in (self._view[_RING::3] == key).nonzero()[0]:
                _, epoch, start = self._view[_RING + 3 * slot : _RING + 3 * slot + 3].tolist()
                begun = Begun(epoch ^ key, start ^ key)
                if max(begun) < 1 << 61:
                    return begun
            time.sleep(0.001)
        raise RuntimeError("worker 0 of the DataLoader did not begin this pass, so its epoch is not known")

    def __getstate__(self) -> dict[str, Any]:
        return {"_words": self._words}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._words = state["_words"].share_memory_()  # one that copy.deepcopy made is not shared yet
        self._view = self._words.numpy()
        self._passes = 0  # that this process has begun as a worker
