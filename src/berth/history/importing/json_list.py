"""The list that a JSON document of another system holds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from berth.errors import HistoryError
from berth.history.store.database import readable


def listed_in_json(path: Path | None, name: str, written: str) -> tuple[str, list[Any]]:
    """The place of a document for messages, and its list of this name. `path` None: standard input; `written`: what
    writes such a list, for the message. Raises HistoryError."""
    where = str(path) if path else "standard input"
    try:
        with readable(where):
            content = json.loads(path.read_bytes() if path else sys.stdin.buffer.read())
    except ValueError as error:
        raise HistoryError(f"{where} is no whole JSON document: {error}") from error
    found = content.get(name) if isinstance(content, dict) else None
    if not isinstance(found, list):
        raise HistoryError(f"{where} holds no list '{name}', as {written}")
    return where, found
