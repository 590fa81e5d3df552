"""``tfrecord-index verify``: every fault of every file, and an exit status to go by."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from random import Random
from typing import Any

import pytest
from compressed_files import compress
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from record_files import ALPHA, BETA, flip, frames, header, starts, write_file
from wounds import inflict

from index_tools import streams
from index_tools.__main__ import main
from torch_tfrecord.index import RecordIndex
from torch_tfrecord.records import read_records
from torch_tfrecord.repair import Saved, salvage

FIVE = [b"zero", b"one", b"two", b"three", b"four"]


def verify(*arguments: object) -> int:
    return main(["verify", *map(str, arguments)])


def report(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """The JSON document, whose status is the exit status."""
    status = verify("--json", *arguments)
    output = capsys.readouterr()
    assert output.err == ""
    document: dict[str, Any] = json.loads(output.out)
    assert document["status"] == status
    return document


def faults_in(file: dict[str, Any]) -> list[tuple[int, int, str, int | None]]:
    return [(fault["record"], fault["offset"], fault["reason"], fault["bytes_lost"]) for fault in file["faults"]]


def test_good_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_file(tmp_path / "a", FIVE)
    write_file(tmp_path / "b", [])
    assert verify(tmp_path) == 0
    assert capsys.readouterr() == ("2 files, 5 whole records, 99 bytes: all is well\n", "")


def test_all_faults_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b, c = (str(tmp_path / name) for name in "abc")
    offsets = starts(FIVE)
    data = frames(FIVE)
    Path(a).write_bytes(flip(flip(data, offsets[0] + 13), offsets[2] + 12))
    Path(b).write_bytes(flip(flip(data, offsets[1] + 12), offsets[3] + 3, 0x11)[:-1])
    Path(c).write_bytes(data[:-3])
    assert verify(tmp_path) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{a}: record 0 at byte 0: the data checksum is wrong (20 bytes lost)",
        f"{a}: record 2 at byte 39: the data checksum is wrong (19 bytes lost)",
        f"{b}: record 1 at byte 20: the data checksum is wrong (19 bytes lost)",
        f"{b}: record 3 at byte 58: the length checksum is wrong (40 bytes, all to the end, lost; no whole record in them)",
        f"{c}: record 4 at byte 79: the record is cut short (17 bytes, all to the end, lost; no whole record in them)",
        "3 files, 9 whole records, 293 bytes: 3 of them bad, 5 faults",
    ]


def test_what_repair_would_save(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a"
    path.write_bytes(ALPHA + b"junk" + ALPHA + BETA)
    assert verify(path) == 1
    place = f"{path}: record 1 at byte 21: the length checksum is wrong"
    lost = "45 bytes, all to the end, lost; 2 whole records in them, for `tfrecord-index repair` to save"
    assert capsys.readouterr().out.splitlines()[0] == f"{place} ({lost})"
    assert report(capsys, path)["files"] == [
        {
            "path": str(path),
            "compression": "none",
            "num_records": 1,
            "num_bytes": 66,
            "faults": [
                {"record": 1, "offset": 21, "reason": "length_crc", "bytes_lost": 45, "known": False, "message": place},
            ],
            "num_salvageable": 2,
            "search_problem": None,
            "index_problem": None,
            "error": None,
        }
    ]


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("kind", ["none", "gzip", "zlib"])
def test_faults_are_those_of_reading(seed: int, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = Random(seed)
    payloads = [random.randbytes(random.randrange(100)) for _ in range(30)]
    file = inflict(random, payloads, random.randrange(6))
    path = tmp_path / "a"
    path.write_bytes(file.data if kind == "none" else compress(file.data, kind))
    records = read_records(path, on_error="skip")
    whole = len(list(records))
    document = report(capsys, path)
    (found,) = document["files"]
    assert found["num_records"] == whole
    assert faults_in(found) == [
        (fault.record, fault.offset, fault.reason, fault.bytes_lost) for fault in records.faults
    ]
    assert document["status"] == (1 if records.faults else 0)
    if found["num_salvageable"] is not None:
        plain = tmp_path / "plain"
        plain.write_bytes(file.data)
        core_file = RecordIndex.build(plain, on_error="skip").open_shard(0)
        pieces = salvage(core_file, "x", records.faults[-1].offset)
        assert found["num_salvageable"] == sum(len(piece.offsets) for piece in pieces if isinstance(piece, Saved))


def test_compressed_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = frames(FIVE)
    damaged = flip(data, starts(FIVE)[2] + 12)
    for kind in ("gzip", "zlib", "members"):
        (tmp_path / kind).write_bytes(compress(damaged, kind))
    (tmp_path / "no_trailer").write_bytes(zlib.compress(data)[:-4])
    (tmp_path / "wrong_trailer").write_bytes(flip(zlib.compress(data), len(zlib.compress(data)) - 1))
    files = {os.path.basename(file["path"]): file for file in report(capsys, tmp_path)["files"]}
    for kind in ("gzip", "zlib", "members"):
        assert files[kind]["compression"] == ("zlib" if kind == "zlib" else "gzip")
        assert faults_in(files[kind]) == [(2, 39, "data_crc", 19)]
        assert files[kind]["num_records"] == 4
    assert [fault["reason"] for fault in files["no_trailer"]["faults"]] == ["inflate_trailer_missing"]
    assert [fault["reason"] for fault in files["wrong_trailer"]["faults"]] == ["inflate_checksum"]
    assert files["no_trailer"]["num_records"] == files["wrong_trailer"]["num_records"] == 5


def test_a_stream_that_is_cut_behind_other_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    payloads = [Random(i).randbytes(50) for i in range(200)]
    data = flip(frames(payloads), starts(payloads)[10] + 2, 0x11)
    for kind in ("gzip", "zlib"):
        (tmp_path / kind).write_bytes(compress(data, kind)[:-3000])
        (file,) = report(capsys, tmp_path / kind)["files"]
        assert [fault["reason"] for fault in file["faults"]] == ["length_crc", "inflate_truncated"]
        assert (file["faults"][0]["offset"], file["num_records"]) == (starts(payloads)[10], 10)
        inflated = file["faults"][1]["offset"]
        whole = sum(end <= inflated for end in starts(payloads)[1:])
        assert 100 < whole < 190
        assert file["num_salvageable"] == whole - 10  # the one with the bad header, too


def test_what_is_no_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, data = tmp_path / "a", tmp_path / "b"
    page.write_text("<!DOCTYPE html><title>404</title>")
    write_file(data, FIVE)
    assert verify(tmp_path) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{page}: not a TFRecord file: it looks like an HTML page")
    assert lines[1] == "2 files, 5 whole records, 132 bytes: 1 of them bad, 1 fault"


def test_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a"
    path.write_bytes(ALPHA + BETA[:-1])
    assert verify("--quiet", path) == 1
    path.write_bytes(ALPHA)
    assert verify("--quiet", path) == 0
    assert verify("--quiet", tmp_path / "b") == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_threads_find_the_same(threads: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(20):
        (tmp_path / f"{i:02}").write_bytes(ALPHA * i + (b"" if i % 3 else BETA[:-1]))
    document = report(capsys, tmp_path, "--threads", threads)
    assert [len(file["faults"]) for file in document["files"]] == [int(i % 3 == 0) for i in range(20)]
    assert document == report(capsys, tmp_path)
    assert document["num_records"] == sum(range(20))


# --- indexes ----------------------------------------------------------------------------------------------------------


def test_an_index_that_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        write_file(tmp_path / name, FIVE)
    index = tmp_path / "i.tfrindex"
    RecordIndex.build([tmp_path / "a", tmp_path / "b"]).save(index)
    assert verify(index) == 0
    assert capsys.readouterr().out == "2 files, 10 whole records, 198 bytes: all is well\n"
    assert verify(index, tmp_path / "a") == 0
    assert capsys.readouterr().out.startswith("3 files, 15 whole records")


def test_an_index_that_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, index = tmp_path / "a", tmp_path / "i.tfrindex"
    write_file(path, FIVE)
    RecordIndex.build(path).save(index)
    write_file(path, FIVE[:4])
    assert report(capsys, index)["files"][0]["index_problem"] == "the index was made when the file had 99 bytes"
    write_file(path, [b"zero", b"one", b"three", b"two", b"four"])
    assert verify(index) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{path}: 2 records of the index cannot be read where it says, first of them 3 bytes at byte 39",
        "1 file, 5 whole records, 99 bytes: 1 of them bad, 0 faults",
    ]


def test_an_index_of_other_content(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The records lie where they did, but are not those that the index was made of."""
    path, index = tmp_path / "a", tmp_path / "i.tfrindex"
    write_file(path, FIVE)
    RecordIndex.build(path).save(index)
    write_file(path, [*FIVE[:-1], b"FOUR"])
    problem = report(capsys, index)["files"][0]["index_problem"]
    assert problem == "the file has other content now than when the index was made"


