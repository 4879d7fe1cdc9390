"""The steerer on a cluster: listens, has the driver decide, lifts gates, and tells why the rest waits."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from berth.errors import ApiError
from berth.knowledge import History, Knowledge, make_knowledge
from berth.live.driver.driver import Driver, Round
from berth.live.driver.renewing import Renewal
from berth.live.driver.right_size import enough
from berth.live.driver.wait_reasons import WaitKind
from berth.live.driver.warming import warm_up
from berth.live.kubernetes import names, objects, writing
from berth.live.kubernetes.client import Api, Informer, backoff_s
from berth.live.kubernetes.lease import Leadership
from berth.live.kubernetes.pod_site import Entry, PodSite, Settings, State
from berth.live.kubernetes.steps import Evict, Lift, Patch, PodEvent, Step
from berth.live.kubernetes.tenants import TenantsWatch
from berth.model import Job, Share

T = TypeVar("T")

log = logging.getLogger(__name__)

WRITERS = 48
"""Requests under way at once: beyond that an API server on two cores gets no faster."""
MOST_ATTEMPTS = 5
PAUSE_S = 0.02
"""Time between two decisions: in a burst, what has happened meanwhile is decided on at once. After a longer rest the
next decision waits for nothing."""
SLICE_S = 0.5
"""Time of deciding after which what has happened meanwhile is taken in."""
REPORT_S = 0.5
REPORT_BATCH = 25
"""Pods whose reasons are written each `REPORT_S`, and as many events; two fewer for each gate lifted in that time."""
BUSY_BATCH, BUSY_ROUNDS = 5, 10
"""The least that is written, and then only in every tenth round, while many gates are lifted."""
MOST_EXPLAINED = 1000
"""Waiting pods whose reasons are looked for at once."""
FORECAST_S = 0.3
"""The time that start intervals may take before wait reasons are found."""
QUIET_MS = 1000
"""A pod that waits for less than this is not explained."""
REFRESH_S = 60.0
"""Time after which a reason that has changed in its numbers alone is written again."""
RESTARTS_S = 1.0
ALIVE_S = 10.0
WITHOUT_POD_GROUPS = (
    "pods of PodGroups wait, and all others are placed; give berth the rule: berth k8s install"
)
_NUMBERS = re.compile(r"; (?:expected to start|start unknown)[^;]*|[\d.,:]+")


@dataclass(frozen=True)
class Options:
    settings: Settings = field(default_factory=Settings)
    once: bool = False
    """Decide until nothing more can start, lift those gates, and stop."""
    identity: str = "berth"
    namespace: str = names.NAMESPACE
    """Of the Lease."""
    elect: bool = True
    """Whether another steerer may run, so that one of them is to be elected."""
    alive_file: Path | None = None
    """Touched every `ALIVE_S` while it can decide, elected or not: a liveness probe looks at its age."""
    own_process: bool = False
    """Whether the process does nothing else, so that its garbage collector and threads may be set to suit it."""


@dataclass
class Counts:
    placed: int = 0
    advised: int = 0
    evicted: int = 0
    failed: int = 0


class Steering:
    """One steerer; `run` ends when it is cancelled, or with `once` when it is done."""

    def __init__(self, api: Api, options: Options) -> None:
        """Raises BerthError if there is no such policy or knowledge."""
        self.api = api
        self.options = options
        self.counts = Counts()
        self._settings = options.settings
        self.renewal = Renewal(self._settings.knowledge)
        self._knowledge = make_knowledge(self._settings.knowledge, grows=True)
        if isinstance(self._knowledge, History) and self._settings.right_size != "apply":
            self._knowledge.show_no_profiles()
        policy, advise = self._settings.policy, self._settings.advise
        self.lease = Leadership(api, options.namespace, names.LEASE, options.identity, policy, advise=advise)
        self._events = writing.Events(api, "berth")
        self._now_ms = steady_clock()
        self._thread = ThreadPoolExecutor(1, "decide")
        if options.own_process:
            sys.setswitchinterval(0.001)
            gc.set_threshold(100_000, 50, 50)
        self._using_site = asyncio.Lock()
        self._generation = 0  # of the site: one a lease
        self._reset()

    def _reset(self) -> None:
        """Begin anew: all that is known comes from the cluster."""
        self._inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._wake = asyncio.Event()
        self._steps: asyncio.Queue[Step] = asyncio.Queue()
        self._held: list[Lift] = []
        self._stay: dict[str, ApiError] = {}  # pods that could not be evicted (`once`)
        self._under_way: set[str] = set()
        self._reported: dict[str, tuple[str, str, float]] = {}
        self._advised: dict[str, str] = {}  # pods that would be placed, and where
        self._turn = 0
        self._generation += 1
        self.site = PodSite(self._settings, partial(self._hand_out, self._generation))
        self.driver = Driver(self.site, driving(self._settings), self._knowledge)
        self.site.ran_out = self._ran_out
        self.site.enough = partial(enough_for, self.site, self._knowledge)
        self.site.with_room = partial(nodes_with_room, self.driver)

    def _ran_out(self, job: Job, held_mib: int) -> None:
        if self._knowledge.learns:
            self._knowledge.ran_out_of_memory(job, held_mib)

    async def run(self) -> None:
        """Warm up, be elected, lead; begin anew when the lease is lost, or tenants have other quotas."""
        self._loop = asyncio.get_running_loop()
        alive = asyncio.create_task(self._show_life(), name="alive")
        try:
            await self._run()
        finally:
            alive.cancel()

    async def _show_life(self) -> None:
        while self.options.alive_file is not None:
            await self._in_thread(self.options.alive_file.touch)  # a decision that hangs holds the thread
            await asyncio.sleep(ALIVE_S)

    async def _run(self) -> None:
        knowledge = make_knowledge(self._settings.knowledge, grows=True)
        await self._loop.run_in_executor(None, warm_up, self._settings.policy, knowledge)
        while True:
            if self.options.elect:
                await self.lease.acquire()
            try:
                while (done := await self._lead()) is None:
                    self._reset()
                if done:
                    return
            finally:
                if self.options.elect:
                    await self.lease.release()
            await asyncio.sleep(RESTARTS_S)
            self._reset()

    async def _lead(self) -> bool | None:
        """Decide and do until the lease is lost; True if all is done (`once`), None if the tenants have changed."""
        tasks: list[asyncio.Task[Any]] = []

        def begin(work: Any, name: str) -> asyncio.Task[Any]:
            task = asyncio.create_task(work, name=name)
            tasks.append(task)
            return task

        try:
            if self.options.elect:
                begin(self.lease.keep(), "lease")
            watch = TenantsWatch(self.api, self.options.namespace, self._settings.policy)
            begin(watch.report(), "report tenants")
            await until_listed(watch.informer, begin(watch.informer.run(), "tenants"))
            now, before = watch.tenants, self._settings
            self._settings = replace(before, quotas=now.quotas, borrow=now.borrow, reclaim=now.reclaim)
            if self._settings != before:
                self._reset()
            watch.changed.clear()
            self.site.learned_starts = self.lease.learned_starts
            listing = begin(self._listen(begin), "listen")
            if await self._first_of(tasks) is not listing:
                return False
            tasks.remove(listing)
            if self.options.own_process:
                gc.collect()
                gc.freeze()
            self._wake.set()
            for number in range(WRITERS):
                begin(self._write_all(), f"write {number}")
            begin(self._report_all(), "report")
            begin(self.renewal.follow(self._on(self._renew)), "renew")
            deciding = begin(self._decide_all(), "decide")
            changed = begin(watch.changed.wait(), "tenants change")
            first = await self._first_of(tasks)
            return None if first is changed else first is deciding
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _in_thread(self, what: Callable[[], T]) -> T:
        """Have the site and the driver do something in their thread, while nothing else uses them."""
        async with self._using_site:
            return await self._loop.run_in_executor(self._thread, what)

    @staticmethod
    async def _first_of(tasks: list[asyncio.Task[Any]]) -> asyncio.Task[Any]:
        """The first task to end. What it raises is raised here: none of them may fail unseen."""
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        return done.pop()

    # What happens

    async def _listen(self, begin: Callable[[Any, str], Any]) -> None:
        """List and watch; returns when all was listed once. What was listed waits in the inbox, the nodes before the
        pods, and pods in the order in which they were made."""
        pods = Watched("/api/v1/pods", objects.Pod, self._pod_changed, self._pod_gone)
        listed = [
            Informer(
                self.api,
                each.path,
                each.kind,
                changed=self._on(each.changed),
                gone=self._on(each.gone),
                without=each.without,
            )
            for each in [*await watched(self.api, self.site, self._now_ms), pods]
        ]
        self.pods = listed[-1]
        tasks = {informer: begin(informer.run(), informer.path) for informer in listed}
        for informer, task in tasks.items():
            await until_listed(informer, task)

        def at(item: tuple[Callable[..., None], tuple[Any, ...]]) -> tuple[bool, str]:
            is_of_pod = item[0] == self._pod_changed
            return is_of_pod, item[1][0].metadata.creation_timestamp or "" if is_of_pod else ""

        if not any(what == self._pod_gone for what, _ in self._inbox):
            self._inbox = deque(sorted(self._inbox, key=at))

    def _on(self, what: Callable[..., None]) -> Callable[[Any], None]:
        def note(thing: Any) -> None:
            self._inbox.append((what, (thing,)))
            self._wake.set()

        return note

    def _pod_changed(self, pod: objects.Pod) -> None:
        self.site.pod_changed(pod, self._now_ms())

    def _pod_gone(self, pod: objects.Pod) -> None:
        self.site.pod_gone(pod, self._now_ms())
        self._reported.pop(pod.metadata.uid, None)

    def _renew(self, seen: History) -> None:
        """The history has grown: pods that wait are decided on by what it knows by now."""
        if isinstance(self._knowledge, History):
            self._knowledge.renew(seen)
            self.site.profiles_grew()

    # What is decided

    async def _decide_all(self) -> None:
        """Decide whenever something has happened, or when the policy or a gang wants to be asked."""
        ended_s = 0.0
        while True:
            await self._until_woken()
            await asyncio.sleep(max(0.0, ended_s + PAUSE_S - time.monotonic()))
            self._wake.clear()
            done = await self._in_thread(self._step)
            ended_s = time.monotonic()
            self._release_held()
            if done is None:
                pass
            elif done.fault is not None:
                if self.options.once:
                    raise done.fault
                log.error("%s", done.fault)
                await asyncio.sleep(RESTARTS_S)
                self.site.stirred = True
                self._wake.set()
            elif done.out_of_time or self.site.has_news:
                self.site.stirred = True
                self._wake.set()
            if self.options.once and self._is_idle():
                return

    def _step(self) -> Round | None:
        """Take in what has happened and decide; None if nothing has that matters."""
        site, driver = self.site, self.driver
        inbox, now_ms = self._inbox, self._now_ms()
        while inbox:
            what, things = inbox.popleft()
            what(*things)
        due = [ms for ms in (driver.next_ms(0), site.next_ms()) if ms is not None and ms <= now_ms]
        if driver.begun and not due and not site.has_news:
            return None
        site.refresh(now_ms)
        end_s = time.monotonic() + SLICE_S
        done = driver.step(
            now_ms,
            out_of_time=lambda: time.monotonic() > end_s and bool(inbox),
            for_real=not self._settings.advise,
        )
        self.lease.learned_starts = site.learned_starts
        for refused in done.refused:
            log.warning("%s", refused)
        if self._settings.advise:
            self._advise(done)
        else:
            site.displace(driver.unplaced, driver.free_on)
            site.cannot_hold(driver.misfits)
        switch_cards(site, driver)
        return done

    def _advise(self, done: Round) -> None:
        """Say where pods would go, and which would be evicted."""
        self._advised = advice(self.driver, self._settings.policy, done)
        evicted = dict.fromkeys(done.evicted, f"it would be evicted: {self._settings.why_evicted}")
        for uid, message in {**self._advised, **evicted}.items():
            entry, (kind, before, _) = self.site.entries.get(uid), self._reported.get(uid, ("", "", 0.0))
            if entry is not None and (kind, before) != ("Advised", message):
                self._reported[uid] = "Advised", message, time.monotonic()
                self.counts.advised += 1
                self._hand_out(self._generation, PodEvent(*entry.key, "Advised", message, False))

    def _hand_out(self, generation: int, step: Step) -> None:
        """Have something done; called from the thread that decides."""
        self._loop.call_soon_threadsafe(self._take, generation, step)

    def _take(self, generation: int, step: Step) -> None:
        if generation != self._generation:
            return  # decided under a lease that was lost: the thread cannot be stopped amid a decision
        if isinstance(step, PodEvent):
            self._events.add(step)
        elif isinstance(step, Lift) and step.after:
            self._held.append(step)
        else:
            self._under_way.add(step.uid)
            self._steps.put_nowait(step)

    def _release_held(self) -> None:
        """Let those gates be lifted whose place is empty now."""
        held, self._held = self._held, []
        for step in held:
            there = [uid for uid in step.after if self.site.holds(uid)]
            stays = next((self._stay[uid] for uid in there if uid in self._stay), None)
            if stays is not None:
                self._fail(step, f"the pod whose place it takes cannot be evicted: {stays}")
            elif there:
                self._held.append(step)
            else:
                at_ms = self._now_ms() if step.placed.at_ms else 0  # not when that was decided
                placed = msgspec.structs.replace(step.placed, at_ms=at_ms)
                self._take(self._generation, step._replace(after=frozenset(), placed=placed))

    def _is_idle(self) -> bool:
        """Whether nothing is under way or to be done at once."""
        return not (
            self._under_way or self._held or self._inbox or self.site.has_news or not self._steps.empty()
        )

    async def _until_woken(self) -> None:
        times = [ms for ms in (self.driver.next_ms(self._now_ms()), self.site.next_ms()) if ms is not None]
        wait_s = max(0.001, (min(times) - self._now_ms()) / 1000) if times else None
        if self.options.once:
            wait_s = min(wait_s or 1.0, 0.05)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._wake.wait()

    # What is done

    async def _write_all(self) -> None:
        while True:
            step = await self._steps.get()
            try:
                await self._write(step)
            finally:
                self._under_way.discard(step.uid)
                self._wake.set()

    async def _write(self, step: Step) -> None:
        """Do one step; what cannot be done now is attempted again, with `once` not for ever. A steerer that no longer
        leads does nothing."""
        attempt = 0
        while True:
            if self.options.elect:
                await self.lease.until_held()
            try:
                await self._write_once(step)
                return
            except ApiError as error:
                if isinstance(step, Lift) and (
                    attempt >= MOST_ATTEMPTS or (error.retry_after_s is None and error.status != 409)
                ):
                    log.warning("%s/%s: %s", step.namespace, step.name, error)
                    self._fail(step, f"its gate is not lifted: {error}")
                    return
                if self.options.once and attempt >= MOST_ATTEMPTS:
                    log.warning("%s/%s: %s", step.namespace, step.name, error)
                    self.counts.failed += 1
                    if isinstance(step, Evict):
                        self._stay[step.uid] = error
                    return
                passes = error.retry_after_s is not None  # such as a disruption budget
                log.log(logging.INFO if passes else logging.WARNING, "%s/%s: %s", *step[1:3], error)
                pause_s = backoff_s(attempt, most_s=10 if isinstance(step, Lift) else 60)
                await asyncio.sleep(max(error.retry_after_s or 0.0, pause_s))
                attempt += 1
            if step.uid not in self.site.entries:
                return

    async def _write_once(self, step: Step) -> None:
        if isinstance(step, Lift):
            try:
                await writing.place(self.api, step)
            except writing.Taken as error:
                log.info("%s/%s: %s", step.namespace, step.name, error)
                self._fail(step, "")
                return
            self.counts.placed += 1
            self._reported.pop(step.uid, None)
            self._events.add(PodEvent(*step[:3], "Placed", writing.in_words(step), False))
        elif isinstance(step, Patch):
            if await writing.patch(self.api, step) and step.event is not None:
                self._events.add(step.event)
        elif isinstance(step, Evict):
            await writing.evict(self.api, step)
            self.counts.evicted += 1
            self._events.add(PodEvent(*step[:3], step.reason, step.why))

    def _fail(self, step: Lift, why: str) -> None:
        self.counts.failed += 1
        self._inbox.append((self.site.start_failed, (step.uid, why)))
        self._wake.set()

    # What is told

    async def _report_all(self) -> None:
        """Write events and reasons, a few at a time, and fewer while gates are lifted."""
        for number in count():
            placed = self.counts.placed
            await asyncio.sleep(REPORT_S)
            most = REPORT_BATCH - 2 * (self.counts.placed - placed)
            if most < BUSY_BATCH and number % BUSY_ROUNDS:
                continue
            most = max(BUSY_BATCH, most)
            try:
                await self._report_waits(most)
                await self._events.write(most)
            except ApiError as error:
                self._events.unwritten(error)

    async def _report_waits(self, most: int) -> None:
        for tell, kind in await self._in_thread(lambda: self._reasons(most)):
            entry = self.site.entries.get(tell.uid)
            if entry is None or not self._owns_condition(entry):
                continue  # placed since
            is_new = self._reported.get(tell.uid, ("", "", 0.0))[0] != kind
            version = "" if entry.pod is None else entry.pod.metadata.resource_version
            # A pod that is bound has another condition.
            may_tell = not self._settings.advise and (not entry.node or entry.state is State.LIFTED)
            if may_tell and not await writing.note_waiting(self.api, tell, version):
                continue
            self._reported[tell.uid] = kind, tell.message, time.monotonic()
            if is_new:
                self._events.add(tell)

    def _owns_condition(self, entry: Entry) -> bool:
        """Whether the condition of a pod is berth's to write."""
        return entry.state in (State.HELD, State.WAITING) or self.site.is_reported_silent(entry)

    def _reasons(self, most: int) -> list[tuple[PodEvent, str]]:
        """The reasons that are to be written now, each with what it says without its numbers: those that are new, or
        were written long ago."""
        now_ms, now_s = self._now_ms(), time.monotonic()
        waits = [
            each
            for each in self.site.waits()
            if self._owns_condition(each)
            and each.uid not in self._advised
            and (each.state is not State.WAITING or now_ms - each.submit_ms >= QUIET_MS)
        ]
        if not waits or not self.driver.begun:
            return []
        entries = sorted(waits, key=lambda each: each.order)
        first = self._turn % max(1, len(entries))
        explained = [*entries[first:], *entries[:first]][:MOST_EXPLAINED]
        end_s = now_s + FORECAST_S
        self.driver.forecast(now_ms, out_of_time=lambda: time.monotonic() > end_s)
        found = waits_of(self.site, self.driver, explained)
        due: list[tuple[PodEvent, str]] = []
        for entry in explained:
            self._turn += 1
            message = found[entry.uid]
            kind = _NUMBERS.sub("", message)
            known, before, reported_s = self._reported.get(entry.uid, ("", "", -1e9))
            if kind == known and (message == before or now_s - reported_s < REFRESH_S):
                continue
            reason = "Waits" if entry.state is State.WAITING else "Held"
            due.append((PodEvent(*entry.key, reason, message), kind))
            if len(due) >= most:
                break
        return due


