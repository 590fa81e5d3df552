"""`Batch`: a dict of columns over one block of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from torch_tfrecord.layout import Layout
from torch_tfrecord.ragged import Bytes, Ragged, own_memory, refuse_dtype


class Batch(dict[str, Any]):
    """The columns of a batch by name: tensors ``[rows, ...]``, `Ragged` or `Bytes`.

    An ordinary ``dict`` for every consumer, so ``len`` counts columns; ``num_records`` counts rows. As made by a data
    set, all columns are views of one block of memory (the arena): pinning it, sending it to another process or
    copying it to a device is one operation. A column that is replaced or added is an ordinary tensor beside them.

    A view keeps the whole arena alive, and ``torch.save`` of a view writes all of it. To keep or save some columns of
    many batches use ``batch.compact("label")``, or ``batch["label"].clone()``.

    Attributes:
        num_defaulted: Values of (record, column) that a ``default_value`` replaced.
        num_duplicates: Map entries that a later entry of the same name replaced, as protobuf's rules say.

    Example:
        >>> import torch, torch_tfrecord as tfr
        >>> records = [tfr.encode_example({"label": i}) for i in range(3)]
        >>> batch = tfr.parse_example(records, {"label": tfr.FixedLenFeature((), torch.int64)})
        >>> batch["label"], batch.num_records, batch.record_ids
        (tensor([0, 1, 2]), 3, tensor([0, 1, 2]))
    """

    __slots__ = ("_arena", "_layout", "_record_ids", "_valid", "_views", "num_defaulted", "num_duplicates")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._arena: torch.Tensor | None = None
        self._layout: Layout | None = None
        self._views: list[Any] = []
        self._record_ids: torch.Tensor | None = None
        self._valid: torch.Tensor | None = None
        self.num_defaulted = 0
        self.num_duplicates = 0
        source = args[0] if args else None
        if isinstance(source, Batch):
            self._copy_marks(source)

    @classmethod
    def from_arena(cls, arena: torch.Tensor, layout: Layout, num_defaulted: int = 0, num_duplicates: int = 0) -> Batch:
        """A batch whose columns are views of ``arena``, as ``layout`` places them."""
        batch = cls()
        batch._arena = arena
        batch._layout = layout
        batch._views = layout.views(arena)
        batch.update(zip(layout.names, batch._views, strict=True))
        batch.num_defaulted = num_defaulted
        batch.num_duplicates = num_duplicates
        return batch

    @property
    def num_records(self) -> int:
        """Rows. For a batch made from a plain mapping: of its first column that has a length."""
        if self._layout is not None:
            return self._layout.rows
        for value in self.values():
            if hasattr(value, "__len__") and not (isinstance(value, torch.Tensor) and value.dim() == 0):
                return len(value)
        return 0

    @property
    def record_ids(self) -> torch.Tensor | None:
        """``int64[rows]``: the number of each row's record in the data set's index, or in the list it was parsed from.

        None for a batch made from a mapping.
        """
        if self._record_ids is None and self._arena is not None and self._layout is not None:
            self._record_ids = self._layout.record_ids(self._arena)
        return self._record_ids

    @property
    def valid(self) -> torch.Tensor:
        """``bool[rows]``: False where a row only pads the batch."""
        if self._valid is None:
            ids = self.record_ids
            self._valid = torch.ones(self.num_records, dtype=torch.bool, device="cpu" if ids is None else ids.device)
        return self._valid

    def mark(self, *, record_ids: torch.Tensor | None = None, valid: Any = None) -> None:
        """Say which records the rows are, and which rows only pad: arrays of one item a row, or None for no news."""
        if record_ids is not None:
            self._record_ids = record_ids
        if valid is not None:
            self._valid = torch.as_tensor(valid, dtype=torch.bool, device="cpu")

    @property
    def lengths(self) -> dict[str, torch.Tensor]:
        """``int64[rows]`` for each `Ragged` column: the number of values in each row."""
        return {name: column.lengths for name, column in self.items() if isinstance(column, Ragged)}

    def row(self, index: int) -> dict[str, Any]:
        """One record's values by name; tensors are views."""
        return {name: column[index] for name, column in self.items()}

    def to(self, device: Any = None, *args: Any, **kwargs: Any) -> Batch:
        """Copy to a device, in one operation for all columns of the arena; arguments as for ``torch.Tensor.to``.

        Args:
            device: Where to; a dtype is refused, since columns differ in theirs.
            *args: Further arguments of ``torch.Tensor.to``.
            **kwargs: Further arguments of ``torch.Tensor.to``, ``non_blocking`` say.

        Raises:
            TypeError: A dtype, or a tensor to take it from, was given.
        """
        refuse_dtype((device, *args, *kwargs.values()))
        if device is None:
            return self._map(lambda value: value.to(*args, **kwargs))
        return self._map(lambda value: value.to(device, *args, **kwargs))

    def pin_memory(self) -> Batch:
        """Copy to page-locked memory, in one operation for all columns of the arena."""
        return self._map(lambda value: value.pin_memory())

    def compact(self, *names: str) -> Batch:
        """A batch of some columns (all, without names), whose memory is their own and does not keep this one's."""
        chosen = {name: _clone(self[name]) for name in names or self}
        batch = Batch(chosen)
        batch._copy_marks(self)
        return batch

    def _intact(self) -> bool:
        """Whether the columns are exactly the arena's views."""
        if self._layout is None or tuple(self) != self._layout.names:
            return False
        return all(value is view for value, view in zip(self.values(), self._views, strict=True))

    def _map(self, move: Any) -> Batch:
        if self._intact() and self._arena is not None and self._layout is not None:
            arena = move(self._arena)
            if arena is self._arena:
                return self
            batch = Batch.from_arena(arena, self._layout, self.num_defaulted, self.num_duplicates)
        else:
            batch = Batch({name: move(value) if hasattr(value, "to") else value for name, value in self.items()})
            batch._copy_marks(self)
            if self.record_ids is not None:
                batch._record_ids = move(self.record_ids)
        if self._valid is not None:
            batch._valid = move(self._valid)
        return batch

    def _copy_marks(self, source: Batch) -> None:
        """Take over what is known of the rows, with memory of its own."""
        ids = source.record_ids
        self._record_ids = None if ids is None else own_memory(ids)
        self._valid = source._valid
        self.num_defaulted = source.num_defaulted
        self.num_duplicates = source.num_duplicates

    def __copy__(self) -> Batch:
        batch = Batch(self)
        batch._arena, batch._layout, batch._views = self._arena, self._layout, self._views
        return batch

    def copy(self) -> Batch:
        """A shallow copy, as ``dict.copy``."""
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        marks = (self.num_defaulted, self.num_duplicates, self._valid)
        if self._intact():
            return _from_arena, (self._arena, self._layout, marks)
        ids = self.record_ids
        columns = {name: own_memory(v) if isinstance(v, torch.Tensor) else v for name, v in self.items()}
        return _from_columns, (columns, None if ids is None else own_memory(ids), marks)

    def __repr__(self) -> str:
        columns = "".join(f"\n  {name!r}: {_describe(value)}" for name, value in self.items())
        return f"Batch({self.num_records} record{'s' * (self.num_records != 1)}){columns}"


