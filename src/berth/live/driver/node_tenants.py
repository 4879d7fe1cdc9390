"""The jobs on one node's GPUs, for a node's agent: their limits grow, and they leave their GPUs and come back.

A job's terms (`Terms`) and what the agent is about to do with it are in one file in the partition's folder. The file is
written before anything is done, so an agent that is killed at any step leaves all that the next one needs.

    admit(name, Terms(...))         # called by the process that made the partition, before the job starts
    withdraw(name)                  # called by the same process when the job has ended
    tenants = NodeTenants(gpus, log, grow="suspend")
    while True:
        tenants.look()              # several times a second, in the thread of an event loop
        tenants.suspend(name)       # asks for it; `shown` says what has come of it
        await asyncio.sleep(LOOK_S)
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import NamedTuple

from berth.errors import BerthError, PartitionError
from berth.files import write_whole
from berth.growth import Growth
from berth.live.driver.idling import Idling, Need
from berth.live.driver.suspending import Suspending
from berth.partition import (
    Partition,
    Unreadable,
    fake_driver_folder,
    find,
    partitions,
    regions,
    remove,
    resize,
)
from berth.partition.checkpoint import is_stopped
from berth.partition.gpus import Gpu, busy_of_processes, bytes_of_processes, handle_of, open_nvml, plain_uuid
from berth.partition.hardware import hardware_in
from berth.partition.processes import is_locked
from berth.partition.reconciling import THROTTLED_PCT, Counted, Difference, Reconciler
from berth.partition.regions import locked, own_root, regions_in, root_folder
from berth.tenants import RESUMING, SUSPENDED, SUSPENDING, given_milli, room

LOOK_S = 0.2
ADMIT_S = 3.0
"""How long who makes a partition waits at most until the agent knows it."""
ALONE_TRIES = 25
"""Attempts of an agent that starts to be the only one, for half a second."""
NVML_S = 1.0
"""Between two looks at what processes hold by NVML's word."""
FILE = "tenant"
ALIVE = ".agent"
"""The file that a living agent has locked, in the folder of all partitions."""
_MAKES = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
ROOM, FILES = ".room", ".tenants"
"""Files that are locked while room of a GPU is looked up and promised, and while a tenant's file is written."""


@dataclass(slots=True)
class Terms:
    """What a job was promised of each GPU of its partition, and what becomes of it if others need room."""

    job: str
    """The site's name of it."""
    said_mib: int
    """The memory that it was promised; `NodeTenant.promise_mib` is what it has got of that."""
    max_mib: int = 0
    """How far its memory may grow; 0: as far as the agent lets all grow."""
    milli: int = 0
    """Its part of the GPU's compute; 0: what others leave."""
    peak_mib: int = 0
    """What it is believed to need at most; 0: nothing is known."""
    priority: int = 0
    """The lowest leaves first."""
    shows_max: bool = False
    """Whether its programs see a card of the size that it may grow to."""
    uuids: tuple[str, ...] = ()
    """The GPUs that are its own, as regions name them; empty: all of its partition."""
    leaves: bool = True
    """Whether it may leave its GPUs for others."""
    interactive: bool = False
    """Whether it leaves them while it is idle and others wait."""
    application: str = ""
    """What jobs have in common that idle alike."""


