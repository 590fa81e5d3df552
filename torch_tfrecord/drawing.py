"""What a sampler says of the records that it draws, beside their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

if TYPE_CHECKING:
    from typing_extensions import Self

Indices: TypeAlias = "Sequence[int] | np.ndarray[Any, Any] | torch.Tensor"


class Draw(NamedTuple):
    """How the records of a batch were drawn.

    Attributes:
        seed: Of the order they were drawn in.
        epoch: In which they were drawn.
        valid: ``bool[rows]``, False for rows that only pad; None: all are valid.
    """

    seed: int = 0
    epoch: int = 0
    valid: np.ndarray[Any, np.dtype[np.bool_]] | None = None


class SampledIndex(int):
    """A place in a data set that knows how it was drawn: an ``int`` for all who do not ask.

    Samplers run in the parent process and decoding in workers, so what has to reach them travels with the indices.
    """

    seed: int
    epoch: int
    valid: bool

    def __new__(cls, index: int, seed: int, epoch: int, *, valid: bool = True) -> Self:
        """An index and how it was drawn."""
        self = super().__new__(cls, index)
        self.seed, self.epoch, self.valid = seed, epoch, valid
        return self

    def __sub__(self, other: int) -> Self:  # ConcatDataset counts from the beginning of one of its parts
        return type(self)(int(self) - int(other), self.seed, self.epoch, valid=self.valid)

    def __reduce__(self) -> tuple[Any, ...]:  # a fifth of the bytes that its __dict__ would take
        return _sampled, (int(self), self.seed, self.epoch, self.valid)


def _sampled(index: int, seed: int, epoch: int, valid: bool) -> SampledIndex:
    return SampledIndex(index, seed, epoch, valid=valid)


def draw_of(indices: Indices) -> Draw | None:
    """How a batch of indices was drawn, if they know it."""
    if not isinstance(indices, list | tuple) or not indices:
        return None
    if set(map(type, indices)) == {int}:  # the usual case, at a hundredth of the price of the next line
        return None
    sampled = [index for index in indices if isinstance(index, SampledIndex)]
    if not sampled:
        return None
    valid = None
    if not all(index.valid for index in sampled):
        valid = np.array([getattr(index, "valid", True) for index in indices], np.bool_)
    return Draw(sampled[0].seed, sampled[0].epoch, valid)


def as_rows(ids: range | np.ndarray[Any, np.dtype[np.int64]]) -> range | np.ndarray[Any, np.dtype[np.int64]]:
    """Record ids as a range, where they are one: smaller, and equal ids give equal text, whoever chose them."""
    if not len(ids):
        return range(0)
    step = int(ids[1]) - int(ids[0]) if len(ids) > 1 else 1
    first, end = int(ids[0]), int(ids[0]) + step * len(ids)
    if isinstance(ids, range) or (step and (np.diff(ids) == step).all()):
        return range(first, end, step)
    chosen: np.ndarray[Any, np.dtype[np.int64]] = ids.copy()
    chosen.flags.writeable = False
    return chosen
