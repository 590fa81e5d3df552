"""Reading raw records, one after another, in bounded memory."""

from __future__ import annotations

import io
import itertools
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from torch_tfrecord.faults import RecordFault
from torch_tfrecord.paths import Paths, expand_paths, open_descriptor, working_folder
from torch_tfrecord.record_file import FileReader, Reading

if TYPE_CHECKING:
    from collections.abc import Generator

    from typing_extensions import Self

    from torch_tfrecord.inflate import Kind

Verify: TypeAlias = Literal["none", "length", "all"]
OnError: TypeAlias = Literal["raise", "skip"]
Codec: TypeAlias = Literal["gzip", "zlib", "GZIP", "ZLIB"] | None
Compression: TypeAlias = Literal["auto"] | Codec

_VERIFY_LEVELS = {"none": 0, "length": 1, "all": 2}


def read_records(
    paths: Paths,
    *,
    compression: Compression = "auto",
    verify: Verify = "all",
    on_error: OnError = "raise",
    max_faults: int | None = None,
) -> RecordIterator:
    """Read the records of files in order, as bytes.

    Files are opened as they are reached. A pipe, or a file that still grows, is read as far as it goes.
    Memory is bounded by the largest record, however far a compressed file inflates.

    Args:
        paths: A path, a glob pattern, a directory (the files in it), ``name@N`` (its N shards), or a list of them. What
            exists is taken literally; names that start with ``.`` or ``_``, and indexes, are left out of the others.
        compression: ``"auto"`` tells by each file's content whether it is plain, gzip (of one or more members) or zlib.
            ``"gzip"``, ``"zlib"``, also in upper case, and None, which means plain, say what the files must be.
        verify: ``"all"`` checks both checksums of each record, ``"length"`` only that of its length, ``"none"`` only
            that records stay inside their file. A compressed stream's own checksum is always checked, at its end.
        on_error: ``"raise"``: damage raises, after all records before it, and ends the iterator. ``"skip"``: a record
            whose data checksum is wrong is left out; after a damaged length, or where a compressed file cannot be
            inflated, the rest of that file is left out, since nothing tells where the next record starts. What is left
            out is listed in ``faults`` and logged.
        max_faults: With ``"skip"``: more faults than this in all files raise all the same. None: any number may be left
            out.

    Returns:
        An iterator of the payloads.

    Raises:
        FileNotFoundError: Nothing is found for one of the paths.
        ValueError: An argument is none of its choices.

    Example:
        >>> import os, tempfile, torch_tfrecord as tfr
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "a.tfrecord")
        ...     with tfr.TFRecordWriter(path, compression="gzip") as writer:
        ...         writer.write(b"alpha")
        ...         writer.write(b"beta")
        ...     list(tfr.read_records(path))
        [b'alpha', b'beta']
    """
    told = compression if compression == "auto" else codec(compression, "'auto', 'gzip', 'zlib' or None")
    check_on_error(on_error)
    check_max_faults(max_faults, on_error)
    skip = on_error == "skip"
    return RecordIterator(
        expand_paths(paths), verify=verify_level(verify), skip=skip, compression=told, max_faults=max_faults
    )


def codec(compression: object, choices: str = "'gzip', 'zlib' or None") -> Kind | None:
    """The compression that a caller named, in lower case."""
    name: Any = compression.lower() if isinstance(compression, str) else compression
    if name not in ("gzip", "zlib", None):
        raise ValueError(f"compression must be {choices}, not {compression!r}")
    kind: Kind | None = name
    return kind


def check_max_faults(max_faults: int | None, on_error: str) -> None:
    """Raise ValueError unless it is None, or a number of faults and they are to be skipped."""
    if max_faults is None:
        return
    if on_error != "skip":
        raise ValueError('max_faults says how much may be skipped: it needs on_error="skip"')
    if isinstance(max_faults, bool) or not isinstance(max_faults, int) or max_faults < 0:
        raise ValueError(f"max_faults must be None or an integer, 0 or more, not {max_faults!r}")


def verify_level(verify: str) -> int:
    """The core's number for ``verify``."""
    if verify not in _VERIFY_LEVELS:
        raise ValueError(f"verify must be one of {', '.join(map(repr, _VERIFY_LEVELS))}, not {verify!r}")
    return _VERIFY_LEVELS[verify]


def check_on_error(on_error: str) -> None:
    """Raise ValueError unless it is one of its choices."""
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error must be 'raise' or 'skip', not {on_error!r}")


class RecordIterator:
    """Iterates over the payloads of records, as bytes. Made by ``read_records``.

    Attributes:
        faults: What was left out so far, in order; always empty with ``on_error="raise"``.
    """

    def __init__(
        self,
        paths: list[str],
        *,
        verify: int,
        skip: bool,
        compression: Literal["auto"] | Kind | None = "auto",
        max_faults: int | None = None,
    ) -> None:
        self.faults: list[RecordFault] = []
        self._paths = paths
        self._closed = False
        # Not a method's generator: it would refer back here, and a dropped iterator would keep its file open for long.
        reading = Reading(working_folder(paths), compression, verify, skip, max_faults, self.faults)
        self._pieces = _read_all(paths, reading)
        # Chained in C, because a Python frame for each record would cost more than reading it.
        self._payloads = itertools.chain.from_iterable(self._pieces)

    def __iter__(self) -> RecordIterator:
        return self

    def __next__(self) -> bytes:
        return next(self._payloads)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        files = f"{len(self._paths):,} file{'s' * (len(self._paths) != 1)}"
        more = ", ..." if len(self._paths) > 1 else ""
        left_out = f"; {len(self.faults):,} damaged places left out so far" if self.faults else ""
        state = "; closed" if self._closed else ""
        return f"RecordIterator(records of {files}: {self._paths[0]}{more}{left_out}{state})"

    def close(self) -> None:
        """Close the file that is open, if any, and end the iterator."""
        self._closed = True
        self._pieces.close()
        self._payloads = itertools.chain()


def _read_all(paths: list[str], reading: Reading) -> Generator[list[bytes], None, None]:
    for path in paths:
        with io.FileIO(open_descriptor(path, folder=reading.folder)) as file:
            yield from FileReader(path, file, reading).pieces()