def test_damage_that_an_index_leaves_out_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, index = tmp_path / "a", tmp_path / "i.tfrindex"
    path.write_bytes(ALPHA + flip(BETA, 13) + ALPHA)
    RecordIndex.build(path, verify="all", on_error="skip").save(index)
    document = report(capsys, index)
    assert (document["status"], document["num_faults"], document["num_known_faults"]) == (0, 1, 1)
    assert document["files"][0]["index_problem"] is None
    assert verify(index) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{path}: record 1 at byte 21: the data checksum is wrong (20 bytes lost); known, and left out of the index",
        "1 file, 2 whole records, 62 bytes: all is well, but for 1 fault that the index leaves out",
    ]
    path.write_bytes(ALPHA + flip(BETA, 13) + flip(ALPHA, 13))
    document = report(capsys, index)
    assert [fault["known"] for fault in document["files"][0]["faults"]] == [True, False]
    assert document["status"] == 1


def test_a_damaged_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, index = tmp_path / "a", tmp_path / "i.tfrindex"
    write_file(path, FIVE)
    RecordIndex.build(path).save(index)
    index.write_bytes(index.read_bytes()[:-1])
    assert verify(index) == 1
    assert "damaged index file" in capsys.readouterr().err

    RecordIndex.build(path).save(index)
    index.write_bytes(flip(index.read_bytes(), -1))  # in the lengths, of which the file's start knows nothing
    problem = report(capsys, index)["files"][0]["index_problem"]
    assert problem.startswith(f"{index}: damaged index file: ")


