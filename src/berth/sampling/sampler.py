"""The loop of `berth sample`: look at the GPUs at an interval, add up what each job used, write it to the spool.

`jobs_of_processes` and `allotments` say which job a process belongs to, and which GPUs a job was given: by cgroup, or
by what Slurm's Prolog wrote. The index of a GPU is in no accounting. A Prolog (see docs/accounting.md) writes a file
named by the job into a folder, with the line `gpus=0,3`, or with UUIDs of GPUs or MIG instances; an Epilog removes it.
Without one, the cgroup of a process tells its job, under version 1 and 2; failing that its environment.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from berth.sampling.readings import GpuReading, JobUse, uses
from berth.sampling.spool import Slice, SpoolWriter


class Cards(Protocol):
    """What can be looked at: NVML, or in tests a list of looks."""

    def read(self) -> Sequence[GpuReading]:
        """All GPUs now."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a node is sampled."""

    interval_ms: int = 1000
    flush_ms: int = 10_000
    """Time after which what was seen is written, so that a crash costs no more."""
    prolog: Path | None = Path("/run/berth/jobs")
    """Where a Prolog says which GPUs a job was given."""
    cgroups: Path = Path("/sys/fs/cgroup")
    proc: Path = Path("/proc")
    for_ms: int | None = None
    """Stop after this time; None: never."""


class Sums:
    """What one job used since it was last written down."""

    def __init__(self, begin_ms: int) -> None:
        self.begin_ms, self.end_ms = begin_ms, 0
        self.samples, self.watched_ms, self.gpu_ms = 0, 0.0, 0.0
        self.totals: dict[str, float | None] = dict.fromkeys(
            ("use_ms", "mem_ms", "sm_ms", "pcie_kb", "energy_j")
        )
        self.peaks: dict[str, float | None] = dict.fromkeys(("use_peak", "mem_peak"))

    def add(self, use: JobUse, now_ms: int, passed_ms: float) -> None:
        """Count a look for the time that has passed since the one before."""
        self.end_ms = now_ms
        self.samples += 1
        self.watched_ms += passed_ms
        self.gpu_ms += passed_ms * use.gpus
        values = (use.use, use.mem, use.sm, use.pcie_kbps, use.power_mw)
        units = (passed_ms, passed_ms, passed_ms, passed_ms / 1000, passed_ms / 1e6)
        for name, value, unit in zip(self.totals, values, units, strict=True):
            if value is not None:
                self.totals[name] = (self.totals[name] or 0.0) + value * unit
        for name, value in zip(self.peaks, (use.use_peak, use.mem_peak), strict=True):
            if value is not None:
                self.peaks[name] = max(self.peaks[name] or 0.0, value)

    def slice(self, job_id: str) -> Slice:
        times = (self.begin_ms, self.end_ms, self.samples, round(self.watched_ms, 3), round(self.gpu_ms, 3))
        totals = (None if total is None else round(total, 3) for total in self.totals.values())
        return Slice(job_id, *times, *totals, *self.peaks.values())


def sample(
    cards: Cards,
    spool: SpoolWriter,
    settings: Settings,
    *,
    stopped: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.time,
    wait: Callable[[float], None] = time.sleep,
) -> int:
    """Look until it is over; returns how often. What is not written yet is written at the end."""
    interval_s = settings.interval_ms / 1000
    begin = last = written = due = clock()
    sums: dict[str, Sums] = {}
    samples = 0
    try:
        while not stopped():
            now = clock()
            # A clock that was set, or a machine that slept, says nothing of what ran meanwhile.
            passed = min(max(now - last, 0.0), 3 * interval_s) if samples else interval_s
            last = now
            readings = cards.read()
            pids = (process.pid for gpu in readings for process in gpu.processes)
            found = uses(
                readings,
                jobs_of_processes(pids, settings.proc),
                allotments(settings.prolog),
                jobs_present(settings.cgroups),
            )
            samples += 1
            for use in found:
                if use.job_id not in sums:
                    sums[use.job_id] = Sums(round((now - passed) * 1000))
                sums[use.job_id].add(use, round(now * 1000), passed * 1000)
            if now - written >= settings.flush_ms / 1000 or now < written:
                _flush(spool, sums)
                written = now
            if settings.for_ms is not None and (now - begin) * 1000 >= settings.for_ms:
                break
            due = due + interval_s if now - interval_s < due <= now + interval_s else now + interval_s
            wait(max(due - clock(), 0.0))
    finally:
        _flush(spool, sums)
    return samples


def _flush(spool: SpoolWriter, sums: dict[str, Sums]) -> None:
    if sums:
        spool.write([each.slice(job_id) for job_id, each in sorted(sums.items())])
        sums.clear()


_SLURM = re.compile(r"/job_(\d+)(?:/|$)", re.MULTILINE)
_PBS = re.compile(r"/pbs_jobs\.service/jobid/([^/\n]+)")
_ENVIRONMENT: Final = re.compile(rb"(?:^|\0)(?:SLURM_JOB_ID|PBS_JOBID|BERTH_JOB_ID)=([^\0]+)")
_PRESENT: Final = (
    "system.slice/*slurmstepd.scope/job_*",  # version 2
    "*/slurm*/uid_*/job_*",  # version 1, a folder a controller
)
_NAME = re.compile(r"\d+|[\w.\[\]-]+")


def job_of_process(pid: int, proc: Path = Path("/proc")) -> str:
    """The job's id; empty where the process is no job's, or has ended."""
    try:
        text = (proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    if found := _SLURM.search(text) or _PBS.search(text):
        return found[1]
    try:
        environment = (proc / str(pid) / "environ").read_bytes()
    except OSError:
        return ""
    named = _ENVIRONMENT.search(environment)
    return named[1].decode(errors="replace") if named else ""


def jobs_of_processes(pids: Iterable[int], proc: Path = Path("/proc")) -> dict[int, str]:
    """The jobs of those processes that belong to one."""
    return {pid: job for pid in sorted(set(pids)) if (job := job_of_process(pid, proc))}


def jobs_present(cgroups: Path = Path("/sys/fs/cgroup")) -> set[str]:
    """The jobs that have a cgroup on this node, with a process on a GPU or without."""
    return {path.name[4:] for pattern in _PRESENT for path in cgroups.glob(pattern)}


def allotments(folder: Path | None) -> dict[str, tuple[int | str, ...]]:
    """The indices or UUIDs of each job's GPUs, from a Prolog's files; what is no such file is passed over."""
    found: dict[str, tuple[int | str, ...]] = {}
    try:
        paths = [] if folder is None else sorted(folder.iterdir())
    except OSError:
        return found
    for path in paths:
        try:
            text = path.read_text(encoding="ascii") if _NAME.fullmatch(path.name) else ""
        except (OSError, UnicodeDecodeError):
            continue
        for words in re.findall(r"^gpus=(.*)$", text, re.MULTILINE):
            found[path.name] = tuple(_named(words))
    return found


def _named(words: str) -> Iterator[int | str]:
    for part in words.split(","):
        if (name := part.strip()).isdecimal():
            yield int(name)
        elif name.startswith(("GPU-", "MIG-")):
            yield name
