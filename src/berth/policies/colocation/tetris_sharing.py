"""Tetris on shared GPUs: the waiting job whose demand points the same way as what a GPU has left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from berth.arrays import IntArray
from berth.cluster import Cluster, Queue, Running
from berth.errors import SettingError
from berth.interference import mode_of
from berth.interference.known_speeds import MOST
from berth.model import GpuModel, GpuSlot, Job, Placement
from berth.network.demands import DEMANDS, Demand, Limits, checked_limits, demanded
from berth.policies.colocation.colocating import Colocating
from berth.policies.colocation.forecast import Offer
from berth.policies.colocation.open_gpus import all_have_room
from berth.policies.colocation.scene import holding
from berth.policies.options import settings_from
from berth.policies.protocol import Setting
from berth.profiles import series


@dataclass(frozen=True, slots=True)
class TetrisSettings:
    """How `tetris-sharing` packs."""

    demand: Demand = "series"
    """What a job is taken to need: its peak (as Tetris packs), its mean, or its series, which was the best of the three
    on sets of jobs that models are trained on."""
    within: Limits = "card"
    """What demands together stay within: the whole card, or its memory alone, so that they slow one another instead."""

    def __post_init__(self) -> None:
        checked_limits(self.within)
        if self.demand not in DEMANDS:
            raise SettingError(f"demand is '{self.demand}'; expected {', '.join(DEMANDS)}")


class TetrisSharing(Colocating):
    """Repeatedly start the job that aligns best with what a GPU has left of its four resources.

    Grandl, Ananthanarayanan, Kandula, Rao and Akella, "Multi-resource Packing for Cluster Schedulers", SIGCOMM 2014,
    section 3.2: alignment is the dot product of demand and of what is left. It considers all waiting jobs, and knows
    demands but no interference.
    """

    def __init__(self, setting: Setting | None = None, settings: TetrisSettings | None = None) -> None:
        self.settings = settings or TetrisSettings()
        super().__init__(holding, (setting or Setting()).knowledge)
        self._demands: dict[tuple[str, GpuModel | None], IntArray] = {}
        self._sliced = mode_of(self.knowledge.speeds) == "mig"

    @classmethod
    def with_options(cls, setting: Setting, options: dict[str, str]) -> TetrisSharing:
        """Made with the settings in a policy's name."""
        chosen = dict(options)
        demand: Demand = chosen.pop("demand", "series")  # type: ignore[assignment]
        limits = checked_limits(chosen.pop("within", "card"))
        also = ("demand", "within")
        return cls(setting, settings_from(TetrisSettings, chosen, also=also, demand=demand, within=limits))

    def _profiles_changed(self) -> None:
        self._demands = {}

    def _shared(
        self, queue: Queue, cluster: Cluster, now_ms: int, closed: set[GpuSlot]
    ) -> Iterator[Placement]:
        """Fill one GPU after the other with those before the first job that takes its GPUs whole."""
        for slot, tenants in self._cache.open_gpus.open(cluster, now_ms, queue.changes, closed=()).rooms:
            while len(queue) and len(tenants) < MOST:
                job = self._aligned(queue, cluster, slot, tenants, now_ms)
                if job is None:
                    break
                yield self.shared_placement(job, (slot,))
                self._noted(job, cluster)
                tenants = cluster.jobs_on(slot)

    def _aligned(
        self, queue: Queue, cluster: Cluster, slot: GpuSlot, tenants: Sequence[Running], now_ms: int
    ) -> Job | None:
        """The waiting job that aligns best of those that fit on the GPU, or None."""
        gpu = self._cache.models[slot.node]
        capacity = np.array([1000, (gpu.mem_mib if gpu else 0) or 2**30, 1000, 1000], dtype=np.int64)
        bounds = capacity if self.settings.within == "card" else np.where([0, 1, 0, 0], capacity, 2**30)
        used = [self._left(run, now_ms, gpu) for run in tenants]
        kinds: dict[tuple[str, int], Job] = {}
        for job, one in self._head(queue).all_kinds():
            kinds.setdefault((one.application, one.work_us), job)
        best: tuple[float, Job | None] = -1.0, None
        kept = self._due is not None and slot == self._overtaking.kept
        for job in kinds.values():
            if kept and job is not self._due:
                continue
            if not self._may_run(job, slot, cluster):
                continue
            if not all_have_room([job], slot, cluster):
                continue
            if not self._doubts.trusted([run.job for run in tenants], [job], 2)[-1]:
                continue
            if self._sliced and tenants and not self._has_slices(job, tenants, gpu, now_ms):
                continue
            demand = self._demand(job.application, gpu)
            together = _added([*used, demand])
            if (together <= bounds).all() or not tenants:
                left = capacity - _added([*used, np.zeros((1, 4), np.int64)]).max(axis=0)
                alignment = float((demand.mean(axis=0) / capacity * np.maximum(left, 0) / capacity).sum())
                best = max(best, (alignment, job), key=lambda one: one[0])
        return best[1]

    def _has_slices(self, job: Job, tenants: Sequence[Running], gpu: GpuModel | None, now_ms: int) -> bool:
        """Whether the card can be cut up so that each has a slice that holds its memory, until all have ended."""
        offer = Offer(tuple(self._tenant(run, now_ms) for run in tenants), (self._candidate(job),))
        return bool(self.forecaster.forecasts([offer], gpu).fits[0, 1])

    def _demand(self, application: str, gpu: GpuModel | None) -> IntArray:
        """(steps, 4): what the application is taken to need, in each interval of its profile."""
        known = self._demands.get((application, gpu))
        if known is None:
            usage = series(self.known[application], gpu or GpuModel("")).usage.astype(np.int64)
            known = self._demands[application, gpu] = demanded(usage, self.settings.demand)
        return known

    def _left(self, run: Running, now_ms: int, gpu: GpuModel | None) -> IntArray:
        """What a tenant is taken to need from now on."""
        demand = self._demand(run.job.application, gpu)
        done_ms = max(0, run.work_us - run.left_us_at(now_ms)) // 1000
        interval_ms = self.known[run.job.application].interval_ms
        return demand[min(done_ms // interval_ms, len(demand) - 1) :]


def _added(needs: Sequence[IntArray]) -> IntArray:
    """(steps, 4): what several need together, step by step."""
    total: NDArray[np.int64] = np.zeros((max(len(need) for need in needs), 4), dtype=np.int64)
    for need in needs:
        total[: len(need)] += need
    return total
