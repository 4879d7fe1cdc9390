"""The GPUs of a cluster while it runs: what the interference model says of each, and whose speed changes by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from berth.cluster import Cluster, Running
from berth.errors import SimulationError, in_one_line
from berth.interference.speeds import Interference, Outlook, Tenant
from berth.model import FOREVER_MS, GpuSlot


class Sharing:
    """Which runs share which GPU, and how fast each advances: of what is true for the engine, of what is believed for
    the scheduler."""

    def __init__(
        self,
        cluster: Cluster,
        model: Interference,
        runs_on: Callable[[GpuSlot], tuple[Running, ...]] | None = None,
    ) -> None:
        """`runs_on` tells which jobs run on a GPU in order of their start, by default the cluster's own values."""
        self.cluster = cluster
        self.model = model
        self.runs_on = runs_on or cluster.jobs_on
        self.changed: dict[GpuSlot, None] = {}
        """GPUs whose tenants have changed since `look`."""
        self._outlooks: dict[GpuSlot, tuple[tuple[Running, ...], Outlook, int]] = {}

    def change(self, slots: Iterable[GpuSlot]) -> None:
        """Note that a job came to these GPUs or left them, or that what was said of them no longer holds."""
        self.changed.update(dict.fromkeys(slots))

    def is_current(self, slot: GpuSlot, serial: int) -> bool:
        """Whether what was said of a GPU until this call for another look is still what is known."""
        return slot in self._outlooks and self._outlooks[slot][2] == serial

    def look(
        self, now_ms: int, call_again: Callable[[int, GpuSlot], int]
    ) -> tuple[list[Running], list[Running]]:
        """Ask about the GPUs that have changed, and note the new speeds: the jobs on them, and those out of memory.

        `call_again` takes the time at which an answer ends to hold, and gives the number of that call. Raises
        SimulationError for an answer that makes no sense.
        """
        touched: dict[str, Running] = {}
        failed: dict[str, Running] = {}
        for slot in self.changed:
            runs = self.runs_on(slot)
            if not runs:
                self._outlooks.pop(slot, None)
                continue
            for run in runs:
                run.advance(now_ms, run.speed_milli)
                touched[run.job.id] = run
            outlook = self._outlook(runs, slot)
            if outlook.out_of_memory is not None:
                run = runs[outlook.out_of_memory]
                failed[run.job.id] = run
            serial = call_again(now_ms + outlook.hold_ms, slot) if outlook.hold_ms < FOREVER_MS else -1
            self._outlooks[slot] = (runs, outlook, serial)
        self.changed.clear()
        going = [run for run in touched.values() if run.job.id not in failed]
        for run in going:
            run.advance(now_ms, min(self._speed_on(slot, run) for slot in run.slots))
        return going, list(failed.values())

    def _outlook(self, runs: tuple[Running, ...], slot: GpuSlot) -> Outlook:
        tenants = [tenant_of(run) for run in runs]
        try:
            outlook = self.model(tenants, self.cluster.nodes[slot.node].gpu_model)
        except Exception as error:
            raise SimulationError(f"the interference model fails: {in_one_line(error)}") from error
        if not isinstance(outlook, Outlook):
            raise SimulationError(f"an interference model gives an Outlook, not {outlook!r}")
        number = len(runs)
        full = outlook.out_of_memory
        if (
            len(outlook.speeds_milli) != number
            or min(outlook.speeds_milli) < 0
            or outlook.hold_ms < 1
            or (full is not None and not 0 <= full < number)
        ):
            raise SimulationError(
                f"the interference model says {outlook} of {number} jobs on one GPU; expected {number} speeds of 0 or"
                f" more, to hold for 1 ms or more, and nobody or one of 0…{number - 1} out of memory"
            )
        return outlook

    def _speed_on(self, slot: GpuSlot, run: Running) -> int:
        runs, outlook, _ = self._outlooks[slot]
        return next(speed for other, speed in zip(runs, outlook.speeds_milli, strict=True) if other is run)


def tenant_of(run: Running) -> Tenant:
    """A run as a model of interference is shown it, as of its last advance."""
    return Tenant(run.job, run.share, *divmod(max(0, run.work_us - run.left_us), 1000))
