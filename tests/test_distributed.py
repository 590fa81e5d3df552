"""Real ranks, started by torchrun and joined by gloo: what each reads, and training that is killed and goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_tfrecord as tfr

ROOT = Path(__file__).resolve().parent.parent
LOSS = re.compile(r"epoch (\d+) step (\d+): loss ([\d.]+)")

READ_ALL_DOORS = """
import json, os
import torch, torch.distributed as dist
import torch_tfrecord as tfr

def main():
    dist.init_process_group("gloo")
    os.environ["RANK"] = os.environ["WORLD_SIZE"] = "7"  # the process group says it, not these
    features = {"n": tfr.FixedLenFeature((), torch.int64)}
    options = {"shuffle": tfr.QueueShuffle(20, 10), "seed": 3}
    dataset = tfr.TFRecordDataset("numbers.tfrecord", features)
    sampler = tfr.RecordSampler(dataset, **options)
    stream = tfr.TFRecordIterableDataset("numbers.tfrecord", features, batch_size=4, **options)
    doors = {
        "sampler": torch.utils.data.DataLoader(dataset, 4, sampler=sampler, collate_fn=tfr.collate, num_workers=1),
        "stream": torch.utils.data.DataLoader(stream, batch_size=None, num_workers=2, multiprocessing_context="spawn"),
        "loader": tfr.TFRecordLoader(dataset, 4, **options),
    }
    read = {}
    for name, door in doors.items():
        batches = list(door)
        dist.barrier()  # every rank has as many steps, or this would hang
        ids = [batch["n"].tolist() for batch in batches]
        read[name] = [len(door), ids, [batch.valid.tolist() for batch in batches]]
    with open(f"rank{dist.get_rank()}.json", "w") as file:
        json.dump(read, file)
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""


def torchrun(ranks: int, script: Path, *arguments: object, folder: Path) -> subprocess.Popen[str]:
    """Start ranks in a session of their own. What they print goes through a pipe, errors to the tests' own output."""
    environment = {**os.environ, "EPOCHS": "4", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return subprocess.Popen(
        [*command, str(script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL for torchrun and its ranks, which are in sessions of their own."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in (process.pid, *map(int, children)):
        os.kill(pid, signal.SIGKILL)


def losses(output: str) -> dict[int, float]:
    """The loss of each step."""
    return {int(match[2]): float(match[3]) for match in LOSS.finditer(output)}


def test_ranks_of_a_process_group_read_every_record_once_through_every_door(tmp_path: Path) -> None:
    with tfr.TFRecordWriter(tmp_path / "numbers.tfrecord") as writer:
        writer.write_batch({"n": torch.arange(31)})
    script = tmp_path / "read.py"
    script.write_text(READ_ALL_DOORS)
    with torchrun(2, script, folder=tmp_path) as process:
        process.communicate(timeout=120)
    assert process.returncode == 0
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    for rank in (first, second):
        assert rank["sampler"] == rank["stream"] == rank["loader"]
        assert rank["loader"][0] == len(rank["loader"][1]) == 4
    valid = [
        number
        for rank in (first, second)
        for numbers, marks in zip(*rank["loader"][1:], strict=True)
        for number, mark in zip(numbers, marks, strict=True)
        if mark
    ]
    assert sorted(valid) == list(range(31))
    assert second["loader"][2][-1] == [True, True, True, False]  # 31 records do not go round two ranks
    assert second["loader"][1][-1][-1] == first["loader"][1][0][0]  # the order's first record, once more


@pytest.mark.slow
def test_training_that_is_killed_goes_on_with_other_ranks_and_the_same_losses(tmp_path: Path) -> None:
    script = ROOT / "examples" / "03_distributed.py"
    with torchrun(1, script, "whole", folder=tmp_path) as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    uninterrupted = losses(output)
    assert list(uninterrupted) == list(range(1, 4 * 37 + 1))
    assert uninterrupted[1] > 1.5
    assert uninterrupted[148] < 0.6

    begun = ""
    with torchrun(2, script, "killed", folder=tmp_path) as process:
        assert process.stdout is not None
        for line in process.stdout:
            begun += line
            if " step 53:" in line:  # in the second epoch, three steps after a checkpoint
                kill(process)
                break
    for ranks in (3, 1):  # the last one only finds out that there is nothing left
        with torchrun(ranks, script, "killed", folder=tmp_path) as process:
            output, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        first_line, *_ = output.splitlines()
        if ranks == 3:
            assert first_line == "going on at step 50 on 3 ranks"
            resumed = losses(output)
        else:
            assert first_line == "going on at step 145 on 1 ranks"
            assert list(losses(output)) == [146, 147, 148]
    assert min(resumed) - 1 <= max(losses(begun))
    together = {**losses(begun), **resumed}
    assert list(together) == list(uninterrupted)
    for step, loss in uninterrupted.items():
        assert together[step] == pytest.approx(loss, abs=1e-4), f"step {step}"
