"""Jobs like those of Alibaba's PAI cluster of 2020, drawn from what its publishers have plotted and counted.

Weng, Xiao, Yu, Wang, Wang, He, Li, Zhang, Lin and Ding, *MLaaS in the Wild: Workload Analysis and Scheduling
in Large-Scale Heterogeneous GPU Clusters*, NSDI 2022, and the notebook that reproduces its figures from the
trace (cluster-trace-gpu-v2020/analysis in github.com/alibaba/clusterdata, CC-BY-4.0). The tables here,
`run_times_s.csv` and `jobs_by_hour.csv` were read off that notebook's figures, bars to half a per cent, run times to
about a tenth:

- figure 5, tasks by GPU request and by GPU type; how a class divides further (a quarter of a GPU is the rule
  among those from 25 % to 50 %) follows the steps of figure 6b, and among several GPUs is a guess;
- figure 5, run times by GPU type; what lies above the 99th percentile is a guess that ends at 600,000 s;
- figure 3, tasks submitted in each hour of the day (the medians over days);
- figure 2, tasks per user, for 1,300 users;
- figure 6a and 6c, CPU and memory requested, up to what one instance takes.

The cluster has the machines of the published `pai_machine_spec`, by kind: 1,897 of them with 6,742 GPUs. Each
job is one task of one instance, drawn independently but for its run time, which goes by the GPU type. That
two quantities go together in the trace (users with their requests, say) is not reproduced, nor are tasks of
many instances. A third of the jobs may run only on the type that was drawn for them: "about 33 % of GPU tasks
in our production cluster have GPU type constraints" (README of cluster-trace-gpu-v2023, of the same company).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from berth.errors import SettingError
from berth.model import WHOLE_GPU, Job, Share
from berth.traces.job_table import draft, finished
from berth.traces.published_clusters import PAI_MACHINES, pai_nodes
from berth.traces.synthetic import Drawn, Workload
from berth.traces.synthetic.draws import arrivals, chosen, numbers_of, quantile, span_ms, uniform

# weight (per mille of tasks), GPUs, milli
_REQUESTS: Final = (
    (12, 1, 50),
    (125, 1, 100),
    (10, 1, 200),
    (256, 1, 250),
    (8, 1, 333),
    (124, 1, 500),
    (8, 1, 750),
    (428, 1, 1000),
    (17, 2, 1000),
    (8, 4, 1000),
    (4, 8, 1000),
)
_TYPES: Final = ("T4", "MISC", "P100", "V100", "V100M32")
_TYPE_WEIGHTS: Final = (217, 668, 70, 27, 18)
_LARGEST_NODE: Final = {"T4": 2, "MISC": 8, "P100": 2, "V100": 8, "V100M32": 8}
_USERS: Final = 1300
_USERS_AT: Final = (0.0, 0.045, 0.1, 0.2, 0.4, 0.56, 0.76, 0.9, 0.96, 0.99, 0.998, 1.0)
_TASKS_OF_USER: Final = (1, 1, 3, 9, 45, 110, 330, 1_000, 3_000, 10_000, 50_000, 200_000)
_CORES: Final = (1, 2, 4, 6, 8, 10, 12, 16, 18, 24)
_CORE_WEIGHTS: Final = (140, 10, 15, 560, 20, 25, 20, 20, 60, 10)
_GIB: Final = (8, 16, 20, 30, 60, 96)
_GIB_WEIGHTS: Final = (30, 20, 35, 690, 70, 20)


@dataclass(frozen=True)
class PaiLike(Drawn):
    """Settings of `synthetic:pai-like`."""

    pinned: float = 0.33
    """Fraction of the jobs that may run on one GPU type only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.pinned <= 1:
            raise SettingError("expected pinned from 0 to 1")

    def __call__(self) -> Workload:
        return Workload(pai_nodes(), self._jobs)

    def _jobs(self) -> Iterator[Job]:
        number, seed = self.jobs, self.seed
        if number == 0:
            return
        request = chosen(uniform(seed, "request", number), [weight for weight, _, _ in _REQUESTS])
        kind = chosen(uniform(seed, "type", number), _TYPE_WEIGHTS)
        drawn = uniform(seed, "work", number)
        run_s = numbers_of("run_times_s.csv")
        work_ms = np.empty(number, np.int64)
        for index, name in enumerate(_TYPES):
            of_type = kind == index
            times_s = quantile(drawn[of_type], run_s["quantile"], run_s[f"pai {name}"])
            work_ms[of_type] = (times_s * 1000).astype(np.int64)
        gpus = np.array([gpus for _, gpus, _ in _REQUESTS])[request]
        milli = gpus * np.array([milli for _, _, milli in _REQUESTS])[request]
        fits = gpus <= np.array([_LARGEST_NODE[name] for name in _TYPES])[kind]
        pinned = fits & (uniform(seed, "pinned", number) < self.pinned)
        capacity = sum(machines * gpus for machines, _, gpus, _, _ in PAI_MACHINES)
        lasting_ms = span_ms(work_ms, milli, capacity, self.load)
        of_user = quantile((np.arange(_USERS) + 0.5) / _USERS, _USERS_AT, _TASKS_OF_USER)
        columns = (
            arrivals(uniform(seed, "arrival", number), lasting_ms, numbers_of("jobs_by_hour.csv")["pai"]),
            work_ms,
            chosen(uniform(seed, "user", number), of_user.tolist()),
            request,
            np.where(pinned, kind, len(_TYPES)),
            chosen(uniform(seed, "cores", number), _CORE_WEIGHTS),
            chosen(uniform(seed, "memory", number), _GIB_WEIGHTS),
        )
        yield from _assembled(zip(*(column.tolist() for column in columns), strict=True))


def _assembled(rows: Iterator[tuple[int, int, int, int, int, int, int]]) -> Iterator[Job]:
    users = [f"user{rank:04d}" for rank in range(_USERS)]
    shares = [WHOLE_GPU if milli == 1000 else Share(milli) for _, _, milli in _REQUESTS]
    gpus_of = [gpus for _, gpus, _ in _REQUESTS]
    models = [*((name,) for name in _TYPES), ()]
    for index, (submit, work, user, request, model, cores, gib) in enumerate(rows):
        yield finished(
            draft(
                f"pai-{index}",
                submit,
                work,
                users[user],
                gpus=gpus_of[request],
                share=shares[request],
                cpu_milli=_CORES[cores] * 1000,
                mem_mib=_GIB[gib] * 1024,
                models=models[model],
            )
        )
