"""Where the columns of a batch lie in its arena, and how their views are made.

Columns of one dtype and row shape lie side by side at equal distances, so that one ``as_strided`` and one ``unbind``
make all their views: a few microseconds for dozens of columns. The ids of the records come first.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from torch_tfrecord.ragged import Bytes, Ragged

ALIGNMENT = 64  # bytes: a cache line, and more than any dtype needs


def align(nbytes: int) -> int:
    """Round up to the alignment of a part."""
    return (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def _stride(nbytes: int) -> int:
    """Distance between columns that are written side by side: an odd number of cache lines.

    Columns a power of two apart would all compete for the same few places of a cache, row by row.
    """
    return align(nbytes) | ALIGNMENT


class Group(NamedTuple):
    """Dense columns of one dtype and row shape. Offset and stride count elements."""

    dtype: torch.dtype
    row_shape: tuple[int, ...]
    offset: int
    stride: int
    num_columns: int


class Loose(NamedTuple):
    """One column of varying row size. Positions count bytes; -1: it has no such part."""

    dtype: torch.dtype | None  # None: strings
    row_shape: tuple[int, ...]  # of a row of strings
    values_at: int
    num_values: int  # elements, or bytes of strings
    value_offsets_at: int  # int64, of strings
    num_strings: int
    row_offsets_at: int  # int64[rows + 1]
    shapes_at: int  # int64[rows, dims]
    dims: int


class Layout(NamedTuple):
    """The plan of one arena: plain data, small when pickled, the same for all batches of the same sizes."""

    rows: int
    nbytes: int
    names: tuple[str, ...]
    groups: tuple[Group, ...]
    loose: tuple[Loose, ...]
    order: tuple[int, ...]  # order[i]: place of column names[i] among the views of groups, then of loose ones

    def views(self, arena: torch.Tensor) -> list[Any]:
        """A view for each column, in the order of names."""
        typed: dict[torch.dtype, torch.Tensor] = {}
        flat: list[Any] = []
        for dtype, row_shape, offset, stride, num_columns in self.groups:
            if dtype not in typed:
                typed[dtype] = arena.view(dtype)
            strides = _row_major(row_shape)
            shape = (num_columns, self.rows, *row_shape)
            block = typed[dtype].as_strided(shape, (stride, math.prod(row_shape), *strides), offset)
            flat.extend(block.unbind(0))
        flat.extend(self._loose_view(arena, loose) for loose in self.loose)
        return [flat[place] for place in self.order]

    def record_ids(self, arena: torch.Tensor) -> torch.Tensor:
        """``int64[rows]``: the ids of the records."""
        return _part(arena, 0, torch.int64, self.rows)

    def _loose_view(self, arena: torch.Tensor, loose: Loose) -> Bytes | Ragged:
        flat = _part(arena, loose.values_at, loose.dtype or torch.uint8, loose.num_values)
        values: torch.Tensor | Bytes = flat
        if loose.dtype is None:
            offsets = _part(arena, loose.value_offsets_at, torch.int64, loose.num_strings + 1)
            if loose.row_offsets_at < 0:
                return Bytes(flat, offsets, loose.row_shape, rows=self.rows)
            values = Bytes(flat, offsets)
        row_offsets = _part(arena, loose.row_offsets_at, torch.int64, self.rows + 1)
        shapes = None
        if loose.shapes_at >= 0:
            shapes = _part(arena, loose.shapes_at, torch.int64, self.rows * loose.dims).view(self.rows, loose.dims)
        return Ragged(values, row_offsets, shapes)


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def _part(arena: torch.Tensor, at: int, dtype: torch.dtype, count: int) -> torch.Tensor:
    return arena[at : at + count * dtype.itemsize].view(dtype)


class Dense(NamedTuple):
    """A column of tensors of one shape, to be laid out."""

    dtype: torch.dtype
    row_shape: tuple[int, ...]


class Sizes(NamedTuple):
    """A column of varying row size, to be laid out. Fields as in `Loose`; has_...: whether it has such a part."""

    dtype: torch.dtype | None
    row_shape: tuple[int, ...]
    num_values: int
    num_strings: int
    has_row_offsets: bool
    dims: int  # of shapes; 0: it has none


def lay_out(columns: dict[str, Dense | Sizes], rows: int) -> tuple[Layout, dict[str, tuple[int, int, int]]]:
    """Place columns in an arena.

    Returns:
        The layout, and by column where the native core writes values, value offsets and row offsets (-1: none).
    """
    places: dict[str, tuple[int, int, int]] = {}
    at = align(8 * rows)
    groups: list[Group] = []
    members: dict[Dense, list[str]] = {}
    for name, column in columns.items():
        if isinstance(column, Dense):
            members.setdefault(column, []).append(name)
    for (dtype, row_shape), names in members.items():
        stride = _stride(rows * math.prod(row_shape) * dtype.itemsize)
        groups.append(Group(dtype, row_shape, at // dtype.itemsize, stride // dtype.itemsize, len(names)))
        for name in names:
            places[name] = (at, -1, -1)
            at += stride
    loose: list[Loose] = []
    for name, column in columns.items():
        if isinstance(column, Sizes):
            part, at = _place(column, rows, at)
            loose.append(part)
            places[name] = (part.values_at, part.value_offsets_at, part.row_offsets_at)
    found = {name: place for place, name in enumerate(places)}
    order = tuple(found[name] for name in columns)
    return Layout(rows, max(at, ALIGNMENT), tuple(columns), tuple(groups), tuple(loose), order), places


def _place(column: Sizes, rows: int, at: int) -> tuple[Loose, int]:
    def take(nbytes: int) -> int:
        nonlocal at
        begin, at = at, at + align(nbytes)
        return begin

    item = 1 if column.dtype is None else column.dtype.itemsize
    part = Loose(
        dtype=column.dtype,
        row_shape=column.row_shape,
        values_at=take(column.num_values * item),
        num_values=column.num_values,
        value_offsets_at=take(8 * (column.num_strings + 1)) if column.num_strings >= 0 else -1,
        num_strings=column.num_strings,
        row_offsets_at=take(8 * (rows + 1)) if column.has_row_offsets else -1,
        shapes_at=take(8 * rows * column.dims) if column.dims else -1,
        dims=column.dims,
    )
    return part, at
