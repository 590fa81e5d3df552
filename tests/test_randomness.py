"""Generators of records: fixed for ever, different from each other; and which transforms take one."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from torch_tfrecord.randomness import record_generator, wants_generator

FROZEN = {  # seed, epoch, record id: the seed of the generator
    (0, 0, 0): 7_402_553_280_814_748_718,
    (0, 0, 1): 379_063_903_146_015_674,
    (0, 1, 0): 3_907_928_144_157_310_854,
    (1, 0, 0): 4_254_389_796_866_167_445,
    (7, 3, 59_999): 5_637_152_850_475_466_566,
    (-1, 0, 0): 6_615_002_506_785_449_592,
    (2**80, 2**62, 10**12): 5_531_362_267_215_283_749,
}


def test_seeds_never_change() -> None:
    """Else a run that is resumed with a new version would augment in another way."""
    assert {key: record_generator(*key).initial_seed() for key in FROZEN} == FROZEN


def test_all_differ() -> None:
    """In each of the three numbers alone, and where their digits might run together."""
    keys = {*itertools.product(range(-1, 12), repeat=3), (1, 11, 1), (11, 1, 1), (1, 1, 11), (111, 1, 1)}
    seeds = [record_generator(*key).initial_seed() for key in keys]
    assert len(set(seeds)) == len(keys)
    assert all(0 <= seed < 2**63 for seed in seeds)
    draws = [torch.rand(2, generator=record_generator(*key)).tolist() for key in itertools.product(range(8), repeat=3)]
    assert abs(np.mean(draws) - 0.5) < 5 * (1 / 12 / 1024) ** 0.5
    assert abs(np.corrcoef(np.array(draws).T)[0, 1]) < 5 / 512**0.5


def test_a_generator_is_on_the_cpu_and_nobody_elses() -> None:
    before = torch.get_rng_state()
    with torch.device("meta"):
        generator = record_generator(0, 0, 0)
    assert generator.device == torch.device("cpu")
    torch.rand(3, generator=generator)
    assert torch.equal(torch.get_rng_state(), before)


def plain(row: Any) -> Any:
    return row


def optional(row: Any, generator: torch.Generator | None = None) -> Any:
    return row, generator


def only_by_name(row: Any, *, generator: torch.Generator) -> Any:
    return row, generator


def only_by_place(row: Any, generator: torch.Generator, /) -> Any:
    return row, generator


def anything(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


class Callee:
    def __call__(self, row: Any, generator: torch.Generator) -> Any:
        return row, generator

    def method(self, row: Any, generator: torch.Generator) -> Any:
        return row, generator


class Module(torch.nn.Module):
    def forward(self, row: Any, generator: torch.Generator | None = None) -> Any:
        return row, generator


class PlainModule(torch.nn.Module):
    def forward(self, row: Any) -> Any:
        return row


@pytest.mark.parametrize(
    ("transform", "wanted"),
    [
        (None, False),
        (plain, False),
        (optional, True),
        (only_by_name, True),
        (only_by_place, False),
        (anything, False),
        (Callee(), True),
        (Callee().method, True),
        (Module(), True),
        (PlainModule(), False),
        (functools.partial(optional), True),
        (functools.partial(optional, generator=None), False),
        (lambda row, generator: (row, generator), True),
        (dict, False),
        (len, False),
        (int, False),
    ],
)
def test_which_transforms_take_a_generator(transform: Callable[..., Any] | None, wanted: bool) -> None:
    assert wants_generator(transform) is wanted
