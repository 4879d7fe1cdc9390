"""Named partitions are made, resized and taken away; no more of a GPU is promised than it has, unless asked for."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from berth.errors import NoRoomError, PartitionError, SettingError
from berth.partition.gpus import Gpu, plain_uuid
from berth.partition.hardware import Hardware, hardware_in, keep, start_daemon, stop_daemon
from berth.partition.library import make_region, resize_region
from berth.partition.mig import create_instance, destroy_instance
from berth.partition.native import limits_lock, make_group, release, resize_groups, sweep, why_not
from berth.partition.regions import (
    MAKERS,
    Access,
    Limit,
    Partition,
    Unreadable,
    check_owner,
    check_there,
    find,
    grant,
    locked,
    no_link,
    own_root,
    partitions,
    preload_list,
    read,
    regions_in,
    regions_of,
    root_folder,
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def create(
    name: str,
    gpu: Gpu,
    limit: Limit,
    *,
    by: Literal["libberth", "mps", "native"] | None = "libberth",
    access: Access = MAKERS,
    overcommit: bool = False,
    driver_folder: Path | None = None,
    root: Path | None = None,
) -> Partition:
    """Make a partition of a GPU; one of a name that exists is refused, and so is more than the card has.

    `by` says what keeps the limit. MPS keeps `limit.core_pct` as a part of the GPU's multiprocessors, and the memory of
    each process; libberth keeps that of all together. `native`: the driver keeps the memory for a cgroup (native.py).
    None: what its other GPUs have; native for its first, if root asks for itself, without `overcommit`, and the machine
    can; else libberth.
    A partition by MPS has one GPU. All GPUs are open to the same users: those of `access`, if this is the first.
    """
    root = root or root_folder()
    if by is None:
        there = regions_in(root / name)
        native = (
            any(hardware_in(root / name, uuid) for uuid in there)
            if there
            else not overcommit and not access.open_to_named and not why_not(gpu.uuid, driver_folder)
        )
        by = "native" if native else "libberth"
    _check_new(name, gpu, root, by)
    others = [] if overcommit else partitions(root, gpu=plain_uuid(gpu.uuid))
    _check_room(gpu, limit, others, overcommit)
    if by == "libberth":
        return _make(name, gpu.uuid, limit, access, root)
    kept = Hardware(by, gpu.uuid, gpu.uuid, limit.mem_mib, core_pct=limit.core_pct)
    if by == "mps":
        root.mkdir(mode=0o755, parents=True, exist_ok=True)
        kept = replace(kept, pipe=str(start_daemon(root, gpu.uuid)))
        return _make_kept(name, Limit(limit.mem_mib), kept, access, driver_folder, root)
    sweep(root, driver_folder)
    with limits_lock(root):
        group = str(make_group(root, name, gpu.uuid, limit.mem_mib << 20, driver_folder))
        kept = replace(kept, group=group, groups=(group,))
        return _make_kept(name, limit, kept, access, driver_folder, root)


def create_mig(
    name: str,
    gpu: Gpu,
    profile: str,
    *,
    access: Access = MAKERS,
    driver_folder: Path | None = None,
    root: Path | None = None,
) -> Partition:
    """Make a partition that is an instance of MIG, of a profile such as `2g.10gb`, which has one GPU."""
    root = root or root_folder()
    _check_new(name, gpu, root, "mig")
    kept = create_instance(gpu, profile, driver_folder)
    return _make_kept(name, Limit(kept.mem_mib), kept, access, driver_folder, root)


def _make_kept(
    name: str, limit: Limit, kept: Hardware, access: Access, driver_folder: Path | None, root: Path
) -> Partition:
    """The region of what the hardware keeps, which goes again where that cannot be made."""
    limit = replace(limit, witness=kept.can.memory and not kept.can.needs_entry)
    try:
        return _make(name, kept.uuid, limit, access, root, kept)
    except BaseException:
        _clear(root / name, plain_uuid(kept.uuid))
        _release([kept], root, driver_folder)
        raise


def _check_new(name: str, gpu: Gpu, root: Path, by: str) -> None:
    if not _NAME.fullmatch(name):
        raise SettingError(
            f"'{name}' is not a name for a partition; write at most 63 letters, digits, '_', '.' and '-', with a "
            "letter or digit first"
        )
    if root.exists():
        check_owner(root)
    there = regions_in(root / name)
    if plain_uuid(gpu.uuid) in there:
        raise PartitionError(
            f"there is a partition '{name}' of GPU {gpu.index} already; "
            "resize or remove it, or take another name"
        )
    kinds = {kept.kind if (kept := hardware_in(root / name, uuid)) else "libberth" for uuid in there}
    if there and (kinds != {by} or by not in ("libberth", "native")):
        raise PartitionError(
            f"there is a partition '{name}' already; one of MIG or MPS has one GPU, and all GPUs of another have "
            "limits of one kind; take another name"
        )


def _make(
    name: str, gpu_uuid: str, limit: Limit, access: Access, root: Path, kept: Hardware | None = None
) -> Partition:
    """The region of a partition, and the note of what keeps it besides."""
    uuid, folder = plain_uuid(gpu_uuid), root / name
    try:
        own_root(root)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            check_owner(folder)
            access = _same_access(folder, access)
        preload_list(folder)  # now: a container may be started by a user that may not write here
        if kept is not None:
            keep(folder, uuid, kept)
    except OSError as error:
        _clear(folder, uuid)
        raise PartitionError(
            f"{folder} cannot be made ({error.strerror}); name another root with BERTH_ROOT"
        ) from error
    try:
        make_region(folder, uuid, name, limit.mem_mib << 20, limit.core_pct, limit.flags)
        grant(folder, uuid, access)
    except PartitionError:
        _clear(folder, uuid)
        raise
    return read(folder, uuid, name)


def _clear(folder: Path, uuid: str) -> None:
    """Remove what was made of a region; the folder with its list too, unless another region is in it."""
    with contextlib.suppress(OSError):
        for kind in ("limit", "use", "hardware"):
            (folder / f"{uuid}.{kind}").unlink(missing_ok=True)
        (folder / f".{uuid}.hardware").unlink(missing_ok=True)
        if not any(folder.glob("*.use")):
            (folder / "ld.so.preload").unlink(missing_ok=True)
            folder.rmdir()  # keeps a folder with anything else in it


def _release(kept: list[Hardware], root: Path, driver_folder: Path | None = None) -> None:
    """Give back what partitions had of the hardware; a daemon of MPS ends with its last one."""
    for one in kept:
        if one.group:
            release(one, driver_folder)
        elif not one.pipe:
            destroy_instance(one.gpu, one.gpu_instance, one.compute_instance, driver_folder)
        elif all(other.hardware is None or other.hardware.pipe != one.pipe for other in partitions(root)):
            stop_daemon(root, one.gpu)


def _same_access(folder: Path, access: Access) -> Access:
    """The access that the partition's other GPUs have, if it has any."""
    for use in folder.glob("*.use"):
        there = no_link(use)
        mode = there.st_mode & 0o777
        held = Access(
            None if mode == 0o666 else there.st_uid,
            there.st_gid if mode == 0o660 else None,
        )
        if access.open_to_named and access != held:
            raise PartitionError(
                f"the partition '{folder.name}' has GPUs that are open to user {held.uid}, group {held.gid}; "
                "name the same with --owner and --group, or neither"
            )
        return held
    return access


