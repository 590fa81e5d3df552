"""Both cores, and what tests do with a decoder's jobs."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from os import dup
from typing import Any

import numpy as np
import pytest
from google.protobuf.internal import api_implementation
from protobuf_oracle import BYTES, FLOAT32, INT64, Features
from strategies import Column

from torch_tfrecord.native import reference

native: Any = None
with suppress(ImportError):  # which is possible only with TORCH_TFRECORD_BACKEND=python
    native = import_module("torch_tfrecord.native._core")

needs_native = pytest.mark.skipif(native is None, reason="the native core is not built")
needs_upb = pytest.mark.skipif(api_implementation.Type() != "upb", reason="protobuf's other parsers differ in details")
both_cores = pytest.mark.parametrize(
    "core", [pytest.param(reference, id="python"), pytest.param(native, id="native", marks=needs_native)]
)

_SENTINEL = 0xA5  # what an arena holds before it is filled, and still holds between the parts


@dataclass(frozen=True)
class Outcome:
    """All that a job says: the fault, or sizes, values, counts and the arena."""

    fault: tuple[Any, ...] | None
    sizes: list[tuple[int, int]] = field(default_factory=list)
    values: list[list[bytes]] = field(default_factory=list)
    num_defaulted: int = 0
    num_duplicates: int = 0
    arena: bytes = b""


def part_sizes(job: Any, columns: list[Column]) -> list[int | None]:
    """Bytes of each part, three a column; None where a column has no such part."""
    sizes: list[int | None] = []
    for i, (_, kind, layout, _, nbytes, _) in enumerate(columns):
        sizes.append(job.num_bytes(i))
        sizes.append(8 * (job.num_values(i) + 1) if kind <= BYTES and nbytes < 0 else None)
        sizes.append(8 * (job.rows + 1) if layout == reference.RAGGED else None)
    return sizes


def place(sizes: list[int | None]) -> tuple[list[int], int]:
    """Lay parts side by side with gaps of 8 bytes: placements, and the bytes of the arena."""
    placements = []
    end = 8
    for size in sizes:
        placements.append(-1 if size is None else end)
        end += 0 if size is None else (size + 7) // 8 * 8 + 8
    return placements, end


def fill(job: Any, columns: list[Column], num_threads: int = 1) -> tuple[tuple[Any, ...] | None, bytes, list[int]]:
    """Fill an arena: the fault, the arena, the placements."""
    placements, nbytes = place(part_sizes(job, columns))
    arena = np.full(nbytes, _SENTINEL, np.uint8)
    fault = job.fill(arena, np.array(placements, np.int64), num_threads)
    return fault, arena.tobytes(), placements


def run(job: Any, columns: list[Column], *, measure: bool = True, num_threads: int = 1) -> Outcome:
    """Take a job to its end."""
    fault = job.measure(num_threads) if measure else None
    if fault is not None:
        return Outcome(fault)
    fault, arena, _ = fill(job, columns, num_threads)
    if fault is not None:
        return Outcome(fault)
    sizes = [(job.num_values(i), job.num_bytes(i)) for i in range(len(columns))]
    values = [job.values(i) for i, column in enumerate(columns) if measure and column[1] <= BYTES]
    return Outcome(None, sizes, values, job.num_defaulted(), job.num_duplicates(), arena)


def assert_same_jobs(jobs: list[Any], columns: list[Column], **options: Any) -> Outcome:
    """Run jobs of one batch, of which all must come to the same end, which is returned."""
    outcomes = [run(job, columns, **options) for job in jobs]
    for outcome in outcomes[1:]:
        assert outcome == outcomes[0]
    return outcomes[0]


def assert_parity(make_job: Any, columns: list[Column], num_threads: int = 1) -> Outcome:
    """Check that both cores' jobs come to one end, which is returned; sized ones also without a measure.

    Args:
        make_job: Takes a core, makes a new job.
        columns: What the job decodes.
        num_threads: For the jobs.
    """
    cores = [reference, native]
    outcome = assert_same_jobs([make_job(core) for core in cores], columns, num_threads=num_threads)
    assert {make_job(core).sized for core in cores} == {is_sized(columns)}
    if is_sized(columns):
        jobs = [make_job(core) for core in cores]
        in_one_pass = assert_same_jobs(jobs, columns, measure=False, num_threads=num_threads)
        assert in_one_pass == replace(outcome, values=[])
    return outcome


def is_sized(columns: list[Column]) -> bool:
    return all(layout == reference.FIXED and (kind > BYTES or nbytes >= 0) for _, kind, layout, _, nbytes, _ in columns)


def read_back(core: Any, payload: bytes, names: list[tuple[bytes, int]]) -> tuple[Features, int]:
    """Decode features of known kinds by RAGGED columns, back into logical ones; and the number of duplicates."""
    columns: list[Column] = [(key, kind, reference.RAGGED, 0, -1, None) for key, kind in names if kind]
    job = core.Decoder(columns).parse([payload])
    assert job.measure(1) is None
    fault, arena, placements = fill(job, columns)
    assert fault is None
    found: Features = {key: (0, ()) for key, kind in names if kind == 0}
    for i, (key, kind, *_) in enumerate(columns):
        raw = arena[placements[3 * i] : placements[3 * i] + job.num_bytes(i)]
        if kind == BYTES:
            found[key] = kind, tuple(job.values(i))
        elif kind == FLOAT32:
            found[key] = kind, tuple(raw[j : j + 4] for j in range(0, len(raw), 4))
        elif kind == INT64:
            found[key] = kind, tuple(np.frombuffer(raw, np.int64).tolist())
    return found, job.num_duplicates()


def open_file(core: Any, data: bytes) -> Any:
    """A core's File over a temporary file, which has no name any more."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        return core.File(dup(file.fileno()))
