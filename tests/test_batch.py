"""`Batch`: what it holds, what survives what is done to containers, and whose memory it is."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from collections import OrderedDict
from itertools import pairwise
from typing import Any

import pytest
import torch
from columns import FEATURES, content, expected, make, span, tensors
from torch.utils.data import default_convert
from torch.utils.data._utils.pin_memory import pin_memory

import torch_tfrecord as tfr
from torch_tfrecord.batch import Row


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
        "  'name': Bytes(2 rows, 4 bytes)\n  'words': Ragged(2 rows, 1 value of bytes)"
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
@pytest.mark.parametrize("name", ["label", "name", "tokens"])
def test_one_replaced_column_survives_copies(how: str, name: str) -> None:
    batch = make()
    batch[name] = torch.arange(5) * 11
    assert content(copies()[how](batch)) == {**expected(), name: [0, 11, 22, 33, 44]}
    assert list(batch) == list(FEATURES)


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
        for value in (batch, batch["name"]):
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
