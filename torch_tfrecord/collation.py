"""`collate`: the ``collate_fn`` that takes whole batches out of a data set, or makes them of single records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import default_collate

from torch_tfrecord.batch import Batch, Items, Row, Rows
from torch_tfrecord.ragged import Bytes, Ragged
from torch_tfrecord.schema import DecodeImage, DecodeRaw, FixedLenFeature, VarLenFeature


def collate(data: Any) -> Any:
    """Make a batch: the ``collate_fn`` for torch's ``DataLoader`` over a `TFRecordDataset`.

    Args:
        data: What the data set gave for a batch of indices, which costs nothing; or a list of its records, one by
            one, as ``ConcatDataset`` and transforms give them: then they are put together to the same columns.

    Returns:
        A `Batch`. For records that are ``bytes``, a `Bytes`; for what a function given as ``features`` made, a list;
        for tuples, lists or dicts that hold records, as ``StackDataset`` gives them, the same of `Batch`; for other
        things, such as the tuples of tensors of a transform, what ``default_collate`` makes of them.

    Raises:
        TypeError: ``data`` is a list of batches.
        KeyError: A column is not in all rows.
        RuntimeError: The tensors of a column that is no ragged one differ in shape.

    Example:
        >>> import torch, torch_tfrecord as tfr
        >>> dataset = tfr.TFRecordDataset("numbers.tfrecord", {"n": tfr.FixedLenFeature((), torch.int64)})
        >>> tfr.collate([dataset[1], dataset[5]])["n"]
        tensor([1, 5])
    """
    if isinstance(data, Rows):
        return data.batch
    if isinstance(data, Batch | Bytes | torch.Tensor) or not isinstance(data, list | tuple):
        return data
    if isinstance(data, Items):
        return list(data)
    rows = list(data)
    if rows and isinstance(rows[0], Batch):
        raise TypeError(
            "collate: these are whole batches, not records: a TFRecordIterableDataset makes them itself, so the "
            "DataLoader takes batch_size=None"
        )
    if rows and all(isinstance(row, Row) for row in rows):
        names = {name: None for row in rows for name in row}
        return _marked(Batch({name: _column(name, rows) for name in names}), rows)
    if rows and all(isinstance(row, bytes) for row in rows):
        return Bytes.from_list(rows)
    return _together(rows, "the records")


def _marked(batch: Batch, rows: list[Row]) -> Batch:
    ids = [row.record_id for row in rows]
    if None not in ids:
        batch.mark(record_ids=torch.tensor(ids, dtype=torch.int64, device="cpu"))
    if not all(row.valid for row in rows):
        batch.mark(valid=[row.valid for row in rows])
    return batch


def _together(items: list[Any], what: str) -> Any:
    """Items of any other kind: where they hold records, part by part, else as torch does it."""
    if items and _holds_records(items[0]):
        return collate(items) if isinstance(items[0], Row) else _parts(items)
    try:
        return default_collate(items)
    except RuntimeError as error:
        if "equal size" not in str(error):
            raise
        advice = "pad them in the transform, or return a dict in which they have the name of a VarLenFeature"
        raise RuntimeError(f"collate: tensors of {what} differ in shape ({error}); {advice}") from error


def _holds_records(item: Any) -> bool:
    if isinstance(item, Row):
        return True
    parts = item.values() if isinstance(item, Mapping) else item if isinstance(item, tuple | list) else ()
    return any(map(_holds_records, parts))


def _parts(items: list[Any]) -> Any:
    """Tuples, lists or dicts of several things: each thing collated by itself."""
    first = items[0]
    if isinstance(first, Mapping):
        if any(not isinstance(item, Mapping) or item.keys() != first.keys() for item in items):
            raise ValueError("collate: the dicts of a batch have different keys")
        return {name: collate([item[name] for item in items]) for name in first}
    if any(not isinstance(item, tuple | list) or len(item) != len(first) for item in items):
        raise ValueError("collate: the tuples of a batch differ in length")
    parts = [collate(list(part)) for part in zip(*items, strict=True)]
    return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)


def _column(name: str, rows: list[Row]) -> Any:
    try:
        values = [row[name] for row in rows]
    except KeyError as error:
        raise KeyError(f"collate: column {name!r} is in some rows of the batch, but not in all") from error
    spec = rows[0].specs.get(name)
    replaced = any(name in row.replaced for row in rows)
    if isinstance(spec, VarLenFeature):
        return _var_len(name, values)
    if isinstance(spec, FixedLenFeature) and spec.dtype is bytes and spec.decode is None:
        return _strings(name, values, spec.shape)
    if (
        _is_shapeless(spec) and not replaced
    ):  # a transform makes such values alike, to be stacked; the shapes never decide
        return _ragged(values)
    return _together(values, f"column {name!r}")


def _is_shapeless(spec: Any) -> bool:
    """Whether a column's rows differ in shape by their nature: images of any size, raw bytes of any length."""
    decode = spec.decode if isinstance(spec, FixedLenFeature) else None
    return (isinstance(decode, DecodeImage) and decode.size is None) or (
        isinstance(decode, DecodeRaw) and -1 in decode.shape
    )


def _var_len(name: str, values: list[Any]) -> Any:
    if all(isinstance(value, torch.Tensor) and value.dim() == 1 for value in values):
        return _ragged(values)
    if all(isinstance(value, list) for value in values):
        flat = [item for value in values for item in value]
        return Ragged(Bytes.from_list(flat), _offsets([len(value) for value in values]))
    return _together(values, f"column {name!r}")


def _strings(name: str, values: list[Any], shape: tuple[int, ...]) -> Any:
    flat = values
    for _ in shape:
        flat = [item for value in flat for item in value]
    if not all(isinstance(item, bytes) for item in flat):
        return _together(values, f"column {name!r}")
    column = Bytes.from_list(flat)
    return Bytes(column.values, column.offsets, shape, rows=len(values))


def _ragged(values: list[torch.Tensor]) -> Ragged:
    shapes = None
    if values[0].dim() != 1:
        shapes = torch.tensor([list(value.shape) for value in values], dtype=torch.int64, device="cpu")
    return Ragged(torch.cat([value.reshape(-1) for value in values]), _offsets([v.numel() for v in values]), shapes)


def _offsets(sizes: list[int]) -> torch.Tensor:
    return torch.tensor([0, *sizes], dtype=torch.int64, device="cpu").cumsum(0)
