"""One job of the queue as it is now, and how an attempt of it can end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from berth.counts import counted
from berth.errors import LiveError
from berth.live.driver.words import sizes
from berth.live.local.request import PER_GPU, SHARED_MILLI, WHOLE, Request
from berth.tenants import RESUMING, SUSPENDED, SUSPENDING

WAITING, HELD, STARTING, RUNNING = "waiting", "held", "starting", "running"
COMPLETED, FAILED, CANCELLED, TIMEOUT = "completed", "failed", "cancelled", "timeout"
OUT_OF_MEMORY, NODE_FAIL, UNKNOWN, PREEMPTED = "out-of-memory", "node-fail", "exit-unknown", "preempted"
ENDED = frozenset((COMPLETED, FAILED, CANCELLED, TIMEOUT, OUT_OF_MEMORY, NODE_FAIL, UNKNOWN))
SHOWN = ENDED | {WAITING, HELD, STARTING, RUNNING, SUSPENDING, SUSPENDED, RESUMING}
"""The states that a listing shows."""
REQUEUE = "requeue"
"""Why an attempt is stopped whose job waits again, because its user said so."""


@dataclass(slots=True)
class Entry:
    id: str
    serial: int
    """Order of submission."""
    uid: int
    user: str
    request: Request
    request_key: int
    submit_ms: int
    queued_ms: int
    state: str = WAITING
    params: tuple[tuple[str, str], ...] = ()
    index: int | None = None
    """Its number in an array."""
    at_most: int = 0
    """Tasks of its array that run at a time, at most; 0: any number."""
    attempt: int = 1
    out_of_memory: int = 0
    needs_mib: int = 0
    """GPU memory that it needs, as measured when it ran out of it; 0: it never did."""
    start: int = 0
    """Counts every start that was decided; names the run folder."""
    start_failures: int = 0
    not_before_ms: int = 0
    slots: tuple[int, ...] = ()
    share: tuple[int, int] = (0, 0)
    """Milli and MiB that it was given of each GPU, with what its memory has grown by."""
    promise_mib: int = 0
    """The part of that memory that it was promised at its start."""
    peak_mib: int = 0
    """What it is believed to need at most of each GPU; 0: nothing is known."""
    best_effort: bool = False
    start_ms: int | None = None
    end_ms: int | None = None
    exit_code: int | None = None
    stop: str = ""
    """Why its processes are being ended."""
    reason: str = ""
    """Why it waits, or how it ended, in words."""
    stands_ms: int = 0
    """The time by which it stands in the queue; 0: that at which it was queued. An attempt that is queued again because
    the last one ran out of memory, or was lost, keeps that of the first."""
    since_ms: int = 0
    """Since when that is the reason."""
    not_yet: bool = False
    """Whether it waits for a time or another job, so that it does not wait for room yet."""
    offered: bool = False
    """Whether the brain has it among its waiting jobs."""
    boot: str = ""
    """The boot of the machine in which its attempt was started."""
    suspension: str = ""
    """What becomes of its processes while it runs: SUSPENDING, SUSPENDED or RESUMING; empty: they run. It is written
    before it is begun, so that the next broker goes on with it."""
    suspended_since_ms: int | None = None
    """None while they run."""
    suspended_ms: int = 0
    """For how long they were suspended before they ran last."""
    parked_mib: int = 0
    """Memory of the machine that takes what they held on each GPU."""
    resumes: bool = True
    """Whether it runs on as soon as there is room; else its user lets it."""
    idle: bool = False
    """Whether it was suspended because it called CUDA no more; its next call lets it resume."""
    lends_to: str = ""
    """The job whose memory grows by what it left, while it is being suspended for that and after."""
    gang_ended: int = 0
    """How many tasks of its gang ran and have ended; only one of those that have not ended keeps it."""
    over: End | None = None
    """How its attempt ended, until the brain has said what follows; it is kept with the attempt."""
    over_as: str = ""
    """The state in which that attempt ended; empty: it never ran."""
    version: int = 0
    """Goes up whenever the brain is told of it anew, so that a decision on what it was before is known."""

    @property
    def number(self) -> str:
        return self.id.partition("_")[0]

    @property
    def shown_state(self) -> str:
        """Its state, or what becomes of its processes while it runs."""
        return self.suspension or self.state

    @property
    def left_gpus(self) -> bool:
        """Whether the brain may give its GPUs away: it is suspended, or is being so because the brain wants them."""
        for_others = self.resumes and not self.lends_to
        return self.suspension == SUSPENDED or (self.suspension == SUSPENDING and for_others)

    def ran_ms(self, now_ms: int) -> int:
        """For how long its processes have run, without the time for which they were suspended."""
        if self.start_ms is None:
            return 0
        until_ms = now_ms if self.suspended_since_ms is None else self.suspended_since_ms
        return until_ms - self.start_ms - self.suspended_ms

    @property
    def gang(self) -> str:
        """The gang that it is a task of, with its user, since gangs are a user's own; empty: none."""
        return f"{self.user}/{self.request.gang}" if self.request.gang else ""

    @property
    def priority(self) -> int:
        return self.request.priority

    @property
    def interactive(self) -> bool:
        return self.request.interactive

    @property
    def shows_max(self) -> bool:
        return self.request.mem_shows_max

    @property
    def going(self) -> bool:
        return not self.stop and self.over is None

    @property
    def runs(self) -> bool:
        return self.state == RUNNING and self.going

    @property
    def makes_way(self) -> bool:
        return self.stop == PREEMPTED or self.suspension == SUSPENDING

    @property
    def ready_ms(self) -> int | None:
        """Since when it could start if there were room, and its wait counts; None while something else keeps it."""
        return None if self.state == HELD or self.not_yet else self.queued_ms

    @property
    def order(self) -> tuple[int, int]:
        """What the queue is in the order of."""
        return self.stands_ms or self.queued_ms, self.serial

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, default in _KEPT.items():
            value = getattr(self, name)
            if value != default:
                found[name] = value
        if self.over is not None:
            found["over"] = asdict(self.over)
        return found

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], request: Request) -> Entry:
        fields = {**values, "request": request}
        for name in ("slots", "share"):
            if name in fields:
                fields[name] = tuple(fields[name])
        if "params" in fields:
            fields["params"] = tuple((name, value) for name, value in fields["params"])
        if "over" in fields:
            fields["over"] = End(**fields["over"])
        return cls(**fields)


