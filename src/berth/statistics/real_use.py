"""What the tenants of each GPU really use of it, by going through a run again with the model that it ran under.

Only a simulator can tell: a model of interference says how fast tenants advance beside each other, and their
applications' profiles what they use at each point of their work, in the terms of that model (`effective_milli`). An
account says what a job may use; this says what it does use, at the speed that it has. Nothing is cut at the whole
card: where a model lets tenants use more than all of a GPU together, the sums and the peak show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from typing import NamedTuple

from berth.card_speeds import ALL_ALIKE
from berth.cluster import Cluster, Running
from berth.cluster.outages import Recovery
from berth.cluster.work_left import WorkLeft
from berth.interference import Interference, KnowsProfiles
from berth.interference.sharing import Sharing
from berth.interference.speeds import MEM, effective_milli
from berth.model import FOREVER_MS, NO_GPU, GpuModel, GpuSlot, Job, Node, Profile, Share, work_of
from berth.profiles import Series, series
from berth.statistics.columns import EventColumns

_AS_THE_JOB_SAYS = Recovery()
_UNKNOWN = GpuModel("")
"""Stands for a GPU of an unknown model: profiles are as they were measured."""


class Attempt(NamedTuple):
    """A job on its GPUs, from its start to its end or to the end of the run."""

    job: Job
    share: Share
    slots: tuple[GpuSlot, ...]
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class RealUse:
    """What all attempts of a run used together."""

    gpu_ms: float
    """GPUs × milliseconds: of each tenant the part of the GPU that it uses alone, times its speed."""
    mem_mib_ms: float
    """GPU memory in use, MiB × milliseconds, on GPUs whose memory is known."""
    peak_mem_mib: int
    """The most memory in use on any GPU at a time."""
    peak_use_pct: float = 0.0
    """The most that tenants used together of any GPU at a time: above 100 only if no tenant slows another."""

    def gpu_pct(self, nodes: Sequence[Node], lasted_ms: int) -> float | None:
        """Of all GPUs over that time; None where there are none or no time passed."""
        return _percent(self.gpu_ms, sum(node.gpus for node in nodes) * lasted_ms)

    def mem_pct(self, nodes: Sequence[Node], lasted_ms: int) -> float | None:
        """Of the memory of all GPUs whose memory is known; None where there is none or no time passed."""
        known_mib = sum(node.gpus * node.gpu_model.mem_mib for node in nodes if node.gpu_model is not None)
        return _percent(self.mem_mib_ms, known_mib * lasted_ms)


def attempts_of(columns: EventColumns, jobs: Iterable[Job]) -> Iterator[Attempt]:
    """Every attempt of a run that started and has GPUs, in the order of their starts; `jobs` are those of the run."""
    by_id = {job.id: job for job in jobs}
    started = columns.attempts
    offsets = started.slot_offsets.tolist()
    slots = [
        GpuSlot(*slot) for slot in zip(started.slot_node.tolist(), started.slot_index.tolist(), strict=True)
    ]
    shares = map(Share, started.milli.tolist(), started.mem_mib.tolist())
    times = zip(started.start_ms.tolist(), started.end_ms.tolist(), strict=True)
    for number, (job, share, (start_ms, end_ms)) in enumerate(
        zip(started.job.tolist(), shares, times, strict=True)
    ):
        held = tuple(slots[offsets[number] : offsets[number + 1]])
        if held and held[0].index != NO_GPU:
            yield Attempt(by_id[columns.job_ids[job]], share, held, start_ms, end_ms)


def real_use(
    attempts: Iterable[Attempt],
    nodes: Sequence[Node],
    interference: Interference,
    profiles: Mapping[str, Profile],
    recovery: Recovery = _AS_THE_JOB_SAYS,
) -> RealUse:
    """Go through a run: `attempts` in the order of their starts, under the model and recovery of that run.

    A job of an application without a profile counts as using all of its share. What a stopped job keeps of its work
    follows from `recovery`, as in the engine.
    """
    return _Walk(nodes, interference, profiles, recovery).through(attempts)


@dataclass(slots=True, eq=False)
class _Gpu:
    """One GPU under way."""

    model: GpuModel | None
    runs: list[Running]
    since_ms: int = 0
    """Until when its use has been added up."""
    in_use: int = 0
    """Per mille of the GPU times per mille of speed, since then."""
    held_mib: int = 0


class _Walk:
    """One pass through a run."""

    def __init__(
        self,
        nodes: Sequence[Node],
        interference: Interference,
        profiles: Mapping[str, Profile],
        recovery: Recovery,
    ) -> None:
        self.nodes = nodes
        cluster = Cluster(nodes)
        self.sharing = Sharing(cluster, interference, lambda slot: tuple(self._gpu(slot).runs))
        self.work = WorkLeft(cluster, recovery, ALL_ALIKE)
        self.gpus: dict[GpuSlot, _Gpu] = {}
        self.lookups: list[tuple[int, int, GpuSlot]] = []
        self.serial = 0
        self.in_use = self.held = self.peak_mib = self.peak_use = 0
        speeds = interference.speeds if isinstance(interference, KnowsProfiles) else None

        @cache
        def scaled(application: str, model: GpuModel) -> tuple[Series, list[int]] | None:
            profile = profiles.get(application)
            if profile is None:
                return None
            found = series(profile, model)
            return found, effective_milli(speeds, found.usage).tolist()

        self.scaled = scaled

    def through(self, attempts: Iterable[Attempt]) -> RealUse:
        coming = [attempt for attempt in attempts if attempt.slots]
        ending: list[tuple[int, int, Running]] = []
        at = 0
        while at < len(coming) or ending:
            now_ms = min(
                coming[at].start_ms if at < len(coming) else FOREVER_MS,
                ending[0][0] if ending else FOREVER_MS,
                self.lookups[0][0] if self.lookups else FOREVER_MS,
            )
            while ending and ending[0][0] == now_ms:
                self._end(heappop(ending)[2], now_ms)
            while self.lookups and self.lookups[0][0] == now_ms:
                _, serial, slot = heappop(self.lookups)
                if self.sharing.is_current(slot, serial):
                    self.sharing.change((slot,))
            while at < len(coming) and coming[at].start_ms == now_ms:
                attempt = coming[at]
                run = self._begin(attempt, now_ms)
                at += 1
                if attempt.end_ms > now_ms:
                    heappush(ending, (attempt.end_ms, at, run))
                    for slot in run.slots:
                        self._gpu(slot).runs.append(run)
                    self.sharing.change(run.slots)
                else:
                    self._end(run, now_ms)
            self._look(now_ms)
        return RealUse(self.in_use / 1_000_000, float(self.held), self.peak_mib, self.peak_use / 10_000)

    def _gpu(self, slot: GpuSlot) -> _Gpu:
        gpu = self.gpus.get(slot)
        if gpu is None:
            gpu = self.gpus[slot] = _Gpu(self.nodes[slot.node].gpu_model, [])
        return gpu

    def _begin(self, attempt: Attempt, now_ms: int) -> Running:
        job, share = attempt.job, attempt.share
        work_us = work_of(job) * 1000
        run = Running(job, 1, attempt.slots, share, now_ms, work_us, now_ms, 1000, 0, share, work_us)
        self.work.begin(run)
        return run

    def _end(self, run: Running, now_ms: int) -> None:
        """Take a run off its GPUs, and note what would be left of it if it is queued again."""
        run.advance(now_ms, run.speed_milli)
        self.work.stop(run)
        for slot in run.slots:
            gpu = self._gpu(slot)
            if run in gpu.runs:
                self._settle(gpu, now_ms)
                gpu.runs.remove(run)
        self.sharing.change(run.slots)

    def _look(self, now_ms: int) -> None:
        """Ask about the GPUs that have changed; those of runs whose speed changes use something else from now on."""
        slots = dict.fromkeys(self.sharing.changed)
        for slot in self.sharing.changed:
            for run in self._gpu(slot).runs:
                slots.update(dict.fromkeys(run.slots))
        for slot in slots:
            self._settle(self._gpu(slot), now_ms)
        self.sharing.look(now_ms, self._call_again)
        for slot in slots:
            self._note(self._gpu(slot), now_ms)

    def _call_again(self, time_ms: int, slot: GpuSlot) -> int:
        self.serial += 1
        heappush(self.lookups, (time_ms, self.serial, slot))
        return self.serial

    def _settle(self, gpu: _Gpu, now_ms: int) -> None:
        """Add up what was used since the last time."""
        lasted_ms = now_ms - gpu.since_ms
        gpu.since_ms = now_ms
        if lasted_ms:
            self.in_use += gpu.in_use * lasted_ms
            self.peak_mib = max(self.peak_mib, gpu.held_mib)
            self.peak_use = max(self.peak_use, gpu.in_use)
            if gpu.model is not None and gpu.model.mem_mib:
                self.held += gpu.held_mib * lasted_ms

    def _note(self, gpu: _Gpu, now_ms: int) -> None:
        """What is used of a GPU from now on."""
        gpu.in_use = gpu.held_mib = 0
        for run in gpu.runs:
            milli, mem_mib = run.share
            found = self.scaled(run.job.application, gpu.model or _UNKNOWN)
            if found is not None:
                own, uses = found
                done_us = min(max(run.work_us - run.left_us_at(now_ms), 0), run.work_us)
                row = own.row_at(done_us // 1000)
                milli, mem_mib = uses[row], own.rows[row][MEM]
            gpu.in_use += milli * run.speed_milli
            gpu.held_mib += mem_mib


def _percent(part: float, whole: float) -> float | None:
    return 100.0 * part / whole if whole > 0 else None
