"""Batches of rows: by torch's ``default_collate`` and by `collate`."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from columns import FEATURES, content, expected, make, tensors
from torch.utils.data import DataLoader, StackDataset, default_collate

import torch_tfrecord as tfr
from torch_tfrecord.batch import Row, Rows


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
    with pytest.raises(TypeError, match=r"float, which has no rows: .*collate_fn=tfr\.collate"):
        Rows(3.5, FEATURES)[0]


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
        return Row(values, FEATURES, values)

    stacked = tfr.collate([changed({"blob": torch.full((2, 2), i), "tokens": torch.zeros(2, 2)}) for i in range(3)])
    assert stacked["blob"].shape == stacked["tokens"].shape == (3, 2, 2)
    others = tfr.collate([changed({"name": "text", "words": 3.5}) for _ in range(2)])
    assert others["name"] == ["text", "text"]
    assert others["words"].tolist() == [3.5, 3.5]
    with pytest.raises(RuntimeError, match="tensors of column 'blob' differ in shape"):
        tfr.collate([changed({"blob": torch.zeros(i, 2)}) for i in range(2)])


@pytest.mark.parametrize("sizes", [[2], [2, 2], [1, 3]])
def test_the_type_of_a_column_does_not_depend_on_its_values(sizes: list[int]) -> None:
    """Values of any shape stay ragged where a transform left them as they were, and are stacked where it made them."""
    kept = [Row({"blob": torch.ones(size, 2), "new": torch.ones(2)}, FEATURES, ["new"]) for size in sizes]
    batch = tfr.collate(kept)
    assert type(batch["blob"]) is tfr.Ragged
    assert [list(batch["blob"][i].shape) for i in range(len(sizes))] == [[size, 2] for size in sizes]
    made = [Row({"blob": torch.ones(3, 2)}, FEATURES, ["blob"]) for _ in sizes]
    assert tfr.collate(made)["blob"].shape == (len(sizes), 3, 2)


# --- records inside of other things -----------------------------------------------------------------------------------


class Pair(NamedTuple):
    left: Any
    right: Any


def each(count: int = 5, start: int = 0) -> list[Row]:
    batch = make(count, start)
    return [Row(batch.row(i), FEATURES) for i in range(count)]


@pytest.mark.parametrize("kind", [lambda *pair: tuple(pair), lambda *pair: list(pair), Pair])
def test_pairs_of_records(kind: Any) -> None:
    pairs = [kind(*pair) for pair in zip(each(), each(5, 7), strict=True)]
    joined = tfr.collate(pairs)
    assert type(joined) is type(pairs[0])
    assert [type(part) for part in joined] == [tfr.Batch, tfr.Batch]
    assert [content(part) for part in joined] == [expected(), expected(5, 7)]


def test_records_beside_other_things() -> None:
    records, numbers, blobs = tfr.collate([(row, i, b"b" * i) for i, row in enumerate(each())])
    assert content(records) == expected()
    assert numbers.tolist() == [0, 1, 2, 3, 4]
    assert blobs == tfr.Bytes.from_list([b"b" * i for i in range(5)])
    inner = tfr.collate([(i, {"record": row, "id": i}) for i, row in enumerate(each())])[1]
    assert type(inner) is dict
    assert content(inner["record"]) == expected()
    assert inner["id"].tolist() == [0, 1, 2, 3, 4]
    views = tfr.collate([Row({"one": row, "two": (row, 1)}, FEATURES, ["one", "two"]) for row in each()])
    assert content(views["one"]) == content(views["two"][0]) == expected()


@pytest.mark.parametrize("workers", [0, 2])
def test_stack_dataset(tmp_path: Path, workers: int) -> None:
    features = {"n": tfr.FixedLenFeature((), torch.int64), "tokens": tfr.VarLenFeature(torch.int64)}
    with tfr.TFRecordWriter(tmp_path / "a") as writer:
        for i in range(6):
            writer.write_example({"n": i, "tokens": list(range(i))})
    dataset = tfr.TFRecordDataset(tmp_path / "a", features)
    for stack in (StackDataset(dataset, dataset[::-1]), StackDataset(one=dataset, two=dataset[::-1])):
        batches = [*DataLoader(stack, batch_size=3, collate_fn=tfr.collate, num_workers=workers)]
        first = [batch[0 if isinstance(batch, tuple) else "one"] for batch in batches]
        second = [batch[1 if isinstance(batch, tuple) else "two"] for batch in batches]
        assert [batch["n"].tolist() for batch in first] == [[0, 1, 2], [3, 4, 5]]
        assert [batch["tokens"].lengths.tolist() for batch in second] == [[5, 4, 3], [2, 1, 0]]


def test_records_in_things_that_differ() -> None:
    row = each(1)[0]
    for pair in ([(row, 1), (row,)], [(row, 1), row]):
        with pytest.raises(ValueError, match="the tuples of a batch differ in length"):
            tfr.collate(pair)
    for dicts in ([{"a": row}, {"b": row}], [{"a": row}, (row,)]):
        with pytest.raises(ValueError, match="the dicts of a batch have different keys"):
            tfr.collate(dicts)


def test_tensors_that_cannot_be_stacked_are_named() -> None:
    rows = [Row({"new": torch.zeros(i)}, FEATURES, ["new"]) for i in range(3)]
    with pytest.raises(RuntimeError, match=r"collate: tensors of column 'new' differ in shape .*; pad them"):
        tfr.collate(rows)
    with pytest.raises(RuntimeError, match=r"collate: tensors of column 'label' differ in shape"):
        tfr.collate([Row({"label": torch.zeros(i)}, FEATURES, ["label", "tokens"]) for i in range(3)])
    with pytest.raises(RuntimeError, match=r"collate: tensors of column 'tokens' differ in shape"):
        tfr.collate([Row({"tokens": torch.zeros(i, 2)}, FEATURES, ["label", "tokens"]) for i in range(3)])
    with pytest.raises(RuntimeError, match=r"collate: tensors of the records differ in shape"):
        tfr.collate([(torch.zeros(i), 1) for i in range(3)])
