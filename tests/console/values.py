"""A queue made of values, for tests and benchmarks: it can be large, slow, gone or full of odd names."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

from berth.console.roles import Viewer
from berth.console.source import Output, check_job_owners, check_operator, word_of
from berth.errors import AccessError, LiveError, SettingError
from berth.live.driver.snapshot import Gpu, LiveJob, Snapshot, Stranger, Tenant

HOSTILE = "<img src=x onerror=alert(1)>\"'&{{7*7}}\u202e"
_USERS = ("ann", "bob", "chae", "dana", "eun", "finn")
_MODELS = (("A100-80G", 81920), ("H100-80G", 81920), ("V100-32G", 32768))


def look_of(
    *,
    gpus: int = 8,
    waiting: int = 5,
    gpus_a_node: int = 4,
    hostile: bool = False,
    at_ms: int = 1_800_000_000_000,
) -> Snapshot:
    """A cluster of this size, the same each time: most GPUs held, some shared, one in fifty drained or broken."""
    found, jobs = [], []
    for at in range(gpus):
        node, index = f"node{at // gpus_a_node:04}", at % gpus_a_node
        model, mem_mib = _MODELS[at // gpus_a_node % len(_MODELS)]
        tenants = []
        for part in range((1, 2, 0, 1, 3)[at % 5]):
            milli = 1000 if at % 5 in (0, 3) else 400 - 100 * part
            share_mib = mem_mib * milli // 1000
            user = HOSTILE if hostile else _USERS[(at + part) % len(_USERS)]
            tenants.append(
                Tenant(
                    f"{at * 4 + part + 1}", user, HOSTILE if hostile else f"train-{at % 7}", milli, share_mib,
                    share_mib // 2, None if at % 7 == 3 else float((at * 13 + part * 29) % 97), at_ms - 3_600_000,
                )
            )  # fmt: skip
            jobs.append(
                LiveJob(
                    tenants[-1].job, user, tenants[-1].name, "running", 1, milli, share_mib, at_ms - 5_400_000,
                    at_ms - 5_400_000, at_ms - 3_600_000, f"{node} GPU {index}", partition="gpu",
                )
            )  # fmt: skip
        strangers = (Stranger("process 4711 (python)", 2048),) if at % 17 == 2 else ()
        use_pct = None if at % 7 == 3 else min(100.0, sum(each.use_pct or 0.0 for each in tenants))
        found.append(
            Gpu(
                node, index, model, mem_mib, tuple(tenants), strangers,
                sum(each.used_mib or 0 for each in tenants) + sum(each.mem_mib for each in strangers), use_pct,
                "it has fallen off the bus" if at % 50 == 49 else "", at % 50 == 7, f"rack{at // 64:03}",
                ("gpu", "long")[at // gpus_a_node % 2],
            )
        )  # fmt: skip
    for at in range(waiting):
        user = HOSTILE if hostile else _USERS[at % len(_USERS)]
        jobs.append(
            LiveJob(
                f"{100_000 + at}", user, HOSTILE if hostile else f"job-{at}", "held" if at % 10 == 9 else "waiting",
                1 + at % 4, 1000, 40_960, at_ms - 60_000 * (waiting - at),
                None if at % 10 == 9 else at_ms - 60_000 * (waiting - at), None, "",
                "held by its user" if at % 10 == 9 else "waits for room",
                partition=("gpu", "long")[at % 2],
            )
        )  # fmt: skip
    running = len(jobs) - waiting
    return Snapshot(at_ms, tuple(found), tuple(jobs), waiting, running, "fifo+best-fit")


@dataclass(slots=True)
class ValuesSource:
    """A source that shows what it was given."""

    value: Snapshot = field(default_factory=look_of)
    name: str = "local"
    every_s: float = 1.0
    gone: str = ""
    """Why it does not answer; empty if it does."""
    slow_s: float = 0.0
    lets_go: threading.Event = field(default_factory=threading.Event)
    """Ends a slow look at once."""
    looks: int = 0
    """How often it was asked."""
    written: dict[str, str] = field(default_factory=dict)
    """What jobs wrote, by their ids."""
    done: list[tuple[str, str, str]] = field(default_factory=list)
    """Actions that were done: the action, what it was done to, and by whom."""

    def look(self) -> Snapshot:
        """What it was given, at this moment."""
        self.looks += 1
        self.lets_go.wait(self.slow_s)
        self._there()
        return replace(self.value, at_ms=time.time_ns() // 1_000_000)

    def job(self, job_id: str, viewer: Viewer, look: Snapshot | None) -> dict[str, Any]:
        """What a look says of a job."""
        job = self._job(job_id)
        own = viewer.owns(job.user)
        return {
            "source": self.name, "id": job.id, "user": job.user, "state": job.state, "own": own,
            "controls": viewer.owns(job.user), "name": job.name if own else "", "reason": job.why,
            "gpus": job.gpus, "milli": job.milli, "mem_mib": job.mem_mib, "priority": job.priority,
            "submit_ms": job.submit_ms, "ready_ms": job.ready_ms, "start_ms": job.start_ms, "attempt": 1,
            "where": job.where,
            "command": f"python train.py --name {job.name}" if own else None,
            "output": "epoch 1\nepoch 2\n" if own else None,
            "series": [
                {"time_ms": (job.start_ms or 0) + 2000 * at, "use_pct": at * 7 % 100, "mem_mib": 1000 + at}
                for at in range(50)
            ] if own and job.start_ms else [],
            "why": [] if job.start_ms else [f"Job {job.id} waits: {job.why}"],
        }  # fmt: skip

    def act(self, action: str, values: dict[str, Any], viewer: Viewer) -> str:
        """Note it, after the check that this viewer may."""
        what = word_of(values, "id" if action != "policy" else "value")
        self._there()
        if action in ("hold", "release", "cancel", "requeue", "priority"):
            check_job_owners(viewer, [(what, self._job(what).user)])
        elif action in ("policy", "drain", "undrain"):
            check_operator(viewer, action)
        else:
            raise SettingError(f"no action '{action}'")
        self.done.append((action, what, viewer.user))
        return f"{action}: {what}"

    def output(self, job_id: str, viewer: Viewer, after: int | None) -> Output | None:
        """What it was given as written."""
        job = self._job(job_id)
        if not viewer.owns(job.user):
            raise AccessError(f"only {job.user} and operators see the output of job {job.id}")
        text = self.written.get(job_id, "")[after or 0 :]
        ended = job.end_ms is not None
        return Output(text, (after or 0) + len(text), 0, ended)

    def submit(self, asked: dict[str, str], viewer: Viewer) -> str:
        """Note it as done, and add a job that waits."""
        self._there()
        self.done.append(("submit", asked["command"], viewer.user))
        job = replace(
            self.value.jobs[-1],
            id=f"{200_000 + len(self.done)}",
            user=viewer.user,
            name=asked.get("name", ""),
        )
        self.value = replace(self.value, jobs=(*self.value.jobs, job))
        return job.id

    def submit_command(self, asked: dict[str, str]) -> str:
        """As the local queue's."""
        from berth.console.sources.local import LocalSource

        return LocalSource.submit_command(asked)

    def command(self, action: str, values: dict[str, Any]) -> str | None:
        """As the local queue's."""
        from berth.console.sources.local import LocalSource

        return LocalSource.command(action, values)

    def lacks(self, viewer: Viewer) -> dict[str, str]:
        """It has them all."""
        return {}

    def _there(self) -> None:
        if self.gone:
            raise LiveError(self.gone)

    def _job(self, job_id: str) -> LiveJob:
        self._there()
        for job in self.value.jobs:
            if job.id == job_id:
                return job
        raise LiveError(f"there is no job '{job_id}'")
