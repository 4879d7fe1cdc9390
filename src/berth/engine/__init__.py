"""The simulator: clock, arrivals, outages and the truth; jobs, a cluster and a policy in, events out.

There is one `simulate`; every experiment, command and replay goes through it. At one instant, in this order:
jobs end, nodes are lost, nodes come back, jobs arrive, the policy decides, impatient jobs leave and, where some did,
the policy decides again. What is left in a tie is settled by the order in which things were scheduled, so that the
same input gives the same events. What is decided is `berth.scheduler`'s business, as it is where real jobs run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Integral

from berth.card_speeds import ALL_ALIKE, CardSpeeds
from berth.cluster import Cluster
from berth.cluster.outages import Recovery
from berth.cluster.reservations import check_reservations
from berth.engine.memory import WhenFull
from berth.engine.run import Run
from berth.engine.stretch import one_by_one
from berth.engine.suspension import Suspension
from berth.errors import SettingError, SimulationError, check_kind
from berth.events import EventBatch
from berth.interference import Interference, no_interference
from berth.interference.profiled import thesis_unhindered
from berth.knowledge import Knowledge, make_knowledge
from berth.model import Event, Job, Outage, Reservation
from berth.policies import Policy, Setting, make_policy

AS_THE_JOB_SAYS = Recovery()


class Simulation(Iterator[Event]):
    """The events of a simulation, one by one or in batches."""

    def __init__(self, batches: Iterator[list[Event] | EventBatch]) -> None:
        self._batches = batches
        self._events = one_by_one(self._taken_apart())
        self._one_by_one = self._in_batches = False

    def __iter__(self) -> Iterator[Event]:
        return self._events

    def __next__(self) -> Event:
        return next(self._events)

    def batches(self) -> Iterator[list[Event] | EventBatch]:
        """The events that are still to come, without an Event or a Job for each where they come in arrays.

        Take all batches, or none: after some of them there are no single events, and single events are followed by
        batches of one. Raises SimulationError for a single event between batches.
        """
        if self._one_by_one:
            yield from ([event] for event in self._events)
        while (batch := next(self._batches, None)) is not None:
            self._in_batches = True
            yield batch
        self._in_batches = False

    def _taken_apart(self) -> Iterator[list[Event] | EventBatch]:
        if self._in_batches:
            raise SimulationError(
                "some events were taken in batches; take all batches of a simulation, or none"
            )
        self._one_by_one = True
        yield from self._batches


def simulate(
    jobs: Iterable[Job],
    cluster: Cluster,
    policy: Policy | str,
    *,
    knowledge: Knowledge | str | None = None,
    interference: Interference = no_interference,
    outages: Iterable[Outage] = (),
    recovery: Recovery = AS_THE_JOB_SAYS,
    suspension: Suspension | None = None,
    when_full: str | None = None,
    reservations: Iterable[Reservation] = (),
    speeds: CardSpeeds = ALL_ALIKE,
    seed: int = 0,
) -> Simulation:
    """Replay jobs on a cluster under a policy; yield what happens, in order of time.

    `jobs` come in order of submission. An iterator is read as time reaches its jobs; a sequence may be read at
    once, and its policy is then not asked job by job. `cluster` is left as it is, the run begins with its nodes
    empty. `policy` may be a name (`sjf+best-fit`): it is made with `seed` and `knowledge`. `knowledge` is what is
    believed of the jobs, or its name: by default an oracle, which knows the truth, and the future where `jobs` are
    a sequence. A policy that was made already has its own, which is to be the same. A job that could not start on
    the empty cluster is rejected at once, one whose patience ends when it ends, and one that is still waiting when
    nothing is left to happen is rejected then, or fails if it is suspended; every other job starts and ends once an
    attempt. `outages` may be an iterator without end, in order of time, such as `FailureRate.outages` gives; it is
    drawn from while there is something to do. `recovery` tells what a stopped job that keeps its work has left of
    it, and what a restart costs. With `suspension` a job whose policy evicts it is suspended where its nodes have
    the memory, and what that takes is charged: its GPUs are free only when they are copied out, and it runs on only
    when they are copied back. `when_full` tells what becomes of a job that needs more GPU memory than it was given,
    by its application's profile: `kill`, `relaunch`, `grow` or `suspend` (`berth.engine.memory.WhenFull`); None:
    the model of interference says when memory runs out. `reservations` keep nodes for jobs of some users at some
    times. `speeds` tells how fast applications are on each GPU model; jobs that span models go by the slowest.

    Raises SimulationError for jobs out of order, a duplicate id, work that is not known, a negative patience or an
    outage of no node, SettingError for reservations that the cluster cannot have or an argument of another kind,
    PolicyError for a decision that cannot be applied.
    """
    if isinstance(jobs, str):
        raise SettingError(f"simulate takes jobs, such as berth.read_trace({jobs!r}); not {jobs!r}")
    for value, kind, wanted in (
        (jobs, Iterable, "jobs, such as berth.read_trace('synthetic:demo')"),
        (cluster, Cluster, "a cluster, such as berth.Cluster(trace.nodes)"),
        (policy, str | Callable, "a policy by its name or as a function of queue, cluster and now_ms"),
        (interference, Callable, "interference as a function, such as berth.no_interference"),
        (outages, Iterable, "outages, each a berth.Outage"),
        (recovery, Recovery, "recovery as a Recovery of berth.cluster.outages"),
        (reservations, Iterable, "reservations, each a Reservation of berth.model"),
        (speeds, CardSpeeds, "speeds as CardSpeeds of berth.card_speeds"),
        (seed, Integral, "a whole number as its seed"),
    ):
        check_kind(value, kind, f"simulate takes {wanted}")
    full = None
    if when_full is not None:
        full = WhenFull.of(when_full)
        if interference is no_interference:
            interference = thesis_unhindered()
    if knowledge is None or isinstance(knowledge, str):
        workload = jobs if isinstance(jobs, Sequence) else ()
        knowledge = make_knowledge(knowledge or "oracle", workload, interference, seed)
    speeds.check(cluster.nodes)
    speeds = speeds.among(cluster.nodes)
    if isinstance(policy, str):
        setting = Setting(seed, knowledge=knowledge, speeds=speeds, restart_ms=recovery.restart_ms)
        policy = make_policy(policy, setting)
    reserved = tuple(reservations)
    check_reservations(reserved, cluster.nodes)
    empty = cluster.emptied({user for reservation in reserved for user in reservation.users})

    run = Run(jobs, empty, policy, knowledge, interference, outages, recovery, speeds, suspension, full)
    for reservation in reserved:
        run.schedule_reservation(reservation)
    return Simulation(run.batches())
