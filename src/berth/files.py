"""Files that are there whole or not at all; names for any file system, and cells for any spreadsheet."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """The name to write under, `.part` after the file's own; where the writing fails, the file is as it was.

    `durable`: it outlives a loss of power from here on.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        yield temporary
        if durable:
            _to_disk(temporary)
        temporary.replace(path)
        if durable:
            _to_disk(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(path)  # a full disk names no file; the user knows only `path`
        raise


def plain_name(text: str) -> str:
    """The text as far as any file system takes it; with a digest where that is not all of it."""
    import hashlib  # OpenSSL, which not every command needs

    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:80].lstrip(".")
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return plain if plain == text else f"{plain}-{digest}"


def plain_cell(text: str) -> str:
    """The text, after an apostrophe if a spreadsheet would take it for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _to_disk(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
