"""Batches of input that cannot be indexed: pipes, and files that still grow."""

from __future__ import annotations

import itertools
import logging
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from torch_tfrecord.collation import collate
from torch_tfrecord.decode import Origin
from torch_tfrecord.drawing import Draw
from torch_tfrecord.paths import Paths, expand_paths
from torch_tfrecord.reading import Located
from torch_tfrecord.recipe import Recipe
from torch_tfrecord.records import RecordIterator

_log = logging.getLogger(__name__)


def is_unindexable(paths: Paths) -> bool:
    """Whether some of the files are pipes or devices, which can be read only once and in order."""
    return any(os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode) for path in expand_paths(paths))


def make_batches(
    records: RecordIterator, recipe: Recipe, draw: Draw, *, name: str, batch_size: int, drop_last: bool
) -> Iterator[Any]:
    """Batches of records in the order in which they come.

    What goes wrong raises after all whole records before it were given out, in a short batch if need be.

    Args:
        records: The payloads.
        recipe: What is made of them.
        draw: Their seed and epoch, for transforms.
        name: What messages call the input.
        batch_size: Records of a batch.
        drop_last: Whether a short last batch is left out, which is logged.

    Yields:
        What `collate` makes of a batch.

    Raises:
        DataLossError: The input is damaged or cut short.
        ParseError: A record does not fit the features.
    """
    for number in itertools.count():
        payloads, error = _take(records, batch_size)
        ids = np.arange(number * batch_size, number * batch_size + len(payloads), dtype=np.int64)
        if len(payloads) == batch_size or (payloads and (error is not None or not drop_last)):
            yield collate(recipe.items(Located(ids, payloads, _origin_of(name, payloads, ids)), draw))
        elif payloads:
            _log.warning("%s: the last %d records do not fill a batch and were dropped", name, len(payloads))
        if error is not None:
            raise error
        if len(payloads) < batch_size:
            return


def _take(records: RecordIterator, count: int) -> tuple[list[bytes], Exception | None]:
    """The next payloads, and what goes wrong after them if they are fewer."""
    payloads: list[bytes] = []
    try:
        for payload in itertools.islice(records, count):
            payloads.append(payload)  # noqa: PERF402 - those before an error are to be kept
    except Exception as error:  # noqa: BLE001 - it is raised after they are
        return payloads, error
    return payloads, None


def _origin_of(name: str, payloads: list[bytes], ids: np.ndarray[Any, Any]) -> Callable[[int], Origin]:
    return lambda row: Origin(int(ids[row]), name, None, lambda: payloads[row])
