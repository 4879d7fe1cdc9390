"""`/job/ID`: one job, live where a queue has it, and what the history knows of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import HTMLResponse

from berth.console.clock import now_ms
from berth.console.history.question import own_of
from berth.console.hub import Hub
from berth.console.identity import Who
from berth.console.pages import page
from berth.console.roles import Viewer
from berth.console.schemas import JobAnswer
from berth.console.source import Follows, actions_in, commands_of
from berth.errors import BerthError
from berth.history.store.cached_history import CachedHistory
from berth.live.driver.snapshot import UNENDED, Gpu
from berth.live.driver.words import without_start

router = APIRouter(include_in_schema=False)
HISTORY = "history"
MOST_REPORTS = 20
SAME_MS = 1000
"""How far apart a queue and its accounting may tell one submission: Slurm tells whole seconds."""
_HIDDEN: Final[Mapping[str, object]] = {
    **dict.fromkeys(("name", "application", "command", "comment", "end_reason"), ""),
    **dict.fromkeys(("nodes", "gpu_slots"), ()),
    **dict.fromkeys(
        ("exit_code", "work_ms", "cpu_used_ms", "mem_peak_mib", "energy_j", "cpu_use", "mem_use")
    ),
    **dict.fromkeys(("gpu_use_mean", "gpu_use_peak", "gpu_mem_mean", "gpu_mem_peak", "neighbours")),
}
"""What is not shown of other people's attempts, and what stands there instead: as in lists of the history."""


async def find_job(state: Any, job_id: str, source: str, who: Viewer) -> JobAnswer:
    """A job by its id: of the first source that has it, with what the history has of the same id. 404 if none has."""
    hub: Hub = state.hub
    reasons: list[str] = []
    found: dict[str, Any] | None = None
    for name, seen in (await hub.fresh()).items():
        if source not in ("", name) or found is not None:
            continue
        try:
            found = await asyncio.to_thread(seen.source.job, job_id, who, seen.look)
        except (BerthError, OSError) as error:
            reasons.append(str(error))
    reports: list[tuple[dict[str, Any], bool]] = []
    history: CachedHistory | None = state.history
    # The first attempt of what waits or runs is in no history.
    recorded = found is None or found.get("attempt", 1) > 1 or found["state"] not in UNENDED
    if recorded and history is not None and (found is not None or source in ("", HISTORY)):
        try:
            reports = await asyncio.to_thread(_reports, history, job_id, who)
        except (BerthError, OSError) as error:
            reasons.append(str(error))
    if found is not None:
        look = hub.seen[found["source"]].look
        if look is not None and found["state"] in ("waiting", "held"):
            live = next((job for job in look.jobs if job.id == found["id"]), None)
            if live is not None:
                found |= {"starts_from_ms": live.starts_from_ms, "starts_to_ms": live.starts_to_ms}
            found["reason"] = without_start(found.get("reason", ""))
            found["why"] = [without_start(line) for line in found.get("why", ())]
        for each in [each for each in reports if _is_of(each[0], found)]:
            _add_running(each[0], look.gpus if look is not None else ())
        if source:
            reports = [each for each in reports if _is_of(each[0], found)]
    if found is None and not reports:
        raise HTTPException(
            404, f"no job '{job_id}'; {'; '.join(reasons) or 'no source and no history is there'}"
        )
    return JobAnswer(**(found or _of_report(*reports[-1], job_id)), history=[report for report, _ in reports])


def _reports(history: CachedHistory, job_id: str, who: Viewer) -> list[tuple[dict[str, Any], bool]]:
    """What the history has, without what this viewer may not see, and whether all of it may be seen."""
    from berth.history.jobs.history_source import HistoryJobs
    from berth.history.jobs.job_report import job_reports, report_json
    from berth.history.store.reader import history_is_there

    history_is_there(history.folder)
    owner = own_of(who, history)
    found = []
    for each in job_reports(HistoryJobs(history.reader, owner), job_id)[-MOST_REPORTS:]:
        own = owner is None or (owner != "" and all(record.user == owner for record in each.attempts))
        report = report_json(each) | {"own": own}
        if not own:
            report |= {"series": [], "refused": None, "enough": [], "little_used": None}
            report["cost"] |= {"idle_gpu_hours": None, "energy_kwh": None}
            for attempt in report["attempts"]:
                attempt |= _HIDDEN
        found.append((report, own))
    return found


def _is_of(report: dict[str, Any], found: dict[str, Any]) -> bool:
    """Whether a report is that of a job of a queue, and not of another cluster's with the same id."""
    submit_ms = found.get("submit_ms")
    return submit_ms is not None and abs(report["attempts"][0]["submit_ms"] - submit_ms) <= SAME_MS


def _add_running(report: dict[str, Any], gpus: Iterable[Gpu]) -> None:
    """Add what has shared GPUs with the attempts of a report and still runs, which is in no history yet."""
    tenants = {f"{gpu.node}:{gpu.index}": gpu.tenants for gpu in gpus}
    for attempt in report["attempts"]:
        for slot in attempt["gpu_slots"] if attempt["neighbours"] is not None else ():
            for each in tenants.get(slot, ()):
                known = [other["job"] for other in attempt["neighbours"]]
                if each.since_ms is not None and each.since_ms < attempt["end_ms"] and each.job not in known:
                    attempt["neighbours"].append({"job": each.job, "user": each.user, "gpus": [slot]})


def _of_report(report: dict[str, Any], own: bool, job_id: str) -> dict[str, Any]:
    """The last attempt of a job that has ended, as a source would have told it."""
    last = report["attempts"][-1]
    return {
        "source": HISTORY,
        "id": report["job"] or job_id,
        "user": last["user"],
        "state": last["state"],
        "own": own,
        "name": last["name"],
        "application": last["application"],
        "gpus": last["gpus"],
        "milli": last["share"]["milli"],
        "mem_mib": last["share"]["mem_mib"],
        "submit_ms": last["queued_ms"],
        "start_ms": last["start_ms"],
        "end_ms": last["end_ms"],
        "attempt": len(report["attempts"]),
        "partition": last["virtual_cluster"],
        "command": last["command"] or None,
        "series": [
            {
                "time_ms": point["begin_ms"],
                "use_pct": None if point["gpu_use"] is None else round(100 * point["gpu_use"], 1),
            }
            for point in report["series"]
        ],
    }


@router.get("/job/{job_id:path}")
async def job(
    request: Request,
    who: Who,
    job_id: str,
    source: Annotated[str, Query()] = "",
) -> HTMLResponse:
    """One job as a page."""
    found = await find_job(request.app.state, job_id, source, who)
    hub: Hub = request.app.state.hub
    live = hub.seen.get(found.source)
    actions: dict[str, str] = {}
    lacks: list[str] = []
    if request.app.state.settings.actions and found.controls and live is not None:
        wanted, lacking = actions_in(found.state), live.source.lacks(who)
        lacks = [lacking[name] for name in wanted if name in lacking]
        actions = commands_of(live.source, found.id, wanted, who)
    return page(
        request,
        "job.html",
        who,
        job=found,
        actions=actions,
        now_ms=now_ms(),
        live_job=live is not None,
        lacks=lacks,
        follows=live is not None and isinstance(live.source, Follows) and found.own,
    )
