"""The broker: owns the socket, the store and the jobs; whatever is killed, it comes back and goes on.

Without NumPy, so that it is small. What may become of a job is said in `book`; here is the doing: files, processes,
the clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from berth.errors import LiveError, StoreError
from berth.growth import Growth
from berth.live.driver.defaults import DEFAULT_GROW, DEFAULT_KNOWLEDGE, MACHINE_POLICY
from berth.live.driver.idling import Idling
from berth.live.driver.suspending import Suspending
from berth.live.local.book import Book, Changes
from berth.live.local.cards import Cards
from berth.live.local.deciding import Chosen, Deciding
from berth.live.local.entry import (
    CANCELLED,
    COMPLETED,
    OUT_OF_MEMORY,
    RUNNING,
    STARTING,
    End,
    Entry,
    Limits,
)
from berth.live.local.host import BookHost
from berth.live.local.keeping import RECORD_S, Commits, Keeper
from berth.live.local.link import BRAIN, DECIDE_S
from berth.live.local.log import Log
from berth.live.local.notices import Notices, Unsent
from berth.live.local.places import Places
from berth.live.local.recovery import Numbers, started_since
from berth.live.local.request import PER_GPU
from berth.live.local.runner import Runner
from berth.live.local.runs import boot_id, boot_ms
from berth.live.local.store import Statement, Store, of_attempt, of_entry, of_meta, of_used
from berth.live.local.watching import Watch

LIMITS_S = 0.5
EXPORT_AGAIN_S = 5.0
"""When to try again to serve metrics."""
START_AGAIN_S = 1.0
"""When to look again at a start of which nothing could be found out."""
MENDED_SHOWN_MS = 86_400_000
"""A broken store that was mended is told of for this long."""
PR_SET_CHILD_SUBREAPER = 36

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Answers one client."""


