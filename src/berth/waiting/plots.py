"""How predicted waits compare with those that came."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from berth.plots.style import COLOURS, INK, dress

LEAST_S = 1.0
Triple = tuple[float, float, float]


def calibration(predicted: Sequence[Triple], came: Sequence[Triple], counts: Sequence[int]) -> go.Figure:
    """For jobs with like answers (low, median, high, in s) the true 10 %, 50 % and 90 %, best on the diagonal."""
    figure = go.Figure()
    highest = max((each[2] for each in (*predicted, *came)), default=1.0)
    figure.add_trace(
        go.Scatter(
            x=[LEAST_S, max(highest, 10.0)],
            y=[LEAST_S, max(highest, 10.0)],
            mode="lines",
            line={"color": INK, "width": 1, "dash": "dot"},
            name="as predicted",
            hoverinfo="skip",
        )
    )
    for at, (name, symbol) in enumerate(
        (("10 %", "triangle-down"), ("median", "circle"), ("90 %", "triangle-up"))
    ):
        figure.add_trace(
            go.Scatter(
                x=[max(each[at], LEAST_S) for each in predicted],
                y=[max(each[at], LEAST_S) for each in came],
                customdata=list(counts),
                mode="markers",
                marker={"color": COLOURS[at], "size": 9, "symbol": symbol},
                name=name,
                hovertemplate="predicted %{x:,.0f} s, came %{y:,.0f} s, %{customdata:,} jobs<extra>"
                + name
                + "</extra>",
            )
        )
    dress(figure, "Waits as they came, s, against as predicted, s", 420)
    figure.update_layout(hovermode="closest")
    for axis in (figure.update_xaxes, figure.update_yaxes):
        axis(type="log", dtick=1)
    return figure
