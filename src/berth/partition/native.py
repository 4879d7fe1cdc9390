"""Partitions whose memory limit the driver and the kernel keep: NVML's limits of a cgroup, from driver 615 on.

By NVIDIA, *MPS v3 Memory Partitioning* (docs.nvidia.com/deploy/mps). The promise is NVML's soft limit and the limit its
hard one; both are the same, because MPS may end a process that is above the first. They are of a leaf cgroup of
version 2: `berth-ROOT/NAME`, which a program of `berth partition exec` enters before it starts, or a container's own.

The driver adds a soft limit to those of all cgroups above it, and takes it from them only where it is lowered before
its cgroup goes. What a runtime's removal or a crash has left above is taken back by `sweep`. The driver also accepts
limits that it does not keep: so each is read back, again before each start.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from berth.errors import PartitionError
from berth.partition.gpus import gpus, handle_of, open_nvml
from berth.partition.hardware import Hardware, hardware_in, keep
from berth.partition.library import resize_region
from berth.partition.regions import Limit, Partition, check_owner, find, locked, own_root, root_folder

_UNLIMITED = 2**64 - 1
_MOUNTS = Path("/proc/self/mounts")
_NONE = {3, 13}
"""NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_FUNCTION_NOT_FOUND."""


class _Limits(ctypes.Structure):
    """nvmlSetMemoryLimits_v1_t, and with the last field nvmlGetMemoryLimits_v1_t."""

    _fields_ = (
        ("path", ctypes.c_char_p),
        ("soft_bytes", ctypes.c_ulonglong),
        ("hard_bytes", ctypes.c_ulonglong),
        ("used_bytes", ctypes.c_ulonglong),
    )


def why_not(gpu_uuid: str = "", driver_folder: Path | None = None) -> str:
    """Why this machine, or this GPU of it, has no such partitions; empty if it does, as far as can be told without
    making one."""
    if os.geteuid() != 0:
        return "only root sets limits of a cgroup"
    mount = _mount()
    if mount is None:
        return "no cgroup of version 2 is mounted here"
    if not os.access(mount, os.W_OK):
        return f"{mount} is read-only here"
    if gpu_uuid.startswith("MIG-"):
        return "an instance of MIG has no limits of a cgroup"
    found = [gpu_uuid] if gpu_uuid else [gpu.uuid for gpu in gpus(driver_folder)]
    if not any(_get(mount, uuid, driver_folder)[0] not in _NONE for uuid in found):
        return "NVML has no limits of a cgroup; they come with driver 615, and not for MIG"
    return ""


def make_group(
    root: Path, name: str, gpu_uuid: str, limit_bytes: int, driver_folder: Path | None = None
) -> Path:
    """A partition's own cgroup, with this limit of a GPU's memory. Raises PartitionError, and leaves nothing, where it
    is not kept. The caller has the lock of `limits_lock`, as for all below."""
    if why := why_not(gpu_uuid, driver_folder):
        raise PartitionError(f"no native limit for the partition '{name}': {why}; use --no-native")
    groups = _groups_of(root)
    assert groups is not None
    group = groups / name
    try:
        _make(group)
        _set_limit(group, gpu_uuid, limit_bytes, driver_folder)
    except PartitionError:
        _remove(group)
        raise
    return group


def admit(name: str, container: Path | None, root: Path | None, driver_folder: Path | None) -> None:
    """Give the cgroup of a container, or the partition's own, the partition's limits before a program starts in it.

    Raises PartitionError if the driver does not keep a limit: then no program is to start.
    """
    try:
        for part in find(name, root):
            if part.hardware is not None and part.hardware.can.needs_entry:
                group = container or Path(part.hardware.group)
                _take_over(group, part, driver_folder)
                _settle(part, str(group), driver_folder)
    except OSError as error:
        raise PartitionError(
            f"the partition '{name}' was removed, or cannot be changed ({error.strerror}: {error.filename})"
        ) from error


def resize_groups(part: Partition, limit: Limit, driver_folder: Path | None) -> Limit:
    """Give the cgroups of a partition another limit; what its region is to say."""
    _settle(part, "", driver_folder)
    kept = hardware_in(part.folder, part.uuid)
    assert kept is not None
    for group in kept.groups:
        _set_limit(Path(group), kept.gpu, limit.mem_mib << 20, driver_folder)
    keep(part.folder, part.uuid, replace(kept, mem_mib=limit.mem_mib, core_pct=limit.core_pct))
    return replace(limit, witness=sum(_is_populated(Path(group)) for group in kept.groups) == 1)


def release(kept: Hardware, driver_folder: Path | None = None) -> None:
    """Give back what a partition reserved of a GPU. Processes that are left keep their limit until they end."""
    for group in kept.groups:
        _clear(Path(group), kept, driver_folder)


def sweep(root: Path | None = None, driver_folder: Path | None = None) -> None:
    """Clear the limits of cgroups that no process is in, and take back what those that are gone left above them."""
    root = root or root_folder()
    groups = _groups_of(root)
    if os.geteuid() != 0 or groups is None:
        return
    try:
        check_owner(root)
    except (PartitionError, OSError):
        return  # the notes of another user would name any cgroup
    with limits_lock(root):
        kept = set()
        for part, hardware in _natives(root):
            kept.add(hardware.group)
            with contextlib.suppress(PartitionError, OSError):  # it ends now
                _settle(part, "", driver_folder)
        for group in groups.iterdir() if groups.is_dir() else ():
            if not group.is_dir() or str(group) in kept or _is_populated(group):
                continue
            for gpu in gpus(driver_folder):
                with contextlib.suppress(PartitionError):  # of a GPU that has none
                    _set(group, gpu.uuid, 0, _UNLIMITED, driver_folder)
            _remove(group)


@contextlib.contextmanager
def limits_lock(root: Path | None = None) -> Iterator[None]:
    """Wait until no other process of berth changes limits of cgroups, some of which are the sums of others.

    Raises PartitionError for a user that may not change them."""
    root = root or root_folder()
    with contextlib.ExitStack() as stack:
        try:
            own_root(root)  # the notes of another user could name any cgroup
            stack.enter_context(locked(root / ".limits", os.O_RDWR | os.O_CREAT))
        except OSError as error:
            raise PartitionError(
                f"only root changes limits of cgroups ({error.strerror}: {root / '.limits'}); use sudo, or create the "
                "partition with --no-native"
            ) from error
        yield


def enter(group: Path) -> None:
    """Move this process into a cgroup; for a child between fork and exec."""
    with open(group / "cgroup.procs", "w") as file:
        file.write("0")


def container_group() -> Path:
    """The cgroup of the container that this process is a hook of: of all, the one that lists this process, because a
    container's namespace of cgroups hides its path."""
    mount, own = _mount(), str(os.getpid())
    for folder, _, _ in os.walk(mount or ""):
        with contextlib.suppress(OSError):  # it has gone, or holds threads only
            if own in (Path(folder) / "cgroup.procs").read_text().split() and Path(folder) != mount:
                return Path(folder)
    raise PartitionError(
        "the container has no cgroup of version 2 of its own, which a native limit needs; "
        "create the partition with --no-native"
    )


