"""What the partitions of this machine's GPUs hold, which several processes or containers join.

A partition is a folder of regions under the machine's root, one region a GPU; the root and its limits belong
to the user that makes them (`lifecycle`), and a container gets the folder with the limits read-only.

`Access` says who may join a named partition: every user that may write its counters. Without an owner and a group these
are its maker, and the containers that it is mounted into, under whatever user they run: the counters' file is open to
all, in a folder that no other user may enter.
"""

from __future__ import annotations

import fcntl
import grp
import os
import pwd
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

from berth.errors import PartitionError, SettingError
from berth.partition.hardware import Hardware, hardware_in
from berth.partition.library import describe, other_version

BURST, AGENT, HIGH, LOW = 1, 2, 4, 8
WITNESS = 64
STOPPED = 32
"""For `resize_region`: all processes were kept from the GPU, so that what they measure across it does not count."""
PRIORITIES = {"high": HIGH, "normal": 0, "low": LOW}
INSIDE = "/run/berth"
"""Where a container finds the library and its region, also in processes that lost their environment."""
_PRELOADED = f"{INSIDE}/libberth.so\n"


@dataclass(frozen=True, slots=True)
class Limit:
    """What a partition may have of one GPU."""

    mem_mib: int
    core_pct: int = 0
    """Per cent of the GPU's time; 0: not limited."""
    burst: bool = False
    """Whether it may use time that no other partition wants."""
    priority: str = "normal"
    """`high` gives no time up to others, `low` takes what they leave."""
    witness: bool = False
    """Whether hardware keeps the memory, so that libberth counts and refuses nothing."""

    def __post_init__(self) -> None:
        if self.mem_mib < 1:
            raise SettingError(f"a limit of {self.mem_mib} MiB of GPU memory; it must be at least 1")
        if not 0 <= self.core_pct <= 100:
            raise SettingError(
                f"a share of {self.core_pct} % of a GPU's time; it must be from 1 to 100, or 0 for no limit"
            )
        if self.priority not in PRIORITIES:
            raise SettingError(f"no priority '{self.priority}'; there are {', '.join(PRIORITIES)}")

    @property
    def flags(self) -> int:
        named = (BURST if self.burst else 0) | (WITNESS if self.witness else 0)
        return AGENT | named | PRIORITIES[self.priority]


@dataclass(frozen=True, slots=True)
class Process:
    """One living process of a partition; `pid` as its own pid namespace counts."""

    pid: int
    pid_namespace: int
    command: str
    held_bytes: int
    peak_bytes: int
    gpu_ns: int
    outer_pid: int = 0
    """Its pid as NVML counts, if that differs from `pid`; 0: not known."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One call that was refused: its process and user, its time, how much was asked and how much was left."""

    time_ns: int
    pid: int
    uid: int
    command: str
    call: str
    asked_bytes: int
    left_bytes: int
    limit_bytes: int

    @property
    def needed_bytes(self) -> int:
        """What would have been held with it."""
        return self.limit_bytes - min(self.left_bytes, self.limit_bytes) + self.asked_bytes


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition's part of one GPU, as it is now."""

    name: str
    uuid: str
    folder: Path
    limit_bytes: int
    promise_bytes: int
    """Of the limit, what is never taken away."""
    max_bytes: int
    """How far the limit may grow when a process asks."""
    core_pct: int
    burst: bool
    priority: str
    used_bytes: int
    peak_bytes: int
    refused: int
    refused_bytes: int
    asked: int
    """How often a process asked for more than the limit had room for."""
    granted: int
    gpu_ns: int
    lent_bytes: int
    """What processes exported that have released it or ended, while others may still hold it."""
    mended: int
    """How often the counters were not what the processes hold, and were corrected."""
    processes: tuple[Process, ...]
    refusals: tuple[Refusal, ...]
    """The last few, oldest first."""
    hardware: Hardware | None = None
    """What keeps the limit beside libberth."""


class Use(NamedTuple):
    """What a partition's processes used of its GPUs until now, in MiB."""

    peak_mib: int
    """The most that they held on one GPU."""
    refused: int
    """Calls for memory that were refused."""
    needed_mib: int
    """What would have been enough for them; 0: none was refused."""


def use_of(parts: Sequence[Partition]) -> Use:
    needed = (refusal.needed_bytes for part in parts for refusal in part.refusals)
    peak = max((part.peak_bytes for part in parts), default=0)
    return Use(-(-peak >> 20), sum(part.refused for part in parts), -(-max(needed, default=0) >> 20))


_DESCRIBED = {each.name for each in fields(Partition)} - {"uuid", "folder", "hardware"}
"""What the library says of a region."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A region that is damaged, of another version or another user's, and why it cannot be told what it holds."""

    name: str
    uuid: str
    folder: Path
    why: str
    open_to: str | None = None
    """The user and group that it is open to, where that is all that keeps this user from reading it."""


