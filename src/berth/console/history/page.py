"""`/then`: the history as a page, with the sentence that answers first, two pictures, and the jobs behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from markupsafe import Markup

from berth.console.formats import gpu_time, hours_cell, span, spans
from berth.console.history.api import Answer, Group, answer, applications, lines_for, settled
from berth.console.history.question import Measure, Question, asked, has_pseudonyms, missing, own_of
from berth.console.identity import Who
from berth.console.pages import Texts, page, texts_of
from berth.history.store.cached_history import CachedHistory
from berth.history.values.durations import hours_unit
from berth.plots.accounting import Series, group_bars, group_lines
from berth.plots.accounting import parallel_coordinates as draw
from berth.report.report import as_json
from berth.statistics.accounting import NO_GPU, UNKNOWN
from berth.statistics.tables import Tables

router = APIRouter(include_in_schema=False)
Asked = Annotated[Question, Depends(asked)]
LISTED = 20
"""This many groups are in the table at first."""
MOST_LISTED = 2000
"""At most this many are in it after `groups=all`."""
AXES = {
    Measure.USE: ("GPU-hours held", "GPU-minutes held", "GPU-seconds held"),
    Measure.WAITS: ("Wait, hours", "Wait, minutes", "Wait, seconds"),
    Measure.FAILURES: (
        "GPU-hours of failed attempts",
        "GPU-minutes of failed attempts",
        "GPU-seconds of failed attempts",
    ),
    Measure.EFFICIENCY: (
        "GPU-hours held but idle, of those measured",
        "GPU-minutes held but idle, of those measured",
        "GPU-seconds held but idle, of those measured",
    ),
}
"""What the bars of each measure count, in hours, minutes and seconds."""


@dataclass(frozen=True, slots=True)
class Words:
    """What a page calls measures and groups."""

    measures: dict[str, str]
    by: dict[str, str]
    axis: str
    unit: str
    factor: float
    """Of what a measure tells (GPU-hours, or s of waits) to what is drawn."""


def jobs_page(
    _page: Annotated[
        int, Query(alias="page", ge=1, le=100_000, description="Of the jobs below, from 1.")
    ] = 1,
) -> None:
    """Take the parameter that the script of a page reads from its address."""


@router.get("/then", dependencies=[Depends(jobs_page)])
def then(
    request: Request,
    who: Who,
    question: Asked,
    groups: Annotated[Literal["", "all"], Query(description="Whether to list all groups.")] = "",
) -> Response:
    """The page of one question; heavy reads run in a thread, because this is no coroutine."""
    if why := missing(request):
        return page(request, "history-none.html", who, detail=why)
    history: CachedHistory = request.app.state.history
    t = texts_of(request)
    resolved = settled(history, question)
    found = answer(history, resolved)
    listed = MOST_LISTED if groups else LISTED
    words = _words_for(t, found)
    bars, lines = _pictures(found, t, words)
    return page(
        request,
        "history.html",
        who,
        found=found,
        title=_title(found, t),
        rows=_rows(found.groups[:listed], resolved, t),
        left_out=max(len(found.groups) - listed, 0),
        unfold=not groups and len(found.groups) > LISTED,
        moments=_moments(found, t),
        attempts_seen=own_of(who, history) != "",
        question=resolved,
        words=words,
        figures=[
            (
                t(each.name.replace(" idle", " held but idle")),
                *map(t.sentence, (each.now, each.before, each.change)),
            )
            for each in found.figures
        ],
        bars=bars,
        lines=lines,
        periods=_quick_periods(resolved, t),
        pseudonyms=has_pseudonyms(history),
        texts=_job_texts(t),
        name_of=lambda name: _shown(name, t),
    )


@router.get("/then/lines", dependencies=[Depends(jobs_page)])
def parallel_coordinates(request: Request, who: Who, question: Asked) -> Response:
    """The parallel coordinates of all attempts, or of one application; brushed ranges pick the jobs of the table."""
    if why := missing(request):
        return page(request, "history-none.html", who, detail=why)
    history: CachedHistory = request.app.state.history
    t = texts_of(request)
    resolved = lines_for(who, history, settled(history, question))
    others = tuple(pair for pair in resolved.only if pair[0] != "application")
    listed = applications(history, replace(resolved, only=others))
    name = dict(resolved.only).get("application")
    lines, counts = history.remembered(
        ("lines", resolved.period(), name), lambda database: Tables(database, resolved.period()).lines(name)
    )
    picture: Markup | None = None
    if len(lines):
        figure = draw(lines, counts, "")
        figure.update_layout(title={"text": ""}, margin={"t": 48}, height=420)
        picture = as_json(figure)
    answer_page = page(
        request,
        "lines.html",
        who,
        question=resolved,
        application=name or "",
        applications=listed[:200],
        attempts=int(counts.sum()),
        drawn=len(lines),
        picture=picture,
        own=own_of(who, history) is not None,
        periods=_quick_periods(resolved, t),
        texts=_job_texts(t),
        name_of=lambda each: _shown(each, t),
    )
    # Plotly puts the shaders of parallel coordinates together at run time: on this page alone that is allowed.
    answer_page.headers["Content-Security-Policy"] = (
        "default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    return answer_page


def _words_for(t: Texts, found: Answer) -> Words:
    """The names of what can be chosen, and of what the figures draw."""
    measure = found.question.measure
    waits = measure is Measure.WAITS
    drawn = [
        (group.wait_p90_s or 0.0) / 3600 if waits else group.value(measure) or 0.0 for group in found.groups
    ]
    most = max(drawn, default=0.0)
    factor, unit = (60, "min") if waits and 1 / 60 <= most < 2 else hours_unit(most)  # as in the table
    axis = t(AXES[measure][("h", "min", "s").index(unit)])
    return Words(
        {
            "use": t("Use"),
            "waits": t("Waits"),
            "failures": t("Failures"),
            "efficiency": t("Efficiency"),
        },
        {
            "user": t("user"),
            "account": t("account"),
            "application": t("application"),
            "server": t("server type"),
            "gpu": t("GPU model"),
        },
        axis,
        f" {unit}" if waits else "",
        factor / 3600 if waits else float(factor),
    )


def _shown(name: str, t: Texts) -> str:
    """A group's name as people see it."""
    return {UNKNOWN: t("unknown"), NO_GPU: t("none")}.get(name, name)


