"""Plays an episode of the environment again in the simulator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from berth.cluster import Cluster, Queue
from berth.engine import simulate
from berth.interference import Speeds
from berth.interference.profiled import ProfiledInterference
from berth.learning.environment import Environment, Settings, State
from berth.learning.jobsets import JobSets, make_task
from berth.model import EventKind, GpuModel, GpuSlot, Job, Node, Placement, Profile, Reason, Share, WakeAt
from berth.policies import Decision
from berth.profiles import THESIS_GPU

WHOLE = np.array([1000, THESIS_GPU.mem_mib, 1000, 1000])


def profiles_of(usages: Sequence[np.ndarray], intervals_ms: Sequence[int]) -> dict[str, Profile]:
    """Profiles on the thesis's card whose series are these whole numbers."""
    return {
        f"a{at}": Profile(f"a{at}", "", 0, "", THESIS_GPU, interval_ms, usage / WHOLE)
        for at, (usage, interval_ms) in enumerate(zip(usages, intervals_ms, strict=True))
    }


def environment_of(
    profiles: dict[str, Profile], speeds: Speeds, settings: Settings, step_ms: int, gpu: GpuModel = THESIS_GPU
) -> Environment:
    """The environment of these applications."""
    return Environment(make_task(profiles, gpu, horizon=8, step_ms=step_ms), speeds, settings=settings)


@dataclass(frozen=True)
class Group:
    """Jobs that were started together, after so many had run out of memory."""

    time_ms: int
    failures: int
    jobs: tuple[int, ...]


def random_episode(environment: Environment, steps: int):
    """A function of a set of jobs and a key: random starts, also of what the mask forbids; every step's record."""

    def choose(state: State, key: jax.Array):
        places = environment.settings.places - jnp.sum(state.tenant >= 0)
        small = jnp.sum(environment.members, axis=-1) <= places
        allowed = environment.startable(state) & small
        action = jnp.argmax(jnp.where(allowed, jax.random.uniform(key, allowed.shape), -1.0))
        hold = jax.random.bernoulli(jax.random.fold_in(key, 1), 0.6)
        action = jnp.where(hold, 0, action)
        after, reward = environment.step(state, action, allowed)
        member = environment.members[action] & (action > 0)
        started = jnp.where(member, state.slot, -1)
        return after, (state.now_ms, jnp.sum(state.failures), started, reward)

    @jax.jit
    def episode(jobs: JobSets, key: jax.Array):
        return jax.lax.scan(choose, environment.reset(jobs), jax.random.split(key, steps))

    return episode


def groups_of(record) -> list[Group]:
    """What was started when."""
    now_ms, failures, started, _ = (np.asarray(part) for part in record)
    found: list[Group] = []
    for time_ms, failed, jobs in zip(now_ms.tolist(), failures.tolist(), started.tolist(), strict=True):
        jobs = tuple(job for job in jobs if job >= 0)
        if not jobs:
            continue
        if found and (found[-1].time_ms, found[-1].failures) == (time_ms, failed):
            found[-1] = Group(time_ms, failed, found[-1].jobs + jobs)
        else:
            found.append(Group(time_ms, failed, jobs))
    return found


@dataclass
class Replay:
    """A policy that starts what was started, when it was."""

    groups: list[Group]
    failures: int = 0
    at: int = 0
    share: Share = field(default_factory=Share)

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        if self.at == len(self.groups):
            return
        group = self.groups[self.at]
        if group.time_ms > now_ms:
            yield WakeAt(group.time_ms)
        elif group.failures == self.failures:
            self.at += 1
            waiting = {int(job.id): job for job in queue}
            for job in group.jobs:
                yield Placement(waiting[job], (GpuSlot(0, 0),), self.share)
            if self.at < len(self.groups) and self.groups[self.at].time_ms > now_ms:
                yield WakeAt(self.groups[self.at].time_ms)


def replayed(environment: Environment, profiles, speeds: Speeds, jobs: JobSets, groups: list[Group]):
    """The last start, the end and the failures of each job in the simulator: three lists."""
    count = len(jobs.work_ms)
    names = environment.task.applications
    waiting = [
        Job(
            str(at),
            0,
            int(jobs.work_ms[at]),
            application=names[int(jobs.application[at])],
            share=Share(1000, 0),
            retries=environment.settings.retries,
        )
        for at in range(count)
    ]
    policy = Replay(groups, share=Share(1000 // environment.settings.places, 0))
    cluster = Cluster([Node("one", 1, environment.task.gpu)])
    start_ms, end_ms, failures = [-1] * count, [-1] * count, [0] * count
    interference = ProfiledInterference(profiles, speeds)
    for event in simulate(waiting, cluster, policy, interference=interference):
        job = int(event.job.id)
        if event.kind is EventKind.START:
            start_ms[job] = event.time_ms
        elif event.kind is EventKind.FINISH:
            end_ms[job] = event.time_ms
        elif event.kind is EventKind.FAIL:
            assert event.reason is Reason.OUT_OF_MEMORY
            failures[job] += 1
            policy.failures += 1
            if failures[job] > environment.settings.retries:
                end_ms[job] = event.time_ms
    return start_ms, end_ms, failures
