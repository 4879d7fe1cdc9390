"""What running jobs use of GPU memory over time, and what becomes of one that needs more than it was given.

Who gets more is `berth.growth`'s to say, as where jobs are real: here it runs on the simulator's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import count
from typing import Any, Protocol

from berth.cluster import Cluster, Running
from berth.engine.suspension import Suspension
from berth.errors import SettingError, SimulationError
from berth.growth import ASK_MS, Growth
from berth.interference import Interference, KnowsMemoryOverTime, KnowsProfiles
from berth.interference.speeds import PartsMemory
from berth.knowledge import Knowledge, LearnsMemory
from berth.knowledge.memory_needs import (
    PROMISE_STEPS,
    MemoryNeeds,
    as_needed,
    as_promised,
    asks_for_memory,
    expected_mib,
    need_of_next_attempt,
)
from berth.knowledge.out_of_memory import ALONE, NO_NEED, MemoryNeed
from berth.model import NO_GPU, WHOLE_GPU, GpuSlot, Job, Node, Share, gang_of
from berth.partition import Demand, Watching, Wish
from berth.partition.gpus import Gpu
from berth.scheduler import Scheduler
from berth.tenants import SUSPENDED, SUSPENDING, Host

_MIB = 1 << 20


class WhenFull(StrEnum):
    """What becomes of a job that needs more GPU memory than it was given."""

    KILL = "kill"
    """It fails at its limit, and runs again with more."""
    RELAUNCH = "relaunch"
    """No limit is enforced. It fails if its card is full, and runs again alone on one, as CARMA does."""
    GROW = "grow"
    """Its limit grows while the card has room; if not, its call waits for other jobs to end."""
    SUSPEND = "suspend"
    """The same, and a job that matters less leaves the card meanwhile."""

    @classmethod
    def of(cls, name: str) -> WhenFull:
        """Raises SettingError for a name that is none."""
        if name not in [*cls]:
            raise SettingError(f"when_full is '{name}'; expected {', '.join(cls)}")
        return cls(name)

    @property
    def grows(self) -> bool:
        return self in (WhenFull.GROW, WhenFull.SUSPEND)


@dataclass(slots=True, eq=False)
class Held:
    """A run on its GPUs, and how far its memory has come (`berth.tenants.Tenant`)."""

    run: Running
    id: str
    serial: int
    start: int
    slots: tuple[int, ...]
    share: tuple[int, int]
    peak_mib: int
    promise_mib: int
    steps: Sequence[tuple[int, int]]
    """From which ms of its work on it uses how much of each GPU, MiB."""
    at: int = -1
    """The step that it is in; −1: it has taken nothing yet."""
    used_mib: int = 0
    """The most that it has used."""
    wanted_mib: int = 0
    """What it is to hold with what its call asks for; 0: no call waits."""
    asked_ms: int = 0
    ask_ms: int = ASK_MS
    """How long a call waits at most."""
    stands: bool = False
    """Whether it makes no progress."""
    due_ms: int | None = None
    """When it comes to its next step, as the heap has it."""
    woken: Callable[[], None] = lambda: None
    """To be called when it asks."""
    suspension: str = ""
    lends_to: str = ""
    parked_mib: int = 0
    going: bool = True
    resumes: bool = True
    idle: bool = False
    interactive: bool = False
    shows_max: bool = False

    @property
    def best_effort(self) -> bool:
        return self.run.best_effort

    @property
    def gang(self) -> str:
        return self.run.job.gang

    @property
    def priority(self) -> int:
        return self.run.job.priority

    @property
    def runs(self) -> bool:
        return self.going

    @property
    def makes_way(self) -> bool:
        return self.suspension == SUSPENDING

    def step_at(self, now_ms: int) -> int:
        """The step of the work that it has done by now."""
        done_us = self.run.work_us - self.run.left_us_at(now_ms)
        at = max(self.at, 0)
        while at + 1 < len(self.steps) and self.steps[at + 1][0] * 1000 <= done_us:
            at += 1
        return at


class Runs(Protocol):
    """The simulation under way, as its memory sees it."""

    def later(self, time_ms: int, do: Callable[[int], bool]) -> None:
        """Have this done at that time; it returns whether the policy is to decide then."""

    def resize(self, run: Running, share: Share, now_ms: int) -> None:
        """Give a run another share."""

    def speed_changed(self, run: Running, now_ms: int) -> None:
        """A run stands still from now on, or goes on."""

    def leave(self, run: Running, held_mib: int, now_ms: int) -> bool:
        """Suspend a run whose memory has been copied out; False: its nodes have no memory left to take it."""

    def ran_out(self, run: Running, held_mib: int, now_ms: int) -> None:
        """End a run that is out of memory, which would have held this with what it was refused."""


@dataclass(slots=True)
class _Timer:
    """A call that is due later."""

    call: Callable[[], Any] | None

    def cancel(self) -> None:
        self.call = None


class _Loop:
    """Growth's event loop in simulated time."""

    def __init__(self, later: Callable[[int, Callable[[int], bool]], None]) -> None:
        self.now_ms = 0
        self.due: list[Callable[[], Any]] = []
        """What is to be called at this instant."""
        self._later = later

    def time(self) -> float:
        return self.now_ms / 1000

    def call_soon(self, callback: Callable[..., Any], /, *args: Any) -> None:
        self.due.append(lambda: callback(*args))

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Callable[..., Any], /, *args: Any) -> _Timer:
        timer = _Timer(lambda: callback(*args))

        def ring(now_ms: int) -> bool:
            if timer.call is not None:
                self.due.append(timer.call)
            return False

        self._later(self.now_ms + max(1, round(1000 * delay)), ring)
        return timer


