"""Which of the processes of a job this one is."""

from __future__ import annotations

import os

import torch.distributed

from torch_tfrecord.checks import check_integer


def resolve_rank(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """This process's rank, and the number of ranks.

    What is None is taken from ``torch.distributed`` if a process group is initialised, else from the environment
    variables ``RANK`` and ``WORLD_SIZE``, which ``torchrun`` and most launchers set, else it is rank 0 of 1. One of
    the two alone is not enough where nothing says the other: ranks that all took themselves for rank 0 would read the
    same records.

    Args:
        rank: In [0, world_size), or None.
        world_size: At least 1, or None. 1 alone means rank 0.

    Raises:
        ValueError: They contradict each other or the job, one is missing, or the environment variables are no numbers.

    Example:
        >>> from torch_tfrecord.ranks import resolve_rank
        >>> resolve_rank(), resolve_rank(1, 4)
        ((0, 1), (1, 4))
    """
    if rank is None and world_size is not None and check_integer(world_size, "world_size") == 1:
        return 0, 1
    if rank is None or world_size is None:
        rank, world_size = _completed(rank, world_size)
    rank, world_size = check_integer(rank, "rank"), check_integer(world_size, "world_size", 1)
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank}, and must be in [0, {world_size}), since world_size is {world_size}")
    return rank, world_size


def _completed(rank: int | None, world_size: int | None) -> tuple[int, int]:
    found = _found()
    if rank is None and world_size is None:
        return found or (0, 1)
    given = f"rank={rank}" if world_size is None else f"world_size={world_size}"
    if found is None:
        raise ValueError(f"{given} alone: pass both rank and world_size, as no process group and no launcher says more")
    if (rank, world_size) not in ((None, found[1]), (found[0], None)):
        who = f"rank {found[0]} of {found[1]}"
        raise ValueError(f"{given}, but this process is {who}: pass both rank and world_size, or neither")
    return found


def _found() -> tuple[int, int] | None:
    """Rank and number of ranks of this job, if it is one."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    texts = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if None in texts:  # one alone says nothing: schedulers set RANK for other ends
        return None
    try:
        rank, world_size = (int(text or "") for text in texts)
    except ValueError:
        advice = "pass rank= and world_size=, or unset them"
        raise ValueError(f"RANK={texts[0]!r} and WORLD_SIZE={texts[1]!r} are not both numbers: {advice}") from None
    return rank, world_size
