"""Memory for batches: one block each, private to the process or, in a ``DataLoader`` worker, shared with its parent."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import get_worker_info

from torch_tfrecord.native import core


def allocate(nbytes: int) -> tuple[torch.Tensor, Any]:
    """A block of memory that is not initialised.

    Always on the CPU, whatever torch's default device is. A private block goes back to a free list when the last tensor
    over it dies, and is never given out before that.

    Args:
        nbytes: Size, at least 1.

    Returns:
        ``uint8[nbytes]``, and the same memory as a writable buffer for the native core.
    """
    if get_worker_info() is not None:
        arena = _shared(nbytes)
        return arena, arena.numpy()
    block = core.Block(nbytes)
    return torch.frombuffer(block, dtype=torch.uint8), block


def _shared(nbytes: int) -> torch.Tensor:
    """Memory that crosses to the parent process without a copy, as torch's own ``default_collate`` takes it."""
    arena: torch.Tensor = torch.empty(0, dtype=torch.uint8, device="cpu")
    make: Any = getattr(torch.UntypedStorage, "_new_shared", None)  # private to torch; without it, one copy more
    if make is None:
        return arena.resize_(nbytes)
    return arena.set_(make(nbytes, device="cpu"), 0, (nbytes,))  # type: ignore[call-overload, no-any-return]
