"""Batches of input that cannot be indexed: pipes, and files that still grow."""

from __future__ import annotations

import itertools
import logging
import os
import stat
from collections.abc import Iterator
from typing import Any

import numpy as np

from torch_tfrecord.collation import collate
from torch_tfrecord.decode import Origin
from torch_tfrecord.drawing import Draw
from torch_tfrecord.faults import RecordFault
from torch_tfrecord.paths import Paths, expand_paths
from torch_tfrecord.reading import Ids, Located
from torch_tfrecord.recipe import Recipe
from torch_tfrecord.records import RecordIterator, verify_level

_log = logging.getLogger(__name__)


def is_unindexable(paths: Paths) -> bool:
    """Whether some of the files are pipes or devices, which can be read only once and in order."""
    return any(os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode) for path in expand_paths(paths))


class Unindexed:
    """Input that is read in the order in which it comes, each pass from its beginning, or from what a pipe gives then.

    Args:
        paths: The files; which ones these are is found out here.
        recipe: What is made of their records.
        verify: As for `read_records`.
        on_error: As for `read_records`.
        max_faults: As for `read_records`, in each pass.

    Attributes:
        faults: What the pass that began last in this process has left out so far.

    Raises:
        FileNotFoundError: There is no such file.
    """

    def __init__(
        self, paths: Paths, recipe: Recipe, *, verify: str, on_error: str, max_faults: int | None = None
    ) -> None:
        self.faults: list[RecordFault] = []
        self._paths = [os.path.abspath(path) for path in expand_paths(paths)]  # workers may start in another folder
        self._recipe = recipe
        self._verify = verify_level(verify)
        self._skip = on_error == "skip"
        self._max_faults = max_faults

    def batches(self, draw: Draw, batch_size: int, *, drop_last: bool) -> Iterator[Any]:
        """Batches of a pass. What goes wrong raises after all whole records before it, in a short batch if need be.

        Args:
            draw: Seed and epoch, for transforms.
            batch_size: Records of a batch.
            drop_last: Whether a short last batch is left out, which is logged.

        Yields:
            What `collate` makes of a batch.

        Raises:
            DataLossError: The input is damaged or cut short.
            ParseError: A record does not fit the features.
        """
        reading = RecordIterator(self._paths, verify=self._verify, skip=self._skip, max_faults=self._max_faults)
        with reading as records:
            self.faults = records.faults
            for begin in itertools.count(0, batch_size):
                payloads, error = _take(records, batch_size)
                if len(payloads) == batch_size or (payloads and (error is not None or not drop_last)):
                    yield collate(self._recipe.items(self._located(begin, payloads), draw))
                elif payloads:
                    _log.warning("%s: the last %d records fill no batch, and were dropped", self._name, len(payloads))
                if error is not None:
                    raise error
                if len(payloads) < batch_size:
                    return

    @property
    def _name(self) -> str:
        """What messages call the input."""
        others = len(self._paths) - 1
        return self._paths[0] + (f" and {others:,} more" if others else "")

    def _located(self, begin: int, payloads: list[bytes]) -> Located:
        ids: Ids = np.arange(begin, begin + len(payloads), dtype=np.int64)
        return Located(ids, payloads, lambda row: Origin(begin + row, self._name, None, lambda: payloads[row]))


def _take(records: Iterator[bytes], count: int) -> tuple[list[bytes], Exception | None]:
    """The next payloads, and what goes wrong after them if they are fewer."""
    payloads: list[bytes] = []
    try:
        for payload in itertools.islice(records, count):
            payloads.append(payload)  # noqa: PERF402 - those before an error are to be kept
    except Exception as error:  # noqa: BLE001 - it is raised after they are
        return payloads, error
    return payloads, None
