"""What docs/from-tf-data.md sets side by side is alike: each pair of code is run, tf.data being the oracle.

A pair is a block ``python tensorflow`` that is followed at once by a block ``python``. After these words stands how they
compare: nothing: the results are equal; ``shuffled``: they are equal but for the order, since both draw by random numbers
of their own, or tf.data delivers what is ready first; ``differs``: they are not, and each block asserts its own.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pytest
from tensorflow_oracle import ROOT, run_blocks

from torch_tfrecord.order import QueueShuffle, open_order

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

PAGE = ROOT / "docs" / "from-tf-data.md"
BLOCK = re.compile(r"^```python( tensorflow)?( shuffled| differs)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """Code of the page."""

    line: int
    theirs: bool
    relation: str  # of theirs to ours: "equal", "shuffled" or "differs"
    code: str
    partner: int  # which block is the other one of the pair; -1: none


def blocks_of(text: str) -> list[Block]:
    matches = list(BLOCK.finditer(text))
    blocks = []
    for i, match in enumerate(matches):
        partner = -1
        if match[1] and i + 1 < len(matches) and not matches[i + 1][1]:
            assert not text[match.end() : matches[i + 1].start()].strip(), "something stands between a pair's blocks"
            partner = i + 1
        relation = (match[2] or " equal").strip()
        blocks.append(Block(text.count("\n", 0, match.start(3)), bool(match[1]), relation, match[3], partner))
    return blocks


BLOCKS = blocks_of(PAGE.read_text())
THEIRS = [block for block in BLOCKS if block.theirs]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[int, Any]:
    """What our blocks leave in ``result``, by their number; their files are then in the folder."""
    scope: dict[str, Any] = {"__name__": "document"}
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for i, block in enumerate(BLOCKS):
            if not block.theirs:
                scope.pop("result", None)
                exec(compile("\n" * block.line + block.code, str(PAGE), "exec"), scope)
                found[i] = scope.get("result")
    return found


def outline(value: Any) -> Any:
    """Lists as their lengths, so that only the shape is left."""
    return [outline(item) for item in value] if isinstance(value, list) else None


def leaves(value: Any) -> list[Any]:
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else [value]


def agree(relation: str, theirs: Any, ours: Any) -> bool:
    if relation == "shuffled":
        return outline(theirs) == outline(ours) and sorted(leaves(theirs)) == sorted(leaves(ours))
    return bool(theirs == ours) == (relation == "equal")


def test_agreement_is_strict() -> None:
    assert agree("shuffled", [[1, 2], [3]], [[3, 1], [2]])
    assert not agree("shuffled", [[1, 2], [3]], [[3, 1], [3]])
    assert not agree("shuffled", [[1, 2], [3]], [[3], [1, 2]])
    assert agree("equal", [1], [1])
    assert not agree("equal", [1, 2], [2, 1])
    assert agree("differs", [1], [2])
    assert not agree("differs", [1], [1])


def test_every_block_of_theirs_has_a_partner_that_says_its_result() -> None:
    assert len(THEIRS) >= 25
    for block in THEIRS:
        assert block.partner >= 0, f"line {block.line}: no block of ours follows"
        assert "result = " in block.code, f"line {block.line}"
        assert "assert " in BLOCKS[block.partner].code, f"line {block.line}: the result is not said"


def test_every_step_of_the_table_is_in_a_pair() -> None:
    table = PAGE.read_text().split("## Pipelines")[1].split("\n\n")[1]
    left = " ".join(row.split("|")[1] for row in table.splitlines()[2:])
    steps = set(re.findall(r"\.(\w+)\(", left)) | set(re.findall(r"\w+=|deterministic|num_\w+", left))
    code = "\n".join(block.code for block in THEIRS)
    assert len(steps) >= 20
    assert {step for step in steps if step not in code} <= {"num_parallel_reads"}  # an interleave by another name


def test_ours_give_plain_results(results: dict[int, Any]) -> None:
    for block in THEIRS:
        found = {type(leaf) for leaf in leaves(results[block.partner])}
        assert found <= {int, float, bool, str}, f"line {block.line}: {found}"


@pytest.mark.tensorflow
def test_theirs_give_the_same(results: dict[int, Any], folder: Path) -> None:
    answers = run_blocks([(str(PAGE), block.line, block.code) for block in THEIRS], folder)
    wrong = [
        f"line {block.line} ({block.relation}): {theirs} there, {results[block.partner]} here"
        for block, theirs in zip(THEIRS, answers, strict=True)
        if not agree(block.relation, theirs, results[block.partner])
    ]
    assert not wrong, "\n".join(wrong)


# --- the shuffle buffer -----------------------------------------------------------------------------------------------

SIZE, CAPACITY, SEEDS = 1000, 100, 400
SHUFFLES = f"""
import tensorflow as tf

streams = [tf.data.Dataset.range({SIZE}).shuffle({CAPACITY}, seed=seed).batch({SIZE}) for seed in range({SEEDS})]
result = [next(iter(stream)).numpy().tolist() for stream in streams]
"""


def displacements(orders: Array) -> Array:
    """How many positions later than in the files each record comes: int64[seed, record]."""
    return np.argsort(orders, axis=1) - np.arange(SIZE)


def our_displacements(capacity: int) -> Array:
    positions = np.arange(SIZE)
    shuffle = QueueShuffle(capacity)
    orders = [open_order(shuffle, SIZE, seed=seed, epoch=0).indices(positions) for seed in range(SEEDS)]
    return displacements(np.array(orders))


def largest_deviation(first: Array, second: Array) -> float:
    """The largest difference of two samples of epochs, in standard errors.

    Counted are records by their displacement, in twelve classes, separately for the first, middle and last third of the
    files. The counts of one epoch hang together, so errors are estimated from epoch to epoch.
    """
    edges = np.quantile(first, np.arange(1, 12) / 12)
    thirds = np.arange(SIZE) * 3 // SIZE

    def counts(sample: Array) -> Array:
        cells = np.searchsorted(edges, sample) * 3 + thirds
        return np.array([np.bincount(row, minlength=36) for row in cells])

    ours, theirs = counts(first), counts(second)
    error = np.sqrt((ours.var(0, ddof=1) + theirs.var(0, ddof=1)) / SEEDS)
    return float((np.abs(ours.mean(0) - theirs.mean(0)) / error).max())


@pytest.mark.tensorflow
def test_a_queue_shuffle_mixes_as_the_shuffle_buffer_does(folder: Path) -> None:
    (orders,) = run_blocks([("SHUFFLES", 0, SHUFFLES)], folder)
    theirs, ours = displacements(np.array(orders)), our_displacements(CAPACITY)
    assert theirs.min() == ours.min() == -(CAPACITY - 1)
    assert largest_deviation(ours, theirs) < 4  # of 36 classes


def test_another_capacity_would_be_noticed() -> None:
    ours = our_displacements(CAPACITY)
    for capacity in (CAPACITY - 1, CAPACITY + 1):
        assert largest_deviation(ours, our_displacements(capacity)) > 6
