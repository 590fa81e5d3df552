"""Finding records again behind damage, and the command that writes them to a new file."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from random import Random
from typing import Any

import pytest
from compressed_files import compress
from framing import open_bytes
from hypothesis import example, given
from hypothesis import strategies as st
from record_files import ALPHA, BETA, flip, frame, frames, header, masked, starts, write_file
from wounds import Wounded, inflict

import torch_tfrecord as tfr
from index_tools.__main__ import main
from torch_tfrecord.errors import DataLossError
from torch_tfrecord.repair import Lost, Saved, find_header, header_positions, salvage


def saved(folder: Path, data: bytes) -> tuple[list[tuple[int, bytes]], list[Lost], int]:
    """What is saved of a file, as (offset, payload); what is lost; how many headers were mended. All bytes are one."""
    records, lost, mended, at = [], [], 0, 0
    for piece in salvage(open_bytes(folder, data), "x"):
        if isinstance(piece, Lost):
            assert at == piece.start < piece.end
            lost.append(piece)
            at = piece.end
            continue
        assert isinstance(piece, Saved)
        mended += piece.mended * len(piece.offsets)
        for offset, length in zip(piece.offsets.tolist(), piece.lengths.tolist(), strict=True):
            assert offset == at
            at += length + 16
            payload = data[offset + 12 : at - 4]
            assert masked(payload) == int.from_bytes(data[at - 4 : at], "little")
            records.append((offset, payload))
    assert at == len(data)
    return records, lost, mended


def payloads_of(folder: Path, data: bytes) -> list[bytes]:
    return [payload for _, payload in saved(folder, data)[0]]


# --- headers ----------------------------------------------------------------------------------------------------------


def headers_in(data: bytes) -> list[int]:
    return [
        at
        for at in range(len(data) - 11)
        if int.from_bytes(data[at : at + 8], "little") < 2**40
        and masked(data[at : at + 8]) == int.from_bytes(data[at + 8 : at + 12], "little")
    ]


PIECES = st.one_of(
    st.binary(max_size=20),
    st.integers(0, 30).map(bytes),
    st.sampled_from([0, 1, 5, 255, 256, 2**16, 2**32 - 1, 2**32, 2**40 - 1, 2**40, 2**63, 2**64 - 1]).map(header),
)


@given(st.lists(PIECES, max_size=8).map(b"".join))
@example(header(0) * 3)
@example(bytes(11) + header(0)[:11])
def test_headers_are_found_at_any_byte(data: bytes) -> None:
    assert header_positions(data).tolist() == headers_in(data)


def test_headers_that_are_too_long_are_passed() -> None:
    data = header(5) + header(6) + header(7)
    assert header_positions(data, 6).tolist() == [0, 12]
    assert header_positions(data, 4).tolist() == []


def test_find_header_across_pieces(tmp_path: Path) -> None:
    for gap in (2**20 - 12, 2**20 - 5, 2**20 - 1, 2**20, 3 * 2**20 + 7):
        data = b"\xaa" * gap + ALPHA
        file = open_bytes(tmp_path, data)
        assert find_header(file, 0, len(data)) == gap
        assert find_header(file, gap, len(data)) == gap
        assert find_header(file, gap + 1, len(data)) == len(data)
        assert find_header(file, 0, len(data) - 1) == len(data) - 1  # it would not end by then


# --- wounds -----------------------------------------------------------------------------------------------------------


def check(folder: Path, file: Wounded) -> None:
    """Every record that no wound touched is saved, where it lies, in order, and nothing that was not written."""
    records, lost, mended = saved(folder, file.data)
    assert set(file.whole_places()) <= {offset for offset, _ in records}
    assert {payload for _, payload in records} <= set(file.payloads)
    written = [file.payloads[i] for i, _ in file.whole]
    rest = iter([payload for _, payload in records])
    assert all(any(payload == found for found in rest) for payload in written), "the order is another"
    assert len(records) <= len(file.whole) + mended + len(file.payloads)
    assert lost or mended or file.data == frames([payload for _, payload in records])


@pytest.mark.parametrize("sizes", ["equal", "any"])
@pytest.mark.parametrize("seed", range(250))
def test_wounds(seed: int, sizes: str, tmp_path: Path) -> None:
    random = Random(seed)
    size = random.randrange(60)
    payloads = [
        random.randbytes(size if sizes == "equal" else random.choice((0, size, random.randrange(300))))
        for _ in range(random.randrange(1, 60))
    ]
    check(tmp_path, inflict(random, payloads, random.randint(1, 20)))


@pytest.mark.parametrize("seed", range(100))
def test_records_of_tiny_numbers(seed: int, tmp_path: Path) -> None:
    """Eight bytes and their checksum look like a header."""
    random = Random(seed)
    payloads = [random.randrange(200).to_bytes(8, "little") for _ in range(60)]
    file = inflict(random, payloads, random.randint(1, 5), ("flip", "overwrite", "cut"))
    check(tmp_path, file)


def test_large_records_and_wounds(tmp_path: Path) -> None:
    random = Random(0)
    payloads = [random.randbytes(random.choice((10, 10**5, 3 * 10**6))) for _ in range(12)]
    data = bytearray(frames(payloads))
    offsets = starts(payloads)
    data[offsets[3] - 2 : offsets[5] + 3] = bytes(offsets[5] - offsets[3] + 5)  # records 2 to 5
    data[offsets[8] + 4] ^= 1  # the header of 8
    data[offsets[9] + 14] ^= 1  # the payload of 9
    records, lost, mended = saved(tmp_path, bytes(data))
    assert [payloads.index(payload) for _, payload in records] == [0, 1, 6, 7, 8, 10, 11]
    assert mended == 1
    assert lost == [
        Lost(offsets[2], offsets[6], "data_crc", 1, True),
        Lost(offsets[9], offsets[10], "data_crc", 1, False),
    ]


# --- single cases -----------------------------------------------------------------------------------------------------


def test_a_whole_file_is_all_saved(tmp_path: Path) -> None:
    assert saved(tmp_path, ALPHA + BETA) == ([(0, b"alpha"), (21, b"beta")], [], 0)
    assert saved(tmp_path, b"") == ([], [], 0)


def test_a_bad_payload_costs_one_record(tmp_path: Path) -> None:
    records, lost, _ = saved(tmp_path, ALPHA + flip(BETA, 13) + ALPHA)
    assert records == [(0, b"alpha"), (41, b"alpha")]
    assert lost == [Lost(21, 41, "data_crc", 1, False)]


@pytest.mark.parametrize("position", range(12))
def test_a_bad_header_is_mended(position: int, tmp_path: Path) -> None:
    for data in (ALPHA + flip(BETA, position) + ALPHA, ALPHA + flip(BETA, position)):
        records, lost, mended = saved(tmp_path, data)
        assert records[:2] == [(0, b"alpha"), (21, b"beta")]
        assert (lost, mended) == ([], 1)


def test_a_bad_header_and_payload(tmp_path: Path) -> None:
    records, lost, mended = saved(tmp_path, ALPHA + flip(flip(BETA, 2), 14) + ALPHA)
    assert records == [(0, b"alpha"), (41, b"alpha")]
    assert (lost, mended) == ([Lost(21, 41, "length_crc", 0, True)], 0)


def test_a_cut_tail(tmp_path: Path) -> None:
    assert saved(tmp_path, ALPHA + BETA[:-1])[1] == [Lost(21, 40, "truncated_payload", 1, False)]
    assert saved(tmp_path, ALPHA + BETA[:5])[1] == [Lost(21, 26, "truncated_header", 0, True)]
    assert saved(tmp_path, ALPHA[:3]) == ([], [Lost(0, 3, "truncated_header", 0, True)], 0)


def test_bytes_put_in_between(tmp_path: Path) -> None:
    records, lost, _ = saved(tmp_path, ALPHA + b"some junk" + BETA)
    assert records == [(0, b"alpha"), (30, b"beta")]
    assert lost == [Lost(21, 30, "length_crc", 0, True)]


def test_bytes_missing_from_a_payload(tmp_path: Path) -> None:
    """Even where so many are missing that the header of the record names a later one as the next."""
    for missing in (1, 3, 20, 40):
        long = frame(b"z" * 60)
        data = ALPHA + long[: 20 - 4] + long[20 - 4 + missing :] + BETA + BETA + ALPHA
        records, lost, _ = saved(tmp_path, data)
        assert [payload for _, payload in records] == [b"alpha", b"beta", b"beta", b"alpha"]
        assert lost == [Lost(21, 21 + 76 - missing, "data_crc", 1, True)]


def test_a_length_past_the_end_of_the_file(tmp_path: Path) -> None:
    records, lost, _ = saved(tmp_path, ALPHA + header(2**40) + b"junk" + BETA + BETA)
    assert records == [(0, b"alpha"), (37, b"beta"), (57, b"beta")]
    assert lost == [Lost(21, 37, "truncated_payload", 1, True)]


def test_a_file_that_shrinks(tmp_path: Path) -> None:
    file = open_bytes(tmp_path, ALPHA + flip(BETA, 13) + ALPHA)
    pieces = salvage(file, "x")
    assert isinstance(next(pieces), Saved)
    os.truncate(tmp_path / "file.tfrecord", 30)
    with pytest.raises(DataLossError, match="cut short while it was read"):
        list(pieces)


# --- records that hold records ----------------------------------------------------------------------------------------


def nested(random: Random) -> bytes:
    """A payload that holds frames, with other bytes around them or without."""
    inner = b"".join(frame(b"inner%d" % i * random.randrange(3)) for i in range(random.randrange(1, 5)))
    return random.randbytes(random.choice((0, 0, 5, 30))) + inner + random.randbytes(random.choice((0, 0, 3, 30)))


@pytest.mark.parametrize("seed", range(100))
def test_a_flip_in_each_record_brings_no_inner_one_out(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    payloads = [nested(random) for _ in range(20)]
    offsets = starts(payloads)
    data = bytearray(frames(payloads))
    broken = random.sample(range(20), random.randrange(1, 8))
    for i in broken:
        data[random.randrange(offsets[i], offsets[i + 1])] ^= 1 << random.randrange(8)
    found = payloads_of(tmp_path, bytes(data))
    assert set(found) <= set(payloads)
    assert {payloads[i] for i in range(20) if i not in broken} <= set(found)


@pytest.mark.parametrize("seed", range(100))
def test_a_cut_brings_no_inner_one_out(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    payloads = [nested(random) for _ in range(10)]
    data = frames(payloads)
    # Where an inner record ends in the very byte, nothing tells it from one behind missing bytes.
    ends = {at + 16 + int.from_bytes(data[at : at + 8], "little") for at in headers_in(data)}
    kept = random.choice([at for at in range(starts(payloads)[1], len(data)) if at not in ends])
    whole = sum(end <= kept for end in starts(payloads)[1:])
    assert payloads_of(tmp_path, data[:kept]) == payloads[:whole]


@pytest.mark.parametrize("seed", range(100))
def test_wounds_of_records_that_hold_records(seed: int, tmp_path: Path) -> None:
    """Inner ones may come out, where too little is left of the outer one to tell; the outer ones must all."""
    random = Random(seed)
    file = inflict(random, [nested(random) for _ in range(30)], random.randint(1, 6))
    records, _, _ = saved(tmp_path, file.data)
    assert set(file.whole_places()) <= {offset for offset, _ in records}


# --- the command ------------------------------------------------------------------------------------------------------


def repair(*arguments: object) -> int:
    return main(["repair", *map(str, arguments)])


def records_in(path: Path) -> list[bytes]:
    return list(tfr.read_records(path))


def report_of(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_repair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "a", tmp_path / "b"
    data = ALPHA + flip(BETA, 13) + BETA + flip(ALPHA, 2, 0x11) + b"junk" + BETA + ALPHA[:-1]
    source.write_bytes(data)
    assert repair(source, "-o", output) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{output}: 3 records, 61 bytes",
        "lost bytes 21 to 41, 1 record: the data checksum is wrong",
        "lost bytes 61 to 86, no known record, perhaps more: the length checksum is wrong",
        "lost bytes 106 to 126, 1 record: the record is cut short",
        "2 records and 65 bytes known lost; perhaps more records, in 1 place",
    ]
    assert output.read_bytes() == ALPHA + BETA + BETA
    assert source.read_bytes() == data
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_repair_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "a", tmp_path / "b"
    source.write_bytes(flip(ALPHA, 2) + flip(BETA, 13) + ALPHA + b"junk")
    assert repair(source, "-o", output, "--json") == 1
    assert report_of(capsys) == {
        "input": str(source),
        "output": str(output),
        "input_compression": "none",
        "output_compression": "none",
        "num_records": 2,
        "num_mended": 1,
        "num_bytes": 42,
        "bytes_lost": 24,
        "records_known_lost": 1,
        "ranges_with_perhaps_more": 1,
        "lost": [
            {"start": 21, "end": 41, "reason": "data_crc", "records": 1, "perhaps_more": False},
            {"start": 62, "end": 66, "reason": "truncated_header", "records": 0, "perhaps_more": True},
        ],
        "stream_error": None,
    }


def test_nothing_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "a", tmp_path / "b"
    source.write_bytes(ALPHA + flip(BETA, 9))
    assert repair(source, "-o", output) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{output}: 2 records, 41 bytes, 1 of them with a mended header",
        "nothing was lost",
    ]
    assert output.read_bytes() == ALPHA + BETA
    assert repair(source, "-o", output, "--quiet", "--force") == 0
    assert capsys.readouterr() == ("", "")


def test_many_losses_are_shortened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "a"
    source.write_bytes((ALPHA + flip(BETA, 13)) * 30)
    assert repair(source, "-o", tmp_path / "b") == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 23
    assert lines[-2:] == ["and 10 more", "30 records and 600 bytes known lost"]


def test_large_files(tmp_path: Path) -> None:
    random = Random(1)
    payloads = [random.randbytes(random.choice((0, 10, 1000, 10**6, 5 * 10**6))) for _ in range(60)]
    source, output = tmp_path / "a", tmp_path / "b"
    write_file(source, payloads)
    with open(source, "r+b") as file:
        file.seek(starts(payloads)[30] + 20)
        file.write(b"wound")
    assert repair(source, "-o", output) == 1
    payloads.pop(30)
    assert records_in(output) == payloads


@pytest.mark.parametrize("kind", ["gzip", "zlib", "members"])
@pytest.mark.parametrize("chosen", [None, "none", "gzip", "zlib"])
def test_compression(kind: str, chosen: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "a", tmp_path / "b"
    payloads = [b"record %d" % i for i in range(500)]
    data = frames(payloads)
    at = starts(payloads)[100] + 14
    source.write_bytes(compress(flip(data, at), kind))
    options = [] if chosen is None else ["--compression", chosen]
    assert repair(source, "-o", output, "--json", *options) == 1
    report = report_of(capsys)
    codec = "gzip" if kind == "members" else kind
    assert (report["input_compression"], report["output_compression"]) == (codec, chosen or codec)
    assert (report["num_records"], report["records_known_lost"], report["stream_error"]) == (499, 1, None)
    assert records_in(output) == payloads[:100] + payloads[101:]
    inflate: dict[str, Any] = {"gzip": gzip.decompress, "zlib": zlib.decompress, "none": bytes}
    assert inflate[chosen or codec](output.read_bytes()) == frames(payloads[:100] + payloads[101:])
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_a_compressed_file_that_was_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "a", tmp_path / "b"
    payloads = [Random(i).randbytes(50) for i in range(2000)]
    compressed = gzip.compress(frames(payloads))
    source.write_bytes(compressed[: len(compressed) // 2])
    assert repair(source, "-o", output) == 1
    found = records_in(output)
    assert 800 < len(found) < 1200
    assert found == payloads[: len(found)]
    assert (
        f"the compressed data are cut short at about byte {len(compressed) // 2:,} of {source}"
        in capsys.readouterr().out
    )
    assert repair(source, "-o", output, "--json", "--force") == 1
    error = {"reason": "inflate_truncated", "compressed_offset": len(compressed) // 2}
    assert report_of(capsys)["stream_error"] == error


@pytest.mark.parametrize("kind", ["gzip", "zlib", "members"])
@pytest.mark.parametrize("seed", range(25))
def test_flips_in_compressed_data(kind: str, seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No less than reading past damage gives, and nothing that was not written."""
    random = Random(seed)
    source, output = tmp_path / "a", tmp_path / "b"
    payloads = [random.randbytes(random.randrange(200)) for _ in range(100)]
    compressed = compress(frames(payloads), kind)
    source.write_bytes(flip(compressed, random.randrange(30, len(compressed)), 1 << random.randrange(8)))
    reader = tfr.read_records(source, on_error="skip")
    read = list(reader)
    status = repair(source, "-o", output, "--compression", "none", "--json")
    report = report_of(capsys)
    found = records_in(output)
    assert set(read) <= set(found) <= set(payloads)
    assert report["num_records"] == len(found)
    assert status == (0 if found == payloads else 1) or report["stream_error"]["reason"] == "inflate_trailing"
    (file,) = verified(capsys, source)["files"]
    reasons = [fault.reason for fault in reader.faults]
    assert [fault["reason"] for fault in file["faults"]][: len(reasons)] == reasons


