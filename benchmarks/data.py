"""Makes the data sets: uncompressed TFRecord files, the same bytes for the same seed on every machine.

The Examples are encoded here by hand, so that no system under test has a part in its own data. Beside the shards lies
``manifest.json`` with what a right reader must find: for each column the number of its values and their sum, taken
from the arrays that were written.

    ==========  ===============================================================================================
    A           ``image``: 28 x 28 x 3 float32 as raw bytes, ``label``: one int64
    C           40 scalars in the style of a click log: 13 float32, 27 int64 (some small, some large hashes)
    C-random    the values of C, but each record has its features in an order of its own
    D           ``tokens``: 64 to 2,048 int64, most of them small as word ranks are, all below 32,768
    E           ``image``: a list of 2,352 floats, ``label``: one int64
    ==========  ===============================================================================================
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import crc32c
import numpy as np

SEED = 20240229
VERSION = 2  # raise it when the bytes change, so that old files are made anew
NUM_SHARDS = 4
CHUNK = 5_000  # records that are in memory at once

IMAGE_SHAPE = (28, 28, 3)
IMAGE_VALUES = 28 * 28 * 3
MAX_TOKEN = 32_768

BYTES, FLOAT, INT64 = 1, 2, 3  # field numbers of the three kinds in Feature
RECORDS = {"A": 20_000, "C": 200_000, "C-random": 200_000, "D": 50_000, "E": 20_000}

Columns = dict[str, Any]


@dataclass
class Column:
    """What one column holds over all records: how to read it, and what a right reader finds.

    ``shape`` is the fixed number of values a record, or None where it varies; ``raw`` marks float32 stored as bytes.
    """

    kind: str  # "float32" or "int64"
    shape: list[int] | None
    raw: bool = False
    count: int = 0
    total: float | int = 0  # float64 sum; for int64 the sum modulo 2**64


def varints(values: np.ndarray) -> list[bytes]:
    """Each non-negative int64 as a protobuf varint."""
    rest = values.astype(np.uint64).ravel()
    groups = np.empty((rest.size, 10), np.uint8)
    for i in range(10):
        groups[:, i] = (rest & np.uint64(0x7F)).astype(np.uint8)
        rest = rest >> np.uint64(7)
    lengths = 10 - np.argmax(groups[:, ::-1] != 0, axis=1)
    lengths[~groups.any(axis=1)] = 1
    place = np.arange(10)
    groups[place < (lengths - 1)[:, None]] |= 0x80
    flat = groups[place < lengths[:, None]].tobytes()
    ends = np.cumsum(lengths)
    return [flat[end - n : end] for end, n in zip(ends.tolist(), lengths.tolist(), strict=True)]


def varint(value: int) -> bytes:
    """One varint; for a single small value this is much faster than the array form."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def delimited(field: int, body: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return bytes([field << 3 | 2]) + varint(len(body)) + body


def entry(key: str, kind: int, values: bytes) -> bytes:
    """One entry of the map in Features; ``values`` are a packed list, or one value of kind bytes."""
    feature = delimited(kind, delimited(1, values))
    return delimited(1, delimited(1, key.encode()) + delimited(2, feature))


def frame(payload: bytes) -> bytes:
    def masked(data: bytes) -> bytes:
        crc = crc32c.crc32c(data)
        return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")

    length = len(payload).to_bytes(8, "little")
    return b"".join((length, masked(length), payload, masked(payload)))


def image_chunk(rng: np.random.Generator, n: int) -> Columns:
    return {
        "image": rng.random((n, IMAGE_VALUES), np.float32),
        "label": rng.integers(0, 10, n),
    }


def click_chunk(rng: np.random.Generator, n: int) -> Columns:
    columns: Columns = {f"f{i:02}": rng.lognormal(1.0, 2.0, n).astype(np.float32) for i in range(13)}
    columns["i00"] = rng.integers(0, 2, n)
    for i in range(1, 9):
        columns[f"i{i:02}"] = rng.zipf(1.4, n) % 1_000
    for i in range(9, 18):
        columns[f"i{i:02}"] = rng.integers(0, 2**32, n)
    for i in range(18, 27):
        columns[f"i{i:02}"] = rng.integers(0, 2**63 - 1, n)
    return columns


def token_chunk(rng: np.random.Generator, n: int) -> Columns:
    lengths = rng.integers(64, 2_048, n, endpoint=True)
    # Log-uniform ranks are close to how often the words of a text come: half of them are below 181.
    ranks = np.exp(rng.random(int(lengths.sum())) * np.log(MAX_TOKEN)).astype(np.int64) - 1
    return {"tokens": np.split(ranks, np.cumsum(lengths)[:-1])}


