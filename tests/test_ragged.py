"""`Ragged` and `Bytes`: their rows, what else they can become, and that frameworks leave them whole."""

from __future__ import annotations

import copy
import io
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
    assert column[np.int64(2)] == column[torch.tensor(2)] == b"\x00\xff"
    for wrong in (4, -5):
        with pytest.raises(IndexError, match=f"row {wrong} of a column of 4 rows"):
            column[wrong]
    with pytest.raises(TypeError):
        column[1.0]  # type: ignore[call-overload]


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


# --- some of the rows -------------------------------------------------------------------------------------------------

PAIRS = tfr.Bytes.from_list([b"%d" % i * i for i in range(8)])
PAIRS = tfr.Bytes(PAIRS.values, PAIRS.offsets, (2,))
HOLLOW = tfr.Bytes(torch.empty(0, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64), (2, 0), rows=4)
POINTS = tfr.Ragged(torch.arange(10).view(5, 2), torch.tensor([0, 2, 2, 3, 5]))
COLUMNS = [NUMBERS, IMAGES, STRINGS, STRINGS.values, PAIRS, HOLLOW, POINTS]
SLICES = [slice(None), slice(1, None), slice(1, 2), slice(2, 1), slice(-2, None), slice(None, None, 2)]
SLICES += [slice(None, None, -1), slice(100, 200), slice(-1, None, -2)]


def same(column: Any, rows: list[Any], of: Any) -> None:
    assert type(column) is type(of)
    assert (len(column), column.tolist()) == (len(rows), rows)
    assert getattr(column, "shape", None) == getattr(of, "shape", None)
    assert column.offsets[0] == 0
    assert column.offsets.dtype == torch.int64
    assert pickle.loads(pickle.dumps(column)).tolist() == rows
    if isinstance(of, tfr.Ragged):
        assert column.dtype == of.dtype
        assert column.lengths.tolist() == column.offsets.diff().tolist()
        assert len(column.values) == column.offsets[-1]


@pytest.mark.parametrize("column", COLUMNS, ids=repr)
def test_slices(column: Any) -> None:
    rows = column.tolist()
    for index in SLICES:
        same(column[index], rows[index], column)
        same(column[1:][index], rows[1:][index], column)  # of what is a view already


@pytest.mark.parametrize("column", COLUMNS, ids=repr)
def test_indices_and_masks(column: Any) -> None:
    rows = column.tolist()
    for places in ([1, 0, 1], [-1], [], [0], [-2, 1]):
        wanted = [rows[i] for i in places]
        kinds: list[Any] = [list, lambda p: np.array(p, np.int32), lambda p: torch.tensor(p, dtype=torch.int64)]
        for kind in kinds:
            same(column[kind(places)], wanted, column)
    same(column[range(2)], rows[:2], column)
    same(column[[torch.tensor(1), np.int8(0)]], [rows[1], rows[0]], column)
    mask = [i % 2 == 1 for i in range(len(rows))]
    for kept in (mask, np.array(mask), torch.tensor(mask)):
        same(column[kept], rows[1::2], column)
    same(column[torch.zeros(len(rows), dtype=torch.bool)], [], column)


def test_slices_are_views_and_others_are_copies() -> None:
    numbers: Any = NUMBERS
    base = numbers.values.data_ptr()
    assert numbers[2:].values.data_ptr() == base + 2 * 8
    assert PAIRS[1:].values.data_ptr() == PAIRS.values.data_ptr() + 1
    assert numbers[[0, 1]].values.data_ptr() != base


