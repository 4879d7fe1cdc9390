"""The pictures of a history: parallel coordinates, distributions, usage bars, days (Kwon and Hong, figures 2–5)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from berth.counts import counted
from berth.history.values.durations import HOURS_NAMES, hours_unit
from berth.plots.style import COLOURS, DASHES, dress, shortened
from berth.statistics.accounting import VARIABLES, Usage
from berth.statistics.spread import Cdf

Floats = NDArray[np.float64]
EPOCH = date(1970, 1, 1)
NODE_SCALE = ((0.0, "#56A4DB"), (1.0, "#C43A79"))
"""From few nodes to many: two colours, the second darker, that are seen on a light page and on a dark one."""
LARGEST_SHOWN = 12
LOG_UNIT_H = 1 / 60
"""Hours on a logarithmic axis lie at log10(1 + hours / this): 0 has a place, and minutes can be read."""
MOST_SPREAD = 20.0
"""Hours whose largest is more than this many times their median have a logarithmic axis."""
NARROW_AXES = 5


def parallel_coordinates(lines: Floats, counts: NDArray[np.int64], application: str) -> go.Figure:
    """Lines (L, 6) over the six variables, coloured by how many nodes; drag along an axis to pick.

    A variable that was not measured has no axis; a line without a value lies below the axis's zero. Of axes that are
    logarithmic `meta` has the unit: a place of t stands for unit · (10^t - 1). The layout's `meta` names the axes that
    a narrow screen leaves out (`narrow_hides`): it has room for five, and colours tell the nodes.
    """
    shown = [at for at in range(len(VARIABLES)) if len(lines) and not np.isnan(lines[:, at]).all()]
    dimensions = []
    logarithmic: dict[str, float] = {}
    for at in shown:
        column, variable = lines[:, at], VARIABLES[at]
        top = 1.0 if variable.unit == "fraction" else float(np.nanmax(column)) or 1.0
        factor, unit = hours_unit(top) if variable.unit == "hours" else (1, "h")
        ticks = _ticks(top * factor, whole=variable.name in ("nNODE", "nGPU"))
        texts = [_tick_text(tick) + ("" if unit == "h" else f" {unit}") for tick in ticks]
        ticks = [tick / factor for tick in ticks]
        if (
            unit == "h"
            and variable.unit == "hours"
            and np.nanmax(column) > MOST_SPREAD * np.nanmedian(column)
        ):
            logarithmic[variable.name] = LOG_UNIT_H
            ticks = _log_ticks(top)
            texts = [*map(_tick_text, ticks)]
            ticks, column, top = _log(ticks).tolist(), _log(column), float(_log(top))
        lacking = np.isnan(column)
        low = -0.08 * top if lacking.any() else 0.0
        dimension: dict[str, Any] = {
            "label": variable.name,
            "values": np.where(lacking, low, column),
            "range": [low, top],
            "tickvals": [*ticks, low] if lacking.any() else [*ticks],
            "ticktext": [*texts, *(["none"] if lacking.any() else [])],
        }
        dimensions.append(dimension)
    total = int(counts.sum())
    stand = counted(len(lines), "line stands", "lines stand")
    thinned = "" if total == len(lines) else f", {stand} for them"
    if thinned:  # so that it is seen where the many are
        logarithmic["attempts"] = 1.0
        most_of_one = float(counts.max())
        ticks = [10.0**power for power in range(int(math.log10(most_of_one)) + 1)]
        dimensions.append(
            {
                "label": "attempts",
                "values": _log(counts, 1.0),
                "range": [0, float(_log(most_of_one, 1.0))],
                "tickvals": _log(ticks, 1.0).tolist(),
                "ticktext": [f"{tick:,.0f}" for tick in ticks],
            }
        )
    nodes = lines[~np.isnan(lines[:, 0]), 0] if len(lines) else np.empty(0)
    most = float(nodes.max()) if len(nodes) else 1.0
    figure = go.Figure(
        go.Parcoords(
            dimensions=dimensions,
            meta=logarithmic,
            line={
                "color": np.nan_to_num(lines[:, 0], nan=1.0) if len(nodes) else COLOURS[0],
                "colorscale": [list(pair) for pair in NODE_SCALE],
                "cmin": 1,
                "cmax": max(most, 2),
                "showscale": len(np.unique(nodes)) > 1,
                "colorbar": {
                    "title": {"text": "nodes", "font": {"size": 12}},
                    "thickness": 12,
                    "len": 0.9,
                    "outlinewidth": 0,
                    "tickvals": _ticks(max(most, 2), whole=True),
                },
            },
            labelfont={"size": 13},
            tickfont={"size": 12},
            rangefont={"size": 10, "color": "rgba(0,0,0,0)"},
        )
    )
    dress(figure, f"{escape(application)}: {counted(total, 'attempt')}{thinned}", 440)
    spare = [each["label"] for each in dimensions if each["label"] in ("nNODE", "attempts")]
    hides = spare[: max(0, len(dimensions) - NARROW_AXES)]
    figure.update_layout(
        margin={"l": 48, "r": 44, "t": 96, "b": 28}, hovermode=False, meta={"narrow_hides": hides}
    )
    return figure


def _log(amounts: Any, unit: float = LOG_UNIT_H) -> Floats:
    """Where amounts lie on a logarithmic axis."""
    return np.log10(1 + np.asarray(amounts, np.float64) / unit)


def _log_ticks(top: float) -> list[float]:
    return [0.0, *(tick for tick in (0.1, 1.0, 10.0, 100.0, 1000.0) if tick < top)]


def _tick_text(tick: float) -> str:
    """Three digits, and never an exponent."""
    return np.format_float_positional(float(f"{tick:.3g}"), trim="-")


def _ticks(top: float, whole: bool) -> list[float]:
    step = 10 ** math.floor(math.log10(top)) if top > 0 else 1.0
    step = next((step * factor for factor in (0.1, 0.2, 0.5, 1, 2) if top / (step * factor) <= 6), step)
    if whole:
        step = max(1.0, round(step))
    ticks = [tick * step for tick in range(int(top / step) + 1)]
    return ticks if top - ticks[-1] < step / 2 else [*ticks, top]


def variable_cdfs(cdfs: Mapping[str, Mapping[str, Cdf]], variable: str) -> go.Figure:
    """The share of attempts that have at most a given amount of a variable, a line an application.

    The axis of hours that differ much is logarithmic; `meta` of the lines then has its unit, as in
    `parallel_coordinates`.
    """
    figure = go.Figure()
    top = max((float(each[variable].values[-1]) for each in cdfs.values() if variable in each), default=0.0)
    shown = next(each for each in VARIABLES if each.name == variable)
    factor, unit, axis = _fit([top], shown.unit, shown.words)
    title = f"{variable if factor == 1.0 else variable.removesuffix('_h')}, {unit}"
    top *= factor
    end = 1.0 if shown.unit == "fraction" else 1.04 * top or 1.0
    medians = [
        factor * each[variable].values[each[variable].shares >= 0.5][0]
        for each in cdfs.values()
        if variable in each
    ]
    spread = shown.unit == "hours" and top > MOST_SPREAD * float(max(medians, default=0.0))
    for at, (application, each) in enumerate(cdfs.items()):
        if variable not in each:
            continue
        cdf = each[variable]
        x = np.concatenate((cdf.values[:1] * factor, cdf.values * factor, [end]))
        name = escape(application)
        figure.add_trace(
            go.Scatter(
                x=_log(x) if spread else x,
                y=np.concatenate(([0.0], cdf.shares * 100, [100.0])),
                mode="lines",
                line={
                    "shape": "hv",
                    "color": COLOURS[at % len(COLOURS)],
                    "dash": DASHES[at // len(COLOURS) % 4],
                },
                name=name,
                meta={"x": LOG_UNIT_H} if spread else None,
                hovertemplate="%{y:.1f} %" + f"<extra>{name}</extra>",
            )
        )
    alone = f"{figure.data[0].name}: " if len(figure.data) == 1 else ""
    dress(figure, f"{alone}{title}", 350)
    figure.update_yaxes(range=[0, 102], ticksuffix=" %", title={"text": "attempts with at most this"})
    figure.update_xaxes(range=[0, float(_log(end)) if spread else end], title={"text": axis})
    if spread:
        ticks = _log_ticks(end)
        figure.update_xaxes(tickvals=_log(ticks).tolist(), ticktext=[*map(_tick_text, ticks)])
    if variable in ("nNODE", "nGPU"):
        figure.update_xaxes(tickvals=_ticks(max(top, 1.0), whole=True))
    return figure


def usage_bars(rows: Sequence[Usage], measure: str, dimension: str) -> go.Figure:
    """One dimension's groups as bars, the largest on top; what is beyond a dozen is one bar."""
    groups = {row.keys[0]: row.measure(measure) for row in rows}
    return _bars(groups, f"{_title(measure)} by {dimension}", _title(measure))


