"""The command line, run as a user runs it."""

import doctest
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from record_files import ALPHA, BETA, flip, write_file

import torch_tfrecord as tfr
from index_tools.__main__ import main
from index_tools.arguments import make_parser
from index_tools.text import format_bytes, format_name, with_flags
from torch_tfrecord.explain_text import format_table
from torch_tfrecord.faults import frame_error
from torch_tfrecord.index import RecordIndex
from torch_tfrecord.writer import TFRecordWriter

COMMANDS = ("build", "show", "verify", "repair", "convert", "schema", "plan")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    with TFRecordWriter(folder / "t-00000-of-00002") as writer:
        writer.write_example({"label": 3, "name": "ada", "pixels": [0.5] * 784})
        writer.write_example({"label": 4})
    with TFRecordWriter(folder / "t-00001-of-00002") as writer:
        writer.write(b"\xff")
    return folder


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "index_tools", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_build_beside_the_data(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", str(data)]) == 0
    (name,) = [name for name in os.listdir(data) if name.startswith(".")]
    size = sum(path.stat().st_size for path in data.glob("t-*"))
    assert capsys.readouterr() == (f"{data}/{name}: 3 records in 2 files, {format_bytes(size)}\n", "")
    assert RecordIndex.load_or_build(data).file == f"{data}/{name}"  # where data sets look for it


def test_build_elsewhere(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "i.tfrindex"
    assert main(["build", f"{data}/t@2", "-o", str(output), "--verify", "all"]) == 0
    assert capsys.readouterr().out.startswith(f"{output}: 3 records in 2 files, ")
    index = RecordIndex.open(output)
    assert (len(index), index.verify_level) == (3, "all")
    assert sorted(os.listdir(data)) == ["t-00000-of-00002", "t-00001-of-00002"]


def test_build_quiet(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "--quiet", "-o", str(tmp_path / "i"), str(data)]) == 0
    assert capsys.readouterr() == ("", "")
    assert len(RecordIndex.open(tmp_path / "i")) == 3


def test_build_json(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "i.tfrindex"
    assert main(["build", "--json", "-o", str(output), str(data)]) == 0
    index = RecordIndex.open(output)
    assert json.loads(capsys.readouterr().out) == {
        "index": str(output),
        "num_records": 3,
        "num_shards": 2,
        "num_bytes": index.num_bytes,
        "fingerprint": index.fingerprint,
        "faults": [],
    }


def test_build_past_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a"
    path.write_bytes(ALPHA + BETA[:-1])
    output = tmp_path / "i.tfrindex"
    assert main(["build", "--json", "--on-error", "skip", "-o", str(output), str(path)]) == 0
    (fault,) = json.loads(capsys.readouterr().out)["faults"]
    assert fault == {"path": str(path), "record": 1, "offset": 21, "reason": "truncated_payload", "bytes_lost": 19}
    assert main(["build", "--on-error", "skip", "-o", str(output), str(path)]) == 0
    assert capsys.readouterr().out == (
        f"{output}: 1 record in 1 file, 40 bytes, 1 damaged place left out\n"
        f"left out: {path}: record 1 at byte 21: the record is cut short (19 bytes)\n"
    )
    assert RecordIndex.open(output).verify_level == "all"
    assert main(["show", "--records", "0", str(output)]) == 0
    assert f"left out: {path}: record 1 at byte 21: the record is cut short" in capsys.readouterr().out


def test_an_index_past_damage_is_found_by_data_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a"
    path.write_bytes(flip(ALPHA, 13) * 7 + BETA)
    assert main(["build", "--on-error", "skip", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7
    assert lines[0].endswith("1 record in 1 file, 167 bytes, 7 damaged places left out")
    assert lines[1] == f"left out: {path}: record 0 at byte 0: the data checksum is wrong (21 bytes)"
    assert lines[-1] == "and 2 more"
    dataset = tfr.TFRecordDataset(path, None, on_error="skip")
    assert dataset.index.file == lines[0].split(": ")[0]
    assert len(dataset) == 1


def test_show_files(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", f"{data}/t@2", "--records", "3"]) == 0
    index = RecordIndex.build(data)
    sizes = index.shard_bytes.tolist()
    lengths = index.lengths.tolist()
    width = len(f"{max(sizes):,}")
    assert capsys.readouterr().out.splitlines() == [
        "records      3",
        "files        2",
        f"size         {format_bytes(index.num_bytes)}",
        f"payload      1 to {max(lengths):,} bytes, {sum(lengths) / 3:,.1f} on average",
        "compression  none",
        f"fingerprint  {index.fingerprint}",
        "",
        f"records  {'bytes':>{width}}  file",
        f"      2  {sizes[0]:>{width},}  {data}/t-00000-of-00002",
        f"      1  {sizes[1]:>{width},}  {data}/t-00001-of-00002",
        "",
        f"record 0: {lengths[0]:,} bytes at byte 0 of {data}/t-00000-of-00002",
        "  feature  kind   values",
        "  label    int64       1",
        "  name     bytes       1",
        "  pixels   float     784",
        "",
        f"record 1: {lengths[1]:,} bytes at byte {lengths[0] + 16:,} of {data}/t-00000-of-00002",
        "  feature  kind   values",
        "  label    int64       1",
        "",
        f"record 2: 1 bytes at byte 0 of {data}/t-00001-of-00002",
        "  not an Example: byte 0 of the record: a varint that is cut short or longer than 10 bytes",
    ]


def test_show_json(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "i.tfrindex"
    index = RecordIndex.build(data)
    index.save(output)
    assert main(["show", "--json", str(output)]) == 0
    sizes = index.shard_bytes.tolist()
    lengths = index.lengths.tolist()
    assert json.loads(capsys.readouterr().out) == {
        "index": str(output),
        "fingerprint": index.fingerprint,
        "compression": "none",
        "num_records": 3,
        "num_bytes": sum(sizes),
        "payload_bytes": {"min": 1, "mean": round(sum(lengths) / 3, 1), "max": max(lengths)},
        "shards": [
            {
                "path": f"{data}/t-0000{i}-of-00002",
                "num_records": 2 - i,
                "num_bytes": sizes[i],
                "compression": "none",
                "uncompressed_bytes": sizes[i],
            }
            for i in range(2)
        ],
        "faults": [],
        "records": [
            {
                "record": 0,
                "path": f"{data}/t-00000-of-00002",
                "offset": 0,
                "length": lengths[0],
                "features": [
                    {"name": "label", "kind": "int64", "count": 1},
                    {"name": "name", "kind": "bytes", "count": 1},
                    {"name": "pixels", "kind": "float", "count": 784},
                ],
            }
        ],
    }


def test_show_many_files_and_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(25):
        write_file(tmp_path / f"{number:02}", [])
    assert main(["show", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [f"      0      0  {tmp_path}/19", "and 5 more"]
    assert main(["show", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["shards"]) == 25
    assert (document["records"], document["payload_bytes"]) == ([], None)


def test_show_an_index_without_its_data(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "i.tfrindex"
    RecordIndex.build(data).save(output)
    data.rename(tmp_path / "gone")
    assert main(["show", "--records", "0", str(output)]) == 0
    assert capsys.readouterr().out.startswith("records      3\n")
    assert main(["show", str(output)]) == 2
    assert capsys.readouterr().err == f"tfrecord-index: error: {data}/t-00000-of-00002: No such file or directory\n"


@pytest.mark.parametrize("command", [["build"], ["show"], ["plan", "--batch-size", "2"]])
def test_damaged_data(command: list[str], tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(ALPHA + BETA[:-1])
    result = run(*command, path)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"tfrecord-index: error: {path}: record 1 at byte 21: truncated record")
    assert result.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == ["a"]


def test_stale_index(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "i.tfrindex"
    RecordIndex.build(data).save(output)
    path = data / "t-00000-of-00002"
    path.write_bytes(ALPHA)
    assert main(["show", str(output)]) == 1
    assert "build the index again" in capsys.readouterr().err
    output.write_bytes(output.read_bytes()[:-1])
    assert main(["show", str(output)]) == 1
    assert "damaged index file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "arguments are required: COMMAND"),
        (["build"], "arguments are required: PATH"),
        (["build", "a", "--verify", "none"], "invalid choice: 'none'"),
        (["show", "a", "--records", "-1"], "must be a number, 0 or more: -1"),
        (["show", "a", "--records", "x"], "must be a number, 0 or more: x"),
        (["frobnicate"], "invalid choice: 'frobnicate'"),
        (["build", "/no/such/file"], "tfrecord-index: error: /no/such/file: No such file or directory\n"),
        (["show", "/no/*"], "tfrecord-index: error: /no/*: no data file matches this pattern\n"),
    ],
)
def test_usage(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_output_that_cannot_be_written(data: Path) -> None:
    result = run("build", data, "-o", "/no/such/dir/i")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    problem = "the directory to write in, /no/such/dir, is missing"
    assert result.stderr == f"tfrecord-index: error: /no/such/dir/i: {problem}\n"


@pytest.mark.parametrize("arguments", [["--help"], *([command, "--help"] for command in COMMANDS)])
def test_help_needs_neither_torch_nor_numpy(arguments: list[str]) -> None:
    code = f"""
import sys
from index_tools.__main__ import main
from index_tools.arguments import make_parser
try:
    main({arguments!r})
except SystemExit as error:
    assert error.code == 0
assert not {{"torch", "numpy", "google.protobuf"}} & set(sys.modules), "imported"
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("usage: tfrecord-index")
    assert "Exit status" in result.stdout


def test_commands_need_no_torch(data: Path) -> None:
    code = f"""
import sys
from index_tools.__main__ import main
from index_tools.arguments import make_parser
assert main(["build", {str(data)!r}]) == 0
assert main(["show", {str(data)!r}]) == 0
assert main(["plan", {str(data)!r}, "--batch-size", "2", "--shuffle", "full"]) == 0
assert main(["verify", {str(data)!r}]) == 0
assert main(["repair", {str(data)!r} + "/t-00001-of-00002", "-o", {str(data.parent)!r} + "/out"]) == 0
assert main(["convert", {str(data)!r}, "-o", {str(data.parent)!r} + "/indexes"]) == 0
assert "torch" not in sys.modules, "imported"
"""
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


def test_module_and_script_are_the_same(data: Path) -> None:
    result = run("show", data)
    assert result.returncode == 0
    assert result.stderr == ""
    assert result.stdout.startswith("records      3\n")


def test_reader_of_the_output_goes_away(data: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "index_tools", "show", str(data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(timeout=60)
    assert errors == ""


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (2**20, "1.0 MiB"),
        (5 * 2**40, "5.0 TiB"),
        (2**63, "8.0 EiB"),
        (2**80, "1048576.0 EiB"),
    ],
)
def test_format_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"label", "label"),
        ("größe".encode(), "größe"),
        (b"a/b c", "a/b c"),
        (b"\xff", "\\xff"),
        (b"", "''"),
        (b"\x1b[31m", "'\\x1b[31m'"),
        (b"a\nb", "'a\\nb'"),
        ("\u202e".encode(), "'\\u202e'"),
    ],
)
def test_format_name(name: bytes, text: str) -> None:
    assert format_name(name) == text


def test_format_table() -> None:
    rows: Any = [("a", "number", "x"), ("long name", "5", "")]
    assert format_table(rows, right=(1,)) == ["a          number  x", "long name       5"]


def test_show_a_record_without_features(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_file(tmp_path / "a", [b""])
    assert main(["show", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"record 0: 0 bytes at byte 0 of {tmp_path}/a",
        "  an empty Example, without features",
    ]


def test_build_never_replaces_data(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard = data / "t-00001-of-00002"
    before = shard.read_bytes()
    (tmp_path / "link").symlink_to(shard)
    os.link(shard, tmp_path / "hard")
    (tmp_path / "notes").write_text("notes")
    for output, problem in [
        (shard, "this is the data file"),
        (tmp_path / "link", "this is the data file"),
        (tmp_path / "hard", "this is the data file"),
        (tmp_path / "notes", "this file is no index"),
    ]:
        assert main(["build", str(data), "-o", str(output)]) == 2
        assert capsys.readouterr().err.startswith(f"tfrecord-index: error: {output}: {problem}")
    assert shard.read_bytes() == before
    assert (tmp_path / "notes").read_text() == "notes"
    assert (tmp_path / "link").is_symlink()


def test_build_replaces_an_index(data: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "damaged.tfrindex").write_bytes(b"TFR")
    for name in ("empty", "empty", "damaged.tfrindex"):
        assert main(["build", "--quiet", str(data), "-o", str(tmp_path / name)]) == 0
        assert len(RecordIndex.open(tmp_path / name)) == 3


def test_show_a_sequence_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = tfr.SequenceExample()
    message.context.feature["id"].int64_list.value.append(5)
    message.feature_lists.feature_list["steps"].feature.append(tfr.Feature(int64_list=tfr.Int64List(value=[1])))
    write_file(tmp_path / "a", [bytes(message.SerializeToString())])
    assert main(["show", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3].startswith("  a SequenceExample: what follows is its context only.")
    assert lines[-1].split() == ["id", "int64", "1"]
    message.ClearField("context")
    write_file(tmp_path / "a", [bytes(message.SerializeToString())])
    assert main(["show", "--json", str(tmp_path)]) == 0
    (record,) = json.loads(capsys.readouterr().out)["records"]
    assert record["note"].startswith("a SequenceExample")
    assert record["features"] == []


def test_show_past_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a"
    path.write_bytes(flip(ALPHA, 14) + BETA + BETA[:-1])
    assert main(["show", str(path)]) == 1
    assert "use --on-error skip to use the records before" in capsys.readouterr().err
    assert main(["show", "--on-error", "skip", "--records", "2", str(path)]) == 0
    out = capsys.readouterr().out
    assert "left out     1 damaged place\n" in out
    assert f"  {path}: record at byte 0 (payload at byte 12): corrupted record, data checksum" in out
    assert "record 1: 4 bytes at byte 21" in out


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("code", ["truncated_header", "truncated_payload", "length_crc", "data_crc"])
def test_messages_name_flags_of_the_command(code: str, indexed: bool) -> None:
    text = with_flags(str(frame_error((code, 0, -1, 5, 1, 2), path="a", indexed=indexed)))
    assert "on_error" not in text
    assert "verify=" not in text
    assert ("--on-error skip" in text) == (not indexed or code == "data_crc")


def test_version() -> None:
    result = run("--version")
    assert (result.returncode, result.stdout) == (0, f"tfrecord-index {tfr.__version__}\n")


def test_help_says_which_files_are_taken() -> None:
    for arguments in (["--help"], *([command, "--help"] for command in COMMANDS)):
        assert "whose names start with a dot or an underscore" in " ".join(run(*arguments).stdout.split())


@pytest.mark.parametrize("code", ["truncated_payload", "length_crc", "data_crc", "inflate_data", "inflate_checksum"])
def test_messages_of_commands_that_cannot_skip(code: str) -> None:
    text = with_flags(str(frame_error((code, 0, -1, 5, 1, 2), path="a")), can_skip=False)
    assert text.endswith("from its source, or save what is whole with `tfrecord-index repair`")
    assert "skip" not in text


DOCUMENT = Path(__file__).parent.parent / "docs" / "index-tools.md"


def test_the_document_shows_what_the_commands_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = DOCUMENT.read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    exec(code, {})
    shown = re.findall(r"^\$ tfrecord-index (.*)\n((?:(?!\$ |```).*\n)*)", text, re.MULTILINE)
    assert {line.split()[0] for line, _ in shown} == {"build", "show", "verify", "repair", "convert", "schema"}
    for line, expected in shown:
        main(shlex.split(line))
        found = "".join(capsys.readouterr())
        assert doctest.OutputChecker().check_output(expected, found, doctest.ELLIPSIS), f"{line}\n{found}"


def test_the_document_names_every_command_and_flag() -> None:
    text = DOCUMENT.read_text()
    parser = make_parser()
    (commands,) = (action.choices for action in parser._actions if isinstance(action.choices, dict))
    for name in commands:
        assert f"| `{name}` |" in text or f"| [`{name}`](#{name}) |" in text
        if name == "plan":
            continue
        flags = {flag for action in commands[name]._actions for flag in action.option_strings if flag.startswith("--")}
        missing = {flag for flag in flags - {"--help"} if flag not in text}
        assert missing <= {"--output"}, name
