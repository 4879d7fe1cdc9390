"""Controls for the utilisation experiment: placements that pass over a job that does not fit.

    PYTHONPATH=bench berth experiment utilisation --policies first-fit,passing:FirstFit,passing:Tetris,genetic

`fifo` is strict: who does not fit holds up those behind. These tell how much of a margin comes from that alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from berth.cluster import Cluster
from berth.model import Placement
from berth.policies import Place, Setting
from berth.policies.first_fit import FirstFit as PlaceFirstFit
from berth.policies.round_robin import RoundRobin as PlaceRoundRobin
from berth.policies.tetris import Tetris as PlaceTetris
from berth.queue import Queue


class _Passing:
    draws = False

    def __init__(self, place: Place) -> None:
        self.place = place

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
        hopeless: set[int] = set()
        for job in queue:
            number = cluster.request(job)
            if number in hopeless:
                continue
            slots = self.place(job, cluster)
            if slots is None:
                hopeless.add(number)
            else:
                yield Placement(job, slots, job.share)


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
