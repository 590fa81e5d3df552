"""From records to columns in plain Python: ``Decoder`` and ``Job`` of ``_core.pyi``, which says what a column is."""

from __future__ import annotations

import time
from itertools import accumulate
from typing import TYPE_CHECKING, final

import numpy as np

from torch_tfrecord.native.reference_columns import FIXED, WHOLE_PAYLOAD, Column, FitError, Spec, take
from torch_tfrecord.native.reference_example import BYTES, Feature, FeatureError, Values, read_example, wire_fault
from torch_tfrecord.native.reference_frames import (
    FOOTER_BYTES,
    HEADER_BYTES,
    File,
    FrameError,
    check_verify,
    read_header,
    read_payload,
)
from torch_tfrecord.native.reference_wire import INT64_MAX, WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Buffer

    from torch_tfrecord.native.reference_frames import Fault, Int64s

# The parts of a column in the arena, in the order of a placement.
VALUES, VALUE_OFFSETS, ROW_OFFSETS = range(3)
PARTS = ("values", "value_offsets", "row_offsets")


@final
class Decoder:
    """A compiled list of columns. Immutable; may be used by several threads at once."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._specs = [Spec.compile(column) for column in columns]

    def read(self, files: Sequence[File], file_of: Int64s | None, offsets: Int64s, lengths: Int64s, verify: int) -> Job:
        """Prepare to decode rows from files: see ``_core.pyi``."""
        check_verify(verify)
        files = list(files)
        if file_of is None:
            file_of = np.zeros_like(offsets)
        for name, array in (("file_of", file_of), ("offsets", offsets), ("lengths", lengths)):
            if array.dtype != np.int64 or array.shape != (len(offsets),):
                raise ValueError(f"{name} must be int64[{len(offsets)}], not {array.dtype}{list(array.shape)}")
        rows = list(zip(file_of.tolist(), offsets.tolist(), lengths.tolist(), strict=True))
        for row, (file, offset, length) in enumerate(rows):
            if not 0 <= file < len(files):
                raise ValueError(f"row {row} lies in file {file} of {len(files)}")
            if offset < 0 or length < 0 or offset + HEADER_BYTES + length + FOOTER_BYTES > INT64_MAX:
                raise ValueError(f"row {row} has offset {offset} and length {length}: no frame can lie there")

        def payload(row: int) -> bytes:
            file, offset, length = rows[row]
            header = read_header(files[file], offset, verify)
            if header.length != length:
                raise FrameError("length_mismatch", length, header.length)
            return read_payload(files[file], offset + HEADER_BYTES, length, verify)

        return Job(self._specs, len(rows), payload, [offset for _, offset, _ in rows])

    def parse(self, payloads: Sequence[Buffer]) -> Job:
        """Prepare to decode payloads that are in memory."""
        views = [memoryview(payload) for payload in payloads]
        return Job(self._specs, len(views), lambda row: views[row].tobytes(), [0] * len(views))


@final
class Job:
    """One batch on its way into an arena: ``measure`` where ``sized`` is False, then ``fill``.

    There are no threads here: what is started is done at once, though its fault is told by ``wait`` alone.

    Made by ``Decoder`` alone. ``read_row`` returns a row's payload, or raises FrameError or OSError; ``offsets`` says
    where the rows' frames lie.
    """

    def __init__(
        self, specs: Sequence[Spec], rows: int, read_row: Callable[[int], bytes], offsets: Sequence[int]
    ) -> None:
        self.rows = rows
        self.sized = all(spec.is_sized for spec in specs)
        self._specs = specs
        self._read_row = read_row
        self._offsets = offsets
        self._columns: list[list[Values]] = [[] for _ in specs]  # a column's values, row by row
        self._first_column: dict[bytes, int] = {}  # of those that want a key
        for i, spec in enumerate(specs):
            if spec.kind != WHOLE_PAYLOAD:
                self._first_column.setdefault(spec.key, i)
        self._state = "new"  # then "failed" or "measured", then "filled"; "cancelled" at any time
        self._started = False
        self._waited = True  # for what was started last
        self._fault: Fault | None = None  # of what was started last
        self.finished_at = 0.0
        self._num_defaulted = 0
        self._num_duplicates = 0

    def measure(self, num_threads: int) -> Fault | None:
        """Read and check all rows and find the size of each column. ``num_threads`` is for the native core."""
        self.start_measure(num_threads)
        return self.wait()

    def start_measure(self, num_threads: int) -> None:  # noqa: ARG002
        """Begin to measure: see ``_core.pyi``."""
        self._require_idle()
        if self._state != "new":
            raise ValueError("measure comes once, and before fill")
        fault = self._decode()
        self._end("failed" if fault else "measured", fault)

    def _decode(self) -> Fault | None:
        faults = map(self._decode_row, range(self.rows))
        return next((fault for fault in faults if fault is not None), None)

    def _end(self, state: str, fault: Fault | None) -> None:
        self._state, self._fault = state, fault
        self._started, self._waited = True, False
        self.finished_at = time.monotonic()

    def done(self) -> bool:
        """Whether nothing is at work: always so here."""
        self._require_alive()
        return True

    def wait(self) -> Fault | None:
        """Give the fault of what was started last, or None."""
        self._require_alive()
        if not self._started:
            raise ValueError("nothing was started that could be waited for")
        self._waited = True
        return self._fault

    def cancel(self) -> None:
        """Make the job unusable."""
        self._state = "cancelled"

    def _decode_row(self, row: int) -> Fault | None:
        try:
            payload = self._read_row(row)
        except FrameError as error:
            return error.fault(row, self._offsets[row])
        except OSError as error:
            return "io", row, -1, self._offsets[row], 0, error.errno or 0
        features: dict[bytes, Feature] = {}
        if self._first_column:
            try:
                features, num_replaced = read_example(payload, self._first_column.__contains__)
            except WireError as error:
                return wire_fault(error, row=row, column=-1)
            except FeatureError as error:
                return wire_fault(error.__cause__, row=row, column=self._first_column[error.key])
            self._num_duplicates += num_replaced
        for i, spec in enumerate(self._specs):
            try:
                values = (payload,) if spec.kind == WHOLE_PAYLOAD else take(spec, features.get(spec.key))
            except FitError as error:
                return error.code, row, i, 0, error.expected, error.found
            if values is None:
                assert spec.default is not None
                values = spec.default
                self._num_defaulted += 1
            self._columns[i].append(values)
        return None

    def num_values(self, column: int) -> int:
        """Values in a column over all rows. After measure, or for FIXED columns."""
        spec = self._spec(column)
        if spec.layout == FIXED:
            return self.rows * spec.count
        self._require_measured()
        return sum(spec.num_values(values) for values in self._columns[column])

    def num_bytes(self, column: int) -> int:
        """Bytes of a column's values part. After measure, or where sized."""
        spec = self._spec(column)
        if spec.is_sized:
            return self.rows * spec.count * spec.item_bytes
        self._require_measured()
        return sum(len(value) for values in self._columns[column] for value in _pieces(values))

    def values(self, column: int) -> list[bytes]:
        """Copies of a bytes column's values, row by row. After measure."""
        if self._spec(column).kind not in (WHOLE_PAYLOAD, BYTES):
            raise ValueError(f"column {column} has numbers, not bytes")
        self._require_measured()
        return [value for values in self._columns[column] for value in _pieces(values)]

    def fill(self, arena: Buffer, placements: Int64s, num_threads: int) -> Fault | None:
        """Write all columns into a writable buffer: see ``_core.pyi``."""
        self.start_fill(arena, placements, num_threads)
        return self.wait()

    def start_fill(self, arena: Buffer, placements: Int64s, num_threads: int) -> None:  # noqa: ARG002
        """Begin to fill: see ``_core.pyi``."""
        self._require_idle()
        if self._state not in (("new", "measured") if self.sized else ("measured",)):
            raise ValueError("fill comes once, and after a measure without a fault where the job is not sized")
        view = memoryview(arena)
        if view.readonly or not view.c_contiguous:
            raise ValueError("the arena must be writable and contiguous")
        view = view.cast("B")
        places = self._check_placements(placements, view.nbytes)
        fault = self._decode() if self._state == "new" else None
        if fault is None:
            self._state = "filled"
            for column, part, begin in places:
                data = self._part(column, part)
                view[begin : begin + len(data)] = data
        self._end("failed" if fault else "filled", fault)

    def _check_placements(self, placements: Int64s, arena_bytes: int) -> list[tuple[int, int, int]]:
        """Take the wanted parts as (column, part, begin), each of which has room in the arena. Raises ValueError."""
        if placements.dtype != np.int64 or placements.shape != (3 * len(self._specs),):
            raise ValueError(f"placements must be int64[{3 * len(self._specs)}], three a column")
        places = []
        for column, begins in enumerate(placements.reshape(-1, 3).tolist()):
            if begins[VALUES] < 0:
                continue  # not wanted
            for part, begin in enumerate(begins):
                size = self._part_bytes(column, part)
                if size is None:
                    continue
                if begin < 0 or begin % 8 != 0 or begin + size > arena_bytes:
                    raise ValueError(
                        f"the {PARTS[part]} of column {column}, {size} bytes, cannot lie at {begin} of an arena of "
                        f"{arena_bytes} bytes; places are multiples of 8"
                    )
                places.append((column, part, begin))
        return places

    def _part_bytes(self, column: int, part: int) -> int | None:
        """Size of a part, or None where the column has no such part."""
        spec = self._specs[column]
        if part == VALUES:
            return self.num_bytes(column)
        if part == VALUE_OFFSETS:
            return 8 * (self.num_values(column) + 1) if spec.has_value_offsets else None
        return 8 * (self.rows + 1) if spec.has_row_offsets else None

    def _part(self, column: int, part: int) -> bytes:
        """The bytes of a part."""
        rows = self._columns[column]
        if part == VALUES:
            return b"".join(piece for values in rows for piece in _pieces(values))
        if part == VALUE_OFFSETS:
            sizes = [len(piece) for values in rows for piece in _pieces(values)]
        else:
            sizes = [self._specs[column].num_values(values) for values in rows]
        return np.array([0, *accumulate(sizes)], np.int64).tobytes()

    def num_defaulted(self) -> int:
        """How many values of (row, column) were taken from a default."""
        self._require_alive()
        return self._num_defaulted

    def num_duplicates(self) -> int:
        """How many entries of a wanted name were replaced by a later entry of that name."""
        self._require_alive()
        return self._num_duplicates

    def _spec(self, column: int) -> Spec:
        self._require_alive()
        if not 0 <= column < len(self._specs):
            raise IndexError(f"column {column} of {len(self._specs)}")
        return self._specs[column]

    def _require_measured(self) -> None:
        if self._state not in ("measured", "filled") or (self._state == "measured" and not self._waited):
            raise ValueError("known only after a measure without a fault")

    def _require_idle(self) -> None:
        self._require_alive()
        if not self._waited:
            raise ValueError("this job is at work: wait comes first")

    def _require_alive(self) -> None:
        if self._state == "cancelled":
            raise ValueError("this job was cancelled")


def _pieces(values: Values) -> tuple[bytes, ...]:
    """One record's values as pieces of bytes: all numbers are one piece, each bytes value is one."""
    return (values,) if isinstance(values, bytes) else values
