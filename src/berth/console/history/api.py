"""`/api/v1/history/…`: the history as JSON, and the answers that its pages share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

import duckdb
from fastapi import APIRouter, Depends, HTTPException, Query

from berth.console.history.question import ORDER_OF, Measure, Question, asked, history_of, own_of, picked_for
from berth.console.identity import Who
from berth.console.roles import Viewer
from berth.history.store.cached_history import CachedHistory
from berth.report.digest import Figure, main_figures
from berth.statistics.accounting import NOTHING_USED, Usage
from berth.statistics.attempts import Attempt, Waited
from berth.statistics.tables import EVERYTHING, Tables

router = APIRouter(prefix="/api/v1/history", tags=["history"])

Store = Annotated[CachedHistory, Depends(history_of)]
Asked = Annotated[Question, Depends(asked)]


@dataclass(frozen=True, slots=True)
class Groups:
    """What each group used, how it waited and what it lost."""

    measure: str
    by: str
    begin: str
    """The first day."""
    end: str
    """The day after the last."""
    whole: Group
    before: Group
    figures: list[Figure]
    groups: list[Group]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The first groups over time."""

    measure: str
    by: str
    moments: list[str]
    lines: list[Line]


@dataclass(frozen=True, slots=True)
class Jobs:
    """A page of the attempts behind a figure."""

    total: int
    page: int
    size: int
    own_only: bool
    """Whether other people's attempts are left out, because the order or a range would tell what is hidden of them."""
    attempts: list[Attempt]


@router.get("/groups")
def groups(who: Who, history: Store, question: Asked) -> Groups:
    """Say what each group used, how it waited and what it lost, and the same for the period of that length before."""
    found = answer(history, settled(history, question))
    resolved = found.question
    return Groups(
        resolved.measure.value,
        resolved.by,
        str(resolved.begin),
        str(resolved.end),
        found.whole,
        found.before,
        list(found.figures),
        list(found.groups),
    )


@router.get("/series")
def series(who: Who, history: Store, question: Asked) -> Timeline:
    """Say how the first groups went over time, by days or months."""
    found = answer(history, settled(history, question))
    return Timeline(question.measure.value, question.by, list(found.moments), list(found.lines))


@router.get("/jobs")
def jobs(
    who: Who,
    history: Store,
    question: Asked,
    page: Annotated[int, Query(ge=1, le=100_000, description="From 1.")] = 1,
    size: Annotated[int, Query(ge=1, le=500, description="Attempts a page.")] = 25,
) -> Jobs:
    """List the attempts behind a figure: of a group, of a day or month, within ranges of variables."""
    resolved = settled(history, question)
    picked = picked_for(who, history, ORDER_OF[resolved.measure], resolved.ranges)
    with history.database() as database:
        total, rows = Tables(database, resolved.picked_period()).attempts(picked, size, (page - 1) * size)
    return Jobs(total, page, size, picked.own_only, rows)


def lines_for(who: Viewer, history: CachedHistory, question: Question) -> Question:
    """The question about single attempts: an operator's as it is, a user's about their own; 403 for a viewer."""
    own = own_of(who, history)
    if own is None:
        return question
    if not own:
        raise HTTPException(
            403, f"parallel coordinates show single attempts, and {who.user} may see none but as sums"
        )
    others = tuple(pair for pair in question.only if pair[0] != "user")
    return replace(question, only=(*others, ("user", own)))


def applications(history: CachedHistory, question: Question) -> list[str]:
    """The applications of a period, those with most GPU-hours first."""
    period = question.period()
    return history.remembered(
        ("applications", period),
        lambda database: [row.keys[0] for row in Tables(database, period).usage(("application",))],
    )


LINES: Final = 5
"""At most this many groups have lines of their own."""


@dataclass(frozen=True, slots=True)
class Group:
    """What one group of attempts used, how long it waited and what it lost; None for what was not measured."""

    name: str
    jobs: int
    users: int
    gpu_hours: float
    run_hours: float
    failed_gpu_hours: float
    measured_gpu_hours: float
    """Held by attempts whose GPU use was measured."""
    idle_gpu_hours: float | None
    gpu_use: float | None
    """From 0 to 1, of what was measured."""
    cpu_use: float | None
    mem_use: float | None
    wait_median_s: float | None
    wait_p90_s: float | None

    def value(self, measure: Measure) -> float | None:
        """The figure that a measure draws: GPU-hours, median wait in s, failed GPU-hours, idle GPU-hours."""
        return {
            Measure.USE: self.gpu_hours,
            Measure.WAITS: self.wait_median_s,
            Measure.FAILURES: self.failed_gpu_hours,
            Measure.EFFICIENCY: self.idle_gpu_hours,
        }[measure]

    def counts(self, measure: Measure) -> bool:
        """Whether there is anything of the measure to draw."""
        return bool(self.value(measure) or (measure is Measure.WAITS and self.wait_p90_s))


