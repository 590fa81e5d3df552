"""Specs compiled for the core: what is kept apart, what is refused."""

from __future__ import annotations

import math

import pytest
import torch

import torch_tfrecord as tfr


def test_defaults_that_are_equal_but_not_the_same() -> None:
    empty = tfr.encode_example({})
    for default in (0.0, -0.0, 0.0):
        value = tfr.parse_single_example(empty, {"w": tfr.FixedLenFeature((), torch.float32, default)})["w"]
        assert math.copysign(1, float(value)) == math.copysign(1, default)


@pytest.mark.parametrize(
    "spec",
    [
        tfr.FixedLenFeature((1 << 40,), torch.int64),
        tfr.FixedLenFeature((1 << 70,), torch.float32),
        tfr.FixedLenFeature((), bytes, decode=tfr.DecodeRaw(torch.int64, (1 << 70,))),
        tfr.FixedLenFeature((1 << 30,), bytes, decode=tfr.DecodeRaw(torch.int64, (1 << 30,))),
    ],
)
def test_rows_beyond_all_memory(spec: tfr.FixedLenFeature) -> None:
    with pytest.raises(
        ValueError, match=r"features\['x'\]: a value of .* would take more than 1,099,511,627,776 bytes"
    ):
        tfr.parse_example([tfr.encode_example({})], {"x": spec})
