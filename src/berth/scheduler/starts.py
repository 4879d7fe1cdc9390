"""When waiting jobs will start: the scheduler's own policy, tried on believed run times that are drawn anew.

Each draw is a trial: running jobs end when their drawn run times are over, the policy decides, and what it places gets
an end of its own. So limits, quotas, reservations, drained nodes and priorities count as they do in life. Jobs that are
still to come are unknown, so an interval is wider than its draws. Each start that misses its interval widens the next
ones, and each that holds narrows them a little, by ever smaller steps (Angelopoulos, Barber and Bates, "Online
Conformal Prediction with Decaying Step Sizes", ICML 2024).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import exp, log, log10
from random import Random
from statistics import NormalDist
from typing import Final, NamedTuple

from berth.cluster import Running
from berth.errors import KnowledgeError, PolicyError, SettingError
from berth.knowledge import Knowledge, Spread, believed_run
from berth.knowledge.belief import DEFAULT
from berth.model import FOREVER_MS, Job, Placement
from berth.scheduler.outcomes import Evicted, Resumed
from berth.scheduler.scheduler import Scheduler

COVERAGE: Final = 0.8
"""The share of jobs that start within their intervals."""
DRAWS: Final = 9
"""The next of n like values lies between the least and the greatest with probability (n - 1) / (n + 1): 0.8 for 9."""
MOST_CALLS: Final = 200
"""Times that the policy is asked in one draw; what waits then is expected to start at the pace until then."""
OFFSET: Final = 0.2
"""By how much the ends of the first intervals are moved outwards, in log10 of the wait: by a factor of 1.6."""
OFFSETS: Final = (0.02, 0.5)
"""The least: no start is known to the second from two like jobs. The most: jobs that are submitted together hold or
miss together, and many of them would make the next intervals useless."""
STEP: Final = 0.1
DECAY: Final = 0.6
LEAST_STEP: Final = 0.0003
"""The nth start moves the offset by a part of a step of STEP / n**DECAY, at least LEAST_STEP (chosen in
bench/results/account.md)."""
DAY_MS: Final = 24 * 3_600_000
MONTH: Final = 30
"""Days of which is counted how many intervals held."""

_NORMAL = NormalDist()
_TENTH = _NORMAL.inv_cdf(0.9)


class StartInterval(NamedTuple):
    """When a waiting job is believed to start, in 80 of 100 cases; ms since 1970, or of the simulation."""

    from_ms: int
    to_ms: int

    def from_now(self, now_ms: int) -> StartInterval:
        """The part of it that is still to come."""
        return StartInterval(max(self.from_ms, now_ms), max(self.to_ms, now_ms))


class Held(NamedTuple):
    """How many of the jobs that started did so within their first intervals."""

    held: int
    of: int

    @property
    def share(self) -> float | None:
        """None before the first start."""
        return self.held / self.of if self.of else None


@dataclass(frozen=True, slots=True)
class Learned:
    """What start intervals have learned under a policy, for those of a later process."""

    policy: str
    offset: float
    judged: int
    """Starts that it was learned from."""
    days: tuple[tuple[int, Held], ...]
    """The last days with a start, as days since 1970."""

    def to_json(self) -> str:
        days = [[day, *each] for day, each in self.days]
        return json.dumps({"policy": self.policy, "offset": self.offset, "judged": self.judged, "days": days})

    @classmethod
    def from_json(cls, text: str) -> Learned:
        """Raises SettingError if the text is no such thing."""
        try:
            values = json.loads(text)
            offset, judged = float(values["offset"]), int(float(values["judged"]))
            days = tuple((int(day), Held(int(held), int(of))) for day, held, of in values["days"])
            policy = str(values["policy"])
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise SettingError(
                f"expected a policy, an offset, a number of starts, and days; got {text[:200]}"
            ) from error
        if (
            not OFFSETS[0] <= offset <= OFFSETS[1]
            or judged < 0
            or any(not 0 <= each.held <= each.of for _, each in days)
        ):
            raise SettingError(
                f"expected an offset from {OFFSETS[0]} to {OFFSETS[1]} after 0 or more starts, and of each day how"
                f" many of its starts held; got {text[:200]}"
            )
        return cls(policy, offset, judged, days)


class StartForecast:
    """Start intervals of the jobs that wait in one scheduler."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._first: dict[str, StartInterval] = {}
        self._offset = OFFSET
        self.judged = 0
        """How many starts the offset has learned from."""
        self._by_day: dict[int, Held] = {}

    def intervals(
        self, scheduler: Scheduler, now_ms: int, *, out_of_time: Callable[[], bool] = lambda: False
    ) -> dict[str, StartInterval]:
        """The interval of each job that waits, by its id; none for one that starts in no draw.

        Nothing has changed afterwards. No further draw is begun when `out_of_time()` says so. Call it between two
        decisions, never while one is iterated.
        """
        waiting = [job.id for job in scheduler.queue]
        self._first = {job_id: first for job_id, first in self._first.items() if scheduler.waits(job_id)}
        if not waiting:
            return {}
        starts: dict[str, list[int]] = {job_id: [] for job_id in waiting}
        for number in range(DRAWS):
            if number and out_of_time():
                break
            with suppress(
                PolicyError, KnowledgeError
            ):  # what cannot be decided is the next decision's to tell
                for job_id, start_ms in drawn_starts(
                    scheduler, now_ms, Random(self._seed + number), out_of_time
                ).items():
                    if job_id in starts:
                        starts[job_id].append(start_ms)
        offset = 0.0 if scheduler.knowledge.certain else self._offset
        found = {
            job_id: _widened(sorted(times_ms), now_ms, offset)
            for job_id, times_ms in starts.items()
            if times_ms
        }
        self._first = {**found, **self._first}
        return found

    def started(self, job_id: str, now_ms: int) -> None:
        """A job has started: learn from how well its first interval held."""
        first = self._first.pop(job_id, None)
        if first is None:
            return
        held = first.from_ms <= now_ms <= first.to_ms
        self.judged += 1
        step = max(STEP * self.judged**-DECAY, LEAST_STEP)
        least, most = OFFSETS
        self._offset = min(max(self._offset + step * (COVERAGE - held), least), most)
        day = now_ms // DAY_MS
        before = self._by_day.get(day, Held(0, 0))
        self._by_day[day] = Held(before.held + held, before.of + 1)

    def held(self, now_ms: int) -> Held:
        """How many of the starts of today and the 29 days before lay within their first intervals."""
        first = now_ms // DAY_MS - MONTH + 1
        self._by_day = {day: each for day, each in self._by_day.items() if day >= first}
        return Held(
            sum(each.held for each in self._by_day.values()), sum(each.of for each in self._by_day.values())
        )

    def learned(self, policy: str) -> Learned:
        """What a forecast of a later process goes on with (`recall`)."""
        return Learned(policy, self._offset, self.judged, tuple(sorted(self._by_day.items())[-MONTH:]))

    def recall(self, learned: Learned) -> None:
        """Go on with what another forecast had learned."""
        self._offset, self.judged, self._by_day = learned.offset, learned.judged, dict(learned.days)


