"""Changes: only where `--actions` allows them, within the viewer's rights, and each in the audit log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, HTTPException, Request

from berth.console.audit import Audit, Line
from berth.console.clock import now_ms
from berth.console.error_answers import Refusal
from berth.console.hub import Hub
from berth.console.identity import User
from berth.console.roles import Viewer
from berth.console.schemas import ActionAnswer, ActionRequest, SubmitAnswer, SubmitRequest
from berth.console.source import Source, Submits
from berth.errors import AccessError, BerthError

router = APIRouter()
NO_ACTIONS = "this console only shows; start it with `berth console --actions` to change anything from here"


_CHANGES: dict[int | str, dict[str, Any]] = {
    409: {"model": Refusal, "description": "The source refused it."},
    503: {"model": Refusal, "description": "The source does not answer."},
}


@router.post("/api/v1/actions", responses=_CHANGES)
async def act(asked: ActionRequest, request: Request, viewer: User) -> ActionAnswer:
    """Hold, release or cancel a job, set its priority; as an operator change the policy, or drain and undrain a
    GPU."""
    source = _source(request, asked.source)
    values: dict[str, Any] = {"id": asked.id, "value": asked.value}
    command = source.command(asked.action, values)
    if command is None:
        why = source.lacks(viewer).get(asked.action, "")
        raise HTTPException(
            400, f"the source '{asked.source}' has no action '{asked.action}'. {why}".rstrip(". ")
        )
    doing = partial(source.act, asked.action, values, viewer)
    done = await _noted(request, asked.source, viewer, (asked.action, asked.id, asked.value, command), doing)
    return ActionAnswer(done=done, command=command)


@router.post("/api/v1/jobs", status_code=201, responses=_CHANGES)
async def submit(asked: SubmitRequest, request: Request, viewer: User) -> SubmitAnswer:
    """Queue a job of the viewer, with the rights that the user of this name has on the machine."""
    source = _source(request, asked.source)
    if not isinstance(source, Submits):
        raise HTTPException(400, f"no job can be submitted to the source '{asked.source}' from here")
    values = asked.model_dump(exclude={"source"})
    command = source.submit_command(values)
    doing = partial(source.submit, values, viewer)
    job_id = await _noted(request, asked.source, viewer, ("submit", "", None, command), doing)
    return SubmitAnswer(id=job_id, command=command)


def _source(request: Request, name: str) -> Source:
    """The source that is to be changed; refused where nothing may be, or there is none of this name."""
    state = request.app.state
    if not state.settings.actions:
        raise HTTPException(403, NO_ACTIONS)
    seen = state.hub.seen.get(name)
    if seen is None:
        raise HTTPException(404, f"no source '{name}'; there are {', '.join(state.hub.seen) or 'none'}")
    source: Source = seen.source
    return source


async def _noted(
    request: Request,
    source: str,
    viewer: Viewer,
    what: tuple[str, str, str | int | None, str],
    doing: Callable[[], str],
) -> str:
    """Make a change that is in the audit log before and after; what was done."""
    hub: Hub = request.app.state.hub
    audit: Audit = request.app.state.audit
    line = Line(now_ms(), viewer.user, viewer.role.value, viewer.via, source, *what, "asked")

    async def note(result: str, why: str) -> None:
        await asyncio.to_thread(audit.add, replace(line, at_ms=now_ms(), result=result, why=why))

    await asyncio.to_thread(audit.add, line)
    try:
        done = await asyncio.to_thread(doing)
    except AccessError as error:
        await note("refused", str(error))
        raise
    except BerthError as error:
        await note("failed", str(error))
        await hub.fresh()
        raise HTTPException(503 if hub.seen[source].why else 409, str(error)) from error
    except Exception as error:  # a fault of the console, after which the log must not end with `asked`
        await note("failed", repr(error))
        raise
    await note("done", done)
    hub.look_soon(source)
    return done
