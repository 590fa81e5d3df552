"""From what a user writes for ``paths`` to a list of files, and opening one."""

from __future__ import annotations

import errno
import glob
import os
import re
import stat
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

StrPath: TypeAlias = "str | os.PathLike[str]"
Paths: TypeAlias = "StrPath | Iterable[StrPath]"

INDEX_SUFFIX = ".tfrindex"
_SIDE_FILE_SUFFIXES = (INDEX_SUFFIX, ".crc", ".idx", ".tfindex")
_SHARDED = re.compile(r"(?P<stem>.+)@(?P<count>[0-9]{1,9}|\*)(?P<suffix>\.[^@/]*)?", re.DOTALL)


def expand_paths(paths: Paths) -> list[str]:
    """List the files that ``paths`` stands for.

    Each path is, in this order: a path that exists, taken literally, where a directory stands for the files in it; a
    glob pattern (``**`` crosses directories); or a sharded name, where ``train@8`` stands for
    ``train-00000-of-00008`` and its seven brothers, ``train@*`` for as many as the files there say, and
    ``train@8.tfrecord`` for such names with that ending. Directories and globs are sorted by bytes, and skip what lies
    beside data: names that start with a dot or an underscore (``_SUCCESS``), ``.crc`` files and indexes.

    Args:
        paths: A path, or several. Order and repetitions are kept.

    Returns:
        Paths of files, at least one.

    Raises:
        FileNotFoundError: Nothing is found for one of the paths, or a shard of a sharded name is missing.
        ValueError: No paths are given.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("b.tfrecord", "a.tfrecord", "_SUCCESS"):
        ...         pathlib.Path(folder, name).touch()
        ...     [os.path.basename(path) for path in expand_paths(folder)]
        ['a.tfrecord', 'b.tfrecord']
    """
    several = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not several:
        raise ValueError("paths is empty: give a path, a glob pattern, name@N, or a list of them")
    files: list[str] = []
    for path in several:
        name: object = os.fspath(path)
        if not isinstance(name, str):
            raise TypeError(f"a path must be str or os.PathLike[str], not {type(name).__name__}: {name!r}")
        files.extend(_expand(name))
    return files


def open_descriptor(path: StrPath) -> int:
    """Open a file for reading and return its descriptor, which the caller closes.

    Raises:
        IsADirectoryError: The path is a directory.
        OSError: It cannot be opened; FileNotFoundError if it is missing.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IsADirectoryError(errno.EISDIR, "a directory stands where a TFRecord file is expected", os.fspath(path))
    return descriptor


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
        raise FileNotFoundError(errno.ENOENT, "no data file matches this pattern", name)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


def _files_in(directory: str) -> list[str]:
    with os.scandir(directory) as entries:
        files = _data_files(entry.path for entry in entries)
    if not files:
        raise FileNotFoundError(errno.ENOENT, "no data files in this directory (it is not searched deeper)", directory)
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
            raise FileNotFoundError(errno.ENOENT, f"shard {shard} of {total} is missing: {path}", name)
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
