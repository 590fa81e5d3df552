"""Real files that other people wrote, held against the answers that TensorFlow gives for them.

Each folder of the corpus has a file and ``golden.json``: digests of its records and, for Examples, of each feature's
values over all records. A feature is digested as ``<u8 kind><u64 count><values>``, all little-endian.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import struct
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import torch_tfrecord as tfr

pytestmark = pytest.mark.corpus

EXAMPLES = [
    *("tfx-mnist", "torchdata-example", "sketchy-robot", "trax-c4", "lingvo-wmt32k", "tapas-classify", "bert-pretrain"),
    *("detext-compose", "net2vec-graph", "deepctr-te", "hadoop-ints", "aipot-forces", "hyphal-test"),
]
SEQUENCES = ["torchdata-sequence", "ehr-calib"]
OTHERS = ["sagemaker-100", "grain-morris", "nucleus-vcf", "ranking-elwc", "mct-stats", "agents-events"]
GZIP = ["tfx-csv-eval", "tft-sequence", "deepconsensus-eval", "iodine-mini", "ydf-adult", "ydf-toy"]
ZLIB = ["baskerville-mm10", "baskerville-empty", "dareblopy-zlib"]
BARE = "dfalbel-bare"  # the gzip of one Example without a frame

KINDS = {"none": 0, "bytes": 1, "float": 2, "int64": 3}
FIELDS = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int64", None: "none"}


@cache
def manifest(corpus: Path) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in json.loads((corpus / "MANIFEST.json").read_text())}


def file_of(corpus: Path, name: str, *, under: Path | None = None) -> str:
    return str((under or corpus) / name / manifest(corpus)[name]["file"])


@cache
def golden(corpus: Path, name: str) -> dict[str, Any]:
    answers: dict[str, Any] = json.loads((corpus / name / "golden.json").read_text())
    return answers


def payloads_digest(payloads: Iterable[bytes]) -> str:
    state = hashlib.sha256()
    for payload in payloads:
        state.update(struct.pack("<Q", len(payload)) + payload)
    return state.hexdigest()


def wire_values(row: Any) -> bytes:
    """The values of one record's feature, as they are digested."""
    if isinstance(row, torch.Tensor):
        return row.numpy().tobytes()
    strings = row if isinstance(row, list) else [row]
    return b"".join(struct.pack("<Q", len(value)) + value for value in strings)


def count_of(row: Any) -> int:
    return row.numel() if isinstance(row, torch.Tensor) else len(row) if isinstance(row, list) else 1


def assert_payloads(payloads: list[bytes], answers: dict[str, Any]) -> None:
    assert len(payloads) == answers["records"]
    assert sum(map(len, payloads)) == answers["payload_bytes"]
    assert payloads_digest(payloads) == answers["payloads_sha256"]


def assert_columns(
    batches: Iterable[tfr.Batch], schema: tfr.Schema, payloads: list[bytes], answers: dict[str, Any]
) -> None:
    """Hold all values of batches, in order, against the digests. Which features a record has, protobuf says."""
    kinds = [
        {name: FIELDS[feature.WhichOneof("kind")] for name, feature in message.features.feature.items()}
        for message in map(tfr.Example.FromString, payloads)
    ]
    details = {detail["i"]: detail["features"] for detail in answers["detail"]}
    states = {name: hashlib.sha256() for name in answers["features"]}
    totals = dict.fromkeys(states, 0)
    i = 0
    for batch in batches:
        assert list(batch) == list(schema)
        for row in range(batch.num_records):
            values = {name: column[row] for name, column in batch.items()}
            for name, value in values.items():
                kind = kinds[i].get(name)
                data, count = wire_values(value), count_of(value)
                if kind is None or kind == "none":
                    assert count == 0
                if kind is not None:
                    states[name].update(struct.pack("<QBQ", i, KINDS[kind], count) + data)
                    totals[name] += count
                if i in details:
                    digest = [kind, count, hashlib.sha256(data).hexdigest()]
                    assert details[i].get(name) == (None if kind is None else digest)
            i += 1
    assert i == answers["records"]
    for name, feature in answers["features"].items():
        assert sum(name in found for found in kinds) == feature["present"]
        if name in schema:
            assert totals[name] == feature["total"]
            assert states[name].hexdigest() == feature["column_sha256"], name
        else:
            assert feature["kinds"] == ["none"]


