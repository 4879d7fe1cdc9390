"""Named partitions are made, resized and taken away; no more of a GPU is promised than it has, unless asked for."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from berth.errors import PartitionError, SettingError
from berth.partition.gpus import Gpu
from berth.partition.library import make_region, resize_region
from berth.partition.regions import (
    Limit,
    Partition,
    Unreadable,
    check_there,
    find,
    partitions,
    preload_list,
    read,
    regions_in,
    regions_of,
    root_folder,
)

__all__ = ["create", "remove", "resize"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


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
    priority: str | None = None,
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
                partition.priority if priority is None else priority,
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
    check_there(name, root)
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
    for region in regions_of(name, root):
        if isinstance(region, Unreadable):
            raise PartitionError(
                f"it cannot be told whether processes use the partition '{name}': {region.why}; "
                "end them, and remove it with --force"
            )
        busy |= {(process.pid_namespace, process.pid) for process in region.processes}
    if busy:
        some = "1 process uses" if len(busy) == 1 else f"{len(busy)} processes use"
        raise PartitionError(f"{some} the partition '{name}'; end them first, or remove it with --force")


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
