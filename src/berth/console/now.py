"""`/now` and `/recent`: what is on the GPUs now, and pictures of the last hour or day."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from berth.arrays import FloatArray
from berth.console.clock import now_ms
from berth.console.formats import decimal, span
from berth.console.hub import Hub, source_json
from berth.console.identity import Who
from berth.console.pages import page, texts_of
from berth.console.recent import SPANS, Window
from berth.console.roles import Role
from berth.console.source import Source
from berth.counts import natural

router = APIRouter(include_in_schema=False)
MOST_OPTIONS = 500
Span = Literal["hour", "day"]


@router.get("/now")
async def now(
    request: Request,
    who: Who,
    model: Annotated[str, Query()] = "",
    user: Annotated[str, Query()] = "",
    partition: Annotated[str, Query()] = "",
    span: Span = "hour",
) -> HTMLResponse:
    """The page; its script asks for the GPUs and then receives the changes."""
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
async def recent(request: Request, who: Who, span: Span = "hour") -> HTMLResponse:
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


MOST_USERS = 20
MOST_PICTURES = 64
"""Pictures of GPUs, or of nodes where there are more GPUs."""
Say = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Picture:
    """One small picture, with what it says in words and of what."""

    said: str
    gaps: str
    layers: list[tuple[str, str]]
    """A class of live.css and a path each, the lowest first."""
    name: str = ""


@dataclass(frozen=True, slots=True)
class OfUser:
    """What a user held and waited for."""

    user: str
    held: str
    held_picture: Picture
    waiting: str
    waiting_picture: Picture
    wait: str


@dataclass(slots=True)
class Pictures:
    """All of them, as the template draws them."""

    span: str
    points: int
    from_ms: int
    totals: list[Picture] = field(default_factory=list)
    legend: list[tuple[str, str]] = field(default_factory=list)
    users: list[OfUser] = field(default_factory=list)
    users_caption: str = ""
    gpus: list[Picture] = field(default_factory=list)
    gpus_title: str = ""
    gpus_note: str = ""


def pictures_of(window: Window, t: Say) -> Pictures:
    """The pictures of a window; none where nothing was sampled."""
    found = Pictures(window.span.name, window.span.points, window.from_ms)
    if not window.sampled.any():
        return found
    no_samples = gaps(np.where(window.sampled, 1.0, np.nan))
    cards, most_mib = np.nanmax(window.cards), np.nanmax(window.mem_mib)
    most_waiting = max(1.0, np.nanmax(window.waiting))
    found.totals = [
        Picture(
            t(
                "{held} of {cards} held on average, {working} at work",
                held=_mean(window.held),
                cards=f"{cards:,.0f}",
                working=_mean(window.working),
            ),
            no_samples,
            [
                ("held", area(window.held, cards)),
                ("work", area(window.working, cards)),
                ("edge", line(window.held, cards)),
            ],
            t("GPUs"),
        ),
        Picture(
            t(
                "{used} of {all} GiB in use on average, {peak} at most",
                used=_mean(window.used_mib / 1024),
                all=f"{most_mib / 1024:,.0f}",
                peak=_peak(window.used_mib / 1024),
            ),
            no_samples,
            [("memory", area(window.used_mib, most_mib))],
            t("GPU memory"),
        ),
        Picture(
            t(
                "{waiting} on average, {peak} at most; the longest wait was {wait}",
                waiting=_mean(window.waiting),
                peak=f"{np.nanmax(window.waiting):,.0f}",
                wait=span(float(np.nanmax(window.wait_s)), t),
            ),
            no_samples,
            [("waiting", area(window.waiting, 1.1 * most_waiting))],
            t("Jobs waiting"),
        ),
    ]
    found.legend = [("held", t("held by jobs")), ("work", t("at work")), ("memory", t("memory in use"))]
    found.legend += [("waiting", t("waiting"))]
    if not window.sampled.all():
        found.legend.append(("gap", t("no samples")))
    _add_users(found, window, no_samples, t)
    _add_gpus(found, window, t)
    return found


def _add_users(found: Pictures, window: Window, no_samples: str, t: Say) -> None:
    order = sorted(
        window.users,
        key=lambda user: [
            -np.nansum(window.users[user][0]),
            -np.nansum(window.users[user][1]),
            natural(user),
        ],
    )
    shown = order[:MOST_USERS]
    top = max((float(np.nanmax(window.users[user][0])) for user in shown), default=1.0)
    top_waiting = max((float(np.nanmax(window.users[user][1])) for user in shown), default=1.0)
    for user in shown:
        held, waiting, wait_s = window.users[user]
        now = int(np.flatnonzero(window.sampled)[-1])
        said = _mean(held)
        found.users.append(
            OfUser(
                user,
                said,
                Picture(
                    t("GPUs that {user} held: {held} on average", user=user, held=said),
                    no_samples,
                    [("held", area(held, top))],
                ),
                f"{waiting[now]:,.0f}",
                Picture(
                    t("jobs of {user} that waited: {peak} at most", user=user, peak=_peak(waiting)),
                    no_samples,
                    [("waiting", area(waiting, max(top_waiting, 1.0)))],
                ),
                span(float(np.nanmax(wait_s)), t) if np.nanmax(wait_s) > 0 else "–",
            )
        )
    found.users_caption = t("{shown} of {users:# user|# users}", shown=len(shown), users=len(order))


def _add_gpus(found: Pictures, window: Window, t: Say) -> None:
    """A picture of each GPU, or of each node where there are many."""
    groups: dict[str, list[tuple[str, str, int]]] = {}
    each_gpu = len(window.gpus) <= MOST_PICTURES
    for key in window.gpus:
        groups.setdefault(f"{key[1]} · {t('GPU')} {key[2]}" if each_gpu else key[1], []).append(key)
    for name, keys in list(groups.items())[:MOST_PICTURES]:
        values = np.stack([window.gpus[key] for key in keys])  # (gpus, 3, points)
        mem_mib = sum(window.gpu_mem_mib[key] for key in keys)
        use, used = _summed(values[:, 0]) / len(keys), _summed(values[:, 1])
        held = _summed(np.minimum(values[:, 2], 1000)) / len(keys)
        said = t(
            "{use} % used, {memory} GiB of {all} on average",
            use=_mean(use, digits=0),
            memory=_mean(used / 1024),
            all=f"{mem_mib / 1024:,.0f}",
        )
        layers = [
            ("promised", area(held, 1000)),
            ("work", area(use, 100)),
            ("memory-line", line(used, mem_mib)),
        ]
        found.gpus.append(Picture(said, gaps(held), layers, name))
    found.gpus_title = t("By GPU over time") if each_gpu else t("By node over time")
    if len(groups) > MOST_PICTURES:
        found.gpus_note = t("The first {shown} of {all}.", shown=MOST_PICTURES, all=len(groups))


def _summed(values: FloatArray) -> FloatArray:
    """(n, points) added up; NaN where none is known."""
    known = ~np.isnan(values)
    total: FloatArray = np.where(known, values, 0).sum(axis=0)
    total[~known.any(axis=0)] = np.nan
    return total


def _mean(values: FloatArray, digits: int = 1) -> str:
    known = values[~np.isnan(values)]
    if not len(known):
        return "–"
    mean = float(known.mean())
    return f"{mean:,.0f}" if digits == 0 or mean >= 100 else decimal(mean).removesuffix(".0")


def _peak(values: FloatArray) -> str:
    known = values[~np.isnan(values)]
    return decimal(float(known.max())).removesuffix(".0") if len(known) else "–"


HEIGHT = 100


def area(values: FloatArray, top: float) -> str:
    """The filled steps of (points,) values from 0 to `top`; steps without a number stay empty."""
    return _path(values, top, closed=True)


def line(values: FloatArray, top: float) -> str:
    """The upper edge of these steps."""
    return _path(values, top, closed=False)


def gaps(values: FloatArray) -> str:
    """The full height of each run of steps without a number."""
    return area(np.where(np.isnan(values), 1.0, np.nan), 1.0)


def _path(values: FloatArray, top: float, *, closed: bool) -> str:
    heights = np.clip(np.round(HEIGHT * values / max(top, 1e-9)), 0, HEIGHT)
    words: list[str] = []
    at, end = 0, f"V{HEIGHT}Z" if closed else ""
    for known, run in groupby(heights, key=lambda height: not np.isnan(height)):
        steps = [*run]
        far = at
        if known:
            words.append(f"M{at} {HEIGHT if closed else HEIGHT - int(steps[0])}")
            for height, alike in groupby(steps):
                far += len([*alike])
                words.append(f"V{HEIGHT - int(height)}H{far}")
            words.append(end)
        at += len(steps)
    return "".join(words)
