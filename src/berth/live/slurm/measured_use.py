"""What Epilogs measured of each kind of job's GPU memory and compute, and what its next job counts for because of it.

A job that names its memory alone shares a GPU by best effort. Declared memory is often twice what a job takes, and says
nothing of compute; so both are counted as they were measured.

`Result` is what an Epilog measured of a job: `keep` writes a small file a job and node, in a folder that nodes and
berth share, and `taken` reads it. Slurm 22.05 takes no change of a job that has ended, its AdminComment included, so
that it cannot carry this.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from berth.counts import counted
from berth.live.slurm.decisions import Decision, attempts_of
from berth.model import Job, Share

COMPUTE_PCT = 150
"""What the measured compute of the jobs on one GPU may add up to. Jobs do not compute all the time: of twelve
workloads on 12 GPUs, replayed by `bench/slurm_replay.py`, 150 to 180 % ended soonest, and 130 % and no bound later."""
UNMEASURED_PCT = 50
"""Compute that a job of a kind without a measurement counts for."""
REMEMBERED = 16
"""Attempts of a kind that are remembered."""
MOST_KINDS = 10_000
"""Kinds that are remembered, those that ended last: users may name applications as they like."""
MARGIN = 8
"""A job may hold an eighth more than was measured, and another eighth shared by the number of measurements."""
STEP_MIB = 64
STEP_MILLI = 10
CLOCK_MS = 1000
"""Slurm tells run times in whole seconds: an attempt ran for at most this much longer."""


class Kind(NamedTuple):
    """Jobs that are taken to be alike: of one application and user, which ask for the same memory of one GPU."""

    application: str
    user: str
    asked_mib: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of a kind."""

    application: str
    user: str
    asked_mib: int
    attempts: int
    peak_mib: int
    """The highest peak of GPU memory; 0: not measured."""
    compute_pct: int | None
    """The largest part of a GPU's time that an attempt used: neighbours only make it smaller. None: not measured."""

    def __str__(self) -> str:
        memory = f"{self.peak_mib} MiB" if self.peak_mib else "memory not measured"
        compute = "compute not measured" if self.compute_pct is None else f"{self.compute_pct} % of a GPU"
        return f"{memory}, {compute} (the most of {counted(self.attempts, 'attempt')})"


@dataclass(slots=True)
class _Seen:
    peaks_mib: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    milli: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED))


