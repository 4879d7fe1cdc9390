"""A Slurm with berth beside it: nodes and jobs by `scontrol` and `squeue`, and what `berth slurm run` says of them."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from berth.console.look import Gpu, LiveJob, Look, Tenant
from berth.console.roles import Role, Viewer
from berth.console.sources.rights import check_job_owners, check_operator, number_of, word_of
from berth.errors import AccessError, LiveError, SettingError
from berth.gpu_models import GPU_MODELS
from berth.history.values.gres import base_type
from berth.history.values.hostlist import expand
from berth.live.slurm.controller import Controller, Run, run_program
from berth.live.slurm.decisions import GIVEN_UP, PLACED, read_decisions
from berth.live.slurm.jobs import SlurmJob
from berth.live.slurm.nodes import SlurmNode
from berth.live.slurm.service import DECISIONS, STATUS

__all__ = ["SlurmSource"]

_ID = re.compile(r"\d+(?:_\d+)?(?:\+\d+)?")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
HELD_BY_ADMIN = "JobHeldAdmin"
OLD_S = 120.0
"""A berth that has not looked for this long is said to have stopped."""


class SlurmSource:
    """slurmctld, and the state folder of the berth beside it."""

    name = "slurm"
    every_s = 5.0

    def __init__(self, state: Path, run: Run = run_program) -> None:
        self._state = state
        self._run = run
        self._controller = Controller(run)

    async def look(self) -> Look:
        """Nodes and jobs; berth's reasons beside Slurm's where it runs."""
        return await asyncio.to_thread(self._look)

    async def job(self, job_id: str, viewer: Viewer, look: Look | None) -> dict[str, Any]:
        """One job that Slurm still knows."""
        return await asyncio.to_thread(self._job, job_id, viewer)

    async def act(self, action: str, values: dict[str, Any], viewer: Viewer) -> str:
        """Do it by Slurm's own commands, after the check that this viewer may."""
        return await asyncio.to_thread(self._act, action, values, viewer)

    def command(self, action: str, values: dict[str, Any]) -> str | None:
        """The command line that does the same."""
        words = _words(action, str(values.get("id", "")), str(values.get("value", "")))
        return shlex.join(words) if words else None

    def pending(self) -> tuple[Any, ...]:
        """The queue as the model of waits is asked about it; called in a thread."""
        from berth.history.importing.pending import run_squeue

        return run_squeue()[0]

    def _status(self) -> tuple[dict[str, Any], str]:
        """What the berth beside Slurm told last, and what is wrong with it; empty if nothing is."""
        path = self._state / STATUS
        try:
            told = dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}, f"berth does not run beside Slurm: {path} cannot be read"
        age_s = time.time() - int(told["at_ms"]) / 1000
        return told, f"berth has not looked for {age_s:.0f} s; is it stopped?" if age_s > OLD_S else ""

    def _placed(self) -> dict[str, str]:
        """Where berth placed jobs last, by their number."""
        try:
            return {
                each.raw: each.where
                for each in read_decisions(self._state / DECISIONS)
                if each.event == PLACED
            }
        except LiveError:
            return {}

    def _look(self) -> Look:
        nodes, jobs = self._controller.nodes(), self._controller.jobs()
        told, wrong = self._status()
        why: Mapping[str, str] = told.get("why", {})
        gpus, unsure = _gpus(nodes, jobs, self._placed())
        live = tuple(_live(job, why.get(job.id, "")) for job in sorted(jobs, key=lambda job: not job.runs))
        waiting = sum(max(1, len(job.array_tasks)) for job in jobs if job.waits)
        notes = [wrong, *self._controller.odd[:3]]
        if unsure:
            notes.append("Slurm does not tell which GPU of a node some jobs have; those are shown in order")
        policy = f"{told['policy']} ({told['mode']})" if told else ""
        return Look(
            time.time_ns() // 1_000_000, gpus, live, waiting, sum(job.runs for job in jobs), policy,
            tuple(filter(None, notes)),
        )  # fmt: skip

    def _found(self, job_id: str) -> SlurmJob:
        if not _ID.fullmatch(job_id):
            raise LiveError(f"'{job_id}' is no id of a Slurm job, such as 12 or 12_3")
        found = [job for job in self._controller.jobs([job_id]) if job_id in (job.id, job.array_id)]
        if not found:
            raise LiveError(f"Slurm knows no job {job_id}, or has forgotten it")
        return found[0]

    def _job(self, job_id: str, viewer: Viewer) -> dict[str, Any]:
        job = self._found(job_id)
        own = viewer.owns(job.user)
        told, _ = self._status()
        ours = told.get("why", {}).get(job.id, "") or self._given_up(job.id)
        live = _live(job, ours)
        return {
            "source": self.name, "id": job.id, "user": job.user, "own": own, "controls": viewer.controls(job.user),
            "state": live.state if not job.ended else job.state.lower(), "name": job.name if own else "",
            "reason": job.reason, "gpus": live.gpus, "milli": 1000, "mem_mib": 0,
            "cpu_milli": job.tres.cpus * 1000, "host_mem_mib": job.tres.mem_mib, "priority": job.priority,
            "time_limit_ms": job.time_limit_ms, "submit_ms": job.submit_ms,
            "start_ms": None if job.waits else job.start_ms, "end_ms": job.end_ms if job.ended else None,
            "attempt": job.restarts + 1, "where": job.node_list, "partition": job.partition,
            "command": job.command if own else None, "comment": job.comment if own else None,
            "why": [f"Slurm: {job.reason}", f"berth: {ours}"] if job.waits and ours else
                   [f"Slurm: {job.reason}"] if job.waits else [],
        }  # fmt: skip

    def _given_up(self, job_id: str) -> str:
        try:
            said = [
                each.why
                for each in read_decisions(self._state / DECISIONS)
                if each.event == GIVEN_UP and each.job == job_id
            ]
        except LiveError:
            return ""
        return said[-1] if said else ""

    def _act(self, action: str, values: dict[str, Any], viewer: Viewer) -> str:
        what = word_of(values, "id")
        if action in ("drain", "undrain"):
            check_operator(viewer, action)
            node = what.rpartition(":")[0] or what
            if not _NODE.fullmatch(node):
                raise SettingError(f"'{node}' is no name of a node")
        elif action in ("hold", "release", "cancel", "priority"):
            job = self._found(what)
            check_job_owners(viewer, [(job.id, job.user)])
            if action == "priority":
                check_operator(viewer, action)  # Slurm lets no user raise a priority
                number_of(values, "value")
            if action == "release" and job.admin_comment:
                raise SettingError(
                    f"job {what} is held by berth until it places it, and is not released by hand"
                )
            if action == "release" and job.reason == HELD_BY_ADMIN and viewer.role is not Role.OPERATOR:
                raise AccessError(f"job {what} is held by an administrator, who alone may release it")
        words = _words(action, what, str(values.get("value", "")))
        if not words:
            raise SettingError(f"Slurm has no action '{action}' here")
        if action == "hold" and viewer.role is not Role.OPERATOR:
            words[1] = "uhold"  # as Slurm's operator the console would otherwise hold it from its own user
        self._run(words, "")
        return f"{' '.join(words)}: done"


