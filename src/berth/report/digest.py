"""A week in a page of text, for an operator or for one user: what changed, and who leaves what unused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Final

from berth.counts import counted
from berth.history.values.durations import duration_text, hours_column, hours_of
from berth.statistics.accounting import Usage, largest_first
from berth.statistics.tables import JobUse, Tables, Totals

LISTED: Final = 10
"""The most users, jobs and causes that are named."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One of the figures that matter, now and in the period before."""

    name: str
    now: str
    before: str
    change: str
    """Empty where it cannot be told."""


def sentences(tables: Tables) -> tuple[str, ...]:
    """What was held, what of it was lost and how long jobs waited, compared with nothing."""
    return tuple(_answers(tables.totals(), None, None))


def answers_and_figures(now: Tables, before: Tables) -> tuple[tuple[str, ...], tuple[Figure, ...]]:
    """What a period says beside the one before it: in sentences, and as the five figures that matter.

    Those are jobs, GPU-hours held, idle and failed, and the median wait.
    """
    totals, earlier = now.totals(), before.totals()
    return (
        tuple(_answers(totals, earlier, None)),
        main_figures(totals, totals.wait_s[0], earlier, earlier.wait_s[0]),
    )


def main_figures(
    used: Usage, wait_s: float | None, used_before: Usage, wait_before_s: float | None
) -> tuple[Figure, ...]:
    """The five figures that matter, of the use and the median waits of a period and of the one before it."""
    return (
        Figure("jobs", f"{used.jobs:,}", f"{used_before.jobs:,}", _change(used.jobs, used_before.jobs)),
        _hours("GPU-hours held", used.gpu_hours, used_before.gpu_hours),
        _hours(
            "GPU-hours idle, of those measured",
            used.known("idle-gpu-hours"),
            used_before.known("idle-gpu-hours"),
        ),
        _hours("GPU-hours of failed attempts", used.wasted_gpu_hours, used_before.wasted_gpu_hours),
        _wait(wait_s, wait_before_s),
    )


def _answers(now: Totals, before: Totals | None, idlest: Usage | None) -> Iterator[str]:
    """What was held and what of it was lost, and how long jobs waited."""
    if not now.jobs:
        return
    change = ""
    if before is not None and before.gpu_hours:
        by = (now.gpu_hours / before.gpu_hours - 1) * 100
        than = f"{abs(by):,.0f} % {'more' if by > 0 else 'less'} than" if abs(by) >= 0.5 else "as many as"
        change = f", {than} in the period before"
    yield f"{counted(now.jobs, 'job')} held {_gpu_time(now.gpu_hours)}{change}."
    idle, measured = now.known("idle-gpu-hours"), now.measured_gpu_hours
    failed = now.wasted_gpu_hours / now.gpu_hours * 100 if now.gpu_hours else 0.0
    lost = f"{failed:.0f} % of the GPU-hours went to attempts that failed"
    if idle is None or not measured:
        yield f"{lost}; how much stood idle was not measured."
    else:
        most = ""
        if idlest is not None and idlest.idle_gpu_hours:
            most = f", the most with {idlest.keys[0]} ({_gpu_time(idlest.idle_gpu_hours)})"
        yield f"{lost}; of {_gpu_time(measured)} that were measured, {idle / measured * 100:.0f} % stood idle{most}."
    median, p90 = now.wait_s[:2]
    if median is not None and p90 is not None:
        if p90 < 1:
            yield "Nine of ten attempts did not wait."
            return
        half = "did not wait" if median < 1 else f"waited at most {duration_text(median)}"
        yield f"Half of the attempts {half}, nine of ten waited at most {duration_text(p90)}."


def _gpu_time(hours: float) -> str:
    return hours_of("GPU", hours, 0 if hours >= 100 else 1)


def _figures(now: Totals, before: Totals) -> Iterator[Figure]:
    yield from main_figures(now, now.wait_s[0], before, before.wait_s[0])
    for name, measure in (("GPU use", "gpu-use"), ("CPU use", "cpu-use"), ("memory use", "mem-use")):
        part, earlier = now.known(measure), before.known(measure)
        if part is not None:
            points = "" if earlier is None else f"{(part - earlier) * 100:+.1f} points"
            shown = "–" if earlier is None else f"{earlier * 100:.1f} %"
            yield Figure(name, f"{part * 100:.1f} %", shown, points)