def verified(capsys: pytest.CaptureFixture[str], path: Path) -> dict[str, Any]:
    main(["verify", "--json", str(path)])
    return report_of(capsys)


def test_a_missing_trailer_costs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "a", tmp_path / "b"
    source.write_bytes(zlib.compress(ALPHA + BETA)[:-4])
    assert repair(source, "-o", output) == 0
    assert records_in(output) == [b"alpha", b"beta"]
    assert capsys.readouterr().out.splitlines()[1:] == [
        "the compressed data are whole, but their checksum after them is missing",
        "nothing was lost",
    ]


def test_the_input_is_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "a"
    source.write_bytes(ALPHA + BETA[:-1])
    (tmp_path / "link").symlink_to(source)
    os.link(source, tmp_path / "hard")
    for output in (source, tmp_path / "link", tmp_path / "hard", tmp_path / ".." / tmp_path.name / "a"):
        assert repair(source, "-o", output) == 2
        assert "this is the damaged file itself" in capsys.readouterr().err
    assert source.read_bytes() == ALPHA + BETA[:-1]


def test_what_holds_no_records_gives_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "a", tmp_path / "b"
    source.write_text("<!DOCTYPE html><html></html>")
    assert repair(source, "-o", output) == 1
    assert "it looks like an HTML page" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["a"]
    source.write_bytes(b"\x80\x81\x82")
    assert repair(source, "-o", output) == 1
    problem = f"no whole record was found in its 3 bytes, so {output} is not written"
    assert capsys.readouterr() == ("", f"tfrecord-index: error: {source}: {problem}\n")
    source.write_bytes(b"hello")
    assert repair(source, "-o", output) == 1
    assert capsys.readouterr().out == ""
    assert os.listdir(tmp_path) == ["a"]
    source.write_bytes(b"")
    assert repair(source, "-o", output) == 0
    assert output.read_bytes() == b""


