"""The sections of a page: which plots it shows, and how to read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from plotly import graph_objects as go
from plotly.io.json import to_json_plotly

from berth import plots
from berth.plots import Style
from berth.report.report import Report
from berth.statistics import headlines_of

__all__ = ["Plot", "Section", "plot_of", "policies_of", "sections_of", "seeds_of"]


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure on the page."""

    name: str
    title: str
    label: str
    """What it shows, for those who do not see it."""
    json: Markup
    """Safe inside a script element."""
    height_px: int


@dataclass(frozen=True, slots=True)
class Section:
    """Some plots under one heading, and how to read them."""

    title: str
    hint: str
    plots: tuple[Plot, ...]
    headings: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    small: bool = False
    """Whether the plots stand beside one another."""


def sections_of(report: Report) -> tuple[Section, ...]:
    """The sections that there is something to show in."""
    return tuple(_sections(report, plots.policy_styles(policies_of(report))))


def policies_of(report: Report) -> tuple[str, ...]:
    """The policies of all runs and curves, in the order in which the report first names them."""
    named = [run.policy for run in report.runs] + [curve.policy for curve in report.inflation]
    named += [policy for chapter in report.chapters for policy in chapter.policies]
    return tuple(dict.fromkeys(named))


def seeds_of(report: Report) -> tuple[int, ...]:
    """The seeds of all runs and curves, ascending."""
    return tuple(
        sorted(
            {run.seed for run in report.runs}
            | {curve.seed for curve in report.inflation}
            | {seed for chapter in report.chapters for seed in chapter.seeds}
        )
    )


def _sections(report: Report, styles: Mapping[str, Style]) -> Iterator[Section]:
    if report.runs:
        yield _glance(report, styles)
        yield _over_time(report, styles)
        yield _how_long(report, styles)
    if report.inflation:
        yield _inflation(report, styles)
    for number, chapter in enumerate(report.chapters):
        yield Section(
            chapter.title,
            chapter.hint,
            tuple(
                plot_of(f"chapter-{number}-{at}", label, figure)
                for at, (label, figure) in enumerate(chapter.figures)
            ),
            tuple(chapter.headings),
            tuple(tuple(row) for row in chapter.rows),
        )
    if any(node.gpus for node in report.nodes) and any(run.occupancies for run in report.runs):
        yield _cluster(report, styles)


def _glance(report: Report, styles: Mapping[str, Style]) -> Section:
    bars = (
        "the bar its 95 % interval"
        if len({run.seed for run in report.runs}) > 1
        else "without an interval, as one seed does not tell how far seeds differ"
    )
    return Section(
        "Policies at a glance",
        f"A dot is the mean over seeds, {bars}. Axes need not begin at zero: compare places, not lengths.",
        tuple(
            plot_of(
                f"headline-{at}", f"{metric.name} of each policy", plots.headline(report.runs, metric, styles)
            )
            for at, metric in enumerate(headlines_of(run.summary for run in report.runs))
        ),
        small=True,
    )


def _over_time(report: Report, styles: Mapping[str, Style]) -> Section:
    shade = (
        "The line is the mean over seeds; the shade reaches from the lowest seed to the highest peak."
        if len({run.seed for run in report.runs}) > 1
        else "The line is the mean in each of up to 1,000 steps; the shade reaches up to the peak in it."
    )
    return Section(
        "Over time",
        f"{shade} Click a name to hide it, twice to see it alone; drag to zoom in, double-click to zoom out.",
        (
            plot_of(
                "allocation", "GPU allocation over time", plots.allocation_over_time(report.runs, styles)
            ),
            plot_of("queue", "Jobs waiting over time", plots.queue_over_time(report.runs, styles)),
        ),
    )


def _how_long(report: Report, styles: Mapping[str, Style]) -> Section:
    return Section(
        "How long jobs took",
        "The higher a curve, the more jobs had been served after so long. The axis is logarithmic and has no "
        "zero: jobs at or below its left edge, those that started at once among them, are where a curve "
        "begins. Jobs that never started, or never finished, are in no curve; the table counts them.",
        (
            plot_of("waiting", "Distribution of waiting times", plots.waiting_cdf(report.runs, styles)),
            plot_of(
                "completion", "Distribution of completion times", plots.completion_cdf(report.runs, styles)
            ),
        ),
    )


def _inflation(report: Report, styles: Mapping[str, Style]) -> Section:
    return Section(
        "Inflation",
        "Jobs arrive in turn, in batches where the command says so, and none leaves, until more was asked for "
        "than there is. The longer "
        "allocation follows the dotted line, the better a policy packs; what is left out at the left is where "
        "all do, and a double click shows it. The fragmentation ratio is the part "
        "of the idle GPU capacity that the workload's jobs cannot use where it lies: lower is better. "
        "The line is the mean over seeds; the shade reaches from the lowest seed to the highest.",
        (
            plot_of(
                "inflation-allocation",
                "GPU allocation against arrived load",
                plots.inflation_allocation(report.inflation, styles),
            ),
            plot_of(
                "inflation-fragmentation",
                "Fragmentation ratio against arrived load",
                plots.inflation_fragmentation(report.inflation, styles),
            ),
        ),
    )


def _cluster(report: Report, styles: Mapping[str, Style]) -> Section:
    return Section(
        "The cluster at a moment",
        "A cell is a GPU, a short row of cells a node; nodes of one GPU model stand together. Grey and blue "
        "GPUs are idle or full. Orange ones are held in part: what is left of them can only serve jobs that "
        "want a part. The slider moves all policies to another time. Each map is of the policy's first seed.",
        (
            plot_of(
                "map",
                "Map of the cluster: how much of each GPU is held",
                plots.cluster_map(report.runs, report.nodes, styles),
            ),
        ),
    )


def plot_of(name: str, label: str, figure: go.Figure) -> Plot:
    """A figure as a page shows it, whatever texts are in it."""
    # The title becomes a heading of the page, which wraps on a narrow screen as a title in a plot does not.
    title = figure.layout.title.text
    above = figure.layout.margin.t - 32
    figure.update_layout(title={"text": ""}, margin={"t": above}, height=figure.layout.height - 32)
    text: str = to_json_plotly(_without_repeats(figure.to_dict()))
    # In JSON these stand only inside strings; escaped so, nothing in the data can end the script element.
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Plot(name, title, label, Markup(text), int(figure.layout.height))


def _without_repeats(content: dict[str, Any]) -> dict[str, Any]:
    """The same figure with texts that an earlier trace has too named by that trace; `draw.js` puts them back.

    The names of a thousand nodes, once for each policy, would be most of the page.
    """
    texts: dict[int, list[Any]] = {}
    for at, trace in enumerate(content["data"]):
        text = trace.get("text")
        if isinstance(text, list):
            earlier = next((known for known, other in texts.items() if other == text), None)
            if earlier is None:
                texts[at] = text
            else:
                trace["text"] = {"of": earlier}
    return content
