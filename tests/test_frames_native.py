"""Frames by the native core: whole ones, and every kind of damage, in memory and in files."""

import struct
from itertools import accumulate
from pathlib import Path

import pytest
from framing import INT64_MAX, Fault, frame, header, masked, open_bytes, scan_all
from hypothesis import example, given
from hypothesis import strategies as st

from torch_tfrecord.native import _core

RECORDS = {
    b"": "000000000000000029039807d8ea82a2",
    b"alpha": "0500000000000000eab2043e616c7068618adc8501",
    b"beta": "040000000000000042455204626574615fd3f639",
}


@pytest.mark.parametrize("payload", RECORDS)
def test_frame_vectors(payload: bytes) -> None:
    assert _core.frame(payload).hex() == RECORDS[payload]
    assert _core.split_frames(bytes.fromhex(RECORDS[payload]), 2, -1) == ([payload], 16 + len(payload), None)


@given(st.binary(max_size=300))
@example(bytes(100_000))
def test_frame_is_length_and_payload_each_with_its_checksum(payload: bytes) -> None:
    assert _core.frame(payload) == frame(payload)
    assert _core.frame(bytearray(payload)) == frame(payload)
    assert _core.frame_size(frame(payload)[:12]) == len(frame(payload))


@pytest.mark.parametrize(
    ("length", "size"),
    [
        (0, 16),
        (2**40, 2**40 + 16),
        (INT64_MAX - 17, INT64_MAX - 1),
        (INT64_MAX - 16, INT64_MAX),
        (INT64_MAX - 15, INT64_MAX),
        (2**63, INT64_MAX),
        (2**64 - 1, INT64_MAX),
    ],
)
def test_frame_size_is_capped(length: int, size: int) -> None:
    assert _core.frame_size(header(length)) == size
    assert _core.frame_size(struct.pack("<QI", length, 0)) == size  # unchecked


@pytest.mark.parametrize("size", [0, 8, 11, 13])
def test_frame_size_takes_a_header(size: int) -> None:
    with pytest.raises(ValueError, match="12 bytes"):
        _core.frame_size(bytes(size))


@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_split_takes_whole_frames_from_any_piece(payloads: list[bytes], data: st.DataObject) -> None:
    frames = [frame(payload) for payload in payloads]
    whole = b"".join(frames)
    cut = data.draw(st.integers(0, len(whole)))
    for limit in (-1, len(whole), len(whole) + 1000):
        taken, used, fault = _core.split_frames(whole[:cut], 2, limit)
        assert fault is None
        assert taken == payloads[: len(taken)]
        assert used == len(b"".join(frames[: len(taken)])) <= cut
        assert len(taken) == len(frames) or used + len(frames[len(taken)]) > cut


@pytest.mark.parametrize("verify", [0, 1, 2])
def test_split_of_nothing(verify: int) -> None:
    for limit in (-1, 0, 100):
        assert _core.split_frames(b"", verify, limit) == ([], 0, None)


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_split_takes_any_buffer(kind: type) -> None:
    assert _core.split_frames(kind(frame(b"a") + frame(b"")), 2, -1) == ([b"a", b""], 33, None)


def test_split_checks_its_arguments() -> None:
    for verify in (-1, 3):
        with pytest.raises(ValueError, match="verify"):
            _core.split_frames(b"", verify, -1)
    for limit in (-2, 0, 16):
        with pytest.raises(ValueError, match="limit"):
            _core.split_frames(frame(b"a"), 2, limit)


def test_split_looks_at_checksums_as_it_is_told() -> None:
    bad_length = frame(b"alpha")[:8] + b"\0\0\0\0" + frame(b"alpha")[12:]
    bad_data = frame(b"alpha")[:-4] + b"\0\0\0\0"
    assert _core.split_frames(bad_length + bad_data, 0, -1) == ([b"alpha", b"alpha"], 42, None)
    assert _core.split_frames(bad_data + bad_data, 1, -1) == ([b"alpha", b"alpha"], 42, None)
    assert _core.split_frames(bad_length, 1, -1) == ([], 0, ("length_crc", 0, -1, 0, 0, masked(b"\5" + bytes(7))))
    assert _core.split_frames(bad_data, 2, -1) == ([], 0, ("data_crc", 0, -1, 0, 0, masked(b"alpha")))


# --- every kind of damage after one good frame of 21 bytes ---

GOOD = frame(b"alpha")
LENGTHS = [2**31 + 10, 2**32, 2**40, INT64_MAX - 16, INT64_MAX, 2**63, 2**64 - 4, 2**64 - 1]


def crc_fault(code: str, stored: bytes, checked: bytes) -> Fault:
    return (code, 1, -1, 21, int.from_bytes(stored, "little"), masked(checked))


