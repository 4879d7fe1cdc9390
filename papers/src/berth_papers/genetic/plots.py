"""Utilisation against jobs scheduled, completion times, margins, and how a search converges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from berth.plots.style import INK, Style, dress
from berth.statistics import Interval

Floats = NDArray[np.float64]
POINTS = 200
LEAST_SEEDS = 3
"""Of fewer seeds no interval is drawn: with two it is wider than anything that it stands beside."""
ALIKE = 1e-9
"""Worths that differ by a smaller part are the same: it is the rounding of a sum."""


def utilisation_by_jobs(
    curves: Mapping[str, Sequence[tuple[NDArray[np.int64], Floats]]], styles: Mapping[str, Style], over: str
) -> go.Figure:
    """GPU utilisation by the number of scheduled jobs (Kwon and Bahn 2024, figure 3); `over` says of which seeds."""
    figure = go.Figure()
    most = min((int(x[-1]) for seeds in curves.values() for x, _ in seeds if len(x)), default=1)
    grid = np.linspace(1, most, POINTS)
    for policy, seeds in curves.items():
        levels = [np.interp(grid, x, y) for x, y in seeds if len(x)]
        if not levels:
            continue
        figure.add_trace(
            go.Scatter(
                x=np.round(grid).astype(np.int64),
                y=np.mean(levels, axis=0).astype(np.float32),
                mode="lines",
                name=escape(policy),
                line={"color": styles[policy].colour, "dash": styles[policy].dash, "width": 2},
                hovertemplate="%{y:.1f} %",
            )
        )
    dress(figure, "GPU utilisation, % of all GPUs")
    figure.update_xaxes(title={"text": f"Jobs scheduled so far ({over})"}, rangemode="tozero")
    figure.update_yaxes(ticksuffix=" %", rangemode="tozero", title={"text": "GPU utilisation"})
    return figure


def completion_times(
    intervals: Mapping[str, tuple[Interval, Interval]], styles: Mapping[str, Style], over: str
) -> go.Figure:
    """Mean completion time: a square from start to end, as in the paper, a dot from submission to end."""
    figure = go.Figure()
    for at, (symbol, name) in enumerate((("square-open", "start to end"), ("circle", "submission to end"))):
        shown = [pair[at] for pair in intervals.values()]
        figure.add_trace(
            go.Scatter(
                x=[interval.mean / 3600 for interval in shown],
                y=[escape(policy) for policy in intervals],
                error_x={
                    "type": "data",
                    "array": [_half(interval) / 3600 for interval in shown],
                    "color": INK,  # with a colour a marker there is none that it could take
                    "thickness": 2,
                    "visible": any(interval.count >= LEAST_SEEDS for interval in shown),
                },
                mode="markers",
                name=name,
                marker={
                    "size": 11,
                    "symbol": symbol,
                    "color": [styles[policy].colour for policy in intervals],
                },
                hovertemplate="%{x:.2f} h",
            )
        )
    dress(figure, "Mean completion time, hours", 130 + 34 * len(intervals))
    figure.update_yaxes(autorange="reversed", showgrid=False, ticksuffix=" ")
    figure.update_xaxes(title={"text": f"Hours ({over})"}, rangemode="tozero")
    return figure


def margins_over(
    rows: Sequence[tuple[str, Interval, float | None, float]], title: str, colour: str
) -> go.Figure:
    """By how much a policy is above others, the paper's margin beside it, and how much further any policy could be.

    A row is the other policy, the difference in points with its interval, the paper's margin and the most.
    """
    names = [escape(name) for name, _, _, _ in rows]
    figure = go.Figure()
    figure.add_trace(
        go.Scatter(
            x=[interval.mean for _, interval, _, _ in rows],
            y=names,
            error_x={
                "type": "data",
                "array": [_half(interval) for _, interval, _, _ in rows],
                "thickness": 2,
                "visible": any(interval.count >= LEAST_SEEDS for _, interval, _, _ in rows),
            },
            mode="markers",
            name="measured, points",
            marker={"size": 11, "color": colour},
            hovertemplate="%{x:.2f} points",
        )
    )
    for name, symbol, values in (
        ("the paper's", "x", [paper for _, _, paper, _ in rows]),
        ("the most there is", "line-ns-open", [most for _, _, _, most in rows]),
    ):
        figure.add_trace(
            go.Scatter(
                x=values,
                y=names,
                mode="markers",
                name=name,
                hovertemplate="%{x:.2f}",
                marker={"size": 12, "symbol": symbol, "color": INK},
            )
        )
    dress(figure, title, 110 + 34 * len(rows))
    figure.update_yaxes(autorange="reversed", showgrid=False, ticksuffix=" ")
    figure.update_xaxes(rangemode="tozero", title={"text": "Points of GPU utilisation"})
    return figure


def convergence(histories: Mapping[str, Floats], styles: Mapping[str, Style], title: str) -> go.Figure:
    """How the best solution (line) and the mean one (thin) get better from generation to generation.

    A history (generations + 1, 2) is drawn as the part of the way from its first mean to its best; where there
    is no way to go, as all of it.
    """
    figure = go.Figure()
    for name, history in histories.items():
        low, high = history[0, 1], history[:, 0].max()
        if high - low > ALIKE * max(1.0, abs(high)):
            part = 100 * (history - low) / (high - low)
        else:
            part = np.full(history.shape, 100.0)
        for at, (width, label) in enumerate(((2.5, name), (1, f"{name}, mean"))):
            figure.add_trace(
                go.Scatter(
                    x=np.arange(len(part)),
                    y=part[:, at],
                    mode="lines",
                    name=escape(label),
                    line={
                        "color": styles[name].colour,
                        "width": width,
                        "dash": "solid" if at == 0 else "dot",
                    },
                    hovertemplate="%{y:.1f} %",
                )
            )
    dress(figure, title)
    figure.update_xaxes(title={"text": "Generations"})
    figure.update_yaxes(ticksuffix=" %", rangemode="tozero", title={"text": "Part of the way to the best"})
    return figure


def gaps(by_policy: Mapping[str, Sequence[float]], styles: Mapping[str, Style]) -> go.Figure:
    """What each policy leaves of the optimum: a dot a batch."""
    figure = go.Figure()
    for policy, values in by_policy.items():
        figure.add_trace(
            go.Box(
                x=list(values),
                name=escape(policy),
                boxpoints="all",
                jitter=0.5,
                pointpos=0,
                orientation="h",
                marker={"color": styles[policy].colour, "size": 5},
                showlegend=False,
            )
        )
    dress(figure, "Below the optimum, % of its GPU milli", 110 + 40 * len(by_policy))
    figure.update_layout(hovermode="closest")
    figure.update_yaxes(autorange="reversed", showgrid=False, ticksuffix=" ")
    figure.update_xaxes(ticksuffix=" %", rangemode="tozero", title={"text": "Gap to the optimum"})
    return figure


def _half(interval: Interval) -> float:
    return interval.high - interval.mean if interval.count >= LEAST_SEEDS else 0.0
