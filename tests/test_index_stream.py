"""Walking compressed files: the same records and the same faults as in a plain file, in bounded memory."""

from __future__ import annotations

import gzip
import io
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compressed_files import KINDS, codec, compress
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from record_files import PAYLOADS, flip, frame, frames, header, masked, starts
from strategies import damaged

from torch_tfrecord import index_stream
from torch_tfrecord.errors import DataLossError
from torch_tfrecord.index import RecordIndex
from torch_tfrecord.index_stream import StreamWalk
from torch_tfrecord.inflate import InflatedFile
from torch_tfrecord.native import core
from torch_tfrecord.records import read_records

INT64_MAX = 2**63 - 1


def outcome(path: Path, verify: Any) -> tuple[Any, ...]:
    """Everything that an index says of one file but its name, and how a strict build of it fails."""
    try:
        RecordIndex.build(path, verify=verify)
        problem = None
    except DataLossError as error:
        problem = type(error)
    index = RecordIndex.build(path, verify=verify, on_error="skip")
    faults = [(fault.record, fault.offset, fault.reason, fault.bytes_lost) for fault in index.faults]
    if verify == "all":
        index.verify()  # what is known does not raise
    return index.offsets.tolist(), index.lengths.tolist(), faults, index.fingerprint, problem


@pytest.fixture
def small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that some records do not fit in."""
    monkeypatch.setattr(index_stream, "_BUFFER_BYTES", 64)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(
    payloads=st.lists(st.binary(max_size=30) | st.binary(min_size=100, max_size=200), min_size=1, max_size=6),
    kind=st.sampled_from(KINDS),
    verify=st.sampled_from(("length", "all")),
    draw=st.data(),
)
@pytest.mark.usefixtures("small_buffer")
def test_as_its_plain_twin(tmp_path: Path, payloads: list[bytes], kind: str, verify: str, draw: st.DataObject) -> None:
    """Also where the data were damaged before they were compressed."""
    whole = frames(payloads)
    rest = draw.draw(damaged(whole[12:]) | st.just(whole[12:]))  # the first header says that it is a TFRecord file
    plain, compressed = tmp_path / "plain", tmp_path / "compressed"
    plain.write_bytes(whole[:12] + rest)
    compressed.write_bytes(compress(whole[:12] + rest, kind))
    assert outcome(compressed, verify) == outcome(plain, verify)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verify", ["length", "all"])
@pytest.mark.usefixtures("small_buffer")
def test_flip_at_every_byte_before_compression(tmp_path: Path, kind: str, verify: str) -> None:
    whole = frames([*PAYLOADS, b"y" * 100])
    for position in range(12, len(whole)):
        for name, data in (("plain", flip(whole, position)), ("compressed", compress(flip(whole, position), kind))):
            (tmp_path / name).write_bytes(data)
        assert outcome(tmp_path / "compressed", verify) == outcome(tmp_path / "plain", verify), position


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("small_buffer")
def test_records_before_a_cut_remain(tmp_path: Path, kind: str) -> None:
    """The compressed file is cut at every byte: never a clean end, but where a gzip member ends."""
    payloads = [*PAYLOADS, b"y" * 100]
    whole, ends = frames(payloads), starts(payloads)
    data = compress(whole, kind)
    path = tmp_path / "cut"
    reasons = set()
    for size in range(12, len(data)):
        path.write_bytes(data[:size])
        inflated = zlib.decompressobj(31 if codec(kind) == "gzip" else 15)
        given, rest = b"", data[:size]
        while rest:
            given += inflated.decompress(rest)
            rest = inflated.unused_data
            if inflated.eof:
                inflated = zlib.decompressobj(31)
        index = RecordIndex.build(path, on_error="skip")
        count = len(index)
        assert index.offsets.tolist() == ends[:count]
        assert count == sum(end <= len(given) for end in ends[1:])
        if not index.faults:
            assert given == whole[: ends[count]]
            continue
        (fault,) = index.faults
        reasons.add(fault.reason)
        assert (fault.record, fault.offset) == (count, ends[count])
        known = fault.reason not in ("inflate_data", "inflate_truncated")
        assert fault.bytes_lost == (len(given) - ends[count] if known else None)
        index.verify()  # what is known does not raise
        with pytest.raises(DataLossError) as caught:
            RecordIndex.build(path)
        assert str(caught.value).startswith(f"{path}: record {count} at byte {ends[count]}")
    assert {"inflate_truncated", "inflate_trailer_missing"} <= reasons


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(kind=st.sampled_from(KINDS), before=st.booleans(), draw=st.data())
@pytest.mark.usefixtures("small_buffer")
def test_leaves_out_what_reading_in_sequence_does(tmp_path: Path, kind: str, before: bool, draw: st.DataObject) -> None:
    """Records and faults of files that are damaged anywhere, before or after they were compressed."""
    whole = frames([*PAYLOADS, b"y" * 100, b"z"])
    data = compress(draw.draw(damaged(whole)), kind) if before else draw.draw(damaged(compress(whole, kind)))
    path = tmp_path / "a"
    path.write_bytes(data)
    records = read_records(path, on_error="skip")
    payloads = list(records)
    index = RecordIndex.build(path, verify="all", on_error="skip")
    assert index.lengths.tolist() == list(map(len, payloads))
    assert list(index.faults) == records.faults
    index.verify()
    assert _problem(lambda: RecordIndex.build(path, verify="all")) == _problem(lambda: list(read_records(path)))


def _problem(read: Callable[[], object]) -> str | None:
    try:
        read()
    except DataLossError as error:
        return str(error)
    return None


@pytest.mark.parametrize("length", [2**40, 2**62, 2**63 - 16, 2**63 - 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("verify", ["length", "all"])
def test_a_claimed_length_takes_no_memory(tmp_path: Path, length: int, verify: str) -> None:
    data = frame(b"alpha") + header(length) + b"z" * 10_000_000
    for name, content in (("plain", data), ("compressed", gzip.compress(data, 1))):
        (tmp_path / name).write_bytes(content)
    tracemalloc.start()
    found = outcome(tmp_path / "compressed", verify)
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()
    assert found == outcome(tmp_path / "plain", verify)
    assert found[2] == [(1, 21, "truncated_payload", len(data) - 21)]


@pytest.mark.parametrize("verify", [1, 2])
def test_a_long_payload_is_passed_in_little_memory(verify: int) -> None:
    """300 MB of payload, of which not more than a piece is ever there."""
    size = 300_000_000
    packer = zlib.compressobj(1, wbits=31)
    packed = packer.compress(header(size))
    crc, zeros = 0, bytes(1_000_000)
    for _ in range(size // len(zeros)):
        packed += packer.compress(zeros)
        crc = core.crc32c(zeros, crc)
    footer = core.masked_crc32c(b"", crc).to_bytes(4, "little")
    packed += packer.compress(footer + frame(b"beta")) + packer.flush()
    tracemalloc.start()
    walk = StreamWalk(InflatedFile(io.BytesIO(packed), "gzip"), verify)
    found: list[tuple[int, int, int]] = []
    while not walk.done:
        piece = walk.next()
        assert piece.fault is None
        found += zip(piece.offsets.tolist(), piece.lengths.tolist(), piece.footers.tolist(), strict=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [(0, size, int.from_bytes(footer, "little")), (size + 16, 4, masked(b"beta"))]
    assert walk.position == size + 16 + 20
    assert peak < 5_000_000


def test_footers_are_where_payloads_end() -> None:
    payloads = [bytes([number % 256]) * (number % 40) for number in range(5000)]
    walk = StreamWalk(InflatedFile(io.BytesIO(gzip.compress(frames(payloads))), "gzip"), 2)
    footers = [footer for piece in iter(lambda: None if walk.done else walk.next(), None) for footer in piece.footers]
    assert footers == [masked(payload) for payload in payloads]
    assert all(isinstance(footer, np.uint32) for footer in footers)
