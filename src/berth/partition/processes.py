"""What the kernel tells of processes. It imports little: commands that start often ask it too."""

from __future__ import annotations

import fcntl
import os

TYPE_CHECKING = False  # as in typing, whose import takes a tenth of a client's time
if TYPE_CHECKING:
    from pathlib import Path


def stat_of(pid: int | str) -> list[str]:
    """The fields of /proc/PID/stat behind the name, its state first (proc_pid_stat(5)); empty if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return []


def lives(pid: int | str) -> bool:
    """Whether it is there and has not ended."""
    return stat_of(pid)[:1] not in ([], ["Z"], ["X"])


def is_locked(path: str | Path) -> bool:
    """Whether a process has the lock of a file for itself; one that only asks has none."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that ask at once see no lock
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