# --- paths and misuse -------------------------------------------------------------------------------------------------

ODD = ("a b", "[1]", "*", "x@2", "größe", "line\nbreak", os.fsdecode(b"\xff"), "\x1b[31m")


@pytest.mark.parametrize("command", ["verify", "show", "build", "repair", "schema", "convert"])
@pytest.mark.parametrize("name", ODD)
def test_odd_names_in_each_command(command: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / name
    write_file(path, [bytes.fromhex("0a0d0a0b0a016112061a040a020102")])  # the feature a: 1, 2
    options = {"build": ["-o", "i"], "repair": ["-o", "out", "--force"], "convert": ["-o", "a.idx"]}.get(command, [])
    options = [str(tmp_path / option) if i == 1 else option for i, option in enumerate(options)]
    assert main([command, str(path), *options]) == 0
    text = capsys.readouterr().out
    assert all(character.isprintable() for line in text.split("\n") for character in line)
    assert main([command, str(path), *options, "--json"]) == 0
    json.loads(capsys.readouterr().out)
    (tmp_path / name).unlink()
    assert main([command, str(path), *options]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("tfrecord-index: error: ")
    assert errors.count("\n") == 1


def test_output_in_ascii(tmp_path: Path) -> None:
    path = tmp_path / "größe"
    path.write_bytes(ALPHA + BETA[:-1])
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "index_tools", "verify", str(path)]
    result = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert result.returncode == 1
    assert b"gr\\xf6\\xdfe" in result.stdout
    assert result.stderr == b""


def test_side_files_are_not_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("_SUCCESS", ".part.crc", "part.crc", "part.idx", "part.tfindex", ".hidden"):
        (tmp_path / name).write_bytes(b"junk")
    write_file(tmp_path / "part-00000-of-00001", FIVE)
    for path in (tmp_path, tmp_path / "*", tmp_path / "part@1", tmp_path / "part@*"):
        assert verify(path) == 0
        assert capsys.readouterr().out == "1 file, 5 whole records, 99 bytes: all is well\n"


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_file(tmp_path / "a", FIVE)
    os.mkfifo(tmp_path / "b")
    (tmp_path / "c").symlink_to("nowhere")
    assert verify(tmp_path) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"cannot read {tmp_path}/b: a pipe or a device")
    assert lines[1] == f"cannot read {tmp_path}/c: No such file or directory"
    assert lines[2] == "3 files, 5 whole records, 99 bytes: 2 of them bad, 0 faults"
    (tmp_path / "a").write_bytes(BETA[:-1])
    assert verify(tmp_path) == 2
    assert "the record is cut short" in capsys.readouterr().out
    assert verify(tmp_path / "missing", tmp_path / "a") == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"cannot read {tmp_path}/missing: No such file or directory"
    assert lines[1].startswith(f"{tmp_path}/a: record 0 at byte 0: the record is cut short")