DAMAGE: dict[str, tuple[bytes, Fault | None]] = {
    "nothing": (b"", None),
    "empty record": (frame(b""), None),
    **{f"{n} stray bytes": (b"\x7f" * n, ("truncated_header", 1, -1, 21, 12, n)) for n in range(1, 12)},
    "12 zeros": (bytes(12), crc_fault("length_crc", bytes(4), bytes(8))),
    "40 zeros": (bytes(40), crc_fault("length_crc", bytes(4), bytes(8))),
    "garbage": (b"x" * 33, crc_fault("length_crc", b"x" * 4, b"x" * 8)),
    "header only": (frame(b"beta")[:12], ("truncated_payload", 1, -1, 21, 8, 0)),
    "short payload": (frame(b"beta")[:15], ("truncated_payload", 1, -1, 21, 8, 3)),
    "no footer": (frame(b"beta")[:16], ("truncated_payload", 1, -1, 21, 8, 4)),
    "short footer": (frame(b"beta")[:19], ("truncated_payload", 1, -1, 21, 8, 7)),
    "empty record, short footer": (frame(b"")[:14], ("truncated_payload", 1, -1, 21, 4, 2)),
    "length checksum": (
        header(4)[:8] + b"abcd" + frame(b"beta")[12:],
        crc_fault("length_crc", b"abcd", b"\4" + bytes(7)),
    ),
    "data checksum": (frame(b"beta")[:16] + b"abcd", crc_fault("data_crc", b"abcd", b"beta")),
    **{
        f"length {length}": (header(length) + bytes(9), ("truncated_payload", 1, -1, 21, min(length + 4, INT64_MAX), 9))
        for length in LENGTHS
    },
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_in_memory(name: str) -> None:
    damage, fault = DAMAGE[name]
    payloads, used, found = _core.split_frames(GOOD + damage, 2, len(GOOD + damage))
    assert found == fault
    assert payloads == [b"alpha", *([b""] if name == "empty record" else [])]
    assert used == (21 if fault else len(GOOD + damage))


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_in_a_file(name: str, tmp_path: Path) -> None:
    damage, fault = DAMAGE[name]
    file = open_bytes(tmp_path, GOOD + damage)
    offsets, lengths, end, found = file.scan(0, 2**62, 2)
    assert found == fault
    more = name == "empty record"
    assert offsets.tolist() == [0, *([21] if more else [])]
    assert lengths.tolist() == [5, *([0] if more else [])]
    assert end == (21 if fault else file.size())


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_at_the_start_of_a_file(name: str, tmp_path: Path) -> None:
    damage, fault = DAMAGE[name]
    expected = None if fault is None else (fault[0], 0, -1, 0, *fault[4:])
    assert _core.split_frames(damage, 2, len(damage))[1:] == (0 if fault else len(damage), expected)
    assert open_bytes(tmp_path, damage).scan(0, 2**62, 2)[2:] == (0 if fault else len(damage), expected)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_long_frame_is_waited_for_where_the_end_is_not_known(length: int) -> None:
    assert _core.split_frames(GOOD + header(length) + bytes(9), 2, -1) == ([b"alpha"], 21, None)


def test_a_frame_beyond_the_limit_is_a_fault_before_it_is_there() -> None:
    data = GOOD + header(1000)
    assert _core.split_frames(data, 2, 21 + 1016) == ([b"alpha"], 21, None)
    fault = ("truncated_payload", 1, -1, 21, 1004, 1003)
    assert _core.split_frames(data, 2, 21 + 1015) == ([b"alpha"], 21, fault)
    # Of a header the bytes may still be on their way, but the limit says that too few will come.
    assert _core.split_frames(GOOD + b"12", 2, 21 + 12) == ([b"alpha"], 21, None)
    assert _core.split_frames(GOOD + b"12", 2, 21 + 11) == ([b"alpha"], 21, ("truncated_header", 1, -1, 21, 12, 11))


SMALL = [b"alpha", b"", b"beta", bytes(range(40))]
SMALL_FILE = b"".join(map(frame, SMALL))
SMALL_OFFSETS = [0, *accumulate(16 + len(payload) for payload in SMALL)]


def test_a_cut_at_every_byte(tmp_path: Path) -> None:
    for cut in range(len(SMALL_FILE) + 1):
        whole = sum(offset <= cut for offset in SMALL_OFFSETS) - 1
        start = SMALL_OFFSETS[whole]
        left = cut - start
        fault: Fault | None = None
        if 0 < left < 12:
            fault = ("truncated_header", whole, -1, start, 12, left)
        elif left >= 12:
            fault = ("truncated_payload", whole, -1, start, len(SMALL[whole]) + 4, left - 12)
        data = SMALL_FILE[:cut]
        for verify in (0, 1, 2):
            assert _core.split_frames(data, verify, cut) == (SMALL[:whole], start, fault)
            assert _core.split_frames(data, verify, -1) == (SMALL[:whole], start, None)
        for verify in (1, 2):
            assert scan_all(open_bytes(tmp_path, data), verify=verify) == (
                SMALL_OFFSETS[:whole],
                [len(payload) for payload in SMALL[:whole]],
                fault,
            )


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_in_every_byte(bit: int, tmp_path: Path) -> None:
    for at in range(len(SMALL_FILE)):
        data = SMALL_FILE[:at] + bytes([SMALL_FILE[at] ^ 1 << bit]) + SMALL_FILE[at + 1 :]
        row = sum(offset <= at for offset in SMALL_OFFSETS) - 1
        start = SMALL_OFFSETS[row]
        end = SMALL_OFFSETS[row + 1]
        in_header = at - start < 12
        if in_header:
            fault = ("length_crc", data[start + 8 : start + 12], data[start : start + 8])
        else:
            fault = ("data_crc", data[end - 4 : end], data[start + 12 : end - 4])
        expected = (fault[0], row, -1, start, int.from_bytes(fault[1], "little"), masked(fault[2]))
        assert _core.split_frames(data, 2, len(data)) == (SMALL[:row], start, expected)
        file = open_bytes(tmp_path, data)
        assert scan_all(file, verify=2) == (SMALL_OFFSETS[:row], list(map(len, SMALL[:row])), expected)
        if in_header:
            assert scan_all(file, verify=1)[2] == expected
        else:
            assert scan_all(file, verify=1) == (SMALL_OFFSETS[:-1], list(map(len, SMALL)), None)