def test_every_file_has_its_test(corpus: Path) -> None:
    entries = manifest(corpus)
    assert {*EXAMPLES, *SEQUENCES, *OTHERS, *GZIP, *ZLIB, BARE} == set(entries)
    plain_files = {name for name, entry in entries.items() if entry["compression"] == "none"}
    assert plain_files == {*EXAMPLES, *SEQUENCES, *OTHERS}
    assert {name for name in plain_files if entries[name]["kind"] == "Example"} == set(EXAMPLES)
    assert {name for name, entry in entries.items() if entry["compression"] == "zlib"} == set(ZLIB)


@pytest.mark.parametrize("name", [*EXAMPLES, *SEQUENCES, *OTHERS])
def test_records(corpus: Path, name: str) -> None:
    path, answers = file_of(corpus, name), golden(corpus, name)
    in_sequence = list(tfr.read_records(path))
    assert_payloads(in_sequence, answers)

    index = tfr.RecordIndex.build(path, verify="all")
    data = Path(path).read_bytes()
    places = [(index[i].offset, index[i].length) for i in range(len(index))]
    assert_payloads([data[offset + 12 : offset + 12 + length] for offset, length in places], answers)
    for detail in answers["detail"]:
        assert places[detail["i"]] == (detail["offset"], detail["len"])
        assert hashlib.sha256(in_sequence[detail["i"]]).hexdigest() == detail["sha256"]

    dataset = tfr.TFRecordDataset(path, None, index=index)
    order = np.random.default_rng(0).permutation(len(dataset)).tolist()
    at_random = dict(zip(order, dataset.__getitems__(order), strict=True))
    assert_payloads([at_random[i] for i in range(len(at_random))], answers)
    columns = list(DataLoader(dataset, batch_size=100, collate_fn=tfr.collate))
    assert_payloads([payload for column in columns for payload in column.tolist()], answers)


@pytest.mark.parametrize("name", EXAMPLES)
def test_values(corpus: Path, name: str) -> None:
    path, answers = file_of(corpus, name), golden(corpus, name)
    payloads = list(tfr.read_records(path))
    schema = tfr.infer_schema(path, max_records=0)
    assert eval(repr(schema), {"tfr": tfr, "torch": torch}) == schema
    dataset = tfr.TFRecordDataset(path, schema, index=tfr.RecordIndex.build(path))
    assert_columns(DataLoader(dataset, batch_size=64, collate_fn=tfr.collate), schema, payloads, answers)
    parsed = (tfr.parse_example(payloads[i : i + 1000], schema) for i in range(0, len(payloads), 1000))
    assert_columns(parsed, schema, payloads, answers)


@pytest.mark.parametrize("name", ["deepctr-te", "hyphal-test", "lingvo-wmt32k"])
def test_values_by_workers(corpus: Path, linked_corpus: Path, name: str) -> None:
    path, answers = file_of(corpus, name, under=linked_corpus), golden(corpus, name)
    schema = tfr.infer_schema(path, max_records=0)
    dataset = tfr.TFRecordDataset(path, schema)  # whose index is made beside the link
    loader = DataLoader(dataset, batch_size=64, num_workers=2, collate_fn=tfr.collate)
    assert_columns(loader, schema, list(tfr.read_records(path)), answers)


@pytest.mark.parametrize("name", ["tfx-mnist", "deepctr-te"])
def test_values_by_a_plain_loader(corpus: Path, name: str) -> None:
    path, answers = file_of(corpus, name), golden(corpus, name)
    schema = tfr.infer_schema(path, max_records=0)
    dataset = tfr.TFRecordDataset(path, schema, index=tfr.RecordIndex.build(path))
    batches = map(tfr.Batch, DataLoader(dataset, batch_size=100, num_workers=2))
    assert_columns(batches, schema, list(tfr.read_records(path)), answers)


