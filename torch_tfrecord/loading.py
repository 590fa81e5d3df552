"""The batches of one pass of a loader: begun ahead, and copied to the device before they are asked for."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import torch

from torch_tfrecord.ahead import Ahead, Called, PythonThread, Work
from torch_tfrecord.collation import collate
from torch_tfrecord.dataset import TFRecordDataset
from torch_tfrecord.decode import Decoding
from torch_tfrecord.drawing import Draw
from torch_tfrecord.order import Order
from torch_tfrecord.shard import Share
from torch_tfrecord.stats import Counts
from torch_tfrecord.transfer import Moving, Transfer, each


@dataclasses.dataclass(frozen=True)
class Options:
    """How batches are made: the arguments of `TFRecordLoader`."""

    batch_size: int
    drop_last: bool
    num_threads: int | None
    prefetch: int
    pin_memory: bool | None
    device: torch.device | None


class Loading:
    """Makes the batches of one pass.

    Args:
        dataset: The records.
        order: Of the epoch.
        share: Which positions of it this rank reads.
        draw: Seed and epoch, for transforms.
        options: How batches are made.
        counts: Where to add up what is delivered.
    """

    def __init__(
        self, dataset: TFRecordDataset, order: Order, share: Share, draw: Draw, options: Options, counts: Counts
    ) -> None:
        self._dataset = dataset
        self._order = order
        self._share = share
        self._draw = draw
        self._batch_size = options.batch_size
        self._counts = counts
        self._num_threads = options.num_threads or torch.get_num_threads()
        self._pin_memory = _can_pin(options.pin_memory)
        self._transfer = None if options.device is None else Transfer(options.device)
        self._moving: tuple[int, Moving | Exception] | None = None  # the batch after the one delivered last
        self._thread = None if dataset.recipe.is_native else PythonThread()
        self._num_bytes: dict[int, int] = {}  # by step, of batches on their way
        self._num_batches = share.num_batches(options.batch_size, drop_last=options.drop_last)
        self._ahead = Ahead(iter(range(self._num_batches)), self._start, options.prefetch)

    @property
    def num_ready(self) -> int:
        """Batches that are made and wait to be taken."""
        return self._ahead.num_ready + (self._moving is not None)

    def take(self) -> tuple[int, Any] | None:
        """The next batch, and the position that all ranks have reached with it; None if there are no more."""
        waited, idle = self._ahead.wait_seconds, self._ahead.idle_seconds
        taken = self._take_made() if self._transfer is None else self._take_moved()
        self._counts.consumer_wait_seconds += self._ahead.wait_seconds - waited
        self._counts.producer_wait_seconds += self._ahead.idle_seconds - idle
        if taken is None:
            rows = min(self._num_batches * self._batch_size, self._share.rows)
            self._counts.dropped += self._share.size - self._share.position_after(rows)
            return None
        step, batch = taken
        begin, end = self._share.batch(step, self._batch_size)
        self._counts.batches += 1
        self._counts.records += end - begin
        self._counts.bytes += self._num_bytes.pop(step)
        self._counts.padded += self._share.valid(begin, end) is not None
        return self._share.position_after(end), batch

    def _take_made(self) -> tuple[int, Any] | None:
        taken = self._ahead.take()
        if taken is not None and self._thread is None:
            taken[1].mark(valid=self._share.valid(*self._share.batch(taken[0], self._batch_size)))
        return taken

    def _take_moved(self) -> tuple[int, Any] | None:
        """The next batch, on the device. The one after it, if it is made, sets out."""
        assert self._transfer is not None
        taken = self._moving or self._move()
        self._moving = None
        if taken is None:
            return None
        if self._ahead.head_is_ready():
            try:
                self._moving = self._move()
            except Exception as error:  # noqa: BLE001 - it is raised when it is this batch's turn
                self._moving = (taken[0] + 1, error)
        step, moving = taken
        if isinstance(moving, Exception):
            raise moving
        return step, self._transfer.finish(moving)

    def _move(self) -> tuple[int, Moving] | None:
        assert self._transfer is not None
        taken = self._take_made()
        return None if taken is None else (taken[0], self._transfer.start(taken[1]))

    def _start(self, step: int) -> Work[Any]:
        begin, end = self._share.batch(step, self._batch_size)
        indices = self._order.indices(self._share.positions(begin, end))
        if self._thread is not None:
            draw = self._draw._replace(valid=self._share.valid(begin, end))
            return Called(self._thread, lambda: self._make(step, indices, draw))
        located = self._dataset.locate(indices)
        self._num_bytes[step] = located.num_bytes
        ids, records, origin = located
        plan = self._dataset.recipe.plan
        return Decoding(plan, records, origin, ids, self._num_threads, pin_memory=self._pin_memory)

    def _make(self, step: int, indices: Any, draw: Draw) -> Any:
        """In the Python thread: one batch from beginning to end."""
        located = self._dataset.locate(indices)
        self._num_bytes[step] = located.num_bytes
        batch = collate(self._dataset.recipe.items(located, draw, self._num_threads))
        return each(batch, lambda column: column.pin_memory()) if self._pin_memory else batch

    def close(self) -> None:
        """Drop what is on its way, and wait for what is at work."""
        self._ahead.close()
        if self._thread is not None:
            self._thread.close()


def _can_pin(wanted: bool | None) -> bool:
    if wanted is None:
        return torch.cuda.is_available()
    if wanted and not torch.cuda.is_available():
        warnings.warn("pin_memory is True, but there is no CUDA device: batches are not pinned", stacklevel=2)
        return False
    return wanted
