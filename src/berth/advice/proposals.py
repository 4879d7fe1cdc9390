"""What may be tried on a cluster: limits of users and QOS, and jobs that share a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from berth import policies
from berth.advice.replay import Outcome
from berth.advice.workload import Workload
from berth.errors import SettingError
from berth.model import Job, Share
from berth.policies.schemes.limit_settings import AMOUNTS, Limit

QUANTILES: Final = (0.5, 0.75, 0.9)
"""A limit is tried if this share of the users had less at their peak."""
OF_HIGHEST: Final = (0.25, 0.5, 0.75)
"""And at these parts of the highest peak of all."""
SHARERS: Final = (2, 4)
"""Jobs that may share one GPU."""
PACKING: Final = ("best-fit", "fgd")
"""The placements that pack parts of GPUs."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """One change of how the cluster is run."""

    limit: Limit | None = None
    """A limit to set."""
    application: str = ""
    """An application whose jobs on one GPU may share it."""
    sharers: int = 0
    """With how many on one GPU."""
    placement: str = ""
    """By which placement they are packed."""

    @property
    def words(self) -> str:
        """The proposal as one would say it."""
        if self.limit is None:
            return f"{self.sharers} jobs of {self.application or 'unknown'} share a GPU ({self.placement})"
        what = ", ".join(
            f"{value} {'GPUs' if name == 'gpus' else name if name == 'nodes' else name + ' jobs'}"
            for name in AMOUNTS
            if (value := getattr(self.limit, name)) is not None
        )
        return f"at most {what} {'a user' if self.limit.scope == 'user' else 'a QOS'}"

    def policy(self, base: str) -> str:
        """The policy that a replay of it uses, from the one that is used as things are."""
        if self.limit is None:
            parts = base.split("+")
            return "+".join([*(parts[:-1] if parts[-1] in policies.PLACEMENTS else parts), self.placement])
        prefix = "user" if self.limit.scope == "user" else "vc"
        amounts = [
            f"{prefix}_{name}={value}" for name in AMOUNTS if (value := getattr(self.limit, name)) is not None
        ]
        return f"limits?{'&'.join(amounts)}+{base}"

    def jobs(self, workload: Workload) -> Sequence[Job]:
        """The jobs as they are then."""
        if self.limit is not None:
            return workload.jobs
        share = Share(1000 // self.sharers, 0)
        return tuple(
            replace(job, share=share) if can_share(job) and job.application == self.application else job
            for job in workload.jobs
        )


def can_share(job: Job) -> bool:
    """Whether it holds one whole GPU, part of which it might give up."""
    return job.gpus == 1 and job.share.milli == 1000


def limits_to_try(workload: Workload, now: Outcome) -> Iterator[Proposal]:
    """Limits below the peak of some user as things are, and not below what one job asks for.

    None is of submitted jobs: Slurm refuses what is beyond such a limit, and a replay only delays it.
    """
    largest = {
        "running": 1,
        "gpus": max(-(-job.gpus * job.share.milli // 1000) for job in workload.jobs),
        "nodes": max(max(job.nodes, 1) for job in workload.jobs),
    }
    for scope in ("user", "virtual-cluster"):
        peaks = [peak for (of, _), peak in now.peaks.items() if of == scope]
        if scope == "virtual-cluster" and len(peaks) < 2:
            continue  # one QOS for all: a limit of it is the size of the cluster
        for amount in largest:
            values = np.array([getattr(peak, amount) for peak in peaks])
            tried = {int(np.quantile(values, share, method="higher")) for share in QUANTILES}
            tried |= {round(part * int(values.max())) for part in OF_HIGHEST}
            tried = {max(value, largest[amount]) for value in tried}
            for value in sorted(value for value in tried if value < values.max()):
                yield Proposal(Limit(scope, "", **{amount: value}))


def sharing_to_try(workload: Workload, wanted: Mapping[str, int]) -> Iterator[Proposal]:
    """Applications that were measured to need a part of a GPU only, and those in `wanted` with their jobs per GPU.

    Of a measured application nine in ten jobs must use no more than the part, of the GPU and of its memory.
    SettingError where one is wanted that has no job on one GPU.
    """
    sharing = [job for job in workload.jobs if can_share(job)]
    known = {job.application for job in sharing}
    for application, number in wanted.items():
        if application not in known:
            raise SettingError(
                f"no job of '{application}' on one whole GPU; there are {', '.join(sorted(filter(None, known)))}"
            )
        for placement in PACKING:
            yield Proposal(application=application, sharers=number, placement=placement)
    for application in sorted(filter(None, known - wanted.keys())):
        measured = [
            workload.use[job.id]
            for job in sharing
            if job.application == application and job.id in workload.use
        ]
        if not measured:
            continue
        core = float(np.quantile([use for use, _ in measured], 0.9))
        memory = [mem for _, mem in measured if mem is not None]
        if not memory:
            continue  # whether two fit into the memory of one is not known
        most = max(core, float(np.quantile(memory, 0.9)))
        for number in SHARERS:
            if most * number <= 1:
                for placement in PACKING:
                    yield Proposal(application=application, sharers=number, placement=placement)
