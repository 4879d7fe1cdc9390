"""How fast applications advanced beside each other in a history: the files that `berth interference fit` reads.

A run counts if it completed on one known GPU. It was *alone* if nothing else of the history was there, and *beside*
another application if one job of that was there for nine tenths of the run. A speed is the median run time alone,
divided by that beside.
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations_with_replacement, islice, pairwise, takewhile
from pathlib import Path
from statistics import median
from typing import NamedTuple

from berth.counts import counted
from berth.errors import HistoryError
from berth.files import whole_file
from berth.model import Profile, Record, RecordState

LEAST_RUNS = 3
"""A speed needs this many runs alone, and as many beside the neighbour."""
SHARED, ALONE = 0.9, 0.01
"""The part of a run for which a neighbour was there: at least, and at most."""
Speeds = dict[tuple[str, str], float]
"""By an application and its neighbour: its speed, as a fraction of that alone."""


class _Run(NamedTuple):
    start_ms: int
    end_ms: int
    application: str
    counts: bool
    """Whether its run time says something of speeds; if not, it only counts as a neighbour."""


def measured_speeds(records: Iterable[Record]) -> Speeds:
    """Return the speed of each pair of applications with enough runs alone and together."""
    slots: dict[tuple[str, str], list[_Run]] = defaultdict(list)
    for record in records:
        if record.start_ms is not None and record.end_ms > record.start_ms:
            counts = record.state is RecordState.COMPLETED and len(record.gpu_slots) == 1
            run = _Run(record.start_ms, record.end_ms, record.application, counts)
            for slot in record.gpu_slots:
                slots[record.cluster, slot].append(run)
    alone: dict[str, list[int]] = defaultdict(list)
    shared: dict[tuple[str, str], list[int]] = defaultdict(list)
    for here in slots.values():
        for run, others in _with_others(sorted(here)):
            run_ms, neighbours = run.end_ms - run.start_ms, _neighbours(run, others)
            if not run.counts or not run.application:
                continue
            if sum(neighbours.values()) <= ALONE * run_ms:
                alone[run.application].append(run_ms)
            elif len(neighbours) == 1:
                ((name, there_ms),) = neighbours.items()
                if name and there_ms >= SHARED * run_ms:
                    shared[run.application, name].append(run_ms)
    speeds = {
        pair: min(1.0, median(alone[pair[0]]) / median(those))
        for pair, those in shared.items()
        if len(those) >= LEAST_RUNS and len(alone[pair[0]]) >= LEAST_RUNS
    }
    return {pair: speed for pair, speed in speeds.items() if pair[::-1] in speeds}


def _with_others(here: Sequence[_Run]) -> Iterator[tuple[_Run, list[_Run]]]:
    """Each of the runs of one GPU, in their order, with those that were there at some time of it."""
    before: list[_Run] = []
    for at, run in enumerate(here):
        before = [each for each in before if each.end_ms > run.start_ms]
        after = takewhile(lambda each: each.start_ms < run.end_ms, islice(here, at + 1, None))  # noqa: B023
        yield run, [*before, *after]
        before.append(run)


def _neighbours(run: _Run, others: Sequence[_Run]) -> Counter[str]:
    """For how long, in ms, one job of each application was beside a run; of several at once under an empty name."""
    there = [
        (max(run.start_ms, each.start_ms), min(run.end_ms, each.end_ms), each.application) for each in others
    ]
    found: Counter[str] = Counter()
    for begin, end in pairwise(sorted({at for first, last, _ in there for at in (first, last)})):
        names = [name for first, last, name in there if first <= begin and last >= end]
        if names:
            found[names[0] if len(names) == 1 else ""] += end - begin
    return found


def write_measurements(speeds: Speeds, profiles: Mapping[str, Profile], alone: Path, pairs: Path) -> int:
    """Write both files; how many pairs they have, those whose applications have a profile. HistoryError for none."""
    known = sorted({name for pair in speeds for name in pair if name in profiles})
    found = [pair for pair in combinations_with_replacement(known, 2) if pair in speeds]
    if not found:
        bare = counted(len({frozenset(pair) for pair in speeds}), "pair")
        raise HistoryError(
            f"no two applications have profiles, {LEAST_RUNS} runs alone, and {LEAST_RUNS} on one GPU together;"
            f" profiles are all that {bare} lacked; see: berth profile list"
        )
    of = {name: profiles[name] for name in known if any(name in pair for pair in found)}
    with whole_file(alone) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "dataset", "batchsize", "amp", "gpu_util", "gmem_util", "gmem"])
        for name, profile in of.items():
            gpu, _, cores, _ = (100 * profile.usage.mean(axis=0)).round(1)
            mem_mib = round(float(profile.usage[:, 1].max()) * profile.hardware.mem_mib)
            writer.writerow([name, "", "", "", gpu, cores, mem_mib])
    with whole_file(pairs) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        columns = ("model", "dataset", "batchsize", "amp", "speed")
        writer.writerow([f"{column}{side}" for side in (1, 2) for column in columns])
        for one, other in found:
            speed = [round(speeds[pair], 4) for pair in ((one, other), (other, one))]
            writer.writerow([one, "", "", "", speed[0], other, "", "", "", speed[1]])
    return len(found)