def _words(action: str, what: str, value: str) -> list[str]:
    """The command of an action; none where there is none. A node drains with all of its GPUs."""
    node = what.rpartition(":")[0] or what
    return {
        "hold": ["scontrol", "hold", what],
        "release": ["scontrol", "release", what],
        "cancel": ["scancel", what],
        "priority": ["scontrol", "update", f"JobId={what}", f"Priority={value}"],
        "drain": ["scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=berth console"],
        "undrain": ["scontrol", "update", f"NodeName={node}", "State=RESUME"],
    }.get(action, [])


def _live(job: SlurmJob, ours: str) -> LiveJob:
    state = "held" if job.held else "waiting" if job.waits else "running"
    if job.admin_comment and job.held:
        state = "waiting"  # held by berth until it is placed
    why = f"{ours} (Slurm: {job.reason})" if ours else job.reason
    return LiveJob(
        job.id, job.user, job.name, state, job.tres.gpus or job.tres.gpus_a_node * max(1, job.tres.nodes), 1000, 0,
        job.submit_ms, job.start_ms if job.runs else None, job.node_list if job.runs else "", why if job.waits else "",
        job.start_ms if job.waits else None, None, job.priority, job.partition,
    )  # fmt: skip


def _gpus(
    nodes: tuple[SlurmNode, ...], jobs: tuple[SlurmJob, ...], placed: Mapping[str, str]
) -> tuple[tuple[Gpu, ...], bool]:
    """Each GPU with its jobs, and whether some jobs could be on other GPUs of their node than is shown."""
    held: dict[tuple[str, int], list[Tenant]] = {}
    used = {node.name: sorted({at for gres in node.used for at in gres.where}) for node in nodes}
    unsure = False
    for job in jobs:
        if not job.runs or not (job.tres.gpus or job.tres.shards):
            continue
        where = _slots_of(placed.get(job.raw_id, ""))
        names = expand(job.node_list) if job.node_list else []
        each = max(1, job.tres.gpus // max(1, len(names)))
        for name in names:
            slots = where.get(name) or [at for at in used.get(name, []) if (name, at) not in held][:each]
            unsure |= name not in where and len(used.get(name, [])) > each
            milli = 1000 if job.tres.gpus else 1000 * job.tres.shards // max(1, _shards(nodes, name))
            for at in slots:
                held.setdefault((name, at), []).append(
                    Tenant(job.id, job.user, job.name, min(1000, milli), 0, since_ms=job.start_ms)
                )
    found = []
    for node in nodes:
        for at, kind in enumerate(node.gpu_kinds):
            model = GPU_MODELS.get(base_type(kind).upper())
            drained = not node.up and not node.lost
            found.append(
                Gpu(
                    node.name, at, kind or "GPU", model.mem_mib if model else 0, tuple(held.get((node.name, at), ())),
                    health=f"the node is {node.state}" if node.lost else "", drained=drained,
                    partition=node.partitions[0] if node.partitions else "",
                )
            )  # fmt: skip
    return tuple(found), unsure


def _shards(nodes: tuple[SlurmNode, ...], name: str) -> int:
    return next((node.shards_a_gpu for node in nodes if node.name == name), 0)


def _slots_of(where: str) -> dict[str, list[int]]:
    """The GPUs on each node of `node1:0+1,node2:0`."""
    found = {}
    for part in filter(None, where.split(",")):
        name, _, slots = part.partition(":")
        if slots and all(slot.isdigit() for slot in slots.split("+")):
            found[name] = [int(slot) for slot in slots.split("+")]
    return found
