"""From what a user writes for ``paths`` to a list of files, and opening one."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
import stat
from collections.abc import Iterable
from typing import TypeAlias

StrPath: TypeAlias = "str | os.PathLike[str]"
Paths: TypeAlias = "StrPath | Iterable[StrPath]"

NAME_PART = 40  # characters of a name that go into the name of its temporary file, which must not be too long
INDEX_SUFFIX = ".tfrindex"
_SIDE_FILE_SUFFIXES = (INDEX_SUFFIX, ".crc", ".idx", ".tfindex")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_SHARDED = re.compile(r"(?P<stem>.+)@(?P<count>[0-9]{1,9}|\*)(?P<suffix>\.[^@/]*)?", re.DOTALL)


def expand_paths(paths: Paths) -> list[str]:
    """List the files that ``paths`` stands for.

    Each path is, in this order: a path that exists, taken literally, where a directory stands for the files in it; a
    glob pattern (``**`` crosses directories); or a sharded name, where ``train@8`` stands for
    ``train-00000-of-00008`` and the seven shards that follow it, ``train@*`` for as many as the files there say, and
    ``train@8.tfrecord`` for such names with that ending. Directories and globs are sorted by bytes, and skip what lies
    beside data: names that start with a dot or an underscore (``_SUCCESS``), ``.crc`` files and indexes.

    Args:
        paths: A path, or several. Order and repetitions are kept.

    Returns:
        Paths of files, at least one.

    Raises:
        FileNotFoundError: Nothing is found for one of the paths, or a shard of a sharded name is missing.
        TypeError: A path is neither str nor os.PathLike[str].
        ValueError: No paths are given.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("b.tfrecord", "a.tfrecord", "_SUCCESS"):
        ...         pathlib.Path(folder, name).touch()
        ...     [os.path.basename(path) for path in expand_paths(folder)]
        ['a.tfrecord', 'b.tfrecord']
    """
    several = _listed(paths)
    if not several:
        raise ValueError("paths is empty: give a path, a glob pattern, name@N, or a list of them")
    files: list[str] = []
    for path in several:
        name = _as_str(path)
        try:
            files.extend(_expand(name))
        except FileNotFoundError:
            hint = hint_of(name)
            if hint is None:
                raise
            raise FileNotFoundError(errno.ENOENT, hint, name) from None
    return files


def hint_of(name: str) -> str | None:
    """Why a path that was not found can not be found, where its spelling tells."""
    if _URL.match(name):
        return "only local and mounted files can be used, no URLs: copy the file, or mount its store"
    if name.startswith("~"):
        return "~ is not expanded: use os.path.expanduser"
    return None


def working_folder(paths: Iterable[str]) -> str:
    """What relative paths start from now, to be remembered where files are opened later; "" where none is relative."""
    return "" if all(map(os.path.isabs, paths)) else os.getcwd()


def open_descriptor(path: StrPath, *, folder: str = "") -> int:
    """Open a file for reading and return its descriptor, which the caller closes.

    Args:
        path: The file, as errors name it.
        folder: What a relative path starts from; "": the working directory.

    Raises:
        IsADirectoryError: The path is a directory.
        OSError: It cannot be opened; FileNotFoundError if it is missing.
    """
    try:
        descriptor = os.open(os.path.join(folder, path), os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IsADirectoryError(errno.EISDIR, "a directory stands where a TFRecord file is expected", os.fspath(path))
    return descriptor


def _listed(paths: object) -> list[object]:
    if isinstance(paths, (str, bytes, os.PathLike)):
        return [paths]
    if isinstance(paths, Iterable):
        return list(paths)
    raise TypeError(f"paths must be a path, a glob pattern, name@N, or a list of them, not {paths!r:.80}")


def _as_str(path: object) -> str:
    name: object = os.fspath(path) if isinstance(path, os.PathLike) else path
    if isinstance(name, str):
        return name
    hint = ": os.fsdecode makes a str of it" if isinstance(name, bytes) else ""
    raise TypeError(f"a path must be str or os.PathLike[str], not {type(name).__name__} {name!r:.80}{hint}")


def _expand(name: str) -> list[str]:
    if os.path.isdir(name):
        return _files_in(name)
    if os.path.lexists(name):
        return [name]
    if glob.has_magic(name):
        wants_side_files = _is_side_file(os.path.basename(name))
        matches = _data_files(glob.iglob(name, recursive=True), side_files=wants_side_files)
        if matches:
            return matches
    sharded = _SHARDED.fullmatch(name)
    if sharded is not None:
        return _shards(name, sharded["stem"], sharded["count"], sharded["suffix"] or "")
    if glob.has_magic(name):
        raise _missing("no data file matches this pattern", name, name)
    raise _missing(os.strerror(errno.ENOENT), name, _as_pattern(name))


def _missing(problem: str, name: str, pattern: str) -> FileNotFoundError:
    """The error for a file that is not there; it says so where a writer of a file of this pattern has not finished."""
    folder, base = os.path.split(pattern)
    unfinished: list[str] = []
    with contextlib.suppress(OSError, ValueError):
        unfinished = glob.glob(os.path.join(folder, f".{base}.*-????????.tmp"))
    if unfinished:
        problem += f" (a writer is not closed yet, or was killed: {min(unfinished)})"
    return FileNotFoundError(errno.ENOENT, problem, name)


def _as_pattern(path: str) -> str:
    """A pattern for what a writer of this path names its unfinished file by."""
    folder, base = os.path.split(path)
    return os.path.join(glob.escape(folder), glob.escape(base[:NAME_PART]))


def _files_in(directory: str) -> list[str]:
    with os.scandir(directory) as entries:
        files = _data_files(entry.path for entry in entries)
    if not files:
        pattern = os.path.join(glob.escape(directory), "*")
        raise _missing("no data files in this directory (it is not searched deeper)", directory, pattern)
    return files


def _data_files(paths: Iterable[str], *, side_files: bool = False) -> list[str]:
    """Those that are no directories and, unless asked for, no side files; sorted by bytes."""
    files = (path for path in paths if side_files or not _is_side_file(os.path.basename(path)))
    return sorted((path for path in files if not os.path.isdir(path)), key=os.fsencode)


def _is_side_file(name: str) -> bool:
    return name.startswith((".", "_")) or name.endswith(_SIDE_FILE_SUFFIXES)


def _shards(name: str, stem: str, count: str, suffix: str) -> list[str]:
    """The files of ``stem@count``. The number of shards is the one in the names where ``count`` is a star."""
    if count == "*":
        found = _shard_counts(stem, suffix)
        if len(found) != 1:
            problem = f"shards of several sets, of {sorted(found)}: say which" if found else "no shards of this name"
            raise FileNotFoundError(errno.ENOENT, problem, name)
        total = found.pop()
    else:
        total = int(count)
    files = []
    for shard in range(total):
        path = f"{stem}-{shard:05d}-of-{total:05d}{suffix}"
        if not os.path.exists(path):
            problem = f"shard {shard} of {total} is missing: {path}"
            if count == "*":
                problem += f" (for those that are there: {glob.escape(stem)}-*-of-{total:05d}{glob.escape(suffix)})"
            raise _missing(problem, name, _as_pattern(path))
        files.append(path)
    if not files:
        raise FileNotFoundError(errno.ENOENT, "a sharded name needs at least one shard", name)
    return files


def _shard_counts(stem: str, suffix: str) -> set[int]:
    name = re.compile(re.escape(os.path.basename(stem)) + r"-[0-9]{5,}-of-([0-9]{5,9})" + re.escape(suffix), re.DOTALL)
    try:
        names = os.listdir(os.path.dirname(stem) or os.curdir)
    except OSError:
        return set()
    return {int(match[1]) for match in map(name.fullmatch, names) if match}