@dataclass(slots=True, kw_only=True)
class NodeTenant(Terms):
    """A partition of this node and its job, as its file has them (`berth.tenants.Tenant`)."""

    id: str
    """The partition's name."""
    serial: int
    """When it was admitted, in ns."""
    share: tuple[int, int]
    suspension: str = ""
    suspended_since_ms: int | None = None
    ordered: bool = False
    """Whether the site wants it to be suspended."""
    sent_away: bool = False
    """Whether it was suspended for memory that is not counted, until the site has suspended and resumed it."""
    uncounted: str = ""
    """What it held beyond its count when it was throttled or sent away, until that ends."""
    had_pct: int | None = None
    """Its share of the GPU's time before it was throttled; None: it is not."""
    had_burst: bool = False
    """Whether it could burst then."""
    stopped: bool = False
    """Whether the site had stopped its processes before; they are again if they cannot be moved."""
    why: str = ""
    """Why it could not be suspended when that was tried last."""
    resumes: bool = True
    lends_to: str = ""
    parked_mib: int = 0
    idle: bool = False
    gang: str = ""
    going: bool = True
    start: int = 0
    """How many agents have taken it in; 1 if the first has seen that hardware limits it. `admit` waits for that."""
    slots: tuple[int, ...] = ()

    @property
    def best_effort(self) -> bool:
        return not self.share[0]

    @property
    def promise_mib(self) -> int:
        """What it was promised, which may be more than it has got yet."""
        return min(self.said_mib, self.share[1])

    @property
    def runs(self) -> bool:
        return self.going

    @property
    def makes_way(self) -> bool:
        return self.suspension == SUSPENDING


class Shown(NamedTuple):
    """What is to be seen of one tenant; sizes in MiB on each of its GPUs."""

    job: str
    gpus: tuple[int, ...]
    promise_mib: int
    limit_mib: int
    max_mib: int
    used_mib: int
    asked: int
    granted: int
    refused: int
    suspension: str
    suspended_since_ms: int | None
    parked_mib: int
    why: str
    idle: bool = False
    """Whether it is suspended until its next call of CUDA."""
    uncounted: str = ""
    """What it holds beyond its count, in words, or was throttled or suspended for; empty: nothing."""


def room_kept(file: str = ROOM) -> contextlib.AbstractContextManager[None]:
    """Keep others from promising room of this machine's GPUs meanwhile. PartitionError as of `own_root`."""
    return locked(own_root() / file, os.O_RDWR | os.O_CREAT)


def left_mib(gpu: Gpu) -> int:
    """What partitions leave of a GPU's memory, by their limits of now; for use under `room_kept`."""
    uuid = plain_uuid(gpu.uuid)
    return max(0, gpu.mem_mib - sum(part.limit_bytes >> 20 for part in partitions() if part.uuid == uuid))


def is_served() -> bool:
    """Whether an agent of this node lives."""
    try:
        return is_locked(root_folder() / ALIVE)
    except OSError:
        return False


def admit(name: str, terms: Terms, *, wait_s: float = ADMIT_S) -> None:
    """Tell the node's agent, now or when there is one, whose partition this is; one that lives is waited for, since a
    process that asks before it is known is refused. Raises PartitionError if the partition is not there."""
    parts = [part for part in find(name) if not terms.uuids or part.uuid in terms.uuids]
    share = terms.milli, min(part.limit_bytes for part in parts) >> 20
    interactive = {"interactive": terms.interactive and terms.leaves}
    tenant = NodeTenant(**asdict(terms) | interactive, id=name, serial=time.time_ns(), share=share)
    with room_kept(FILES):
        _write(tenant)
    end_s = time.monotonic() + wait_s
    while time.monotonic() < end_s and is_served():
        if (found := _read(name)) is not None and found.start:
            return
        time.sleep(LOOK_S / 10)


def withdraw(name: str) -> None:
    """Take the partition of a job that has ended away, in use or not. An agent writes nothing into it meanwhile: its
    folder would stay, and hold room. Raises PartitionError if the partition is not there."""
    with room_kept(FILES):
        remove(name, force=True, unfinished=True)


