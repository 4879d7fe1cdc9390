"""A small workload to look at: a working day on 40 mixed GPUs, with shared GPUs and a queue that forms.

Invented, after no trace: sixteen users, of whom the first submits a seventh of everything; half of the jobs
take a part of one GPU, nearly all others one to sixteen whole ones; most run for minutes and some for hours;
every job says a time limit, which is longer than it needs by a factor of one to four.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from berth.gpu_models import gpu_model
from berth.model import WHOLE_GPU, Job, Node, Share
from berth.traces.synthetic import Drawn, Workload
from berth.traces.synthetic.draws import arrivals, chosen, quantile, span_ms, uniform

_NODES = (
    *(Node(f"v100-{i}", 8, gpu_model("V100M32"), 96_000, 393_216) for i in range(3)),
    *(Node(f"t4-{i}", 4, gpu_model("T4"), 48_000, 196_608) for i in range(4)),
)
# weight, GPUs, milli, GPU memory (MiB), nodes, cores, memory (GiB), models
_SHAPES = (
    (18, 1, 250, 3_500, 1, 2, 8, ()),
    (18, 1, 500, 7_000, 1, 4, 16, ()),
    (14, 1, 300, 6_000, 1, 3, 12, ("T4",)),
    (26, 1, 1000, 0, 1, 6, 24, ()),
    (6, 1, 1000, 0, 1, 6, 32, ("V100M32",)),
    (8, 2, 1000, 0, 1, 12, 48, ()),
    (6, 4, 1000, 0, 1, 24, 96, ()),
    (2, 8, 1000, 0, 1, 64, 256, ("V100M32",)),
    (1, 16, 1000, 0, 2, 128, 512, ("V100M32",)),
    (1, 0, 1000, 0, 1, 8, 64, ()),
)
_APPLICATIONS = ("resnet50", "bert", "dlrm", "yolo", "llama-ft", "gnn", "inference", "notebook")
_WORK_S = ((0.0, 0.25, 0.5, 0.8, 0.95, 1.0), (20.0, 180.0, 600.0, 2_400.0, 7_200.0, 21_600.0))
_USERS = 16


@dataclass(frozen=True)
class Demo(Drawn):
    """Settings of `synthetic:demo`."""

    jobs: int = 400
    load: float = 1.1

    def __call__(self) -> Workload:
        return Workload(_NODES, self._jobs)

    def _jobs(self) -> Iterator[Job]:
        number, seed = self.jobs, self.seed
        if number == 0:
            return
        shape = chosen(uniform(seed, "shape", number), [row[0] for row in _SHAPES])
        work_ms = (quantile(uniform(seed, "work", number), *_WORK_S) * 1000).astype(np.int64)
        limit_ms = (
            np.ceil(work_ms * (1.0 + 3.0 * uniform(seed, "limit", number)) / 600_000).astype(np.int64)
            * 600_000
        )
        user = chosen(uniform(seed, "user", number), [1.0 / (4 + rank) for rank in range(_USERS)])
        application = chosen(uniform(seed, "application", number), [3, 2, 1, 2, 1, 1, 3, 1])
        milli = np.array([row[1] * row[2] for row in _SHAPES], np.int64)[shape]
        lasting_ms = span_ms(work_ms, milli, sum(node.gpus for node in _NODES), self.load)
        submit_ms = arrivals(uniform(seed, "arrival", number), lasting_ms)
        columns = (column.tolist() for column in (submit_ms, work_ms, user, application, shape, limit_ms))
        for index, (submit, work, who, what, kind, limit) in enumerate(zip(*columns, strict=True)):
            _, gpus, part, gpu_mem_mib, nodes, cores, gib, models = _SHAPES[kind]
            yield Job(
                f"demo-{index:05d}",
                submit,
                work,
                user=f"user{who:02d}",
                application=_APPLICATIONS[what],
                gpus=gpus,
                share=WHOLE_GPU if part == 1000 else Share(part, gpu_mem_mib),
                nodes=nodes,
                cpu_milli=cores * 1000,
                mem_mib=gib * 1024,
                models=models,
                time_limit_ms=limit,
            )
