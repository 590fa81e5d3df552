"""What indices know of how they were drawn, and ids that are a range."""

from __future__ import annotations

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord.drawing import Draw, SampledIndex, as_rows, draw_of


def test_an_index_is_an_int() -> None:
    index = SampledIndex(3, 5, 7, valid=False)
    assert (index, index.seed, index.epoch, index.valid) == (3, 5, 7, False)
    assert isinstance(index, int)
    assert SampledIndex(3, 5, 7).valid
    assert index == 3
    assert hash(index) == hash(3)
    assert [10, 20, 30, 40][index] == 40
    assert f"{index}" == repr(index) == "3"


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_what_an_index_knows_crosses_processes(protocol: int) -> None:
    index = SampledIndex(2**40, -(2**70), 7, valid=False)
    for back in (pickle.loads(pickle.dumps(index, protocol)), copy.copy(index), copy.deepcopy(index)):
        assert type(back) is SampledIndex
        assert (back, back.seed, back.epoch, back.valid) == (2**40, -(2**70), 7, False)


def test_numpy_and_torch_take_indices_for_numbers() -> None:
    indices = [SampledIndex(3, 5, 7), SampledIndex(2**40, 5, 7)]
    array = np.asarray(indices)
    assert array.dtype == np.int64
    assert array.tolist() == [3, 2**40]
    assert np.arange(5)[indices[0]] == 3
    tensor = torch.tensor(indices)
    assert (tensor.dtype, tensor.tolist()) == (torch.int64, [3, 2**40])


def test_an_index_of_a_part_knows_it_too() -> None:
    """``ConcatDataset`` subtracts the size of the parts before."""
    index = SampledIndex(13, 5, 7, valid=False) - 10
    assert (index, index.seed, index.epoch, index.valid) == (3, 5, 7, False)
    assert type(SampledIndex(13, 5, 7) + 1) is int


def test_plain_indices_were_not_drawn() -> None:
    nothing: tuple[int, ...] = ()
    for plain in (
        [0, 1, 2],
        (4,),
        range(3),
        np.arange(3),
        torch.arange(3),
        [],
        nothing,
        [np.int64(1), torch.tensor(2)],
    ):
        assert draw_of(plain) is None


@pytest.mark.parametrize("place", range(3))
def test_one_index_that_pads_is_found_anywhere(place: int) -> None:
    """A batch sampler may sort the rows of a batch."""
    indices: list[int] = [4, 5, 6]
    indices[place] = SampledIndex(9, 5, 7, valid=False)
    draw = draw_of(indices)
    assert draw is not None
    assert (draw.seed, draw.epoch) == (5, 7)
    assert draw.valid is not None
    assert draw.valid.dtype == np.bool_
    assert draw.valid.tolist() == [i != place for i in range(3)]


def test_valid_indices_need_no_marks() -> None:
    assert draw_of([SampledIndex(1, 5, 7), SampledIndex(2, 5, 7)]) == Draw(5, 7, None)
    assert draw_of((SampledIndex(1, 5, 7), 2)) == Draw(5, 7, None)
    assert Draw() == (0, 0, None)


ids = st.lists(st.integers(0, 6), max_size=5) | st.builds(
    lambda start, step, count: [start + step * i for i in range(count)],
    st.integers(50, 60),
    st.integers(-7, 7),
    st.integers(0, 6),
)


@given(ids)
def test_rows_are_the_ids(numbers: list[int]) -> None:
    rows = as_rows(np.array(numbers, np.int64))
    assert list(rows) == numbers
    steps = {b - a for a, b in itertools.pairwise(numbers)}
    assert isinstance(rows, range) == (len(steps) <= 1 and 0 not in steps)


@given(st.builds(range, st.integers(0, 9), st.integers(0, 9), st.integers(-4, 4).filter(bool)))
def test_equal_rows_are_written_alike(rows: range) -> None:
    array = as_rows(np.array(rows, np.int64))
    assert repr(array) == repr(as_rows(rows))
    assert list(as_rows(rows)) == list(rows)


def test_rows_are_a_copy_that_nobody_changes() -> None:
    numbers = np.array([3, 1, 1], np.int64)
    rows = as_rows(numbers)
    numbers[0] = 0
    assert list(rows) == [3, 1, 1]
    assert isinstance(rows, np.ndarray)
    with pytest.raises(ValueError, match="read-only"):
        rows[0] = 5
