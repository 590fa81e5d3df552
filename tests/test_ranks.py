"""Which process of a job this one is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torch_tfrecord.ranks import resolve_rank

MEMBER = """
import sys
import torch.distributed
from torch_tfrecord.ranks import resolve_rank

store, rank = sys.argv[1], int(sys.argv[2])
torch.distributed.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
print(resolve_rank(), resolve_rank(0, 1), resolve_rank(rank), resolve_rank(None, 2), flush=True)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
print(resolve_rank())
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def job(monkeypatch: pytest.MonkeyPatch, rank: str, world_size: str) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world_size)


def test_alone() -> None:
    assert resolve_rank() == (0, 1)
    assert resolve_rank(None, 1) == (0, 1)


@pytest.mark.parametrize(("rank", "world_size", "given"), [(0, None, "rank=0"), (None, 4, "world_size=4")])
def test_one_number_without_a_job_is_not_enough(rank: int | None, world_size: int | None, given: str) -> None:
    with pytest.raises(ValueError, match=f"{given} alone: pass both rank and world_size"):
        resolve_rank(rank, world_size)


def test_what_is_passed_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_rank(3, 4) == (3, 4)
    job(monkeypatch, "2", "8")
    assert resolve_rank(3, 4) == (3, 4)
    assert resolve_rank(0, 1) == (0, 1)  # turns sharding off


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    job(monkeypatch, "2", "8")
    assert resolve_rank() == (2, 8)
    assert resolve_rank(2) == (2, 8)
    with pytest.raises(ValueError, match="rank=0, but this process is rank 2 of 8: pass both"):
        resolve_rank(0)
    assert resolve_rank(None, 8) == (2, 8)
    assert resolve_rank(None, 1) == (0, 1)
    with pytest.raises(ValueError, match="world_size=3, but this process is rank 2 of 8: pass both"):
        resolve_rank(None, 3)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_one_variable_alone_says_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "3")
    assert resolve_rank() == (0, 1)


@pytest.mark.parametrize(("rank", "world_size"), [("x", "2"), ("0", ""), ("", "2"), ("0", "2.0")])
def test_variables_that_are_no_numbers(rank: str, world_size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job(monkeypatch, rank, world_size)
    with pytest.raises(ValueError) as caught:
        resolve_rank()
    assert str(caught.value) == (
        f"RANK={rank!r} and WORLD_SIZE={world_size!r} are not both numbers: pass rank= and world_size=, or unset them"
    )
    assert resolve_rank(1, 2) == (1, 2)  # as the message says


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [
        (0, 0, "world_size is 0, and must be at least 1"),
        (0, -1, "world_size is -1, and must be at least 1"),
        (4, 4, r"rank is 4, and must be in \[0, 4\), since world_size is 4"),
        (-1, 4, r"rank is -1, and must be in \[0, 4\)"),
        (1, 1, r"rank is 1, and must be in \[0, 1\), since world_size is 1"),
    ],
)
def test_contradictions(rank: int, world_size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve_rank(rank, world_size)


def test_a_contradiction_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    job(monkeypatch, "8", "8")
    with pytest.raises(ValueError, match="rank is 8, and must be in"):
        resolve_rank()


def test_ranks_are_integers() -> None:
    with pytest.raises(TypeError):
        resolve_rank(0.0, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        resolve_rank(0, "2")  # type: ignore[arg-type]


def test_process_group_goes_before_the_environment(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MEMBER, str(tmp_path / "store")]
    environment = {**os.environ, "RANK": "7", "WORLD_SIZE": "9"}
    members = [
        subprocess.Popen(
            [*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        for rank in range(2)
    ]
    try:
        results = [member.communicate(timeout=120) for member in members]
    finally:
        for member in members:
            member.kill()
    for rank, (member, (out, errors)) in enumerate(zip(members, results, strict=True)):
        assert member.returncode == 0, errors
        assert out.splitlines() == [f"({rank}, 2) (0, 1) ({rank}, 2) ({rank}, 2)", "(7, 9)"]
