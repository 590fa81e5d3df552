"""The index that a data set keeps for itself, so that its files are scanned only once."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
import logging
import os
import time
from typing import TYPE_CHECKING

from torch_tfrecord.errors import StaleIndexError
from torch_tfrecord.faults import check_budget
from torch_tfrecord.index import RecordIndex
from torch_tfrecord.index_build import KnownShard, build_data, index_verify_level
from torch_tfrecord.index_file import TEMPORARY_SUFFIX, portable_path
from torch_tfrecord.index_scan import run_on_shards
from torch_tfrecord.paths import INDEX_SUFFIX, Paths, expand_paths
from torch_tfrecord.records import OnError, check_max_faults, check_on_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch_tfrecord.index_build import IndexVerify
    from torch_tfrecord.progress import Progress

_LOCK_SECONDS = 600.0  # how long to wait for a lock, which some other program may hold for ever
_QUIET_SECONDS = 5.0  # how long to wait before that is logged
_POLL_SECONDS = 0.05
_MAX_EARLIER = 8  # indexes that are asked what they know of files
_ABANDONED_SECONDS = 86_400.0  # no index takes as long to write

logger = logging.getLogger(__name__)


def load_or_build(
    paths: Paths, *, verify: IndexVerify, on_error: OnError, max_faults: int | None, progress: Progress
) -> RecordIndex:
    """See ``RecordIndex.load_or_build``."""
    index_verify_level(verify)
    check_on_error(on_error)
    check_max_faults(max_faults, on_error)
    request = _Request(expand_paths(paths), verify, on_error)
    index = request.load_or_build(progress)
    check_budget(index.faults, max_faults)
    return index


@dataclasses.dataclass(frozen=True)
class _Request:
    """The index that is wanted: of which files, and how it is to be built."""

    names: list[str]
    verify: IndexVerify
    on_error: OnError

    def load_or_build(self, progress: Progress) -> RecordIndex:
        kept = (place(self.names, self.verify, self.on_error) for place in (place_beside, place_in_cache))
        places = [place for place in kept if place is not None]
        for place in places:
            index = self._load(place)
            if index is not None:
                return index
        for place in places:
            folder = os.path.dirname(place) or os.curdir
            if not _make_writable(folder):
                continue
            with _folder_lock(folder):
                if index is None:
                    # Another process may have built it while this one waited for the lock.
                    index = self._load(place)
                    if index is not None:
                        return index
                    index = self._build(places, progress)
                _sweep(folder)
                try:
                    index.save(place)
                except (OSError, ValueError) as error:
                    logger.info("cannot keep the index at %s: %s", place, error)
                else:
                    return index
        if index is None:
            index = self._build(places, progress)
        problem = "cannot be kept, beside the data or in the cache: it is built anew each time"
        logger.warning("the index of %s %s", self.names[0], problem)
        return index

    def _build(self, places: Sequence[str], progress: Progress) -> RecordIndex:
        known: dict[str, KnownShard] = {}
        newest = itertools.chain.from_iterable(map(_newest_indexes, places))
        for index in itertools.chain(_opened(places), newest):
            self._add_known(known, index)
        start = f"building the index of {len(self.names)} files, the first of them {self.names[0]}"
        logger.info("%s; earlier indexes know %d of them", start, len(known))
        data = build_data(
            self.names, verify=self.verify, on_error=self.on_error, max_faults=None, progress=progress, known=known
        )
        return RecordIndex(data)

    def _add_known(self, known: dict[str, KnownShard], index: RecordIndex) -> None:
        """Add those of the files of which an index says what a scan of them would find."""
        if index_verify_level(index.verify_level) < index_verify_level(self.verify):
            return
        wanted = set(map(os.path.abspath, self.names))
        # Which damage is found, and what of it is left out, depends on how the index was built.
        alike = index.verify_level == self.verify and self.on_error == "skip"
        for shard, path in enumerate(map(os.path.abspath, index.paths)):
            if path in wanted and (alike or not index.faults_in(shard)):
                known.setdefault(path, KnownShard(index, shard))

    def _load(self, place: str) -> RecordIndex | None:
        """The index that is kept at a place, if it does for what is asked and for the files as they are now."""
        try:
            index = RecordIndex.open(place)
            fits = self._fits(index)
            if not fits:
                logger.info("the kept index %s is of other files, times or checks than these", place)
        except FileNotFoundError:
            return None
        except (OSError, StaleIndexError) as error:
            logger.info("the kept index does not fit: %s", error)
            return None
        return index if fits else None

    def _fits(self, index: RecordIndex) -> bool:
        if list(map(os.path.abspath, index.paths)) != list(map(os.path.abspath, self.names)):
            return False
        if index_verify_level(index.verify_level) < index_verify_level(self.verify):
            return False
        if index.faults and self.on_error == "raise":
            return False

        def check(shard: int, _: Callable[[int], bool]) -> bool:
            return KnownShard(index, shard).is_unchanged(index.paths[shard])

        return all(run_on_shards(check, [0] * len(self.names), progress=False, title="checking"))


def place_beside(names: Sequence[str], verify: IndexVerify = "length", on_error: OnError = "raise") -> str:
    """Where the index of these files goes beside the first of them. It does not change when all are moved together."""
    folder, first = os.path.split(names[0])
    absolute = os.path.abspath(folder)
    listed = "\0".join(portable_path(name, absolute) for name in names)
    # The name is cut, because a longer one could be too long for the file system.
    return os.path.join(folder, f".{first[:40]}.{_digest(listed)[:8]}{_ending(verify, on_error)}")


def place_in_cache(names: Sequence[str], verify: IndexVerify = "length", on_error: OnError = "raise") -> str | None:
    """Where it goes in the user's cache directory; None where there is none."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):  # the standard says to ignore such a value
        cache = os.path.expanduser("~/.cache")
    if not os.path.isabs(cache):
        return None
    listed = "\0".join(os.path.abspath(name) for name in names)
    return os.path.join(cache, "torch_tfrecord", _digest(listed)[:32] + _ending(verify, on_error))


