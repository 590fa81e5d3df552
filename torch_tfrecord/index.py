"""``RecordIndex``: where each record of a data set lies, so that any record can be read at once."""

from __future__ import annotations

import bisect
import dataclasses
import errno
import functools
import hashlib
import itertools
import operator
import os
import struct
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from torch_tfrecord.errors import StaleIndexError
from torch_tfrecord.faults import RecordFault
from torch_tfrecord.index_arrays import problem_of
from torch_tfrecord.index_build import IndexVerify, build_data
from torch_tfrecord.index_check import change_of, verify_shards
from torch_tfrecord.index_data import IndexData, Shard
from torch_tfrecord.index_file import read_index_file, write_index_file
from torch_tfrecord.index_scan import ShardScan, naming, open_shard
from torch_tfrecord.paths import Paths, StrPath, working_folder
from torch_tfrecord.records import OnError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch_tfrecord.native import core
    from torch_tfrecord.native._core import Int64s
    from torch_tfrecord.progress import Progress

Named = TypeVar("Named", Shard, RecordFault)


class RecordLocation(NamedTuple):
    """Where a record lies.

    Attributes:
        path: The file.
        offset: Byte offset of the record's frame in it; in a compressed file, in what that is uncompressed.
        length: Bytes of the record's payload, which starts 12 bytes after ``offset``.
    """

    path: str
    offset: int
    length: int


