"""What a page of the history is asked: a period, a measure, groups, and what is picked; all of it in the address; and
which history a viewer may ask."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final, Literal
from urllib.parse import urlencode

from fastapi import HTTPException, Query, Request

from berth.console.roles import Role, Viewer
from berth.errors import HistoryError
from berth.history.store.cached_history import CachedHistory
from berth.history.store.reader import history_is_there
from berth.statistics.accounting import VARIABLES
from berth.statistics.attempts import Picked
from berth.statistics.tables import Period

DEFAULT_DAYS: Final = 28
MOST_DAYS_BY_DAY: Final = 100
"""A longer period is drawn by months."""
By = Literal["user", "account", "application", "server", "gpu"]
"""What is grouped by; `server` is the partition, which names the type of GPU server."""
MOST_TEXT: Final = 512
MOST_RANGES: Final = 12
NO_DATE: Final = "no date: {}={!r}; expected a day such as 2026-11-21"


class Measure(StrEnum):
    """What a page is about."""

    USE = "use"
    WAITS = "waits"
    FAILURES = "failures"
    EFFICIENCY = "efficiency"


ORDER_OF: Final = {
    Measure.USE: "gpu-hours",
    Measure.WAITS: "wait",
    Measure.FAILURES: "failed-gpu-hours",
    Measure.EFFICIENCY: "idle-gpu-hours",
}
"""How the jobs behind a figure are ordered."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked; days are whole ones in UTC."""

    measure: Measure = Measure.USE
    by: str = "user"
    begin: date | None = None
    end: date | None = None
    """The day after the last one."""
    only: tuple[tuple[str, str], ...] = ()
    """Dimensions, and the one value of each that is looked at."""
    pick: str | None = None
    """The group whose jobs are listed."""
    at: str = ""
    """The day or month whose jobs are listed."""
    ranges: tuple[tuple[str, float, float], ...] = ()
    """Ranges of the six variables, as they were drawn on the parallel coordinates."""

    def within(self, first_ms: int | None, last_ms: int | None) -> Question:
        """The same with both days: by default the last four weeks of the history."""
        last = _day(last_ms if last_ms is not None else 0) + timedelta(days=1)
        end = self.end or last
        begin = self.begin
        if begin is None:
            first = _day(first_ms if first_ms is not None else 0)
            begin = max(min(first, end - timedelta(days=1)), end - timedelta(days=DEFAULT_DAYS))
        if begin >= end:
            raise HTTPException(
                422, f"from={begin} is not before to={end}; `to` is the day after the last one that is shown"
            )
        return replace(self, begin=begin, end=end)

    @property
    def days(self) -> int:
        """How many days it is about."""
        return (self._end - self._begin).days

    @property
    def by_day(self) -> bool:
        """Whether it is drawn by days; if not, by months."""
        return self.days <= MOST_DAYS_BY_DAY

    def days_of(self) -> tuple[str, ...]:
        """All of its days."""
        return tuple(str(self._begin + timedelta(days=at)) for at in range(self.days))

    @property
    def _begin(self) -> date:
        assert self.begin is not None
        return self.begin

    @property
    def _end(self) -> date:
        assert self.end is not None
        return self.end

    def period(self) -> Period:
        """All of it, as the tables want it."""
        return Period(_ms(self._begin), _ms(self._end), self.only)

    def period_before(self) -> Period:
        """As many days before it."""
        return Period(_ms(self._begin - (self._end - self._begin)), _ms(self._begin), self.only)

    def picked_period(self) -> Period:
        """What of it was picked: one group, one day or month, or both."""
        begin, end, only = self._begin, self._end, self.only
        if self.pick is not None:
            only = (*only, (self.by, self.pick))
        if self.at:
            first, last = _named(self.at)
            begin, end = max(begin, first), min(end, last)
        return Period(_ms(begin), max(_ms(end), _ms(begin)), only)

    def address(self, **changes: str | None) -> str:
        """The query of an address that asks the same, with changes; None takes a value away."""
        values = {
            "measure": self.measure.value,
            "by": self.by,
            "from": str(self.begin or ""),
            "to": str(self.end or ""),
            **dict(self.only),
            "pick": self.pick,
            "at": self.at,
        } | changes
        chosen = [(name, value) for name, value in values.items() if value]
        return urlencode(
            [*chosen, *(("range", f"{name}:{low:g}:{high:g}") for name, low, high in self.ranges)]
        )


