"""Showing how far a long scan has come."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

Progress: TypeAlias = "bool | Callable[[int, int], object]"

_INTERVAL_SECONDS = 0.1
_GIB = 1 << 30


class ProgressMeter:
    """Shows bytes done of bytes in total. A context manager, used by one thread.

    Args:
        progress: True draws a bar with tqdm where it is installed, else a line on standard error, both only where that
            is a terminal. A callable is called with (bytes done, bytes in total), also at the end. False shows nothing.
        total: Bytes in total.
        title: What is being done.
    """

    def __init__(self, progress: Progress, total: int, title: str) -> None:
        self._total = total
        self._title = title
        self._last = 0.0
        self._bar: Any = None
        self._call: Callable[[int, int], object] | None = None
        if callable(progress):
            self._call = progress
        elif progress and sys.stderr is not None and sys.stderr.isatty():
            self._bar = _tqdm_bar(total, title)
            self._call = self._draw_line if self._bar is None else self._draw_bar

    @property
    def interval_seconds(self) -> float | None:
        """How often to call ``update``; None: not at all."""
        return None if self._call is None else _INTERVAL_SECONDS

    def update(self, done: int) -> None:
        """Show a new state, unless the last one is too fresh."""
        now = time.monotonic()
        if self._call is not None and now - self._last >= _INTERVAL_SECONDS:
            self._last = now
            self._call(min(done, self._total), self._total)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._call is not None and kind is None:
            self._call(self._total, self._total)
        if self._bar is not None:
            self._bar.close()
        elif self._call == self._draw_line:
            sys.stderr.write("\n")

    def _draw_bar(self, done: int, _: int) -> None:
        self._bar.update(done - self._bar.n)

    def _draw_line(self, done: int, total: int) -> None:
        percent = 100 * done // total if total else 100
        sys.stderr.write(f"\r{self._title}: {percent:3d} % of {total / _GIB:.2f} GiB")
        sys.stderr.flush()


def _tqdm_bar(total: int, title: str) -> Any:
    """A bar of tqdm, or None where that is not installed."""
    try:
        from tqdm.auto import tqdm  # noqa: PLC0415 - optional
    except ImportError:
        return None
    return tqdm(total=total, desc=title, unit="B", unit_scale=True, leave=False)
