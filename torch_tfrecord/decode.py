"""From a native job to a `Batch`: the only module that runs the decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from PIL.Image import Image

from torch_tfrecord.arena import allocate
from torch_tfrecord.batch import Batch
from torch_tfrecord.errors import ParseError
from torch_tfrecord.faults import frame_error, payload_problem
from torch_tfrecord.images import decode_into, image_shape, in_threads, open_image
from torch_tfrecord.native import core
from torch_tfrecord.plan import Plan, record_plan
from torch_tfrecord.ragged import Ragged
from torch_tfrecord.schema import DecodeImage, DecodeRaw, FixedLenFeature

_KIND_NAMES = ("no kind", "bytes", "float32", "int64")
_FRAME_CODES = frozenset(("truncated_header", "length_crc", "length_mismatch", "truncated_payload", "data_crc", "io"))


class Origin(NamedTuple):
    """Where a row comes from, for messages."""

    record: int  # its number in the file, or in the caller's list
    path: str | None = None
    offset: int = 0  # of its frame in the file, in bytes
    payload: Callable[[], bytes] | None = None  # reads the record again

    def __str__(self) -> str:
        return (
            f"record {self.record}" if self.path is None else f"{self.path}: record {self.record} at byte {self.offset}"
        )


Int64s: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class Frames(NamedTuple):
    """Records in files, as the native core takes them."""

    files: list[core.File]
    file_of: Int64s | None  # each record's place in files; None where there is one file
    offsets: Int64s  # of frames in their files, in bytes
    lengths: Int64s  # of payloads, in bytes
    verify: int  # 0 nothing, 1 checksums of lengths, 2 all checksums


def decode(
    plan: Plan, records: Frames | list[Any], origin: Callable[[int], Origin], record_ids: Int64s | None = None
) -> Batch:
    """Read and decode records.

    Args:
        plan: What to make of the records.
        records: Where they lie, or serialised records in memory: bytes-like objects.
        origin: Says where record i comes from; called for errors only.
        record_ids: ``int64[records]``: goes into the batch; None: they are numbered from 0.

    Raises:
        DataLossError: A record's bytes are damaged or missing.
        StaleIndexError: A record is not where the index says.
        ParseError: A record does not fit the plan.
    """
    if torch.is_inference_mode_enabled():  # columns are ordinary tensors: a batch made now may be trained on later
        with torch.inference_mode(mode=False):
            return decode(plan, records, origin, record_ids)
    job = _job(plan, records)
    num_threads = torch.get_num_threads()
    images: dict[str, list[Image]] = {}
    shapes: dict[str, np.ndarray[Any, Any]] = {}
    if not plan.sized:
        _check_fault(job.measure(num_threads), plan, origin)
        for column, name, spec in plan.images:
            images[name], shapes[name] = _open_images(job.values(column), spec, name, origin)
    placed = plan.place(job, {name: found for name, found in shapes.items() if name not in plan.dense})
    try:
        arena, memory = allocate(placed.layout.nbytes)
    except MemoryError as error:
        problem = f"a batch of {job.rows:,} records takes {placed.layout.nbytes:,} bytes, which cannot be had"
        raise MemoryError(f"{problem}: read fewer records at a time") from error
    _check_fault(job.fill(memory, placed.placements, num_threads), plan, origin)
    np.frombuffer(memory, np.int64, job.rows)[:] = np.arange(job.rows) if record_ids is None else record_ids
    batch = Batch.from_arena(arena, placed.layout, job.num_defaulted(), job.num_duplicates())
    for name, raw in plan.raw:
        _finish_raw(batch[name], raw, name, origin)
    for _, name, spec in plan.images:
        _fill_images(batch[name], images[name], shapes[name], spec, name, origin)
    return batch


def read_payloads(records: Frames, origin: Callable[[int], Origin]) -> list[bytes]:
    """Read records and leave them as they are. Arguments and errors as for `decode`."""
    plan = record_plan()
    job = _job(plan, records)
    _check_fault(job.measure(torch.get_num_threads()), plan, origin)
    return job.values(0)


def _job(plan: Plan, records: Frames | list[Any]) -> core.Job:
    return plan.decoder.read(*records) if isinstance(records, Frames) else plan.decoder.parse(records)


def _check_fault(fault: core.Fault | None, plan: Plan, origin: Callable[[int], Origin]) -> None:
    """Raise the error that a job's fault stands for, if there is one."""
    if fault is None:
        return
    code, row, column, _, expected, found = fault
    where = origin(row)
    if code in _FRAME_CODES:
        raise frame_error(fault, path=where.path or "", record=where.record, indexed=True)
    if code.startswith("bad_"):
        inside = "" if column < 0 else f": feature {_feature(plan, column)}"
        advice = "Is it a serialised Example?"
        if where.path is not None:
            advice = "Its bytes are as they were written: is it an Example? features=None reads it raw"
        raise ParseError(f"{where}{inside}: {payload_problem(fault)}. {advice}")
    start = f"{where}: feature {_feature(plan, column)}"
    spec = list(plan.specs.values())[column]
    if code == "missing":
        there = f"the record has {_names_in(where)}, and this one is absent or has no kind set"
        advice = "give it a default_value, read it as VarLenFeature, or name another feature by key="
        raise ParseError(f"{start}: expected a value, found none: {there}; {advice}")
    if code == "kind":
        raise ParseError(
            f"{start}: expected {_KIND_NAMES[expected]}, found {_KIND_NAMES[found]}; change the spec's dtype"
        )
    if code == "count":
        shape = spec.shape if isinstance(spec, FixedLenFeature) else ()
        advice = "change the spec's shape, or read it as VarLenFeature"
        raise ParseError(f"{start}: expected {expected} values for shape {shape}, found {found}; {advice}")
    raise ParseError(f"{start}: expected values of {expected} bytes for {_decoding(spec)}, found one of {found}")


