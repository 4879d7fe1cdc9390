"""How far something is, on standard error: a bar for people, for long work lines where nobody watches."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Update", "progress_bar"]

QUIET_S = 1.0
"""Nothing is shown of what is over sooner."""
LINE_S = 30.0
"""Where there is no terminal, long work writes no more than a line in so long."""


class Update(Protocol):
    """What shows how far something is."""

    def __call__(self, done: float, total: float, said: str = "", /) -> None:
        """So much of so much is done; `said` stands beside what is done."""


@contextmanager
def progress_bar(what: str, *, long: bool = False) -> Iterator[Update | None]:
    """What to call with (done, total); None where nobody watches, since standard error is no terminal.

    What is `long`, minutes or more, is shown from its first call on, and without a terminal tells its first call, its
    last, and one now and then, a line each.
    """
    if not sys.stderr.isatty():
        yield _lines(what) if long else None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    bar = Bar(
        *columns, *([TimeElapsedColumn()] if long else []), console=Console(stderr=True), transient=True
    )
    task = bar.add_task(what, total=1.0)
    begin = time.monotonic()
    shown = False

    def update(done: float, total: float, said: str = "", /) -> None:
        nonlocal shown
        if not shown and (long or time.monotonic() - begin > QUIET_S):
            bar.start()
            shown = True
        bar.update(task, completed=done, total=total, description=f"{what}: {said}" if said else what)

    try:
        yield update
    finally:
        bar.stop()


def _lines(what: str) -> Update:
    """What tells the first call, the last, and one every `LINE_S` seconds."""
    told_s: float | None = None

    def update(done: float, total: float, said: str = "", /) -> None:
        nonlocal told_s
        now_s = time.monotonic()
        if told_s is None or now_s - told_s >= LINE_S or done >= total:
            told_s = now_s
            part = f"{done:,.0f} of {total:,.0f}"
            print(f"{what}: {part}{f', {said}' if said else ''}", file=sys.stderr, flush=True)

    return update
