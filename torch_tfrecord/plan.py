"""Feature specs compiled once: columns for the native core, and what each becomes in a batch."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_tfrecord.layout import Dense, Layout, Sizes, lay_out
from torch_tfrecord.native import core
from torch_tfrecord.schema import (
    DecodeImage,
    DecodeRaw,
    Feature,
    FixedLenFeature,
    checked_features,
    encoded_default,
    kind_of,
)

MAX_ROW_BYTES = 1 << 40  # of one column of one record; the native core refuses more
RECORD = "record"  # the one column of a plan for whole records


class RawRecord(NamedTuple):
    """Stands for a spec where records are not parsed: the whole payload as one string."""


class Placed(NamedTuple):
    """A layout, and what the native core needs to fill it."""

    layout: Layout
    placements: np.ndarray[Any, np.dtype[np.int64]]  # int64[columns * 3]


class Plan:
    """How records become batches. Immutable, shared between threads, made anew in each process.

    Attributes:
        specs: Specs by column name, in the order of a batch's columns.
        columns: The same for the native core.
        sized: Whether the size of an arena follows from the number of rows alone.
        images: Native column, name and `DecodeImage` of each column of images.
        raw: Name and `DecodeRaw` of each column whose copied bytes are not yet its elements.
        dense: What each column whose rows have one shape becomes.
    """

    def __init__(self, specs: tuple[tuple[str, Feature | RawRecord], ...]) -> None:
        self.specs = dict(specs)
        self.columns = [_column(name, spec) for name, spec in specs]
        self.decoder = core.Decoder(self.columns)
        self.images = [(i, n, d) for i, (n, spec) in enumerate(specs) if isinstance(d := _decode(spec), DecodeImage)]
        self.raw = [(n, d) for n, spec in specs if isinstance(d := _decode(spec), DecodeRaw) and _unfinished(d)]
        self.dense: dict[str, Dense] = {n: dense for n, spec in specs if (dense := _dense(spec)) is not None}
        self.sized = len(self.dense) == len(specs) and not self.images
        self._by_rows = functools.lru_cache(maxsize=16)(self._lay_out_dense)

    def place(self, job: core.Job, image_shapes: Mapping[str, np.ndarray[Any, Any]]) -> Placed:
        """Lay out the arena of a job that was measured, if it had to be."""
        if self.sized:
            return self._by_rows(job.rows)
        columns: dict[str, Dense | Sizes] = {}
        for i, (name, spec) in enumerate(self.specs.items()):
            columns[name] = self.dense.get(name) or _sizes(spec, job, i, image_shapes.get(name))
        return self._finish(columns, job.rows)

    def _lay_out_dense(self, rows: int) -> Placed:
        return self._finish(dict(self.dense), rows)

    def _finish(self, columns: dict[str, Dense | Sizes], rows: int) -> Placed:
        layout, places = lay_out(columns, rows)
        images = {name for _, name, _ in self.images}  # Pillow writes those, not the core
        numbers = [
            (-1, -1, -1) if name in images else _native_place(self.specs[name], places[name]) for name in columns
        ]
        return Placed(layout, np.array(numbers, np.int64).reshape(-1))


def _native_place(spec: Feature | RawRecord, place: tuple[int, int, int]) -> tuple[int, int, int]:
    """The core's view of a place: to it the bytes of a DecodeRaw of unknown shape are one string a row."""
    if isinstance(_decode(spec), DecodeRaw) and place[2] >= 0:
        return place[0], place[2], -1
    return place


def _unfinished(decode: DecodeRaw) -> bool:
    """Whether the copied bytes are not yet the tensor."""
    return -1 in decode.shape or decode.dtype is torch.bool or not (decode.little_endian or decode.swap_size == 1)


def _decode(spec: Feature | RawRecord) -> DecodeRaw | DecodeImage | None:
    return spec.decode if isinstance(spec, FixedLenFeature) else None


def _column(name: str, spec: Feature | RawRecord) -> core.Column:
    if isinstance(spec, RawRecord):
        return b"", 0, core.FIXED, 1, -1, None
    key = (name if spec.key is None else spec.key).encode("utf-8", "surrogateescape")
    kind = kind_of(spec.dtype)
    if not isinstance(spec, FixedLenFeature):
        return key, kind, core.RAGGED, 0, -1, None
    decode = spec.decode
    nbytes = decode.nbytes if isinstance(decode, DecodeRaw) and -1 not in decode.shape else -1
    if spec.count * max(8, nbytes) > MAX_ROW_BYTES:
        raise ValueError(f"features[{name!r}]: a value of {spec!r} would take more than {MAX_ROW_BYTES:,} bytes")
    return key, kind, core.FIXED, spec.count, nbytes, encoded_default(spec)


def _dense(spec: Feature | RawRecord) -> Dense | None:
    """What a column with rows of one shape becomes; None for others."""
    if not isinstance(spec, FixedLenFeature):
        return None
    decode = spec.decode
    if isinstance(decode, DecodeImage):
        return None if decode.size is None else Dense(torch.uint8, (*decode.size, decode.channels))
    if isinstance(decode, DecodeRaw):
        return None if -1 in decode.shape else Dense(decode.dtype, (*spec.shape, *decode.shape))
    return None if spec.dtype is bytes else Dense(spec.dtype, spec.shape)  # type: ignore[arg-type]


def _sizes(spec: Feature | RawRecord, job: core.Job, i: int, shapes: np.ndarray[Any, Any] | None) -> Sizes:
    if shapes is not None:  # images
        return Sizes(torch.uint8, (), int(shapes.prod(1).sum()), -1, has_row_offsets=True, dims=shapes.shape[1])
    if isinstance(spec, RawRecord):
        return Sizes(None, (), job.num_bytes(i), job.num_values(i), has_row_offsets=False, dims=0)
    decode = _decode(spec)
    if isinstance(decode, DecodeRaw):
        dims = len(decode.shape) if len(decode.shape) > 1 else 0
        count = job.num_bytes(i) // decode.item_size
        return Sizes(decode.dtype, (), count, -1, has_row_offsets=True, dims=dims)
    if isinstance(spec, FixedLenFeature):
        return Sizes(None, spec.shape, job.num_bytes(i), job.num_values(i), has_row_offsets=False, dims=0)
    if spec.dtype is bytes:
        return Sizes(None, (), job.num_bytes(i), job.num_values(i), has_row_offsets=True, dims=0)
    return Sizes(spec.dtype, (), job.num_values(i), -1, has_row_offsets=True, dims=0)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=64)
def _compiled(specs: tuple[tuple[str, Feature | RawRecord], ...], defaults: tuple[Any, ...] = ()) -> Plan:  # noqa: ARG001
    return Plan(specs)  # the defaults are part of the key, because -0.0 equals 0.0


def compile_features(features: Mapping[str, Any]) -> Plan:
    """Compile a mapping of specs; the same mapping is compiled once a process.

    Raises:
        ValueError: It is empty.
        TypeError: It holds something else than specs.
    """
    specs = checked_features(features)
    return _compiled(specs, tuple(encoded_default(spec) for _, spec in specs if isinstance(spec, FixedLenFeature)))


def record_plan() -> Plan:
    """The plan of records that are not parsed: one column of strings."""
    return _compiled(((RECORD, RawRecord()),))
