"""The fakes of all sites, for the contract: to add one is to add a line to `WORLDS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from berth.live.driver.driver import Driver, Settings
from berth.live.driver.site import Gpu, NodeState, SiteGang, SiteJob
from berth.model import NO_GPU, GpuModel, Job, Node, Record, RecordState, Share
from tests.live.driver.memory_site import GangSite

CARD_MIB = 40_000
GPUS = 2


@dataclass(frozen=True)
class Asked:
    """What a user submits; a job of several GPUs gets all at once."""

    gpus: int = 1
    milli: int = 500
    mem_mib: int = 5000
    application: str = "train"
    retries: int = 3
    reruns: bool = False
    gang: tuple[str, int] = ("", 0)
    """The gang that it is a task of, and how many start together."""


@dataclass(frozen=True)
class Seen:
    """What a site shows, the same at each."""

    running: Mapping[str, tuple[int, ...]]
    """The indices of the GPUs of each job that runs."""
    memory_mib: Mapping[str, int]
    """What each running job was given of each GPU; 0: all of it."""
    waiting: Mapping[str, str]
    """Why each waiting job waits."""
    over: Mapping[str, RecordState]
    """How jobs ended for good."""


class World(Protocol):
    """A site on one node, `n1`, of two GPUs of 40,000 MiB, with what drives it. Jobs have the ids `1`, `2` … in the
    order of their submission. `records` are those of the attempts that ended, in that order."""

    records: list[Record]
    no_gangs: str
    """Why its jobs cannot be tasks of gangs; empty if they can."""
    no_suspension: str
    """Why its jobs cannot be suspended; empty if they can."""

    def submit(self, asked: Asked) -> str:
        """A user submits a job; its id."""
        ...

    def step(self, now_ms: int) -> None:
        """Let all that is to happen at this moment happen: look, decide, start, tell."""
        ...

    def cancel(self, job_id: str) -> None:
        """A user cancels a waiting job; needed where there are gangs."""
        ...

    def end(
        self, job_id: str, state: RecordState, *, needed_mib: int = 0, peak_mib: int | None = None
    ) -> None:
        """The processes of a running job end."""
        ...

    def suspend(self, job_id: str) -> None:
        """A user suspends a running job until it is to run on."""
        ...

    def resume(self, job_id: str) -> None:
        """A user lets a suspended job run on as soon as there is room."""
        ...

    def fail_next_start(self, job_id: str, why: str) -> None:
        """The next start of a job does not come about."""
        ...

    def lose_node(self) -> None:
        """The node is lost with all that runs there."""
        ...

    def bring_node_back(self) -> None:
        """It is back, and empty."""
        ...

    def hold(self, index: int, mem_mib: int) -> None:
        """A process of no job holds a GPU's compute and this much of its memory; 0: it leaves."""
        ...

    def restart(self) -> None:
        """The driver is killed, and another one begins."""
        ...

    def seen(self) -> Seen:
        """What is shown now."""
        ...


class MemoryWorld:
    """The site in memory; unkind, it needs several steps for what a kind one does in one."""

    no_gangs = ""
    no_suspension = ""

    def __init__(self, *, unkind: bool) -> None:
        node = Node("n1", GPUS, GpuModel("A100-40", mem_mib=CARD_MIB), 16_000, 64_000)
        self.site = GangSite({"n1": node}, unkind=unkind)
        self.records: list[Record] = []
        self._steps = 8 if unkind else 3
        self._count = 0
        self.restart()

    def submit(self, asked: Asked) -> str:
        self._count += 1
        job = Job(
            str(self._count), self.site.now_ms, None, user="ann", application=asked.application, gpus=asked.gpus,
            share=Share(asked.milli, asked.mem_mib), retries=asked.retries, cpu_milli=1000, mem_mib=100,
        )  # fmt: skip
        self.site.jobs[job.id] = SiteJob(
            job, (self._count,), reruns=asked.reruns, gang=SiteGang(*asked.gang) if asked.gang[1] else None
        )
        return job.id

    def cancel(self, job_id: str) -> None:
        del self.site.jobs[job_id]
        self.site.over[job_id] = RecordState.CANCELLED

    def step(self, now_ms: int) -> None:
        for _ in range(self._steps):
            self.site.now_ms = now_ms
            self.records += self.driver.step(now_ms).records
            self.site.come_to_it()

    def end(
        self, job_id: str, state: RecordState, *, needed_mib: int = 0, peak_mib: int | None = None
    ) -> None:
        self.site.end(job_id, state, needed_mib=needed_mib, peak_mib=peak_mib)

    def suspend(self, job_id: str) -> None:
        self.site.wishes[job_id] = (True, False)

    def resume(self, job_id: str) -> None:
        run = self.site.runs[job_id]
        self.site.runs[job_id] = replace(run, resumes=True)

    def fail_next_start(self, job_id: str, why: str) -> None:
        self.site.fails[job_id] = why

    def lose_node(self) -> None:
        self.site.states["n1"] = NodeState.LOST
        for job_id in list(self.site.runs):
            self.site.end(job_id, RecordState.NODE_FAIL)

    def bring_node_back(self) -> None:
        del self.site.states["n1"]

    def hold(self, index: int, mem_mib: int) -> None:
        self.site.held = {Gpu("n1", index): Share(1000, mem_mib)} if mem_mib else {}

    def restart(self) -> None:
        self.driver = Driver(self.site, Settings(policy="fifo+best-fit", knowledge="history"))

    def seen(self) -> Seen:
        runs = self.site.runs
        return Seen(
            {
                job_id: tuple(gpu.index for gpu in run.gpus if gpu.index != NO_GPU)
                for job_id, run in runs.items()
                if not run.suspended
            },
            {
                job_id: run.share.mem_mib
                for job_id, run in runs.items()
                if run.share is not None and not run.suspended
            },
            {job_id: reason.text for job_id, reason in self.driver.reasons().items()},
            dict(self.site.over),
        )


def _slurm(folder: Path) -> World:
    from tests.live.slurm.slurm_world import SlurmWorld

    return SlurmWorld()


def _local(folder: Path) -> World:
    from tests.live.local.local_world import LocalWorld

    return LocalWorld(folder / "queue.db")


WORLDS: dict[str, Callable[[Path], World]] = {
    "memory": lambda folder: MemoryWorld(unkind=False),
    "unkind": lambda folder: MemoryWorld(unkind=True),
    "local": _local,
    "slurm": _slurm,
}