def encode_columns(columns: Columns, *, raw: bool = False) -> list[list[bytes]]:
    """For each column the map entries of all records."""
    encoded = []
    for key, values in columns.items():
        if isinstance(values, list):  # ragged int64
            encoded.append([entry(key, INT64, b"".join(varints(row))) for row in values])
        elif values.dtype == np.int64:
            by_value = {v: entry(key, INT64, v) for v in set(varints(values))}
            encoded.append([by_value[v] for v in varints(values)])
        else:
            kind = BYTES if raw else FLOAT
            encoded.append([entry(key, kind, row.astype("<f4").tobytes()) for row in values])
    return encoded


def encode_chunk(name: str, columns: Columns, order_rng: np.random.Generator) -> list[bytes]:
    """The Examples of a chunk, without frames."""
    encoded = encode_columns(columns, raw=name == "A")
    rows = list(zip(*encoded, strict=True))
    if name == "C-random":
        orders = order_rng.permuted(np.tile(np.arange(len(encoded)), (len(rows), 1)), axis=1)
        rows = [tuple(row[i] for i in order) for row, order in zip(rows, orders.tolist(), strict=True)]
    return [delimited(1, b"".join(row)) for row in rows]


def chunks(name: str, records: int) -> Iterator[Columns]:
    make = {"A": image_chunk, "C": click_chunk, "C-random": click_chunk, "D": token_chunk, "E": image_chunk}[name]
    rng = np.random.default_rng([SEED, *name.removesuffix("-random").encode()])
    for start in range(0, records, CHUNK):
        yield make(rng, min(CHUNK, records - start))


def describe(name: str, columns: Columns) -> dict[str, Column]:
    described = {}
    for key, values in columns.items():
        if isinstance(values, list):
            described[key] = Column("int64", None)
        elif values.dtype == np.int64:
            described[key] = Column("int64", [])
        else:
            shape = [] if values.ndim == 1 else list(IMAGE_SHAPE) if name == "A" else [IMAGE_VALUES]
            described[key] = Column("float32", shape, raw=name == "A")
    return described


def add_totals(described: dict[str, Column], columns: Columns) -> None:
    for key, column in described.items():
        values = np.concatenate(columns[key]) if column.shape is None else columns[key]
        column.count += values.size
        if column.kind == "int64":
            column.total = (int(column.total) + int(np.sum(values.astype(np.uint64)))) % 2**64
        else:
            column.total += float(np.sum(values, dtype=np.float64))


def write(name: str, records: int, folder: Path) -> dict[str, Any]:
    """Write the shards of one data set and return its manifest."""
    ends = [records * (i + 1) // NUM_SHARDS for i in range(NUM_SHARDS)]
    names = [f"{name}-{i:05}-of-{NUM_SHARDS:05}.tfrecord" for i in range(NUM_SHARDS)]
    described: dict[str, Column] = {}
    payload_bytes = done = shard = 0
    order_rng = np.random.default_rng([SEED, 1])
    files = [(folder / file_name).open("wb") for file_name in names]
    for columns in chunks(name, records):
        described = described or describe(name, columns)
        add_totals(described, columns)
        for payload in encode_chunk(name, columns, order_rng):
            shard += done == ends[shard]
            files[shard].write(frame(payload))
            payload_bytes += len(payload)
            done += 1
    for file in files:
        file.close()
    return {
        "name": name,
        "version": VERSION,
        "seed": SEED,
        "records": records,
        "payload_bytes": payload_bytes,
        "paths": names,
        "columns": {key: asdict(column) for key, column in described.items()},
    }


def ensure(name: str, root: Path, *, quick: bool = False) -> dict[str, Any]:
    """Return the manifest of a data set, with absolute paths, after making the files where they are not there yet."""
    records = RECORDS[name] // (10 if quick else 1)
    folder = root / f"{name}-{records}"
    manifest_path = folder / "manifest.json"
    known = json.loads(manifest_path.read_text()) if manifest_path.exists() else {}
    if (known.get("version"), known.get("seed")) != (VERSION, SEED):
        print(f"making data set {name}: {records:,} records", flush=True)
        # Built elsewhere and renamed, so that an interrupted run never leaves half a data set behind.
        partial = root / f".{folder.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
        partial.mkdir(parents=True)
        known = write(name, records, partial)
        (partial / "manifest.json").write_text(json.dumps(known, indent=1))
        partial.rename(folder)
    known["paths"] = [str(folder / path) for path in known["paths"]]
    return known
