"""A file that is there whole or not at all: it is written under another name, and renamed when it is whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["whole_file"]


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """The name to write under, `.part` after the file's own; where the writing fails, the file is as it was."""
    aside = path.with_name(path.name + ".part")
    try:
        yield aside
        aside.replace(path)
    except OSError as error:
        if error.filename == str(aside):  # nobody asked for that name
            error.filename = str(path)
        raise
    finally:
        aside.unlink(missing_ok=True)