# --- behind damage, in compressed files -------------------------------------------------------------------------------


def behind(folder: Path, name: str) -> Path:
    payloads = [b"x" * 50] * 51
    data = flip(frames(payloads), starts(payloads)[1] + 2, 0x11)
    (folder / name).write_bytes(compress(flip(data, starts(payloads)[1] + 12), "gzip"))
    return folder / name


def test_the_limit_of_inflating(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = behind(tmp_path, "a")
    (file,) = report(capsys, path)["files"]
    assert (file["num_salvageable"], file["search_problem"]) == (49, None)
    monkeypatch.setenv("TORCH_TFRECORD_INFLATE_BYTES", "0")
    (file,) = report(capsys, path)["files"]
    assert file["num_salvageable"] is None
    problem = "no record was looked for behind that, as TORCH_TFRECORD_INFLATE_BYTES is 0 bytes"
    assert file["search_problem"] == problem
    assert verify(path) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("the length checksum is wrong (3,300 bytes, all to the end, lost)")
    assert lines[1] == f"{path}: {problem}"
    monkeypatch.setenv("TORCH_TFRECORD_INFLATE_BYTES", str(66 * 20))
    assert verify(path) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "18 or more whole records in them, for `tfrecord-index repair` to save" in lines[0]
    assert "up to byte 1,320 of the uncompressed stream only" in lines[1]


def test_the_limit_is_for_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "abcd":
        (tmp_path / name).write_bytes(compress(ALPHA + flip(header(5), 2, 0x11) + bytes(20_000_000), "gzip"))
    monkeypatch.setenv("TORCH_TFRECORD_INFLATE_BYTES", "8000000")
    room: list[int] = []
    before = streams._write

    def write(descriptor: int, data: memoryview) -> None:
        before(descriptor, data)
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        temporary = {os.stat(link).st_ino: os.stat(link).st_size for link in links if "(deleted)" in read_link(link)}
        room.append(sum(temporary.values()))

    monkeypatch.setattr(streams, "_write", write)
    assert report(capsys, tmp_path, "--threads", 4)["status"] == 1
    assert 7_000_000 < max(room) <= 8_000_000


def read_link(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def test_no_folder_to_inflate_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = behind(tmp_path, "a")
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    (file,) = report(capsys, path)["files"]
    assert file["error"] is None
    start = (
        "no record was looked for behind that: the file cannot be uncompressed into a temporary file in /no/such/folder"
    )
    assert file["search_problem"].startswith(start)


def test_losses_of_streams(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut, two = tmp_path / "cut", tmp_path / "two"
    data = frames([Random(i).randbytes(50) for i in range(200)])
    cut.write_bytes(compress(data, "gzip")[:-3000])
    two.write_bytes(zlib.compress(frames(FIVE)) * 2)
    assert verify(cut) == 1
    assert capsys.readouterr().out.splitlines()[0].endswith("(what the rest of the stream held lost)")
    assert verify(two) == 1
    line = capsys.readouterr().out.splitlines()[0]
    assert "followed by something else: a second zlib stream, it seems, and only gzip allows several" in line
    assert line.endswith("(what follows it lost)")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "arguments are required: PATH"),
        (["/no/such/file"], "tfrecord-index: error: /no/such/file: No such file or directory\n"),
        (["/no/*"], "no data file matches this pattern"),
        (["a", "--threads", "0"], "must be 1 or more"),
        (["a", "--threads", "x"], "must be a number, 0 or more: x"),
        (["a", "--on-error", "skip"], "unrecognized arguments: --on-error skip"),
    ],
)
def test_usage(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status: object = verify(*arguments)
    except SystemExit as error:
        status = error.code
    assert status == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.out == ""


# --- whatever comes ---------------------------------------------------------------------------------------------------

PIECES = st.one_of(
    st.binary(max_size=50),
    st.sampled_from(
        [ALPHA, BETA, header(2**40), header(0), b"TFRINDEX", b"PAR1", b"0 21\n21 20\n", b"\x1f\x8b\x08", b"\x78\x9c"]
    ),
    st.sampled_from([compress(ALPHA + BETA, kind) for kind in ("gzip", "zlib", "members")]),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PIECES, max_size=4).map(b"".join), st.sampled_from(["a", "a.idx", "a.tfindex", "a.tfrindex"]))
