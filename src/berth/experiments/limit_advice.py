"""Which limit on each user would shorten the typical user's wait: the history replayed under several of them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlencode

import numpy as np

from berth.arrays import FloatArray, IntArray
from berth.counts import counted
from berth.errors import SettingError
from berth.experiments.compare import Task
from berth.experiments.compare.conditions import Conditions
from berth.experiments.compare.parallel import run_each
from berth.experiments.size.served import Served, served
from berth.model import Job, Node
from berth.policies import Progress
from berth.policies.options import options_of
from berth.statistics import EventColumns

QUANTILES = (0.5, 0.75, 0.9)
"""A limit is tried if this share of the users had less at their peak."""
OF_HIGHEST = (0.25, 0.5, 0.75)
"""And at these parts of the highest peak of all."""
GAIN = 0.1
"""A limit is advised if the typical user waits a tenth less, every job still starts, …"""
LOSS_POINTS = 1.0
"""… and the GPUs are held by at most one point less of their time."""
NOTICED_S = 60.0
"""A user notices a mean wait that changes by more than this and by a hundredth."""

_SLURM = {"running": "MaxJobs={}", "gpus": "GrpTRES=gres/gpu={}"}


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a replay came to; U users."""

    users: tuple[str, ...]
    wait_s: FloatArray  # (U,)
    """Mean wait of each user's jobs that started; NaN if none did."""
    wait_p50_s: float
    wait_p90_s: float
    held_pct: float
    """Of all GPUs and the time from the first submission to the last."""
    never: int
    """Jobs that did not finish."""
    peaks: dict[str, IntArray]
    """The most of `running` jobs and `gpus` that each user had at once."""

    @property
    def typical_wait_s(self) -> float:
        """The geometric mean over users of 1 + their mean wait, less 1: each user counts once."""
        known_s = self.wait_s[np.isfinite(self.wait_s)]
        return float(np.expm1(np.log1p(known_s).mean())) if len(known_s) else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Tried:
    """A limit of each user, and what the history would have been under it."""

    policy: str
    """The policy with the limit around it."""
    amount: str
    """`running` jobs or `gpus`."""
    most: int
    outcome: Outcome
    less: int
    """Users who would have waited noticeably less."""
    more: int
    advised: bool

    @property
    def words(self) -> str:
        """The limit as one would say it."""
        return f"at most {counted(self.most, 'GPU' if self.amount == 'gpus' else 'running job')} a user"

    @property
    def setting(self) -> str:
        """The limit as it would stand alone before a policy's name."""
        return f"limits?user_{self.amount}={self.most}"

    @property
    def slurm_command(self) -> str:
        """The command that sets it in Slurm's accounting, for each user of the replay."""
        names = shlex.quote(f"name={','.join(filter(None, self.outcome.users)) or 'USER'}")
        return f"sacctmgr -i modify user where {names} set {_SLURM[self.amount].format(self.most)}"


@dataclass(frozen=True, slots=True, eq=False)
class LimitAdvice:
    """The replay as things are, and under each limit; those that are advised first, then by the typical wait."""

    policy: str
    now: Outcome
    tried: tuple[Tried, ...]


def advise_limits(
    jobs: tuple[Job, ...],
    nodes: tuple[Node, ...],
    policy: str,
    conditions: Conditions,
    *,
    processes: int = 1,
    progress: Progress | None = None,
) -> LimitAdvice:
    """Replay the jobs under `policy` as things are, then with each limit that some user would have met.

    Raises SettingError if no job has a GPU.
    """
    if not any(job.gpus for job in jobs):
        raise SettingError("no job of this period asks for a GPU; there is nothing to limit")
    ((_, now),) = _outcomes(jobs, nodes, [policy], conditions, 1, None)
    names = {limited(policy, *limit): limit for limit in _limits(now, jobs)}
    outcomes = dict(_outcomes(jobs, nodes, list(names), conditions, processes, progress))
    tried = []
    for name, limit in names.items():  # and not as they end, by which equal ones would change places
        outcome = outcomes[name]
        less, more = _noticing(now, outcome)
        advised = (
            outcome.typical_wait_s <= (1 - GAIN) * now.typical_wait_s
            and less > 0
            and outcome.held_pct >= now.held_pct - LOSS_POINTS
            and outcome.never <= now.never
        )
        tried.append(Tried(name, *limit, outcome, less, more, advised))
    tried.sort(key=lambda each: (not each.advised, each.outcome.typical_wait_s))
    return LimitAdvice(policy, now, tuple(tried))


