"""`TFRecordDataset`: a map-style data set that decodes whole batches natively."""

from __future__ import annotations

import functools
import hashlib
import operator
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, overload

import numpy as np
import torch
from torch.utils.data import Dataset

from torch_tfrecord.collation import collate
from torch_tfrecord.drawing import Draw, Indices, SampledIndex, as_rows, draw_of
from torch_tfrecord.errors import StaleIndexError
from torch_tfrecord.faults import RecordFault, check_budget
from torch_tfrecord.index import RecordIndex
from torch_tfrecord.paths import Paths, expand_paths
from torch_tfrecord.reading import Ids, Located, Reader
from torch_tfrecord.recipe import Recipe
from torch_tfrecord.records import check_max_faults, check_on_error, verify_level

_NUMBERS_LIKE_A_MASK = (
    "select was given as many numbers as there are records, all of them 0 or 1, and takes them as the records 0 and 1: "
    "if a mask was meant, make it bool"
)
_NO_EPOCH = (
    "the transform takes a generator, but the indices carry no epoch, so it makes the same random choices in each one: "
    "sample with tfr.RecordSampler, or read through tfr.TFRecordLoader; "
    "torch's Subset forgets the epoch, TFRecordDataset.select does not"
)


class TFRecordDataset(Dataset[Any]):
    """Random access to the records of TFRecord files.

    Under torch's ``DataLoader`` a batch of indices is one native call: ``collate_fn=tfr.collate`` delivers its `Batch`;
    without it torch's own ``default_collate`` works too, row by row. The data set is stateless: workers of any start
    method, several threads, ``Subset``, ``ConcatDataset``, ``random_split`` and samplers may share it. It pickles to
    paths, specs and the index's path. ``torch.get_num_threads()`` native threads decode a batch, so one in each worker.

    Args:
        paths: A path, a glob, ``name@N``, a directory, or a list of them. A path that exists is taken literally; globs
            are sorted by bytes.
        features: Specs by column name; or None: records are ``bytes``; or a callable ``bytes -> Any``, for other
            protos.
        index: The files' `RecordIndex` or its path; it is refused if the data has changed. None: the index beside the
            data is used, or made and saved there (or in the user's cache directory).
        transform: Called with each record, a dict of tensors (or what ``features`` makes); what it returns is
            delivered. If it has a parameter ``generator``, it is given a ``torch.Generator`` that depends on seed,
            epoch and record alone, so that any number of workers makes the same random choices. Seed and epoch are
            those of the `RecordSampler` or loader, and 0 where there is none.
        batch_transform: Called with each `Batch` before its rows are looked at; with ``features=None`` or a callable:
            with the list of records.
        verify: "all": each record's checksum is checked when it is read; "length": only that of its length; "none".
        on_error: "raise"; or "skip": the index is made by reading everything, and damaged records are left out of it,
            so that the data set has only whole ones. ``faults`` lists what was left out.
        max_faults: With "skip": more faults than this in the files raise all the same. None: any number is left out.

    Compressed files (gzip or zlib, told by their content) are uncompressed into a temporary file without a name, as far
    as records are needed, once in each process that reads them. Where they are larger than 4 GiB together, or than the
    number of bytes in ``TORCH_TFRECORD_INFLATE_BYTES``, they can be read in order only, in little memory.

    Raises:
        FileNotFoundError: There is no such file.
        DataLossError: A file is damaged or no TFRecord file; or more than ``max_faults``; where the index is made.
        StaleIndexError: ``index`` does not describe the files.
        ValueError: ``features`` is empty, or an option unknown.

    Example:
        >>> import torch, torch_tfrecord as tfr
        >>> with tfr.TFRecordWriter("numbers.tfrecord") as writer:
        ...     writer.write_batch({"n": torch.arange(100)})
        >>> dataset = tfr.TFRecordDataset("numbers.tfrecord", {"n": tfr.FixedLenFeature((), torch.int64)})
        >>> len(dataset), dataset[-1]
        (100, {'n': tensor(99)})
        >>> loader = torch.utils.data.DataLoader(dataset, batch_size=4, collate_fn=tfr.collate)
        >>> next(iter(loader))["n"]
        tensor([0, 1, 2, 3])
    """

    def __init__(
        self,
        paths: Paths,
        features: Mapping[str, Any] | Callable[[bytes], Any] | None,
        *,
        index: RecordIndex | str | os.PathLike[str] | None = None,
        transform: Callable[..., Any] | None = None,
        batch_transform: Callable[[Any], Any] | None = None,
        verify: str = "all",
        on_error: str = "raise",
        max_faults: int | None = None,
    ) -> None:
        verify_level(verify)
        check_on_error(on_error)
        check_max_faults(max_faults, on_error)
        self._recipe = Recipe(features, transform, batch_transform)
        self.verify = verify
        self.index = _index_of(paths, index, on_error, max_faults)
        self._rows: range | Ids = range(len(self.index))
        self._reader = Reader(self.index, verify_level(verify))

    @property
    def features(self) -> dict[str, Any] | Callable[[bytes], Any] | None:
        """What is read of each record."""
        return self._recipe.features

    @property
    def faults(self) -> tuple[RecordFault, ...]:
        """What was left out of the files with ``on_error="skip"``: the index's list."""
        return self.index.faults

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: slice) -> TFRecordDataset: ...
    @overload
    def __getitem__(self, index: int | Indices) -> Any: ...

    def __getitem__(self, index: int | slice | Indices) -> Any:
        """Record ``index``, negative from the end.

        For a slice, a data set of those records over the same files; for a list of numbers, what `read_batch` gives.

        Raises:
            IndexError: There is no such record.
            DataLossError: The record's bytes are damaged.
            ParseError: The record does not fit the specs.
        """
        if isinstance(index, slice):
            return self._part(as_rows(self._rows[index]))
        if isinstance(index, list | tuple | np.ndarray | torch.Tensor) and np.ndim(index) == 1:
            return self.read_batch(index)
        drawn = index if isinstance(index, SampledIndex) else operator.index(index)  # type: ignore[arg-type]
        return self._recipe.items(self.locate([drawn]), draw_of([drawn]) or Draw())[0]

    def select(self, which: Indices) -> TFRecordDataset:
        """A data set of some of these records, over the same files.

        Args:
            which: Their places in this data set, in the order they are to have, negative from the end; a place that
                comes twice is a record that comes twice. Or a mask: ``bool[len(self)]``.

        Raises:
            IndexError: There is no such record, or a mask has another length.

        Example:
            >>> import torch, torch_tfrecord as tfr
            >>> dataset = tfr.TFRecordDataset("numbers.tfrecord", {"n": tfr.FixedLenFeature((), torch.int64)})
            >>> even = dataset.select(torch.arange(100) % 2 == 0)
            >>> len(even), even[-1]
            (50, {'n': tensor(98)})
        """
        if isinstance(which, range) and which and min(which[0], which[-1]) >= 0:  # without a list of its numbers
            self._ids([which[0], which[-1]])
            return self[which[0] : which[-1] + which.step if which[-1] + which.step >= 0 else None : which.step]
        chosen = np.asarray(which)
        if chosen.dtype == np.bool_:
            if chosen.shape != (len(self),):
                raise IndexError(f"a mask of shape {chosen.shape} for a data set of {len(self):,} records")
            chosen = np.flatnonzero(chosen)
        elif len(self) > 15 and chosen.shape == (len(self),) and ((chosen == 0) | (chosen == 1)).all():
            warnings.warn(_NUMBERS_LIKE_A_MASK, stacklevel=2)
        if chosen.ndim != 1:
            raise TypeError(f"select takes a list of numbers or a mask, not an array of shape {chosen.shape}")
        return self._part(as_rows(self._ids(chosen)))

    def _part(self, rows: range | Ids, reader: Reader | None = None) -> TFRecordDataset:
        part = object.__new__(type(self))
        part.__dict__.update(self.__dict__)
        part.__dict__.pop("fingerprint", None)
        part._rows = rows
        part._reader = reader or self._reader
        return part

    def for_pass(self) -> TFRecordDataset:
        """The same data set for one pass, which has a place of its own in files that can be read in order only."""
        reader = self._reader.for_pass()
        return self if reader is self._reader else self._part(self._rows, reader)

    def __iter__(self) -> Iterator[Any]:
        """The records in order, one by one: for looking at data. A ``DataLoader`` reads whole batches."""
        return (self[i] for i in range(len(self)))

    def __getitems__(self, indices: Indices) -> Any:
        """The records of a whole batch, in order: a `Rows` or a list. What ``DataLoader`` calls."""
        draw = draw_of(indices)
        if draw is None and self.wants_generator:
            warnings.warn(_NO_EPOCH, stacklevel=2)
        return self._recipe.items(self.locate(indices), draw or Draw())

    def read_batch(self, indices: Indices) -> Any:
        """One `Batch` of the records at ``indices``, without a ``DataLoader``.

        Example:
            >>> import torch, torch_tfrecord as tfr
            >>> dataset = tfr.TFRecordDataset("numbers.tfrecord", {"n": tfr.FixedLenFeature((), torch.int64)})
            >>> dataset.read_batch([7, 3, -1])["n"]
            tensor([ 7,  3, 99])
        """
        return collate(self._recipe.items(self.locate(indices), draw_of(indices) or Draw()))

    def locate(self, indices: Indices) -> Located:
        """Find the records at ``indices`` in their files, for the `recipe`."""
        return self._reader.locate(self._ids(indices))

    @property
    def recipe(self) -> Recipe:
        """What is made of records."""
        return self._recipe

    @property
    def wants_generator(self) -> bool:
        """Whether the transform takes a ``generator``."""
        return self._recipe.wants_generator

    @functools.cached_property
    def fingerprint(self) -> str:
        """32 hex digits that stand for the content of the records, and for which of them this data set has."""
        if isinstance(self._rows, range) and self._rows == range(len(self.index)):
            return self.index.fingerprint
        chosen = str(self._rows).encode() if isinstance(self._rows, range) else self._rows.tobytes()
        return hashlib.blake2b(self.index.fingerprint.encode() + chosen, digest_size=16).hexdigest()

    def _ids(self, indices: Indices) -> Ids:
        """Record ids of places in this data set, checked."""
        places = np.asarray(indices)
        if places.size and places.dtype.kind not in "iu":  # NumPy would cut 1.5 down to 1, and take a mask for numbers
            raise TypeError(f"records are read by integers, not {places.dtype}")
        places = places.reshape(-1)
        size = len(self._rows)
        if places.size and (places.min() < 0 or places.max() >= size):
            bad = (places < -size) | (places >= size)  # before uint64 numbers would wrap round
            if bad.any():
                raise IndexError(f"record {places[bad][0]} of a data set of {size:,} records")
            places = places.astype(np.int64)
            places = np.where(places < 0, places + size, places)
        places = places.astype(np.int64, copy=False)
        if not isinstance(self._rows, range):
            chosen: Ids = self._rows[places]
            return chosen
        if self._rows.start == 0 and self._rows.step == 1:
            return places
        return self._rows.start + self._rows.step * places

    def __getstate__(self) -> dict[str, Any]:
        # Open files belong to this process.
        return {name: value for name, value in self.__dict__.items() if name != "_reader"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reader = Reader(self.index, verify_level(self.verify))

    def __repr__(self) -> str:
        files = len(self.index.paths)
        return f"TFRecordDataset({len(self):,} records in {files:,} file{'s' * (files != 1)})"


def _index_of(
    paths: Paths, index: RecordIndex | str | os.PathLike[str] | None, on_error: str, max_faults: int | None
) -> RecordIndex:
    if index is None and on_error == "skip":
        return RecordIndex.load_or_build(paths, verify="all", on_error="skip", max_faults=max_faults)
    if index is None:
        return RecordIndex.load_or_build(paths)
    if not isinstance(index, RecordIndex):
        index = RecordIndex.open(index)
    if on_error == "skip" and index.verify_level != "all":
        advice = 'build it with RecordIndex.build(..., verify="all", on_error="skip"), or leave index= out'
        raise ValueError(f'on_error is "skip", but not all checksums were checked when the index was made: {advice}')
    wanted = [os.path.realpath(path) for path in expand_paths(paths)]
    found = index.real_paths()
    if wanted != found:
        at = next((i for i, pair in enumerate(zip(wanted, found, strict=False)) if pair[0] != pair[1]), None)
        what = f"{len(found)} files, not {len(wanted)}" if at is None else f"{found[at]} where paths give {wanted[at]}"
        raise StaleIndexError(f"the index is of other files than paths: it has {what}")
    check_budget(index.faults, max_faults)
    return index
