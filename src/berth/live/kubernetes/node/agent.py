"""The agent of a node looks: what each pod uses, what ended, which GPU ails, and whether limits are really kept.

A process of a pod that holds GPU memory and is no member of its pod's region has lost libberth, or never had it: no
limit holds it. It is reported as an event and a metric. So is a pod whose processes hold more than its regions count.
Two readings must agree: a process joins its region before it makes a context, but may end between the two questions.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from berth.errors import KubernetesError
from berth.files import write_whole
from berth.live.kubernetes.names import MEASURED
from berth.live.kubernetes.node.allotments import CLOSED_MIB, Allotment, Allotments, Holder, Part
from berth.live.kubernetes.node.api_server import ApiServer, Pod
from berth.live.kubernetes.node.reaper import Reaper
from berth.live.kubernetes.placements import Measured
from berth.live.local.cards import Cards, GpuReading, command_of
from berth.live.local.samples import keep_samples
from berth.model import FIRST_LOOK_MS
from berth.partition import Partition, use_of
from berth.partition.checkpoint import start_of
from berth.partition.gpus import plain_uuid
from berth.partition.reconciling import Counted, Difference, Reconciler
from berth.partition.regions import regions_of

log = logging.getLogger(__name__)

LOST_REASON, NONE_REASON = "GpuLimitLost", "GpuWithoutLimit"
EXPORT = "history.tar.gz"
"""In the state folder: the history, for `berth k8s history`."""
REFUSED_REASON, UNCOUNTED_REASON = "GpuMemoryRefused", "GpuMemoryUncounted"
SAMPLES = "samples"
SEEN = "seen"
"""Folder of what `recording` is to take in: a file a pod."""
WINDOW_S = 600.0
"""How often what a pod used since then goes into its application's profile while the pod runs on."""


_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")
Member = tuple[int, int]
"""The inode of a pid namespace, and a pid in it: how a region names a process."""


@dataclass(frozen=True, slots=True)
class PodPart:
    pod: Pod
    container: str
    part: Part
    region: Partition


@dataclass(frozen=True, slots=True)
class Escaped:
    """A process that uses a GPU outside its pod's limit."""

    pod_uid: str
    pid: int
    started: str
    """In ticks since the machine started, which tells it from a later one of its pid."""
    command: str


@dataclass(frozen=True, slots=True)
class View:
    """What one reading showed."""

    readings: tuple[GpuReading, ...] = ()
    parts: tuple[PodPart, ...] = ()
    escaped: tuple[Escaped, ...] = ()
    uncounted: tuple[Difference, ...] = ()
    """By the uid of the pod; without those that have escaped processes."""
    ailing: Mapping[int, str] = field(default_factory=dict)
    given: tuple[tuple[Allotment, Part], ...] = ()
    """What was allotted then."""


def pod_uid_of(pid: int, proc: Path = Path("/proc")) -> str:
    """The uid of the pod whose cgroup a process is in; empty where it is in none, or has ended."""
    try:
        text = (proc / str(pid) / "cgroup").read_text()
    except OSError:
        return ""
    found = _POD.search(text)
    return found[1].replace("_", "-") if found else ""


def is_member(pid: int, members: set[Member]) -> bool:
    """Whether a process, by the host's pid, is among them; one that has ended is."""
    try:
        namespace = os.stat(f"/proc/{pid}/ns/pid").st_ino
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    pids = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [str(pid)])
    return (namespace, int(pids[-1])) in members


