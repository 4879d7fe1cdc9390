"""`/api/v1/history/…`: the history as JSON."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Query

from berth.console.history.question import ORDER_OF, Question, asked, history_of, own_of, picked_for
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