_KEPT = {
    each.name: each.default
    for each in fields(Entry)
    if each.name not in ("request", "not_yet", "offered", "over", "version")
}


@dataclass(frozen=True, slots=True)
class End:
    code: int | None
    """None: unknown."""
    reason: str = ""
    end_ms: int | None = None
    peak_mib: int | None = None
    refused: int = 0
    needed_mib: int = 0
    """What it would have needed when it was refused memory."""
    cpu_ms: int | None = None
    mem_peak_mib: int | None = None
    expired: bool = False
    """It was told to end because it reached its time limit."""
    lost: bool = False
    """The machine restarted meanwhile."""
    never_ran: bool = False
    no_room: bool = False
    """It never ran because a GPU had less left than was thought."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What there is on this machine, so that what could never run is refused."""

    cards_mib: tuple[int, ...] = ()
    """Memory of each GPU."""
    cpu_milli: int = 1000
    mem_mib: int = 0
    grows: bool = False
    """Whether the memory of jobs grows up to the card that say only what they begin with."""
    per_gpu: int = PER_GPU
    """How many jobs share a GPU at most that ask for GPU memory alone."""

    def milli_of(self, request: Request) -> int:
        memory_alone = request.milli == SHARED_MILLI and request.mem_mib and not request.core_pct
        return WHOLE // self.per_gpu if memory_alone else request.milli

    def most_mib(self, request: Request) -> int:
        """How far the memory of a job may grow on each GPU; 0: it does not grow."""
        cards = self.cards_mib
        named = [cards[at] for at in request.pins if at < len(cards)]  # there may have been more before
        most_mib = max(named or cards, default=0)
        if not request.gpus or (request.milli == WHOLE and not request.mem_mib):
            return 0
        if request.mem_max_mib:
            return min(request.mem_max_mib, most_mib)
        return most_mib if self.grows and request.mem_mib else 0

    def check(self, request: Request) -> None:
        """Refuse a request that this machine could never serve; LiveError says what there is."""
        cards = self.cards_mib
        if request.gpus > len(cards):
            there = counted(len(cards), "GPU") if cards else "no GPU"
            raise LiveError(f"--gpus {request.gpus}, but this machine has {there}; ask for less")
        if request.pins and max(request.pins) >= len(cards):
            raise LiveError(
                f"--gpu {max(request.pins)}; this machine's GPUs: {', '.join(map(str, range(len(cards)))) or 'none'}"
            )
        among = [cards[at] for at in request.pins] or list(cards)
        roomy = sum(mib >= request.mem_mib for mib in among)
        if request.gpus and roomy < request.gpus:
            wanted, *largest = sizes(request.mem_mib, *sorted(among)[-request.gpus :])
            raise LiveError(
                f"--mem {wanted} on each GPU, but the largest that the job may use: {', '.join(largest)}; ask for less"
            )
        if request.gpus and request.mem_max_mib > max(among):
            most, has = sizes(request.mem_max_mib, max(among))
            raise LiveError(
                f"GPU memory up to {most}, but the largest GPU that the job may use has {has}; ask for less"
            )
        if request.cpu_milli > self.cpu_milli:
            raise LiveError(
                f"--cpus {request.cpu_milli / 1000:g}, but this machine has {self.cpu_milli / 1000:g} for jobs;"
                " ask for less"
            )
        if self.mem_mib and request.host_mem_mib > self.mem_mib:
            raise LiveError(
                f"--host-mem {request.host_mem_mib}M, but this machine has {self.mem_mib} MiB; ask for less"
            )


def application_of(request: Request, params: Iterable[tuple[str, str]] = ()) -> str:
    """What an application is known by: its profile's name, else its name and parameters, else command and script."""
    if request.profile:
        return request.profile
    fields = ",".join(f"{name}={value}" for name, value in params if name != "array")
    if request.name:
        return f"{request.name}?{fields}" if fields else request.name
    argv = request.argv
    if len(argv) == 3 and argv[1] == "-c" and argv[2].split():
        argv = tuple(argv[2].split())  # a line for a shell
    words = [word.rpartition("/")[2] for word in argv]
    if request.script:
        return words[0]
    scripts = [word for word in words[1:] if word.endswith((".py", ".sh", ".jl", ".R"))][:1]
    return " ".join([words[0], *scripts])
