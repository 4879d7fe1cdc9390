"""Partitions whose memory limit the driver and the kernel keep: NVML's limits of a cgroup, from driver 615 on.

The promise is NVML's soft limit and the limit its hard one; both are the same, because MPS may end a process that is
above the first. They are of a leaf cgroup of version 2, `berth-ROOT/NAME`, which a program enters before it starts. A
limit outlives its cgroup if it is not cleared first, and the driver accepts some that it then does not keep: so what
was set is read back, again before each start, and what a crash left is cleared by `sweep_groups`.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from berth.errors import PartitionError
from berth.partition.gpus import handle_of, open_nvml

_UNLIMITED = 2**64 - 1
_MOUNTS = Path("/proc/self/mounts")


class _Limits(ctypes.Structure):
    """nvmlSetMemoryLimits_v1_t, and with the last field nvmlGetMemoryLimits_v1_t."""

    _fields_ = (
        ("path", ctypes.c_char_p),
        ("soft_bytes", ctypes.c_ulonglong),
        ("hard_bytes", ctypes.c_ulonglong),
        ("used_bytes", ctypes.c_ulonglong),
    )


def why_not(driver_folder: Path | None = None) -> str:
    """Why this machine has no such partitions; empty if it does, as far as can be told without making one."""
    if os.geteuid() != 0:
        return "only root sets limits of a cgroup"
    if _mount() is None:
        return "no cgroup of version 2 is mounted here"
    if not hasattr(open_nvml(driver_folder), "nvmlDeviceSetMemoryLimits_v1"):
        return "NVML has no limits of a cgroup; they come with driver 615"
    return ""


def make_group(
    root: Path, name: str, gpu_uuid: str, limit_bytes: int, driver_folder: Path | None = None
) -> Path:
    """A cgroup with this limit of a GPU's memory. Raises PartitionError, and leaves nothing, where it is not kept."""
    if why := why_not(driver_folder):
        raise PartitionError(f"no native limit for the partition '{name}': {why}; leave --native out")
    groups = _groups_of(root)
    assert groups is not None
    group = groups / name
    try:
        group.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PartitionError(f"the cgroup {group} cannot be made ({error.strerror})") from error
    try:
        set_limit(group, gpu_uuid, limit_bytes, driver_folder)
    except PartitionError:
        _remove(group)
        raise
    return group


def set_limit(group: Path, gpu_uuid: str, limit_bytes: int, driver_folder: Path | None = None) -> None:
    """Set the limit of a cgroup. Raises PartitionError if the driver does not keep it."""
    _set(group, gpu_uuid, limit_bytes, limit_bytes, driver_folder)
    check_limit(group, gpu_uuid, limit_bytes, driver_folder)


def check_limit(group: Path, gpu_uuid: str, limit_bytes: int, driver_folder: Path | None = None) -> None:
    """Refuse to go on where a cgroup has another limit than it should: a program would run without one."""
    found = _Limits(str(group).encode())
    handle = handle_of(gpu_uuid, driver_folder)
    answer = open_nvml(driver_folder).nvmlDeviceGetMemoryLimits_v1(handle, ctypes.byref(found))
    if answer != 0:
        raise PartitionError(
            f"NVML does not tell the limits of {group} (error {answer}); nothing is started in it"
        )
    if (found.soft_bytes, found.hard_bytes) != (limit_bytes, limit_bytes):
        held = "none" if found.hard_bytes == _UNLIMITED else f"{found.hard_bytes >> 20} MiB"
        raise PartitionError(
            f"{group} should have a limit of {limit_bytes >> 20} MiB of GPU {gpu_uuid}, and the driver keeps {held}; "
            "nothing is started in it. Remove the partition and create it again"
        )


def enter(group: Path) -> None:
    """Move this process into a cgroup; for a child between fork and exec."""
    with open(group / "cgroup.procs", "w") as file:
        file.write("0")


def remove_group(group: Path, gpu_uuid: str, driver_folder: Path | None = None) -> None:
    """Clear a cgroup's limit, then take it away. A cgroup with processes stays, without a limit of its own."""
    _set(group, gpu_uuid, 0, _UNLIMITED, driver_folder)
    _remove(group)


def sweep_groups(
    root: Path, kept: Iterable[Path], gpu_uuid: str, driver_folder: Path | None = None
) -> list[Path]:
    """Clear and remove the cgroups that no partition of a root has and no process is in; those removed."""
    groups, there = _groups_of(root), set(kept)
    if groups is None or not groups.is_dir():
        return []
    removed = []
    for group in sorted(path for path in groups.iterdir() if path.is_dir()):
        if group in there or _populated(group):
            continue
        _set(group, gpu_uuid, 0, _UNLIMITED, driver_folder)
        _remove(group)
        removed.append(group)
    return removed


def _set(group: Path, gpu_uuid: str, soft: int, hard: int, driver_folder: Path | None) -> None:
    wanted = _Limits(str(group).encode(), soft, hard)
    handle = handle_of(gpu_uuid, driver_folder)
    answer = open_nvml(driver_folder).nvmlDeviceSetMemoryLimits_v1(handle, ctypes.byref(wanted))
    if answer != 0:
        raise PartitionError(
            f"NVML does not set the limits of {group} (error {answer}); this needs root, driver 615, a GPU without MIG "
            "and a cgroup of version 2"
        )


def _remove(group: Path) -> None:
    with contextlib.suppress(OSError):
        group.rmdir()


def _populated(group: Path) -> bool:
    """Whether a process is in it or below."""
    with contextlib.suppress(OSError):
        return "populated 1" in (group / "cgroup.events").read_text()
    return False


def _groups_of(root: Path) -> Path | None:
    """The cgroup below which each partition of a root has one; another root has another."""
    mount = _mount()
    return None if mount is None else mount / f"berth-{hashlib.sha256(str(root).encode()).hexdigest()[:8]}"


def _mount() -> Path | None:
    """Where the hierarchy of version 2 is mounted."""
    for line in _MOUNTS.read_text().splitlines():
        words = line.split()
        if words[2] == "cgroup2":
            return Path(words[1])
    return None
