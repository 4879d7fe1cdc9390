"""The folder of one run: its region, its log and its fake card, swept by a later command if the run was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from berth.errors import PartitionError
from berth.partition.library import describe

_PREFIX, _DRAFT = "berth-run-", ".berth-new-"
_ROOM_MIB = 4
"""What a run's region, log and fake card may need: 220 KiB a GPU, 8 KiB a process on the fake card."""


def _places() -> list[Path]:
    places = [Path("/dev/shm")]
    with contextlib.suppress(FileNotFoundError):  # no temporary folder can be written
        places.append(Path(tempfile.gettempdir()))
    return list(dict.fromkeys(places))


@contextmanager
def run_folder() -> Iterator[Path]:
    """A folder for one run, which is removed after it.

    The lock on it lives as long as this process: a folder without one was left by a run that was killed. The name
    that `sweep` looks for is given after the lock is held.
    """
    draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=_folder_with_room()))
    descriptor = os.open(draft, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(
            OSError
        ):  # no locks there: `sweep` can have none either, and leaves it alone
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        folder = draft.rename(draft.with_name(_PREFIX + draft.name.removeprefix(_DRAFT)))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def _folder_with_room() -> Path:
    """Where the region of a run is made: in memory if there is room, else among the temporary files."""
    for folder in _places():
        if os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= _ROOM_MIB << 20:
            return folder
    places = " and in ".join(str(folder) for folder in _places())
    if not any(os.access(folder, os.W_OK) for folder in _places()):
        raise PartitionError(
            f"the limits cannot be kept: nothing can be written in {places} (read-only, or another user's); "
            "name another folder with TMPDIR"
        )
    raise PartitionError(
        f"there are not {_ROOM_MIB} MiB left for the limits to be kept in, in {places}; "
        "free some there, or name another folder with TMPDIR"
    )


def sweep() -> None:
    """Remove the folders of this user's runs that were killed, except where a program of theirs still runs."""
    for place in _places():
        with contextlib.suppress(OSError):
            for entry in os.scandir(place):
                if entry.name.startswith(_PREFIX):
                    _sweep(Path(entry.path))


def _sweep(folder: Path) -> None:
    there = folder.lstat()
    if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.geteuid():
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_used(folder):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def _is_used(folder: Path) -> bool:
    """Whether a process counts in the folder's region, or would: its environment names it."""
    region = folder / "region"
    for limit in region.glob("*.limit"):
        with contextlib.suppress(PartitionError):  # a damaged region has no process that can be told
            if describe(region, limit.stem)["processes"]:
                return True
    named = b"BERTH_REGION=" + os.fsencode(region) + b"\0"
    for process in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if named in process.read_bytes():
                return True
    return False