def test_images_have_the_size_that_is_stored_beside_them(corpus: Path) -> None:
    path = file_of(corpus, "hyphal-test")
    features = {
        "image": tfr.FixedLenFeature((), bytes, decode=tfr.DecodeImage(), key="image/encoded"),
        "encoded": tfr.FixedLenFeature((), bytes, key="image/encoded"),
        "height": tfr.FixedLenFeature((), torch.int64, key="image/height"),
        "width": tfr.FixedLenFeature((), torch.int64, key="image/width"),
    }
    dataset = tfr.TFRecordDataset(path, features, index=tfr.RecordIndex.build(path))
    batch = dataset.read_batch(range(len(dataset)))
    for i in range(len(dataset)):
        row = batch.row(i)
        assert row["image"].shape == (int(row["height"]), int(row["width"]), 3)
        truth = np.asarray(Image.open(io.BytesIO(row["encoded"])).convert("RGB"))
        np.testing.assert_array_equal(row["image"].numpy(), truth)


@pytest.mark.parametrize("name", SEQUENCES)
def test_context_of_a_sequence_reads_as_an_example(corpus: Path, name: str) -> None:
    path, answers = file_of(corpus, name), golden(corpus, name)
    with pytest.raises(
        tfr.ParseError, match=re.escape(path) + ".*a SequenceExample, which this version reads only raw"
    ):
        tfr.infer_schema(path)
    dtypes = {"bytes": bytes, "float": torch.float32, "int64": torch.int64}
    kinds = {key: feature["kinds"][0] for key, feature in answers["context"].items() if feature["kinds"] != ["none"]}
    schema = {key: tfr.VarLenFeature(dtypes[kind]) for key, kind in kinds.items()}
    dataset = tfr.TFRecordDataset(path, schema, index=tfr.RecordIndex.build(path))
    batch = dataset.read_batch(range(len(dataset)))
    for key in schema:
        assert sum(count_of(batch[key][i]) for i in range(len(dataset))) == answers["context"][key]["total"]


@pytest.mark.parametrize("name", OTHERS)
def test_other_records_are_not_taken_for_examples(corpus: Path, name: str) -> None:
    path = file_of(corpus, name)
    with pytest.raises(tfr.ParseError, match=re.escape(path) + ".*features=None reads raw bytes"):
        tfr.infer_schema(path, max_records=0)
    asked = {"label": tfr.FixedLenFeature((), torch.int64)}
    dataset = tfr.TFRecordDataset(path, asked, index=tfr.RecordIndex.build(path))
    with pytest.raises(tfr.ParseError, match=re.escape(path) + ": record 0 at byte 0: "):
        dataset[0]


# --- data sets, of files however they are compressed ---

TYPED = [*EXAMPLES, *(name for name in [*GZIP, *ZLIB] if name not in ("tft-sequence", "baskerville-empty"))]


@pytest.mark.parametrize("name", [*EXAMPLES, *SEQUENCES, *OTHERS, *GZIP, *ZLIB])
def test_data_sets(corpus: Path, linked_corpus: Path, name: str) -> None:
    path, answers = file_of(corpus, name, under=linked_corpus), golden(corpus, name)
    assert answers["error"] is None
    dataset = tfr.TFRecordDataset(path, None)  # whose index is made beside the link
    entry = manifest(corpus)[name]
    assert len(dataset) == answers["records"] == entry["records"]
    assert dataset.index.shard_compression == (entry["compression"],)
    assert dataset.index.shard_bytes.tolist() == [entry["bytes"]]
    assert int(dataset.index.lengths.sum()) == answers["payload_bytes"]
    dataset.index.verify()
    for detail in answers["detail"]:
        assert dataset.index[detail["i"]][1:] == (detail["offset"], detail["len"])
        assert hashlib.sha256(dataset[detail["i"]]).hexdigest() == detail["sha256"]
    order = np.random.default_rng(0).permutation(len(dataset)).tolist()
    at_random = dict(zip(order, dataset.__getitems__(order), strict=True))
    assert_payloads([at_random[i] for i in range(len(at_random))], answers)
    for num_workers in (0, 2):
        columns = DataLoader(dataset, batch_size=100, num_workers=num_workers, collate_fn=tfr.collate)
        assert_payloads([payload for column in columns for payload in column.tolist()], answers)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", TYPED)
