"""Memory for batches: one block each. Private to the process, or pinned, or shared by a worker with its parent."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import get_worker_info

from torch_tfrecord.native import core


def allocate(nbytes: int, *, pin_memory: bool = False) -> tuple[torch.Tensor, Any]:
    """A block of memory that is not initialised.

    Always on the CPU, whatever torch's default device is. A private block goes back to a free list when the last tensor
    over it dies, and is never given out before that. Pinned blocks go back to torch, which gives them out again only
    after the copies to a device that read them.

    Args:
        nbytes: Size, at least 1.
        pin_memory: Whether it is to be page-locked, for copies to a GPU that do not wait. Needs one.

    Returns:
        ``uint8[nbytes]``, and the same memory as a writable buffer for the native core.

    Raises:
        MemoryError: So much cannot be had.
    """
    if pin_memory:
        arena = _pinned(nbytes)
        return arena, arena.numpy()
    if get_worker_info() is not None:
        arena = _shared(nbytes)
        return arena, arena.numpy()
    block = core.Block(nbytes)
    return torch.frombuffer(block, dtype=torch.uint8), block


def _pinned(nbytes: int) -> torch.Tensor:
    try:
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
    except RuntimeError as error:  # what torch raises for all that goes wrong
        if "out of memory" not in str(error):
            raise
        raise MemoryError(f"{nbytes:,} bytes of page-locked memory cannot be had") from error


def _shared(nbytes: int) -> torch.Tensor:
    """Memory that crosses to the parent process without a copy, as torch's own ``default_collate`` takes it."""
    arena: torch.Tensor = torch.empty(0, dtype=torch.uint8, device="cpu")
    make: Any = getattr(torch.UntypedStorage, "_new_shared", None)  # private to torch; without it, one copy more
    if make is None:
        return arena.resize_(nbytes)
    return arena.set_(make(nbytes, device="cpu"), 0, (nbytes,))  # type: ignore[call-overload, no-any-return]