def _widened(times_ms: list[int], now_ms: int, offset: float) -> StartInterval:
    """From the first to the last of the starts drawn, in order of time, with both ends moved outwards."""
    low, high = _logged(times_ms[0] - now_ms) - offset, _logged(times_ms[-1] - now_ms) + offset
    return StartInterval(now_ms + _unlogged(low), now_ms + _unlogged(high))


def drawn_starts(
    scheduler: Scheduler, now_ms: int, random: Random, out_of_time: Callable[[], bool]
) -> Mapping[str, int]:
    """When each waiting job starts if every run time is drawn from what is believed of it."""
    starts: dict[str, int] = {}
    knowledge = scheduler.knowledge
    with scheduler.trial():
        running = scheduler.cluster.running
        ends = [(_drawn_end(run, knowledge, now_ms, random), job_id) for job_id, run in running.items()]
        ends = [end for end in ends if end[0] < FOREVER_MS]
        heapify(ends)
        calls, time_ms = 0, now_ms
        while len(scheduler.queue) and calls < MOST_CALLS and not out_of_time():
            wake_ms = scheduler.next_wake_ms  # the policy may have asked for it before the trial
            next_ms = min(ends[0][0] if ends else FOREVER_MS, FOREVER_MS if wake_ms is None else wake_ms)
            if next_ms >= FOREVER_MS:
                break
            time_ms = max(time_ms, next_ms)
            while ends and ends[0][0] <= time_ms:
                _, job_id = heappop(ends)
                if job_id in running:
                    scheduler.release(job_id, time_ms)
            calls += 1
            for outcome in scheduler.decide(time_ms):
                if isinstance(outcome, Placement):
                    job_id = outcome.job.id
                    starts.setdefault(job_id, time_ms)
                    end_ms = _drawn_end(running[job_id], knowledge, time_ms, random)
                    if end_ms < FOREVER_MS:
                        heappush(ends, (end_ms, job_id))
                elif isinstance(outcome, Resumed):
                    end_ms = _drawn_end(outcome.run, knowledge, time_ms, random)
                    if end_ms < FOREVER_MS:
                        heappush(ends, (end_ms, outcome.run.job.id))
                elif isinstance(outcome, Evicted):
                    ends = [end for end in ends if end[1] != outcome.run.job.id]
                    heapify(ends)
        if ends:
            starts.update(_at_the_same_pace(scheduler, starts, now_ms, time_ms))
    return starts


