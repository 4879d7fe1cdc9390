"""Gangs: pods that start together or not at all, and how many of each have to be there.

Either the pods' annotations say the size of a gang, or a PodGroup says how many start together at least. A pod that is
lost stops no other: its controller says what becomes of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from berth.errors import AskError
from berth.live.driver.site import SiteGang
from berth.live.kubernetes.objects import PodGroup
from berth.live.kubernetes.pod_requests import MOST_GANG, Gang

Key = tuple[str, str]
TIME_OUT_MS = 60_000
"""How long a gang may be started in part, if its PodGroup says nothing: the default of the scheduler plugins."""


@dataclass(slots=True)
class _Members:
    size: int = 0
    """What the pods' annotations say; 0: nothing."""
    there: dict[str, None] = field(default_factory=dict)
    """Ids of its pods that wait or run."""
    ended: set[str] = field(default_factory=set)
    """Ids of its pods that have completed and are on the cluster still."""


class Gangs:
    def __init__(self) -> None:
        self._members: dict[Key, _Members] = {}
        self._groups: dict[Key, PodGroup] = {}

    def group_changed(self, api_group: str, group: PodGroup, *, gone: bool = False) -> list[str]:
        """A PodGroup of one of the API groups that have them came or changed, or is gone: what waits for it goes on
        waiting, what runs goes on running. Returns the ids of its pods."""
        key = group.metadata.namespace, f"{api_group}/{group.metadata.name}"
        self._groups.pop(key, None)
        if not gone:
            self._groups[key] = group
        return self.pods(key)

    def pods(self, key: Key) -> list[str]:
        """Ids of the pods of a gang that wait or run."""
        members = self._members.get(key)
        return [] if members is None else [*members.there]

    def join(self, gang: Gang, uid: str, *, waits: bool) -> SiteGang | None:
        """A pod of a gang waits, or runs. Returns the gang; None if its size is not given. Raises AskError for a
        pod that waits and says another size than the others, or whose PodGroup is not there."""
        members = self._members.setdefault(gang.key, _Members())
        if waits and not gang.group and members.size != gang.size:
            if set(members.there) - {uid}:
                raise AskError(
                    f"gang '{gang.name}' has size {gang.size} here and {members.size} in its other pods; all pods of a"
                    " gang must state the same size"
                )
            members.size = gang.size
        members.size = members.size or gang.size
        members.there[uid] = None
        least = self._least(gang.key)
        if waits and not least:
            raise AskError(f"{gang.title} is not there")
        return SiteGang("/".join(gang.key), least, whole=True) if least else None

    def leave(self, gang: Gang, uid: str, *, completed: bool = False) -> None:
        members = self._members.setdefault(gang.key, _Members(gang.size))
        members.there.pop(uid, None)
        members.ended.discard(uid)
        if completed:
            members.ended.add(uid)
        if not (members.there or members.ended):
            del self._members[gang.key]

    def completed(self, name: str) -> int:
        """How many pods of a gang have completed; those of an earlier run do not count: all have completed, or
        enough are there without them."""
        namespace, _, rest = name.partition("/")
        members = self._members.get((namespace, rest))
        if members is None or max(len(members.there), len(members.ended)) >= self._least((namespace, rest)):
            return 0
        return len(members.ended)

    def is_whole(self, key: Key, bound: int) -> bool:
        """Whether this number of bound pods, with those that have completed, is enough."""
        return bound + self.completed("/".join(key)) >= self._least(key)

    def time_out_ms(self, key: Key) -> int:
        """How long a gang may be started in part."""
        group = self._groups.get(key)
        said_s = group.spec.schedule_timeout_seconds if group is not None else None
        return said_s * 1000 if said_s and said_s > 0 else TIME_OUT_MS

    def _least(self, key: Key) -> int:
        """How many of its pods start together; 0: its PodGroup is not there, which says so."""
        members, group = self._members.get(key), self._groups.get(key)
        if members is not None and members.size:
            return members.size
        if group is None:
            return 0
        policy = group.spec.scheduling_policy
        gang = policy.gang if policy is not None else None
        return min(MOST_GANG, max(1, (gang.min_count if gang is not None else group.spec.min_member) or 1))