def test_no_file_is_replaced_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "a", tmp_path / "b"
    source.write_bytes(ALPHA + BETA[:-1])
    output.write_bytes(b"precious")
    assert repair(source, "-o", output) == 2
    assert "this file exists: name another, or replace it with --force" in capsys.readouterr().err
    assert output.read_bytes() == b"precious"
    assert repair(source, "-o", output, "--force") == 1
    assert output.read_bytes() == ALPHA
    assert repair(source, "-o", source, "--force") == 2


def test_what_follows_a_stream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "a", tmp_path / "b"
    source.write_bytes(zlib.compress(ALPHA + BETA) + zlib.compress(ALPHA))
    assert repair(source, "-o", output) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "a second zlib stream, it seems" in lines[1]
    assert lines[2] == "lost: what follows the stream"


def crafted(size: int) -> bytes:
    """Headers whose frames all end where the file does."""
    return b"".join(header(size - at - 16) for at in range(0, size - 16, 12))


def crossing(size: int) -> bytes:
    """Headers whose frames end at one of the records behind them each, the first ones last."""
    heads, records = size // 24, size // 34
    record = frames([b"x"])
    ends = (12 * heads + 17 * (records - i % records) for i in range(heads))
    return b"".join(header(end - 12 * i - 16) for i, end in enumerate(ends)) + record * records


