"""The figures of a comparison: one a question, with one line or dot a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, Protocol, TypeVar

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from berth.plots.style import COLOURS, DASHES, Style, dress
from berth.statistics import Cdf, Metric, Run, Schedule, Timeline, Unit, confidence_interval_95, readable_unit

CDF_POINTS = 600

SMOOTHED = 1 / 50
"""Part of the time that is drawn over which curves over time are averaged."""
MOST_SHADED = 2
"""Up to this many policies, an allocation curve has a shade and the raw curve behind it."""
QUIET = 0.03
"""Below this part of its peak of allocation, and with no queue, a run is taken to be dying away."""

Floats = NDArray[np.floating[Any]]


def allocation_over_time(runs: Sequence[Run], styles: Mapping[str, Style]) -> go.Figure:
    """GPU allocation of each policy over time: mean over seeds, shaded to the lowest and highest running mean.

    Of more than two policies the smooth lines alone are drawn: shades over each other tell nothing.
    """

    def percent(line: Timeline) -> Floats:
        return line.allocated_milli_mean * (100.0 / max(line.capacity_milli, 1))

    figure = _over_time(runs, styles, percent, None, "GPU allocation, % of all GPUs", "%{y:.1f} %")
    figure.update_yaxes(range=[0, 102], ticksuffix=" %")
    return figure


def queue_over_time(runs: Sequence[Run], styles: Mapping[str, Style]) -> go.Figure:
    """Jobs that wait under each policy over time: mean over seeds, shaded to the lowest and the peak."""
    figure = _over_time(
        *(runs, styles, lambda line: line.waiting_mean, lambda line: line.waiting_max),
        *("Jobs waiting", "%{y:,.1f}"),
    )
    figure.update_yaxes(rangemode="tozero")
    if max((float(run.timeline.waiting_max.max(initial=0)) for run in runs), default=0.0) <= 8:
        figure.update_yaxes(dtick=1)
    return figure


def smoothed_over(runs: Sequence[Run]) -> str:
    """How long a time the curves over time of these runs are averaged over, in words."""
    seconds = _eventful_until([run.timeline for run in runs]) / 1000 * SMOOTHED
    factor, unit = readable_unit(Unit.SECONDS, [seconds])
    return f"{seconds * factor:.3g} {unit}"


def waiting_cdf(runs: Sequence[Run], styles: Mapping[str, Style]) -> go.Figure:
    """For each policy, the share of the started jobs that waited at most a given time."""
    return _cdfs(
        runs, styles, lambda run: run.waiting, "Jobs that waited at most this time, %", "Waiting time"
    )


def completion_cdf(runs: Sequence[Run], styles: Mapping[str, Style]) -> go.Figure:
    """The share of the finished jobs that ended within a given time after submission."""
    return _cdfs(
        runs, styles, lambda run: run.completion, "Jobs that finished within this time, %", "Completion time"
    )


def headline(runs: Sequence[Run], metric: Metric, styles: Mapping[str, Style]) -> go.Figure:
    """One metric of each policy: a dot at the mean over seeds, a bar for its 95 % interval."""
    groups = by_policy(runs)
    intervals = [confidence_interval_95([metric.of(run.summary) for run in group]) for group in groups]
    highs = [interval.high if interval.count > 1 else interval.mean for interval in intervals]
    factor, unit = readable_unit(metric.unit, highs)
    figure = go.Figure()
    for group, interval in zip(groups, intervals, strict=True):
        style = styles[group[0].policy]
        error: dict[str, Any] = {"visible": False}
        if interval.count > 1:
            half = (interval.high - interval.mean) * factor
            error = {"type": "data", "array": [half], "thickness": 2, "width": 6}
        figure.add_trace(
            go.Scatter(
                x=[interval.mean * factor],
                y=[escape(group[0].label)],
                error_x=error,
                mode="markers",
                marker={"size": 11, "color": style.colour},
                showlegend=False,
                hovertemplate="%{y}: %{x:,.4~g} " + unit + "<extra></extra>",
            )
        )
    dress(figure, metric.name + (f", {unit}" if unit else ""), 96 + 30 * len(groups))
    figure.update_layout(margin={"t": 46, "b": 36}, hovermode="closest")
    figure.update_yaxes(autorange="reversed", showgrid=False, ticksuffix=" ")
    figure.update_xaxes(nticks=5, rangemode="nonnegative")
    return figure


def _over_time(
    runs: Sequence[Run],
    styles: Mapping[str, Style],
    mean_of: Callable[[Timeline], Floats],
    peak_of: Callable[[Timeline], Floats] | None,
    title: str,
    hover: str,
) -> go.Figure:
    """Running means with the raw ones behind them.

    The shade reaches from the lowest seed to the highest peak; without peaks, over the seeds' running means.
    """
    edges = _common_edges([run.timeline for run in runs])
    until = _eventful_until([run.timeline for run in runs])
    factor, unit = readable_unit(Unit.SECONDS, [until / 1000])
    x = (edges / 1000 * factor).astype(np.float32)
    figure = go.Figure()
    groups = by_policy(runs)
    plain = peak_of is None and len(groups) > MOST_SHADED
    for group in groups:
        means = np.stack([_means_in(edges, run.timeline, mean_of(run.timeline)) for run in group])
        smooth = np.stack([_running_mean(mean, edges, until * SMOOTHED) for mean in means])
        low, high = smooth.min(0), smooth.max(0)
        if peak_of is not None:
            peaks = np.stack([_peaks_in(edges, run.timeline, peak_of(run.timeline)) for run in group])
            # The mean of floats may come out a hair above the peak that it is the mean of.
            low, high = means.min(0), np.maximum(peaks, means).max(0)
        add_line(
            *(figure, group, styles, x, smooth.mean(0)),
            *((smooth.mean(0),) * 2 if plain else (low, high)),
            hover,
            raw=None if plain else means.mean(0),
            label=group[0].label,
        )
    dress(figure, title)
    axis = f"{unit.capitalize()} since the first submission"
    if until < edges[-1]:
        axis += f"<br>(the last event is at {x[-1]:,.4g})"
    figure.update_xaxes(
        title={"text": axis},
        range=[0, until / 1000 * factor],
        unifiedhovertitle={"text": f"%{{x:,.4~g}} {unit}"},
    )
    return figure


def _running_mean(values: NDArray[np.float64], edges: Floats, width: float) -> NDArray[np.float64]:
    """The mean over that time around the middle of each bin, and over what is left of it at both ends."""
    area = np.concatenate(([0.0], np.cumsum(values * np.diff(edges))))
    middle = (edges[:-1] + edges[1:]) / 2
    half = np.maximum(width, np.diff(edges)) / 2
    begin, end = np.maximum(middle - half, edges[0]), np.minimum(middle + half, edges[-1])
    smooth = (np.interp(end, edges, area) - np.interp(begin, edges, area)) / (end - begin)
    return np.asarray(smooth)


def _since_begin_ms(line: Timeline) -> NDArray[np.int64]:
    """Its edges from the first submission on: seeds may make jobs that begin at other times."""
    edges: NDArray[np.int64] = line.edges_ms - line.edges_ms[0]
    return edges


def _common_edges(lines: Sequence[Timeline]) -> NDArray[np.float64]:
    """Edges of bins that serve several runs: close together where any of them has them close together."""
    edges = np.unique(np.concatenate([_since_begin_ms(line) for line in lines] or [np.zeros(1, np.int64)]))
    wanted = max((len(line.edges_ms) for line in lines), default=2)
    if len(edges) > wanted:
        edges = edges[np.linspace(0, len(edges) - 1, wanted).astype(np.int64)]
    if len(edges) < 2:
        edges = np.arange(2)
    return edges.astype(np.float64)


def _eventful_until(lines: Sequence[Timeline]) -> float:
    """When all runs have but a few long jobs left; the last edge where that would cut off little."""
    until, last = 0.0, 1.0
    for line in lines:
        edges = _since_begin_ms(line)
        busy = line.allocated_milli_mean > QUIET * line.allocated_milli_mean.max(initial=0.0)
        eventful = np.flatnonzero(busy | (line.waiting_mean > 0))
        until = max(until, float(edges[eventful[-1] + 1]) if len(eventful) else 0.0)
        last = max(last, float(edges[-1]))
    return until if until < 0.75 * last else last


def _means_in(edges: Floats, line: Timeline, mean: Floats) -> NDArray[np.float64]:
    """The same run's means in other bins; nothing is left after its end."""
    own = _since_begin_ms(line)
    area = np.concatenate(([0.0], np.cumsum(mean * np.diff(own))))
    return np.asarray(np.diff(np.interp(edges, own, area)) / np.diff(edges))


