"""Measures the doors of torch_tfrecord against one another: who delivers batches of 256 fastest, in one process.

    python benchmarks/doors.py [--quick] [A C D E]

Prints records a second, medians of five rounds in which all take turns, and ends with status 1 if two of them deliver
other records.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import data
import torch
from torch.utils.data import DataLoader

import torch_tfrecord as tfr

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "systems"))
from ours import features_of  # noqa: E402 - a script beside this one

BATCH = 256
ROUNDS = 5
THREADS = 2


def doors(dataset: tfr.TFRecordDataset, paths: list[str], features: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """What is measured: each call gives the batches of an epoch."""
    loader, shuffled = (tfr.TFRecordLoader(dataset, BATCH, num_threads=THREADS, shuffle=s) for s in (False, True))
    stream = tfr.TFRecordIterableDataset(paths, features, batch_size=BATCH)
    sampler = tfr.RecordSampler(dataset, shuffle=True)
    starts = range(0, len(dataset), BATCH)
    return {
        "TFRecordLoader": lambda: loader,
        "TFRecordLoader, shuffle=True": lambda: shuffled,
        "TFRecordIterableDataset": lambda: stream,
        "read_batch": lambda: (dataset.read_batch(range(i, min(i + BATCH, len(dataset)))) for i in starts),
        "DataLoader": lambda: DataLoader(dataset, BATCH, collate_fn=tfr.collate),
        "DataLoader, RecordSampler": lambda: DataLoader(dataset, BATCH, sampler=sampler, collate_fn=tfr.collate),
    }


def main() -> int:
    """Measure, print, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", default=["A", "C"], help="data sets, see README.md")
    parser.add_argument("--quick", action="store_true", help="a tenth of the data")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    agree = True
    for name in options.names:
        described = data.ensure(name, HERE / "data", quick=options.quick)
        paths = described["paths"]
        features = features_of(tfr, torch, described)
        dataset = tfr.TFRecordDataset(paths, features)
        measured = doors(dataset, paths, features)
        sums = {door: sum(int(batch.record_ids.sum()) for batch in batches()) for door, batches in measured.items()}
        agree = agree and len(set(sums.values())) == 1
        seconds: dict[str, list[float]] = {door: [] for door in measured}
        for _ in range(ROUNDS):
            for door, batches in measured.items():
                began = time.perf_counter()
                drain(batches())
                seconds[door].append(time.perf_counter() - began)
        for door, took in seconds.items():
            print(f"{name:2} {door:30} {len(dataset) / statistics.median(took):12,.0f} records/s")
    return 0 if agree else 1


def drain(batches: Iterable[Any]) -> None:
    """Take all batches."""
    for _ in batches:
        pass


if __name__ == "__main__":
    sys.exit(main())
