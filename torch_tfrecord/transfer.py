"""Copies of batches to a device, beside what the device computes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from torch_tfrecord.ahead import Work
from torch_tfrecord.batch import Batch
from torch_tfrecord.ragged import Bytes, Ragged


class Moving(NamedTuple):
    """A batch on its way to the device."""

    item: Any
    copied: torch.cuda.Event | None


class Transfer:
    """Copies to one device. On CUDA they run on a stream of their own, so that ``start`` waits for nothing.

    The source may be let go of at once: torch's allocator of page-locked memory gives none out again before the copies
    that read it are done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        if self._stream is not None:
            self._device = self._stream.device  # "cuda" is the device that is current now

    def start(self, item: Any) -> Moving:
        """Begin to copy a batch, or what transforms made of one."""
        if self._stream is None:
            return Moving(each(item, lambda column: column.to(self._device)), None)
        with torch.cuda.stream(self._stream):
            moved = each(item, lambda column: column.to(self._device, non_blocking=True))
            return Moving(moved, self._stream.record_event())

    def finish(self, moving: Moving) -> Any:
        """The batch on the device, safe to use on the current stream."""
        if moving.copied is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(moving.copied)
            # Their memory belongs to the stream that copied, and must not be given out again there while this one still
            # computes with it. Views of one arena share it: once for each piece is enough.
            for tensor in {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors_in(moving.item)}.values():
                tensor.record_stream(stream)
        return moving.item


class Moved:
    """A batch that is to be moved to a device when it is made: `Work` for `Ahead`."""

    def __init__(self, work: Work, transfer: Transfer) -> None:
        self._work = work
        self._transfer = transfer
        self._moving: Moving | None = None

    def send(self) -> None:
        """Begin to copy the batch, once it is made. What goes wrong with it, ``result`` meets again."""
        with contextlib.suppress(Exception):
            self._start()

    def _start(self) -> Moving:
        if self._moving is None:
            self._moving = self._transfer.start(self._work.result())
        return self._moving

    def advance(self) -> bool:
        """Let the batch be made; whether it is."""
        return self._work.advance()

    def result(self) -> Any:
        """Wait until the batch is made, and begin to copy it, if that is not done; CUDA waits for the copy itself."""
        return self._transfer.finish(self._start())

    def cancel(self) -> None:
        """Drop it."""
        self._work.cancel()

    @property
    def finished_at(self) -> float:
        """When the batch was made."""
        return self._work.finished_at


def each(item: Any, function: Callable[[Any], Any]) -> Any:
    """The same thing with ``function`` done to all tensors and columns in it; what else is there stays as it is."""
    if isinstance(item, torch.Tensor | Batch | Ragged | Bytes):
        return function(item)
    if isinstance(item, Mapping):
        return {name: each(value, function) for name, value in item.items()}
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)(*(each(value, function) for value in item))
    if isinstance(item, tuple | list):
        return type(item)(each(value, function) for value in item)
    return item


def tensors_in(item: Any) -> Iterator[torch.Tensor]:
    """All tensors of a batch, or of what transforms made of one."""
    if isinstance(item, torch.Tensor):
        yield item
    elif isinstance(item, Ragged | Bytes):
        found: list[torch.Tensor] = []

        def note(tensor: torch.Tensor) -> torch.Tensor:
            found.append(tensor)
            return tensor

        item.map_tensors(note)
        yield from found
    elif isinstance(item, Mapping):
        for value in item.values():
            yield from tensors_in(value)
        if isinstance(item, Batch):
            yield from tensors_in((item.record_ids, item._valid))  # noqa: SLF001 - ``valid`` would make a tensor
    elif isinstance(item, tuple | list):
        for value in item:
            yield from tensors_in(value)
