"""Limits of users and virtual clusters around any other policy, which sees only jobs within them; and the file that
they are in.

The file is JSON:

    {"format": "berth-limits", "version": 1, "policy": "easy+fair-share+best-fit",
     "limits": [{"scope": "user", "gpus": 8}, {"scope": "virtual-cluster", "name": "normal", "running": 40}]}

Other keys are for people and change nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from berth.cluster import Cluster, Key, Queue
from berth.errors import PolicyError, SettingError, cause_of
from berth.model import Evict, Job, Placement, Resume
from berth.policies.protocol import Decision, InOrder, Policy, Resuming, Setting, draws
from berth.policies.schemes.strict import ShownQueue
from berth.policies.sort_keys import as_queued, key_of

Group = tuple[str, str]
"""A scope and whose."""
MANY: Final = 2**31
AHEAD: Final = 10
"""Jobs of one user that are shown beyond those that may start now, so that gaps find short ones."""


class Limits:
    """Hold back jobs of users at their limit of jobs, GPUs or nodes; another policy decides on the rest.

    It works like Slurm's limits of associations and QOS (MaxJobs, MaxSubmitJobs, MaxTRESPerUser). A job that is held
    back delays no other job. Once its user is within the limits again, it is queued by its submission time. A job
    beyond the limit of submitted jobs is queued when there is room. A job that may spread is held back if the other
    policy would place it on too many nodes. Settings in the name: `limits?user_gpus=8&user_running=20+easy+fifo`,
    with `user_` or `vc_` (each virtual cluster together) before `submitted`, `running`, `gpus` and `nodes`; or
    `limits?file=limits.json`.
    """

    def __init__(self, inner: Policy, limits: Sequence[Limit] = ()) -> None:
        self.inner = inner
        self.limits = {(limit.scope, limit.name): limit for limit in limits}
        self.draws = draws(inner)
        self.resumes = isinstance(inner, Resuming) and inner.resumes
        self._key = key_of(inner.order if isinstance(inner, InOrder) else None) or as_queued
        self._seen: _Seen | None = None

    @classmethod
    def around(cls, rest: str, options: dict[str, str], setting: Setting) -> Limits:
        """Made from the settings in a name and the rest of it; SettingError or PolicyError where they are none."""
        from berth.policies import make_policy

        options = dict(options)
        settings = read_limits(Path(options.pop("file"))) if "file" in options else None
        amounts: dict[str, dict[str, int]] = {"user": {}, "virtual-cluster": {}}
        for key, text in options.items():
            scope, _, what = key.partition("_")
            if scope not in ("user", "vc") or what not in AMOUNTS:
                raise SettingError(
                    f"no setting '{key}' of limits; there are file, and user_ or vc_ with {', '.join(AMOUNTS)}"
                )
            if not text.isdecimal():
                raise SettingError(f"setting '{key}' is '{text}'; expected a whole number, 0 or more")
            amounts["user" if scope == "user" else "virtual-cluster"][what] = int(text)
        limits = {(limit.scope, limit.name): limit for limit in (settings.limits if settings else ())}
        for scope, given in amounts.items():
            if given:
                limits[scope, ""] = replace(limits.get((scope, ""), Limit(scope)), **cast(Any, given))
        inner = rest or (settings.policy if settings else "") or "fifo+first-fit"
        if inner.partition("+")[0].partition("?")[0] == "limits":
            raise PolicyError(f"'limits+{inner}': limits stand around a policy once")
        return cls(make_policy(inner, setting), tuple(limits.values()))

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        """Yield what the other policy decides on the jobs that are within their limits."""
        if not self.limits:
            yield from self.inner(queue, cluster, now_ms)
            return
        seen = self._seen
        if seen is None or seen.queue is not queue or seen.cluster is not cluster:
            seen = self._seen = _Seen(queue, cluster, self.limits, self._key)
        seen.catch_up()
        again = True
        while again and len(seen.shown):
            again = False
            for decision in self.inner(seen.shown, cluster, now_ms):
                if not isinstance(decision, Placement):
                    yield decision
                    if isinstance(decision, Evict | Resume):
                        seen.catch_up()
                elif not seen.holds_back(decision):
                    yield decision
                    # It is let go on, for it may have more to note or to yield, and where others are shown or hidden
                    # now it is asked again when it has ended.
                    again |= seen.started(decision.job)


class _Held(NamedTuple):
    """What one running job holds, and whose it is."""

    groups: tuple[Group, ...]
    milli: int
    nodes: int


class _Seen:
    """One queue and cluster as the limits look at them.

    A user's waiting jobs in one virtual cluster and the same groups are a lane. Of those that its limits leave room
    for, as many are shown as might start now and AHEAD more, the first by the other policy's key. So a thousand
    waiting jobs cost no more than those that may start soon.
    """

    def __init__(self, queue: Queue, cluster: Cluster, limits: dict[Group, Limit], key: Key) -> None:
        self.queue = queue
        self.cluster = cluster
        self.shown = ShownQueue()
        self._limits = limits
        self._key = key
        self._running: dict[str, _Held] = {}
        self._held: dict[Group, list[int]] = {}  # jobs, GPU milli, nodes
        self._groups: dict[Group, set[Any]] = {}  # the lanes that have a job of the group
        self._lanes: dict[Any, dict[str, Job]] = {}  # what of each lane is shown
        self._late: dict[str, float] = {}  # the place of a job that was beyond a limit of submitted jobs
        self._came_late = 0
        self._last_serial = -1
        self._replacements = queue.replacements
        self._openings = self._reopened = -1
        self._changes = -1

    def catch_up(self) -> None:
        """Note which jobs came, ended or left since the last time."""
        stale: set[Any] = set()
        if self._openings != self.cluster.openings:
            running = self.cluster.running
            for job_id in [job_id for job_id in self._running if job_id not in running]:
                held = self._running.pop(job_id)
                self._count(held, -1)
                stale.update(*(self._groups.get(group, ()) for group in held.groups))
            resized = self._reopened != self.cluster.reopened
            for run in running.values():
                before = self._running.get(run.job.id)
                if before is not None and resized and before.milli != run.job.gpus * run.taken.milli:
                    self._count(before, -1)
                    before = None
                if before is None:
                    stale.update(self._start(run.job))
            self._openings, self._reopened = self.cluster.openings, self.cluster.reopened
        if self._changes != self.queue.changes:
            stale |= self._newcomers()
            if self._replacements != self.queue.replacements:
                stale |= self._replaced()
            for lane, shown in self._lanes.items():
                for job in shown.values():
                    if job not in self.queue:
                        stale.update({lane}, *(self._groups.get(group, ()) for group in self._groups_of(job)))
            self._changes = self.queue.changes
        for lane in sorted(stale, key=repr):  # a set has another order in each process
            self._show(lane)

    def _replaced(self) -> set[Any]:
        """Some waiting jobs were replaced: look at all anew; returns the lanes to look at for that."""
        self._replacements = self.queue.replacements
        for shown in self._lanes.values():
            for job in [job for job in shown.values() if job not in self.queue]:
                self.shown.remove(shown.pop(job.id))
        unlimited = self._lanes.setdefault(None, {})
        for _, serial, job in self.queue.lanes(_one_lane, as_queued).get(None, ()):
            groups = self._groups_of(job)
            for group in groups:
                self._groups.setdefault(group, set()).add(_lane(job))
            if not groups and job.id not in unlimited:
                self.shown.put(job, serial)
                unlimited[job.id] = job
        return {*self._lanes, *self.queue.lanes(_lane, self._key)} - {None}

    def _newcomers(self) -> set[Any]:
        """Note the jobs that came since the last time; returns the lanes to look at for that."""
        stale: set[Any] = set()
        everybody = self.queue.lanes(_one_lane, as_queued).get(None, ())
        for _, serial, job in everybody.irange((0, self._last_serial + 1)) if everybody else ():
            self._last_serial = serial
            groups = self._groups_of(job)
            if not groups:
                self.shown.put(job, serial)
                self._lanes.setdefault(None, {})[job.id] = job
                continue
            lane = _lane(job)
            stale.add(lane)
            for group in groups:
                self._groups.setdefault(group, set()).add(lane)
                if self._limits_of(group).submitted is not None:
                    stale |= self._groups[group]
        return stale

    def holds_back(self, placement: Placement) -> bool:
        """Whether a waiting job has come to be beyond a limit since it was shown, or is with this many nodes."""
        job = placement.job
        if job not in self.queue:
            return False  # not the limits' business
        if job not in self.shown:
            return True
        nodes = len({slot.node for slot in placement.slots})
        if nodes <= max(job.nodes, 1):
            return False  # as many as it was shown for
        for group in self._groups_of(job):
            most = self._limits_of(group).nodes
            if most is not None and self._held.get(group, (0, 0, 0))[2] + nodes > most:
                return True
        return False

    def started(self, job: Job) -> bool:
        """A job that was shown has started; returns whether others are not shown any more."""
        self._changes = self.queue.changes
        if job.id not in self.cluster.running:
            return False  # it was refused
        self._late.pop(job.id, None)
        before = self.shown.changes
        lane = _lane(job) if self._groups_of(job) else None
        stale = {lane, *self._start(job)}
        self._lanes[lane].pop(job.id)
        self.shown.remove(job)
        for lane in sorted(stale, key=repr):  # a set has another order in each process
            self._show(lane)
        return self.shown.changes != before + 1

    def _start(self, job: Job) -> set[Any]:
        run = self.cluster.running[job.id]
        nodes = len({part.node for part in run.parts})
        held = _Held(self._groups_of(job), job.gpus * run.taken.milli, nodes)
        self._running[job.id] = held
        self._count(held, 1)
        return set().union(*(self._groups.get(group, ()) for group in held.groups))

    def _count(self, held: _Held, sign: int) -> None:
        for group in held.groups:
            sums = self._held.setdefault(group, [0, 0, 0])
            for at, amount in enumerate((1, held.milli, held.nodes)):
                sums[at] += sign * amount

    def _show(self, lane: Any) -> None:
        """Show of a lane what its limits leave room for, and no others."""
        shown = self._lanes.setdefault(lane, {})
        waiting = self.queue.lanes(_lane, self._key).get(lane, ()) if lane is not None else ()
        wanted: dict[str, Job] = {}
        if waiting:
            groups = self._groups_of(waiting[0][2])
            rooms: dict[tuple[int, int], int] = {}
            most = 0
            for _, serial, job in waiting:
                size = (job.gpus * job.share.milli, job.nodes)
                room = rooms.get(size)
                if room is None:
                    room = rooms[size] = min(self._room(group, job) for group in groups)
                    most = max(most, room)
                if not room:
                    continue
                place = self._place(job, serial)
                if place is not None:
                    wanted[job.id] = job
                    if shown.get(job.id) is not job:
                        if job.id in shown:
                            self.shown.remove(shown[job.id])
                        self.shown.put(job, place)
                        shown[job.id] = job
                    if len(wanted) >= most + AHEAD:
                        break
                elif self._key is as_queued:
                    break  # what comes behind one that is not submitted yet is not either
        elif lane is None:
            wanted = {job_id: job for job_id, job in shown.items() if job in self.queue}
        else:
            for lanes in self._groups.values():
                lanes.discard(lane)
        for job_id in [job_id for job_id in shown if job_id not in wanted]:
            self.shown.remove(shown.pop(job_id))

    def _room(self, group: Group, job: Job) -> int:
        """How many jobs like this one the group may start now."""
        limit, (jobs, milli, nodes) = self._limits_of(group), self._held.get(group, (0, 0, 0))
        room = MANY
        if limit.running is not None:
            room = limit.running - jobs
        if limit.gpus is not None and job.gpus:
            room = min(room, (limit.gpus * 1000 - milli) // (job.gpus * job.share.milli))
        if limit.nodes is not None:
            room = min(room, (limit.nodes - nodes) // max(job.nodes, 1))
        return max(room, 0)

    def _place(self, job: Job, serial: int) -> float | None:
        """The place of a waiting job; None where it is beyond the limit of submitted jobs."""
        late = False
        for group in self._groups_of(job):
            limit = self._limits_of(group)
            if limit.submitted is None:
                continue
            room = limit.submitted - self._held.get(group, (0, 0, 0))[0]
            of = self.queue.lanes(_user if group[0] == "user" else _virtual_cluster, as_queued)[group[1]]
            if of.bisect_left((0, serial)) >= room:
                self._late[job.id] = -1.0
                return None
            late = late or job.id in self._late
        if not late:
            return serial
        if self._late[job.id] < 0:  # it comes in now, behind all that have come so far
            self._came_late += 1
            self._late[job.id] = self._last_serial + self._came_late / MANY
        return self._late[job.id]

    def _groups_of(self, job: Job) -> tuple[Group, ...]:
        of_job = (
            ("user", job.user),
            ("virtual-cluster", job.virtual_cluster),
            *((GROUP, name) for name in job.groups),
        )
        return tuple(group for group in of_job if group in self._limits or (group[0], "") in self._limits)

    def _limits_of(self, group: Group) -> Limit:
        return self._limits.get(group) or self._limits[group[0], ""]


def _lane(job: Job) -> Any:
    return job.user, job.virtual_cluster, job.groups


def _user(job: Job) -> str:
    return job.user


def _virtual_cluster(job: Job) -> str:
    return job.virtual_cluster


def _one_lane(job: Job) -> None:
    return None


GROUP: Final = "group"
SCOPES: Final = ("user", "virtual-cluster", GROUP)
AMOUNTS: Final = ("submitted", "running", "gpus", "nodes")
FORMAT: Final = "berth-limits"
EXAMPLE: Final = f'{{"format": "{FORMAT}", "version": 1, "limits": [{{"scope": "user", "gpus": 8}}]}}'


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that one user, or one virtual cluster or group together, may have at one time; None: no limit."""

    scope: str
    """`user`, `virtual-cluster`, or `group` for those of `Job.groups`, which have no limit of submitted jobs."""
    name: str = ""
    """Whose; empty: each one's that has no limit of his own in this scope."""
    submitted: int | None = None
    """Jobs that wait or run. One beyond it counts as submitted when there is room for it."""
    running: int | None = None
    """Jobs that run."""
    gpus: int | None = None
    """GPUs held, parts counted as parts."""
    nodes: int | None = None
    """Nodes held; two jobs on one node hold two."""

    def __post_init__(self) -> None:
        """SettingError where a value makes no sense."""
        if self.scope not in SCOPES:
            raise SettingError(f"no scope '{self.scope}' of a limit; there are {', '.join(SCOPES)}")
        if self.scope == GROUP and self.submitted is not None:
            raise SettingError("a group has no limit of submitted jobs; give running, gpus or nodes")
        for what in AMOUNTS:
            value = getattr(self, what)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise SettingError(f"a limit of {what} is {value!r}; expected a whole number, 0 or more")


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """What the policy `limits` is told."""

    limits: tuple[Limit, ...] = ()
    policy: str = ""
    """The policy that decides within the limits; empty: what stands behind `limits` in the policy's name."""


def read_limits(path: Path) -> LimitSettings:
    """The settings in a file; SettingError says what of it is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"{path} cannot be read as limits: {cause_of(error)}") from error
    except ValueError as error:
        raise SettingError(f"{path} cannot be read as limits: {error}; expected such as {EXAMPLE}") from error
    if not isinstance(content, dict) or (content.get("format"), content.get("version")) != (FORMAT, 1):
        raise SettingError(f"{path} holds no limits; expected such as {EXAMPLE}")
    listed, policy = content.get("limits", []), content.get("policy", "")
    if not isinstance(listed, list) or not isinstance(policy, str):
        raise SettingError(f"{path}: 'limits' is a list and 'policy' a text")
    limits = []
    for number, each in enumerate(listed):
        if not isinstance(each, dict) or not {"scope"} <= each.keys() <= {"scope", "name", *AMOUNTS}:
            keys = f"'scope', perhaps 'name', and some of {', '.join(AMOUNTS)}"
            raise SettingError(f"{path}, limits[{number}] is {each!r}; expected an object with {keys}")
        limits.append(Limit(**each))
    return LimitSettings(tuple(limits), policy)