class RecordIndex:
    """Where each record of some TFRecord files lies. Made by ``build``, ``open`` or ``load_or_build``.

    ``len(index)`` is the number of records over all files, and ``index[i]`` the place of one, in file order. Opening is
    quick however many records there are, and processes that open the same large file share its memory. Such a file may
    be replaced while it is in use, as ``save`` does, but must not be written to in place. Another size of it is noticed
    and raises StaleIndexError; but a file that is cut short in the very instant of a look into it ends the process.

    Attributes:
        paths: The data files ("shards"), in order.
        offsets: int64[records], byte offset of each record's frame in its file, or in what a compressed one is
            uncompressed. Read-only, as are the other arrays.
        lengths: int64[records], bytes of each record's payload.
        shard_sizes: int64[shards], records of each file.
        shard_bytes: int64[shards], bytes of each file.
        shard_times: When each file was last modified, in nanoseconds, when it was scanned. A hint: copies may differ.
        shard_compression: Of each file ``"none"``, ``"gzip"`` or ``"zlib"``.
        shard_stream_bytes: int64[shards], bytes that offsets count in: those of the file, or, where it is compressed,
            of what it is uncompressed.
        num_bytes: Bytes of all files together.
        faults: What was left out when the index was built with ``on_error="skip"``.
        verify_level: What was checked then: ``"length"`` or ``"all"``.
        file: The index file it was opened from or saved to last, or None.
        fingerprint: 32 hex digits that stand for the content: sizes of files, lengths of records, sampled checksums;
            not for names, places or times of files.

    Example:
        >>> import os, tempfile, torch_tfrecord as tfr
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "a.tfrecord")
        ...     with tfr.TFRecordWriter(path) as writer:
        ...         writer.write(b"alpha")
        ...         writer.write(b"beta")
        ...     index = tfr.RecordIndex.build(path)
        ...     index.save(os.path.join(folder, "a.tfrindex"))
        >>> len(index), index[1].offset, index[1].length
        (2, 21, 4)
    """

    def __init__(self, data: IndexData, file: str | None = None) -> None:
        self.paths = tuple(shard.path for shard in data.shards)
        self.shard_sizes = _read_only(np.array([shard.records for shard in data.shards], np.int64))
        self.shard_bytes = _read_only(np.array([shard.size for shard in data.shards], np.int64))
        self.shard_compression = tuple(shard.compression for shard in data.shards)
        self.shard_stream_bytes = _read_only(np.array([shard.stream_bytes for shard in data.shards], np.int64))
        self.num_bytes = sum(shard.size for shard in data.shards)
        self.faults = tuple(itertools.chain.from_iterable(data.faults))
        self.verify_level = data.verify
        self.file = file
        self._data = data
        self._offsets = _read_only(data.offsets)
        self._lengths = _read_only(data.lengths)
        self.shard_times = tuple(shard.mtime_ns for shard in data.shards)
        self._sound: set[int] = set()  # shards whose offsets and lengths have been checked
        self._folder = working_folder(self.paths)
        self._starts: list[int] = [0, *np.cumsum(self.shard_sizes).tolist()]  # first record of each shard, and the end
        self._ends = np.array(self._starts[1:], np.int64)

    @classmethod
    def build(
        cls,
        paths: Paths,
        *,
        verify: IndexVerify = "length",
        on_error: OnError = "raise",
        max_faults: int | None = None,
        progress: Progress = False,
    ) -> RecordIndex:
        """Scan files, several at a time. Compressed ones are told by their content, and read as a whole.

        Args:
            paths: A path, a glob pattern, a directory (the files in it), ``name@N`` (its N shards), or a list of them.
                What exists is taken literally; names that start with ``.`` or ``_``, and indexes, are left out of the
                others.
            verify: ``"length"`` checks the checksum of each record's length and that its file reaches to its end,
                without reading payloads; ``"all"`` reads all and checks their checksums too.
            on_error: ``"raise"``, or ``"skip"`` to leave damage out as ``read_records`` does, listed in ``faults``.
            max_faults: With ``"skip"``: more faults than this raise all the same. None: any number is left out.
            progress: Whether to show progress on a terminal; or a function of (bytes done, bytes in total).

        Raises:
            DataLossError: The first damage in file order; or more than ``max_faults``.
            FileNotFoundError: Nothing is found for one of the paths.
        """
        return cls(build_data(paths, verify=verify, on_error=on_error, max_faults=max_faults, progress=progress))

    @classmethod
    def open(cls, path: StrPath) -> RecordIndex:
        """Open an index file. The data files are not looked at.

        Raises:
            StaleIndexError: It is no index file, damaged, or of another version.
            FileNotFoundError: It is missing.
            OSError: It cannot be read, or is a directory, a pipe or a device.
        """
        return cls(read_index_file(path), os.path.abspath(path))

    @classmethod
    def load_or_build(
        cls,
        paths: Paths,
        *,
        verify: IndexVerify = "length",
        on_error: OnError = "raise",
        max_faults: int | None = None,
        progress: Progress = False,
    ) -> RecordIndex:
        """The index of a data set: the one kept from an earlier time if it still fits, else a new one, which is kept.

        It is kept in a hidden file beside the first data file, or, where that place cannot be written, in
        ``torch_tfrecord`` in the user's cache directory; one for each choice of ``verify`` and ``on_error``. It fits if
        it is whole and the data files have the sizes, times and sampled checksums that they had. Files that an index
        kept there knows are not scanned again when others were added, removed or replaced. Processes that start
        together wait for one to build it. The arguments are those of ``build``.
        """
        from torch_tfrecord.index_cache import load_or_build  # noqa: PLC0415 - it imports this module

        return load_or_build(paths, verify=verify, on_error=on_error, max_faults=max_faults, progress=progress)

    def save(self, path: StrPath) -> None:
        """Write an index file, in one step: others see the old file or the new one.

        Data files beside or below it are named relative to it, so that they can be moved together.

        Raises:
            ValueError: The path is one of the data files, or another file that is no index: these are not replaced.
            OSError: It cannot be written; FileNotFoundError where its directory is missing.
        """
        self._check_mapped()
        write_index_file(path, self._absolute_data())
        self.file = os.path.abspath(path)

    @functools.cached_property
    def fingerprint(self) -> str:
        """32 hex digits that stand for the content of the data files."""
        state = hashlib.blake2b(b"torch_tfrecord index 1", digest_size=16)
        for shard in self._data.shards:
            state.update(struct.pack("<QQ", shard.stream_bytes, shard.records))
            state.update(bytes.fromhex(shard.lengths_digest))
            state.update(struct.pack(f"<{len(shard.samples)}I", *shard.samples))
        return state.hexdigest()

    @property
    def offsets(self) -> Int64s:
        """int64[records], byte offset of each record's frame in its file."""
        self._check_mapped()
        return self._offsets

    @property
    def lengths(self) -> Int64s:
        """int64[records], bytes of each record's payload."""
        self._check_mapped()
        return self._lengths

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, record: int) -> RecordLocation:
        number, shard = self._find(record)
        self._check_mapped()
        return RecordLocation(self.paths[shard], int(self._offsets[number]), int(self._lengths[number]))

    def _find(self, record: int) -> tuple[int, int]:
        """The number of a record counted from 0, and of its shard."""
        number = operator.index(record)
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise IndexError(f"record {record} of an index of {len(self):,} records")
        return number, bisect.bisect_right(self._starts, number) - 1

    def faults_in(self, shard: int) -> Sequence[RecordFault]:
        """What was left out of one file, in file order: the part of ``faults`` that belongs to it."""
        return self._data.faults[shard]

    def records_in(self, shard: int) -> range:
        """The numbers of the records of one file."""
        return range(self._starts[shard], self._starts[shard + 1])

    def scan_of(self, shard: int, path: str) -> ShardScan:
        """What the scan of one file found, as of a file with this path: for another index."""
        offsets, lengths = self._sound_arrays(shard)
        faults = [dataclasses.replace(fault, path=path) for fault in self.faults_in(shard)]
        return ShardScan(dataclasses.replace(self._data.shards[shard], path=path), offsets, lengths, faults, [])

    def record_in_file(self, record: int) -> tuple[int, int]:
        """Where a record stands among all records of its file.

        Args:
            record: Record number in the index; negative from the end.

        Returns:
            The number of its file in ``paths``, and its number in that file, counting those that were left out.

        Raises:
            IndexError: There is no such record.
        """
        number, shard = self._find(record)
        faults = self.faults_in(shard)
        offset = self[number].offset if faults else 0
        before = bisect.bisect_left(faults, offset, key=operator.attrgetter("offset"))
        left_out = sum(fault.reason == "data_crc" for fault in faults[:before])  # other faults are no records
        return shard, number - self._starts[shard] + left_out

    def locate(self, ids: Int64s) -> tuple[Int64s | None, Int64s, Int64s]:
        """Where some records lie, as the core wants it.

        Args:
            ids: int64[n], record numbers in [0, len(index)).

        Returns:
            int64[n] shard numbers (None where there is one shard), int64[n] offsets, int64[n] lengths.

        Raises:
            IndexError: A number is too large.
            StaleIndexError: The index file was cut short or written to while it was in use.
        """
        self._check_mapped()
        offsets = self._offsets.take(ids)
        lengths = self._lengths.take(ids)
        shards = None if len(self.paths) == 1 else self._ends.searchsorted(ids, "right")
        return shards, offsets, lengths

    def open_shard(self, shard: int) -> core.File:
        """Open a data file, wherever the working directory is now, and check it as ``check_shard`` does.

        What is read from it are its bytes as they are, compressed or not.

        Raises:
            FileNotFoundError: It is gone.
            StaleIndexError: It is not the file that was scanned.
        """
        file = open_shard(self.paths[shard], folder=self._folder)
        self.check_shard(shard, file)
        return file

    def real_paths(self) -> list[str]:
        """The data files without links, wherever the working directory is now."""
        return [os.path.realpath(os.path.join(self._folder, path)) for path in self.paths]

    def check_shard(self, shard: int, file: core.File) -> None:
        """Check cheaply that an open data file is still the one that was scanned: by its size and samples.

        The first time, what the index says of that file is checked, too: its checksum, and that all records lie inside.

        Raises:
            StaleIndexError: It is not, or the index is damaged.
        """
        with naming(self.paths[shard]):
            offsets, lengths = self._sound_arrays(shard)
            change = change_of(file, self._data.shards[shard], offsets, lengths, self.faults_in(shard))
        if change is not None:
            raise self._stale(shard, change)

    def verify(self, *, progress: Progress = False) -> None:
        """Read all data files and check every checksum, and that records lie where the index says.

        Damage that ``faults`` lists is known and passes. An index may have some of a file's records only, as one has
        that ``tfrecord-index convert`` made of such an index.

        Raises:
            DataLossError: The first damage, in file order.
            StaleIndexError: A file does not hold the records that the index says, or the index is damaged.
        """
        for shard in range(len(self.paths)):
            self._sound_arrays(shard)
        shards = self._absolute_data().shards
        found = verify_shards(shards, self._data.faults, self._sound_arrays, progress=progress)
        if found is not None:
            raise self._stale(*found)

    def __repr__(self) -> str:
        shards = f"{len(self.paths):,} file{'s' * (len(self.paths) != 1)}"
        more = ", ..." if len(self.paths) > 1 else ""
        return f"RecordIndex({len(self):,} records in {shards}, {self.num_bytes:,} bytes: {self.paths[0]}{more})"

    def __reduce__(self) -> tuple[Callable[..., RecordIndex], tuple[Any, ...]]:
        if self.file is not None:
            return _open_pickled, (self.file, self.fingerprint)
        return RecordIndex, (self._absolute_data(),)

    def _absolute_data(self) -> IndexData:
        """The same with paths that hold in any working directory."""
        if not self._folder:
            return self._data

        def absolute(item: Named) -> Named:
            return dataclasses.replace(item, path=os.path.join(self._folder, item.path))

        shards = list(map(absolute, self._data.shards))
        faults = [list(map(absolute, of_shard)) for of_shard in self._data.faults]
        return dataclasses.replace(self._data, shards=shards, faults=faults)

    def _check_mapped(self) -> None:
        """Before the arrays are touched: raise StaleIndexError if the file behind them was cut short."""
        if self._data.mapped is not None:
            self._data.mapped.check()

    def _sound_arrays(self, shard: int) -> tuple[Int64s, Int64s]:
        """The offsets and lengths of a shard, checked once."""
        records = slice(self._starts[shard], self._starts[shard + 1])
        offsets, lengths = self.offsets[records], self.lengths[records]
        if shard not in self._sound:
            expected = self._data.shards[shard]
            problem = problem_of(offsets, lengths, checksums=expected.checksums, size=expected.stream_bytes)
            if problem is not None:
                index = "an index in memory" if self.file is None else self.file
                raise StaleIndexError(
                    f"{index}: damaged index file: {problem} (of {self.paths[shard]}): build the index again"
                )
            self._sound.add(shard)
        return offsets, lengths

    def _stale(self, shard: int, problem: str) -> StaleIndexError:
        index = "its index" if self.file is None else f"its index {self.file}"
        return StaleIndexError(f"{self.paths[shard]}: the file {problem} when {index} was built: build the index again")


def _open_pickled(file: str, fingerprint: str) -> RecordIndex:
    """Undo the pickling of an index that is in a file."""
    try:
        index = RecordIndex.open(file)
    except FileNotFoundError:
        raise FileNotFoundError(
            errno.ENOENT, "the index file that a pickled RecordIndex names is missing", file
        ) from None
    if index.fingerprint != fingerprint:
        raise StaleIndexError(f"{file}: the index was built anew, of changed data, since it was pickled")
    return index


def _read_only(array: Int64s) -> Int64s:
    view: Int64s = array.view()
    view.flags.writeable = False
    return view
