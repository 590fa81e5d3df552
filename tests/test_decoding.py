"""`Decoding`: batches on their way are what `decode` makes of the same records, whatever happens beside them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numbered import FEATURES, ID, rows_of, write
from numbered import row as numbered_row

import torch_tfrecord as tfr
from torch_tfrecord.decode import Decoding, Frames, Origin, decode, read_payloads
from torch_tfrecord.plan import Plan, compile_features

COUNT = 1000
SIZED = {name: FEATURES[name] for name in ("id", "halves")}
RAW: dict[str, Any] = {
    "big": tfr.FixedLenFeature((), bytes, decode=tfr.DecodeRaw(torch.int32, (2,), little_endian=False)),
    "some": tfr.FixedLenFeature((), bytes, decode=tfr.DecodeRaw(torch.int16, (-1,), little_endian=False)),
    "flag": tfr.FixedLenFeature((), bytes, decode=tfr.DecodeRaw(torch.bool, (1,))),
    "absent": tfr.FixedLenFeature((), torch.float32, default_value=2.5),
}


def raw_record(i: int) -> bytes:
    big = np.array([i, -i], ">i4").tobytes()
    some = np.arange(i % 3, dtype=">i2").tobytes()
    return tfr.encode_example({"big": big, "some": some, "flag": bytes([i % 2 * 5])})


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Frames:
    return frames_of(write(tmp_path_factory.mktemp("data") / "numbered.tfrecord", COUNT))


def frames_of(path: str | Path) -> Frames:
    index = tfr.RecordIndex.build(path)
    _, offsets, lengths = index.locate(np.arange(len(index)))
    return Frames([index.open_shard(0)], None, offsets, lengths, 2)


def some(frames: Frames, ids: Any) -> Frames:
    return frames._replace(offsets=frames.offsets[ids], lengths=frames.lengths[ids])


def origin(row: int) -> Origin:
    return Origin(row)


def same(batch: tfr.Batch, other: tfr.Batch) -> bool:
    assert batch.record_ids is not None
    assert other.record_ids is not None
    return (
        list(batch) == list(other)
        and rows_of(batch) == rows_of(other)
        and batch.record_ids.tolist() == other.record_ids.tolist()
        and (batch.num_defaulted, batch.num_duplicates) == (other.num_defaulted, other.num_duplicates)
    )


def finish(decoding: Decoding) -> tfr.Batch:
    """The result of one that is only ever polled."""
    end = time.monotonic() + 60
    while not decoding.advance():
        assert time.monotonic() < end
        time.sleep(1e-5)
    return decoding.result()


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("poll", [False, True])
@pytest.mark.parametrize("features", [ID, SIZED, FEATURES], ids=["id", "sized", "ragged"])
def test_a_batch_is_that_of_decode(frames: Frames, features: dict[str, Any], poll: bool) -> None:
    plan = compile_features(features)
    for ids in (np.arange(COUNT), np.arange(0, COUNT, 7)[::-1].copy(), np.arange(0)):
        for num_threads in (1, 2, 5):
            records = some(frames, ids)
            decoding = Decoding(plan, records, origin, ids, num_threads)
            batch = finish(decoding) if poll else decoding.result()
            assert same(batch, decode(plan, records, origin, ids))
            assert batch["id"].tolist() == ids.tolist()


@pytest.mark.parametrize("features", [FEATURES | ID, SIZED], ids=["ragged", "sized"])
def test_records_in_memory(features: dict[str, Any]) -> None:
    payloads = [tfr.encode_example(numbered_row(i)) for i in range(50)]
    plan = compile_features(features)
    batch = Decoding(plan, payloads, origin, None, 2).result()
    assert same(batch, decode(plan, payloads, origin))
    assert batch["id"].tolist() == list(range(50))


def test_bytes_that_become_numbers_do_so_once() -> None:
    payloads = [raw_record(i) for i in range(100)]
    plan = compile_features(RAW)
    decoding = Decoding(plan, payloads, origin, None, 2)
    batch = decoding.result()
    assert decoding.result() is batch
    assert batch["big"].tolist() == [[i, -i] for i in range(100)]
    assert [batch["some"][i].tolist() for i in range(4)] == [[], [0], [0, 1], []]
    assert batch["flag"].tolist() == [[i % 2 == 1] for i in range(100)]
    assert batch["absent"].tolist() == [2.5] * 100
    assert batch.num_defaulted == 100


def test_many_at_once_come_in_order(frames: Frames) -> None:
    """Also where some are dropped or cancelled on their way, whose memory is then used again."""
    plans = [compile_features(features) for features in (ID, SIZED, FEATURES)]
    generator = random.Random(0)
    flying: deque[tuple[Decoding, list[int]]] = deque()
    cancelled: set[Decoding] = set()
    finished = 0
    for _ in range(400):
        ids = np.array([generator.randrange(COUNT) for _ in range(generator.choice((0, 1, 20, 200)))], np.int64)
        flying.append((Decoding(generator.choice(plans), some(frames, ids), origin, ids, 2), ids.tolist()))
        for decoding, _ in flying:
            if decoding not in cancelled and generator.random() < 0.5:
                decoding.advance()
        whim = generator.random()
        if whim < 0.2:
            del flying[generator.randrange(len(flying))]
        elif whim < 0.4:
            chosen = flying[generator.randrange(len(flying))][0]
            chosen.cancel()
            cancelled.add(chosen)
        while len(flying) > 5:
            decoding, expected = flying.popleft()
            if decoding in cancelled:
                continue
            batch = decoding.result()
            assert batch["id"].tolist() == expected
            if "tokens" in batch:
                assert batch["tokens"].lengths.tolist() == [i % 4 for i in expected]
            finished += 1
    assert finished > 100


def test_columns_are_ordinary_tensors_in_inference_mode(frames: Frames) -> None:
    for features in (SIZED, FEATURES):
        with torch.inference_mode():
            decoding = Decoding(compile_features(features), frames, origin, None, 2)
            batch = decoding.result()
        assert not batch["halves"].is_inference()
        (batch["halves"] * torch.ones(2, requires_grad=True)).sum().backward()


def test_when_it_was_finished(frames: Frames) -> None:
    for features in (SIZED, FEATURES):
        begin = time.monotonic()
        decoding = Decoding(compile_features(features), frames, origin, None, 1)
        assert decoding.finished_at == 0 or begin <= decoding.finished_at
        finish(decoding)
        assert begin <= decoding.finished_at <= time.monotonic()


# --- errors -----------------------------------------------------------------------------------------------------------


def raised(function: Any) -> tuple[type, str]:
    with pytest.raises((tfr.TFRecordError, ValueError)) as caught:
        function()
    return caught.type, str(caught.value)


@pytest.mark.parametrize("features", [SIZED, FEATURES], ids=["sized", "ragged"])
@pytest.mark.parametrize("damage", ["checksum", "missing", "count", "cut"])
def test_errors_are_those_of_decode(frames: Frames, tmp_path: Path, features: dict[str, Any], damage: str) -> None:
    plan = compile_features(features)
    if damage in ("missing", "count"):
        payloads = [tfr.encode_example(numbered_row(i)) for i in range(30)]
        payloads[20] = tfr.encode_example({"id": 1} if damage == "missing" else {**numbered_row(1), "halves": [1.0]})
        records: Any = payloads
    else:
        data = bytearray(Path(write(tmp_path / "damaged.tfrecord", 30)).read_bytes())
        records = frames_of(tmp_path / "damaged.tfrecord")
        at = int(records.offsets[20])
        (tmp_path / "damaged.tfrecord").write_bytes(
            data[:at] if damage == "cut" else data[:at] + b"\xff" + data[at + 1 :]
        )
    expected = raised(lambda: decode(plan, records, origin))
    assert "record 20" in expected[1]
    decoding = Decoding(plan, records, origin, None, 2)
    assert raised(decoding.result) == expected
    assert decoding.advance()
    polled = Decoding(plan, records, origin, None, 2)
    assert raised(lambda: finish(polled)) == expected
    assert raised(polled.result) == expected


def test_memory_that_cannot_be_had_is_told_by_result() -> None:
    plan = Plan((("x", tfr.FixedLenFeature((1 << 37,), torch.int64)),))
    decoding = Decoding(plan, [b""] * 300, origin, None, 2)
    assert decoding.advance()
    for _ in range(2):
        with pytest.raises(MemoryError, match=r"a batch of 300 records takes .* read fewer"):
            decoding.result()
    with pytest.raises(MemoryError, match="a batch of 300 records takes"):
        decode(plan, [b""] * 300, origin)


@pytest.mark.parametrize("features", [SIZED, FEATURES], ids=["sized", "ragged"])
def test_cancelled(frames: Frames, features: dict[str, Any]) -> None:
    decodings = [Decoding(compile_features(features), frames, origin, None, 2) for _ in range(3)]
    decodings[1].result()
    finish(decodings[2])
    for decoding in decodings:
        decoding.cancel()
        decoding.cancel()
        with pytest.raises(ValueError, match="cancelled"):
            decoding.result()


def test_images_are_refused() -> None:
    plan = compile_features({"image": tfr.FixedLenFeature((), bytes, decode=tfr.DecodeImage())})
    with pytest.raises(ValueError, match="images"):
        Decoding(plan, [], origin, None, 1)


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_threads_can_be_given(frames: Frames) -> None:
    plan = compile_features(FEATURES)
    expected = decode(plan, frames, origin)
    payloads = read_payloads(frames, origin)
    assert len(payloads) == COUNT
    for num_threads in (1, 2, 7):
        assert same(decode(plan, frames, origin, num_threads=num_threads), expected)
        assert read_payloads(frames, origin, num_threads=num_threads) == payloads


ENDS = """
import sys, torch
import numpy as np
import torch_tfrecord as tfr
from torch_tfrecord.decode import Decoding, Frames
from torch_tfrecord.plan import compile_features
file = tfr.RecordIndex.build(sys.argv[1]).open_shard(0)
spec = tfr.FixedLenFeature((), torch.int64) if sys.argv[2] == "sized" else tfr.VarLenFeature(torch.int64)
rows = 100_000 if sys.argv[2] == "sized" else 2_000
records = Frames([file], None, np.zeros(rows, np.int64), np.full(rows, int(sys.argv[3])), 2)
flying = [Decoding(compile_features({"n": spec}), records, None, None, 2) for _ in range(3)]
assert not flying[0].advance()
if sys.argv[4] == "raise":
    raise SystemError("the end")
