"""What is made of records is the same whoever makes it: transforms, their randomness, and the marks of padding."""

from __future__ import annotations

import functools
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from doors import DOORS, Door, Setting, all_seen, expected
from numbered import FEATURES, ID, row, rows_of, write_shards

import torch_tfrecord as tfr
from torch_tfrecord.drawing import Draw, SampledIndex
from torch_tfrecord.randomness import record_generator
from torch_tfrecord.recipe import Recipe

COUNT = 23
WORKERS = [("loader", 0), *itertools.product(("sampler", "stream"), (0, 1, 4))]
many_workers = pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_shards(tmp_path_factory.mktemp("recipe"), [9, 0, 14])


# --- augmentations ----------------------------------------------------------------------------------------------------


def number_of(payload: bytes) -> int:
    """A parser of a user's own."""
    return int(tfr.Example.FromString(payload).features.feature["id"].int64_list.value[0])


def of_row(record: dict[str, Any], generator: torch.Generator) -> dict[str, Any]:
    return {**record, "noise": torch.rand((), generator=generator)}


def of_payload(payload: bytes, *, generator: torch.Generator) -> dict[str, Any]:
    return {"id": number_of(payload), "noise": torch.rand((), generator=generator)}


def of_number(number: int, generator: torch.Generator) -> tuple[int, float]:
    return number, np.random.default_rng(generator.initial_seed()).random()


def noise_of(seed: int, epoch: int, number: int) -> float:
    return float(torch.rand((), generator=record_generator(seed, epoch, number)))


def numpys_noise_of(seed: int, epoch: int, number: int) -> float:
    return float(np.random.default_rng(record_generator(seed, epoch, number).initial_seed()).random())


KINDS: dict[str, tuple[Any, Callable[..., Any], Callable[[int, int, int], float]]] = {
    "specs": (ID, of_row, noise_of),
    "bytes": (None, of_payload, noise_of),
    "parser": (number_of, of_number, numpys_noise_of),
}


@many_workers
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "num_workers"), WORKERS)
def test_augmentations_depend_on_seed_epoch_and_record_alone(
    paths: list[str], kind: str, name: str, num_workers: int
) -> None:
    features, transform, noise = KINDS[kind]
    dataset = tfr.TFRecordDataset(paths, features, transform=transform)
    workers = {"num_workers": num_workers} if num_workers else {}
    setting = Setting(4, True, seed=5, rank=1, world_size=2)
    door = Door(name, dataset, setting, **workers)
    for epoch in range(2):
        batches = [batch.values() if isinstance(batch, dict) else batch for batch in door]
        found = [tuple(column.tolist() for column in batch) for batch in batches]
        steps = [ids for ids, _ in expected(COUNT, setting, epoch=epoch)]
        assert [tuple(ids) for ids, _ in found] == steps
        assert [values for _, values in found] == [[pytest.approx(noise(5, epoch, i)) for i in ids] for ids in steps]


def test_augmentations_differ_between_epochs_records_and_seeds(paths: list[str]) -> None:
    dataset = tfr.TFRecordDataset(paths, ID, transform=of_row)
    values = set()
    for seed in (0, 1):
        loader = tfr.TFRecordLoader(dataset, COUNT, seed=seed)
        values |= {value for _ in range(3) for batch in loader for value in batch["noise"].tolist()}
    assert len(values) == 2 * 3 * COUNT


@pytest.mark.parametrize("name", DOORS)
def test_a_selection_augments_a_record_as_the_whole_does(paths: list[str], name: str) -> None:
    """What counts is the record's number in the files, not its place in the selection."""
    dataset = tfr.TFRecordDataset(paths, ID, transform=of_row).select([20, 3, 11])
    (batch,) = Door(name, dataset, Setting(4, seed=5))
    assert batch["id"].tolist() == [20, 3, 11]
    assert batch["noise"].tolist() == [noise_of(5, 0, i) for i in (20, 3, 11)]


@pytest.mark.parametrize("name", DOORS)
def test_a_resumed_epoch_augments_alike(paths: list[str], name: str) -> None:
    dataset = tfr.TFRecordDataset(paths, ID, transform=of_row)
    door = Door(name, dataset, Setting(4, True, seed=5))
    door.reader.set_epoch(3)
    iterator = iter(door)
    next(iterator)
    state = door.state(1)
    rest = [batch["noise"].tolist() for batch in iterator]
    resumed = Door(name, dataset, Setting(4, True))
    resumed.reader.load_state_dict(state)
    assert [batch["noise"].tolist() for batch in resumed] == rest


def test_one_record_at_a_time(paths: list[str]) -> None:
    dataset = tfr.TFRecordDataset(paths, ID, transform=of_row)
    assert dataset[SampledIndex(7, 5, 2)]["noise"] == noise_of(5, 2, 7)
    assert dataset[7]["noise"] == noise_of(0, 0, 7)
    assert dataset.read_batch([7, 8])["noise"].tolist() == [noise_of(0, 0, 7), noise_of(0, 0, 8)]
    assert dataset.read_batch([SampledIndex(7, 5, 2), 8])["noise"].tolist() == [noise_of(5, 2, 7), noise_of(5, 2, 8)]


# --- the marks of padding ---------------------------------------------------------------------------------------------


def same(record: Any) -> Any:
    return record


def renamed(record: dict[str, Any]) -> dict[str, Any]:
    return {"number": record["id"]}


def valid_as_column(batch: tfr.Batch) -> tfr.Batch:
    batch["real"] = batch.valid.clone()
    return batch


