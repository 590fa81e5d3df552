"""Batches of rows: by torch's ``default_collate`` and by `collate`."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from columns import FEATURES, content, expected, make, tensors
from torch.utils.data import default_collate

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