def gaps(size: int) -> bytes:
    """Such headers between whole records."""
    return b"".join(frames([b"x"]) + header(size - at - 33) for at in range(0, size - 40, 29))


@pytest.mark.parametrize("start", [b"", bytes(12)])
@pytest.mark.parametrize("make", [crafted, crossing, gaps])
def test_many_false_headers_take_no_more_than_their_share(make: Any, start: bytes, tmp_path: Path) -> None:
    file = open_bytes(tmp_path, start + make(1_000_000))
    began = time.monotonic()
    pieces = list(salvage(file, "x"))
    assert time.monotonic() - began < 20  # it was half an hour
    places = [
        (piece.start, piece.end)
        if isinstance(piece, Lost)
        else (int(piece.offsets[0]), int(piece.offsets[-1] + piece.lengths[-1]) + 16)
        for piece in pieces
    ]
    assert places[0][0] == 0
    assert all(one[1] == other[0] for one, other in itertools.pairwise(places))
    assert places[-1][1] == file.size()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a"], "arguments are required: -o/--output"),
        (["missing", "-o", "b"], "missing: No such file or directory"),
        (["a", "-o", "no/such/b"], "the directory to write in, no/such, is missing"),
        (["a", "-o", "."], "a directory stands where a file is to be written"),
        (["a", "-o", "b", "--compression", "lz4"], "invalid choice: 'lz4'"),
        (["a*", "-o", "b"], "a*: 2 files, and repair takes one at a time"),
        (["pipe", "-o", "b"], "a pipe or a device stands where a TFRecord file is expected"),
    ],
)
def test_usage(arguments: list[str], message: str, tmp_path: Path) -> None:
    for name in ("a", "a2"):
        (tmp_path / name).write_bytes(ALPHA)
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-m", "index_tools", "repair", *arguments]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment())
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert not (tmp_path / "b").exists()


def environment() -> dict[str, str]:
    """Where the package is found from any working directory."""
    paths = [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def test_killed_in_the_middle(tmp_path: Path) -> None:
    source, output = tmp_path / "a", tmp_path / "b"
    payload = bytes(1000)
    write_file(source, [payload] * 300_000)
    output.write_bytes(b"as it was")
    for seconds in (0.0, 0.02, 0.1):
        command = [sys.executable, "-m", "index_tools", "repair", "--force", str(source), "-o", str(output)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment())
        while process.poll() is None and not list(tmp_path.glob(".b.*.tmp")):
            time.sleep(0.001)
        time.sleep(seconds)
        assert process.poll() is None, "too late"
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert output.read_bytes() == b"as it was"
        for left in tmp_path.glob(".b.*.tmp"):
            left.unlink()


def test_odd_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a b", "[x]*", "größe@3", "line\nbreak", os.fsdecode(b"byte \xff")):
        source = tmp_path / name
        source.write_bytes(ALPHA + b"junk")
        assert repair(source, "-o", tmp_path / (name + ".out")) == 1
        assert records_in(tmp_path / (name + ".out")) == [b"alpha"]
        assert len(capsys.readouterr().out.splitlines()) == 3
