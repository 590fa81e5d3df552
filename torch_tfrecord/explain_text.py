"""An explanation of who reads what, as text that fits a terminal for any number of ranks and workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch_tfrecord.explain import Explanation

_MAX_RANKS = 4  # whose first steps are shown
_T = TypeVar("_T")


def format_explanation(plan: Explanation) -> str:
    """Tables of who reads what, and the tail and the check in words."""
    facts = [("records", f"{plan.num_records:,}")]
    if plan.start:
        facts.append(
            ("start", f"position {plan.start:,}: {_number(plan.num_records - plan.start, 'record')} left to read")
        )
    facts.append(("order", f"{plan.order}, seed {plan.seed}, epoch {plan.epoch}"))
    facts.append(("readers", _readers_in_words(plan)))
    end = [("tail", _tail_in_words(plan)), ("check", _check_in_words(plan))]
    tables = [format_table(facts), format_table(_who_reads(plan), right=(2, 3, 4, 5))]
    if plan.first_steps:
        tables.append(format_table(_what_first(plan), right=(3,)))
    return "\n\n".join(map("\n".join, [*tables, format_table(end)]))


def format_table(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """Lines of a table: columns two spaces apart, those in ``right`` aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _number(count: int, noun: str) -> str:
    """A number of things: ``1 row``, ``2,000 rows``."""
    plural = {"batch": "batches"}.get(noun, f"{noun}s")
    return f"{count:,} {noun if count == 1 else plural}"


def _readers_in_words(plan: Explanation) -> str:
    ranks = _number(plan.world_size, "rank")
    if len(plan.ranks) < plan.world_size:
        ranks = f"rank {plan.ranks[0].rank} of {plan.world_size:,}"
    workers = f", {_number(plan.num_workers, 'worker')} each" if plan.num_workers else ", no workers"
    return f"{ranks}{workers}; batches of {_number(plan.batch_size, 'row')}"


def _tail_in_words(plan: Explanation) -> str:
    last = plan.ranks[0].last_batch
    if not plan.steps:
        words = ["no batches"]
    elif last == plan.batch_size:
        words = ["all batches are full"]
    else:
        words = [f"the last batch of each rank has {_number(last, 'row')}"]
    if plan.num_padded:
        rows = "1 row repeats a record" if plan.num_padded == 1 else f"{plan.num_padded:,} rows repeat records"
        words.append(f"{rows}, so that all ranks read equally many")
    if plan.num_dropped:
        short = plan.ranks[0].dropped * plan.world_size
        reasons = [
            f"{count:,} {reason}"
            for count, reason in [
                (plan.num_dropped - short, "for want of a full round of the ranks"),
                (short, "for want of full batches"),
            ]
            if count
        ]
        words.append(f"{_number(plan.num_dropped, 'record')} left out: {', '.join(reasons)}")
    return "; ".join(words)


def _check_in_words(plan: Explanation) -> str:
    how = "every row was enumerated" if plan.checked == "all" else "by arithmetic: too many records to enumerate"
    if not plan.exactly_once:
        return f"FAILED: not every record is read exactly once ({how})"
    aside = ", repeated rows aside" if plan.num_padded else ""
    count = plan.num_records - plan.start - plan.num_dropped
    return f"{_number(count, 'record')}, each read exactly once{aside} ({how})"


def _grouped(items: Sequence[_T], key: Callable[[_T], object]) -> Iterator[tuple[str, _T]]:
    """Neighbours that are alike become one: their numbers, as in ``0-61``, and the first of them."""
    begin = 0
    for _, equal in groupby(items, key):
        group = list(equal)
        end = begin + len(group) - 1
        yield (str(begin) if begin == end else f"{begin}-{end}"), group[0]
        begin = end + 1


def _who_reads(plan: Explanation) -> list[Sequence[str]]:
    """A line for each group of equal ranks, and below it for their workers."""
    fate = "left out" if plan.drop_last else "repeated"
    lines: list[Sequence[str]] = [("rank", "worker", "batches", "rows", "last batch", fate)]
    for numbers, rank in _grouped(plan.ranks, lambda rank: (rank.padded, rank.workers)):
        name = numbers if len(plan.ranks) == plan.world_size else str(rank.rank)
        tail = rank.dropped if plan.drop_last else rank.padded
        lines.append((name, "all", f"{rank.batches:,}", f"{rank.rows:,}", f"{rank.last_batch:,}", f"{tail:,}"))
        if plan.num_workers:
            for workers, one in _grouped(rank.workers, lambda worker: (worker.batches, worker.rows)):
                lines.append(("", workers, f"{one.batches:,}", f"{one.rows:,}", "", ""))
    return lines


def _what_first(plan: Explanation) -> list[Sequence[str]]:
    """What is read first; of many ranks, by two and the last."""
    lines: list[Sequence[str]] = [("step", "rank", "worker", "rows", "records")]
    skipped = range(2, len(plan.ranks) - 1) if len(plan.ranks) > _MAX_RANKS else range(0)
    padded = {rank.rank for rank in plan.ranks if rank.padded}
    for reads in plan.first_steps:
        if reads.rank in skipped:
            if reads.rank == skipped[0]:
                lines.append(("", "...", "", "", ""))
            continue
        words = list(map(str, reads.records))
        if len(words) < reads.rows:
            words.append("...")
        elif reads.step == plan.steps - 1 and reads.rank in padded:
            words[-1] += " again"
        worker = str(reads.worker) if plan.num_workers else "-"
        lines.append((str(reads.step), str(reads.rank), worker, f"{reads.rows:,}", ", ".join(words)))
    return lines
