"""The queue of the textbook, M/M/c: single GPUs, exponential gaps between arrivals, exponential run times.

With `fifo` on the workload's own cluster the mean wait is known in closed form (Erlang C), so that the engine
can be held against it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from berth.errors import SettingError
from berth.gpu_models import gpu_model
from berth.model import Job, Node
from berth.traces.job_table import draft, finished
from berth.traces.synthetic import Drawn, Workload
from berth.traces.synthetic.draws import exponential, uniform

_GPUS_OF_NODE = 8


@dataclass(frozen=True)
class Poisson(Drawn):
    """Settings of `synthetic:poisson`."""

    load: float = 0.8
    """Arrival rate times mean work over GPUs; the queue grows without end from 1 on."""
    gpus: int = 8
    """Servers of the queue: GPUs of the cluster, on nodes of up to eight."""
    work_s: float = 600.0
    """Mean run time in seconds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gpus < 1 or not 0 < self.work_s < 1e9:
            raise SettingError("expected work_s above 0, and at least one GPU")

    def __call__(self) -> Workload:
        sizes = [_GPUS_OF_NODE] * (self.gpus // _GPUS_OF_NODE) + [self.gpus % _GPUS_OF_NODE]
        model = gpu_model("V100")
        nodes = tuple(Node(f"node-{index}", size, model) for index, size in enumerate(sizes) if size)
        return Workload(nodes, self._jobs)

    def _jobs(self) -> Iterator[Job]:
        gap_ms = self.work_s * 1000 / (self.gpus * self.load)
        gaps_ms = exponential(uniform(self.seed, "gap", self.jobs)) * gap_ms
        works_ms = exponential(uniform(self.seed, "work", self.jobs)) * (self.work_s * 1000)
        columns = np.cumsum(gaps_ms).astype(np.int64).tolist(), np.rint(works_ms).astype(np.int64).tolist()
        for index, (submit, work) in enumerate(zip(*columns, strict=True)):
            yield finished(draft(f"poisson-{index}", submit, work, "user"))
