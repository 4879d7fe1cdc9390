"""The scheduler on a cluster: listens, asks the board what to do, does it, and tells why the rest waits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from berth.errors import ApiError, BerthError
from berth.live.kubernetes import names, writing
from berth.live.kubernetes import objects as objects
from berth.live.kubernetes.board import Board
from berth.live.kubernetes.client import Api, backoff_s
from berth.live.kubernetes.entries import Settings, waiting
from berth.live.kubernetes.informer import Informer
from berth.live.kubernetes.lease import Leadership
from berth.live.kubernetes.placements import placed_of
from berth.live.kubernetes.reasons import Reasons
from berth.live.kubernetes.steps import Bind, Step, Stop, Tell
from berth.live.kubernetes.warming import warm_up

__all__ = ["Options", "Scheduling"]

log = logging.getLogger(__name__)

BINDERS = 48
"""Binds under way at once: beyond that an API server on two cores gets no faster."""
MOST_UNBOUND = 4 * BINDERS
"""Decisions that wait for a binder; while there are as many, nothing more is decided."""
SLICE_S = 0.5
"""After so long of deciding, what has happened meanwhile is taken in."""
MOST_SLICE_S = 10.0
"""The same for a policy that thinks long."""
BREATH_S, AT_ONCE = 0.004, 64
"""After so long of deciding, or so many steps, these are handed out."""
TELL_S = 0.5
TOLD_AT_ONCE = 25
"""Pods whose reasons are written each `TELL_S`: binds come first."""
EVENTS_AT_ONCE = 25
QUIET_MS = 1000
"""A pod that waits for less than this is not explained."""
AGAIN_S = 60.0
"""A reason that has changed in its numbers alone is written again after so long."""
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
        self.board = Board(options.settings)
        self.lease = Leadership(api, options.namespace, names.LEASE, options.identity)
        self._events = writing.Events(api, options.settings.scheduler_name)
        self._began_s = time.monotonic()
        self._thread = ThreadPoolExecutor(1, "decide")
        self._using_board = asyncio.Lock()
        self._reset()

    def _reset(self) -> None:
        self._inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._wake = asyncio.Event()
        self._binds: asyncio.Queue[Bind] = asyncio.Queue(MOST_UNBOUND)
        self._held: list[Bind] = []
        self._under_way: set[str] = set()
        self._told: dict[str, tuple[str, str, float]] = {}
        self._turn = 0

    async def run(self) -> None:
        """Warm up, be elected, lead; begin anew when the lease is lost."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, warm_up, self.options.settings)
        while True:
            if self.options.elect and not self.options.advise:
                await self.lease.acquire()
            try:
                if await self._lead():
                    return
            finally:
                if self.options.elect and not self.options.advise:
                    await self.lease.release()
            await asyncio.sleep(RESTARTS_S)
            self.board = Board(self.options.settings)
            self._reset()

    async def _lead(self) -> bool:
        """Decide and do until the lease is lost; True if all is done (`once`)."""
        tasks: list[asyncio.Task[Any]] = []

        def begin(work: Any, name: str) -> asyncio.Task[Any]:
            task = asyncio.create_task(work, name=name)
            tasks.append(task)
            return task

        try:
            if self.options.elect and not self.options.advise:
                begin(self.lease.keep(), "lease")
            listing = begin(self._listen(begin), "listen")
            if await self._first_of(tasks) is not listing:
                return False
            tasks.remove(listing)
            self.board.begin(_now_ms())
            self._wake.set()
            for number in range(BINDERS):
                begin(self._bind_all(), f"bind {number}")
            begin(self._tell_all(), "tell")
            deciding = begin(self._decide_all(), "decide")
            return await self._first_of(tasks) is deciding
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

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
        informers = [
            Informer(self.api, "/api/v1/nodes", objects.Node, changed=self._on(board.nodes.changed),
                     gone=self._on(board.nodes.gone)),
        ]  # fmt: skip
        dra: list[Informer[Any]] = []
        if await self._serves_dra():
            path = "/apis/resource.k8s.io/v1"
            dra = [
                Informer(self.api, f"{path}/resourceslices", objects.ResourceSlice,
                         changed=self._on(board.nodes.slice_changed), gone=self._on(board.nodes.slice_gone)),
                Informer(self.api, f"{path}/resourceclaims", objects.Claim,
                         changed=self._on(board.claim_changed), gone=self._on(board.claim_gone)),
            ]  # fmt: skip
        tasks = {informer: begin(informer.run(), informer.path) for informer in [*informers, *dra]}
        for informer, task in tasks.items():
            await _until_listed(informer, task)
        self._apply_inbox()
        board.nodes.sync(_now_ms())
        self.pods = Informer(
            self.api,
            "/api/v1/pods",
            objects.Pod,
            changed=self._on(self._pod_changed),
            gone=self._on(self._pod_gone),
        )
        await _until_listed(self.pods, begin(self.pods.run(), self.pods.path))
        self._apply_inbox()

    async def _serves_dra(self) -> bool:
        try:
            await self.api.request("GET", "/apis/resource.k8s.io/v1", patience_s=30)
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    def _on(self, what: Callable[..., None]) -> Callable[[Any], None]:
        def note(thing: Any) -> None:
            self._inbox.append((what, (thing,)))
            self._wake.set()

        return note

    def _pod_changed(self, pod: objects.Pod) -> None:
        self.board.pod_changed(pod, _now_ms())

    def _pod_gone(self, pod: objects.Pod) -> None:
        self.board.pod_gone(pod, _now_ms())
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
            self._apply_inbox()
            await self._release_held()
            whole = await self._decide_for_a_while()
            if not whole:
                self._wake.set()
            elif self.options.once and not self._inbox and await self._all_bound():
                return

    async def _until_woken(self) -> None:
        wake_ms = self.board.next_wake_ms(_now_ms())
        if wake_ms is None:
            await self._wake.wait()
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), max(0.001, (wake_ms - _now_ms()) / 1000))

    async def _decide_for_a_while(self) -> bool:
        """Decide and hand out; False if it was stopped before its end to take in what has happened.

        The policy thinks in a thread, so that binds go on and the lease is renewed meanwhile. One that thinks long
        before its first step is let go on for longer, or it would think for nothing.
        """
        loop = asyncio.get_running_loop()
        began = time.perf_counter()
        limit_s = 0.0
        steps = self.board.decide(_now_ms())
        try:
            while True:
                async with self._using_board:
                    some, ended, error = await loop.run_in_executor(self._thread, _some, steps)
                for step in some:
                    await self._take(step)
                if error is not None:
                    log.error("%s", error)
                    await asyncio.sleep(RESTARTS_S)
                if ended:
                    return True
                thought_s = time.perf_counter() - began
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
                self._events.add(Tell(*step[:3], "Advised", _in_words(step, self.options.settings.policy)))
            elif step.after:
                self._held.append(step)
            else:
                self._under_way.add(step.uid)
                await self._binds.put(step)
        elif isinstance(step, Stop):
            self._events.add(Tell(*step[:3], step.reason, step.why), warning=True)
            self.counts.stopped += 1
            if not self.options.advise:
                await writing.stop(self.api, step)
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
        if not (self._under_way or self._held or self._inbox):
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
        for attempt in range(5):
            entry = self.board.entries.get(step.uid)
            if entry is None or entry.state != "placed" or entry.node != step.node:
                return  # gone, or decided anew
            if self.options.elect and not self.lease.is_held:
                break  # another leads, or we do again later
            try:
                await writing.bind(self.api, step)
            except writing.Taken as error:
                log.info("%s/%s: %s", step.namespace, step.name, error)
                self.counts.failed += 1
                self._inbox.append((self._bind_failed, (step, False)))
                self._wake.set()
                return
            except ApiError as error:
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
        self._inbox.append((self._bind_failed, (step, True)))
        self._wake.set()

    def _is_bound(self, step: Bind) -> None:
        self.board.bound(step.uid, _now_ms())
        self._told.pop(step.uid, None)
        text = _in_words(step, self.options.settings.policy)
        self._events.add(Tell(*step[:3], "Scheduled", text, False))

    def _bind_failed(self, step: Bind, again: bool) -> None:
        self.board.bind_failed(step.uid, _now_ms(), again=again)
        if not again and (pod := self.pods.get(step.namespace, step.name)) is not None:
            self.board.pod_changed(pod, _now_ms())

    # What is told

    async def _tell_all(self) -> None:
        """Write events and reasons, a few at a time."""
        while True:
            await asyncio.sleep(TELL_S)
            try:
                await self._tell_reasons()
                await self._events.write(EVENTS_AT_ONCE)
                await self._stop_overcommitted()
            except ApiError as error:
                log.info("%s", error)

    async def _tell_reasons(self) -> None:
        async with self._using_board:
            told = self._reasons()
        for tell in told:
            await writing.note_waiting(self.api, tell)

    def _reasons(self) -> list[Tell]:
        """The reasons that are to be written now: those that are new, or were written long ago."""
        now_ms, now_s = _now_ms(), time.monotonic()
        entries = waiting(self.board.entries.values())
        if not entries:
            return []
        reasons = Reasons(self.board)
        first = self._turn % len(entries)
        told: list[Tell] = []
        for entry in [*entries[first:], *entries[:first]][: 40 * TOLD_AT_ONCE]:
            self._turn += 1
            if entry.state == "waiting" and now_ms - entry.submit_ms < QUIET_MS:
                continue
            if entry.uid not in self.board.entries:
                continue
            reason = reasons.of(entry)
            kind, message, told_s = self._told.get(entry.uid, ("", "", -1e9))
            if kind == reason.kind and (message == reason.message or now_s - told_s < AGAIN_S):
                continue
            self._told[entry.uid] = (reason.kind, reason.message, now_s)
            refused = entry.state == "refused"
            tell = Tell(entry.uid, entry.namespace, entry.name, "Unschedulable", reason.message)
            if kind != reason.kind:
                self._events.add(
                    tell._replace(reason="Refused" if refused else "FailedScheduling"), warning=True
                )
            told.append(tell)
            if len(told) >= TOLD_AT_ONCE:
                break
        return told

    async def _stop_overcommitted(self) -> None:
        """Delete pods of ours that hold what was given to others, and have not begun: two leaders placed them."""
        async with self._using_board:
            overcommitted = list(self.board.overcommitted)
        for uid in overcommitted:
            entry = self.board.entries.get(uid)
            self.board.overcommitted.discard(uid)
            pod = None if entry is None else self.pods.get(entry.namespace, entry.name)
            if (
                entry is None
                or pod is None
                or pod.status.phase != "Pending"
                or placed_of(pod.metadata.annotations) is None
            ):
                continue
            why = f"what it was given on node {entry.node} is held by others"
            await self._take(Stop(uid, entry.namespace, entry.name, why, "Overcommitted"))


async def _until_listed(informer: Informer[Any], task: asyncio.Task[None]) -> None:
    """Wait until all was listed once; raises what the informer raises."""
    listed = asyncio.ensure_future(informer.synced.wait())
    await asyncio.wait([listed, task], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        listed.cancel()
        task.result()


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


def _in_words(step: Bind, policy: str) -> str:
    placed = placed_of({names.PLACEMENT: step.placement})
    gpus = "" if placed is None else "; ".join(
        f"GPU {gpu.index}: {gpu.milli} milli, {gpu.mem_mib} MiB" for gpu in placed.gpus
    )  # fmt: skip
    return f"{policy} places it on node {step.node}{', ' if gpus else ''}{gpus}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
