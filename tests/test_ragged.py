"""`Ragged` and `Bytes`: their rows, what else they can become, and that frameworks leave them whole."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from columns import tensors
from torch.utils.data import default_convert

import torch_tfrecord as tfr

# --- Bytes ------------------------------------------------------------------------------------------------------------


def test_strings() -> None:
    column = tfr.Bytes.from_list([b"ab", b"", b"\x00\xff", b"c" * 300])
    assert len(column) == 4
    assert [column[i] for i in (0, 1, 2, 3, -1, -4)] == [b"ab", b"", b"\x00\xff", b"c" * 300, b"c" * 300, b"ab"]
    assert [*column] == column.tolist() == [b"ab", b"", b"\x00\xff", b"c" * 300]  # type: ignore[misc]
    assert column.offsets.tolist() == [0, 2, 2, 4, 304]
    assert column.strings(1, 3) == [b"", b"\x00\xff"]
    assert repr(column) == "Bytes(4 rows, 304 bytes)"
    assert column[np.int64(2)] == column[torch.tensor(2)] == b"\x00\xff"  # type: ignore[index]
    for wrong in (4, -5):
        with pytest.raises(IndexError, match=f"row {wrong} of a column of 4 rows"):
            column[wrong]
    with pytest.raises(TypeError):
        column[1.0]  # type: ignore[index]


def test_no_strings() -> None:
    column = tfr.Bytes.from_list([])
    assert len(column) == 0
    assert column.tolist() == []
    assert tfr.Bytes.from_list([b"", b""]).tolist() == [b"", b""]


def test_strings_of_a_shape() -> None:
    flat = tfr.Bytes.from_list([b"%d" % i for i in range(12)])
    column = tfr.Bytes(flat.values, flat.offsets, (3, 2))
    assert len(column) == 2
    assert column[1] == [[b"6", b"7"], [b"8", b"9"], [b"10", b"11"]]
    assert column.tolist() == [column[0], column[1]]
    assert repr(column) == "Bytes(2 rows, 14 bytes, shape=(3, 2))"
    hollow = tfr.Bytes(torch.empty(0, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64), (2, 0), rows=3)
    for twin in (hollow, pickle.loads(pickle.dumps(hollow)), hollow.to("cpu")):
        assert twin.tolist() == [[[], []]] * 3
        assert twin[-1] == [[], []]


def test_strings_are_equal_by_value() -> None:
    column = tfr.Bytes.from_list([b"ab", b"c"])
    flat = column.values, column.offsets
    assert column == tfr.Bytes.from_list([b"ab", b"c"])
    assert column != tfr.Bytes.from_list([b"a", b"bc"])
    assert column != tfr.Bytes(*flat, (2,))
    assert column != [b"ab", b"c"]
    with pytest.raises(TypeError, match="unhashable"):
        hash(column)


# --- Ragged -----------------------------------------------------------------------------------------------------------

NUMBERS = tfr.Ragged(torch.tensor([7, 0, 9, 8]), torch.tensor([0, 2, 2, 3, 4]))
IMAGES = tfr.Ragged(torch.arange(8), torch.tensor([0, 2, 8]), torch.tensor([[1, 2], [3, 2]]))
STRINGS = tfr.Ragged(tfr.Bytes.from_list([b"a", b"", b"bc"]), torch.tensor([0, 0, 2, 3]))


def test_ragged_rows() -> None:
    assert len(NUMBERS) == 4
    assert [row.tolist() for row in NUMBERS] == NUMBERS.tolist() == [[7, 0], [], [9], [8]]  # type: ignore[attr-defined]
    assert NUMBERS[-1].tolist() == [8]
    assert NUMBERS.lengths.tolist() == [2, 0, 1, 1]
    assert repr(NUMBERS) == "Ragged(4 rows, 4 values of torch.int64)"
    for wrong in (4, -5):
        with pytest.raises(IndexError, match=f"row {wrong} of a column of 4 rows"):
            NUMBERS[wrong]
    assert [row.tolist() for row in IMAGES] == [[[0, 1]], [[2, 3], [4, 5], [6, 7]]]  # type: ignore[attr-defined]
    assert [*STRINGS] == STRINGS.tolist() == [[], [b"a", b""], [b"bc"]]  # type: ignore[misc]
    assert repr(STRINGS) == "Ragged(3 rows, 3 values of bytes)"


def test_rows_are_views() -> None:
    column = tfr.Ragged(torch.tensor([7, 0, 9]), torch.tensor([0, 2, 3]))
    column[0][1] = 5
    assert column.values.tolist() == [7, 5, 9]


def test_to_padded() -> None:
    assert NUMBERS.to_padded().tolist() == [[7, 0], [0, 0], [9, 0], [8, 0]]
    assert NUMBERS.to_padded(-1).tolist() == [[7, 0], [-1, -1], [9, -1], [8, -1]]
    assert NUMBERS.to_padded().dtype == torch.int64
    pairs = tfr.Ragged(torch.arange(6.0).view(3, 2), torch.tensor([0, 2, 3]))
    assert pairs.to_padded(9).tolist() == [[[0, 1], [2, 3]], [[4, 5], [9, 9]]]
    assert IMAGES.to_padded(-1).tolist() == [[[0, 1], [-1, -1], [-1, -1]], [[2, 3], [4, 5], [6, 7]]]


def test_to_sparse_keeps_explicit_zeros() -> None:
    sparse = NUMBERS.to_sparse()
    assert sparse.layout == torch.sparse_coo
    assert sparse.shape == (4, 2)
    assert sparse.indices().tolist() == [[0, 0, 2, 3], [0, 1, 0, 0]]
    assert sparse.values().tolist() == [7, 0, 9, 8]
    assert sparse.is_coalesced()
    with pytest.raises(ValueError, match="rows of one dimension"):
        IMAGES.to_sparse()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
def test_to_nested() -> None:
    assert [row.tolist() for row in NUMBERS.to_nested().unbind()] == [[7, 0], [], [9], [8]]
    assert NUMBERS.to_nested().layout == torch.jagged
    assert [row.tolist() for row in IMAGES.to_nested().unbind()] == IMAGES.tolist()


def test_strings_are_no_tensors() -> None:
    for method in (STRINGS.to_padded, STRINGS.to_nested, STRINGS.to_sparse):
        with pytest.raises(TypeError, match="torch has no tensor of strings"):
            method()


def test_ragged_without_rows_or_values() -> None:
    none = tfr.Ragged(torch.empty(0), torch.zeros(1, dtype=torch.int64))
    hollow = tfr.Ragged(torch.empty(0), torch.zeros(3, dtype=torch.int64))
    assert (len(none), none.tolist(), none.lengths.tolist()) == (0, [], [])
    assert hollow.tolist() == [[], []]
    assert [column.to_padded().shape for column in (none, hollow)] == [(0, 0), (2, 0)]
    assert [column.to_sparse().shape for column in (none, hollow)] == [(0, 0), (2, 0)]
    nested = [column.to_nested() for column in (none, hollow)]
    assert [tensor.size(0) for tensor in nested] == [0, 2]
    no_images = tfr.Ragged(torch.empty(0), torch.zeros(1, dtype=torch.int64), torch.empty(0, 3, dtype=torch.int64))
    assert no_images.to_padded().shape == (0, 0, 0, 0)


# --- what frameworks do to columns ------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", [NUMBERS, IMAGES, STRINGS, STRINGS.values], ids=repr)
def test_columns_survive_copies(column: Any) -> None:
    twins: list[Any] = [
        copy.copy,
        copy.deepcopy,
        lambda c: pickle.loads(pickle.dumps(c)),
        default_convert,
        lambda c: c.to("cpu"),
    ]
    for twin in (make_twin(column) for make_twin in twins):
        assert type(twin) is type(column)
        assert twin.tolist() == column.tolist()
    assert {tensor.device.type for tensor in tensors(column.to("meta"))} == {"meta"}


@pytest.mark.parametrize("column", [NUMBERS, STRINGS, STRINGS.values], ids=repr)
def test_columns_are_no_sequences_that_frameworks_walk(column: Any) -> None:
    assert not isinstance(column, list | tuple | Mapping)
    assert not hasattr(column, "__iter__")
    with pytest.raises(AttributeError, match="make a new"):  # a batch would not see it
        column.values = torch.zeros(3)
