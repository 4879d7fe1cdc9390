"""Small clusters, jobs and conditions at random, which the simulator and the reference are both given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from berth.card_speeds import ALL_ALIKE, CardSpeeds
from berth.cluster import Cluster
from berth.cluster.outages import Recovery
from berth.engine import simulate
from berth.model import GpuModel, Job, Node, Outage, Reservation, Share
from tests.engine.reference import Reference, Told

POLICIES = {
    "fifo": "fifo+first-fit",
    "deadline-first": "deadline-first+first-fit",
    "easy": "easy+fifo+first-fit",
    "conservative": "conservative+fifo+first-fit",
    "preempt": "preempt+fifo+first-fit",
}
"""What the reference calls each policy, and what the simulator does."""
RESERVING = ("easy", "conservative", "preempt")
"""Those that are given reservations: on reserved nodes a strict order has queues apart, which the reference lacks."""
MODELS = (GpuModel("V100", mem_mib=16_000), GpuModel("T4", mem_mib=8_000))
SPEEDS = CardSpeeds({"net": {"V100": 1000, "T4": 400}, "": {"V100": 1500, "T4": 1000}}, "drawn")
SIZES = ((1, 1), (1, 1), (0, 1), (2, 1), (3, 1), (2, 2), (4, 2))
"""GPUs and nodes of jobs."""
RECOVERIES = (Recovery(), Recovery(7), Recovery(7, 3), Recovery(None, 4), Recovery(5, 2, write_ms=2))


@dataclass(frozen=True)
class Scenario:
    """What happens."""

    jobs: tuple[Job, ...]
    nodes: tuple[Node, ...]
    outages: tuple[Outage, ...]
    reservations: tuple[Reservation, ...]
    recovery: Recovery
    speeds: CardSpeeds

    def told(self, policy: str, *, stretches: bool = False) -> list[Told]:
        """What the simulator says: job by job, or beginning with a stretch."""
        jobs: Iterable[Job] = self.jobs if stretches else iter(self.jobs)
        events = simulate(
            jobs, Cluster(self.nodes), POLICIES[policy], outages=self.outages, recovery=self.recovery,
            reservations=self.reservations, speeds=self.speeds,
        )  # fmt: skip
        return [
            (each.time_ms, each.kind.value, each.job.id, each.attempt, each.slots, each.reason.value)
            for each in events
        ]

    def wanted(self, policy: str) -> list[Told]:
        """What the reference says."""
        reference = Reference(self.nodes, policy, self.recovery, self.speeds)
        return reference.simulate(self.jobs, self.outages, self.reservations)


def scenario(draw: Random, policy: str) -> Scenario:
    """One of them."""
    nodes = tuple(
        Node(
            f"n{at}", draw.randint(1, 4), draw.choice(MODELS), draw.choice((None, 4000, 16_000)),
            draw.choice((None, 8000, 64_000)),
        )
        for at in range(draw.randint(1, 4))
    )  # fmt: skip
    outages = []
    for node in range(len(nodes)):
        for _ in range(draw.randint(0, 2)):
            down_ms = draw.randint(0, 80)
            outages.append(
                Outage(node, down_ms, down_ms + draw.randint(1, 25), draw.choice((0, 0, min(10, down_ms))))
            )
    return Scenario(
        _jobs(draw),
        nodes,
        tuple(outages),
        _reservations(draw, len(nodes)) if policy in RESERVING else (),
        draw.choice(RECOVERIES),
        draw.choice((ALL_ALIKE, SPEEDS)),
    )


def _jobs(draw: Random) -> tuple[Job, ...]:
    jobs: list[Job] = []
    now_ms = 0
    for at in range(draw.randint(1, 22)):
        now_ms += draw.choice((0, 0, 1, 5, 20))
        gpus, nodes = draw.choice(SIZES)
        share = Share(draw.choice((250, 500, 600)), draw.choice((0, 5000)))
        jobs.append(
            Job(
                f"j{at}", now_ms, draw.randint(0, 60), user=draw.choice("ab"),
                application=draw.choice(("net", "other")), gpus=gpus, nodes=nodes,
                share=share if gpus == 1 and draw.randint(0, 1) else Share(),
                cpu_milli=draw.choice((0, 1000, 3001)) if nodes == 1 else 0,
                mem_mib=draw.choice((0, 500, 3001)) if nodes == 1 else 0,
                models=draw.choice(((), (), ("V100",), ("T4",))), priority=draw.randint(0, 2),
                time_limit_ms=draw.choice((None, None, None, 15)), estimate_ms=draw.choice((None, None, 5, 40)),
                keeps_work=draw.choice((True, False)), patience_ms=draw.choice((None, None, None, 0, 15)),
                deadline_ms=draw.choice((None, 10, 100)),
                after=_some(draw, jobs),
            )
        )  # fmt: skip
    return tuple(jobs)


def _some(draw: Random, jobs: list[Job]) -> tuple[str, ...]:
    """The ids of up to two of these jobs, of none mostly."""
    count = draw.choice((0, 0, 0, 0, 0, 1, 2))
    return tuple(dict.fromkeys(draw.choice(jobs).id for _ in range(count))) if jobs else ()


def _reservations(draw: Random, nodes: int) -> tuple[Reservation, ...]:
    """None, one, or two of one node for two users, the second from the moment at which the first ends."""
    count, node, start_ms = draw.randint(0, 2), draw.randrange(nodes), draw.randint(0, 60)
    middle_ms = start_ms + draw.randint(1, 40)
    first = Reservation((node,), ("a",), start_ms, middle_ms, draw.choice((0, min(5, start_ms))))
    return (first, Reservation((node,), ("b",), middle_ms, middle_ms + draw.randint(1, 40)))[:count]
