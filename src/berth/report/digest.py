"""A week in a page of text, for an operator or for one user: what changed, and who leaves what unused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Final

from berth.counts import counted
from berth.files import whole_file
from berth.history.values.durations import duration_text, hours_of, hours_text
from berth.report.page import write_page
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


@dataclass(frozen=True, slots=True)
class Digest:
    """Everything that the page says."""

    title: str
    period: str
    jobs: int
    answers: tuple[str, ...]
    """What was found, in sentences: the first thing that is read."""
    figures: tuple[Figure, ...]
    idle_users: tuple[Usage, ...]
    """Empty for one user's digest, and if nothing was measured."""
    idle_jobs: tuple[JobUse, ...]
    failed_jobs: tuple[JobUse, ...]
    waits: tuple[tuple[str, float], ...]
    """Causes and hours, the most first."""


def collect_digest(
    now: Tables, before: Tables, *, title: str, period: str, one_user: bool, first: Sequence[str] = ()
) -> Digest:
    """Ask the tables of a period, and of the one before it, for all that a digest says; `first` are the sentences that
    it begins with."""
    totals, earlier = now.totals(), before.totals()
    users = [] if one_user else largest_first(now.usage(("user",)), "idle-gpu-hours")
    idle_jobs = now.jobs("idle-gpu-hours", LISTED)
    failed = now.jobs("failed-gpu-hours", LISTED)
    waits = sorted(now.waits_by_cause().items(), key=lambda item: (-item[1], item[0]))
    used = now.whole()
    return Digest(
        title=title,
        period=period,
        jobs=totals.jobs,
        answers=(*first, *_answers(totals, used, earlier, users[0] if len(users) > 1 else None)),
        figures=tuple(_figures(totals, used, earlier, before.whole())),
        idle_users=tuple(row for row in users[:LISTED] if row.idle_gpu_hours),
        idle_jobs=tuple(row for row in idle_jobs if row.use.idle_gpu_hours),
        failed_jobs=tuple(row for row in failed if row.use.wasted_gpu_hours),
        waits=tuple((cause, hours) for cause, hours in waits[:LISTED] if hours),
    )


def sentences(tables: Tables) -> tuple[str, ...]:
    """What was held, what of it was lost and how long jobs waited, compared with nothing."""
    return tuple(_answers(tables.totals(), tables.whole(), None, None))


def answers_and_figures(now: Tables, before: Tables) -> tuple[tuple[str, ...], tuple[Figure, ...]]:
    """What a period says beside the one before it: in sentences, and as the five figures that matter.

    Those are jobs, GPU-hours held, idle and failed, and the median wait.
    """
    totals, used, earlier = now.totals(), now.whole(), before.totals()
    return (
        tuple(_answers(totals, used, earlier, None)),
        main_figures(used, totals.wait_s[0], before.whole(), earlier.wait_s[0]),
    )


def main_figures(
    used: Usage, wait_s: float | None, used_before: Usage, wait_before_s: float | None
) -> tuple[Figure, ...]:
    """The five figures that matter, of the use and the median waits of a period and of the one before it."""
    return (
        _amount("jobs", used.jobs, used_before.jobs, "{:,.0f}".format),
        _amount("GPU-hours held", used.gpu_hours, used_before.gpu_hours, hours_text),
        _amount(
            "GPU-hours idle, of those measured",
            used.known("idle-gpu-hours"),
            used_before.known("idle-gpu-hours"),
            hours_text,
        ),
        _amount(
            "GPU-hours of failed attempts", used.wasted_gpu_hours, used_before.wasted_gpu_hours, hours_text
        ),
        _wait(wait_s, wait_before_s),
    )


def _answers(now: Totals, used: Usage, before: Totals | None, idlest: Usage | None) -> Iterator[str]:
    """What was held and what of it was lost, and how long jobs waited."""
    if not now.jobs:
        return
    change = ""
    if before is not None and before.gpu_hours:
        by = (now.gpu_hours / before.gpu_hours - 1) * 100
        than = f"{abs(by):,.0f} % {'more' if by > 0 else 'less'} than" if abs(by) >= 0.5 else "as many as"
        change = f", {than} in the period before"
    yield f"{counted(now.jobs, 'job')} held {_gpu_time(now.gpu_hours)}{change}."
    idle, measured = used.known("idle-gpu-hours"), now.measured_gpu_hours
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
        half = "did not wait" if median < 1 else f"waited at most {duration_text(median)}"
        yield f"Half of the attempts {half}, nine of ten waited at most {duration_text(p90)}."


