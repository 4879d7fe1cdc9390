"""The local queue in the contract of sites: the real book, store and brain over processes that are numbers."""

from __future__ import annotations

from pathlib import Path

from berth.live.local.entry import RUNNING, End
from berth.live.local.recording import record_of_attempt
from berth.live.local.request import Request, Tasks
from berth.model import Record, RecordState
from tests.live.driver.worlds import CARD_MIB, GPUS, Asked, Seen
from tests.live.local.fake_world import FakeWorld

ROUNDS = 6
"""How often the broker and the brain answer each other at one moment, at most."""


class LocalWorld:
    """A broker whose brain decides by `fifo+best-fit`."""

    no_gangs = ""
    no_suspension = ""

    def __init__(self, store: Path) -> None:
        self._world = FakeWorld(
            store, cards_mib=(CARD_MIB,) * GPUS, policy="fifo+best-fit",
            knowledge="history",
        )  # fmt: skip

    @property
    def records(self) -> list[Record]:
        """What the history gets of the attempts that the store has."""
        store, cards = self._world.store, [("A100-40", CARD_MIB)] * GPUS
        attempts = [each for job_id in self._world.submitted for each in store.attempts(job_id)]
        attempts.sort(key=lambda each: (each["end_ms"], int(each["job"]), each["attempt"]))
        return [
            record_of_attempt(each, store.request(each["request_key"]), cards, "n1", []) for each in attempts
        ]

    def submit(self, asked: Asked) -> str:
        """A user submits a job."""
        request = Request(
            ("sh", "-c", asked.application), name=asked.application, gpus=asked.gpus, milli=asked.milli,
            mem_mib=asked.mem_mib, retries=asked.retries, rerun=asked.reruns, cpu_milli=1000, host_mem_mib=100,
            gang=asked.gang[0], gang_starts=asked.gang[1],
        )  # fmt: skip
        world = self._world
        world.key += 1
        (entry,) = world.book.draft(
            request, Tasks(None, ((),)), key=world.key, uid=1, user="ann", now_ms=world.now_ms
        )
        world.write(request, [entry])
        return entry.id

    def cancel(self, job_id: str) -> None:
        """A user cancels a waiting job."""
        self._world.book.cancel(self._world.book.jobs[job_id], self._world.now_ms)

    def suspend(self, job_id: str) -> None:
        """A user suspends a running job."""
        self._world.now_ms += 1000
        self._world.book.suspend(self._world.book.jobs[job_id], self._world.now_ms)

    def resume(self, job_id: str) -> None:
        """A user lets a suspended job run on."""
        self._world.book.let_resume(self._world.book.jobs[job_id], self._world.now_ms)

    def step(self, now_ms: int) -> None:
        """Let the broker and the brain come to rest."""
        self._world.now_ms = now_ms
        for _ in range(ROUNDS):
            self._world.book.tick(now_ms)
            self._world.heed()
            self._world.commit()
            for entry in self._world.book.take_stops():
                if entry.state == RUNNING:
                    self._world.book.ended(entry, End(143), now_ms)

    def end(
        self, job_id: str, state: RecordState, *, needed_mib: int = 0, peak_mib: int | None = None
    ) -> None:
        """The processes of a running job end."""
        entry, world = self._world.book.jobs[job_id], self._world
        refused = state is RecordState.OUT_OF_MEMORY
        code = 0 if state is RecordState.COMPLETED else 1
        end = End(code, needed_mib=needed_mib, peak_mib=peak_mib, refused=int(refused))
        world.end_before_brain(entry, end)

    def fail_next_start(self, job_id: str, why: str) -> None:
        """The next start of a job does not come about."""
        self._world.start_faults[job_id] = why

    def lose_node(self) -> None:
        """The machine restarts."""
        self._world.reboot()

    def bring_node_back(self) -> None:
        """It has."""

    def hold(self, index: int, mem_mib: int) -> None:
        """A process of no job holds a GPU."""
        self._world.book.add_event({"event": "others", "slots": [(index, 1000 if mem_mib else 0, mem_mib)]})

    def restart(self) -> None:
        """The brain is killed."""
        self._world.start_brain()

    def seen(self) -> Seen:
        """What the broker and the brain show."""
        running = {job.id: job for job in self._world.book.jobs.values() if job.shown_state == RUNNING}
        return Seen(
            {job_id: job.slots for job_id, job in running.items()},
            {job_id: job.share[1] for job_id, job in running.items()},
            {job_id: reason.text for job_id, reason in self._world.brain.driver.reasons().items()},
            {job_id: RecordState(states[-1]) for job_id, states in self._world.ends.items()},
        )
