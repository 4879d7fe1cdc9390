"""Progress on standard error: a bar on a terminal, and lines for long work off it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

QUIET_S = 1.0
"""Nothing is shown of what is over sooner."""
LINE_S = 10.0
"""Where there is no terminal, work writes a line this often."""
COMPILING_S = 3.0
"""While functions are compiled, a line is written this often."""
QUIET = "BERTH_QUIET"
"""The environment variable by which `berth --quiet` silences progress, in processes that it starts too."""


class Update(Protocol):
    """What shows how far something is."""

    def __call__(self, done: float, total: float, note: str = "", /) -> None:
        """Note how much of the whole is done; `said` stands beside it."""


@contextmanager
def progress_bar(what: str, *, long: bool = False) -> Iterator[Update | None]:
    """What to call with (done, total); None if progress is silenced.

    Work that is `long`, minutes or more, is shown from its first call on. Without a terminal each line is written
    LINE_S after the one before; long work also writes its first and its last.
    """
    if os.environ.get(QUIET):
        yield None
        return
    if not sys.stderr.isatty():
        yield _lines(what, long)
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

    def update(done: float, total: float, note: str = "", /) -> None:
        nonlocal shown
        if not shown and (long or time.monotonic() - begin > QUIET_S):
            bar.start()
            shown = True
        bar.update(task, completed=done, total=total, description=f"{what}: {note}" if note else what)

    try:
        yield update
    finally:
        bar.stop()


@contextmanager
def compiling_shown() -> Iterator[None]:
    """Write a line to standard error as the block begins to compile functions, and one every few seconds."""
    if os.environ.get(QUIET):
        yield
        return
    from numba.core import event

    class Lines(event.Listener):
        def __init__(self) -> None:
            self.count, self.printed_s = 0, 0.0

        def on_start(self, event: object) -> None:
            now_s = time.monotonic()
            if not self.count or now_s - self.printed_s >= COMPILING_S:
                done = f" ({self.count} begun)" if self.count else ""
                print(f"berth: compiling functions, once on this machine{done}", file=sys.stderr, flush=True)
                self.printed_s = now_s
            self.count += 1

        def on_end(self, event: object) -> None:
            pass

    with event.install_listener("numba:compile", Lines()):
        yield


def _lines(what: str, long: bool) -> Update:
    """What writes a line every `LINE_S` seconds; of long work the first call and the last too."""
    printed_s = None if long else time.monotonic()

    def update(done: float, total: float, note: str = "", /) -> None:
        nonlocal printed_s
        now_s = time.monotonic()
        if printed_s is None or now_s - printed_s >= LINE_S or (long and done >= total):
            printed_s = now_s
            part = f"{done:,.0f} of {total:,.0f}"
            print(f"{what}: {part}{f', {note}' if note else ''}", file=sys.stderr, flush=True)

    return update
