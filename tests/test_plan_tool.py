"""``tfrecord-index plan``, run as a user runs it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from record_files import ALPHA, BETA, write_file

from index_tools.__main__ import main
from index_tools.plan import parse_shuffle
from torch_tfrecord import explain as explain_module
from torch_tfrecord.explain import explain
from torch_tfrecord.index import RecordIndex
from torch_tfrecord.order import BlockShuffle, QueueShuffle


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """11 records in two files."""
    folder = tmp_path / "data"
    folder.mkdir()
    write_file(folder / "a", [b"x"] * 7)
    write_file(folder / "b", [b"y"] * 4)
    return folder


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "index_tools", "plan", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_plan_of_files(data: Path) -> None:
    result = run(data, "--batch-size", 2, "--world-size", 3)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"{explain(11, batch_size=2, world_size=3)}\n"


def test_plan_of_an_index(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RecordIndex.build(data).save(tmp_path / "i.tfrindex")
    assert main(["plan", str(tmp_path / "i.tfrindex"), "--batch-size", "3"]) == 0
    assert capsys.readouterr() == (f"{explain(11, batch_size=3)}\n", "")


def test_every_option_counts(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--records 1000 --batch-size 8 --world-size 5 --workers 3 --shuffle queue:100,50 --seed -1 --epoch 4"
    assert main(["plan", *arguments.split(), "--drop-last"]) == 0
    expected = explain(
        1000,
        batch_size=8,
        world_size=5,
        num_workers=3,
        shuffle=QueueShuffle(100, 50),
        seed=-1,
        epoch=4,
        drop_last=True,
    )
    assert capsys.readouterr().out == f"{expected}\n"


def test_json(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = RecordIndex.build(data)
    index.save(tmp_path / "i")
    assert main(["plan", "--json", str(tmp_path / "i"), "--batch-size", "4", "--shuffle", "full"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.pop("index") == str(tmp_path / "i")
    assert document.pop("fingerprint") == index.fingerprint
    assert document.pop("faults") == []
    assert document == json.loads(json.dumps(dataclasses.asdict(explain(11, batch_size=4, shuffle=True))))
    assert (document["steps"], document["exactly_once"], document["checked"]) == (3, True, "all")


def test_json_of_imagined_records(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--json", "--records", "1000000000000", "--batch-size", "1000", "--shuffle", "block"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["index"], document["fingerprint"], document["faults"]) == (None, None, [])
    assert (document["num_records"], document["steps"]) == (10**12, 10**9)
    assert document["order"] == "BlockShuffle(block_size=256, window=256)/1"
    assert document["checked"] == "arithmetic"


def test_damage_that_was_left_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").write_bytes(ALPHA + BETA[:-1])
    command = ["plan", "--on-error", "skip", str(tmp_path), "--batch-size", "1"]
    assert main(command) == 0
    assert capsys.readouterr().out == f"{explain(1, batch_size=1)}\n\n1 damaged places of the files left out\n"
    assert main([*command, "--json"]) == 0
    (fault,) = json.loads(capsys.readouterr().out)["faults"]
    assert fault["reason"] == "truncated_payload"


def test_a_check_that_fails_is_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken:
        size = 5

        def indices(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
            return positions // 2

    monkeypatch.setattr(explain_module, "open_order", lambda *args, **options: Broken())
    assert main(["plan", "--records", "5", "--batch-size", "2"]) == 1
    assert "check  FAILED" in capsys.readouterr().out
    assert main(["plan", "--json", "--records", "5", "--batch-size", "2"]) == 1
    assert json.loads(capsys.readouterr().out)["exactly_once"] is False


@pytest.mark.parametrize(
    ("text", "shuffle"),
    [
        ("none", False),
        ("full", True),
        ("block", BlockShuffle()),
        ("block:64", BlockShuffle(64)),
        ("block:64,8", BlockShuffle(64, 8)),
        ("queue:100", QueueShuffle(100)),
        ("queue:100,50", QueueShuffle(100, 50)),
    ],
)
def test_parse_shuffle(text: str, shuffle: Any) -> None:
    assert parse_shuffle(text) == shuffle
    assert type(parse_shuffle(text)) is type(shuffle)


BAD_SHUFFLES = ["", "blocks", "full:1", "none:", "queue", "queue:", "queue:x", "queue:1,2,3", "block:-1,2", "block:1,"]


@pytest.mark.parametrize("text", BAD_SHUFFLES)
def test_orders_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="--shuffle must be none, full, block"):
        parse_shuffle(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--records 5", "arguments are required: --batch-size"),
        ("--records 5 --batch-size x", "must be a number, 0 or more: x"),
        ("--records 5 --batch-size 0", "tfrecord-index: error: batch_size is 0, and must be at least 1\n"),
        ("--batch-size 2", "tfrecord-index: error: plan needs either paths or --records N\n"),
        ("a --records 5 --batch-size 2", "tfrecord-index: error: plan needs either paths or --records N\n"),
        ("--records 5 --batch-size 2 --world-size 0", "world_size is 0, and must be at least 1"),
        ("--records 5 --batch-size 2 --shuffle all", "--shuffle must be none, full, block[:BLOCK_SIZE,WINDOW] or"),
        ("--records 5 --batch-size 2 --shuffle queue:5,5", "capacity 5 must be bigger than min_after_dequeue 5"),
        ("/no/such/file --batch-size 2", "tfrecord-index: error: /no/such/file: No such file or directory\n"),
    ],
)
def test_usage(arguments: str, message: str) -> None:
    result = run(*arguments.split())
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stdout == ""