class NodeTenants:
    """Answers, suspends and resumes the tenants of one node. One agent of a node does at a time."""

    def __init__(
        self,
        gpus: Sequence[Gpu],
        log: Callable[..., None],
        *,
        grow: str = "off",
        fake: bool = False,
        fake_card: str = "",
        mine: Callable[[str], bool] = lambda name: True,
        uncounted: str = "report",
    ) -> None:
        """With `grow` `on`, the memory of all may grow up to the card, else only of those whose terms say how far;
        with `suspend` the one that matters least leaves if there is no room, and interactive ones while they idle.
        `mine` tells which partitions are this node's. `uncounted`, one of `reconciling.ANSWERS`: what is done about one
        that holds more than its partition counts. Raises PartitionError if another agent serves them."""
        self.gpus, self.log, self._grow, self._mine = gpus, log, grow, mine
        self.fake, self.fake_card = fake, fake_card
        self._driver = fake_driver_folder() if fake else None
        self._slots = {plain_uuid(gpu.uuid): at for at, gpu in enumerate(gpus)}
        self._tenants: dict[str, NodeTenant] = {}
        self._strangers: dict[int, int] = {}
        self._uncounted: dict[str, Difference] = {}
        self._answer = uncounted
        self._busy: frozenset[str] = frozenset()
        """The partitions whose processes kept a GPU busy at the last look."""
        self._busy_us: dict[str, int] = {}
        self._reconciler = Reconciler()
        self._seen_s = float("-inf")
        self._seeing: asyncio.Task[None] | None = None
        self._alive = _alone(own_root())
        self.suspending: Suspending[NodeTenant] = Suspending(
            self,
            leaves=lambda tenant: self.growth.leaves(tenant),
            runs_on=lambda tenant: self.growth.go_on(tenant),
        )
        self.growth: Growth[NodeTenant] = Growth(
            self,
            can_suspend=lambda tenant: tenant.leaves and not self.suspending.why_not(tenant),
            suspends=grow == "suspend",
        )
        self.idling: Idling[NodeTenant] = Idling(self, self.growth, self.suspending)
        self.wanted: Sequence[Need] = ()
        """What jobs need that wait to be started here, as the site knows."""

    # For the agent

    def look(self) -> None:
        """Take in new tenants, forget those that are gone, and do what is due; never blocks for long."""
        self._see()
        found = {
            name: tenant for name in _names() if self._mine(name) and (tenant := _read(name)) is not None
        }
        gone = [
            tenant
            for name, tenant in self._tenants.items()
            if (name in found and found[name].serial != tenant.serial)
            or not (
                name in found or (root_folder() / name).exists()
            )  # while it is being removed, it holds room
        ]
        for tenant in gone:
            self._forget(tenant)
        for name in found.keys() - self._tenants.keys():
            self._take(found[name])
        if gone:
            self.suspending.retry()
        for tenant in [*self._tenants.values()]:
            self._heed(tenant)
        self.growth.room_made()  # those that wait for memory come before those that come back
        for tenant in self._by_turn():
            self._let_follow(tenant)
            if tenant.resumes and not tenant.ordered and self._fits(tenant):
                self._keep(tenant, suspension=RESUMING)
        if self._grow == "suspend":
            self.idling.look()
        self.act()

    def suspend(self, name: str) -> None:
        """Have a tenant leave its GPUs until it is resumed. It stays if the driver cannot: then `Shown.why` says so,
        and it is tried again once it was resumed and suspended anew."""
        if (tenant := self._tenants.get(name)) is None:
            return
        if not tenant.ordered:
            self._keep(tenant, ordered=True, why="")
        elif tenant.sent_away:
            self._keep(tenant, sent_away=False)

    def resume(self, name: str) -> None:
        tenant = self._tenants.get(name)
        if tenant is not None and tenant.ordered and not tenant.sent_away:
            self._keep(tenant, ordered=False, resumes=True, why="")

    def keep_here(self, name: str, why: str) -> None:
        """Never again have a tenant leave its GPUs unless the site orders it; what is uncounted throttles it."""
        if (tenant := self._tenants.get(name)) is not None:
            self._keep(tenant, leaves=False)
            self.log("stays", job=tenant.job, why=why)

    def shown(self) -> list[Shown]:
        return [shown for tenant in self._tenants.values() if (shown := self._shown(tenant)) is not None]

    def close(self) -> None:
        """Leave what is under way to the next agent."""
        if self._seeing is not None:
            self._seeing.cancel()
        self.suspending.close()
        self.growth.close()
        os.close(self._alive)

    def _shown(self, tenant: NodeTenant) -> Shown | None:
        try:
            parts = find(tenant.id)
        except BerthError:
            return None
        asked, granted = sum(part.asked for part in parts), sum(part.granted for part in parts)
        return Shown(
            tenant.job,
            tuple(self.gpus[at].index for at in tenant.slots),
            tenant.said_mib,
            tenant.share[1],
            max(self.most_mib(tenant), tenant.share[1]),
            max(-(-part.used_bytes >> 20) for part in parts),
            asked,
            granted,
            sum(part.refused for part in parts),
            tenant.suspension,
            tenant.suspended_since_ms,
            tenant.parked_mib,
            tenant.why,
            tenant.idle and not tenant.resumes,
            tenant.uncounted or (found.text("it") if (found := self._uncounted.get(tenant.id)) else ""),
        )

    # Tenants come and go

    def _take(self, tenant: NodeTenant) -> None:
        folder = root_folder() / tenant.id
        regions = [uuid for uuid in regions_in(folder) if not tenant.uuids or uuid in tenant.uuids]
        if not regions:
            return  # it is being removed
        if not self._slots.keys() >= {*regions} or any(hardware_in(folder, uuid) for uuid in regions):
            # What hardware limits does not grow, and no driver suspends it.
            if not tenant.start:
                self._keep(tenant, start=1)  # `admit` waits no longer
            return
        tenant.slots = tuple(self._slots[uuid] for uuid in regions)
        self._tenants[tenant.id] = tenant
        self.log("tenant", name=tenant.id, job=tenant.job, mib=tenant.share[1])
        self._unthrottle(tenant)  # one that still evades is throttled again after two looks
        if tenant.idle or not tenant.suspension:
            self.growth.begin(tenant)
        self.suspending.take_over(tenant)
        self._keep(tenant, start=tenant.start + 1)

    def _forget(self, tenant: NodeTenant) -> None:
        tenant.going = False
        self.growth.end(tenant)
        del self._tenants[tenant.id]
        self.log("gone", name=tenant.id, job=tenant.job)

    def _heed(self, tenant: NodeTenant) -> None:
        """Begin what the site wants of a tenant."""
        if not tenant.ordered or tenant.why:
            return
        if tenant.idle:  # it leaves even if it calls CUDA again, and waits for the site
            self._keep(tenant, idle=False, resumes=False)
            if tenant.suspension == SUSPENDED:
                self.suspending.stand_still(tenant)
        if not tenant.suspension:
            if why := self.suspending.why_not(tenant):
                self._keep(tenant, why=why)
                self.log("stays", job=tenant.job, why=why)
                return
            self._begin_suspension(tenant, resumes=False)
        elif tenant.suspension == RESUMING:  # it leaves again as soon as it has come back
            self._keep(tenant, suspension=SUSPENDING, resumes=False)
        elif tenant.resumes:
            self._keep(tenant, resumes=False, lends_to="")

    def _by_turn(self) -> list[NodeTenant]:
        """The suspended tenants in the order in which they come back."""
        away = [tenant for tenant in self._tenants.values() if tenant.suspension == SUSPENDED]
        return sorted(away, key=lambda tenant: (-tenant.priority, tenant.serial))

    def _fits(self, tenant: NodeTenant) -> bool:
        """Whether there is room for a suspended tenant."""
        there = [room(self, at, [tenant]) for at in tenant.slots]
        return all(milli >= given_milli(tenant) and mib >= tenant.share[1] for milli, mib in there)

    def _let_follow(self, tenant: NodeTenant) -> None:
        """Let a tenant run on that left its GPUs so that another came back, once that one has, or has ended."""
        first = self._tenants.get(tenant.lends_to)
        if tenant.lends_to and not (tenant.resumes or tenant.ordered or (first and first.suspension)):
            self._keep(tenant, resumes=True)

    def _begin_suspension(
        self, tenant: NodeTenant, *, resumes: bool, lends_to: str = "", idle: bool = False
    ) -> None:
        self._keep(
            tenant,
            suspension=SUSPENDING,
            suspended_since_ms=time.time_ns() // 1_000_000,
            resumes=resumes,
            lends_to=lends_to,
            idle=idle,
        )

    def _awake(self, tenant: NodeTenant, why: str = "") -> None:
        changed = {"resumes": True, "lends_to": "", "idle": False, "stopped": False, "why": why}
        if tenant.had_pct is None:
            changed["uncounted"] = ""
        self._keep(tenant, suspension="", suspended_since_ms=None, **changed)

    def _keep(self, tenant: NodeTenant, **changed: object) -> None:
        """Write down what becomes of a tenant before it is done."""
        for name, value in changed.items():
            setattr(tenant, name, value)
        with room_kept(FILES):
            there = _read(tenant.id)
            if there is not None and there.serial == tenant.serial:  # else it has ended, or is another's
                with contextlib.suppress(FileNotFoundError):  # it ends now
                    _write(tenant)

    # What processes hold by NVML's word

    def _see(self) -> None:
        """Look in a thread, since a driver may hang."""
        now_s = time.monotonic()
        if (self._seeing is None or self._seeing.done()) and now_s - self._seen_s >= NVML_S:
            self._seen_s = now_s
            self._seeing = asyncio.get_running_loop().create_task(self._look_at_processes())

    async def _look_at_processes(self) -> None:
        try:
            before = regions()  # and after, since processes come and go
            held = await asyncio.to_thread(
                lambda: [bytes_of_processes(gpu.uuid, self._driver) for gpu in self.gpus]
            )
            busy = await asyncio.to_thread(self._busy_pids)
            here = regions()
        except (OSError, BerthError) as error:
            self.log("no-look", why=str(error))
            return
        ours = {pid for part in (*before, *here) for pid in _pids(part)}
        if not any(isinstance(part, Unreadable) for part in (*before, *here)):
            self._strangers = {
                at: sum(size for pid, size in each.items() if pid not in ours) >> 20
                for at, each in enumerate(held)
            }
        self._busy = frozenset(
            part.name
            for part in here
            if not isinstance(part, Unreadable) and not busy.isdisjoint(_pids(part))
        )
        counted = [
            self._counted(part, held[self._slots[part.uuid]])
            for part in here
            if not isinstance(part, Unreadable) and part.uuid in self._slots
        ]
        differences = sorted(self._reconciler.look(counted), key=lambda each: each.uncounted_mib)
        found = {each.name: each for each in differences}  # the largest of its GPUs
        for name in found.keys() - self._uncounted:
            self.log(
                "uncounted", job=name, seen_mib=found[name].seen_mib, counted_mib=found[name].counted_mib
            )
        self._uncounted = found
        for tenant in self.tenants():
            if tenant.id not in found:
                self._unthrottle(tenant)
            elif tenant.had_pct is None:
                self._answer_uncounted(tenant, found[tenant.id])

    def _answer_uncounted(self, tenant: NodeTenant, found: Difference) -> None:
        """Suspend it; throttle it if it must stay, or cannot be suspended for the reason that it shows."""
        if self._answer == "report" or tenant.suspension or (tenant.ordered and not tenant.why):
            return
        may_leave = tenant.leaves and not (tenant.sent_away and tenant.why)
        if self._answer == "suspend" and may_leave:
            self._keep(tenant, ordered=True, sent_away=True, why="", uncounted=found.text("it", "held"))
            return
        if tenant.sent_away:
            self._keep(tenant, sent_away=False)
        with contextlib.suppress(BerthError, IndexError):  # it ends now
            had = find(tenant.id)[0]
            stays = f", since it cannot be suspended: {tenant.why}" if tenant.why else ""
            text = found.text("it", throttled=stays)
            self._keep(tenant, had_pct=had.core_pct, had_burst=had.burst, uncounted=text)
            resize(tenant.id, core_pct=THROTTLED_PCT, burst=False)
            self.log("throttled", job=tenant.job, why=tenant.why)

    def _unthrottle(self, tenant: NodeTenant) -> None:
        if tenant.had_pct is not None and not tenant.suspension:  # else its limits come back with it
            with contextlib.suppress(BerthError):  # it ends now
                resize(tenant.id, core_pct=tenant.had_pct, burst=tenant.had_burst)
            self._keep(tenant, had_pct=None, uncounted="")

    def _busy_pids(self) -> set[int]:
        nvml, busy = open_nvml(self._driver), set[int]()
        for gpu in self.gpus:
            handle, since_us = handle_of(gpu.uuid, self._driver), self._busy_us.get(gpu.uuid, 0)
            took, self._busy_us[gpu.uuid] = busy_of_processes(nvml, handle, since_us)
            busy |= {pid for pid, pct in (took or {}).items() if pct > 0}
        return busy

    def _counted(self, part: Partition, held: Mapping[int, int]) -> Counted:
        pids, peak_mib = _pids(part), -(-part.peak_bytes >> 20)
        seen_mib = sum(held.get(pid, 0) for pid in pids) >> 20
        gpu = self.gpus[self._slots[part.uuid]]
        return Counted(part.name, gpu.index, part.limit_bytes >> 20, peak_mib, len(pids), seen_mib)

    # As the host of growth and suspension

    def tenants(self) -> list[NodeTenant]:
        return [*self._tenants.values()]

    def tenants_on(self, at: int) -> list[NodeTenant]:
        return [tenant for tenant in self._tenants.values() if at in tenant.slots]

    def partition_of(self, tenant: NodeTenant) -> str:
        return tenant.id

    def most_mib(self, tenant: NodeTenant) -> int:
        """What its terms say, else the card if all may grow; at least its promise, and no more than the card."""
        card_mib = min(self.gpus[at].mem_mib for at in tenant.slots)
        most_mib = tenant.max_mib or (0 if self._grow == "off" else card_mib)
        return max(min(most_mib, card_mib), tenant.said_mib)

    def others_mib(self, at: int) -> int:
        """What processes outside of partitions hold, and partitions that are no tenant's, as they are now."""
        uuid = plain_uuid(self.gpus[at].uuid)
        rest = (part for part in regions() if part.uuid == uuid and part.name not in self._tenants)
        card_mib = self.gpus[at].mem_mib
        held = (card_mib if isinstance(part, Unreadable) else part.limit_bytes >> 20 for part in rest)
        return self._strangers.get(at, 0) + sum(held)

    def uncounted_mib(self, tenant: NodeTenant) -> int:
        found = self._uncounted.get(tenant.id)
        return 0 if found is None else found.uncounted_mib

    def room_kept(self) -> contextlib.AbstractContextManager[None]:
        """Hold the lock that a process takes to make a partition."""
        return room_kept()

    def grown(self, tenant: NodeTenant, mem_mib: int) -> None:
        self._keep(tenant, share=(tenant.share[0], mem_mib))

    def lend(self, tenant: NodeTenant, to: NodeTenant) -> None:
        """Have it leave until there is room for both; if the other is suspended, that one comes back first."""
        self._begin_suspension(tenant, resumes=not to.suspension, lends_to=to.id)

    def let_resume(self, tenant: NodeTenant) -> None:
        self._keep(tenant, resumes=True)

    def application_of(self, tenant: NodeTenant) -> str:
        return tenant.application

    def is_busy(self, tenant: NodeTenant) -> bool:
        return tenant.id in self._busy

    def waiting(self) -> Sequence[Need]:
        return self.wanted

    def suspend_idle(self, tenant: NodeTenant) -> None:
        self._begin_suspension(tenant, resumes=False, idle=True)

    def away_ms(self, tenant: NodeTenant) -> int:
        return time.time_ns() // 1_000_000 - (tenant.suspended_since_ms or 0)

    def act(self) -> None:
        for tenant in self.tenants():
            if tenant.suspension in (SUSPENDING, RESUMING):
                self.suspending.move(tenant)

    def moves(self, tenant: NodeTenant) -> None:
        """What the site has stopped goes on, since the driver moves only what runs."""
        if tenant.suspension == SUSPENDING and any(map(is_stopped, self._pids_of(tenant))):
            self._keep(tenant, stopped=True)
            self.signal(tenant, signal.SIGCONT)

    def signal(self, tenant: NodeTenant, number: int) -> None:
        for pid in self._pids_of(tenant):
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    def _pids_of(self, tenant: NodeTenant) -> set[int]:
        with contextlib.suppress(BerthError):
            return set().union(*map(_pids, find(tenant.id)))
        return set()

    def left_mib(self, tenant: NodeTenant) -> int | None:
        """By the groups of its processes; the least counts."""
        left = [mib for pid in self._pids_of(tenant) for mib in _left_of_groups(pid)]
        return min(left, default=None)

    def left_gpus(self, tenant: NodeTenant, parked_mib: int) -> None:
        if tenant.suspension == SUSPENDING:
            self._keep(tenant, suspension=SUSPENDED, parked_mib=parked_mib)

    def stayed(self, tenant: NodeTenant) -> None:
        """Let it run on, and say why."""
        if tenant.suspension == SUSPENDING:
            why = self.suspending.refusals.get(tenant.id, "the driver gave no answer")
            stopped = tenant.stopped
            self._awake(tenant, why if tenant.ordered else "")
            if stopped:
                self.signal(tenant, signal.SIGSTOP)

    def came_back(self, tenant: NodeTenant) -> None:
        if tenant.suspension == RESUMING:
            self._awake(tenant)

    def kept_off(self, tenant: NodeTenant) -> None:
        if tenant.suspension == RESUMING:
            self._keep(tenant, suspension=SUSPENDED)

    def lost(self, tenant: NodeTenant) -> None:
        """Kill its processes, which never go on; the site sees that the job has failed."""
        self._awake(tenant, "the driver has lost what it held")
        tenant.going = False
        self.signal(tenant, signal.SIGKILL)

    def moved(self) -> None:
        """A tenant has left its GPUs or come back: those that wait for that go on."""
        self.growth.room_made()
        self.suspending.retry()


