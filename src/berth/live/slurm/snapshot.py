"""What Slurm has now, with what the berth beside it says of it: what the console and `berth slurm` show."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from berth.errors import LiveError
from berth.history.values.hostlist import expand
from berth.history.values.tres import base_type
from berth.live.driver.snapshot import Gpu, LiveJob, Snapshot, Tenant
from berth.live.slurm.agent import STATUS, Reports, reports
from berth.live.slurm.controller import Controller
from berth.live.slurm.decisions import GIVEN_UP, PLACED, Decision, read_decisions
from berth.live.slurm.jobs import SlurmJob
from berth.live.slurm.nodes import SlurmNode
from berth.live.slurm.requests import Cards, LeftToSlurmError, note_of, part_of
from berth.live.slurm.service import DECISIONS
from berth.model import Share

HELD_MS: Final = 365 * 86_400_000
"""A job that berth holds and that begins later than this after its submission is held by its user or an operator."""
NOT_YET: Final = "berth has not looked at it yet"
SILENT_S = 60
"""Longer than berth waits with a sign of its life, also while Slurm does not answer for the first time."""


def look(controller: Controller, state: Path) -> Snapshot:
    """Ask Slurm for its nodes and jobs; if it does not answer, the snapshot says so."""
    try:
        nodes, jobs = controller.nodes(), controller.jobs()
    except LiveError as error:
        return Snapshot(time.time_ns() // 1_000_000, notes=(f"Slurm does not answer: {error}",))
    return snapshot_of(nodes, jobs, state, Cards(), controller.unreadable[:3])


def snapshot_of(
    nodes: tuple[SlurmNode, ...],
    jobs: tuple[SlurmJob, ...],
    state: Path,
    cards: Cards,
    unreadable: Sequence[str] = (),
) -> Snapshot:
    """Slurm's nodes and jobs; `state` is the folder of the berth beside it. The cards learn from both."""
    status: Mapping[str, Any] = {}
    try:
        status = read_status(state)
        trouble = silence(state)
    except LiveError as error:
        trouble = f"berth does not run beside Slurm: {error}"
    cards.declare(status.get("card_mib", {}))
    cards.update(nodes)
    now_ms = time.time_ns() // 1_000_000
    parts = {job.id: _part(job, cards) for job in jobs}
    placed = {each.raw: each.where for each in _decisions(state, PLACED)}
    memory = reports(state)
    gpus, unsure = _gpus(nodes, jobs, placed, parts, cards, memory)
    notes = [trouble, *unreadable]
    if leaked := status.get("leaked"):
        lost_shards = ", ".join(f"{count} of {gpu}" for gpu, count in leaked.items())
        notes.append(
            f"Slurm counts shards that no job has ({lost_shards}): no job gets these GPUs whole until"
            " `scontrol reconfigure` counts anew; of GPUs whose shards are lost, `berth slurm check` says what to do"
        )
    if unsure:
        notes.append("Slurm does not tell which GPU of a node some jobs have; those are shown in order")
    return Snapshot(
        now_ms,
        gpus,
        tuple(
            _live(job, status, parts[job.id], now_ms, memory.get(job.raw_id))
            for job in sorted(jobs, key=lambda job: (not job.runs, job.submit_ms))
        ),
        sum(max(1, len(job.array_tasks)) for job in jobs if job.waits),
        sum(job.runs for job in jobs),
        f"{status['policy']} ({status['mode']})" if status else "",
        tuple(filter(None, notes)),
    )


def why_of(controller: Controller, state: Path, job_id: str) -> tuple[SlurmJob, str, str]:
    """A job by the id that squeue shows (`12`, `12_3`, `12+1`), what berth says of it, and if it waits which nodes of
    its partition take no jobs; LiveError if Slurm has no such job, or no berth runs."""
    shown = read_status(state)
    first, plus, _ = job_id.partition("+")  # squeue is asked for all components of a heterogeneous job
    job = next(
        (
            each
            for each in controller.jobs([first])
            if each.id == job_id or each.array_tasks or each.array_id == job_id or (each.het and not plus)
        ),
        None,
    )
    if job is None:
        raise LiveError(f"Slurm knows no job {job_id}, or has forgotten it; see: berth job {job_id}")
    why = dict(shown["why"])
    names = job_id, job.id, *(f"{job.id}{task}" for task in job.array_tasks)
    reason = (
        silence(state) or next((why[name] for name in names if name in why), "") or given_up(state, job_id)
    )
    if not reason and is_held_by_berth(job):
        reason = NOT_YET
    return job, reason, _broken(controller, job.partition) if job.waits else ""


def _broken(controller: Controller, partition: str) -> str:
    """Which of a partition's nodes with GPUs take no jobs, and why."""
    nodes = [node for node in controller.nodes() if node.gpus and partition in node.partitions]
    broken = [f"{n.name} is {n.state}{f' ({n.reason})' if n.reason else ''}" for n in nodes if n.broken]
    if not broken:
        return ""
    some = f"{', '.join(broken[:5])}{', …' if len(broken) > 5 else ''}"
    return f"{len(broken)} of {len(nodes)} with GPUs take no jobs: {some}"


