"""What the board knows of each pod, and how it was told to decide."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from berth.live.kubernetes import names
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.asks import Ask

__all__ = ["Entry", "Settings", "version_of", "waiting"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How a board decides."""

    policy: str = "fifo+best-fit"
    knowledge: str = "user"
    scheduler_name: str = names.SCHEDULER_NAME
    compat: str | None = None
    gang_ms: int = 60_000
    """How long a gang holds places before it is whole; then it gives them back, and others go first."""


@dataclass(slots=True)
class Entry:
    """A pod that the board knows."""

    uid: str
    namespace: str
    name: str
    ask: Ask | None = None
    state: str = "waiting"
    """`waiting`: queued, or in line with its gang; `parked`: no node could hold it; `refused`: it makes no sense, or
    too many different constraints wait; `placed`: decided, not bound; `bound`; `foreign`: counted only; `done`."""
    node: str = ""
    message: str = ""
    """Why it is refused."""
    submit_ms: int = 0
    priority: int = 0
    ending: bool = False
    """Whether it was told to go."""
    others: tuple[tuple[str, int], ...] = ()
    """What it takes of its node that is not CPU, memory or GPUs."""
    placement: str = ""
    """The annotation, as it was decided."""
    pod: api.Pod | None = None
    """As it was when it was bound, to be told again if its node goes and comes."""


def waiting(entries: Iterable[Entry]) -> list[Entry]:
    """Those that wait for whatever reason, the longest first."""
    found = [each for each in entries if each.state in ("waiting", "parked", "refused")]
    return sorted(found, key=lambda each: each.submit_ms)


def version_of(version: str) -> int:
    """The number of a resource version, by which what was made in one second is told apart."""
    return int(version) if version.isdigit() else 0
