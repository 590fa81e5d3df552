"""The batches of a stream's pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from torch_tfrecord.collation import collate
from torch_tfrecord.dataset import TFRecordDataset
from torch_tfrecord.drawing import Draw
from torch_tfrecord.epochs import Begun
from torch_tfrecord.order import Order
from torch_tfrecord.shard import Share
from torch_tfrecord.state import Passes


@dataclasses.dataclass(eq=False)
class Steps(Iterator[Any]):
    """The batches of some steps of a pass. One that cannot be made raises when it is its turn; the next one follows.

    Attributes:
        dataset: The records.
        begun: The pass.
        order: Of the pass.
        share: Of this rank.
        batch_size: Records of a batch.
        steps: Which steps.
        made: How many of them were made, or tried, so far.
    """

    dataset: TFRecordDataset
    begun: Begun
    order: Order
    share: Share
    batch_size: int
    steps: range
    made: int = 0

    @property
    def position(self) -> int:
        """What all ranks together have been given when each has come as far as this one."""
        done = self.steps[self.made - 1] + 1 if self.made else 0
        return self.share.position_after(done * self.batch_size)

    def __next__(self) -> Any:
        if self.made >= len(self.steps):
            raise StopIteration
        try:
            batch = self._make(self.steps[self.made])
        except Exception:
            self.made += 1  # what went wrong has been said, and the next step follows
            raise
        self.made += 1  # not before: a step that KeyboardInterrupt broke off is made again
        return batch

    def _make(self, step: int) -> Any:
        begin, end = self.share.batch(step, self.batch_size)
        draw = Draw(self.begun.seed, self.begun.epoch, self.share.valid(begin, end))
        located = self.dataset.locate(self.order.indices(self.share.positions(begin, end)))
        return collate(self.dataset.recipe.items(located, draw))


class Pass(Iterator[Any]):
    """A pass in the process of the stream, which is counted at its first batch.

    Args:
        passes: Counts it.
        read: Takes epoch and start, and begins to read.
    """

    def __init__(self, passes: Passes, read: Callable[[int, int], Iterator[Any]]) -> None:
        self._passes = passes
        self._read = read
        self._number = self._epoch = 0
        self._batches: Iterator[Any] | None = None

    def __next__(self) -> Any:
        if self._batches is None:
            self._number, self._epoch, start = self._passes.begin()
            self._batches = self._read(self._epoch, start)
        try:
            batch = next(self._batches)
        except StopIteration:
            self._passes.finish(self._number)
            raise
        if isinstance(self._batches, Steps):
            self._passes.deliver(self._number, self._epoch, self._batches.position)
        return batch