def _natives(root: Path) -> Iterator[tuple[Partition, Hardware]]:
    """The partitions with a native limit that can be read, each GPU's by itself."""
    for name in {note.parent.name for note in root.glob("*/*.hardware")}:
        parts: list[Partition] = []
        with contextlib.suppress(PartitionError, OSError):  # it is damaged, or ends now
            parts = find(name, root)
        for part in parts:
            if part.hardware is not None and part.hardware.can.needs_entry:
                yield part, part.hardware


def _take_over(group: Path, part: Partition, driver_folder: Path | None) -> None:
    """Take the cgroup of a partition's new container out of the notes of other partitions.

    One of theirs had its path, and ended without a hook; with the note, they would change its limit.
    """
    for other, had in _natives(part.folder.parent):
        if other.folder == part.folder or str(group) not in had.groups:
            continue
        if group.is_dir():
            _set(group, had.gpu, 0, _UNLIMITED, driver_folder)
        _take_back(group, had, driver_folder)
        left = {*had.groups} - {str(group)}
        _keep(other, left)
        with contextlib.suppress(PartitionError, OSError):  # it ends now
            _settle(replace(other, hardware=replace(had, groups=tuple(left))), "", driver_folder)


def _settle(part: Partition, joining: str, driver_folder: Path | None) -> None:
    """Let those cgroups have a partition's limit that processes are in, or that is being joined; if there are none,
    the partition's own, so that its promise is kept.

    Where a single one is in use, libberth counts and does not refuse; where several are, it keeps their sum.
    """
    had = part.hardware
    assert had is not None
    in_use = {group for group in had.groups if _is_populated(Path(group))} | {*filter(None, [joining])}
    wanted = in_use or {had.group}
    there = all(Path(group).is_dir() for group in wanted)
    if joining or wanted != {*had.groups} or not there:
        _keep(part, {*had.groups, *wanted})  # a crash leaves it to be cleared
        for group in {*had.groups} - wanted:
            _clear(Path(group), had, driver_folder)
        for group in wanted:
            if group == had.group:
                _make(Path(group))
            if group in had.groups:
                _take_back(Path(group), had, driver_folder)  # its container may have started again
            _set_limit(Path(group), had.gpu, had.mem_mib << 20, driver_folder)
        _keep(part, wanted)
    flags = Limit(1, 0, part.burst, part.priority, witness=len(in_use) == 1).flags
    resize_region(part.folder, part.uuid, part.limit_bytes, part.core_pct, flags)


