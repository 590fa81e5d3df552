"""From a native job to a `Batch`: the only module that runs the decoder.

`decode` makes one batch and returns it. A `Decoding` is a batch on its way: native threads work on it while Python does
other things, several at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
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
from torch_tfrecord.plan import Placed, Plan, record_plan
from torch_tfrecord.ragged import Ragged
from torch_tfrecord.schema import DecodeImage, DecodeRaw, FixedLenFeature

_KIND_NAMES = ("no kind", "bytes", "float32", "int64")
_FRAME_CODES = frozenset(("truncated_header", "length_crc", "length_mismatch", "truncated_payload", "data_crc", "io"))


class Origin(NamedTuple):
    """Where a row comes from, for messages."""

    record: int  # its number in the file, or in the caller's list
    path: str | None = None
    offset: int | None = 0  # of its frame in the file, or in what that is uncompressed, in bytes; None: not known
    payload: Callable[[], bytes] | None = None  # reads the record again
    compression: str = "none"  # of the file

    def __str__(self) -> str:
        place = f"record {self.record}" if self.offset is None else f"record {self.record} at byte {self.offset}"
        if self.compression != "none":
            place += " of the uncompressed stream"
        return f"record {self.record}" if self.path is None else f"{self.path}: {place}"


Int64s: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class Frames(NamedTuple):
    """Records in files, as the native core takes them."""

    files: list[core.File]
    file_of: Int64s | None  # each record's place in files; None where there is one file
    offsets: Int64s  # of frames in their files, in bytes
    lengths: Int64s  # of payloads, in bytes
    verify: int  # 0 nothing, 1 checksums of lengths, 2 all checksums


class _Target(NamedTuple):
    """Where a batch goes."""

    arena: torch.Tensor
    memory: Any  # the same, as a writable buffer
    placed: Placed


def decode(
    plan: Plan,
    records: Frames | list[Any],
    origin: Callable[[int], Origin],
    record_ids: Int64s | None = None,
    num_threads: int | None = None,
) -> Batch:
    """Read and decode records.

    Args:
        plan: What to make of the records.
        records: Where they lie, or serialised records in memory: bytes-like objects.
        origin: Says where record i comes from; called for errors only.
        record_ids: ``int64[records]``: goes into the batch; None: they are numbered from 0.
        num_threads: Threads to use at most, the caller's among them; None: as many as torch.

    Raises:
        DataLossError: A record's bytes are damaged or missing.
        StaleIndexError: A record is not where the index says.
        ParseError: A record does not fit the plan.
        MemoryError: There is no memory for the batch.
    """
    if torch.is_inference_mode_enabled():
        with _ordinary_tensors():
            return decode(plan, records, origin, record_ids, num_threads)
    job = _job(plan, records)
    if num_threads is None:
        num_threads = torch.get_num_threads()
    images: dict[str, list[Image]] = {}
    shapes: dict[str, np.ndarray[Any, Any]] = {}
    if not plan.sized:
        _check_fault(job.measure(num_threads), plan, origin)
        for column, name, spec in plan.images:
            images[name], shapes[name] = _open_images(job.values(column), spec, name, origin)
    target = _make_room(plan, job, {name: found for name, found in shapes.items() if name not in plan.dense})
    _check_fault(job.fill(target.memory, target.placed.placements, num_threads), plan, origin)
    batch = _finish(plan, job, target, origin, record_ids)
    for _, name, spec in plan.images:
        _fill_images(batch[name], images[name], shapes[name], spec, name, origin, num_threads)
    return batch


class Decoding:
    """One batch on its way. It starts when it is made, and native threads do the work.

    For one Python thread at a time. Not for plans with images, which Pillow decodes, in Python.

    Args:
        plan: As for `decode`.
        records: As for `decode`.
        origin: As for `decode`.
        record_ids: As for `decode`.
        num_threads: Native threads that work on it at most.
        pin_memory: Whether the batch is to lie in page-locked memory.

    Raises:
        ValueError: The plan has images.
    """

    def __init__(
        self,
        plan: Plan,
        records: Frames | list[Any],
        origin: Callable[[int], Origin],
        record_ids: Int64s | None,
        num_threads: int,
        *,
        pin_memory: bool = False,
    ) -> None:
        if plan.images:
            raise ValueError("images are decoded by Pillow, for which native threads cannot go on alone: use decode")
        self._plan = plan
        self._origin = origin
        self._record_ids = record_ids
        self._num_threads = num_threads
        self._pin_memory = pin_memory
        self._target: _Target | None = None
        self._batch: Batch | None = None
        self._job = _job(plan, records)
        if not plan.sized:
            self._job.start_measure(num_threads)
        self.advance()

    def advance(self) -> bool:
        """Go on as far as that is possible without waiting.

        Returns:
            Whether ``result`` has its answer without waiting: the batch, or an error.
        """
        if self._target is None and self._job.done():
            try:
                self._start_fill()
            except Exception:  # noqa: BLE001
                return True  # result meets it again; memory may have been freed by then
        return self._job.done()

    def result(self) -> Batch:
        """Wait for the batch. Raises as `decode` does."""
        if self._batch is None:
            if self._target is None:
                self._start_fill()
            assert self._target is not None
            _check_fault(self._job.wait(), self._plan, self._origin)
            with _ordinary_tensors():
                self._batch = _finish(self._plan, self._job, self._target, self._origin, self._record_ids)
        return self._batch

    def cancel(self) -> None:
        """Drop what has not begun, and wait for what is at work. Afterwards the other methods raise ValueError."""
        self._job.cancel()
        self._target = self._batch = None

    @property
    def finished_at(self) -> float:
        """Seconds of ``time.monotonic()`` when the native threads had done all they could; 0.0 while they work.

        Where the plan is not sized, they stop in the middle: when they have measured, they wait for ``advance``.
        """
        return self._job.finished_at

    def _start_fill(self) -> None:
        """Where the plan is not sized, this waits for the measure."""
        if not self._plan.sized:
            _check_fault(self._job.wait(), self._plan, self._origin)
        with _ordinary_tensors():
            target = _make_room(self._plan, self._job, {}, pin_memory=self._pin_memory)
        self._job.start_fill(target.memory, target.placed.placements, self._num_threads)
        self._target = target


def read_payloads(records: Frames, origin: Callable[[int], Origin], num_threads: int | None = None) -> list[bytes]:
    """Read records and leave them as they are. Arguments and errors as for `decode`."""
    plan = record_plan()
    job = _job(plan, records)
    _check_fault(job.measure(torch.get_num_threads() if num_threads is None else num_threads), plan, origin)
    return job.values(0)


def _ordinary_tensors() -> AbstractContextManager[Any]:
    """Columns are ordinary tensors, in inference mode too: a batch made there may be trained on later."""
    return torch.inference_mode(mode=False) if torch.is_inference_mode_enabled() else nullcontext()


def _make_room(
    plan: Plan, job: core.Job, image_shapes: Mapping[str, np.ndarray[Any, Any]], *, pin_memory: bool = False
) -> _Target:
    """Lay out the arena of a job, and get its memory."""
    placed = plan.place(job, image_shapes)
    try:
        arena, memory = allocate(placed.layout.nbytes, pin_memory=pin_memory)
    except MemoryError as error:
        problem = f"a batch of {job.rows:,} records takes {placed.layout.nbytes:,} bytes, which cannot be had"
        raise MemoryError(f"{problem}: read fewer records at a time") from error
    return _Target(arena, memory, placed)


def _finish(
    plan: Plan, job: core.Job, target: _Target, origin: Callable[[int], Origin], record_ids: Int64s | None
) -> Batch:
    """Make the batch of an arena that the core has filled."""
    np.frombuffer(target.memory, np.int64, job.rows)[:] = np.arange(job.rows) if record_ids is None else record_ids
    batch = Batch.from_arena(target.arena, target.placed.layout, job.num_defaulted(), job.num_duplicates())
    for name, raw in plan.raw:
        _finish_raw(batch[name], raw, name, origin)
    return batch


def _job(plan: Plan, records: Frames | list[Any]) -> core.Job:
    return plan.decoder.read(*records) if isinstance(records, Frames) else plan.decoder.parse(records)


def _check_fault(fault: core.Fault | None, plan: Plan, origin: Callable[[int], Origin]) -> None:
    """Raise the error that a job's fault stands for, if there is one."""
    if fault is None:
        return
    code, row, column, position, expected, found = fault
    where = origin(row)
    if code in _FRAME_CODES:
        base = (where.offset or 0) - position  # not 0 where the core read another file than the one that is meant
        raise frame_error(
            fault,
            path=where.path or "",
            record=where.record,
            base=base,
            indexed=True,
            compression=where.compression,
        )
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
    num_threads: int,
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

    for _ in in_threads(decode_row, len(images), num_threads):
        pass