class Broker:
    """One queue, from when its store was opened."""

    def __init__(
        self,
        places: Places,
        store: Store,
        cards: Cards,
        log: Log,
        *,
        cpus: float | None = None,
        brain: str = BRAIN,
        decide_s: float = DECIDE_S,
        record_s: float = RECORD_S,
        metrics: str = "",
        uncounted: str = "report",
        grow: str = DEFAULT_GROW,
        per_gpu: int = PER_GPU,
        chosen: Chosen | None = None,
    ) -> None:
        """With `grow` `on`, GPU memory grows up to the card for jobs that say only what they begin with; with `suspend`
        the job that matters least leaves if there is no room. `per_gpu` jobs at most share a GPU that ask for GPU
        memory alone. `chosen` is to decide from now on; None: what did
        before."""
        self.places = places
        self.store = store
        self.cards = cards
        self.log = log
        self.boot = boot_id()
        self._offset_ms = self._clock()
        cpu_milli = round((cpus or os.cpu_count() or 1) * 1000)
        cards_mib = tuple(card.mem_mib for card in cards.cards)
        limits = Limits(cards_mib, cpu_milli, _machine_mib(), grow != "off", per_gpu)
        self.book = Book(limits, self.boot, ended_states=store.ended_states)
        number, serial, self._request_key = store.largest()
        self.book.number_from((number + 1, serial + 1))
        self.numbers = Numbers(places)
        self.notices = Notices(places.notices, log, store.meta("unsent", {}), self._keep_unsent)
        mended = store.meta("mended", {})
        self._reconciled = bool(mended.get("reconciled", True))
        recent = bool(mended) and mended["at_ms"] > time.time_ns() // 1_000_000 - MENDED_SHOWN_MS
        self.mended = str(mended["text"]) if recent else ""
        """What was done about a broken store lately."""
        if not self._reconciled:
            self.book.number_from((max(number + 1, self.numbers.first_free()), serial + 1))
        self.policy = str(store.meta("policy", MACHINE_POLICY))
        """What decided before, until what was chosen does."""
        before = Chosen(
            self.policy, str(store.meta("knowledge", DEFAULT_KNOWLEDGE)), tuple(store.meta("paths", []))
        )
        self._kept_starts = str(store.meta("learned_starts", ""))
        self.commits = Commits(store, self._collect, log)
        self.suspending: Suspending[Entry]
        self.deciding = Deciding(
            self.book,
            cards.nodes(limits),
            places.history,
            chosen or before,
            log,
            now_ms=self.now_ms,
            act=self.act,
            wake_at=self.wake_at,
            is_ready=self._send_others,
            has_decided=lambda seconds: self.counters.decided.add(seconds),
            brain=brain,
            decide_s=decide_s,
            can_suspend=lambda: not self.suspending.trouble,
            learned_starts=self._kept_starts,
            samples=places.samples,
        )
        self.link = self.deciding.link
        self.runner = Runner(
            places,
            cards.cards,
            fake=cards.fake,
            texts=store.text,
            began=self._began,
            ended=self._ended,
            log=log,
            to_ms=lambda at_ms: at_ms + self._offset_ms,
            joined=lambda entry: self.growth.begin(entry),
        )
        self.watch = Watch(
            self.book,
            cards,
            self.runner,
            places.samples,
            log,
            now_ms=self.now_ms,
            act=self.act,
            suspend=self._suspend,
            uncounted=uncounted,
        )
        host = BookHost(
            self.book,
            cards.cards,
            self.runner,
            self.watch,
            log,
            self.now_ms,
            self.act,
            self._moved,
            cards.fake,
            places.fake_card,
        )
        self.suspending = Suspending(
            host,
            leaves=lambda entry: self.growth.leaves(entry),
            runs_on=lambda entry: self.growth.go_on(entry),
        )
        self.growth = Growth(
            host,
            can_suspend=lambda entry: not self.suspending.why_not(entry),
            suspends=grow == "suspend",
        )
        self.idling = Idling(host, self.growth, self.suspending)
        self.keeper = Keeper(
            store,
            self.commits,
            places,
            cards.cards,
            log,
            record_s=record_s,
            now_ms=self.now_ms,
            used_number=lambda: self.book.next_number - 1,
            forget=self.runner.forget,
            learned=lambda path: self.book.add_event({"event": "profile", "path": path}),
        )
        self.counters = Counters()
        self._wake: asyncio.TimerHandle | None = None
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._deferred: list[Entry] = []
        self._unwritten_ends: dict[str, Entry] = {}
        self.stopped = asyncio.Event()
        self.settings = {
            **store.meta("settings", {}), "metrics": metrics, "grow": grow, "per_gpu": per_gpu, "uncounted": uncounted
        }  # fmt: skip
        """What it was started with."""
        self.metrics = metrics
        """Where metrics are served: a port, or a path of a socket; empty: nowhere."""
        self.export_trouble = ""
        """Why no metrics are served."""
        self.began = False
        """Whether it is up; before, its policy may yet be refused."""
        self.drained: frozenset[int] = frozenset(store.meta("drained", []))
        """The GPUs on which nothing new starts, because an operator said so; kept over restarts."""

    # The clock

    def _clock(self) -> int:
        """What is to be added to the time since the machine started, ms. Within one start of the machine it stays, so
        that a clock that jumps changes no job's times."""
        saved = self.store.meta("clock")
        if saved and saved["boot"] == self.boot:
            return int(saved["offset_ms"])
        offset_ms = time.time_ns() // 1_000_000 - boot_ms()
        self.store.write([of_meta("clock", {"boot": self.boot, "offset_ms": offset_ms})])
        return offset_ms

    def now_ms(self) -> int:
        """Milliseconds since 1970, as the clock was when the machine's queue first started."""
        return boot_ms() + self._offset_ms

    # Life

    async def run(self, serve: Serve, measured: Callable[[], dict[str, Any]], *, anew: bool = False) -> None:
        """Serve clients, and metrics of what is `measured`, until a signal stops it. With `anew`, the chosen policy did
        not decide before: LiveError if it cannot."""
        loop = asyncio.get_running_loop()
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        loop.add_signal_handler(signal.SIGCHLD, self.runner.reap)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopped.set)
        loop.set_exception_handler(self._failed)
        committing = asyncio.create_task(supervised("commits", self.commits.run, self.log))
        self._load()
        server = await self._listen(serve)
        refused = None
        if anew:
            refused = await self._first_policy(self.deciding.chosen.policy)
        else:
            self.link.start(self.policy)
            await self._note_policy()
        works: dict[str, Callable[[], Awaitable[None]]] = {
            "limits": self._enforce_limits,
            "keep": self.keeper.run,
            "watch": self.watch.run,
            "notices": self.notices.run,
        }
        if self.metrics:
            works["export"] = partial(self._export, measured)
        tasks = [asyncio.create_task(supervised(name, work, self.log)) for name, work in works.items()]
        self.began = refused is None
        self.log("up", policy=self.policy, jobs=len(self.book.jobs), gpus=len(self.cards.cards))
        _notify("READY=1\nSTATUS=serving")
        if refused is None:
            self.act()
        await self.stopped.wait()
        _notify("STOPPING=1")
        for task in tasks:
            task.cancel()
        server.close()
        self.link.close()
        self.notices.close()
        self.keeper.close()
        self.suspending.close()
        self.growth.close()
        committing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await committing
        await self.commits.close()
        with contextlib.suppress(StoreError, OSError):
            self.store.keep_copy()
            self.runner.sweep(self.book.jobs)
        self.runner.cgroups.close()
        self.store.close()
        with contextlib.suppress(OSError):
            os.unlink(self.places.socket)
        loop.remove_signal_handler(signal.SIGCHLD)
        self.log("down", jobs=len(self.book.jobs))
        if refused is not None:
            raise refused

    async def _first_policy(self, policy: str) -> LiveError | None:
        """Begin with a policy that may not work; the error that ends the queue where it does not."""
        self.link.policy = self.policy
        trying = asyncio.create_task(self.link.change(policy))
        stopped = asyncio.create_task(self.stopped.wait())
        await asyncio.wait({trying, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not trying.done():
            trying.cancel()
            return None
        if isinstance(error := trying.exception(), LiveError):
            self.stopped.set()
            return error
        trying.result()
        await self._keep_policy()
        return None

    async def _listen(self, serve: Serve) -> asyncio.AbstractServer:
        path = self.places.socket
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o111 if os.geteuid() == 0 else 0o177)
        try:
            listener.bind(path)
        except OSError as error:
            raise LiveError(
                f"the socket {path} cannot be made ({error.strerror}); name another with BERTH_SOCKET"
            ) from error
        finally:
            os.umask(mask)
        return await asyncio.start_unix_server(serve, sock=listener, limit=64 << 20, backlog=512)

    def _load(self) -> None:
        now_ms = self.now_ms()
        entries = self.store.live()
        if not self._reconciled:
            entries = self._reconcile(entries)
        self.book.load(entries, now_ms)
        self.runner.sweep(self.book.jobs)
        for entry in list(self.book.jobs.values()):
            if entry.state in (STARTING, RUNNING) and entry.over is None:
                if entry.slots and (entry.idle or not entry.suspension):
                    self.growth.begin(entry)
                self.runner.adopt(entry)
        self.suspending.go_on()

    def _reconcile(self, entries: list[Entry]) -> list[Entry]:
        """The jobs of a store that is older than they are: those that have been started since are found again."""
        by_id = {entry.id: entry for entry in entries}
        found, rows = started_since(self.places.runs, by_id, self.next_request_key, self.boot)
        mended = {**self.store.meta("mended"), "reconciled": True}
        self.store.write([*rows, of_meta("mended", mended), of_used(self.book.next_number - 1)])
        self.log("reconciled", found=[entry.id for entry in found])
        return list((by_id | {entry.id: entry for entry in found}).values())

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.log("callback-failed", what=context.get("message"), why=repr(context.get("exception")))

    async def _export(self, measured: Callable[[], dict[str, Any]]) -> None:
        """Serve metrics; where that cannot be, say why and try again."""
        from berth.live.local.exporter import serve_metrics

        while True:
            self.export_trouble = ""
            try:
                await serve_metrics(self.metrics, measured)
            except (LiveError, OSError) as error:
                why = (
                    str(error)
                    if isinstance(error, LiveError)
                    else f"--metrics {self.metrics}: {error.strerror}"
                )
                self.export_trouble = (
                    f"no metrics are served: {why}; change it with berth down and berth up --metrics"
                )
                self.log("export-failed", why=why)
            await asyncio.sleep(EXPORT_AGAIN_S)

    # What is to be done after anything has happened

    def act(self) -> None:
        """Have written what has changed, tell the brain, stop what is to be stopped."""
        book = self.book
        pending = book.pending
        if pending.entries or pending.attempts or pending.starts or pending.moves:
            self.commits.wake()
        for entry in book.take_stops():
            self.runner.stop(entry)
        if self.link.ready and (event := self.watch.others(self.drained)) is not None:
            book.add_event(event)
        self.deciding.decide()
        wake_ms = book.next_ms()
        if wake_ms is not None:
            self.wake_at(wake_ms)

    def wake_at(self, at_ms: int) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time() + max(0.0, (at_ms - self.now_ms()) / 1000)
        if (
            self._wake is None
            or self._wake.cancelled()
            or self._wake.when() > at
            or self._wake.when() < loop.time()
        ):
            if self._wake is not None:
                self._wake.cancel()
            self._wake = loop.call_at(at, self._woken)

    def _woken(self) -> None:
        self._wake = None
        self.book.tick(self.now_ms())
        self.act()
        self.deciding.decide(anyway=True)

    def _collect(self) -> tuple[list[Statement], Any]:
        """The rows of what has changed, and what follows when they are written."""
        changes = self.book.changes()
        rows = [of_entry(entry) for entry in changes.entries.values()]
        rows += [of_attempt(attempt) for attempt in changes.attempts]
        if self.deciding.learned_starts != self._kept_starts:
            self._kept_starts = self.deciding.learned_starts
            rows.append(of_meta("learned_starts", self._kept_starts))
        self._unwritten_ends |= {entry.id: entry for entry in changes.finished}
        return rows, lambda: self._written(changes)

    def _written(self, changes: Changes) -> None:
        """Start what was to be started once that is written, and tell those who wait for an end."""
        changed = bool(changes.entries or changes.attempts)
        self.keeper.written(changes.settled, len(changes.attempts), changed=changed)
        self.book.written(changes)
        for entry in changes.starts:
            self._start(entry)
        for entry in changes.moves:
            self.suspending.move(entry)
        for entry in changes.finished:
            failed = entry.state not in (COMPLETED, CANCELLED)
            self._notify_user(entry, "fail" if failed and "end" not in entry.request.notify_on else "end")
            if self._unwritten_ends.get(entry.id) is entry:
                del self._unwritten_ends[entry.id]
            for future in self._waiters.pop(entry.id, ()):
                if not future.done():
                    future.set_result(None)

    def _suspend(self, entry: Entry, reason: str) -> str:
        """Have a job leave its GPUs until its user lets it run on; why it cannot."""
        if why := self.suspending.refusals.get(entry.id) or self.suspending.why_not(entry):
            return why
        try:
            self.book.suspend(entry, self.now_ms(), reason)
        except LiveError as error:
            return str(error)
        return ""

    def _start(self, entry: Entry) -> None:
        if entry.state != STARTING:
            return
        if entry.stop:
            self._ended(entry, End(None, never_ran=True))
            return
        if self.suspending.leaving(entry):
            self._deferred.append(entry)  # until the preempted job has gone
            return
        try:
            self.runner.start(entry)
        except Exception as error:  # noqa: BLE001  the starts behind it must go on
            self.log("start-failed", job=entry.id, why=repr(error))
            self._start_failed(entry, str(error))

    def _start_failed(self, entry: Entry, why: str) -> None:
        """A start that broke off: its shim may be there, so that it counts as none only if it was given up in time."""
        try:
            if self.runner.give_up(entry):
                self._ended(entry, End(None, why, never_ran=True))
            else:
                self.runner.adopt(entry)
        except Exception as error:  # noqa: BLE001  such as for too many open files: the job stays where it is
            self.log("start-unknown", job=entry.id, why=repr(error))
            asyncio.get_running_loop().call_later(START_AGAIN_S, self._look_again, entry, entry.start, why)

    def _look_again(self, entry: Entry, start: int, why: str) -> None:
        if entry.state == STARTING and entry.start == start and not self.runner.watches(entry):
            self._start_failed(entry, why)

    # What processes do

    def _began(self, entry: Entry, start_ms: int) -> None:
        self.book.confirmed(entry, min(start_ms, self.now_ms()), self.now_ms())
        self.counters.waited.add(max(0, start_ms - entry.queued_ms) / 1000)
        self.log("began", job=entry.id, attempt=entry.attempt, gpus=entry.slots)
        self._notify_user(entry, "start")
        self.act()

    def _ended(self, entry: Entry, end: End) -> None:
        self.growth.end(entry)
        if end.no_room:
            self.watch.soon()
        self.book.ended(entry, end, self.now_ms())
        self.counters.ended[entry.over_as or "again" if entry.over is not None else entry.state] += 1
        self.counters.refused += end.refused
        if (entry.over_as if entry.over is not None else entry.state) == OUT_OF_MEMORY:
            self._notify_user(entry, "out-of-memory")
        self.log("ended", job=entry.id, state=entry.state, code=end.code, reason=entry.reason)
        self._moved()

    def _moved(self) -> None:
        """A job has left its GPUs, or has come back to them: those that waited for that go on."""
        deferred, self._deferred = self._deferred, []
        for each in deferred:
            self._start(each)
        self.growth.room_made()
        self.suspending.retry()
        self.act()

    def _notify_user(self, entry: Entry, event: str) -> None:
        self.notices.post(entry, event, self.runner.output_of(entry)[0])

    async def _keep_unsent(self, unsent: Unsent) -> None:
        with contextlib.suppress(StoreError):  # the log has it, and the job until the broker ends
            await self.commits.ask([of_meta("unsent", unsent)])

    # The policy

    async def change_policy(self, policy: str, knowledge: str, folder: str) -> None:
        """Decide by another policy or knowledge; an empty one stays. `folder` is where a user's own is looked up."""
        chosen = self.deciding.chosen
        paths = (folder,) if ":" in policy + knowledge else chosen.paths
        await self.deciding.change(Chosen(policy or self.link.policy, knowledge or chosen.knowledge, paths))
        await self._keep_policy()

    async def _keep_policy(self) -> None:
        self.policy, chosen = self.link.policy, self.deciding.chosen
        saved = (("policy", self.policy), ("knowledge", chosen.knowledge), ("paths", chosen.paths))
        await self.commits.ask([of_meta(*each) for each in saved])
        await self._note_policy()

    async def drain(self, drained: frozenset[int]) -> None:
        await self.commits.ask([of_meta("drained", sorted(drained))])
        self.drained = drained
        self.act()

    def _send_others(self) -> None:
        if (event := self.watch.others(self.drained, anew=True)) is not None:
            self.book.add_event(event)

    async def _note_policy(self) -> None:
        """Keep which policy decides since when, and what the machine is, for replays of the history."""
        policies = list(self.store.meta("policies", []))
        if not policies or policies[-1][1] != self.policy:
            policies.append([self.now_ms(), self.policy])
        await self.commits.ask(
            [of_meta("policies", policies[-1000:]), of_meta("nodes", self.cards.nodes(self.book.limits))]
        )

    # Time limits, and what is done now and then

    async def _enforce_limits(self) -> None:
        while True:
            await asyncio.sleep(LIMITS_S)
            now_ms = self.now_ms()
            for entry in list(self.book.active.values()):
                limit_ms = entry.request.time_limit_ms
                if entry.state == RUNNING:
                    self.runner.keep_limit(entry)
                if entry.state == RUNNING and limit_ms and entry.ran_ms(now_ms) >= limit_ms:
                    self.book.expire(entry, now_ms)
            self.idling.look()
            self.act()

    # For the service

    def next_request_key(self) -> int:
        self._request_key += 1
        return self._request_key

    def reserve_numbers(self) -> None:
        """See to it that no number that was given out is used again; StoreError where the disk is full."""
        try:
            self.numbers.reserve(self.book.next_number)
        except OSError as error:
            why = f"{self.places.numbers} cannot be written ({error.strerror}); free some room on its disk"
            self.commits.doubt(full := StoreError(why))
            raise full from error

    @property
    def just_finished(self) -> dict[str, Entry]:
        """Jobs that have come to their end and of which the store may not know it yet."""
        return {**self._unwritten_ends, **{entry.id: entry for entry in self.book.pending.finished}}

    def on_end(self, job_id: str) -> asyncio.Future[None]:
        """Done when the job has come to its end and that is written."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(job_id, []).append(future)
        return future

    def wait_no_longer(self, job_id: str, future: asyncio.Future[None]) -> None:
        """Forget a future of `on_end` that is no longer waited for."""
        those = self._waiters.get(job_id, [])
        if future in those:
            those.remove(future)
        if not those:
            self._waiters.pop(job_id, None)


def _machine_mib() -> int:
    with open("/proc/meminfo") as file:
        return int(file.readline().split()[1]) >> 10


def _notify(text: str) -> None:
    """Tell systemd (sd_notify)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
        notifier.connect("\0" + address[1:] if address.startswith("@") else address)
        notifier.send(text.encode())


WAIT_S = (0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 4 * 3600.0, 24 * 3600.0)
DECISION_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)


