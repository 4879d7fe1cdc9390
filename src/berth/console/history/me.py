"""`/me`: what one user's jobs used, how they waited, what failed, and what they could ask for instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Final

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response

from berth.console.formats import gpu_time, span
from berth.console.history.access import missing
from berth.console.history.page import jobs_page, on_both
from berth.console.history.question import Question, asked
from berth.console.history.results import Answer, Group, answer, settled
from berth.console.identity import viewer
from berth.console.pages import page, texts_of
from berth.console.roles import Role, Viewer
from berth.console.texts import Texts
from berth.history.jobs.habits import Habit, habits_of
from berth.history.store.cached_history import CachedHistory

router = APIRouter(include_in_schema=False)
JUDGED: Final = 500
"""At most this many attempts of a user tell their habits."""


def whose(who: Viewer, user: str) -> str:
    """Whose page is meant, or 403: an operator may look at any user's."""
    if user and user != who.user and who.role is not Role.OPERATOR:
        raise HTTPException(
            403,
            f"user={user}: only an operator sees another user's page; you are {who.user} ({who.role.value})",
        )
    return user or who.user


User = Annotated[
    str, Query(max_length=512, description="Another user's, for operators; by default one's own.")
]


@router.get("/me", dependencies=[Depends(jobs_page)])
def me(
    request: Request,
    who: Annotated[Viewer, Depends(viewer)],
    question: Annotated[Question, Depends(asked)],
    user: User = "",
) -> Response:
    """The page of one user."""
    name = whose(who, user)
    if words := missing(request):
        return page(request, "history-none.html", who, detail=words)
    history: CachedHistory = request.app.state.history
    t = texts_of(request)
    told = _question(history, question, name)
    found = answer(history, told)
    return page(
        request,
        "me.html",
        who,
        user=name,
        own=name == who.user,
        title=_title(found.whole, name, name == who.user, t),
        sentences=_sentences(found, t),
        advice=_advice(found.whole, _habits(history, told, name), t),
        jobs=found.whole.jobs,
        **on_both(history, told, found, t),
    )


def _question(history: CachedHistory, question: Question, name: str) -> Question:
    others = tuple(pair for pair in question.only if pair[0] != "user")
    return settled(history, replace(question, by="application", only=(*others, ("user", name))))


def _habits(history: CachedHistory, question: Question, name: str) -> tuple[Habit, ...]:
    period = question.period()

    def judged(_: object) -> tuple[Habit, ...]:
        from itertools import islice

        records = history.reader.records(
            '"user" = ? AND end_ms >= ? AND end_ms < ?', [name, period.begin_ms, period.end_ms]
        )
        return habits_of(islice(records, JUDGED))

    return history.remembered(("habits", name, period), judged)


def _title(whole: Group, name: str, own: bool, t: Texts) -> str:
    """What was found, in a line."""
    held = gpu_time(whole.gpu_hours, t)
    if not whole.jobs:
        return (
            t("None of your jobs ended in this period")
            if own
            else t("None of the jobs of {name} ended in this period", name=name)
        )
    if whole.gpu_use is None:
        return t("You held {held}", held=held) if own else t("{name} held {held}", name=name, held=held)
    use = f"{whole.gpu_use * 100:.0f}"
    return (
        t("You held {held} and used {use} %", held=held, use=use)
        if own
        else t("{name} held {held} and used {use} %", name=name, held=held, use=use)
    )


def _sentences(found: Answer, t: Texts) -> list[str]:
    whole, before = found.whole, found.before
    if not whole.jobs:
        return []
    days = found.question.days
    said = [t("{jobs:# job|# jobs} ended in {days:# day|# days}.", jobs=whole.jobs, days=days)]
    if before.gpu_hours:
        change = f"{(whole.gpu_hours / before.gpu_hours - 1) * 100:+.0f} %"
        said.append(
            t(
                "That is {change} GPU-hours compared with the {days:day|# days} before.",
                change=change,
                days=days,
            )
        )
    if whole.wait_median_s is not None:
        said.append(
            t(
                "Half of them started within {now}, and nine of ten within {long}.",
                now=span(whole.wait_median_s, t),
                long=span(whole.wait_p90_s or 0.0, t),
            )
        )
    return said


def _advice(whole: Group, habits: tuple[Habit, ...], t: Texts) -> list[tuple[str, str]]:
    """Sentences, and what each stands on."""
    return list(_advised(whole, habits, t)) if whole.jobs else []


def _advised(whole: Group, habits: tuple[Habit, ...], t: Texts) -> Iterator[tuple[str, str]]:
    if whole.gpu_use is None:
        if whole.gpu_hours:
            yield (
                t("GPU use was not measured for these jobs."),
                t(
                    "berth sample measures it on each node; berth import series takes it from a monitoring system."
                ),
            )
    elif whole.idle_gpu_hours and whole.gpu_use < 0.5:
        yield (
            t(
                "The GPUs were busy {use} % of the time that they were held: {idle} were idle.",
                use=f"{whole.gpu_use * 100:.0f}",
                idle=gpu_time(whole.idle_gpu_hours, t),
            ),
            t("Measured over {held}.", held=gpu_time(whole.measured_gpu_hours, t)),
        )
    for habit in habits:
        yield (
            _habit(habit, t),
            t(
                "This holds for {jobs} of {of:# completed attempt|# completed attempts}; the advice would have been "
                "enough for three of four of them.",
                jobs=habit.jobs,
                of=habit.of,
            ),
        )
    if whole.gpu_hours and whole.failed_gpu_hours / whole.gpu_hours >= 0.1:
        yield (
            t(
                "{part} % of the GPU-hours went to attempts that failed; a short try-out before a long run finds "
                "most faults.",
                part=f"{whole.failed_gpu_hours / whole.gpu_hours * 100:.0f}",
            ),
            t("Failed attempts held {held}.", held=gpu_time(whole.failed_gpu_hours, t)),
        )


def _habit(habit: Habit, t: Texts) -> str:
    amounts = {
        "asked": _amount(habit, habit.asked, t),
        "used": _amount(habit, habit.used, t),
        "enough": _amount(habit, habit.enough, t),
    }
    match habit.what:
        case "time limit":
            return t(
                "Time limits are long: {asked} asked, {used} run. {enough} would be enough, and shorter jobs fit into"
                " gaps earlier.",
                **amounts,
            )
        case "memory":
            return t(
                "These jobs ask for much memory: {asked}, and use {used}. {enough} would be enough.",
                **amounts,
            )
        case "CPUs":
            return t(
                "These jobs ask for many CPUs: {asked}, of which {used:# is|# are} busy. {enough} would be enough.",
                **amounts,
            )
        case _:
            return t("You ask for {asked:# GPU|# GPUs} and use {used}. {enough} would be enough.", **amounts)


def _amount(habit: Habit, value: float, t: Texts) -> str | float:
    if habit.unit == "min":
        return span(value * 60, t)
    if habit.unit == "MiB":
        return f"{value / 1024:,.1f} GiB" if value >= 1024 else f"{value:,.0f} MiB"
    return value