def measure_text(measure: str) -> str:
    """A measure as texts have it: `idle-gpu-hours` are idle GPU-hours."""
    return measure.replace("-gpu", " gpu").replace("gpu", "GPU")


def _title(measure: str) -> str:
    """A measure at the head of a title."""
    text = measure_text(measure)
    return text[0].upper() + text[1:]


def _fit(values: Iterable[float], title: str, measured: str) -> tuple[float, str, str]:
    """What to multiply hours by, and the texts with the unit that fits: few hours are drawn in minutes or seconds."""
    if "hours" not in measured.lower():
        return 1.0, title, measured
    factor, unit = hours_unit(max(values, default=0.0))
    name = HOURS_NAMES[unit]
    title, measured = (
        text.replace("hours", name).replace("Hours", name.capitalize()) for text in (title, measured)
    )
    return float(factor), title, measured


def _bars(groups: Mapping[str, float], title: str, measured: str) -> go.Figure:
    """Groups as bars, the largest on top; what is beyond a dozen is one bar. `measured` names the axis."""
    factor, title, measured = _fit(groups.values(), title, measured)
    groups = {name: value * factor for name, value in groups.items()}
    ordered = sorted(groups.items(), key=lambda group: (-group[1], group[0]))
    kept, rest = ordered[:LARGEST_SHOWN], ordered[LARGEST_SHOWN:]
    names = [shortened(name) for name, _ in kept]
    values = [value for _, value in kept]
    if rest:
        names.append(f"{len(rest):,} more")
        values.append(sum(value for _, value in rest))
    total = sum(values) or 1.0
    figure = go.Figure(
        go.Bar(
            x=values,
            y=list(range(len(values))),
            orientation="h",
            marker={"color": [COLOURS[0]] * len(kept) + [COLOURS[6]] * bool(rest)},
            text=[f"{value / total * 100:.1f} %" for value in values],
            textposition="outside",
            cliponaxis=False,
            customdata=names,
            hovertemplate="%{customdata}: %{x:,.1f}<extra></extra>",
        )
    )
    dress(figure, title, 126 + 30 * max(len(values), 2))
    figure.update_layout(hovermode="closest", margin={"r": 64, "b": 60})
    figure.update_yaxes(
        tickvals=list(range(len(names))), ticktext=names, autorange="reversed", showgrid=False
    )
    figure.update_xaxes(rangemode="tozero", title={"text": measured})
    return figure


