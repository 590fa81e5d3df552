"""`TFRecordDataset.select`: some of the records, as a data set of their own."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numbered import FEATURES, ID, ids, plain, row, write_shards
from torch.utils.data import DataLoader, Subset, random_split

import torch_tfrecord as tfr


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> tfr.TFRecordDataset:
    return tfr.TFRecordDataset(write_shards(tmp_path_factory.mktemp("select"), [12, 0, 8]), FEATURES)


@pytest.mark.parametrize(
    "which",
    [
        [7, 3, -1, 3],
        (7, 3, -1, 3),
        np.array([7, 3, 19, 3], np.uint8),
        torch.tensor([7, 3, -1, 3]),
        [np.int64(7), torch.tensor(3), -1, 3],
    ],
)
def test_places_of_any_kind(dataset: tfr.TFRecordDataset, which: Any) -> None:
    part = dataset.select(which)
    assert type(part) is tfr.TFRecordDataset
    assert [plain(record) for record in part] == [row(i) for i in (7, 3, 19, 3)]
    assert [plain(part[-i]) for i in (1, 2, 3, 4)] == [row(i) for i in (3, 19, 3, 7)]
    batch = part.read_batch([2, 0])
    assert batch["id"].tolist() == [19, 7]
    assert batch.record_ids.tolist() == [19, 7]  # the records' numbers in the files, not their places in the part
    assert (len(part), len(dataset)) == (4, 20)


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_masks_of_any_kind(dataset: tfr.TFRecordDataset, kind: Any) -> None:
    mask = [i % 3 == 1 for i in range(20)]
    assert ids(dataset.select(kind(mask))) == list(range(1, 20, 3))
    assert ids(dataset[10:].select(kind([True, *[False] * 8, True]))) == [10, 19]
    assert len(dataset.select(kind([False] * 20))) == 0


places = st.lists(st.integers(-20, 19), max_size=30)


@given(places, st.data())
def test_a_selection_of_a_selection_is_as_of_a_list(
    dataset: tfr.TFRecordDataset, first: list[int], data: st.DataObject
) -> None:
    numbers = [range(20)[i] for i in first]
    part = dataset.select(first)
    assert ids(part) == numbers
    cut = data.draw(st.slices(len(first)))
    assert ids(part[cut]) == numbers[cut]
    if first:
        second = data.draw(st.lists(st.integers(-len(first), len(first) - 1), max_size=30))
        assert ids(part.select(second)) == [numbers[i] for i in second]
    mask = data.draw(st.lists(st.booleans(), min_size=len(first), max_size=len(first)))
    assert ids(part.select(mask)) == [number for number, wanted in zip(numbers, mask, strict=True) if wanted]


@given(places, places)
def test_fingerprints_are_equal_where_the_records_are(
    dataset: tfr.TFRecordDataset, first: list[int], second: list[int]
) -> None:
    one, other = dataset.select(first), dataset.select(second)
    assert (one.fingerprint == other.fingerprint) == (ids(one) == ids(other))
    assert one.fingerprint == dataset.select([0, *first])[1:].fingerprint


def test_fingerprints_do_not_depend_on_how_it_is_written(dataset: tfr.TFRecordDataset) -> None:
    whole = dataset.fingerprint
    assert whole == dataset.index.fingerprint
    for same in (dataset[:], dataset.select(range(20)), dataset.select([True] * 20), dataset[::-1][::-1]):
        assert same.fingerprint == whole
    assert dataset[0:19:3].fingerprint == dataset[0:20:3].fingerprint != whole
    assert dataset[5:5].fingerprint == dataset[20:].fingerprint == dataset.select([]).fingerprint != whole
    assert dataset[4:5].fingerprint == dataset[4::30].fingerprint == dataset.select([4]).fingerprint
    backwards, doubled, other = dataset[::-1], dataset.select([*range(19), 18]), dataset.select([*range(18), 19, 18])
    assert len({part.fingerprint for part in (dataset, backwards, doubled, other, dataset[1:])}) == 5
    assert all(len(part.fingerprint) == 32 for part in (dataset, other))


@given(st.builds(range, st.integers(-22, 22), st.integers(-22, 22), st.integers(-7, 7).filter(bool)))
def test_ranges_are_as_lists(dataset: tfr.TFRecordDataset, which: range) -> None:
    for data in (dataset, dataset[::-1], dataset.select([*range(10), *range(15, 9, -1), 5, 5, 5, 5])):
        try:
            expected = data.select(list(which))
        except IndexError:
            with pytest.raises(IndexError, match=f"of a data set of {len(data)} records"):
                data.select(which)
        else:
            assert ids(data.select(which)) == ids(expected)
            assert data.select(which).fingerprint == expected.fingerprint


def test_an_empty_data_set(tmp_path: Path) -> None:
    nothing = tfr.TFRecordDataset(write_shards(tmp_path, [0]), ID)
    for part in (nothing.select([]), nothing.select(np.zeros(0, bool)), nothing[:]):
        assert len(part) == 0
        assert part.fingerprint == nothing.fingerprint
        assert part.read_batch([]).num_records == 0
    with pytest.raises(IndexError, match="record 0 of a data set of 0 records"):
        nothing.select([0])


def test_what_cannot_be_selected(dataset: tfr.TFRecordDataset) -> None:
    for wrong in (20, -21, 2**62):
        with pytest.raises(IndexError, match=f"record {wrong} of a data set of 20 records"):
            dataset.select([0, wrong])
    with pytest.raises(IndexError, match=r"a mask of shape \(19,\) for a data set of 20 records"):
        dataset.select([True] * 19)
    with pytest.raises(IndexError, match=r"a mask of shape \(20, 1\)"):
        dataset.select(np.ones((20, 1), bool))
    for shape in (5, [[1, 2]]):
        with pytest.raises(TypeError, match="a list of numbers or a mask"):
            dataset.select(shape)  # type: ignore[arg-type]
    for other in ([1.5], ["1"]):
        with pytest.raises(TypeError, match="records are read by integers"):
            dataset.select(other)  # type: ignore[arg-type]


def test_later_changes_to_the_list_change_nothing(dataset: tfr.TFRecordDataset) -> None:
    numbers = np.array([5, 2, 2])
    part = dataset.select(numbers)
    before = part.fingerprint
    numbers[:] = 0
    assert ids(part) == [5, 2, 2]
    assert part.fingerprint == before


def test_it_crosses_processes(dataset: tfr.TFRecordDataset) -> None:
    part = dataset.select([5, 2, 2, 11])
    back = pickle.loads(pickle.dumps(part))
    assert (ids(back), back.fingerprint) == ([5, 2, 2, 11], part.fingerprint)
    batches = list(DataLoader(part, 3, num_workers=2, collate_fn=tfr.collate))
    assert [batch["id"].tolist() for batch in batches] == [[5, 2, 2], [11]]
    assert [batch.record_ids.tolist() for batch in batches] == [[5, 2, 2], [11]]


def test_the_loader_takes_torchs_subsets(dataset: tfr.TFRecordDataset) -> None:
    train, rest = random_split(dataset, [15, 5], torch.Generator().manual_seed(0))
    for part in (train, rest):
        numbers = torch.cat([batch["id"] for batch in tfr.TFRecordLoader(part, 4)])
        assert numbers.tolist() == list(part.indices)
    nested = Subset(Subset(dataset, [9, 7, 5, 3]), [2, 0])
    loader = tfr.TFRecordLoader(nested, 4)
    assert [batch["id"].tolist() for batch in loader] == [[5, 9]]
    assert loader.dataset.fingerprint == dataset.select([5, 9]).fingerprint
