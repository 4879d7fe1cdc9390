"""News for pages that are open: server-sent events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import StreamingResponse

from berth.console.hub import Hub
from berth.console.identity import Who

router = APIRouter(include_in_schema=False)
RECOGNISED_S = 5.0
"""How long a page may be told news before its token is looked at again."""


@router.get("/events")
async def events(request: Request, who: Who) -> Response:
    """Each look that differs from the one before, until the page is closed or its session ends."""
    hub: Hub = request.app.state.hub
    if hub.full:
        raise HTTPException(503, "too many pages are open already; close some")

    async def messages() -> AsyncIterator[bytes]:
        watching = hub.watch()
        again_s = time.monotonic() + RECOGNISED_S
        try:
            async for event in watching:
                if event.startswith(b":") or time.monotonic() >= again_s:
                    request.app.state.doorkeeper.recognise(request)  # a revoked token ends what it began
                    again_s = time.monotonic() + RECOGNISED_S
                yield event
        except HTTPException:
            return
        finally:
            await watching.aclose()

    return StreamingResponse(messages(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
