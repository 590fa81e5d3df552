"""Writing TFRecord files, so that a file under its final name is always whole."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import stat
import warnings
import weakref
import zlib
from typing import TYPE_CHECKING, Any

from torch_tfrecord.native import core
from torch_tfrecord.paths import NAME_PART, hint_of
from torch_tfrecord.records import Codec, codec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from typing_extensions import Buffer, Self

    from torch_tfrecord.native._core import EncodeColumn
    from torch_tfrecord.paths import StrPath

_BUFFER_BYTES = 1 << 20
_WINDOW_BITS = {"gzip": 31, "zlib": 15}  # zlib tells the formats by them
_MEMORY_LEVEL = 9  # the most: faster and smaller than zlib's own 8, for 128 KiB more
_COMPRESSED_NAMES = {".gz": "gzip", ".gzip": "gzip", ".zz": "zlib", ".zlib": "zlib", ".deflate": "zlib"}
_KINDS = {1: "bytes", 2: "float32", 3: "int64"}

logger = logging.getLogger(__name__)


class TFRecordWriter:
    """Writes records to a file that appears, whole, when the writer is closed.

    Until then the bytes are in a hidden file beside it. An exception inside the ``with`` block, a crash, or a writer
    that is dropped without ``close`` leaves no file under the final name, and an older file there as it was. A writer
    is for one thread at a time.

    A feature that is int64 in one record and float32 in another is read by no spec. So ``write_example`` and
    ``write_batch`` refuse to write a name with another kind than earlier records of this writer have; what ``write``
    is given is not looked at.

    Args:
        path: The file to make or to replace. A symbolic link is followed.
        compression: ``"gzip"`` or ``"zlib"``, also in upper case, to compress the file as a whole, at zlib's own level;
            None: plain.

    Attributes:
        num_records: Records written so far.
        num_bytes: Bytes of them so far, with their frames, uncompressed: of a plain file the size at last.

    Raises:
        FileNotFoundError: The directory is missing.
        IsADirectoryError: The path is a directory.
        ValueError: ``compression`` is none of its choices.

    Warns:
        UserWarning: The name ends as that of a compressed file (``.gz``, say), and ``compression`` is None.

    Example:
        >>> import os, tempfile, torch_tfrecord as tfr
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "train.tfrecord")
        ...     with tfr.TFRecordWriter(path) as writer:
        ...         writer.write(b"any bytes")
        ...         writer.write_example({"label": 3, "image": b"..."})
        ...         writer.write_batch({"label": [4, 5], "image": [b"...", b"..."]})
        ...     writer.num_records, os.path.getsize(path) == writer.num_bytes
        (4, True)
    """

    def __init__(self, path: StrPath, *, compression: Codec = None) -> None:
        kind = codec(compression)
        if kind is None:
            _warn_of_name(os.fspath(path))
        self._deflater = None if kind is None else zlib.compressobj(wbits=_WINDOW_BITS[kind], memLevel=_MEMORY_LEVEL)
        self.num_records = 0
        self.num_bytes = 0
        self._path = os.fspath(path)
        self._target = _target_of(self._path)
        self._buffer = bytearray()
        self._kinds: dict[bytes, int] = {}  # of each feature written so far, by name
        folder, name = os.path.split(self._target)
        # The name is cut, because a longer one could be too long for the file system.
        self._temporary = os.path.join(folder, f".{name[:NAME_PART]}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        self._failed = False
        self._descriptor = self._create()
        self._clean_up = weakref.finalize(
            self, _drop_unclosed, self._path, self._temporary, self._descriptor, os.getpid()
        )

    def write(self, record: Buffer | str) -> None:
        """Write a record: bytes-like as they are, str as UTF-8.

        Raises:
            OSError: It could not be written, for want of room, say; then the writer is closed, without a file.
            ValueError: The writer is closed.
            TypeError: The record is neither; a protobuf message is written as ``message.SerializeToString()``.
        """
        self._check_open()
        self._append(core.frame(_to_bytes(record)), 1)

    def write_example(self, features: Mapping[str | bytes, Any] | Mapping[str, Any]) -> None:
        """Write an ``Example`` of these features, as ``encode_example`` makes it.

        Raises:
            ValueError: The writer is closed, a value does not fit, or a feature has another kind than in an earlier
                record; nothing is written then.
            TypeError: A value that no feature can hold.
        """
        from torch_tfrecord.encode import example_columns  # noqa: PLC0415 - raw records need no NumPy

        self._check_open()
        self._write_columns(example_columns(features), 1)

    def write_batch(self, batch: Mapping[str | bytes, Any] | Mapping[str, Any]) -> None:
        """Write B ``Example`` records at once, from features that each hold B rows.

        Args:
            batch: By feature name an array or tensor ``[B, ...]``, a list of B values, a list of B lists or arrays of
                any lengths, or a ``Bytes`` or ``Ragged`` column of a batch. Every feature is written in every row.

        Raises:
            ValueError: The writer is closed, features differ in B, a value does not fit, or a feature has another kind
                than in an earlier record; nothing is written then.
            TypeError: A value that no feature can hold.
        """
        from torch_tfrecord.encode import encode_columns  # noqa: PLC0415

        self._check_open()
        columns, rows = encode_columns(batch)
        self._write_columns(columns, rows)

    def flush(self) -> None:
        """Hand what was written so far to the operating system. It is still under the hidden name.

        Of a compressed file too, all records so far can be read then; doing so often makes it larger.
        """
        self._check_open()
        self._drain(zlib.Z_SYNC_FLUSH)

    def close(self) -> None:
        """Finish the file and give it its final name. A second call does nothing.

        Raises:
            OSError: It could not be written, then nothing is left of it; or not get its final name, then it is kept
                whole under the name that the message gives.
        """
        if self._failed:
            raise OSError(errno.EIO, "the file was given up when a write failed", self._path)
        if not self._clean_up.alive:
            return
        self._drain(zlib.Z_FINISH)
        self._clean_up.detach()
        try:
            os.close(self._descriptor)  # some file systems find out only now that there is no room
        except BaseException as error:
            _remove(self._temporary)
            if isinstance(error, OSError):
                raise OSError(error.errno, error.strerror, self._path) from None
            raise
        try:
            os.replace(self._temporary, self._target)
        except OSError as error:
            kept = f"{error.strerror}; all records are in {self._temporary}"
            raise OSError(error.errno, kept, self._path) from None

    def discard(self) -> None:
        """Give up: close without a file. Does nothing after ``close``."""
        if self._clean_up.detach() is not None:
            os.close(self._descriptor)
            _remove(self._temporary)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __repr__(self) -> str:
        state = "open" if self._clean_up.alive else "closed"
        return f"TFRecordWriter({self._path!r}, {state}, {self.num_records:,} records, {self.num_bytes:,} bytes)"

    def _create(self) -> int:
        if _name_is_too_long(self._target):  # or close() would find it out, when all is written
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), self._path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(self._temporary, flags, 0o666)  # less the umask, as open() does
        except OSError as error:
            missing = error.errno == errno.ENOENT
            problem = hint_of(self._path) or "the directory to write in is missing" if missing else error.strerror
            raise OSError(error.errno, problem, self._path) from None

    def _check_open(self) -> None:
        if not self._clean_up.alive:
            raise ValueError(f"the writer of {self._path} is closed")

    def _write_columns(self, columns: list[EncodeColumn], rows: int) -> None:
        kinds = self._kinds
        fresh = []
        for column in columns:
            earlier = kinds.get(column[0])
            if earlier is None:
                fresh.append((column[0], column[1]))
            elif earlier != column[1]:
                raise ValueError(_conflict(column[0], earlier, column[1], self._path))
        frames, _ = core.encode_batch(columns, rows, True)
        self._append(frames, rows)
        kinds.update(fresh)  # not before, so that what is refused leaves no trace

    def _append(self, frames: bytes, records: int) -> None:
        if len(self._buffer) + len(frames) > _BUFFER_BYTES:
            self._drain(zlib.Z_NO_FLUSH)
        if len(frames) > _BUFFER_BYTES:
            self._write_out(frames, zlib.Z_NO_FLUSH)
        else:
            self._buffer += frames
        self.num_records += records
        self.num_bytes += len(frames)

    def _drain(self, flush: int) -> None:
        """Write out the buffer; ``flush`` is what zlib is to do with what it still holds then."""
        self._write_out(self._buffer, flush)
        self._buffer.clear()

    def _write_out(self, data: Buffer, flush: int) -> None:
        """Write to the file. A failure in the middle leaves half a record, so it ends the writer."""
        try:
            for piece in (data,) if self._deflater is None else self._deflate(self._deflater, data, flush):
                with memoryview(piece) as view:
                    written = 0
                    while written < len(view):
                        written += os.write(self._descriptor, view[written:])
        except BaseException as error:
            self._failed = True
            self.discard()
            if isinstance(error, OSError):
                raise OSError(error.errno, error.strerror, self._path) from None
            raise

    def _deflate(self, deflater: zlib._Compress, data: Buffer, flush: int) -> Iterator[bytes]:
        """Compress, a piece at a time, so that no copy of a whole large record is made."""
        with memoryview(data) as view:
            for begin in range(0, len(view), _BUFFER_BYTES):
                yield deflater.compress(view[begin : begin + _BUFFER_BYTES])
        if flush != zlib.Z_NO_FLUSH:
            yield deflater.flush(flush)


def _target_of(path: str) -> str:
    """Where the file goes in the end. What is neither a file nor free must not be replaced: a device, a pipe."""
    target = os.path.realpath(path)
    try:
        mode = os.stat(target).st_mode
    except OSError:
        return target  # free, or an error that creating will meet
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "a directory stands where a file is to be written", path)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "only a regular file can be written, not a device or a pipe", path)
    return target


def _warn_of_name(path: str) -> None:
    """Warn where a plain file is to get the name of a compressed one."""
    kind = _COMPRESSED_NAMES.get(os.path.splitext(path)[1].lower())
    if kind is not None:
        problem = f"{path} will be a plain file, whatever its name says"
        warnings.warn(f'{problem}: pass compression="{kind}" to compress it', stacklevel=3)


def _conflict(key: bytes, earlier: int, kind: int, path: str) -> str:
    """The message about a feature of two kinds."""
    if {earlier, kind} == {2, 3}:
        remedy = "make all of them floats with float(...) or np.float32, or all ints"
    else:
        remedy = "give them all as one kind, or under two names"
    return (
        f"feature {key.decode('utf-8', 'surrogateescape')!r} is {_KINDS[kind]} here and {_KINDS[earlier]} in earlier "
        f"records of {path}, and no spec reads both: {remedy}"
    )


def _name_is_too_long(path: str) -> bool:
    folder, name = os.path.split(path)
    try:
        return len(os.fsencode(name)) > os.pathconf(folder or os.curdir, "PC_NAME_MAX")
    except OSError:  # the folder is missing, which opening says better
        return False


def _to_bytes(record: Any) -> Buffer:
    if isinstance(record, bytes):
        return record
    if isinstance(record, str):
        return record.encode()
    try:
        view = memoryview(record)
    except TypeError:
        hint = ": write record.SerializeToString()" if hasattr(record, "SerializeToString") else ""
        raise TypeError(f"a record must be bytes-like or str, not {type(record).__name__}{hint}") from None
    return view.cast("B") if view.nbytes else b""


def _drop_unclosed(path: str, temporary: str, descriptor: int, process: int) -> None:
    """Clean up after a writer that was dropped. Static, for it must not keep the writer alive."""
    os.close(descriptor)
    if os.getpid() != process:  # a fork: the file is the parent's
        return
    _remove(temporary)
    problem = f"the writer of {path} was dropped without close(), and so was its file"
    logger.warning(problem)  # Python does not show a ResourceWarning unless it is asked to
    warnings.warn(problem, ResourceWarning, stacklevel=2)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
