"""The figures of an inflation: allocation and fragmentation against arrived load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from berth.experiments.compare.plots import add_line, by_policy
from berth.plots.style import INK, Style, dress
from berth_papers.inflate.inflation import InflationCurve

Floats = NDArray[np.floating[Any]]


def inflation_allocation(curves: Sequence[InflationCurve], styles: Mapping[str, Style]) -> go.Figure:
    """GPU allocation against arrived load for each policy: mean over seeds, shaded to lowest and highest."""
    figure = _inflation(
        curves, styles, lambda curve: curve.allocation_pct, "GPU allocation, % of all GPUs", "%{y:.2f} %"
    )
    figure.add_trace(
        go.Scatter(
            x=[0, 100, 130],
            y=[0, 100, 100],
            mode="lines",
            name="all that fits",
            line={"color": INK, "width": 1, "dash": "dot"},
            hoverinfo="skip",
        )
    )
    begin = _first_behind(curves)
    figure.update_xaxes(range=[begin, 130])
    figure.update_yaxes(range=[begin, 102])
    return figure


def inflation_fragmentation(curves: Sequence[InflationCurve], styles: Mapping[str, Style]) -> go.Figure:
    """Fragmentation ratio against arrived load for each policy: mean over seeds, shaded likewise."""
    figure = _inflation(
        curves,
        styles,
        lambda curve: curve.fragmentation_ratio_pct,
        "Fragmentation ratio, % of idle GPU capacity",
        "%{y:.2f} %",
    )
    figure.update_yaxes(range=[0, 103])
    return figure


def _inflation(
    curves: Sequence[InflationCurve],
    styles: Mapping[str, Style],
    of: Callable[[InflationCurve], Floats],
    title: str,
    hover: str,
) -> go.Figure:
    figure = go.Figure()
    for group in by_policy(curves):
        values = np.stack([of(curve) for curve in group])
        x = np.arange(values.shape[1], dtype=np.int16)
        add_line(
            figure, group, styles, x, values.mean(0), values.min(0), values.max(0), hover, shape="linear"
        )
    dress(figure, title)
    figure.update_xaxes(title={"text": "Arrived load, % of all GPUs"}, range=[0, 130])
    figure.update_xaxes(unifiedhovertitle={"text": "%{x} % arrived"})
    figure.update_yaxes(ticksuffix=" %")
    return figure


def _first_behind(curves: Sequence[InflationCurve]) -> int:
    """A whole ten of arrived load until which every policy has placed nearly all that came."""
    behind = 130
    for curve in curves:
        load = np.arange(len(curve.allocation_pct))
        less = np.flatnonzero(curve.allocation_pct < np.minimum(load, 100) - 1.5)
        behind = min(behind, int(less[0]) if len(less) else 130)
    return max(0, min(behind, 100) // 10 * 10 - 10)
