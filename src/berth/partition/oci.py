"""An OCI runtime hook: the library, the limits and the region, mounted into a container while it is made.

For runtimes that do not read CDI specifications. The hook runs at `createContainer`: inside the container's mount
namespace, before its root becomes the root. The container asks for its partition by an annotation or a variable. The
library finds its region where it always looks, so that no variable has to be set. If the driver keeps the partition's
limit, the hook sets it on the container's cgroup, which it is in itself, and at `poststop` has it swept.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from berth.errors import PartitionError
from berth.partition.regions import Partition, mounts

ANNOTATION = "dev.berth/partition"
VARIABLE = "BERTH_PARTITION"
STAGES = ["createContainer", "poststop"]

_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND = 1, 2, 4, 8, 32, 4096  # mount(2)


def definition(hook: Mapping[str, Any]) -> dict[str, Any]:
    """The hooks.d file of Podman and CRI-O: which program to run, for which containers, and when."""
    return {
        "version": "1.0.0",
        "hook": hook,
        "when": {"annotations": {f"^{ANNOTATION.replace('.', '[.]')}$": ".+"}},
        "stages": STAGES,
    }


def partition_asked(state: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """The partition that a container asks for, by its annotation or its variable; None where it asks for none."""
    for said in (state.get("annotations"), config.get("annotations")):
        if said and ANNOTATION in said:
            return str(said[ANNOTATION])
    for word in (config.get("process") or {}).get("env") or ():
        name, _, value = str(word).partition("=")
        if name == VARIABLE and value:
            return value
    return None


def has_ended(text: str) -> bool:
    """Whether a runtime hands this state to a hook because its container has ended."""
    with suppress(ValueError, AttributeError):
        return bool(json.loads(text).get("status") == "stopped")
    return False


def read_container(text: str) -> tuple[dict[str, Any], dict[str, Any], Path]:
    """The state that a runtime hands to a hook, the container's configuration and its root folder."""
    try:
        state = dict(json.loads(text))
        bundle = Path(state["bundle"])
        config = dict(json.loads((bundle / "config.json").read_text()))
        return state, config, bundle / config["root"]["path"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise PartitionError(
            f"not the state of a container that is being made ({error}); an OCI runtime calls this as its hook"
        ) from error


def inject(root: Path, parts: Sequence[Partition], library: Path) -> None:
    """Mount a partition into the container whose root folder is `root`; in the container's mount namespace."""
    if any(part.hardware is not None and part.hardware.can.needs_variables for part in parts):
        raise PartitionError(
            f"the partition '{parts[0].name}' is one of MPS, whose clients need variables that a hook cannot set; "
            "give it to the container by its CDI name"
        )
    for file, inside, writable in mounts(parts, library):
        _bind(file, root, inside, writable)


def _bind(source: Path, root: Path, inside: str, writable: bool) -> None:
    place = _open_inside(root, inside)
    try:
        _mount(str(source), f"/proc/self/fd/{place}", _BIND)
    finally:
        os.close(place)
    flags = _BIND | _REMOUNT | _NOSUID | _NODEV | (0 if writable else _RDONLY)
    if os.statvfs(source).f_flag & os.ST_NOEXEC:
        flags |= _NOEXEC  # a user namespace may not take it off
    mounted = _open_inside(root, inside)
    try:
        _mount(None, f"/proc/self/fd/{mounted}", flags)
    finally:
        os.close(mounted)


def _open_inside(root: Path, inside: str) -> int:
    """A descriptor of a file below `root`, made where it is missing. An image's symbolic links are not followed: the
    host's files are still within their reach."""
    *folders, name = inside.strip("/").split("/")
    at = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            with suppress(FileExistsError):
                os.mkdir(folder, 0o755, dir_fd=at)
            below = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
        with suppress(FileExistsError):
            made = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(name, made, 0o644, dir_fd=at))
        found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        if not os.path.isfile(f"/proc/self/fd/{found}"):
            os.close(found)
            raise PartitionError(
                f"{inside} of the image is a symbolic link or no file; "
                "berth mounts a file there, so take it out of the image"
            )
        return found
    except OSError as error:
        raise PartitionError(
            f"{inside} cannot be made in the container ({error.strerror}); an image whose folders on the way are "
            "symbolic links is refused"
        ) from error
    finally:
        os.close(at)


def _mount(source: str | None, target: str, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mount.argtypes = [
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_ulong,
        ctypes.c_void_p,
    ]
    where = None if source is None else source.encode()
    if libc.mount(where, target.encode(), None, flags, None) != 0:
        said = os.strerror(ctypes.get_errno())
        raise PartitionError(
            f"{source or target} cannot be mounted into the container ({said}); the hook belongs to the stage "
            "createContainer, where it may mount"
        )