class Watched(NamedTuple):
    """One kind of objects, and what a site does with each."""

    path: str
    kind: type[Any]
    changed: Callable[[Any], None]
    gone: Callable[[Any], None]
    without: str = ""
    """What a site lacks that may not list them; empty: it cannot do without."""


async def watched(api: Api, site: PodSite, now_ms: Callable[[], int]) -> list[Watched]:
    """All that a site listens to but pods, as far as the cluster serves it."""
    found = [
        Watched("/api/v1/nodes", objects.Node, lambda node: site.node_changed(node, now_ms()), site.node_gone)
    ]
    for group in (names.PLUGINS_GROUP, names.OWN_GROUP):
        if (served := await pod_groups(api, group)) is not None:

            def changed(item: objects.PodGroup, *, group: str = group, gone: bool = False) -> None:
                site.pod_group_changed(group, item, now_ms(), gone=gone)

            gone = partial(changed, gone=True)
            found.append(Watched(served, objects.PodGroup, changed, gone, WITHOUT_POD_GROUPS))
    return found


async def until_listed(informer: Informer[Any], task: asyncio.Task[None]) -> None:
    """Wait until all was listed once; raises what the informer raises."""
    listed = asyncio.ensure_future(informer.synced.wait())
    await asyncio.wait([listed, task], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        listed.cancel()
        task.result()


async def pod_groups(api: Api, group: str) -> str | None:
    """The path of the PodGroups of an API group, in the version that the server prefers; None where it has none."""
    served = await api.find(f"/apis/{group}", dict[str, Any], patience_s=30)
    for each in () if served is None else served.get("versions", ()):
        version = f"{group}/{each['version']}"
        if "podgroups" in await api.kinds(version):
            return f"/apis/{version}/podgroups"
    return None


def steady_clock() -> Callable[[], int]:
    """Return a clock in ms since 1970 that never runs back: the time now, advanced by the monotonic clock."""
    begun_ns = time.time_ns() - time.monotonic_ns()
    return lambda: (begun_ns + time.monotonic_ns()) // 1_000_000


def driving(settings: Settings) -> Settings:
    # The records of nodes name no virtual cluster, and quotas are compared with those that records name.
    return settings if settings.quotas is None else replace(settings, quotas={**settings.quotas, "": 0})


def enough_for(site: PodSite, knowledge: Knowledge, job: Job) -> Share | None:
    """What is enough for a job by its profile, if it asks for more and all cards are like the profile's."""
    cards = {card for card in site.table.cards.models if not job.models or card.name in job.models}
    return enough(knowledge, job, cards) if isinstance(knowledge, History) else None


def nodes_with_room(driver: Driver, job_id: str) -> list[str]:
    job, cluster = driver.job(job_id), driver.scheduler.cluster
    return [] if job is None else [cluster.nodes[row].name for row in cluster.fitting_nodes(job)]


def switch_cards(site: PodSite, driver: Driver) -> None:
    """Let pods that ask for a part of a card's memory look for another kind of card if theirs has no room."""
    cluster = driver.scheduler.cluster
    if len(site.table.cards.sizes_mib) < 2:
        return
    for job in [job for job in driver.scheduler.queue if not job.tasks][:MOST_EXPLAINED]:
        if not len(cluster.fitting_nodes(job)):
            site.look_for_other_card(job, lambda other: bool(len(cluster.fitting_nodes(other))))


def advice(driver: Driver, policy: str, done: Round) -> dict[str, str]:
    """Where the policy places pods, in words, by their uid."""
    nodes, found = driver.scheduler.cluster.nodes, {}
    for placement in done.placed:
        where = ", ".join(
            f"node {nodes[slot.node].name}" + (f", GPU {slot.index}" if slot.index >= 0 else "")
            for slot in placement.slots
        )
        found[placement.job.id] = f"{policy} places it on {where}"
    return found


def waits_of(site: PodSite, driver: Driver, entries: Collection[Entry]) -> dict[str, str]:
    asked = [each.uid for each in entries if each.state is State.WAITING]
    reasons, found = driver.reasons(asked), dict[str, str]()
    for entry in entries:
        reason = reasons.get(entry.uid)
        if reason is None:
            soon = "it is about to be looked at"
            if entry.state is State.STRAY:
                soon = "kube-scheduler may bind it, and has not yet"
            if driver.begun and entry.uid in driver.scheduler.cluster.running:
                soon = "it starts when those whose place it takes have left"
            found[entry.uid] = entry.why or soon
            continue
        text = _UID.sub(
            lambda uid: site.entries[uid[0]].title if uid[0] in site.entries else uid[0], reason.text
        )
        if reason.kind in (WaitKind.NODES, WaitKind.MISFIT):
            text = f"no node can hold it: {site.lacks(entry) or 'others use too much of each'}"
        found[entry.uid] = f"{entry.why}; {text}" if entry.why and entry.why not in text else text
    return found


_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
