"""Changes: only where `--actions` allows them, within the viewer's rights, and each in the audit log."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request

from berth.console.audit import Audit, Line, now_ms
from berth.console.error_answers import Refusal
from berth.console.hub import Hub
from berth.console.identity import operator, user
from berth.console.roles import Viewer
from berth.console.schemas import ActionAnswer, ActionRequest
from berth.errors import AccessError, BerthError

router = APIRouter()
NO_ACTIONS = "this console only shows; start it with `berth console --actions` to change anything from here"


@router.post(
    "/api/v1/actions",
    responses={
        409: {"model": Refusal, "description": "The source refused it."},
        503: {"model": Refusal, "description": "The source does not answer."},
    },
)
async def act(
    asked: ActionRequest, request: Request, viewer: Annotated[Viewer, Depends(user)]
) -> ActionAnswer:
    """Hold, release or cancel a job, set its priority; as an operator change the policy, resize a partition, or drain
    and undrain a GPU."""
    state = request.app.state
    hub: Hub = state.hub
    audit: Audit = state.audit
    if not state.settings.actions:
        raise HTTPException(403, NO_ACTIONS)
    seen = hub.seen.get(asked.source)
    if seen is None:
        raise HTTPException(404, f"no source '{asked.source}'; there are {', '.join(hub.seen) or 'none'}")
    values: dict[str, Any] = {"id": asked.id, "value": asked.value}
    command = seen.source.command(asked.action, values)
    if command is None:
        why = seen.source.lacks(viewer).get(asked.action, "")
        raise HTTPException(
            400, f"the source '{asked.source}' has no action '{asked.action}'. {why}".rstrip(". ")
        )
    line = Line(
        now_ms(),
        viewer.user,
        viewer.role.value,
        viewer.via,
        asked.source,
        asked.action,
        asked.id,
        asked.value,
        command,
        "asked",
    )
    await asyncio.to_thread(audit.add, line)
    try:
        done = await seen.source.act(asked.action, values, viewer)
    except AccessError as error:
        await asyncio.to_thread(audit.add, replace(line, at_ms=now_ms(), result="refused", why=str(error)))
        raise
    except BerthError as error:
        await asyncio.to_thread(audit.add, replace(line, at_ms=now_ms(), result="failed", why=str(error)))
        await hub.fresh()
        raise HTTPException(503 if hub.seen[asked.source].why else 409, str(error)) from error
    except Exception as error:  # a fault of the console, after which the log must not end with `asked`
        await asyncio.to_thread(audit.add, replace(line, at_ms=now_ms(), result="failed", why=repr(error)))
        raise
    await asyncio.to_thread(audit.add, replace(line, at_ms=now_ms(), result="done", why=done))
    hub.look_soon(asked.source)
    return ActionAnswer(done=done, command=command)


@router.get("/api/v1/actions")
def actions(
    request: Request,
    viewer: Annotated[Viewer, Depends(operator)],
    most: Annotated[int, Query(ge=1, le=10_000)] = 100,
) -> list[Line]:
    """The last changes that were asked for, the newest last; for operators."""
    audit: Audit = request.app.state.audit
    return audit.last(most)
