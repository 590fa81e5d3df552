"""The whole path: what is written, in any of three ways, is what a loader delivers from the files."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numbered import plain, rows_of
from torch.utils.data import DataLoader

import torch_tfrecord as tfr

VALUES: dict[Any, st.SearchStrategy[Any]] = {
    bytes: st.binary(max_size=6),
    torch.float32: st.floats(width=32, allow_nan=False),
    torch.int64: st.integers(-(2**63), 2**63 - 1),
}
FIELDS = {bytes: "bytes_list", torch.float32: "float_list", torch.int64: "int64_list"}
NUMPY = {torch.float32: np.float32, torch.int64: np.int64}


@st.composite
def specs(draw: Any) -> Any:
    dtype = draw(st.sampled_from(list(VALUES)))
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    return tfr.VarLenFeature(dtype) if draw(st.booleans()) else tfr.FixedLenFeature(shape, dtype)


def lists_for(spec: Any) -> st.SearchStrategy[list[Any]]:
    """The flat values of one record."""
    if isinstance(spec, tfr.VarLenFeature):
        return st.lists(VALUES[spec.dtype], max_size=4)
    return st.lists(VALUES[spec.dtype], min_size=spec.count, max_size=spec.count)


def value_of(spec: Any, flat: list[Any]) -> Any:
    """What a record with these values gives."""
    if isinstance(spec, tfr.VarLenFeature):
        return flat
    nested = np.empty(len(flat), object)
    nested[:] = flat
    return nested.reshape(spec.shape).tolist()


def column_of(spec: Any, lists: list[list[Any]]) -> Any:
    """The column of a batch that holds these values, for ``write_batch``."""
    flat = list(itertools.chain.from_iterable(lists))
    offsets = torch.tensor([0, *itertools.accumulate(map(len, lists))])
    values: Any = (
        tfr.Bytes.from_list(flat) if spec.dtype is bytes else torch.from_numpy(np.array(flat, NUMPY[spec.dtype]))
    )
    if isinstance(spec, tfr.VarLenFeature):
        return tfr.Ragged(values, offsets)
    if spec.dtype is bytes:
        return tfr.Bytes(values.values, values.offsets, spec.shape)
    return values.view(len(lists), *spec.shape)


def message_of(features: dict[str, Any], record: dict[str, list[Any]]) -> bytes:
    message = tfr.Example()
    for name, flat in record.items():
        getattr(message.features.feature[name], FIELDS[features[name].dtype]).value.extend(flat)
    return bytes(message.SerializeToString())


@st.composite
def files(draw: Any) -> tuple[dict[str, Any], list[list[tuple[str, list[dict[str, list[Any]]]]]]]:
    """Specs; and for each file some writes: the method, and the records that it writes."""
    features = draw(st.dictionaries(st.text(max_size=6), specs(), min_size=1, max_size=4))
    records = st.fixed_dictionaries({name: lists_for(spec) for name, spec in features.items()})
    writes = st.tuples(
        st.sampled_from(["write", "write_example", "write_batch"]), st.lists(records, min_size=1, max_size=3)
    )
    return features, draw(st.lists(st.lists(writes, max_size=3), min_size=1, max_size=3))


def write_all(path: str, features: dict[str, Any], writes: list[tuple[str, list[dict[str, list[Any]]]]]) -> None:
    with tfr.TFRecordWriter(path) as writer:
        for method, records in writes:
            if method == "write_batch":
                columns = {
                    name: column_of(spec, [record[name] for record in records]) for name, spec in features.items()
                }
                writer.write_batch(columns)
                continue
            for record in records:
                if method == "write":
                    writer.write(message_of(features, record))
                else:
                    writer.write_example(record)


@settings(max_examples=120, deadline=None)
@given(files(), st.integers(1, 5), st.randoms(use_true_random=False))
def test_what_is_written_is_what_a_loader_delivers(case: Any, batch_size: int, random: Any) -> None:
    features, shards = case
    expected = [
        {name: value_of(spec, record[name]) for name, spec in features.items()}
        for writes in shards
        for _, records in writes
        for record in records
    ]
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"part-{i}") for i in range(len(shards))]
        for path, writes in zip(paths, shards, strict=True):
            write_all(path, features, writes)
        index = tfr.RecordIndex.build(paths, verify="all")
        index.save(Path(folder) / "index")
        index.verify()
        dataset = tfr.TFRecordDataset(paths, features, index=Path(folder) / "index")
        assert len(index) == len(dataset) == len(list(tfr.read_records(paths))) == len(expected)
        assert [plain(dataset[i]) for i in range(len(dataset))] == expected
        order = list(range(len(expected)))
        random.shuffle(order)
        batches = list(DataLoader(dataset, batch_size, sampler=order, collate_fn=tfr.collate))
        assert [row for batch in batches for row in rows_of(batch)] == [expected[i] for i in order]
        with tfr.TFRecordWriter(Path(folder) / "again") as writer:  # batches can be written as they are
            for batch in batches:
                writer.write_batch(batch)
        again = tfr.TFRecordDataset(Path(folder) / "again", features)
        assert [plain(again[i]) for i in range(len(again))] == [expected[i] for i in order]


def test_bits_of_floats_survive(tmp_path: Path) -> None:
    bits = np.array([0x7FC00001, 0xFFFFFFFF, 0x7F800001, 0x80000000, 0x7F800000, 0x00000001], np.uint32)
    values = torch.from_numpy(bits.view(np.float32).copy()).view(2, 3)
    with tfr.TFRecordWriter(tmp_path / "a") as writer:
        writer.write_batch({"x": values})
        writer.write_example({"x": values[0]})
    dataset = tfr.TFRecordDataset(tmp_path / "a", {"x": tfr.FixedLenFeature((3,), torch.float32)})
    found = dataset.read_batch([0, 1, 2])["x"].numpy().view(np.uint32)
    assert found.reshape(-1).tolist() == [*bits.tolist(), *bits[:3].tolist()]
