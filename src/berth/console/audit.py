"""Who changed what through the console: lines of JSON that are on the disk before the change is made."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from berth.errors import LiveError


@dataclass(frozen=True, slots=True)
class Line:
    """One line: an action that was asked for, and then how it went."""

    at_ms: int
    user: str
    role: str
    via: str
    source: str
    action: str
    id: str
    value: str | int | None
    command: str
    result: str
    """`asked`, then `done`, `refused` or `failed`."""
    why: str = ""
    """What was done, or why not."""


class Audit:
    """The file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def add(self, line: Line) -> None:
        """Append one line, synced. Raises LiveError if it cannot be written: then nothing may be changed."""
        text = json.dumps(asdict(line), separators=(",", ":")) + "\n"
        try:
            with self._lock:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    if _cut_off(self.path):
                        text = f"\n{text}"
                    os.write(handle, text.encode())
                    os.fsync(handle)
                finally:
                    os.close(handle)
        except OSError as error:
            raise LiveError(
                f"{self.path} cannot be written ({error.strerror}), and nothing is changed without an entry there"
            ) from error

    def last(self, most: int) -> list[Line]:
        """The newest lines, the oldest of them first."""
        return list(deque(self._lines(), most))

    def _lines(self) -> Iterator[Line]:
        """All lines; one that a crash cut off is passed over."""
        try:
            with open(self.path, encoding="utf-8", errors="replace") as file:
                for text in file:
                    try:
                        yield Line(**json.loads(text))
                    except (ValueError, TypeError):
                        continue
        except FileNotFoundError:
            return


def _cut_off(path: Path) -> bool:
    """Whether the last line of a file has no end, because a crash or a full disk cut it off."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        if not size:
            return False
        file.seek(size - 1)
        return file.read(1) != b"\n"
