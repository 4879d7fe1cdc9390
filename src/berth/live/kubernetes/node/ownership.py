"""Whose a process is: the pod of its cgroup, and whether libberth counts it in a region."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from berth.partition import Partition

_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")
Member = tuple[int, int]
"""The inode of a pid namespace, and a pid in it: how a region names a process."""


def pod_uid_of(pid: int, proc: Path = Path("/proc")) -> str:
    """The uid of the pod whose cgroup a process is in; empty where it is in none, or has ended."""
    try:
        text = (proc / str(pid) / "cgroup").read_text()
    except OSError:
        return ""
    found = _POD.search(text)
    return found[1].replace("_", "-") if found else ""


def members_of(parts: Iterable[Partition]) -> set[Member]:
    """All processes that these regions count."""
    return {(process.pid_namespace, process.pid) for part in parts for process in part.processes}


def is_member(pid: int, members: set[Member], proc: Path = Path("/proc")) -> bool:
    """Whether a process, by the host's pid, is among them; one that has ended is."""
    try:
        namespace = os.stat(proc / str(pid) / "ns" / "pid").st_ino
        status = (proc / str(pid) / "status").read_text()
    except OSError:
        return True
    pids = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [str(pid)])
    return (namespace, int(pids[-1])) in members


def started(pid: int, proc: Path = Path("/proc")) -> int:
    """When a process started, in clock ticks since boot: tells it from a later one of its pid. 0: it has ended."""
    try:
        return int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0
