"""Files that a command leaves behind."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

__all__ = ["command_line", "write_aside"]


def write_aside(path: Path, text: str) -> None:
    """Write a text under another name first, so that nobody ever finds half of it."""
    aside = path.with_name(path.name + ".part")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def command_line() -> str:
    """The command that runs, as one could type it."""
    return shlex.join(["berth", *sys.argv[1:]])
