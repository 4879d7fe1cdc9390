"""A Slurm with berth beside it: nodes and jobs by `scontrol` and `squeue`, and what `berth slurm run` says of them."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from berth.console.roles import Role, Viewer
from berth.console.sources.rights import check_job_owners, check_operator, number_of, word_of
from berth.errors import AccessError, LiveError, SettingError
from berth.history.values.gres import base_type
from berth.history.values.hostlist import expand
from berth.live.driver.snapshot import Gpu, LiveJob, Snapshot, Tenant
from berth.live.slurm.controller import Controller, Run, run_program
from berth.live.slurm.decisions import GIVEN_UP, PLACED, read_decisions
from berth.live.slurm.jobs import SlurmJob
from berth.live.slurm.nodes import SlurmNode
from berth.live.slurm.requests import Cards, LeftToSlurmError, note_of, part_of
from berth.live.slurm.service import DECISIONS, STATUS
from berth.model import Share

__all__ = ["SlurmSource"]

_ID = re.compile(r"\d+(?:_\d+)?(?:\+\d+)?")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
HELD_BY_ADMIN = "JobHeldAdmin"
_LACKS: Final = {
    "drain": "Slurm drains whole nodes: with one GPU all of its node is drained.",
    "policy": "The policy is an option of berth slurm run: start that again with another one.",
    "resize": "A job of Slurm keeps the part of a GPU that it was given.",
}
FAR: Final = "now+3650days"
"""When a job begins that is held although berth holds it."""
HELD_MS: Final = 365 * 86_400_000
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
        self._cards = Cards()
        self._by_berth: frozenset[str] = frozenset()
        """Jobs that berth held at the last look."""

    async def look(self) -> Snapshot:
        """Nodes and jobs; berth's reasons beside Slurm's where it runs."""
        return await asyncio.to_thread(self._look)

    async def job(self, job_id: str, viewer: Viewer, look: Snapshot | None) -> dict[str, Any]:
        """One job that Slurm still knows; its GPUs and neighbours as the last look saw them."""
        return await asyncio.to_thread(self._job, job_id, viewer, look)

    async def act(self, action: str, values: dict[str, Any], viewer: Viewer) -> str:
        """Do it by Slurm's own commands, after the check that this viewer may."""
        return await asyncio.to_thread(self._act, action, values, viewer)

    def command(self, action: str, values: dict[str, Any]) -> str | None:
        """The command line that does the same."""
        what = str(values.get("id", ""))
        words = _words(action, what, str(values.get("value", "")), what in self._by_berth)
        return shlex.join(words) if words else None

    def lacks(self, viewer: Viewer) -> dict[str, str]:
        """What Slurm does not let a console do."""
        operates = viewer.role is Role.OPERATOR
        return _LACKS if operates else {**_LACKS, "priority": "Slurm lets operators alone raise a priority."}

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

    def _look(self) -> Snapshot:
        nodes, jobs = self._controller.nodes(), self._controller.jobs()
        told, wrong = self._status()
        why: Mapping[str, str] = told.get("why", {})
        self._cards.update(nodes)
        self._by_berth = frozenset(_id(job) for job in jobs if _is_berths(job))
        parts = {job.id: _part(job, self._cards) for job in jobs}
        gpus, unsure = _gpus(nodes, jobs, self._placed(), parts, self._cards)
        live = tuple(
            _live(job, why, parts[job.id])
            for job in sorted(jobs, key=lambda job: (not job.runs, job.submit_ms))
        )
        waiting = sum(max(1, len(job.array_tasks)) for job in jobs if job.waits)
        notes = [wrong, *self._controller.unreadable[:3]]
        if unsure:
            notes.append("Slurm does not tell which GPU of a node some jobs have; those are shown in order")
        policy = f"{told['policy']} ({told['mode']})" if told else ""
        return Snapshot(
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

    def _job(self, job_id: str, viewer: Viewer, look: Snapshot | None) -> dict[str, Any]:
        job = self._found(job_id)
        own = viewer.owns(job.user)
        told, _ = self._status()
        given_up = self._given_up(job.id)
        why = {job.id: given_up} if given_up else told.get("why", {})
        live = _live(job, why, _part(job, self._cards))
        there = look.gpus if look is not None and job.runs else ()
        gpus = [gpu for gpu in there if any(each.job == live.id for each in gpu.tenants)]
        where = ", ".join(f"{gpu.node} GPU {gpu.index}" for gpu in gpus)
        beside = [
            f"{each.job} ({each.user}) on {gpu.node} GPU {gpu.index}"
            for gpu in gpus
            for each in gpu.tenants
            if each.job != live.id
        ]
        return {
            "source": self.name, "id": live.id, "user": job.user, "own": own, "controls": viewer.controls(job.user),
            "state": live.state if not job.ended else job.state.lower(), "name": job.name if own else "",
            "reason": live.why if job.waits else "", "gpus": live.gpus, "milli": live.milli, "mem_mib": live.mem_mib,
            "cpu_milli": job.tres.cpus * 1000, "host_mem_mib": job.tres.mem_mib, "priority": job.priority,
            "time_limit_ms": job.time_limit_ms, "submit_ms": job.submit_ms, "ready_ms": live.ready_ms,
            "start_ms": None if job.waits else job.start_ms, "end_ms": job.end_ms if job.ended else None,
            "attempt": job.restarts + 1, "where": where or job.node_list, "beside": beside, "partition": job.partition,
            "command": job.command if own else None, "comment": job.comment if own else None,
            "why": [live.why] if job.waits else [],
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
            self._by_berth = (self._by_berth - {what}) | ({what} if _is_berths(job) else frozenset())
            admins = job.reason == HELD_BY_ADMIN and what not in self._by_berth
            if action == "release" and admins and viewer.role is not Role.OPERATOR:
                raise AccessError(f"job {what} is held by an administrator, who alone may release it")
        words = _words(action, what, str(values.get("value", "")), what in self._by_berth)
        if not words:
            raise SettingError(f"Slurm has no action '{action}' here")
        if words[1] == "hold" and viewer.role is not Role.OPERATOR:
            words[1] = "uhold"  # as Slurm's operator the console would otherwise hold it from its own user
        self._run(words, "")
        return f"{' '.join(words)}: done"


def _words(action: str, what: str, value: str, by_berth: bool) -> list[str]:
    """The command of an action; none where there is none. A node drains with all of its GPUs.

    A job that berth holds until it places it is held by a later begin, which berth respects; it has no priority of
    Slurm's, and one that it were given would release it without a GPU.
    """
    node = what.rpartition(":")[0] or what
    begins = ["scontrol", "update", f"JobId={what}"]
    return {
        "hold": [*begins, f"StartTime={FAR}"] if by_berth else ["scontrol", "hold", what],
        "release": [*begins, "StartTime=now"] if by_berth else ["scontrol", "release", what],
        "cancel": ["scancel", what],
        "priority": [] if by_berth else [*begins, f"Priority={value}"],
        "drain": ["scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=berth console"],
        "undrain": ["scontrol", "update", f"NodeName={node}", "State=RESUME"],
    }.get(action, [])


def _is_berths(job: SlurmJob) -> bool:
    """Whether berth holds it until it places it."""
    return job.held and note_of(job.admin_comment) is not None


def _id(job: SlurmJob) -> str:
    """What people call it: of tasks that are still one row, the array."""
    return job.array_id if job.array_tasks else job.id


def _part(job: SlurmJob, cards: Cards) -> tuple[int, Share]:
    """How many GPUs a job has or asks for, and which part of each."""
    told = job.tres.gpus or job.tres.gpus_a_node * max(1, job.nodes)
    try:
        gpus, share = part_of(job, cards)
    except LeftToSlurmError:
        return told or (max(1, job.nodes) if job.tres.shards else 0), Share()
    return told or gpus, share


def _live(job: SlurmJob, why: Mapping[str, str], part: tuple[int, Share]) -> LiveJob:
    gpus, share = part
    state = "held" if job.held else "waiting" if job.waits else "running"
    tasks = (f"{job.id}{task}" for task in job.array_tasks)
    said = next((why[name] for name in (job.id, *tasks) if name in why), "")
    told = f"{said} (Slurm: {job.reason})" if said else job.reason
    if _is_berths(job):
        # Slurm says of all of these that an administrator holds them.
        later = job.start_ms is not None and job.start_ms - job.submit_ms > HELD_MS
        state = "held" if later else "waiting"
        told = "held by its user or an operator" if later else said or "berth has not looked at it yet"
    return LiveJob(
        _id(job), job.user, job.name, state, gpus, share.milli, share.mem_mib, job.submit_ms, _ready_ms(job, state),
        job.start_ms if job.runs else None, job.node_list if job.runs else "", told if job.waits else "",
        job.start_ms if job.waits and state != "held" else None, None, job.priority, job.partition,
    )  # fmt: skip


def _ready_ms(job: SlurmJob, state: str) -> int | None:
    """Slurm's eligible time; of a job that berth holds until it places it, the submission, as Slurm tells none."""
    if state == "held":
        return None
    return job.submit_ms if _is_berths(job) else job.eligible_ms


def _gpus(
    nodes: tuple[SlurmNode, ...],
    jobs: tuple[SlurmJob, ...],
    placed: Mapping[str, str],
    parts: Mapping[str, tuple[int, Share]],
    cards: Cards,
) -> tuple[tuple[Gpu, ...], bool]:
    """Each GPU with its jobs, and whether some jobs could be on other GPUs of their node than is shown."""
    held: dict[tuple[str, int], list[Tenant]] = {}
    used = {node.name: sorted({at for gres in node.used for at in gres.where}) for node in nodes}
    models = {node.name: node.model for node in nodes}
    unsure = False
    for job in jobs:
        gpus, share = parts[job.id]
        if not job.runs or not gpus:
            continue
        where = _slots_of(placed.get(job.raw_id, ""))
        names = expand(job.node_list) if job.node_list else []
        each = max(1, gpus // max(1, len(names)))
        for name in names:
            slots = where.get(name) or [at for at in used.get(name, []) if (name, at) not in held][:each]
            unsure |= name not in where and len(used.get(name, [])) > each
            card_mib = cards.model(models.get(name, "")).mem_mib
            for at in slots:
                held.setdefault((name, at), []).append(
                    Tenant(
                        job.id,
                        job.user,
                        job.name,
                        share.milli,
                        share.mem_mib or card_mib,
                        since_ms=job.start_ms,
                    )
                )
    found = []
    for node in nodes:
        for at, kind in enumerate(node.gpu_kinds):
            model = base_type(kind)
            drained = not node.up and not node.lost
            found.append(
                Gpu(
                    node.name, at, model or "GPU", cards.model(model).mem_mib, tuple(held.get((node.name, at), ())),
                    health=f"the node is {node.state}" if node.lost else "", drained=drained,
                    partition=node.partitions[0] if node.partitions else "",
                )
            )  # fmt: skip
    return tuple(found), unsure


def _slots_of(where: str) -> dict[str, list[int]]:
    """The GPUs on each node of `node1:0+1,node2:0`."""
    found = {}
    for part in filter(None, where.split(",")):
        name, _, slots = part.partition(":")
        if slots and all(slot.isdigit() for slot in slots.split("+")):
            found[name] = [int(slot) for slot in slots.split("+")]
    return found
