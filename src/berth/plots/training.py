"""How a training went: what an episode returned, and what the network was worth on other sets of jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from berth.plots.style import dress, policy_styles

__all__ = ["TrainingPoint", "training_curve"]

SMOOTH = 5
"""Iterations over which returns are averaged; each is of few episodes."""


class TrainingPoint(Protocol):
    """One iteration of a training."""

    @property
    def decisions(self) -> int:
        """Decisions so far."""

    @property
    def episode_return(self) -> float | None:
        """Mean return of the episodes that ended in it."""

    @property
    def measured(self) -> float | None:
        """Total time on other sets of jobs over that of all jobs one after the other."""


def training_curve(curves: Mapping[str, Sequence[TrainingPoint]]) -> go.Figure:
    """A line a training: above the mean return of its episodes, below the total time that its network needs."""
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.12)
    for name, style in policy_styles(curves).items():
        line = {"color": style.colour, "dash": style.dash}
        earned = [
            (point.decisions, point.episode_return)
            for point in curves[name]
            if point.episode_return is not None
        ]
        smooth = [
            sum(value for _, value in earned[max(0, at - SMOOTH + 1) : at + 1]) / min(SMOOTH, at + 1)
            for at in range(len(earned))
        ]
        figure.add_scatter(
            x=[at for at, _ in earned], y=smooth, name=name, legendgroup=name, line=line, row=1, col=1
        )
        measured = [(point.decisions, point.measured) for point in curves[name] if point.measured is not None]
        figure.add_scatter(
            x=[at for at, _ in measured],
            y=[value for _, value in measured],
            name=name,
            legendgroup=name,
            showlegend=False,
            line=line,
            mode="lines+markers",
            row=2,
            col=1,
        )
    dress(figure, "Training", height=560)
    figure.update_yaxes(title_text="return of an episode", row=1, col=1)
    figure.update_yaxes(title_text="total time, of one after the other", row=2, col=1)
    figure.update_xaxes(title_text="decisions", row=2, col=1)
    return figure
