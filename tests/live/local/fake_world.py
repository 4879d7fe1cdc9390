"""The broker's part in few lines, over a fake clock and processes that are numbers: what the real book, store and brain
are tested against."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from berth.cluster import Cluster, Queue
from berth.live.local.book import Book
from berth.live.local.brain import Brain
from berth.live.local.entry import ENDED, RUNNING, STARTING, WAITING, End, Entry, Limits
from berth.live.local.request import Request, Tasks
from berth.live.local.store import Store, of_attempt, of_entry, of_request
from berth.model import Placement

CARD_MIB = 1000


class Now:
    """What the policy is to do at this moment."""

    starts: Callable[[str], bool] = staticmethod(lambda job_id: False)
    """Which jobs it starts."""


def first_fit(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
    """Start what fits, in the order of the queue, when the test says so."""
    for job in queue:
        if Now.starts(job.id) and (slots := cluster.slots_for(job, cluster.fitting_nodes(job))):
            yield Placement(job, slots, job.share)


class Crash(BaseException):
    """The broker is killed here."""


@dataclass
class FakeWorld:
    """Jobs' processes, which outlive the broker, and a broker that does what the book says."""

    path: Path
    cards: int = 2
    cards_mib: tuple[int, ...] = ()
    """Memory of each card; empty: each has `CARD_MIB`."""
    fault: Callable[[str], None] = lambda step: None
    now_ms: int = 1_000
    processes: dict[tuple[str, int], End | None] = field(default_factory=dict)
    """How each start that was carried out ended; None: it runs."""
    forgotten: set[tuple[str, int]] = field(default_factory=set)
    """Starts of which no trace is left."""
    attempts: set[tuple[str, int]] = field(default_factory=set)
    """The attempts that ran."""
    ends: dict[str, list[str]] = field(default_factory=dict)
    """The states that each job came to its end with."""
    submitted: set[str] = field(default_factory=set)
    requeued: set[str] = field(default_factory=set)
    boot: str = "first"
    policy: str = f"{__name__}:first_fit"
    knowledge: str = "user"
    start_faults: dict[str, str] = field(default_factory=dict)
    """Jobs whose next start does not come about, and why."""

    def __post_init__(self) -> None:
        self.key = 0
        self.cards_mib = self.cards_mib or (CARD_MIB,) * self.cards
        self.up()

    def up(self) -> None:
        """A broker begins: all that it knows is in the store."""
        self.store = Store(str(self.path), fault=self.fault)
        self.book = Book(Limits(self.cards_mib, 8000, 0), self.boot, ended_states=self.store.ended_states)
        number, serial, self.key = self.store.largest()
        self.book.number_from((number + 1, serial + 1))
        self.book.load(self.store.live(), self.now_ms)
        for entry in list(self.book.jobs.values()):
            if entry.state in (STARTING, RUNNING) and entry.over is None:
                key = (entry.id, entry.start)
                end = self.processes.get(key)
                if entry.boot != self.boot:
                    self.book.ended(entry, End(None, lost=True), self.now_ms)
                elif key not in self.processes or key in self.forgotten:
                    self.book.ended(entry, End(None, never_ran=True), self.now_ms)
                elif end is None:
                    self.book.confirmed(entry, self.now_ms, self.now_ms)
                else:
                    self.book.ended(entry, end, self.now_ms)
        self.start_brain()

    def start_brain(self) -> None:
        """A brain begins: all that it knows is told by the book."""
        nodes = [
            {
                "name": f"here-{mib}", "gpus": self.cards_mib.count(mib), "model": "A100", "card_mib": mib,
                "indices": [at for at, each in enumerate(self.cards_mib) if each == mib], "cpu_milli": None,
                "mem_mib": None,
            }
            for mib in sorted(set(self.cards_mib), reverse=True)
        ]  # fmt: skip
        begin = {"nodes": nodes, "policy": self.policy, "knowledge": self.knowledge, "can_suspend": True}
        self.brain = Brain(begin, self.hear)
        self.brain.take(self.book.begin_anew())
        self.heed()

    def hear(self, message: dict[str, Any]) -> None:
        """What the brain says."""
        book, said = self.book, message["say"]
        if said == "start":
            share = (message["share"][0], message["share"][1])
            slots, best_effort = tuple(message["slots"]), message["best_effort"]
            book.placed(message["id"], message["version"], slots, share, self.now_ms, best_effort=best_effort)
        elif said == "evict":
            book.evicted(message["id"], self.now_ms)
        elif said == "suspend":
            book.suspended_by_brain(message["id"], self.now_ms)
        elif said == "resume":
            book.resumed_by_brain(message["id"], self.now_ms)
        elif said in ("again", "give-up"):
            fields = {name: value for name, value in message.items() if name != "say"}
            (book.again if said == "again" else book.give_up)(**fields, now_ms=self.now_ms)
        elif said == "remember":
            book.remember(message["job_id"], message["needs_mib"])
        assert said != "error", message

    def crash(self) -> None:
        """kill -9 of the broker, and another one begins; processes go on."""
        self.store.close()
        self.up()

    def reboot(self) -> None:
        """The machine restarts: no process is left."""
        self.boot += "'"
        self.processes = dict.fromkeys(self.processes, End(None, lost=True))
        self.crash()

    def submit(self, request: Request, tasks: Tasks) -> list[Entry]:
        """As the service does: written first."""
        self.key += 1
        made = self.book.draft(request, tasks, key=self.key, uid=1, user="ann", now_ms=self.now_ms)
        self.write(request, made)
        self.heed()
        return made

    def write(self, request: Request, made: list[Entry]) -> None:
        """Write jobs that were submitted, and queue them."""
        # A user knows of them only when they were written; see `crash`.
        self.submitted |= {entry.id for entry in made}
        try:
            self.store.write([of_request(self.key, request), *map(of_entry, made)])
        except Crash:
            self.submitted -= {entry.id for entry in made}
            raise
        self.book.add(made, self.now_ms)

    def heed(self, start: Callable[[str], bool] = lambda job_id: False) -> None:
        """Tell the brain, which settles what is over, until neither has more to say; it may start these jobs."""
        Now.starts = staticmethod(start)
        while True:
            events = self.book.take_events()
            self.brain.answer({"do": "decide", "now_ms": self.now_ms, "serial": 1, "events": events})
            if not self.book.events:
                return

    @property
    def offers(self) -> dict[str, Any]:
        """The jobs that the brain has among those that wait."""
        return {job_id: self.brain.driver.job(job_id) for job_id in self.brain.driver.site.waiting()}

    def free_mib(self, at: int) -> int:
        """What no job that starts or runs holds of a card."""
        return self.cards_mib[at] - sum(
            job.share[1]
            for job in self.book.jobs.values()
            if at in job.slots and job.state in (STARTING, RUNNING)
        )

    def decide(self) -> None:
        """Start what fits."""
        self.heed(lambda job_id: True)

    def start(self, entry: Entry) -> None:
        """Start this job, and write it."""
        self.heed(lambda job_id: job_id == entry.id)
        self.commit()
        assert entry.state == RUNNING, entry.reason

    def moved(self, entry: Entry) -> None:
        """A job's processes leave their GPUs, or come back."""
        self.book.left_gpus(entry, 5000)
        self.book.came_back(entry, self.now_ms)

    def commit(self) -> None:
        """Write what has changed, then start what was to be started after that, and tell the brain."""
        self.commit_before_brain()
        self.heed()

    def commit_before_brain(self) -> None:
        """Write what has changed, then start what was to be started after that."""
        book = self.book
        changes = book.changes()
        finished, starts = changes.finished, changes.starts
        self.store.write([*map(of_entry, changes.entries.values()), *map(of_attempt, changes.attempts)])
        for entry in changes.moves:
            self.moved(entry)
        book.written(changes)
        self.forgotten |= {(entry.id, start) for entry, start in changes.settled}
        for entry in finished:
            self.ends.setdefault(entry.id, []).append(entry.state)
        for entry in starts:
            if entry.state != STARTING:
                continue
            if entry.stop:
                self.book.ended(entry, End(None, never_ran=True), self.now_ms)
                continue
            if why := self.start_faults.pop(entry.id, ""):
                self.book.ended(entry, End(None, why, never_ran=True), self.now_ms)
                continue
            key = (entry.id, entry.start)
            assert key not in self.processes, f"{key} is started twice"
            stored = self.store.named(entry.id)[0]
            assert (stored.state, stored.start) == (STARTING, entry.start), (
                "it is started before that is written"
            )
            attempt = (entry.id, entry.attempt)
            assert attempt not in self.attempts, f"attempt {attempt} runs twice"
            self.attempts.add(attempt)
            self.processes[key] = None
            self.book.confirmed(entry, self.now_ms, self.now_ms)

    def end(self, entry: Entry, end: End) -> None:
        """A process ends."""
        self.end_before_brain(entry, end)
        self.book.take_stops()
        self.heed()

    def end_before_brain(self, entry: Entry, end: End) -> None:
        """A process ends; the brain is not told yet."""
        self.processes[entry.id, entry.start] = end
        self.book.ended(entry, end, self.now_ms)

    def running(self) -> list[Entry]:
        """Jobs whose processes run, in order of submission."""
        return sorted(
            (job for job in self.book.jobs.values() if job.state == RUNNING), key=lambda job: job.serial
        )

    def finish(self) -> None:
        """Let everything come to its end."""
        self.commit()
        for _ in range(10_000):
            if not self.book.jobs:
                break
            self.now_ms += 60_000
            self.book.tick(self.now_ms)
            for entry in list(self.book.jobs.values()):
                if entry.state == "held":
                    self.book.release(entry, self.now_ms)
            self.heed()
            self.decide()
            self.commit()
            for entry in self.running():
                self.end(entry, End(0))
            self.commit()
        self.check()
        assert not self.book.jobs

    def check(self) -> None:
        """What always holds."""
        for at in range(self.cards):
            assert self.free_mib(at) >= 0, "more of a card is given away than it has"
        for job in self.book.jobs.values():
            assert job.state not in ENDED
            assert not job.offered or job.state == WAITING
            assert bool(job.slots) == (job.state in (STARTING, RUNNING) and job.request.gpus > 0)
            assert (job.id in self.offers) == job.offered
        for job_id, states in self.ends.items():
            assert len(states) == 1 or job_id in self.requeued, (
                f"job {job_id} came to its end more than once: {states}"
            )