def share_of_usage(rows: Sequence[Usage], measure: str) -> go.Figure:
    """Usage by month, stacked by what the second dimension says: bars (rows have month and one more)."""
    totals: dict[str, float] = {}
    for row in rows:
        totals[row.keys[1]] = totals.get(row.keys[1], 0.0) + row.measure(measure)
    names = sorted(totals, key=lambda name: (-totals[name], name))
    months = sorted({row.keys[0] for row in rows})
    month_sums = [sum(row.measure(measure) for row in rows if row.keys[0] == month) for month in months]
    factor, title, axis = _fit(month_sums, f"{_title(measure)} by month", _title(measure))
    values = {row.keys: row.measure(measure) * factor for row in rows}
    figure = go.Figure()
    shown = names[: len(COLOURS) - 1]
    for at, name in enumerate(shown):
        figure.add_trace(
            _stack(months, [values.get((month, name), 0.0) for month in months], shortened(name), COLOURS[at])
        )
    if rest := names[len(shown) :]:
        sums = [sum(values.get((month, name), 0.0) for name in rest) for month in months]
        figure.add_trace(_stack(months, sums, f"{len(rest):,} more", COLOURS[-1]))
    dress(figure, title, 380)
    figure.update_layout(barmode="stack")
    figure.update_xaxes(type="category", title={"text": "month in which attempts ended (UTC)"})
    figure.update_yaxes(rangemode="tozero", title={"text": axis})
    return figure


