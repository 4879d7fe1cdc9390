"""Which job held which GPU when."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
import plotly.graph_objects as go

from berth.plots.style import COLOURS, dress
from berth.statistics import Schedule, Unit, readable_unit

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
