"""Randomness for transforms that does not depend on who runs them."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import torch


def record_generator(seed: int, epoch: int, record_id: int) -> torch.Generator:
    """A random generator for one record in one epoch: the same in any worker, rank, thread or door.

    Its seed is the first 8 bytes, little-endian, of BLAKE2b over ``"record SEED EPOCH ID"`` in decimal digits. For
    NumPy: ``numpy.random.default_rng(generator.initial_seed())``.

    Example:
        >>> import torch
        >>> from torch_tfrecord.randomness import record_generator
        >>> first, again = (torch.rand(3, generator=record_generator(0, 1, 7)) for _ in range(2))
        >>> torch.equal(first, again)
        True
    """
    digest = hashlib.blake2b(b"record %d %d %d" % (seed, epoch, record_id), digest_size=8).digest()
    # torch takes seeds up to 2**64 - 1, but gives them back signed from 2**63 on
    number = int.from_bytes(digest, "little") >> 1
    return torch.Generator("cpu").manual_seed(number)


def wants_generator(transform: Callable[..., Any] | None) -> bool:
    """Whether a transform has a parameter ``generator`` that is not bound yet; of a module, its ``forward``."""
    if transform is None or (isinstance(transform, functools.partial) and "generator" in transform.keywords):
        return False
    called = transform.forward if isinstance(transform, torch.nn.Module) else transform
    try:
        parameter = inspect.signature(called).parameters.get("generator")
    except (TypeError, ValueError):  # built into Python, without a signature
        return False
    return parameter is not None and parameter.kind is not inspect.Parameter.POSITIONAL_ONLY