def _peaks_in(edges: Floats, line: Timeline, peak: Floats) -> NDArray[np.float64]:
    """The same run's peaks in other bins; nothing is left after its end."""
    own = _since_begin_ms(line)
    first = np.searchsorted(own, edges[:-1], side="right") - 1
    after = np.maximum(np.searchsorted(own, edges[1:], side="left"), first + 1)
    bounds = np.minimum(np.stack([first, after], axis=1).ravel(), len(peak))
    return np.asarray(np.maximum.reduceat(np.append(peak, 0.0), bounds)[::2])


def _cdfs(
    runs: Sequence[Run], styles: Mapping[str, Style], of: Callable[[Run], Cdf], title: str, axis: str
) -> go.Figure:
    """Cumulative distributions on a logarithmic axis; its left edge stands for all below, zero too."""
    counted = [run for run in runs if len(of(run).values)]
    values = np.concatenate([of(run).values for run in counted]) if counted else np.ones(1)
    edge = 10.0 ** np.floor(np.log10(max(1.0, float(values.min()))))
    grid = np.unique(np.maximum(values, edge))
    if len(grid) > CDF_POINTS:
        grid = grid[np.linspace(0, len(grid) - 1, CDF_POINTS).astype(np.int64)]
    grid = np.unique(np.append(grid, (edge, max(edge * 10, float(grid[-1])))))
    figure = go.Figure()
    for group in by_policy(counted):
        shares = np.stack([_share_at_most(of(run), grid) for run in group]) * 100
        add_line(
            figure,
            group,
            styles,
            grid.astype(np.float32),
            shares.mean(0),
            shares.min(0),
            shares.max(0),
            "%{y:.1f} %",
            label=group[0].label,
        )
    dress(figure, title)
    ticks = [
        (seconds, text)
        for seconds, text in (
            (1, "1 s"),
            (10, "10 s"),
            (60, "1 min"),
            (600, "10 min"),
            (3600, "1 h"),
            (36_000, "10 h"),
            (86_400, "1 d"),
            (864_000, "10 d"),
            (8_640_000, "100 d"),
            (86_400_000, "1000 d"),
        )
        if edge < seconds <= float(grid[-1]) * 1.05
    ]
    left = f"≤ {edge:,.0f} s" if float(values.min()) < edge else f"{edge:,.0f} s"
    figure.update_xaxes(
        type="log",
        title={"text": axis},
        range=[float(np.log10(edge)), float(np.log10(grid[-1])) + 0.02],
        tickvals=[edge] + [seconds for seconds, _ in ticks],
        ticktext=[left] + [text for _, text in ticks],
        unifiedhovertitle={"text": "%{x:,.4~g} s"},
    )
    figure.update_yaxes(range=[0, 102], ticksuffix=" %")
    return figure


