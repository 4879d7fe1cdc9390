"""The page of a comparison.

One animated picture, an SVG: the same jobs fill the same GPUs under two policies, side by side.

A column in a cell is what jobs hold of a GPU; below stands how many jobs wait. Nothing moves for readers who ask for
less motion, and the picture pauses under the pointer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from berth.counts import counted
from berth.experiments.compare import plots
from berth.experiments.compare.comparison import Comparison
from berth.experiments.compare.plots import schedule
from berth.interference import mode_of
from berth.model import Node
from berth.plots import Style, policy_styles
from berth.report import Chapter, Report, write
from berth.statistics import Film, Run, Unit, headlines_of, lead, matter_most, metrics_of, readable_unit
from berth.statistics.comparison import table_rows
from berth.version import __version__


def comparison_report(result: Comparison, command: str, created: str) -> Report:
    """The page of a comparison, made by that command at that time."""
    policies = (
        counted(len(result.policies), "policy", "policies")
        if len(result.policies) > 1
        else result.policies[0]
    )
    compress = result.conditions.compress
    knowledge = result.conditions.knowledge
    believed = f"; knowledge: {knowledge}" if knowledge != "oracle" else ""
    mode = mode_of(result.conditions.interference)
    shared = f"; GPUs are shared by {mode}" if mode != "none" else ""
    pair = two_to_show(result.runs)
    faster = f", arrivals compressed {compress:g}×" if compress != 1 else ""
    return Report(
        title=f"{Path(result.trace).name}: {policies}",
        command=command or f"berth.compare({result.trace!r}, policies={list(result.policies)!r})",
        trace=f"{result.trace}: {counted(result.runs[0].summary.jobs, 'job')}{faster}{believed}{shared}",
        cluster=cluster_in_words(result.nodes),
        created=created,
        version=__version__,
        chapters=comparison_chapters(result.runs, result.nodes),
        answers=result.answers,
        picture="" if pair is None else filling(pair),
        lead=lead(result.runs),
    )


def cluster_in_words(nodes: Sequence[Node]) -> str:
    """How many nodes, and how many GPUs of which models, the most first."""
    models: dict[str, int] = {}
    for node in nodes:
        if node.gpus:
            name = node.gpu_model.name if node.gpu_model and node.gpu_model.name else "unnamed"
            models[name] = models.get(name, 0) + node.gpus
    kinds = ", ".join(
        f"{number:,} {name}" for name, number in sorted(models.items(), key=lambda item: -item[1])
    )
    nodes_text = counted(len(nodes), "node")
    return f"{nodes_text}, {counted(sum(models.values()), 'GPU')} ({kinds})" if kinds else nodes_text


def write_report(
    result: Comparison,
    path: str | os.PathLike[str],
    *,
    command: str = "",
    created: datetime | None = None,
    first: str = "",
) -> Path:
    """Write a comparison as one self-contained HTML page; return its path.

    `command` makes the same page again, `created` is the time that it tells, now by default, and `first` a sentence
    before all others.
    """
    target = Path(path)
    report = comparison_report(result, command, f"{created or datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
    write(replace(report, answers=(*filter(None, [first]), *report.answers)), target)
    return target


def comparison_chapters(runs: Sequence[Run], nodes: Sequence[Node] = ()) -> list[Chapter]:
    """The chapters that there is something to show in; without nodes there is no map."""
    if not runs:
        return []
    named: dict[str, Any] = {
        "policies": tuple(dict.fromkeys(run.label for run in runs)),
        "seeds": tuple(sorted({run.seed for run in runs})),
    }
    oracles = {run.policy for run in runs if run.oracle}
    styles = policy_styles((run.policy for run in runs), oracles)
    return list(_chapters(runs, nodes, styles, named))


def _chapters(
    runs: Sequence[Run], nodes: Sequence[Node], styles: Mapping[str, Style], named: Mapping[str, Any]
) -> Iterator[Chapter]:
    several = len(named["seeds"]) > 1
    headlines = headlines_of(run.summary for run in runs)
    alone = len(named["policies"]) == 1
    title = "Results" if alone else "Comparison"
    rows = table_rows(runs)
    yield Chapter(
        title,
        _how_to_read(runs, alone),
        standings=rows,
        first=matter_most(row.metric for row in rows),
        **named,
    )
    bars = "the bar its 95 % interval" if several else "without an interval, because there is one seed"
    if not alone:
        yield Chapter(
            "Policies at a glance",
            f"A dot is the mean over seeds, {bars}. Axes need not begin at zero: compare places, not lengths.",
            [(f"{metric.name} of each policy", plots.headline(runs, metric, styles)) for metric in headlines],
            names=[f"headline-{at}" for at in range(len(headlines))],
            small=True,
            **named,
        )
    raw = "the mean over seeds" if several else "the mean in each of up to 1,000 steps"
    shade = (
        "The shade reaches from the lowest seed to the highest: in running means for allocation, up to the "
        "peak for waiting jobs. "
        if several
        else "The shade of waiting jobs reaches up to the peak in each step. "
    )
    if len({run.policy for run in runs}) > plots.MOST_SHADED:
        shade += "Allocation shows the bold lines alone, because there are many. "
    yield Chapter(
        "Over time",
        f"The bold line is the running mean over {plots.smoothed_over(runs)}; the thin line behind it is {raw}. "
        f"{shade}Click a name to hide it, twice to see it alone; drag to zoom in, double-click to zoom out.",
        (
            ("GPU allocation over time", plots.allocation_over_time(runs, styles)),
            ("Jobs waiting over time", plots.queue_over_time(runs, styles)),
        ),
        names=("allocation", "queue"),
        **named,
    )
    if len(runs) == 1 and runs[0].schedule is not None:
        names = [
            f"{node.name} GPU {index}" if node.gpus > 1 else node.name
            for node in nodes
            for index in range(node.gpus)
        ]
        yield Chapter(
            "The schedule",
            "A row is a GPU, a bar a job on it, as high as the part that it holds. A job of several GPUs has a bar on"
            " each. Jobs that may each use all of a GPU divide its row. Colours are users, those with the most"
            " GPU-hours first. Drag to zoom in.",
            (("Which job held which GPU, and when", schedule(runs[0].schedule, names)),),
            names=("schedule",),
            **named,
        )
    yield Chapter(
        "How long jobs took",
        "The higher a curve, the more jobs had been served by that time. The axis is logarithmic and has no "
        "zero: jobs at or below its left edge, those that started at once among them, are where a curve "
        "begins. Jobs that never started, or never finished, are in no curve; the table counts them.",
        (
            ("Distribution of waiting times", plots.waiting_cdf(runs, styles)),
            ("Distribution of completion times", plots.completion_cdf(runs, styles)),
        ),
        names=("waiting", "completion"),
        **named,
    )
    yield Chapter(
        "What the numbers mean",
        definitions=[(metric.name, metric.definition) for metric in metrics_of(run.summary for run in runs)],
    )


def _how_to_read(runs: Sequence[Run], alone: bool) -> str:
    seeds = len({run.seed for run in runs})
    means = f"Means over {seeds} seeds, with half of the 95 % confidence interval (Student’s t) behind ±."
    sentences = [means] if seeds > 1 else []
    if not alone:
        best = "The best mean of a row is bold with a dot"
        like_best = (
            "; ≈ marks policies that are not significantly worse (the 95 % interval of the paired difference"
        )
        sentences.append(f"{best}{like_best}, seed by seed, contains 0)." if seeds > 1 else f"{best}.")
    if any(run.oracle for run in runs):
        sentences.append(
            "An oracle chooses by true run times, which no scheduler knows: a bound, not a choice."
        )
    return "\n".join(sentences)


LASTS_S = 14
PANEL, GAP = 300, 40
"""Widths in the picture's own units."""
TOP, CURVE = 34, 84
"""Where the cells begin, and how high the curve of waiting jobs is."""