class Histogram:
    """Counts of values up to bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.total += value
        at = next((at for at, bound in enumerate(self.bounds) if value <= bound), len(self.bounds))
        self.counts[at] += 1

    def to_dict(self) -> dict[str, Any]:
        """Cumulated counts, as Prometheus wants them."""
        summed, buckets = 0, []
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            summed += count
            buckets.append([str(bound), summed])
        return {"buckets": buckets, "sum": self.total}


class Counters:
    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()
        self.submitted = 0
        self.refused = 0
        self.waited = Histogram(WAIT_S)
        self.decided = Histogram(DECISION_S)


PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0


async def supervised(
    name: str, work: Callable[[], Awaitable[None]], log: Callable[..., None], *, pause_s: float = PAUSE_S
) -> None:
    """Run `work` until it returns or is cancelled. If it raises, log why and run it again after `pause_s`, and after
    twice as long each time it fails again within a minute, at most 30 s."""
    loop = asyncio.get_running_loop()
    failures = 0
    while True:
        began_s = loop.time()
        try:
            await work()
            return
        except Exception as error:  # noqa: BLE001  whatever it is, the task must go on
            failures = 1 if loop.time() - began_s > STEADY_S else failures + 1
            log("task-failed", task=name, why=repr(error), trace=traceback.format_exc()[-2000:])
        await asyncio.sleep(min(pause_s * 2 ** min(failures - 1, 10), LONGEST_PAUSE_S))
