"""Passing over what does not fit: the others of the order start meanwhile, whatever that does to those passed over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import Any, cast

import numpy as np

from berth.card_speeds import ALL_ALIKE, CardSpeeds
from berth.cluster import Cluster, Queue
from berth.cluster.fits import Fits
from berth.cluster.queue import Key
from berth.knowledge import Knowledge
from berth.model import Job, Placement, placement_of
from berth.policies.protocol import Order, Place, draws, place_job
from berth.policies.sort_keys import key_of

Lanes = Mapping[int, Sequence[tuple[Any, int, Job]]]
"""By request type: the key, a serial number and the job of those that wait."""


class Passing:
    """Start every job that fits, in the order's order, and keep no room free for one that does not fit.

    Large jobs wait for as long as smaller ones fill what they need: it is the control that tells how much of a margin
    over a strict order comes from not being strict. A job that does not fit speaks for all that ask for the same.
    """

    def __init__(
        self, order: Order, place: Place, knowledge: Knowledge | None = None, speeds: CardSpeeds = ALL_ALIKE
    ) -> None:
        self.order = order
        self.place = place
        self.draws = draws(place)
        self._key = key_of(order)

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
        """Yield placements in the order's order."""
        tried = cluster.memo.get(self)
        if tried is None:
            tried = cluster.memo[self] = _Tried(Fits(cluster))
        if tried.openings != cluster.openings:
            tried.openings = cluster.openings
            tried.hopeless.clear()
        if self._key is None:
            return self._one_by_one(queue, cluster, now_ms, tried.hopeless)
        return self._by_type(queue, cluster, tried, self._key)

    def _by_type(self, queue: Queue, cluster: Cluster, tried: _Tried, key: Key) -> Iterator[Placement]:
        """The first job of each request type in turn."""
        hopeless = tried.hopeless
        lanes = cast(Lanes, queue.lanes(cluster.request, key))
        new = [number for number in lanes if number not in hopeless]
        turns = []
        fitting = np.flatnonzero(tried.fits.of(new).any(axis=1)).tolist() if new else []
        may_fit = {new[at] for at in fitting}
        for number in new:
            job = lanes[number][0][2]
            if number in may_fit or (
                job.nodes == 0 and (job.gpus > 1 or job.tasks)
            ):  # it may fit on several nodes together
                turns.append((*lanes[number][0][:2], number))
            else:
                hopeless.add(number)
        heapify(turns)
        while turns:
            number = turns[0][2]
            if number not in lanes:  # limits have hidden them since
                heappop(turns)
                continue
            key_now, serial, job = lanes[number][0]
            if (key_now, serial) != turns[0][:2]:
                heapreplace(turns, (key_now, serial, number))
                continue
            slots = place_job(self.place, job, cluster)
            if slots is None:
                hopeless.add(number)
                heappop(turns)
                continue
            yield placement_of(job, slots)
            if number not in lanes or lanes[number][0][2] is job:  # no more of them wait, or it was refused
                heappop(turns)
            else:
                heapreplace(turns, (*lanes[number][0][:2], number))

    def _one_by_one(
        self, queue: Queue, cluster: Cluster, now_ms: int, hopeless: set[int]
    ) -> Iterator[Placement]:
        """For an order that is no sorting by a key."""
        job: Job
        for job in self.order(queue, cluster, now_ms):
            number = cluster.request(job)
            if number in hopeless:
                continue
            slots = place_job(self.place, job, cluster)
            if slots is None:
                hopeless.add(number)
            else:
                yield placement_of(job, slots)


@dataclass(slots=True)
class _Tried:
    """What did not fit on a cluster, and how often it had opened by then."""

    fits: Fits
    openings: int = -1
    hopeless: set[int] = field(default_factory=set)
    """Request types."""
