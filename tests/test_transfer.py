"""Copies of batches to a device: what is copied, into how many pieces, and that nothing is overwritten on the way."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from columns import content, expected, make, tensors
from numbered import FEATURES, rows_of, write

import torch_tfrecord as tfr
from torch_tfrecord.ahead import Failed
from torch_tfrecord.transfer import Moved, Transfer, each, tensors_in

CPU, META = torch.device("cpu"), torch.device("meta")


class Pair(NamedTuple):
    image: Any
    label: Any


class Made:
    """Work that is done, and counts how often it is asked."""

    finished_at = 1.5

    def __init__(self, batch: Any, *, done: bool = True) -> None:
        self.batch = batch
        self.done = done
        self.asked = 0
        self.cancelled = False

    def advance(self) -> bool:
        return self.done

    def result(self) -> Any:
        self.asked += 1
        return self.batch

    def cancel(self) -> None:
        self.cancelled = True


def moved(item: Any, device: torch.device) -> Any:
    transfer = Transfer(device)
    return transfer.finish(transfer.start(item))


# --- what is in a batch -----------------------------------------------------------------------------------------------


def test_each_keeps_the_structure() -> None:
    tensor = torch.arange(3)
    item = {
        "pair": Pair(tensor, [tensor, "text", None]),
        "tuple": (tensor, 5),
        "ordered": OrderedDict(x=tensor),
        "bytes": b"abc",
    }
    found = each(item, lambda column: column + 1)
    assert isinstance(found["pair"], Pair)
    assert found["pair"].image.tolist() == [1, 2, 3]
    assert found["pair"].label[0].tolist() == [1, 2, 3]
    assert found["pair"].label[1:] == ["text", None]
    assert found["tuple"][0].tolist() == [1, 2, 3]
    assert found["tuple"][1] == 5
    assert found["ordered"]["x"].tolist() == [1, 2, 3]
    assert found["bytes"] == b"abc"
    assert tensor.tolist() == [0, 1, 2]


def test_each_takes_batches_and_columns_whole() -> None:
    batch = make(3)
    seen: list[Any] = []
    each({"batch": batch, "columns": [batch["tokens"], batch["name"]]}, lambda column: seen.append(column) or column)  # type: ignore[func-returns-value]
    assert [id(column) for column in seen] == [id(batch), id(batch["tokens"]), id(batch["name"])]


def test_all_tensors_are_found() -> None:
    batch = make(5)
    batch.mark(valid=[True, True, True, True, False])
    batch["own"] = torch.ones(5)
    found = {id(tensor) for tensor in tensors_in((1, [batch, "x"], {"loose": torch.ones(2)}))}
    wanted = {id(tensor) for tensor in [*tensors(batch), batch.record_ids, batch.valid]}
    assert len(found) == len(wanted) + 1
    assert wanted < found


def test_looking_for_tensors_makes_none() -> None:
    batch = make(5)
    count = len(list(tensors_in(batch)))
    assert batch._valid is None
    batch.mark(valid=[True] * 5)
    assert len(list(tensors_in(batch))) == count + 1


# --- a device without streams -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [CPU, META])
def test_a_batch_arrives(device: torch.device) -> None:
    batch = make(5)
    batch.mark(valid=[True, True, True, True, False])
    found = moved(batch, device)
    assert {tensor.device.type for tensor in tensors_in(found)} == {device.type}
    assert (found.num_records, list(found)) == (5, list(batch))
    assert [tensor.shape for tensor in tensors_in(found)] == [tensor.shape for tensor in tensors_in(batch)]
    if device == CPU:
        assert content(found) == expected(5)
        assert found.valid.tolist() == [True, True, True, True, False]


def test_what_transforms_made_arrives() -> None:
    found = moved((torch.ones(2), {"x": torch.ones(3), "y": "text"}), META)
    assert [tensor.device.type for tensor in tensors_in(found)] == ["meta", "meta"]
    assert found[1]["y"] == "text"


# --- work ---------------------------------------------------------------------------------------------------------------


def test_moved_work_follows_what_it_moves() -> None:
    made = Made(make(3), done=False)
    work = Moved(made, Transfer(META))
    assert work.advance() is False
    made.done = True
    assert work.advance() is True
    assert work.finished_at == 1.5
    work.cancel()
    assert made.cancelled


@pytest.mark.parametrize("sent", [False, True])
def test_a_batch_is_copied_once(sent: bool) -> None:
    made = Made(make(3))
    work = Moved(made, Transfer(META))
    for _ in range(2 * sent):
        work.send()
    batch = work.result()
    assert work.result() is batch
    assert made.asked == 1
    assert batch["label"].device == META


def test_an_error_waits_for_its_turn() -> None:
    error = ValueError("x")
    work = Moved(Failed(error), Transfer(META))
    work.send()
    for _ in range(2):
        with pytest.raises(ValueError, match="x") as caught:
            work.result()
        assert caught.value is error


def test_a_device_that_is_not_there_is_an_error() -> None:
    with pytest.raises((RuntimeError, AssertionError)):
        Transfer(torch.device("cuda", 99))


# --- CUDA ---------------------------------------------------------------------------------------------------------------

gpu = pytest.mark.gpu


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> tfr.TFRecordDataset:
    return tfr.TFRecordDataset(write(tmp_path_factory.mktemp("data") / "numbered.tfrecord", 2000), FEATURES)


def lag(cycles: int) -> None:
    """Keep the current stream busy."""
    sleep: Any = torch.cuda._sleep
    sleep(cycles)


def storages(batch: Any) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors_in(batch) if tensor.numel()}


@gpu
def test_batches_lie_in_pinned_memory_where_there_is_a_gpu(dataset: tfr.TFRecordDataset) -> None:
    for batch in tfr.TFRecordLoader(dataset, 100):
        assert all(tensor.is_pinned() for tensor in tensors_in(batch))
        assert len(storages(batch)) == 1
    for batch in tfr.TFRecordLoader(dataset, 100, pin_memory=False):
        assert not any(tensor.is_pinned() for tensor in tensors_in(batch))


@gpu
def test_what_python_makes_is_pinned_too(dataset: tfr.TFRecordDataset) -> None:
    plain = tfr.TFRecordDataset(dataset.index.paths, FEATURES, transform=lambda row: {**row, "more": row["halves"] * 2})
    for i, batch in enumerate(tfr.TFRecordLoader(plain, 100)):
        assert all(tensor.is_pinned() for tensor in tensors_in(batch))
        assert batch["more"][:, 0].tolist() == [2 * (100 * i + j) + 1.0 for j in range(100)]


@gpu
@pytest.mark.parametrize("pin_memory", [None, False])
def test_values_are_right_on_the_device(dataset: tfr.TFRecordDataset, pin_memory: bool | None) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 3, "rank": 1, "world_size": 3}
    here = list(tfr.TFRecordLoader(dataset, 64, pin_memory=False, **options))
    there = list(tfr.TFRecordLoader(dataset, 64, pin_memory=pin_memory, device="cuda", **options))
    assert len(there) == len(here) == 11
    for batch, other in zip(here, there, strict=True):
        assert {tensor.device for tensor in tensors_in(other)} == {torch.device("cuda", torch.cuda.current_device())}
        assert rows_of(other.to("cpu")) == rows_of(batch)
        assert other.valid.tolist() == batch.valid.tolist()
    assert not all(there[-1].valid.tolist())


@gpu
def test_a_batch_is_one_copy(dataset: tfr.TFRecordDataset) -> None:
    from torch.profiler import ProfilerActivity, profile

    loader = tfr.TFRecordLoader(dataset, 100, device="cuda")
    list(loader)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        batches = list(loader)
        torch.cuda.synchronize()
    copies = [event for event in profiler.events() or () if "Memcpy HtoD" in event.name]
    assert len(copies) == len(batches) == 20
    assert all(len(storages(batch)) == 1 for batch in batches)


@gpu
def test_copies_run_beside_the_computation(dataset: tfr.TFRecordDataset) -> None:
    """``next`` does not wait for what the current stream still has to do."""
    loader = tfr.TFRecordLoader(dataset, 100, device="cuda")
    list(loader)  # to allocate memory waits for the device, and now there is some
    iterator = iter(loader)
    next(iterator)
    torch.cuda.synchronize()
    lag(2_000_000_000)  # about a second
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()
    batches = [next(iterator) for _ in range(5)]
    assert not done.query()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    assert [int(batch["id"][0]) for batch in batches] == [100, 200, 300, 400, 500]


@gpu
def test_nothing_is_overwritten_while_copies_are_in_flight(dataset: tfr.TFRecordDataset) -> None:
    """Blocks are let go of at once, and the next batches decoded into them, while the device is far behind."""
    loader = tfr.TFRecordLoader(dataset, 50, num_threads=4, prefetch=8, shuffle=True, device="cuda")
    for epoch in range(5):
        order = [batch["id"].tolist() for batch in _in_epoch(dataset, epoch)]
        sums = []
        loader.set_epoch(epoch)
        for batch in loader:
            lag(20_000_000)  # the current stream lags, so memory that is reused too early is seen
            sums.append(batch["id"].clone())
            del batch
        assert [found.tolist() for found in sums] == order


@gpu
def test_nothing_pinned_is_overwritten_while_the_users_own_copies_are_in_flight(dataset: tfr.TFRecordDataset) -> None:
    loader = tfr.TFRecordLoader(dataset, 50, num_threads=4, prefetch=8, shuffle=True)
    order = [batch["id"].tolist() for batch in _in_epoch(dataset, 0)]
    found = []
    for batch in loader:
        lag(20_000_000)  # the copy waits behind this, and its source is gone long before
        found.append(batch.to("cuda", non_blocking=True)["id"])
        del batch
    assert [ids.tolist() for ids in found] == order


def _in_epoch(dataset: tfr.TFRecordDataset, epoch: int) -> tfr.TFRecordLoader:
    loader = tfr.TFRecordLoader(dataset, 50, shuffle=True, pin_memory=False)
    loader.set_epoch(epoch)
    return loader


@gpu
def test_the_stream_that_is_current_at_next_may_use_the_batch(dataset: tfr.TFRecordDataset) -> None:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    found = []
    for i, batch in enumerate(tfr.TFRecordLoader(dataset, 100, device=torch.cuda.current_device())):
        found.append(int(batch["id"].sum()))
        torch.cuda.set_stream(side if i % 2 else torch.cuda.default_stream())
    torch.cuda.set_stream(torch.cuda.default_stream())
    assert found == [sum(range(100 * i, 100 * i + 100)) for i in range(20)]


@gpu
def test_one_batch_at_most_is_on_its_way_to_the_device(dataset: tfr.TFRecordDataset) -> None:
    loader = tfr.TFRecordLoader(dataset, 100, prefetch=10, device="cuda")
    iterator = iter(loader)
    sizes = []
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(15):
        batch = next(iterator)
        sizes.append(
            (torch.cuda.memory_allocated() - before) / sum(t.numel() * t.element_size() for t in tensors_in(batch))
        )
    assert max(sizes) < 4  # the one in use, the one before it until ``next`` returns, and one that is coming
    assert loader.stats().queue_depth <= 10
