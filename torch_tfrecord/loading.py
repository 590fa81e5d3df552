"""The batches of one pass of a loader: begun ahead, and copied to the device before they are asked for."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import torch
from torch.utils.data import get_worker_info

from torch_tfrecord.ahead import Ahead, Work, is_ready
from torch_tfrecord.collation import collate
from torch_tfrecord.dataset import TFRecordDataset
from torch_tfrecord.decode import Decoding, Frames
from torch_tfrecord.drawing import Draw
from torch_tfrecord.files import limit
from torch_tfrecord.order import Order
from torch_tfrecord.python_thread import PythonThread
from torch_tfrecord.shard import Share
from torch_tfrecord.stats import Counts
from torch_tfrecord.transfer import Moved, Transfer, each


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

    Attributes:
        thread: The thread for what needs Python; None where nothing does.
    """

    def __init__(
        self, dataset: TFRecordDataset, order: Order, share: Share, draw: Draw, options: Options, counts: Counts
    ) -> None:
        self._dataset = dataset.for_pass()
        self._order = order
        self._share = share
        self._draw = draw
        self._batch_size = options.batch_size
        self._num_threads = options.num_threads or torch.get_num_threads()
        self._pin_memory = _can_pin(options.pin_memory)
        self._transfer = None if options.device is None else Transfer(options.device)
        self.thread = None if dataset.recipe.is_native else PythonThread()
        self._num_batches = share.num_batches(options.batch_size, drop_last=options.drop_last)
        # A batch with ragged columns is begun one step earlier, since its memory can be had only when it was measured.
        self._prefetch = options.prefetch
        early = self.thread is None and not dataset.recipe.plan.sized
        self._num_files: dict[int, int] = {}  # that batches on their way hold open, by step
        self._ahead = Ahead(self._num_batches, self._start, options.prefetch + early, self._holds_many_files)
        self._counts = counts
        self._num_bytes: dict[int, int] = {}  # of batches on their way, by step
        self._waited = (0.0, 0.0)  # idle and wait seconds of ``_ahead`` that are in the counts

    @property
    def num_ready(self) -> int:
        """Batches that are made and wait to be taken. Any thread may ask, at any time."""
        return min(self._ahead.num_ready, self._prefetch)

    def take(self) -> tuple[int, Any] | None:
        """The next batch, and the position that all ranks have reached with it; None if there are no more."""
        step = self._ahead.step
        if step == self._num_batches:
            rows = min(self._num_batches * self._batch_size, self._share.rows)
            self._count(dropped=self._share.size - self._share.position_after(rows))
            return None
        try:
            batch = self._ahead.take()
        finally:
            num_bytes = self._num_bytes.pop(step, 0)
            self._num_files.pop(step, None)
        coming = self._ahead.head
        if isinstance(coming, Moved) and is_ready(coming):
            coming.send()
        begin, end = self._share.batch(step, self._batch_size)
        padded = self._share.num_padded if end == self._share.rows else 0
        self._count(batches=1, records=end - begin, bytes=num_bytes, padded=padded)
        return self._share.position_after(end), batch

    def _count(self, **numbers: int) -> None:
        idle, waited = self._waited
        self._waited = self._ahead.idle_seconds, self._ahead.wait_seconds
        self._counts.add(
            Counts(
                producer_wait_seconds=self._ahead.idle_seconds - idle,
                consumer_wait_seconds=self._ahead.wait_seconds - waited,
                **numbers,
            )
        )

    def _holds_many_files(self) -> bool:
        """Whether another batch might need more files than the process may open: a batch may lie in hundreds."""
        return sum(self._num_files.values()) > limit() // 2

    def _start(self, step: int) -> Work:
        begin, end = self._share.batch(step, self._batch_size)
        indices = self._order.indices(self._share.positions(begin, end))
        draw = self._draw._replace(valid=self._share.valid(begin, end))
        if self.thread is not None:
            work: Work = self.thread.call(lambda: self._make(step, indices, draw))
        else:
            work = self._decode(step, indices, draw)
        return work if self._transfer is None else Moved(work, self._transfer)

    def _decode(self, step: int, indices: Any, draw: Draw) -> Work:
        """Let the native threads make a batch."""
        ids, records, origin = located = self._dataset.locate(indices)
        self._num_bytes[step] = located.num_bytes
        self._num_files[step] = len(records.files) if isinstance(records, Frames) else 0
        decoding = Decoding(
            self._dataset.recipe.plan, records, origin, ids, self._num_threads, pin_memory=self._pin_memory
        )
        return decoding if draw.valid is None else Marked(decoding, draw)

    def _make(self, step: int, indices: Any, draw: Draw) -> Any:
        """In the Python thread: one batch from beginning to end."""
        located = self._dataset.locate(indices)
        self._num_bytes[step] = located.num_bytes
        batch = collate(self._dataset.recipe.items(located, draw, self._num_threads))
        return each(batch, lambda column: column.pin_memory()) if self._pin_memory else batch

    def close(self, *, wait: bool = True) -> None:
        """Drop what is on its way.

        Args:
            wait: Whether to wait for a transform that is at work. Native threads are always waited for.
        """
        if self.thread is not None:
            self.thread.close(wait=False)  # first, lest it begin another one
        self._ahead.close()
        if self.thread is not None and wait:
            self.thread.close()


class Marked:
    """A batch in which a row only pads: `Work` for `Ahead`."""

    def __init__(self, decoding: Decoding, draw: Draw) -> None:
        self._decoding = decoding
        self._draw = draw
        self.advance = decoding.advance
        self.cancel = decoding.cancel

    def result(self) -> Any:
        """Wait for the batch."""
        batch = self._decoding.result()
        batch.mark(valid=self._draw.valid)
        return batch

    @property
    def finished_at(self) -> float:
        """When it was decoded."""
        return self._decoding.finished_at


def _can_pin(wanted: bool | None) -> bool:
    if wanted is None:
        # In a worker batches go to shared memory, and a forked process must not touch CUDA if its parent did.
        return get_worker_info() is None and torch.cuda.is_available() and not _in_bad_fork()
    if wanted and not torch.cuda.is_available():
        warnings.warn("pin_memory is True, but there is no CUDA device: batches are not pinned", stacklevel=7)
        return False
    return wanted


def _in_bad_fork() -> bool:
    check: Any = getattr(torch.cuda, "_is_in_bad_fork", None)  # private to torch
    return check is not None and bool(check())
