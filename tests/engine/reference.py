"""A reference simulator: what `berth.engine.simulate` does, in plain lists, with nothing kept between decisions.

It knows jobs of parts of GPUs and on several nodes, CPU and memory, GPU models, priorities, deadlines, time limits,
estimates, patience, dependencies, outages, maintenance, reservations, checkpoints, restarts and speeds of cards, under
five policies with the placement `first-fit`: `fifo`, `deadline-first`, `easy`, `conservative` and `preempt`. It is
slow, and is to be read: a property test holds the simulator to it, event by event and slot by slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from berth.card_speeds import ALL_ALIKE, CardSpeeds
from berth.cluster.outages import Recovery
from berth.model import FOREVER_MS, GpuSlot, Job, Node, Outage, Reservation

NO_RECOVERY = Recovery()
NEVER = 10**15
UNLIMITED = 10**15
END, LOST, DRAIN, BACK, OPEN, KEEP, CLEAR, WAKE, LEAVE = range(9)
Slots = tuple[GpuSlot, ...]
Told = tuple[int, str, str, int, Slots, str]
"""When, what, which job, which attempt, where, why."""


@dataclass
class Free:
    """What is free on one node."""

    cpu: int
    mem: int
    milli: list[int]
    gpu_mem: list[int]


Room = list[Free]


@dataclass(eq=False)
class Run:
    """A job that runs."""

    job: Job
    attempt: int
    slots: Slots
    start_ms: int
    end_ms: int
    left_before_ms: int
    """Work that was left when it started."""


def least_of(one: Free, other: Free) -> Free:
    """What is free of a node at two moments."""
    return Free(
        min(one.cpu, other.cpu),
        min(one.mem, other.mem),
        [*map(min, one.milli, other.milli)],
        [*map(min, one.gpu_mem, other.gpu_mem)],
    )


def part(job: Job) -> tuple[int, int, int]:
    """GPUs, CPU and memory of each node."""
    return job.gpus // job.nodes, -(-job.cpu_milli // job.nodes), -(-job.mem_mib // job.nodes)


@dataclass
class Reference:
    """One simulation."""

    nodes: Sequence[Node]
    policy: str
    recovery: Recovery = NO_RECOVERY
    speeds: CardSpeeds = ALL_ALIKE
    events: list[Told] = field(default_factory=list)
    queue: list[tuple[Job, int]] = field(default_factory=list)
    """Waiting jobs and the attempt that each waits for."""
    runs: dict[str, Run] = field(default_factory=dict)
    left_ms: dict[str, int] = field(default_factory=dict)
    heap: list[tuple[int, int, int, object]] = field(default_factory=list)
    serial: int = 0
    leaves: dict[str, int] = field(default_factory=dict)
    held: dict[str, tuple[Job, set[str]]] = field(default_factory=dict)
    never: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.down = [0] * len(self.nodes)
        self.reserved: list[tuple[str, ...]] = [()] * len(self.nodes)
        self.now_ms = 0

    # Room

    def room(self, *, empty: bool = False) -> Room:
        """What is free now."""
        room = [
            Free(
                UNLIMITED if node.cpu_milli is None else node.cpu_milli,
                UNLIMITED if node.mem_mib is None else node.mem_mib,
                [1000] * node.gpus,
                [node.gpu_model.mem_mib if node.gpu_model else 0] * node.gpus,
            )
            for node in self.nodes
        ]
        if not empty:
            for run in self.runs.values():
                self.take(room, run.job, run.slots)
        return room

    def take(self, room: Room, job: Job, slots: Slots, sign: int = 1) -> None:
        """Take a job's slots of a room; with −1 give them back."""
        for number in dict.fromkeys(slot.node for slot in slots):
            there = sum(slot.node == number for slot in slots)
            room[number].cpu -= sign * -(-job.cpu_milli * there // len(slots))
            room[number].mem -= sign * -(-job.mem_mib * there // len(slots))
        for slot in slots:
            if slot.index >= 0:
                room[slot.node].milli[slot.index] -= sign * job.share.milli
                room[slot.node].gpu_mem[slot.index] -= sign * job.share.mem_mib

    def allowed(self, number: int, job: Job, *, empty: bool = False) -> bool:
        node = self.nodes[number]
        if job.gpus and job.models and (node.gpu_model is None or node.gpu_model.name not in job.models):
            return False
        if empty:
            return True
        return not self.down[number] and (not self.reserved[number] or job.user in self.reserved[number])

    def devices(self, free: Free, job: Job, *, tightest: bool) -> list[int] | None:
        """GPUs of a node for one part of a job; None where it has too little."""
        gpus, cpu, mem = part(job)
        if free.cpu < cpu or free.mem < mem:
            return None
        fit = [
            index
            for index, milli in enumerate(free.milli)
            if milli >= job.share.milli and free.gpu_mem[index] >= job.share.mem_mib
        ]
        if len(fit) < gpus:
            return None
        if tightest and job.share.milli < 1000:
            fit.sort(key=lambda index: free.milli[index])
        return fit[:gpus]

    def on(self, number: int, room: Room, job: Job, *, tightest: bool, empty: bool = False) -> Slots | None:
        """Slots for one part of a job on a node."""
        if not self.allowed(number, job, empty=empty):
            return None
        found = self.devices(room[number], job, tightest=tightest)
        if found is None:
            return None
        return tuple(GpuSlot(number, index) for index in found) or (GpuSlot(number, -1),)

    def slots(self, room: Room, job: Job, *, tightest: bool = False, empty: bool = False) -> Slots | None:
        """Slots on the first nodes that fit."""
        chosen: list[Slots] = []
        for number in range(len(room)):
            there = self.on(number, room, job, tightest=tightest, empty=empty)
            if there is not None:
                chosen.append(there)
            if len(chosen) == job.nodes:
                return tuple(slot for slots in chosen for slot in slots)
        return None

    def has_room(self, room: Room, job: Job, slots: Slots) -> bool:
        """Whether a job could take these slots."""
        left = deepcopy(room)
        self.take(left, job, slots)
        numbers = {slot.node for slot in slots}
        return all(left[number].cpu >= 0 and left[number].mem >= 0 for number in numbers) and all(
            slot.index < 0
            or (left[slot.node].milli[slot.index] >= 0 and left[slot.node].gpu_mem[slot.index] >= 0)
            for slot in slots
        )

    # Time

    def speed_milli(self, job: Job, slots: Slots) -> int:
        """The speed of a job on the slowest of its cards."""
        table = self.speeds.table
        of = table.get(job.application, table.get("", {})) if job.gpus else {}
        models = [self.nodes[slot.node].gpu_model for slot in slots]
        return min(of.get(model.name, 1000) if model else 1000 for model in models)

    def card_ms(self, job: Job, work_ms: int, slots: Slots) -> int:
        """How long work takes on the slowest card of these slots."""
        milli = self.speed_milli(job, slots)
        work_us = -(-work_ms * 1_000_000 // milli)
        return -(-work_us // 1000)

    def stated_ms(self, job: Job) -> int | None:
        return job.time_limit_ms or job.estimate_ms or None

    def expected_ms(self, job: Job, slots: Slots) -> int:
        """How long a waiting job is expected to run on these slots."""
        stated_ms = self.stated_ms(job)
        return self.card_ms(job, job.work_ms or 0, slots) if stated_ms is None else stated_ms

    def true_run_ms(self, job: Job, left_ms: int, slots: Slots, *, again: bool) -> int:
        """How long an attempt with this work left runs, if nothing stops it."""
        run_ms = self.card_ms(job, left_ms, slots) + (self.recovery.restart_ms if again else 0)
        if job.keeps_work and self.recovery.write_ms and self.recovery.checkpoint_ms and left_ms:
            run_ms += (left_ms - 1) // self.recovery.checkpoint_ms * self.recovery.write_ms
        return run_ms

    def expected_end_ms(self, run: Run) -> int:
        """When a run is expected to end."""
        stated_ms = self.stated_ms(run.job)
        if stated_ms is not None:
            return run.start_ms + stated_ms
        again = run.job.id in self.left_ms
        return run.start_ms + self.true_run_ms(run.job, run.left_before_ms, run.slots, again=again)

    # The policies

    def order(self) -> list[Job]:
        jobs = [job for job, _ in self.queue]
        if self.policy == "deadline-first":
            return sorted(
                jobs, key=lambda job: NEVER if job.deadline_ms is None else job.submit_ms + job.deadline_ms
            )
        return sorted(jobs, key=lambda job: -job.priority) if self.policy == "preempt" else jobs

    def decide(self) -> None:
        if self.policy == "easy":
            self.easy()
        elif self.policy == "conservative":
            self.conservative()
        elif self.policy == "preempt":
            while self.preempt():
                pass
        else:
            self.strict()

    def strict(self) -> list[Job]:
        """Start jobs in their order until one does not fit; returns that one."""
        for job in self.order():
            slots = self.slots(self.room(), job)
            if slots is not None:
                self.start(job, slots)
            elif job.patience_ms != 0:
                return [job]
        return []

    def easy(self) -> None:
        heads = self.strict()
        if not heads:
            return
        head = heads[0]
        later, reserved_ms = self.room(), FOREVER_MS
        head_slots: Slots | None = None
        for run in sorted(self.runs.values(), key=self.expected_end_ms):
            end_ms = self.expected_end_ms(run)
            if head_slots is not None and end_ms > reserved_ms:
                break
            self.take(later, run.job, run.slots, -1)
            if head_slots is None:
                head_slots = self.slots(later, head, tightest=True)
                reserved_ms = FOREVER_MS if head_slots is None else max(end_ms, self.now_ms + 1)
        if head_slots is not None:
            head_slots = self.slots(later, head, tightest=True)
            assert head_slots is not None
            self.take(later, head, head_slots)

        def spares(job: Job, slots: Slots) -> bool:
            """Whether the first job keeps its slots, or others that are as good."""
            nonlocal head_slots
            if head_slots is None or self.has_room(later, job, slots):
                return True
            self.take(later, head, head_slots, -1)
            mine = head_slots
            good = self.has_room(later, job, slots)
            if good:
                self.take(later, job, slots)
                other = self.slots(later, head, tightest=True)
                self.take(later, job, slots, -1)
                good = other is not None
                mine = other or mine
            head_slots = mine
            self.take(later, head, mine)
            return good

        for job in self.order():
            if job is head:
                continue
            now = self.room()
            slots = self.slots(now, job)
            if slots is None:
                continue
            if reserved_ms < self.now_ms + self.expected_ms(job, slots) and not spares(job, slots):
                slots = self.sparing(job, now, later, spares)
                if slots is None:
                    continue
            run = self.start(job, slots)
            if reserved_ms < self.expected_end_ms(run):
                self.take(later, job, slots)

    def sparing(self, job: Job, now: Room, later: Room, spares: Callable[[Job, Slots], bool]) -> Slots | None:
        """Slots that fit now and leave the first job what it needs: on the first node that does; of several nodes those
        with room beside the first job, else each of the first that leaves it room."""
        numbers = range(len(self.nodes))
        if job.nodes == 1:
            there = (self.on(number, now, job, tightest=True) for number in numbers)
            return next((slots for slots in there if slots is not None and spares(job, slots)), None)
        fitting = [number for number in numbers if self.on(number, now, job, tightest=True) is not None]
        both = [number for number in fitting if self.on(number, later, job, tightest=True) is not None]
        if len(both) < job.nodes:
            return None
        least = [least_of(one, other) for one, other in zip(now, later, strict=True)]
        slots = self.slots(least, job, tightest=True)
        if slots is not None:
            return slots
        one = replace(job, nodes=1, gpus=job.gpus // job.nodes)
        chosen: Slots = ()
        for number in fitting:
            more = (*chosen, *(self.on(number, now, one, tightest=True) or ()))
            if spares(one, more):
                chosen = more
            if len(chosen) == job.gpus:
                return chosen if spares(job, chosen) else None
        return None

    def conservative(self) -> None:
        """Every job in its order is given the earliest time at which it fits to its end."""
        taken = [
            (run.job, run.slots, self.now_ms, max(self.expected_end_ms(run), self.now_ms + 1))
            for run in self.runs.values()
        ]

        def free_between(from_ms: int, until_ms: int) -> Room:
            """What is free all the time."""
            moments = [from_ms, *(begin for _, _, begin, end in taken if from_ms < begin < until_ms)]
            least = self.room(empty=True)
            for moment_ms in moments:
                room = self.room(empty=True)
                for job, slots, begin_ms, end_ms in taken:
                    if begin_ms <= moment_ms < end_ms:
                        self.take(room, job, slots)
                least = [least_of(one, other) for one, other in zip(least, room, strict=True)]
            return least

        def earliest(job: Job) -> tuple[int, Slots, int] | None:
            for begin_ms in sorted({self.now_ms, *(end_ms for *_, end_ms in taken)}):
                runs_ms = 0
                while True:
                    slots = self.slots(free_between(begin_ms, begin_ms + max(1, runs_ms)), job, tightest=True)
                    if slots is None:
                        break
                    there_ms = self.expected_ms(job, slots)
                    if there_ms <= runs_ms:
                        return begin_ms, slots, runs_ms
                    runs_ms = there_ms
            return None

        for job in self.order():
            found = earliest(job)
            if found is None:
                continue
            begin_ms, slots, runs_ms = found
            if begin_ms == self.now_ms:
                first = self.slots(self.room(), job)
                assert first is not None
                first_ms = self.expected_ms(job, first)
                if self.has_room(free_between(self.now_ms, self.now_ms + max(1, first_ms)), job, first):
                    slots, runs_ms = first, first_ms
                self.start(job, slots)
            elif job.patience_ms == 0:
                continue
            taken.append((job, slots, begin_ms, begin_ms + max(1, runs_ms)))

    def preempt(self) -> bool:
        """One look at the queue; returns whether to look again."""
        for job in self.order():
            slots, evicted = self.slots(self.room(), job), False
            if slots is None and job.patience_ms != 0:
                for run in self.victims(job):
                    self.evict(run)
                    evicted = True
                slots = self.slots(self.room(), job)
            if slots is not None:
                self.start(job, slots)
            elif job.patience_ms != 0:
                return False
            if evicted:
                return True
        return False

    def victims(self, job: Job) -> list[Run]:
        """The runs of a lower priority to evict, the lowest and then the latest first, and none that is not needed."""
        behind = [run for run in self.runs.values() if run.job.priority < job.priority]
        behind.sort(key=lambda run: (-run.job.priority, run.start_ms), reverse=True)
        room, gone = self.room(), []
        for run in behind:
            self.take(room, run.job, run.slots, -1)
            gone.append(run)
            if self.slots(room, job, tightest=True) is not None:
                break
        else:
            return []
        needed = []
        for run in gone:
            self.take(room, run.job, run.slots)
            if run is gone[-1] or self.slots(room, job, tightest=True) is None:
                self.take(room, run.job, run.slots, -1)
                needed.append(run)
        return needed

    # What happens to jobs

    def tell(self, kind: str, job: Job, attempt: int, slots: Slots = (), why: str = "") -> None:
        self.events.append((self.now_ms, kind, job.id, attempt, slots, why))

    def push(self, time_ms: int, kind: int, what: object) -> int:
        self.serial += 1
        heappush(self.heap, (time_ms, kind, self.serial, what))
        return self.serial

    def start(self, job: Job, slots: Slots) -> Run:
        attempt = next(number for one, number in self.queue if one is job)
        self.queue = [each for each in self.queue if each[0] is not job]
        self.leaves.pop(job.id, None)
        again = job.id in self.left_ms
        left_ms = self.left_ms.get(job.id, job.work_ms or 0)
        end_ms = self.now_ms + self.true_run_ms(job, left_ms, slots, again=again)
        if job.time_limit_ms is not None:
            end_ms = min(end_ms, self.now_ms + job.time_limit_ms)
        run = self.runs[job.id] = Run(job, attempt, slots, self.now_ms, end_ms, left_ms)
        self.tell("start", job, attempt, slots)
        self.push(end_ms, END, run)
        return run

    def evict(self, run: Run) -> None:
        del self.runs[run.job.id]
        self.tell("evict", run.job, run.attempt, run.slots)
        self.again(run)

    def again(self, run: Run) -> None:
        """An attempt was stopped: its job waits again, with what is left of its work."""
        job, recovery = run.job, self.recovery
        ran_ms = self.now_ms - run.start_ms - (recovery.restart_ms if job.id in self.left_ms else 0)
        left_ms = job.work_ms or 0
        if job.keeps_work:
            milli = self.speed_milli(job, run.slots)
            all_us = -(-run.left_before_ms * 1_000_000 // milli)
            if recovery.write_ms and recovery.checkpoint_ms:
                period_us = -(-recovery.checkpoint_ms * 1_000_000 // milli) + recovery.write_ms * 1000
                left_ms = run.left_before_ms - max(0, ran_ms * 1000 // period_us) * recovery.checkpoint_ms
            else:
                left_on_card_ms = -(-(all_us - ran_ms * 1000) // 1000)
                done_ms = left_ms - min(-(-left_on_card_ms * milli // 1000), run.left_before_ms)
                every_ms = recovery.checkpoint_ms or 1
                left_ms -= done_ms // every_ms * every_ms
        self.left_ms[job.id] = left_ms
        self.wait(job, run.attempt + 1)
        self.tell("submit", job, run.attempt + 1)

    def wait(self, job: Job, attempt: int) -> None:
        self.queue.append((job, attempt))
        if job.patience_ms is not None:
            self.leaves[job.id] = self.push(self.now_ms + job.patience_ms, LEAVE, job)

    def reject(self, job: Job, attempt: int, why: str) -> None:
        self.tell("reject", job, attempt, (), why)
        self.ends_badly(job)

    def ends_badly(self, job: Job) -> None:
        """Jobs that come after it never start."""
        self.never.add(job.id)
        for name, (other, missing) in list(self.held.items()):
            if job.id in missing and name in self.held:
                del self.held[name]
                self.reject(other, 1, "dependency")

    def arrive(self, job: Job) -> bool:
        """A job is submitted; returns whether it waits for room."""
        self.tell("submit", job, 1)
        if any(name in self.never for name in job.after):
            self.reject(job, 1, "dependency")
            return False
        there = {one.id for one, _ in self.queue} | self.runs.keys() | self.held.keys()
        missing = {name for name in job.after if name in there}
        if missing:
            self.held[job.id] = (job, missing)
            return False
        return self.enter(job)

    def enter(self, job: Job) -> bool:
        """A job that waits for no other does so for room, if there could be any."""
        if self.slots(self.room(empty=True), job, empty=True) is None:
            self.reject(job, 1, "never-fits")
            return False
        self.wait(job, 1)
        return True

    def end(self, run: Run) -> None:
        job = run.job
        del self.runs[job.id]
        again = job.id in self.left_ms
        done = self.now_ms >= run.start_ms + self.true_run_ms(job, run.left_before_ms, run.slots, again=again)
        self.left_ms.pop(job.id, None)
        if not done:
            self.tell("fail", job, run.attempt, run.slots, "time-limit")
            self.ends_badly(job)
            return
        self.tell("finish", job, run.attempt, run.slots)
        for name, (other, missing) in list(self.held.items()):
            missing.discard(job.id)
            if not missing:
                del self.held[name]
                self.enter(other)

    def lose(self, outage: Outage) -> None:
        if not outage.drain_ms:
            self.down[outage.node] += 1
        for run in [run for run in self.runs.values() if any(slot.node == outage.node for slot in run.slots)]:
            if outage.drain_ms:
                self.evict(run)
                continue
            del self.runs[run.job.id]
            self.tell("fail", run.job, run.attempt, run.slots, "node-lost")
            self.again(run)

    def clear(self, reservation: Reservation) -> None:
        """Evict what others than its users run on reserved nodes."""
        for run in list(self.runs.values()):
            on_it = any(slot.node in reservation.nodes for slot in run.slots)
            if on_it and run.job.user not in reservation.users:
                self.evict(run)

    # The loop

    def simulate(
        self, jobs: Sequence[Job], outages: Sequence[Outage] = (), reservations: Sequence[Reservation] = ()
    ) -> list[Told]:
        """All events."""
        for outage in outages:
            if outage.drain_ms:
                self.push(outage.down_ms - outage.drain_ms, DRAIN, outage)
            self.push(outage.down_ms, LOST, outage)
            if outage.up_ms is not None:
                self.push(outage.up_ms, BACK, outage)
        for one in reservations:
            self.push(one.start_ms - one.drain_ms, KEEP, one)
            self.push(one.start_ms, CLEAR, one)
            self.push(one.end_ms, OPEN, one)
        to_come = list(jobs)
        while to_come or self.heap:
            self.now_ms = min([job.submit_ms for job in to_come[:1]] + [entry[0] for entry in self.heap[:1]])
            self.instant(to_come)
        last_ms = self.events[-1][0] if self.events else 0
        waiting = [*self.queue, *((job, 1) for job, _ in self.held.values())]
        self.events += [(last_ms, "reject", job.id, attempt, (), "left-waiting") for job, attempt in waiting]
        return self.events

    def due(self, *, leaving: bool) -> Iterator[tuple[int, int, object]]:
        """What happens now, one after the other."""
        while self.heap and self.heap[0][0] == self.now_ms and (self.heap[0][1] == LEAVE) == leaving:
            _, kind, serial, what = heappop(self.heap)
            yield kind, serial, what

    def instant(self, to_come: list[Job]) -> None:
        ask = False
        for kind, _, what in self.due(leaving=False):
            if kind == END and isinstance(what, Run):
                if self.runs.get(what.job.id) is what:
                    self.end(what)
                    ask = True
            elif isinstance(what, Outage):
                if kind == LOST:
                    self.lose(what)
                else:
                    self.down[what.node] += 1 if kind == DRAIN else -1
                ask = ask or kind != DRAIN
            elif isinstance(what, Reservation):
                if kind == CLEAR:
                    self.clear(what)
                else:
                    for number in what.nodes:
                        self.reserved[number] = what.users if kind == KEEP else ()
                ask = True
            else:
                ask = True
        while to_come and to_come[0].submit_ms == self.now_ms:
            ask = self.arrive(to_come.pop(0)) or ask
        if ask and self.queue:
            self.decide()
        left = False
        for _, serial, what in self.due(leaving=True):
            if isinstance(what, Job) and self.leaves.get(what.id) == serial:
                del self.leaves[what.id]
                attempt = next(number for one, number in self.queue if one is what)
                self.queue = [each for each in self.queue if each[0] is not what]
                self.left_ms.pop(what.id, None)
                self.reject(what, attempt, "patience")
                left = True
        if left and self.queue:
            self.push(self.now_ms, WAKE, None)
