"""What becomes of jobs that need more GPU memory than was said: killed, relaunched, let grow, let grow with suspension.

    python bench/growth_simulated.py [--seeds 3] [--jobs 200] [--policy easy+priority+worst-fit]

Jobs of three mixes share GPUs by memory. Each takes half of its memory at once and the rest after a third of its run;
its user says 0.5 to 2 times of it. berth's own driver places the jobs by a policy and the knowledge `history`, and its
own rules of growth answer them (`berth.live.driver`), all in simulated time. Compute is not looked at.

    kill      a limit is what was said; a job that needs more fails, and runs again with more, as after out of memory
    relaunch  nothing is enforced; a job that finds the card full fails, and runs again alone on a card (as CARMA does)
    grow      a limit grows while the card has room; a call that finds none waits for others to end
    suspend   the same, and the youngest job that holds enough leaves the card meanwhile, at 8 GB/s each way

Lost are the hours of attempts that failed, of calls that waited, and of moves.
Writes bench/results/growth_simulated.json.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import logging
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

from berth import growth as growing
from berth.growth import Growth
from berth.live.driver.driver import Driver, Settings
from berth.live.driver.site import Again, SiteJob, Start
from berth.live.driver.suspending import MIB_PER_S, START_S
from berth.model import GpuModel, Job, Node, RecordState, Share, work_of
from berth.partition.gpus import Gpu
from berth.partition.growth import Demand, Watching, Wish
from berth.tenants import RESUMING, SUSPENDED, SUSPENDING
from berth.traces import read
from harness import count, save

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.live.driver.memory_site import MemorySite

MIXES = ("demo", "pai-like", "philly-like")
"""The generators of the mixes."""
WAYS = ("kill", "relaunch", "grow", "suspend")
CARD_MIB = 80 << 10
MEMORY_MIB = (6 << 10, 10 << 10, 16 << 10, 24 << 10, 36 << 10, 48 << 10)
SAID = (0.5, 0.7, 1.0, 1.2, 1.5, 2.0)
"""What users say of the memory that their jobs take; two applications of each."""
LOAD = 3.0
"""GPU memory that is asked for while jobs come, over what there is: GPUs are counted by it."""
_MIB = 1 << 20


@dataclass(frozen=True)
class Work:
    """One job: when it comes, how long it runs, what it takes at its peak, and what its user says."""

    job: Job
    run_ms: int
    mem_mib: int


def mix(name: str, jobs: int, seed: int) -> list[Work]:
    """The jobs of one GPU or less of a generator, of applications that take as much memory in each run."""
    draw, found = random.Random(seed), list[Work]()
    kinds = [(draw.choice(MEMORY_MIB), said) for said in SAID for _ in range(2)]
    for job in read(f"synthetic:{name}?seed={seed}"):
        if job.gpus != 1:
            continue
        kind = draw.randrange(len(kinds))
        mem_mib, said = kinds[kind]
        asked = replace(
            job, share=Share(100, min(CARD_MIB, round(mem_mib * said))), models=(), labels=(), cpu_milli=0,
            mem_mib=0, time_limit_ms=None, virtual_cluster="", application=f"app{kind}",
        )  # fmt: skip
        found.append(Work(asked, work_of(job), mem_mib))
        if len(found) == jobs:
            break
    return found


@dataclass
class Attempt:
    """A job on its GPU (`berth.tenants.Tenant`), and how far it has come."""

    id: str
    serial: int
    work: Work
    slots: tuple[int, ...]
    share: tuple[int, int]
    peak_mib: int
    start_ms: int
    promise_mib: int
    start: int = 1
    suspension: str = ""
    resumes: bool = True
    idle: bool = False
    lends_to: str = ""
    parked_mib: int = 0
    best_effort: bool = True
    gang: str = ""
    priority: int = 0
    interactive: bool = False
    shows_max: bool = False
    going: bool = True
    held_mib: int = 0
    asked_ms: int | None = None
    """Since when its call waits."""
    next_ms: int = 0
    """When it does what comes next, or while it is suspended, how much later it will."""
    lost_ms: int = 0
    token: int = 0
    """What is due for it is no more once this has changed."""

    @property
    def runs(self) -> bool:
        return self.going

    @property
    def makes_way(self) -> bool:
        return self.suspension == SUSPENDING


class Granter:
    """Stands for what a partition's processes ask (`berth.partition.Granter`)."""

    machine: Machine

    def __init__(self, folder: Path, uuid: str, woken: Callable[[], None]) -> None:
        self._of = self.machine.attempts[folder.name]

    def demand(self) -> Demand:
        attempt = self._of
        wishes: tuple[Wish, ...] = ()
        if attempt.asked_ms is not None:
            wanted_mib = (
                attempt.work.mem_mib - attempt.work.mem_mib // 2
                if attempt.held_mib
                else attempt.work.mem_mib // 2
            )
            wishes = (Wish(0, 1, 1, wanted_mib * _MIB, attempt.held_mib * _MIB),)
        return Demand(attempt.share[1] * _MIB, attempt.held_mib * _MIB, wishes)

    def grant(self, wish: Wish, limit_bytes: int) -> None:
        self.machine.answered(self._of, granted=True)

    def refuse(self, wish: Wish) -> None:
        self.machine.answered(self._of, granted=False)

    def allow(self, **sizes: Any) -> None: ...

    def limit(self, limit_bytes: int) -> None: ...

    def watch(self, watching: Watching) -> None: ...

    def close(self) -> None: ...


