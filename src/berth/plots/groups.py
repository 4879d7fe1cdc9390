"""Groups of jobs as bars and as lines over time, with titled axes; each bar and point tells which group it is of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import plotly.graph_objects as go

from berth.plots.style import COLOURS, DASHES, dress, shortened

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