@dataclass(frozen=True, slots=True)
class Line:
    """One group over time."""

    name: str
    """Of a group; of `waits` the quantile, of all groups together."""
    group: str | None
    """The group that it can be narrowed to; None for all."""
    values: tuple[float | None, ...]
    """One for each moment: GPU-hours; of waits s; of efficiency the use of GPUs from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Answer:
    """All that a page of the history draws."""

    question: Question
    whole: Group
    before: Group
    """All together, in as many days before."""
    figures: tuple[Figure, ...]
    """The figures that matter, with those of the period before."""
    groups: tuple[Group, ...]
    """By the measure, the largest first."""
    moments: tuple[str, ...]
    """Days or months."""
    lines: tuple[Line, ...]

    @property
    def led_by(self) -> Group | None:
        """The first group that has anything of the measure."""
        return next((group for group in self.groups if group.counts(self.question.measure)), None)


def settled(history: CachedHistory, question: Question) -> Question:
    """The question with both of its days."""
    first_ms, last_ms = history.remembered("span", lambda database: Tables(database, EVERYTHING).span())
    return question.within(first_ms, last_ms)


def answer(history: CachedHistory, question: Question) -> Answer:
    """The answer to a question that is settled; it is worked out once until the history changes."""
    asked = replace(question, pick=None, at="", ranges=())
    return history.remembered(("answer", asked), lambda database: _answer(database, asked))


def _answer(database: duckdb.DuckDBPyConnection, question: Question) -> Answer:
    now, before = Tables(database, question.period()), Tables(database, question.period_before())
    by, over_time = (question.by,), (_unit(question), question.by)
    lines_of_use = question.measure is not Measure.WAITS
    whole, used, *by_moment = now.usages((), by, *([over_time] if lines_of_use else []))
    waited, all_waited = now.waits_and_all(by)
    waits = {each.keys[0]: each for each in waited}
    groups = [_group(row, waits.get(row.keys[0])) for row in used]
    groups.sort(
        key=lambda each: (
            -(each.value(question.measure) or 0.0),
            -(each.wait_p90_s or 0.0) if question.measure is Measure.WAITS else -each.gpu_hours,
            each.name,
        )
    )
    if lines_of_use:
        moments, lines = _lines_of_use(by_moment[0], question, [group.name for group in groups[:LINES]])
    else:
        moments, lines = _lines_of_waits(now, question)
    all_now, all_before = _all(whole, all_waited), _all(before.usages(())[0], before.waits_and_all(())[1])
    return Answer(
        question,
        _group(*all_now),
        _group(*all_before),
        main_figures(all_now[0], _median_s(all_now[1]), all_before[0], _median_s(all_before[1])),
        tuple(groups),
        moments,
        lines,
    )


def _unit(question: Question) -> str:
    return "day" if question.by_day else "month"


def _all(rows: Sequence[Usage], waited: Waited | None) -> tuple[Usage, Waited | None]:
    """All attempts as one group, of the rows of a grouping by nothing."""
    return replace(rows[0] if rows else NOTHING_USED, keys=("",)), waited


def _median_s(waited: Waited | None) -> float | None:
    return None if waited is None else waited.median_s


def _group(used: Usage, waited: Waited | None) -> Group:
    return Group(
        used.keys[0],
        used.jobs,
        used.users,
        used.gpu_hours,
        used.run_hours,
        used.wasted_gpu_hours,
        used.measured_gpu_hours,
        used.known("idle-gpu-hours"),
        used.known("gpu-use"),
        used.known("cpu-use"),
        used.known("mem-use"),
        None if waited is None else waited.median_s,
        None if waited is None else waited.p90_s,
    )


def _lines_of_waits(tables: Tables, question: Question) -> tuple[tuple[str, ...], tuple[Line, ...]]:
    """Moments, and the median and 90 % of all waits."""
    waits = {each.keys[0]: each for each in tables.waits_and_all((_unit(question),))[0]}
    moments = question.days_of() if question.by_day else tuple(sorted(waits))
    found = [waits.get(moment) for moment in moments]
    return moments, (
        Line("median", None, tuple(None if each is None else each.median_s for each in found)),
        Line("90 %", None, tuple(None if each is None else each.p90_s for each in found)),
    )


def _lines_of_use(
    rows: Sequence[Usage], question: Question, first: Sequence[str]
) -> tuple[tuple[str, ...], tuple[Line, ...]]:
    """Moments, and a line for each of the first groups; `rows` have moment and group for keys."""
    moments = question.days_of() if question.by_day else tuple(sorted({row.keys[0] for row in rows}))
    by_group: dict[str, dict[str, Usage]] = {}
    for row in rows:
        by_group.setdefault(row.keys[1], {})[row.keys[0]] = row
    efficiency = question.measure is Measure.EFFICIENCY
    name, nothing = ("gpu-use", None) if efficiency else (ORDER_OF[question.measure], 0.0)

    def value(row: Usage | None) -> float | None:
        return nothing if row is None else row.known(name)

    lines = [
        Line(group, group, tuple(value(by_group.get(group, {}).get(moment)) for moment in moments))
        for group in first
        if group in by_group
    ]
    if not efficiency and len(by_group) > len(lines):
        shown = {line.name for line in lines}
        rest = dict.fromkeys(moments, 0.0)
        for row in rows:
            if row.keys[1] not in shown:
                rest[row.keys[0]] += row.known(name) or 0.0
        lines.append(Line("", None, tuple(rest.values())))
    return moments, tuple(lines)
