"""What a loader has done so far, in numbers."""

from __future__ import annotations

import dataclasses
import os
import threading

_lock = threading.RLock()  # several iterators of a loader may be at work in several threads


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603 - a forked child must not wait for a thread that it does not have
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


@dataclasses.dataclass
class Counts:
    """The fields of `LoaderStats` that are sums. Any thread may add to them."""

    batches: int = 0
    records: int = 0
    bytes: int = 0
    producer_wait_seconds: float = 0.0
    consumer_wait_seconds: float = 0.0
    padded: int = 0
    dropped: int = 0

    def add(self, other: Counts) -> None:
        """Add each number to its like."""
        with _lock:
            self.batches += other.batches
            self.records += other.records
            self.bytes += other.bytes
            self.producer_wait_seconds += other.producer_wait_seconds
            self.consumer_wait_seconds += other.consumer_wait_seconds
            self.padded += other.padded
            self.dropped += other.dropped


@dataclasses.dataclass(frozen=True)
class LoaderStats:
    """Counts of a `TFRecordLoader` since it was made. All are of this rank, but ``dropped`` and ``faults``.

    If ``consumer_wait_seconds`` grows as fast as the clock, the loader is the bottleneck: give it more threads. If
    ``producer_wait_seconds`` does, the training is, and the loader is fast enough.

    Attributes:
        batches: Batches delivered.
        records: Records in them, those that pad among them.
        bytes: Bytes of their payloads, as they lie in the files, uncompressed.
        queue_depth: Batches that are made and wait to be taken, now; at most ``prefetch`` for each pass at work.
        producer_wait_seconds: Time in which nothing was made because all of ``prefetch`` was.
        consumer_wait_seconds: Time in which ``next`` waited for a batch.
        padded: Rows delivered that repeat a record, because records did not go round.
        dropped: Records that ``drop_last`` left out on all ranks together, in passes that came to their end.
        faults: Damaged places that the index left out, with ``on_error="skip"``.
    """

    batches: int
    records: int
    bytes: int
    queue_depth: int
    producer_wait_seconds: float
    consumer_wait_seconds: float
    padded: int
    dropped: int
    faults: int
