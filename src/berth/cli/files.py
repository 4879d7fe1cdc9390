"""Files that a command leaves behind."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from berth.whole_file import whole_file

__all__ = ["command_line", "told_what_is_kept", "write_aside"]


def write_aside(path: Path, text: str) -> None:
    """Write a text under another name first, so that nobody ever finds half of it."""
    with whole_file(path) as aside:
        aside.write_text(text, encoding="utf-8")


def command_line() -> str:
    """The command that runs, as one could type it."""
    return shlex.join(["berth", *sys.argv[1:]])


@contextmanager
def told_what_is_kept(out: Path | None) -> Iterator[None]:
    """Make the folder of an experiment's runs; on an interruption say how many are in it."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # a folder that cannot be written is refused before the work
    try:
        yield
    except KeyboardInterrupt:
        if out is not None:
            kept = len(list((out / "runs").glob("*.parquet")))
            print(
                f"berth: {kept} finished runs are in {out / 'runs'}; the same command goes on from there",
                file=sys.stderr,
            )
        raise