def _names_in(where: Origin, limit: int = 20) -> str:
    """The names of a record's features that have a value, for a message."""
    features = core.describe(where.payload()) if where.payload is not None else ()
    if isinstance(features, tuple):
        return "other features"
    names = [repr(name.decode("utf-8", "surrogateescape")) for name, kind, _ in features if kind]
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(sorted(names)[:limit]) or "no feature") + more


def _feature(plan: Plan, column: int) -> str:
    name = list(plan.specs)[column]
    key = getattr(plan.specs[name], "key", None)
    return repr(name) if key is None or key == name else f"{key!r} (column {name!r})"


def _decoding(spec: Any) -> str:
    return repr(spec.decode) if isinstance(spec, FixedLenFeature) else repr(spec)


def _finish_raw(column: torch.Tensor | Ragged, decode: DecodeRaw, name: str, origin: Callable[[int], Origin]) -> None:
    """Turn copied bytes into elements, in place: size the rows, swap big-endian elements, make bools 0 or 1."""
    if isinstance(column, Ragged):
        _size_rows(column, decode, name, origin)
    values = column.values if isinstance(column, Ragged) else column
    assert isinstance(values, torch.Tensor)
    if values.numel() == 0:
        return
    memory = values.reshape(-1).view(torch.uint8)
    if decode.dtype is torch.bool:
        memory.ne_(0)  # any byte but 0 is True, and torch must see no other byte than 0 and 1
    elif not decode.little_endian:
        memory.numpy().view(f"u{decode.swap_size}").byteswap(inplace=True)


def _size_rows(column: Ragged, decode: DecodeRaw, name: str, origin: Callable[[int], Origin]) -> None:
    """Make element counts of the byte counts that the core wrote."""
    nbytes = column.lengths
    step = decode.nbytes
    bad = (nbytes % step).nonzero()
    if len(bad):
        row = int(bad[0])
        found = int(nbytes[row])
        raise ParseError(
            f"{origin(row)}: feature {name!r}: expected a multiple of {step} bytes for {decode}, found {found}"
        )
    column.offsets.floor_divide_(decode.item_size)
    if column.shapes is not None:
        for dim, size in enumerate(decode.shape):
            column.shapes[:, dim] = nbytes // step if size < 0 else size


def _open_images(
    encoded: list[bytes], spec: DecodeImage, name: str, origin: Callable[[int], Origin]
) -> tuple[list[Image], np.ndarray[Any, np.dtype[np.int64]]]:
    opened, shapes = [], []
    for row, value in enumerate(encoded):
        try:
            opened.append(open_image(value, spec))
            shapes.append(image_shape(opened[-1], spec))
        except ValueError as error:
            raise ParseError(f"{origin(row)}: feature {name!r}: expected an image, found {error}") from error
    return opened, np.array(shapes, np.int64).reshape(len(encoded), 3)


def _fill_images(
    column: torch.Tensor | Ragged,
    images: list[Image],
    shapes: np.ndarray[Any, np.dtype[np.int64]],
    spec: DecodeImage,
    name: str,
    origin: Callable[[int], Origin],
) -> None:
    if isinstance(column, Ragged):
        assert isinstance(column.values, torch.Tensor)
        assert column.shapes is not None
        ends = shapes.prod(1).cumsum()
        column.offsets.numpy()[:] = np.concatenate(([0], ends))
        column.shapes.numpy()[:] = shapes
        flat = column.values.numpy()
        outs = [part.reshape(shape) for part, shape in zip(np.split(flat, ends[:-1]), shapes, strict=False)]
    else:
        outs = list(column.numpy())

    def decode_row(row: int) -> None:
        try:
            decode_into(images[row], spec, outs[row])
        except ValueError as error:
            raise ParseError(f"{origin(row)}: feature {name!r}: expected an image, found {error}") from error

    for _ in in_threads(decode_row, len(images), torch.get_num_threads()):
        pass
