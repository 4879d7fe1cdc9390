"""`/api/v1/history/…`: the history as JSON and CSV."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields, replace
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, HTTPException, Query, Response

from berth.console.history.access import history_of, own_of, picked_for
from berth.console.history.exports import MOST_ROWS, csv_file
from berth.console.history.question import ORDER_OF, Question, asked
from berth.console.history.results import Group, Line, answer, settled
from berth.console.identity import viewer
from berth.console.roles import Viewer
from berth.history.store.cached_history import CachedHistory
from berth.report.digest import Figure
from berth.statistics.attempts import Attempt
from berth.statistics.tables import Tables

router = APIRouter(prefix="/api/v1/history", tags=["history"])

Who = Annotated[Viewer, Depends(viewer)]
Store = Annotated[CachedHistory, Depends(history_of)]
Asked = Annotated[Question, Depends(asked)]
Form = Annotated[Literal["json", "csv"], Query(alias="format")]


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


_FILES: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {"text/csv": {"schema": {"type": "string"}}}}
}


@router.get("/groups", response_model=Groups, responses=_FILES)
def groups(who: Who, history: Store, question: Asked, form: Form = "json") -> Groups | Response:
    """Say what each group used, how it waited and what it lost, beside as many days before."""
    found = answer(history, settled(history, question))
    if form == "csv":
        heads = [field.name for field in fields(Group)]
        return csv_file(f"berth-{question.by}", heads, map(astuple, found.groups))
    told = found.question
    return Groups(
        told.measure.value,
        told.by,
        str(told.begin),
        str(told.end),
        found.whole,
        found.before,
        list(found.figures),
        list(found.groups),
    )


@router.get("/series", response_model=Timeline, responses=_FILES)
def series(who: Who, history: Store, question: Asked, form: Form = "json") -> Timeline | Response:
    """Say how the first groups went over time, by days or months."""
    found = answer(history, settled(history, question))
    if form == "csv":
        rows = [
            (moment, line.name or "others", line.values[at])
            for line in found.lines
            for at, moment in enumerate(found.moments)
        ]
        return csv_file(f"berth-{question.by}-over-time", ("moment", "name", "value"), rows)
    return Timeline(question.measure.value, question.by, list(found.moments), list(found.lines))


@router.get("/jobs", response_model=Jobs, responses=_FILES)
def jobs(
    who: Who,
    history: Store,
    question: Asked,
    page: Annotated[int, Query(ge=1, le=100_000, description="From 1.")] = 1,
    size: Annotated[int, Query(ge=1, le=500, description="Attempts a page.")] = 25,
    form: Form = "json",
) -> Jobs | Response:
    """List the attempts behind a figure: of a group, of a day or month, within ranges of variables."""
    told = settled(history, question)
    picked = picked_for(who, history, ORDER_OF[told.measure], told.ranges)
    with history.database() as database:
        tables = Tables(database, told.picked_period())
        if form == "csv":
            total, _ = tables.attempts(picked, 1)
            if total > MOST_ROWS:
                raise HTTPException(
                    422,
                    f"{total:,} attempts are more than the {MOST_ROWS:,} that a file may have; choose a shorter period",
                )
            query, values = tables.attempts_query(picked)
            listed = database.execute(query, list(values))
            pages = iter(lambda: listed.fetchmany(4096), [])
            heads = [field.name for field in fields(Attempt)]
            return csv_file("berth-jobs", heads, (row for found in pages for row in found))
        total, rows = tables.attempts(picked, size, (page - 1) * size)
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