STYLE = """
.film{display:block;width:100%;height:auto;font:15px system-ui,"DejaVu Sans",sans-serif}
.film text{fill:#1d2329}.film .soft{fill:#5a646e;font-size:13px}
.film .empty{fill:#e3e7eb}.film .idle{fill:#e08a3c}.film .asked{fill:#0072b2}
.film .idle,.film .asked{transform-box:fill-box;transform-origin:50% 100%}
.film .queue{fill:#d55e00;fill-opacity:.28}.film .edge{fill:none;stroke:#d55e00;stroke-width:1.5}
.film .time{stroke:#5a646e;stroke-width:1;animation:film-time LASTSs linear infinite}
@keyframes film-time{to{transform:translateX(PANELpx)}}
.film:hover *{animation-play-state:paused!important}
@media(prefers-color-scheme:dark){.film text{fill:#e6e9ec}.film .soft{fill:#a3adb7}.film .empty{fill:#2a3138}}
@media(max-width:36rem){.film,.film .soft{font-size:20px}}
@media(prefers-reduced-motion:reduce),print{.film *{animation:none!important}.film .time{display:none}}
""".replace("LASTS", str(LASTS_S)).replace("PANEL", str(PANEL))


def two_to_show(runs: Sequence[Run]) -> tuple[Run, Run] | None:
    """The policy named first and, of the others, the one with the least mean wait that is no oracle.

    Both on the first seed; None if either has no film.
    """
    first = [run for run in runs if run.seed == runs[0].seed and run.film is not None]
    others = [run for run in first if run.policy != runs[0].policy and not run.oracle]
    if not others or first[0].policy != runs[0].policy:
        return None

    def mean_wait_s(run: Run) -> float:
        waits = [one.summary.waiting_time_s.mean for one in runs if one.policy == run.policy]
        return float(np.mean(waits))

    return first[0], min(others, key=mean_wait_s)