def _title(found: Answer, t: Texts) -> str:
    """What was found, in a line."""
    whole, first = found.whole, found.led_by
    if not whole.jobs:
        return t("No job ended in this period")
    name = "" if first is None else _shown(first.name, t)
    match found.question.measure:
        case Measure.USE:
            if first is None:
                return t("{jobs:# job|# jobs} held no GPU", jobs=whole.jobs)
            part = first.gpu_hours / whole.gpu_hours * 100
            return t(
                "{name} used most: {part} % of {held}",
                name=name,
                part=f"{part:.0f}",
                held=gpu_time(whole.gpu_hours, t),
            )
        case Measure.WAITS:
            if whole.wait_median_s is None:
                return t("No job of this period has started")
            if first is None:
                return t("Most jobs started at once")
            if whole.wait_median_s < 1:
                return t("Most jobs started at once; {name} waited longest", name=name)
            median = span(whole.wait_median_s, t)
            return t(
                "Half of the jobs started within {median}; {name} waited longest", median=median, name=name
            )
        case Measure.FAILURES:
            if first is None:
                return t("No GPU-hour was lost to a failed attempt")
            part = whole.failed_gpu_hours / whole.gpu_hours * 100
            return t(
                "{part} % of the GPU-hours went to failed attempts; {name} has the largest part",
                part=f"{part:.0f}",
                name=name,
            )
        case Measure.EFFICIENCY:
            if whole.idle_gpu_hours is None:
                return t("GPU use was not measured in this period")
            if first is None:
                return t("No measured GPU-hour was idle")
            part = whole.idle_gpu_hours / whole.measured_gpu_hours * 100
            return t(
                "{part} % of the measured GPU-hours were idle; {name} has the largest part",
                part=f"{part:.0f}",
                name=name,
            )


