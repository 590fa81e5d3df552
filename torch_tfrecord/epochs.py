"""The count of epochs of a stream, where its process and that process's ``DataLoader`` workers all reach it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Iterator
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import get_worker_info

_SEED_BYTES = 32
_REMEMBERED = 1024  # passes that workers may still begin late
_BOARD = np.dtype(
    [
        ("seed", np.uint8, (_SEED_BYTES,)),
        ("next", np.int64, (2,)),  # epoch and start
        ("newest", np.int64, (2,)),
        ("announced", np.int64),
        ("passes", [("key", np.int64), ("epoch", np.int64), ("start", np.int64)], (_REMEMBERED,)),
    ]
)


class Begun(NamedTuple):
    """A pass that has begun: seed and epoch of its order, and the position it starts from."""

    seed: int
    epoch: int
    start: int


class Board:
    """Says to all processes of a stream which epoch the next pass reads, and which one the newest pass reads.

    All workers of a pass must read the same epoch, and the next pass, perhaps by new processes, the next one, though
    nothing tells the process that owns the ``DataLoader`` that a pass begins. So the first worker to begin a pass takes
    the epoch off the board, and leaves it there for the others, under a key that the workers of this pass alone share.

    The board is a small file without a name, which all of them map and lock. It belongs to the process that made it: a
    copy in a process that is no worker of a ``DataLoader`` goes its own way from the first time it is written.

    As a sequence it is epoch and start of the next pass, for `Passes` to read and to write.

    Args:
        seed: Of the orders, in [-2**255, 2**255).

    Raises:
        ValueError: ``seed`` is out of this range.
    """

    def __init__(self, seed: int) -> None:
        self._map(_nameless_file(), os.getpid())
        self.seed = seed

    def _map(self, descriptor: int, owner: int) -> None:
        self._descriptor = descriptor
        self._owner = owner
        self._begun = 0  # passes that this process has begun as a worker
        self._board: Any = np.frombuffer(mmap.mmap(descriptor, _BOARD.itemsize), _BOARD).reshape(())
        weakref.finalize(self, os.close, descriptor).atexit = False

    @property
    def seed(self) -> int:
        """Of the orders."""
        return int.from_bytes(self._board["seed"].tobytes(), "little", signed=True)

    @seed.setter
    def seed(self, seed: int) -> None:
        try:
            written = seed.to_bytes(_SEED_BYTES, "little", signed=True)
        except OverflowError:
            raise ValueError(f"seed is {seed}, and must be in [-2**255, 2**255)") from None
        with self._owned() as board:
            board["seed"] = np.frombuffer(written, np.uint8)

    def __getitem__(self, i: int) -> int:
        return int(self._board["next"][i])

    def __setitem__(self, _: slice, following: tuple[int, int]) -> None:
        with self._owned() as board:
            board["next"] = following

    @property
    def newest(self) -> tuple[int, int]:
        """Epoch and start of the pass that workers began last."""
        epoch, start = self._board["newest"].tolist()
        return epoch, start

    @property
    def announced(self) -> int:
        """How many passes workers have begun."""
        return int(self._board["announced"])

    def begin(self) -> Begun:
        """Begin a pass in a worker, which is the same for all workers of its ``DataLoader``."""
        self._begun += 1
        key = self._key()
        with self._locked() as board:
            passes = board["passes"]
            known = np.flatnonzero(passes["key"] == key)
            if known.size:
                _, epoch, start = passes[known[0]].tolist()
            else:
                epoch, start = board["next"].tolist()
                passes[board["announced"] % _REMEMBERED] = key, epoch, start
                _announce(board, epoch, start)
            return Begun(self.seed, epoch, start)

    def resume(self, begun: Begun) -> None:
        """Begin a pass in a worker where a state says that it stood; once for all workers."""
        with self._locked() as board:
            board["seed"] = np.frombuffer(begun.seed.to_bytes(_SEED_BYTES, "little", signed=True), np.uint8)
            _announce(board, begun.epoch, begun.start)

    def _key(self) -> int:
        """Equal in the workers of one pass, and in no others.

        A ``DataLoader`` starts its workers one after another in one thread, so a worker's number among the processes
        that were started there, less its number in the pool, is the pool's own. The seed of the pool alone would not
        do: it is the same in all, if torch's seed is set again before each pass.
        """
        worker = get_worker_info()
        assert worker is not None
        pool = (_birth.process, _birth.thread, _birth.number - worker.id, worker.seed - worker.id, worker.num_workers)
        digest = hashlib.blake2b(repr((pool, self._begun)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little", signed=True) | 1  # 0 is no key

    @contextlib.contextmanager
    def _owned(self) -> Iterator[Any]:
        """The board, locked, for a process that is no worker."""
        if self._owner != os.getpid():
            self.__setstate__({"content": self._board.tobytes()})
        with self._locked() as board:
            yield board

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Any]:
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)  # which ends with the process, however that ends
        try:
            yield self._board
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def __getstate__(self) -> dict[str, Any]:
        popen = get_spawning_popen()
        if popen is None:
            return {"content": self._board.tobytes()}
        return {"descriptor": DupFd(self._descriptor), "owner": self._owner, "birth": _starts.spawn(popen)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "content" in state:
            self._map(_nameless_file(), os.getpid())
            self._board[...] = np.frombuffer(state["content"], _BOARD).reshape(())
        else:
            _set_birth(state["birth"])
            self._map(state["descriptor"].detach(), state["owner"])


def _announce(board: Any, epoch: int, start: int) -> None:
    board["newest"] = epoch, start
    board["next"] = epoch + 1, 0
    board["announced"] += 1


def _nameless_file() -> int:
    """A descriptor of an empty board."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("torch_tfrecord")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _BOARD.itemsize)
    return descriptor


class _Birth(NamedTuple):
    """How this process was started: by which process, by which thread there, and as its which one."""

    process: int
    thread: int
    number: int


class _Starts(threading.local):
    """Counts the processes that a thread starts. The numbers that multiprocessing gives them are of all threads."""

    _threads = itertools.count()

    def __init__(self) -> None:
        self.thread = next(self._threads)  # unlike ``get_ident`` of no other thread, not even later
        self.number = 0
        self._popen: weakref.ref[Any] | None = None

    def fork(self) -> None:
        self.number += 1

    def spawn(self, popen: Any) -> _Birth:
        """Count a process that is being spawned, once, however many boards are sent to it."""
        if self._popen is None or self._popen() is not popen:
            self._popen = weakref.ref(popen)
            self.number += 1
        return _Birth(os.getpid(), self.thread, self.number)


_starts = _Starts()
_birth = _Birth(0, 0, 0)


def _set_birth(birth: _Birth) -> None:
    global _birth  # noqa: PLW0603 - it is a fact about the process
    _birth = birth


os.register_at_fork(
    before=_starts.fork,
    after_in_child=lambda: _set_birth(_Birth(os.getppid(), _starts.thread, _starts.number)),
)