def test_no_file_makes_a_command_fail_badly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    write_file(tmp_path / "data", FIVE)
    for command in (
        ["verify", path],
        ["show", path, "--records", 3],
        ["build", path, "-o", tmp_path / "new.tfrindex"],
        ["repair", path, "-o", tmp_path / "repaired"],
        ["schema", path],
        ["plan", path, "--batch-size", 1],
        ["convert", path, "-o", tmp_path / "out"],
        ["convert", path, "-o", tmp_path / "new.tfrindex", "--data", tmp_path / "data"],
    ):
        assert main(list(map(str, command))) in {0, 1, 2}
        output = capsys.readouterr()
        assert output.err.count("\n") <= 1
        assert "Traceback" not in output.err
        for leftover in ("new.tfrindex", "repaired", "out"):
            (tmp_path / leftover).unlink(missing_ok=True)
    path.unlink()


@pytest.mark.corpus
def test_real_files(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All are whole, but for the one that is no TFRecord file; and `show` knows what kind each is of."""
    for entry in json.loads((corpus / "MANIFEST.json").read_text()):
        path = corpus / entry["name"] / entry["file"]
        (file,) = report(capsys, path)["files"]
        if entry["tensorflow_error"] is not None:
            assert [fault["reason"] for fault in file["faults"]] == ["not_a_tfrecord"]
            continue
        assert (file["num_records"], file["num_bytes"], file["faults"]) == (entry["records"], entry["bytes"], [])
        assert file["compression"] == entry["compression"]
        assert main(["show", "--json", str(path)]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["compression"] == entry["compression"]
        assert document["shards"][0]["uncompressed_bytes"] == entry["uncompressed_bytes"]


@pytest.mark.corpus
def test_events_are_no_examples(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = next((corpus / "agents-events").glob("events*"))
    assert verify(path) == 0
    capsys.readouterr()
    assert main(["show", str(path)]) == 0
    assert "  not an Example: a message without features, of another kind\n" in capsys.readouterr().out
    assert main(["schema", str(path)]) == 1
    assert "features=None reads raw" in capsys.readouterr().err