class Rows:
    """The rows of a `Batch` as a list that is not made until it is asked for.

    What a data set gives to torch's ``DataLoader`` for a batch of indices: `collate` takes the whole batch out of it,
    and torch's own ``default_collate`` finds row after row. A ``batch_transform`` may have made a dict or tuple of
    columns of the batch, or one ragged column: rows are then dicts, tuples or the rows of that column.
    """

    def __init__(self, batch: Any, specs: Mapping[str, Any]) -> None:
        self.batch = batch
        self._specs = specs
        self._columns: Any = None
        self._marks: tuple[list[int] | None, list[bool]] = (None, [])

    def __len__(self) -> int:
        if isinstance(self.batch, Batch):
            return self.batch.num_records
        if isinstance(self.batch, Mapping):
            return Batch(self.batch).num_records
        return len(self.batch[0]) if isinstance(self.batch, tuple | list) and self.batch else len(self.batch)

    def __getitem__(self, index: int) -> Any:
        if self._columns is None:
            self._columns = self._split()
            if isinstance(self.batch, Batch):
                numbers = self.batch.record_ids
                self._marks = (None if numbers is None else numbers.tolist(), self.batch.valid.tolist())
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of a batch of {len(self)} rows")
        if isinstance(self._columns, dict):
            ids, valid = self._marks
            return Row(
                {name: column[index] for name, column in self._columns.items()},
                self._specs,
                record_id=None if ids is None else ids[index],
                valid=not valid or valid[index],
            )
        if isinstance(self._columns, tuple):
            return tuple(column[index] for column in self._columns)
        return self._columns[index]

    def _split(self) -> Any:
        """Columns whose ``[i]`` is a row. One unbind of a tensor is far cheaper than indexing it row by row."""
        if isinstance(self.batch, Mapping):
            return {name: _unbound(column) for name, column in self.batch.items()}
        if isinstance(self.batch, tuple | list):
            return tuple(_unbound(column) for column in self.batch)
        if isinstance(self.batch, Ragged | Bytes):
            return self.batch
        found = type(self.batch).__name__
        raise TypeError(f"batch_transform gave {found}, which has no rows: read batches, by collate_fn=tfr.collate")


