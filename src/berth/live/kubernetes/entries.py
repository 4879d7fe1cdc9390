"""What the board knows of each pod, and how it was told to decide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from berth.live.driver.defaults import DEFAULT_KNOWLEDGE, DEFAULT_POLICY
from berth.live.kubernetes import names
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.asks import Ask
from berth.live.kubernetes.constraints import Constraint, bare


@dataclass(frozen=True, slots=True)
class Settings:
    """How a board decides."""

    policy: str = DEFAULT_POLICY
    knowledge: str = DEFAULT_KNOWLEDGE
    scheduler_name: str = names.SCHEDULER_NAME
    compat: str | None = None
    advise: bool = False
    """Whether nothing of what is decided is done: a pod that gives way runs on."""


class State(StrEnum):
    """What has become of a pod."""

    WAITING = "waiting"
    """Queued, or in line with its gang, or its bind failed and is attempted again later."""
    PARKED = "parked"
    """No node could hold it."""
    REFUSED = "refused"
    """It makes no sense, or too many different constraints wait."""
    PLACED = "placed"
    """Decided, not bound."""
    BOUND = "bound"
    FOREIGN = "foreign"
    """Counted only."""
    DONE = "done"


@dataclass(slots=True)
class Entry:
    """A pod that the board knows."""

    uid: str
    namespace: str
    name: str
    ask: Ask | None = None
    state: State = State.WAITING
    node: str = ""
    message: str = ""
    """Why it is refused, or why its bind failed."""
    submit_ms: int = 0
    priority: int = 0
    ending: bool = False
    """Whether it was told to go."""
    others: tuple[tuple[str, int], ...] = ()
    """What it takes of its node that is not CPU, memory or GPUs."""
    tight: bool = False
    """Whether a node that was chosen for it had too little of one of those: from then on it waits with its amounts."""
    failures: int = 0
    """How often its bind failed."""
    placement: str = ""
    """The annotation, as it was decided."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of the pod, by which rules on how pods are to lie count it."""
    pod: api.Pod | None = None
    """As it was when it was bound, to be told again if its node goes and comes."""

    @property
    def constraint(self) -> Constraint:
        """The constraint that it waits with."""
        assert self.ask is not None
        return self.ask.constraint if self.tight else bare(self.ask.constraint)


WAITS = (State.WAITING, State.PARKED, State.REFUSED)


def waiting(entries: Iterable[Entry]) -> list[Entry]:
    """Those that wait for whatever reason, the longest first."""
    found = [each for each in entries if each.state in WAITS]
    return sorted(found, key=lambda each: each.submit_ms)


def is_held(pod: api.Pod) -> bool:
    """Whether a pod is not to be placed yet: by a scheduling gate, or by the annotation `names.HOLD`."""
    return bool(pod.spec.scheduling_gates) or pod.metadata.annotations.get(names.HOLD, "false") != "false"


def version_of(version: str) -> int:
    """The number of a resource version, by which what was made in one second is told apart."""
    return int(version) if version.isdigit() else 0
