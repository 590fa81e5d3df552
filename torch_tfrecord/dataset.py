"""`TFRecordDataset`: a map-style data set that decodes whole batches natively."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, overload

import numpy as np
import torch
from torch.utils.data import Dataset

from torch_tfrecord.batch import Batch, Items, Row, Rows
from torch_tfrecord.collation import collate
from torch_tfrecord.decode import Frames, Origin, decode, read_payloads
from torch_tfrecord.errors import StaleIndexError
from torch_tfrecord.files import OpenFiles, limit
from torch_tfrecord.index import RecordIndex
from torch_tfrecord.paths import Paths, expand_paths
from torch_tfrecord.plan import Plan, compile_features, record_plan
from torch_tfrecord.records import check_on_error, verify_level

Ids: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Indices: TypeAlias = "Sequence[int] | np.ndarray[Any, Any] | torch.Tensor"


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
            delivered.
        batch_transform: Called with each `Batch` before its rows are looked at; with ``features=None`` or a callable:
            with the list of records.
        verify: "all": each record's checksum is checked when it is read; "length": only that of its length; "none".
        on_error: "raise"; or "skip": the index is made by reading everything, and damaged records are left out of it,
            so that the data set has only whole ones. ``index.faults`` lists what was left out.

    Raises:
        FileNotFoundError: There is no such file.
        DataLossError: A file is damaged or no TFRecord file; where the index is made.
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
        transform: Callable[[Any], Any] | None = None,
        batch_transform: Callable[[Any], Any] | None = None,
        verify: str = "all",
        on_error: str = "raise",
    ) -> None:
        verify_level(verify)
        check_on_error(on_error)
        if not (features is None or callable(features) or isinstance(features, Mapping)):
            raise TypeError(f"features is {features!r}, not a dict of specs, a callable or None")
        self.features = dict(features) if isinstance(features, Mapping) else features
        self.transform = transform
        self.batch_transform = batch_transform
        self.verify = verify
        self._plan = self._compile()
        self.index = _index_of(paths, index, on_error)
        self._rows = range(len(self.index))
        self._files = OpenFiles(self.index)

    def _compile(self) -> Plan:
        return compile_features(self.features) if isinstance(self.features, dict) else record_plan()

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
            view = object.__new__(type(self))
            view.__dict__.update(self.__dict__)
            view._rows = self._rows[index]
            return view
        if isinstance(index, list | tuple | np.ndarray | torch.Tensor) and np.ndim(index) == 1:
            return self.read_batch(index)
        return self.__getitems__([operator.index(index)])[0]  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        """The records in order, one by one: for looking at data. A ``DataLoader`` reads whole batches."""
        return (self[i] for i in range(len(self)))

    def __getitems__(self, indices: Indices) -> Any:
        """The records of a whole batch, in order: a `Rows` or a list. What ``DataLoader`` calls."""
        if not isinstance(self.features, dict):
            items: Any = self._payloads(self._ids(indices))
            if self.features is not None:
                items = Items(self.features(payload) for payload in items)
            if self.batch_transform is not None:
                items = self.batch_transform(items)
            return items if self.transform is None else [self.transform(item) for item in items]
        decoded = self._decoded(indices)
        if isinstance(decoded, torch.Tensor):  # by batch_transform; torch's default_collate stacks lists only
            return list(decoded) if self.transform is None else [self.transform(row) for row in decoded]
        rows = Rows(decoded, self.features)
        if self.transform is None:
            return rows
        return [_transformed(rows[i], self.transform) for i in range(len(rows))]

    def read_batch(self, indices: Indices) -> Any:
        """One `Batch` of the records at ``indices``, without a ``DataLoader``.

        Example:
            >>> import torch, torch_tfrecord as tfr
            >>> dataset = tfr.TFRecordDataset("numbers.tfrecord", {"n": tfr.FixedLenFeature((), torch.int64)})
            >>> dataset.read_batch([7, 3, -1])["n"]
            tensor([ 7,  3, 99])
        """
        return collate(self.__getitems__(indices))

    def _decoded(self, indices: Indices) -> Any:
        ids = self._ids(indices)
        batch: Any = decode(self._plan, self._frames(ids), self._origins(ids), ids)
        return batch if self.batch_transform is None else self.batch_transform(batch)

    def _payloads(self, ids: Ids) -> list[bytes]:
        records = self._frames(ids)
        return records if isinstance(records, list) else read_payloads(records, self._origins(ids))

    def _ids(self, indices: Indices) -> Ids:
        """Record ids of positions in this data set, checked."""
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
        if self._rows.start == 0 and self._rows.step == 1:
            return places
        return self._rows.start + self._rows.step * places

    def _frames(self, ids: Ids) -> Frames | list[bytes]:
        """Where records lie; or what they are, where not all their files may be open at once."""
        shards, offsets, lengths = self.index.locate(ids)
        verify = verify_level(self.verify)
        if shards is None or not shards.size or (shards == shards[0]).all():
            shard = 0 if shards is None or not shards.size else int(shards[0])
            files = [self._files.get(shard)] if ids.size else []
            return Frames(files, None, offsets, lengths, verify)
        used, file_of = np.unique(shards, return_inverse=True)
        if len(used) > limit():
            return self._in_turns(ids, file_of // limit())
        files = [self._files.get(int(shard)) for shard in used]
        return Frames(files, file_of.astype(np.int64, copy=False), offsets, lengths, verify)

    def _in_turns(self, ids: Ids, turns: Ids) -> list[bytes]:
        """Payloads of records that lie in more files than may be open at once."""
        payloads = [b""] * len(ids)
        for turn in range(int(turns.max()) + 1):
            rows = np.flatnonzero(turns == turn)
            for row, payload in zip(rows, self._payloads(ids[rows]), strict=True):
                payloads[row] = payload
        return payloads

    def _origins(self, ids: Ids) -> Callable[[int], Origin]:
        def origin(row: int) -> Origin:
            _, number = self.index.record_in_file(int(ids[row]))
            path, offset, _ = self.index[int(ids[row])]
            return Origin(number, path, offset, lambda: self._payloads(ids[row : row + 1])[0])

        return origin

    def __getstate__(self) -> dict[str, Any]:
        # What is open or compiled belongs to this process.
        return {name: value for name, value in self.__dict__.items() if name not in ("_plan", "_files")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._plan = self._compile()
        self._files = OpenFiles(self.index)

    def __repr__(self) -> str:
        files = len(self.index.paths)
        return f"TFRecordDataset({len(self):,} records in {files:,} file{'s' * (files != 1)})"


def _index_of(paths: Paths, index: RecordIndex | str | os.PathLike[str] | None, on_error: str) -> RecordIndex:
    if index is None and on_error == "skip":
        return RecordIndex.load_or_build(paths, verify="all", on_error="skip")
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
    return index


def _transformed(row: Any, transform: Callable[[Any], Any]) -> Any:
    """What a transform makes of a row. A dict keeps the specs of the columns for collate, and which are new."""
    before = dict(row) if isinstance(row, Row) else {}
    item = transform(row)
    if not isinstance(item, dict) or not isinstance(row, Row) or isinstance(item, Batch):
        return item
    return Row(item, row.specs, [name for name, value in item.items() if value is not before.get(name)])
