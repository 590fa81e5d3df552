"""Columns whose rows differ in size: `Bytes` (strings) and `Ragged` (tensors or strings of any length).

Both are plain classes over flat memory. They are neither tuples nor sequences and have no ``__iter__``, because
frameworks walk such things item by item; ``len`` is rows, ``[i]`` is a row, and these two make a ``for`` loop work.
``[5:9]``, ``[[3, 1]]`` and ``[mask]`` are columns of some rows; those of a slice without a step are views.
"""

from __future__ import annotations

import itertools
import math
import numbers
import operator
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
import torch

from torch_tfrecord.selection import Ranges, RowIndex, RowIndices, count, offsets_of, ranges_of, row_number


def own_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if it fills its storage, else a copy: what to keep of a batch instead of a view of it."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def refuse_dtype(arguments: tuple[Any, ...]) -> None:
    """Raise TypeError for arguments of ``torch.Tensor.to`` that name a dtype: offsets would be cast with the values."""
    if any(isinstance(argument, torch.dtype | torch.Tensor) for argument in arguments):
        raise TypeError("to() takes a device here, not a dtype or a tensor: cast the tensors inside, one by one")


class _Column:
    """What holds tensors that belong together, so they are not replaced one by one."""

    def __setattr__(self, name: str, _: Any) -> None:
        kind = type(self).__name__
        raise AttributeError(f"a {kind} cannot be given another {name}: make a new {kind}, or change values in place")


