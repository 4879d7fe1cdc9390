"""`berth size`: the smallest cluster that keeps the wait."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth.cli import completing
from berth.cli.comma_separated import policies_of
from berth.cli.files import command_line, made_folder, write_results
from berth.cli.history_folder import HistoryFolder
from berth.cli.output import console, plain_table, printed
from berth.cli.progress import progress_bar
from berth.cli.run_options import (
    FromHistory,
    Processes,
    RunOptions,
    Since,
    Until,
    conditions_asked,
    joined,
    one_source,
    period_asked,
)
from berth.cli.shared_options import with_options
from berth.counts import counted
from berth.errors import SettingError
from berth.traces import read_trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from berth.experiments.recorded_run import RecordedRun
    from berth.experiments.size import Sizes
    from berth.experiments.weeks import Trust
    from berth.model import Job, Node

USED = [each.name for each in fields(RunOptions) if each.name not in ("events", "quota", "borrow", "every")]


@with_options(RunOptions, *USED)
def size(
    trace: Annotated[
        str,
        typer.Argument(
            metavar="[TRACE]", help="A trace file, or synthetic:NAME?jobs=…; none with --from-history."
        ),
    ] = "",
    keep: Annotated[
        str,
        typer.Option(
            metavar="MEASURE[=VALUE]",
            help="Figure to keep: p50-wait, p90-wait, mean-wait or slowdown; at most VALUE, or today's by default.",
        ),
    ] = "p90-wait",
    policies: Annotated[
        str,
        typer.Option(
            metavar="A,B,…",
            help="Policies to try; the first is today's, unless the history knows it.",
            autocompletion=completing.policies,
        ),
    ] = "fifo+first-fit,easy+fifo+best-fit",
    by: Annotated[
        str,
        typer.Option(
            metavar="user|partition", help="Keep it for each user or partition, not only for all jobs."
        ),
    ] = "",
    step: Annotated[
        int | None,
        typer.Option(
            min=1, help="Nodes between two sizes, until one fails; by default a fortieth of the cluster."
        ),
    ] = None,
    more_jobs: Annotated[
        bool,
        typer.Option("--more-jobs", help="Also find how many more jobs today's cluster takes at that wait."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of random numbers, the same for all sizes.")] = 0,
    jobs: Processes = 1,
    from_history: FromHistory = False,
    since: Since = "",
    until: Until = "",
    history: HistoryFolder = Path("history"),
    *,
    options: RunOptions,
) -> None:
    """Find the smallest cluster that keeps the wait: how many GPUs could be returned, and with which policy."""
    from berth.experiments.compare.conditions import conditions_of
    from berth.experiments.size import keep_of, smallest_sizes
    from berth.experiments.what_if import nodes_and_conditions
    from berth.policies import make_policy

    asked = keep_of(keep, by)
    if options.out is not None:
        made_folder(options.out)
    one_source("size takes", trace, from_history)
    if (since or until) and not from_history:
        raise SettingError(
            "--since and --until choose jobs of the history: use them with --from-history, not with a TRACE"
        )
    names = policies_of(policies)
    for name in names:
        make_policy(name)
    conditions: dict[str, Any] = conditions_asked(options)
    trust: Trust | None = None
    work: Sequence[Job]
    if from_history:
        real, trust = _history(history, since or "28d", until, options)
        nodes, under = nodes_and_conditions(real, options.nodes, conditions)
        work, label = real.jobs, "the history"
        names = list(dict.fromkeys([*([real.policy] if real.policy else []), *names]))
    else:
        work, nodes = _trace(trace, options)
        label = trace
        under = conditions_of({**conditions, "compress": 1.0}, nodes)
    with progress_bar(f"sizes of {counted(len(names), 'policy', 'policies')}") as progress:
        found = smallest_sizes(
            work,
            nodes,
            names,
            asked,
            conditions=under,
            step=step,
            seed=seed,
            processes=jobs,
            progress=progress,
            more_jobs=more_jobs,
        )
    answers = [*found.sentences]
    if trust is not None:
        answers.insert(len(answers) if trust.is_believable else 0, trust.sentence)
    if options.out is not None:
        from berth.experiments.size.page import page_of

        report = page_of(found, label, command_line(), answers)
        write_results(options.out, report, _numbers(found, answers))
    if options.as_json is not None:
        printed(
            options.as_json,
            _rows(found),
            _numbers(found, answers),
        )
        return
    _show(found, answers)
    if options.out is not None:
        print(f"wrote {options.out / 'report.html'}")


def _history(folder: Path, since: str, until: str, options: RunOptions) -> tuple[RecordedRun, Trust]:
    from berth.experiments.returnable import run_and_trust
    from berth.history.store.folder import open_history

    begin_ms, end_ms = period_asked(since, until)
    store = open_history(folder, must_exist=True)
    return run_and_trust(store, since_ms=begin_ms, until_ms=end_ms, nodes=options.nodes)


def _trace(trace: str, options: RunOptions) -> tuple[tuple[Job, ...], tuple[Node, ...]]:
    from berth.experiments.compare.comparison import nodes_of

    source = read_trace(trace, columns=joined(options.map))
    nodes = nodes_of(source, options.nodes or None)
    bad: list[Any] | None = [] if options.skip_bad else None
    jobs = tuple(source.jobs(nodes=nodes, skip_bad=bad, compress=options.compress))
    if not jobs:
        raise SettingError(f"{trace} has no jobs to replay" + (f"; {bad[0]}" if bad else ""))
    return jobs, nodes


def _rows(found: Sizes) -> list[dict[str, object]]:
    return [
        {
            "policy": each.policy,
            "gpu_model": each.model,
            "nodes_today": each.today,
            "nodes": each.nodes,
            "nodes_low_80": each.low,
            "low_is_open": each.low_is_open,
            "nodes_high_80": each.high,
            "gpus_returned": each.gpus_returned,
            "gpu_hours_a_week": each.gpu_hours_a_week,
            "cost_a_week": each.cost_a_week,
            "measure": found.keep.measure.name,
            "target": found.target if math.isfinite(found.target) else None,
            "value": each.value if math.isfinite(each.value) else None,
            "more_jobs_pct": (found.more_jobs_pct or {}).get(each.policy),
        }
        for each in found.answers
    ]


def _numbers(found: Sizes, answers: list[str]) -> dict[str, object]:
    return {
        "answers": answers,
        "caution": found.caution,
        "jobs": found.jobs,
        "weeks": found.weeks,
        "sizes": _rows(found),
        "points": [
            {
                "policy": curve.policy,
                "gpu_model": curve.model,
                "nodes": point.cluster.count,
                "gpus": point.cluster.gpus,
                "value": point.value if math.isfinite(point.value) else None,
                "unserved": point.unserved,
                "keeps": point.keeps,
            }
            for curve in found.curves
            for point in curve.points
        ],
    }


def _show(found: Sizes, answers: list[str]) -> None:
    from berth.experiments.size.page import HEADINGS, cells

    screen = console(soft_wrap=True)
    for sentence in answers:
        screen.print(sentence, style="bold" if sentence == answers[0] else "")
    screen.print(plain_table(HEADINGS, [cells(each, found.currency) for each in found.answers], left=2))