def _pids(part: Partition | Unreadable) -> set[int]:
    found = () if isinstance(part, Unreadable) else part.processes
    return {process.outer_pid or process.pid for process in found}


def _alone(root: Path) -> int:
    """The descriptor of the file that this agent has locked. PartitionError if another has."""
    held = os.open(root / ALIVE, _MAKES, 0o600)
    for _ in range(ALONE_TRIES):  # who asks whether an agent lives has the lock for a moment
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return held
        time.sleep(LOOK_S / 10)
    os.close(held)
    raise PartitionError(f"another agent serves the partitions of {root}; end it first")


def _names() -> list[str]:
    return sorted(path.parent.name for path in root_folder().glob(f"[!.]*/{FILE}"))


_KEPT = [each.name for each in fields(NodeTenant) if each.name not in ("going", "slots")]


def _write(tenant: NodeTenant) -> None:
    values = {name: value for name, value in asdict(tenant).items() if name in _KEPT}
    write_whole(root_folder() / tenant.id / FILE, json.dumps(values))


def _read(name: str) -> NodeTenant | None:
    """The tenant of a partition; None if that has just gone."""
    try:
        values = json.loads((root_folder() / name / FILE).read_text(encoding="utf-8"))
        return NodeTenant(**{**values, "share": tuple(values["share"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _left_of_groups(pid: int) -> Iterator[int]:
    """What each cgroup that a process is in may still take of the machine's memory, in MiB."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            number, kinds, group = line.split(":", 2)
            if number != "0" and "memory" not in kinds.split(","):
                continue
            top, most, now = (
                ("/sys/fs/cgroup", "memory.max", "memory.current")
                if number == "0"
                else ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            )
            folder = Path(top + group)
            while folder != Path(top):
                with contextlib.suppress(OSError, ValueError):
                    limit, used = (int((folder / name).read_text()) for name in (most, now))
                    yield max(0, limit - used) >> 20
                folder = folder.parent
