"""The page of a scan over sizes: the sentence, the curve of each policy over the size, and the numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

import plotly.graph_objects as go

from berth.counts import counted
from berth.experiments.compare.page import cluster_in_words
from berth.experiments.size.scan import Answer, Curve, Sizes
from berth.history.values.durations import duration_text
from berth.plots import Style, policy_styles
from berth.plots.style import INK, dress
from berth.report import Chapter, Report

WHOLE_TICKS = 10
"""Sizes that differ by fewer nodes have a tick each, as Plotly would put some between them."""
HEADINGS = (
    "Policy",
    "GPU model",
    "Nodes today",
    "Smallest",
    "80 % interval",
    "GPUs returned",
    "GPU-hours a week",
    "Cost a week",
)


def page_of(sizes: Sizes, trace: str, command: str, answers: Sequence[str]) -> Report:
    """The page of a scan."""
    policies = tuple(dict.fromkeys(curve.policy for curve in sizes.curves))
    styles = policy_styles(policies)
    models = list(dict.fromkeys(curve.model for curve in sizes.curves))
    keep = sizes.keep.measure.in_words
    return Report(
        title=f"Fewer GPUs at the same {'slowdown' if sizes.keep.measure.name == 'slowdown' else 'wait'}",
        command=command,
        trace=f"{trace}: {counted(sizes.jobs, 'job')}",
        cluster=cluster_in_words(sizes.nodes),
        answers=answers,
        chapters=(
            Chapter(
                f"The {keep} over the size",
                "A dot is one simulation; all have the same jobs and seeds. The dashed line is what is to be kept, the"
                " dotted one today's size. Open dots do not keep it, or leave jobs unserved. A size counts only if"
                " every larger one keeps the number too.",
                [
                    (f"{keep} over the number of {model} nodes", curve_of(sizes, model, styles))
                    for model in models
                ],
                names=[f"sizes-{at}" for at in range(len(models))],
                policies=policies,
            ),
            Chapter(
                "The smallest sizes",
                "What each policy needs. GPU-hours are those of the GPUs that could be returned, used or not.",
                headings=HEADINGS,
                rows=[cells(answer, sizes.currency) for answer in sizes.answers],
                row_names=2,
                policies=policies,
            ),
        ),
    )


def cells(answer: Answer, currency: str) -> list[str]:
    """One policy and GPU model, as a row under HEADINGS."""
    interval = "–"
    if answer.low is not None:
        low = f"{'≤ ' if answer.low_is_open else ''}{answer.low:,}"
        interval = f"{low} to {'more' if answer.high is None else f'{answer.high:,}'}"
    cost = "–" if answer.cost_a_week is None else f"{answer.cost_a_week:,.0f} {currency}".rstrip()
    return [
        answer.policy,
        answer.model or "–",
        f"{answer.today:,}",
        "none" if answer.nodes is None else f"{answer.nodes:,}",
        interval,
        f"{answer.gpus_returned:,}",
        f"{answer.gpu_hours_a_week:,.0f}",
        cost,
    ]


def curve_of(sizes: Sizes, model: str, styles: Mapping[str, Style]) -> go.Figure:
    """The number of each policy over the nodes of a model."""
    figure = go.Figure()
    curves = [curve for curve in sizes.curves if curve.model == model]
    in_hours = sizes.keep.measure.unit == "s"
    scale = 3600.0 if in_hours else 1.0
    for curve in curves:
        figure.add_trace(_line(curve, styles[curve.policy], scale, in_hours))
    today = curves[0].today
    figure.add_vline(x=today, line={"color": INK, "dash": "dot", "width": 1}, annotation_text="today")
    figure.add_hline(y=sizes.target / scale, line={"color": INK, "dash": "dash", "width": 1})
    words = sizes.keep.measure.in_words
    of_model = f" of {escape(model)}" if model else ""
    unit = ", h" if in_hours else ""
    dress(figure, f"{words[0].upper()}{words[1:]}{unit}, over the nodes{of_model}")
    figure.update_layout(hovermode="closest")
    counts = [point.cluster.count for curve in curves for point in curve.points]
    few = max(counts) - min(counts) < WHOLE_TICKS
    figure.update_xaxes(title={"text": f"Nodes{of_model}"}, dtick=1 if few else None, tickformat=",d")
    return figure


def _line(curve: Curve, style: Style, scale: float, in_hours: bool) -> go.Scatter:
    there = [point for point in curve.points if math.isfinite(point.value)]
    values = [duration_text(point.value) if in_hours else f"{point.value:.2f}" for point in there]
    return go.Scatter(
        x=[point.cluster.count for point in there],
        y=[point.value / scale for point in there],
        mode="lines+markers",
        name=escape(curve.policy),
        line={"color": style.colour, "dash": style.dash, "width": 2},
        marker={
            "size": 8,
            "color": [style.colour if point.keeps else "rgba(0, 0, 0, 0)" for point in there],
            "line": {"color": style.colour, "width": 2},
        },
        customdata=[
            [value, f"; {point.unserved:,} jobs unserved" if point.unserved else ""]
            for point, value in zip(there, values, strict=True)
        ],
        hovertemplate="%{x} nodes: %{customdata[0]}%{customdata[1]}",
    )