Text = Annotated[str, Query(max_length=MOST_TEXT)]


def asked(
    measure: Annotated[Measure, Query(description="What it is about.")] = Measure.USE,
    by: Annotated[By, Query(description="What is grouped by.")] = "user",
    begin: Annotated[
        str,
        Query(
            alias="from", description="First day, UTC, such as 2026-11-01; by default four weeks before `to`."
        ),
    ] = "",
    end: Annotated[
        str, Query(alias="to", description="Day after the last one; by default that of the last end.")
    ] = "",
    user: Text = "",
    account: Text = "",
    application: Text = "",
    server: Text = "",
    gpu: Text = "",
    pick: Annotated[
        str | None, Query(max_length=MOST_TEXT, description="The group whose jobs are listed.")
    ] = None,
    at: Annotated[str, Query(description="The day or month whose jobs are listed.")] = "",
    ranges: Annotated[
        list[str] | None,
        Query(alias="range", description="VARIABLE:LEAST:LARGEST of the parallel coordinates; repeatable."),
    ] = None,
) -> Question:
    """The question in an address, or 422 in words; for FastAPI's Depends."""
    chosen = {"user": user, "account": account, "application": application, "server": server, "gpu": gpu}
    found = Question(
        measure,
        by,
        _date("from", begin),
        _date("to", end),
        tuple((name, value) for name, value in chosen.items() if value),
        pick or None,
        at,
        tuple(_range(text) for text in ranges or ()),
    )
    if len(found.ranges) > MOST_RANGES:
        raise HTTPException(422, f"{len(found.ranges)} ranges; expected at most {MOST_RANGES}")
    if at:
        _named(at)
    return found


def _range(text: str) -> tuple[str, float, float]:
    name, _, numbers = text.partition(":")
    low, _, high = numbers.partition(":")
    names = [each.name for each in VARIABLES]
    try:
        least, largest = float(low), float(high)
    except ValueError:
        least = largest = math.nan
    if name not in names or not (math.isfinite(least) and math.isfinite(largest)):
        raise HTTPException(
            422, f"no range={text!r}; expected VARIABLE:LEAST:LARGEST with one of {', '.join(names)}"
        )
    return name, least, largest


def _date(name: str, text: str) -> date | None:
    if not text:
        return None
    try:
        found = date.fromisoformat(text)
    except ValueError:
        raise HTTPException(422, NO_DATE.format(name, text[:40])) from None
    if not 1970 <= found.year <= 2999:
        raise HTTPException(422, f"{name}={text} is out of reach; expected a year from 1970 to 2999")
    return found


def _named(text: str) -> tuple[date, date]:
    """A day or a month as its first day and the one after its last."""
    if len(text) == 7:
        first = _date("at", f"{text}-01")
        assert first is not None
        return first, (first + timedelta(days=32)).replace(day=1)
    day = _date("at", text)
    assert day is not None
    return day, day + timedelta(days=1)


def _day(ms: int) -> date:
    return datetime.fromtimestamp(ms / 1000, UTC).date()


def _ms(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1000


def history_of(request: Request) -> CachedHistory:
    """The history of this console, or 404 with how to make one; for FastAPI's Depends."""
    if words := missing(request):
        raise HTTPException(404, words)
    history: CachedHistory = request.app.state.history
    return history


def missing(request: Request) -> str:
    """Why there is no history to show, and how to make one; empty if there is one."""
    history: CachedHistory | None = request.app.state.history
    if history is None:
        return "the console was started without a history; start it with `berth console --history DIR`"
    try:
        history_is_there(history.folder)
    except HistoryError as error:
        return str(error)
    return ""


def has_pseudonyms(history: CachedHistory) -> bool:
    """Whether the history holds pseudonyms instead of names."""
    return bool(history.reader.index().key_mark)


def picked_for(
    viewer: Viewer, history: CachedHistory, order: str, ranges: tuple[tuple[str, float, float], ...] = ()
) -> Picked:
    """Attempts as this viewer may see them: of other people's neither commands nor files nor what was measured."""
    own = own_of(viewer, history)
    return Picked(order, ranges) if own is None else Picked(order, ranges, sees_all=False, user=own)


def own_of(viewer: Viewer, history: CachedHistory) -> str | None:
    """User whose attempts this viewer may see in full: None for all users, empty for no user."""
    if viewer.role is Role.OPERATOR:
        return None
    return viewer.user if viewer.role.includes(Role.USER) and not has_pseudonyms(history) else ""
