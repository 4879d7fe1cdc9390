"""A progress bar on standard error, for people only."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Update", "progress_bar"]

QUIET_S = 1.0
"""Nothing is shown of what is over sooner."""


class Update(Protocol):
    """What shows how far something is."""

    def __call__(self, done: float, total: float, said: str = "", /) -> None:
        """So much of so much is done; `said` stands beside what is done."""


@contextmanager
def progress_bar(what: str) -> Iterator[Update | None]:
    """What to call with (done, total); None where nobody watches, since standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    bar = Bar(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=1.0)
    begin = time.monotonic()
    shown = False

    def update(done: float, total: float, said: str = "", /) -> None:
        nonlocal shown
        if not shown and time.monotonic() - begin > QUIET_S:
            bar.start()
            shown = True
        bar.update(task, completed=done, total=total, description=f"{what}: {said}" if said else what)

    try:
        yield update
    finally:
        bar.stop()
