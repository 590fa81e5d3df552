"""`Batch`, `Ragged`, `Bytes`: what they hold, what survives what is done to containers, and whose memory it is."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate, default_convert
from torch.utils.data._utils.pin_memory import pin_memory

import torch_tfrecord as tfr
from torch_tfrecord.batch import Row, Rows

FEATURES = {
    "label": tfr.FixedLenFeature((), torch.int64),
    "weights": tfr.FixedLenFeature((2,), torch.float32),
    "name": tfr.FixedLenFeature((), bytes),
    "pair": tfr.FixedLenFeature((2,), bytes),
    "tokens": tfr.VarLenFeature(torch.int64),
    "words": tfr.VarLenFeature(bytes),
    "blob": tfr.FixedLenFeature((), bytes, decode=tfr.DecodeRaw(torch.uint8, (-1, 2))),
    "bonus": tfr.FixedLenFeature((), torch.int64, 7),
}


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    """What the records of a batch hold, as plain Python."""
    return [
        {
            "label": i,
            "weights": [i + 0.5, -i],
            "name": b"n%d" % i,
            "pair": [b"a" * (i % 3), b"b%d" % i],
            "tokens": list(range(i % 4)),
            "words": [b"w" * j for j in range(i % 3)],
            "blob": np.arange(2 * (i % 3), dtype=np.uint8).reshape(-1, 2).tolist(),
            "bonus": 7,
        }
        for i in range(start, start + count)
    ]


def make(count: int = 5, start: int = 0, features: Mapping[str, Any] | None = None) -> tfr.Batch:
    records = []
    for row in rows(count, start):
        stored = {**row, "blob": bytes(byte for pair in row["blob"] for byte in pair)}
        del stored["bonus"]
        records.append(tfr.encode_example(stored))
    return tfr.parse_example(records, features or FEATURES)


def content(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: column.tolist() for name, column in batch.items()}


def expected(count: int = 5, start: int = 0) -> dict[str, Any]:
    return {name: [row[name] for row in rows(count, start)] for name in FEATURES}


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors inside a batch or a column."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for column in value.values():
            yield from tensors(column)
    elif isinstance(value, tfr.Bytes | tfr.Ragged):
        for part in vars(value).values():
            yield from tensors(part)


def span(tensor: torch.Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


# --- Batch ------------------------------------------------------------------------------------------------------------


def test_a_batch_is_a_dict_of_columns() -> None:
    batch = make()
    assert isinstance(batch, dict)
    assert len(batch) == len(FEATURES)
    assert list(batch) == list(FEATURES)
    assert batch.num_records == 5
    assert content(batch) == expected()
    assert [type(column) for column in batch.values()] == [torch.Tensor] * 2 + [tfr.Bytes] * 2 + [tfr.Ragged] * 3 + [
        torch.Tensor
    ]
    assert [batch.row(i)["name"] for i in (0, -1)] == [b"n0", b"n4"]


def test_what_is_known_of_the_rows() -> None:
    batch = make()
    assert batch.record_ids is not None
    assert batch.record_ids.tolist() == [0, 1, 2, 3, 4]
    assert batch.record_ids.dtype == torch.int64
    assert batch.valid.tolist() == [True] * 5
    assert batch.valid.dtype == torch.bool
    assert {name: lengths.tolist() for name, lengths in batch.lengths.items()} == {
        "tokens": [0, 1, 2, 3, 0],
        "words": [0, 1, 2, 0, 1],
        "blob": [0, 2, 4, 0, 2],
    }
    assert (batch.num_defaulted, batch.num_duplicates) == (5, 0)


def test_batch_of_a_plain_mapping() -> None:
    batch = tfr.Batch({"scalar": torch.tensor(1), "x": torch.zeros(3, 2)})
    assert batch.num_records == 3
    assert batch.record_ids is None
    assert batch.valid.tolist() == [True] * 3
    assert batch.lengths == {}
    assert tfr.Batch().num_records == 0


def test_printed_batch_says_shapes_not_values() -> None:
    assert repr(make(2, features={name: FEATURES[name] for name in ("label", "weights", "name", "words")})) == (
        "Batch(2 records)\n  'label': int64[2]\n  'weights': float32[2, 2]\n"
        "  'name': Bytes(2 rows, 4 bytes)\n  'words': Ragged(2 rows, 1 values of bytes)"
    )


def copies() -> dict[str, Any]:
    def saved(batch: tfr.Batch) -> Any:
        memory = io.BytesIO()
        torch.save(batch, memory)
        memory.seek(0)
        return torch.load(memory, weights_only=False)

    return {
        "copy.copy": copy.copy,
        "dict.copy": lambda batch: batch.copy(),
        "deepcopy": copy.deepcopy,
        "pickle": lambda batch: pickle.loads(pickle.dumps(batch)),
        "torch.save": saved,
        "Batch(batch)": tfr.Batch,
        "type(batch)(batch)": lambda batch: type(batch)(batch),
        "default_convert": default_convert,
        "to(cpu)": lambda batch: batch.to("cpu"),
        "to(cpu, copy)": lambda batch: batch.to("cpu", copy=True),
        "compact": lambda batch: batch.compact(),
    }


@pytest.mark.parametrize("how", copies())
def test_copies_hold_the_same(how: str) -> None:
    batch = make()
    batch.valid[3] = False
    twin = copies()[how](batch)
    assert type(twin) is tfr.Batch
    assert content(twin) == expected()
    assert twin.record_ids is not None
    assert twin.record_ids.tolist() == [0, 1, 2, 3, 4]
    assert twin.valid.tolist() == [True, True, True, False, True]
    assert (twin.num_records, twin.num_defaulted, twin.num_duplicates) == (5, 5, 0)


@pytest.mark.parametrize("how", copies())
def test_changed_columns_survive_copies(how: str) -> None:
    batch = make()
    del batch["weights"]
    batch["label"] = batch["label"] * 2
    batch["new"] = torch.arange(5) + 100
    batch["note"] = "not a tensor"
    batch["tokens"] = tfr.Ragged(batch["tokens"].values + 1, batch["tokens"].offsets)
    twin = copies()[how](batch)
    names = [name for name in FEATURES if name != "weights"]
    assert list(twin) == [*names, "new", "note"]
    assert twin.pop("note") == "not a tensor"
    changed = {
        **{name: expected()[name] for name in names},
        "label": [0, 2, 4, 6, 8],
        "tokens": [[], [1], [1, 2], [1, 2, 3], []],
        "new": [100, 101, 102, 103, 104],
    }
    assert content(twin) == changed
    assert twin.record_ids.tolist() == [0, 1, 2, 3, 4]
    assert twin.num_records == 5


@pytest.mark.parametrize("how", copies())
def test_renamed_and_reordered_columns_survive_copies(how: str) -> None:
    features = {"label": FEATURES["label"], "bonus": FEATURES["bonus"]}
    renamed = make(3, features=features)
    renamed["extra"] = renamed.pop("bonus")
    assert content(copies()[how](renamed)) == {"label": [0, 1, 2], "extra": [7, 7, 7]}
    reordered = make(3, features=features)
    reordered["label"] = reordered.pop("label")
    assert next(iter(copies()[how](reordered))) == "bonus"


def test_values_changed_in_place_survive() -> None:
    batch = make()
    batch["label"] += 10
    batch["tokens"].values.mul_(3)
    for how in copies().values():
        twin = how(batch)
        assert twin["label"].tolist() == [10, 11, 12, 13, 14]
        assert twin["tokens"].tolist() == [[], [0], [0, 3], [0, 3, 6], []]


def test_rebuilt_by_type_from_plain_dicts() -> None:
    batch = make()
    for plain in (dict(batch), OrderedDict(batch)):
        twin = type(batch)(plain)
        assert type(twin) is tfr.Batch
        assert content(twin) == expected()
        assert twin.num_records == 5
        assert content(twin.to("cpu", copy=True)) == expected()


def test_pickle_is_about_as_large_as_the_data() -> None:
    batch = make(1000)
    size = sum(tensor.nbytes for tensor in tensors(batch))
    assert len(pickle.dumps(batch)) < size + 8 * 1000 + 4000
    batch["new"] = torch.zeros(1000, dtype=torch.int64)
    assert len(pickle.dumps(batch)) < size + 16 * 1000 + 12_000  # the arena is not written beside its columns
    batch = make(1000)
    assert len(pickle.dumps(batch["name"])) < batch["name"].values.nbytes + 8 * 1001 + 2000
    assert len(pickle.dumps(batch["tokens"])) < batch["tokens"].values.nbytes + 8 * 1001 + 2000


# --- devices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changed", [False, True])
def test_to_moves_every_tensor(changed: bool) -> None:
    batch = make()
    batch.valid[0] = False
    if changed:
        batch["new"] = torch.zeros(5)
    for moved in (batch.to("meta"), batch.to(torch.device("meta"), non_blocking=True), batch.to(device="meta")):
        assert type(moved) is tfr.Batch
        assert list(moved) == list(batch)
        assert {tensor.device.type for tensor in tensors(moved)} == {"meta"}
        assert moved.record_ids is not None
        assert moved.record_ids.device.type == moved.valid.device.type == "meta"
        for old, new in zip(tensors(batch), tensors(moved), strict=True):
            assert (old.dtype, old.shape) == (new.dtype, new.shape)
        assert moved.num_records == 5
    assert content({name: batch[name] for name in FEATURES}) == expected()


def test_to_where_it_is_copies_nothing() -> None:
    batch = make()
    assert batch.to("cpu") is batch
    batch["new"] = torch.zeros(5)
    assert [tensor.data_ptr() for tensor in tensors(batch.to("cpu"))] == [
        tensor.data_ptr() for tensor in tensors(batch)
    ]


def test_to_refuses_dtypes() -> None:
    batch = make()
    for arguments in ((torch.float16,), ("cpu", torch.float16), (torch.zeros(1),)):
        for value in (batch, batch["name"], batch["tokens"]):
            with pytest.raises(TypeError, match="not a dtype"):
                value.to(*arguments)
    with pytest.raises(TypeError, match="not a dtype"):
        batch.to(dtype=torch.float16)


def test_pin_memory() -> None:
    batch = make()
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError):  # torch has nothing to pin memory for: it was asked, and says so
            pin_memory(batch)  # type: ignore[no-untyped-call]
        return
    pinned = pin_memory(batch)  # type: ignore[no-untyped-call]
    assert type(pinned) is tfr.Batch
    assert all(tensor.is_pinned() for tensor in tensors(pinned))
    assert len({span(tensor) for tensor in tensors(pinned)}) == 1
    assert content(pinned) == expected()


# --- memory -----------------------------------------------------------------------------------------------------------


def test_columns_are_views_of_one_block() -> None:
    batch = make()
    assert len({span(tensor) for tensor in tensors(batch)}) == 1
    assert all(tensor.data_ptr() % 8 == 0 for tensor in tensors(batch))
    ends = sorted((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in tensors(batch) if tensor.nbytes)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ends))


def test_a_block_is_not_given_out_while_a_view_lives() -> None:
    views: list[Any] = []
    for i in range(6):
        batch = make(start=10 * i)
        views.append([batch["label"], batch["name"], batch["tokens"][2], batch["weights"][1]][i % 4])
        del batch
    gc.collect()
    later = [make(start=500 + i) for i in range(6)]
    assert len({span(tensor) for batch in later for tensor in tensors(batch)}) == 6
    assert views[0].tolist() == [0, 1, 2, 3, 4]
    assert views[1].tolist() == [b"n10", b"n11", b"n12", b"n13", b"n14"]
    assert views[2].tolist() == [0, 1]
    assert views[3].tolist() == [31.5, -31.0]
    assert views[4].tolist() == [40, 41, 42, 43, 44]


@pytest.mark.skipif(tfr.backend == "python", reason="only the native core keeps blocks")
def test_a_block_is_used_again_when_its_last_view_is_gone() -> None:
    first = make()
    where = span(first["label"])
    last_view = first["weights"][1:]
    del first
    second = make()
    assert span(second["label"]) != where
    del last_view
    third = make()
    assert span(third["label"]) == where
    assert content(third) == content(second) == expected()


@pytest.mark.skipif(tfr.backend == "python", reason="only the native core keeps blocks")
def test_compact_lets_go_of_the_block() -> None:
    batch = make()
    where = span(batch["label"])
    kept = batch.compact("label", "name", "tokens")
    del batch
    assert span(make()["label"]) == where
    assert content(kept) == {name: expected()[name] for name in ("label", "name", "tokens")}
    assert kept.record_ids is not None
    assert kept.record_ids.tolist() == [0, 1, 2, 3, 4]


def test_compact_is_small_to_save() -> None:
    batch = make(2000)
    assert batch["label"].untyped_storage().nbytes() > 100_000
    for value in (batch.compact("label"), batch.compact("label")["label"]):
        memory = io.BytesIO()
        torch.save(value, memory)
        assert len(memory.getvalue()) < 2 * 16_000 + 4000
    with pytest.raises(KeyError):
        batch.compact("no such column")


def test_columns_are_ordinary_cpu_tensors_in_any_mode() -> None:
    with torch.device("meta"):
        batch = make()
        joined = tfr.collate([Row(batch.row(i), FEATURES) for i in range(5)])
        assert {tensor.device.type for tensor in (*tensors(batch), *tensors(joined), batch.valid)} == {"cpu"}
        assert batch.record_ids is not None
        assert batch.record_ids.device.type == "cpu"
        assert batch["tokens"].to_sparse().device.type == batch["tokens"].to_padded().device.type == "cpu"
    assert content(batch) == content(joined) == expected()
    with torch.inference_mode():
        batch = make()
    assert not any(tensor.is_inference() for tensor in tensors(batch))
    batch["weights"].requires_grad_().sum().backward()


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


def test_rows_of_a_batch_for_default_collate() -> None:
    batch = make(4, features={name: FEATURES[name] for name in ("label", "weights", "name")})
    view = Rows(batch, FEATURES)
    assert len(view) == 4
    assert view.batch is batch
    assert [row["label"].item() for row in view] == [0, 1, 2, 3]  # type: ignore[attr-defined]
    assert view[-1]["name"] == b"n3"
    for wrong in (4, -5):
        with pytest.raises(IndexError):
            view[wrong]
    joined = default_collate(view)  # type: ignore[arg-type]
    assert type(joined) is dict
    assert torch.equal(joined["weights"], batch["weights"])
    assert joined["name"] == [b"n0", b"n1", b"n2", b"n3"]
    with pytest.raises(TypeError, match=r"list, which has no rows: use collate_fn=tfr\.collate"):
        Rows([1, 2], FEATURES)[0]


def test_collate_makes_the_same_columns_of_rows() -> None:
    batch = make()
    assert tfr.collate(Rows(batch, FEATURES)) is batch
    rows_of_it = [pickle.loads(pickle.dumps(Row(batch.row(i), FEATURES))) for i in range(5)]
    joined = tfr.collate(rows_of_it)
    assert type(joined) is tfr.Batch
    assert content(joined) == expected()
    assert [type(column) for column in joined.values()] == [type(column) for column in batch.values()]
    assert [tensor.dtype for tensor in tensors(joined)] == [tensor.dtype for tensor in tensors(batch)]
    assert tfr.collate(batch) is batch


def test_collate_of_other_things() -> None:
    assert tfr.collate([b"a", b"bc"]) == tfr.Bytes.from_list([b"a", b"bc"])
    assert tfr.collate([1, 2]).tolist() == [1, 2]
    assert tfr.collate(["a", "b"]) == ["a", "b"]
    assert tfr.collate([(torch.zeros(2), 1), (torch.ones(2), 2)])[1].tolist() == [1, 2]


def test_collate_of_rows_that_differ() -> None:
    row = Row({"label": torch.tensor(1)}, FEATURES)
    more = Row({"label": torch.tensor(1), "new": 2}, FEATURES)
    for pair in ([row, more], [more, row]):
        with pytest.raises(KeyError, match="column 'new' is in some rows of the batch, but not in all"):
            tfr.collate(pair)


def test_collate_of_rows_that_a_transform_changed() -> None:
    def changed(values: dict[str, Any]) -> Row:
        return Row(values, FEATURES, exact=False)

    stacked = tfr.collate([changed({"blob": torch.full((2, 2), i), "tokens": torch.zeros(2, 2)}) for i in range(3)])
    assert stacked["blob"].shape == stacked["tokens"].shape == (3, 2, 2)
    ragged = tfr.collate([changed({"blob": torch.zeros(i, 2), "name": "text", "words": 3.5}) for i in range(2)])
    assert [row.shape for row in ragged["blob"]] == [(0, 2), (1, 2)]
    assert ragged["name"] == ["text", "text"]
    assert ragged["words"].tolist() == [3.5, 3.5]
