"""``tfrecord-index build``."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from index_tools import EXIT_OK
from index_tools.text import format_bytes, left_out_in_words, number, write_json, write_lines
from torch_tfrecord.index import RecordIndex
from torch_tfrecord.index_cache import place_beside
from torch_tfrecord.index_file import check_target
from torch_tfrecord.paths import expand_paths

if TYPE_CHECKING:
    import argparse


def build(options: argparse.Namespace) -> int:
    """Scan the files and write their index."""
    names = expand_paths(options.paths)
    # Where a data set with the same on_error looks; one without it takes an index for which more was checked, too.
    # What is to be left out must be found: such a data set checks everything.
    checked: Any = options.verify or ("all" if options.on_error == "skip" else "length")
    verify: Any = checked if options.on_error == "skip" else "length"
    output = options.output or place_beside(names, verify, options.on_error)
    check_target(output, names)  # before a scan that may take long
    index = RecordIndex.build(
        names, verify=checked, on_error=options.on_error, progress=not options.quiet and not options.json
    )
    index.save(output)
    if options.json:
        result = {
            "index": output,
            "num_records": len(index),
            "num_shards": len(index.paths),
            "num_bytes": index.num_bytes,
            "fingerprint": index.fingerprint,
            "faults": [dataclasses.asdict(fault) for fault in index.faults],
        }
        write_json(result)
    elif not options.quiet:
        left_out = f", {number(len(index.faults), 'damaged place')} left out" if index.faults else ""
        what = f"{number(len(index), 'record')} in {number(len(index.paths), 'file')}"
        head = f"{output}: {what}, {format_bytes(index.num_bytes)}{left_out}"
        write_lines([head, *left_out_in_words(index.faults)])
    return EXIT_OK