def _hours(name: str, now: float | None, before: float | None) -> Figure:
    """Hours of a period and of the one before it in one unit, which its name says."""
    name, cells = hours_column(name, (now, before), 1)
    shown = [
        "not measured" if value is None else cell for value, cell in zip((now, before), cells, strict=True)
    ]
    return Figure(name, shown[0], shown[1], _change(now, before))


def _wait(now: float | None, before: float | None) -> Figure:
    shown = ["–" if value is None else duration_text(value) for value in (now, before)]
    return Figure("median wait", shown[0], shown[1], _change(now, before))


def _change(now: float | None, before: float | None) -> str:
    return f"{(now / before - 1) * 100:+.0f} %" if now is not None and before else ""


def digest_text(
    now: Tables, before: Tables, *, title: str, period: str, one_user: bool, first: Sequence[str] = ()
) -> str:
    """Return what the tables of a period say beside those of the one before it, at most 100 columns wide.

    `first` are the sentences that it begins with. Only a name may be wider.
    """
    return "\n".join([title, period, "", *_lines(now, before, one_user, first)]) + "\n"


def _lines(now: Tables, before: Tables, one_user: bool, first: Sequence[str]) -> Iterator[str]:
    totals, earlier = now.totals(), before.totals()
    if not totals.jobs:
        yield "No job ended in this period."
        return
    users = [] if one_user else largest_first(now.usage(("user",)), "idle-gpu-hours")
    idlest = users[0] if len(users) > 1 else None
    for sentence in (*first, *_answers(totals, earlier, idlest)):
        yield from wrap(_printable(sentence), 100)
    yield ""
    figures = _figures(totals, earlier)
    rows = [(each.name, each.now, each.before, each.change) for each in figures]
    shown = 4 if any(row[3] for row in rows) else 2  # with nothing before there is nothing to compare
    yield from _table(("", "this period", "before", "change")[:shown], [row[:shown] for row in rows])
    users = [row for row in users[:LISTED] if row.idle_gpu_hours]
    if users:
        yield from ("", "Users by idle GPU-hours")
        idle_head, idle = hours_column("idle hours", [row.idle_gpu_hours for row in users], 1)
        held_head, held = hours_column("held hours", [row.gpu_hours for row in users], 1)
        lines = [
            (row.keys[0], idle[at], held[at], _part(row.known("gpu-use"))) for at, row in enumerate(users)
        ]
        yield from _table(("user", idle_head, held_head, "GPU use"), lines)
    jobs = [row for row in now.jobs("idle-gpu-hours", LISTED) if row.use.idle_gpu_hours]
    if jobs:
        yield from ("", "Jobs by idle GPU-hours (`berth job ID` tells all of one)")
        yield from _jobs_table(jobs)
    jobs = [row for row in now.jobs("failed-gpu-hours", LISTED) if row.use.wasted_gpu_hours]
    if jobs:
        yield from ("", "Jobs by GPU-hours of failed attempts")
        yield from _jobs_table(jobs)
    waits = sorted(now.waits_by_cause().items(), key=lambda item: (-item[1], item[0]))
    if waited := [wait for wait in waits[:LISTED] if wait[1]]:
        heading, cells = hours_column("hours", [hours for _, hours in waited], 1)
        yield from ("", "What jobs waited for")
        yield from _table(
            ("cause", heading), [(cause, cell) for (cause, _), cell in zip(waited, cells, strict=True)]
        )


def _jobs_table(rows: Sequence[JobUse]) -> Iterator[str]:
    idle_head, idle = hours_column("idle hours", [row.use.known("idle-gpu-hours") for row in rows], 1)
    failed_head, failed = hours_column("failed hours", [row.use.wasted_gpu_hours for row in rows], 1)
    held_head, held = hours_column("held hours", [row.use.gpu_hours for row in rows], 1)
    cells = [
        (
            *(row.use.keys[0], row.user, row.application, row.state),
            *(idle[at], failed[at], held[at]),
            _part(row.use.known("gpu-use")),
        )
        for at, row in enumerate(rows)
    ]
    head = ("job", "user", "application", "state", idle_head, failed_head, held_head, "GPU use")
    return _table(head, cells)


def _part(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.0f} %"


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a table: texts to the left, numbers to the right; control characters of names are taken out."""
    clean = [[_printable(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(head, *clean, strict=True)]
    texts = [at == 0 or name in ("user", "application", "state") for at, name in enumerate(head)]
    for row in (list(head), *clean):
        cells = (
            cell.ljust(width) if text else cell.rjust(width)
            for cell, width, text in zip(row, widths, texts, strict=True)
        )
        yield f"  {'  '.join(cells)}".rstrip()