def resize(
    name: str,
    *,
    mem_mib: int | None = None,
    core_pct: int | None = None,
    burst: bool | None = None,
    priority: str | None = None,
    gpus: list[Gpu] | None = None,
    overcommit: bool = False,
    driver_folder: Path | None = None,
    root: Path | None = None,
) -> list[Partition]:
    """Change limits of a partition in use, on each of its GPUs; what is not given stays as it is there.

    A smaller limit refuses new allocations and ends nothing. What no GPU of it has room for changes none.
    Of two changes at once the second waits for the first, so that neither undoes the other.
    """
    check_there(name, root)
    folder = (root or root_folder()) / name
    _check_writable(folder)
    cards = {plain_uuid(gpu.uuid): gpu for gpu in gpus or ()}
    with _still_there(folder), locked(folder):
        given = {"mem_mib": mem_mib, "core_pct": core_pct, "burst": burst, "priority": priority}
        changes = [(part, _changed(part, given)) for part in find(name, root)]
        others = [part for part in partitions(root) if part.name != name]
        for part, limit in changes:
            if part.hardware is not None and not part.hardware.can.resizable:
                raise PartitionError(
                    f"the partition '{name}' is one of {part.hardware.text}, which has its size for good; "
                    "remove it and make another"
                )
            if part.uuid in cards:
                _check_room(cards[part.uuid], limit, others, overcommit, held=part)
        with limits_lock(root) if any(part.hardware for part, _ in changes) else nullcontext():
            for part, limit in changes:
                new = limit if part.hardware is None else resize_groups(part, limit, driver_folder)
                resize_region(part.folder, part.uuid, new.mem_mib << 20, new.core_pct, new.flags)
        return find(name, root)


