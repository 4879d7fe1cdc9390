"""How the same jobs went under several schedulers: how long they waited, and how many GPUs they held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from berth.plots.style import COLOURS, DASHES, dress


def waits(by_name: Mapping[str, Sequence[float]]) -> go.Figure:
    """The share of jobs that waited at most that long, s; a line each."""
    figure = go.Figure()
    for at, (name, values_s) in enumerate(by_name.items()):
        if values_s:
            x = np.sort(np.asarray(values_s))
            shares = np.arange(1, len(x) + 1) / len(x) * 100
            figure.add_trace(_line(at, name, np.concatenate((x[:1], x)), np.concatenate(([0.0], shares))))
    dress(figure, "wait, s", 330)
    figure.update_yaxes(range=[0, 102], ticksuffix=" %")
    return figure


def gpus_held(by_name: Mapping[str, Sequence[tuple[float, float, float]]]) -> go.Figure:
    """GPUs held over time, of begin and end, s, and GPUs of each job; a line each."""
    figure = go.Figure()
    for at, (name, spans) in enumerate(by_name.items()):
        if spans:
            changes = sorted(
                [(begin, count) for begin, _, count in spans] + [(end, -count) for _, end, count in spans]
            )
            times = np.array([0.0, *(time for time, _ in changes)])
            held = np.concatenate(([0.0], np.cumsum([change for _, change in changes])))
            figure.add_trace(_line(at, name, times, held))
    dress(figure, "GPUs held, over s since the first submission", 330)
    return figure


def _line(at: int, name: str, x: object, y: object) -> go.Scatter:
    style = {"shape": "hv", "color": COLOURS[at % len(COLOURS)], "dash": DASHES[at % len(DASHES)]}
    return go.Scatter(x=x, y=y, mode="lines", line=style, name=name)
