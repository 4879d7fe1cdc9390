"""`berth --host`: the whole command on another machine, through ssh."""

from __future__ import annotations

import os
import shlex
import sys
from typing import NoReturn

from berth.errors import SettingError

REMOTE = 'PATH="$PATH:$HOME/.local/bin" exec berth "$@"'
"""Run by the other machine's shell. A shell that is not interactive may lack the folder of pipx and uv."""


def run_there(host: str, words: list[str]) -> NoReturn:
    """Become ssh, which runs `berth WORDS…` there; a terminal is passed on if all three streams are one.

    Raises SettingError if there is no ssh or the host is no name.
    """
    if host.startswith("-") or not host.rpartition("@")[2] or any(letter.isspace() for letter in host):
        raise SettingError(f"--host '{host}'; expected MACHINE, USER@MACHINE or a Host of ~/.ssh/config")
    if not words:
        raise SettingError(f"--host {host}: no command to run there, such as: berth --host {host} queue")
    terminal = ["-t"] if all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)) else []
    command = shlex.join(["sh", "-c", REMOTE, "berth", *words])
    sys.stdout.flush()
    try:
        os.execvp("ssh", ["ssh", *terminal, "--", host, command])
    except FileNotFoundError as error:
        raise SettingError(
            "--host needs the program ssh, which is not on the PATH; install OpenSSH's client"
        ) from error
