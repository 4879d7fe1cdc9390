"""One animated picture, an SVG: the same jobs fill the same GPUs under two policies, side by side.

A column in a cell is what jobs hold of a GPU; below stands how many jobs wait. Nothing moves for readers who ask for
less motion, and the picture pauses under the pointer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from berth.statistics import Film, Run, Unit, readable_unit

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
