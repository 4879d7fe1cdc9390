"""The scheduler on a cluster: listens, asks the board what to do, does it, and tells why the rest waits."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from berth.errors import ApiError, BerthError
from berth.live.kubernetes import names, objects, writing
from berth.live.kubernetes.board import Board
from berth.live.kubernetes.client import Api, backoff_s
from berth.live.kubernetes.clock import steady_clock
from berth.live.kubernetes.entries import WAITS, Settings, State, waiting
from berth.live.kubernetes.informer import Informer
from berth.live.kubernetes.lease import Leadership
from berth.live.kubernetes.listening import listeners, until_listed
from berth.live.kubernetes.placements import placed_of
from berth.live.kubernetes.reasons import Reason, Reasons
from berth.live.kubernetes.renewing import Renewal
from berth.live.kubernetes.steps import Bind, Step, Stop, Tell
from berth.live.kubernetes.warming import warm_up

T = TypeVar("T")

log = logging.getLogger(__name__)

BINDERS = 48
"""Binds under way at once: beyond that an API server on two cores gets no faster."""
MOST_UNBOUND = 4 * BINDERS
"""Decisions that wait for a binder; while there are as many, nothing more is decided."""
SLICE_S = 0.5
"""Time of deciding after which what has happened meanwhile is taken in."""
MOST_SLICE_S = 10.0
"""The same for a policy that thinks long."""
BREATH_S, AT_ONCE = 0.004, 64
"""Time of deciding, or steps, after which these are handed out."""
TELL_S = 0.5
TOLD_AT_ONCE = 25
"""Pods whose reasons are written each `TELL_S`, and as many events."""
TOLD_WHILE_BUSY, BUSY_TELL_S = 5, 5.0
"""The same while pods wait to be bound: each of these costs the server as much as a bind."""
EXPLAIN_S = 0.05
"""The longest time that reasons are looked for without a break."""
STOPPERS = 8
"""Deletions under way at once."""
QUIET_MS = 1000
"""A pod that waits for less than this is not explained."""
AGAIN_S = 60.0
"""Time after which a reason that has changed in its numbers alone is written again."""
RESTARTS_S = 1.0


@dataclass(frozen=True)
class Options:
    """How a scheduler runs."""

    settings: Settings = field(default_factory=Settings)
    advise: bool = False
    """Say in events what would be done, and bind nothing."""
    once: bool = False
    """Decide until nothing more can start, bind that, and stop."""
    identity: str = "berth"
    namespace: str = names.NAMESPACE
    """Of the Lease."""
    elect: bool = True
    """Whether another scheduler may run, so that one of them is to be elected."""
    own_process: bool = False
    """Whether the process does nothing else, so that its garbage collector and threads may be set to suit it."""


@dataclass
class Counts:
    """What a scheduler has done since it began."""

    bound: int = 0
    advised: int = 0
    stopped: int = 0
    failed: int = 0
    first_bind_s: float = 0.0
    """From the beginning to the first pod bound."""


class Scheduling:
    """One scheduler; `run` ends when it is cancelled, or with `once` when it is done."""

    def __init__(self, api: Api, options: Options) -> None:
        self.api = api
        self.options = options
        self.counts = Counts()
        self._settings = replace(options.settings, advise=options.advise)
        self.renewal = Renewal(self._settings.knowledge)
        self.board = Board(self._settings)
        self.lease = Leadership(api, options.namespace, names.LEASE, options.identity)
        self._events = writing.Events(api, options.settings.scheduler_name)
        self._began_s = time.monotonic()
        self._now_ms = steady_clock()
        self._thread = ThreadPoolExecutor(1, "decide")
        if options.own_process:
            sys.setswitchinterval(0.001)
            gc.set_threshold(100_000, 50, 50)
        self._using_board = asyncio.Lock()
        self._reset()

    def _reset(self) -> None:
        self._inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._wake = asyncio.Event()
        self._binds: asyncio.Queue[Bind] = asyncio.Queue(MOST_UNBOUND)
        self._held: list[Bind] = []
        self._under_way: set[str] = set()
        self._stops: asyncio.Queue[tuple[Stop, int]] = asyncio.Queue()
        self._stopping: set[str] = set()
        self._told: dict[str, tuple[str, str, float]] = {}
        self._turn = 0

    async def run(self) -> None:
        """Warm up, be elected, lead; begin anew when the lease is lost."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, warm_up, self.options.settings)
        while True:
            if self.options.elect:
                await self.lease.acquire()
            try:
                if await self._lead():
                    return
            finally:
                if self.options.elect:
                    await self.lease.release()
            await asyncio.sleep(RESTARTS_S)
            self.board = Board(self._settings)
            self._reset()

    async def _lead(self) -> bool:
        """Decide and do until the lease is lost; True if all is done (`once`)."""
        tasks: list[asyncio.Task[Any]] = []

        def begin(work: Any, name: str) -> asyncio.Task[Any]:
            task = asyncio.create_task(work, name=name)
            tasks.append(task)
            return task

        try:
            if self.options.elect:
                begin(self.lease.keep(), "lease")
            listing = begin(self._listen(begin), "listen")
            if await self._first_of(tasks) is not listing:
                return False
            tasks.remove(listing)
            parts = self.board.begin_in_parts(self._now_ms())
            while await self._in_thread(lambda: next(parts, self) is not self):
                pass  # the lease is renewed meanwhile
            if self.options.own_process:
                gc.collect()
                gc.freeze()
            self._wake.set()
            for number in range(BINDERS):
                begin(self._bind_all(), f"bind {number}")
            for number in range(STOPPERS):
                begin(self._stop_all(), f"stop {number}")
            begin(self._tell_all(), "tell")
            begin(self.renewal.follow(self._on(self.board.renew)), "renew")
            deciding = begin(self._decide_all(), "decide")
            return await self._first_of(tasks) is deciding
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _in_thread(self, what: Callable[[], T]) -> T:
        """Have the board do something in its thread, while nothing else uses it."""
        async with self._using_board:
            return await asyncio.get_running_loop().run_in_executor(self._thread, what)

    @staticmethod
    async def _first_of(tasks: list[asyncio.Task[Any]]) -> asyncio.Task[Any]:
        """The first task to end. What it raises is raised here: none of them may fail unseen."""
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        return done.pop()

    # What happens

    async def _listen(self, begin: Callable[[Any, str], Any]) -> None:
        """List and watch; returns when all was listed once, the nodes before the pods."""
        board = self.board
        others = await listeners(self.api, board, self._on)
        self.pods = Informer(
            self.api,
            "/api/v1/pods",
            objects.Pod,
            changed=self._on(self._pod_changed),
            gone=self._on(self._pod_gone),
        )
        listed = [*others, self.pods]
        tasks = {informer: begin(informer.run(), informer.path) for informer in listed}
        for informer, task in tasks.items():
            await until_listed(informer, task)
        # All were listed at once; pods are told last, when their nodes are known.
        inbox = [*self._inbox]
        self._inbox.clear()
        for pods in (False, True):
            for what, things in inbox:
                if (what in (self._pod_changed, self._pod_gone)) is pods:
                    what(*things)
            if not pods:
                board.sync_nodes(self._now_ms())

    def _on(self, what: Callable[..., None]) -> Callable[[Any], None]:
        def note(thing: Any) -> None:
            self._inbox.append((what, (thing,)))
            self._wake.set()

        return note

    def _pod_changed(self, pod: objects.Pod) -> None:
        self.board.pod_changed(pod, self._now_ms())

    def _pod_gone(self, pod: objects.Pod) -> None:
        self.board.pod_gone(pod, self._now_ms())
        self._told.pop(pod.metadata.uid, None)

    def _apply_inbox(self) -> None:
        inbox = self._inbox
        while inbox:
            what, things = inbox.popleft()
            what(*things)

    # What is decided

    async def _decide_all(self) -> None:
        """Decide whenever something has happened, or when the policy or a gang wants to be asked."""
        while True:
            await self._until_woken()
            self._wake.clear()
            async with self._using_board:
                self._apply_inbox()
            await self._release_held()
            whole = not self.board.has_news(self._now_ms()) or await self._decide_for_a_while()
            if not whole:
                self.board.decide_again()
                self._wake.set()
            elif self.options.once and not self._inbox and await self._all_bound():
                return

    async def _until_woken(self) -> None:
        wake_ms = self.board.next_wake_ms(self._now_ms())
        if wake_ms is None:
            await self._wake.wait()
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), max(0.001, (wake_ms - self._now_ms()) / 1000))

    async def _decide_for_a_while(self) -> bool:
        """Decide and hand out; False if it was stopped before its end to take in what has happened.

        The policy thinks in a thread, so that binds go on and the lease is renewed meanwhile. One that thinks long
        before its first step is let go on for longer, or it would think for nothing.
        """
        loop = asyncio.get_running_loop()
        began = time.perf_counter()
        limit_s, waited_s = 0.0, 0.0
        steps = self.board.decide(self._now_ms())
        try:
            while True:
                async with self._using_board:
                    some, ended, error = await loop.run_in_executor(self._thread, _some, steps)
                handing_s = time.perf_counter()
                for step in some:
                    await self._take(step)
                waited_s += time.perf_counter() - handing_s
                if error is not None:
                    log.error("%s", error)
                    self.board.decide_again()  # what it left undecided is decided at the next wake
                    await asyncio.sleep(RESTARTS_S)
                if ended:
                    return True
                thought_s = time.perf_counter() - began - waited_s
                limit_s = limit_s or thought_s + min(MOST_SLICE_S, max(SLICE_S, 4 * thought_s))
                if self._inbox and thought_s > limit_s:
                    return False
        finally:
            with contextlib.suppress(ValueError):  # cancelled while the thread decides
                steps.close()  # type: ignore[attr-defined]

    async def _take(self, step: Step) -> None:
        if isinstance(step, Bind):
            if self.options.advise:
                self.counts.advised += 1
                self._events.add(Tell(*step[:3], "Advised", writing.in_words(step)))
            elif step.after:
                self._held.append(step)
            else:
                self._under_way.add(step.uid)
                await self._binds.put(step)
        elif isinstance(step, Stop):
            if self.options.advise:
                self._events.add(Tell(*step[:3], "Advised", f"it would be deleted: {step.why}"))
                return
            self._events.add(Tell(*step[:3], step.reason, step.why), warning=True)
            self.counts.stopped += 1
            self._stopping.add(step.uid)
            self._stops.put_nowait((step, 0))
        else:
            self._events.add(step, warning=step.waits)

    async def _release_held(self) -> None:
        """Let those be bound whose place is empty now."""
        still = []
        for step in self._held:
            if any(uid in self.board.entries for uid in step.after):
                still.append(step)
            elif step.uid in self.board.entries:
                self._under_way.add(step.uid)
                await self._binds.put(step)
        self._held = still

    async def _all_bound(self) -> bool:
        """Whether nothing is under way; waits for a moment where something is."""
        if not (self._under_way or self._held or self._inbox or self._stopping):
            return True
        await asyncio.sleep(0.02)
        self._wake.set()
        return False

    # What is done

    async def _bind_all(self) -> None:
        while True:
            step = await self._binds.get()
            try:
                await self._bind(step)
            finally:
                self._under_way.discard(step.uid)

    async def _bind(self, step: Bind) -> None:
        """Bind a pod; what cannot be is given back to the board."""
        why = ""
        for attempt in range(5):
            if self.options.elect:
                await self.lease.until_held()
            entry = self.board.entries.get(step.uid)
            if entry is None or entry.state is not State.PLACED or entry.node != step.node:
                return  # gone, or decided anew
            try:
                await writing.bind(self.api, step)
            except writing.Taken as error:
                log.info("%s/%s: %s", step.namespace, step.name, error)
                self.counts.failed += 1
                self._inbox.append((self._bind_failed, (step, False, "")))
                self._wake.set()
                return
            except ApiError as error:
                why = f"its bind to node {step.node} fails, and is attempted again later: {error}"
                if error.retry_after_s is None and error.status != 409:
                    log.warning("%s/%s: %s", step.namespace, step.name, error)
                    break
                await asyncio.sleep(max(error.retry_after_s or 0.0, backoff_s(attempt)))
            else:
                self.counts.bound += 1
                if self.counts.bound == 1:
                    self.counts.first_bind_s = time.monotonic() - self._began_s
                self._inbox.append((self._is_bound, (step,)))
                self._wake.set()
                return
        self.counts.failed += 1
        self._inbox.append((self._bind_failed, (step, True, why)))
        self._wake.set()

    def _is_bound(self, step: Bind) -> None:
        self.board.bound(step.uid, self._now_ms())
        self._told.pop(step.uid, None)
        self._events.bound(step)

    def _bind_failed(self, step: Bind, again: bool, why: str) -> None:
        self.board.bind_failed(step.uid, self._now_ms(), again=again, why=why)
        if not again and (pod := self.pods.get(step.namespace, step.name)) is not None:
            self.board.pod_changed(pod, self._now_ms())

    async def _stop_all(self) -> None:
        """Delete what is to be stopped. What cannot be deleted now is attempted again; a scheduler that no longer leads
        deletes nothing."""
        while True:
            step, attempt = await self._stops.get()
            if self.options.elect and not self.lease.is_held:
                self._stopping.discard(step.uid)
                continue
            try:
                await writing.stop(self.api, step)
            except ApiError as error:
                log.warning("%s/%s is not stopped yet: %s", step.namespace, step.name, error)
                again = (step, attempt + 1)
                asyncio.get_running_loop().call_later(
                    backoff_s(attempt, most_s=60), self._stops.put_nowait, again
                )
                continue
            self._stopping.discard(step.uid)
            self._inbox.append((self.board.overcommitted.discard, (step.uid,)))
            self._wake.set()

    # What is told

    async def _tell_all(self) -> None:
        """Write events and reasons, a few at a time, and fewer while pods are bound."""
        while True:
            busy = not self._binds.empty()
            await asyncio.sleep(BUSY_TELL_S if busy else TELL_S)
            most = TOLD_WHILE_BUSY if busy else TOLD_AT_ONCE
            try:
                self._stop_overcommitted()
                await self._tell_reasons(most)
                await self._events.write(most)
            except ApiError as error:
                self._events.unwritten(error)

    async def _tell_reasons(self, most: int) -> None:
        for tell, reason, is_new in await self._in_thread(lambda: self._reasons(most)):
            entry = self.board.entries.get(tell.uid)
            if entry is None or entry.state not in WAITS:
                continue  # placed since
            if not self.options.advise:  # where only advice is given, the pods are another scheduler's
                await writing.note_waiting(self.api, tell)
            self._told[tell.uid] = (reason.kind, reason.message, time.monotonic())
            if is_new:
                said = "Refused" if entry.state is State.REFUSED else "FailedScheduling"
                self._events.add(tell._replace(reason=said), warning=True)

    def _reasons(self, most: int) -> list[tuple[Tell, Reason, bool]]:
        """The reasons that are to be written now: those that are new, or were written long ago."""
        now_ms, now_s = self._now_ms(), time.monotonic()
        entries = waiting(self.board.entries.values())
        if not entries:
            return []
        reasons = Reasons(self.board)
        first = self._turn % len(entries)
        told: list[tuple[Tell, Reason, bool]] = []
        for entry in [*entries[first:], *entries[:first]][: 40 * TOLD_AT_ONCE]:
            self._turn += 1
            if entry.state is State.WAITING and now_ms - entry.submit_ms < QUIET_MS:
                continue
            reason = reasons.of(entry)
            kind, message, told_s = self._told.get(entry.uid, ("", "", -1e9))
            if kind == reason.kind and (message == reason.message or now_s - told_s < AGAIN_S):
                continue
            tell = Tell(entry.uid, entry.namespace, entry.name, "Unschedulable", reason.message)
            told.append((tell, reason, kind != reason.kind))
            if len(told) >= most or time.monotonic() - now_s > EXPLAIN_S:
                break
        return told

    def _stop_overcommitted(self) -> None:
        """Delete pods of ours that hold what was given to others, and have not begun: two leaders placed them."""
        for uid in list(self.board.overcommitted):
            entry = self.board.entries.get(uid)
            pod = None if entry is None else self.pods.get(entry.namespace, entry.name)
            if (
                entry is None
                or pod is None
                or pod.metadata.uid != uid
                or pod.status.phase != "Pending"
                or placed_of(pod.metadata.annotations) is None
            ):
                self._inbox.append((self.board.overcommitted.discard, (uid,)))
            elif uid not in self._stopping and pod.metadata.deletion_timestamp is None:
                why = f"the GPUs that it was given on node {entry.node} are other pods' already"
                self._events.add(Tell(uid, entry.namespace, entry.name, "Overcommitted", why), warning=True)
                self.counts.stopped += 1
                self._stopping.add(uid)
                if not self.options.advise:
                    self._stops.put_nowait((Stop(uid, entry.namespace, entry.name, why, "Overcommitted"), 0))


def _some(steps: Iterator[Step]) -> tuple[list[Step], bool, BerthError | None]:
    """The next few steps, whether they were the last, and what the policy raised behind them."""
    found: list[Step] = []
    began = time.perf_counter()
    try:
        for step in steps:
            found.append(step)
            if len(found) >= AT_ONCE or time.perf_counter() - began > BREATH_S:
                return found, False, None
    except BerthError as error:
        return found, True, error
    return found, True, None
