"""Kills at random moments while jobs ask for memory, grow, are suspended and come back; what was lost is counted."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from berth.errors import LiveError
from berth.live.local.protocol import Connection
from berth.live.local.runs import Run
from berth.live.local.snapshot import jobs_of
from berth.partition import partitions
from tests.live.local.world import World

JOB = str(Path(__file__).with_name("asking_job.py"))
CARD_MIB = 80 << 10
JOBS, STEPS = 6, 40
"""How many jobs are there at a time, and what each does before it ends."""
PROMISE_MIB, MOST_MIB = 4 << 10, 30 << 10
END_S = 300.0
"""Jobs that have not ended this long after the last kill wait for ever."""


@dataclass
class Storm:
    """What was killed, and what came of it."""

    killed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("tenant", "broker", "agent"), 0))
    jobs: int = 0
    """Jobs that nobody killed."""
    suspended: int = 0
    """How often jobs were suspended."""
    grown: int = 0
    refused: int = 0
    """Allocations that were not granted, of programs that went on without."""
    over_mib: int = 0
    """The most that the limits of the card's partitions were more than the card."""
    lost: list[str] = field(default_factory=list)
    """Jobs that nobody killed and that did not complete, and what the broker's log says of them."""
    forever: list[str] = field(default_factory=list)
    """Jobs that had not ended when all was over."""
    held_mib: int = 0
    left: list[str] = field(default_factory=list)
    """Partitions that were there at the end."""

    @property
    def faults(self) -> dict[str, Any]:
        """What should be nothing."""
        names = ("over_mib", "lost", "forever", "held_mib", "left")
        return {name: value for name in names if (value := getattr(self, name))}

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def storm(kills: int, seed: int) -> Storm:
    """Kill tenants, the broker, and the processes that suspend and resume, until there were that many kills."""
    made = World(gpus="1xA100-80G", options=["--grow", "suspend"], module="tests.live.local.idle_broker")
    try:
        made.up()
        return _Storming(made, seed).run(kills)
    finally:
        made.close()


class _Storming:
    def __init__(self, world: World, seed: int) -> None:
        self.world, self.draw, self.found = world, random.Random(seed), Storm()
        self.ended = world.folder / "ended"
        self.live: set[str] = set()
        self.shot: set[str] = set()
        self.all: list[str] = []

    def run(self, kills: int) -> Storm:
        """Kill, and count."""
        while sum(self.found.killed.values()) < kills:
            self._fill()
            signal.sigtimedwait([signal.SIGUSR2], self.draw.random() * 0.5)
            self._disturb()
            self._look()
        self._settle()
        return self.found

    def _fill(self) -> None:
        """Keep as many jobs there as there may be; some are interactive, some more urgent."""
        if (states := self._states()) is None:
            return
        self.live = {*states}
        for _ in range(JOBS - len(self.live)):
            flags: dict[str, Any] = {
                "mem": f"{PROMISE_MIB}M",
                "retries": "0",
                "priority": self.draw.randrange(2),
            }
            if self.draw.random() < 0.5:
                flags["interactive"] = True
            words = [
                "env",
                "BERTH_FAKE_CHECKPOINT=slow",
                sys.executable,
                JOB,
                str(STEPS),
                str(MOST_MIB),
                str(self.ended),
            ]
            with suppress(LiveError, OSError):
                self.all.append(self.world.submit(words, **flags))

    def _states(self) -> dict[str, str] | None:
        with suppress(LiveError, OSError):
            return {job.id: job.state for job in jobs_of(self.world.ask("queue"))}
        return None

    def _disturb(self) -> None:
        """Kill something, or have a job suspended or resumed."""
        world, killed, what = self.world, self.found.killed, self.draw.random()
        if what < 0.25:
            world.kill_broker()
            killed["broker"] += 1
            world.up(ready=False)
        elif what < 0.45:
            for pid in movers(world):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed["agent"] += 1
        elif what < 0.6 and self.live:
            self._shoot(self.draw.choice(sorted(self.live)))
        elif self.live:
            self._ask(self.draw.choice(("suspend", "resume")), self.draw.choice(sorted(self.live)))

    def _shoot(self, job: str) -> None:
        """Kill the program of a job, whatever it waits for."""
        begun = Run(self.world.places.runs, job, 1).began()
        if begun is not None and begun[0].alive:  # else another process may have its number
            self.shot.add(job)
            with suppress(ProcessLookupError):
                os.kill(begun[0].pid, signal.SIGKILL)
                self.found.killed["tenant"] += 1

    def _ask(self, what: str, job: str) -> None:
        """Ask without waiting for what comes of it."""
        with suppress(LiveError, OSError):
            connection = Connection(self.world.places.socket, timeout_s=0.05)
            try:
                connection.ask({"do": what, "ids": [job]})
            finally:
                connection.close()

    def _look(self) -> None:
        """Add up limits. They are read one after another, so that one sum alone may mix before and after."""
        root, over_mib = Path(self.world.environment["BERTH_ROOT"]), CARD_MIB
        for _ in range(3):
            limits_mib = sum(part.limit_bytes >> 20 for part in partitions(root))
            over_mib = min(over_mib, limits_mib - CARD_MIB)
            if over_mib <= 0:
                return
        self.found.over_mib = max(self.found.over_mib, over_mib)

    def _settle(self) -> None:
        """Let everything end; nobody is left suspended by a user."""
        world, found, end_s = self.world, self.found, time.monotonic() + END_S
        while (states := self._states()) is None or states:
            for job in states or ():
                self._ask("resume", job)
            self._look()
            if time.monotonic() > end_s:
                found.forever = sorted(states or ["the broker"])
                return
            time.sleep(0.1)
        done = self.ended.read_text().split("\n") if self.ended.exists() else []
        found.refused = sum(line.endswith("refused") for line in done)
        unharmed = [job for job in self.all if job not in self.shot]
        log, found.jobs = world.log(), len(unharmed)
        for job in unharmed:
            if done.count(job) != 1:
                told = world.job(job)
                lines = [line for line in log.splitlines() if f'"job": "{job}"' in line]
                found.lost.append(f"{job}: {told['state']}, {told['reason']}; {' '.join(lines[-20:])}")
        found.suspended, found.grown = log.count('"event": "suspending"'), log.count('"event": "grown"')
        while (used := (world.status() or {"gpus": [{"used_mib": None}]})["gpus"][0]["used_mib"]) != 0:
            if time.monotonic() > end_s:
                found.held_mib = used or 0
                break
            time.sleep(0.1)
        while left := [path.name for path in Path(world.environment["BERTH_ROOT"]).glob("job-*")]:
            if time.monotonic() > end_s:
                found.left = left
                break
            time.sleep(0.1)


def movers(world: World) -> list[int]:
    """The processes that suspend or resume jobs of this queue."""
    found = []
    for name in os.listdir("/proc"):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes() if name.isdigit() else b""
            environment = (
                Path(f"/proc/{name}/environ").read_bytes() if b"berth.partition.checkpoint" in words else b""
            )
        except OSError:
            continue
        if f"BERTH_STATE={world.state}\0".encode() in environment:
            found.append(int(name))
    return found
