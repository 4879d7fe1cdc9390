"""`/now`: what is on the GPUs at this moment."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse

from berth.console.audit import now_ms
from berth.console.hub import Hub, source_json
from berth.console.identity import viewer
from berth.console.pages import page, texts_of
from berth.console.recent import SPANS
from berth.console.recent_page import Pictures, pictures_of
from berth.console.roles import Role, Viewer
from berth.console.source import Source
from berth.counts import natural

router = APIRouter(include_in_schema=False)
MOST_OPTIONS = 500
Span = Literal["hour", "day"]


@router.get("/now")
async def now(
    request: Request,
    who: Annotated[Viewer, Depends(viewer)],
    model: Annotated[str, Query()] = "",
    user: Annotated[str, Query()] = "",
    partition: Annotated[str, Query()] = "",
    span: Span = "hour",
) -> HTMLResponse:
    """The page; its script asks for the GPUs and is told what changes."""
    hub: Hub = request.app.state.hub
    seen = await hub.fresh()
    gpus = [gpu for each in seen.values() if each.look for gpu in each.look.gpus]
    return page(
        request,
        "now.html",
        who,
        counts=hub.counts(),
        sources=[source_json(each) for each in seen.values()],
        models=_options(gpu.model for gpu in gpus),
        users=_options(tenant.user for gpu in gpus for tenant in gpu.tenants),
        partitions=_options(gpu.partition for gpu in gpus),
        asked={"model": model, "user": user, "partition": partition},
        commands={name: _commands(each.source) for name, each in seen.items()},
        lacks=[why for each in seen.values() if each.look for why in each.source.lacks(who).values()],
        operates=request.app.state.settings.actions and who.role is Role.OPERATOR,
        recent=await _recent(request, span),
    )


@router.get("/now/recent")
async def recent(
    request: Request, who: Annotated[Viewer, Depends(viewer)], span: Span = "hour"
) -> HTMLResponse:
    """The part of the page that shows the last hour or day, for its script."""
    return page(request, "recent.html", who, recent=await _recent(request, span))


async def _recent(request: Request, span: Span) -> Pictures:
    t = texts_of(request)
    return await asyncio.to_thread(
        lambda: pictures_of(request.app.state.recent.window(SPANS[span], now_ms()), t)
    )


def _commands(source: Source) -> dict[str, str | None]:
    """The commands of an operator's actions, with words to be replaced by what is chosen on the page."""
    chosen = {"id": "NODE:INDEX", "value": "VALUE"}
    return {action: source.command(action, chosen) for action in ("drain", "undrain", "policy")}


def _options(values: Any) -> list[str]:
    return sorted(set(values) - {""}, key=natural)[:MOST_OPTIONS]
