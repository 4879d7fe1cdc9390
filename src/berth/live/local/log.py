"""Structured logs: one line of JSON an event."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, TextIO

LARGEST_BYTES = 16 << 20


class Log:
    """Appends to a file, which is begun anew when it has grown large; to standard error where there is none."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._file: TextIO = sys.stderr
        self._open()

    def _open(self) -> None:
        if self._path is not None:
            try:
                self._file = open(self._path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115
            except OSError:
                self._file = sys.stderr

    def __call__(self, event: str, **fields: Any) -> None:
        """Write one event; a full disk is no reason to fail."""
        line = {"at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "event": event, **fields}
        try:
            self._file.write(json.dumps(line, default=str) + "\n")
            if self._path is not None and self._file.tell() > LARGEST_BYTES:
                self._file.close()
                os.replace(self._path, self._path + ".1")
                self._open()
        except (OSError, ValueError):
            pass