def nest(flat: list[Any], shape: tuple[int, ...]) -> Any:
    """Arrange ``prod(shape)`` items in row-major order as nested lists; for shape ``()`` the one item itself."""
    if not shape:
        return flat[0]
    step = math.prod(shape[1:])
    return [nest(flat[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


class Bytes(_Column):
    """A column of strings: all bytes end to end, and where each string begins.

    Args:
        values: ``uint8[total bytes]``.
        offsets: ``int64[strings + 1]``; string j is ``values[offsets[j]:offsets[j + 1]]``.
        shape: Shape of one row; ``()`` means that each row is one string.
        rows: Number of rows; needed only where the shape has a size of 0, so that strings do not tell.

    Example:
        >>> import torch_tfrecord as tfr
        >>> names = tfr.Bytes.from_list([b"ab", b"", b"c"])
        >>> names[0], len(names), names.tolist()
        (b'ab', 3, [b'ab', b'', b'c'])
    """

    values: torch.Tensor
    offsets: torch.Tensor
    shape: tuple[int, ...]
    _rows: int

    def __init__(
        self, values: torch.Tensor, offsets: torch.Tensor, shape: tuple[int, ...] = (), *, rows: int | None = None
    ) -> None:
        if rows is None:
            rows = (offsets.numel() - 1) // max(1, math.prod(shape))
        self.__dict__.update(values=values, offsets=offsets, shape=tuple(shape), _rows=rows)

    @classmethod
    def from_list(cls, items: list[bytes]) -> Bytes:
        """Make a column of shape ``()`` from bytes objects."""
        joined = bytearray().join(items)
        # Strings are on the CPU whatever torch's default device is.
        empty = torch.empty(0, dtype=torch.uint8, device="cpu")
        values = torch.frombuffer(joined, dtype=torch.uint8) if joined else empty
        sizes = torch.tensor([0, *map(len, items)], dtype=torch.int64, device="cpu")
        return cls(values, sizes.cumsum(0))

    def __len__(self) -> int:
        return self._rows

    @overload
    def __getitem__(self, index: RowIndex) -> Any: ...
    @overload
    def __getitem__(self, index: RowIndices) -> Bytes: ...

    def __getitem__(self, index: Any) -> Any:
        """Row ``index`` as ``bytes``, or as nested lists of ``bytes`` of the column's shape.

        For a slice, a list, array or tensor of ints, or a mask of bools: a column of those rows.
        """
        size = math.prod(self.shape)
        ranges = ranges_of(index, len(self))
        if ranges is not None:
            return self.select(ranges.scaled(size))
        first = row_number(index, len(self)) * size
        return nest(self.strings(first, first + size), self.shape)

    def select(self, strings: Ranges) -> Bytes:
        """A column of some ranges of strings in storage order, whatever the rows' shape."""
        sizes = strings.cut(self.offsets.diff())
        return Bytes(strings.inside(self.offsets).cut(self.values), offsets_of(sizes), self.shape, rows=strings.rows)

    def strings(self, begin: int, end: int) -> list[bytes]:
        """Strings ``[begin, end)`` in storage order, whatever the rows' shape."""
        bounds = self.offsets[begin : end + 1].tolist()
        base = bounds[0]
        block = self.values[base : bounds[-1]].cpu().numpy().tobytes()
        return [block[a - base : b - base] for a, b in itertools.pairwise(bounds)]

    def tolist(self) -> list[Any]:
        """All rows."""
        size = math.prod(self.shape)
        flat = self.strings(0, self.offsets.numel() - 1)
        return flat if not self.shape else [nest(flat[i * size : (i + 1) * size], self.shape) for i in range(len(self))]

    def map_tensors(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Bytes:
        """The same column over ``function(values)`` and ``function(offsets)``."""
        return Bytes(function(self.values), function(self.offsets), self.shape, rows=self._rows)

    def to(self, *args: Any, **kwargs: Any) -> Bytes:
        """Copy to a device; arguments as for ``torch.Tensor.to``, without a dtype."""
        refuse_dtype((*args, *kwargs.values()))
        return self.map_tensors(lambda tensor: tensor.to(*args, **kwargs))

    def pin_memory(self) -> Bytes:
        """Copy to page-locked memory."""
        return self.map_tensors(torch.Tensor.pin_memory)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bytes):
            return NotImplemented
        return self.shape == other.shape and self.tolist() == other.tolist()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shape = f", shape={self.shape}" if self.shape else ""
        return f"Bytes({count(len(self), 'row')}, {count(self.values.numel(), 'byte')}{shape})"

    def __reduce__(self) -> tuple[Any, ...]:
        # The class itself and plain state: what torch.load(weights_only=True) takes, once the class is declared safe.
        return Bytes, (own_memory(self.values), own_memory(self.offsets), self.shape), {"_rows": self._rows}


class Ragged(_Column):
    """A column whose rows differ in length or shape: all values end to end, and where each row begins.

    Args:
        values: Tensor ``[total, *inner]``, or `Bytes` of as many strings.
        offsets: ``int64[rows + 1]``; row i is ``values[offsets[i]:offsets[i + 1]]``.
        shapes: ``int64[rows, dims]``: each row's shape, where rows are not one-dimensional (images of any size, say);
            then ``values`` is flat.

    It has no ``shape``, since no tuple of ints is one: sizes are ``len(column)`` and ``column.lengths``.

    Example:
        >>> import torch, torch_tfrecord as tfr
        >>> tokens = tfr.Ragged(torch.tensor([7, 8, 9]), torch.tensor([0, 2, 2, 3]))
        >>> tokens[0], tokens.lengths, tokens[1:].tolist()
        (tensor([7, 8]), tensor([2, 0, 1]), [[], [9]])
        >>> tokens.to_padded(-1), tokens.mask()
        (tensor([[ 7,  8],
                [-1, -1],
                [ 9, -1]]),
        tensor([[ True,  True],
                [False, False],
                [ True, False]]))
    """

    values: torch.Tensor | Bytes
    offsets: torch.Tensor
    shapes: torch.Tensor | None

    def __init__(self, values: torch.Tensor | Bytes, offsets: torch.Tensor, shapes: torch.Tensor | None = None) -> None:
        self.__dict__.update(values=values, offsets=offsets, shapes=shapes)

    def __len__(self) -> int:
        return self.offsets.numel() - 1

    @overload
    def __getitem__(self, index: RowIndex) -> Any: ...
    @overload
    def __getitem__(self, index: RowIndices) -> Ragged: ...

    def __getitem__(self, index: Any) -> Any:
        """Row ``index``: a tensor that is a view of ``values``, or a list of ``bytes``.

        For a slice, a list, array or tensor of ints, or a mask of bools: a column of those rows.
        """
        ranges = ranges_of(index, len(self))
        if ranges is not None:
            return self.select(ranges)
        row = row_number(index, len(self))
        begin, end = self.offsets[row : row + 2].tolist()
        if isinstance(self.values, Bytes):
            return self.values.strings(begin, end)
        values = self.values[begin:end]
        return values if self.shapes is None else values.view(self.shapes[row].tolist())

    def select(self, rows: Ranges) -> Ragged:
        """A column of some ranges of rows."""
        items = rows.inside(self.offsets)
        if isinstance(self.values, Bytes):
            strings = int((items.ends - items.begins).sum())
            values: torch.Tensor | Bytes = self.values.select(items._replace(rows=strings))
        else:
            values = items.cut(self.values)
        return Ragged(
            values, offsets_of(rows.cut(self.lengths)), None if self.shapes is None else rows.cut(self.shapes)
        )

    @property
    def dtype(self) -> torch.dtype | type[bytes]:
        """Type of the values: a torch dtype, or ``bytes``."""
        return bytes if isinstance(self.values, Bytes) else self.values.dtype

    @property
    def device(self) -> torch.device:
        """Where the column lies."""
        return self.offsets.device

    @property
    def lengths(self) -> torch.Tensor:
        """``int64[rows]``: values in each row."""
        return self.offsets.diff()

    def tolist(self) -> list[Any]:
        """All rows as (nested) lists."""
        return [row if isinstance(row, list) else row.tolist() for row in (self[i] for i in range(len(self)))]

    def to_padded(self, value: float = 0, *, max_length: int | Sequence[int | None] | None = None) -> torch.Tensor:
        """Dense tensor ``[rows, max length, *inner]`` (with ``shapes``: ``[rows, *max shape]``), padded at the end.

        Args:
            value: What to pad with; the values' dtype must hold it.
            max_length: The length of the result instead of that of the longest row. Longer rows are cut at their end,
                without a word: compare ``lengths``. With ``shapes``, a size for each dimension; None is the
                largest.

        Raises:
            TypeError: The values are strings, or ``value`` is no number.
            ValueError: The dtype does not hold ``value``, or ``max_length`` is negative or of other dimensions.
        """
        values, offsets = self._numbers("to_padded")
        fill = _checked_fill(value, values.dtype)
        limits = self._limits(max_length)
        if self.shapes is not None:
            padded = values.new_full((len(self), *limits), fill)
            for i in range(len(self)):
                row = self[i][tuple(map(slice, limits))]
                padded[i][tuple(map(slice, row.shape))] = row
            return padded
        padded = values.new_full((len(self), limits[0], *values.shape[1:]), fill)
        mask = self.mask(max_length=limits[0])
        kept = values
        if len(self) and limits[0] < int(self.lengths.max()):
            kept = values[(offsets[:-1, None] + torch.arange(limits[0], device=offsets.device))[mask]]
        padded[mask] = kept
        return padded

    def mask(self, *, max_length: int | Sequence[int | None] | None = None) -> torch.Tensor:
        """``bool[rows, max length]`` (with ``shapes``: ``[rows, *max shape]``): False where `to_padded` pads.

        Args:
            max_length: As for `to_padded`.
        """
        limits = self._limits(max_length)
        sizes = self.lengths[:, None] if self.shapes is None else self.shapes
        mask = torch.ones((len(self), *limits), dtype=torch.bool, device=sizes.device)
        for dim, limit in enumerate(limits):
            inside = torch.arange(limit, device=sizes.device) < sizes[:, dim, None]
            mask &= inside.view(len(self), *(limit if other == dim else 1 for other in range(len(limits))))
        return mask

    def _limits(self, max_length: Any) -> list[int]:
        """Sizes of a padded row."""
        sizes = self.lengths[:, None] if self.shapes is None else self.shapes
        dims = sizes.shape[1]
        largest = sizes.amax(0).tolist() if len(self) else [0] * dims
        wanted = list(max_length) if isinstance(max_length, Sequence) else [max_length]
        if max_length is None:
            wanted = [None] * dims
        if len(wanted) != dims:
            raise ValueError(f"max_length is {max_length!r}, but rows have {dims} dimensions: give a size for each")
        limits = [size if want is None else operator.index(want) for want, size in zip(wanted, largest, strict=True)]
        if min(limits, default=0) < 0:
            raise ValueError(f"max_length is {max_length!r}: a length cannot be negative")
        return limits

    def to_nested(self) -> torch.Tensor:
        """``torch.nested`` tensor: of jagged layout, or, with ``shapes``, of strided layout.

        Raises:
            TypeError: The values are strings.
        """
        values, offsets = self._numbers("to_nested")
        if self.shapes is None:
            jagged: torch.Tensor = torch.nested.nested_tensor_from_jagged(values, offsets)
            return jagged
        return torch.nested.nested_tensor([self[i] for i in range(len(self))])

    def to_sparse(self) -> torch.Tensor:
        """Sparse COO tensor ``[rows, max length]``, as ``tf.io.VarLenFeature`` gives: zeros stay explicit values.

        Raises:
            TypeError: The values are strings.
            ValueError: The rows have shapes of their own.
        """
        values, offsets = self._numbers("to_sparse")
        if self.shapes is not None:
            raise ValueError("to_sparse is for rows of one dimension")
        lengths = self.lengths
        rows = torch.repeat_interleave(torch.arange(len(self), device=lengths.device), lengths)
        columns = torch.arange(values.shape[0], device=lengths.device) - offsets[:-1].repeat_interleave(lengths)
        width = int(lengths.max()) if len(self) else 0
        size = (len(self), width, *values.shape[1:])
        indices = torch.stack([rows, columns])
        # Said outright that the indices are right and sorted: torch warns where checks are off by default.
        return torch.sparse_coo_tensor(
            indices, values, size, device=values.device, check_invariants=False, is_coalesced=True
        )

    def _numbers(self, method: str) -> tuple[torch.Tensor, torch.Tensor]:
        """The values that rows refer to, and offsets in them."""
        if isinstance(self.values, Bytes):
            raise TypeError(f"{method}: torch has no tensor of strings; use [i] or tolist()")
        begin, end = self.offsets[[0, -1]].tolist()
        return self.values[begin:end], self.offsets - begin

    def map_tensors(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Ragged:
        """The same column over ``function`` of each of its tensors."""
        values = self.values.map_tensors(function) if isinstance(self.values, Bytes) else function(self.values)
        return Ragged(values, function(self.offsets), None if self.shapes is None else function(self.shapes))

    def to(self, *args: Any, **kwargs: Any) -> Ragged:
        """Copy to a device or cast numbers; arguments as for ``torch.Tensor.to``. A dtype is for the values alone.

        Raises:
            TypeError: A dtype is given, but the values are strings; or a tensor.
        """
        if isinstance(self.values, Bytes):
            return Ragged(self.values.to(*args, **kwargs), self.offsets.to(*args, **kwargs))
        refuse_dtype(tuple(argument for argument in (*args, *kwargs.values()) if not isinstance(argument, torch.dtype)))
        positional = [_keep_int64(argument) for argument in args]
        named = {name: _keep_int64(argument) for name, argument in kwargs.items()}
        shapes = None if self.shapes is None else self.shapes.to(*positional, **named)
        return Ragged(self.values.to(*args, **kwargs), self.offsets.to(*positional, **named), shapes)

    def pin_memory(self) -> Ragged:
        """Copy to page-locked memory."""
        return self.map_tensors(torch.Tensor.pin_memory)

    def __repr__(self) -> str:
        what = "bytes" if self.dtype is bytes else self.dtype
        return f"Ragged({count(len(self), 'row')}, {count(len(self.values), 'value')} of {what})"

    def __reduce__(self) -> tuple[Any, ...]:
        values = self.values if isinstance(self.values, Bytes) else own_memory(self.values)
        return Ragged, (values, own_memory(self.offsets), None if self.shapes is None else own_memory(self.shapes))


def _keep_int64(argument: Any) -> Any:
    """An argument of ``torch.Tensor.to`` as it is for offsets."""
    return torch.int64 if isinstance(argument, torch.dtype) else argument


def _checked_fill(value: Any, dtype: torch.dtype) -> Any:
    """The value to pad with, which torch would silently cut to fit."""
    if isinstance(value, torch.Tensor) and value.dim() == 0:
        value = value.item()
    if not isinstance(value, numbers.Number | np.bool_):
        raise TypeError(f"to_padded: value is {value!r}, not a number")
    fill: Any = value
    try:
        held = torch.full((), fill, dtype=dtype, device="cpu").item()
    except (RuntimeError, TypeError, ValueError, OverflowError):
        held = None
    if held is None or (held != value and not dtype.is_floating_point and not dtype.is_complex):
        raise ValueError(
            f"to_padded: {value!r} is not of {dtype}; cast the column first, as in column.to(torch.float32)"
        )
    return held