"""


@pytest.mark.slow
@pytest.mark.skipif(tfr.backend == "python", reason="nothing is ever at work there")
@pytest.mark.parametrize("end", ["return", "raise"])
@pytest.mark.parametrize("sized", ["sized", "ragged"])
def test_a_process_ends_while_batches_are_on_their_way(tmp_path: Path, sized: str, end: str) -> None:
    record = tfr.encode_example({"n": 1, "much": bytes(1 << 20)})
    with tfr.TFRecordWriter(tmp_path / "big.tfrecord") as writer:
        writer.write(record)
    done = subprocess.run(
        [sys.executable, "-c", ENDS, str(tmp_path / "big.tfrecord"), sized, str(len(record)), end],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == (1 if end == "raise" else 0), done.stderr
    assert ("the end" in done.stderr) if end == "raise" else done.stderr == ""


@pytest.mark.gpu
@pytest.mark.parametrize("features", [SIZED, FEATURES], ids=["sized", "ragged"])
def test_pinned_batches(frames: Frames, features: dict[str, Any]) -> None:
    """Their blocks are used again, but not while a copy to the device reads them."""
    plan = compile_features(features)
    on_device = []
    for turn in range(50):
        ids = np.arange(turn, COUNT, 3)
        batch = Decoding(plan, some(frames, ids), origin, ids, 2, pin_memory=True).result()
        assert batch["id"].is_pinned()
        on_device.append(batch.to("cuda", non_blocking=True)["id"])
        del batch
    for turn, column in enumerate(on_device):
        assert column.tolist() == list(range(turn, COUNT, 3))
