"""Slurm's fake in the contract of sites: one node of two GPUs, and a driver beside it."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

from berth.history.values.applications import read_rules
from berth.live.driver.driver import Driver, Settings
from berth.live.slurm.attempts import Attempts, Journal
from berth.live.slurm.candidates import Priorities, Reader, Scope
from berth.live.slurm.controller import Controller, View
from berth.live.slurm.measured_use import Result, keep
from berth.live.slurm.requests import Cards
from berth.live.slurm.site import SlurmSite
from berth.model import Record, RecordState
from tests.live.driver.worlds import CARD_MIB, Asked, Seen
from tests.live.slurm.fake_slurm import FakeSlurm

_STATES = {
    RecordState.COMPLETED: "COMPLETED",
    RecordState.FAILED: "FAILED",
    RecordState.OUT_OF_MEMORY: "FAILED",  # of a GPU; Slurm's own word is for the node's memory
}


class SlurmWorld:
    """A fake slurmctld, whose jobs the plugin holds, and a berth that places them."""

    no_gangs = (
        "Slurm's gangs are submitted whole, take several nodes and end together: see test_components.py"
    )
    no_suspension = "berth suspends no job beside Slurm yet"

    def __init__(self) -> None:
        self.slurm = FakeSlurm(nodes={"n1": "IDLE"})
        self.slurm.now_s = 0
        self.records: list[Record] = []
        self._folder = Path(tempfile.mkdtemp(prefix="berth-slurm-world-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._over: dict[str, RecordState] = {}
        self._fails: dict[str, str] = {}
        self._count = 0
        self.restart()

    def submit(self, asked: Asked) -> str:
        self._count += 1
        job_id = str(self._count)
        part = f" gpu_mem={asked.mem_mib}M" if asked.mem_mib else ""
        part += f" gpu_pct={asked.milli // 10}"
        self.slurm.held(
            job_id,
            f"gres:gpu:{asked.gpus}",
            Comment=part.strip(),
            Name=asked.application,
            SubmitTime=str(self.slurm.now_s),
            tres_alloc="cpu=1,mem=100M,node=1",
            reruns=asked.reruns,
        )
        return job_id

    def cancel(self, job_id: str) -> None:
        self.slurm.end(job_id, "CANCELLED")

    def step(self, now_ms: int) -> None:
        self.slurm.now_s = now_ms // 1000
        for _ in range(4):
            self._cycle(now_ms)

    def end(
        self, job_id: str, state: RecordState, *, needed_mib: int = 0, peak_mib: int | None = None
    ) -> None:
        refused = int(state is RecordState.OUT_OF_MEMORY)
        if refused or peak_mib:
            keep(self._folder / "results", Result(job_id, "n1", peak_mib or 0, refused, needed_mib))
        self.slurm.end(job_id, _STATES[state])

    def fail_next_start(self, job_id: str, why: str) -> None:
        self.slurm.refuses[f"update JobId={job_id} ReqNodeList=n1"] = why
        self._fails[job_id] = why

    def lose_node(self) -> None:
        self.slurm.nodes["n1"] = "DOWN"
        for job_id, job in self.slurm.jobs.items():
            if job.get("State") != "RUNNING":
                continue
            self.slurm.end(job_id, "NODE_FAIL")
            if job["reruns"]:
                job |= {"State": "PENDING", "Reason": "None", "RestartCnt": "1", "EndTime": "N/A"}

    def bring_node_back(self) -> None:
        self.slurm.nodes["n1"] = "IDLE"

    def hold(self, index: int, mem_mib: int) -> None:
        self.slurm.used = {"n1": f"gpu:v100_{index}:1(IDX:{index})"} if mem_mib else {}

    def restart(self) -> None:
        cards, log = Cards({"v100": CARD_MIB}), self._folder / "decisions.jsonl"
        self._controller = Controller(self.slurm)
        self._attempts = Attempts(self._controller, results=self._folder / "results", log=log)
        self.site = SlurmSite(
            Reader(Scope(True, frozenset({"gpu"})), cards, read_rules(), retries=3),
            cards,
            self._attempts,
            Journal(log, "fifo+best-fit"),
            self._controller.apply,
            places=True,
            patience_ms=0,
        )
        self.driver = Driver(self.site, Settings(policy="fifo+best-fit", knowledge="history"))

    def seen(self) -> Seen:
        running = self.site.running()
        states = {job_id: str(job.get("State", "PENDING")) for job_id, job in self.slurm.jobs.items()}
        over = {record.job_id: record.state for record in self.records}
        left = {job_id for job_id, job in self.slurm.jobs.items() if not job["admin_comment"]}  # to Slurm
        return Seen(
            {job_id: tuple(gpu.index for gpu in run.gpus) for job_id, run in running.items()},
            {job_id: run.share.mem_mib for job_id, run in running.items() if run.share is not None},
            {job_id: reason.text for job_id, reason in self.driver.reasons().items()},
            {
                job_id: RecordState.FAILED if job_id in left else over[job_id]
                for job_id, state in states.items()
                if job_id in left or state not in ("PENDING", "RUNNING")
            },
        )

    def _cycle(self, now_ms: int) -> None:
        jobs = self._controller.jobs(with_ended=True)
        ended = tuple(job for job in jobs if job.ended)
        live = tuple(job for job in jobs if not job.ended)
        view = View(now_ms, live, self._controller.nodes(), self._controller.partitions(), ended)
        self.site.take(view, Priorities())
        self.records += self.driver.step(now_ms).records
        self.site.carry_out()
        for job_id in self.site.not_started():
            self.driver.take_back(job_id, now_ms)
        for job_id in [*self._fails]:
            self.slurm.refuses.pop(f"update JobId={job_id} ReqNodeList=n1", None)
            del self._fails[job_id]