def _stack(months: Sequence[str], values: Sequence[float], name: str, colour: str) -> go.Bar:
    template = "%{y:,.1f}" + f"<extra>{name}</extra>"
    return go.Bar(x=list(months), y=list(values), name=name, marker={"color": colour}, hovertemplate=template)


def gpus_over_time(days: Mapping[str, tuple[NDArray[np.int64], Floats]]) -> go.Figure:
    """How many GPUs of each server type were held, a mean a day; a type has a line from its first day to its last, and
    a bar if there is one day in all."""
    first = min(int(numbers[0]) for numbers, _ in days.values())
    last = max(int(numbers[-1]) for numbers, _ in days.values())
    series = []
    for name in sorted(days, key=lambda name: (-float(days[name][1].sum()), name))[: 2 * len(COLOURS)]:
        numbers, hours = days[name]
        held: list[float | None] = [None] * (last - first + 1)
        held[numbers[0] - first : numbers[-1] + 1 - first] = [0.0] * int(numbers[-1] + 1 - numbers[0])
        for number, amount in zip(numbers.tolist(), hours.tolist(), strict=True):
            held[number - first] = amount / 24
        series.append(Series(name, held))
    moments = [_day(number) for number in range(first, last + 1)]
    title, axis = "GPUs held of each server type, mean of each day", "GPUs held, mean of the day"
    if len(moments) == 1:  # lines of one point would be dots in an empty frame
        title = f"GPUs held of each server type, mean of {moments[0]}"
        one_day = Series(axis, [value for each in series for value in each.values])
        figure = group_bars([each.name for each in series], [one_day], axis)
    else:
        figure = group_lines(moments, series, axis, "day (UTC)")
        figure.update_layout(hovermode="x unified")
    figure.update_layout(title={"text": title}, margin={"t": 74})
    return figure