def filling(pair: tuple[Run, Run]) -> str:
    """The picture of two runs of the same jobs on the same cluster, each with a film."""
    films = [run.film for run in pair]
    one, other = films
    assert one is not None
    assert other is not None
    most = max(int(film.waiting.max(initial=0)) for film in (one, other)) or 1
    columns = next(wide for wide in (8, 16, 32) if one.held_milli.shape[1] <= 10 * wide or wide == 32)
    cell = PANEL / columns
    rows = -(-one.held_milli.shape[1] // columns)
    below = TOP + rows * cell + 30
    moves: dict[str, str] = {}
    panels = []
    for at, (run, film) in enumerate(zip(pair, (one, other), strict=True)):
        left = at * (PANEL + GAP)
        cells = "".join(_cells(film, columns, cell, moves))
        peak = int(film.waiting.max(initial=0))
        panels.append(
            f'<g transform="translate({left} 0)"><text y="20" font-weight="600">{escape(run.label)}</text>{cells}'
            f'<text class="soft" y="{below:.0f}">jobs waiting: up to {peak:,}</text>'
            f"{_curve(film, below + 10, most)}</g>"
        )
    height = below + CURVE + 66
    factor, unit = readable_unit(Unit.SECONDS, [(one.times_ms[-1] - one.times_ms[0]) / 1000])
    span = f"{(one.times_ms[-1] - one.times_ms[0]) / 1000 * factor:.3g} {unit}"
    keyframes = "".join(f"@keyframes {name}{{{steps}}}" for steps, name in moves.items())
    wasted = any((film.held_milli > film.asked_milli).any() for film in (one, other))
    legend = "blue: what jobs asked for" + ("; orange: held, but not asked for" if wasted else "")
    description = (
        f"The same jobs on the same GPUs under {pair[0].label} and under {pair[1].label}, over {span}"
    )
    return (
        f'<svg class="film" xmlns="http://www.w3.org/2000/svg" viewBox="-4 0 {2 * PANEL + GAP + 8} {height:.0f}"'
        f' role="img" aria-label="{escape(description)}"><title>{escape(description)}</title>'
        f"<style>{STYLE}{keyframes}</style>{''.join(panels)}"
        f'<text class="soft" y="{height - 32:.0f}">{span}, first to last submission; a cell is a GPU</text>'
        f'<text class="soft" y="{height - 8:.0f}">{legend}</text></svg>'
    )


def _cells(film: Film, columns: int, cell: float, moves: dict[str, str]) -> Iterator[str]:
    """The GPUs of one panel; `moves` gathers their keyframes, each different one once."""
    side = cell - 3
    for gpu in range(film.held_milli.shape[1]):
        x, y = gpu % columns * cell, TOP + gpu // columns * cell
        box = f'x="{x:.1f}" y="{y:.1f}" width="{side:.1f}" height="{side:.1f}"'
        yield f'<rect class="empty" {box}/>'
        held, asked = film.held_milli[:, gpu], film.asked_milli[:, gpu]
        if (held > asked).any():
            yield f'<rect class="idle" {box} style="{_moving(held, moves)}"/>'
        if asked.any():
            yield f'<rect class="asked" {box} style="{_moving(asked, moves)}"/>'


def _moving(milli: NDArray[np.int16], moves: dict[str, str]) -> str:
    """The style of a column that is as high as that, frame after frame; without motion as high as in the middle."""
    still = f"transform:scaleY({milli[len(milli) // 2] / 1000:g})"
    changes = np.flatnonzero(np.diff(milli, prepend=-1))
    if len(changes) == 1:
        return still
    steps = "".join(
        f"{100 * at / len(milli):.3g}%{{transform:scaleY({milli[at] / 1000:g})}}" for at in changes
    )
    name = moves.setdefault(steps, f"film-{len(moves)}")
    return f"{still};animation:{name} {LASTS_S}s step-end infinite"


def _curve(film: Film, top: float, most: int) -> str:
    """Jobs waiting over time, on the same scale in both panels, and a line that moves with the time."""
    x = np.linspace(0, PANEL, len(film.waiting))
    y = top + CURVE * (1 - film.waiting / most)
    line = " ".join(f"{across:.0f},{down:.1f}" for across, down in zip(x, y, strict=True))
    bottom = top + CURVE
    return (
        f'<polygon class="queue" points="0,{bottom:.1f} {line} {PANEL},{bottom:.1f}"/>'
        f'<polyline class="edge" points="{line}"/>'  # open: at its end jobs still wait
        f'<path class="time" d="M0 {top:.1f}V{bottom:.1f}"/>'
    )
