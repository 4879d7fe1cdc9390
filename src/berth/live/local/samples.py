"""What the runs of the queue do with their GPUs, read every second or two: a file a run, a line a reading.

    1700000000123 87.5 20480 1      ms since 1970, per cent of a GPU (- if unknown), MiB on each GPU, alone

`alone` is 1 where no other run and no stranger was on its GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from berth.live.local.cards import GpuReading


@dataclass(frozen=True, slots=True)
class Sample:
    time_ms: int
    use_pct: float | None
    mem_mib: int
    alone: bool


def keep_samples(
    folder: str, readings: Iterable[GpuReading], now_ms: int, slots: Mapping[str, tuple[int, ...]]
) -> None:
    """Append a line for each run; `slots` tells the GPUs of each. A full disk costs samples and nothing else."""
    by_index = {reading.index: reading for reading in readings}
    for run, places in slots.items():
        there = [by_index[at] for at in places if at in by_index]
        if not there:
            continue
        used = [reading.runs.get(run, (0.0, 0)) for reading in there]
        uses = [pct for pct, _ in used if pct is not None]
        use = f"{sum(uses) / len(used):.1f}" if len(uses) == len(used) else "-"
        alone = all(not reading.strangers and set(reading.runs) <= {run} for reading in there)
        line = f"{now_ms} {use} {max(mib for _, mib in used)} {int(alone)}\n"
        try:
            with open(os.path.join(folder, run), "a", encoding="ascii") as file:
                file.write(line)
        except OSError:
            continue


def read_samples(folder: str, run: str) -> list[Sample]:
    """The readings of a run in their order; a line that a crash cut off is passed over."""
    try:
        with open(os.path.join(folder, run), encoding="ascii") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        words = line.split()
        try:
            use = None if words[1] == "-" else float(words[1])
            found.append(Sample(int(words[0]), use, int(words[2]), words[3] == "1"))
        except (IndexError, ValueError):
            continue
    return found