def _rows(
    groups: Sequence[Group], question: Question, t: Texts
) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Of each group its name, the addresses that list its jobs and that show it alone, and its figures."""
    medians = spans([group.wait_median_s for group in groups], t)
    longs = spans([group.wait_p90_s for group in groups], t)
    return [_row(group, question, t, *waits) for group, *waits in zip(groups, medians, longs, strict=True)]


def _row(
    group: Group, question: Question, t: Texts, median: str, long: str
) -> tuple[str, str, str, tuple[str, ...]]:
    return (
        group.name,
        f"/then?{question.address(pick=group.name, at=None)}",
        f"/then?{question.address(**{question.by: group.name, 'pick': None, 'at': None})}",
        (
            f"{group.jobs:,}",
            hours_cell(group.gpu_hours, t),
            hours_cell(group.failed_gpu_hours, t),
            "–" if group.idle_gpu_hours is None else hours_cell(group.idle_gpu_hours, t),
            "–" if group.gpu_use is None else f"{group.gpu_use * 100:.0f} %",
            median,
            long,
        ),
    )


def _moments(found: Answer, t: Texts) -> list[tuple[str, str, list[str]]]:
    """The table next to the lines: each day or month, the address of its jobs, and the value of each line."""
    waits = found.question.measure is Measure.WAITS
    parts = found.question.measure is Measure.EFFICIENCY

    def cell(value: float | None) -> str:
        return "–" if value is None else f"{value * 100:.0f} %" if parts else hours_cell(value, t)

    columns = [
        spans(line.values, t) if waits else [cell(value) for value in line.values] for line in found.lines
    ]
    return [
        (
            moment,
            f"/then?{found.question.address(pick=None, at=moment)}",
            [column[at] for column in columns],
        )
        for at, moment in enumerate(found.moments)
    ]


def _pictures(found: Answer, t: Texts, words: Words) -> tuple[Markup | None, Markup | None]:
    """The bars of the groups, and the lines over time if there are two moments or more."""
    question = found.question
    groups = [group for group in found.groups if group.counts(question.measure)]
    names = [_shown(group.name, t) for group in groups]
    keys = [group.name for group in groups]
    sets = [
        Series(words.axis, [(group.value(question.measure) or 0.0) * words.factor for group in groups], keys)
    ]
    if question.measure is Measure.WAITS:
        sets = [
            Series(t("median"), sets[0].values, keys),
            Series(t("90 % within"), [(group.wait_p90_s or 0.0) * words.factor for group in groups], keys),
        ]
        sets = [each for each in sets if any(each.values)]  # medians of 0 would be empty halves of the bars
    bars = as_json(group_bars(names, sets, words.axis, words.unit)) if groups else None
    factor = 100.0 if question.measure is Measure.EFFICIENCY else words.factor
    drawn = []
    for line in found.lines:
        if not line.name:
            continue  # the sum of all others would press the other lines to the ground; the table has it
        name = {"median": t("median"), "90 %": t("90 % within")}.get(line.name, _shown(line.name, t))
        values = [None if value is None else value * factor for value in line.values]
        drawn.append(Series(name, values, [line.group or ""] * len(values)))
    axis, unit = (
        (t("GPU use of what was measured, %"), " %")
        if question.measure is Measure.EFFICIENCY
        else (words.axis, words.unit)
    )
    over = t("day on which jobs ended (UTC)") if question.by_day else t("month in which jobs ended (UTC)")
    # Of one moment the bars tell all; a line would be a dot. Lines of nothing but 0 tell less than the title.
    columns = zip(*(line.values for line in drawn), strict=True)
    known = sum(any(value is not None for value in each) for each in columns)
    top = 100.0 if question.measure is Measure.EFFICIENCY else None
    worth = known > 1 and (top is not None or any(any(line.values) for line in drawn))
    lines = as_json(group_lines(found.moments, drawn, axis, over, unit, top)) if worth else None
    return bars, lines


def _quick_periods(question: Question, t: Texts) -> list[tuple[str, str, bool]]:
    """Quick periods that end on the same day: their names, their days, and which is chosen."""
    assert question.end is not None
    return [
        (name, str(question.end - timedelta(days=days)), question.days == days)
        for name, days in (
            (t("7 days"), 7),
            (t("28 days"), 28),
            (t("90 days"), 90),
            (t("1 year"), 365),
        )
    ]


def _job_texts(t: Texts) -> dict[str, Any]:
    """What the script that lists jobs says."""
    return {
        "columns": [
            ("job", t("Job")),
            ("user", t("User")),
            ("application", t("Application")),
            ("server", t("Partition")),
            ("state", t("State")),
            ("gpus", t("GPUs")),
            ("end_ms", t("Ended (UTC)")),
            ("wait_s", t("Waited")),
            ("run_s", t("Ran")),
            ("gpu_hours", t("GPU-hours")),
            ("gpu_use", t("GPU use")),
            ("name", t("Name")),
            ("command", t("Command")),
        ],
        "caption": t("{total:# attempt|# attempts}, page {page} of {pages}"),
        "none": t("No attempts here."),
        "own": t(
            "Only your own jobs are listed here; what was measured of other people's jobs is not shown."
        ),
        "all": t("Jobs of the whole period"),
        "of": t("Jobs of {what}"),
        "enter": t("{name}: {value}; Enter shows its jobs"),
        "loading": t("Loading …"),
        "states": {
            "completed": t("completed"),
            "failed": t("failed"),
            "out-of-memory": t("out of memory"),
            "node-fail": t("node failed"),
            "timeout": t("time limit reached"),
            "preempted": t("preempted"),
            "cancelled": t("cancelled"),
            "rejected": t("rejected"),
        },
        "unknown": t("unknown"),
    }