class Items(list[Any]):
    """What a user's own parser made of the records of a batch, which `collate` hands over as they are."""


class Row(dict[str, Any]):
    """One record: a dict that remembers what `collate` needs to make a batch of rows.

    Attributes:
        specs: The specs of its columns.
        replaced: Columns whose value a transform has made: not what the specs say.
        record_id: Which record it is, or None.
        valid: False if it only pads a batch.
    """

    __slots__ = ("record_id", "replaced", "specs", "valid")

    def __init__(
        self,
        values: Mapping[str, Any],
        specs: Mapping[str, Any],
        replaced: Iterable[str] = (),
        *,
        record_id: int | None = None,
        valid: bool = True,
    ) -> None:
        super().__init__(values)
        self.specs = specs
        self.replaced = frozenset(replaced)
        self.record_id = record_id
        self.valid = valid

    def __copy__(self) -> dict[str, Any]:
        return dict(self)  # torch's default_collate fills a copy of a row with whole columns: no longer a row

    def __reduce__(self) -> tuple[Any, ...]:
        return _row, (dict(self), dict(self.specs), self.replaced, self.record_id, self.valid)


def transformed(row: Any, transform: Callable[[Any], Any]) -> Any:
    """What a transform makes of a row. A dict keeps the specs of the columns for collate, and which are new."""
    before = dict(row) if isinstance(row, Row) else {}
    item = transform(row)
    if not isinstance(item, dict) or not isinstance(row, Row) or isinstance(item, Batch):
        return item
    replaced = [name for name, value in item.items() if value is not before.get(name)]
    return Row(item, row.specs, replaced, record_id=row.record_id, valid=row.valid)


def _row(values: Any, specs: Any, replaced: Iterable[str], record_id: int | None, valid: bool) -> Row:
    return Row(values, specs, replaced, record_id=record_id, valid=valid)


def _from_arena(arena: torch.Tensor, layout: Layout, marks: tuple[int, int, torch.Tensor | None]) -> Batch:
    batch = Batch.from_arena(arena, layout, marks[0], marks[1])
    batch._valid = marks[2]  # noqa: SLF001 - undoes Batch.__reduce__
    return batch


def _from_columns(
    columns: dict[str, Any], record_ids: torch.Tensor | None, marks: tuple[int, int, torch.Tensor | None]
) -> Batch:
    batch = Batch(columns)
    batch._record_ids = record_ids  # noqa: SLF001 - undoes Batch.__reduce__
    batch.num_defaulted, batch.num_duplicates, batch._valid = marks  # noqa: SLF001
    return batch


def _unbound(column: Any) -> Any:
    return column.unbind(0) if isinstance(column, torch.Tensor) else column


def _clone(value: Any) -> Any:
    if isinstance(value, Bytes | Ragged):
        return value.map_tensors(torch.clone)
    return value.clone() if isinstance(value, torch.Tensor) else value


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return repr(value)