def test_columns_of_data_sets(corpus: Path, linked_corpus: Path, name: str, num_workers: int) -> None:
    path, answers = file_of(corpus, name, under=linked_corpus), golden(corpus, name)
    schema = tfr.infer_schema(path, max_records=0)
    payloads = list(tfr.TFRecordDataset(path, None))
    stream = tfr.TFRecordIterableDataset(path, schema, batch_size=64)
    for batches in (
        DataLoader(stream.dataset, batch_size=64, num_workers=num_workers, collate_fn=tfr.collate),  # type: ignore[arg-type]
        DataLoader(stream, batch_size=None, num_workers=num_workers),
    ):
        assert_columns(batches, schema, payloads, answers)


@pytest.mark.parametrize("name", [*GZIP, *ZLIB])
def test_compressed_files_above_the_limit(corpus: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in order, without a temporary file."""
    monkeypatch.setenv("TORCH_TFRECORD_INFLATE_BYTES", "0")
    path, answers = file_of(corpus, name), golden(corpus, name)
    dataset = tfr.TFRecordDataset(path, None, index=tfr.RecordIndex.build(path))
    loader = tfr.TFRecordLoader(dataset, 100)
    for _ in range(2):
        assert_payloads([payload for column in loader for payload in column.tolist()], answers)


def test_a_bare_example_is_refused_by_data_sets(corpus: Path, linked_corpus: Path) -> None:
    path = file_of(corpus, BARE, under=linked_corpus)
    assert golden(corpus, BARE)["records"] == 0
    assert golden(corpus, BARE)["error"] is not None
    for make in (
        lambda: tfr.RecordIndex.build(path),
        lambda: tfr.TFRecordDataset(path, None),
        lambda: tfr.TFRecordIterableDataset(path, None, batch_size=1),
    ):
        with pytest.raises(tfr.NotATFRecordError, match=re.escape(path) + ".*gzip.*Example.*without the frames"):
            make()
    assert {file.name for file in Path(path).parent.iterdir()} == {Path(path).name, "golden.json"}
    skipped = tfr.RecordIndex.build(path, on_error="skip")
    assert (len(skipped), [fault.reason for fault in skipped.faults]) == (0, ["not_a_tfrecord"])


# --- files in sequence, however they are compressed ---


@pytest.mark.parametrize("name", [*EXAMPLES, *SEQUENCES, *OTHERS, *GZIP, *ZLIB])
def test_in_sequence(corpus: Path, name: str) -> None:
    path, answers = file_of(corpus, name), golden(corpus, name)
    kind: Any = manifest(corpus)[name]["compression"]
    told = None if kind == "none" else kind
    for compression in ("auto", told, told and told.upper()):
        for on_error in ("raise", "skip"):
            records = tfr.read_records(path, compression=compression, on_error=on_error)
            payloads = list(records)
            assert_payloads(payloads, answers)
            assert records.faults == []
    for detail in answers["detail"]:
        assert hashlib.sha256(payloads[detail["i"]]).hexdigest() == detail["sha256"]
    for wrong in {"gzip", "zlib", None} - {told}:
        with pytest.raises(tfr.NotATFRecordError, match=re.escape(path) + ".*expected .*, found a"):
            list(tfr.read_records(path, compression=wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [*GZIP, *ZLIB])
def test_in_sequence_from_a_pipe(corpus: Path, tmp_path: Path, name: str) -> None:
    answers, pipe = golden(corpus, name), tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cp", file_of(corpus, name), pipe]) as copying:
        assert_payloads(list(tfr.read_records(pipe)), answers)
    assert copying.returncode == 0


@pytest.mark.parametrize("compression", ["auto", "gzip"])
def test_a_bare_example_is_refused_in_sequence(corpus: Path, compression: Any) -> None:
    path = file_of(corpus, BARE)
    with pytest.raises(tfr.NotATFRecordError, match=re.escape(path) + ".*gzip.*Example.*without the frames"):
        list(tfr.read_records(path, compression=compression))
    records = tfr.read_records(path, compression=compression, on_error="skip")
    assert list(records) == []
    assert [(fault.reason, fault.bytes_lost) for fault in records.faults] == [
        ("not_a_tfrecord", Path(path).stat().st_size)
    ]
