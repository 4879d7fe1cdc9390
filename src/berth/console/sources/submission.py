"""A job that a viewer submits to this machine's queue: `berth submit`, run as that user of the machine."""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
from shlex import quote

from berth.console.roles import Role, Viewer
from berth.errors import AccessError, LiveError, SettingError

PATIENCE_S = 60.0
OPTIONS = ("gpus", "mem", "time", "name")
"""Options of `berth submit` that the form has, besides the folder."""
_FOLDER = 'cd "$1" 2> /dev/null || exit 96; shift; exec "$@"'
"""Enter the folder with the user's own rights."""
_PLAIN = re.compile(r"(?!\S*=)[\w@%+=:,./ -]+", re.ASCII)
"""A line of words in which a shell would change nothing."""
_NO_FOLDER = 96
"""Exit status if the folder cannot be entered; `berth submit` has no such status."""


def submit_command(asked: dict[str, str]) -> str:
    """The command line that does the same."""
    folder = f"cd {quote(asked['folder'])} && " if asked.get("folder") else ""
    return f"{folder}berth submit {' '.join(map(quote, _words(asked)))}"


def submitted(asked: dict[str, str], viewer: Viewer, socket: str) -> str:
    """Queue a job of the viewer at the queue of a socket; its id.

    The kernel holds the job to the user's own rights, because the command runs as the user. Raises AccessError where
    the console cannot act for the viewer, SettingError if the job is refused.
    """
    user = _account(viewer)
    environment = {
        "BERTH_SOCKET": socket,
        "HOME": user.pw_dir,
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "LOGNAME": user.pw_name,
        "PATH": os.environ.get("PATH", os.defpath),
        "SHELL": user.pw_shell,
        "USER": user.pw_name,
    }
    berth = [sys.executable, "-P", "-c", "from berth.cli import main; main()", "submit", "--json"]
    folder = os.path.join(user.pw_dir, asked.get("folder", ""))
    other = user.pw_uid != os.geteuid()
    try:
        done = subprocess.run(
            ["sh", "-c", _FOLDER, "sh", folder, *berth, *_words(asked)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            cwd="/",
            env=environment,
            timeout=PATIENCE_S,
            check=False,
            user=user.pw_uid if other else None,
            group=user.pw_gid if other else None,
            extra_groups=os.getgrouplist(user.pw_name, user.pw_gid) if other else None,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LiveError(f"berth submit cannot be run as {user.pw_name}: {error}") from error
    if done.returncode == _NO_FOLDER:
        raise SettingError(
            f"{user.pw_name} cannot enter the folder {folder}; expected one that exists, with rights to enter it"
        )
    if done.returncode:
        message = done.stderr.strip().removeprefix("berth: ")
        raise SettingError(message or f"berth submit ended with status {done.returncode}")
    return str(json.loads(done.stdout)["ids"][0])


def _words(asked: dict[str, str]) -> list[str]:
    words = [word for name in OPTIONS if asked.get(name) for word in (f"--{name}", asked[name])]
    line = asked["command"]
    return [*words, "--", *(line.split() if _PLAIN.fullmatch(line) else [line])]


def _account(viewer: Viewer) -> pwd.struct_passwd:
    """The user of this machine that the viewer is."""
    try:
        user = pwd.getpwnam(viewer.user)
    except KeyError:
        raise AccessError(
            f"{viewer.user} is no user of this machine, so that no job can run as them"
        ) from None
    if user.pw_uid == 0 and viewer.role is not Role.OPERATOR:
        raise AccessError("jobs of root need the role operator")
    if os.geteuid() not in (0, user.pw_uid):
        own = pwd.getpwuid(os.geteuid()).pw_name
        raise AccessError(f"this console runs as {own} and submits only jobs of {own}, not of {viewer.user}")
    return user
