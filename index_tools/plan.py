"""``tfrecord-index plan``."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

from index_tools import EXIT_DAMAGED, EXIT_OK
from index_tools.show import open_index
from index_tools.text import write_json
from torch_tfrecord.explain import explain
from torch_tfrecord.order import BlockShuffle, QueueShuffle

if TYPE_CHECKING:
    import argparse

    from torch_tfrecord.order import Shuffle


def plan(options: argparse.Namespace) -> int:
    """Say which rank and worker reads what, and whether each record is read exactly once."""
    shuffle = parse_shuffle(options.shuffle)
    if bool(options.paths) == (options.records is not None):
        raise ValueError("plan needs either paths or --records N")
    index = open_index(options.paths, options.on_error) if options.paths else None
    explanation = explain(
        options.records if index is None else len(index),
        batch_size=options.batch_size,
        shuffle=shuffle,
        seed=options.seed,
        epoch=options.epoch,
        world_size=options.world_size,
        num_workers=options.workers,
        drop_last=options.drop_last,
    )
    faults = [] if index is None else index.faults
    if options.json:
        document = {
            "index": index and index.file,
            "fingerprint": index and index.fingerprint,
            "faults": [dataclasses.asdict(fault) for fault in faults],
            **dataclasses.asdict(explanation),
        }
        write_json(document)
    else:
        left_out = f"\n\n{len(faults):,} damaged places of the files left out" if faults else ""
        sys.stdout.write(f"{explanation}{left_out}\n")
    return EXIT_OK if explanation.exactly_once else EXIT_DAMAGED


def parse_shuffle(text: str) -> Shuffle:
    """An order as the command line writes it.

    Raises:
        ValueError: It is none.

    Example:
        >>> parse_shuffle("full"), parse_shuffle("queue:1000,500")
        (True, QueueShuffle(capacity=1000, min_after_dequeue=500))
    """
    kind, colon, rest = text.partition(":")
    if text in {"none", "full"}:
        return kind == "full"
    parts = rest.split(",") if colon else []
    if all(part.isascii() and part.isdigit() for part in parts) and len(parts) <= 2:
        numbers = list(map(int, parts))
        if kind == "block":
            return BlockShuffle(*numbers)
        if kind == "queue" and numbers:
            return QueueShuffle(*numbers)
    choices = "none, full, block[:BLOCK_SIZE,WINDOW] or queue:CAPACITY[,MIN_AFTER_DEQUEUE]"
    raise ValueError(f"--shuffle must be {choices}, not {text!r}")
