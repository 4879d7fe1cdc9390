"""Looks at every source while a page is open, once for all pages, and sends all of them the same bytes.

A look is costly, so it is made at most once in the source's own interval, and looks take at most a tenth of the time.
All that happens between two looks is one event.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from berth.console.clock import now_ms
from berth.console.schemas import GpuAnswer
from berth.console.source import Source
from berth.errors import BerthError
from berth.live.driver.snapshot import Gpu, Snapshot

_log = logging.getLogger(__name__)
PATIENCE_S = 2.0
"""How long a page waits for a look; it shows what was seen before then."""
COST_FACTOR = 10.0
"""A source whose look takes 0.5 s is looked at every 5 s."""
HEARTBEAT_S = 15.0
MOST_CHANGED = 500
"""GPUs that one event may carry; after more, pages ask for all of them."""
MOST_WATCHERS = 1000
IDLE_S = 5.0
"""Between two rounds if there is no source at all."""


@dataclass(slots=True)
class Seen:
    """What is known of one source."""

    source: Source
    look: Snapshot | None = None
    why: str = "it has not been looked at yet"
    """Why it is not there; empty if it is."""
    since_ms: int = field(default_factory=now_ms)
    """Since when it is there, or not."""
    gpus_version: int = 0
    jobs_version: int = 0
    looked_s: float = -1e9
    """Monotonic time at which its last look began."""
    changed_s: float = -1e9
    """Monotonic time at which something was last changed there through the console."""
    cost_s: float = 0.0

    @property
    def every_s(self) -> float:
        """How long after the beginning of a look the next one is due."""
        return max(self.source.every_s, COST_FACTOR * self.cost_s)

    def due_s(self, now_s: float) -> float:
        """Seconds until its next look; 0 if no look has begun since something was changed there."""
        if self.changed_s > self.looked_s:
            return 0.0
        return self.looked_s + self.every_s - now_s


class Hub:
    """Looks at the sources for all pages, and tells the pages what has changed."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.boot = secrets.token_hex(4)
        """Of this process: a page that was told by another one draws itself anew."""
        self.version = 0
        self.seen = {source.name: Seen(source) for source in sources}
        self.last = b""
        """The event that was told last."""
        self._sent_gpus: dict[tuple[str, str, int], Gpu] = {}
        self._sent_jobs_version = -1
        self._sent_sources: tuple[Any, ...] = ()
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._watchers: set[asyncio.Queue[bytes]] = set()
        self._poller: asyncio.Task[None] | None = None
        self._gpus: tuple[str, bytes] = ("", b"")
        self._loop: asyncio.AbstractEventLoop | None = None

    # What pages and the API ask

    async def fresh(self) -> dict[str, Seen]:
        """What is known now: sources whose look is due are looked at, for at most `PATIENCE_S`."""
        tasks = [self._look_at(seen) for seen in self.seen.values() if seen.due_s(time.monotonic()) <= 0]
        if tasks:
            await asyncio.wait(tasks, timeout=PATIENCE_S)
        self._compare()  # in any case: a look that took longer than that may have ended since
        return self.seen

    @property
    def jobs_version(self) -> int:
        """Goes up whenever a job comes, goes or changes."""
        return sum(seen.jobs_version for seen in self.seen.values())

    async def gpus(self) -> tuple[str, bytes]:
        """Return the version of all GPUs and their JSON, which is made once for each version."""
        await self.fresh()
        version = f"{self.boot}-{self.version}"
        if self._gpus[0] != version:
            gpus = [(name, gpu) for name, seen in self.seen.items() if seen.look for gpu in seen.look.gpus]
            self._gpus = version, await asyncio.to_thread(_packed, self.version, self.boot, gpus)
        return self._gpus

    def counts(self) -> Counts:
        """Of all sources together."""
        return counts_of(seen.look for seen in self.seen.values() if seen.look is not None)

    def look_soon(self, name: str) -> None:
        """Snapshot at a source again at the next chance: something was changed there."""
        self.seen[name].changed_s = time.monotonic()

    # Telling

    async def watch(self) -> AsyncGenerator[bytes]:
        """The last event and all that come, as server-sent events. A page that reads slowly gets the newest
        alone. A comment comes now and then, so that a dead connection is noticed."""
        queue: asyncio.Queue[bytes] = asyncio.Queue(1)
        self._watchers.add(queue)
        self._loop = asyncio.get_running_loop()
        try:
            if self._poller is None or self._poller.done():
                self._poller = asyncio.create_task(self._poll())
            await self.fresh()
            yield b"retry: 2000\n\n"
            with contextlib.suppress(asyncio.QueueEmpty):
                queue.get_nowait()  # it is the last one, which comes now, or older
            yield _event(self.last)
            while True:
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        event = await queue.get()
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                if not event:
                    return
                yield _event(event)
        finally:
            self._watchers.discard(queue)

    def close(self) -> None:
        """End what pages are being told: they connect again when the console is back. For a handler of signals."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._offer, b"")

    @property
    def full(self) -> bool:
        """Whether no more pages can be told."""
        return len(self._watchers) >= MOST_WATCHERS

    @property
    def watchers(self) -> int:
        """How many pages are being told."""
        return len(self._watchers)

    async def _poll(self) -> None:
        """Snapshot while a page is open."""
        while self._watchers:
            await self.fresh()
            now_s = time.monotonic()
            wait_s = min((seen.due_s(now_s) for seen in self.seen.values()), default=IDLE_S)
            await asyncio.sleep(max(0.05, wait_s))

    def _send(self, event: bytes) -> None:
        self.last = event
        self._offer(event)

    def _offer(self, event: bytes) -> None:
        """Put it in each page's queue in place of what it has not read."""
        for queue in self._watchers:
            if queue.full():
                with contextlib.suppress(asyncio.QueueEmpty):
                    queue.get_nowait()
            queue.put_nowait(event)

    # Looking

    def _look_at(self, seen: Seen) -> asyncio.Task[None]:
        """The look that is under way, or a new one."""
        name = seen.source.name
        task = self._looking.get(name)
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            task = self._looking[name] = asyncio.create_task(self._look(seen))
        return task

    async def _look(self, seen: Seen) -> None:
        began_s = time.monotonic()
        look: Snapshot | None = None
        try:
            look = await asyncio.to_thread(seen.source.look)
            why = ""
        except (BerthError, OSError) as error:
            why = str(error) or repr(error)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            why = f"its answer is not understood ({error!r}); is it of another version of berth?"
        except Exception as error:  # noqa: BLE001  one source must not stop the looks at the others
            _log.exception("the look at %s failed", seen.source.name)
            why = f"the look at it failed ({error!r}); the console's log says where"
        seen.cost_s = time.monotonic() - began_s
        seen.looked_s = began_s
        if bool(why) != bool(seen.why) or (look is None) != (seen.look is None):
            seen.since_ms = now_ms()
        seen.why = why
        before = seen.look
        if look is None or before is None or look.gpus != before.gpus:
            seen.gpus_version += look is not before
        if look is None or before is None or look.jobs != before.jobs or look.waiting != before.waiting:
            seen.jobs_version += look is not before
        seen.look = look

    def _compare(self) -> None:
        """Tell what has changed since the last event, if anything has."""
        here = tuple(
            (
                name,
                seen.why,
                seen.since_ms,
                seen.gpus_version,
                seen.look and (seen.look.policy, seen.look.notes),
            )
            for name, seen in self.seen.items()
        )
        if here == self._sent_sources and self.jobs_version == self._sent_jobs_version and self.last:
            return
        gpus = {
            key_of(name, gpu): gpu
            for name, seen in self.seen.items()
            if seen.look is not None
            for gpu in seen.look.gpus
        }
        changed = [key for key, gpu in gpus.items() if self._sent_gpus.get(key) != gpu]
        whole = len(changed) > MOST_CHANGED or gpus.keys() != self._sent_gpus.keys()
        self._sent_gpus, self._sent_jobs_version, self._sent_sources = gpus, self.jobs_version, here
        self.version += 1
        event = {
            "boot": self.boot,
            "version": self.version,
            "now_ms": now_ms(),
            "jobs": self.jobs_version,
            "counts": asdict(self.counts()),
            "sources": [source_json(seen) for seen in self.seen.values()],
            "gpus": None if whole else [gpu_json(key[0], gpus[key]) for key in changed],
        }
        self._send(json.dumps(event, separators=(",", ":")).encode())


