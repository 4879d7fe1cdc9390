"""What berth decided and what Slurm did then, a line of JSON each, in one file.

A line has `at_ms`, `event` and `job`. The file is what `berth slurm compare` reads, and what is joined with the
accounting by the job's number there (`raw`). It also compares berth's waits with Slurm's (`compare`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from berth.errors import LiveError
from berth.model import RecordState

ADVISED = "advised"
"""berth would have started it."""
PLACED = "placed"
"""berth placed it: Slurm was given its node and GPUs."""
STARTED = "started"
"""Slurm started it."""
ENDED = "ended"
TAKEN_BACK = "taken-back"
"""Slurm did not start it where it was placed, and it waits again."""
GIVEN_BACK = "given-back"
"""berth does not decide on it: Slurm does, with the request that it was submitted with."""
GIVEN_UP = "given-up"
"""berth can do no more for it: it ran out of GPU memory too often, or Slurm refuses what berth asks for it."""
STATES = {
    "COMPLETED": RecordState.COMPLETED,
    "FAILED": RecordState.FAILED,
    "TIMEOUT": RecordState.TIMEOUT,
    "DEADLINE": RecordState.TIMEOUT,
    "NODE_FAIL": RecordState.NODE_FAIL,
    "BOOT_FAIL": RecordState.NODE_FAIL,
    "PREEMPTED": RecordState.PREEMPTED,
    "OUT_OF_MEMORY": RecordState.FAILED,
}
"""How an attempt ended by Slurm's word for it; CANCELLED by any other. OUT_OF_MEMORY is the node's memory; a GPU's is
reported by the Epilog."""
MOST_BYTES = 256 << 20
"""A log of this size begins anew; the one before it is kept under another name."""
OLD = ".1"


@dataclass(frozen=True, slots=True)
class Decision:
    """One line."""

    at_ms: int
    event: str
    job: str
    raw: str = ""
    """The job's number in the accounting."""
    policy: str = ""
    submit_ms: int = 0
    start_ms: int | None = None
    """When Slurm started it; it may be before it was seen."""
    end_ms: int | None = None
    gpus: int = 0
    milli: int = 1000
    mem_mib: int = 0
    best_effort: bool = False
    """Of a job that was placed: whether it takes the compute that others leave; `milli` is then what it counts for."""
    where: str = ""
    """Nodes and GPUs: `node1:0+1,node2:0+1`; of a start by Slurm's account, maybe of nodes alone."""
    planned: str = ""
    """Of the start of a job that berth had placed: where it was to start."""
    why: str = ""
    state: str = ""
    user: str = ""
    application: str = ""
    peak_mib: int = 0
    card_mib: int = 0
    """Memory of a GPU of its node."""
    refused: int = 0
    gpu_ms: int | None = None
    """Time of its kernels on all its GPUs; None: it was not measured."""
    partition: str = ""
    limit_ms: int | None = None
    """Its time limit, of a start."""


def append(path: Path, decisions: list[Decision]) -> None:
    """Append lines; what is the default is left out."""
    if not decisions:
        return
    plain = Decision(0, "", "")
    lines = []
    for decision in decisions:
        kept = {name: value for name, value in asdict(decision).items() if value != getattr(plain, name)}
        lines.append(json.dumps(kept, ensure_ascii=False, separators=(",", ":")) + "\n")
    try:
        if path.exists() and path.stat().st_size > MOST_BYTES:
            os.replace(path, path.with_name(path.name + OLD))
        with open(path, "a", encoding="utf-8") as file:
            file.write("".join(lines))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise LiveError(
            f"{path} cannot be written ({error.strerror}); name another folder with --state"
        ) from error


@dataclass(slots=True)
class Logged:
    """What a log has of jobs, by their numbers and starts (ms): a berth that begins again logs nothing twice."""

    started: set[tuple[str, int | None]] = field(default_factory=set)
    ended: set[tuple[str, int | None]] = field(default_factory=set)
    placed: dict[str, str] = field(default_factory=dict)
    """Where jobs were placed last, by their numbers."""
    last_ms: int = 0

    @classmethod
    def of(cls, path: Path) -> Logged | None:
        """What is in the log; None if there is none yet."""
        if not path.exists():
            return None
        found = cls()
        for line in read_decisions(path):
            found.last_ms = max(found.last_ms, line.at_ms)
            if line.event == STARTED:
                found.started.add((line.raw, line.start_ms))
            elif line.event == ENDED:
                found.ended.add((line.raw, line.start_ms))
            elif line.event == PLACED:
                found.placed[line.raw] = line.where
        return found


