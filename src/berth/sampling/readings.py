"""One look at a node's GPUs, and what it says of each job: pure values and one pure function.

A job alone on a GPU has what nvidia-smi shows of the card. Jobs that share one have each their own part: of its
utilisation in proportion to what their processes took of its multiprocessors, of its memory what their processes
hold. What is unknown is absent, never 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ProcessReading:
    pid: int
    mem_bytes: int | None = None
    """Its GPU memory; None where the driver does not tell."""
    sm_pct: float | None = None
    """Its use of the multiprocessors since the last look; None where the driver does not tell."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """A GPU, or an instance of one that is split by MIG, at one moment; None where the driver does not tell."""

    index: int
    uuid: str
    mem_total_bytes: int
    mem_used_bytes: int | None = None
    use_pct: float | None = None
    """Utilisation, as nvidia-smi shows it: time in which a kernel ran."""
    sm_pct: float | None = None
    """SM activity: the mean part of its multiprocessors that were busy."""
    pcie_kbps: float | None = None
    """Throughput of its link in both directions, KB/s."""
    power_mw: float | None = None
    processes: tuple[ProcessReading, ...] = ()


@dataclass(frozen=True, slots=True)
class JobUse:
    """What one job has of this node's GPUs at one moment; sums over them, in fractions of a GPU."""

    job_id: str
    gpus: int
    """GPUs of this node that it is on; 0 if it is there and none is known."""
    use: float | None
    mem: float | None
    sm: float | None
    pcie_kbps: float | None
    power_mw: float | None
    use_peak: float | None
    """Of its busiest GPU."""
    mem_peak: float | None


@dataclass(frozen=True, slots=True)
class _Part:
    """A job's part of one GPU."""

    use: float | None
    mem: float | None
    rest: float
    """Its part of what only the whole card tells: SM activity, PCIe, power."""


def uses(
    readings: Sequence[GpuReading],
    job_of: Mapping[int, str],
    allotted: Mapping[str, Iterable[int | str]],
    present: Iterable[str] = (),
) -> list[JobUse]:
    """What each job has of these GPUs, in order of the jobs' ids.

    `job_of` tells the job of a process where it is known, `allotted` the indices or UUIDs of the GPUs that a job was
    given, `present` which jobs run on the node besides.
    """
    given: dict[int | str, set[str]] = defaultdict(set)
    for job, names in allotted.items():
        for name in names:
            given[name].add(job)
    parts: dict[str, list[tuple[_Part, GpuReading]]] = {job: [] for job in (*present, *allotted)}
    for gpu in _without_idle_contexts(readings, job_of):
        for job, part in _parts(gpu, job_of, given[gpu.index] | given[gpu.uuid]).items():
            parts.setdefault(job, []).append((part, gpu))
    return [_use(job, parts[job]) for job in sorted(parts)]


def _without_idle_contexts(readings: Sequence[GpuReading], job_of: Mapping[int, str]) -> list[GpuReading]:
    """The readings without processes that hold and run nothing on a GPU while their job holds memory of another.

    NVML lists a process on each GPU that it has opened. Where it tells 0 bytes of all of a job's processes, as some
    drivers do within containers, that tells nothing, and they stay.
    """
    holds = {
        job_of.get(process.pid, "") for gpu in readings for process in gpu.processes if process.mem_bytes
    }

    def counts(process: ProcessReading) -> bool:
        return process.mem_bytes != 0 or bool(process.sm_pct) or job_of.get(process.pid, "") not in holds

    return [replace(gpu, processes=tuple(filter(counts, gpu.processes))) for gpu in readings]


def _parts(gpu: GpuReading, job_of: Mapping[int, str], given: set[str]) -> dict[str, _Part]:
    owners = [job_of.get(process.pid, "") for process in gpu.processes]
    jobs = sorted({*given, *owners} - {""})
    used = None if gpu.use_pct is None else gpu.use_pct / 100
    held = None
    if gpu.mem_used_bytes is not None and gpu.mem_total_bytes:
        held = gpu.mem_used_bytes / gpu.mem_total_bytes
    if len(jobs) == 1 and "" not in owners:
        return {jobs[0]: _Part(used, held, 1.0)}
    everybody = sorted({*jobs, *owners})  # with "" for processes of no job
    share = _shares(gpu, owners, everybody)
    memory = dict.fromkeys(everybody, 0)
    known = all(process.mem_bytes is not None for process in gpu.processes)
    for owner, process in zip(owners, gpu.processes, strict=True):
        memory[owner] += process.mem_bytes or 0
    found = {}
    for job in jobs:
        if known:
            mem = memory[job] / gpu.mem_total_bytes if gpu.mem_total_bytes else None
        else:
            mem = None if held is None else held / len(everybody)
        found[job] = _Part(None if used is None else used * share[job], mem, share[job])
    return found


def _shares(gpu: GpuReading, owners: Sequence[str], everybody: Sequence[str]) -> dict[str, float]:
    """What part of the card's utilisation is whose; the parts add up to 1."""
    busy = dict.fromkeys(everybody, 0.0)
    for owner, process in zip(owners, gpu.processes, strict=True):
        busy[owner] += process.sm_pct or 0.0
    whole = sum(busy.values())
    if whole > 0:
        return {name: amount / whole for name, amount in busy.items()}
    there = set(owners) or set(everybody)  # unknown: each with a process has an equal part
    return {name: 1 / len(there) if name in there else 0.0 for name in everybody}


def _use(job: str, parts: Sequence[tuple[_Part, GpuReading]]) -> JobUse:
    used = [part.use for part, _ in parts if part.use is not None]
    held = [part.mem for part, _ in parts if part.mem is not None]

    def of_card(values: Iterable[float | None]) -> float | None:
        known = [
            part.rest * value for (part, _), value in zip(parts, values, strict=True) if value is not None
        ]
        return sum(known) if known else None

    sm = of_card(gpu.sm_pct for _, gpu in parts)
    return JobUse(
        job_id=job,
        gpus=len(parts),
        use=sum(used) if used else None,
        mem=sum(held) if held else None,
        sm=None if sm is None else sm / 100,
        pcie_kbps=of_card(gpu.pcie_kbps for _, gpu in parts),
        power_mw=of_card(gpu.power_mw for _, gpu in parts),
        use_peak=max(used, default=None),
        mem_peak=max(held, default=None),
    )
