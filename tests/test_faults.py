"""Messages and classes of the errors about frames."""

import errno
import logging
import pickle
from pathlib import Path

import pytest
from record_files import ALPHA, BETA

from torch_tfrecord.errors import DataLossError, StaleIndexError
from torch_tfrecord.faults import RecordFault, check_budget, frame_error, leave_out
from torch_tfrecord.inflate import InflateError
from torch_tfrecord.native import core


def test_frame_vectors() -> None:
    assert core.split_frames(ALPHA + BETA, 2, -1) == ([b"alpha", b"beta"], 41, None)


def test_truncated_header() -> None:
    error = frame_error(("truncated_header", 0, -1, 21, 12, 7), path="a.tfrecord", record=1)
    assert type(error) is DataLossError
    assert str(error).startswith("a.tfrecord: record 1 at byte 21: truncated header, 7 of 12 bytes.")


def test_truncated_payload_names_bytes_wanted_and_had() -> None:
    error = frame_error(("truncated_payload", 0, -1, 21, 3_000, 5), path=Path("d/a"), record=1)
    assert type(error) is DataLossError
    assert str(error).startswith("d/a: record 1 at byte 21: truncated record, 5 of the 3,000 bytes after its header.")


def test_length_crc_asks_at_the_start_of_a_file_only() -> None:
    fault = ("length_crc", 0, -1, 0, 0x12345678, 0xAB)
    first = str(frame_error(fault, path="a", record=0))
    assert first.startswith(
        "a: record 0 at byte 0: corrupted record, length checksum: stored 0x12345678, computed 0x000000ab"
    )
    assert "(Is this even a TFRecord file?)" in first
    later = str(frame_error(fault, path="a", record=7, base=100))
    assert later.startswith("a: record 7 at byte 100: corrupted record")
    assert "Is this even" not in later


def test_data_crc_gives_both_offsets() -> None:
    error = frame_error(("data_crc", 0, -1, 1, 1, 2), path="a", record=1, base=20)
    assert type(error) is DataLossError
    assert str(error).startswith(
        "a: record 1 at byte 21 (payload at byte 33): corrupted record, data checksum: stored 0x00000001, computed 0x00000002."
    )


def test_unknown_record_number() -> None:
    assert str(frame_error(("data_crc", 0, -1, 21, 1, 2), path="a")).startswith("a: record at byte 21 (payload")


def test_length_mismatch_is_a_stale_index() -> None:
    error = frame_error(("length_mismatch", 3, -1, 21, 40, 5), path="a", record=1)
    assert type(error) is StaleIndexError
    assert "the index says 40 bytes of payload, the file says 5." in str(error)
    assert str(error).endswith("build the index again")


def test_io_has_errno() -> None:
    error = frame_error(("io", 0, -1, 64, 0, errno.EIO), path="a", record=2)
    assert isinstance(error, DataLossError)
    assert error.errno == errno.EIO
    assert str(error) == "[Errno 5] a: record 2 at byte 64: reading failed: Input/output error"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.errno, str(again)) == (DataLossError, errno.EIO, str(error))


@pytest.mark.parametrize("code", ["truncated_header", "truncated_payload", "length_crc", "data_crc"])
def test_advice(code: str) -> None:
    fault = (code, 0, -1, 5, 1, 2)
    plain = str(frame_error(fault, path="a"))
    assert 'pass on_error="skip" to' in plain
    assert ("`tfrecord-index repair` finds those after it" in plain) == (code == "length_crc")
    assert "No record" not in plain
    assert "index" not in plain.replace("tfrecord-index repair", "")
    indexed = str(frame_error(fault, path="a", indexed=True))
    assert "Copy the file again from its source" in indexed
    assert "pass on_error" not in indexed
    assert ('TFRecordDataset(..., on_error="skip")' in indexed) == (code == "data_crc")
    assert ("build its index again" in indexed) == (code != "data_crc")
    assert ('an index built with verify="all" and on_error="skip"' in indexed) == (code == "data_crc")


def test_other_codes_are_refused() -> None:
    with pytest.raises(ValueError, match="'kind' is not a fault of a frame"):
        frame_error(("kind", 0, 0, 0, 1, 2), path="a")


def test_faults_are_logged_but_not_without_end(caplog: pytest.LogCaptureFixture) -> None:
    faults: list[RecordFault] = []
    with caplog.at_level(logging.WARNING, logger="torch_tfrecord"):
        for record in range(25):
            leave_out(faults, RecordFault("a", record, record * 20, "data_crc", 20))
    assert len(faults) == 25
    assert len(caplog.records) == 11
    assert caplog.records[0].getMessage() == "left out: a: record 0 at byte 0: data_crc, 20 bytes left out"
    assert caplog.records[10].getMessage().endswith("more damage is listed in faults and not logged")


def test_fault_of_a_pipe() -> None:
    assert str(RecordFault("p", 0, 0, "length_crc", None)).endswith("length_crc, an unknown number of bytes left out")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (InflateError("inflate_data", 0, 1234), "damaged gzip data, about byte 1,234 of the file"),
        (InflateError("inflate_truncated", 0, 99), "truncated gzip stream, 99 bytes and no mark of its end"),
        (
            InflateError("inflate_trailer_missing", 8, 3),
            "its data is whole, but only 3 of the 8 bytes after it are there",
        ),
        (InflateError("inflate_checksum", 0xABC, 1), "checksum or size: stored 0x00000abc, computed 0x00000001"),
        (
            InflateError("inflate_trailing", 2, 0x6162),
            "data after the end of the gzip stream: bytes that begin with 61 62",
        ),
        (InflateError("inflate_trailing", 8, 0), "data after the end of the gzip stream: zero bytes"),
    ],
)
def test_faults_of_compressed_streams(error: InflateError, says: str) -> None:
    for indexed in (False, True):
        made = frame_error(error.fault(50), path="a", record=2, base=100, compression="gzip", indexed=indexed)
        assert type(made) is DataLossError
        assert str(made).startswith("a: record 2 at byte 150 of the uncompressed stream: ")
        assert says in str(made)
        assert ('pass on_error="skip"' in str(made)) != indexed


@pytest.mark.parametrize("compression", [None, "none", "gzip"])
def test_offsets_of_compressed_files_say_so(compression: str | None) -> None:
    error = frame_error(("length_crc", 0, -1, 21, 1, 2), path="a", record=1, compression=compression)
    assert ("at byte 21 of the uncompressed stream: " in str(error)) == (compression == "gzip")


def test_budget() -> None:
    faults = [RecordFault("a", record, record * 20, "data_crc", 20) for record in range(9)]
    check_budget(faults, None)
    check_budget(faults, 9)
    check_budget([], 0)
    with pytest.raises(DataLossError) as info:
        check_budget(faults, 2)
    assert str(info.value).startswith(
        "damage in 9 places, where max_faults=2 allows less: a: record 0 at byte 0: data_crc"
    )
    assert str(info.value).endswith(f"{faults[4]}; and 4 more")
    with pytest.raises(DataLossError) as info:
        check_budget(faults[:1], 0)
    assert str(info.value) == f"damage in 1 place, where max_faults=0 allows less: {faults[0]}"
