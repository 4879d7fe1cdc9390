"""Passing over what does not fit: the others of the order start meanwhile, whatever that does to those passed over."""

from __future__ import annotations

from collections.abc import Iterable

from berth.cluster import Cluster, Queue
from berth.model import Placement
from berth.policies.schemes.easy import ANY_WINDOW_MS, Easy
from berth.policies.schemes.waiting_kernels import OPEN
from berth.policies.sort_keys import key_of


class Passing(Easy):
    """Start every job that fits, in order, and keep no room for one that does not fit.

    Large jobs wait for as long as smaller ones fill the room that they need. As a control, it shows how much of a
    margin over a strict order comes from not being strict. If a job does not fit, others with the same request are
    not tried.
    """

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterable[Placement]:
        """Yield placements in the order's order."""
        state = self._look(cluster)
        waiting = queue.form(self, state.new_waiting)
        state.open_types(waiting)
        if waiting.fits_kernels and key_of(self.order):
            first = waiting.first(ANY_WINDOW_MS, cluster.free_total_milli)
            jobs = waiting.candidates(ANY_WINDOW_MS, first)
        else:
            jobs = (job for job in self.order(queue, cluster, now_ms) if waiting.state(job) == OPEN)
        return self._backfill(state, waiting, jobs, [], [], now_ms)
