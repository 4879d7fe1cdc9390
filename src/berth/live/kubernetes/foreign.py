"""What others use of the nodes: pods of other schedulers, and claims that another scheduler allocated."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from berth.errors import AskError, SchedulerError
from berth.live.kubernetes import names
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.constraints import constraint_of
from berth.live.kubernetes.consumed import consumed_of
from berth.live.kubernetes.entries import Entry
from berth.live.kubernetes.gpu_words import pod_resources
from berth.live.kubernetes.node_book import NodeBook
from berth.live.kubernetes.placements import Placed, slots_of
from berth.live.kubernetes.slices import SliceGpu
from berth.model import GpuSlot, Share
from berth.scheduler import Scheduler

log = logging.getLogger(__name__)

_DEVICE = re.compile(r"gpu-(\d{1,4})(-.+)?")
"""A GPU, or an instance of MIG on it."""
WHOLE = Share(1000, 1 << 24)
"""All of a GPU; the memory is cut to what the card has."""


@dataclass(slots=True)
class _Seat:
    """What one pod takes of its node."""

    node: str
    cpu_milli: int
    mem_mib: int
    gpus: dict[int, Share]
    """By the place of the GPU on its node."""


class Foreign:
    """Counts what is not the scheduler's to give."""

    def __init__(self, scheduler: Scheduler, nodes: NodeBook) -> None:
        self._scheduler = scheduler
        self._nodes = nodes
        self._seats: dict[str, _Seat] = {}
        self._on: dict[str, dict[str, dict[int, Share]]] = {}  # node -> holder -> GPUs
        self._claims: dict[str, set[str]] = {}  # claim -> nodes
        self._claims_on: dict[str, set[str]] = {}  # node -> claims
        self._allocated: dict[str, list[api.Allocated]] = {}

    def sit(self, pod: api.Pod, entry: Entry, placed: Placed | None) -> None:
        """Count a pod on its node."""
        view = self._nodes.views[entry.node]
        try:
            takes = dict(pod_resources(pod))
        except AskError as error:
            log.warning("%s/%s is not counted: %s", entry.namespace, entry.name, error)
            takes = {}
        own = {"cpu", "memory"}
        try:
            others = {key: value for key, value in takes.items() if key not in own and value}
            entry.others = constraint_of(pod, others).others
        except AskError:
            entry.others = ()
        row = self._scheduler.cluster.row_of(entry.node)
        slots = slots_of(placed, view, row) if placed is not None and row is not None else None
        if placed is not None and slots is not None:
            gpus = {
                slot.index: Share(gpu.milli, gpu.mem_mib)
                for slot, gpu in zip(slots, placed.gpus, strict=True)
            }
        else:
            wanted = takes.get(names.RESOURCE, 0) or takes.get("nvidia.com/gpu", 0)
            gpus = dict.fromkeys(self._free_gpus(entry.node, wanted), WHOLE)
        seat = _Seat(entry.node, takes.get("cpu", 0), takes.get("memory", 0), gpus)
        self._seats[entry.uid] = seat
        view.foreign_cpu_milli += seat.cpu_milli
        view.foreign_mem_mib += seat.mem_mib
        if gpus:
            self._on.setdefault(entry.node, {})[entry.uid] = gpus
        self._nodes.assign(entry)
        self._nodes.dirty(entry.node)

    def node_gone(self, node: str) -> list[str]:
        """A node is gone: forget what ran there, for its view and its sums are gone as well. Returns the pods' ids."""
        self._on.pop(node, None)
        pods = [uid for uid, seat in self._seats.items() if seat.node == node]
        for uid in pods:
            del self._seats[uid]
        return pods

    def leave(self, entry: Entry) -> None:
        """A pod is gone."""
        seat = self._seats.pop(entry.uid, None)
        if seat is None:
            return
        self._on.get(seat.node, {}).pop(entry.uid, None)
        view = self._nodes.views.get(seat.node)
        if view is not None:
            view.foreign_cpu_milli -= seat.cpu_milli
            view.foreign_mem_mib -= seat.mem_mib
            self._nodes.unassign(entry)
            self._nodes.dirty(seat.node)

    def claim_changed(self, claim: api.Claim) -> None:
        """Count what a claim was allocated of our devices."""
        uid = f"claim {claim.metadata.uid}"
        self.claim_gone(claim)
        if claim.status.allocation is None:
            return
        results = [each for each in claim.status.allocation.devices.results if each.driver == names.DRIVER]
        if results:
            self._allocated[uid] = results
            self._claims[uid] = {each.pool for each in results}
            for node in self._claims[uid]:
                self._claims_on.setdefault(node, set()).add(uid)
                self._nodes.dirty(node)

    def claim_gone(self, claim: api.Claim) -> None:
        """Forget a claim."""
        uid = f"claim {claim.metadata.uid}"
        self._allocated.pop(uid, None)
        for node in self._claims.pop(uid, ()):
            self._on.get(node, {}).pop(uid, None)
            self._claims_on[node].discard(uid)
            self._nodes.dirty(node)

    def claimed(self, node: str, gpu: SliceGpu) -> Share:
        """What claims were allocated of a GPU: parts of its device, or devices that are parts of it."""
        total = Share(0, 0)
        for uid in self._claims_on.get(node, ()):
            for each in self._allocated[uid]:
                if each.pool == node and (each.device == gpu.device or each.device in gpu.parts):
                    more = gpu.parts.get(each.device) or _consumed(each)
                    total = Share(total.milli + more.milli, total.mem_mib + more.mem_mib)
        return total

    def note(self, node: str) -> None:
        """Tell the scheduler what is used on the GPUs of a node; a GPU on which nothing is to start is used whole."""
        cluster = self._scheduler.cluster
        view, row = self._nodes.views[node], cluster.row_of(node)
        if row is None:
            return
        self._note_claims(node)
        used = {at: WHOLE for at, gpu in enumerate(view.gpus) if not gpu.is_open}
        for gpus in self._on.get(node, {}).values():
            for at, share in gpus.items():
                before = used.get(at, Share(0, 0))
                used[at] = Share(before.milli + share.milli, before.mem_mib + share.mem_mib)
        card_mib = view.model.mem_mib if view.model else 0
        for at in range(len(view.gpus)):
            slot, share = GpuSlot(row, at), used.get(at, Share(0, 0))
            share = Share(min(1000, share.milli), min(card_mib, share.mem_mib) if card_mib else 0)
            if cluster.strangers_on(slot) != share:
                try:
                    self._scheduler.strangers(slot, *share)
                except SchedulerError as error:
                    log.warning("%s", error)

    def _note_claims(self, node: str) -> None:
        # A GPU for pods has claims on it where it was for claims until now.
        places = {gpu.index: at for at, gpu in enumerate(self._nodes.views[node].gpus)}
        for uid in self._claims_on.get(node, ()):
            results = self._allocated[uid]
            gpus: dict[int, Share] = {}
            for each in results:
                named = _DEVICE.fullmatch(each.device)
                at = places.get(int(named[1])) if named and each.pool == node else None
                if named is not None and at is not None:
                    # How large an instance is, its slice said, which is gone.
                    more = WHOLE if named[2] else _consumed(each)
                    held = gpus.get(at, Share(0, 0))
                    gpus[at] = Share(held.milli + more.milli, held.mem_mib + more.mem_mib)
            self._on.setdefault(node, {})[uid] = gpus

    def _free_gpus(self, node: str, wanted: int) -> list[int]:
        """GPUs that a pod may have which does not say which: those that are freest, the last first."""
        cluster = self._scheduler.cluster
        view, row = self._nodes.views[node], cluster.row_of(node)
        taken = {at for gpus in self._on.get(node, {}).values() for at in gpus}
        places = [at for at in reversed(range(len(view.gpus))) if at not in taken]
        if row is not None:
            places.sort(key=lambda at: -cluster.free_on(GpuSlot(row, at)).milli)
        return places[:wanted]


def _consumed(allocated: api.Allocated) -> Share:
    try:
        mem_mib, milli = consumed_of(allocated.consumed_capacity)
    except AskError:
        return WHOLE
    return Share(WHOLE.milli if milli is None else milli, WHOLE.mem_mib if mem_mib is None else mem_mib)
