"""The picture of docs/growth.md: two jobs of one card over time, as their partitions were seen to be.

The jobs run on a fake GPU, in a queue of their own. `make_pictures.py growth` draws it anew.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from berth.partition import partitions
from berth.partition.checkpoint import LENT

GROW = Path(__file__).parents[1] / "build" / "native" / "grow"
CARD_GIB, GIB = 80, 1 << 30
LONGEST_S = 120.0
WIDTH, PANEL, LEFT, GAP = 640, 110, 44, 34
JOBS = (
    ("20G..70G", "34 2048 1500 100", "job 1: --mem 20G..70G"),
    ("8G..48G", "44 1024 500 150", "job 2: --mem 8G..48G"),
)
"""What each job is promised and may have; pieces, MiB of each, how long all are held and the pause between two, ms."""
STYLE = """
.grow{display:block;width:100%;height:auto;font:14px system-ui,"DejaVu Sans",sans-serif}
.grow text{fill:#1d2329}.grow .soft{fill:#5a646e;font-size:12px}.grow .axis{stroke:#9aa4ae;stroke-width:1}
.grow .used{fill:#0072b2;fill-opacity:.35}.grow .limit{fill:none;stroke:#d55e00;stroke-width:2}
.grow .away{fill:#9aa4ae;fill-opacity:.35}
.grow .promise{stroke:#009e73;stroke-width:1.5;stroke-dasharray:5 4}
@media(prefers-color-scheme:dark){.grow text{fill:#e6e9ec}.grow .soft{fill:#a3adb7}}
"""


class Look(NamedTuple):
    """A partition at one moment."""

    s: float
    promise_gib: float
    limit_gib: float
    used_gib: float
    suspended: bool


def watched() -> list[list[Look]]:
    """The jobs, each as it was seen while it ran."""
    with tempfile.TemporaryDirectory(prefix="berth-picture-", dir="/dev/shm") as folder:
        root = Path(folder) / "root"
        environment = os.environ | {"BERTH_STATE": folder, "BERTH_ROOT": str(root)}

        def berth(*words: str) -> None:
            command = [str(Path(sys.executable).with_name("berth")), *words]
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)

        berth("up", "--fake-gpus", f"1xA100-{CARD_GIB}G", "--grow", "suspend")
        try:
            for mem, words, _ in JOBS:
                berth(
                    "submit",
                    "--mem",
                    mem,
                    "--cpus",
                    "0.1",
                    "--output",
                    "/dev/null",
                    str(GROW),
                    *words.split(),
                )
            found, began_s = defaultdict[str, list[Look]](list), time.monotonic()
            while len(found) < len(JOBS) or any(root.glob("job-*")):
                if time.monotonic() - began_s > LONGEST_S:
                    raise SystemExit("the jobs do not end; see what `berth why` says of them")
                for each in partitions(root):
                    sizes = (each.promise_bytes, each.limit_bytes, each.used_bytes)
                    suspended = (root / each.name / LENT).exists()
                    look = Look(time.monotonic() - began_s, *(size / GIB for size in sizes), suspended)
                    found[each.name].append(look)
                time.sleep(0.02)
        finally:
            berth("down", "--cancel")
    return [looks for _, looks in sorted(found.items())]


def growth_picture(jobs: list[list[Look]]) -> str:
    """An SVG: a panel a job, below each other on one axis of time."""
    first_s = min(looks[0].s for looks in jobs)
    last_s = max(looks[-1].s for looks in jobs)
    panels = [
        _panel(looks, title, LEFT, 24 + at * (PANEL + GAP), first_s, last_s)
        for at, (looks, (_, _, title)) in enumerate(zip(jobs, JOBS, strict=True))
    ]
    height = 24 + len(jobs) * (PANEL + GAP) + 12
    said = "Two jobs on one card: what each was promised, its limit and what it used, over time"
    legend = "blue: used; orange: limit; green, dashed: promised; grey: suspended"
    return (
        f'<svg class="grow" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' aria-label="{said}"><title>{said}</title><style>{STYLE}</style>{"".join(panels)}'
        f'<text class="soft" x="{LEFT}" y="{height - 30}">0</text>'
        f'<text class="soft" x="{WIDTH - 8}" y="{height - 30}" text-anchor="end">{last_s - first_s:.0f} s</text>'
        f'<text class="soft" x="{LEFT}" y="{height - 4}">{legend}</text></svg>'
    )


def _panel(looks: list[Look], title: str, left: float, top: float, first_s: float, last_s: float) -> str:
    def x(s: float) -> str:
        return f"{left + (s - first_s) / (last_s - first_s) * (WIDTH - left - 8):.1f}"

    def y(gib: float) -> str:
        return f"{top + PANEL * (1 - gib / CARD_GIB):.1f}"

    def steps(values: list[float]) -> str:
        """A line that stays at each value until the next look at which it is another."""
        path, before = "", None
        for look, value in zip(looks, values, strict=True):
            if value != before:
                path += f"{f'H{x(look.s)}V' if path else f'M{x(look.s)} '}{y(value)}"
                before = value
        return path + f"H{x(looks[-1].s)}"

    used = steps([0 if look.suspended else look.used_gib for look in looks])
    away = ""
    for suspended, group in groupby(looks, lambda look: look.suspended):
        times = [look.s for look in group]
        wide = float(x(times[-1])) - float(x(times[0]))
        if suspended:
            away += f'<rect class="away" x="{x(times[0])}" y="{top}" width="{wide:.1f}" height="{PANEL}"/>'
    begin, end, promise = x(looks[0].s), x(looks[-1].s), y(looks[0].promise_gib)
    bottom, right = top + PANEL, WIDTH - 8
    return (
        f'<text x="{left}" y="{top - 8}">{title}</text>'
        f'<text class="soft" x="2" y="{top + 10}">80 GiB</text><text class="soft" x="26" y="{bottom}">0</text>'
        f'{away}<path class="used" d="{used}V{bottom}H{begin}Z"/>'
        f'<path class="limit" d="{steps([0 if look.suspended else look.limit_gib for look in looks])}"/>'
        f'<line class="promise" x1="{begin}" y1="{promise}" x2="{end}" y2="{promise}"/>'
        f'<path class="axis" d="M{left} {top}V{bottom}H{right}" fill="none"/>'
    )
