"""Every proposal replayed, and which of them is worth having."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from berth.advice.proposals import Proposal, limits_to_try, sharing_to_try
from berth.advice.replay import Outcome, change_of_users, replay
from berth.advice.workload import Workload
from berth.knowledge import check_knowledge
from berth.policies import Progress

DEFAULT_POLICY: Final = "easy+fifo+best-fit"
"""What Slurm does by default: first in, first out with backfilling."""
GAIN: Final = 0.1
"""A proposal is worth having if the typical user's wait falls by at least a tenth, and a user notices …"""
LOSS_POINTS: Final = 1.0
"""… while the use of the GPUs falls by no more than one point, jobs without a GPU wait no longer in the mean than a
user would notice, and every job still starts."""
FAR: Final = 2.0
"""The replay is far from the record where a wait is this many times the other, and a minute more."""
NOTICED_S: Final = 60.0
"""A user is affected where his mean wait changes by more than a minute …"""
NOTICED_SHARE: Final = 0.01
"""… and by more than a hundredth of what it was."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One proposal and what it would have done."""

    proposal: Proposal
    outcome: Outcome
    less: int
    """Users who would have waited less, by more than NOTICED_S and NOTICED_SHARE."""
    more: int
    change_s: tuple[float, float, float, float, float]
    """How users' mean waits change: the least, 10 %, the median, 90 %, the most."""
    worth_having: bool


@dataclass(frozen=True, slots=True)
class Advice:
    """All that was tried, the best first."""

    policy: str
    now: Outcome
    """The replay of things as they are."""
    recorded_median_s: float
    recorded_p90_s: float
    """What the history itself says of the same waits; how far the replay is from it tells how far to trust it."""
    tried: tuple[Tried, ...]
    users: int
    knowledge: str = "oracle"
    """What policies believed of jobs in all replays."""

    @property
    def far(self) -> bool:
        """Whether the replay of what happened is so far from the record that the advice stands on little."""
        pairs = (
            (self.now.wait_median_s, self.recorded_median_s),
            (self.now.wait_p90_s, self.recorded_p90_s),
        )
        return any(max(pair) > FAR * min(pair) and max(pair) - min(pair) > NOTICED_S for pair in pairs)

    @property
    def limit(self) -> Tried | None:
        """The limit to set; None where none is worth having."""
        return next((each for each in self.tried if each.worth_having and each.proposal.limit), None)

    @property
    def sharing(self) -> Tried | None:
        """The jobs to let share GPUs; None where that is not worth having."""
        return next((each for each in self.tried if each.worth_having and not each.proposal.limit), None)


def advise(
    workload: Workload,
    policy: str = DEFAULT_POLICY,
    *,
    share: Mapping[str, int] | None = None,
    knowledge: str = "oracle",
    progress: Progress | None = None,
) -> Advice:
    """Replay the workload as things are, then under each proposal; `share` maps applications to jobs per GPU.

    `knowledge` is what policies believe of jobs; the replay knows what ran, and so does an oracle.
    """
    check_knowledge(knowledge)
    now = replay(workload, policy, knowledge=knowledge)
    proposals = [*limits_to_try(workload, now), *sharing_to_try(workload, share or {})]
    tried = []
    for number, proposal in enumerate(proposals):
        if progress:
            progress(number + 1, len(proposals) + 1)
        sharing = proposal.limit is None
        outcome = replay(
            workload,
            proposal.policy(policy),
            proposal.jobs(workload),
            sharing=sharing,
            knowledge=knowledge,
        )
        tried.append(_tried(proposal, now, outcome))
    recorded = np.array(workload.recorded_wait_s or (0.0,))
    return Advice(
        policy=policy,
        now=now,
        recorded_median_s=float(np.median(recorded)),
        recorded_p90_s=float(np.quantile(recorded, 0.9)),
        tried=tuple(
            sorted(tried, key=lambda each: (not each.worth_having, each.outcome.typical_user_wait_s))
        ),
        users=len(now.user_wait_s),
        knowledge=knowledge,
    )


def better(now: Outcome, then: Outcome, *, sharing: bool = False) -> bool:
    """Whether one outcome is worth having over another; with `sharing` the same work may hold less of the GPUs.

    A user must notice it: see NOTICED_S and NOTICED_SHARE.
    """
    enough = then.typical_user_wait_s <= (1 - GAIN) * now.typical_user_wait_s
    noticed = any(change < 0 for change in noticed_changes(now, then).values())
    used = sharing or then.utilisation_pct >= now.utilisation_pct - LOSS_POINTS
    longer_s = max(then.others_wait_s - now.others_wait_s, 0.0)
    others_unharmed = not _notices(now.others_wait_s, longer_s)
    return enough and noticed and used and others_unharmed and then.never <= now.never


def noticed_changes(now: Outcome, then: Outcome) -> dict[str, float]:
    """Seconds by which the mean waits of the users that notice it change."""
    return {
        user: change
        for user, change in change_of_users(now, then).items()
        if _notices(now.user_wait_s[user], change)
    }


def _notices(wait_s: float, change_s: float) -> bool:
    return abs(change_s) > max(NOTICED_S, NOTICED_SHARE * wait_s)


def _tried(proposal: Proposal, now: Outcome, outcome: Outcome) -> Tried:
    changes = change_of_users(now, outcome)
    noticed = noticed_changes(now, outcome)
    values = np.array(list(changes.values()) or [0.0])
    least, low, middle, high, most = (float(each) for each in np.quantile(values, (0, 0.1, 0.5, 0.9, 1)))
    return Tried(
        proposal=proposal,
        outcome=outcome,
        less=sum(change < 0 for change in noticed.values()),
        more=sum(change > 0 for change in noticed.values()),
        change_s=(least, low, middle, high, most),
        worth_having=better(now, outcome, sharing=proposal.limit is None),
    )