@dataclass(slots=True)
class _Granter:
    """Stands for what a partition's processes ask (`berth.partition.Granter`)."""

    memory: Memory
    held: Held
    speaks: bool
    """Whether it has the job's wish; a job of several GPUs asks once for all."""

    def demand(self) -> Demand:
        held, wishes = self.held, tuple[Wish, ...]()
        if self.speaks and held.wanted_mib:
            wishes = (Wish(0, 1, 1, (held.wanted_mib - held.used_mib) * _MIB, held.used_mib * _MIB),)
        return Demand(held.share[1] * _MIB, held.used_mib * _MIB, wishes)

    def grant(self, wish: Wish, limit_bytes: int) -> None:
        self.memory.granted(self.held)

    def refuse(self, wish: Wish) -> None:
        self.memory.refused(self.held)

    def allow(self, *, promise_mib: int, max_mib: int, ask_ms: int, shows_max: bool = False) -> None:
        if self.speaks:
            self.memory.wait(self.held, ask_ms)

    def limit(self, limit_bytes: int) -> None: ...

    def watch(self, watching: Watching) -> None: ...

    def wake(self, wish: Wish, granted: bool = True) -> None: ...

    def close(self) -> None: ...


class Memory:
    """The GPU memory of all runs: the host of their growth (`berth.tenants.Host`)."""

    def __init__(
        self,
        when_full: WhenFull,
        runs: Runs,
        scheduler: Scheduler,
        interference: Interference,
        suspension: Suspension | None,
    ) -> None:
        self.when_full, self._runs, self._scheduler = when_full, runs, scheduler
        self.cluster: Cluster = scheduler.cluster
        self.knowledge: Knowledge = scheduler.knowledge
        self._learns = self.knowledge if isinstance(self.knowledge, LearnsMemory) else None
        self._model = interference if isinstance(interference, KnowsMemoryOverTime) else None
        self.suspension = suspension or Suspension()
        nodes = self.cluster.nodes
        _check(nodes, interference)
        self._first = [0]  # by node, the number of its first GPU
        for node in nodes:
            self._first.append(self._first[-1] + node.gpus)
        cards = [node.gpu_model.mem_mib for node in nodes if node.gpu_model for _ in range(node.gpus)]
        self.gpus: Sequence[Gpu] = [Gpu(at, str(at), mem_mib) for at, mem_mib in enumerate(cards)]
        self._least_mib, self._most_mib = min(cards), max(cards)
        self._on: list[dict[str, Held]] = [{} for _ in self.gpus]
        self.held: dict[str, Held] = {}
        """What runs on GPUs or is suspended, by id."""
        self._said: dict[str, Job] = {}
        """The jobs that wait or run as their users asked for them."""
        self._own_needs: dict[str, MemoryNeed] = {}
        self._needs = MemoryNeeds()
        self._believed_mib: dict[str, int] = {}
        self._serials: dict[str, int] = {}
        self._came = count()
        self._out: list[tuple[Held, int]] = []
        """Runs that are out of memory, or where nothing is enforced may be, and what they would have held."""
        self._touched: dict[str, Held] = {}
        """Runs that may stand still from now on, or go on."""
        self._room = False
        """Whether GPUs have more room than when wishes were looked at."""
        self._loop = _Loop(runs.later)
        self.growth: Growth[Held] = Growth(
            self,
            can_suspend=self._can_suspend,
            suspends=when_full is WhenFull.SUSPEND,
            granter_of=self._granter_of,
            loop=lambda: self._loop,
        )

    # What waiting jobs ask for

    def come(self, job: Job) -> Job:
        """A job comes: as it asks for memory by what is believed of it."""
        for task in job.tasks or (job,):
            if task.id not in self._serials:
                self._serials[task.id] = next(self._came)
            part = task.share.milli
            if task.gpus and part < WHOLE_GPU.milli and not task.share.mem_mib:
                task = replace(task, share=Share(part, self._least_mib * part // WHOLE_GPU.milli))
            self._said[task.id] = task
        return self._as_needed(job)

    def forget(self, job: Job) -> None:
        """A job has left for good."""
        for task in job.tasks or (job,):
            self._said.pop(task.id, None)
            self._own_needs.pop(task.id, None)
            self._serials.pop(task.id, None)

    def _as_needed(self, job: Job) -> Job:
        if job.tasks:
            tasks = [self._as_needed(task) for task in job.tasks]
            if all(task is before for task, before in zip(tasks, job.tasks, strict=True)):
                return job
            return gang_of(tasks, job.min_tasks, job.gang)
        said = self._said[job.id]
        own = self._own_needs.get(job.id, NO_NEED)
        if self.when_full is WhenFull.RELAUNCH:
            return _with_share(job, as_needed(said, own).share)
        need = self._needs.of(said, job.application or None, own, lambda: [gpu.mem_mib for gpu in self.gpus])
        return _with_share(job, as_needed(self._as_promised(said), need).share)

    def _as_promised(self, job: Job) -> Job:
        """What the truth would promise needs no growth, and nothing learns it."""
        grows = self.when_full.grows and not self.knowledge.certain and asks_for_memory(job)
        return as_promised(job, self._most_mib if grows else 0, self.knowledge)

    def _offer_alike(self, application: str) -> None:
        """Have the waiting jobs of an application ask for what is believed by now."""
        for job in [job for job in self._scheduler.queue if job.application == application]:
            if (asked := self._as_needed(job)) is not job:
                self._scheduler.replace(asked)

    # What runs do

    def begin(self, run: Running, now_ms: int) -> None:
        """A run has come to its GPUs."""
        job, slots = run.job, tuple(self._number(slot) for slot in run.slots if slot.index != NO_GPU)
        if not slots:
            return
        limit_mib = run.taken.mem_mib
        if not limit_mib and run.shared and self.when_full is not WhenFull.RELAUNCH:
            raise SimulationError(
                f"the policy shares the GPU of job '{job.id}', which asks for all of its memory; with when_full ="
                f" {self.when_full} give such jobs a part of a GPU, or take a policy that shares no whole ones"
            )
        model = self.cluster.nodes[run.slots[0].node].gpu_model
        steps = () if self._model is None else self._model.memory_over_time(job, model)
        held = Held(
            run, job.id, self._serials[job.id], run.attempt, slots, (run.share.milli, limit_mib),
            expected_mib(self._said[job.id], self.knowledge), limit_mib, steps or ((0, limit_mib),),
        )  # fmt: skip
        self.held[job.id] = held
        for at in slots:
            self._on[at][job.id] = held
        self._loop.now_ms = now_ms
        if self.when_full.grows:
            self.growth.begin(held)

    def expect(self, run: Running, now_ms: int) -> None:
        """A run's speed or progress has changed: note when it needs more."""
        held = self.held.get(run.job.id)
        if held is None or held.stands or held.suspension:
            return
        due_ms = self._due_ms(held, now_ms)
        if due_ms != held.due_ms:
            held.due_ms = due_ms
            if due_ms is not None:
                self._runs.later(due_ms, lambda at_ms: self._comes(held, at_ms))

    def _due_ms(self, held: Held, now_ms: int) -> int | None:
        """When a run comes to the next step that takes more than it may, or, where nothing is enforced, than before."""
        run, before_mib = held.run, 0 if held.at < 0 else held.steps[held.at][1]
        limit_mib = self._limit_mib(held)
        for from_ms, mem_mib in held.steps[held.at + 1 :]:
            if mem_mib > (before_mib if self.when_full is WhenFull.RELAUNCH else limit_mib):
                left_us = from_ms * 1000 - (run.work_us - run.left_us_at(now_ms))
                if left_us <= 0:
                    return now_ms
                return None if run.speed_milli <= 0 else now_ms - (-left_us // run.speed_milli)
            before_mib = mem_mib
        return None

    def _comes(self, held: Held, now_ms: int) -> bool:
        """A run needs more memory now."""
        if held.due_ms != now_ms or self.held.get(held.id) is not held or held.stands or held.suspension:
            return False
        held.due_ms, self._loop.now_ms = None, now_ms
        self._take_until(held, now_ms)
        needed_mib = held.steps[held.at][1]
        if self.when_full is WhenFull.RELAUNCH:
            self._out.append((held, needed_mib))
        elif needed_mib > self._limit_mib(held):
            if held.id not in self.growth.jobs:
                self._out.append((held, needed_mib))
            else:
                held.wanted_mib, held.asked_ms = needed_mib, now_ms
                held.woken()
        self._touched[held.id] = held
        return False

    def _take_until(self, held: Held, now_ms: int) -> None:
        """Count what a run has used until now, up to the first step that it has no limit for."""
        if held.wanted_mib:
            return
        at, limit_mib = held.step_at(now_ms), self._limit_mib(held)
        for number in range(held.at + 1, at + 1):
            held.at, mem_mib = number, held.steps[number][1]
            if self.when_full is not WhenFull.RELAUNCH and mem_mib > limit_mib:
                return
            held.used_mib = max(held.used_mib, mem_mib)

    def _limit_mib(self, held: Held) -> int:
        """What a run may have of each GPU, where limits are enforced: whole ones limit it too."""
        return held.share[1] or min(self.gpus[at].mem_mib for at in held.slots)

    def _used_mib(self, at: int, now_ms: int) -> int:
        """What is used of a GPU now."""
        return sum(
            held.steps[held.step_at(now_ms)][1] for held in self._on[at].values() if not held.suspension
        )

    def granted(self, held: Held) -> None:
        held.used_mib, held.wanted_mib = held.wanted_mib, 0
        self._touched[held.id] = held

    def refused(self, held: Held) -> None:
        self._out.append((held, held.wanted_mib))

    def wait(self, held: Held, ask_ms: int) -> None:
        """A run's call waits for as long as this at most."""
        held.ask_ms = ask_ms
        if held.wanted_mib:
            until_ms = max(self._loop.now_ms, held.asked_ms + ask_ms)
            self._runs.later(until_ms, lambda at_ms: self._gives_up(held, at_ms))

    def _gives_up(self, held: Held, now_ms: int) -> bool:
        if held.wanted_mib and held.asked_ms + held.ask_ms <= now_ms and self.held.get(held.id) is held:
            self._out.append((held, held.wanted_mib))
        return False

    def ended(self, run: Running, now_ms: int) -> None:
        """A run has left its GPUs for good, or until it runs again."""
        held = self.held.pop(run.job.id, None)
        if held is None:
            return
        held.going, self._room = False, True
        self.growth.end(held)
        for at in held.slots:
            del self._on[at][held.id]
        self._touched.pop(held.id, None)
        self._take_until(held, now_ms)
        if self._learns is not None and held.used_mib:
            self._learns.measured(run.job, held.used_mib)
            self._loop.call_soon(self._believe_anew, run.job.application)

    def _believe_anew(self, application: str) -> None:
        """Give waiting jobs another promise if what is believed of their application has moved."""
        like = next((job for job in self._scheduler.queue if job.application == application), None)
        if not (application and like is not None and self.when_full.grows) or like.tasks:
            return
        mem_mib = self._as_promised(self._said[like.id]).share.mem_mib
        before_mib = self._believed_mib.get(application, 0)
        if abs(mem_mib - before_mib) * PROMISE_STEPS > mem_mib:
            self._believed_mib[application] = mem_mib
            self._offer_alike(application)

    def runs_again(self, job: Job, held_mib: int) -> None:
        """A job that ran out of memory waits again: it asks for more, and so do those like it."""
        own = self._own_needs.get(job.id, NO_NEED)
        if self.when_full is WhenFull.RELAUNCH:
            need = MemoryNeed(max(ALONE, own.times + 1), held_mib)
        else:
            need = need_of_next_attempt(own, held_mib, [self._most_mib])
            self._needs.learn(job.application or None, need)
        self._own_needs[job.id] = need
        waiting = self._scheduler.waiting(job.id)
        if waiting is not None:
            self._scheduler.replace(self._as_needed(waiting))
        if job.application and self.when_full is not WhenFull.RELAUNCH:
            self._offer_alike(job.application)

    # What is suspended

    def away(self, run: Running) -> None:
        """A run has left its GPUs, and keeps what it has done."""
        if (held := self.held.get(run.job.id)) is not None:
            held.suspension, held.parked_mib, held.due_ms = SUSPENDED, run.parked_mib, None
            self._room = True
            self._loop.call_soon(self.growth.leaves, held)

    def back(self, run: Running) -> None:
        """A run is on its GPUs again."""
        if (held := self.held.get(run.job.id)) is not None:
            held.run, held.suspension, held.lends_to = run, "", ""
            self._touched[held.id] = held
            self._loop.call_soon(self._go_on, held)

    def _go_on(self, held: Held) -> None:
        if self.held.get(held.id) is held and not held.suspension and held.id in self.growth.jobs:
            self.growth.go_on(held)

    def held_mib(self, run: Running) -> int:
        """What a run holds of each of its GPUs."""
        if (held := self.held.get(run.job.id)) is None:
            return 0
        self._take_until(held, self._loop.now_ms)
        return held.used_mib

    def stands(self, run: Running) -> bool:
        """Whether a run makes no progress: its call waits, or its memory is being copied out."""
        held = self.held.get(run.job.id)
        return held is not None and held.stands

    def _can_suspend(self, held: Held) -> bool:
        """Whether the memory of its nodes can take what it holds, with what others are about to leave there."""
        if held.wanted_mib:
            return False
        self._take_until(held, self._loop.now_ms)
        leaving = [each for each in self.held.values() if each.suspension == SUSPENDING]
        for part in held.run.parts:
            coming_mib = sum(
                other.gpus * each.used_mib
                for each in leaving
                for other in each.run.parts
                if other.node == part.node
            )
            if part.gpus * held.used_mib + coming_mib > int(self.cluster.free.mem_mib[part.node]):
                return False
        return True

    def _has_left(self, held: Held, now_ms: int) -> bool:
        if self.held.get(held.id) is not held or held.suspension != SUSPENDING:
            return False
        self._loop.now_ms = now_ms
        if not self._runs.leave(held.run, held.used_mib, now_ms):
            held.suspension, held.lends_to = "", ""
            self._touched[held.id] = held
            self._loop.call_soon(self._go_on, held)
        self._room = True
        return True

    # What follows

    def settle(self, now_ms: int) -> bool:
        """Answer what was asked, and do what follows from that. Returns whether the policy is to decide."""
        loop, decide = self._loop, False
        loop.now_ms = now_ms
        while loop.due or self._room or self._out:
            if self._room:
                self._room, decide = False, True
                self.growth.room_made()
            while loop.due:
                loop.due.pop(0)()
            while self._out:
                held, needed_mib = self._out.pop()
                if self.held.get(held.id) is held and self._is_out(held, now_ms):
                    self._runs.ran_out(held.run, needed_mib, now_ms)
                    decide = True
        touched, self._touched = self._touched, {}
        for held in touched.values():
            stands = bool(held.wanted_mib) or held.suspension == SUSPENDING
            if stands is not held.stands:
                held.stands, held.due_ms = stands, None
                self._runs.speed_changed(held.run, now_ms)
            elif not stands and not held.suspension:
                self.expect(held.run, now_ms)
        return decide

    def _is_out(self, held: Held, now_ms: int) -> bool:
        """Whether a run that may have too little memory does: without limits only if its card is full."""
        return self.when_full is not WhenFull.RELAUNCH or any(
            self._used_mib(at, now_ms) > self.gpus[at].mem_mib for at in held.slots
        )

    # As the host of growth

    def tenants(self) -> Iterable[Held]:
        return self.held.values()

    def tenants_on(self, at: int) -> Iterable[Held]:
        return self._on[at].values()

    def partition_of(self, tenant: Held) -> str:
        return tenant.id

    def most_mib(self, tenant: Held) -> int:
        return 0 if tenant.best_effort else self._most_mib

    def others_mib(self, at: int) -> int:
        return 0

    def uncounted_mib(self, tenant: Held) -> int:
        return 0

    def room_kept(self) -> AbstractContextManager[None]:
        return nullcontext()

    def grown(self, tenant: Held, mem_mib: int) -> None:
        tenant.share = tenant.share[0], mem_mib
        self._runs.resize(tenant.run, Share(*tenant.share), self._loop.now_ms)

    def lend(self, tenant: Held, to: Held) -> None:
        """It leaves its GPUs once its memory has been copied out, and does nothing meanwhile."""
        tenant.suspension, tenant.lends_to, tenant.due_ms = SUSPENDING, to.id, None
        self._touched[tenant.id] = tenant
        takes_ms = self.suspension.takes_ms(tenant.run, tenant.used_mib, self.cluster.nodes)
        self._runs.later(self._loop.now_ms + takes_ms, lambda at_ms: self._has_left(tenant, at_ms))

    def let_resume(self, tenant: Held) -> None: ...

    def act(self) -> None: ...

    def log(self, event: str, /, **values: object) -> None: ...

    def _granter_of(self, _: Host[Held], tenant: Held, at: int, woken: Callable[[], None]) -> _Granter:
        if speaks := at == tenant.slots[0]:
            tenant.woken = woken
        return _Granter(self, tenant, speaks)

    def _number(self, slot: GpuSlot) -> int:
        return self._first[slot.node] + slot.index


def _with_share(job: Job, share: Share) -> Job:
    return job if job.share == share else replace(job, share=share)


def _check(nodes: Sequence[Node], interference: Interference) -> None:
    unknown = [node.name for node in nodes if node.gpus and not (node.gpu_model and node.gpu_model.mem_mib)]
    if unknown or not any(node.gpus for node in nodes):
        raise SettingError(
            "when_full needs to know the memory of the GPUs: "
            + (f"it is not known of {', '.join(unknown[:5])}" if unknown else "no node has one")
            + "; name a GPU model in the cluster, such as 10x8:V100"
        )
    if not isinstance(interference, KnowsMemoryOverTime):
        raise SettingError(
            "when_full needs a model of interference that knows what jobs use of GPU memory, such as mps"
        )
    if isinstance(interference, KnowsProfiles) and isinstance(interference.speeds, PartsMemory):
        raise SettingError(
            "the memory of MIG slices does not grow, and no job takes another's; leave when_full out, or take mps"
        )