class Agent:
    def __init__(
        self,
        state: Path,
        cards: Cards,
        allotments: Allotments,
        api: ApiServer,
        reaper: Reaper,
        pod_of: Callable[[int], str] = pod_uid_of,
        *,
        pods_every_s: float = 10.0,
    ) -> None:
        """`state` is the folder of samples, what has ended, and the history. The API server is asked for the pods of
        this node every `pods_every_s`. `pod_of` tells the uid of the pod that a process belongs to; empty for one of no
        pod."""
        self._state, self._cards, self._allotments, self._api = state, cards, allotments, api
        self._pods_every_s = pods_every_s
        self._reaper, self._pod_of = reaper, pod_of
        self._pods: dict[str, Pod] = {}
        self._listed: Sequence[Pod] = ()
        self._listed_ms = 0
        self._present: frozenset[str] = frozenset()
        """Uids of the pods that the API server last named."""
        self._ledger = Ledger()
        self._reconciler = Reconciler()
        self._suspected: frozenset[Escaped] = frozenset()
        self._reported: set[Escaped | str] = set()
        """Processes that were told of, and uids of pods that were refused memory."""
        self._window_ms: dict[str, int] = {}
        """By the uid of a pod that runs: since when its use is in no profile."""
        self._looks_ms: dict[str, int] = {}
        """By the uid of a pod that was looked at within its window: how long that is at the next look."""
        self.view = View()
        self.out_of_memory = 0
        self.xids: dict[int, str] = {}
        """Of each GPU: the last error that it does not get over."""
        allotments.ending = self._ledger.ending

    async def step(self, now_ms: int) -> View:
        await self._list_pods(now_ms)
        seen: dict[int, str] = {}
        readings = await asyncio.to_thread(
            self._cards.read, lambda pid: seen.setdefault(pid, self._pod_of(pid))
        )
        regions = {name: self._regions(name) for name in self._allotments.given}
        given = tuple(self.given_parts())
        escaped = self._escaped(seen, regions)
        parts = tuple(self._pod_parts(regions))
        lost = {each.pod_uid for each in escaped}
        found = self._reconciler.look(_counted(parts, readings))
        self._keep_samples(readings, now_ms)
        self.view = View(
            readings,
            parts,
            escaped,
            tuple(each for each in found if each.name not in lost),
            self.xids | {reading.index: "lost" for reading in readings if reading.lost},
            given,
        )
        await self._report(escaped)
        self._keep_windows(now_ms)
        await self._reaper.collect(self._listed)
        if self._ledger.keys() - self._known():
            self._listed_ms = 0  # a pod that began and ended between two lists
            await self._list_pods(now_ms)
        await self._close(now_ms)
        return self.view

    async def _list_pods(self, now_ms: int) -> None:
        """Ask for the pods now and then: a thousand nodes that ask at every look would keep an API server busy."""
        if now_ms - self._listed_ms < self._pods_every_s * 1000:
            return
        try:
            self._listed = await self._api.pods()
        except KubernetesError as error:
            log.warning("pods are those of the last look: %s", error)
            return
        self._listed_ms = now_ms
        self._pods |= {pod.uid: pod for pod in self._listed}
        self._present = frozenset(pod.uid for pod in self._listed)

    def _regions(self, name: str) -> list[Partition]:
        return [each for each in regions_of(name, self._allotments.root) if isinstance(each, Partition)]

    @property
    def suspects(self) -> bool:
        """Whether the last look showed memory that no region counts, so that another should follow soon."""
        return self._reconciler.suspects

    @property
    def pods(self) -> list[Pod]:
        return [*self._pods.values()]

    def pods_of(self, allotment: Allotment) -> list[Pod]:
        """The pods that use an allotment: its own, or those that name its claim."""
        key = key_of(allotment.holder)
        return [pod for pod in self._pods.values() if key in keys_of(pod)]

    def _pod_parts(self, regions: Mapping[str, Sequence[Partition]]) -> Iterator[PodPart]:
        for allotment, part in self.given_parts():
            if (card := self._allotments.cards.get(part.index)) is None:
                continue  # it has fallen off the bus
            for region in regions.get(allotment.name, ()):
                uuid = region.uuid if region.hardware is None else region.hardware.gpu
                for pod in self.pods_of(allotment)[:1] if plain_uuid(uuid) == plain_uuid(card.uuid) else ():
                    yield PodPart(pod, allotment.holder.container or allotment.request, part, region)

    def given_parts(self) -> Iterator[tuple[Allotment, Part]]:
        return ((each, part) for each in self._allotments.given.values() for part in each.parts)

    def _keep_samples(self, readings: tuple[GpuReading, ...], now_ms: int) -> None:
        """Note what each pod does on each of its GPUs, a folder a GPU."""
        pods: dict[int, dict[str, tuple[int, ...]]] = {}
        for allotment, part in self.given_parts():
            for pod in self.pods_of(allotment):
                pods.setdefault(part.index, {})[pod.uid] = (part.index,)
        for reading in readings:
            folder = self._state / SAMPLES / str(reading.index)
            folder.mkdir(parents=True, exist_ok=True)
            keep_samples(str(folder), (reading,), now_ms, pods.get(reading.index, {}))

    def _keep_windows(self, now_ms: int) -> None:
        """Have what pods did lately taken into profiles: a service or a notebook may run for months. Within the first
        window, when nothing may be known of their application, all that was sampled of them is taken in: at first after
        `FIRST_LOOK_MS`, and again each time it is twice as long."""
        runs: dict[str, list[PodPart]] = {}
        for each in self.view.parts:
            runs.setdefault(each.pod.uid, []).append(each)
        self._window_ms = {uid: self._window_ms.get(uid, now_ms) for uid in runs}
        self._looks_ms = {uid: look_ms for uid, look_ms in self._looks_ms.items() if uid in runs}
        for uid, parts in runs.items():
            since_ms, card = self._window_ms[uid], self._allotments.cards[parts[0].part.index]
            pod, lasts_ms = parts[0].pod, now_ms - since_ms
            is_full = lasts_ms >= WINDOW_S * 1000
            if is_full or lasts_ms >= self._looks_ms.get(uid, FIRST_LOOK_MS):
                mine = tuple(each.part for each in parts)
                usage = usage_of([each.region for each in parts])
                from_ms = since_ms if is_full else 0  # what an agent sampled before this one is the beginning
                about = pod, mine, usage, card.model, card.mem_mib, now_ms
                keep_seen(self._state, Seen(*about, from_ms, begun=not is_full))
                self._looks_ms[uid] = 2 * lasts_ms
                if is_full:
                    self._window_ms[uid] = now_ms

    def _escaped(
        self, seen: Mapping[int, str], regions: Mapping[str, Sequence[Partition]]
    ) -> tuple[Escaped, ...]:
        """Those that this look and the one before found outside their pod's regions."""
        members: dict[str, set[tuple[int, int]]] = {}
        for name, parts in regions.items():
            for pod in self.pods_of(self._allotments.given[name]):
                members.setdefault(pod.uid, set()).update(
                    (process.pid_namespace, process.pid) for part in parts for process in part.processes
                )
        suspected = frozenset(
            Escaped(uid, pid, start_of(pid), command_of(pid))
            for pid, uid in seen.items()
            if uid and not is_member(pid, members.get(uid, set()))
        )
        both = suspected & self._suspected
        self._suspected = suspected
        return tuple(sorted(both, key=lambda each: each.pid))

    async def _report(self, escaped: tuple[Escaped, ...]) -> None:
        """Report each process outside its pod's limit, and each pod that reached its limit, once: a program that
        continues may not say so."""
        news: dict[Escaped | str, tuple[Pod, str, str]] = {}
        for each in escaped:
            if (pod := self._pods.get(each.pod_uid)) is None:
                continue
            uses = f"process {each.pid} ({each.command}) uses a GPU"
            if any(pod in self.pods_of(one) for one in self._allotments.given.values()):
                why = "outside the limit of its pod: libberth is not in it, so nothing holds it to its share"
                news[each] = pod, LOST_REASON, f"{uses} {why}"
            else:
                news[each] = pod, NONE_REASON, f"{uses}, and its pod was given no part of one by berth"
        for of in self.view.parts:
            if of.region.refused:
                what = (
                    f"a call for memory of GPU {of.part.index} was refused, because the pod's part of it is"
                    f" {of.region.limit_bytes >> 20} MiB; the pod goes on if its program does"
                )
                news.setdefault(of.pod.uid, (of.pod, REFUSED_REASON, what))
        for more in self.view.uncounted:
            news[f"uncounted {more.name}"] = self._pods[more.name], UNCOUNTED_REASON, more.text("the pod")
        for about, message in news.items():
            if about not in self._reported:
                try:
                    await self._api.warn(*message)
                except KubernetesError as error:
                    log.warning("%s; it will be reported at the next look", error)
                else:
                    self._reported.add(about)
        self._reported &= {*news, *self._pods}

    async def _close(self, now_ms: int) -> None:
        """Note what ended since the last look, and let go of pods that nothing is left of."""
        given = {key_of(each.holder) for each in self._allotments.given.values()}
        for pod in list(self._pods.values()):
            mine = keys_of(pod)
            if not mine & self._ledger.keys() or mine & given:
                continue
            last = await self._last(pod)
            if last is None:
                continue
            parts, usage = self._ledger.take(mine)
            card = self._allotments.cards.get(min((part.index for part in parts), default=0))
            if card is not None:  # if a GPU is gone, what a share was a share of is unknown
                keep_seen(self._state, Seen(last, parts, usage, card.model, card.mem_mib, now_ms))
            self.out_of_memory += ran_out_of_memory(last, usage)
            try:
                await self._api.annotate(last, {MEASURED: msgspec.json.encode(usage).decode()})
            except KubernetesError as error:
                log.warning("what %s used is not written into it: %s", last, error)
            self._pods.pop(pod.uid, None)
        left = given | self._ledger.keys()
        self._pods = {
            uid: pod for uid, pod in self._pods.items() if uid in self._present or keys_of(pod) & left
        }
        if self._listed_ms:  # else the API server has not told of them yet
            self._ledger.take(self._ledger.keys() - self._known() - given)

    def _known(self) -> set[str]:
        return {key for pod in self._pods.values() for key in keys_of(pod)}

    async def _last(self, pod: Pod) -> Pod | None:
        """The pod as it ended; None while the API server does not tell."""
        try:
            found = await self._api.pod(pod.namespace, pod.name)
        except KubernetesError:
            return None
        return found if found is not None and found.uid == pod.uid else pod

    async def record(self) -> None:
        """Have what was seen taken into the history and profiles, by a child."""
        state = self._state
        if not any((state / SEEN).glob("*.json")):
            return
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "berth.live.kubernetes.node.recording", str(state), str(state / EXPORT)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        _, message = await child.communicate()
        if child.returncode:
            log.warning("what was seen is not recorded yet: %s", message.decode(errors="replace")[-500:])