def _changed(part: Partition, given: Mapping[str, Any]) -> Limit:
    """The limit of a partition where what is given is another."""
    now = {"mem_mib": part.limit_bytes >> 20} | {
        name: getattr(part, name) for name in given if name != "mem_mib"
    }
    return Limit(**now | {name: value for name, value in given.items() if value is not None})


def remove(
    name: str,
    *,
    force: bool = False,
    unfinished: bool = False,
    driver_folder: Path | None = None,
    root: Path | None = None,
) -> None:
    """Take a partition away; one in use is kept unless forced, and its processes keep their limits.

    An instance of MIG goes first: where the driver does not give it up, the partition stays. With `unfinished`, for
    names that only the caller gives, a folder whose maker was killed before it had a region goes too.
    """
    root = root or root_folder()
    folder = root / name
    if not (unfinished and name and "/" not in name and not name.startswith(".") and folder.is_dir()):
        check_there(name, root)
    _check_writable(folder)
    if not force:
        _check_idle(name, root)
    kept: list[Hardware] = []
    for uuid in regions_in(folder):
        with contextlib.suppress(
            *(PartitionError,) if force else ()
        ):  # what a damaged note kept is not known
            kept += filter(None, [hardware_in(folder, uuid)])
    with limits_lock(root) if any(one.group for one in kept) else nullcontext():
        _release([one for one in kept if not one.pipe], root, driver_folder)
        try:
            with _still_there(folder):
                shutil.rmtree(folder)
        except OSError as error:
            raise PartitionError(
                f"the partition '{name}' cannot be removed ({error.strerror}: {error.filename}); its maker may"
            ) from error
    _release([one for one in kept if one.pipe], root)


@contextmanager
def _still_there(folder: Path) -> Iterator[None]:
    """Name a partition that another process has removed, in a PartitionError."""
    try:
        yield
    except (FileNotFoundError, PartitionError) as error:
        if folder.exists():
            raise
        raise PartitionError(f"the partition '{folder.name}' was removed meanwhile") from error


def _check_writable(folder: Path) -> None:
    with _still_there(folder):
        flags = os.statvfs(folder).f_flag
    if flags & os.ST_RDONLY:
        raise PartitionError(
            f"the partition '{folder.name}' cannot be changed: {folder} is on a file system that is read-only here; "
            "mount it writable"
        )


def _check_idle(name: str, root: Path | None) -> None:
    busy = set()
    for region in regions_of(name, root):
        if isinstance(region, Unreadable):
            raise PartitionError(
                f"it cannot be told whether processes use the partition '{name}'; end them, and remove it with "
                f"--force (why: {region.why})"
            )
        busy |= {(process.pid_namespace, process.pid) for process in region.processes}
    if busy:
        some = "1 process uses" if len(busy) == 1 else f"{len(busy)} processes use"
        raise PartitionError(f"{some} the partition '{name}'; end them first, or remove it with --force")


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
    here = [partition for partition in existing if partition.uuid == plain_uuid(gpu.uuid)]
    promised_mib = sum(partition.limit_bytes for partition in here) >> 20
    promised_pct = sum(
        partition.core_pct if partition.hardware is None else partition.hardware.core_pct
        for partition in here
    )
    if more_mem and promised_mib + limit.mem_mib > gpu.mem_mib and not overcommit:
        left = max(gpu.mem_mib - promised_mib, 0)
        raise NoRoomError(
            f"{limit.mem_mib} MiB of GPU {gpu.index}, but only {left} of its {gpu.mem_mib} MiB are not promised to"
            " others"
        )
    if more_time and promised_pct + limit.core_pct > 100 and not overcommit:
        raise NoRoomError(
            f"{limit.core_pct} % of GPU {gpu.index}'s time, but {promised_pct} % are promised to others"
        )
