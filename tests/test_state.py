"""States, that are checked before they are believed, and the count of epochs."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

import torch_tfrecord as tfr
from torch_tfrecord.state import Passes, Source

SOURCE = Source("5f1c" * 8, 60_000, "permutation/1")
STATE = SOURCE.state(7, 3, 8192)


def test_a_state_is_plain_values() -> None:
    assert STATE == {
        "version": 1,
        "fingerprint": "5f1c" * 8,
        "num_records": 60_000,
        "order": "permutation/1",
        "seed": 7,
        "epoch": 3,
        "position": 8192,
    }
    assert SOURCE.read(STATE) == (7, 3, 8192)


@pytest.mark.parametrize("seed", [0, -1, 2**64, -(2**100)])
def test_states_are_small_and_any_format_takes_them(seed: int) -> None:
    source = Source("f" * 32, 2**62, "BlockShuffle(block_size=4611686018427387904, window=4611686018427387904)/1")
    state = source.state(seed, 2**62, 2**62)
    text = json.dumps(state)
    assert len(text) < 1000
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    for back in (json.loads(text), torch.load(file)):
        assert back == state
        assert source.read(back) == (seed, 2**62, 2**62)


def test_keys_that_others_add_do_no_harm() -> None:
    assert SOURCE.read({**STATE, "step": 5}) == (7, 3, 8192)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 2}, "no state of version 1: its version is 2"),
        ({"version": None}, "its version is None"),
        ({"order": "permutation/2"}, "saved in order 'permutation/2', this is 'permutation/1'"),
        ({"order": "QueueShuffle(capacity=100)/1"}, r"saved in order 'QueueShuffle\(capacity=100\)/1', this is"),
        ({"order": None}, "saved in order None"),
        ({"num_records": 59_999}, "of other data: 59999 records then, 60000 now"),
        ({"num_records": None}, "of other data: None records then, 60000 now"),
        ({"fingerprint": "0" * 32}, "of other data: the same number of records, other content"),
        ({"fingerprint": None}, "other content"),
        ({"seed": "7"}, "seed is '7', not an integer"),
        ({"seed": True}, "seed is True, not an integer"),
        ({"epoch": 3.0}, "epoch is 3.0, not an integer"),
        ({"epoch": -1}, "epoch is -1"),
        ({"epoch": 2**62 + 1}, "epoch is 4611686018427387905"),
        ({"position": None}, "position is None, not an integer"),
        ({"position": -1}, r"position is -1, outside \[0, 60000\]"),
        ({"position": 60_001}, r"position is 60001, outside \[0, 60000\]"),
        ({"position": torch.tensor(5)}, r"position is tensor\(5\), not an integer"),
    ],
)
def test_other_states_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(tfr.StateError, match=reason):
        SOURCE.read({**STATE, **change})
    (name,) = change
    with pytest.raises(tfr.StateError):
        SOURCE.read({key: value for key, value in STATE.items() if key != name})


@pytest.mark.parametrize("nothing", [None, [], 5, "state", b"", [("version", 1)]])
def test_what_is_no_state_is_refused(nothing: Any) -> None:
    with pytest.raises(tfr.StateError, match=f"a state is a dict, not {type(nothing).__name__}"):
        SOURCE.read(nothing)
    with pytest.raises(tfr.StateError, match="no state of version 1, but a dict of 'model', 'optimizer'"):
        SOURCE.read({"model": {}, "optimizer": {}})
    with pytest.raises(tfr.StateError, match="no state of version 1, but there is one under 'loader': pass that"):
        SOURCE.read({"model": {}, "loader": STATE})


def test_refusals_are_errors_of_the_tree_and_of_values() -> None:
    assert issubclass(tfr.StateError, tfr.TFRecordError)
    assert issubclass(tfr.StateError, ValueError)
    with pytest.raises(tfr.StateError, match="start without the state, or give the reader what it was saved with"):
        SOURCE.read({**STATE, "order": "sequential/1"})


def test_epochs_are_checked() -> None:
    passes = Passes()
    passes.set_epoch(2**61)
    assert passes.next == (2**61, 0)
    with pytest.raises(ValueError, match=f"epoch is -1, and must be in .0, {2**61}."):
        passes.set_epoch(-1)
    with pytest.raises(TypeError, match=r"epoch is 1\.5, not an integer"):
        passes.set_epoch(1.5)  # type: ignore[arg-type]


# --- the count of epochs ----------------------------------------------------------------------------------------------


def test_one_pass_after_another() -> None:
    passes = Passes()
    assert (passes.state, passes.next, passes.newest) == ((0, 0), (0, 0), None)
    number, epoch, start = passes.begin()
    assert (epoch, start, passes.state, passes.next) == (0, 0, (0, 0), (1, 0))
    passes.deliver(number, epoch, 8)
    assert passes.state == (0, 8)
    passes.deliver(number, epoch, 10)
    assert passes.state == (0, 10)  # after the last batch, as long as the pass has not come to its end
    passes.finish(number)
    assert (passes.state, passes.newest) == ((1, 0), (0, 0))
    assert passes.begin()[1:] == (1, 0)


def test_the_memory_of_the_next_pass_can_be_shared() -> None:
    words = np.array([4, 100], np.int64)
    passes, other = Passes(words), Passes(words)
    assert passes.state == (4, 100)
    assert other.begin()[1:] == (4, 100)
    assert words.tolist() == [5, 0]
    assert passes.begin()[1:] == (5, 0)
    passes.set_epoch(9)
    assert words.tolist() == [9, 0]
    assert all(type(value) is int for value in other.next)


@settings(max_examples=100, stateful_step_count=30)
class Reader(RuleBasedStateMachine):
    """Any sequence of what readers do, against what the documents say."""

    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.passes = Passes()
        self.next = self.state = (0, 0)
        self.count = self.newest = 0

    @rule(target=running)
    def begin(self) -> tuple[int, int]:
        number, epoch, start = self.passes.begin()
        assert (epoch, start) == self.next
        self.count += 1
        self.newest, self.state, self.next = self.count, self.next, (epoch + 1, 0)
        assert self.passes.newest == (epoch, start)
        return number, epoch

    @rule(at_work=running, position=st.integers(0, 100))
    def deliver(self, at_work: tuple[int, int], position: int) -> None:
        number, epoch = at_work
        self.passes.deliver(number, epoch, position)
        if number == self.newest:
            self.state = epoch, position

    @rule(at_work=consumes(running))
    def finish(self, at_work: tuple[int, int]) -> None:
        self.passes.finish(at_work[0])
        if at_work[0] == self.newest:
            self.state = self.next

    @rule(epoch=st.integers(0, 3))
    def set_epoch(self, epoch: int) -> None:
        self.passes.set_epoch(epoch)
        self.next = self.next if self.next[0] == epoch else (epoch, 0)
        self.state = self.next

    @rule(epoch=st.integers(0, 3), position=st.integers(0, 100))
    def load(self, epoch: int, position: int) -> None:
        self.passes.load(epoch, position)
        self.state = self.next = epoch, position

    @invariant()
    def agrees(self) -> None:
        assert self.passes.state == self.state
        assert self.passes.next == self.next


TestReader = Reader.TestCase
