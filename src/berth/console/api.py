"""The live cluster as JSON."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response

from berth.console.hub import Hub, source_json
from berth.console.identity import Who
from berth.console.job import find_job
from berth.console.queue import QueueQuery, chosen
from berth.console.schemas import (
    GpusAnswer,
    JobAnswer,
    QueueAnswer,
    SourceAnswer,
)
from berth.console.source import Follows, Output

router = APIRouter(prefix="/api/v1")


@router.get("/gpus", response_model=GpusAnswer, responses={304: {"description": "Nothing has changed"}})
async def gpus(request: Request, who: Who) -> Response:
    """Every GPU with the jobs on it and the part that each has."""
    hub: Hub = request.app.state.hub
    version, body = await hub.gpus()
    headers = {"ETag": f'"{version}"', "Cache-Control": "no-cache"}
    if request.headers.get("If-None-Match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


@router.get("/queue")
async def queue(request: Request, who: Who, asked: Annotated[QueueQuery, Depends()]) -> QueueAnswer:
    """Jobs that run and wait, in the order of the queue, a page at a time."""
    return await chosen(request.app.state, asked, who)


@router.get("/jobs/{job_id:path}")
async def job(
    request: Request,
    who: Who,
    job_id: str,
    source: Annotated[str, Query(description="Of this source, or `history`")] = "",
) -> JobAnswer:
    """One job: what runs or waits, and what the history has of it."""
    return await find_job(request.app.state, job_id, source, who)


@router.get("/output/{job_id:path}")
async def output(
    request: Request,
    who: Who,
    job_id: str,
    source: Annotated[str, Query(description="The source that has the job")],
    after: Annotated[
        int | None, Query(ge=0, description="`next` of the answer before; the end if absent")
    ] = None,
) -> Output:
    """What a job wrote after the answer before this one, so that it can be followed until it ends."""
    hub: Hub = request.app.state.hub
    if source not in hub.seen:
        raise HTTPException(404, f"no source '{source}'; there are {', '.join(hub.seen) or 'none'}")
    follows = hub.seen[source].source
    found = None
    if isinstance(follows, Follows):
        found = await asyncio.to_thread(follows.output, job_id, who, after)
    if found is None:
        raise HTTPException(404, f"the output of job '{job_id}' cannot be read from here")
    return found


@router.get("/sources")
async def sources(request: Request, who: Who) -> list[SourceAnswer]:
    """The queues that are looked at, and which of them are there."""
    hub: Hub = request.app.state.hub
    return [SourceAnswer(**source_json(seen)) for seen in (await hub.fresh()).values()]