def read_decisions(path: Path, event: str = "") -> Iterator[Decision]:
    """All lines in their order, or those of one event; one that a crash cut off is passed over."""
    known = set(Decision.__dataclass_fields__)
    old = path.with_name(path.name + OLD)
    found = [each for each in (old, path) if each.exists()]
    if not found:
        raise LiveError(f"{path} is not there; `berth slurm run` writes it")
    for each in found:
        with open(each, encoding="utf-8", errors="replace") as file:  # a letter may be cut off, too
            for line in file:
                if f'"{event}"' not in line and event:
                    continue  # of 80,000 lines 0.18 s a look of the console instead of 0.60
                try:
                    values = json.loads(line).items()
                    decision = Decision(**{name: value for name, value in values if name in known})
                except (ValueError, TypeError, AttributeError):
                    continue
                if decision.event == event or not event:
                    yield decision


class Attempt(NamedTuple):
    """One attempt of a job, as far as the log has it."""

    decided: tuple[Decision, ...]
    """What berth decided before it started, and took back, in order."""
    start: Decision | None
    """None: not in the log."""
    end: Decision | None
    """None: it runs."""


def attempts_of(lines: Iterable[Decision]) -> Iterator[Attempt]:
    """Pair starts with ends: attempts in the order of their ends, then those that run."""
    decided: dict[str, list[Decision]] = {}
    runs: dict[str, Attempt] = {}
    for line in lines:
        if line.event in (ADVISED, PLACED, TAKEN_BACK):
            decided.setdefault(line.job, []).append(line)
        elif line.event == STARTED:
            runs[line.job] = Attempt(tuple(decided.pop(line.job, ())), line, None)
        elif line.event == ENDED:
            run = runs.pop(line.job, None) or Attempt(tuple(decided.pop(line.job, ())), None, None)
            yield run._replace(end=line)
    yield from runs.values()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Waits of the jobs that both have started, s, and how far the GPUs were in use."""

    jobs: int
    slurm_wait_mean_s: float
    slurm_wait_median_s: float
    berth_wait_mean_s: float
    berth_wait_median_s: float
    earlier: int
    """Jobs that berth would have started more than a second earlier."""
    never: int
    """Jobs that Slurm started and berth would not have until then."""
    slurm_use: float
    """GPU time that jobs had of the time from the first submission to the last end, as a fraction of `gpus`."""
    gpus: int
    taken_back: int


def decided_ms(attempt: Attempt) -> int | None:
    """When berth placed a job, or else first would have started it; None: it never did, or took it back."""
    found: Decision | None = None
    for line in attempt.decided:
        if line.event == TAKEN_BACK:
            found = None
        elif line.event == PLACED or found is None:
            found = line
    return None if found is None else found.at_ms


def compare(decisions: Sequence[Decision], gpus: int) -> Comparison:
    """Side by side, over the jobs of the log; `gpus` is how many the cluster has."""
    started = [(each, each.start) for each in attempts_of(decisions) if each.start is not None]
    both = [
        (_start_ms(start) - start.submit_ms, max(0, at_ms - start.submit_ms))
        for each, start in started
        if (at_ms := decided_ms(each)) is not None
    ]
    slurm, berth = [theirs / 1000 for theirs, _ in both], [ours / 1000 for _, ours in both]
    ends = [
        (each.end.end_ms, start)
        for each, start in started
        if each.end is not None and each.end.end_ms is not None
    ]
    span_ms = max((end_ms for end_ms, _ in ends), default=0)
    span_ms -= min((start.submit_ms for _, start in started), default=0)
    busy_ms = sum((end_ms - _start_ms(start)) * start.gpus * start.milli / 1000 for end_ms, start in ends)
    return Comparison(
        len(started),
        mean(slurm or [0.0]),
        median(slurm or [0.0]),
        mean(berth or [0.0]),
        median(berth or [0.0]),
        sum(ours < theirs - 1000 for theirs, ours in both),
        len(started) - len(both),
        busy_ms / (span_ms * gpus) if span_ms > 0 and gpus else 0.0,
        gpus,
        sum(line.event == TAKEN_BACK for line in decisions),
    )


def _start_ms(start: Decision) -> int:
    return start.start_ms or start.at_ms
