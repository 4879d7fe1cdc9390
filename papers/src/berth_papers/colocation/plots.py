"""Co-location: total time, use, slowdowns, cost, pairs, and time against jobs that are not slowed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from berth.plots.style import INK, Style, dress
from berth.statistics import Interval

CLASS_COLOURS = ("#009E73", "#F0E442", "#E69F00", "#D55E00")
MISSING = "#C8C8C8"


def bars_by_workload(
    values: Mapping[str, Mapping[str, Interval]],
    styles: Mapping[str, Style],
    title: str,
    unit: str,
    *,
    thesis: Mapping[tuple[str, str], tuple[float, bool]] | None = None,
    least: Mapping[str, float] | None = None,
) -> go.Figure:
    """A bar a policy for each workload, with its 95 % interval; a cross where the thesis prints a number of its own.

    `values` is by policy and workload; `thesis` by both, with whether the number is doubtful: such a cross is open.
    `least` is drawn as a line that no bar can be below. Intervals end at 0, and at 100 where the unit is %.
    """
    figure = go.Figure()
    most = 100.0 if unit == "%" else math.inf
    for policy, by_workload in values.items():
        figure.add_trace(
            go.Bar(
                x=list(by_workload),
                y=[interval.mean for interval in by_workload.values()],
                error_y={
                    "type": "data",
                    "symmetric": False,
                    "visible": any(_half(interval) for interval in by_workload.values()),
                    "array": [min(_half(one), max(0.0, most - one.mean)) for one in by_workload.values()],
                    "arrayminus": [min(_half(one), one.mean) for one in by_workload.values()],
                    "thickness": 1.5,
                },
                name=escape(policy),
                legendgroup=policy,
                offsetgroup=policy,
                marker={"color": styles[policy].colour, "pattern": {"shape": _pattern(styles[policy])}},
                hovertemplate="%{y:,.1f} " + unit,
            )
        )
        published = [(w, thesis[w, policy]) for w in by_workload if thesis and (w, policy) in thesis]
        if published:
            figure.add_trace(
                go.Scatter(
                    x=[workload for workload, _ in published],
                    y=[value for _, (value, _) in published],
                    mode="markers",
                    name=f"{escape(policy)}, the thesis's",
                    legendgroup=policy,
                    offsetgroup=policy,
                    marker={
                        "symbol": ["x-thin-open" if doubtful else "x" for _, (_, doubtful) in published],
                        "size": 9,
                        "color": "#000000",
                        "line": {"width": 1, "color": "#FFFFFF"},
                    },
                    hovertemplate="%{y:,.1f} " + unit,
                )
            )
    for at, value in enumerate((least or {}).values()):
        figure.add_shape(
            type="line",
            x0=at - 0.46,
            x1=at + 0.46,
            y0=value,
            y1=value,
            line={"color": INK, "width": 2, "dash": "dot"},
            showlegend=at == 0,
            name="lower bound",
            legendgroup="least",
            label={"text": ""},
            layer="above",
        )
    dress(figure, title, 460)
    figure.update_layout(barmode="group", scattermode="group", hovermode="x", margin={"t": 140})
    # An interval may be wider than everything else that is shown.
    shown = [interval.mean for by_workload in values.values() for interval in by_workload.values()]
    shown += (least or {}).values()
    shown += [
        published
        for (workload, policy), (published, _) in (thesis or {}).items()
        if workload in values.get(policy, ())
    ]
    high = 100 if unit == "%" else 1.2 * max(shown, default=1.0)
    figure.update_yaxes(range=[0, high], ticksuffix=f" {unit}", tickformat=",~r")
    return figure


def paired_differences(
    rows: Sequence[tuple[str, str, Interval]], styles: Mapping[str, Style], title: str
) -> go.Figure:
    """Differences over the same seeds, a dot with its 95 % interval for each (workload, other policy)."""
    figure = go.Figure()
    for other in dict.fromkeys(policy for _, policy, _ in rows):
        here = [(workload, interval) for workload, policy, interval in rows if policy == other]
        figure.add_trace(
            go.Scatter(
                x=[interval.mean for _, interval in here],
                y=[escape(workload) for workload, _ in here],
                error_x={"type": "data", "array": [_half(interval) for _, interval in here], "thickness": 2},
                mode="markers",
                name=f"against {escape(other)}",
                marker={"size": 10, "color": styles[other].colour},
                hovertemplate="%{x:+.2f} %",
            )
        )
    figure.add_vline(x=0, line={"color": INK, "width": 1, "dash": "dot"})
    dress(figure, title, 150 + 46 * len({workload for workload, _, _ in rows}))
    figure.update_layout(hovermode="closest", scattermode="group", margin={"t": 110})
    figure.update_xaxes(ticksuffix=" %", title={"text": "Below 0: the first is faster"})
    figure.update_yaxes(autorange="reversed", ticksuffix=" ")
    return figure


def above_bound(
    values: Mapping[str, Mapping[str, Sequence[float]]], styles: Mapping[str, Style], title: str
) -> go.Figure:
    """How far each run's total time is above its set's lower bound: a box a policy for each workload."""
    figure = go.Figure()
    for policy, by_workload in values.items():
        figure.add_trace(
            go.Box(
                x=[workload for workload, runs in by_workload.items() for _ in runs],
                y=[value for runs in by_workload.values() for value in runs],
                name=escape(policy),
                offsetgroup=policy,
                boxpoints=False,
                marker={"color": styles[policy].colour},
            )
        )
    dress(figure, title, 440)
    figure.update_layout(boxmode="group", hovermode="closest", margin={"t": 120})
    figure.update_yaxes(ticksuffix=" %", rangemode="tozero")
    return figure


def slowdown_classes(
    shares: Mapping[str, Sequence[float]], classes: Sequence[str], title: str, *, thesis: Mapping[str, float]
) -> go.Figure:
    """How many jobs of a set each policy slows by how much, the mean over seeds (Oh 2019, figure 15)."""
    figure = go.Figure()
    for at, (name, colour) in enumerate(zip(classes, CLASS_COLOURS, strict=True)):
        figure.add_trace(
            go.Bar(
                y=[escape(policy) for policy in shares],
                x=[values[at] for values in shares.values()],
                name=escape(name),
                orientation="h",
                marker={"color": colour},
                hovertemplate="%{x:.1f}",
            )
        )
    published = {policy: value for policy, value in thesis.items() if policy in shares}
    figure.add_trace(
        go.Scatter(
            x=list(published.values()),
            y=[escape(policy) for policy in published],
            mode="markers",
            name="not slowed, the thesis's",
            marker={"symbol": "x", "size": 10, "color": "#000000", "line": {"width": 1, "color": "#FFFFFF"}},
            hovertemplate="%{x}",
        )
    )
    dress(figure, title, 130 + 40 * len(shares))
    figure.update_layout(barmode="stack", margin={"t": 110}, hovermode="y unified")
    figure.update_yaxes(autorange="reversed", showgrid=False, ticksuffix=" ")
    figure.update_xaxes(title={"text": "Jobs of a set"})
    return figure


def stacked(
    parts: Mapping[str, Mapping[str, float]],
    title: str,
    suffix: str,
    *,
    thesis: Mapping[str, float] | None = None,
    reported_as: str = "the thesis's",
) -> go.Figure:
    """Bars of several parts, a bar a row; a cross for each number of the thesis, which `reported_as` names."""
    figure = go.Figure()
    names = list(dict.fromkeys(name for row in parts.values() for name in row))
    for at, name in enumerate(names):
        figure.add_trace(
            go.Bar(
                y=[escape(row) for row in parts],
                x=[values.get(name, 0.0) for values in parts.values()],
                name=escape(name),
                orientation="h",
                marker={"color": ("#0072B2", "#E69F00", "#8A8A8A")[at % 3]},
                hovertemplate="%{x:.3f}" + suffix,
            )
        )
    if thesis:
        figure.add_trace(
            go.Scatter(
                x=list(thesis.values()),
                y=[escape(row) for row in thesis],
                mode="markers",
                name=reported_as,
                marker={
                    "symbol": "x",
                    "size": 10,
                    "color": "#000000",
                    "line": {"width": 1, "color": "#FFFFFF"},
                },
                hovertemplate="%{x:.3f}" + suffix,
            )
        )
    dress(figure, title, 130 + 40 * len(parts))
    figure.update_layout(barmode="stack", margin={"t": 100}, hovermode="y unified")
    figure.update_yaxes(autorange="reversed", showgrid=False, ticksuffix=" ")
    figure.update_xaxes(ticksuffix=suffix)
    return figure


def frontier(
    line: Sequence[tuple[str, float, float]],
    others: Mapping[str, tuple[float, float]],
    styles: Mapping[str, Style],
    title: str,
) -> go.Figure:
    """Total time against jobs that are not slowed: a line along one weight, a dot for each other policy.

    A point is its weight in words, jobs not slowed, total time in seconds.
    """
    figure = go.Figure()
    names: dict[tuple[float, float], list[str]] = {}
    for name, *place in line:
        names.setdefault((place[0], place[1]), []).append(name)  # points that are one have one label
    figure.add_trace(
        go.Scatter(
            x=[jobs for jobs, _ in names],
            y=[seconds for _, seconds in names],
            text=[escape(", ".join(together)) for together in names.values()],
            mode="lines+markers",
            name="learned, by what a job that is not slowed is worth",
            line={"color": styles["learned"].colour if "learned" in styles else INK, "width": 2},
            hovertemplate="%{text}: %{x:.1f} jobs, %{y:,.0f} s",
        )
    )
    for policy, (jobs, seconds) in others.items():
        figure.add_trace(
            go.Scatter(
                x=[jobs],
                y=[seconds],
                mode="markers",
                name=escape(policy),
                marker={"size": 11, "color": styles[policy].colour, "symbol": "square"},
                hovertemplate="%{x:.1f} jobs, %{y:,.0f} s",
            )
        )
    dress(figure, title, 460)
    figure.update_layout(hovermode="closest", margin={"t": 120})
    figure.update_xaxes(title={"text": "Jobs not slowed (≤ 2 %), mean over seeds"}, range=[-1, 32.5])
    figure.update_yaxes(ticksuffix=" s", tickformat=",~r")
    return figure


def pair_map(names: Sequence[str], values: NDArray[np.float64], title: str, unit: str) -> go.Figure:
    """A square of pairs of applications, darker for more; NaN is where they run out of memory."""
    text = [[("out of memory" if np.isnan(v) else f"{v:.0f} {unit}") for v in row] for row in values]
    scale = "Oranges" if unit == "% longer" else "Greens"
    most = max(float(np.nanmax(values, initial=0.0)), 1e-9)
    heat: dict[str, Any] = {"colorscale": scale, "showscale": False}
    figure = go.Figure(
        go.Heatmap(
            x=[escape(name) for name in names],
            y=[escape(name) for name in names],
            z=values,
            text=text,
            texttemplate="%{text}",
            hovertemplate="%{y} with %{x}: %{text}<extra></extra>",
            zmin=0,
            zmax=most,
            **heat,
        )
    )
    dress(figure, title, 380)
    figure.update_layout(hovermode="closest", plot_bgcolor=MISSING)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(showgrid=False)
    return figure


def _half(interval: Interval) -> float:
    return 0.0 if math.isnan(interval.high) else interval.high - interval.mean


def _pattern(style: Style) -> str:
    return "" if style.dash == "solid" else "/"
