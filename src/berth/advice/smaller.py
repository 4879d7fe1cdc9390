"""What one user's waits would have been, had their jobs asked for the part of a GPU that they use."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from berth.advice.advise import DEFAULT_POLICY, Advice
from berth.advice.proposals import SHARERS, can_share
from berth.advice.replay import replay
from berth.advice.workload import Workload
from berth.model import Job, Share


@dataclass(frozen=True, slots=True)
class Part:
    """An application of a user, and what part of a GPU would do for nine in ten of its jobs."""

    application: str
    jobs: int
    """That held one whole GPU and were measured."""
    used: float
    """Of the GPU or of its memory, whichever is more, at the most in nine of ten jobs; from 0 to 1."""
    milli: int
    """The part that would do, in thousandths of a GPU."""


@dataclass(frozen=True, slots=True)
class Smaller:
    """Two replays of the same jobs: as they were, and with smaller requests of one user."""

    parts: tuple[Part, ...]
    replayed: int
    """Jobs of all users in the replay."""
    wait_now_s: float
    """The user's mean wait in the replay of things as they were."""
    wait_then_s: float
    far: bool
    """Whether the replay is so far from the record that its waits are a hint at most."""


def parts_enough(workload: Workload, user: str) -> tuple[Part, ...]:
    """List the applications whose jobs use only part of their GPU, if both uses were measured."""
    by_application: dict[str, list[float]] = {}
    for job in workload.jobs:
        measured = workload.use.get(job.id)
        if job.user != user or not can_share(job) or measured is None or measured[1] is None:
            continue
        by_application.setdefault(job.application, []).append(max(measured[0], measured[1]))
    found = []
    for application, uses in sorted(by_application.items()):
        used = float(np.quantile(uses, 0.9))
        fitting = [number for number in SHARERS if used * number <= 1]
        if fitting:
            found.append(Part(application, len(uses), used, 1000 // max(fitting)))
    return tuple(found)


def smaller(workload: Workload, user: str, policy: str = DEFAULT_POLICY) -> Smaller | None:
    """Replay the workload as it was and with the user's smaller requests; None if nothing shows that less would do."""
    parts = parts_enough(workload, user)
    if not parts:
        return None
    milli = {part.application: part.milli for part in parts}

    def asked(job: Job) -> Job:
        if job.user != user or not can_share(job) or job.application not in milli:
            return job
        return replace(job, share=Share(milli[job.application], 0))

    now = replay(workload, policy, sharing=True)
    then = replay(workload, policy, tuple(map(asked, workload.jobs)), sharing=True)
    if user not in now.user_wait_s or user not in then.user_wait_s:
        return None
    recorded = np.array(workload.recorded_wait_s or (0.0,))
    record = Advice(
        policy,
        now,
        float(np.median(recorded)),
        float(np.quantile(recorded, 0.9)),
        (),
        len(now.user_wait_s),
    )
    return Smaller(parts, len(workload.measured), now.user_wait_s[user], then.user_wait_s[user], record.far)
