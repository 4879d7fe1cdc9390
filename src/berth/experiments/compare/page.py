"""The page of a comparison: a picture, a table, plots, and what the numbers mean."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from berth.counts import counted
from berth.errors import check_kind
from berth.experiments.compare import plots
from berth.experiments.compare.comparison import Comparison
from berth.experiments.compare.filling import filling, two_to_show
from berth.experiments.compare.plots import schedule
from berth.interference import mode_of
from berth.model import Node
from berth.plots import Style, policy_styles
from berth.report import Chapter, Report, write
from berth.report.report import made_at
from berth.statistics import Run, headlines_of, lead, matter_most, metrics_of
from berth.statistics.comparison import table_rows


def comparison_report(result: Comparison, command: str, first: str = "") -> Report:
    """The page of a comparison, made by that command; `first` is a sentence before all others."""
    policies = (
        counted(len(result.policies), "policy", "policies")
        if len(result.policies) > 1
        else result.policies[0]
    )
    compress = result.conditions.compress
    knowledge = result.conditions.knowledge
    believed = f"; knowledge: {knowledge}" if knowledge != "oracle" else ""
    mode = mode_of(result.conditions.interference)
    shared = f"; GPUs are shared by {mode}" if mode != "none" else ""
    pair = two_to_show(result.runs)
    faster = f", arrivals compressed {compress:g}×" if compress != 1 else ""
    return Report(
        title=f"{Path(result.trace).name}: {policies}",
        command=command or f"berth.compare({result.trace!r}, policies={list(result.policies)!r})",
        trace=f"{result.trace}: {counted(result.runs[0].summary.jobs, 'job')}{faster}{believed}{shared}",
        cluster=cluster_in_words(result.nodes),
        chapters=comparison_chapters(result.runs, result.nodes),
        answers=(*filter(None, [first]), *result.answers),
        picture="" if pair is None else filling(pair),
        lead=lead(result.runs),
    )


def cluster_in_words(nodes: Sequence[Node]) -> str:
    """How many nodes, and how many GPUs of which models, the most first."""
    models: dict[str, int] = {}
    for node in nodes:
        if node.gpus:
            name = node.gpu_model.name if node.gpu_model and node.gpu_model.name else "unnamed"
            models[name] = models.get(name, 0) + node.gpus
    kinds = ", ".join(
        f"{number:,} {name}" for name, number in sorted(models.items(), key=lambda item: -item[1])
    )
    nodes_text = counted(len(nodes), "node")
    return f"{nodes_text}, {counted(sum(models.values()), 'GPU')} ({kinds})" if kinds else nodes_text


def write_report(
    result: Comparison,
    path: str | os.PathLike[str],
    *,
    command: str = "",
    created: datetime | None = None,
    first: str = "",
) -> Path:
    """Write a comparison as one self-contained HTML page; return its path.

    `command` makes the same page again, `created` is the time that it tells, now by default, and `first` a sentence
    before all others.
    """
    check_kind(result, Comparison, "write_report takes what berth.compare returned")
    report, target = comparison_report(result, command, first), Path(path)
    write(report if created is None else replace(report, created=made_at(created)), target)
    return target


def comparison_chapters(runs: Sequence[Run], nodes: Sequence[Node] = ()) -> list[Chapter]:
    """The chapters that there is something to show in; without nodes there is no map."""
    if not runs:
        return []
    named: dict[str, Any] = {
        "policies": tuple(dict.fromkeys(run.label for run in runs)),
        "seeds": tuple(sorted({run.seed for run in runs})),
    }
    oracles = {run.policy for run in runs if run.oracle}
    styles = policy_styles((run.policy for run in runs), oracles)
    return list(_chapters(runs, nodes, styles, named))


def _chapters(
    runs: Sequence[Run], nodes: Sequence[Node], styles: Mapping[str, Style], named: Mapping[str, Any]
) -> Iterator[Chapter]:
    several = len(named["seeds"]) > 1
    headlines = headlines_of(run.summary for run in runs)
    alone = len(named["policies"]) == 1
    title = "Results" if alone else "Comparison"
    rows = table_rows(runs)
    yield Chapter(
        title,
        _how_to_read(runs, alone),
        standings=rows,
        first=matter_most(row.metric for row in rows),
        **named,
    )
    bars = "the bar its 95 % interval" if several else "without an interval, because there is one seed"
    if not alone:
        yield Chapter(
            "Policies at a glance",
            f"A dot is the mean over seeds, {bars}. Axes need not begin at zero: compare places, not lengths.",
            [(f"{metric.name} of each policy", plots.headline(runs, metric, styles)) for metric in headlines],
            names=[f"headline-{at}" for at in range(len(headlines))],
            small=True,
            **named,
        )
    raw = "the mean over seeds" if several else "the mean in each of up to 1,000 steps"
    shade = (
        "The shade reaches from the lowest seed to the highest: in running means for allocation, up to the "
        "peak for waiting jobs. "
        if several
        else "The shade of waiting jobs reaches up to the peak in each step. "
    )
    if len({run.policy for run in runs}) > plots.MOST_SHADED:
        shade += "Allocation shows the bold lines alone, because there are many. "
    yield Chapter(
        "Over time",
        f"The bold line is the running mean over {plots.smoothed_over(runs)}; the thin line behind it is {raw}. "
        f"{shade}Click a name to hide it, twice to see it alone; drag to zoom in, double-click to zoom out.",
        (
            ("GPU allocation over time", plots.allocation_over_time(runs, styles)),
            ("Jobs waiting over time", plots.queue_over_time(runs, styles)),
        ),
        names=("allocation", "queue"),
        **named,
    )
    if len(runs) == 1 and runs[0].schedule is not None:
        names = [
            f"{node.name} GPU {index}" if node.gpus > 1 else node.name
            for node in nodes
            for index in range(node.gpus)
        ]
        yield Chapter(
            "The schedule",
            "A row is a GPU, a bar a job on it, as high as the part that it holds. A job of several GPUs has a bar on"
            " each. Jobs that may each use all of a GPU divide its row. Colours are users, those with the most"
            " GPU-hours first. Drag to zoom in.",
            (("Which job held which GPU, and when", schedule(runs[0].schedule, names)),),
            names=("schedule",),
            **named,
        )
    yield Chapter(
        "How long jobs took",
        "The higher a curve, the more jobs had been served by that time. The axis is logarithmic and has no "
        "zero: jobs at or below its left edge, those that started at once among them, are where a curve "
        "begins. Jobs that never started, or never finished, are in no curve; the table counts them.",
        (
            ("Distribution of waiting times", plots.waiting_cdf(runs, styles)),
            ("Distribution of completion times", plots.completion_cdf(runs, styles)),
        ),
        names=("waiting", "completion"),
        **named,
    )
    yield Chapter(
        "What the numbers mean",
        definitions=[(metric.name, metric.definition) for metric in metrics_of(run.summary for run in runs)],
    )


def _how_to_read(runs: Sequence[Run], alone: bool) -> str:
    seeds = len({run.seed for run in runs})
    means = f"Means over {seeds} seeds, with half of the 95 % confidence interval (Student’s t) behind ±."
    sentences = [means] if seeds > 1 else []
    if not alone:
        best = "The best mean of a row is bold with a dot"
        like_best = (
            "; ≈ marks policies that are not significantly worse (the 95 % interval of the paired difference"
        )
        sentences.append(f"{best}{like_best}, seed by seed, contains 0)." if seeds > 1 else f"{best}.")
    if any(run.oracle for run in runs):
        sentences.append(
            "An oracle chooses by true run times, which no scheduler knows: a bound, not a choice."
        )
    return "\n".join(sentences)