def limited(policy: str, amount: str, most: int) -> str:
    """The name of a policy with this limit on each user; other limits in the name still hold."""
    outer, _, rest = policy.partition("+")
    bare, options = options_of(outer)
    if bare != "limits":
        options, rest = {}, policy
    settings = urlencode({**options, f"user_{amount}": most}, safe="/", quote_via=quote)
    return "+".join(filter(None, (f"limits?{settings}", rest)))


def _limits(now: Outcome, jobs: Sequence[Job]) -> Iterator[tuple[str, int]]:
    """Limits below the highest peak, and not below what one job asks for: the amount, and the most of it."""
    largest = {"running": 1, "gpus": max(-(-job.gpus * job.share.milli // 1000) for job in jobs)}
    for amount, least in largest.items():
        peaks = now.peaks[amount]
        wanted = {int(np.quantile(peaks, share, method="higher")) for share in QUANTILES}
        wanted |= {round(part * int(peaks.max())) for part in OF_HIGHEST}
        for most in sorted({max(each, least) for each in wanted}):
            if most < peaks.max():
                yield amount, most


def _outcomes(
    jobs: tuple[Job, ...],
    nodes: tuple[Node, ...],
    names: Sequence[str],
    conditions: Conditions,
    processes: int,
    progress: Progress | None,
) -> Iterator[tuple[str, Outcome]]:
    tasks = [Task(jobs, nodes, name, 0, conditions, measure=outcome_of) for name in names]
    for task, result in run_each(tasks, processes, progress):
        assert isinstance(result.measured, Outcome)
        yield task.policy, result.measured


def outcome_of(columns: EventColumns, nodes: Sequence[Node], jobs: Sequence[Job]) -> Outcome:
    """What a run came to."""
    found = served(columns, nodes, jobs, by="user")
    started = np.isfinite(found.wait_s)
    waits = found.wait_s[started]
    count = np.bincount(found.group[started], minlength=len(found.groups))
    total = np.bincount(found.group[started], waits, minlength=len(found.groups))
    attempts = columns.attempts
    held_milli = attempts.gpus.astype(np.int64) * attempts.milli
    last_ms = int(columns.submit_ms.max(initial=0))
    begin_ms, end_ms = (
        np.clip(each, columns.begin_ms, last_ms) for each in (attempts.start_ms, attempts.end_ms)
    )
    whole = 1000 * sum(node.gpus for node in nodes) * max(last_ms - columns.begin_ms, 1)
    return Outcome(
        users=found.groups,
        wait_s=np.where(count > 0, total / np.maximum(count, 1), np.nan),
        wait_p50_s=float(np.median(waits)) if len(waits) else 0.0,
        wait_p90_s=float(np.quantile(waits, 0.9)) if len(waits) else 0.0,
        held_pct=100 * float((held_milli * (end_ms - begin_ms)).sum()) / max(whole, 1),
        never=int(found.unserved.sum()),
        peaks={
            "running": _peaks(found, columns, np.ones(len(held_milli), np.int64)),
            "gpus": -(-_peaks(found, columns, held_milli) // 1000),
        },
    )


def _peaks(found: Served, columns: EventColumns, amount: IntArray) -> IntArray:
    """(U,) The most of `amount` (T,) that attempts of one user held at once; an end comes before a start."""
    attempts = columns.attempts
    of = found.group[attempts.job]
    users = np.concatenate((of, of))
    when_ms = np.concatenate((attempts.end_ms, attempts.start_ms))
    change = np.concatenate((-amount, amount))
    order = np.lexsort((change > 0, when_ms, users))
    peaks = np.zeros(len(found.groups), np.int64)
    for user in range(len(found.groups)):
        mine = order[users[order] == user]
        peaks[user] = np.cumsum(change[mine]).max(initial=0)
    return peaks


def _noticing(now: Outcome, then: Outcome) -> tuple[int, int]:
    """Users who would wait noticeably less, and more."""
    change = then.wait_s - now.wait_s
    noticed = np.abs(change) > np.maximum(NOTICED_S, now.wait_s / 100)
    return int((noticed & (change < 0)).sum()), int((noticed & (change > 0)).sum())
