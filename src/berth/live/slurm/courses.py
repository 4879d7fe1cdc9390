"""berth's log and what the report compares it with: Slurm's own starts, and the same jobs on whole GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from berth.cluster import Cluster
from berth.engine import simulate
from berth.history.store.usage import UsageRow
from berth.knowledge import make_knowledge
from berth.live.slurm.compare import Attempt
from berth.live.slurm.decisions import ENDED, Decision
from berth.model import EventKind, Job, Node, Share
from berth.policies import Setting, make_policy

WHOLE_GPUS = "easy+priority+best-fit"
"""The policy of the replay: Slurm's backfill, with each job alone on its GPUs."""


@dataclass(frozen=True, slots=True)
class Course:
    """How the same jobs went, or would have gone."""

    name: str
    waits_s: tuple[float, ...]
    """Of the jobs that were started."""
    spans: tuple[tuple[float, float, float], ...]
    """Begin and end, s after the first submission, and how many GPUs it held, of each job that has ended."""

    @property
    def lasts_s(self) -> float:
        """From the first submission to the last end."""
        return max((end for _, end, _ in self.spans), default=0.0)

    def use(self, gpus: int) -> float:
        """The part of the GPUs that jobs held until the last end."""
        held = sum((end - begin) * count for begin, end, count in self.spans)
        return held / (self.lasts_s * gpus) if self.lasts_s and gpus else 0.0


def courses(attempts: Sequence[Attempt], nodes: Sequence[Node]) -> tuple[Course, ...]:
    """What Slurm did, what berth had decided before, and what whole GPUs would have come to, as a replay.

    The replay takes run times as they were, which neighbours may have lengthened, so that it does not flatter sharing.
    It leaves out jobs that fit on none of `nodes` and those without GPUs.
    """
    origin_ms = min((each.submit_ms for each in attempts), default=0)
    done = [each for each in attempts if each.end_ms is not None]

    def span(each: Attempt, begin_ms: int) -> tuple[float, float, float]:
        lasts_ms = (each.end_ms or 0) - each.start_ms
        gpus = each.gpus * each.milli / 1000
        return (begin_ms - origin_ms) / 1000, (begin_ms + lasts_ms - origin_ms) / 1000, gpus

    decided = [each for each in done if each.decided_ms is not None]
    slurm = Course(
        "as it was",
        tuple((each.start_ms - each.submit_ms) / 1000 for each in done),
        tuple(span(each, each.start_ms) for each in done),
    )
    ours = Course(
        "as berth decided",
        tuple(max(0, (each.decided_ms or 0) - each.submit_ms) / 1000 for each in decided),
        tuple(span(each, each.decided_ms or 0) for each in decided),
    )
    return slurm, ours, _whole([each for each in done if each.gpus], nodes, origin_ms)


def _whole(attempts: Sequence[Attempt], nodes: Sequence[Node], origin_ms: int) -> Course:
    jobs = [
        Job(
            f"{at}",
            each.submit_ms - origin_ms,
            max(1, (each.end_ms or 0) - each.start_ms),
            user="",
            gpus=each.gpus,
            share=Share(),
            nodes=max(1, each.where.count(",") + 1) if each.where else 1,
            retries=0,
        )
        for at, each in enumerate(sorted(attempts, key=lambda each: (each.submit_ms, each.start_ms)))
    ]
    cluster = Cluster(nodes)
    jobs = [job for job in jobs if cluster.fits_when_empty(job)]
    knowledge = make_knowledge("user", jobs)
    policy = make_policy(WHOLE_GPUS, Setting(knowledge=knowledge))
    begun: dict[str, int] = {}
    waits, spans = [], []
    for event in simulate(jobs, cluster, policy, knowledge=knowledge):
        if event.kind is EventKind.START:
            begun[event.job.id] = event.time_ms
            waits.append((event.time_ms - event.job.submit_ms) / 1000)
        elif event.kind is EventKind.FINISH:
            spans.append((begun[event.job.id] / 1000, event.time_ms / 1000, float(event.job.gpus)))
    return Course("on whole GPUs, replayed", tuple(waits), tuple(spans))


def measured(decisions: Iterable[Decision], cluster: str = "") -> list[UsageRow]:
    """What Epilogs measured of each job, for the history: the most memory that it held, as a part of its GPU's."""
    return [
        UsageRow(
            "sampled",
            f"slurm-{line.raw}-{line.start_ms}",
            line.where,
            cluster,
            line.raw,
            line.start_ms,
            line.end_ms,
            0,
            0.0,
            1.0,
            None,
            None,
            None,
            None,
            None,
            None,
            min(1.0, line.peak_mib / line.card_mib),
        )
        for line in decisions
        if line.event == ENDED and line.peak_mib and line.card_mib and line.start_ms and line.end_ms
    ]
