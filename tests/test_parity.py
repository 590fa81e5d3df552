"""The native core, its plain-Python twin and protobuf give one answer, whatever the bytes are."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import assert_parity, native, needs_native, needs_upb, open_file, read_back
from protobuf_oracle import KINDS, Features, get_feature, read_by_protobuf
from strategies import (
    OURS,
    PROTOBUF,
    Column,
    Frames,
    Rows,
    batches,
    damaged,
    encode_columns,
    example_messages,
    frames,
    large_batch,
    row_lists,
    wire_examples,
)
from wire import varint

from torch_tfrecord.messages import Example
from torch_tfrecord.native import reference

pytestmark = needs_native

thorough = settings(max_examples=200, deadline=None)
threads = st.integers(1, 4)


# --- payloads ---------------------------------------------------------------------------------------------------------


@thorough
@given(batches(), threads)
def test_decoders_agree_on_legal_records(rows: Rows, num_threads: int) -> None:
    assert_parity(lambda core: core.Decoder(rows.columns).parse(rows.payloads), rows.columns, num_threads)


@thorough
@given(st.data())
def test_decoders_agree_on_damaged_records(data: st.DataObject) -> None:
    rows = data.draw(batches(max_rows=3))
    payloads = [data.draw(damaged(payload)) if data.draw(st.booleans()) else payload for payload in rows.payloads]
    assert_parity(lambda core: core.Decoder(rows.columns).parse(payloads), rows.columns, data.draw(threads))


@thorough
@given(st.binary(max_size=60))
def test_decoders_agree_on_noise(payload: bytes) -> None:
    columns: list[Column] = [(b"", kind, reference.RAGGED, 0, -1, None) for kind in KINDS]
    assert_parity(lambda core: core.Decoder(columns).parse([payload]), columns)
    assert native.describe(payload) == reference.describe(payload)


@thorough
@given(wire_examples(OURS), st.data())
def test_describe_agrees_and_tells_what_was_meant(record: tuple[bytes, Features, int], data: st.DataObject) -> None:
    payload, features, _ = record
    meant = [(key, kind, len(values)) for key, (kind, values) in features.items()]
    assert reference.describe(payload) == meant
    assert native.describe(payload) == meant
    payload = data.draw(damaged(payload))
    assert native.describe(payload) == reference.describe(payload)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), threads, st.booleans())
def test_decoders_agree_on_large_batches(seed: int, num_threads: int, from_file: bool) -> None:
    """Long enough for several tasks at a time, wide values, long lists, and for what the native walk expects to come."""
    rows = large_batch(Random(seed))
    content = b"".join(map(reference.frame, rows.payloads))
    lengths = np.array([len(payload) for payload in rows.payloads], np.int64)
    offsets = np.cumsum(lengths + 16) - lengths - 16

    def make_job(core: Any) -> Any:
        decoder = core.Decoder(rows.columns)
        if from_file:
            return decoder.read([open_file(core, content)], None, offsets, lengths, 2)
        return decoder.parse(rows.payloads)

    assert_parity(make_job, rows.columns, num_threads)


@thorough
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_packed_runs_agree(seed: int, damage: bool) -> None:
    random = Random(seed)
    bits = random.choice([(7,), (7, 14), (1, 64), tuple(range(1, 65))])
    values = [random.getrandbits(random.choice(bits)) for _ in range(random.randint(0, 100))]
    run = bytearray(b"".join(varint(value, random.choice((0, 0, 0, 10))) for value in values))
    if damage and run:
        run[random.randrange(len(run))] |= 0x80
    try:
        expected = reference.decode_packed(run).tolist()
    except ValueError:
        for plain in (False, True):
            with pytest.raises(ValueError):
                native.decode_packed(run, plain)
    else:
        assert damage or expected == [value - (value >> 63 << 64) for value in values]
        for plain in (False, True):
            assert native.decode_packed(run, plain).tolist() == expected


def names(features: Features) -> list[tuple[bytes, int]]:
    return [(key, kind) for key, (kind, _) in features.items()]


@thorough
@given(wire_examples(OURS))
def test_decoders_read_what_was_meant(record: tuple[bytes, Features, int]) -> None:
    payload, features, num_replaced = record
    for core in (reference, native):
        found, num_duplicates = read_back(core, payload, names(features))
        assert found == features
        if all(kind for kind, _ in features.values()):  # so each key was asked for
            assert num_duplicates == num_replaced


@needs_upb
@thorough
@given(wire_examples(PROTOBUF))
def test_protobuf_reads_what_was_meant(record: tuple[bytes, Features, int]) -> None:
    """So the strategy, by which our readers are judged, is itself judged by protobuf."""
    payload, features, _ = record
    assert read_by_protobuf(payload) == features
    assert read_by_protobuf(payload, lax=True) == features


@thorough
@given(example_messages())
def test_decoders_read_what_protobuf_writes(message: Example) -> None:
    features = {key.encode(): get_feature(feature) for key, feature in message.features.feature.items()}
    for core in (reference, native):
        assert read_back(core, message.SerializeToString(), names(features)) == (features, 0)


@needs_upb
@thorough
@given(st.data())
def test_damage_is_noticed_as_protobuf_does(data: st.DataObject) -> None:
    """Where it is legal after all, it means the same. Only tags inside unknown groups are read more strictly by us."""
    dialect = replace(OURS, max_length_bytes=5)
    payload = data.draw(damaged(data.draw(wire_examples(dialect))[0]))
    ours = reference.describe(payload)
    theirs = read_by_protobuf(payload, lax=True)
    if isinstance(ours, list):
        assert theirs is not None
        assert ours == [(key, kind, len(values)) for key, (kind, values) in theirs.items()]
        assert read_back(reference, payload, names(theirs))[0] == theirs
    else:
        assert theirs is None or ours[0] == "bad_tag"


# --- frames -----------------------------------------------------------------------------------------------------------


@thorough
@given(frames(), st.sampled_from((0, 1, 2)), st.data())
def test_split_frames_agrees(file: Frames, verify: int, data: st.DataObject) -> None:
    content = data.draw(damaged(file.data) | st.just(file.data))
    limit = data.draw(st.sampled_from((-1, len(content), len(content) + 5)) | st.integers(len(content), 2**63 - 1))
    expected = reference.split_frames(content, verify, limit)
    assert native.split_frames(content, verify, limit) == expected
    payloads, size, _ = expected
    if verify == 2:  # what passed its checksum is what was written, up to the damage
        assert b"".join(map(reference.frame, payloads)) == content[:size]


@thorough
@given(frames(), st.sampled_from((0, 1, 2)), st.data())
def test_scan_frames_finds_what_split_frames_takes(file: Frames, verify: int, data: st.DataObject) -> None:
    content = data.draw(damaged(file.data) | st.just(file.data))
    limit = data.draw(st.sampled_from((-1, len(content), len(content) + 5)) | st.integers(len(content), 2**63 - 1))
    payloads, end, fault = reference.split_frames(content, verify, limit)
    for core in (reference, native):
        offsets, lengths, *rest = core.scan_frames(content, verify, limit)
        assert offsets.dtype == lengths.dtype == np.int64
        found = zip(offsets.tolist(), lengths.tolist(), strict=True)
        assert [content[at + 12 : at + 12 + length] for at, length in found] == payloads
        assert rest == [end, fault]


@thorough
@given(frames(), st.sampled_from((1, 2)), st.data())
def test_scan_agrees(file: Frames, verify: int, data: st.DataObject) -> None:
    content = data.draw(damaged(file.data) | st.just(file.data))
    start = data.draw(st.sampled_from((0, len(content), len(content) + 1, *file.offsets)))
    ends = []
    for core in (reference, native):
        offsets, lengths, end, fault = open_file(core, content).scan(start, 2**62, verify)
        assert offsets.dtype == lengths.dtype == np.int64
        ends.append((offsets.tolist(), lengths.tolist(), end, fault))
    assert ends[0] == ends[1]


@thorough
@given(frames(), st.integers(1, 100))
def test_scan_goes_on_where_it_paused(file: Frames, max_bytes: int) -> None:
    for core in (reference, native):
        handle = open_file(core, file.data)
        offsets: list[int] = []
        lengths: list[int] = []
        at = 0
        while at < handle.size():
            some_offsets, some_lengths, end, fault = handle.scan(at, max_bytes, 2)
            assert fault is None
            assert end > at
            offsets += some_offsets.tolist()
            lengths += some_lengths.tolist()
            at = end
        assert offsets == file.offsets
        assert lengths == [len(payload) for payload in file.payloads]


@thorough
@given(st.data())
def test_decoders_agree_on_files(data: st.DataObject) -> None:
    """Whole files and damaged ones, by an index that is right or not, in any order and with repeats."""
    rows = data.draw(batches(max_rows=4))
    contents = []
    index = []
    for file in range(data.draw(st.integers(1, 2))):
        whole = [reference.frame(payload) for payload in rows.payloads]
        index += [(file, sum(map(len, whole[:i])), len(payload)) for i, payload in enumerate(rows.payloads)]
        content = b"".join(whole)
        contents.append(data.draw(st.just(content) | damaged(content)))
    picks = list(index)
    if data.draw(st.booleans()) and index:
        picks = data.draw(st.lists(st.sampled_from(index), max_size=8))
    if data.draw(st.booleans()) and picks:
        file, offset, length = picks.pop()
        wrong = st.integers(-3, 20)
        picks.append((file, max(offset + data.draw(wrong), 0), max(length + data.draw(wrong), 0)))
    file_of, offsets, lengths = (np.array([pick[i] for pick in picks], np.int64) for i in range(3))
    verify = data.draw(st.sampled_from((0, 1, 2)))

    def make_job(core: Any) -> Any:
        files = [open_file(core, content) for content in contents]
        places = None if len(files) == 1 else file_of
        return core.Decoder(rows.columns).read(files, places, offsets, lengths, verify)

    assert_parity(make_job, rows.columns, data.draw(threads))


# --- checksums and encoding -------------------------------------------------------------------------------------------


@thorough
@given(st.binary(max_size=3000), st.integers(0, 64))
def test_checksums_and_frames_agree(data: bytes, start: int) -> None:
    view = memoryview(data)[start:]  # of any alignment
    chosen = native.crc32c_implementation()
    try:
        for name in native.crc32c_implementations():
            native.set_crc32c_implementation(name)
            assert native.crc32c(view) == reference.crc32c(view)
            assert native.masked_crc32c(view) == reference.masked_crc32c(view)
            assert native.frame(view) == reference.frame(view)
    finally:
        native.set_crc32c_implementation(chosen)


@given(st.integers(0, 2**64 - 1), st.binary(min_size=4, max_size=4))
def test_frame_size_agrees(length: int, crc: bytes) -> None:
    header = length.to_bytes(8, "little") + crc
    assert native.frame_size(header) == reference.frame_size(header) == min(length + 16, 2**63 - 1)


@needs_upb
@thorough
@given(row_lists(), st.booleans())
def test_encoders_agree_and_protobuf_reads_them(rows: list[Features], framed: bool) -> None:
    columns = encode_columns(rows)
    expected, offsets = reference.encode_batch(columns, len(rows), framed)
    encoded, native_offsets = native.encode_batch(columns, len(rows), framed)
    assert encoded == expected
    assert native_offsets.tolist() == offsets.tolist()
    records = [expected[a:b] for a, b in pairwise(offsets)]
    if framed:
        records, size, fault = reference.split_frames(expected, 2, len(expected))
        assert (size, fault) == (len(expected), None)
    for record, features in zip(records, rows, strict=True):
        assert read_by_protobuf(record) == features
        described = reference.describe(record)
        assert isinstance(described, list)
        assert [key for key, _, _ in described] == sorted(features)
        if len(features) == 1:  # protobuf's own order is not by bytes
            assert record == Example.FromString(record).SerializeToString()


def test_parity_can_fail() -> None:
    """The comparison itself notices a difference of one byte."""
    payloads = [b"\x0a\x0a\x0a\x08\x0a\x01f\x12\x03\x1a\x01" + bytes([i]) for i in (1, 2)]
    columns: list[Column] = [(b"f", 0, reference.FIXED, 1, -1, None)]
    with pytest.raises(AssertionError):
        assert_parity(lambda core: core.Decoder(columns).parse([payloads[core is native]]), columns)