def source_json(seen: Seen) -> dict[str, Any]:
    """A source as pages and the API have it."""
    look = seen.look
    return {
        "name": seen.source.name,
        "here": look is not None,
        "why": seen.why,
        "since_ms": seen.since_ms,
        "at_ms": look.at_ms if look else None,
        "gpus": len(look.gpus) if look else 0,
        "waiting": look.waiting if look else 0,
        "running": look.running if look else 0,
        "policy": look.policy if look else "",
        "notes": list(look.notes) if look else [],
    }


def _event(data: bytes) -> bytes:
    return b"event: look\ndata: " + data + b"\n\n"


def _packed(version: int, boot: str, gpus: Sequence[tuple[str, Gpu]]) -> bytes:
    document = {
        "boot": boot,
        "version": version,
        "now_ms": now_ms(),
        "gpus": [gpu_json(name, gpu) for name, gpu in gpus],
    }
    return json.dumps(document, separators=(",", ":")).encode()


IDLE_PCT = 5.0
"""A held GPU below this use does nothing."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Sums over GPUs and jobs."""

    gpus: int = 0
    held: int = 0
    """GPUs with at least one job."""
    shared: int = 0
    """Of those, with more than one."""
    idle: int = 0
    """Of those that are held and measured, used less than `IDLE_PCT`."""
    free: int = 0
    """GPUs on which nothing is and something may start."""
    use_pct: float | None = None
    """Mean use of the GPUs that are measured; None where none is."""
    waiting: int = 0
    running: int = 0


def counts_of(snapshots: Iterable[Snapshot]) -> Counts:
    """The sums of these looks."""
    snapshots = tuple(snapshots)
    gpus = [gpu for look in snapshots for gpu in look.gpus]
    held = [gpu for gpu in gpus if gpu.tenants]
    measured = [gpu.use_pct for gpu in gpus if gpu.use_pct is not None]
    return Counts(
        gpus=len(gpus),
        held=len(held),
        shared=sum(len(gpu.tenants) > 1 for gpu in held),
        idle=sum(gpu.use_pct is not None and gpu.use_pct < IDLE_PCT for gpu in held),
        free=sum(not (gpu.tenants or gpu.strangers or gpu.health or gpu.drained) for gpu in gpus),
        use_pct=round(sum(measured) / len(measured), 1) if measured else None,
        waiting=sum(look.waiting for look in snapshots),
        running=sum(look.running for look in snapshots),
    )


def key_of(source: str, gpu: Gpu) -> tuple[str, str, int]:
    """What one GPU is known by."""
    return source, gpu.node, gpu.index


def gpu_json(source: str, gpu: Gpu) -> dict[str, Any]:
    """A GPU as every viewer may see it."""
    return {**GpuAnswer.model_validate(gpu).model_dump(), "source": source}
