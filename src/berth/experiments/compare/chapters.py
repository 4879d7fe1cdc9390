"""What the page of a comparison tells: a table, plots, a map of the cluster, and what the numbers mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from berth.experiments.compare import plots
from berth.model import Node
from berth.plots import Style, policy_styles
from berth.plots.schedules import schedule
from berth.report import Chapter
from berth.statistics import Run, headlines_of, matter_most, metrics_of
from berth.statistics.table import table_rows


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