@dataclass
class MovingSite(MemorySite):
    """A site whose jobs may be suspended, and run on as soon as there is room."""

    machine: Machine = field(default=None)  # type: ignore[assignment]

    def parked_mib(self, job_id: str) -> int | None:
        return None  # no policy suspends here, only growth does

    def suspend(self, job_id: str) -> None:
        raise AssertionError(job_id)

    def resume(self, job_id: str) -> None:
        self.machine.come_back(self.machine.attempts[job_id])

    def start(self, start: Start) -> None:
        super().start(start)
        self.machine.begin(start)

    def again(self, again: Again) -> None:
        super().again(again)
        if self.machine.way == "relaunch":
            job = self.jobs[again.job_id]
            whole = replace(job.job, share=Share(1000, CARD_MIB))
            self.jobs[again.job_id] = replace(job, job=whole, alike=None)


class Machine:
    """The GPUs, the jobs on them, and the clock."""

    def __init__(self, works: Sequence[Work], way: str, gpus: int, policy: str) -> None:
        self.way, self.now_ms, self.gpus = way, 0, [Gpu(at, f"GPU-{at}", CARD_MIB) for at in range(gpus)]
        self.site = MovingSite(
            {"here": Node("here", gpus, GpuModel("A100-80G", mem_mib=CARD_MIB), None, None)}
        )
        self.site.machine = self
        self.driver = Driver(self.site, Settings(policy, "history"))
        self.attempts: dict[str, Attempt] = {}
        self.failed = self.waited = self.moves = self.done = 0
        self.held_ms = self.lost_ms = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = self._wake_ms = 0
        self._works = {work.job.id: work for work in works}
        Granter.machine = self
        self.growth: Growth[Attempt] = Growth(
            self,
            can_suspend=lambda attempt: attempt.asked_ms is None,
            suspends=way == "suspend",
        )
        first_ms = works[0].job.submit_ms
        for work in works:
            self.at(work.job.submit_ms - first_ms, lambda work=work: self._come(work))  # type: ignore[misc]

    def run(self) -> dict[str, float]:
        """Until all jobs are done: hours, and how often what happened."""
        while self.done < len(self._works):
            self.now_ms, _, do = heapq.heappop(self._due)
            self.site.now_ms = self.now_ms
            do()
        hour = 3_600_000
        return {
            "makespan_h": self.now_ms / hour, "held_h": self.held_ms / hour, "lost_h": self.lost_ms / hour,
            "failed": self.failed, "waited": self.waited, "moves": self.moves,
        }  # fmt: skip

    def at(self, time_ms: int, do: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._due, (time_ms, self._count, do))

    def _come(self, work: Work) -> None:
        job = replace(work.job, submit_ms=self.now_ms)
        most_mib = CARD_MIB if self.way in ("grow", "suspend") else 0
        self.site.jobs[job.id] = SiteJob(
            job,
            (self._count,),
            alike=None if self.way == "relaunch" else job.application,
            mem_max_mib=most_mib,
        )
        self.step()

    def step(self) -> None:
        """Have the driver decide, and look again when it wants to."""
        if (fault := self.driver.step(self.now_ms).fault) is not None:
            raise fault
        next_ms = self.driver.next_ms(self.now_ms)
        if next_ms is not None and not self.now_ms < self._wake_ms <= next_ms:
            self._wake_ms = next_ms
            self.at(next_ms, self.step)

    def begin(self, start: Start) -> None:
        work, mem_mib = self._works[start.job_id], start.share.mem_mib
        attempt = Attempt(
            start.job_id, self._count, work, (start.gpus[0].index,), (start.share.milli, mem_mib),
            start.peak_mib, self.now_ms, mem_mib,
        )  # fmt: skip
        self.attempts[attempt.id] = attempt
        self.growth.begin(attempt)
        self._after(attempt, 0)

    def _after(self, attempt: Attempt, wait_ms: int, do: Callable[[], None] | None = None) -> None:
        """What a job does next, unless it leaves before."""
        attempt.token += 1
        attempt.next_ms = self.now_ms + wait_ms
        token = attempt.token
        then = do or (lambda: self._go_on(attempt))
        self.at(attempt.next_ms, lambda: then() if attempt.token == token else None)

    def _go_on(self, attempt: Attempt) -> None:
        """Take the next part of its memory, or end."""
        if attempt.held_mib == attempt.work.mem_mib:
            self._end(attempt, RecordState.COMPLETED)
            return
        half_mib = attempt.work.mem_mib // 2
        needed_mib = attempt.work.mem_mib if attempt.held_mib else half_mib
        if self.way == "relaunch":
            here = (each for each in self.attempts.values() if each.slots == attempt.slots)
            free_mib = CARD_MIB - sum(each.held_mib for each in here)
            self._take(attempt, fits=needed_mib - attempt.held_mib <= free_mib)
        elif needed_mib <= attempt.share[1] or attempt.id not in self.growth.jobs:
            self._take(attempt, fits=needed_mib <= attempt.share[1])
        else:
            attempt.asked_ms = self.now_ms
            self.growth._woken.add(attempt.id)  # as a wake of its process does
            self.growth._look()
            self.step()

    def answered(self, attempt: Attempt, *, granted: bool) -> None:
        assert attempt.asked_ms is not None
        waited_ms, attempt.asked_ms = self.now_ms - attempt.asked_ms, None
        self.waited += waited_ms > 0
        attempt.lost_ms += waited_ms
        if granted:
            self._take(attempt, fits=True)
        else:
            self._after(attempt, 0, lambda: self._take(attempt, fits=False))

    def _take(self, attempt: Attempt, *, fits: bool) -> None:
        work = attempt.work
        if not fits:
            self._end(attempt, RecordState.OUT_OF_MEMORY)
        elif attempt.held_mib:
            attempt.held_mib = work.mem_mib
            self._after(attempt, work.run_ms - work.run_ms // 3)
        else:
            attempt.held_mib = work.mem_mib // 2
            self._after(attempt, work.run_ms // 3)

    def _end(self, attempt: Attempt, state: RecordState) -> None:
        good = state is RecordState.COMPLETED
        needed_mib = 0 if good else attempt.work.mem_mib if attempt.held_mib else attempt.work.mem_mib // 2
        attempt.going = False
        self.growth.end(attempt)
        del self.attempts[attempt.id]
        ran_ms = self.now_ms - attempt.start_ms
        self.held_ms += ran_ms
        self.lost_ms += attempt.lost_ms if good else ran_ms
        self.failed += not good
        self.done += good
        self.site.end(attempt.id, state, needed_mib=needed_mib, peak_mib=attempt.held_mib)
        self.growth.room_made()
        self.step()

    # Leaving and coming back

    def _moved_after(self, attempt: Attempt, then: Callable[[], None]) -> None:
        move_ms = round(1000 * (START_S + attempt.held_mib / MIB_PER_S))
        attempt.lost_ms += move_ms
        self.at(self.now_ms + move_ms, then)

    def lend(self, attempt: Attempt, to: Attempt) -> None:
        """It leaves its GPU for another that grows; what it was about to do is done later."""
        self.moves += 1
        attempt.suspension, attempt.lends_to = SUSPENDING, to.id
        attempt.token += 1
        attempt.next_ms -= self.now_ms
        self._moved_after(attempt, lambda: self._has_left(attempt))

    def _has_left(self, attempt: Attempt) -> None:
        attempt.suspension, attempt.parked_mib, self_ms = SUSPENDED, attempt.held_mib, self.now_ms
        attempt.start_ms -= self_ms  # its time off the card is no time on it
        run = self.site.runs[attempt.id]
        self.site.runs[attempt.id] = replace(run, suspended_since_ms=self_ms, parked_mib=attempt.held_mib)
        self.growth.room_made()
        self.step()

    def come_back(self, attempt: Attempt) -> None:
        if attempt.suspension == SUSPENDED:
            attempt.suspension = RESUMING
            attempt.start_ms += self.now_ms
            self._moved_after(attempt, lambda: self._is_back(attempt))

    def _is_back(self, attempt: Attempt) -> None:
        attempt.suspension, attempt.lends_to = "", ""
        self.site.runs[attempt.id] = replace(self.site.runs[attempt.id], suspended_since_ms=None)
        self._after(attempt, attempt.next_ms)
        self.step()

    # As the host of growth (`berth.tenants.Host`)

    def tenants(self) -> Iterable[Attempt]:
        return [*self.attempts.values()]

    def tenants_on(self, at: int) -> Iterable[Attempt]:
        return [attempt for attempt in self.attempts.values() if at in attempt.slots]

    def partition_of(self, attempt: Attempt) -> str:
        return attempt.id

    def most_mib(self, attempt: Attempt) -> int:
        return CARD_MIB if self.way in ("grow", "suspend") else 0

    def others_mib(self, at: int) -> int:
        return 0

    def uncounted_mib(self, attempt: Attempt) -> int:
        return 0

    def room_kept(self) -> AbstractContextManager[None]:
        return nullcontext()

    def grown(self, attempt: Attempt, mem_mib: int) -> None:
        attempt.share = attempt.share[0], mem_mib
        run = self.site.runs[attempt.id]
        self.site.runs[attempt.id] = replace(run, share=Share(attempt.share[0], mem_mib))

    def let_resume(self, attempt: Attempt) -> None: ...

    def act(self) -> None: ...

    def log(self, event: str, /, **values: object) -> None: ...


async def simulated(works: Sequence[Work], way: str, gpus: int, policy: str) -> dict[str, float]:
    """One run; growth wants the loop of events, though nothing waits for it."""
    return Machine(works, way, gpus, policy).run()


def main() -> None:
    """Print a row a mix and way."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seeds", type=count, default=3)
    arguments.add_argument("--jobs", type=count, default=200)
    arguments.add_argument("--policy", default="easy+priority+worst-fit")
    words = arguments.parse_args()
    logging.disable(logging.WARNING)  # that run times are unknown at first
    growing.Granter = Granter  # type: ignore[misc,assignment]
    growing.PER_S = 1e12  # by the machine's clock, which hardly moves here
    rows = []
    head = (
        "mix",
        "way",
        "makespan, h",
        "held, h",
        "lost, h",
        "failed",
        "waited",
        "moves",
        "less lost",
    )
    print("".join(f"{each:>14}" for each in head))
    for name in MIXES:
        of_way: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for seed in range(words.seeds):
            works = mix(name, words.jobs, seed)
            span_ms = max(1, works[-1].job.submit_ms - works[0].job.submit_ms)
            asked = sum(min(work.run_ms, span_ms) * work.job.share.mem_mib for work in works)
            gpus = max(2, round(asked / span_ms / CARD_MIB / LOAD))
            for way in WAYS:
                of_way[way].append(asyncio.run(simulated(works, way, gpus, words.policy)))
        for way, runs in of_way.items():
            row = {key: mean(run[key] for run in runs) for key in runs[0]}
            killed = mean(run["lost_h"] for run in of_way["kill"])
            less = f"{100 * (1 - row['lost_h'] / killed):.1f} %" if killed else "–"
            print(
                f"{name:>14}{way:>14}" + "".join(f"{value:>14.2f}" for value in row.values()) + f"{less:>14}",
                flush=True,
            )
            rows.append({"mix": name, "way": way, **row})
    save("growth_simulated", rows)


if __name__ == "__main__":
    main()
