"""Controls for the utilisation experiment: placements that pass over a job that does not fit.

    PYTHONPATH=bench berth experiment utilisation --policies first-fit,passing:FirstFit,passing:Fgd,genetic

`fifo` is strict: who does not fit holds up those behind. These tell how much of a margin comes from that alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace

from berth.cluster import Cluster, Queue
from berth.model import Placement
from berth.policies import Place, Setting
from berth.policies.genetic.batch import Fits
from berth.policies.placements.fgd import Fgd as PlaceFgd
from berth.policies.placements.first_fit import FirstFit as PlaceFirstFit
from berth.policies.placements.round_robin import RoundRobin as PlaceRoundRobin
from berth.policies.placements.tetris import Tetris as PlaceTetris
from berth.policies.sort_keys import as_queued


class _Passing:
    """In the order of the queue; of those that ask for the same the first that does not fit speaks for all.

    For jobs that run on one node each.
    """

    draws = False

    def __init__(self, place: Place) -> None:
        self.place = place

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
        fits_of, openings, hopeless = cluster.memo.get(self) or (Fits(cluster), -1, set())
        if openings != cluster.openings:
            hopeless = set()
            cluster.memo[self] = (fits_of, cluster.openings, hopeless)
        lanes = queue.lanes(cluster.request, as_queued)
        new = [number for number in lanes if number not in hopeless]
        turns = [
            (lanes[number][0][1], number)
            for number, fits in zip(new, fits_of.of(new).any(axis=1).tolist(), strict=True)
            if fits
        ]
        heapify(turns)
        while turns:
            number = turns[0][1]
            job = lanes[number][0][2]
            slots = self.place(job, cluster)
            if slots is None:
                hopeless.add(number)
                heappop(turns)
                continue
            yield Placement(job, slots, job.share)
            if number in lanes:
                heapreplace(turns, (lanes[number][0][1], number))
            else:
                heappop(turns)


class FirstFit(_Passing):
    """First fit, passing over jobs that do not fit."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(PlaceFirstFit(setting))


class RoundRobin(_Passing):
    """Round robin, passing over jobs that do not fit."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(PlaceRoundRobin(setting))


class Tetris(_Passing):
    """Tetris, passing over jobs that do not fit."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(PlaceTetris(setting))


class Fgd(_Passing):
    """FGD, passing over jobs that do not fit."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(PlaceFgd(setting))