def _at_the_same_pace(
    scheduler: Scheduler, starts: Mapping[str, int], now_ms: int, time_ms: int
) -> dict[str, int]:
    """When what still waits starts if the queue goes on as it did until now."""
    left = [job for job in scheduler.queue if job.id not in starts]
    if not starts or not left:
        return {}
    each_ms = (time_ms - now_ms) / len(starts)
    return {job.id: time_ms + round(each_ms * place) for place, job in enumerate(left, 1)}


def _drawn_end(run: Running, knowledge: Knowledge, now_ms: int, random: Random) -> int:
    """When a run ends, drawn from what is believed of its run time, given that it has not ended yet."""
    if run.speed_milli <= 0:
        return FOREVER_MS
    work_ms = run.work_us // 1000
    done_ms = max(0, (run.work_us - run.left_us_at(now_ms)) // 1000) if work_ms < FOREVER_MS else 0
    uniform = random.random()
    if knowledge.certain:
        left_ms = work_ms - done_ms
    else:
        spread = believed_run(run.job, knowledge)
        if spread is None or spread.basis == DEFAULT:
            return FOREVER_MS if run.job.time_limit_ms is None else run.start_ms + run.job.time_limit_ms
        left_ms = _drawn_ms(spread, done_ms, run.job, uniform) - done_ms
    return now_ms + max(1, min(-(-left_ms * 1000 // run.speed_milli), FOREVER_MS))


def _drawn_ms(spread: Spread, done_ms: int, job: Job, uniform: float) -> int:
    """A run time of at least what is done: log-normal between the quantiles, and no longer than the time limit.

    Of one of which only the most is known, such as a limit, each part of that is as likely as another: how much of
    their limits jobs use is about uniform (Mu'alem and Feitelson, "Utilization, Predictability, Workloads, and User
    Runtime Estimates in Scheduling the IBM SP2 with Backfilling", TPDS 12(6), 2001). One that has outlived what is
    believed has done a part of its run time that is drawn evenly from 0 to 1.
    """
    low, high = log(max(spread.low, 1000)), log(max(spread.high, spread.low, 1000))
    middle, sigma = (low + high) / 2, (high - low) / 2 / _TENTH
    if spread.low <= 0:
        drawn_ms = done_ms + uniform * (min(spread.high, 2 * spread.expected) - done_ms)
    elif sigma <= 0:
        drawn_ms = exp(middle)
    else:
        passed = _NORMAL.cdf((log(max(done_ms, 1)) - middle) / sigma)
        part = passed + (1 - passed) * uniform
        drawn_ms = exp(middle + sigma * _NORMAL.inv_cdf(min(max(part, 1e-6), 1 - 1e-6)))
    if drawn_ms <= done_ms:
        drawn_ms = done_ms / max(1 - uniform, 0.01)
    if job.time_limit_ms is not None:
        drawn_ms = min(drawn_ms, job.time_limit_ms)
    return max(round(drawn_ms), done_ms)


def _logged(wait_ms: float) -> float:
    """log10(1 + seconds)."""
    return log10(1 + max(0.0, wait_ms) / 1000)


def _unlogged(value: float) -> int:
    """Milliseconds."""
    return round(1000 * (10 ** max(0.0, value) - 1))