class MeasuredUse:
    """What is known of each kind of job, from the ends of its attempts."""

    def __init__(self, compute_pct: int = COMPUTE_PCT, *, memory: bool = True) -> None:
        """`compute_pct` is what the compute of the jobs on one GPU may add up to; without `memory` jobs get the GPU
        memory that they ask for."""
        self._compute_pct, self._memory = compute_pct, memory
        self._seen: dict[Kind, _Seen] = {}

    def read(self, lines: Iterable[Decision]) -> None:
        """Learn from a log."""
        for _, start, end in attempts_of(lines):
            if start is not None and end is not None and start.gpus == 1:
                kind = Kind(start.application, start.user, start.mem_mib)
                ran_ms = (end.end_ms or 0) - (end.start_ms or 0)
                self.ended(kind, ran_ms, end.peak_mib, end.gpu_ms, completed=end.state == "COMPLETED")

    def ended(self, kind: Kind, ran_ms: int, peak_mib: int, gpu_ms: int | None, *, completed: bool) -> None:
        """An attempt has ended. The compute of one that failed says nothing, its peak does."""
        seen = self._seen.pop(kind, _Seen())
        self._seen[kind] = seen  # the last now
        if len(self._seen) > MOST_KINDS:
            del self._seen[next(iter(self._seen))]
        if peak_mib > 0:
            seen.peaks_mib.append(peak_mib)
        if completed and gpu_ms is not None:
            seen.milli.append(min(1000, 1000 * gpu_ms // (max(0, ran_ms) + CLOCK_MS)))

    def of(self, kind: Kind) -> Measured | None:
        """What was measured of a kind; None: nothing."""
        seen = self._seen.get(kind)
        if seen is None or not (seen.peaks_mib or seen.milli):
            return None
        return Measured(
            *kind,
            max(len(seen.peaks_mib), len(seen.milli)),
            max(seen.peaks_mib, default=0),
            max(seen.milli) // 10 if seen.milli else None,
        )

    def all(self, most: int = MOST_KINDS) -> list[Measured]:
        """What was measured of this many kinds, those that ended last, in the order of names."""
        kinds = sorted(islice(reversed(self._seen), most))
        return [found for kind in kinds if (found := self.of(kind)) is not None]

    def share(self, job: Job) -> Share:
        """What a job that asks for memory alone counts for on its GPU, of which it never gets more memory than it asks
        for: its measured peak with a margin, and its measured compute as a part of what a GPU may be promised."""
        seen = self._seen.get(kind_of(job))
        milli, mem_mib = 10 * UNMEASURED_PCT, job.share.mem_mib
        if seen is not None and seen.milli:
            milli = max(seen.milli)
        if seen is not None and seen.peaks_mib and self._memory:
            margin = (1 + 1 / len(seen.peaks_mib)) / MARGIN
            mem_mib = min(mem_mib, -(-round(max(seen.peaks_mib) * (1 + margin)) // STEP_MIB) * STEP_MIB)
        part = 100 * milli // self._compute_pct // STEP_MILLI * STEP_MILLI
        return Share(min(990, max(STEP_MILLI, part)), mem_mib)


def kind_of(job: Job) -> Kind:
    """The kind of a job, as it asks for memory."""
    return Kind(job.application, job.user, job.share.mem_mib)


@dataclass(frozen=True, slots=True)
class Result:
    """What a job did with the GPUs of one node, or of all its nodes."""

    raw_id: str
    node: str
    peak_mib: int
    """The most that it held on one GPU."""
    refused: int
    """Calls for GPU memory that were refused."""
    needs_mib: int
    """What would have been enough for them."""
    closed: bool = False
    """Whether there was no partition for it, so that its tasks got no GPU."""
    gpu_ms: int | None = None
    """Time of its kernels, on all its GPUs together; None: it was not measured, as without a limit of compute."""


def keep(folder: Path, result: Result) -> None:
    """Write one, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f".{result.raw_id}-{result.node}"
    new.write_text(json.dumps(asdict(result)), encoding="ascii")
    os.replace(new, folder / f"{result.raw_id}-{result.node}")


def taken(folder: Path, raw_ids: Collection[str]) -> dict[str, Result]:
    """Merge the results of these jobs over their nodes, by the job's number, and delete the files."""
    found: dict[str, Result] = {}
    wanted = set(raw_ids)
    for path in _files(folder):
        raw_id = path.name.partition("-")[0]
        if raw_id not in wanted:
            continue
        with contextlib.suppress(OSError, ValueError, TypeError):
            one = Result(**json.loads(path.read_text(encoding="ascii")))
            before = found.get(raw_id, Result(raw_id, "", 0, 0, 0, gpu_ms=0))
            found[raw_id] = Result(
                raw_id,
                max(one.node, before.node),
                max(one.peak_mib, before.peak_mib),
                one.refused + before.refused,
                max(one.needs_mib, before.needs_mib),
                one.closed or before.closed,
                None if one.gpu_ms is None or before.gpu_ms is None else one.gpu_ms + before.gpu_ms,
            )
        with contextlib.suppress(OSError):
            path.unlink()
    return found


def names(folder: Path) -> set[str]:
    """The numbers of the jobs of which something lies there."""
    return {path.name.partition("-")[0] for path in _files(folder)}


def prune(folder: Path, older_s: float) -> None:
    """Throw away what is older than this: it was not asked for."""
    for path in _files(folder):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > older_s:
                path.unlink()


def _files(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from (path for path in folder.iterdir() if not path.name.startswith("."))
