"""Named partitions of this machine's GPUs, which several processes or containers join.

A partition is a folder of regions under the machine's root, one region a GPU; the root and its limits belong
to who makes them, and a container gets the folder with the limits read-only.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from berth.errors import PartitionError, SettingError
from berth.partition.gpus import Gpu
from berth.partition.library import describe, make_region, resize_region

__all__ = [
    "INSIDE",
    "Limit",
    "Partition",
    "Process",
    "Refusal",
    "Unreadable",
    "create",
    "find",
    "partitions",
    "preload_list",
    "regions",
    "remove",
    "resize",
    "root_folder",
]

BURST, AGENT = 1, 2
INSIDE = "/run/berth"
"""Where a container finds the library and its region, also in processes that lost their environment."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


@dataclass(frozen=True, slots=True)
class Limit:
    """What a partition may have of one GPU."""

    mem_mib: int
    core_pct: int = 0
    """Per cent of the GPU's time; 0: not limited."""
    burst: bool = False
    """Whether it may use time that nobody else wants."""

    def __post_init__(self) -> None:
        if self.mem_mib < 1:
            raise SettingError(f"a limit of {self.mem_mib} MiB of GPU memory; it must be at least 1")
        if not 0 <= self.core_pct <= 100:
            raise SettingError(
                f"a share of {self.core_pct} % of a GPU's time; it must be from 1 to 100, or 0 for no limit"
            )

    @property
    def flags(self) -> int:
        return AGENT | (BURST if self.burst else 0)


@dataclass(frozen=True, slots=True)
class Process:
    """One living process of a partition; `pid` as its own pid namespace counts."""

    pid: int
    pid_namespace: int
    command: str
    held_bytes: int
    peak_bytes: int
    gpu_ns: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """One call that was refused: who, when, how much was asked and how much was left."""

    time_ns: int
    pid: int
    uid: int
    command: str
    call: str
    asked_bytes: int
    left_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition's part of one GPU, as it is now."""

    name: str
    uuid: str
    folder: Path
    limit_bytes: int
    core_pct: int
    burst: bool
    used_bytes: int
    peak_bytes: int
    refused: int
    refused_bytes: int
    gpu_ns: int
    processes: tuple[Process, ...]
    refusals: tuple[Refusal, ...]
    """The last few, oldest first."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A region that is damaged, of another version or another user's, and why it cannot be told what it holds."""

    name: str
    uuid: str
    folder: Path
    why: str


def root_folder() -> Path:
    """Where this machine's partitions are: `$BERTH_ROOT`, or /dev/shm/berth."""
    return Path(os.environ.get("BERTH_ROOT", "/dev/shm/berth"))


def read(folder: Path, uuid: str, name: str) -> Partition:
    """One region as it is now."""
    seen = describe(folder, uuid)
    processes = tuple(Process(**process) for process in seen.pop("processes"))
    refusals = tuple(Refusal(**refusal) for refusal in seen.pop("refusals"))
    return Partition(
        **(
            seen
            | {"name": name, "uuid": uuid, "folder": folder, "processes": processes, "refusals": refusals}
        )
    )


def regions_in(folder: Path) -> list[str]:
    """UUIDs of the GPUs that a folder has limits for."""
    return sorted(path.stem for path in folder.glob("*.limit"))


def regions(root: Path | None = None) -> list[Partition | Unreadable]:
    """Every region of this machine by name and GPU; one that cannot be read hides no other."""
    return [region for name in _names(root) for region in _regions_of(name, root)]


def partitions(root: Path | None = None) -> list[Partition]:
    """Every partition of this machine that can be read, one for each of its GPUs, by name."""
    return [region for region in regions(root) if isinstance(region, Partition)]


def find(name: str, root: Path | None = None) -> list[Partition]:
    """The partition of this name, one for each of its GPUs."""
    _check_there(name, root)
    found = _regions_of(name, root)
    for region in found:
        if isinstance(region, Unreadable):
            raise PartitionError(f"the partition '{name}' cannot be read: {region.why}")
    return [region for region in found if isinstance(region, Partition)]


def _names(root: Path | None) -> list[str]:
    """Folders with a region in them, if half of one; no other folder is a partition."""
    root = root or root_folder()
    return sorted(path.name for path in root.glob("[!.]*") if path.is_dir() and _regions_and_halves(path))


def _regions_and_halves(folder: Path) -> list[str]:
    return sorted({*regions_in(folder), *(path.stem for path in folder.glob("*.use"))})


def _check_there(name: str, root: Path | None) -> None:
    known = _names(root)
    if name not in known:
        raise PartitionError(f"no partition '{name}'; there are: {', '.join(known) or 'none'}")


def _regions_of(name: str, root: Path | None) -> list[Partition | Unreadable]:
    folder = (root or root_folder()) / name
    found: list[Partition | Unreadable] = []
    for uuid in _regions_and_halves(folder):
        try:
            if not (folder / f"{uuid}.limit").exists():
                raise PartitionError(
                    f"{folder / uuid}.limit is missing; remove it and make the partition anew"
                )
            found.append(read(folder, uuid, name))
        except PartitionError as error:
            found.append(Unreadable(name, uuid, folder, str(error)))
    return found


