"""The right to place, noted where each berth of the cluster sees it: in the comments of the nodes it places on.

A file's lock holds on one machine and for one state folder. Slurm has no lock to lend, but it keeps a comment for each
node, which berth reads with the nodes anyway:

    disk replaced in May [berth places: head1:/var/lib/berth/slurm until 1795374000]

The berth that wrote its note last has the right, until the time in the note (seconds since 1970); what the site has
written stays. A berth reads the comments again a moment after it has written them, and with each query of the nodes.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Sequence, Set
from pathlib import Path
from typing import IO
from urllib.parse import quote

from berth.errors import LiveError
from berth.live.slurm.controller import Controller
from berth.live.slurm.nodes import SlurmNode

SETTLE_S = 1.0
"""Between writing the comments and reading them again: another berth that has begun at the same time has written by
then."""
_MARK = re.compile(r" ?\[berth places: (\S+) until (\d+)\]")


class ClaimLostError(LiveError):
    """Another berth has the right to place."""


def lock(state: Path) -> IO[str]:
    """The right to write this folder, until the file is closed. LiveError if another berth of this machine has it, or
    there can be no such folder."""
    try:
        state.mkdir(parents=True, exist_ok=True)
        file = open(state / "lock", "a", encoding="ascii")  # noqa: SIM115
    except OSError as error:
        raise LiveError(
            f"{state} cannot be written ({error.strerror}); name another folder with --state"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise LiveError(f"another berth runs with the state {state}; stop it first") from error
    return file


def close_to_others(state: Path) -> None:
    """Let only this user and group read the logs, old and new: Slurm hides the jobs of others, too."""
    os.umask(os.umask(0o077) | 0o027)
    for path in state.glob("*.jsonl*"):
        path.chmod(path.stat().st_mode & ~0o027)


def claimant(node: SlurmNode) -> tuple[str, int] | None:
    """The berth that a node's comment names, and when its right ends, s since 1970; None: it names none."""
    found = _MARK.search(node.comment)
    return None if found is None else (found[1], int(found[2]))


def owner_of(state: Path) -> str:
    """The name of the berth of this machine that has this state folder."""
    return f"{socket.gethostname()}:{quote(str(state.resolve()))}"


class Claim:
    """One berth's right to place on the nodes of some partitions."""

    def __init__(
        self,
        controller: Controller,
        owner: str,
        partitions: Set[str],
        lasts_s: float,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """On the nodes of these partitions; of none: on all nodes. A claim that is not renewed ends after `lasts_s`."""
        self._controller, self._owner, self._lasts_s = controller, owner, lasts_s
        self._partitions = partitions
        self._clock, self._sleep = clock, sleep
        self._until_s = 0.0

    def take(self) -> None:
        """Take the right to place. ClaimLostError if another berth has it, LiveError if Slurm refuses it."""
        nodes = self._controller.nodes()
        self._check_others(nodes)
        self._write(nodes)
        self._sleep(SETTLE_S)
        nodes = self._controller.nodes()
        try:
            self._check_others(nodes)
        except ClaimLostError:
            self.drop(nodes)
            raise

    def _check_others(self, nodes: Iterable[SlurmNode]) -> None:
        now_s = self._clock()
        for owner, until_s in filter(None, map(claimant, self._ours(nodes))):
            if owner != self._owner and until_s > now_s:
                raise ClaimLostError(
                    f"another berth places on these nodes, {owner}; stop it, or wait"
                    f" {until_s - now_s:.0f} s if it is gone"
                )

    @property
    def due(self) -> bool:
        """Whether it is to be renewed."""
        return self._until_s - self._clock() < self._lasts_s / 2

    def check(self, nodes: Sequence[SlurmNode]) -> None:
        """Renew the claim; ClaimLostError if another berth has taken it since."""
        self._check_others(nodes)
        if self.due or any(claimant(each) is None for each in self._ours(nodes)):
            self._write(nodes)

    def drop(self, nodes: Sequence[SlurmNode] | None = None) -> None:
        """Give the right back on the nodes where this berth still has it."""
        self._until_s = 0.0
        mine = [
            each for each in nodes or self._controller.nodes() if (claimant(each) or [""])[0] == self._owner
        ]
        self._note(mine, "")

    def _write(self, nodes: Iterable[SlurmNode]) -> None:
        until_s = int(self._clock() + self._lasts_s)
        self._note(self._ours(nodes), f"[berth places: {self._owner} until {until_s}]")
        self._until_s = until_s

    def _note(self, nodes: Iterable[SlurmNode], mark: str) -> None:
        """Write a mark behind what the site has noted of its nodes."""
        names: dict[str, list[str]] = {}
        for node in nodes:
            names.setdefault(_MARK.sub("", node.comment), []).append(node.name)
        for text, those in names.items():
            self._controller.comment_nodes(those, f"{text} {mark}".strip())

    def _ours(self, nodes: Iterable[SlurmNode]) -> list[SlurmNode]:
        return [each for each in nodes if not self._partitions or self._partitions & set(each.partitions)]
