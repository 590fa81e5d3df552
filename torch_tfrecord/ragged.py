"""Columns whose rows differ in size: `Bytes` (strings) and `Ragged` (tensors or strings of any length).

Both are plain classes over flat memory. They are neither tuples nor sequences and have no ``__iter__``, because
frameworks walk such things item by item; ``len`` is rows, ``[i]`` is a row, and these two make a ``for`` loop work.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch


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


def _row(index: Any, rows: int) -> int:
    number = operator.index(index)
    if not -rows <= number < rows:
        raise IndexError(f"row {number} of a column of {rows} rows")
    return number % rows


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

    def __getitem__(self, index: int) -> Any:
        """Row ``index`` as ``bytes``, or as nested lists of ``bytes`` of the column's shape."""
        count = math.prod(self.shape)
        first = _row(index, len(self)) * count
        return nest(self.strings(first, first + count), self.shape)

    def strings(self, begin: int, end: int) -> list[bytes]:
        """Strings ``[begin, end)`` in storage order, whatever the rows' shape."""
        bounds = self.offsets[begin : end + 1].tolist()
        base = bounds[0]
        block = self.values[base : bounds[-1]].cpu().numpy().tobytes()
        return [block[a - base : b - base] for a, b in itertools.pairwise(bounds)]

    def tolist(self) -> list[Any]:
        """All rows."""
        count = math.prod(self.shape)
        flat = self.strings(0, self.offsets.numel() - 1)
        return (
            flat if not self.shape else [nest(flat[i * count : (i + 1) * count], self.shape) for i in range(len(self))]
        )

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
        return f"Bytes({len(self)} rows, {self.values.numel()} bytes{shape})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _bytes, (own_memory(self.values), own_memory(self.offsets), self.shape, self._rows)


def _bytes(values: torch.Tensor, offsets: torch.Tensor, shape: tuple[int, ...], rows: int) -> Bytes:
    return Bytes(values, offsets, shape, rows=rows)


class Ragged(_Column):
    """A column whose rows differ in length or shape: all values end to end, and where each row begins.

    Args:
        values: Tensor ``[total, *inner]``, or `Bytes` of as many strings.
        offsets: ``int64[rows + 1]``; row i is ``values[offsets[i]:offsets[i + 1]]``.
        shapes: ``int64[rows, dims]``: each row's shape, where rows are not one-dimensional (images of any size, say);
            then ``values`` is flat.

    Example:
        >>> import torch, torch_tfrecord as tfr
        >>> tokens = tfr.Ragged(torch.tensor([7, 8, 9]), torch.tensor([0, 2, 2, 3]))
        >>> tokens[0], tokens.lengths
        (tensor([7, 8]), tensor([2, 0, 1]))
    """

    values: torch.Tensor | Bytes
    offsets: torch.Tensor
    shapes: torch.Tensor | None

    def __init__(self, values: torch.Tensor | Bytes, offsets: torch.Tensor, shapes: torch.Tensor | None = None) -> None:
        self.__dict__.update(values=values, offsets=offsets, shapes=shapes)

    def __len__(self) -> int:
        return self.offsets.numel() - 1

    def __getitem__(self, index: int) -> Any:
        """Row ``index``: a tensor that is a view of ``values``, or a list of ``bytes``."""
        row = _row(index, len(self))
        begin, end = self.offsets[row : row + 2].tolist()
        if isinstance(self.values, Bytes):
            return self.values.strings(begin, end)
        values = self.values[begin:end]
        return values if self.shapes is None else values.view(self.shapes[row].tolist())

    @property
    def lengths(self) -> torch.Tensor:
        """``int64[rows]``: values in each row."""
        return self.offsets.diff()

    def tolist(self) -> list[Any]:
        """All rows as (nested) lists."""
        return [row if isinstance(row, list) else row.tolist() for row in (self[i] for i in range(len(self)))]

    def to_padded(self, value: float = 0) -> torch.Tensor:
        """Dense tensor ``[rows, max length, *inner]`` (with ``shapes``: ``[rows, *max shape]``), padded at the end.

        Raises:
            TypeError: The values are strings.
        """
        values = self._numbers("to_padded")
        if self.shapes is not None:
            limit = self.shapes.amax(0).tolist() if len(self) else [0] * self.shapes.shape[1]
            padded = values.new_full((len(self), *limit), value)
            for i in range(len(self)):
                row = self[i]
                padded[i][tuple(slice(size) for size in row.shape)] = row
            return padded
        lengths = self.lengths
        width = int(lengths.max()) if len(self) else 0
        padded = values.new_full((len(self), width, *values.shape[1:]), value)
        padded[torch.arange(width, device=lengths.device) < lengths[:, None]] = values
        return padded

    def to_nested(self) -> torch.Tensor:
        """``torch.nested`` tensor: of jagged layout, or, with ``shapes``, of strided layout.

        Raises:
            TypeError: The values are strings.
        """
        values = self._numbers("to_nested")
        if self.shapes is None:
            jagged: torch.Tensor = torch.nested.nested_tensor_from_jagged(values, self.offsets)
            return jagged
        return torch.nested.nested_tensor([self[i] for i in range(len(self))])

    def to_sparse(self) -> torch.Tensor:
        """Sparse COO tensor ``[rows, max length]``, as ``tf.io.VarLenFeature`` gives: zeros stay explicit values.

        Raises:
            TypeError: The values are strings.
            ValueError: The rows have shapes of their own.
        """
        values = self._numbers("to_sparse")
        if self.shapes is not None:
            raise ValueError("to_sparse is for rows of one dimension")
        lengths = self.lengths
        rows = torch.repeat_interleave(torch.arange(len(self), device=lengths.device), lengths)
        columns = torch.arange(values.shape[0], device=lengths.device) - self.offsets[:-1].repeat_interleave(lengths)
        width = int(lengths.max()) if len(self) else 0
        size = (len(self), width, *values.shape[1:])
        indices = torch.stack([rows, columns])
        # Said outright that the indices are right and sorted: torch warns where checks are off by default.
        return torch.sparse_coo_tensor(
            indices, values, size, device=values.device, check_invariants=False, is_coalesced=True
        )

    def _numbers(self, method: str) -> torch.Tensor:
        if isinstance(self.values, Bytes):
            raise TypeError(f"{method}: torch has no tensor of strings; use [i] or tolist()")
        return self.values

    def map_tensors(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Ragged:
        """The same column over ``function`` of each of its tensors."""
        values = self.values.map_tensors(function) if isinstance(self.values, Bytes) else function(self.values)
        return Ragged(values, function(self.offsets), None if self.shapes is None else function(self.shapes))

    def to(self, *args: Any, **kwargs: Any) -> Ragged:
        """Copy to a device; arguments as for ``torch.Tensor.to``, without a dtype."""
        refuse_dtype((*args, *kwargs.values()))
        return self.map_tensors(lambda tensor: tensor.to(*args, **kwargs))

    def pin_memory(self) -> Ragged:
        """Copy to page-locked memory."""
        return self.map_tensors(torch.Tensor.pin_memory)

    def __repr__(self) -> str:
        what = "bytes" if isinstance(self.values, Bytes) else str(self.values.dtype)
        count = len(self.values) if isinstance(self.values, Bytes) else self.values.shape[0]
        return f"Ragged({len(self)} rows, {count} values of {what})"

    def __reduce__(self) -> tuple[Any, ...]:
        values = self.values if isinstance(self.values, Bytes) else own_memory(self.values)
        return Ragged, (values, own_memory(self.offsets), None if self.shapes is None else own_memory(self.shapes))