def create(
    name: str, gpu: Gpu, limit: Limit, *, overcommit: bool = False, root: Path | None = None
) -> Partition:
    """Make a partition of a GPU; one of a name that exists is refused, and so is more than the card has."""
    if not _NAME.fullmatch(name):
        raise SettingError(
            f"'{name}' is not a name for a partition; letters, digits, '_', '.' and '-', at most 63"
        )
    root = root or root_folder()
    uuid = _plain(gpu.uuid)
    _check_room(gpu, limit, partitions(root), overcommit)
    try:
        for folder in (root, root / name):
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            _check_owner(folder)
        preload_list(root / name)  # now: who starts a container may not be who may write here
    except OSError as error:
        raise PartitionError(
            f"{root / name} cannot be made ({error.strerror}); name another root with BERTH_ROOT"
        ) from error
    if uuid in regions_in(root / name):
        raise PartitionError(
            f"there is a partition '{name}' of GPU {gpu.index} already; "
            "resize or remove it, or take another name"
        )
    make_region(root / name, uuid, name, limit.mem_mib << 20, limit.core_pct, limit.flags)
    return read(root / name, uuid, name)


def _check_owner(folder: Path) -> None:
    owner = folder.stat().st_uid
    if owner not in (0, os.geteuid()):
        raise PartitionError(
            f"{folder} belongs to the user {owner}, who could change the limits that are kept there; "
            "name another root with BERTH_ROOT, or take that folder away"
        )


def resize(
    name: str,
    *,
    mem_mib: int | None = None,
    core_pct: int | None = None,
    burst: bool | None = None,
    gpus: list[Gpu] | None = None,
    overcommit: bool = False,
    root: Path | None = None,
) -> list[Partition]:
    """Change limits of a partition in use, on each of its GPUs; what is not given stays as it is there.

    A smaller limit refuses new allocations and ends nothing. What no GPU of it has room for changes none.
    """
    changes = [
        (
            partition,
            Limit(
                partition.limit_bytes >> 20 if mem_mib is None else mem_mib,
                partition.core_pct if core_pct is None else core_pct,
                partition.burst if burst is None else burst,
            ),
        )
        for partition in find(name, root)
    ]
    others = [partition for partition in partitions(root) if partition.name != name]
    cards = {_plain(gpu.uuid): gpu for gpu in gpus or []}
    for partition, limit in changes:
        if partition.uuid in cards:
            _check_room(cards[partition.uuid], limit, others, overcommit, held=partition)
    for partition, limit in changes:
        resize_region(partition.folder, partition.uuid, limit.mem_mib << 20, limit.core_pct, limit.flags)
    return find(name, root)


def remove(name: str, *, force: bool = False, root: Path | None = None) -> None:
    """Take a partition away; one in use is kept unless forced, and its processes keep their limits."""
    _check_there(name, root)
    if not force:
        _check_idle(name, root)
    try:
        shutil.rmtree((root or root_folder()) / name)
    except OSError as error:
        raise PartitionError(
            f"the partition '{name}' cannot be removed ({error.strerror}: {error.filename}); its maker may"
        ) from error


def _check_idle(name: str, root: Path | None) -> None:
    busy = set()
    for region in _regions_of(name, root):
        if isinstance(region, Unreadable):
            raise PartitionError(
                f"it cannot be told whether processes use the partition '{name}': {region.why}; "
                "end them, and remove it with --force"
            )
        busy |= {(process.pid_namespace, process.pid) for process in region.processes}
    if busy:
        some = "1 process uses" if len(busy) == 1 else f"{len(busy)} processes use"
        raise PartitionError(f"{some} the partition '{name}'; end them first, or remove it with --force")


def preload_list(folder: Path) -> Path:
    """/etc/ld.so.preload for the container: it holds where LD_PRELOAD is lost, as over ssh and `env -i`."""
    path = folder / "ld.so.preload"
    text = f"{INSIDE}/libberth.so\n"
    if not path.exists() or path.read_text() != text:  # the file stays the one that containers have mounted
        path.write_text(text)
        path.chmod(0o644)
    return path


def _plain(uuid: str) -> str:
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()


def _check_room(
    gpu: Gpu, limit: Limit, existing: list[Partition], overcommit: bool, held: Partition | None = None
) -> None:
    """Refuse what a GPU has no room for; no more than the partition has already is never too much."""
    more_mem = held is None or limit.mem_mib > held.limit_bytes >> 20
    more_time = held is None or limit.core_pct > held.core_pct
    if more_mem and limit.mem_mib > gpu.mem_mib:
        raise PartitionError(
            f"a limit of {limit.mem_mib} MiB, but GPU {gpu.index} has {gpu.mem_mib} MiB; ask for that or less"
        )
    here = [partition for partition in existing if partition.uuid == _plain(gpu.uuid)]
    promised_mib = sum(partition.limit_bytes for partition in here) >> 20
    promised_pct = sum(partition.core_pct for partition in here)
    if more_mem and promised_mib + limit.mem_mib > gpu.mem_mib and not overcommit:
        left = max(gpu.mem_mib - promised_mib, 0)
        raise PartitionError(
            f"{limit.mem_mib} MiB of GPU {gpu.index}, but only {left} of its {gpu.mem_mib} MiB "
            "are not promised to others; ask for less, or promise more than there is with --overcommit"
        )
    if more_time and promised_pct + limit.core_pct > 100 and not overcommit:
        raise PartitionError(
            f"{limit.core_pct} % of GPU {gpu.index}'s time, but {promised_pct} % are promised to others; "
            "ask for less, or promise more than there is with --overcommit"
        )