@pytest.mark.parametrize("column", [NUMBERS, PAIRS], ids=repr)
def test_rows_that_cannot_be_selected(column: Any) -> None:
    wrong: Any
    for wrong in ([0, 4], np.array([4, 1]), torch.tensor([-5, 4]), range(5), [1 << 62]):
        with pytest.raises(IndexError, match=r"row (4|-5|46\d+) of a column of 4 rows"):
            column[wrong]
    for wrong in ([True], np.zeros(5, bool), torch.zeros(4, 1, dtype=torch.bool)):
        with pytest.raises(IndexError, match=r"a mask of shape .* for a column of 4 rows"):
            column[wrong]
    with pytest.raises(IndexError, match="indices of one dimension"):
        column[torch.zeros(2, 2, dtype=torch.int64)]
    for wrong in ([1.0], ["a"], torch.tensor([0.5])):
        with pytest.raises(TypeError, match="rows are selected by a slice, ints or a mask of bools, not by"):
            column[wrong]
    for wrong in ((0, 1), None, "a", 1.5, ...):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            column[wrong]


# --- padding, masks and casts -----------------------------------------------------------------------------------------


def test_max_length_cuts_or_pads() -> None:
    assert NUMBERS.to_padded(-1, max_length=1).tolist() == [[7], [-1], [9], [8]]
    assert NUMBERS.to_padded(-1, max_length=3).tolist() == [[7, 0, -1], [-1] * 3, [9, -1, -1], [8, -1, -1]]
    assert NUMBERS.to_padded(max_length=0).shape == (4, 0)
    assert NUMBERS.to_padded(max_length=(2,)).equal(NUMBERS.to_padded())
    assert POINTS.to_padded(max_length=1).tolist() == [[[0, 1]], [[0, 0]], [[4, 5]], [[6, 7]]]
    assert IMAGES.to_padded(9, max_length=(2, None)).tolist() == [[[0, 1], [9, 9]], [[2, 3], [4, 5]]]
    assert IMAGES.to_padded(9, max_length=(1, 3)).tolist() == [[[0, 1, 9]], [[2, 3, 9]]]
    for wrong in (1, 0, (1,), (1, 2, 3)):
        with pytest.raises(ValueError, match="rows have 2 dimensions: give a size for each"):
            IMAGES.to_padded(max_length=wrong)
    with pytest.raises(ValueError, match="max_length is -1: a length cannot be negative"):
        NUMBERS.to_padded(max_length=-1)


@pytest.mark.parametrize("column", [NUMBERS, IMAGES, POINTS, NUMBERS[1:], NUMBERS[:0]], ids=repr)
def test_mask_is_false_where_padding_is(column: tfr.Ragged) -> None:
    values: Any = column.values
    ones = tfr.Ragged(torch.ones_like(values), column.offsets, column.shapes)
    for scale in (None, 1, 5):
        dims = 1 if column.shapes is None else column.shapes.shape[1]
        limits = None if scale is None else (scale,) * dims
        mask, padded = column.mask(max_length=limits), ones.to_padded(max_length=limits)
        assert mask.dtype == torch.bool
        assert mask.shape == padded.shape[: 1 + dims]
        assert torch.equal(mask.view(*mask.shape, *(1,) * (padded.dim() - mask.dim())).expand_as(padded), padded == 1)
    assert STRINGS.mask().tolist() == [[False, False], [True, True], [True, False]]


def test_offsets_that_do_not_begin_at_0_or_end_early() -> None:
    part = tfr.Ragged(torch.tensor([5, 6, 7, 8, 9]), torch.tensor([1, 2, 4]))
    assert part.tolist() == [[6], [7, 8]]
    assert part.to_padded().tolist() == part.to_sparse().to_dense().tolist() == [[6, 0], [7, 8]]
    assert part.to_padded(max_length=1).tolist() == [[6], [7]]
    same(part[:1], [[6]], part)
    same(part[[1, 0]], [[7, 8], [6]], part)
    names = tfr.Bytes(torch.tensor([*b"abcd"], dtype=torch.uint8), torch.tensor([1, 3, 4]))
    assert names.tolist() == [b"bc", b"d"]
    same(names[1:], [b"d"], names)
    same(names[[1, 0]], [b"d", b"bc"], names)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