def live_job(job: SlurmJob, state: Path, cards: Cards) -> LiveJob:
    """One job, with what berth said of it last."""
    status: dict[str, Any] = {}
    with suppress(LiveError):
        status = read_status(state)
    if last := given_up(state, job.id):
        status = {"why": {job.id: last}}
    return _live(job, status, _part(job, cards), time.time_ns() // 1_000_000, reports(state).get(job.raw_id))


def read_status(state: Path) -> dict[str, Any]:
    """What `berth slurm run` wrote of itself last."""
    try:
        return dict(json.loads((state / STATUS).read_text(encoding="utf-8")))
    except PermissionError as error:
        raise LiveError(
            f"{state / STATUS}: permission denied; if Slurm has PrivateData=jobs, only berth's user and group may"
            " read it"
        ) from error
    except (OSError, ValueError) as error:
        raise LiveError(
            f"{state / STATUS} cannot be read; start berth with: berth slurm run --state {state}"
        ) from error


def silence(state: Path) -> str:
    """That berth has given no sign for long; empty if it has."""
    age_s = time.time() - (state / STATUS).stat().st_mtime
    if age_s <= SILENT_S:
        return ""
    return f"no sign for {age_s:.0f} s: it does not run, or Slurm does not answer it; start it with: berth slurm run"


def given_up(state: Path, job_id: str) -> str:
    """What berth said last of a job for which it can do no more; empty if it did not."""
    return next((each.why for each in reversed(_decisions(state, GIVEN_UP)) if each.job == job_id), "")


def _decisions(state: Path, event: str) -> list[Decision]:
    try:
        return list(read_decisions(state / DECISIONS, event))
    except LiveError:
        return []


def is_held_by_berth(job: SlurmJob) -> bool:
    """Whether berth holds it until it places it."""
    return job.held and note_of(job.admin_comment) is not None


def id_of(job: SlurmJob) -> str:
    """What people call it: of tasks that are still one row, the array."""
    return job.array_id if job.array_tasks else job.id


def _part(job: SlurmJob, cards: Cards) -> tuple[int, Share]:
    """How many GPUs a job has or asks for, and which part of each."""
    gpus_asked = job.tres.gpus or job.tres.gpus_a_node * max(1, job.nodes)
    try:
        gpus, share = part_of(job, cards)
    except LeftToSlurmError:
        return gpus_asked or (max(1, job.nodes) if job.tres.shards else 0), Share()
    return gpus_asked or gpus, share


def _live(
    job: SlurmJob,
    status: Mapping[str, Any],
    part: tuple[int, Share],
    now_ms: int,
    memory: Reports | None = None,
) -> LiveJob:
    """A job with what the status says of it; where berth tells no start, Slurm's is shown. None is past."""
    gpus, share = part
    why, starts = status.get("why", {}), status.get("starts", {})
    away = job.state == "SUSPENDED" or (memory is not None and memory.away)
    state = "held" if job.held else "waiting" if job.waits else "suspended" if away else "running"
    tasks = (f"{job.id}{task}" for task in job.array_tasks)
    names = job.id, *tasks
    reason = next((why[name] for name in names if name in why), "")
    found = next((starts[name] for name in names if name in starts), (job.start_ms, None))
    from_ms, to_ms = (None if each is None else max(each, now_ms) for each in found)
    if not job.waits:
        from_ms = to_ms = None
    shown = f"{reason} (Slurm: {job.reason})" if reason else job.reason
    if is_held_by_berth(job):
        # Slurm says of all of these that an administrator holds them.
        later = job.start_ms is not None and job.start_ms - job.submit_ms > HELD_MS
        state = "held" if later else "waiting"
        shown = "held by its user or an operator" if later else reason or NOT_YET
    return LiveJob(
        id_of(job), job.user, job.name, state, gpus, share.milli, share.mem_mib, job.submit_ms, _ready_ms(job, state),
        job.start_ms if job.runs else None, job.node_list if job.runs else "", shown if job.waits else "",
        *((from_ms, to_ms) if state != "held" else (None, None)), job.priority, job.partition,
    )  # fmt: skip


def _ready_ms(job: SlurmJob, state: str) -> int | None:
    """Slurm's eligible time; of a job that berth holds until it places it, the submission, as Slurm tells none."""
    if state == "held":
        return None
    return job.submit_ms if is_held_by_berth(job) else job.eligible_ms


def _gpus(
    nodes: tuple[SlurmNode, ...],
    jobs: tuple[SlurmJob, ...],
    placed: Mapping[str, str],
    parts: Mapping[str, tuple[int, Share]],
    cards: Cards,
    memory: Mapping[str, Reports],
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
            tenant = Tenant(
                job.id, job.user, job.name, share.milli, share.mem_mib or card_mib, since_ms=job.start_ms
            )
            if job.raw_id in memory and (seen := memory[job.raw_id].by_node.get(name)) is not None:
                tenant = replace(
                    tenant,
                    mem_mib=seen.limit_mib,
                    used_mib=0 if seen.suspension else seen.used_mib,
                    promise_mib=seen.promise_mib if seen.max_mib > seen.promise_mib else None,
                    max_mib=seen.max_mib if seen.max_mib > seen.promise_mib else None,
                    asked=seen.asked,
                    granted=seen.granted,
                    refused=seen.refused,
                )
            for at in slots:
                held.setdefault((name, at), []).append(tenant)
    found = []
    for node in nodes:
        for at, kind in enumerate(node.gpu_kinds):
            model = base_type(kind)
            drained = not node.up and not node.lost
            found.append(
                Gpu(
                    node.name,
                    at,
                    model or "GPU",
                    cards.model(model).mem_mib,
                    tuple(held.get((node.name, at), ())),
                    health=f"the node is {node.state}" if node.lost else "",
                    drained=drained,
                    partition=node.partitions[0] if node.partitions else "",
                )
            )
    return tuple(found), unsure


def _slots_of(where: str) -> dict[str, list[int]]:
    """The GPUs on each node of `node1:0+1,node2:0`."""
    found = {}
    for part in filter(None, where.split(",")):
        name, _, slots = part.partition(":")
        if slots and all(slot.isdigit() for slot in slots.split("+")):
            found[name] = [int(slot) for slot in slots.split("+")]
    return found