def _keep(part: Partition, groups: set[str]) -> None:
    assert part.hardware is not None
    keep(part.folder, part.uuid, replace(part.hardware, groups=tuple(sorted(groups))))


def _clear(group: Path, kept: Hardware, driver_folder: Path | None) -> None:
    """Give back what a cgroup reserved: itself, and what those above it still reserve for one that is gone."""
    if group.is_dir():
        hard_bytes = kept.mem_mib << 20 if _is_populated(group) else _UNLIMITED
        _set(group, kept.gpu, 0, hard_bytes, driver_folder)
        if str(group) == kept.group:
            _remove(group)
    _take_back(group, kept, driver_folder)


def _take_back(group: Path, kept: Hardware, driver_folder: Path | None) -> None:
    """Lower what the cgroups above one of this path reserve for an earlier one, which a runtime removed.

    NVIDIA's rule: each has the sum of those below. So no more is taken back than exceeds that, and than was added.
    """
    above = next(folder for folder in group.parents if folder.is_dir())
    if above == _mount():
        return  # which reserves nothing
    _, soft_bytes, hard_bytes = _get(above, kept.gpu, driver_folder)
    below = (_get(each, kept.gpu, driver_folder)[1] for each in above.iterdir() if each.is_dir())
    left_bytes = min(soft_bytes - sum(below), kept.mem_mib << 20)
    if left_bytes > 0:
        _set(above, kept.gpu, soft_bytes - left_bytes, hard_bytes, driver_folder)


def _set_limit(group: Path, gpu_uuid: str, limit_bytes: int, driver_folder: Path | None = None) -> None:
    """Set the limit of a cgroup. Raises PartitionError if the driver does not keep it."""
    mount = _mount()
    for above in reversed(group.parents):  # a gap on the way would break the reservation
        if mount is not None and above.is_relative_to(mount):
            with contextlib.suppress(OSError):
                (above / "cgroup.subtree_control").write_text("+dmem")
    _set(group, gpu_uuid, limit_bytes, limit_bytes, driver_folder)
    answer, soft_bytes, hard_bytes = _get(group, gpu_uuid, driver_folder)
    if answer != 0:
        raise PartitionError(
            f"NVML does not tell the limits of {group} (error {answer}); nothing is started in it"
        )
    if (soft_bytes, hard_bytes) != (limit_bytes, limit_bytes):
        held = "none" if hard_bytes == _UNLIMITED else f"{hard_bytes >> 20} MiB"
        raise PartitionError(
            f"{group} should have a limit of {limit_bytes >> 20} MiB of GPU {gpu_uuid}, and the driver keeps {held}; "
            "nothing is started in it. Use --no-native"
        )


def _set(group: Path, gpu_uuid: str, soft: int, hard: int, driver_folder: Path | None) -> None:
    wanted = _Limits(str(group).encode(), soft, hard)
    handle = handle_of(gpu_uuid, driver_folder)
    answer = open_nvml(driver_folder).nvmlDeviceSetMemoryLimits_v1(handle, ctypes.byref(wanted))
    if answer != 0:
        raise PartitionError(
            f"NVML does not set the limits of {group} (error {answer}); this needs root, driver 615, a GPU without MIG "
            "and a cgroup of version 2. Use --no-native"
        )


def _get(group: Path, gpu_uuid: str, driver_folder: Path | None) -> tuple[int, int, int]:
    """NVML's answer, and the soft and the hard limit of a cgroup in bytes."""
    found = _Limits(str(group).encode())
    handle = handle_of(gpu_uuid, driver_folder)
    ask = getattr(open_nvml(driver_folder), "nvmlDeviceGetMemoryLimits_v1", None)
    answer = 13 if ask is None else ask(handle, ctypes.byref(found))
    return answer, found.soft_bytes, found.hard_bytes


def _make(group: Path) -> None:
    try:
        group.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PartitionError(f"the cgroup {group} cannot be made ({error.strerror})") from error


def _remove(group: Path) -> None:
    with contextlib.suppress(OSError):
        group.rmdir()


def _is_populated(group: Path) -> bool:
    """Whether a process is in it or below."""
    with contextlib.suppress(OSError):
        return "populated 1" in (group / "cgroup.events").read_text()
    return False


def _groups_of(root: Path) -> Path | None:
    """The cgroup below which each partition of a root has one; another root has another."""
    mount = _mount()
    return None if mount is None else mount / f"berth-{hashlib.sha256(str(root).encode()).hexdigest()[:8]}"


def _mount() -> Path | None:
    """Where the hierarchy of version 2 is mounted; a hook also sees where its container has it."""
    found = [line.split()[1] for line in _MOUNTS.read_text().splitlines() if line.split()[2] == "cgroup2"]
    return Path(min(found, key=len)) if found else None
