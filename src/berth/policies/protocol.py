"""What a policy is: the three shapes that a plug-in can have, and what it is told when it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from berth.arrays import FloatArray
from berth.card_speeds import ALL_ALIKE, CardSpeeds
from berth.cluster import Cluster, Key, Queue
from berth.knowledge import Knowledge, Oracle
from berth.model import Evict, GpuSlot, Job, Placement, Resize, Resume, WakeAt

Decision = Placement | Evict | Resume | Resize | WakeAt

Progress = Callable[[float, float], None]
"""Called now and then with how much is done and how much there is."""


class Policy(Protocol):
    """Decides which waiting jobs start where."""

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        """Yield decisions, best first. Each is applied before the next is asked for; never write to what you are
        shown. Called whenever a job came, ended or failed, a node was lost or came back, or at a WakeAt."""


@runtime_checkable
class Searching(Protocol):
    """What else a policy has that gets better over generations: how far it is, and how it got there."""

    progress: Progress | None
    """Hears of the generations done and to do in each search; None: there is no listener."""
    history: FloatArray  # (generations + 1, 2)
    """The best and the mean worth of the last search's solutions, from the first ones on."""


@runtime_checkable
class Drawing(Protocol):
    """What else a policy or placement has that says whether it draws random numbers."""

    draws: bool
    """Whether its decisions may depend on the seed."""


@runtime_checkable
class Keyed(Protocol):
    """What else an order has that sorts by a key."""

    key: Key
    """What it sorts by, the first queued on ties."""


@runtime_checkable
class ByRunTimes(Protocol):
    """What else an order or policy has that chooses by how long jobs run."""

    run_times: str
    """`true`: as the simulator knows them, whatever is believed; `believed`: as the knowledge tells them."""


@runtime_checkable
class InOrder(Protocol):
    """What else a policy has that serves an order."""

    order: object
    """The order."""


@runtime_checkable
class Orderable(Protocol):
    """What else a policy has that decides on many jobs at once and can be told which of them come first."""

    queue_order: Order | None
    """The order; None: as they were queued."""


@runtime_checkable
class KeepsGpus(Orderable, Protocol):
    """What else a policy has that can keep a GPU for a job, so that the job may take the place of others."""

    draws: bool

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        """As of any policy."""

    def keep(self, job: Job, slot: GpuSlot) -> None:
        """Start no other job on a GPU until this one, which waits, has started."""


@runtime_checkable
class Reserving(Protocol):
    """What else a policy has that reserves GPUs for jobs that wait; a live queue tells its users by it why they do."""

    @property
    def reserved_ms(self) -> Mapping[str, int]:
        """When each job with a reservation is expected to start, by its id; as of the last decision."""


@runtime_checkable
class Resizing(Protocol):
    """What else a policy has that changes what runs while nothing waits."""

    resizes: bool
    """Whether it is to be asked then, too."""


@runtime_checkable
class Resuming(Protocol):
    """What else a policy has that says by `Resume` when suspended jobs run on."""

    resumes: bool
    """Whether it does; else they run on before others start, as soon as there is room."""


@runtime_checkable
class Configurable(Protocol):
    """What else a class of policies has whose settings stand in a policy's name."""

    @classmethod
    def with_options(cls, setting: Setting, options: dict[str, str]) -> Policy:
        """Made with these settings."""


@runtime_checkable
class Wrapping(Protocol):
    """What a class of policies has that stand around another policy."""

    @classmethod
    def around(cls, rest: str, options: dict[str, str], setting: Setting) -> Policy:
        """The policy around the one that `rest` names."""


def draws(thing: object) -> bool:
    """Whether a policy's or placement's decisions may depend on the seed; one that does not say may."""
    return thing.draws if isinstance(thing, Drawing) else True


class Order(Protocol):
    """Decides which waiting job comes first.

    An order may also be a function of the queue alone; `make_policy` takes both. One that is given the cluster may
    look at the running jobs (`cluster.running`) and at past use (`cluster.usage()`), and writes to neither.
    """

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Job]:
        """Yield the waiting jobs, the first to be placed first."""


class Place(Protocol):
    """Decides where one job goes."""

    def __call__(self, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
        """The slots for the job, all of them or None where it does not fit now."""


@runtime_checkable
class GivesMore(Protocol):
    """What else a placement has, and a policy with it, that gives jobs more than they ask for."""

    def given(self, job: Job) -> Job:
        """The job as if it asked for what it is given; the job itself if that is the same."""


@runtime_checkable
class WaitsForRuns(Protocol):
    """What else a policy has that makes jobs of an unknown application wait until one of its runs has been measured."""

    def waits_for(self, job: Job) -> str:
        """The id of the run that a job waits for in this way; empty if it waits for none."""


class ByRequest(Protocol):
    """What else a placement has that refuses a job only by what it asks for and what is free on each node."""

    by_request: bool
    """Whether it does: then others that ask for the same need not be tried until a node that may fit has changed."""


def refuses_by_request(place: Place) -> bool:
    """Whether a placement is `ByRequest`. The class that defines its call must say so, for a subclass with a call of
    its own may refuse for more reasons."""
    return _says(place, "by_request")


def places_by_formula(place: Place) -> bool:
    """Whether a placement goes by its kernel alone, as the class that defines its call must say, too."""
    return _says(place, "by_formula")


def _says(place: Place, what: str) -> bool:
    kind = next((each for each in type(place).__mro__ if "__call__" in vars(each)), object)
    return vars(kind).get(what) is True


@runtime_checkable
class Remembering(Protocol):
    """What else a placement has that says whether what it answers now changes what it answers next."""

    remembers: bool
    """Whether it does, as one that goes round in turn: then it is asked even where its answer cannot be used."""


def remembers(place: Place) -> bool:
    """Whether a placement's answer changes its next ones; one that refuses by request and does not say does not."""
    return place.remembers if isinstance(place, Remembering) else False


def place_job(place: Place, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
    """The slots for a job where the placement says; for a gang, those of its tasks one after the other."""
    return place(job, cluster) if not job.tasks else cluster.slots_of_gang(job, place)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a policy may know when it is made."""

    seed: int = 0
    """Where its random numbers start."""
    quotas: Mapping[str, int] | None = None
    """GPUs of each virtual cluster, for orders with a placement; None where there are no quotas."""
    borrow: bool = False
    """Whether a virtual cluster may hold more than its quota while no job waits within its quota."""
    knowledge: Knowledge = field(default_factory=Oracle)
    """What is believed of jobs; by default what jobs themselves tell the simulator, and nothing of jobs to come."""
    speeds: CardSpeeds = ALL_ALIKE
    """How fast applications are on each GPU model."""
    restart_ms: int = 0
    """How long a job that is stopped and started again runs before it works on."""
    reclaim: bool = False
    """Whether a job within its quota evicts jobs of virtual clusters that hold more than theirs."""
