"""`/queue`: which jobs run and wait, why, and when they may start; filtered and paged here, so that it may be long."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from itertools import islice
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse

from berth.console.clock import now_ms
from berth.console.hub import Hub, source_json
from berth.console.identity import Who
from berth.console.pages import page
from berth.console.roles import Role, Viewer
from berth.console.schemas import QueueAnswer, QueuedJob
from berth.console.source import Submits, actions_in, commands_of
from berth.live.driver.snapshot import LiveJob, job_dict
from berth.live.driver.words import without_start

router = APIRouter(include_in_schema=False)
State = Literal["", "waiting", "held", "starting", "running", "suspending", "suspended", "resuming"]


@dataclass(frozen=True, slots=True)
class QueueQuery:
    """Which jobs are wanted, and which page of them; empty for all."""

    source: Annotated[str, Query()] = ""
    state: State = ""
    user: Annotated[str, Query()] = ""
    partition: Annotated[str, Query()] = ""
    id: Annotated[str, Query(description="Jobs whose id begins so")] = ""
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1
    size: Annotated[int, Query(ge=1, le=1000)] = 50

    def address(self) -> str:
        """The address of the same, up to the number of a page."""
        plain = QueueQuery()
        values = {
            name: value
            for name in self.__slots__
            if name != "page" and (value := getattr(self, name)) != getattr(plain, name)
        }
        return "/queue?" + "".join(f"{urlencode([each], errors='surrogatepass')}&" for each in values.items())


async def chosen(state: Any, asked: QueueQuery, who: Viewer) -> QueueAnswer:
    """The page that was asked for, or the last one if there are fewer."""
    hub: Hub = state.hub
    snapshots = {name: seen.look for name, seen in (await hub.fresh()).items() if seen.look is not None}

    def choose() -> tuple[int, int, list[tuple[str, LiveJob]]]:
        found = [
            (name, job)
            for name, look in snapshots.items()
            if asked.source in ("", name)
            for job in look.jobs
            if (not asked.state or job.state == asked.state)
            and (not asked.user or job.user == asked.user)
            and (not asked.partition or job.partition == asked.partition)
            and (not asked.id or job.id.startswith(asked.id))
        ]
        last = max(1, -(-len(found) // asked.size))
        number = min(asked.page, last)
        return len(found), number, list(islice(found, (number - 1) * asked.size, number * asked.size))

    total, number, jobs = await asyncio.to_thread(choose)
    rows = [_row(name, job, who) for name, job in jobs]
    return QueueAnswer(total=total, page=number, size=asked.size, now_ms=now_ms(), jobs=rows)


def _row(source: str, job: LiveJob, who: Viewer) -> QueuedJob:
    seen = replace(job, name=job.name if who.owns(job.user) else "", why=without_start(job.why))
    return QueuedJob(**job_dict(seen), source=source)


@router.get("/queue")
async def queue(request: Request, who: Who, asked: Annotated[QueueQuery, Depends()]) -> HTMLResponse:
    """The queue as a page."""
    hub: Hub = request.app.state.hub
    found = await chosen(request.app.state, asked, who)
    acts = request.app.state.settings.actions
    commands = [_commands(hub, row, who) if acts and who.owns(row.user) else {} for row in found.jobs]
    jobs = [job for seen in hub.seen.values() if seen.look for job in seen.look.jobs]
    partitions = sorted({job.partition for job in jobs} - {""})
    return page(
        request,
        "queue.html",
        who,
        asked=asked,
        found=found,
        counts=hub.counts(),
        states=get_args(State),
        partitions=partitions,
        sources=[source_json(seen) for seen in hub.seen.values()],
        commands=commands,
        chooses=any(commands),
        submits=[name for name, seen in hub.seen.items() if acts and isinstance(seen.source, Submits)]
        if who.role.includes(Role.USER)
        else [],
    )


def _commands(hub: Hub, row: QueuedJob, who: Viewer) -> dict[str, str]:
    """What this viewer may do to several jobs like this one together, each with the command that does the same."""
    wanted = (name for name in actions_in(row.state) if name != "priority")
    return commands_of(hub.seen[row.source].source, row.id, wanted, who)