def root_folder() -> Path:
    """Where this machine's partitions are: `$BERTH_ROOT`, or /dev/shm/berth."""
    named = os.environ.get("BERTH_ROOT") or "/dev/shm/berth"
    root = Path(named)
    if not root.is_absolute():
        raise SettingError(
            f"BERTH_ROOT='{named}' is not the name of a folder from the root; begin it with /, "
            f"such as {root.absolute()}"
        )
    if root.exists() and not root.is_dir():
        raise SettingError(f"BERTH_ROOT='{named}' is a file; name a folder for the partitions")
    return root


def own_root(root: Path | None = None) -> Path:
    """The folder of all partitions, which is made if need be. PartitionError as of `check_owner`."""
    root = root or root_folder()
    root.mkdir(mode=0o755, parents=True, exist_ok=True)
    check_owner(root)
    return root


@contextmanager
def locked(path: Path, flags: int = os.O_RDONLY | os.O_DIRECTORY) -> Iterator[None]:
    """Wait until no other process has the lock of a file, and have it. A symbolic link is refused: root would make a
    file wherever it leads to."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def no_link(path: Path) -> os.stat_result:
    """What a path is itself; a symbolic link may lead where another user changes the limits."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise PartitionError(
            f"{path} is a symbolic link, and limits are kept in no place that one leads to; "
            "name another root with BERTH_ROOT, or take the link away"
        )
    return found


def check_owner(folder: Path) -> None:
    """Refuse a folder that is a link, or another user's, who could change what root reads there; PartitionError."""
    owner = no_link(folder).st_uid
    if owner not in (0, os.geteuid()):
        raise PartitionError(
            f"{folder} belongs to the user {owner}, who could change the limits that are kept there; "
            "name another root with BERTH_ROOT, or take that folder away"
        )


def read(folder: Path, uuid: str, name: str) -> Partition:
    """One region as it is now."""
    seen = describe(folder, uuid)
    if seen.keys() != _DESCRIBED:
        raise other_version()
    seen["processes"] = tuple(Process(**process) for process in seen["processes"])
    seen["refusals"] = tuple(Refusal(**refusal) for refusal in seen["refusals"])
    where = {"name": name, "uuid": uuid, "folder": folder, "hardware": hardware_in(folder, uuid)}
    return Partition(**(seen | where))


def regions_in(folder: Path) -> list[str]:
    """UUIDs of the GPUs that a folder has limits for."""
    return _stems(folder, ".limit")


def _stems(folder: Path, *kinds: str) -> list[str]:
    """Names of a folder's files of these kinds, each once; none if the folder has just been removed."""
    try:
        return sorted({name.rpartition(".")[0] for name in os.listdir(folder) if name.endswith(kinds)})
    except OSError:
        return []


def regions(root: Path | None = None) -> list[Partition | Unreadable]:
    """Every region of this machine by name and GPU; one that cannot be read hides no other."""
    return [region for name in _names(root) for region in regions_of(name, root)]


def partitions(root: Path | None = None, *, gpu: str = "") -> list[Partition]:
    """Every partition of this machine that can be read, one for each of its GPUs, by name; with `gpu`, a UUID as the
    files have it, those of that GPU alone, as reading all takes long."""
    found = [region for name in _names(root) for region in regions_of(name, root, gpu)]
    return [region for region in found if isinstance(region, Partition)]


def find(name: str, root: Path | None = None) -> list[Partition]:
    """The partition of this name, one for each of its GPUs."""
    check_there(name, root)
    found = regions_of(name, root)
    for region in found:
        if isinstance(region, Unreadable) and region.open_to is not None:
            raise PartitionError(
                f"the partition '{name}' is not open to this user (uid {os.geteuid()}): it is open to {region.open_to}"
            )
        if isinstance(region, Unreadable):
            raise PartitionError(f"the partition '{name}' cannot be read: {region.why}")
    if not found:
        check_there(name, root)
        raise PartitionError(f"the partition '{name}' was removed while it was read")
    return [region for region in found if isinstance(region, Partition)]


def _names(root: Path | None) -> list[str]:
    """Folders with a region in them, if half of one; no other folder is a partition."""
    root = root or root_folder()
    return sorted(path.name for path in root.glob("[!.]*") if path.is_dir() and _regions_and_halves(path))


def _regions_and_halves(folder: Path) -> list[str]:
    return _stems(folder, ".limit", ".use")


def check_there(name: str, root: Path | None) -> None:
    """Refuse a name that no partition has."""
    folder = (root or root_folder()) / name
    if "/" not in name and not name.startswith(".") and folder.is_dir() and _regions_and_halves(folder):
        return  # without a look at all the others, of which a node has hundreds
    if "/" not in name:
        check_open(folder)
    raise PartitionError(f"no partition '{name}'; there are: {', '.join(_names(root)) or 'none'}")