def _ending(verify: IndexVerify, on_error: OnError) -> str:
    """How the names of indexes end that are built so: data sets that ask for different ones keep one each."""
    return ("" if verify == "length" else f".{verify}") + ("" if on_error == "raise" else f".{on_error}") + INDEX_SUFFIX


def _digest(text: str) -> str:
    return hashlib.blake2b(os.fsencode(text), digest_size=16).hexdigest()


def _newest_indexes(place: str) -> Iterator[RecordIndex]:
    """The indexes in the folder of a kept one, the newest first, but not very many."""
    found: list[tuple[int, str]] = []
    with contextlib.suppress(OSError), os.scandir(os.path.dirname(place) or os.curdir) as entries:
        for entry in entries:
            if entry.name.endswith(INDEX_SUFFIX):
                with contextlib.suppress(OSError):
                    found.append((entry.stat().st_mtime_ns, entry.path))
    yield from _opened(path for _, path in sorted(found, reverse=True)[:_MAX_EARLIER])


def _opened(places: Iterable[str]) -> Iterator[RecordIndex]:
    """The indexes at some places, where there are any."""
    for place in places:
        with contextlib.suppress(OSError, StaleIndexError):
            yield RecordIndex.open(place)


def _sweep(folder: str) -> None:
    """Remove what processes that were killed while they wrote an index left, long ago."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") and entry.name.endswith(TEMPORARY_SUFFIX):
                with contextlib.suppress(OSError):
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime > _ABANDONED_SECONDS:
                        os.unlink(entry.path)


def _make_writable(folder: str) -> bool:
    """Whether files can be made in a folder, which is made where it is missing."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


@contextlib.contextmanager
def _folder_lock(folder: str) -> Iterator[None]:
    """Let one process at a time in, where the file system can do that, or go on without after a long wait.

    Only work is saved by it: without the lock several processes build the same index and each renames its own into
    place. The folder itself is locked, because a lock file would have to stay behind in it.
    """
    descriptor = -1
    try:
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            _wait_for_lock(descriptor, folder)
        except OSError as error:
            logger.info("%s cannot be locked: %s", folder, error)
        yield
    finally:
        if descriptor >= 0:
            # Unlocked, not just closed: a process forked meanwhile holds the descriptor, too, and would keep the lock.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _wait_for_lock(descriptor: int, folder: str) -> None:
    began = time.monotonic()
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = time.monotonic() - began
        else:
            return
        if waited > _LOCK_SECONDS:
            logger.warning("%s is still locked by another process after %.0f s: going on without", folder, waited)
            return
        if waited > _QUIET_SECONDS and not told:
            told = True
            logger.warning("waiting for another process, which builds an index in %s or has locked it", folder)
        time.sleep(_POLL_SECONDS)
