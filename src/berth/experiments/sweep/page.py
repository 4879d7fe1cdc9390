"""The page of a sweep: what was found, the table, and small multiples of each metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from berth.counts import counted
from berth.experiments.compare.page import cluster_in_words
from berth.experiments.sweep.plan import Case
from berth.experiments.sweep.run import Sweep
from berth.experiments.sweep.table import AXES, Swept, grid, readable, shown_of, varied
from berth.plots import Style, policy_styles
from berth.plots.style import dress
from berth.report import Chapter, Report
from berth.statistics import Metric, metrics_of, standings

PANEL_PX = 300


def page_of(found: Sweep, command: str) -> Report:
    """The page of a sweep."""
    runs, plan = found.runs, found.plan
    styles = policy_styles(plan.policies, {run.policy for run in runs if run.oracle})
    headings, rows = grid(runs)
    several = len(plan.seeds) > 1
    policies = tuple(dict.fromkeys(run.label for run in runs))
    return Report(
        title=f"{Path(plan.trace.path).name}: {counted(len(runs), 'simulation')}",
        command=command,
        trace=f"{plan.trace.path}: {counted(runs[0].summary.jobs, 'job')}",
        cluster=cluster_in_words(plan.nodes),
        answers=found.answers,
        chapters=(
            Chapter(
                "All cases",
                "The best mean of a case is marked *."
                + (
                    " Means over seeds, with half of the 95 % confidence interval behind ±."
                    if several
                    else ""
                ),
                headings=headings,
                rows=rows,
                row_names=headings.index("policy") + 1,
                policies=policies,
            ),
            *(
                Chapter(
                    metric.name,
                    "All panels have the same axes."
                    + (" A bar is the 95 % interval over seeds." if several else ""),
                    panels(runs, metric, styles),
                    names=[f"sweep-{at}-{panel}" for panel in range(len(panels_of(runs)))],
                    small=True,
                    policies=policies,
                )
                for at, metric in enumerate(shown_of(runs))
            ),
            Chapter(
                "What the numbers mean",
                definitions=[
                    (metric.name, metric.definition) for metric in metrics_of(run.summary for run in runs)
                ],
            ),
        ),
    )


def panels_of(runs: Sequence[Swept]) -> dict[str, list[Swept]]:
    """The runs of each panel by its title: cases that differ only along the axis that is drawn."""
    axes = varied(run.case for run in runs)
    found: dict[str, list[Swept]] = {}
    for run in runs:
        found.setdefault(_title(run.case, axes[1:]), []).append(run)
    return found


def panels(runs: Sequence[Swept], metric: Metric, styles: Mapping[str, Style]) -> list[tuple[str, go.Figure]]:
    """Small multiples of one metric: a figure per panel, with the same axes, and what each shows."""
    axes = varied(run.case for run in runs)
    axis = axes[0] if axes else AXES.index("conditions")
    factor, unit = readable(metric, runs)
    found = []
    highs = [0.0]
    for title, inside in panels_of(runs).items():
        figure = go.Figure()
        for policy in dict.fromkeys(run.policy for run in inside):
            mine = [run for run in inside if run.policy == policy]
            highs.append(_add(figure, mine, metric, axis, factor, styles[policy]))
        dress(figure, escape(title or metric.name), PANEL_PX)
        figure.update_layout(hovermode="closest")
        figure.update_xaxes(
            title={"text": AXES[axis]}, type="category" if AXES[axis] == "conditions" else None
        )
        figure.update_yaxes(title={"text": unit})
        found.append((f"{metric.name} over {AXES[axis]}{f', {title}' if title else ''}", figure))
    for _, figure in found:
        figure.update_yaxes(range=[0, max(highs) * 1.08 or 1])
    return found


def _add(
    figure: go.Figure, runs: Sequence[Swept], metric: Metric, axis: int, factor: float, style: Style
) -> float:
    """Draw one policy; return the highest point that it reaches."""
    places = list(dict.fromkeys(run.case[axis] for run in runs))
    intervals = [
        standings([run for run in runs if run.case[axis] == place], metric)[0].interval for place in places
    ]
    halves = [(each.high - each.mean) * factor if each.count > 1 else 0.0 for each in intervals]
    means = [each.mean * factor for each in intervals]
    error: dict[str, Any] = {"type": "data", "array": halves, "thickness": 1.5, "visible": any(halves)}
    figure.add_trace(
        go.Scatter(
            x=[escape(place) if isinstance(place, str) else place for place in places],
            y=means,
            error_y=error,
            mode="markers" if AXES[axis] == "conditions" else "lines+markers",
            name=escape(runs[0].label),
            line={"color": style.colour, "dash": style.dash, "width": 2},
            marker={"size": 8, "color": style.colour},
            hovertemplate="%{y:,.4~g}",
        )
    )
    return max((mean + half for mean, half in zip(means, halves, strict=True) if mean == mean), default=0.0)


def _title(case: Case, axes: Sequence[int]) -> str:
    """What sets a panel apart from the others."""
    parts = [case[at] if isinstance(case[at], str) else f"{AXES[at]} {case[at]:g}" for at in axes]
    return ", ".join(map(str, parts))