@pytest.mark.parametrize(("name", "num_workers"), [("loader", 0), *itertools.product(("sampler", "stream"), (0, 2))])
@pytest.mark.parametrize(
    "options",
    [{}, {"transform": same}, {"transform": renamed}, {"batch_transform": valid_as_column}],
    ids=["plain", "same", "renamed", "batch"],
)
def test_padding_is_marked_through_transforms(
    paths: list[str], name: str, num_workers: int, options: dict[str, Any]
) -> None:
    dataset = tfr.TFRecordDataset(paths, ID, **options)
    setting = Setting(5, True, rank=1, world_size=2)
    workers = {"num_workers": num_workers} if num_workers else {}
    batches = list(Door(name, dataset, setting, **workers))
    assert {type(batch) for batch in batches} == {tfr.Batch}
    assert all_seen(batches) == expected(COUNT, setting, epoch=0)
    assert [batch.valid.tolist() for batch in batches] == [[True] * 5, [True] * 5, [True, False]]
    if "batch_transform" in options:
        assert all(torch.equal(batch["real"], batch.valid) for batch in batches)


def test_rows_know_whether_they_pad(paths: list[str]) -> None:
    dataset = tfr.TFRecordDataset(paths, ID)
    rows = dataset.__getitems__([3, SampledIndex(4, 0, 0, valid=False)])
    assert [rows[0].valid, rows[1].valid] == [True, False]
    assert [rows[0].record_id, rows[1].record_id] == [3, 4]
    assert dataset[SampledIndex(4, 0, 0, valid=False)].valid is False
    batch = tfr.collate([rows[1], dataset[9], pickle.loads(pickle.dumps(rows[1]))])
    assert batch["id"].tolist() == batch.record_ids.tolist() == [4, 9, 4]
    assert batch.valid.tolist() == [False, True, False]
    assert tfr.collate([dataset[9]]).valid.tolist() == [True]


def test_marks_of_a_batch(paths: list[str]) -> None:
    batch = tfr.TFRecordDataset(paths, ID).read_batch([5, 6, 7])
    assert batch.valid.tolist() == [True] * 3
    batch.mark()
    batch.mark(valid=None, record_ids=None)
    assert batch.valid.tolist() == [True] * 3
    batch.mark(valid=np.array([True, False, True]))
    assert batch.valid.dtype == torch.bool
    batch.mark(record_ids=torch.tensor([1, 2, 3]))
    for other in (
        batch,
        batch.copy(),
        tfr.Batch(batch),
        batch.compact(),
        batch.to("cpu"),
        pickle.loads(pickle.dumps(batch)),
    ):
        assert other.valid.tolist() == [True, False, True]
        assert other["id"].tolist() == [5, 6, 7]
    assert batch.record_ids is not None
    assert batch.record_ids.tolist() == [1, 2, 3]
    assert tfr.Batch(batch).record_ids.tolist() == [1, 2, 3]  # type: ignore[union-attr]


# --- the recipe itself ------------------------------------------------------------------------------------------------


def test_what_is_native() -> None:
    image = {"image": tfr.FixedLenFeature((), bytes, decode=tfr.DecodeImage(size=(4, 4)))}
    assert Recipe(FEATURES).is_native
    for recipe in (
        Recipe(None),
        Recipe(number_of),
        Recipe(FEATURES, transform=same),
        Recipe(FEATURES, batch_transform=same),
        Recipe(image),
    ):
        assert not recipe.is_native


def test_which_transforms_get_a_generator() -> None:
    assert Recipe(ID, of_row).wants_generator
    assert not Recipe(ID, same).wants_generator
    assert not Recipe(ID, None, of_row).wants_generator  # type: ignore[arg-type] # it is given batches


def test_wrong_features() -> None:
    for wrong in (5, "id", ["id"]):
        with pytest.raises(TypeError, match="not a dict of specs, a callable or None"):
            Recipe(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="features"):
        Recipe({})


def test_recipes_cross_processes(paths: list[str]) -> None:
    """To specs and functions; the compiled plan is made again."""
    located = tfr.TFRecordDataset(paths, FEATURES).locate([7, 3])
    for recipe in (Recipe(FEATURES), Recipe(FEATURES, of_row), Recipe(None), Recipe(number_of, same)):
        back = pickle.loads(pickle.dumps(recipe))
        assert "plan" not in recipe.__getstate__()
        assert back.wants_generator == recipe.wants_generator
        one, other = (tfr.collate(r.items(located, Draw(1, 2))) for r in (recipe, back))
        if isinstance(one, tfr.Batch):
            assert {**one}.keys() == {**other}.keys()
            assert rows_of(one) == rows_of(other)
            assert [row(i)["name"] for i in (7, 3)] == one["name"].tolist()
        else:
            assert list(one) == list(other)


def test_generators_reach_transforms_of_many_forms(paths: list[str]) -> None:
    class Noise(torch.nn.Module):
        def forward(self, record: dict[str, Any], generator: torch.Generator | None = None) -> dict[str, Any]:
            return of_row(record, generator)  # type: ignore[arg-type]

    def scaled(record: dict[str, Any], scale: float, generator: torch.Generator) -> dict[str, Any]:
        return {**record, "noise": scale * torch.rand((), generator=generator)}

    for transform in (
        Noise(),
        functools.partial(scaled, scale=1.0),
        lambda record, generator: {**of_row(record, generator)},
    ):
        dataset = tfr.TFRecordDataset(paths, ID, transform=transform)
        (batch,) = tfr.TFRecordLoader(dataset[:4], 4, seed=5)
        assert batch["noise"].tolist() == [noise_of(5, 0, i) for i in range(4)]
    own = functools.partial(of_row, generator=torch.Generator().manual_seed(1))
    (batch,) = tfr.TFRecordLoader(tfr.TFRecordDataset(paths, ID, transform=own), COUNT)
    assert batch["noise"].tolist() == torch.rand(COUNT, generator=torch.Generator().manual_seed(1)).tolist()
