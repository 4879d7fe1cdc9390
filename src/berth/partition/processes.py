"""What the kernel tells of a process. It imports nothing: commands that start often ask it too."""

from __future__ import annotations


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
