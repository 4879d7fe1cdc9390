"""How a training went: what an episode returned, and what the network was worth on other sets of jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Protocol

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from berth.plots.style import INK, dress, policy_styles

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


def training_curve(
    curves: Mapping[str, Sequence[TrainingPoint]],
    *,
    begun: Mapping[str, float] | None = None,
    others: Mapping[str, float] | None = None,
) -> go.Figure:
    """A line a training: above the mean return of its episodes, below the total time that its network needs.

    `begun` is what the networks needed before the first iteration, drawn at no decision; `others` is what a
    policy that learns nothing needs, a level line each with its name on it.
    """
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
        measured = [(0, begun[name])] if begun and name in begun else []
        measured += [
            (point.decisions, point.measured) for point in curves[name] if point.measured is not None
        ]
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
    for name, level in (others or {}).items():
        figure.add_hline(
            level,
            row=2,
            col=1,
            line={"color": INK, "width": 1, "dash": "dot"},
            annotation={"text": escape(name), "font": {"size": 12}},
            annotation_position="top right",
        )
    dress(figure, f"Training of {escape(next(iter(curves)))}" if len(curves) == 1 else "Training", height=560)
    figure.update_layout(margin={"t": 104}, legend={"y": 1.06}, showlegend=len(curves) > 1)
    for row, text in enumerate(
        (
            f"Return of an episode, mean of {SMOOTH} iterations",
            "Total time over that of all jobs one after the other, on sets not trained on",
        ),
        start=1,
    ):
        figure.add_annotation(
            text=text,
            x=0,
            xref="x domain",
            xanchor="left",
            y=1,
            yref=f"y{row if row > 1 else ''} domain",
            yanchor="bottom",
            yshift=3,
            showarrow=False,
            font={"size": 13},
        )
    levels = [value for line in figure.data[1::2] for value in line.y] + list((others or {}).values())
    if levels:  # a level line does not stretch the axis by itself
        room = max(0.02, 0.1 * (max(levels) - min(levels)))
        figure.update_yaxes(range=[min(levels) - room, max(levels) + room], row=2, col=1)
    figure.update_xaxes(title_text="decisions", row=2, col=1)
    return figure