def test_nested_of_some_rows() -> None:
    part = tfr.Ragged(torch.tensor([5, 6, 7, 8, 9]), torch.tensor([1, 2, 4]))
    assert [row.tolist() for row in part.to_nested().unbind()] == [[6], [7, 8]]


def test_padding_that_the_dtype_does_not_hold() -> None:
    bytes_ = tfr.Ragged(torch.tensor([1], dtype=torch.uint8), torch.tensor([0, 1, 1]))
    for column, value in [(NUMBERS, 1.5), (NUMBERS, float("nan")), (bytes_, -1), (bytes_, 256), (NUMBERS, 1j)]:
        with pytest.raises(ValueError, match=r"is not of torch\..*; cast the column first"):
            column.to_padded(value)  # type: ignore[arg-type]
    for wrong in ("x", None, [0], torch.zeros(2)):
        with pytest.raises(TypeError, match=r"to_padded: value is .*, not a number"):
            NUMBERS.to_padded(wrong)  # type: ignore[arg-type]
    assert NUMBERS.to_padded(torch.tensor(3))[1].tolist() == NUMBERS.to_padded(np.int8(3))[1].tolist() == [3, 3]  # type: ignore[arg-type]
    assert NUMBERS.to(torch.float32).to_padded(0.1)[1, 0].item() == pytest.approx(0.1)
    assert NUMBERS.to(torch.float32).to_padded(float("nan"))[1].isnan().all()


def test_casts_are_of_the_values_alone() -> None:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((torch.float16,), {}),
        ((), {"dtype": torch.float16}),
        (("cpu", torch.float16, True), {}),
        (("cpu",), {"dtype": torch.float16, "copy": True}),
    ]
    for arguments, options in calls:
        for column in (NUMBERS, IMAGES):
            cast = column.to(*arguments, **options)
            assert cast.dtype == torch.float16
            assert cast.offsets.dtype == torch.int64
            assert cast.tolist() == column.tolist()
            assert cast.shapes is None or cast.shapes.dtype == torch.int64
    for strings in (STRINGS, STRINGS.values):
        with pytest.raises(TypeError, match="to\\(\\) takes a device here, not a dtype"):
            strings.to(torch.uint8)
    with pytest.raises(TypeError, match="or a tensor"):
        NUMBERS.to(torch.zeros(1))


def test_what_a_column_says_of_itself() -> None:
    assert (NUMBERS.dtype, STRINGS.dtype) == (torch.int64, bytes)
    assert NUMBERS.device == torch.device("cpu")
    assert NUMBERS.to("meta").device == torch.device("meta")
    assert repr(NUMBERS[3:]) == "Ragged(1 row, 1 value of torch.int64)"
    assert repr(STRINGS[:0]) == "Ragged(0 rows, 0 values of bytes)"
    assert repr(tfr.Bytes.from_list([b"a"])) == "Bytes(1 row, 1 byte)"
    with pytest.raises(IndexError, match=r"row 1 of a column of 1 row$"):
        NUMBERS[3:][1]


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


@pytest.mark.parametrize("column", COLUMNS, ids=repr)
def test_columns_are_loaded_without_running_code(column: Any) -> None:
    file = io.BytesIO()
    torch.save({"column": column}, file)
    file.seek(0)
    with torch.serialization.safe_globals([tfr.Bytes, tfr.Ragged]):
        twin = torch.load(file, weights_only=True)["column"]
    assert (type(twin), len(twin), twin.tolist()) == (type(column), len(column), column.tolist())


@pytest.mark.parametrize("column", [NUMBERS, STRINGS, STRINGS.values], ids=repr)
def test_columns_are_no_sequences_that_frameworks_walk(column: Any) -> None:
    assert not isinstance(column, list | tuple | Mapping)
    assert not hasattr(column, "__iter__")
    with pytest.raises(AttributeError, match="make a new"):  # a batch would not see it
        column.values = torch.zeros(3)
