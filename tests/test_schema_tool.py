"""``tfrecord-index schema``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from record_files import ALPHA, BETA, write_file

import torch_tfrecord as tfr
from index_tools.__main__ import main
from torch_tfrecord.index import RecordIndex


def schema(*arguments: object) -> int:
    return main(["schema", *map(str, arguments)])


@pytest.fixture(params=[None, "gzip", "zlib"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tfr.TFRecordWriter(tmp_path / "a", compression=request.param) as writer:
        writer.write_example({"label": 3, "pixels": [0.5, 1.0], "tokens": [1, 2], "name": "a", "quote'\n": 1})
        writer.write_example({"label": 4, "pixels": [0.0, 1.0], "tokens": [1], "name": "b", "quote'\n": 1})
    return tmp_path / "a"


def test_code_that_runs(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert schema(data) == 0
    code = capsys.readouterr().out
    assert code.startswith("import torch\n\nimport torch_tfrecord as tfr\n\nfeatures = {\n")
    scope: dict[str, Any] = {}
    exec(code, scope)
    assert scope["features"] == tfr.infer_schema(data)
    assert tfr.TFRecordDataset(data, scope["features"])[1]["label"] == 4


def test_json(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert schema(data, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "features": [
            {"name": "label", "spec": "FixedLenFeature", "dtype": "int64", "shape": []},
            {"name": "name", "spec": "FixedLenFeature", "dtype": "bytes", "shape": []},
            {"name": "pixels", "spec": "FixedLenFeature", "dtype": "float32", "shape": [2]},
            {"name": "quote'\n", "spec": "FixedLenFeature", "dtype": "int64", "shape": []},
            {"name": "tokens", "spec": "VarLenFeature", "dtype": "int64"},
        ]
    }


def test_an_index_stands_for_its_files(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RecordIndex.build(data).save(tmp_path / "i.tfrindex")
    assert schema(tmp_path / "i.tfrindex", data) == 0
    assert "'tokens': tfr.VarLenFeature(torch.int64)" in capsys.readouterr().out


def test_how_many_records(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert schema(data, "--max-records", 1) == 0
    assert "'tokens': tfr.FixedLenFeature((2,), torch.int64)" in capsys.readouterr().out
    assert schema(data, "--max-records", 0) == 0
    assert "'tokens': tfr.VarLenFeature(torch.int64)" in capsys.readouterr().out


def test_names_that_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    features: dict[str | bytes, Any] = {b"\xff\x1b": 1}
    with tfr.TFRecordWriter(tmp_path / "a") as writer:
        writer.write_example(features)
    assert schema(tmp_path) == 0
    scope: dict[str, Any] = {}
    exec(capsys.readouterr().out, scope)
    assert scope["features"] == tfr.infer_schema(tmp_path)
    assert schema(tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["features"][0]["name"] == "\udcff\x1b"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (ALPHA + BETA, "record 0 at byte 0: not an Example"),
        (ALPHA[:-1], "truncated record"),
        (b"", "no feature in 0 records"),
    ],
)
def test_what_has_no_schema(content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").write_bytes(content)
    assert schema(tmp_path / "a") == 1
    output = capsys.readouterr()
    assert message in output.err
    assert (output.out, output.err.count("\n")) == ("", 1)


def test_a_pipe_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert schema(tmp_path / "pipe") == 2
    assert "a pipe or a device stands where a TFRecord file is expected" in capsys.readouterr().err


def test_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert schema(tmp_path / "missing") == 2
    with pytest.raises(SystemExit, match="2"):
        schema(write_file(tmp_path / "a", []), "--max-records", "-1")
    assert "must be a number, 0 or more: -1" in capsys.readouterr().err
