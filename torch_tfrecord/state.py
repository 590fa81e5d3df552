"""Where a reader stands: plain values that can be saved, and the count of epochs that they come from.

A state is a dict of numbers and short strings, below 1 kB, that ``torch.load`` and JSON take as they are::

    {"version": 1, "fingerprint": "5f1c...", "num_records": 60000, "order": "permutation/1",
     "seed": 0, "epoch": 3, "position": 8192}

``position`` counts records of the epoch that all ranks together have been given. It is the same on all ranks after the
same step, and says nothing of ranks, workers, threads or batch size, so any number of them can go on from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch_tfrecord.checks import check_integer
from torch_tfrecord.errors import StateError

STATE_VERSION = 1
MAX_EPOCH = 2**62


@dataclasses.dataclass(frozen=True)
class Source:
    """What a state belongs to: the data and the order they are read in.

    Attributes:
        fingerprint: Stands for the content of the data.
        num_records: Records of an epoch.
        order: Name and version of the order, as ``order_name`` gives it.
    """

    fingerprint: str
    num_records: int
    order: str

    def state(self, seed: int, epoch: int, position: int) -> dict[str, Any]:
        """The state of a reader of this source."""
        return {
            "version": STATE_VERSION,
            **dataclasses.asdict(self),
            "seed": seed,
            "epoch": epoch,
            "position": position,
        }

    def read(self, state: Mapping[str, Any]) -> tuple[int, int, int]:
        """Check a state.

        Returns:
            Seed, epoch and position.

        Raises:
            StateError: It is of other data, another order or version, or no state at all.
        """
        if not isinstance(state, Mapping):
            raise StateError(f"a state is a dict, not {type(state).__name__}")
        if state.get("version") != STATE_VERSION:
            raise StateError(_no_state(state))
        advice = "start without the state, or give the reader what it was saved with"
        if state.get("order") != self.order:
            raise StateError(f"the state was saved in order {state.get('order')!r}, this is {self.order!r}: {advice}")
        if state.get("num_records") != self.num_records or state.get("fingerprint") != self.fingerprint:
            was, now = state.get("num_records"), self.num_records
            found = f"{was} records then, {now} now" if was != now else "the same number of records, other content"
            raise StateError(f"the state was saved of other data: {found}; {advice}")
        seed, epoch, position = (_integer(state, name) for name in ("seed", "epoch", "position"))
        if not 0 <= epoch <= MAX_EPOCH:
            raise StateError(f"the state's epoch is {epoch}")
        if not 0 <= position <= self.num_records:
            raise StateError(f"the state's position is {position}, outside [0, {self.num_records}]")
        return seed, epoch, position


def _no_state(state: Mapping[str, Any]) -> str:
    start = f"this is no state of version {STATE_VERSION}"
    if "version" in state:
        return f"{start}: its version is {state['version']!r}"
    inside = [key for key, value in state.items() if isinstance(value, Mapping) and "position" in value]
    if inside:
        return f"{start}, but there is one under {inside[0]!r}: pass that"
    return f"{start}, but a dict of {', '.join(map(repr, list(state)[:8])) or 'nothing'}"


def _integer(state: Mapping[str, Any], name: str) -> int:
    value = state.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise StateError(f"the state's {name} is {value!r}, not an integer")
    return value


class Passes:
    """Counts epochs: which one the next pass reads, from where, and what was delivered of the one at work.

    Each pass is the next epoch, counted at its first batch. ``set_epoch`` and ``load`` say otherwise for the next pass.
    Of several passes at a time, the one that began last is what ``state`` speaks of.

    Args:
        following: Epoch and position of the next pass: two integers, in memory that others may share. None: 0 and 0.

    Attributes:
        state: Epoch and position of the newest pass; or of the next one, if none is at work.
        newest: Epoch and start of the newest pass, ended or not; None before the first, and after ``set_epoch`` and
            ``load``.
    """

    def __init__(self, following: Any = None) -> None:
        self._next: Any = [0, 0] if following is None else following
        self._number = 0
        self.state = self.next
        self.newest: tuple[int, int] | None = None

    @property
    def next(self) -> tuple[int, int]:
        """Epoch and position of the pass that begins next."""
        return int(self._next[0]), int(self._next[1])

    def begin(self) -> tuple[int, int, int]:
        """Count a pass: at its first batch. Returns its number, for ``deliver``, its epoch and where it starts."""
        epoch, start = self.newest = self.state = self.next
        self._next[:] = epoch + 1, 0
        self._number += 1
        return self._number, epoch, start

    def deliver(self, number: int, epoch: int, position: int) -> None:
        """A pass has given out all before ``position``."""
        if number == self._number:
            self.state = (epoch, position)

    def finish(self, number: int) -> None:
        """A pass has come to its end."""
        if number == self._number:
            self.state = self.next

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass read this epoch: from its start, or from where a state of it was loaded."""
        epoch = check_integer(epoch, "epoch", 0, MAX_EPOCH // 2)
        if self.next[0] != epoch:
            self._next[:] = epoch, 0
        self.state, self.newest = self.next, None

    def load(self, epoch: int, position: int) -> None:
        """Make the next pass read the rest of an epoch."""
        self._next[:] = epoch, position
        self.state, self.newest = self.next, None