def _gpu_time(hours: float) -> str:
    return hours_of("GPU", hours, 0 if hours >= 100 else 1)


def _figures(now: Totals, used: Usage, before: Totals, used_before: Usage) -> Iterator[Figure]:
    yield from main_figures(used, now.wait_s[0], used_before, before.wait_s[0])
    for name, measure in (("GPU use", "gpu-use"), ("CPU use", "cpu-use"), ("memory use", "mem-use")):
        part, earlier = used.known(measure), used_before.known(measure)
        if part is not None:
            points = "" if earlier is None else f"{(part - earlier) * 100:+.1f} points"
            shown = "–" if earlier is None else f"{earlier * 100:.1f} %"
            yield Figure(name, f"{part * 100:.1f} %", shown, points)


def _amount(name: str, now: float | None, before: float | None, form: Callable[[float], str]) -> Figure:
    shown = ["not measured" if value is None else form(value) for value in (now, before)]
    change = f"{(now / before - 1) * 100:+.0f} %" if now is not None and before else ""
    return Figure(name, shown[0], shown[1], change)


def _wait(now: float | None, before: float | None) -> Figure:
    shown = ["–" if value is None else duration_text(value) for value in (now, before)]
    change = f"{(now / before - 1) * 100:+.0f} %" if now is not None and before else ""
    return Figure("median wait", shown[0], shown[1], change)


def digest_text(digest: Digest) -> str:
    """The digest as plain text, at most 100 columns wide unless a name is longer."""
    return "\n".join(_lines(digest)) + "\n"


def _lines(digest: Digest) -> Iterator[str]:
    yield digest.title
    yield digest.period
    yield ""
    if not digest.jobs:
        yield "No job ended in this period."
        return
    for sentence in digest.answers:
        yield from wrap(_printable(sentence), 100)
    yield ""
    rows = [(each.name, each.now, each.before, each.change) for each in digest.figures]
    yield from _table(("", "this period", "before", "change"), rows)
    if digest.idle_users:
        yield from ("", "Users by idle GPU-hours")
        rows_of_users = [
            (
                row.keys[0],
                hours_text(row.idle_gpu_hours),
                hours_text(row.gpu_hours),
                _part(row.known("gpu-use")),
            )
            for row in digest.idle_users
        ]
        yield from _table(("user", "idle", "held", "GPU use"), rows_of_users)
    if digest.idle_jobs:
        yield from ("", "Jobs by idle GPU-hours (`berth job ID` tells all of one)")
        yield from _table(_JOB_HEAD, [job_cells(row) for row in digest.idle_jobs])
    if digest.failed_jobs:
        yield from ("", "Jobs by GPU-hours of failed attempts")
        yield from _table(_JOB_HEAD, [job_cells(row) for row in digest.failed_jobs])
    if digest.waits:
        yield from ("", "What jobs waited for")
        yield from _table(("cause", "hours"), [(cause, hours_text(hours)) for cause, hours in digest.waits])


_JOB_HEAD: Final = ("job", "user", "application", "state", "idle", "failed", "held", "GPU use")


def job_cells(row: JobUse) -> tuple[str, ...]:
    """What a digest says of one job, in the order of its table's head."""
    idle = row.use.known("idle-gpu-hours")
    return (
        *(row.use.keys[0], row.user, row.application, row.state),
        "–" if idle is None else hours_text(idle),
        hours_text(row.use.wasted_gpu_hours),
        hours_text(row.use.gpu_hours),
        _part(row.use.known("gpu-use")),
    )


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


def write_digest(digest: Digest, path: Path) -> None:
    """Write the digest as HTML where the name ends so, else as plain text; the file is there whole or not at all."""
    if path.suffix.lower() in (".html", ".htm"):
        write_page(
            "digest.html",
            path,
            digest=digest,
            job_head=_JOB_HEAD,
            figures=[(each.name, each.now, each.before, each.change) for each in digest.figures],
            idle_users=[
                (
                    row.keys[0],
                    f"{row.idle_gpu_hours:,.1f}",
                    f"{row.gpu_hours:,.1f}",
                    _part(row.known("gpu-use")),
                )
                for row in digest.idle_users
            ],
            idle_jobs=[job_cells(row) for row in digest.idle_jobs],
            failed_jobs=[job_cells(row) for row in digest.failed_jobs],
            waits=[(cause, f"{hours:,.1f}") for cause, hours in digest.waits],
        )
        return
    with whole_file(path) as temporary:
        temporary.write_text(digest_text(digest), encoding="utf-8", newline="\n")
