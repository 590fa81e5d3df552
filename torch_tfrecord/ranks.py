"""Which of the processes of a job this one is."""

from __future__ import annotations

import operator
import os

import torch.distributed


def resolve_rank(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """This process's rank, and the number of ranks.

    What is None is taken from ``torch.distributed`` if a process group is initialised, else from the environment
    variables ``RANK`` and ``WORLD_SIZE``, which ``torchrun`` and most launchers set, else it is rank 0 of 1.

    Args:
        rank: In [0, world_size), or None.
        world_size: At least 1, or None.

    Raises:
        ValueError: They contradict each other, or the environment variables are no numbers.

    Example:
        >>> from torch_tfrecord.ranks import resolve_rank
        >>> resolve_rank(), resolve_rank(1, 4)
        ((0, 1), (1, 4))
    """
    if rank is None or world_size is None:
        found = _found()
        rank = found[0] if rank is None else rank
        world_size = found[1] if world_size is None else world_size
    rank, world_size = operator.index(rank), operator.index(world_size)
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}, and must be at least 1")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank}, and must be in [0, {world_size}), since world_size is {world_size}")
    return rank, world_size


def _found() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    texts = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if None in texts:  # one alone says nothing: schedulers set RANK for other ends
        return 0, 1
    try:
        rank, world_size = (int(text or "") for text in texts)
    except ValueError:
        advice = "pass rank= and world_size=, or unset them"
        raise ValueError(f"RANK={texts[0]!r} and WORLD_SIZE={texts[1]!r} are not both numbers: {advice}") from None
    return rank, world_size
