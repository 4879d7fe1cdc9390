"""Who may join a named partition: every user that may write its counters.

Without an owner and a group these are its maker, and the containers that it is mounted into, under whatever user
they run: the counters' file is open to all, in a folder that no other user may enter.
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from berth.errors import PartitionError, SettingError


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
            "whoever makes it names its user or group with --owner or --group"
        )