def _counted(parts: Sequence[PodPart], readings: Sequence[GpuReading]) -> Iterator[Counted]:
    """What each pod's regions count on each of its GPUs, and what NVML shows for its processes."""
    runs = {reading.index: reading.runs for reading in readings}
    of_pods: dict[tuple[str, int], list[Partition]] = {}
    for each in parts:
        of_pods.setdefault((each.pod.uid, each.part.index), []).append(each.region)
    for (uid, index), regions in of_pods.items():
        limit_mib = sum(one.limit_bytes for one in regions) >> 20
        peak_mib = sum(-(-one.peak_bytes >> 20) for one in regions)
        seen_mib = runs.get(index, {}).get(uid, (None, 0))[1]
        yield Counted(uid, index, limit_mib, peak_mib, sum(len(one.processes) for one in regions), seen_mib)


def usage_of(parts: Sequence[Partition]) -> Measured:
    """Of the regions of one allotment; those of GPUs that are not its own do not count."""
    return Measured(*use_of([part for part in parts if part.limit_bytes >> 20 != CLOSED_MIB]))


@dataclass(slots=True)
class _Open:
    parts: list[Part] = field(default_factory=list)
    usage: Measured = field(default_factory=Measured)


class Ledger:
    """By the key of a pod or claim: what was taken back of it and not asked for yet."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}

    def ending(self, allotment: Allotment, parts: Sequence[Partition]) -> None:
        """Note what an allotment used, which is being taken back."""
        entry = self._open.setdefault(key_of(allotment.holder), _Open())
        entry.parts += [part for part in allotment.parts if part not in entry.parts]
        entry.usage += usage_of(parts)

    def take(self, keys: Set[str]) -> tuple[tuple[Part, ...], Measured]:
        """What these used together; it is forgotten here."""
        found = [self._open.pop(key) for key in sorted(keys & self._open.keys())]
        total = sum((each.usage for each in found), Measured())
        return tuple(part for each in found for part in each.parts), total

    def keys(self) -> set[str]:
        return set(self._open)


def key_of(holder: Holder) -> str:
    """What tells holders apart: the uid of a pod, or the name of a claim, by which pods name it."""
    return holder.uid if holder.container else f"{holder.namespace}/{holder.name}"


def keys_of(pod: Pod) -> set[str]:
    """The keys of all that a pod may hold."""
    return {pod.uid, *(f"{pod.namespace}/{claim}" for claim in pod.claims)}


@dataclass(frozen=True, slots=True)
class Seen:
    """A pod that has ended, or runs on, as `recording` takes it in."""

    pod: Pod
    parts: tuple[Part, ...]
    usage: Measured
    model: str
    card_mib: int
    """Of the first of its GPUs, as NVML has them."""
    now_ms: int
    since_ms: int | None = None
    """Of a pod that runs on: samples from then on are new. None: it has ended."""
    begun: bool = False
    """Whether it is taken in within its first window, which counts only if nothing else is known of its application."""


def ran_out_of_memory(pod: Pod, usage: Measured) -> bool:
    """Whether a pod failed after calls for memory were refused."""
    return pod.phase == "Failed" and usage.refused > 0


def keep_seen(state: Path, seen: Seen) -> None:
    """Write it down for `recording`, whole or not at all."""
    folder = state / SEEN
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{seen.pod.uid}.json", msgspec.json.encode(seen))