def calendar(days: NDArray[np.int64], hours: Floats) -> go.Figure:
    """A year's days as cells, a week a column, the darker the more GPU-hours; a row of weeks a year."""
    figure = go.Figure()
    by_year: dict[int, list[tuple[date, float]]] = {}
    for number, value in zip(days.tolist(), hours.tolist(), strict=True):
        moment = EPOCH + timedelta(days=number)
        by_year.setdefault(moment.year, []).append((moment, value))
    years = sorted(by_year)
    factor, title, unit = _fit(hours.tolist(), "GPU-hours by the day on which jobs ended", "GPU-hours")
    hours = hours * factor
    most = float(hours.max()) if len(hours) else 1.0
    for row, year in enumerate(years):
        first = date(year, 1, 1)
        cells = np.full((7, 54), np.nan)
        dates = [[""] * 54 for _ in range(7)]
        for moment, value in by_year[year]:
            week = ((moment - first).days + first.weekday()) // 7
            cells[moment.weekday(), week] = value
            dates[moment.weekday()][week] = moment.isoformat()
        starts = [((date(year, month, 1) - first).days + first.weekday()) // 7 for month in range(1, 13)]
        suffix = "" if row == 0 else str(row + 1)
        figure.add_trace(
            go.Heatmap(
                z=cells,
                customdata=dates,
                hovertemplate="%{customdata}: %{z:,.1f} " + f"{unit}<extra></extra>",
                hoverongaps=False,
                xgap=2,
                ygap=2,
                zmin=0,
                zmax=most,
                colorscale=[[0, "#dbe9f4"], [0.5, "#4a93c6"], [1, "#08306b"]],
                showscale=row == 0,
                colorbar={"thickness": 12, "outlinewidth": 0, "nticks": 3, "title": {"text": unit}},
                xaxis=f"x{suffix}",
                yaxis=f"y{suffix}",
            )
        )
        top = 1 - row / len(years)
        bottom = 1 - (row + 1) / len(years) + 0.18 / len(years)
        figure.update_layout(
            {
                f"xaxis{suffix}": {
                    "range": [-0.5, 53.5],
                    "tickvals": starts,
                    "ticktext": list(_MONTHS),
                    "anchor": f"y{suffix}",
                },
                f"yaxis{suffix}": {
                    "domain": [bottom, top],
                    "tickvals": [0, 3, 6],
                    "ticktext": ["Mon", "Thu", "Sun"],
                    "autorange": "reversed",
                    "title": {"text": str(year)},
                    "anchor": f"x{suffix}",
                },
            }
        )
    dress(figure, title, 90 + 130 * max(len(years), 1))
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(showgrid=False)
    figure.update_yaxes(showgrid=False)
    return figure


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def waiting_by_cause(hours: Mapping[str, float]) -> go.Figure:
    """Hours waited by cause, the most on top."""
    return _bars(hours, "Hours waited by cause", "hours waited, of all jobs together")


def _day(number: int) -> str:
    return (EPOCH + timedelta(days=number)).isoformat()


SHOWN = 12
"""At most this many groups have bars of their own."""
MOST_MARKED = 62
"""Of at most this many moments each has a mark."""
_BAR_PX = 30
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or one set of bars."""

    name: str
    values: Sequence[float | None]
    """One for each group or moment; None where there is nothing to tell."""
    keys: Sequence[str] = ()
    """What a click on each value hands over."""


def group_bars(names: Sequence[str], series: Sequence[Series], axis: str, unit: str = "") -> go.Figure:
    """Groups from above, a bar of each series for each of the first dozen; `axis` names the amount and its unit.

    What a click picks is in `customdata`.
    """
    shown = list(names[:SHOWN])
    figure = go.Figure()
    for at, each in enumerate(series):
        figure.add_trace(
            go.Bar(
                x=list(each.values[:SHOWN]),
                y=list(range(len(shown))),
                orientation="h",
                name=escape(each.name),
                marker={"color": COLOURS[at % len(COLOURS)], "pattern": {"shape": ("", "/", "x")[at % 3]}},
                customdata=list(each.keys[:SHOWN]),
                hovertext=[escape(name) for name in shown],
                hovertemplate="%{hovertext}: %{x:,.3~g}" + f"{unit}<extra>{escape(each.name)}</extra>",
            )
        )
    legend = any(each.name != axis for each in series)
    dress(figure, "", 96 + _BAR_PX * max(len(shown), 2) * max(1, len(series) * 2 // 3))
    figure.update_layout(
        hovermode="closest",
        barmode="group",
        showlegend=legend,
        margin={"l": 8, "r": 20, "t": 30 if legend else 8, "b": 48},
    )
    figure.update_yaxes(
        tickvals=list(range(len(shown))),
        ticktext=[shortened(name, 24) for name in shown],
        autorange="reversed",
        showgrid=False,
    )
    figure.update_xaxes(rangemode="tozero", title={"text": escape(axis)})
    return figure


def group_lines(
    moments: Sequence[str],
    series: Sequence[Series],
    axis: str,
    time_axis: str,
    unit: str = "",
    top: float | None = None,
) -> go.Figure:
    """Lines over days or months, told apart by colour, dash and mark; what a click picks is in `customdata`.

    The axis ends at `top`, or at the largest value. Of many moments only those have a mark that no line leads to.
    """
    figure = go.Figure()
    for at, each in enumerate(series):
        figure.add_trace(
            go.Scatter(
                x=list(moments),
                y=list(each.values),
                name=shortened(each.name, 24),
                mode="lines+markers",
                line={
                    "color": COLOURS[at % len(COLOURS)],
                    "dash": DASHES[at % len(DASHES)],
                    "width": 2,
                },
                marker={
                    "symbol": _SYMBOLS[at % len(_SYMBOLS)],
                    "size": [
                        6 if len(moments) <= MOST_MARKED or alone else 0 for alone in _alone(each.values)
                    ],
                },
                customdata=list(each.keys),
                hovertemplate="%{y:,.3~g}" + f"{unit}<extra>{shortened(each.name, 24)}</extra>",
            )
        )
    dress(figure, "", 360)
    figure.update_layout(
        hovermode="closest",  # a click is on one point, not on all of its day
        margin={"l": 8, "r": 16, "t": 52, "b": 52},
        showlegend=len(series) > 1,
    )
    figure.update_xaxes(type="category", nticks=12, title={"text": escape(time_axis)})
    figure.update_yaxes(rangemode="tozero", title={"text": escape(axis)})
    if top is not None:
        figure.update_yaxes(range=[0, 1.02 * top])  # a line at the top is whole
    return figure


def _alone(values: Sequence[float | None]) -> list[bool]:
    """Whether a value has no neighbour, so that no line would show it."""
    around = [None, *values, None]
    return [
        value is not None and around[at] is None and around[at + 2] is None for at, value in enumerate(values)
    ]