def regions_of(name: str, root: Path | None, gpu: str = "") -> list[Partition | Unreadable]:
    """The regions of one partition, the damaged and halved ones too; with `gpu`, of that GPU alone."""
    folder = (root or root_folder()) / name
    found: list[Partition | Unreadable] = []
    for uuid in _regions_and_halves(folder):
        if gpu not in ("", uuid):
            continue
        others = open_to(folder / f"{uuid}.use")
        if others is not None:
            why = f"it is not open to this user (uid {os.geteuid()}), but to {others}"
            found.append(Unreadable(name, uuid, folder, why, others))
            continue
        try:
            if not (folder / f"{uuid}.limit").exists():
                raise PartitionError(
                    f"{folder / uuid}.limit is missing; remove it and make the partition anew"
                )
            found.append(read(folder, uuid, name))
        except PartitionError as error:
            try:
                read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
            except FileNotFoundError:
                return []  # it has been removed meanwhile
            why = f"{folder} is on a file system that is read-only here; mount it writable"
            found.append(Unreadable(name, uuid, folder, why if read_only else str(error)))
    return found


class Mount(NamedTuple):
    """A file that a container gets, and its place inside."""

    host: Path
    inside: str
    writable: bool = False


def mounts(parts: Sequence[Partition], library: Path) -> list[Mount]:
    """What a container gets. The loader's list is the last: from there on the loader wants the library."""
    folder = parts[0].folder
    files = [Mount(library, f"{INSIDE}/libberth.so"), *region_mounts(folder, (part.uuid for part in parts))]
    return [*files, Mount(preload_list(folder), "/etc/ld.so.preload")]


def region_mounts(folder: Path, uuids: Iterable[str]) -> Iterator[Mount]:
    """The files of these GPUs in a partition's folder, whose limits are read-only inside."""
    for uuid in uuids:
        for name, writable in ((f"{uuid}.limit", False), (f"{uuid}.use", True)):
            yield Mount(folder / name, f"{INSIDE}/region/{name}", writable)


def preload_list(folder: Path) -> Path:
    """/etc/ld.so.preload for the container: it holds where LD_PRELOAD is lost, as over ssh and `env -i`."""
    path = folder / "ld.so.preload"
    if (
        not path.exists() or path.read_text() != _PRELOADED
    ):  # the file stays the one that containers have mounted
        path.write_text(_PRELOADED)
        path.chmod(0o644)
    return path


@dataclass(frozen=True, slots=True)
class Access:
    """A user and a group that may join beside root; None: none in particular."""

    uid: int | None = None
    gid: int | None = None

    @property
    def open_to_named(self) -> bool:
        return self.uid is not None or self.gid is not None

    @property
    def file_mode(self) -> int:
        if not self.open_to_named:
            return 0o666
        return 0o600 if self.gid is None else 0o660

    @property
    def folder_mode(self) -> int:
        """A user that may enter the folder may read the limits in it; the counters have their own mode."""
        return 0o755 if self.open_to_named else 0o700


MAKERS = Access()
"""Its maker's alone, and of the containers that get it."""


def access_of(owner: str | None, group: str | None) -> Access:
    """The access of a user and a group by name or number; raises SettingError for one that is not known."""
    return Access(
        _number("user", owner, lambda name: pwd.getpwnam(name).pw_uid),
        _number("group", group, lambda name: grp.getgrnam(name).gr_gid),
    )


def _number(kind: str, text: str | None, named: Callable[[str], int]) -> int | None:
    if text is None or text.isdigit():
        return None if text is None else int(text)
    try:
        return named(text)
    except KeyError as error:
        raise SettingError(f"there is no {kind} '{text}' on this machine; give a name or a number") from error


def grant(folder: Path, uuid: str, access: Access) -> None:
    """Open a new region, which is its maker's alone, to those that may join."""
    use = folder / f"{uuid}.use"
    try:
        if access.open_to_named:
            os.chown(use, -1 if access.uid is None else access.uid, -1 if access.gid is None else access.gid)
        use.chmod(access.file_mode)
        folder.chmod(access.folder_mode)
    except OSError as error:
        raise PartitionError(
            f"{use} cannot be given to user {access.uid}, group {access.gid} ({error.strerror}); "
            "root may give it to any user, others to a group that they are in"
        ) from error


def open_to(use: Path) -> str | None:
    """For whom a region is, as text, if this user may not join it; None where this user may, or it is not there."""
    try:
        there = use.stat()
    except OSError:
        return None
    if os.access(use, os.R_OK, effective_ids=True):
        return None
    user, group = str(there.st_uid), str(there.st_gid)
    with suppress(KeyError):
        user = pwd.getpwuid(there.st_uid).pw_name
    with suppress(KeyError):
        group = grp.getgrgid(there.st_gid).gr_name
    return f"user {user}, group {group}" if there.st_mode & 0o040 else f"user {user}"


def check_open(folder: Path) -> None:
    """Refuse a partition that this user may not look into."""
    if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK, effective_ids=True):
        raise PartitionError(
            f"the partition '{folder.name}' is not open to this user (uid {os.geteuid()}); "
            "name its user or group with --owner or --group when it is made"
        )