def _share_at_most(cdf: Cdf, grid: Floats) -> NDArray[np.float64]:
    return np.append(0.0, cdf.shares)[np.searchsorted(cdf.values, grid, side="right")]


ROW = 0.86
"""How much of a GPU's row its jobs fill."""


MOST_USERS = 6
"""Users with a colour of their own; all others share one."""


def schedule(bars: Schedule, gpus: Sequence[str]) -> go.Figure:
    """Which job held which GPU when: a row for each GPU, by its name, and a colour for each of the busiest users."""
    figure = go.Figure()
    took = bars.end_ms - bars.begin_ms
    names, of_bar = np.unique(bars.users, return_inverse=True)
    busiest = np.argsort(-np.bincount(of_bar, took * bars.milli, minlength=len(names)), kind="stable")
    origin_ms = int(bars.begin_ms.min())
    factor, unit = readable_unit(Unit.SECONDS, [(int(bars.end_ms.max()) - origin_ms) / 1000])
    high = np.full(len(gpus), 1000)  # tenants that share a GPU by best effort may each hold all of it
    np.maximum.at(high, bars.cell, bars.from_milli + bars.milli)
    scale = ROW / high[bars.cell]
    groups = [(str(names[at]), of_bar == at) for at in busiest[:MOST_USERS].tolist()]
    if len(names) > MOST_USERS:
        groups.append(("others", np.isin(of_bar, busiest[MOST_USERS:])))
    for at, (name, mine) in enumerate(groups):
        begin = (bars.begin_ms[mine] - origin_ms) / 1000 * factor
        length = took[mine] / 1000 * factor
        parts = bars.milli[mine] / 1000
        figure.add_trace(
            go.Bar(
                orientation="h",
                base=begin,
                x=length,
                y=bars.cell[mine] + (bars.from_milli + bars.milli / 2)[mine] * scale[mine] - ROW / 2,
                width=bars.milli[mine] * scale[mine],
                name=escape(name) or "no user",
                marker={"color": COLOURS[at % len(COLOURS)], "line": {"color": "#FFFFFF", "width": 0.6}},
                customdata=[
                    [escape(job), gpus[cell], f"{first:.4g} to {first + long:.4g} {unit}", f"{100 * part:g} %"]
                    for job, cell, first, long, part in zip(
                        bars.jobs[mine].tolist(), bars.cell[mine].tolist(), begin.tolist(), length.tolist(),
                        parts.tolist(), strict=True,
                    )
                ],
                hovertemplate="job %{customdata[0]} on %{customdata[1]} (%{customdata[3]})<br>%{customdata[2]}",
            )
        )  # fmt: skip
    dress(figure, "GPUs by the jobs that held them", max(260, 110 + 18 * len(gpus)))
    figure.update_layout(barmode="overlay", hovermode="closest", bargap=0)
    figure.update_xaxes(
        title={"text": f"{unit[0].upper()}{unit[1:]} since the first start"}, rangemode="tozero"
    )
    rows = range(0, len(gpus), max(1, len(gpus) // 32))
    figure.update_yaxes(
        tickvals=list(rows), ticktext=[escape(gpus[row]) for row in rows], range=[len(gpus) - 0.4, -0.6]
    )
    return figure


class OfPolicy(Protocol):
    """What was measured of one policy."""

    @property
    def policy(self) -> str:
        """Its name."""


Item = TypeVar("Item", bound=OfPolicy)


def add_line(
    figure: go.Figure,
    group: Sequence[OfPolicy],
    styles: Mapping[str, Style],
    x: NDArray[np.generic],
    middle: Floats,
    low: Floats,
    high: Floats,
    hover: str,
    shape: str = "hv",
    raw: Floats | None = None,
    label: str = "",
) -> None:
    """A policy's line, and behind it a shade from low to high where they differ from it, and thin the `raw` line that
    it smooths. `label` is its name in the legend, by default the policy's."""
    name = group[0].policy
    style = styles[name]
    if len(x) == len(middle) + 1:  # bins: the last level lasts to the last edge
        middle, low, high = (np.append(level, level[-1]) for level in (middle, low, high))
        raw = None if raw is None else np.append(raw, raw[-1])
    if float(np.max(high - low, initial=0.0)) > 0.02:
        for level, fill in ((high, None), (low, "tonexty")):
            figure.add_trace(
                go.Scatter(
                    x=x,
                    y=level.astype(np.float32),
                    mode="lines",
                    line={"width": 0, "shape": shape, "color": style.colour},
                    fill=fill,
                    fillcolor=style.shade(),
                    legendgroup=name,
                    showlegend=False,
                    hoverinfo="skip",
                )
            )
    if raw is not None and float(np.max(np.abs(raw - middle), initial=0.0)) > 0.02:
        figure.add_trace(
            go.Scatter(
                x=x,
                y=raw.astype(np.float32),
                mode="lines",
                line={"width": 1, "shape": shape, "color": style.shade(0.4)},
                legendgroup=name,
                showlegend=False,
                hoverinfo="skip",
            )
        )
    y = middle.astype(np.float32)
    # Dashed over the line that it lies on, both are seen.
    same = sum(np.array_equal(trace.y, y) for trace in figure.data if trace.name)
    dash = DASHES[(DASHES.index(style.dash) + same) % len(DASHES)]
    figure.add_trace(
        go.Scatter(
            x=x,
            y=y,
            mode="lines",
            name=escape(label or name),
            line={"color": style.colour, "dash": dash, "width": 2, "shape": shape},
            legendgroup=name,
            hovertemplate=hover,
        )
    )


def by_policy(items: Sequence[Item]) -> list[list[Item]]:
    """The items of each policy, in the order in which policies come first."""
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(item.policy, []).append(item)
    return list(groups.values())
