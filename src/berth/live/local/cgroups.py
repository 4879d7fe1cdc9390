"""One cgroup (version 2) a job where this process may make some: nothing that a job started can leave it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Set

BROKERS = "berth-broker"
"""The group of the broker alone that systemd makes below the unit's (`DelegateSubgroup=`): the runs' are beside it."""


class Cgroups:
    """The cgroups below the broker's own; none where they are not delegated to it."""

    def __init__(self, tag: str, root: str | None = None) -> None:
        """`root` is this process's group in the hierarchy of version 2; found by itself where it is None."""
        self.folder = ""
        self.limits_memory = False
        """Whether the memory of a run can be limited."""
        own = _own_group() if root is None else root
        if not own:
            return
        if os.path.basename(own) == BROKERS:
            own = os.path.dirname(own)
            _enable_memory(own)  # which the kernel refuses where processes are in that group itself
        folder = os.path.join(own, f"berth-{tag}")
        try:
            os.makedirs(folder, exist_ok=True)
            _enable_memory(folder)
            probe = os.path.join(folder, "probe")
            os.mkdir(probe)
            allowed = os.access(os.path.join(probe, "cgroup.procs"), os.W_OK)
            allowed = allowed and os.path.exists(os.path.join(probe, "cgroup.kill"))
            limits = os.access(os.path.join(probe, "memory.max"), os.W_OK)
            os.rmdir(probe)
        except OSError:
            return
        if allowed:
            self.folder, self.limits_memory = folder, limits

    def make(self, name: str, mem_mib: int) -> str:
        """A group for one run, with at most this much memory (0: any); the file that a process enters it by, or ''."""
        if not self.folder:
            return ""
        group = os.path.join(self.folder, name)
        try:
            os.mkdir(group)
        except OSError:
            return ""
        if mem_mib:
            with contextlib.suppress(OSError), open(os.path.join(group, "memory.max"), "w") as file:
                file.write(str(mem_mib << 20))
        return os.path.join(group, "cgroup.procs")

    def left_mib(self, name: str) -> int | None:
        """Memory that a run may still take of its own limit; None: it has none that is enforced."""
        try:
            group = os.path.join(self.folder, name)
            with (
                open(os.path.join(group, "memory.max")) as most,
                open(os.path.join(group, "memory.current")) as now,
            ):
                return max(0, int(most.read()) - int(now.read())) >> 20
        except (OSError, ValueError):  # it has no group, or `max`
            return None

    def kill(self, name: str) -> None:
        if self.folder:
            with (
                contextlib.suppress(OSError),
                open(os.path.join(self.folder, name, "cgroup.kill"), "w") as file,
            ):
                file.write("1")

    def end(self, name: str) -> None:
        """Kill what is left in a run's group, and take it away."""
        if self.folder:
            self.kill(name)
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(self.folder, name))

    def sweep(self, kept: Set[str]) -> None:
        if self.folder:
            for entry in os.scandir(self.folder):
                if entry.is_dir() and entry.name not in kept:
                    self.end(entry.name)

    def close(self) -> None:
        """Take away the folder of all groups, if no run has one."""
        if self.folder:
            with contextlib.suppress(OSError):
                os.rmdir(self.folder)


def _enable_memory(group: str) -> None:
    with contextlib.suppress(OSError), open(os.path.join(group, "cgroup.subtree_control"), "w") as file:
        file.write("+memory")


def _own_group() -> str:
    """The folder of this process's group of version 2; empty where there is none."""
    try:
        with open("/proc/self/cgroup") as file:
            own = next(line[3:].strip() for line in file if line.startswith("0::"))
        with open("/proc/self/mounts") as file:
            mount = next(line.split()[1] for line in file if line.split()[2] == "cgroup2")
    except (OSError, StopIteration):
        return ""
    return os.path.join(mount, own.lstrip("/"))
