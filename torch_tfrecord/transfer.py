"""Copies of batches to a device, beside what the device computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

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

    def start(self, item: Any) -> Moving:
        """Begin to copy a batch, or what transforms made of one."""
        if self._stream is None:
            return Moving(each(item, self._copy), None)
        with torch.cuda.stream(self._stream):
            moved = each(item, self._copy)
            return Moving(moved, self._stream.record_event())

    def _copy(self, column: Any) -> Any:
        return column.to(self._device, non_blocking=True)

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
            yield from tensors_in((item.record_ids, item.valid))
    elif isinstance(item, tuple | list):
        for value in item:
            yield from tensors_in(value)
