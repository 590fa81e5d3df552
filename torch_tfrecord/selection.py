"""Which rows of a column an index selects: a slice, ints, or a mask."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

RowIndex: TypeAlias = "int | np.integer[Any] | torch.Tensor"
RowIndices: TypeAlias = "slice | range | list[Any] | np.ndarray[Any, Any]"


def count(number: int, what: str) -> str:
    """Such as "1 row" or "2 rows"."""
    return f"{number} {what}{'s' * (number != 1)}"


def row_number(index: Any, rows: int) -> int:
    """A row's number, counted from the front; IndexError if there is no such row."""
    number = operator.index(index)
    if not -rows <= number < rows:
        raise IndexError(f"row {number} of a column of {count(rows, 'row')}")
    return number % rows


class Ranges(NamedTuple):
    """Some rows of a column, as half-open ranges: one for a slice without a step, else one a row."""

    begins: np.ndarray[Any, np.dtype[np.int64]]
    ends: np.ndarray[Any, np.dtype[np.int64]]
    rows: int

    def cut(self, tensor: torch.Tensor) -> torch.Tensor:
        """The items of a tensor in these ranges, end to end: a view if there is only one."""
        parts = [tensor[begin:end] for begin, end in zip(self.begins.tolist(), self.ends.tolist(), strict=True)]
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts) if parts else tensor[:0]

    def scaled(self, factor: int) -> Ranges:
        """The ranges of rows of ``factor`` items each."""
        return Ranges(self.begins * factor, self.ends * factor, self.rows)

    def inside(self, offsets: torch.Tensor) -> Ranges:
        """The ranges of what lies in these ones."""
        bounds = offsets.cpu().numpy()
        return Ranges(bounds[self.begins], bounds[self.ends], self.rows)


def ranges_of(index: Any, rows: int) -> Ranges | None:
    """What a slice, indices or a mask select of a column; None if ``index`` is none of these."""
    if isinstance(index, slice | range):
        chosen = range(rows)[index] if isinstance(index, slice) else index
        if isinstance(index, slice) and chosen.step == 1:
            end = max(chosen.start, chosen.stop)
            return Ranges(np.array([chosen.start]), np.array([end]), len(chosen))
        index = list(chosen)
    if isinstance(index, torch.Tensor):
        index = index.detach().cpu().numpy()
    if not isinstance(index, list | np.ndarray) or np.ndim(index) == 0:
        return None
    places = np.asarray(index) if len(index) or isinstance(index, np.ndarray) else np.empty(0, np.int64)
    if places.dtype.kind not in "biu":
        raise TypeError(f"rows are selected by a slice, ints or a mask of bools, not by {places.dtype}")
    if places.dtype.kind == "b":
        if places.shape != (rows,):
            raise IndexError(f"a mask of shape {places.shape} for a column of {count(rows, 'row')}")
        places = np.flatnonzero(places)
    if places.ndim != 1:
        raise IndexError(f"rows are selected by indices of one dimension, not of shape {places.shape}")
    for bad in places[(places < -rows) | (places >= rows)]:
        row_number(bad, rows)
    places = places.astype(np.int64)
    places[places < 0] += rows
    return Ranges(places, places + 1, len(places))


def offsets_of(sizes: torch.Tensor) -> torch.Tensor:
    """Offsets of parts of these sizes: they begin at 0."""
    return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
